"""Partitions of the classes: weighted k-means++ on `y x`, a few of Lloyd's steps, both classes at a time.

Any partition of each class makes valid bounds on sensitivities (docs/mathematics.md, "Coresets"), provided that its
means are the exact weighted ones, which `cluster_means` computes: a good one makes them small. Sources: Arthur and
Vassilvitskii 2007 (seeding); the paper seeds the same way and takes the seeds for centres, which its proof does not
allow.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

BLOCK = 512
"""Weights are summed by blocks before they are searched: a cumulative sum of millions loses some of them."""


class Cells(NamedTuple):
    """What the bounds ask of a partition.

    Attributes:
        label: The cell of each point, `(n,)` int32 below 2k: class -1 has the first k.
        weight: Total weight of a point's cell, `(n,)`.
        offset: `c - y x`, from the point to its cell's exact weighted mean, `(n, d)`.
        occupied: Cells that hold weight, `()`.
    """

    label: Int[Array, " n"]
    weight: Float[Array, " n"]
    offset: Float[Array, "n d"]
    occupied: Int[Array, ""]


def partition(
    key: Array, x: Float[Array, "n d"], y: Float[Array, " n"], u: Float[Array, " n"], k: int, rounds: int = 3
) -> Int[Array, " n"]:
    """Labels `(n,)` of at most k cells a class; arguments as for `centres`."""
    side = (y > 0).astype(jnp.int32)
    return nearest(x, side, centres(key, x, y, u, k, rounds))


def nearest(x: Float[Array, "n d"], side: Int[Array, " n"], at: Float[Array, "2 k d"]) -> Int[Array, " n"]:
    """The label of the nearest centre of a point's own class (0 or 1), `(n,)` int32."""
    _, k, d = at.shape
    products = jnp.matmul(x, at.reshape(2 * k, d).T, precision=lax.Precision.HIGHEST)
    distance = (at**2).sum(axis=2).reshape(1, 2 * k) - 2 * products
    own = jnp.where((jnp.arange(2 * k) >= k)[None, :] == (side[:, None] == 1), distance, jnp.inf)
    least = own.min(axis=1, keepdims=True)  # the index by equality: argmin is a scalar loop on CPUs
    label = jnp.where(own == least, jnp.arange(2 * k, dtype=jnp.int32), 2 * k).min(axis=1)
    return jnp.minimum(label, 2 * k - 1)


def centres(
    key: Array, x: Float[Array, "n d"], y: Float[Array, " n"], u: Float[Array, " n"], k: int, rounds: int = 3
) -> Float[Array, "2 k d"]:
    """Centres of k cells of either class, class -1 first; pure, `k` and `rounds` static.

    Args:
        key: A random key.
        x: Points, `(n, d)`.
        y: Signs, `(n,)`.
        u: Weights, `(n,)`; 0: absent.
        k: Cells a class, at least 1.
        rounds: Lloyd's steps after the seeding.
    """
    side = (y > 0).astype(jnp.int32)
    n, d = x.shape

    def seeds_at(key: Array, weight: Array) -> Array:
        """One point of each class, with probability proportional to its weight."""
        of_class = jnp.where(jnp.stack([side == 0, side == 1]), weight, 0)
        return x[jax.vmap(draw)(jax.random.split(key), of_class)]

    def seed(i: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        at, distances = carry
        weight = u * distances
        spread = jnp.stack([jnp.where(side == s, weight, 0).sum() for s in (0, 1)])[side] > 0
        new = seeds_at(jax.random.fold_in(key, i), jnp.where(spread, weight, u))
        distance = ((x - new[side]) ** 2).sum(axis=1)
        return at.at[:, i].set(new), jnp.minimum(distances, distance)

    start = (jnp.zeros((2, k, d), x.dtype), jnp.full((n,), jnp.asarray(1, x.dtype)))
    first = seeds_at(jax.random.fold_in(key, k), u)
    start = (start[0].at[:, 0].set(first), ((x - first[side]) ** 2).sum(axis=1))
    seeds, _ = lax.fori_loop(1, k, seed, start)

    def lloyd(_: Array, at: Array) -> Array:
        label = nearest(x, side, at)
        total = jax.ops.segment_sum(u, label, 2 * k)
        sums = jax.ops.segment_sum(u[:, None] * x, label, 2 * k)
        means = sums / jnp.where(total > 0, total, 1)[:, None]
        return jnp.where((total > 0)[:, None], means, at.reshape(2 * k, d)).reshape(2, k, d)

    return lax.fori_loop(0, rounds, lloyd, seeds)


def cells(x: Array, y: Array, u: Array, label: Int[Array, " n"], most: int) -> Cells:
    """Exact weighted means of a partition whose labels are below `most`, as each point sees them."""
    Z = y[:, None] * x
    total = jax.ops.segment_sum(u, label, most)
    safe = jnp.where(total > 0, total, 1)[:, None]
    mean = jax.ops.segment_sum(u[:, None] * Z, label, most) / safe
    # Once more about the mean: what the first sum rounded away.
    mean = mean + jax.ops.segment_sum(u[:, None] * (Z - mean[label]), label, most) / safe
    return Cells(label, total[label], mean[label] - Z, (total > 0).sum())


def draw(key: Array, weight: Float[Array, " n"]) -> Int[Array, ""]:
    """An index with probability proportional to its weight; of zeros alone the last one."""
    n = weight.shape[0]
    blocks = -(-n // BLOCK)
    table = jnp.pad(weight, (0, blocks * BLOCK - n)).reshape(blocks, BLOCK)
    ends = jnp.cumsum(table.sum(axis=1))
    target = jax.random.uniform(key, (), weight.dtype) * ends[-1]
    block = jnp.minimum((ends <= target).sum(), blocks - 1)
    inside = jnp.cumsum(table[block])
    place = (inside <= target - jnp.where(block > 0, ends[block - 1], 0)).sum()
    return jnp.minimum(block * BLOCK + jnp.minimum(place, BLOCK - 1), n - 1)
