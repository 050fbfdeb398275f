"""The squared-hinge certificate: for solvers as if products were exact, and under rounding for a returned point."""

from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxsvm.numerics.line_search import best_bias
from jaxsvm.numerics.precision import rounded, rounding
from jaxsvm.numerics.products import matmul, sums
from jaxsvm.results.fit import Answer, Certificate
from jaxsvm.results.judge import balances, is_weights, judged

if TYPE_CHECKING:
    from jaxsvm.problems.squared_hinge import SquaredHingeProblem


def certificate(problem: "SquaredHingeProblem", alpha: Float[Array, " n"], s: Float[Array, " n"]) -> Certificate:
    """Return the certificate of a dual point in any scale, as if `s = Kt alpha` were exact, for solvers.

    `relative_gap = sum_i C_i t_i / R` with `u_i = R - s_i`, `v_i = alpha_i / C_i`, and `t_i = u_i (u_i + 2 v_i)`
    where `u_i + v_i > 0`, else `-v_i^2`. Errors of `s` cancel to first order (docs/mathematics.md, The certificate).
    """
    # Weights are not negative, and 0 for absent samples: tested by a sum, which costs nothing beside the others.
    wrong = jnp.where(problem.present, jnp.minimum(alpha, 0), alpha)
    size = jnp.abs(alpha) * jnp.sqrt(jnp.maximum(problem.diagonal, 0))
    total, square, infeasible, spread = sums(alpha, alpha * s, jnp.abs(wrong), size)
    alpha, s, R, spread = alpha / total, s / total, square / total**2, spread / total
    u, v = R - s, problem.ridge * alpha
    slack = u + v
    (loss,) = sums(problem.costs * jnp.where(slack > 0, u * (slack + v), -v * v))
    positive = R > 0
    scale = jnp.where(positive, R, 1)
    relative_gap = loss / scale
    dual = 1 / (2 * scale)
    return judged(
        dual * (1 + relative_gap),
        dual,
        relative_gap,
        jnp.ones_like(scale),
        rounding=32 * jnp.finfo(s.dtype).eps * (1 + spread**2 / scale),
        feasible=positive & (infeasible == 0),
    )


def certified(
    problem: "SquaredHingeProblem", beta: Float[Array, " n"], s: Float[Array, " n"], dtype: np.dtype
) -> Answer:
    """Certify a point, in the numbers that the caller gets.

    Args:
        problem: The problem, in twice the precision.
        beta: Coefficients in primal scale (`alpha / R`), not negative, numbers of `dtype`, `(n,)`. Any other scale is
            valid too, with a slightly larger primal.
        s: `Kt beta`, computed from scratch in twice the precision, `(n,)`.
        dtype: Dtype of the numbers that are returned.

    Returns:
        The result: `dual_coef` is `y beta`, `alpha` is beta over its sum, rounded.
    """
    C, y, own = problem.costs, problem.y, problem.ridge * beta
    margins = s - own
    if problem.free_bias:
        margins = y * problem.gram.support_matvec(y * beta)
    size = jnp.sqrt(jnp.maximum(problem.diagonal, 0))
    # Several sums at once: each alone would be one more kernel to compile, 0.01 s.
    parts = jnp.stack([jnp.ones_like(beta), y, margins, own, size])
    total, balance, square, excess, spread = matmul(parts, beta)
    constant = problem.offset * balance
    best = best_bias(margins, y, C, 1.0) if problem.free_bias else constant
    bias = rounded(best, dtype)
    returned = margins + y * (bias - constant)
    exact = margins + y * (best - constant) + own
    # Of rounded kernel values |w|^2 may be negative. Then 0 is nearer the truth, and the gap no smaller.
    slack, squared_norm = 1 - returned, jnp.maximum(square - constant * balance, 0)
    Q = squared_norm + constant * balance + excess
    usable = (Q > 0) & (total > 0) & is_weights(beta, problem.present)
    if problem.free_bias:
        usable = usable & balances(balance, total, dtype)
    scale = jnp.where(usable, Q, 1)
    whole = jnp.where(total > 0, total, 1)  # of a point that proves nothing too: R is the scale of its alpha
    dual = total**2 / (2 * scale)

    # Errors of the products count to second order, since primal and dual move together to first order: each of them may
    # be off by their share in Q, `doubt`, where beta' K beta cancels. The dual that is returned is off as the primal.
    error = rounding(problem.n, s.dtype) * size * spread + jnp.finfo(s.dtype).eps * (1 + jnp.abs(bias))
    loss, allowed, moved = sums(
        C * jnp.maximum(slack, 0) ** 2,
        jnp.where(slack > -error, C * error * (2 * jnp.abs(1 - exact) + error), 0),
        beta * jnp.abs(exact - Q / whole),
    )
    primal, allowance = (squared_norm + problem.offset * bias**2 + loss) / 2, allowed / 2
    if problem.free_bias:  # beta may be off y . beta = 0 by rounding
        allowance = allowance + 2 * jnp.abs(best * balance)
    # The rounding of alpha: its R is at most Q (1 + share) / total^2.
    eps = jnp.finfo(dtype).eps if jnp.finfo(dtype).bits < jnp.finfo(s.dtype).bits else 0.0
    share = (eps * moved + (eps / 2 * spread) ** 2) / scale
    doubt = rounding(problem.n, s.dtype) * spread**2 / scale
    usable = usable & (doubt < 1)  # else Q may be rounding alone, and truly negative
    relative_gap = ((primal + allowance) / dual) * (1 + share) - 1 + doubt**2 + 8 * jnp.finfo(s.dtype).eps
    dual = jnp.maximum(dual / (1 + doubt), primal / (1 + jnp.maximum(relative_gap, 0)))
    allowed = share + doubt + 64 * jnp.finfo(s.dtype).eps
    bounds = judged(primal, dual, relative_gap, jnp.ones_like(scale), rounding=allowed, feasible=usable)
    return Answer(beta / whole, y * beta, bias, Q / whole**2, returned, bounds)
