"""Who is in the set: samples that violate most, and the seats they take.

What a step sees of a problem is a box: `max t'a - 1/2 a'Qa` over `0 <= a <= upper` (infinite without a lid), with `t`
its `targets` and, of a free bias, its `equality`.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxsvm.problems.contract import Restrictable

GOLDEN = 0.6180339887
CURVATURE_FLOOR = 32
"""A curvature below -32 eps times its scale is no rounding: the kernel is not positive semidefinite."""


def sides(problem: Restrictable, a: Array, s: Array) -> tuple[Array, Array, Array]:
    """`(t_i - s_i) / c_i`, and who may move along `1 / c_i` and against it."""
    c = jnp.ones_like(a) if problem.equality is None else problem.equality
    not_full, not_empty = a < problem.upper, a > 0
    up, low = jnp.where(c > 0, not_full, not_empty), jnp.where(c > 0, not_empty, not_full)
    return (problem.targets - s) / c, up & problem.present, low & problem.present


def ends(problem: Restrictable, a: Array, s: Array) -> tuple[Array, Array]:
    """The largest pull upward and the smallest downward: of an equality the violating pair's, else no less than 0."""
    pull, up, low = sides(problem, a, s)
    nothing = jnp.inf if problem.free_bias else 0
    return jnp.where(up, pull, -nothing).max(), jnp.where(low, pull, nothing).min()


def candidates(problem: Restrictable, a: Array, s: Array, members: Int[Array, " q"], count: int) -> Int[Array, " f"]:
    """Samples outside the set that violate most, n in the places of those that do not; of an equality both sides."""
    n = problem.n
    pull, up, low = sides(problem, a, s)
    outside = jnp.ones((n,), bool).at[members].set(False, mode="drop")
    # Ties are many (all samples at a = 0) and neighbours alike: they are broken by a sequence that spreads.
    spread = 1 + 1e-4 * jnp.mod(jnp.arange(n, dtype=a.dtype) * GOLDEN, 1)

    def worst(score: Array, count: int) -> Array:
        values, index = lax.top_k(score * spread, min(count, n))
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


def seated(
    problem: Restrictable, a: Array, s: Array, members: Array, entered: Array, step: Array, fresh: Array
) -> tuple[Array, Array, Array]:
    """The set with new members in the seats of those that matter least: at a bound and content, or there for longest.

    Returns:
        Members, when they entered, and the seats of the new ones, `(f,)`; q in the places of those that there are not.
    """
    n, q = problem.n, len(members)
    place = jnp.minimum(members, n - 1)
    here, U = a[place], problem.upper[place]
    pull, up, low = (values[place] for values in sides(problem, a, s))
    middle = sum(ends(problem, a, s)) / 2 if problem.free_bias else 0
    free, moves = (here > 0) & (here < U), (up & (pull > middle)) | (low & (pull < middle))
    worth = entered + jnp.where(free, 1 << 29, 0) + jnp.where(moves, 1 << 28, 0)
    _, order = lax.top_k(-jnp.where(members < n, worth, -1), len(fresh))
    newcomers = jnp.sort(fresh)  # empty places, which are n, behind them
    seats = jnp.where(newcomers < n, order, q).astype(jnp.int32)
    return members.at[seats].set(newcomers, mode="drop"), entered.at[seats].set(step, mode="drop"), seats


def among(
    K: Float[Array, "q q"], rows: Float[Array, "m n"], slots: Int[Array, " q"], members: Array, seats: Int[Array, " f"]
) -> Float[Array, "q q"]:
    """The kernel matrix of the set, of that of the last one: read anew are the rows of the new members alone.

    Entries of long rows are far apart: reading all q^2 of them took a sixth of a fit of n = 30,000.

    Args:
        K: That of the last set; entries of empty seats mean nothing.
        rows: Kernel rows, of which the members' are `rows[slots]`.
        slots: Where the members' are.
        members: The set, n in an empty seat.
        seats: Where the new ones sit; q in the places of those that there are not.
    """
    q, place = len(members), jnp.minimum(members, rows.shape[1] - 1)
    new = rows[slots[jnp.minimum(seats, q - 1)][:, None], place]
    K = K.at[seats].set(new, mode="drop")
    is_new = jnp.zeros((q,), bool).at[seats].set(True, mode="drop")
    return jnp.where(is_new, K.T, K)


def is_negative(Q: Float[Array, "q q"], move: Float[Array, " q"]) -> Bool[Array, ""]:
    """Whether a matrix has a negative curvature along a move, by more than rounding."""
    scale = jnp.abs(Q).max() * jnp.abs(move).sum() ** 2
    return move @ (Q @ move) < -CURVATURE_FLOOR * jnp.finfo(Q.dtype).eps * scale
