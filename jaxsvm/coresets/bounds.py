"""Sensitivities, the largest share that a point can have of the objective: bounds from above.

The sensitivity of a point is the supremum over all `(w, b)` of `u f(p; w, b) / F(P; w, b)`, with
`F = 1/2 |w|^2 + C sum u h` and the point's own cost `f = |w|^2 / 2U + C h` (`regulariser="scaled"`, the paper's) or
`f = C h` ("pinned"). A partition of each class into cells bounds it: with D the distance of `y x` from the exact mean
of its cell, `U_C` the cell's weight and o a lower bound of the optimum, `gamma = min(1, u / U_C + C u B)`. B "printed"
is the paper's, and NOT a valid bound; "fixed" is its proof, arithmetic corrected; "tight" is the supremum over all w of
a length; "dir" also uses where the optimum lies: points nearer to the margin than their mean count.

Any partition makes valid bounds if its means are the exact weighted ones (the paper takes seeds for them, which its
proof does not allow): here weighted k-means++ on `y x` (Arthur and Vassilvitskii 2007) and a few of Lloyd's steps.

Source: Tukan, Baykal, Feldman and Rus 2020, Lemma 2; proofs, corrections and `dir`: docs/mathematics.md, "Coresets".
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int
from numpy.typing import ArrayLike

from jaxsvm.coresets.pilot import Pilot, solve
from jaxsvm.coresets.sampling import independent
from jaxsvm.coresets.summary import as_data, as_key, centred, padded, room_for
from jaxsvm.errors import InputError, require
from jaxsvm.points.rows import PointsLike, product
from jaxsvm.runtime.arrays import require_one_of, require_positive, require_whole, transfers, zero_filled
from jaxsvm.runtime.programs import Program


class Cells(NamedTuple):
    """A partition as the bounds use it."""

    label: Int[Array, " n"]  # the cell of each point, `(n,)` int32 below 2k: class -1 has the first k
    weight: Float[Array, " n"]  # total weight of a point's cell, `(n,)`
    D: Float[Array, " n"]  # length of Delta, `c - y x`, from the point to its cell's exact weighted mean, `(n,)`
    along: Float[Array, " n"]  # `<Delta, w~>`, with the w of the pilot, `(n,)`
    occupied: Int[Array, ""]  # cells that hold weight, `()`


def partition(
    key: Array, x: Float[Array, "n d"], y: Float[Array, " n"], u: Float[Array, " n"], k: int
) -> Int[Array, " n"]:
    """Return labels of at most k cells per class."""
    side = (y > 0).astype(jnp.int32)
    return nearest(x, side, centres(key, x, y, u, k))


def nearest(x: Float[Array, "n d"], side: Int[Array, " n"], at: Float[Array, "2 k d"]) -> Int[Array, " n"]:
    """Return the label of the nearest centre of each point's own class (0 or 1), `(n,)` int32."""
    k, number = at.shape[1], jnp.arange(2 * at.shape[1], dtype=jnp.int32)
    lengths, flat = (at**2).sum(axis=2).ravel(), at.reshape(2 * k, -1)

    def label(point: tuple[Array, Array]) -> Array:
        own = jnp.where((number >= k) == (point[1] == 1), lengths - 2 * product(flat, point[0]), jnp.inf)
        return jnp.where(own == own.min(), number, 2 * k - 1).min()  # argmin is a scalar loop on CPUs

    return lax.map(label, (x, side), batch_size=ROWS_AT_ONCE)


