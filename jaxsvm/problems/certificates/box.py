"""The duality gap of a box problem: for solvers as if products were exact, and under rounding for a returned point.

With `r = q - s - b c` the gap is `sum_i (U_i - a_i) max(0, r_i) + a_i max(0, -r_i)`: no term is negative, for any b.
"""

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxsvm.numerics.masks import every
from jaxsvm.numerics.precision import rounded, rounding
from jaxsvm.numerics.products import sums
from jaxsvm.results.fit import Answer, Certificate
from jaxsvm.results.judge import balances, judged

if TYPE_CHECKING:
    from jaxsvm.problems.box import BoxProblem


def certificate(
    problem: "BoxProblem", point: Float[Array, "*two n"], s: Float[Array, "*two n"], bias: Any = None
) -> Certificate:
    """Return the duality gap over `|D|` as if s were exact, for solvers.

    Args:
        problem: The problem.
        point: A point, see `BoxProblem`.
        s: `Q` times each row.
        bias: The b to take; None takes the best one.
    """
    w_s, a, a_s = (s[0], point[1], s[1]) if point.ndim == 2 else (s, point, s)
    b = problem.best_bias(w_s) if bias is None else bias
    r = problem.q - w_s - (0 if problem.c is None else b * problem.c)
    rest = (problem.upper - a) * jnp.maximum(0, r) + a * jnp.maximum(0, -r)
    terms, eps = a * (problem.q - a_s / 2), jnp.finfo(s.dtype).eps
    outside = jnp.where((a < 0) | (a > problem.upper * (1 + 4 * eps)), jnp.ones_like(a), 0)
    dual, gap, size, infeasible = sums(terms, rest, jnp.abs(terms), outside)
    dual = dual + problem.constant
    if point.ndim == 2:
        norm, loss = sums(point[0] * w_s, problem.upper * jnp.maximum(0, r))
        gap, size = norm / 2 + b * problem.e + loss + problem.constant - dual, size + jnp.abs(norm) + loss
    error = 8 * rounding(problem.n, s.dtype) * (size + jnp.abs(b * problem.e) + jnp.abs(problem.constant))
    return judged(dual + gap, dual, gap, jnp.abs(dual), rounding=error, feasible=infeasible == 0)


def certified(
    problem: "BoxProblem", point: Float[Array, "*two n"], s: Float[Array, "*two n"], dtype: np.dtype, bias: Any = None
) -> Answer:
    """Certify a point, in the numbers that the caller gets.

    A rounded bias, and an equality that rounding misses, add to the gap.

    Args:
        problem: The problem, in twice the precision.
        point: A point, numbers of `dtype`, see `BoxProblem`; its gap is infinite if a leaves the box.
        s: `Q` times each row, computed from scratch in twice the precision.
        dtype: Dtype of the numbers that are returned.
        bias: An unregularised bias; None takes the best one.
    """
    w, a, w_s, a_s = (*point, *s) if point.ndim == 2 else (point, point, s, s)
    size = jnp.sqrt(jnp.maximum(problem.diagonal, 0))
    c = jnp.zeros_like(a) if problem.c is None else problem.c
    balance, met, spread, dual = sums(problem.y * w, c * a, jnp.abs(w) * size, a * (problem.q - a_s / 2))
    constant, dual = problem.offset * balance, dual + problem.constant
    best = constant if problem.c is None else problem.best_bias(w_s) if bias is None else bias
    bias = rounded(best, dtype)
    off = bias - best  # 0 but for rounding
    shift = problem.y * off if problem.c is None else bias * problem.c
    r = problem.q - w_s - shift
    missed = jnp.zeros_like(bias) if problem.c is None else jnp.abs(bias * (met - problem.e))
    eps = rounding(problem.n, s.dtype)
    error = eps * (size * spread + jnp.abs(problem.q) + jnp.abs(shift))
    if point.ndim == 2:
        of_bias = bias * problem.e if problem.c is not None else problem.offset * (off * constant + off**2 / 2)
        norm, loss, reach, *sizes = sums(
            w * w_s,
            problem.upper * jnp.maximum(0, r),
            a * size,
            jnp.abs(w * w_s),
            jnp.abs(a) * (jnp.abs(problem.q) + jnp.abs(a_s)),
        )
        primal = norm / 2 + of_bias + loss + problem.constant
        allowed = 8 * eps * (loss + sum(sizes))
        gap = primal - dual + missed + allowed
        weight = jnp.where(r > -error, problem.upper, 0) + jnp.abs(w) + a
        error, rest = jnp.maximum(error, eps * size * reach), jnp.zeros_like(a)
    else:
        allowed = jnp.zeros_like(dual)
        gap, rest = 2 * missed + off**2 / 2, (problem.upper - a) * jnp.maximum(0, r) + a * jnp.maximum(0, -r)
        # Far from the kink errors change nothing.
        weight = jnp.where(r > -error, problem.upper - a, 0) + jnp.where(r < error, a, 0)
    # Errors of different samples are independent and add up by squares: four standard deviations are allowed. A point
    # outside the box bounds nothing; bounds that were rounded in another way are off by units of them.
    beyond = jnp.maximum(a - problem.upper, 0)
    inside = every((a >= 0) & (beyond <= 4 * jnp.finfo(dtype).eps * problem.upper))
    squares, outside, terms, reached = sums((weight * error) ** 2, beyond * jnp.abs(r), rest, jnp.abs(c * a))
    allowed = allowed + 4 * jnp.sqrt(squares) + 2 * outside
    gap = gap + terms + 4 * jnp.sqrt(squares) + 2 * outside
    feasible = inside if problem.c is None else inside & balances(met - problem.e, reached + jnp.abs(problem.e), dtype)
    # The gap is relative to the dual less what it may be off by.
    bounds = judged(dual + gap, dual, gap, jnp.abs(dual) - allowed, rounding=allowed, feasible=feasible)
    bounds = bounds._replace(relative_gap=bounds.relative_gap + 8 * jnp.finfo(s.dtype).eps)
    bias = bias if problem.c is not None or problem.offset else jnp.zeros_like(bias)
    return Answer(a, problem.y * w, bias, jnp.ones((), a.dtype), w_s + shift, bounds)
