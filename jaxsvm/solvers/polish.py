"""The last decades of the gap, where first-order steps crawl: descent on the support, and Newton where n is moderate.

Pair steps descend slowly where the problem is ill-conditioned (a linear or polynomial kernel at large C). On a fixed
support R is a quadratic: conjugate gradients in `sum p = 0` go to its minimum; a step that would turn a weight
negative ends where the weight is 0, drops it, and starts the directions afresh (Polyak 1969; Nocedal and Wright,
section 16.7). Where a matrix of n x n is affordable, semismooth Newton on the primal with an exact line search is
finite and needs no condition number (Mangasarian 2002; Keerthi and DeCoste 2005).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxsvm.problems.squared_hinge import SquaredHingeProblem

DIRECT_SIZE = 2048
"""Up to this n a polish may hold an n x n matrix (32 MiB in float64) and factor it."""
NEWTON_STEPS = 30
BISECTIONS = 60


class NewtonRound(NamedTuple):
    """Where semismooth Newton stands: coefficients and margins in primal scale `(n,)`, rounds, whether it goes on."""

    c: Float[Array, " n"]
    f: Float[Array, " n"]
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
    problem: Any, alpha: Float[Array, " n"], s: Float[Array, " n"], products: int
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
    B = kernel_part(problem) if _by_newton(problem) else None  # once for all rounds
    carry = lax.while_loop(
        lambda carry: carry.going,
        lambda carry: further(problem, carry, products, B),
        begin(problem, alpha, s, products),
    )
    return end(problem, alpha, s, carry)


def begin(problem: Any, alpha: Float[Array, " n"], s: Float[Array, " n"], products: int) -> Any:
    """A polish before its first piece."""
    none = jnp.zeros((), jnp.int32)
    if _by_newton(problem):
        R = alpha @ s
        return NewtonRound(alpha / R, problem.margins(alpha, s) / R, none, jnp.asarray(True))
    r = _slope(alpha, s)
    return Descent(alpha, s, r, r, none, jnp.asarray(products > 0))


def further(problem: Any, carry: Any, products: int, B: Any = None) -> Any:
    """One linear system further, or one product; `B`, where it is at hand, spares the former a kernel matrix."""
    if isinstance(carry, NewtonRound):
        return newton_round(problem, carry, kernel_part(problem) if B is None else B)
    return _conjugate_gradient(problem, carry, products)


def end(problem: Any, alpha: Array, s: Array, carry: Any) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """What a polish found, with its `s` from scratch; where it began, if R is no lower there."""
    if isinstance(carry, NewtonRound):
        beta = problem.costs * jnp.maximum(1 - carry.f, 0)
        found = jnp.where(beta.sum() > 0, beta, alpha)
    else:
        found = carry.alpha
    found = found / found.sum()
    s_found = problem.matvec(found)
    lower = (found @ s_found) < (alpha @ s)
    return jnp.where(lower, found, alpha), jnp.where(lower, s_found, s)


def _by_newton(problem: Any) -> bool:
    return isinstance(problem, SquaredHingeProblem) and problem.n <= DIRECT_SIZE


def kernel_part(problem: SquaredHingeProblem) -> Float[Array, "n n"]:
    """`Kt` without its ridge."""
    everything = jnp.arange(problem.n)
    return problem.block(everything, everything) - jnp.diag(problem.ridge)


def newton_round(problem: SquaredHingeProblem, at: NewtonRound, B: Float[Array, "n n"]) -> NewtonRound:
    """One step of semismooth Newton on the squared-hinge primal.

    With `f_i = y_i h(x_i) / R = (B beta)_i`, the active set is `S = {f < 1}`, the Newton point solves
    `(B_SS + diag(1/C_S)) beta_S = 1`, and the dual point of any f is `beta_i = C_i max(0, 1 - f_i)`.
    """
    c, f, C, present = at.c, at.f, problem.costs, problem.ridge > 0
    active = (f < 1) & present
    outer = active[:, None] & active
    matrix = jnp.where(outer, B, 0) + jnp.diag(jnp.where(active, problem.ridge, 1))
    rhs = active.astype(f.dtype)
    factor = jax.scipy.linalg.cho_factor(matrix, lower=True)
    beta = jax.scipy.linalg.cho_solve(factor, rhs)
    beta = beta + jax.scipy.linalg.cho_solve(factor, rhs - matrix @ beta)  # one refinement
    dc, df = jnp.where(active, beta, 0) - c, B @ jnp.where(active, beta, 0) - f

    def slope(t: Array) -> Array:
        """Derivative of the primal along `(c, f) + t (dc, df)`."""
        return (c + t * dc) @ df - (C * jnp.maximum(1 - (f + t * df), 0)) @ df

    def bisect(_: int, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = (low + high) / 2
        rising = slope(middle) > 0
        return jnp.where(rising, low, middle), jnp.where(rising, middle, high)

    zero, one = jnp.zeros((), f.dtype), jnp.ones((), f.dtype)
    whole = slope(one) <= 0
    low, _ = lax.fori_loop(0, BISECTIONS, bisect, (zero, one))
    t = jnp.where(whole, 1, low)
    c_next, f_next = c + t * dc, f + t * df
    finite = jnp.all(jnp.isfinite(f_next))
    same = jnp.all(((f_next < 1) & present) == active)
    settled = ~finite | (whole & same) | (t == 0)
    rounds = at.rounds + 1
    going = ~settled & (rounds < NEWTON_STEPS)
    return NewtonRound(jnp.where(finite, c_next, c), jnp.where(finite, f_next, f), rounds, going)


def _slope(alpha: Float[Array, " n"], s: Float[Array, " n"]) -> Float[Array, " n"]:
    """The negative gradient on the support, inside `sum p = 0`."""
    active = alpha > 0
    mean = jnp.where(active, s, 0).sum() / active.sum()
    return jnp.where(active, mean - s, 0)


def _conjugate_gradient(problem: Any, at: Descent, products: int) -> Descent:
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
