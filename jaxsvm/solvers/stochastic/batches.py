"""Mini-batches: which samples come next, and sparse rows at the price of their entries.

Batches are `start, start + stride, start + 2 stride, ...` modulo n, with a random start and a random stride coprime to
n: each sample comes with probability 1 / n, those of a batch are distinct and nearly pairwise independent, and
n / batch of them in a row are a permutation. It takes two random numbers where `jax.random.permutation` sorts: 14 ms
for n = 32,561, three times a pass of Pegasos.
"""

import math
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from jaxsvm.numerics.sampling import systematic_draw
from jaxsvm.points.rows import CSR
from jaxsvm.problems.forms import BoxForm
from jaxsvm.runtime.loops import fori_loop, while_loop

STRIDES = 1024
CHUNK = 128
"""Entries of a long sparse row at a time (64 to 256 made no difference); shorter rows are padded to the longest."""


class Draws(NamedTuple):
    """Which samples come next.

    Attributes:
        key: The random key.
        start: The next sample, int32 `()`.
        stride: From each to the next, coprime to n, int32 `()`.
        left: Samples left of this pass, int32 `()`.
    """

    key: Array
    start: Int[Array, ""]
    stride: Int[Array, ""]
    left: Int[Array, ""]

    @staticmethod
    def begin(key: Array) -> "Draws":
        """Before the first batch."""
        nothing = jnp.zeros((), jnp.int32)
        return Draws(key, nothing, nothing, nothing)

    def fresh(self, n: int, batch: int) -> "Draws":
        """A new start and stride."""
        key, draw_key = jax.random.split(self.key)
        table = jnp.asarray(strides(n, batch))
        start, which = jax.random.randint(draw_key, (2,), 0, np.array([n, len(table)]), jnp.int32)
        return Draws(key, start, table[which], jnp.asarray(n, jnp.int32))

    def following(self, n: int, batch: int, order: str) -> tuple["Draws", Int[Array, " batch"]]:
        """The next batch."""
        if order == "random":
            draws = self.fresh(n, batch)
        else:  # a loop of one turn at most: under vmap a cond would draw at every step
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
    """Steps that visit all n samples, `(<= STRIDES,)` int32, so small that `batch` of them stay within 32 bits."""
    top = max(2, min(n, (2**31 - 1 - n) // batch))
    tried = np.arange(1, top) if top <= STRIDES else np.random.default_rng(0).integers(1, top, 2 * STRIDES)
    found = [int(step) for step in tried if math.gcd(int(step), n) == 1]
    return np.array(found[:STRIDES], np.int32)


def next_batch(
    problem: BoxForm, draws: Draws, batch: int, order: str
) -> tuple[Draws, Int[Array, " batch"], Float[Array, " batch"]]:
    """The next batch, and the factor of each sample's loss that makes its mean unbiased, over `batch`."""
    if order == "random" and problem.mask is not None:  # weights: in proportion, systematically
        key, draw_key = jax.random.split(draws.key)
        drawn = systematic_draw(draw_key, problem.upper, batch)
        return draws._replace(key=key), drawn, _full(problem, batch, 1 / batch)
    draws, index = draws.following(problem.n, batch, order)
    return draws, index, problem.upper[index] * (problem.n / batch) / problem.upper.sum()


def _full(problem: BoxForm, size: int, value: float) -> Float[Array, " size"]:
    return jnp.full((size,), value, problem.dtype)


def sparse_margins(x: CSR, index: Int[Array, " b"], v: Float[Array, " size"]) -> Float[Array, " b"]:
    """`<v, x_j>` of the rows in `index`, O(their entries)."""
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
    """`v + sum_j coefficients_j x_j`, O(the entries of rows whose coefficient is not 0)."""
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
    """Entries and columns of rows, `(b, width)`; 0 where a row has ended."""
    begin, end = x.indptr[index], x.indptr[index + 1]
    where = begin[:, None] + jnp.arange(x.width, dtype=begin.dtype)
    inside = where < end[:, None]
    where = jnp.where(inside, where, 0)
    values = x.data.at[where].get(mode="promise_in_bounds").astype(dtype)
    return jnp.where(inside, values, 0), x.indices.at[where].get(mode="promise_in_bounds")


def _chunk(x: CSR, i: Int[Array, ""], k: Int[Array, ""], dtype: Any) -> tuple[Array, Array]:
    """The k-th `CHUNK` of entries and columns of row i: slices, since its entries lie side by side."""
    first = x.indptr[i] + k * CHUNK
    begin = jnp.minimum(first, x.data.shape[0] - CHUNK)
    where = begin + jnp.arange(CHUNK, dtype=begin.dtype)
    inside = (where >= first) & (where < x.indptr[i + 1])
    values = lax.dynamic_slice(x.data, (begin,), (CHUNK,)).astype(dtype)
    return jnp.where(inside, values, 0), lax.dynamic_slice(x.indices, (begin,), (CHUNK,))


def _chunks(x: CSR, i: Int[Array, ""]) -> Int[Array, ""]:
    return -(-(x.indptr[i + 1] - x.indptr[i]) // CHUNK)
