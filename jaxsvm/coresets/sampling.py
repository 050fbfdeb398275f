"""Score points at queries, draw some with given probabilities, and calibrate their weights to totals of all the points.

Bounds on sensitivities are loose by a large and uneven factor. The largest share of the objective that a point has at
some tens of queries `(w, b)`, plausible machines, is no bound, but close to the sensitivities that matter.

Systematic sampling (Madow 1949) takes a point wherever the running sum of the inclusion probabilities, along an
ordering of the points, passes a whole number from a random offset. Weights are calibrated by Newton's method on the
dual of docs/mathematics.md, which is unconstrained, piecewise quadratic and has a variable a total.

Sources: Deville and Särndal 1992 (case 7); Chambers 1996 (the ridge); docs/mathematics.md, "Coresets".
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from jaxsvm.coresets.measured import MEASURED
from jaxsvm.coresets.pilot import Pilot, solve
from jaxsvm.errors import require
from jaxsvm.numerics import line_search, linear
from jaxsvm.numerics.precision import matmul
from jaxsvm.runtime.arrays import checked, require_positive, require_whole

NEWTON_STEPS, STEP_SIZES = 40, 12  # of calibration, at most; sizes in its line search
LEAST_RIDGE, LEAST_SLOPE = 1e-10, 1e-9  # of its Hessians; the slope at which it ends
LEAST_POINTS = 8  # of a subset


@checked
def sample_size(
    total: float, epsilon: float, delta: float, *, features: int | None = None, queries: int | None = None,
    constant: float = 1.0,
) -> int:  # fmt: skip
    """Return how many independent draws make an epsilon-coreset with probability 1 - delta.

    Args:
        total: The sum t of the sensitivity bounds that the points are drawn by, at least 1.
        epsilon: The relative error, in (0, 1).
        delta: The probability of failure, in (0, 1).
        features: d, for all queries at once: `constant t / epsilon^2 ((d + 1) log t + log 1 / delta)`. The universal
            constant is not known, so this is a heuristic.
        queries: N, for N queries that are fixed before the draw (Bernstein's inequality: a proof).
        constant: The constant of the formula for `features`.

    Raises:
        InputError: If a number is out of its range, or unless exactly one of `features` and `queries` is given.
    """
    for name, value in (("epsilon", epsilon), ("delta", delta)):
        require_positive(name, value)
        require(value < 1, f"{name} is {value}: a number between 0 and 1 is needed.")
    require_positive("total", total)
    require_positive("constant", constant)
    require(total >= 1, f"total is {total}: bounds on sensitivities add up to at least 1.")
    require((features is None) != (queries is None), "features and queries: one is needed, for all queries or some.")
    require_whole("features" if queries is None else "queries", features if queries is None else queries, 1)
    if queries is not None:
        rate = (2 * (total - 1) + 2 * total * epsilon / 3) / epsilon**2
        return math.ceil(rate * math.log(2 * queries / delta))
    assert features is not None
    return math.ceil(constant * total / epsilon**2 * ((features + 1) * math.log(total) + math.log(1 / delta)))


def query_error(total: float, m: int, delta: float) -> float:
    """Return the relative error that one query, fixed before m independent draws, exceeds with probability delta.

    The inverse of `sample_size(total, epsilon, delta, queries=1)`.
    """
    rate = math.log(2 / delta) / m
    linear = total * rate / 3
    return linear + math.sqrt(linear**2 + 2 * (total - 1) * rate)


def independent(key: Array, q: Float[Array, " n"], m: int) -> Int[Array, " m"]:
    """Draw m indices independently, with probabilities proportional to q; pure."""
    ends = jnp.cumsum(q)
    targets = jax.random.uniform(key, (m,), q.dtype) * ends[-1]
    last = jnp.where(q > 0, jnp.arange(q.shape[0], dtype=jnp.int32), 0).max()
    return jnp.minimum(jnp.searchsorted(ends, targets, side="right").astype(jnp.int32), last)


def inclusion(q: Float[Array, " n"], m: Any) -> Float[Array, " n"]:
    """Return `pi = min(1, c q)` with `sum pi = m`; if no more than m points have q > 0, 1 for these; pure."""
    positive = q > 0
    q = q / jnp.maximum(q.sum(), jnp.finfo(q.dtype).tiny)
    few = positive.sum() <= m
    least = jnp.where(positive, q, jnp.inf).min()

    def too_small(log_c: Array) -> Array:  # a logarithm: c may have to be very large
        return jnp.minimum(1, jnp.exp(log_c) * q).sum() < m

    ends = (jnp.log(jnp.asarray(m, q.dtype)) - 1e-3, jnp.log(1 / least) + 1e-3)
    scale = jnp.exp(line_search.bisected(too_small, *ends, 100)[1])  # to rounding; the ends are a little wide of it
    return jnp.where(few, positive.astype(q.dtype), jnp.minimum(1, scale * q))


def systematic(key: Array, pi: Float[Array, " n"], order: Int[Array, " n"], m: int) -> Int[Array, " m"]:
    """Draw m indices, each with its inclusion probability pi, along a permutation of the points; pure, m static.

    The probabilities add up to m, or fewer points than m have the probability 1: the rest of the indices are then n.
    """
    along = jnp.cumsum(pi[order])
    whole = jnp.round(along[-1])
    # Spread the rounding of the last sum over all: exactly m whole numbers are passed.
    along = along * (whole / jnp.maximum(along[-1], 1))
    passed = jnp.floor(along.at[-1].set(whole) + jax.random.uniform(key, (), pi.dtype))
    taken = jnp.diff(passed, prepend=0.0) > 0
    places = jnp.nonzero(taken, size=m, fill_value=pi.shape[0])[0]
    return jnp.append(order, pi.shape[0])[places].astype(jnp.int32)


def totals_of(x: Array, y: Array, h: Array, share: Array) -> Float[Array, "n p"]:
    """Return the calibrated variables of each point, per unit of its weight.

    From points x (best centred), signs y, losses h at the pilot, and dual variables as shares of their boxes.
    """
    pull = (share * y)[:, None]
    of_classes = jnp.stack([(y > 0).astype(h.dtype), (y < 0).astype(h.dtype), h], axis=1)
    return jnp.concatenate([of_classes, pull * x, pull], axis=1)


def calibrated(
    v: Float[Array, " m"], s: Float[Array, " m"], A: Float[Array, "m p"], T: Float[Array, " p"],
    reach: Float[Array, " p"],
) -> Array:  # fmt: skip
    """Return weights near v (0: absent) with `A'v'` near T, the totals over the data; pure.

    s in [0, 1] limits how far each weight may move (0: not at all); `reach` is the mean of `sum v s A^2` over all
    draws, the squared scales of the totals: by one draw's scale, points that it misses would justify any change.
    """
    spread = jnp.sqrt(reach)
    scale = jnp.where(spread > 0, 1 / jnp.where(spread > 0, spread, 1), 0)  # drop totals that every draw meets
    A, gap = A * scale[None, :], (T - matmul(v, A)) * scale
    ridge = MEASURED.ridge_per_total * A.shape[1] / jnp.maximum((v > 0).sum(dtype=v.dtype), 1)
    low, high = 1 / MEASURED.largest_weight_change - 1, MEASURED.largest_weight_change - 1
    width = jnp.where(s > 0, v / jnp.where(s > 0, s, 1), 0)

    def value(t: Array, dot: Array, square: Array) -> Array:
        """Return the dual objective, with `t = s A l`, `dot = gap l` and `square = |l|^2`."""
        kept = jnp.clip(t, low, high)
        return width @ (kept * (t - 0.5 * kept)) - dot + 0.5 * ridge * square

    def newton(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        step, dual, _ = carry
        t = s * matmul(A, dual)
        free = (t > low) & (t < high)
        slope = matmul(v * jnp.clip(t, low, high), A) - gap + ridge * dual
        H = matmul((A * jnp.where(free, v * s, 0)[:, None]).T, A)
        d = -linear.factored(H + (ridge + LEAST_RIDGE) * jnp.eye(len(dual), dtype=dual.dtype)).solve(slope)
        ahead = s * matmul(A, d)
        sizes = 0.5 ** jnp.arange(STEP_SIZES, dtype=dual.dtype)  # all at once, the best one is taken
        values = lax.map(lambda k: value(t + k * ahead, gap @ (dual + k * d), ((dual + k * d) ** 2).sum()), sizes)
        best = values.min()
        size = jnp.where(best < value(t, gap @ dual, (dual**2).sum()), jnp.where(values == best, sizes, 0).max(), 0)
        return step + 1, dual + size * d, (size == 0) | (jnp.abs(slope).max() < LEAST_SLOPE)

    start = (jnp.zeros((), jnp.int32), jnp.zeros_like(T), jnp.asarray(False))
    dual = lax.while_loop(lambda c: (c[0] < NEWTON_STEPS) & ~c[2], newton, start)[1]
    moved = v * (1 + jnp.clip(s * matmul(A, dual), low, high))
    return jnp.where(jnp.isfinite(moved), moved, v)


def pool(
    key: Array, x: Float[Array, "n d"], y: Float[Array, " n"], u: Float[Array, " n"], C: Any, gamma: Float[Array, " n"],
    at: Pilot,
) -> Float[Array, "q d+1"]:  # fmt: skip
    """Return queries as rows `(w, b)`; pure.

    They are the pilot, `(0, +-1)`, and the solutions of subsets that are drawn by the bounds gamma, at several C: large
    subsets, then small ones (`largest`).
    """
    size, large = max(LEAST_POINTS, min(MEASURED.points_per_subset, x.shape[0] // 2)), MEASURED.subsets_solved
    own = np.minimum([size] * large + list(MEASURED.points_per_small_subset), size)[:, None]
    count = len(own)
    draws, values = jax.random.split(key)
    index = independent(draws, gamma, count * size).reshape(count, size)
    share = gamma / jnp.maximum(gamma.sum(), jnp.finfo(u.dtype).tiny)
    weight = u[index] / jnp.maximum(own * share[index], jnp.finfo(u.dtype).tiny)
    weight = jnp.where(np.arange(size) < own, weight, 0)
    # C spread evenly over three decades on a logarithmic scale, one value in each of equal parts, for either size.
    part = np.where(np.arange(count) < large, np.arange(count) / large, (np.arange(count) - large) / (count - large))
    width = np.where(np.arange(count) < large, 1 / large, 1 / (count - large))
    exponent = (part + width * jax.random.uniform(values, (count,), u.dtype)) * 3 - 2

    def solved(lane: tuple[Array, Array, Array]) -> Array:
        index, weight, C = lane
        w, b, *_ = solve(x[index], y[index], C * weight, tol=MEASURED.rough_gap)
        return jnp.append(w, b)

    small = lax.map(solved, (index, weight, C * 10**exponent))
    small = jnp.where(jnp.isfinite(small), small, 0)
    fixed = jnp.zeros((3, x.shape[1] + 1), x.dtype).at[0, :-1].set(at.w).at[:, -1].set(jnp.stack([at.b, 1.0, -1.0]))
    return jnp.concatenate([fixed, small])


def hinges(x: Float[Array, "n d"], y: Float[Array, " n"], queries: Float[Array, "q d+1"]) -> Float[Array, "n q"]:
    """Return the hinge loss of every point at every query."""
    f = matmul(x, queries[:, :-1].T) + queries[None, :, -1]
    return jnp.maximum(0, 1 - y[:, None] * f)


def objectives(queries: Array, h: Float[Array, "n q"], u: Float[Array, " n"], C: Any, share: Any = 1.0) -> Array:
    """Return `F` at every query, `(q,)`, with a share of the regulariser."""
    return share * 0.5 * (queries[:, :-1] ** 2).sum(axis=1) + C * matmul(u, h)


def scores(
    x: Array, y: Array, u: Array, C: Any, queries: Float[Array, "q d+1"], scaled: bool, floor: Any = 0.0
) -> Float[Array, " n"]:
    """Return the largest share of F that each point has at the queries of `pool`, `(n,)`; pure.

    A far point is in every large subset and has no loss at their solutions: only small ones leave it out. These are
    poor machines, so only points that dominate the objective there count.
    """
    h = hinges(x, y, queries)
    F = objectives(queries, h, u, C) + floor
    own = jnp.where(scaled, 0.5 * (queries[:, :-1] ** 2).sum(axis=1) / u.sum(), 0.0)
    tiny = jnp.finfo(u.dtype).tiny
    shares = u[:, None] * (own[None, :] + C * h) / jnp.maximum(F, tiny)[None, :]
    few = len(MEASURED.points_per_small_subset)
    rare = shares[:, -few:].max(axis=1, initial=0)
    return jnp.maximum(shares[:, :-few].max(axis=1, initial=0), jnp.where(rare > MEASURED.dominant_share, rare, 0))


def pulls(x: Array, u: Array, share: Array) -> Float[Array, " n"]:
    """Return the pull `u a |z|` of each point on the pilot's dual vector, in the metric of `sum u a z z'`; pure.

    Here `z = (x, 1)`, and a is the share of each dual variable in its box.
    """
    z = jnp.concatenate([x, jnp.ones((x.shape[0], 1), x.dtype)], axis=1)
    one = jnp.eye(z.shape[1], dtype=x.dtype)
    M = matmul((z * (u * share)[:, None]).T, z)
    M = M + (1e-9 * jnp.trace(M) + jnp.finfo(x.dtype).tiny) * one
    pull = u * share * jnp.linalg.norm(matmul(z, linear.factored(M).lower_solve(one).T), axis=1)
    return jnp.where(jnp.isfinite(pull), pull, 0)
