"""Polish a point of the simplex, where pair steps descend slowly: by Newton for moderate n, else on its support.

Pair steps are slow on ill-conditioned problems (a linear or polynomial kernel at large C). On a fixed support R is a
quadratic: conjugate gradients in `sum p = 0` lead to its minimum; a step that would make a weight negative ends where
the weight is 0, drops it, and restarts the directions (Polyak 1969; Nocedal and Wright, section 16.7). If an n x n
matrix is affordable, semismooth Newton on the primal (`jaxsvm.solvers.simplex.newton`) is finite, and independent of
the condition number.
"""

import dataclasses
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxsvm.gram.dense import DenseGram, part_of
from jaxsvm.gram.tiled import TiledGram
from jaxsvm.numerics.masks import every
from jaxsvm.numerics.measured import MEASURED as SIZES
from jaxsvm.problems.forms import SimplexForm
from jaxsvm.problems.squared_hinge import SquaredHingeProblem
from jaxsvm.solvers.measured import MEASURED
from jaxsvm.solvers.simplex.newton import kernel


class NewtonRound(NamedTuple):
    """Carry of semismooth Newton: its primal point, rounds, whether to continue, the kernel matrix unless stored."""

    point: kernel.KernelPoint
    rounds: Int[Array, ""]
    going: Bool[Array, ""]
    gram: DenseGram | None


class Descent(NamedTuple):
    """Carry of conjugate gradients: alpha, `Kt alpha`, residual, direction `(n,)`, products, whether to continue."""

    alpha: Float[Array, " n"]
    s: Float[Array, " n"]
    r: Float[Array, " n"]
    p: Float[Array, " n"]
    products: Int[Array, ""]
    going: Bool[Array, ""]


Carry = NewtonRound | Descent


def steps_worth(problem: SimplexForm, products: int) -> int:
    """Return the number of pair steps that take as long as a polish, at least 1.

    Args:
        problem: A simplex problem.
        products: Matrix-vector products to spend on conjugate gradients.
    """
    systems = problem.n**2 // MEASURED.pairs_per_step_of_a_polish if _by_newton(problem) else 0
    return max(products * problem.n // 2, systems, 1)


def _by_newton(problem: SimplexForm) -> bool:
    return problem.kind == "squared hinge" and problem.n <= SIZES.largest_direct_system


def begin(problem: SimplexForm, alpha: Float[Array, " n"], s: Float[Array, " n"], products: int) -> Carry:
    """Return the carry before the first piece of a polish: by Newton for a squared hinge of moderate n.

    Args:
        problem: A simplex problem.
        alpha: A point of the simplex, `(n,)`.
        s: `Kt alpha`, `(n,)`.
        products: Matrix-vector products to spend on conjugate gradients; static.
    """
    none = jnp.zeros((), jnp.int32)
    if _by_newton(problem):
        point = kernel.point_of(cast(SquaredHingeProblem, problem), alpha, s)
        return NewtonRound(point, none, jnp.asarray(True), _stored(problem))
    r = _slope(alpha, s)
    return Descent(alpha, s, r, r, none, jnp.asarray(products > 0))


def further(problem: SimplexForm, carry: Carry, products: int) -> Carry:
    """Solve the next linear system, or take the next product."""
    if isinstance(carry, NewtonRound):
        return _newton_round(cast(SquaredHingeProblem, problem), carry)
    return _conjugate_gradient(problem, carry, products)


def end(problem: SimplexForm, alpha: Array, s: Array, carry: Carry) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """Return the polished point with its `s`, recomputed; or the starting point, if its R is not higher."""
    if isinstance(carry, NewtonRound):
        beta = kernel.dual_of(cast(SquaredHingeProblem, problem), carry.point)
        point = jnp.where(beta.sum() > 0, beta, alpha)
    else:
        point = carry.alpha
    point = point / point.sum()
    s_point = problem.matvec(point)
    lower = (point @ s_point) < (alpha @ s)
    return jnp.where(lower, point, alpha), jnp.where(lower, s_point, s)


def _stored(problem: SimplexForm) -> DenseGram | None:
    """Return the kernel matrix if each of Newton's rounds would compute it anew; else None."""
    if not isinstance(problem.gram, TiledGram):
        return None
    everything = jnp.arange(problem.n)
    return part_of(problem.gram, problem.gram.block(everything, everything))


def _newton_round(problem: SquaredHingeProblem, at: NewtonRound) -> NewtonRound:
    """Take a Newton step; stop at the minimum, on values that are not finite, or after 30 rounds."""
    problem = problem if at.gram is None else dataclasses.replace(problem, gram=at.gram)
    gap = jnp.ones((), problem.dtype)  # unused: the system is factored
    point = kernel.move(problem, at.point, problem.present, gap, "cholesky", problem.n)
    finite = every(jnp.isfinite(point.point.slack))
    rounds = at.rounds + 1
    going = finite & ~point.settled & (point.t > 0) & (rounds < 30)
    point = jax.tree.map(lambda new, old: jnp.where(finite, new, old), point.point, at.point)
    return NewtonRound(point, rounds, going, at.gram)


def _slope(alpha: Float[Array, " n"], s: Float[Array, " n"]) -> Float[Array, " n"]:
    """Return the negative gradient on the support, projected on `sum p = 0`."""
    active = alpha > 0
    mean = jnp.where(active, s, 0).sum() / active.sum()
    return jnp.where(active, mean - s, 0)


def _conjugate_gradient(problem: SimplexForm, at: Descent, products: int) -> Descent:
    """Take a conjugate gradient step on the support, inside the simplex, and update `s`."""
    alpha, s, r, p = at.alpha, at.s, at.r, at.p
    Qp = problem.matvec(p)
    rr, rp, curvature = r @ r, r @ p, p @ Qp
    usable = (curvature > 0) & (rr > 0) & (rp > 0)
    free = jnp.where(usable, rp / jnp.where(usable, curvature, 1), 0)
    reach = jnp.where((p < 0) & (alpha > 0), -alpha / jnp.where(p < 0, p, -1), jnp.inf)
    t = jnp.minimum(free, reach.min())
    alpha = jnp.where((reach <= t) & usable, 0, jnp.maximum(alpha + t * p, 0))
    s = s + t * Qp
    r_next = _slope(alpha, s)
    beta = jnp.where(usable & (t == free), (r_next @ r_next) / jnp.where(rr > 0, rr, 1), 0)
    done = at.products + 1
    return Descent(alpha, s, r_next, r_next + beta * p, done, done < products)
