"""Derivatives of box solutions: free samples solve a linear system, bounded ones stay at their bound.

With F the samples strictly inside the box and B those at U, `Q_FF a_F + b c_F = q_F - Q_FB U_B` and `c'a = e`. The
optimal value needs no system: `d D = dq'a - 1/2 a'dQa + dU'max(0, r) + b de`, with `r = q - Qa - b c`.
"""

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from jaxsvm.derivatives.support_equations import Point, plan, system_of
from jaxsvm.derivatives.values import Active, Values, negligible
from jaxsvm.numerics.masks import every, some
from jaxsvm.results.fit import Certificate
from jaxsvm.results.judge import judged

if TYPE_CHECKING:
    from jaxsvm.problems.box import BoxProblem


def active_set(problem: "BoxProblem", values: Any, before: Active | None = None) -> Active:
    """Return the samples strictly inside the box, and those at their upper bound.

    In a fit, coefficients may be at a bound exactly, or approach it as an interior point does: a sample counts as
    bounded if its margin is further from the kink than its coefficient from the bound. In a solution on sets `before`,
    free samples outside the box leave the set, and bounded ones become free if their margins contradict their bounds.
    At a corner the free set is empty, and the system has no unknowns. Free samples that depend linearly on others are
    no unknowns either: like bounded ones they must have consistent margins.
    """
    a, U = values.alpha, problem.upper
    slack, present = (problem.q - values.margins) / jnp.maximum(jnp.abs(problem.q), 1), U > 0
    if before is None:
        rounding = 64 * jnp.finfo(a.dtype).eps * U
        bound = (a >= U - rounding) | (slack * U > U - a)
        free = (a > rounding) & ~bound & (-slack * U <= a)
        bound = bound & (a > rounding)
    else:
        share, off = negligible(problem, a)
        off = off + share
        missed = 1 / 16 * off**0.5  # free samples that depend on others leave at a larger error of the margin
        above = jnp.where(before.free, (a > U * (1 + share)) | (slack > missed), before.bound)
        below = jnp.where(before.free, (a < -share * U) | (slack < -missed), ~before.bound)
        bound = above & (before.free | ~(slack < -off))
        free = ~bound & ~(below & (before.free | ~(slack > off)))
        if problem.c is not None:  # with none free, samples that set the best bias keep the equality
            free = free | (~some(before.free) & (jnp.abs(slack) <= off))
            bound = bound & ~free
    return lax.stop_gradient(Active(free & present, bound & present, jnp.clip(a, 0, U)))


def values_at(problem: "BoxProblem", point: Point) -> Values:
    """Return the values of a point of the equations."""
    coefficients = lax.stop_gradient(problem.y) * point.a
    bias = problem.offset * coefficients.sum() + point.b
    return Values(point.a, coefficients, bias, jnp.ones_like(bias), point.products)


def lagrangian(problem: "BoxProblem", values: Values) -> Float[Array, ""]:
    """Return the function whose derivatives at fixed `values` are those of the optimal value."""
    slack = jnp.maximum(0, problem.q - values.margins)
    multiplier = values.bias if problem.c is not None else 0.0
    linear = problem.q @ values.alpha + problem.upper @ slack + multiplier * problem.e + problem.constant
    return linear - problem.signed.quadratic_form(values.alpha) / 2


def kinks(problem: "BoxProblem", values: Any, tol: Any) -> Bool[Array, " n"]:
    """Return the samples at a kink of the loss that are not certainly free: a small change may free them.

    They are at a bound, or depend linearly on free samples. At a corner they are the samples that set an end of the
    interval of biases: a small change of the equality frees one of them, which one depends on its sign.
    """
    near = jnp.abs(values.margins - problem.q) <= tol * jnp.maximum(jnp.abs(problem.q), 1)
    free = active_set(problem, values).free
    independent = system_of(problem, free, *plan(problem, free), problem.ridge).free
    kinked = near & ~independent
    if problem.c is not None:
        kinked = kinked | (~some(free) & _at_ends(problem, values, tol))
    return lax.stop_gradient((problem.upper > 0) & kinked)


def _at_ends(problem: "BoxProblem", values: Any, tol: Any) -> Bool[Array, " n"]:
    """Return the samples that set an end of the interval of biases, if none is free."""
    apart = (problem.q - values.margins) / problem.c
    ends = (jnp.where((problem.upper > 0) & (side >= 0), side, jnp.inf) for side in (apart, -apart))
    return jnp.any(jnp.stack([jnp.isfinite(end) & (end <= end.min() + tol) for end in ends]), axis=0)


def certificate_of(problem: "BoxProblem", values: Values, dtype: Any) -> Certificate:
    """Return the certificate of a solution's values, with the system's bias, which need not be the best.

    The values are numbers of `dtype`; the gap is infinite if they are infeasible.
    """
    a, b = jnp.clip(values.alpha, 0, problem.upper), values.bias
    s = problem.matvec(a)
    best = problem.certified(a, s, dtype).certificate
    constant = problem.offset * (problem.y @ a)
    without = s - problem.y * constant
    c: Any = problem.c
    direction = c if problem.free_bias else problem.offset * problem.y
    slack = jnp.maximum(0, problem.q - without - b * direction)
    missed = jnp.abs(b * (c @ a - problem.e)) if problem.free_bias else 0.0
    primal = (
        (a @ without + problem.offset * b**2) / 2 + b * problem.e + problem.upper @ slack + missed + problem.constant
    )
    rounding = 1024 * jnp.finfo(dtype).eps * problem.upper.max()
    feasible = every(jnp.abs(a - values.alpha) <= rounding)
    primal, scale = jnp.maximum(primal, best.primal), jnp.abs(best.dual)
    return judged(primal, best.dual, primal - best.dual, scale, rounding=0.0, feasible=feasible)
