"""Use a join as a design matrix that is not formed: `X w`, `X' v`, `X' D X` from the tables, for jaxsvm's solvers.

    rows = relational.design(join)
    fit = jaxsvm.designs.fit(rows, C=1.0)                                 # passes over the tables
    problem = jaxsvm.svm_problem(rows.gram(), rows.y, C, sample_weight=rows.weight)
    fit = jaxsvm.fit(problem, jaxsvm.Newton())                            # or vectors with an entry for each row

This is for joins whose rows can be counted one by one (a star of unique keys has those of its fact table). A product
gathers the scores of the tables' rows, its transpose sums over them first: O(N m + sum_i n_i d_i) instead of O(N d)
(Chen, Kumar, Naughton, Patel, "Towards Linear Algebra over Normalized Data", VLDB 2017).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxsvm.designs.contract import Chunk
from jaxsvm.designs.places.arrays import OfChunks
from jaxsvm.errors import InputError, require_part
from jaxsvm.gram.operators import TiledGram
from jaxsvm.kernels import Linear
from jaxsvm.numerics.precision import matmul
from jaxsvm.points.rows import Rows
from jaxsvm.relational.schema.join import Join
from jaxsvm.results.fit import Fit
from jaxsvm.runtime.arrays import floating, in_a_line, transfers


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class JoinedRows(Rows):
    """The rows of a join, `(N, d)`, as row numbers of its tables. A pytree.

    Attributes:
        X: The numbers of each table, `(n_i, p_i)`.
        codes: The columns that are 1 in its rows, one of each category, `(n_i, c_i)` int32.
        place: The row of each table, `(N,)` int32 each.
        first: The first column of each table, and their number; static.
    """

    __repr__ = in_a_line

    X: tuple[Float[Array, "n p"], ...]
    codes: tuple[Int[Array, "n c"], ...]
    place: tuple[Int[Array, " N"], ...]
    first: tuple[int, ...] = dataclasses.field(metadata={"static": True})

    @property
    def shape(self) -> tuple[int, int]:
        return self.place[0].shape[0], self.first[-1]

    @property
    def dtype(self) -> np.dtype:
        return self.X[0].dtype

    def take(self, index: Int[np.ndarray | Array, " k"]) -> "JoinedRows":
        return dataclasses.replace(self, place=tuple(place[index] for place in self.place))

    def alone(self, index: Int[np.ndarray | Array, " k"]) -> "JoinedRows":
        """Select rows; of tables with more rows than these, only what they need."""
        many = jnp.arange(len(index), dtype=jnp.int32)
        parts = [
            (x[at], codes[at], many) if len(x) > len(many) else (x, codes, at)
            for x, codes, at in zip(self.X, self.codes, self.take(index).place, strict=True)
        ]
        X, codes, place = zip(*parts, strict=True)
        return JoinedRows(X, codes, place, self.first)

    def _tables(self) -> Iterator[tuple[Array, Array, Array, int, int]]:
        """Yield the numbers of each table, its columns that are 1, its row of each row, its first and next column."""
        yield from zip(self.X, self.codes, self.place, self.first[:-1], self.first[1:], strict=True)

    def dot(self, w: Float[Array, "d *k"]) -> Float[Array, "N *k"]:
        total = jnp.zeros((), jnp.result_type(self.dtype, w.dtype))
        for x, codes, at, first, _ in self._tables():
            score = matmul(x, w[first : first + x.shape[1]])
            total = total + (score + w[codes].sum(axis=1) if codes.size else score)[at]
        return total

    def transposed_dot(self, v: Float[Array, "N *k"]) -> Float[Array, "d *k"]:
        parts = []
        for x, codes, at, first, end in self._tables():
            u, begin = jax.ops.segment_sum(v, at, num_segments=len(x)), first + x.shape[1]
            parts.append(matmul(x.T, u))
            if codes.size:
                parts.append(jnp.zeros((end - begin, *u.shape[1:]), u.dtype).at[codes - begin].add(u[:, None]))
        return jnp.concatenate(parts)

    def rows(self, index: Int[Array, " t"]) -> Float[Array, "t d"]:
        parts = []
        for x, codes, at, first, end in self._tables():
            levels = jnp.arange(first + x.shape[1], end, dtype=jnp.int32)
            parts += [x[at[index]], (codes[at[index]][:, :, None] == levels).sum(axis=1, dtype=x.dtype)]
        return jnp.concatenate(parts, axis=1)

    def squared(self) -> "JoinedRows":
        return dataclasses.replace(self, X=tuple(x**2 for x in self.X))


ROWS_OF_A_CHUNK = 1 << 18
"""Rows of a join that are computed with at a time: their vectors of float64 take 2 MiB each."""


@dataclasses.dataclass(frozen=True, eq=False)
class Design(OfChunks):
    """The arrays of a join that a problem needs.

    Attributes:
        x: The rows.
        y: Signs, `(N,)`.
        weight: The number of equal rows of the join that each row stands for, `(N,)`: `sample_weight`.
        names: Names of the coefficients.
        classes: The two labels.
    """

    __repr__ = in_a_line

    x: JoinedRows
    y: np.ndarray
    weight: np.ndarray
    names: list[str]
    classes: tuple[Any, ...]

    @property
    def n(self) -> int:
        """Return the number of distinct rows of the join."""
        return len(self.y)

    @property
    def d(self) -> int:
        """Return the number of features."""
        return self.x.shape[1]

    def chunks(self) -> Iterator[Chunk]:
        """Yield all rows in chunks of one size; the last one is filled up with rows of weight 0."""
        size = min(self.n, ROWS_OF_A_CHUNK)
        for first in range(0, self.n, size):
            index = np.minimum(np.arange(first, first + size), self.n - 1)
            weight = np.where(np.arange(first, first + size) < self.n, self.weight[index], 0.0)
            yield Chunk(self.x.alone(index), (self.y[index] > 0).astype(float), weight, np.int64(first))

    def gram(self) -> TiledGram:
        """Return the Gram operator `X X'`; solvers work in the space of its features."""
        shift = jnp.zeros((self.x.shape[1],), self.x.dtype)
        return TiledGram(Linear(), self.x, shift, min(2048, len(self.y)), self.x.dtype)  # rows per tile

    def coefficients(self, fit: Fit) -> np.ndarray:
        """Return `w` of a fit's decision function `w.x + fit.bias`, `(d,)`, in the order of `names`."""
        return np.asarray(self.x.transposed_dot(jnp.asarray(fit.dual_coef, self.x.dtype)))


@transfers
def design(join: Join) -> Design:
    """Return a join as a design matrix that is not formed.

    Args:
        join: A `Join`, or `fit.join`, which is scaled.

    Raises:
        InputError: On a join of more than 2^27 merged rows, too many for vectors with an entry for each.
    """
    require_part("join", join, "moments", "a `relational.Join` is needed")
    tree = join.tree.within(1, 1 << 27)
    if tree is None:
        raise InputError(f"join has {float(join.size):.3g} rows, too many for vectors of them; take relational.fit.")
    dtype = floating(np.float64)
    blocks = join.blocks
    first = [0, *np.cumsum([block.d for block in blocks]).tolist()]
    x = JoinedRows(
        tuple(jnp.asarray(block.X, dtype) for block in blocks),
        tuple(jnp.asarray(at + len(b.names) + b.codes, jnp.int32) for at, b in zip(first[:-1], blocks, strict=True)),
        tuple(jnp.asarray(tree.members[0][t], jnp.int32) for t in range(len(blocks))),
        tuple(first),
    )
    return Design(x, tree.y, tree.weight[0], join.feature_names, tuple(join.classes.tolist()))
