"""Gram operators: the contract, and those that store all kernel values, compute them on demand, or from features.

Problems, solvers and drivers ask an operator for rows, blocks and products of a kernel matrix. An operator is a frozen
dataclass, registered as a pytree, whose sizes and flags are static.
"""

import dataclasses
from typing import Any, ClassVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from jaxsvm.errors import is_concrete
from jaxsvm.gram.basis import KernelBasis
from jaxsvm.gram.measured import MEASURED
from jaxsvm.kernels import Kernel, Precomputed
from jaxsvm.numerics.precision import diagonal, matmul, over_support, precisely
from jaxsvm.numerics.selection import entry
from jaxsvm.points.rows import CSR, Rows, by_row_tiles, dense_rows, product, taken, transposed_product
from jaxsvm.runtime.arrays import in_a_line, lengthened, may_be_padded, on_device
from jaxsvm.runtime.loops import Spread, fori_loop
from jaxsvm.runtime.programs import Program

AT_ONCE = 8 * MEASURED.rows_per_tile
"""Samples up to which a matrix is computed, and multiplied in a wider dtype, in one piece: a loop saves nothing yet."""


class Gram:
    """The kernel matrix `K (n, n)` of n points, by rows, blocks and products."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    kernel: Kernel
    """The kernel."""
    dtype: Any
    """The dtype of the kernel values."""
    x: Any
    """The points less `shift`, `(n, d)`, dense or CSR; their indices, `(n,)`, if the matrix was given."""
    shift: Float[Array, " d"]
    """What was subtracted from the points, `(d,)`: their mean if the kernel is stationary and no digits are lost
    (`jaxsvm.kernels.distances.place`); else 0."""
    near: bool
    """Whether the points are known to be near the origin, so that distances may be expanded; static."""
    vouched: bool
    """Whether the matrix is known to be positive semidefinite though its kernel is not: as a part of another
    (`part_of`), or by a test (`jaxsvm.problems.certificates.definiteness`); static."""
    spread: Spread | None
    """How the points, and columns of stored values, are spread over a mesh; None: they lie on one device; static."""
    stored = False
    """Whether all values are in memory, so that reading a block costs nothing else."""
    memory = 0
    """Bytes that stored values may take; 0 without a budget."""
    rank: int | None = None
    """The number of features that replace the kernel; None where the values are the kernel's own."""

    @property
    def n(self) -> int:
        """Return the number of points."""
        raise NotImplementedError

    @property
    def may_store(self) -> bool:
        """Return whether a driver may store all values: they are stored, or fit the `memory` budget."""
        return self.stored

    @property
    def definite(self) -> bool:
        """Return whether the matrix is known to be semidefinite: by its kernel, by a test, or as a part of one."""
        return self.vouched or self.kernel.definite

    @property
    def design(self) -> Any:
        """Return a matrix `X (n, d)`, dense or CSR, with `K = X X'`; None if the operator has none."""
        return self.x if self.kernel.linear else None

    @property
    def feature_rows(self) -> Any:
        """Return `design` where it is dense; else None."""
        return None if isinstance(self.design, Rows) else self.design

    def row(self, i: Int[Array, ""]) -> Float[Array, " n"]:
        """Return `K[i]`."""
        raise NotImplementedError

    def rows(self, index: Int[Array, " t"]) -> Float[Array, "t n"]:
        """Return `K[index]`."""
        raise NotImplementedError

    def block(self, rows: Int[Array, " t"], columns: Int[Array, " u"]) -> Float[Array, "t u"]:
        """Return `K[rows, columns]`."""
        raise NotImplementedError

    def diag(self) -> Float[Array, " n"]:
        """Return the diagonal `K_ii`."""
        raise NotImplementedError

    def matvec(self, v: Float[Array, "n *k"]) -> Float[Array, "n *k"]:
        """Return `K @ v`, in the wider of the two dtypes; differentiable."""
        raise NotImplementedError

    def support_matvec(self, v: Float[Array, " n"]) -> Float[Array, " n"]:
        """Return `K @ v` at the cost of the rows where v is not 0. Solvers use it; it need not be differentiable."""
        return self.matvec(v)

    def expansion(self, coef: Any, support: Any = None) -> tuple[Any, Float[Array, " q"]]:
        """Return basis functions and coefficients of the function `sum_j coef_j k(x_j, .)`.

        Args:
            coef: Coefficients, `(n,)`.
            support: Indices of the points to keep; None keeps all.
        """
        x, coef = (self.x, coef) if support is None else (taken(self.x, support), coef[support])
        return KernelBasis(self.kernel, x, self.shift, self.near), coef

    def with_squares(self) -> "Gram":
        """Return the operator with whatever it precomputes to make `rows` faster."""
        return self

    def lengthened(self, size: int) -> "Gram | None":
        """Return the operator filled up to `size` points by copies of the first; None where that is not cheap."""
        del size

    def widened(self, dtype: Any) -> "Gram":
        """Return the operator for certificates in a wider dtype: a linear kernel's is recomputed from its points.

        Products take O(n d), and no entry is rounded. Stored entries of a linear kernel are rounded and no longer quite
        positive semidefinite, so that at large C there is no solution (heart, C = 1e4, float32: a relative gap of 0.3
        at the best point).
        """
        if not self.kernel.linear:
            return self
        tile = min(MEASURED.rows_per_tile, self.x.shape[0])
        return TiledGram(self.kernel, self.x, self.shift, tile, jnp.dtype(dtype), spread=self.spread)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TiledGram(Gram):
    """Kernel values on demand: O(n d) memory, and O(n tile) while a product runs, its derivatives included."""

    __repr__ = in_a_line

    kernel: Kernel
    x: Any
    shift: Float[Array, " d"]
    tile: int = dataclasses.field(metadata={"static": True})  # rows of the matrix held at a time; static
    dtype: Any = dataclasses.field(metadata={"static": True})  # of the kernel values; static
    # `|x_i|^2`, `(n,)`, for dense points of a stationary kernel, from `with_squares`; else None
    squares: Float[Array, " n"] | None = None
    near: bool = dataclasses.field(default=False, metadata={"static": True})
    memory: int = dataclasses.field(default=0, metadata={"static": True})
    vouched: bool = dataclasses.field(default=False, metadata={"static": True})
    spread: Spread | None = dataclasses.field(default=None, metadata={"static": True})

    @property
    def n(self) -> int:
        return self.x.shape[0]

    @property
    def may_store(self) -> bool:
        """Return whether all values fit the budget; on a mesh each device has one."""
        devices = 1 if self.spread is None else self.spread.parts
        return self.n**2 * jnp.dtype(self.dtype).itemsize <= self.memory * devices

    def with_squares(self) -> "TiledGram":
        if self.squares is not None or not self.kernel.stationary or isinstance(self.x, Rows):
            return self
        return dataclasses.replace(self, squares=_squares(self.x))

    def lengthened(self, size: int) -> "TiledGram | None":
        if isinstance(self.x, Rows) or not may_be_padded(self.x):
            return None
        tile = MEASURED.rows_per_tile if self.tile == self.n else self.tile
        parts = lengthened({"x": self.x, "squares": self.squares}, size)
        return dataclasses.replace(self, **parts, tile=min(tile, size))

    def row(self, i: Int[Array, ""]) -> Float[Array, " n"]:
        return self.rows(jnp.asarray(i)[None])[0]

    def rows(self, index: Int[Array, " t"]) -> Float[Array, "t n"]:
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
        picked, same = dense_rows(self.x, rows), rows[:, None] == columns[None, :]
        values = self._values(picked, dense_rows(self.x, columns), same)
        return jnp.where(same, self._diagonal(picked)[:, None], values)

    def diag(self) -> Float[Array, " n"]:
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
        if self.kernel.linear:
            return self.matvec(v)
        v, tile = jnp.asarray(v), min(self.tile, MEASURED.rows_per_tile, self.n)
        start = jnp.zeros((self.n,), jnp.result_type(self.dtype, v.dtype))
        return over_support(v, tile, lambda total, index, some: total + matmul(some, self.rows(index)), start)

    def _diagonal(self, x: Array) -> Array:
        """Return `k(x_i, x_i)`; a linear kernel computes it in the operator's dtype, as its other entries."""
        x = x.astype(self.dtype) if self.kernel.linear else x
        return self.kernel.diag(x).astype(self.dtype)

    def _values(self, x: Array, z: Array, same: Array, squares: Any = None) -> Array:
        if self.kernel.linear:
            return self.kernel.matrix(x.astype(self.dtype), z.astype(self.dtype))
        return self.kernel.matrix(x, z, near=self.near, same=same, squares=squares).astype(self.dtype)


