"""A step on a problem without a lid, the squared hinge's: samples fight over the constant, so their scales move too.

Nearly all samples inside the margin have a weight between its bounds, and blocks of them by themselves push the
constant to and fro (hundreds of sets at n = 10,000). So the weights of all that are not in the set move as well, by one
factor a class: two more variables of the block, whose rows are sums that are carried (`parts`).
"""

from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxsvm.numerics.precision import rounded
from jaxsvm.numerics.products import matmul, weighted_rows
from jaxsvm.solvers.working_set.block import double_steps
from jaxsvm.solvers.working_set.members import block_of, is_negative
from jaxsvm.solvers.working_set.row_cache import RowCache

SIGNS = (1, -1)
SHARE = 0.05
"""Of the largest gradient that a block is given it leaves this much."""
STEPS_PER_SAMPLE = 16
"""The cap of a block's own steps: primal-dual active sets after them took as many sets, and a factor each."""


def begun(problem: Any, beta: Array, cache: RowCache | None = None) -> dict[str, Any]:
    """Of weights: `parts` of the classes, and their sum with the ridge."""
    of_class = jnp.stack([jnp.where(problem.y == sign, beta, 0) for sign in SIGNS])
    parts = lax.map(lambda v: _product(problem, v, cache), of_class)  # one program for both
    s = parts.sum(axis=0) + problem.ridge * beta
    return {"a": beta, "parts": parts, "s": s, "R": problem.objective(beta, s)}


def one_of_each(problem: Any) -> Array:
    """Weight on the first sample of each class: to have the products of a start costs the rows of its support."""
    index, n = jnp.arange(problem.n, dtype=jnp.int32), problem.n
    firsts = [jnp.where(problem.present & (problem.y == sign), index, n).min() for sign in SIGNS]
    return jnp.zeros((n,), problem.dtype).at[jnp.stack(firsts)].set(1, mode="drop")


def scaled(problem: Any, alpha: Array) -> Array:
    """Weights in the scale in which the dual objective `1'b - 1/2 b'Kt b` is largest."""
    s = problem.matvec(alpha)
    curvature = alpha @ s
    return alpha * jnp.where(curvature > 0, alpha.sum() / jnp.where(curvature > 0, curvature, 1), 1)


def moved(problem: Any, state: Any, rows: Array, slots: Array, members: Array) -> tuple[dict[str, Any], Array, Array]:
    """What changes of the state when set and scales are solved for, the steps that took, any negative curvature.

    The members' kernel rows are `rows[slots]`.
    """
    n, beta, parts, y = problem.n, state.a, state.parts, problem.y
    place, valid = jnp.minimum(members, n - 1), members < n
    old, ridge = jnp.where(valid, beta[place], 0), problem.ridge[place]
    B = block_of(problem, rows, slots, place)
    rest = beta.at[members].set(0, mode="drop")
    inside = [jnp.where(problem.y[place] == sign, old, 0) for sign in SIGNS]
    outside = [jnp.where(y == sign, rest, 0) for sign in SIGNS]
    g = [parts[k][place] - matmul(B, inside[k]) for k in range(2)]

    def between(a: int, b: int) -> Array:
        """`rest_a' B rest_b`: no rows of the rest are needed."""
        return outside[a] @ parts[b] - inside[b] @ g[a]

    across = (between(0, 1) + between(1, 0)) / 2
    corner = jnp.stack([jnp.stack([between(0, 0), across]), jnp.stack([across, between(1, 1)])])
    corner = corner + jnp.diag(jnp.stack([problem.ridge @ outside[k] ** 2 for k in range(2)]))
    sides = jnp.stack(g, axis=1)
    H = jnp.block([[B + jnp.diag(ridge), sides], [sides.T, corner]])
    totals = jnp.stack([outside[k].sum() for k in range(2)])
    linear = jnp.concatenate([problem.targets[place], totals])
    there = jnp.concatenate([valid, totals > 0])
    H = jnp.where(there[:, None] & there, H, jnp.eye(len(there), dtype=H.dtype))
    before = jnp.concatenate([old, jnp.ones_like(totals)])
    linear, top = jnp.where(there, linear, 0), jnp.where(there, jnp.inf, 0).astype(H.dtype)
    before = jnp.where(there, before, 0)
    gradient = linear - matmul(H, before)
    violation = jnp.where((before > 0) | (gradient > 0), jnp.abs(gradient), 0).max()
    limit = STEPS_PER_SAMPLE * len(there)
    z, _, steps = double_steps(H, jnp.zeros_like(top), top, before, gradient, SHARE * violation, limit)

    new, factors = z[:-2], jnp.where(totals > 0, z[-2:], 1)
    after = (rest * jnp.where(y > 0, factors[0], factors[1])).at[members].set(new, mode="drop")
    change = jnp.stack([jnp.where(y[place] == SIGNS[k], new - factors[k] * old, 0) for k in range(2)])
    parts = factors[:, None] * parts + lax.map(lambda v: _signed_rows(problem, v, rows, slots, place), change)
    s = parts.sum(axis=0) + problem.ridge * after
    return {"a": after, "parts": parts, "s": s, "R": problem.objective(after, s)}, steps, is_negative(H, z - before)


def refreshed(problem: Any, state: Any) -> dict[str, Any]:
    """All of it from scratch, with the rows that are at hand."""
    beta = rounded(jnp.maximum(state.a.astype(problem.dtype), 0), state.a.dtype)
    return begun(problem, beta, state.cache)


def _product(problem: Any, v: Array, cache: RowCache | None) -> Float[Array, " n"]:
    """`B v`, by rows that are at hand where they are, of the other samples by rows that are computed."""
    if cache is None or not len(cache.owner) or problem.gram.design is not None:
        return problem.signed.support_matvec(v)
    place = jnp.minimum(cache.owner, problem.n - 1)
    inside = jnp.where(cache.owner < problem.n, v[place], 0)
    rest = problem.signed.support_matvec(v.at[cache.owner].set(0, mode="drop"))
    return rest + _signed_rows(problem, inside, cache.rows, None, place)


def _signed_rows(problem: Any, v: Array, rows: Array, slots: Any, place: Array) -> Float[Array, " n"]:
    """`B[:, place] v`."""
    signed = problem.y[place] * v
    return problem.y * (weighted_rows(signed, rows, slots) + problem.offset * signed.sum())
