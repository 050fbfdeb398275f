"""Products of matrices in all the digits of their dtypes: GPUs and TPUs take fewer by default."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxsvm.numerics.masks import count, places_first
from jaxsvm.runtime.loops import while_loop

ROWS = 16
"""Rows a turn of `weighted_rows`: 8 take half as long again, 32 no less."""


def matmul(a: Array, b: Array) -> Array:
    """`a @ b` in the wider dtype of the two."""
    dtype = jnp.result_type(a.dtype, b.dtype)
    return jnp.matmul(a.astype(dtype), b.astype(dtype), precision=lax.Precision.HIGHEST)


def weighted_rows(
    weights: Float[Array, " q"], rows: Float[Array, "m n"], index: Int[Array, " q"] | None = None
) -> Float[Array, " n"]:
    """`sum_k weights_k rows[index_k]` in the dtype of the weights, at the price of the weights that are not 0.

    Rows of a narrower dtype are widened in registers: 512 rows of 10,000 take 1.5 ms in float64, a `matmul` with its
    converted operand 3.9, and one in float32 0.8.

    Args:
        weights: `(q,)`.
        rows: `(m, n)`.
        index: Which rows, `(q,)`; None: all of them, in order.
    """
    n = rows.shape[1]
    used = weights != 0
    many, order = count(used), jnp.pad(places_first(used), (0, ROWS))

    def add(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        k, total = carry
        turn = lax.dynamic_slice(order, (k * ROWS,), (ROWS,))
        some = jnp.where(k * ROWS + jnp.arange(ROWS, dtype=jnp.int32) < many, weights[turn], 0)
        places = turn if index is None else index[turn]
        for t in range(ROWS):  # one fused loop over n: as a product of matrices XLA would widen the rows in memory
            total = total + some[t] * lax.dynamic_index_in_dim(rows, places[t], keepdims=False).astype(total.dtype)
        return k + 1, total

    start = (jnp.zeros((), jnp.int32), jnp.zeros((n,), weights.dtype))
    return while_loop(lambda carry: carry[0] * ROWS < many, add, start)[1]
