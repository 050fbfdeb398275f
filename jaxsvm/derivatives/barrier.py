"""Interior points of a box problem, for active sets that circle: a turn solves the equations of one more `System`.

With multipliers `z` of `a >= 0` and `w` of `t = U - a >= 0`, Newton's step to `a z = t w = mu` solves

    (Q + D) da + b c = q - Q a + mu / a - mu / t,     c'(a + da) = e,     D = z / a + w / t

(Wright 1997, Primal-Dual Interior-Point Methods, chapter 1). These are the equations of a support that holds all
samples, with a ridge: the compiled program of active sets solves them too.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxsvm.derivatives.support_equations import Shift
from jaxsvm.problems.contract import Differentiable
from jaxsvm.results.fit import Active, Point


class Inside(NamedTuple):
    """A point inside the box."""

    x: Float[Array, "2 n"]  # `(a, t)`, `(2, n)`, positive; absent samples have any values
    multipliers: Float[Array, "2 n"]  # `(z, w)`, `(2, n)`, positive
    mu: Float[Array, ""]  # the value that the products of the next step aim at, `()`


def first(problem: Differentiable) -> Inside:
    """Return the middle of the box, with multipliers as large as its residuals may be."""
    U, size = problem.upper, jnp.sqrt(jnp.maximum(problem.diagonal, 0))
    most = jnp.abs(problem.targets).max() + size.max() * (size @ U)
    x = jnp.broadcast_to(jnp.where(problem.present, U / 2, 1), (2, *U.shape))
    return Inside(x, jnp.full_like(x, most), most * U.max() / 2)


def equations(problem: Differentiable, at: Inside) -> tuple[Active, Shift]:
    """Return the active sets and the shift with which `solved` takes Newton's step."""
    pull = at.mu / at.x
    step = Shift(at.x[0], pull[0] - pull[1], (at.multipliers / at.x).sum(axis=0))
    return Active(problem.present, jnp.zeros_like(problem.present), at.x[0]), step


def moved(problem: Differentiable, at: Inside, to: Point, goes: Bool[Array, ""]) -> tuple[Inside, Bool[Array, ""]]:
    """Step toward a solution of the equations if `goes`; return also whether to end: at a gap of 1e-10, or NaN."""
    present = problem.present[None, :]
    da = to.a - at.x[0]
    dx = jnp.stack([da, -da])
    values = jnp.concatenate([at.x, at.multipliers])
    changes = jnp.concatenate([dx, (at.mu - at.multipliers * dx) / at.x - at.multipliers])
    falls = present & (changes < 0)
    step = jnp.minimum(1, 0.995 * jnp.where(falls, -values / jnp.where(falls, changes, 1), jnp.inf).min())
    value = jnp.abs(to.a @ (problem.targets - to.products / 2))
    values = jnp.where(present & goes & jnp.isfinite(value), values + step * changes, values)
    gap = jnp.where(present, values[:2] * values[2:], 0).sum()
    share = jnp.where(step > 0.9, 0.1, jnp.where(step > 0.5, 0.3, 0.8))
    return Inside(values[:2], values[2:], share * gap / (2 * present.sum(dtype=gap.dtype))), ~(gap > 1e-10 * value)


def sets(problem: Differentiable, at: Inside) -> Active:
    """Return the active sets of a point near a solution."""
    inner = at.multipliers * problem.upper[None, :] <= at.x
    return Active(problem.present & inner[0] & inner[1], problem.present & ~inner[1], at.x[0])