@Program.full()
def _squares(x: Array) -> Array:
    return (x * x).sum(axis=1)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DenseGram(Gram):
    """All kernel values, stored.

    Products take all rows: gathering those of the support is slower if they are over a quarter.
    """

    __repr__ = in_a_line

    kernel: Kernel
    x: Any
    shift: Float[Array, " d"]
    K: Float[Array, "n n"]  # `k(x_i, x_j)`, `(n, n)`
    near: bool = dataclasses.field(default=False, metadata={"static": True})
    vouched: bool = dataclasses.field(default=False, metadata={"static": True})
    spread: Spread | None = dataclasses.field(default=None, metadata={"static": True})

    stored = True

    @property
    def n(self) -> int:
        return self.K.shape[-1]

    @property
    def dtype(self) -> np.dtype:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Return the dtype of the kernel values."""
        return self.K.dtype

    def row(self, i: Int[Array, ""]) -> Float[Array, " n"]:
        return lax.dynamic_index_in_dim(self.K, i, keepdims=False)

    def rows(self, index: Int[Array, " t"]) -> Float[Array, "t n"]:
        return self.K[index]

    def block(self, rows: Int[Array, " t"], columns: Int[Array, " u"]) -> Float[Array, "t u"]:
        return self.K[rows[:, None], columns]

    def diag(self) -> Float[Array, " n"]:
        return diagonal(self.K)

    def matvec(self, v: Float[Array, "n *k"]) -> Float[Array, "n *k"]:
        if self.K.dtype == v.dtype:
            return matmul(self.K, v)
        return _wide_matvec(self.K, v)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LowRankGram(Gram):
    """`K = Z Z'` for features `Z = phi(x)`, Nystroem's or random Fourier features; rows and products cost O(n r).

    It is exactly the kernel `phi(x) . phi(z)` of its features: fits on it are certified for that kernel.
    """

    __repr__ = in_a_line

    kernel: Kernel  # the kernel that is approximated
    x: Any  # dense points less `shift`, or CSR, as they came
    features: Any  # the feature map, a basis
    Z: Float[Array, "n r"]  # the features of the points, `(n, r)`
    # how landmarks were chosen among the points, "pivoted" or "random"; None: there are none; static
    landmarks: str | None = dataclasses.field(default=None, metadata={"static": True})
    # dtype of the kernel values, if wider than that of the features; static
    values: Any = dataclasses.field(default=None, metadata={"static": True})
    spread: Spread | None = dataclasses.field(default=None, metadata={"static": True})

    @property
    def n(self) -> int:
        return self.Z.shape[0]

    @property
    def rank(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Return the number of features."""
        return self.Z.shape[1]

    @property
    def dtype(self) -> np.dtype:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Return the dtype of the kernel values."""
        return self.Z.dtype if self.values is None else self.values

    @property
    def shift(self) -> Float[Array, " d"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Return what was subtracted from dense points, `(d,)`; 0 for sparse ones, which the feature map shifts."""
        return jnp.zeros_like(self.features.shift) if isinstance(self.x, CSR) else self.features.shift

    def row(self, i: Int[Array, ""]) -> Float[Array, " n"]:
        return matmul(self.Z, entry(self.Z, jnp.asarray(i)).astype(self.dtype))

    def rows(self, index: Int[Array, " t"]) -> Float[Array, "t n"]:
        return matmul(self.Z[index].astype(self.dtype), self.Z.T)

    def block(self, rows: Int[Array, " t"], columns: Int[Array, " u"]) -> Float[Array, "t u"]:
        return matmul(self.Z[rows].astype(self.dtype), self.Z[columns].T)

    def diag(self) -> Float[Array, " n"]:
        Z = self.Z.astype(self.dtype)
        return (Z * Z).sum(axis=1)

    def matvec(self, v: Float[Array, "n *k"]) -> Float[Array, "n *k"]:
        return matmul(self.Z, matmul(self.Z.T, v))

    @property
    def definite(self) -> bool:
        return True

    def widened(self, dtype: Any) -> "LowRankGram":
        """Return the operator whose entries have a wider dtype.

        Entries rounded to the narrower dtype need not be positive semidefinite, which harms linear systems.
        """
        return dataclasses.replace(self, values=jnp.dtype(dtype))

    @property
    def design(self) -> Float[Array, "n r"]:
        return self.Z

    def expansion(self, coef: Float[Array, " n"], support: Any = None) -> tuple[Any, Float[Array, " r"]]:
        del support  # the weight vector includes it
        return self.features, precisely(lambda coef, Z: matmul(Z.T, coef))(coef, self.Z)


