"""The Gram operator that computes kernel values on demand, and its base, which `DenseGram` shares."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxsvm.gram.basis import KernelBasis
from jaxsvm.gram.contract import Gram
from jaxsvm.gram.measured import MEASURED
from jaxsvm.kernels import Kernel
from jaxsvm.numerics.precision import count, matmul, places_first
from jaxsvm.points.rows import Rows, by_row_tiles, dense_rows, product, taken, transposed_product
from jaxsvm.runtime.arrays import in_a_line, lengthened, may_be_padded
from jaxsvm.runtime.loops import while_loop
from jaxsvm.runtime.meshes import Spread


class OfPoints:
    """What operators of `jaxsvm.gram` share; each documents those of these fields that it has."""

    kernel: Kernel
    x: Any
    shift: Float[Array, " d"]
    near: bool
    vouched: bool
    spread: Spread | None

    stored = False
    """Whether all kernel values are in memory."""
    memory = 0
    """Bytes that stored kernel values may take; 0: no budget was given, or all are stored already."""
    rank = None
    """None: the values are the kernel's own."""

    @property
    def may_store(self) -> bool:
        """Return whether a driver may store all values: they are stored, or fit the budget."""
        return self.stored

    def with_squares(self) -> Any:
        """Return the operator unchanged: there is nothing to precompute."""
        return self

    def lengthened(self, size: int) -> Any:
        """Return None: longer operators are not cheap."""
        del size

    @property
    def definite(self) -> bool:
        """Return whether the matrix is known to be semidefinite: by its kernel, by a test, or as a part of one."""
        return self.vouched or self.kernel.definite

    @property
    def design(self) -> Any:
        """Return the points, a matrix `X (n, d)` with `K = X X'`; None if the kernel is not linear."""
        return self.x if self.kernel.linear else None

    @property
    def feature_rows(self) -> Any:
        """Return `design` if it is dense; else None."""
        return None if isinstance(self.design, Rows) else self.design

    def widened(self, dtype: Any) -> Any:
        """Return the operator for certificates in a wider dtype: a linear kernel's is recomputed from its points.

        Products take O(n d), and no entry is rounded. Stored entries of a linear kernel are rounded and no longer quite
        positive semidefinite, so that at large C there is no solution (heart, C = 1e4, float32: a relative gap of 0.3
        at the best point).
        """
        if not self.kernel.linear:
            return self
        return TiledGram(
            self.kernel,
            self.x,
            self.shift,
            min(MEASURED.rows_per_tile, self.x.shape[0]),
            jnp.dtype(dtype),
            spread=self.spread,
        )

    def expansion(self, coef: Float[Array, " n"], support: Any = None) -> tuple[KernelBasis, Float[Array, " q"]]:
        """Return basis functions and coefficients of `sum_j coef_j k(x_j, .)`, for points in `support` if given."""
        x, coef = (self.x, coef) if support is None else (taken(self.x, support), coef[support])
        return KernelBasis(self.kernel, x, self.shift, self.near), coef


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TiledGram(OfPoints):
    """Kernel values on demand: O(n d) memory, and O(n tile) while a product runs, its derivatives included."""

    __repr__ = in_a_line

    kernel: Kernel  # the kernel
    x: Any  # the points, `(n, d)` dense or CSR, less `shift`
    shift: Float[Array, " d"]  # what was subtracted from the points, `(d,)`
    tile: int = dataclasses.field(metadata={"static": True})  # rows of the matrix held at a time; static
    dtype: Any = dataclasses.field(metadata={"static": True})  # of the kernel values; static
    # `|x_i|^2`, `(n,)`, for dense points of a stationary kernel, from `with_squares`; else None
    squares: Float[Array, " n"] | None = None
    # whether the points are known to be near the origin; static
    near: bool = dataclasses.field(default=False, metadata={"static": True})
    # bytes that a solver may take to store all values (`jaxsvm.gram.dense.with_values`); 0: it may not; static
    memory: int = dataclasses.field(default=0, metadata={"static": True})
    # whether a test found the matrix to be positive semidefinite, though its kernel need not be; static
    vouched: bool = dataclasses.field(default=False, metadata={"static": True})
    # how the points are spread over a mesh; None: they lie on one device; static
    spread: Spread | None = dataclasses.field(default=None, metadata={"static": True})

    @property
    def n(self) -> int:
        """Return the number of points."""
        return self.x.shape[0]

    @property
    def may_store(self) -> bool:
        """Return whether all values fit the budget; on a mesh each device has one."""
        devices = 1 if self.spread is None else self.spread.parts
        return self.n**2 * jnp.dtype(self.dtype).itemsize <= self.memory * devices

    def with_squares(self) -> "TiledGram":
        """Return the operator with its `squares`, if its kernel uses them."""
        if self.squares is not None or not self.kernel.stationary or isinstance(self.x, Rows):
            return self
        return dataclasses.replace(self, squares=_squares(self.x))

    def lengthened(self, size: int) -> "TiledGram | None":
        """Return the operator of `size` points, the first one repeated; None for CSR points."""
        if isinstance(self.x, Rows) or not may_be_padded(self.x):
            return None
        tile = MEASURED.rows_per_tile if self.tile == self.n else self.tile
        squares = None if self.squares is None else lengthened(self.squares, size)
        return dataclasses.replace(self, x=lengthened(self.x, size), squares=squares, tile=min(tile, size))

    def row(self, i: Int[Array, ""]) -> Float[Array, " n"]:
        """Return `K[i]`, n kernel evaluations: one pass over the points."""
        return self.rows(jnp.asarray(i)[None])[0]

    def rows(self, index: Int[Array, " t"]) -> Float[Array, "t n"]:
        """Return `K[index]`."""
        picked = dense_rows(self.x, index)
        # One entry per row is overwritten: selecting by index in every place would take a fifth of the time.
        diagonal = self._diagonal(picked)
        return self._off_diagonal(index, picked).at[jnp.arange(len(index)), index].set(diagonal)

    def _off_diagonal(self, index: Int[Array, " t"], picked: Float[Array, "t d"]) -> Float[Array, "t n"]:
        """Return `K[index]` with unreliable values of `K[i, i]`."""
        if not isinstance(self.x, Rows):
            # Known norms save two thirds of the time at 32 rows of 60,000 x 784.
            squares = None if self.squares is None else (self.squares[index], self.squares)
            columns = jnp.arange(self.n, dtype=jnp.int32)
            return self._values(picked, self.x, index[:, None] == columns[None, :], squares)
        # The other side is computed by tiles as well: x is never dense as a whole.
        return by_row_tiles(
            self.n, self.tile, lambda tile: self._values(self.x.rows(tile), picked, tile[:, None] == index)
        ).T

    def block(self, rows: Int[Array, " t"], columns: Int[Array, " u"]) -> Float[Array, "t u"]:
        """Return `K[rows, columns]`, t u kernel evaluations."""
        picked, same = dense_rows(self.x, rows), rows[:, None] == columns[None, :]
        values = self._values(picked, dense_rows(self.x, columns), same)
        return jnp.where(same, self._diagonal(picked)[:, None], values)

    def diag(self) -> Float[Array, " n"]:
        """Return `K_ii`."""
        if not isinstance(self.x, Rows):
            return self._diagonal(self.x)
        return by_row_tiles(self.n, self.tile, lambda tile: self._diagonal(self.x.rows(tile)))

    def matvec(self, v: Float[Array, "n *k"]) -> Float[Array, "n *k"]:
        """Return `K @ v`, a tile of rows at a time, which derivatives recompute; `X (X' v)` for a linear kernel."""
        if self.kernel.linear:
            wide = v.astype(jnp.result_type(self.dtype, v.dtype))
            return product(self.x, transposed_product(self.x, wide), self.spread)
        of_tile = jax.checkpoint(lambda index: matmul(self.rows(index), v))
        return by_row_tiles(self.n, self.tile, of_tile)

    def support_matvec(self, v: Float[Array, " n"]) -> Float[Array, " n"]:
        """Return `K @ v` at the cost of the rows where v is not 0: for solvers, not for derivatives."""
        if self.kernel.linear:
            return self.matvec(v)
        return _support_matvec(self, v, min(self.tile, MEASURED.rows_per_tile))

    def _diagonal(self, x: Array) -> Array:
        """Return `k(x_i, x_i)`; a linear kernel computes it in the operator's dtype, as its other entries."""
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
    """Return `K @ v` from the rows of v's support (K is symmetric), a tile at a time; their number is traced."""
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
