"""The last decades of the gap, where first-order steps crawl: descent on the support, and Newton where n is moderate.

Pair steps descend slowly where the problem is ill-conditioned (a linear or polynomial kernel at large C). On a fixed
support R is a quadratic: conjugate gradients in `sum p = 0` go to its minimum; a step that would turn a weight
negative ends where the weight is 0, drops it, and starts the directions afresh (Polyak 1969; Nocedal and Wright,
section 16.7). Where a matrix of n x n is affordable, semismooth Newton on the primal with an exact line search is
finite and needs no condition number (Mangasarian 2002; Keerthi and DeCoste 2005).
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxsvm.problem import SquaredHingeProblem

DIRECT_SIZE = 2048
"""Up to this n a polish may hold an n x n matrix (32 MiB in float64) and factor it."""
NEWTON_STEPS = 30
BISECTIONS = 60


def polish(
    problem: Any, alpha: Float[Array, " n"], s: Float[Array, " n"], products: int
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """Descend from `alpha`, by Newton for a squared-hinge problem of moderate n, else by conjugate gradients.

    Args:
        problem: A simplex problem.
        alpha: A point of the simplex, `(n,)`.
        s: Its `Kt alpha`, `(n,)`.
        products: Matrix-vector products to spend on conjugate gradients; static.

    Returns:
        A point of the simplex whose R is no higher, and its `s`, from scratch.
    """
    if isinstance(problem, SquaredHingeProblem) and problem.n <= DIRECT_SIZE:
        found = newton(problem, alpha, s)
    else:
        found, _ = conjugate_gradients(problem, alpha, s, products)
    found = found / found.sum()
    s_found = problem.matvec(found)
    lower = (found @ s_found) < (alpha @ s)
    return jnp.where(lower, found, alpha), jnp.where(lower, s_found, s)


def newton(problem: SquaredHingeProblem, alpha: Float[Array, " n"], s: Float[Array, " n"]) -> Float[Array, " n"]:
    """Semismooth Newton on the squared-hinge primal, from `alpha`; returns a point on the simplex.

    With `f_i = y_i h(x_i) / R = (B beta)_i`, the active set is `S = {f < 1}`, the Newton point solves
    `(B_SS + diag(1/C_S)) beta_S = 1`, and the dual point of any f is `beta_i = C_i max(0, 1 - f_i)`.
    """
    everything = jnp.arange(problem.n)
    B = problem.block(everything, everything) - jnp.diag(problem.ridge)
    present = problem.ridge > 0
    C = jnp.where(present, 1 / jnp.where(present, problem.ridge, 1), 0)
    R = alpha @ s

    def slope(t: Array, c: Array, f: Array, dc: Array, df: Array) -> Array:
        """Derivative of the primal along `(c, f) + t (dc, df)`."""
        at = f + t * df
        return (c + t * dc) @ df - (C * jnp.maximum(1 - at, 0)) @ df

    def iterate(carry: tuple[Array, ...]) -> tuple[Array, ...]:
        k, c, f, _ = carry
        active = (f < 1) & present
        outer = active[:, None] & active
        matrix = jnp.where(outer, B, 0) + jnp.diag(jnp.where(active, problem.ridge, 1))
        rhs = active.astype(f.dtype)
        factor = jax.scipy.linalg.cho_factor(matrix, lower=True)
        beta = jax.scipy.linalg.cho_solve(factor, rhs)
        beta = beta + jax.scipy.linalg.cho_solve(factor, rhs - matrix @ beta)  # one refinement
        dc, df = jnp.where(active, beta, 0) - c, B @ jnp.where(active, beta, 0) - f

        def bisect(_: int, ends: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = ends
            middle = (low + high) / 2
            rising = slope(middle, c, f, dc, df) > 0
            return jnp.where(rising, low, middle), jnp.where(rising, middle, high)

        whole = slope(jnp.ones_like(R), c, f, dc, df) <= 0
        low, _ = lax.fori_loop(0, BISECTIONS, bisect, (jnp.zeros_like(R), jnp.ones_like(R)))
        t = jnp.where(whole, 1, low)
        c_next, f_next = c + t * dc, f + t * df
        finite = jnp.all(jnp.isfinite(f_next))
        same = jnp.all(((f_next < 1) & present) == active)
        settled = ~finite | (whole & same) | (t == 0)
        return k + 1, jnp.where(finite, c_next, c), jnp.where(finite, f_next, f), settled

    start = (jnp.zeros((), jnp.int32), alpha / R, problem.margins(alpha, s) / R, jnp.asarray(False))
    _, _, f, _ = lax.while_loop(lambda carry: (carry[0] < NEWTON_STEPS) & ~carry[3], iterate, start)
    beta = C * jnp.maximum(1 - f, 0)
    return jnp.where(beta.sum() > 0, beta, alpha) / jnp.where(beta.sum() > 0, beta.sum(), 1)


def conjugate_gradients(
    problem: Any, alpha: Float[Array, " n"], s: Float[Array, " n"], products: int
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """Conjugate gradients on the support, inside the simplex; `s` is carried along."""

    def descent(alpha: Array, s: Array) -> Array:
        active = alpha > 0
        mean = jnp.where(active, s, 0).sum() / active.sum()
        return jnp.where(active, mean - s, 0)

    def iterate(_: int, carry: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        alpha, s, r, p = carry
        Qp = problem.matvec(p)
        rr, rp, curvature = r @ r, r @ p, p @ Qp
        usable = (curvature > 0) & (rr > 0) & (rp > 0)
        free = jnp.where(usable, rp / jnp.where(usable, curvature, 1), 0)
        reach = jnp.where((p < 0) & (alpha > 0), -alpha / jnp.where(p < 0, p, -1), jnp.inf)
        t = jnp.minimum(free, reach.min())
        alpha = jnp.where((reach <= t) & usable, 0, jnp.maximum(alpha + t * p, 0))
        s = s + t * Qp
        r_next = descent(alpha, s)
        beta = jnp.where(usable & (t == free), (r_next @ r_next) / jnp.where(rr > 0, rr, 1), 0)
        return alpha, s, r_next, r_next + beta * p

    r = descent(alpha, s)
    alpha, s, _, _ = lax.fori_loop(0, products, iterate, (alpha, s, r, r))
    return alpha, s
