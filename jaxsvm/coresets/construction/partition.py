"""Partition the classes: weighted k-means++ on `y x` and a few of Lloyd's steps, both classes at once.

Any partition of each class makes valid bounds on sensitivities (docs/mathematics.md, "Coresets") if its means are the
exact weighted ones, which `cells` computes; a good partition makes the bounds small. Sources: Arthur and Vassilvitskii
2007 (seeding). The paper seeds the same way and takes the seeds for centres, which its proof does not allow.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int


class Cells(NamedTuple):
    """A partition as the bounds use it."""

    label: Int[Array, " n"]  # the cell of each point, `(n,)` int32 below 2k: class -1 has the first k
    weight: Float[Array, " n"]  # total weight of a point's cell, `(n,)`
    offset: Float[Array, "n d"]  # `c - y x`, from the point to its cell's exact weighted mean, `(n, d)`
    occupied: Int[Array, ""]  # cells that hold weight, `()`


def partition(
    key: Array, x: Float[Array, "n d"], y: Float[Array, " n"], u: Float[Array, " n"], k: int
) -> Int[Array, " n"]:
    """Return labels of at most k cells per class."""
    side = (y > 0).astype(jnp.int32)
    return nearest(x, side, centres(key, x, y, u, k))


def nearest(x: Float[Array, "n d"], side: Int[Array, " n"], at: Float[Array, "2 k d"]) -> Int[Array, " n"]:
    """Return the label of the nearest centre of each point's own class (0 or 1), `(n,)` int32."""
    _, k, d = at.shape
    products = jnp.matmul(x, at.reshape(2 * k, d).T, precision=lax.Precision.HIGHEST)
    distance = (at**2).sum(axis=2).reshape(1, 2 * k) - 2 * products
    own = jnp.where((jnp.arange(2 * k) >= k)[None, :] == (side[:, None] == 1), distance, jnp.inf)
    least = own.min(axis=1, keepdims=True)  # the index by equality: argmin is a scalar loop on CPUs
    label = jnp.where(own == least, jnp.arange(2 * k, dtype=jnp.int32), 2 * k).min(axis=1)
    return jnp.minimum(label, 2 * k - 1)


def centres(
    key: Array, x: Float[Array, "n d"], y: Float[Array, " n"], u: Float[Array, " n"], k: int
) -> Float[Array, "2 k d"]:
    """Return the centres of k cells of either class, class -1 first, of points with weights u; pure, k static."""
    side = (y > 0).astype(jnp.int32)
    n, d = x.shape

    def seeds_at(key: Array, weight: Array) -> Array:
        """Draw one point of each class, with probability proportional to its weight."""
        of_class = jnp.where(jnp.stack([side == 0, side == 1]), weight, 0)
        return x[jax.vmap(draw)(jax.random.split(key), of_class)]

    def seed(i: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        at, distances = carry
        weight = u * distances
        spread = jnp.stack([jnp.where(side == s, weight, 0).sum() for s in (0, 1)])[side] > 0
        new = seeds_at(jax.random.fold_in(key, i), jnp.where(spread, weight, u))
        distance = ((x - new[side]) ** 2).sum(axis=1)
        return at.at[:, i].set(new), jnp.minimum(distances, distance)

    empty = jnp.zeros((2, k, d), x.dtype)
    first = seeds_at(jax.random.fold_in(key, k), u)
    start = (empty.at[:, 0].set(first), ((x - first[side]) ** 2).sum(axis=1))
    seeds, _ = lax.fori_loop(1, k, seed, start)

    def lloyd(_: Array, at: Array) -> Array:
        label = nearest(x, side, at)
        total = jax.ops.segment_sum(u, label, 2 * k)
        sums = jax.ops.segment_sum(u[:, None] * x, label, 2 * k)
        means = sums / jnp.where(total > 0, total, 1)[:, None]
        return jnp.where((total > 0)[:, None], means, at.reshape(2 * k, d)).reshape(2, k, d)

    return lax.fori_loop(0, 3, lloyd, seeds)


def cells(x: Array, y: Array, u: Array, label: Int[Array, " n"], most: int) -> Cells:
    """Compute the exact weighted means of a partition whose labels are below `most`, for each point."""
    Z = y[:, None] * x
    total = jax.ops.segment_sum(u, label, most)
    safe = jnp.where(total > 0, total, 1)[:, None]
    mean = jax.ops.segment_sum(u[:, None] * Z, label, most) / safe
    # Once more about the mean: adds what the first sum rounded away.
    mean = mean + jax.ops.segment_sum(u[:, None] * (Z - mean[label]), label, most) / safe
    return Cells(label, total[label], mean[label] - Z, (total > 0).sum())


def draw(key: Array, weight: Float[Array, " n"]) -> Int[Array, ""]:
    """Draw an index with probability proportional to its weight; if all are 0, the last one.

    Weights are summed in blocks before they are searched: a cumulative sum of millions loses some of them.
    """
    n, size = weight.shape[0], 512
    blocks = -(-n // size)
    table = jnp.pad(weight, (0, blocks * size - n)).reshape(blocks, size)
    ends = jnp.cumsum(table.sum(axis=1))
    target = jax.random.uniform(key, (), weight.dtype) * ends[-1]
    block = jnp.minimum((ends <= target).sum(), blocks - 1)
    inside = jnp.cumsum(table[block])
    place = (inside <= target - jnp.where(block > 0, ends[block - 1], 0)).sum()
    return jnp.minimum(block * size + jnp.minimum(place, size - 1), n - 1)
