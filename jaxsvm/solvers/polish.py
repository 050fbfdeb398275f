"""The last decades of the gap, where first-order steps crawl: descent on the support, and Newton where n is moderate.

Pair steps descend slowly where the problem is ill-conditioned (a linear or polynomial kernel at large C). On a fixed
support R is a quadratic: conjugate gradients in `sum p = 0` go to its minimum; a step that would turn a weight
negative ends where the weight is 0, drops it, and starts the directions afresh (Polyak 1969; Nocedal and Wright,
section 16.7). Where a matrix of n x n is affordable, semismooth Newton on the primal
(`jaxsvm.solvers.simplex.newton`) is finite and needs no condition number.
"""

import dataclasses
from typing import Any, NamedTuple, TypeGuard, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxsvm.gram.dense import part_of
from jaxsvm.gram.tiled import TiledGram
from jaxsvm.numerics.masks import every
from jaxsvm.problems.forms import SimplexForm
from jaxsvm.problems.squared_hinge import SquaredHingeProblem
from jaxsvm.runtime.loops import while_loop
from jaxsvm.solvers.simplex.newton import kernel

DIRECT_SIZE = 2048
"""Up to this n a polish may hold an n x n matrix (32 MiB in float64) and factor it."""
NEWTON_STEPS = 30


class NewtonRound(NamedTuple):
    """Where semismooth Newton stands: its primal point, rounds, whether it goes on."""

    point: kernel.KernelPoint
    rounds: Int[Array, ""]
    going: Bool[Array, ""]


class Descent(NamedTuple):
    """Where conjugate gradients stand: alpha, `Kt alpha`, residual, direction `(n,)`, products, whether they go on."""

    alpha: Float[Array, " n"]
    s: Float[Array, " n"]
    r: Float[Array, " n"]
    p: Float[Array, " n"]
    products: Int[Array, ""]
    going: Bool[Array, ""]


def polish(
    problem: SimplexForm, alpha: Float[Array, " n"], s: Float[Array, " n"], products: int
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """Descend from `alpha`, by Newton for a squared-hinge problem of moderate n, else by conjugate gradients.

    The host driver takes it in pieces: `begin`, `further` for as long as it is going, `end`.

    Args:
        problem: A simplex problem.
        alpha: A point of the simplex, `(n,)`.
        s: Its `Kt alpha`, `(n,)`.
        products: Matrix-vector products to spend on conjugate gradients; static.

    Returns:
        A point of the simplex whose R is no higher, and its `s`, from scratch.
    """
    stored = _stored(problem) if _by_newton(problem) else problem  # once for all rounds
    carry = while_loop(
        lambda carry: carry.going,
        lambda carry: further(stored, carry, products),
        begin(problem, alpha, s, products),
    )
    return end(problem, alpha, s, carry)


def begin(problem: SimplexForm, alpha: Float[Array, " n"], s: Float[Array, " n"], products: int) -> Any:
    """A polish before its first piece."""
    none = jnp.zeros((), jnp.int32)
    if _by_newton(problem):
        return NewtonRound(kernel.point_of(problem, alpha, s), none, jnp.asarray(True))
    r = _slope(alpha, s)
    return Descent(alpha, s, r, r, none, jnp.asarray(products > 0))


def further(problem: SimplexForm, carry: Any, products: int) -> Any:
    """One linear system further, or one product."""
    if isinstance(carry, NewtonRound):
        return _newton_round(cast(SquaredHingeProblem, problem), carry)
    return _conjugate_gradient(problem, carry, products)


def end(problem: SimplexForm, alpha: Array, s: Array, carry: Any) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """What a polish found, with its `s` from scratch; where it began, if R is no lower there."""
    if isinstance(carry, NewtonRound):
        beta = kernel.dual_of(cast(SquaredHingeProblem, problem), carry.point)
        found = jnp.where(beta.sum() > 0, beta, alpha)
    else:
        found = carry.alpha
    found = found / found.sum()
    s_found = problem.matvec(found)
    lower = (found @ s_found) < (alpha @ s)
    return jnp.where(lower, found, alpha), jnp.where(lower, s_found, s)


def _by_newton(problem: SimplexForm) -> TypeGuard[SquaredHingeProblem]:
    return problem.kind == "squared hinge" and problem.n <= DIRECT_SIZE


def _stored(problem: SquaredHingeProblem) -> SquaredHingeProblem:
    """The problem with its kernel matrix stored, where each look at it would compute it again."""
    if not isinstance(problem.gram, TiledGram):
        return problem
    everything = jnp.arange(problem.n)
    return dataclasses.replace(problem, gram=part_of(problem.gram, problem.gram.block(everything, everything)))


def _newton_round(problem: SquaredHingeProblem, at: NewtonRound) -> NewtonRound:
    """One Newton step; it ends at the minimum, or where there is nothing to go on with."""
    gap = jnp.ones((), problem.dtype)  # a factor does not ask for it
    found = kernel.move(problem, at.point, problem.present, gap, "cholesky", problem.n)
    finite = every(jnp.isfinite(found.point.slack))
    rounds = at.rounds + 1
    going = finite & ~found.settled & (found.t > 0) & (rounds < NEWTON_STEPS)
    return NewtonRound(jax.tree.map(lambda new, old: jnp.where(finite, new, old), found.point, at.point), rounds, going)


def _slope(alpha: Float[Array, " n"], s: Float[Array, " n"]) -> Float[Array, " n"]:
    """The negative gradient on the support, inside `sum p = 0`."""
    active = alpha > 0
    mean = jnp.where(active, s, 0).sum() / active.sum()
    return jnp.where(active, mean - s, 0)


def _conjugate_gradient(problem: SimplexForm, at: Descent, products: int) -> Descent:
    """One conjugate gradient step on the support, inside the simplex; `s` is carried along."""
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
