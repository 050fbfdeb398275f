"""Count and find the entries of a mask, in forms that XLA compiles quickly for a CPU.

LLVM takes 0.2 s for each reduction of booleans and 0.07 s for one of integers, and a program had a dozen of them. A
library call that sums floats costs nothing, a matrix product 0.03 s. Flags are therefore added as float32, which holds
counts up to 2^24 exactly. Short lists of places are sorted; a running sum of integers would take 0.1 s to compile.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxsvm.numerics.measured import MEASURED

EXACT_IN_FLOAT32 = 2**24
XLA_SUMS_BY_LIBRARY_FROM = 4096
"""XLA calls a library for sums of so many entries or more; for fewer, only a matrix product is such a call."""


def some(mask: Bool[Array, "..."]) -> Bool[Array, ""]:
    """Compute `jnp.any(mask)`."""
    return _total(mask) > 0


def every(mask: Bool[Array, "..."]) -> Bool[Array, ""]:
    """Compute `jnp.all(mask)`."""
    return ~some(~mask)


def count(mask: Bool[Array, "..."]) -> Int[Array, ""]:
    """Count the entries that hold, int32."""
    return mask.sum(dtype=jnp.int32) if mask.size > EXACT_IN_FLOAT32 else _total(mask).astype(jnp.int32)


def places_first(mask: Bool[Array, " n"]) -> Int[Array, " n"]:
    """Return the indices at which a mask holds, in order, followed by arbitrary indices; int32."""
    n = mask.shape[0]
    index = jnp.arange(n, dtype=jnp.int32)
    if n <= MEASURED.sorted_size:
        keys = jnp.sort(jnp.where(mask, index, index + n))
        return jnp.where(keys < n, keys, keys - n)
    place = jnp.where(mask, jnp.cumsum(mask, dtype=jnp.int32) - 1, n)
    return jnp.zeros((n,), jnp.int32).at[place].set(index, mode="drop")


def _total(mask: Array) -> Float[Array, ""]:
    """Count the entries that hold, as float32: exact up to 2^24, and positive if there is any."""
    flags = jnp.where(mask, jnp.float32(1), jnp.float32(0))
    if mask.size >= XLA_SUMS_BY_LIBRARY_FROM:
        return flags.sum()
    return jnp.matmul(flags.reshape(1, -1), jnp.ones((mask.size, 2), jnp.float32), precision="highest")[0, 0]