def with_values(gram: Gram) -> Gram:
    """Return the operator with all values stored if its budget permits; else unchanged."""
    if gram.stored or not gram.may_store:
        return gram
    tiled = cast(TiledGram, gram)
    K = dense_values(tiled.kernel, tiled.x, tiled.dtype, tiled.near, tiled.spread)
    return DenseGram(tiled.kernel, tiled.x, tiled.shift, K, tiled.near, tiled.vouched, tiled.spread)


@Program.full(static=("dtype", "near", "spread"))
def dense_values(
    kernel: Kernel, points: Any, dtype: Any, near: bool, spread: Spread | None = None
) -> Float[Array, "n n"]:
    """Compute all kernel values by tiles, which stay in the cache between product and exponential.

    On a CPU half of the matrix is computed where points have so many features that products are most of the work.
    """
    K = _dense_values(kernel, points, dtype, near, spread is None and jax.default_backend() == "cpu")
    return K if spread is None else spread.along(K, 1)


def _dense_values(kernel: Kernel, points: Any, dtype: Any, near: bool, in_halves: bool) -> Float[Array, "n n"]:
    n = points.shape[0]
    tile = min(MEASURED.rows_per_tile, n)
    squares = None if isinstance(points, CSR) else (points * points).sum(axis=1)
    tiled = TiledGram(kernel, points, jnp.zeros((points.shape[1],), points.dtype), tile, dtype, squares, near)

    @jax.checkpoint
    def rows(index: Array) -> Array:
        return tiled._off_diagonal(index, dense_rows(points, index))

    if n <= AT_ONCE:
        K = rows(jnp.arange(n, dtype=jnp.int32))
        return K.at[jnp.arange(n), jnp.arange(n)].set(tiled.diag())
    if in_halves and squares is not None and points.shape[1] >= MEASURED.features_of_half_a_matrix:
        return _both_halves(tiled)

    def fill(k: Array, K: Array) -> Array:
        start = jnp.minimum(k * tile, n - tile)  # the last tile overlaps its neighbour
        values = rows(start + jnp.arange(tile, dtype=jnp.int32))
        return lax.dynamic_update_slice(K, values, (start, jnp.zeros_like(start)))

    K = fori_loop(0, -(-n // tile), fill, jnp.zeros((n, n), dtype))
    return K.at[jnp.arange(n), jnp.arange(n)].set(tiled.diag())


def _both_halves(tiled: TiledGram) -> Float[Array, "n n"]:
    """Compute one half of the matrix by blocks, and write each block and its transpose."""
    n, size = tiled.n, MEASURED.rows_per_wide_tile
    starts = np.minimum(np.arange(0, n, size, dtype=np.int32), n - size)  # the last block overlaps its neighbour
    pairs = jnp.asarray([(a, b) for k, a in enumerate(starts) for b in starts[k:]], jnp.int32)
    block = jax.checkpoint(tiled.block)

    def fill(k: Array, K: Array) -> Array:
        a, b = pairs[k]
        places = jnp.arange(size, dtype=jnp.int32)
        values = block(a + places, b + places)
        return lax.dynamic_update_slice(lax.dynamic_update_slice(K, values, (a, b)), values.T, (b, a))

    return fori_loop(0, len(pairs), fill, jnp.zeros((n, n), tiled.dtype))


def part_of(gram: Gram, K: Float[Array, "m m"]) -> DenseGram:
    """Return the operator of kernel values `(m, m)` between some of the points of another operator."""
    places, none = on_device((np.arange(K.shape[0], dtype=np.int32), np.zeros((0,), K.dtype)))
    return DenseGram(Precomputed(), places, none, K, vouched=gram.definite)


def among(gram: Gram, samples: Int[Array, " m"]) -> Gram:
    """Return the operator of some of the points, with the features of all, if these have any.

    Values of an operator that stores none are stored by a solver that prefers it, if the budget or `bytes_of_a_part`
    permits.
    """
    whole: Any = gram
    if gram.spread is not None or (isinstance(gram.x, Rows) and not is_concrete(samples)):
        return part_of(gram, values_between(gram, samples))
    if gram.stored:
        K = values_between(gram, samples)
        return dataclasses.replace(whole, x=taken(gram.x, samples), K=K) if gram.kernel.linear else part_of(gram, K)
    x = taken(gram.x, samples)
    if gram.rank is not None:
        return dataclasses.replace(whole, x=x, Z=whole.Z[samples])
    memory, tile = max(gram.memory, MEASURED.bytes_of_a_part), min(whole.tile, len(samples))
    return dataclasses.replace(whole, x=x, squares=None, tile=tile, memory=memory)


@Program.full()
def values_between(gram: Gram, samples: Int[Array, " m"]) -> Float[Array, "m m"]:
    """Return the kernel values between samples; of a stored matrix gather whole rows first: they are contiguous."""
    return gram.rows(samples)[:, samples] if gram.stored else gram.block(samples, samples)


def _wide_matvec(K: Array, v: Array) -> Array:
    """Return `K @ v` for v of a wider dtype, some rows at a time, without a wide copy of K."""
    n = K.shape[0]
    if n <= AT_ONCE:
        return matmul(K, v)
    rows = lambda index: matmul(lax.dynamic_slice_in_dim(K, index[0], len(index)), v)  # noqa: E731
    return by_row_tiles(n, MEASURED.rows_per_wide_tile, rows)
