"""The certificate of the slack-constrained SVM: for solvers as if products were exact, and under rounding."""

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxsvm.numerics.masks import some
from jaxsvm.numerics.precision import rounded, rounding
from jaxsvm.results.fit import Answer, Certificate
from jaxsvm.results.judge import balances, is_weights, judged

if TYPE_CHECKING:
    from jaxsvm.problems.slack import SlackProblem


def certificate(problem: "SlackProblem", point: Float[Array, "two n"], s: Float[Array, "two n"]) -> Certificate:
    """Return `sqrt(p'Qp) + V max_i p_i / weight_i` (primal: above the optimum) and the level of w (dual: below it).

    It takes s to be exact, and is for solvers.
    """
    a, p = point
    length = jnp.sqrt(jnp.maximum(a @ s[0], 0))
    below = problem.level(s[0] / jnp.maximum(length, 1)).level
    above = _upper(problem, p, problem.length_of(p, s[1]))
    return _bounds(problem, above, below, is_weights(p, problem.present), some(a > 0))


def certified(
    problem: "SlackProblem", point: Float[Array, "two n"], s: Float[Array, "two n"], dtype: np.dtype
) -> Answer:
    """Certify the answer that the caller gets: the coefficients of `w / level`, and the dual point p.

    The level is that of the unit vector along w with the returned bias, less what rounding `w / level` to `dtype` may
    take from it. If w = 0 has no lower level, and p proves that no w has one that is higher by more than rounding, the
    answer is w = 0. Else w = 0 must not win, since at a large nu all levels are near nu.

    Args:
        problem: The problem, in twice the precision.
        point: Coefficients a of w and p, numbers of `dtype`.
        s: `Q` times both, computed from scratch in twice the precision.
        dtype: Dtype of the numbers that are returned.
    """
    a, p = point
    size, eps = jnp.sqrt(jnp.maximum(problem.diagonal, 0)), rounding(problem.n, s.dtype)
    error = eps * size.max() * (jnp.abs(point) @ size)  # of an entry of s, one a row
    length = jnp.sqrt(jnp.maximum(a @ s[0] + error[0] * jnp.abs(a).sum(), 1))
    c = s[0] / length  # responses of a vector in the unit ball
    water = problem.level(c)
    level = _paid_for(problem, c + problem.y * water.bias, water.level)
    scale = jnp.where(level > 0, level, 1) * length
    coefficients = rounded(problem.y * a / scale, dtype)
    best = water.bias * length / scale if problem.free_bias else problem.offset * coefficients.sum()
    bias = rounded(best, dtype)
    # The rounding of w / level, in units of the unit vector.
    narrow = jnp.finfo(dtype).eps / 2 if jnp.finfo(dtype).bits < jnp.finfo(s.dtype).bits else 0.0
    off = narrow * (size.max() * (jnp.abs(a) @ size) + jnp.abs(best) * scale) / length
    below = level - error[0] / length - off
    above = problem.length_of(p, s[1], error[1])
    above, feasible = above * (1 + 4 * narrow) + 4 * eps * problem.radius, is_weights(p, problem.present)
    if problem.free_bias:  # p may miss the equality by rounding
        missed = problem.y @ p
        above = above + jnp.abs(missed) * (jnp.abs(water.bias) + problem.radius)
        feasible = feasible & balances(missed, p.sum(), dtype)
    above = _upper(problem, p, above, 4 * narrow)

    still, constant = problem.without_w()
    hidden = 4 * float(jnp.finfo(dtype).eps) ** 0.5 * problem.radius + 16 * eps * still
    rests = ((below <= still) | ~some(a > 0)) & (above - still <= jnp.minimum(hidden, 0.01 * still))
    coefficients, bias = jnp.where(rests, 0, coefficients), jnp.where(rests, constant, bias)
    margins = jnp.where(rests, 0, c * (length / scale)) + (problem.y * bias if problem.free_bias else 0)
    certificate = _bounds(problem, above, jnp.where(rests, still, below), feasible, some(a > 0) | rests)
    return Answer(p, coefficients, bias, jnp.where(rests, still, scale / length), margins, certificate)


def _paid_for(problem: "SlackProblem", heights: Float[Array, " n"], level: Float[Array, ""]) -> Float[Array, ""]:
    """Return the level, or a lower one that the volume certainly pays for.

    In sums over weights of very different sizes the slack of light samples is lost. The cost of a level is a sum of
    terms that are not negative. Above the true level it rises at least as fast as the weight of the lightest sample,
    and as the weight of all samples that are covered further down.
    """
    present, eps = problem.present, rounding(problem.n, level.dtype)
    lightest = jnp.where(present, problem.weights, jnp.inf).min()
    floor = jnp.where(present, heights, jnp.inf).min() + problem.volume / problem.weights.sum()
    cost = jnp.where(present, problem.weights * jnp.maximum(level - heights, 0), 0).sum()
    over = jnp.maximum(cost * (1 + eps) - problem.volume, 0)
    low = jnp.maximum(level - over / lightest, floor)
    covered = jnp.where(present & (heights < low), problem.weights, 0).sum()
    return jnp.maximum(level - over / jnp.maximum(covered, lightest), floor)


def _upper(problem: "SlackProblem", p: Array, length: Array, share: float = 0.0) -> Float[Array, ""]:
    """Return the bound of a p in any scale, known up to a relative `share`, from a bound on `sqrt(p'Qp)`."""
    return (length + problem.volume * problem.highest(p) * (1 + share)) / p.sum()


def _bounds(problem: "SlackProblem", above: Array, below: Array, feasible: Any, known: Any) -> Certificate:
    """Return the certificate of two bounds; no gap is stated of a w that is not `known` to be one."""
    error = 32 * jnp.finfo(below.dtype).eps * (above + problem.radius)
    bounds = judged(above, below, above - below, below, rounding=error, feasible=feasible)
    return bounds._replace(relative_gap=jnp.where(known, bounds.relative_gap, jnp.inf))
