"""Gram operators: the kernel matrix of a data set, by rows, blocks and products, stored or not.

`gram(kernel, x)` chooses: `DenseGram` stores all n x n values where they fit a stated memory budget, `TiledGram`
computes rows on demand in O(n d) memory, `LowRankGram` (`jaxsvm.gram.low_rank`) works on features. All three are
pytrees with the same methods, and differentiable with respect to kernel parameters and data.
"""

import dataclasses
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from jaxsvm.errors import InputError, PrecisionWarning, is_concrete
from jaxsvm.gram.basis import KernelBasis
from jaxsvm.gram.low_rank import LowRankGram, low_rank_gram
from jaxsvm.kernels import Kernel, Linear, Precomputed, as_kernel
from jaxsvm.numerics.distances import place
from jaxsvm.points import CSR, as_points, by_row_tiles, dense_rows, floating, product, transposed_product

MEMORY = 4 * 2**30
"""Default budget of a stored kernel matrix in bytes: n = 32,768 in float32."""
BUILD_TILE = 128
ROW_TILE = 128
WIDE_TILE = 256
"""Rows of a stored matrix at a time in a product of a wider dtype: of 10,000, with one vector 52 ms (in float32 14),
with 16 of them 57 (19), with 64 158 (48); 16 rows take 68, 124 and 356."""
COLLAPSED = 1 / 16
"""Spacing of floating-point numbers, in widths of the kernel, at which its values are called meaningless."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DenseGram:
    """All kernel values, stored.

    Attributes:
        kernel: The kernel.
        x: The points, `(n, d)` dense or CSR, less `shift`; for `Precomputed` their indices, `(n,)`.
        shift: What was subtracted from the points, `(d,)`: their mean, where the kernel is stationary and that costs no
            digits (`jaxsvm.numerics.distances.place`); else 0.
        K: `k(x_i, x_j)`, `(n, n)`.
        near: Whether the points are known to be near the origin, so that distances may be expanded; static.
        vouched: Whether the matrix is known to be positive semidefinite though its kernel is not: `part_of`; static.
    """

    kernel: Kernel
    x: Any
    shift: Float[Array, " d"]
    K: Float[Array, "n n"]
    near: bool = dataclasses.field(default=False, metadata={"static": True})
    vouched: bool = dataclasses.field(default=False, metadata={"static": True})

    @property
    def n(self) -> int:
        """How many points."""
        return self.K.shape[-1]

    @property
    def dtype(self) -> Any:
        """Of the kernel values."""
        return self.K.dtype

    def row(self, i: Int[Array, ""]) -> Float[Array, " n"]:
        """`K[i]`."""
        return lax.dynamic_index_in_dim(self.K, i, keepdims=False)

    def rows(self, index: Int[Array, " t"]) -> Float[Array, "t n"]:
        """`K[index]`."""
        return self.K[index]

    def block(self, rows: Int[Array, " t"], columns: Int[Array, " u"]) -> Float[Array, "t u"]:
        """`K[rows, columns]`."""
        return self.K[rows[:, None], columns]

    def diag(self) -> Float[Array, " n"]:
        """`K_ii`."""
        return jnp.diagonal(self.K)

    def matvec(self, v: Float[Array, "n *k"]) -> Float[Array, "n *k"]:
        """`K @ v`, in the wider of the two dtypes."""
        if self.K.dtype == v.dtype:
            return jnp.matmul(self.K, v, precision=lax.Precision.HIGHEST)
        return _wide_matvec(self.K, v)

    @property
    def definite(self) -> bool:
        """Whether the matrix is positive semidefinite by its kernel, or by the one that it is a part of."""
        return self.vouched or self.kernel.definite

    def widened(self, dtype: Any) -> "DenseGram | TiledGram":
        """The operator for decisions in a wider dtype: a linear kernel from its points, others as they are stored."""
        return _from_points(self, dtype)

    @property
    def feature_rows(self) -> Any:
        """`X (n, d)`, dense, with `K = X X'`, where that is at hand; else None."""
        return self.x if isinstance(self.kernel, Linear) and not isinstance(self.x, CSR) else None

    def support_matvec(self, v: Float[Array, " n"]) -> Float[Array, " n"]:
        """`K @ v`: gathering the rows of the support costs more than reading all of K in order, down to 1 row in 4."""
        return self.matvec(v)

    def expansion(self, coef: Float[Array, " n"], support: Any = None) -> tuple[KernelBasis, Float[Array, " q"]]:
        """Basis functions and coefficients of `sum_j coef_j k(x_j, .)`, of the points in `support` only where given."""
        return _expansion(self, coef, support)


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
        of_tile = jax.checkpoint(lambda index: _wide_product(self.rows(index), v))
        return by_row_tiles(self.n, self.tile, of_tile)

    @property
    def definite(self) -> bool:
        """Whether the matrix is positive semidefinite by its kernel."""
        return self.kernel.definite

    def widened(self, dtype: Any) -> "DenseGram | TiledGram":
        """The operator for decisions in a wider dtype: a linear kernel in that dtype, others as they are computed."""
        return _from_points(self, dtype)

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
        return _expansion(self, coef, support)

    def _diagonal(self, x: Array) -> Array:
        """`k(x_i, x_i)`; a linear kernel's in the operator's dtype, as its other entries."""
        x = x.astype(self.dtype) if isinstance(self.kernel, Linear) else x
        return self.kernel.diag(x).astype(self.dtype)

    def _values(self, x: Array, z: Array, same: Array, squares: Any = None) -> Array:
        if isinstance(self.kernel, Linear):
            return self.kernel.matrix(x.astype(self.dtype), z.astype(self.dtype))
        return self.kernel.matrix(x, z, near=self.near, same=same, squares=squares).astype(self.dtype)


Gram = DenseGram | TiledGram | LowRankGram


def gram(
    kernel: Any,
    x: Any,
    tile: int | None = None,
    rank: int | None = None,
    *,
    dtype: Any = None,
    memory: int = MEMORY,
    method: str = "nystroem",
    landmarks: str = "pivoted",
    key: Array | None = None,
) -> Any:
    """The Gram operator of a data set.

    Args:
        kernel: A kernel of `jaxsvm.kernels`, or a function of two points.
        x: The points, `(n, d)`: NumPy or JAX array, SciPy CSR; for `Precomputed()` the kernel matrix `(n, n)`.
        tile: Rows at a time: makes a `TiledGram`, whatever the size.
        rank: Features: makes a `LowRankGram`.
        dtype: Of the kernel values; None: that of the data. float32 values with float64 data keep solver vectors in
            float64.
        memory: Budget in bytes for stored kernel values; a `TiledGram` where n x n of them need more.
        method: "nystroem" or "fourier", with `rank`.
        landmarks: "pivoted" (greedy, by pivoted Cholesky) or "random", with "nystroem".
        key: A random key for what is random; None takes key 0.

    Returns:
        `DenseGram`, `TiledGram` or `LowRankGram`.

    Raises:
        InputError: On bad points, an asymmetric precomputed matrix, or values out of range.
    """
    kernel = as_kernel(kernel)
    if isinstance(kernel, Precomputed):
        return _precomputed(kernel, x, dtype)
    for name, value in (("tile", tile), ("rank", rank)):
        if value is not None and (not isinstance(value, int | np.integer) or value < 1):
            raise InputError(f"{name} is {value!r}: a positive integer is needed.")
    points = as_points(x)
    dtype = points.dtype if dtype is None else _value_dtype(dtype)
    if rank is not None:
        return low_rank_gram(
            kernel, points, min(rank, points.shape[0]) if method == "nystroem" else rank, method, landmarks, dtype, key
        )
    points, shift, near, far = place(kernel, points)
    near = bool(near) if is_concrete(near) else False
    if is_concrete(far):
        _warn_of_collapse(float(far), points.dtype)
    n = points.shape[0]
    if tile is None and n * n * dtype.itemsize <= memory:
        return DenseGram(kernel, points, shift, dense_values(kernel, points, dtype, near), near)
    squares = (points * points).sum(axis=1) if kernel.stationary and not isinstance(points, CSR) else None
    return TiledGram(kernel, points, shift, min(tile or BUILD_TILE, n), dtype, squares, near)


def _warn_of_collapse(far: float, dtype: Any) -> None:
    """Say that points lie where their dtype cannot tell apart what the kernel is asked to."""
    apart = far * float(jnp.finfo(dtype).eps)
    if apart > COLLAPSED:
        warnings.warn(
            f"x lies up to {far:.2g} widths of the kernel away from 0, where {jnp.dtype(dtype)} numbers are "
            f"{apart:.2g} widths apart: points were rounded that much before the kernel saw them, and its values say "
            "little. Standardise before rounding (`jaxsvm.datasets.Scaling.standardise(x)(x)` of float64 NumPy), give "
            "float64 points with x64 turned on, or take a wider kernel (a smaller gamma).",
            PrecisionWarning,
            stacklevel=3,
        )


def _value_dtype(dtype: Any) -> Any:
    if not jnp.issubdtype(dtype, jnp.floating):
        raise InputError(f"dtype is {jnp.dtype(dtype)}: a floating one is needed for kernel values.")
    return floating(dtype)


def _precomputed(kernel: Precomputed, x: Any, dtype: Any) -> DenseGram:
    K = as_points(x, None if dtype is None else _value_dtype(dtype))
    if isinstance(K, CSR) or K.shape[0] != K.shape[1]:
        raise InputError(f"x has shape {K.shape}: a precomputed kernel needs a dense square matrix (n, n).")
    if is_concrete(K):
        scale = float(jnp.abs(K).max())
        worst = float(jnp.abs(K - K.T).max())
        if worst > 1e3 * jnp.finfo(K.dtype).eps * scale:
            raise InputError(f"x is a kernel matrix with |K - K'| up to {worst:.3g}: it must be symmetric.")
    return DenseGram(kernel, jnp.arange(K.shape[0], dtype=jnp.int32), jnp.zeros((0,), K.dtype), K)


@jax.jit(static_argnames=("dtype", "near"))
def dense_values(kernel: Kernel, points: Any, dtype: Any, near: bool) -> Float[Array, "n n"]:
    """All kernel values, by tiles of rows into one buffer: a tile stays in cache between product and exponential."""
    n = points.shape[0]
    tile = min(BUILD_TILE, n)
    squares = None if isinstance(points, CSR) else (points * points).sum(axis=1)
    tiled = TiledGram(kernel, points, jnp.zeros((points.shape[1],), points.dtype), tile, dtype, squares, near)

    @jax.checkpoint
    def rows(index: Array) -> Array:
        return tiled._off_diagonal(index, dense_rows(points, index))

    def fill(k: Array, K: Array) -> Array:
        start = jnp.minimum(k * tile, n - tile)  # the last tile overlaps its neighbour
        values = rows(start + jnp.arange(tile, dtype=jnp.int32))
        return lax.dynamic_update_slice(K, values, (start, jnp.zeros_like(start)))

    K = lax.fori_loop(0, -(-n // tile), fill, jnp.zeros((n, n), dtype))
    return K.at[jnp.arange(n), jnp.arange(n)].set(tiled.diag())


def part_of(gram: Any, K: Float[Array, "m m"]) -> DenseGram:
    """The operator of kernel values between some of the points of another one, `(m, m)`."""
    places = np.arange(K.shape[0], dtype=np.int32)
    return DenseGram(Precomputed(), jnp.asarray(places), jnp.asarray(np.zeros((0,), K.dtype)), K, vouched=gram.definite)


@jax.jit
def values_between(gram: Any, samples: Int[Array, " m"]) -> Float[Array, "m m"]:
    """Kernel values between some samples; whole rows of a stored matrix first, since they lie in one piece."""
    return gram.rows(samples)[:, samples] if isinstance(gram, DenseGram) else gram.block(samples, samples)


def _from_points(gram: Any, dtype: Any) -> Any:
    """A linear kernel in a wider dtype, computed from its points: products in O(n d), and no rounded entries.

    Stored entries of a linear kernel are its rounded values: no longer quite positive semidefinite, which at large C
    has no solution (heart, C = 1e4, float32: a relative gap of 0.3 at the best point).
    """
    if not isinstance(gram.kernel, Linear):
        return gram
    return TiledGram(gram.kernel, gram.x, gram.shift, min(BUILD_TILE, gram.n), jnp.dtype(dtype))


def _wide_matvec(K: Array, v: Array) -> Array:
    """`K @ v` for v of a wider dtype, some rows at a time: never a wide copy of K."""
    n, tile = K.shape[0], min(WIDE_TILE, K.shape[0])
    whole = n // tile * tile

    def of_rows(start: Array) -> Array:
        return _wide_product(lax.dynamic_slice_in_dim(K, start, tile), v)

    # Indices of 32 bits: inside `in_double` Python's are of 64, and lanes of a loop are traced with the caller's flag.
    head = lax.map(of_rows, jnp.arange(0, whole, tile, dtype=jnp.int32)).reshape(whole, *v.shape[1:])
    return head if whole == n else jnp.concatenate([head, _wide_product(K[whole:], v)])


def _wide_product(K: Array, v: Array) -> Array:
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


def _expansion(gram: Any, coef: Array, support: Any) -> tuple[KernelBasis, Array]:
    if support is None:
        return KernelBasis(gram.kernel, gram.x, gram.shift, gram.near), coef
    if isinstance(gram.x, CSR):
        index = np.asarray(support)
        return KernelBasis(gram.kernel, gram.x.take(index), gram.shift, gram.near), coef[support]
    return KernelBasis(gram.kernel, gram.x[support], gram.shift, gram.near), coef[support]
