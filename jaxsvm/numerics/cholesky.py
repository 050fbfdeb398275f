"""A Cholesky factor of a matrix whose size is not known before it is compiled."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float


def padded_factor(values: Float[Array, "q q"], valid: Bool[Array, " q"]) -> Float[Array, "q q"]:
    """The lower factor of a matrix on its valid places, and of the identity on the others.

    With a shift of what rounding may take from the smallest eigenvalue, without which a factor of a positive definite
    matrix can fail: whoever solves with it refines, which takes the shift out again.
    """
    values = jnp.where(valid[:, None] & valid[None, :], values, 0)
    size = jnp.asarray(len(valid), values.dtype)
    shift = 2 * jnp.finfo(values.dtype).eps * jnp.sqrt(size) * jnp.diagonal(values).max()
    # `jnp.linalg.cholesky` takes the mean with the transpose first: a third of its time at q = 2,000.
    return lax.linalg.cholesky(values + jnp.diag(jnp.where(valid, shift, 1)), symmetrize_input=False)
