"""Entries of masks; matrix products in the full precision of their dtypes: GPUs and TPUs use less by default."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxsvm.numerics.measured import MEASURED
from jaxsvm.numerics.precision import PARTS_OF_A_SUM
from jaxsvm.runtime.loops import while_loop


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


def matmul(a: Array, b: Array) -> Array:
    """Compute `a @ b` in the wider dtype of the two."""
    dtype = jnp.result_type(a.dtype, b.dtype)
    return jnp.matmul(a.astype(dtype), b.astype(dtype), precision=lax.Precision.HIGHEST)


def diagonal(A: Float[Array, "n n"]) -> Float[Array, " n"]:
    """Return `A_ii`, as `jnp.diagonal` does in 43 lines of StableHLO."""
    return A.reshape(-1)[:: A.shape[0] + 1]


def plus_diagonal(A: Float[Array, "n n"], d: Float[Array, " n"]) -> Float[Array, "n n"]:
    """Return `A + diag(d)`."""
    return A + jnp.eye(A.shape[0], dtype=A.dtype) * d[None, :]


def weighted_rows(
    weights: Float[Array, " q"], rows: Float[Array, "m n"], index: Int[Array, " q"] | None = None
) -> Float[Array, " n"]:
    """Compute `sum_k weights_k rows[index_k]` in the dtype of the weights; weights of 0 cost nothing.

    Rows of a narrower dtype are widened in registers: 512 rows of 10,000 take 1.5 ms in float64, a `matmul` with its
    converted operand 3.9 ms, and one in float32 0.8 ms. `index` is the row of each weight; None: all rows in order.
    """
    n, turn_size = rows.shape[1], MEASURED.terms_per_turn
    used = weights != 0
    many, order = count(used), jnp.pad(places_first(used), (0, turn_size))

    def add(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        k, total = carry
        turn = lax.dynamic_slice(order, (k * turn_size,), (turn_size,))
        some = jnp.where(k * turn_size + jnp.arange(turn_size, dtype=jnp.int32) < many, weights[turn], 0)
        places = turn if index is None else index[turn]
        for t in range(turn_size):  # one fused loop over n; for a matrix product XLA would widen the rows in memory
            total = total + some[t] * lax.dynamic_index_in_dim(rows, places[t], keepdims=False).astype(total.dtype)
        return k + 1, total

    start = (jnp.zeros((), jnp.int32), jnp.zeros((n,), weights.dtype))
    return while_loop(lambda carry: carry[0] * turn_size < many, add, start)[1]


XLA_SUMS_BY_LIBRARY_FROM = 4096
"""XLA calls a library for sums of so many entries or more; for fewer, only a matrix product is such a call."""


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
