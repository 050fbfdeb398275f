"""How the solution of a box problem moves: free samples solve a linear system, bounded ones stay at their bound.

With F the samples strictly inside the box and B those at U, `Q_FF a_F + b c_F = q_F - Q_FB U_B` and `c'a = e`. The
optimal value needs no system: `d D = dq'a - 1/2 a'dQa + dU'max(0, r) + b de`, with `r = q - Qa - b c`.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from jaxsvm.hinge import BoxProblem
from jaxsvm.result import Fit
from jaxsvm.support_equations import FACTOR_LIMIT, factor_sizes, solver


class Sets(NamedTuple):
    """Which samples are free, and which are at their upper bound: `(n,)` each."""

    free: Bool[Array, " n"]
    bound: Bool[Array, " n"]


def sets_of(problem: BoxProblem, a: Float[Array, " n"]) -> Sets:
    """The sets of a point whose bounds are met exactly, or within rounding.

    An empty set of free samples, where the solution stands at a corner, is one whose system has no unknowns.
    """
    rounding = 64 * jnp.finfo(a.dtype).eps * problem.upper
    bound = (a >= problem.upper - rounding) & (problem.upper > 0)
    free = (a > rounding) & ~bound
    return lax.stop_gradient(Sets(free, bound))


def plan(problem: BoxProblem, free: Any) -> tuple[tuple[int, ...], str]:
    """How the system is solved: by a factor of the free samples' matrix, whatever the Gram operator, where it fits.

    Without a ridge the matrix may be as good as singular, which conjugate gradients alone do not survive.
    """
    sizes = factor_sizes(problem.n, free)
    return (sizes, "cholesky") if sizes[-1] <= FACTOR_LIMIT else ((), "nystroem")


def on_sets(problem: BoxProblem, sets: Sets, *, sizes: tuple[int, ...], method: str) -> tuple[Array, ...]:
    """The solution on the sets, differentiable to every order: `a`, coefficients, bias, scale (1), margins.

    Args:
        problem: The problem; derivatives flow from it, except from y and c.
        sets: Free and bounded samples.
        sizes: As `plan` has it; static.
        method: As `plan` has it; static.
    """
    y = lax.stop_gradient(problem.y)

    def product(v: Array) -> Array:
        signed = y * v
        return y * (problem.gram.matvec(signed) + problem.offset * signed.sum())

    solve = solver(problem, sets.free, sizes, method)
    fixed = jnp.where(sets.bound, problem.upper, 0)
    right = jnp.where(sets.free, problem.q - product(fixed), 0)
    a = jnp.where(sets.free, solve(right), 0)
    multiplier = jnp.zeros((), a.dtype)
    if problem.c is not None:
        c = lax.stop_gradient(problem.c)
        along = jnp.where(sets.free, solve(jnp.where(sets.free, c, 0)), 0)
        multiplier = (c @ a - (problem.e - c @ fixed)) / (c @ along)
        a = a - multiplier * along
    a = a + fixed
    coefficients = y * a
    margins = product(a)
    bias = problem.offset * coefficients.sum()
    if problem.c is not None:
        margins, bias = margins + multiplier * lax.stop_gradient(problem.c), bias + multiplier
    return a, coefficients, bias, jnp.ones_like(bias), margins


def lagrangian(problem: BoxProblem, a: Array, margins: Array, bias: Array) -> Float[Array, ""]:
    """What has the derivatives of the optimal value where `a`, margins and bias of the solution stand still."""
    slack = jnp.maximum(0, problem.q - margins)
    signed = lax.stop_gradient(problem.y) * a
    quadratic = signed @ problem.gram.matvec(signed) + problem.offset * signed.sum() ** 2
    multiplier = bias if problem.c is not None else 0.0
    return problem.q @ a - quadratic / 2 + problem.upper @ slack + multiplier * problem.e


def kinks(problem: BoxProblem, fit: Fit, tol: Any) -> Bool[Array, " n"]:
    """Samples at a bound whose margin is that of a free one: a small move may set them free, or not."""
    sets = sets_of(problem, fit.alpha)
    scale = jnp.maximum(jnp.abs(problem.q), 1)
    return lax.stop_gradient((problem.upper > 0) & ~sets.free & (jnp.abs(fit.margins - problem.q) <= tol * scale))
