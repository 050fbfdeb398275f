"""Whether some or all entries hold, how many, and where: in forms that XLA compiles quickly for a CPU.

LLVM spends 0.2 s on each reduction of booleans and 0.07 on one of integers; a program of ours had a dozen. A library's
sum of floats costs nothing, and a product of matrices 0.03. So flags are added as float32, which holds counts up to
2^24 exactly; and a short list of places is sorted where a running sum of integers would take 0.1 s.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

EXACT = 2**24
"""Entries up to which float32 counts them."""
LIBRARY = 4096
"""Entries from which XLA calls a library for a sum; of fewer a product of matrices does."""
SHORT = 2048
"""Entries up to which sorting takes no longer than a running sum and a scatter."""


def some(mask: Bool[Array, "..."]) -> Bool[Array, ""]:
    """`jnp.any(mask)`."""
    return _total(mask) > 0


def every(mask: Bool[Array, "..."]) -> Bool[Array, ""]:
    """`jnp.all(mask)`."""
    return ~some(~mask)


def count(mask: Bool[Array, "..."]) -> Int[Array, ""]:
    """How many entries hold, int32."""
    return mask.sum(dtype=jnp.int32) if mask.size > EXACT else _total(mask).astype(jnp.int32)


def places_first(mask: Bool[Array, " n"]) -> Int[Array, " n"]:
    """The indices where a mask holds, in order, in front; any indices behind them. int32."""
    n = mask.shape[0]
    index = jnp.arange(n, dtype=jnp.int32)
    if n <= SHORT:
        keys = jnp.sort(jnp.where(mask, index, index + n))
        return jnp.where(keys < n, keys, keys - n)
    place = jnp.where(mask, jnp.cumsum(mask, dtype=jnp.int32) - 1, n)
    return jnp.zeros((n,), jnp.int32).at[place].set(index, mode="drop")


def _total(mask: Array) -> Float[Array, ""]:
    """The number of entries that hold, as float32; exact up to `EXACT`, and positive where there is one."""
    flags = jnp.where(mask, jnp.float32(1), jnp.float32(0))
    if mask.size >= LIBRARY:
        return flags.sum()
    return jnp.matmul(flags.reshape(1, -1), jnp.ones((mask.size, 2), jnp.float32), precision="highest")[0, 0]
