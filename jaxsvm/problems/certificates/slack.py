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
    return _bounds(problem, point, below, problem.length_of(p, s[1]))


def certified(
    problem: "SlackProblem", point: Float[Array, "two n"], s: Float[Array, "two n"], dtype: np.dtype
) -> Answer:
    """Certify the answer that the caller gets: the coefficients of `w / level`, and the dual point p.

    The level is that of the unit vector along w with the returned bias, less what rounding `w / level` to `dtype` may
    take from it.

    Args:
        problem: The problem, in twice the precision.
        point: Coefficients a of w and p, numbers of `dtype`.
        s: `Q` times both, computed from scratch in twice the precision.
        dtype: Dtype of the numbers that are returned.
    """
    a, p = point
    size, eps = jnp.sqrt(jnp.maximum(problem.diagonal, 0)), rounding(problem.n, s.dtype)
    error = eps * size.max() * (jnp.abs(point) @ size)  # of an entry of s, one a row
    length = jnp.sqrt(jnp.maximum(a @ s[0] + error[0] * jnp.abs(a).sum(), 0))
    length = jnp.maximum(length, 1)
    c = s[0] / length  # responses of a vector in the unit ball
    water = problem.level(c)
    level = _paid_for(problem, c + problem.y * water.bias, water.level)
    scale = jnp.where(level > 0, level, 1) * length
    coefficients = rounded(problem.y * a / scale, dtype)
    constant = problem.offset * coefficients.sum()
    best = water.bias * length / scale if problem.free_bias else constant
    bias = rounded(best, dtype)
    # The rounding of w / level, in units of the unit vector.
    narrow = jnp.finfo(dtype).eps / 2 if jnp.finfo(dtype).bits < jnp.finfo(s.dtype).bits else 0.0
    off = narrow * (size.max() * (jnp.abs(a) @ size) + jnp.abs(best) * scale) / length
    below = level - error[0] / length - off
    above = problem.length_of(p, s[1], error[1])
    above, feasible = above * (1 + 4 * narrow) + 4 * eps * problem.radius, True
    if problem.free_bias:  # p may miss the equality by rounding
        missed = problem.y @ p
        above = above + jnp.abs(missed) * (jnp.abs(water.bias) + problem.radius)
        feasible = balances(missed, p.sum(), dtype)
    certificate = _bounds(problem, point, below, above, 4 * narrow, feasible)
    margins = c * (length / scale) + (problem.y * bias if problem.free_bias else 0)
    return Answer(p, coefficients, bias, scale / length, margins, certificate)


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


def _bounds(
    problem: "SlackProblem",
    point: Float[Array, "two n"],
    below: Array,
    length: Array,
    share: Any = 0.0,
    feasible: Any = True,
) -> Certificate:
    """Return the certificate of a level and of `sqrt(p'Qp)`, in any scale, for p known up to a relative `share`."""
    a, p = point
    above = (length + problem.volume * problem.highest(p) * (1 + share)) / p.sum()
    error = 32 * jnp.finfo(below.dtype).eps * (above + problem.radius)
    feasible = feasible & is_weights(p, problem.present)
    bounds = judged(above, below, above - below, below, rounding=error, feasible=feasible)
    # w = 0 has the level nu, which must not win against a point with a w.
    return bounds._replace(relative_gap=jnp.where(some(a > 0), bounds.relative_gap, jnp.inf))