def centres(
    key: Array, x: Float[Array, "n d"], y: Float[Array, " n"], u: Float[Array, " n"], k: int
) -> Float[Array, "2 k d"]:
    """Return the centres of k cells of either class, class -1 first, of points with weights u; pure, k static."""
    side = (y > 0).astype(jnp.int32)
    n, d = x.shape

    def seeds_at(key: Array, weight: Array) -> Array:
        of_class = jnp.where(jnp.stack([side == 0, side == 1]), weight, 0)
        return x[jax.vmap(lambda key, weight: independent(key, weight, 1)[0])(jax.random.split(key), of_class)]

    def seed(i: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        at, distances = carry
        weight = u * distances
        spread = jnp.stack([jnp.where(side == s, weight, 0).sum() for s in (0, 1)])[side] > 0
        new = seeds_at(jax.random.fold_in(key, i), jnp.where(spread, weight, u))
        return at.at[:, i].set(new), jnp.minimum(distances, ((x - new[side]) ** 2).sum(axis=1))

    empty = jnp.zeros((2, k, d), x.dtype)
    first = seeds_at(jax.random.fold_in(key, k), u)
    start = (empty.at[:, 0].set(first), ((x - first[side]) ** 2).sum(axis=1))
    seeds, _ = lax.fori_loop(1, k, seed, start)

    def lloyd(_: Array, at: Array) -> Array:
        label = nearest(x, side, at)
        total = jax.ops.segment_sum(u, label, 2 * k)
        means = jax.ops.segment_sum(u[:, None] * x, label, 2 * k) / jnp.where(total > 0, total, 1)[:, None]
        return jnp.where((total > 0)[:, None], means, at.reshape(2 * k, d)).reshape(2, k, d)

    return lax.fori_loop(0, LLOYD_STEPS, lloyd, seeds)


def cells(x: Array, y: Array, u: Array, label: Int[Array, " n"], most: int, w: Float[Array, " d"]) -> Cells:
    """Compute what a partition whose labels are below `most` tells of each point, by its exact weighted means."""
    Z = y[:, None] * x
    total = jax.ops.segment_sum(u, label, most)
    safe = jnp.where(total > 0, total, 1)[:, None]
    mean = jax.ops.segment_sum(u[:, None] * Z, label, most) / safe
    # Once more about the mean: adds what the first sum rounded away.
    mean = mean + jax.ops.segment_sum(u[:, None] * (Z - mean[label]), label, most) / safe
    offset = mean[label] - Z
    return Cells(label, total[label], jnp.linalg.norm(offset, axis=1), product(offset, w), (total > 0).sum())


ROWS_AT_ONCE = 8192  # whose distances from all centres are held: bounds memory
LLOYD_STEPS = 3  # of the centres, from k-means++ seeds
FEW_CELLS, MANY_CELLS, MANY_POINTS = (1, 8, 16), (1, 8, 64), 2000  # the first below so many points
BOUNDS = ("dir", "tight", "fixed", "printed")
REGULARISERS = ("pinned", "scaled")


@transfers
def sensitivity(
    x: PointsLike, y: ArrayLike, C: float, sample_weight: ArrayLike | None = None, *, bound: str = "dir",
    regulariser: str = "pinned", clusters: int | tuple[int, ...] | None = None, labels: ArrayLike | None = None,
    key: Array | int | None = None,
) -> np.ndarray:  # fmt: skip
    """Return upper bounds gamma of all sensitivities, `(n,)` float64.

    Args:
        x: Points, `(n, d)`; for a kernel machine its features, such as `jaxsvm.gram(kernel, x, rank=rank).design`.
        y: Signs in {-1, +1}, `(n,)`.
        C: The factor of the loss, positive (the paper's lambda).
        sample_weight: Weights, `(n,)`, not negative.
        bound: "dir", "tight", "fixed", or "printed", which is the paper's and no bound.
        regulariser: "pinned" or "scaled": whether a point's cost has a share of `1/2 |w|^2`, as in the paper.
        clusters: Cells per class, several for the least of several bounds; None: (1, 8, 64), or 16 below 2,000 points.
        labels: A partition to use instead, `(n,)` integers: no cell may hold both classes.
        key: A random key of the partitions, or a seed; None takes key 0.
    """
    require_one_of("bound", bound, BOUNDS)
    require_one_of("regulariser", regulariser, REGULARISERS)
    require_positive("C", C)
    x, y, u = as_data(x, y, sample_weight)
    with jax.enable_x64(True):
        random, scaled, data = as_key(0 if key is None else key), regulariser == "scaled", padded(x, y, u)
        label, counts = None, cluster_counts(clusters, len(y))
        if labels is not None:
            label, most = own_partition(labels, y)
            label, counts = zero_filled(label, len(data[1])), (most,)
        return np.asarray(_sensitivity(random, *data, float(C), label, counts, bound, scaled))[: len(y)]


@Program.full(static=("counts", "bound", "scaled"))
def _sensitivity(
    key: Any, x: Any, y: Any, u: Any, C: Any, label: Any, counts: tuple[int, ...], bound: str, scaled: bool
) -> Array:
    x = centred(x, u)
    at = solve(x, y, C * u)
    if label is None:
        return smallest(key, x, y, u, C, at, counts, bound, scaled)[0]
    return gammas(cells(x, y, u, label, counts[0], at.w), u, C, at, bound, scaled)


def smallest(
    key: Array, x: Array, y: Array, u: Array, C: Array, at: Pilot, counts: tuple[int, ...], bound: str, scaled: bool,
    floor: Any = 0.0,
) -> tuple[Float[Array, " n"], Cells]:  # fmt: skip
    """Return each point's least bound over partitions of several sizes, `(n,)`, and the finest's cells; pure."""
    gamma, cell = jnp.ones_like(u), None
    for i, k in enumerate(sorted(counts)):
        cell = cells(x, y, u, partition(jax.random.fold_in(key, i), x, y, u, k), 2 * k, at.w)
        gamma = jnp.minimum(gamma, gammas(cell, u, C, at, bound, scaled, floor))
    assert cell is not None
    return gamma, cell


def gammas(cell: Cells, u: Array, C: Any, at: Pilot, bound: str, scaled: bool, floor: Any = 0.0) -> Float[Array, " n"]:
    """Return the bounds of one partition, at most 1, and 0 for weight 0; pure.

    `scaled` gives a point's cost its share of the regulariser. A positive `floor` is a lower bound O of the optimum of
    all the data of which these are a part: bounds for the denominator `F + O` are then used where they are smaller (a
    part of one class has the optimum 0, and no other bound than 1).
    """
    tiny = jnp.finfo(u.dtype).tiny
    U = u.sum()
    U_C = jnp.where(cell.weight > 0, cell.weight, 1)
    alpha = jnp.where(scaled, jnp.maximum(U - U_C, 0) / jnp.maximum(U, tiny), 1.0) / (2 * C * U_C)
    o = jnp.maximum(at.dual, jnp.sqrt(tiny))  # keeps products with D^2 from being denormal
    D = cell.D
    if bound == "printed":
        B = 4.5 * jnp.maximum(4 / 9 * alpha, _root(2 * alpha, 2 * D**2 / (9 * o)))
    elif bound == "fixed":
        B = jnp.maximum(3 * alpha, 18 * _root(2 * alpha, D**2 / (18 * o)))
    else:
        B = _tight(alpha, D, o)
    if bound == "dir":
        B = jnp.minimum(B, _directional(alpha, D, o, cell.along, at))
    lower = jnp.asarray(floor, u.dtype)
    with_floor = jnp.where(lower > 0, _root(alpha, D**2 / (2 * jnp.maximum(lower, tiny))), jnp.inf)
    B = jnp.where(D > 0, jnp.minimum(B, with_floor), jnp.minimum(B, 0) if bound in ("dir", "tight") else B)
    return jnp.where(u > 0, jnp.minimum(1, u / U_C + C * u * B), 0)


def _tight(alpha: Array, D: Array, o: Array) -> Array:
    """Return the supremum of `(r D - alpha r^2) / max(o, r^2 / 2)` over r."""
    near = 2 * alpha * jnp.sqrt(2 * o) >= D
    safe = jnp.where(alpha > 0, alpha, 1)
    return jnp.where(near & (alpha > 0), D**2 / (4 * safe * o), D * jnp.sqrt(2 / o) - 2 * alpha)


def _directional(alpha: Array, D: Array, o: Array, projection: Array, at: Pilot) -> Array:
    """Return the bound G; `projection` is `<Delta, w~>`, and the optimum lies within e of the pilot (convexity)."""
    e = jnp.sqrt(2 * jnp.maximum(at.primal - at.dual, 0))
    R = jnp.maximum(0, jnp.linalg.norm(at.w) - e) ** 2
    eta = projection + D * e - alpha * (2 * o + R)
    root = jnp.sqrt(eta**2 + 2 * o * D**2)
    below = jnp.maximum(root - eta, jnp.finfo(o.dtype).tiny)
    return jnp.where(eta < 0, D**2 / below, (eta + root) / (2 * o))


def cluster_counts(clusters: int | tuple[int, ...] | None, n: int) -> tuple[int, ...]:
    """Return the cells per class of each partition; the default serves 1,000 to 250,000 points, and any C, well."""
    clusters = (FEW_CELLS if n < MANY_POINTS else MANY_CELLS) if clusters is None else clusters
    counts = tuple(clusters) if isinstance(clusters, tuple | list) else (clusters,)
    require(len(counts) > 0, "clusters is empty: a number of cells per class, or several are needed.")
    for count in counts:
        require_whole("clusters", count, 1)
    return tuple(min(int(k), room_for(n)) for k in counts)


def own_partition(labels: Any, y: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the cells of a given partition, `(n,)` int32, and their number; refuse one that mixes the classes."""
    codes = np.unique(np.asarray(labels), return_inverse=True)[1].astype(np.int32)
    require(codes.shape == y.shape, f"labels has shape {codes.shape}: one cell a sample is needed, {y.shape}.")
    most = int(codes.max()) + 1
    if (np.bincount(codes[y > 0], minlength=most) * np.bincount(codes[y < 0], minlength=most)).any():
        raise InputError("labels has a cell with points of both classes: partition each class for itself.")
    return codes, most


def _root(a: Array, z: Array) -> Array:
    """Return `sqrt(a^2 + z) - a` without cancellation."""
    below = jnp.sqrt(a**2 + z) + a
    return z / jnp.where(below > 0, below, 1)
