"""Compute several sums at once: of short vectors each sum alone is three kernels for XLA to compile on a CPU."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxsvm.numerics.masks import XLA_SUMS_BY_LIBRARY_FROM
from jaxsvm.numerics.precision import PARTS_OF_A_SUM
from jaxsvm.numerics.products import matmul


def sums(*terms: Float[Array, " n"]) -> tuple[Float[Array, ""], ...]:
    """Sum each of several vectors of one length. Six of them compile in 0.06 s, as six sums in 0.45."""
    n, dtype = terms[0].shape[0], jnp.result_type(*terms)
    if n >= XLA_SUMS_BY_LIBRARY_FROM:
        return tuple(term.sum() for term in terms)
    if len(terms) == 1:  # for a single vector a matrix product is a library call
        return (matmul(terms[0][None], jnp.ones((n, 2), dtype))[0, 0],)
    parts = jnp.stack([term.astype(dtype) for term in terms])
    parts = lax.pad(parts, jnp.zeros((), dtype), ((0, 0, 0), (0, -n % PARTS_OF_A_SUM, 0)))
    return tuple(parts.reshape(len(terms), -1, PARTS_OF_A_SUM).sum(axis=1).sum(axis=1))
