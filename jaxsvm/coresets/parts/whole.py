"""Global sensitivities of data in parts: three looks at each part, no error of merging, `O(K d + m)` memory.

1. A tree of coresets (`nodes.py`) makes a summary. On it, in one place, are made a pilot, cells, and queries. Each
   part's own optimum is a lower bound of what it adds to the whole's, so their sum is one of the whole optimum.
2. Each part adds up its share of what the bounds ask for: exact weights and means of the cells, the objective at all
   queries, the totals that weights are calibrated to (`sums`).
3. Each part scores its own points with these and draws its own (`drawn`): inclusion probabilities `min(1, c q)` with
   one c for all, from the summary, systematically along the cells. So many points as expected come, not exactly m.

What a part computes depends on the part, on its number and on what all share, and on nothing else: to be computed again
after a failure changes no bit.

Source: the paper claims a distributed construction and gives none; this is docs/mathematics.md, "Coresets".
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxsvm.coresets.construction.calibration import calibrated, reach_of
from jaxsvm.coresets.construction.coreset import ETA, PULL
from jaxsvm.coresets.construction.partition import Cells, centres, nearest
from jaxsvm.coresets.construction.queries import hinges, pool
from jaxsvm.coresets.construction.sensitivity import gammas
from jaxsvm.coresets.parts.nodes import Node, room_for
from jaxsvm.coresets.pilot import Pilot, solve
from jaxsvm.coresets.summary import Coreset
from jaxsvm.numerics.linear.elimination import factored


class Frame(NamedTuple):
    """What all parts share in the second look.

    Attributes:
        origin: About which everything is computed, `(d,)`.
        queries: `(w, b)` as rows, `(q, d + 1)`: the pilot first.
        centres: Of the cells, `(2, k, d)`.
        metric: In which pulls are measured, `(d + 1, d + 1)`: an inverse factor.
        C: What multiplies the loss.
        lower: A lower bound of the optimum.
    """

    origin: Any
    queries: Any
    centres: Any
    metric: Any
    C: Any
    lower: Any


class Sums(NamedTuple):
    """What parts add up.

    Attributes:
        weight: Of each cell, `(2k,)`.
        means: The sums of `u y x` over each cell, `(2k, d)`.
        losses: `sum u h` at every query, `(q,)`.
        totals: What weights are calibrated to, `(d + 4,)`.
    """

    weight: Any
    means: Any
    losses: Any
    totals: Any


class Drawn(NamedTuple):
    """What a part draws.

    Attributes:
        x: Points, `(k, d)`.
        y: Signs, `(k,)`.
        u: Their own weights, `(k,)`.
        pi: With which probability they were drawn, `(k,)`.
        total: The sum of the bounds of all the part's points.
        reach: Its part in what totals are measured by, `(d + 4,)`.
    """

    x: np.ndarray
    y: np.ndarray
    u: np.ndarray
    pi: np.ndarray
    total: float
    reach: np.ndarray


def frame(summary: Node, C: float, key: Array, clusters: int, tol: float) -> Frame:
    """What is made of the summary, in one place: so many cells a class, a pilot to this gap."""
    real = summary.weight > 0
    x, y, u = summary.x[real], summary.y[real], summary.weight[real]
    with jax.enable_x64(True):
        made = jax.device_get(_frame(key, *_padded(x, y, u), C, tol, clusters))
        # A summary of parts of one class each has no lower bound to offer: then half of its own optimum stands in.
        lower = float(summary.lower)
        return made._replace(lower=lower if lower > 0.5 * float(made.lower) else 0.5 * float(made.lower))


@partial(jax.jit, static_argnames="clusters")
def _frame(key: Array, x: Array, y: Array, u: Array, C: Any, tol: Any, clusters: int) -> Frame:
    origin = (u @ x) / u.sum()
    x = x - origin
    keys = jax.random.split(key)
    at = solve(x, y, C * u, tol=tol)
    cells = centres(keys[0], x, y, u, clusters)
    share = jnp.where(u > 0, at.a / (C * jnp.where(u > 0, u, 1)), 0)
    z = jnp.concatenate([x, jnp.ones((len(y), 1), x.dtype)], axis=1)
    M = (z * (u * share)[:, None]).T @ z
    M = M + (1e-9 * jnp.trace(M) + jnp.finfo(x.dtype).tiny) * jnp.eye(len(M), dtype=x.dtype)
    queries = pool(keys[1], x, y, u, C, (u > 0).astype(x.dtype), at)  # the summary was drawn by its bounds
    inverse = factored(M).lower_solve(jnp.eye(len(M), dtype=x.dtype))
    return Frame(origin, queries, cells, inverse, jnp.asarray(C, x.dtype), at.dual)


def sums(x: np.ndarray, y: np.ndarray, u: np.ndarray, made: Frame) -> Sums:
    """A part's contribution; add them up in the parts' order."""
    with jax.enable_x64(True):
        return jax.device_get(_sums(*_padded(x, y, u), made))


@jax.jit
def _sums(x: Array, y: Array, u: Array, made: Frame) -> Sums:
    x = x - made.origin
    label, h, A = _seen(x, y, made)
    most = made.centres.shape[0] * made.centres.shape[1]
    means = jax.ops.segment_sum((u * y)[:, None] * x, label, most)
    return Sums(jax.ops.segment_sum(u, label, most), means, u @ h, u @ A)


def _seen(x: Array, y: Array, made: Frame) -> tuple[Array, Array, Array]:
    """Cells, losses at all queries, and the variables that are calibrated: the pull of points inside the margin."""
    label = nearest(x, (y > 0).astype(jnp.int32), made.centres)
    h = hinges(x, y, made.queries)
    pull = (jnp.asarray(h[:, 0] > 0, x.dtype) * y)[:, None]
    return label, h, jnp.concatenate([jnp.stack([y > 0, y < 0, h[:, 0]], axis=1), pull * x, pull], axis=1)


def scale(summary: Node, m: int, made: Frame, known: Sums) -> np.ndarray:
    """What bounds, scores and pulls are multiplied by to make probabilities with the sum m, about, `(3,)`."""
    real = summary.weight > 0
    x, y, v = summary.x[real], summary.y[real], summary.weight[real]
    parts = _scored(x, y, np.ones(len(y)), made, known)[1]  # per point of weight 1, of which there are v
    shares = np.array([ETA, 1 - ETA - PULL, PULL]) / np.maximum(parts @ v, np.finfo(float).tiny)
    q = shares @ parts
    low, high = np.log(m) - 1.0, np.log(m / max(q[q > 0].min(), 1e-300))
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (low, middle) if v @ np.minimum(1, np.exp(middle) * q) >= m else (middle, high)
    return shares * np.exp(high)


def drawn(x: np.ndarray, y: np.ndarray, u: np.ndarray, seed: tuple[int, ...], made: Any, known: Any, by: Any) -> Drawn:
    """A part's draw, from a seed that is the part's own."""
    label, parts, A = _scored(x, y, u, made, known)
    pi = np.minimum(1, by @ parts)
    random = np.random.default_rng(seed)
    order = np.lexsort((random.random(len(y)), label))
    passed = np.floor(np.cumsum(pi[order]) + random.random())
    taken = np.sort(order[np.diff(passed, prepend=0.0) > 0])
    with jax.enable_x64(True):
        reach = jax.device_get(_reach(*_padded(u, pi, A)))
    return Drawn(x[taken], y[taken], u[taken], pi[taken], float(parts[0].sum()), reach)


_reach = jax.jit(reach_of)


def _scored(
    x: np.ndarray, y: np.ndarray, u: np.ndarray, made: Frame, known: Sums
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cells `(n,)`, bounds, scores and pulls `(3, n)`, and what is calibrated, `(n, d + 4)`."""
    with jax.enable_x64(True):
        label, parts, A = jax.device_get(_score(*_padded(x, y, u), made, known))
        return label[: len(y)], parts[:, : len(y)], A[: len(y)]


