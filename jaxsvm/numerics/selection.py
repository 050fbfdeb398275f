"""Find extremes and their index; only this file knows how each backend searches.

`jnp.argmin` on a CPU is a scalar loop (15 to 45 us for 5,000 to 10,000 floats; everything else in a Frank-Wolfe step
takes 5). Here the search has two stages: the minimum of each block, which is vectorised, then the index inside the
block that holds it. Ties go to the lowest index, as in `jnp.argmin`.

Short vectors in the inner loop of a working set are *folded*: cut into slices, whose entrywise extreme XLA vectorises;
its own reduction is scalar (1,024 entries: 0.25 us against 0.45). Do not fold long vectors whose entries are computed
in the same loop: each slice becomes a loop of its own, which is slower.

A vector that holds NaN has no extreme: the value is NaN, and the index is in range but means nothing.
"""

import functools
from collections.abc import Callable

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxsvm.numerics.measured import MEASURED
from jaxsvm.runtime.loops import Spread


def argmin(values: Float[Array, " n"]) -> tuple[Float[Array, ""], Int[Array, ""]]:
    """Return the smallest of `values` and its lowest index, int32; all may be infinite, but there is one."""
    return lax.platform_dependent(values, cpu=_argmin_in_blocks, default=_argmin_native)


def argmax(values: Float[Array, " n"]) -> tuple[Float[Array, ""], Int[Array, ""]]:
    """Return the largest of `values` and its lowest index; see `argmin`."""
    value, index = argmin(-values)
    return -value, index


def entry(values: Float[Array, "n *k"], index: Int[Array, ""]) -> Float[Array, "*k"]:
    """Return `values[index]` for an index in range.

    It is a gather, of which compilers make a slice. From values on a mesh it moves this entry alone; a slice would
    first gather all of them.
    """
    where = lax.GatherDimensionNumbers(
        offset_dims=tuple(range(values.ndim - 1)), collapsed_slice_dims=(0,), start_index_map=(0,)
    )
    return lax.gather(values, index[None], where, (1, *values.shape[1:]), mode="promise_in_bounds")


def entries(values: Float[Array, "n *k"], index: Int[Array, " q"]) -> Float[Array, "q *k"]:
    """Return `values[index]` for indices in range."""
    return values.at[index].get(mode="promise_in_bounds", wrap_negative_indices=False)


def top_k(values: Float[Array, " n"], k: int, spread: Spread | None) -> tuple[Float[Array, " k"], Int[Array, " k"]]:
    """Return the k largest of `values` and their indices, int32; if they are spread over a mesh, from k of a device."""
    if spread is None:
        return lax.top_k(values, k)
    share = values.shape[0] // spread.parts
    few = min(k, share)
    best, place = spread.of_each_device(lambda values: lax.top_k(values, few), values)
    index = place + share * (jnp.arange(len(place), dtype=place.dtype) // few)
    best, place = lax.top_k(best, k)
    return best, index[place]


def lowest(values: Float[Array, " n"]) -> Int[Array, ""]:
    """Return the lowest index of the smallest value of a short vector, by equality.

    `jnp.argmin` of float64 values does not compile in a function whose caller has x64 off.
    """
    places = jnp.arange(values.shape[0], dtype=jnp.int32)
    smallest_ones = (values == values.min()) | jnp.isnan(values)  # a NaN is the minimum, at its own place
    return jnp.where(smallest_ones, places, values.shape[0] - 1).min()


def largest_packed(values: Float[Array, " q"]) -> Int[Array, ""]:
    """Return an index of the largest value of a short vector in a single pass, up to a relative 2^-13 at q = 1,024.

    Floating-point numbers are ordered as their bits read as integers (negative ones flipped). The last bits are
    replaced by the index, so that one fold finds both. No value is NaN; float64 values are compared as float32.
    """
    q = values.shape[0]
    index = jnp.arange(q, dtype=jnp.int32)
    room = (1 << max(q - 1, 1).bit_length()) - 1
    bits = lax.bitcast_convert_type(values.astype(jnp.float32), jnp.int32)
    ordered = bits ^ ((bits >> 31) & jnp.int32(0x7FFFFFFF))
    return jnp.minimum(largest((ordered & ~jnp.int32(room)) | index) & room, q - 1)


def largest(values: Float[Array, " n"] | Int[Array, " n"]) -> Float[Array, ""] | Int[Array, ""]:
    """Compute `values.max()`, folded on a CPU."""
    return lax.platform_dependent(values, cpu=lambda values: _folded(jnp.maximum, values).max(), default=jnp.max)


def smallest(values: Float[Array, " n"] | Int[Array, " n"]) -> Float[Array, ""] | Int[Array, ""]:
    """Compute `values.min()`, folded on a CPU."""
    return lax.platform_dependent(values, cpu=lambda values: _folded(jnp.minimum, values).min(), default=jnp.min)


def _folded(extreme: Callable[[Array, Array], Array], values: Array) -> Array:
    """Take the entrywise extreme of slices until few entries are left; the last slice overlaps: no padding."""
    slices, least = MEASURED.slices_per_fold, MEASURED.terms_per_turn
    while (n := values.shape[0]) > 2 * least:
        width = max(least, 1 << (-(-n // slices) - 1).bit_length())
        starts = [min(start, n - width) for start in range(0, n, width)]
        values = functools.reduce(extreme, [values[start : start + width] for start in starts])
    return values


def _argmin_native(values: Float[Array, " n"]) -> tuple[Float[Array, ""], Int[Array, ""]]:
    if values.dtype == jnp.float64:
        return values.min(), lowest(values)
    index = jnp.argmin(values).astype(jnp.int32)
    return entry(values, index), index


def _argmin_in_blocks(values: Float[Array, " n"]) -> tuple[Float[Array, ""], Int[Array, ""]]:
    n = values.shape[0]
    block = _block_size(n)
    if n <= block:
        return _argmin_native(values)
    whole = n // block
    blocks = values[: whole * block].reshape(whole, block)
    minima = blocks.min(axis=1)
    if n % block == 0:
        k = _argmin_native(minima)[1]
        value, index = _argmin_native(entry(blocks, k))
        return value, k * block + index
    # The tail is another block; its slice overlaps its neighbour instead of padding.
    minima = jnp.append(minima, values[whole * block :].min())
    start = jnp.minimum(_argmin_native(minima)[1] * block, n - block)
    value, index = _argmin_native(lax.dynamic_slice_in_dim(values, start, block, allow_negative_indices=False))
    return value, start + index


def _block_size(n: int) -> int:
    """Return a divisor of n in 64 to 256, as close to sqrt(n) as possible, which leaves no tail; else 128."""
    divisors = [size for size in range(64, 257) if n % size == 0]
    return min(divisors, key=lambda size: abs(size - n**0.5), default=128)
