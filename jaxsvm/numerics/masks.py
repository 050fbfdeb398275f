"""Count and find the entries of a mask."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from jaxsvm.numerics.measured import MEASURED


def some(mask: Bool[Array, "..."]) -> Bool[Array, ""]:
    """Compute `jnp.any(mask)`."""
    return mask.any()


def every(mask: Bool[Array, "..."]) -> Bool[Array, ""]:
    """Compute `jnp.all(mask)`."""
    return mask.all()


def count(mask: Bool[Array, "..."]) -> Int[Array, ""]:
    """Count the entries that hold, int32."""
    return mask.sum(dtype=jnp.int32)


def places_first(mask: Bool[Array, " n"]) -> Int[Array, " n"]:
    """Return the indices at which a mask holds, in order, followed by arbitrary indices; int32."""
    n = mask.shape[0]
    index = jnp.arange(n, dtype=jnp.int32)
    if n <= MEASURED.sorted_size:
        keys = jnp.sort(jnp.where(mask, index, index + n))
        return jnp.where(keys < n, keys, keys - n)
    place = jnp.where(mask, jnp.cumsum(mask, dtype=jnp.int32) - 1, n)
    return jnp.zeros((n,), jnp.int32).at[place].set(index, mode="drop")