@jax.jit
def _score(x: Array, y: Array, u: Array, made: Frame, known: Sums) -> tuple[Array, Float[Array, "3 n"], Array]:
    x = x - made.origin
    label, h, A = _seen(x, y, made)
    F = _objectives(made, known)
    safe = jnp.where(known.weight > 0, known.weight, 1)
    offset = (known.means / safe[:, None])[label] - y[:, None] * x
    cell = Cells(label, known.weight[label], offset, (known.weight > 0).sum())
    pilot = made.queries[0]
    at = Pilot(pilot[:-1], pilot[-1], F[0], made.lower, jnp.zeros_like(u))
    gamma = gammas(cell, u, made.C, at, "dir", False)
    score = u * (made.C * h / jnp.maximum(F, jnp.finfo(u.dtype).tiny)).max(axis=1)
    z = jnp.concatenate([x, jnp.ones((len(y), 1), x.dtype)], axis=1)
    pull = u * (h[:, 0] > 0) * jnp.linalg.norm(z @ made.metric.T, axis=1)
    return label, jnp.stack([gamma, jnp.where(u > 0, score, 0), pull]), A


def _objectives(made: Frame, known: Sums) -> Array:
    return 0.5 * (made.queries[:, :-1] ** 2).sum(axis=1) + made.C * known.losses


def finished(parts: list[Drawn], made: Frame, known: Sums, dtype: Any, info: dict[str, Any]) -> Coreset:
    """The coreset of all draws, its weights calibrated to the totals of all the data."""
    x, y, u, pi = (np.concatenate([getattr(part, name) for part in parts]) for name in ("x", "y", "u", "pi"))
    reach = np.sum([part.reach for part in parts], axis=0)
    with jax.enable_x64(True):
        moved = jax.device_get(_calibrated(*_padded(x, y, u / pi), *_padded(pi), reach, made, known))[: len(y)]
        gap = float(_objectives(made, known)[0]) - float(made.lower)
    C = float(made.C)
    info = {"C": C, "C_data": C, "regulariser": "pinned", "share": 1.0, "opt": float(made.lower), "gap": gap} | info
    info |= {"total": sum(part.total for part in parts), "change": float(np.abs(moved * pi / u - 1).max(initial=0))}
    return Coreset(x.astype(dtype), y, moved, info)


@jax.jit
def _calibrated(x: Array, y: Array, v: Array, pi: Array, reach: Array, made: Frame, known: Sums) -> Array:
    A = _seen(x - made.origin, y, made)[2]
    return calibrated(v, jnp.where(v > 0, 1 - pi, 0), A, known.totals, reach)


def _padded(*arrays: np.ndarray) -> list[np.ndarray]:
    """With absent points, so that few programs serve parts of all sizes."""
    n = len(arrays[0])
    return [np.pad(np.asarray(a, float), [(0, room_for(n) - n)] + [(0, 0)] * (a.ndim - 1)) for a in arrays]
