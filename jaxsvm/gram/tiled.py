"""The Gram operator that computes kernel values on demand."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from jaxsvm.gram.basis import KernelBasis
from jaxsvm.kernels import Kernel, Linear
from jaxsvm.points import CSR, by_row_tiles, dense_rows, product, transposed_product

BUILD_TILE = 128
ROW_TILE = 128


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TiledGram:
    """Kernel values on demand: O(n d) memory, and O(n tile) while a product runs, its derivatives included.

    Attributes:
        kernel: The kernel.
        x: The points, `(n, d)` dense or CSR, less `shift`.
        shift: What was subtracted from the points, `(d,)`.
        tile: Rows of the matrix held at a time; static.
        dtype: Of the kernel values; static.
        squares: `|x_i|^2`, `(n,)`, for dense points of a stationary kernel; else None.
        near: Whether the points are known to be near the origin; static.
    """

    kernel: Kernel
    x: Any
    shift: Float[Array, " d"]
    tile: int = dataclasses.field(metadata={"static": True})
    dtype: Any = dataclasses.field(metadata={"static": True})
    squares: Float[Array, " n"] | None = None
    near: bool = dataclasses.field(default=False, metadata={"static": True})

    @property
    def n(self) -> int:
        """How many points."""
        return self.x.shape[0]

    def row(self, i: Int[Array, ""]) -> Float[Array, " n"]:
        """`K[i]`, n kernel evaluations: one pass over the points."""
        return self.rows(jnp.asarray(i)[None])[0]

    def rows(self, index: Int[Array, " t"]) -> Float[Array, "t n"]:
        """`K[index]`."""
        picked = dense_rows(self.x, index)
        # One entry a row is written once more: a choice by index in every place takes a fifth of the time.
        diagonal = self._diagonal(picked)
        return self._off_diagonal(index, picked).at[jnp.arange(len(index)), index].set(diagonal)

    def _off_diagonal(self, index: Int[Array, " t"], picked: Float[Array, "t d"]) -> Float[Array, "t n"]:
        """`K[index]`, but for `K[i, i]`, which nobody has looked at."""
        if not isinstance(self.x, CSR):
            # The norms at hand save two thirds of the time at 32 rows of 60,000 x 784.
            squares = None if self.squares is None else (self.squares[index], self.squares)
            columns = jnp.arange(self.n, dtype=jnp.int32)
            return self._values(picked, self.x, index[:, None] == columns, squares)
        # The other side by tiles as well: x is never dense as a whole.
        return by_row_tiles(
            self.n, self.tile, lambda tile: self._values(self.x.rows(tile), picked, tile[:, None] == index)
        ).T

    def block(self, rows: Int[Array, " t"], columns: Int[Array, " u"]) -> Float[Array, "t u"]:
        """`K[rows, columns]`, t u kernel evaluations."""
        picked, same = dense_rows(self.x, rows), rows[:, None] == columns
        values = self._values(picked, dense_rows(self.x, columns), same)
        return jnp.where(same, self._diagonal(picked)[:, None], values)

    def diag(self) -> Float[Array, " n"]:
        """`K_ii`."""
        if not isinstance(self.x, CSR):
            return self._diagonal(self.x)
        return by_row_tiles(self.n, self.tile, lambda tile: self._diagonal(self.x.rows(tile)))

    def matvec(self, v: Float[Array, "n *k"]) -> Float[Array, "n *k"]:
        """`K @ v`, a tile of rows at a time. Derivatives recompute the tiles instead of holding them.

        A linear kernel needs none: `X (X' v)`, O(n d).
        """
        if isinstance(self.kernel, Linear):
            wide = v.astype(jnp.result_type(self.dtype, v.dtype))
            return product(self.x, transposed_product(self.x, wide))
        of_tile = jax.checkpoint(lambda index: wide_product(self.rows(index), v))
        return by_row_tiles(self.n, self.tile, of_tile)

    @property
    def definite(self) -> bool:
        """Whether the matrix is positive semidefinite by its kernel."""
        return self.kernel.definite

    def widened(self, dtype: Any) -> "DenseGram | TiledGram":
        """The operator for decisions in a wider dtype: a linear kernel in that dtype, others as they are computed."""
        return from_points(self, dtype)

    @property
    def feature_rows(self) -> Any:
        """`X (n, d)`, dense, with `K = X X'`, where that is at hand; else None."""
        return self.x if isinstance(self.kernel, Linear) and not isinstance(self.x, CSR) else None

    def support_matvec(self, v: Float[Array, " n"]) -> Float[Array, " n"]:
        """`K @ v` at the price of the rows where v is not 0: for solvers, not for derivatives."""
        if isinstance(self.kernel, Linear):
            return self.matvec(v)
        return _support_matvec(self, v, min(self.tile, ROW_TILE))

    def expansion(self, coef: Float[Array, " n"], support: Any = None) -> tuple[KernelBasis, Float[Array, " q"]]:
        """Basis functions and coefficients of `sum_j coef_j k(x_j, .)`, of the points in `support` only where given."""
        return expansion(self, coef, support)

    def _diagonal(self, x: Array) -> Array:
        """`k(x_i, x_i)`; a linear kernel's in the operator's dtype, as its other entries."""
        x = x.astype(self.dtype) if isinstance(self.kernel, Linear) else x
        return self.kernel.diag(x).astype(self.dtype)

    def _values(self, x: Array, z: Array, same: Array, squares: Any = None) -> Array:
        if isinstance(self.kernel, Linear):
            return self.kernel.matrix(x.astype(self.dtype), z.astype(self.dtype))
        return self.kernel.matrix(x, z, near=self.near, same=same, squares=squares).astype(self.dtype)


def from_points(gram: Any, dtype: Any) -> Any:
    """A linear kernel in a wider dtype, computed from its points: products in O(n d), and no rounded entries.

    Stored entries of a linear kernel are its rounded values: no longer quite positive semidefinite, which at large C
    has no solution (heart, C = 1e4, float32: a relative gap of 0.3 at the best point).
    """
    if not isinstance(gram.kernel, Linear):
        return gram
    return TiledGram(gram.kernel, gram.x, gram.shift, min(BUILD_TILE, gram.n), jnp.dtype(dtype))


def wide_product(K: Array, v: Array) -> Array:
    """`K @ v` in the wider dtype of the two."""
    dtype = jnp.result_type(K.dtype, v.dtype)
    return jnp.matmul(K.astype(dtype), v.astype(dtype), precision=lax.Precision.HIGHEST)


def _support_matvec(gram: Any, v: Float[Array, " n"], tile: int) -> Float[Array, " n"]:
    """`K @ v` from the rows (K is symmetric) of the support of v, a tile at a time; the number of tiles is traced."""
    n, tile, v = gram.n, min(tile, gram.n), jnp.asarray(v)
    active = v != 0
    count = active.sum(dtype=jnp.int32)
    # Positions of the support, first: a running count scatters each index to its place.
    place = jnp.where(active, jnp.cumsum(active, dtype=jnp.int32) - 1, n)
    order = jnp.zeros((n + tile,), jnp.int32).at[place].set(jnp.arange(n, dtype=jnp.int32), mode="drop")
    dtype = jnp.result_type(gram.dtype, v.dtype)

    def add(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        k, total = carry
        index = lax.dynamic_slice(order, (k * tile,), (tile,))
        inside = k * tile + jnp.arange(tile, dtype=jnp.int32) < count
        weights = jnp.where(inside, v[index], 0).astype(dtype)
        product = jnp.matmul(weights, gram.rows(index).astype(dtype), precision=lax.Precision.HIGHEST)
        return k + 1, total + product

    start = (jnp.zeros((), jnp.int32), jnp.zeros((n,), dtype))
    return lax.while_loop(lambda carry: carry[0] * tile < count, add, start)[1]


def expansion(gram: Any, coef: Array, support: Any) -> tuple[KernelBasis, Array]:
    """Basis functions and coefficients of `sum_j coef_j k(x_j, .)`, of the points in `support` only where given."""
    if support is None:
        return KernelBasis(gram.kernel, gram.x, gram.shift, gram.near), coef
    if isinstance(gram.x, CSR):
        index = np.asarray(support)
        return KernelBasis(gram.kernel, gram.x.take(index), gram.shift, gram.near), coef[support]
    return KernelBasis(gram.kernel, gram.x[support], gram.shift, gram.near), coef[support]
