"""The Gram operator that computes kernel values on demand, and what it shares with the one that stores them."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxsvm.gram.basis import KernelBasis
from jaxsvm.gram.contract import Gram
from jaxsvm.kernels import Kernel
from jaxsvm.numerics.masks import count, places_first
from jaxsvm.numerics.products import matmul
from jaxsvm.points.rows import Rows, by_row_tiles, dense_rows, product, taken, transposed_product
from jaxsvm.runtime.arrays import lengthened, may_be_padded
from jaxsvm.runtime.loops import while_loop

BUILD_TILE = 128
ROW_TILE = 128


class OfPoints:
    """What operators of a kernel at points share, stored or not; each has these fields, and says what they are."""

    kernel: Kernel
    x: Any
    shift: Float[Array, " d"]
    near: bool
    vouched: bool

    stored = False
    """Whether all kernel values are there: then a block of them costs nothing but reading."""
    memory = 0
    """Bytes that stored kernel values may take; 0: nothing was said, or all are stored already."""
    rank = None
    """How many features the values are made of, where they stand for the kernel; None: they are the kernel's own."""

    @property
    def may_store(self) -> bool:
        """Whether whoever works with the operator may store all values: they are, or fit the budget."""
        return self.stored

    def with_squares(self) -> Any:
        """The operator with what rows on demand are faster for."""
        return self

    def lengthened(self, size: int) -> Any:
        """The operator of more points, the first one again and again; None where that would not be cheap."""
        del size

    @property
    def definite(self) -> bool:
        """Whether the matrix is positive semidefinite: by its kernel, as a part of one that is, or as it was found."""
        return self.vouched or self.kernel.definite

    @property
    def design(self) -> Any:
        """`X (n, d)`, dense or CSR, with `K = X X'`, where that is at hand; else None."""
        return self.x if self.kernel.linear else None

    @property
    def feature_rows(self) -> Any:
        """The same where it is dense; else None."""
        return None if isinstance(self.x, Rows) else self.design

    def widened(self, dtype: Any) -> Any:
        """The operator for decisions in a wider dtype: a linear kernel's from its points, others as they are.

        Products take O(n d), and no entry is rounded. Stored entries of a linear kernel are its rounded values: no
        longer quite positive semidefinite, which at large C has no solution (heart, C = 1e4, float32: a relative gap of
        0.3 at the best point).
        """
        if not self.kernel.linear:
            return self
        return TiledGram(self.kernel, self.x, self.shift, min(BUILD_TILE, self.x.shape[0]), jnp.dtype(dtype))

    def expansion(self, coef: Float[Array, " n"], support: Any = None) -> tuple[KernelBasis, Float[Array, " q"]]:
        """Basis functions and coefficients of `sum_j coef_j k(x_j, .)`, of the points in `support` only where given."""
        x, coef = (self.x, coef) if support is None else (taken(self.x, support), coef[support])
        return KernelBasis(self.kernel, x, self.shift, self.near), coef


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TiledGram(OfPoints):
    """Kernel values on demand: O(n d) memory, and O(n tile) while a product runs, its derivatives included.

    Attributes:
        kernel: The kernel.
        x: The points, `(n, d)` dense or CSR, less `shift`.
        shift: What was subtracted from the points, `(d,)`.
        tile: Rows of the matrix held at a time; static.
        dtype: Of the kernel values; static.
        squares: `|x_i|^2`, `(n,)`, for dense points of a stationary kernel, once somebody computes rows; else None.
        near: Whether the points are known to be near the origin; static.
        memory: Bytes that a solver may take to store all values (`jaxsvm.gram.dense.with_values`); 0: it may not;
            static.
        vouched: Whether the matrix was found to be positive semidefinite, though no kernel says so; static.
    """

    kernel: Kernel
    x: Any
    shift: Float[Array, " d"]
    tile: int = dataclasses.field(metadata={"static": True})
    dtype: Any = dataclasses.field(metadata={"static": True})
    squares: Float[Array, " n"] | None = None
    near: bool = dataclasses.field(default=False, metadata={"static": True})
    memory: int = dataclasses.field(default=0, metadata={"static": True})
    vouched: bool = dataclasses.field(default=False, metadata={"static": True})

    @property
    def n(self) -> int:
        """How many points."""
        return self.x.shape[0]

    @property
    def may_store(self) -> bool:
        """Whether all values fit the budget."""
        return self.n**2 * jnp.dtype(self.dtype).itemsize <= self.memory

    def with_squares(self) -> "TiledGram":
        """The operator with its `squares`, where its kernel has use for them."""
        if self.squares is not None or not self.kernel.stationary or isinstance(self.x, Rows):
            return self
        return dataclasses.replace(self, squares=_squares(self.x))

    def lengthened(self, size: int) -> "TiledGram | None":
        """The operator of more points, the first one again and again; None of CSR points."""
        if isinstance(self.x, Rows) or not may_be_padded(self.x):
            return None
        tile = BUILD_TILE if self.tile == self.n else self.tile
        squares = None if self.squares is None else lengthened(self.squares, size)
        return dataclasses.replace(self, x=lengthened(self.x, size), squares=squares, tile=min(tile, size))

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
        if not isinstance(self.x, Rows):
            # The norms at hand save two thirds of the time at 32 rows of 60,000 x 784.
            squares = None if self.squares is None else (self.squares[index], self.squares)
            columns = jnp.arange(self.n, dtype=jnp.int32)
            return self._values(picked, self.x, index[:, None] == columns[None, :], squares)
        # The other side by tiles as well: x is never dense as a whole.
        return by_row_tiles(
            self.n, self.tile, lambda tile: self._values(self.x.rows(tile), picked, tile[:, None] == index)
        ).T

    def block(self, rows: Int[Array, " t"], columns: Int[Array, " u"]) -> Float[Array, "t u"]:
        """`K[rows, columns]`, t u kernel evaluations."""
        picked, same = dense_rows(self.x, rows), rows[:, None] == columns[None, :]
        values = self._values(picked, dense_rows(self.x, columns), same)
        return jnp.where(same, self._diagonal(picked)[:, None], values)

    def diag(self) -> Float[Array, " n"]:
        """`K_ii`."""
        if not isinstance(self.x, Rows):
            return self._diagonal(self.x)
        return by_row_tiles(self.n, self.tile, lambda tile: self._diagonal(self.x.rows(tile)))

    def matvec(self, v: Float[Array, "n *k"]) -> Float[Array, "n *k"]:
        """`K @ v`, a tile of rows at a time. Derivatives recompute the tiles instead of holding them.

        A linear kernel needs none: `X (X' v)`, O(n d).
        """
        if self.kernel.linear:
            wide = v.astype(jnp.result_type(self.dtype, v.dtype))
            return product(self.x, transposed_product(self.x, wide))
        of_tile = jax.checkpoint(lambda index: matmul(self.rows(index), v))
        return by_row_tiles(self.n, self.tile, of_tile)

    def support_matvec(self, v: Float[Array, " n"]) -> Float[Array, " n"]:
        """`K @ v` at the price of the rows where v is not 0: for solvers, not for derivatives."""
        if self.kernel.linear:
            return self.matvec(v)
        return _support_matvec(self, v, min(self.tile, ROW_TILE))

    def _diagonal(self, x: Array) -> Array:
        """`k(x_i, x_i)`; a linear kernel's in the operator's dtype, as its other entries."""
        x = x.astype(self.dtype) if self.kernel.linear else x
        return self.kernel.diag(x).astype(self.dtype)

    def _values(self, x: Array, z: Array, same: Array, squares: Any = None) -> Array:
        if self.kernel.linear:
            return self.kernel.matrix(x.astype(self.dtype), z.astype(self.dtype))
        return self.kernel.matrix(x, z, near=self.near, same=same, squares=squares).astype(self.dtype)


@jax.jit
def _squares(x: Array) -> Array:
    return (x * x).sum(axis=1)


def _support_matvec(gram: Gram, v: Float[Array, " n"], tile: int) -> Float[Array, " n"]:
    """`K @ v` from the rows (K is symmetric) of the support of v, a tile at a time; the number of tiles is traced."""
    n, tile, v = gram.n, min(tile, gram.n), jnp.asarray(v)
    active = v != 0
    many, order = count(active), jnp.pad(places_first(active), (0, tile))
    dtype = jnp.result_type(gram.dtype, v.dtype)

    def add(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        k, total = carry
        index = lax.dynamic_slice(order, (k * tile,), (tile,))
        inside = k * tile + jnp.arange(tile, dtype=jnp.int32) < many
        return k + 1, total + matmul(jnp.where(inside, v[index], 0), gram.rows(index))

    start = (jnp.zeros((), jnp.int32), jnp.zeros((n,), dtype))
    return while_loop(lambda carry: carry[0] * tile < many, add, start)[1]
