"""How the solution of a box problem moves: free samples solve a linear system, bounded ones stay at their bound.

With F the samples strictly inside the box and B those at U, `Q_FF a_F + b c_F = q_F - Q_FB U_B` and `c'a = e`. The
optimal value needs no system: `d D = dq'a - 1/2 a'dQa + dU'max(0, r) + b de`, with `r = q - Qa - b c`.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from jaxsvm.derivatives.support_equations import FACTOR_LIMIT, factor_sizes, solver
from jaxsvm.problems.box import BoxProblem
from jaxsvm.result import Fit


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

    fixed = jnp.where(sets.bound, problem.upper, 0)
    right = jnp.where(sets.free, problem.q - product(fixed), 0)
    multiplier = jnp.zeros_like(problem.e)
    if problem.c is None:
        a = jnp.where(sets.free, solver(problem, sets.free, sizes, method)(right), 0)
    else:
        c, e = lax.stop_gradient(problem.c), problem.e - problem.c @ fixed
        # A linear kernel has d + 1 free samples and rank d: `Q_FF` is singular, with the equality the system is not.
        # `rho c c'` more changes what multiplies c by `rho e`, and nothing else.
        size, squares = (jnp.where(sets.free, part, 0).sum() for part in (problem.diagonal, c * c))
        rho = lax.stop_gradient(size / jnp.where(squares > 0, squares, 1))
        solve = solver(problem, sets.free, sizes, method, jnp.sqrt(rho) * c)
        a = jnp.where(sets.free, solve(right), 0)
        along = jnp.where(sets.free, solve(jnp.where(sets.free, c, 0)), 0)
        step = (c @ a - e) / (c @ along)
        a, multiplier = a - step * along, step + rho * e
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
