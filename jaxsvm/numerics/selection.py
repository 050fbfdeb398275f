"""Extremes with their index: the one place that knows a backend's quirks.

XLA on a CPU reduces a vector one number after another (`jnp.argmin` 15 to 45 us for 5,000 to 10,000 floats, while
everything else in a Frank-Wolfe step takes 5; a plain maximum of 1,024 half a microsecond), and takes what is
elementwise in vectors. So vectors are *folded* here: cut into slices, of which the entrywise extreme is taken, until
few entries are left; the index is then looked for in the one column that holds the extreme: 0.6 us for 5,000, 1.2 for
10,000.

A vector that holds NaN has no extreme: the value is NaN and the index is in range but means nothing.
"""

import functools
from collections.abc import Callable

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

FOLDS = 12
"""Slices of a fold: with more of them XLA takes the vector in bits, and compiles longer."""
NARROWEST, WIDEST = 16, 8192
"""Entries of a slice. Longer vectors than `FOLDS` of the widest are searched in blocks."""
BLOCK = 256
"""Elements of a block of such a vector."""


def argmin(values: Float[Array, " n"]) -> tuple[Float[Array, ""], Int[Array, ""]]:
    """The smallest of `values` and its index: of ties one, the same whenever the values are.

    Args:
        values: A vector, `(n,)` with n >= 1; entries may be infinite.

    Returns:
        The value `()` and its index `()`, int32.
    """
    return lax.platform_dependent(values, cpu=_argmin_folded, default=_argmin_native)


def argmax(values: Float[Array, " n"]) -> tuple[Float[Array, ""], Int[Array, ""]]:
    """The largest of `values` and its lowest index; see `argmin`."""
    value, index = argmin(-values)
    return -value, index


def entry(values: Float[Array, " n"], index: Int[Array, ""]) -> Float[Array, ""]:
    """`values[index]` for an index that is known to be in range (spares the wrap-around of negative ones)."""
    return lax.dynamic_index_in_dim(values, index, keepdims=False, allow_negative_indices=False)


def lowest(values: Float[Array, " n"]) -> Int[Array, ""]:
    """The lowest index of the smallest value, for short vectors: by equality.

    `jnp.argmin` of float64 values does not compile in a function whose caller has x64 off
    (`jaxsvm.numerics.precision`).
    """
    places = jnp.arange(values.shape[0], dtype=jnp.int32)
    found = (values == values.min()) | jnp.isnan(values)  # a NaN is the minimum, and in its own place
    return jnp.where(found, places, values.shape[0] - 1).min()


def largest_packed(values: Float[Array, " q"]) -> Int[Array, ""]:
    """The index of one of the largest values of a short vector: to a relative 2^-13 at q = 1,024, in a single pass.

    The order of floating-point numbers is that of their bits read as integers (negative ones turned round), and the
    last bits make room for the index: one fold finds both.

    Args:
        values: `(q,)`, no NaN; float64 ones are compared as float32.

    Returns:
        An index in range, `()`, int32.
    """
    q = values.shape[0]
    index = jnp.arange(q, dtype=jnp.int32)
    room = (1 << max(q - 1, 1).bit_length()) - 1
    bits = lax.bitcast_convert_type(values.astype(jnp.float32), jnp.int32)
    ordered = bits ^ ((bits >> 31) & jnp.int32(0x7FFFFFFF))
    return jnp.minimum(largest((ordered & ~jnp.int32(room)) | index) & room, q - 1)


def largest(values: Float[Array, " n"] | Int[Array, " n"]) -> Float[Array, ""] | Int[Array, ""]:
    """`values.max()`, folded: of vectors in the loops of a CPU."""
    return lax.platform_dependent(values, cpu=lambda values: _folded(jnp.maximum, values).max(), default=jnp.max)


def smallest(values: Float[Array, " n"] | Int[Array, " n"]) -> Float[Array, ""] | Int[Array, ""]:
    """`values.min()`, folded."""
    return lax.platform_dependent(values, cpu=lambda values: _folded(jnp.minimum, values).min(), default=jnp.min)


def _folded(extreme: Callable[[Array, Array], Array], values: Array, least: int = NARROWEST) -> Array:
    """The entrywise extreme of slices, down to `least` entries or so."""
    while (n := values.shape[0]) > 2 * least and n <= FOLDS * WIDEST:
        values = functools.reduce(extreme, [values[start : start + _width(n)] for start in _starts(n)])
    return values


def _width(n: int) -> int:
    """Entries of a slice of n, a power of two: `FOLDS` slices at the most."""
    return max(NARROWEST, 1 << (-(-n // FOLDS) - 1).bit_length())


def _starts(n: int) -> list[int]:
    """Where slices begin. The last one overlaps its neighbour instead of padding: an extreme may be met twice."""
    width = _width(n)
    return [min(start, n - width) for start in range(0, n, width)]


def _argmin_native(values: Float[Array, " n"]) -> tuple[Float[Array, ""], Int[Array, ""]]:
    if values.dtype == jnp.float64:
        return values.min(), lowest(values)
    index = jnp.argmin(values).astype(jnp.int32)
    return entry(values, index), index


def _argmin_folded(values: Float[Array, " n"]) -> tuple[Float[Array, ""], Int[Array, ""]]:
    n = values.shape[0]
    if n <= 2 * NARROWEST:
        return _argmin_native(values)
    if n > FOLDS * WIDEST:
        return _argmin_in_blocks(values)
    width, starts = _width(n), jnp.asarray(_starts(n), jnp.int32)
    columns = functools.reduce(jnp.minimum, [values[start : start + width] for start in _starts(n)])
    value = smallest(columns)
    places = jnp.arange(width, dtype=jnp.int32)
    column = smallest(jnp.where(columns == value, places, width - 1))
    rows = starts + column
    return value, jnp.where(values[rows] == value, rows, n - 1).min()


def _argmin_in_blocks(values: Float[Array, " n"]) -> tuple[Float[Array, ""], Int[Array, ""]]:
    """Minima of blocks, then the index inside the one block that holds the smallest."""
    n = values.shape[0]
    whole = n // BLOCK
    minima = values[: whole * BLOCK].reshape(whole, BLOCK).min(axis=1)
    if n % BLOCK:  # the tail is one block more; the slice below overlaps its neighbour instead of padding
        minima = jnp.append(minima, values[whole * BLOCK :].min())
    start = jnp.minimum(_argmin_folded(minima)[1] * BLOCK, n - BLOCK)
    value, index = _argmin_folded(lax.dynamic_slice_in_dim(values, start, BLOCK, allow_negative_indices=False))
    return value, start + index
