"""Draw data in parts by their global sensitivities: three passes, no error of merging, `O(K d + m)` memory.

1. A tree of coresets (`nodes.py`) makes a summary. A pilot, cells and queries are computed from it, in one place. Each
   part's own optimum is a lower bound of its contribution to the whole optimum, so their sum is one of the whole.
2. Each part adds up its terms of the sums that the bounds use: exact weights and means of the cells, the objective at
   all queries, the totals that weights are calibrated to (`sums`).
3. Each part scores and draws its own points (`drawn`): inclusion probabilities `min(1, c q)` with one c for all, from
   the summary, systematically along the cells. m points are expected, the number drawn varies.

The result of a part depends only on the part, its number and what all parts share: computing it again after a failure
changes no bit.

Source: the paper claims a distributed construction and gives none; derivation: docs/mathematics.md, "Coresets".
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxsvm.coresets.construction.calibration import calibrated, reach_of, totals_of
from jaxsvm.coresets.construction.coreset import shares_of_parts
from jaxsvm.coresets.construction.partition import Cells, centres, nearest
from jaxsvm.coresets.construction.queries import hinges, largest, pool, with_metric
from jaxsvm.coresets.construction.sensitivity import gammas
from jaxsvm.coresets.measured import MEASURED
from jaxsvm.coresets.parts.nodes import Node
from jaxsvm.coresets.pilot import Pilot, solve
from jaxsvm.coresets.summary import Coreset, padded


class Frame(NamedTuple):
    """Values from the summary that all parts share."""

    origin: Any  # the origin of all computations, `(d,)`
    queries: Any  # `(w, b)` as rows, `(q, d + 1)`: the pilot first
    centres: Any  # of the cells, `(2, k, d)`
    metric: Any  # inverse Cholesky factor of the metric of the pulls, `(d + 1, d + 1)`
    C: Any  # the factor of the loss
    lower: Any  # A lower bound of the optimum


class Sums(NamedTuple):
    """Sums over all parts."""

    weight: Any  # of each cell, `(2k,)`
    means: Any  # the sums of `u y x` over each cell, `(2k, d)`
    losses: Any  # `sum u h` at every query, `(q,)`
    totals: Any  # totals that weights are calibrated to, `(d + 4,)`


class Drawn(NamedTuple):
    """The points that a part draws."""

    x: np.ndarray  # points, `(k, d)`
    y: np.ndarray  # signs, `(k,)`
    u: np.ndarray  # their own weights, `(k,)`
    pi: np.ndarray  # their probabilities of being drawn, `(k,)`
    total: float  # the sum of the bounds of all the part's points
    reach: np.ndarray  # the part's term of `reach_of`, `(d + 4,)`


def drawn_globally(
    summary: Node, m: int, C: float, key: Array, clusters: int, seed: tuple[int, ...],
    over_parts: Callable[[Callable[..., Any]], list[Any]], dtype: Any, info: dict[str, Any],
) -> Coreset:  # fmt: skip
    """Make a coreset of m expected points in two passes over the parts, from a coreset of all (the `summary`).

    `over_parts` maps a function f(number, x, y, u) over the parts that have weight, in their order. The draws are
    seeded by `seed` and the number of a part. `clusters` are cells per class, `info` is added to the coreset's.
    """
    real = summary.weight > 0
    with jax.enable_x64(True):
        data = padded(summary.x[real], summary.y[real], summary.weight[real])
        shared = jax.device_get(_frame(key, *data, C, MEASURED.rough_gap, clusters))
    shared = shared._replace(lower=summary.opt)
    known = Sums(*(sum(column) for column in zip(*over_parts(partial(sums, shared)), strict=True)))
    draws = over_parts(partial(drawn, shared, known, _scale(summary, m, shared, known), seed))
    return _finished(draws, shared, known, dtype, info)


@partial(jax.jit, static_argnames="clusters")
def _frame(key: Array, x: Array, y: Array, u: Array, C: Any, tol: Any, clusters: int) -> Frame:
    origin = (u @ x) / u.sum()
    x = x - origin
    keys = jax.random.split(key)
    at = solve(x, y, C * u, tol=tol)
    cells = centres(keys[0], x, y, u, clusters)
    share = jnp.where(u > 0, at.a / (C * jnp.where(u > 0, u, 1)), 0)
    metric = with_metric(x, u, share)[1]
    queries = pool(keys[1], x, y, u, C, (u > 0).astype(x.dtype), at)  # the summary was drawn by its bounds
    return Frame(origin, queries, cells, metric, jnp.asarray(C, x.dtype), at.dual)


def sums(shared: Frame, number: int, x: np.ndarray, y: np.ndarray, u: np.ndarray) -> Sums:
    """Compute a part's terms; add them up in the order of the parts."""
    del number
    with jax.enable_x64(True):
        return jax.device_get(_sums(*padded(x, y, u), shared))


@jax.jit
def _sums(x: Array, y: Array, u: Array, shared: Frame) -> Sums:
    x = x - shared.origin
    label, h, A = _seen(x, y, shared)
    most = shared.centres.shape[0] * shared.centres.shape[1]
    means = jax.ops.segment_sum((u * y)[:, None] * x, label, most)
    return Sums(jax.ops.segment_sum(u, label, most), means, u @ h, u @ A)


