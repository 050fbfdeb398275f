"""Derivatives of box solutions: free samples solve a linear system, bounded ones stay at their bound.

With F the samples strictly inside the box and B those at U, `Q_FF a_F + b c_F = q_F - Q_FB U_B` and `c'a = e`. The
optimal value needs no system: `d D = dq'a - 1/2 a'dQa + dU'max(0, r) + b de`, with `r = q - Qa - b c`.
"""

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from jaxsvm.derivatives.support_equations import plan, solver
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
    The free set is empty at a corner; its system has no unknowns. Free samples that others explain are no unknowns
    either: like bounded ones they must have consistent margins.
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
        missed = 1 / 16 * off**0.5  # free samples that others explain leave at a larger error of the margin
        above = jnp.where(before.free, (a > U * (1 + share)) | (slack > missed), before.bound)
        below = jnp.where(before.free, (a < -share * U) | (slack < -missed), ~before.bound)
        bound = above & (before.free | ~(slack < -off))
        free = ~bound & ~(below & (before.free | ~(slack > off)))
        if problem.c is not None:  # with none free, samples that set the best bias keep the equality
            free = free | (~some(before.free) & (jnp.abs(slack) <= off))
            bound = bound & ~free
    return lax.stop_gradient(Active(free & present, bound & present, jnp.clip(a, 0, U)))


def solution_on(problem: "BoxProblem", active: Active, sizes: tuple[int, ...], method: str) -> Values:
    """Solve the system of the sets, differentiable to every order with respect to all but y and c."""
    y = lax.stop_gradient(problem.y)
    multiplier, present = jnp.zeros_like(problem.e), active.present.astype(y.dtype)

    def others(free: Array) -> tuple[Array, Array]:
        """Return the values of the samples that are not free, and the right-hand side that they leave."""
        fixed = jnp.where(active.bound, problem.upper, jnp.where(active.free & ~free, present, 0))
        return fixed, jnp.where(free, problem.q - problem.signed.matvec(fixed), 0)

    if problem.c is None:
        free, solve = solver(problem, active.free, sizes, method)
        fixed, right = others(free)
        a = jnp.where(free, solve(right), 0) + fixed
        margins = problem.signed.matvec(a)
    else:
        c = lax.stop_gradient(problem.c)
        # A linear kernel has d + 1 free samples and rank d: `Q_FF` is singular, but not the system with the equality.
        # Adding `rho c c'` changes the multiplier by `rho e`, and nothing else.
        size, squares = (jnp.where(active.free, part, 0).sum() for part in (problem.diagonal, c * c))
        rho = lax.stop_gradient(size / jnp.where(squares > 0, squares, 1))
        free, solve = solver(problem, active.free, sizes, method, jnp.sqrt(rho) * c)
        fixed, right = others(free)
        e = problem.e - problem.c @ fixed
        a, along = jnp.where(free[None, :], jax.vmap(solve)(jnp.stack([right, jnp.where(free, c, 0)])), 0)
        determined = some(free)
        step = jnp.where(determined, (c @ a - e) / jnp.where(determined, c @ along, 1), 0)
        a = a - step * along + fixed
        margins = problem.signed.matvec(a)
        # At a corner a whole interval of biases is optimal: take its middle, as a fit does.
        multiplier = jnp.where(determined, step + rho * e, problem.best_bias(margins))
        margins = margins + multiplier * c
    coefficients = y * a
    bias = problem.offset * coefficients.sum() + multiplier
    return Values(a, coefficients, bias, jnp.ones_like(bias), margins)


def lagrangian(problem: "BoxProblem", values: Values) -> Float[Array, ""]:
    """Return the function whose derivatives at fixed `values` are those of the optimal value."""
    slack = jnp.maximum(0, problem.q - values.margins)
    multiplier = values.bias if problem.c is not None else 0.0
    linear = problem.q @ values.alpha + problem.upper @ slack + multiplier * problem.e + problem.constant
    return linear - problem.signed.quadratic_form(values.alpha) / 2


def kinks(problem: "BoxProblem", values: Any, tol: Any) -> Bool[Array, " n"]:
    """Return the samples with the margin of a free one that need not be free: a small move may free them, or not.

    They are at a bound, or others explain them. At a corner they are those that set an end of the interval of biases:
    weights that break the equality free one of them, on each side another.
    """
    near = jnp.abs(values.margins - problem.q) <= tol * jnp.maximum(jnp.abs(problem.q), 1)
    free = active_set(problem, values).free
    u = None if problem.c is None else problem.c * jnp.sqrt(problem.diagonal.max() / (problem.c**2).max())
    independent, _ = solver(problem, free, *plan(problem, free), u)
    kinked = near & ~(free & independent)
    if problem.c is not None:
        kinked = kinked | (~some(free) & _at_ends(problem, values, tol))
    return lax.stop_gradient((problem.upper > 0) & kinked)


def _at_ends(problem: "BoxProblem", values: Any, tol: Any) -> Bool[Array, " n"]:
    """Return the samples that set an end of the interval of biases, if none is free."""
    apart = (problem.q - values.margins) / problem.c
    ends = (jnp.where((problem.upper > 0) & (side >= 0), side, jnp.inf) for side in (apart, -apart))
    return jnp.any(jnp.stack([jnp.isfinite(end) & (end <= end.min() + tol) for end in ends]), axis=0)


def certificate_of(problem: "BoxProblem", values: Values, dtype: Any) -> Certificate:
    """Return the certificate of `solution_on`'s values, with the system's bias, which need not be the best.

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
