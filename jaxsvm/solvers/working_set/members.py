"""Choose the members of a working set: the samples that violate most, and the places that they take.

A step treats a problem as a box: `max t'a - 1/2 a'Qa` over `0 <= a <= upper` (infinite without upper bounds), with `t`
its `targets` and, with a free bias, its `equality`.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxsvm.numerics.selection import top_k
from jaxsvm.problems.contract import Restrictable
from jaxsvm.solvers.contract import is_negative


def sides(problem: Restrictable, a: Array, s: Array) -> tuple[Array, Array, Array]:
    """Return `(t_i - s_i) / c_i`, and the samples that may move along `1 / c_i` and against it."""
    c = jnp.ones_like(a) if problem.equality is None else problem.equality
    not_full, not_empty = a < problem.upper, a > 0
    up, low = jnp.where(c > 0, not_full, not_empty), jnp.where(c > 0, not_empty, not_full)
    return (problem.targets - s) / c, up & problem.present, low & problem.present


def ends(problem: Restrictable, a: Array, s: Array) -> tuple[Array, Array]:
    """Return the largest pull upward (without an equality >= 0) and the smallest pull downward (<= 0)."""
    pull, up, low = sides(problem, a, s)
    empty_side = jnp.inf if problem.free_bias else 0
    return jnp.where(up, pull, -empty_side).max(), jnp.where(low, pull, empty_side).min()


def ends_of_groups(groups: Array, pull: Array, up: Array, low: Array) -> tuple[Array, Array]:
    """Return the middle of the ends of each variable's group, `(n,)`, and the larger violation within one, `()`.

    If a group is full, or one variable of it moves, nothing violates.
    """
    middles, widths = [], []
    for mine in (groups, ~groups):
        top, bottom = jnp.where(mine & up, pull, -jnp.inf).max(), jnp.where(mine & low, pull, jnp.inf).min()
        middles.append(jnp.where(jnp.isfinite(top - bottom), (top + bottom) / 2, 0))
        widths.append(jnp.where(jnp.isfinite(top - bottom), top - bottom, 0))
    return jnp.where(groups, *middles), jnp.maximum(*widths)


def candidates(problem: Restrictable, a: Array, s: Array, members: Int[Array, " q"], count: int) -> Int[Array, " f"]:
    """Return samples outside the set that violate most, n for missing ones; with an equality from both sides."""
    n = problem.n
    pull, up, low = sides(problem, a, s)
    outside = jnp.ones((n,), bool).at[members].set(False, mode="drop")
    # Ties are frequent (all samples at a = 0) and neighbours are similar: a golden-ratio sequence breaks them.
    spread = 1 + 1e-4 * jnp.mod(jnp.arange(n, dtype=a.dtype) * 0.6180339887, 1)

    def worst(score: Array, count: int) -> Array:
        values, index = top_k(score * spread, min(count, n), problem.gram.spread)
        return jnp.where(values > 0, index, n).astype(jnp.int32)

    if not problem.free_bias:
        D = jnp.maximum(problem.diagonal, jnp.finfo(a.dtype).tiny)
        move = jnp.clip(a + pull / D, 0, problem.upper) - a
        return worst(jnp.where(outside & (up | low), move * (pull - D * move / 2), 0), count)
    top, bottom = ends(problem, a, s)
    upward = worst(jnp.where(up & outside, pull - bottom, 0), count // 2)
    low = low.at[upward].set(False, mode="drop")
    downward = worst(jnp.where(low & outside, top - pull, 0), count - count // 2)
    return jnp.concatenate([upward, downward])


def with_new_members(
    problem: Restrictable, a: Array, s: Array, members: Array, entered: Array, step: Array, fresh: Array
) -> tuple[Array, Array, Array]:
    """Replace the least useful members: those at a bound that do not violate, then the oldest.

    Returns:
        Members, the steps at which they entered, and the places of the new ones, `(f,)`; q for missing ones.
    """
    n, q = problem.n, len(members)
    place = jnp.minimum(members, n - 1)
    old, U = a[place], problem.upper[place]
    pull, up, low = (values[place] for values in sides(problem, a, s))
    middle = sum(ends(problem, a, s)) / 2 if problem.free_bias else 0
    free, moves = (old > 0) & (old < U), (up & (pull > middle)) | (low & (pull < middle))
    worth = entered + jnp.where(free, 1 << 29, 0) + jnp.where(moves, 1 << 28, 0)
    _, order = lax.top_k(-jnp.where(members < n, worth, -1), len(fresh))
    newcomers = jnp.sort(fresh)  # missing ones, which are n, come last
    places = jnp.where(newcomers < n, order, q).astype(jnp.int32)
    return members.at[places].set(newcomers, mode="drop"), entered.at[places].set(step, mode="drop"), places


def among(
    K: Float[Array, "q q"], rows: Float[Array, "m n"], slots: Int[Array, " q"], members: Array, places: Int[Array, " f"]
) -> Float[Array, "q q"]:
    """Update the kernel matrix between the members: only the rows of new members are read.

    Entries of long rows are far apart: reading all q^2 of them took a sixth of a fit of n = 30,000.

    Args:
        K: Matrix of the last set; entries of empty places are arbitrary.
        rows: Kernel rows, of which the members' are `rows[slots]`.
        slots: Indices of the members' rows.
        members: The set, n in an empty place.
        places: Places of the new members; q for missing ones.
    """
    q, place = len(members), jnp.minimum(members, rows.shape[1] - 1)
    new = rows[slots[jnp.minimum(places, q - 1)][:, None], place]
    K = K.at[places].set(new, mode="drop")
    is_new = jnp.zeros((q,), bool).at[places].set(True, mode="drop")
    return jnp.where(is_new, K.T, K)


def is_negative_along(Q: Float[Array, "q q"], move: Float[Array, " q"]) -> Bool[Array, ""]:
    """Return whether a matrix has a negative curvature along a move, beyond rounding."""
    return is_negative(move @ (Q @ move), jnp.abs(Q).max() * jnp.abs(move).sum() ** 2)
