"""How the solution of a box problem moves: free samples solve a linear system, bounded ones stay at their bound.

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
from jaxsvm.numerics.masks import count, every, some
from jaxsvm.results.fit import Certificate
from jaxsvm.results.judge import judged

if TYPE_CHECKING:
    from jaxsvm.problems.box import BoxProblem

FREE = 1 / 16
"""A free sample that others explain has left where its margin is off by this share of the root of what bounded ones may
be off by."""


def active_set(problem: "BoxProblem", values: Any, before: Active | None = None) -> Active:
    """Samples strictly inside the box, and those at their upper bound.

    Of a fit: bounds may be met exactly, or be approached, as an interior point does; then a sample whose margin is
    further from the kink than its coefficient from the bound is on its way there. Of a solution on sets `before`: free
    samples outside the box have left it, and others become free where their margins contradict their bounds.
    An empty set of free samples, where the solution stands at a corner, is one whose system has no unknowns. Those that
    others explain are no unknowns either: their margins have to be what they are, as those of bounded samples.
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
        missed = FREE * off**0.5
        above = jnp.where(before.free, (a > U * (1 + share)) | (slack > missed), before.bound)
        below = jnp.where(before.free, (a < -share * U) | (slack < -missed), ~before.bound)
        bound = above & (before.free | ~(slack < -off))
        free = ~bound & ~(below & (before.free | ~(slack > off)))
        if problem.c is not None:  # with none free the bias is the best one, and whoever sets it can meet the equality
            missing = jnp.abs(problem.c @ a - problem.e) > share * (jnp.abs(problem.c) @ U)
            free = free | (missing & ~some(before.free) & (jnp.abs(slack) <= off))
            bound = bound & ~free
    return lax.stop_gradient(Active(free & present, bound & present, jnp.clip(a, 0, U)))


def solution_on(problem: "BoxProblem", active: Active, sizes: tuple[int, ...], method: str) -> Values:
    """The solution on the sets as values, differentiable to every order: derivatives flow from all but y and c."""
    y = lax.stop_gradient(problem.y)
    multiplier, present = jnp.zeros_like(problem.e), active.present.astype(y.dtype)

    def others(free: Array) -> tuple[Array, Array]:
        """What the others have, and what they leave to the free ones."""
        fixed = jnp.where(active.bound, problem.upper, jnp.where(active.free & ~free, present, 0))
        return fixed, jnp.where(free, problem.q - problem.signed.matvec(fixed), 0)

    if problem.c is None:
        free, solve = solver(problem, active.free, sizes, method)
        fixed, right = others(free)
        a = jnp.where(free, solve(right), 0) + fixed
        margins = problem.signed.matvec(a)
    else:
        c = lax.stop_gradient(problem.c)
        # A linear kernel has d + 1 free samples and rank d: `Q_FF` is singular, with the equality the system is not.
        # `rho c c'` more changes what multiplies c by `rho e`, and nothing else.
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
        # At a corner a whole interval is as good: the middle of it, as of a fit.
        multiplier = jnp.where(determined, step + rho * e, problem.best_bias(margins))
        margins = margins + multiplier * c
    coefficients = y * a
    bias = problem.offset * coefficients.sum() + multiplier
    return Values(a, coefficients, bias, jnp.ones_like(bias), margins)


def lagrangian(problem: "BoxProblem", values: Values) -> Float[Array, ""]:
    """What has the derivatives of the optimal value where `a`, margins and bias of the solution stand still."""
    slack = jnp.maximum(0, problem.q - values.margins)
    multiplier = values.bias if problem.c is not None else 0.0
    linear = problem.q @ values.alpha + problem.upper @ slack + multiplier * problem.e + problem.constant
    return linear - problem.signed.quadratic_form(values.alpha) / 2


def kinks(problem: "BoxProblem", values: Any, tol: Any) -> Bool[Array, " n"]:
    """Samples whose margin is that of a free one, and that need not be: a small move may set them free, or not.

    They are at a bound, or others explain them: these need not move as they do. At a corner they are those that set the
    same end of the interval of biases.
    """
    near = jnp.abs(values.margins - problem.q) <= tol * jnp.maximum(jnp.abs(problem.q), 1)
    free = active_set(problem, values).free
    u = None if problem.c is None else problem.c * jnp.sqrt(problem.diagonal.max() / (problem.c**2).max())
    independent, _ = solver(problem, free, *plan(problem, free), u)
    found = near & ~(free & independent)
    if problem.c is not None:
        found = found | (~some(free) & _tied(problem, values, tol))
    return lax.stop_gradient((problem.upper > 0) & found)


def _tied(problem: "BoxProblem", values: Any, tol: Any) -> Bool[Array, " n"]:
    """Samples that set an end of the interval of biases together with others, where none is free."""
    apart = (problem.q - values.margins) / problem.c
    tied = jnp.zeros_like(problem.upper, bool)
    for side in (apart, -apart):
        end = jnp.where((problem.upper > 0) & (side >= 0), side, jnp.inf)
        here = end <= end.min() + tol
        tied = tied | (here & (count(here) > 1))
    return tied


def certificate_of(problem: "BoxProblem", values: Values, dtype: Any) -> Certificate:
    """The certificate of values of `solution_on`, numbers of `dtype`: of the system's bias, which need not be the best.

    A gap of infinity where they are no point.
    """
    a, b = jnp.clip(values.alpha, 0, problem.upper), values.bias
    s = problem.matvec(a)
    found = problem.certified(a, s, dtype).certificate
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
    primal, scale = jnp.maximum(primal, found.primal), jnp.abs(found.dual)
    return judged(primal, found.dual, primal - found.dual, scale, rounding=0.0, feasible=feasible)
