"""A cache of recent kernel rows, for samples that return into the working set.

Nearly all samples that enter a set do so several times: on MNIST at C = 100, 1,700 samples enter 4,700 times, and
computing rows is nine tenths of a fit.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxsvm.gram.contract import Gram
from jaxsvm.gram.measured import MEASURED
from jaxsvm.numerics.masks import count, places_first
from jaxsvm.runtime.loops import while_loop

ROWS_PER_FETCH = (MEASURED.rows_per_tile, MEASURED.rows_per_tile // 4)
"""Kernel rows computed at a time, and for a short remainder."""


class RowCache(NamedTuple):
    """Rows of the kernel matrix, for the samples that were last in a set.

    Attributes:
        rows: Kernel rows, `(m, n)`; `(0, n)` where the Gram operator stores all.
        owner: Sample of each row, `(m,)`; n if empty.
        used: Step at which its sample was last in the set, `(m,)`; -1 if empty.
    """

    rows: Float[Array, "m n"]
    owner: Int[Array, " m"]
    used: Int[Array, " m"]


def empty(gram: Gram, n: int, m: int) -> RowCache:
    """Return an empty cache for m rows; for none if the Gram operator stores all."""
    m = 0 if gram.stored else m
    return RowCache(jnp.zeros((m, n), gram.dtype), jnp.full((m,), n, jnp.int32), jnp.full((m,), -1, jnp.int32))


def enlarged(cache: RowCache, m: int) -> RowCache:
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
    """Compute missing rows of members, in place of the rows that were used longest ago.

    Args:
        gram: The Gram operator.
        cache: The cache, with at least q places.
        members: Samples, n in an empty place.
        step: Number of this step.
        most: Largest possible number of missing rows.

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
