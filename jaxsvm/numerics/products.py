"""Products of matrices in all the digits of their dtypes: GPUs and TPUs take fewer by default."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array


def matmul(a: Array, b: Array) -> Array:
    """`a @ b` in the wider dtype of the two."""
    dtype = jnp.result_type(a.dtype, b.dtype)
    return jnp.matmul(a.astype(dtype), b.astype(dtype), precision=lax.Precision.HIGHEST)
