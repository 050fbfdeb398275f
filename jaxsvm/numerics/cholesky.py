"""Cholesky factors of matrices whose size is not known before they are compiled, or which are small and many."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from jaxsvm.numerics.products import matmul

LEAF = 32
"""Columns eliminated one by one; 64 take four times as long."""
PANEL = 128
"""Columns in panels of `LEAF`; beyond, by halves."""


def padded_factor(values: Float[Array, "q q"], valid: Bool[Array, " q"]) -> Float[Array, "q q"]:
    """The lower factor of a matrix on its valid places, and of the identity on the others.

    With a shift of what rounding may take from the smallest eigenvalue, without which a factor of a positive definite
    matrix can fail: whoever solves with it refines, which takes the shift out again.
    """
    values = jnp.where(valid[:, None] & valid, values, 0)
    size = jnp.asarray(len(valid), values.dtype)
    shift = 2 * jnp.finfo(values.dtype).eps * jnp.sqrt(size) * jnp.diagonal(values).max()
    return jnp.linalg.cholesky(values + jnp.diag(jnp.where(valid, shift, 1)))


def inverse_factor(A: Float[Array, "q q"]) -> Float[Array, "q q"]:
    """`L^-1` of `A = L L'`, so that `A^-1 v = L^-T (L^-1 v)`, for small systems inside loops.

    Without LAPACK, whose threads wait for one another at barriers when a core is busy: there 512 variables took 276 ms,
    and 3 with this. A pivot that rounding made 0 or less is taken as `PIVOT` of the largest: the factor is then one of
    a matrix nearby.

    Args:
        A: Symmetric, positive definite but for rounding.
    """
    return _by_halves(A, PIVOT * jnp.diagonal(A).max())


PIVOT = 1e-7


def _by_halves(A: Array, least: Array) -> Array:
    q = A.shape[0]
    if q <= PANEL:
        return _by_panels(A, least)
    h = q // 2
    first = _by_halves(A[:h, :h], least)
    below = matmul(A[h:, :h], first.T)
    second = _by_halves(A[h:, h:] - matmul(below, below.T), least)
    corner = -matmul(second, matmul(below, first))
    return jnp.block([[first, jnp.zeros((h, q - h), A.dtype)], [corner, second]])


def _by_panels(A: Array, least: Array) -> Array:
    """Panels of `LEAF` columns: each one's own inverse, what is below it, and what that leaves."""
    q = A.shape[0]
    size = q + -q % LEAF
    A = jnp.eye(size, dtype=A.dtype).at[:q, :q].set(A)
    rows = jnp.arange(size, dtype=jnp.int32)

    def panel(k: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        A, inverse = carry
        start, zero = k * LEAF, jnp.zeros((), jnp.int32)
        own = _leaf(lax.dynamic_slice(A, (start, start), (LEAF, LEAF)), least)
        columns = lax.dynamic_slice(A, (zero, start), (size, LEAF))
        below = jnp.where(rows[:, None] >= start + LEAF, matmul(columns, own.T), 0)
        unit = (rows == start + jnp.arange(LEAF, dtype=jnp.int32)[:, None]).astype(A.dtype)
        here = matmul(own, lax.dynamic_slice(inverse, (start, zero), (LEAF, size)) + unit)
        inverse = lax.dynamic_update_slice(inverse, here, (start, zero))
        return A - matmul(below, below.T), inverse - matmul(below, here)

    return lax.fori_loop(jnp.int32(0), jnp.int32(size // LEAF), panel, (A, jnp.zeros_like(A)))[1][:q, :q]


def _leaf(A: Array, least: Array) -> Array:
    """By elimination of one column after the other, in `A` and the identity beside it."""
    m = A.shape[0]
    rows = jnp.arange(m, dtype=jnp.int32)[:, None]

    def eliminate(k: Array, both: Array) -> Array:
        zero = jnp.zeros((), jnp.int32)
        row = lax.dynamic_slice(both, (k, zero), (1, 2 * m))
        scale = lax.rsqrt(jnp.maximum(lax.dynamic_slice(both, (k, k), (1, 1)), least))
        row = row * scale
        below = jnp.where(rows > k, lax.dynamic_slice(both, (zero, k), (m, 1)) * scale, 0)
        return jnp.where(rows == k, row, both - below * row)

    start = jnp.concatenate([A, jnp.eye(m, dtype=A.dtype)], axis=1)
    return lax.fori_loop(jnp.int32(0), jnp.int32(m), eliminate, start)[:, m:]
