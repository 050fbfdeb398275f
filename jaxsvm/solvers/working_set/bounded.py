"""Working-set steps with upper bounds (the hinge): `s = Qa` is carried in twice the precision."""

from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from jaxsvm.numerics.precision import bits_of, double, in_double, of_bits, widened
from jaxsvm.numerics.products import weighted_rows
from jaxsvm.problems.arguments import vector_dtype
from jaxsvm.problems.box import BoxProblem
from jaxsvm.solvers.measured import MEASURED
from jaxsvm.solvers.working_set.block import Steps
from jaxsvm.solvers.working_set.members import ends, is_negative_along


def begun(problem: BoxProblem, a: Array | None) -> dict[str, Any]:
    """Compute `s = Qa`, and of data narrower than float64 also its bits in twice the precision; an a of None is 0."""
    if jnp.finfo(vector_dtype(problem.gram)).bits >= 64:  # of the data: the problem may be one that was widened
        return {"s": jnp.zeros_like(problem.y) if a is None else problem.matvec(a), "exact": None}

    def compute(problem: BoxProblem, a: Array | None) -> dict[str, Array]:
        wide = double(problem.dtype)
        s = jnp.zeros((problem.n,), wide) if a is None else widened(problem).matvec(a.astype(wide))
        return {"s": s.astype(problem.dtype), "exact": bits_of(s)}

    return in_double(compute)(problem, a)


def carried(s: Array, like: Array) -> dict[str, Any]:
    """Return float64 sums as a state carries them, in the dtype of another vector; call it inside `in_double`."""
    return {"s": s.astype(like.dtype), "exact": None if like.dtype == s.dtype else bits_of(s)}


def moved(
    problem: BoxProblem, state: Any, K: Array, rows: Array, slots: Array, members: Array, solve: Steps
) -> tuple[dict[str, Any], Array, Array]:
    """Solve the set's problem, with the members' kernel rows `rows[slots]` and the kernel values K between members.

    Returns:
        Changed fields of the state, the number of steps, and whether a curvature was negative.
    """
    place, valid = jnp.minimum(members, problem.n - 1), members < problem.n
    y = problem.y[place]
    Q = jnp.outer(y, y) * (K.astype(problem.dtype) + problem.offset)
    old, U = jnp.where(valid, state.a[place], 0), jnp.where(valid, problem.upper[place], 0)
    gradient = (problem.targets - state.s)[place]
    c = jnp.ones_like(old) if problem.equality is None else problem.equality[place]
    end = c * U
    low, high = jnp.minimum(0, end), jnp.maximum(0, end)
    top, bottom = ends(problem, state.a, state.s)
    tol, limit = MEASURED.violation_left * (top - bottom), MEASURED.steps_per_member * len(place)
    v, _, steps = solve(Q / jnp.outer(c, c), low, high, c * old, gradient / c, tol, limit)
    # Bounds are met exactly, so that comparisons with them are exact.
    new = jnp.where(v == end, U, jnp.clip(v / c, 0, U))
    change = new - old
    gain = change @ (gradient - Q @ change / 2)
    placed = _with_values(problem, state, rows, slots, members, old, new)
    return {**placed, "R": state.R - gain}, steps, is_negative_along(Q, change)


def _with_values(
    problem: BoxProblem, state: Any, rows: Array, slots: Array, members: Array, old: Array, new: Array
) -> dict[str, Any]:
    """Put the set's new values into `a`, and update `s` by their rows.

    The member with the most room corrects the rounding error of the equality, so that the whole `a` stays on it.
    """
    n, place = problem.n, jnp.minimum(members, problem.n - 1)
    y, U, c = problem.y[place], problem.upper[place], problem.equality

    def move(a: Array, s: Array, exact: Any, new: Array, rows: Array) -> dict[str, Any]:
        wide = double(a.dtype)
        after = a.at[members].set(new, mode="drop")
        if c is not None:
            off = (c.astype(wide) @ after.astype(wide) - problem.e).astype(a.dtype)
            room = jnp.where(members < n, jnp.minimum(new, U - new), 0)
            k = lax.top_k(room, 1)[1][0]
            change = off / c[place][k]
            new = new.at[k].add(jnp.where(room[k] > jnp.abs(change), -change, 0))
            after = a.at[members].set(new, mode="drop")
        signed = y.astype(wide) * jnp.where(members < n, new.astype(wide) - old.astype(wide), 0)
        product = weighted_rows(signed, rows, slots)
        total = (s if exact is None else of_bits(exact)) + problem.y * (product + problem.offset * signed.sum())
        return {"a": after, "s": total.astype(s.dtype), "exact": None if exact is None else bits_of(total)}

    return in_double(move)(state.a, state.s, state.exact, new, rows)


def refreshed(problem: BoxProblem, state: Any) -> dict[str, Any]:
    """Compute `s` and `R` of the state's `a` from the sums in twice the precision, without a product.

    Only a linear kernel computes `Qa` anew, O(n d): its rows are rounded, products with its points are not.
    """
    a = state.a.astype(problem.dtype)
    if problem.gram.design is not None:
        s = problem.matvec(a)
    elif state.exact is None or problem.dtype == state.s.dtype:
        s = state.s
    else:
        s = of_bits(state.exact)
    return {"a": a, "s": s, "R": problem.objective(a, s)}
