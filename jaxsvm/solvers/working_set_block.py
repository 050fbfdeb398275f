"""Working sets: their members, the kernel rows of these, the problem of a block, and the sums of a box.

A step treats a problem as a box: `max t'a - 1/2 a'Qa` over `0 <= a <= upper` (infinite without upper bounds), with `t`
its `targets` and, with a free bias, its `equality`. It chooses the samples that violate most and the places that they
take, fetches their rows, and solves for them with all others fixed.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxsvm.gram.measured import MEASURED as GRAM
from jaxsvm.gram.operators import Gram
from jaxsvm.numerics.line_search import CURVATURE_FLOOR, best_in_rectangle
from jaxsvm.numerics.precision import (
    bits_of,
    diagonal,
    double,
    in_double,
    matmul,
    of_bits,
    places_first,
    weighted_rows,
    widened,
)
from jaxsvm.numerics.selection import entry, largest, largest_packed, smallest, top_k
from jaxsvm.problems.arguments import vector_dtype
from jaxsvm.problems.box import BoxProblem
from jaxsvm.problems.contract import Restrictable
from jaxsvm.runtime.loops import fori_loop, while_loop
from jaxsvm.solvers.contract import is_negative
from jaxsvm.solvers.measured import MEASURED


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

    Also return the steps at which members entered, and the places of the new ones, `(f,)`; q for missing ones.
    """
    n, q = problem.n, len(members)
    place = jnp.minimum(members, n - 1)
    old, U = a[place], problem.upper[place]
    pull, up, low = (values[place] for values in sides(problem, a, s))
    middle = sum(ends(problem, a, s)) / 2 if problem.free_bias else 0
    free, moves = (old > 0) & (old < U), (up & (pull > middle)) | (low & (pull < middle))
    worth = entered + jnp.where(free, 1 << 29, 0) + jnp.where(moves, 1 << 28, 0)  # above any number of steps
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
    return is_negative(move @ matmul(Q, move), jnp.abs(Q).max() * jnp.abs(move).sum() ** 2)


# --- the cache of kernel rows
#
# Nearly all samples that enter a set do so several times: on MNIST at C = 100, 1,700 samples enter 4,700 times, and
# computing rows is nine tenths of a fit.

