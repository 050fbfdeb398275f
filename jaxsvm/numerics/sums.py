"""Several sums at once: of short vectors each sum by itself is three kernels for XLA to compile on a CPU."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxsvm.numerics.masks import LIBRARY
from jaxsvm.numerics.products import matmul

LANES = 64
"""Parts in which shorter ones are summed: as fast as vectors go, and as exact as `precision.rounding` says."""


def sums(*terms: Float[Array, " n"]) -> tuple[Float[Array, ""], ...]:
    """The sum of each vector. Six of them took 0.45 s to compile as six sums, and take 0.06.

    Args:
        terms: Vectors of one length.
    """
    n, dtype = terms[0].shape[0], jnp.result_type(*terms)
    if n >= LIBRARY:
        return tuple(term.sum() for term in terms)
    if len(terms) == 1:  # of one vector a product of matrices is a call of a library
        return (matmul(terms[0][None], jnp.ones((n, 2), dtype))[0, 0],)
    rows = -(-n // LANES)
    zeros = (jnp.zeros((), dtype),) * len(terms)
    parts = tuple(jnp.pad(term.astype(dtype), (0, rows * LANES - n)).reshape(rows, LANES) for term in terms)
    # One reduction of several operands, which XLA leaves in one piece; it takes those of one operand apart.
    return tuple(lax.reduce(lax.reduce(parts, zeros, _added, (0,)), zeros, _added, (0,)))


def _added(a: tuple[Array, ...], b: tuple[Array, ...]) -> tuple[Array, ...]:
    return tuple(x + y for x, y in zip(a, b, strict=True))
