"""Mini-batches: the order of the samples, and sparse rows at the cost of their entries.

Batches are `start, start + stride, start + 2 stride, ...` modulo n, with a random start and a random stride coprime to
n: each sample comes with probability 1 / n, those of a batch are distinct and nearly pairwise independent, and
n / batch consecutive batches are a permutation. This takes two random numbers instead of a sort.
"""

import math
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from jaxsvm.gram.measured import MEASURED
from jaxsvm.numerics.sampling import systematic_draw
from jaxsvm.points.rows import CSR
from jaxsvm.problems.contract import BoxForm
from jaxsvm.runtime.loops import fori_loop, while_loop

CHUNK = MEASURED.rows_per_tile
"""Entries of a long sparse row at a time; shorter rows are padded to the longest."""


class Draws(NamedTuple):
    """Order of the samples."""

    key: Array  # the random key
    start: Int[Array, ""]  # next sample
    stride: Int[Array, ""]  # distance to the following sample, coprime to n
    left: Int[Array, ""]  # remaining samples of this pass

    @staticmethod
    def begin(key: Array) -> "Draws":
        """Return the order before the first batch."""
        zero = jnp.zeros((), jnp.int32)
        return Draws(key, zero, zero, zero)

    def fresh(self, n: int, batch: int) -> "Draws":
        """Draw a new start and stride."""
        key, draw_key = jax.random.split(self.key)
        table = jnp.asarray(strides(n, batch))
        start, which = jax.random.randint(draw_key, (2,), 0, np.array([n, len(table)]), jnp.int32)
        return Draws(key, start, table[which], jnp.asarray(n, jnp.int32))

    def following(self, n: int, batch: int, order: str) -> tuple["Draws", Int[Array, " batch"]]:
        """Return the next batch."""
        if order == "random":
            draws = self.fresh(n, batch)
        else:  # a loop of at most a turn: under vmap a cond would draw at every step
            _, draws = while_loop(
                lambda carry: carry[0],
                lambda carry: (jnp.asarray(False), carry[1].fresh(n, batch)),
                (self.left <= 0, self),
            )
        index = (draws.start + draws.stride * jnp.arange(batch, dtype=jnp.int32)) % n
        ahead = (draws.start + draws.stride * batch) % n
        return draws._replace(start=ahead, left=draws.left - batch), index


@cache
def strides(n: int, batch: int) -> np.ndarray:
    """Return up to 1,024 strides that visit all n samples, int32, so small that `batch` of them stay in 32 bits."""
    top = max(2, min(n, (2**31 - 1 - n) // batch))
    tried = np.arange(1, top) if top <= 1024 else np.random.default_rng(0).integers(1, top, 2 * 1024)
    coprime = [int(step) for step in tried if math.gcd(int(step), n) == 1]
    return np.array(coprime[:1024], np.int32)


def next_batch(
    problem: BoxForm, draws: Draws, batch: int, order: str
) -> tuple[Draws, Int[Array, " batch"], Float[Array, " batch"]]:
    """Return the next batch, and the weights of its losses with which their sum is an unbiased mean loss."""
    if order == "random" and problem.mask is not None:  # draw in proportion to weights
        key, draw_key = jax.random.split(draws.key)
        drawn = systematic_draw(draw_key, problem.upper, batch)
        return draws._replace(key=key), drawn, jnp.full((batch,), 1 / batch, problem.dtype)
    draws, index = draws.following(problem.n, batch, order)
    return draws, index, problem.upper[index] * (problem.n / batch) / problem.upper.sum()


def sparse_margins(x: CSR, index: Int[Array, " b"], v: Float[Array, " size"]) -> Float[Array, " b"]:
    """Return `<v, x_j>` of the rows in `index`, O(their entries)."""
    if x.width <= CHUNK:
        values, columns = _padded(x, index, v.dtype)
        return (values * v.at[columns].get(mode="promise_in_bounds")).sum(axis=1)

    def of_row(i: Array) -> Array:
        def add(k: Array, total: Array) -> Array:
            values, columns = _chunk(x, i, k, v.dtype)
            return total + values @ v.at[columns].get(mode="promise_in_bounds")

        return fori_loop(0, _chunks(x, i), add, jnp.zeros((), v.dtype))

    return lax.map(of_row, index)


def sparse_add(
    x: CSR, index: Int[Array, " b"], coefficients: Float[Array, " b"], v: Float[Array, " size"]
) -> Float[Array, " size"]:
    """Return `v + sum_j coefficients_j x_j`, O(the entries of rows whose coefficient is not 0)."""
    if x.width <= CHUNK:
        values, columns = _padded(x, index, v.dtype)
        return v.at[columns].add(coefficients[:, None] * values, mode="promise_in_bounds")

    def of_row(j: Array, v: Array) -> Array:
        def add(k: Array, v: Array) -> Array:
            values, columns = _chunk(x, index[j], k, v.dtype)
            return v.at[columns].add(coefficients[j] * values, mode="promise_in_bounds")

        return fori_loop(0, jnp.where(coefficients[j] != 0, _chunks(x, index[j]), 0), add, v)

    return fori_loop(0, index.shape[0], of_row, v)


def _padded(x: CSR, index: Int[Array, " b"], dtype: Any) -> tuple[Array, Array]:
    """Return entries and columns of rows, `(b, width)`; 0 beyond the end of a row."""
    begin, end = x.indptr[index], x.indptr[index + 1]
    where = begin[:, None] + jnp.arange(x.width, dtype=begin.dtype)
    inside = where < end[:, None]
    where = jnp.where(inside, where, 0)
    values = x.data.at[where].get(mode="promise_in_bounds").astype(dtype)
    return jnp.where(inside, values, 0), x.indices.at[where].get(mode="promise_in_bounds")


def _chunk(x: CSR, i: Int[Array, ""], k: Int[Array, ""], dtype: Any) -> tuple[Array, Array]:
    """Return the k-th chunk of entries and columns of row i, which are slices of the stored ones."""
    first = x.indptr[i] + k * CHUNK
    begin = jnp.minimum(first, x.data.shape[0] - CHUNK)
    where = begin + jnp.arange(CHUNK, dtype=begin.dtype)
    inside = (where >= first) & (where < x.indptr[i + 1])
    values = lax.dynamic_slice(x.data, (begin,), (CHUNK,)).astype(dtype)
    return jnp.where(inside, values, 0), lax.dynamic_slice(x.indices, (begin,), (CHUNK,))


def _chunks(x: CSR, i: Int[Array, ""]) -> Int[Array, ""]:
    return -(-(x.indptr[i + 1] - x.indptr[i]) // CHUNK)