ROWS_PER_FETCH = (GRAM.rows_per_tile, GRAM.rows_per_tile // 4)
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

    Return the cache, the members' indices in it (arbitrary for empty places), and the number of computed rows. If all
    rows are stored, the indices are samples, and no row is computed.
    """
    m, n = cache.rows.shape
    sample = jnp.minimum(members, n - 1)
    if gram.stored:
        return cache, sample, jnp.zeros((), jnp.int32)
    index = jnp.arange(m, dtype=jnp.int32)
    place = jnp.full((n,), m, jnp.int32).at[cache.owner].set(index, mode="drop")[sample]
    missing = (members < n) & (place == m)
    many = missing.sum(dtype=jnp.int32)
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


# --- the problem of a block, whose shape does not depend on n
#
# A step is a handful of scalars. Interior points of the whole block, some 15 systems a set, took 11 to 16 times as long
# on an H100 (n = 20,000).


class Quadratic(NamedTuple):
    """What a step maximises, `pull'(u - v) - 1/2 (u - v)'K(u - v)` over `low <= u <= high`."""

    row: Callable[[Array], Array]  # from i to `K[i]`
    D: Float[Array, " q"]  # the diagonal of K
    low: Float[Array, " q"]
    high: Float[Array, " q"]
    largest: Callable[[Array], Array]  # finds the place of the largest entry


class Step(NamedTuple):
    """A step of two variables i and j, or of i alone where they are equal."""

    places: tuple[Array, Array]  # j and i
    values: tuple[Array, Array]  # their new values; bounds are met exactly, so that comparisons with them are exact
    change: Float[Array, " q"]  # what K times the step takes from the gradient
    gain: Float[Array, ""]  # increase of the objective
    curvature: Float[Array, ""]  # of K, not floored; 0 of a pair that stays

    def taken(self, v: Array) -> Array:
        """Return the variables after it; i counts where both are equal."""
        (j, i), (new_j, new_i) = self.places, self.values
        return v.at[j].set(new_j, wrap_negative_indices=False).at[i].set(new_i, wrap_negative_indices=False)


def pair_step(of: Quadratic, v: Array, pull: Array, middle: Any, groups: Any = None, allowed: Any = True) -> Step:
    """Return a second-order pair step, up by t at i and down by t at j (Fan, Chen and Lin 2005, WSS 2).

    What violates most is selected relative to the middle of the violating pair: as exactly as the violation is small.
    With `groups` both are of one group.
    """
    i = of.largest(jnp.where(v < of.high, pull - middle, -jnp.inf))
    row_i, D_i, descent = of.row(i), entry(of.D, i), entry(pull, i) - pull
    curvature = jnp.maximum(D_i + of.D - 2 * row_i, CURVATURE_FLOOR)
    partners = (v > of.low) & (descent > 0) & (True if groups is None else groups == entry(groups, i))
    j = of.largest(jnp.where(partners, descent * descent / curvature, -1))
    descent_j, v_i, v_j, high_i, low_j = (
        entry(*at) for at in ((descent, j), (v, i), (v, j), (of.high, i), (of.low, j))
    )
    usable = entry(partners, j) & (v_i < high_i) & allowed
    t = jnp.minimum(descent_j / entry(curvature, j), jnp.minimum(high_i - v_i, v_j - low_j))
    t = jnp.where(usable, t, 0)
    new_i = jnp.where(usable & (t >= high_i - v_i), high_i, v_i + t)
    new_j = jnp.where(usable & (t >= v_j - low_j), low_j, v_j - t)
    along = jnp.where(usable, D_i + entry(of.D, j) - 2 * entry(row_i, j), 0)
    return Step((j, i), (new_j, new_i), t * (row_i - of.row(j)), t * (descent_j - t * along / 2), along)


def double_step(of: Quadratic, v: Array, pull: Array, allowed: Any = True, alone: bool = False) -> Step:
    """Return a step of the variable that gains most and, unless it moves `alone`, of the best one after it, at once.

    Source: Steinwart, Hush and Scovel 2011, 2D-SMO. Upper bounds may be infinite.
    """
    D = jnp.maximum(of.D, CURVATURE_FLOOR)

    def gains(pull: Array) -> tuple[Array, Array]:
        move = jnp.clip(v + pull / D, of.low, of.high) - v
        return move, move * (pull - D * move / 2)

    def at(k: Array) -> tuple[Array, ...]:
        return tuple(entry(values, k) for values in (v, pull, D, of.low, of.high))

    def value(t: Array, v: Array, low: Array, high: Array) -> Array:
        return jnp.where(t == low - v, low, jnp.where(t == high - v, high, v + t))

    move, gain = gains(pull)
    i = of.largest(gain)
    row_i, (v_i, pull_i, D_i, low_i, high_i) = of.row(i), at(i)
    if alone:
        t_i = jnp.where(allowed, jnp.clip(pull_i / D_i, low_i - v_i, high_i - v_i), 0)
        new_i = value(t_i, v_i, low_i, high_i)
        return Step((i, i), (new_i, new_i), t_i * row_i, entry(gain, i), entry(of.D, i))
    _, gain = gains(pull - entry(move, i) * row_i)
    j = of.largest(jnp.where(jnp.arange(len(v), dtype=jnp.int32) == i, -1, gain))
    row_j, (v_j, pull_j, D_j, low_j, high_j) = of.row(j), at(j)
    boxes = (low_i - v_i, high_i - v_i), (low_j - v_j, high_j - v_j)
    t_i, t_j, gain = best_in_rectangle((pull_i, pull_j), (D_i, D_j, entry(row_i, j)), *boxes)
    t_i, t_j = jnp.where(allowed, t_i, 0), jnp.where(allowed & (i != j), t_j, 0)  # i == j: a single variable
    new = value(t_j, v_j, low_j, high_j), value(t_i, v_i, low_i, high_i)
    return Step((j, i), new, t_i * row_i + t_j * row_j, gain, jnp.minimum(entry(of.D, i), entry(of.D, j)))


def middle_of_block(low: Array, high: Array, v: Array, pull: Array, equality: bool) -> tuple[Array, Array]:
    """Return the middle of the ends of a block's variables, 0 without both or an equality, and their violation."""
    none = jnp.inf if equality else 0
    top, bottom = largest(jnp.where(v < high, pull, -none)), smallest(jnp.where(v > low, pull, none))
    return jnp.where(jnp.isfinite(top - bottom) & equality, (top + bottom) / 2, 0), top - bottom


def block_steps(
    K: Float[Array, "q q"],
    low: Float[Array, " q"],
    high: Float[Array, " q"],
    v: Float[Array, " q"],
    pull: Float[Array, " q"],
    tol: Any,
    limit: Any,
    equality: bool,
    groups: Bool[Array, " q"] | None = None,
) -> tuple[Float[Array, " q"], Float[Array, " q"], Int[Array, ""]]:
    """Solve a block by steps of two variables, pairs with an `equality`, `sum u = sum v`.

    Return u, the gradient there, and the number of steps.

    In an empty place both bounds are equal; without the equality `high` may be infinite. In these variables (`v_i = c_i
    a_i` of a box problem) a pair moves the same way for all signs. With `groups`, the first of two groups each of which
    keeps its sum, pairs are of one group. Without an equality, steps of single variables took ten times as many if the
    entries of K are much alike, as with a regularised bias.

    Stop at a violation `max pull_up - min pull_low` of `tol` (without an equality neither is beyond 0), or after
    `limit` steps.
    """
    row = lambda i: lax.dynamic_index_in_dim(K, i, keepdims=False, allow_negative_indices=False)  # noqa: E731
    of = Quadratic(row, diagonal(K), low, high, largest_packed)

    def turn(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        v, pull, steps, _ = carry
        of_block = middle_of_block(low, high, v, pull, equality)
        middle, violated = of_block if groups is None else ends_of_groups(groups, pull, v < high, v > low)
        left = limit - steps

        def one(k: Array, at: tuple[Array, Array]) -> tuple[Array, Array]:
            allowed, (v, pull) = left > k.astype(steps.dtype), at
            step = pair_step(of, v, pull, middle, groups, allowed) if equality else double_step(of, v, pull, allowed)
            return step.taken(v), pull - step.change

        v, pull = fori_loop(0, MEASURED.steps_per_turn, one, (v, pull))
        return v, pull, jnp.minimum(steps + MEASURED.steps_per_turn, limit), violated > tol

    start = (v, pull, jnp.zeros((), jnp.int32), jnp.asarray(True))
    return while_loop(lambda carry: carry[3] & (carry[2] < limit), turn, start)[:3]


# --- sums with upper bounds (the hinge): `s = Qa` is carried in twice the precision


def box_sums(problem: BoxProblem, a: Array | None) -> dict[str, Any]:
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


def moved_in_box(
    problem: BoxProblem, state: Any, K: Array, rows: Array, slots: Array, members: Array
) -> tuple[dict[str, Any], Array, Array]:
    """Solve the set's problem, with the members' kernel rows `rows[slots]` and the kernel values K between members.

    Return changed fields of the state, the number of steps, and whether a curvature was negative.
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
    v, _, steps = block_steps(
        Q / jnp.outer(c, c), low, high, c * old, gradient / c, tol, limit, problem.equality is not None
    )
    # Bounds are met exactly, so that comparisons with them are exact.
    new = jnp.where(v == end, U, jnp.clip(v / c, 0, U))
    change = new - old
    gain = change @ (gradient - matmul(Q, change) / 2)
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
            off = (matmul(c.astype(wide), after.astype(wide)) - problem.e).astype(a.dtype)
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


def refreshed_box(problem: BoxProblem, state: Any) -> dict[str, Any]:
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
