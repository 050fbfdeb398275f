"""Choose the members of a working set: the samples that violate most, the places that they take, and their rows.

A step treats a problem as a box: `max t'a - 1/2 a'Qa` over `0 <= a <= upper` (infinite without upper bounds), with `t`
its `targets` and, with a free bias, its `equality`.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxsvm.gram.contract import Gram
from jaxsvm.gram.measured import MEASURED
from jaxsvm.numerics.masks import count, places_first
from jaxsvm.numerics.selection import top_k
from jaxsvm.problems.contract import Restrictable
from jaxsvm.runtime.loops import while_loop
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
    """Update the kernel matrix between the members, at the `places` of new ones (q for missing ones).

    Only the rows of new members are read, `rows[slots]`: entries of long rows are far apart, and reading all q^2 of
    them took a sixth of a fit of n = 30,000.
    """
    q, place = len(members), jnp.minimum(members, rows.shape[1] - 1)
    new = rows[slots[jnp.minimum(places, q - 1)][:, None], place]
    K = K.at[places].set(new, mode="drop")
    is_new = jnp.zeros((q,), bool).at[places].set(True, mode="drop")
    return jnp.where(is_new, K.T, K)


def is_negative_along(Q: Float[Array, "q q"], move: Float[Array, " q"]) -> Bool[Array, ""]:
    """Return whether a matrix has a negative curvature along a move, beyond rounding."""
    return is_negative(move @ (Q @ move), jnp.abs(Q).max() * jnp.abs(move).sum() ** 2)


ROWS_PER_FETCH = (MEASURED.rows_per_tile, MEASURED.rows_per_tile // 4)
"""Kernel rows computed at a time, and for a short remainder."""


class RowCache(NamedTuple):
    """Rows of the kernel matrix, for the samples that were last in a set."""

    rows: Float[Array, "m n"]  # kernel rows; `(0, n)` where the Gram operator stores all
    owner: Int[Array, " m"]  # sample of each row; n if empty
    used: Int[Array, " m"]  # step at which its sample was last in the set; -1 if empty


def empty_cache(gram: Gram, n: int, m: int) -> RowCache:
    """Return an empty cache for m rows; for none if the Gram operator stores all."""
    m = 0 if gram.stored else m
    return RowCache(jnp.zeros((m, n), gram.dtype), jnp.full((m,), n, jnp.int32), jnp.full((m,), -1, jnp.int32))


def enlarged_cache(cache: RowCache, m: int) -> RowCache:
    """Return the cache with room for m rows; steps of last use are forgotten, since each solver counts its own."""
    more = max(m - len(cache.owner), 0)
    if not len(cache.owner):
        return cache
    return RowCache(
        jnp.pad(cache.rows, ((0, more), (0, 0))),
        jnp.pad(cache.owner, (0, more), constant_values=cache.rows.shape[1]),
        jnp.pad(jnp.minimum(cache.used, 0), (0, more), constant_values=-1),
    )


def fetched(
    gram: Gram, cache: RowCache, members: Int[Array, " q"], step: Int[Array, ""], most: int
) -> tuple[RowCache, Int[Array, " q"], Int[Array, ""]]:
    """Compute missing rows of members, `most` at most, in place of the rows that were used longest ago.

    Returns:
        The cache, the members' indices in it (arbitrary for empty places), and the number of computed rows. If all
        rows are stored, the indices are samples, and no row is computed.
    """
    m, n = cache.rows.shape
    sample = jnp.minimum(members, n - 1)
    if gram.stored:
        return cache, sample, jnp.zeros((), jnp.int32)
    index = jnp.arange(m, dtype=jnp.int32)
    place = jnp.full((n,), m, jnp.int32).at[cache.owner].set(index, mode="drop")[sample]
    missing = (members < n) & (place == m)
    many = count(missing)
    used = cache.used.at[jnp.where(members < n, place, m)].set(step, mode="drop")
    _, oldest = lax.top_k(-used, min(most, m))
    first = places_first(missing)[: len(oldest)]
    is_new = jnp.arange(len(first), dtype=jnp.int32) < many
    new = jnp.where(is_new, members[first], n)
    slots = jnp.where(is_new, oldest, m).astype(jnp.int32)
    return (
        RowCache(
            _computed(gram, cache.rows, slots, new, many, ROWS_PER_FETCH if m > len(members) else ROWS_PER_FETCH[:1]),
            cache.owner.at[slots].set(new, mode="drop"),
            used.at[slots].set(step, mode="drop"),
        ),
        jnp.minimum(place, m - 1).at[jnp.where(is_new, first, len(members))].set(slots, mode="drop"),
        many,
    )


def _computed(gram: Gram, rows: Array, slots: Array, new: Array, count: Array, tiles: tuple[int, ...]) -> Array:
    """Compute the rows of the first `count` samples of `new` into their slots, by large tiles, then small ones."""
    m, n = rows.shape
    start = jnp.zeros((), jnp.int32)
    slots = jnp.pad(slots, (0, tiles[0]), constant_values=m)
    new = jnp.minimum(jnp.pad(new, (0, tiles[0])), n - 1)
    for tile, smaller in zip(tiles, (*tiles[1:], tiles[-1]), strict=True):

        def fetch(carry: tuple[Array, Array], tile: int = tile) -> tuple[Array, Array]:
            start, rows = carry
            index = lax.dynamic_slice(new, (start,), (tile,))
            taken = lax.dynamic_slice(slots, (start,), (tile,))
            return start + tile, rows.at[taken].set(gram.rows(index), mode="drop")

        # Take a tile only if the rest needs as many rows as all of the smaller tiles in it.
        least = tile - smaller
        start, rows = while_loop(lambda carry, least=least: count - carry[0] > least, fetch, (start, rows))
    return rows
