"""Kernel rows that were computed lately: a sample that comes back into the set finds its row.

Of the samples that ever enter a set nearly all do so several times: MNIST at C = 100 takes 4,700 seats for 1,700
samples, and its rows are nine tenths of a fit.
"""

from typing import NamedTuple, cast

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxsvm.gram.contract import Gram
from jaxsvm.gram.dense import DenseGram
from jaxsvm.numerics.masks import count, places_first
from jaxsvm.runtime.loops import while_loop

TILES = (128, 32)
"""Kernel rows at a time: a tile stays in cache between product and exponential. Few take the small one; where only the
set's own rows are kept there are seldom few, and one tile compiles sooner."""


class RowCache(NamedTuple):
    """Rows of the kernel matrix, of the samples that were in a set last.

    Attributes:
        rows: Kernel rows, `(m, n)`; `(0, n)` where the Gram operator stores all.
        owner: Whose each is, `(m,)`; n where it is nobody's.
        used: The step at which its owner was last in the set, `(m,)`; -1 where it is nobody's.
    """

    rows: Float[Array, "m n"]
    owner: Int[Array, " m"]
    used: Int[Array, " m"]


def empty(gram: Gram, n: int, m: int) -> RowCache:
    """Room for m rows, none where the Gram operator stores all."""
    m = 0 if gram.stored else m
    return RowCache(jnp.zeros((m, n), gram.dtype), jnp.full((m,), n, jnp.int32), jnp.full((m,), -1, jnp.int32))


def enlarged(cache: RowCache, m: int) -> RowCache:
    """The rows with room for m; when they were used is forgotten, since another solver counts its own steps."""
    more = max(m - len(cache.owner), 0)
    if not len(cache.owner):
        return cache
    return RowCache(
        jnp.pad(cache.rows, ((0, more), (0, 0))),
        jnp.pad(cache.owner, (0, more), constant_values=cache.rows.shape[1]),
        jnp.pad(jnp.minimum(cache.used, 0), (0, more), constant_values=-1),
    )


def stored_rows(gram: Gram, cache: RowCache) -> Array:
    """Where `fetched` points to: all rows of a Gram operator that stores them, else the cache's."""
    return cast(DenseGram, gram).K if gram.stored else cache.rows


def fetched(
    gram: Gram, cache: RowCache, members: Int[Array, " q"], step: Int[Array, ""], most: int
) -> tuple[RowCache, Int[Array, " q"], Int[Array, ""]]:
    """The cache with the rows of all members; those that are missing take the places of what was used longest ago.

    Args:
        gram: The Gram operator.
        cache: With at least q places.
        members: Samples, n in an empty seat.
        step: This step's number.
        most: How many can be missing.

    Returns:
        The cache, the members' places in it (any in an empty seat), and how many rows were computed. Where all are
        stored, places are samples, and none is.
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
    there = jnp.where(is_new, oldest, m).astype(jnp.int32)
    return (
        RowCache(
            _computed(gram, cache.rows, there, new, many, TILES if m > len(members) else TILES[:1]),
            cache.owner.at[there].set(new, mode="drop"),
            used.at[there].set(step, mode="drop"),
        ),
        jnp.minimum(place, m - 1).at[jnp.where(is_new, first, len(members))].set(there, mode="drop"),
        many,
    )


def _computed(gram: Gram, rows: Array, there: Array, new: Array, count: Array, tiles: tuple[int, ...]) -> Array:
    """The rows with those of `new`, at the front of their list, in their places: large tiles, then small ones."""
    m, n = rows.shape
    start = jnp.zeros((), jnp.int32)
    there = jnp.pad(there, (0, tiles[0]), constant_values=m)
    new = jnp.minimum(jnp.pad(new, (0, tiles[0])), n - 1)
    for tile, smaller in zip(tiles, (*tiles[1:], tiles[-1]), strict=True):

        def fetch(carry: tuple[Array, Array], tile: int = tile) -> tuple[Array, Array]:
            start, rows = carry
            index = lax.dynamic_slice(new, (start,), (tile,))
            taken = lax.dynamic_slice(there, (start,), (tile,))
            return start + tile, rows.at[taken].set(gram.rows(index), mode="drop")

        # A tile is worth its price where more than all but one of the smaller ones in it are left.
        least = tile - smaller
        start, rows = while_loop(lambda carry, least=least: count - carry[0] > least, fetch, (start, rows))
    return rows