def _seen(x: Array, y: Array, shared: Frame) -> tuple[Array, Array, Array]:
    """Return cells, losses at all queries, and the calibrated variables: the pull of points inside the margin."""
    label = nearest(x, (y > 0).astype(jnp.int32), shared.centres)
    h = hinges(x, y, shared.queries)
    return label, h, totals_of(x, y, h[:, 0], jnp.asarray(h[:, 0] > 0, x.dtype))


def _scale(summary: Node, m: int, shared: Frame, known: Sums) -> np.ndarray:
    """Return factors of bounds, scores and pulls, `(3,)`, with which probabilities add up to about m."""
    real = summary.weight > 0
    x, y, v = summary.x[real], summary.y[real], summary.weight[real]
    parts = _scored(x, y, np.ones(len(y)), shared, known)[1]  # per point of weight 1, of which there are v
    shares = np.array(shares_of_parts()) / np.maximum(parts @ v, np.finfo(float).tiny)
    q = shares @ parts
    low, high = np.log(m) - 1.0, np.log(m / max(q[q > 0].min(), 1e-300))
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (low, middle) if v @ np.minimum(1, np.exp(middle) * q) >= m else (middle, high)
    return shares * np.exp(high)


def drawn(
    shared: Frame, known: Sums, scale: np.ndarray, seed: tuple[int, ...], number: int, x: np.ndarray, y: np.ndarray,
    u: np.ndarray,
) -> Drawn:  # fmt: skip
    """Draw from a part with a seed of its own, systematically along its cells."""
    label, parts, A = _scored(x, y, u, shared, known)
    pi = np.minimum(1, scale @ parts)
    random = np.random.default_rng((*seed, number))
    order = np.lexsort((random.random(len(y)), label))
    passed = np.floor(np.cumsum(pi[order]) + random.random())
    taken = np.sort(order[np.diff(passed, prepend=0.0) > 0])
    with jax.enable_x64(True):
        reach = jax.device_get(_reach(*padded(u, pi, A)))
    return Drawn(x[taken], y[taken], u[taken], pi[taken], float(parts[0].sum()), reach)


_reach = jax.jit(reach_of)


def _scored(
    x: np.ndarray, y: np.ndarray, u: np.ndarray, shared: Frame, known: Sums
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return cells `(n,)`, bounds, scores and pulls `(3, n)`, and the calibrated variables, `(n, d + 4)`."""
    with jax.enable_x64(True):
        label, parts, A = jax.device_get(_score(*padded(x, y, u), shared, known))
        return label[: len(y)], parts[:, : len(y)], A[: len(y)]


@jax.jit
def _score(x: Array, y: Array, u: Array, shared: Frame, known: Sums) -> tuple[Array, Float[Array, "3 n"], Array]:
    x = x - shared.origin
    label, h, A = _seen(x, y, shared)
    F = _objectives(shared, known)
    safe = jnp.where(known.weight > 0, known.weight, 1)
    offset = (known.means / safe[:, None])[label] - y[:, None] * x
    cell = Cells(label, known.weight[label], offset, (known.weight > 0).sum())
    pilot = shared.queries[0]
    at = Pilot(pilot[:-1], pilot[-1], F[0], shared.lower, jnp.zeros_like(u))
    gamma = gammas(cell, u, shared.C, at, "dir", False)
    score = largest(u[:, None] * shared.C * h / jnp.maximum(F, jnp.finfo(u.dtype).tiny))
    z = jnp.concatenate([x, jnp.ones((len(y), 1), x.dtype)], axis=1)
    pull = u * (h[:, 0] > 0) * jnp.linalg.norm(z @ shared.metric.T, axis=1)
    return label, jnp.stack([gamma, jnp.where(u > 0, score, 0), pull]), A


def _objectives(shared: Frame, known: Sums) -> Array:
    return 0.5 * (shared.queries[:, :-1] ** 2).sum(axis=1) + shared.C * known.losses


def _finished(parts: list[Drawn], shared: Frame, known: Sums, dtype: Any, info: dict[str, Any]) -> Coreset:
    """Make the coreset of all draws, its weights calibrated to the totals of all the data."""
    x, y, u, pi = (np.concatenate([getattr(part, name) for part in parts]) for name in ("x", "y", "u", "pi"))
    reach = np.sum([part.reach for part in parts], axis=0)
    with jax.enable_x64(True):
        moved = jax.device_get(_calibrated(*padded(x, y, u / pi, pi), reach, shared, known))[: len(y)]
        gap = float(_objectives(shared, known)[0]) - float(shared.lower)
    C = float(shared.C)
    info = {"C": C, "C_data": C, "regulariser": "pinned", "share": 1.0, "opt": float(shared.lower), "gap": gap} | info
    info |= {"total": sum(part.total for part in parts), "change": float(np.abs(moved * pi / u - 1).max(initial=0))}
    return Coreset(x.astype(dtype), y, moved, info)


@jax.jit
def _calibrated(x: Array, y: Array, v: Array, pi: Array, reach: Array, shared: Frame, known: Sums) -> Array:
    A = _seen(x - shared.origin, y, shared)[2]
    return calibrated(v, jnp.where(v > 0, 1 - pi, 0), A, known.totals, reach)
