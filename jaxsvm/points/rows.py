"""Dense and sparse points, and their checks; rows of a CSR matrix become dense a block at a time, never all at once."""

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from numpy.typing import ArrayLike

from jaxsvm.errors import InputError, is_concrete, require_finite, require_part
from jaxsvm.numerics.precision import matmul
from jaxsvm.runtime.arrays import MAX_INT32, floating, in_a_line, on_device
from jaxsvm.runtime.loops import Spread, with_automatic_axes

if TYPE_CHECKING:
    from jax.experimental.sparse import BCSR


class Rows:
    """Points that are not an array: they offer products, and make dense rows on demand."""

    @property
    def shape(self) -> tuple[int, int]:
        """Return `(n, d)`."""
        raise NotImplementedError

    @property
    def dtype(self) -> np.dtype:
        """Return the dtype of the entries."""
        raise NotImplementedError

    @property
    def ndim(self) -> int:
        """Return the number of axes, 2."""
        return 2

    def __len__(self) -> int:
        return self.shape[0]

    def take(self, index: np.ndarray) -> "Rows":
        """Select rows, in the same storage."""
        raise NotImplementedError

    def dot(self, w: Float[Array, "d *k"]) -> Float[Array, "n *k"]:
        """Compute `X w`."""
        raise NotImplementedError

    def transposed_dot(self, v: Float[Array, "n *k"]) -> Float[Array, "d *k"]:
        """Compute `X' v`."""
        raise NotImplementedError

    def rows(self, index: Int[Array, " t"]) -> Float[Array, "t d"]:
        """Return dense rows."""
        raise NotImplementedError

    def squared(self) -> "Rows":
        """Square each entry."""
        raise NotImplementedError


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CSR(Rows):
    """Compressed sparse rows, `(n, d)`. A pytree; build it with `CSR.from_scipy` or `as_points`.

    Attributes:
        data: Entries, `(nnz,)`.
        indices: Columns of the entries, `(nnz,)` int32.
        indptr: Start of each row, `(n + 1,)` int32.
        d: Number of columns; static.
        width: Largest number of entries in a row; static.
    """

    __repr__ = in_a_line

    data: Float[Array, " nnz"]
    indices: Int[Array, " nnz"]
    indptr: Int[Array, " n+1"]
    d: int = dataclasses.field(metadata={"static": True})
    width: int = dataclasses.field(metadata={"static": True})

    @staticmethod
    def from_scipy(matrix: Any, dtype: Any = None) -> "CSR":
        """Convert any SciPy sparse matrix; duplicates are summed."""
        rows = distinct_entries(matrix)
        dtype = floating(rows.dtype) if dtype is None else dtype
        width = int(np.diff(rows.indptr).max(initial=0))
        data = rows.data if rows.nnz else np.zeros(1)  # a gather needs at least one entry
        indices = rows.indices if rows.nnz else np.zeros(1)
        with np.errstate(over="ignore"):  # `as_points` reports it
            entries = jnp.array(data, dtype)  # a copy: `asarray` may share the caller's memory
        return CSR(
            entries, jnp.array(indices, jnp.int32), jnp.array(rows.indptr, jnp.int32), int(rows.shape[1]), max(width, 1)
        )

    @property
    def shape(self) -> tuple[int, int]:
        return self.indptr.shape[0] - 1, self.d

    @property
    def dtype(self) -> np.dtype:
        return self.data.dtype

    def squared(self) -> "CSR":
        return dataclasses.replace(self, data=self.data**2)

    def take(self, index: np.ndarray) -> "CSR":
        """Select rows, which stay sparse; on the host."""
        start, stop = np.asarray(self.indptr)[index], np.asarray(self.indptr)[index + 1]
        lengths = stop - start
        places = np.repeat(start - np.append(0, np.cumsum(lengths)[:-1]), lengths) + np.arange(lengths.sum())
        places = places if len(places) else np.zeros(1, int)
        indptr = np.append(0, np.cumsum(lengths)).astype(np.int32)
        # No operation of JAX: it would compile a program for every size.
        data, indices, indptr = jax.device_put(
            (np.asarray(self.data)[places], np.asarray(self.indices)[places], indptr)
        )
        return CSR(data, indices, indptr, self.d, self.width)

    def dot(self, w: Float[Array, "d *k"]) -> Float[Array, "n *k"]:
        w = jnp.asarray(w)
        data = self.data if w.ndim == 1 else self.data[:, None]
        return jax.ops.segment_sum(data * w[self.indices], self.row_of_entry(), len(self), indices_are_sorted=True)

    def transposed_dot(self, v: Float[Array, "n *k"]) -> Float[Array, "d *k"]:
        """Compute `X' v`, O(entries k), as sums of blocks of rows that are added in pairs: one long sum loses digits.

        In float32 a sequential sum of 1,000,000 positive terms is off by 3e-4; one in 1,024 blocks by 1e-7.
        """
        v = jnp.asarray(v)
        n, width = len(self), self.d * math.prod(v.shape[1:])
        # At most 2^20 partial sums, but 8 a column; 64 rows need no blocks.
        blocks = min(max(2**20 // width, 8), 1024, -(-n // 64))
        data = self.data if v.ndim == 1 else self.data[:, None]
        row = self.row_of_entry()
        terms = (data * v[row]).astype(v.dtype)
        sums = jnp.zeros((blocks, self.d, *v.shape[1:]), v.dtype).at[row // -(-n // blocks), self.indices].add(terms)
        while len(sums) > 1:
            half = len(sums) // 2
            sums = jnp.concatenate([sums[:half] + sums[half : 2 * half], sums[2 * half :]])
        return sums[0]

    def row_of_entry(self) -> Int[Array, " nnz"]:
        """Return the row of each stored entry."""
        rows = jnp.arange(len(self), dtype=jnp.int32)
        return jnp.repeat(rows, jnp.diff(self.indptr), total_repeat_length=self.data.shape[0])

    def rows(self, index: Int[Array, " t"]) -> Float[Array, "t d"]:
        start, stop = self.indptr[index], self.indptr[index + 1]
        place = start[:, None] + jnp.arange(self.width, dtype=start.dtype)
        inside = place < stop[:, None]
        place = jnp.where(inside, place, 0)
        values = jnp.where(inside, self.data[place], 0)
        columns = jnp.where(inside, self.indices[place], 0)
        t = index.shape[0]
        return jnp.zeros((t, self.d), self.dtype).at[jnp.arange(t)[:, None], columns].add(values)


Points = Float[Array, "n d"] | CSR
"""Points `(n, d)`, checked: dense or sparse."""


class SparseRows(Protocol):
    """A sparse matrix of SciPy, in any of its forms."""

    def tocsr(self) -> Any:
        """Return the matrix as CSR."""
        ...


DenseOrSparse: TypeAlias = Any
"""A NumPy array, or a sparse matrix of SciPy, whose attributes type checkers do not know."""
PointsLike: TypeAlias = "ArrayLike | Rows | SparseRows | BCSR"
"""Points `(n, d)` as callers pass them: an array, lists, a frame, SciPy's sparse matrix, BCSR, `CSR`."""


def dense_rows(x: Any, index: Int[Array, " t"]) -> Float[Array, "t d"]:
    """Return dense rows of dense or sparse points."""
    return x.rows(index) if isinstance(x, Rows) else x[index]


def taken(x: Any, index: Any) -> Any:
    """Select rows of dense or sparse points, in the same storage; sparse ones on the host."""
    return x.take(np.asarray(index)) if isinstance(x, Rows) else x[index]


def entrywise(function: Callable[[Any], Any], x: Any) -> Any:
    """Apply a function with f(0) = 0 to every entry of dense or sparse points, SciPy's too."""
    if hasattr(x, "tocsr"):
        return type(x)((function(x.data), x.indices, x.indptr), shape=x.shape)
    return dataclasses.replace(x, data=function(x.data)) if isinstance(x, CSR) else function(x)


def product(x: Any, w: Float[Array, "d *k"], spread: Spread | None = None) -> Float[Array, "n *k"]:
    """Compute `X w` of dense or sparse points; dense ones of a narrower dtype are widened 2,048 rows at a time.

    w is one vector, or columns of them. Each device of a spread takes tiles of its own points.
    """
    if isinstance(x, Rows):
        return x.dot(w)
    if x.dtype == w.dtype or len(x) <= 2048:
        return matmul(x, w)
    if spread is not None:
        shares = x.reshape(spread.parts, -1, x.shape[1])
        return jax.vmap(lambda share: product(share, w))(shares).reshape(x.shape[0], *w.shape[1:])
    return by_row_tiles(x.shape[0], 2048, lambda index: matmul(x[index].astype(w.dtype), w))


def transposed_product(x: Any, v: Float[Array, "n *k"]) -> Float[Array, "d *k"]:
    """Compute `X' v` of dense or sparse points."""
    if isinstance(x, Rows):
        return x.transposed_dot(v)
    x = x.astype(v.dtype)
    if v.ndim > 1 or len(x) <= 64:  # of few rows neither way is slow or inexact
        return matmul(x.T, v)
    # On a CPU the sum is twice as fast as the product, and 14 times as exact in float32 at n = 200,000.
    column_sums = lambda x, v: (x * v[:, None]).sum(axis=0)  # noqa: E731
    return jax.lax.platform_dependent(x, v, cpu=column_sums, default=lambda x, v: matmul(v, x))


def by_row_tiles(n: int, tile: int, rows: Callable[[Array], Array]) -> Array:
    """Compute `rows(index)` for all indices, `tile` at a time, and concatenate along the first axis."""
    if n <= tile:
        return rows(jnp.arange(n, dtype=jnp.int32))
    whole = n // tile
    head = jax.lax.map(rows, jnp.arange(whole * tile, dtype=jnp.int32).reshape(whole, tile))
    head = head.reshape(whole * tile, *head.shape[2:])
    if n % tile == 0:
        return head
    return jnp.concatenate([head, rows(jnp.arange(whole * tile, n, dtype=jnp.int32))])


def scipy_rows(x: Any) -> Any:
    """Convert sparse points to SciPy's `csr_array`."""
    from scipy.sparse import csr_array  # it takes time to import

    if isinstance(x, CSR):
        return csr_array(tuple(map(np.asarray, (x.data, x.indices, x.indptr))), shape=x.shape)
    return csr_array(x)


def distinct_entries(matrix: Any) -> Any:
    """Convert a SciPy sparse matrix to its CSR without duplicates."""
    rows = matrix.tocsr()
    if not rows.has_canonical_format:
        # Copy: `tocsr` of a CSR matrix is the caller's own. Small integers are converted: their sums would wrap.
        rows = rows.astype(floating(rows.dtype) if rows.dtype.kind in "biu" else rows.dtype, copy=True)
        rows.sum_duplicates()
    return rows


def as_points(x: Any, dtype: Any = None, name: str = "x") -> Any:
    """Convert points to an array `(n, d)` of floats or to `CSR`, and refuse unusable ones.

    Args:
        x: A list, NumPy or JAX array, SciPy sparse matrix, `jax.experimental.sparse.BCSR`, or `CSR`.
        dtype: Dtype of the result; None keeps float32 and float64, promotes shorter floats to float32, and turns
            integers into the default float. `floating` applies to a given dtype too.
        name: Name of the argument, for messages.

    Raises:
        InputError: On other shapes, an empty set, NaN or infinity, columns or entries that int32 cannot count.
    """
    dtype = None if dtype is None else floating(dtype)
    if is_sparse(x) and not isinstance(x, CSR) and not hasattr(x, "tocsr"):
        x = _of_bcsr(x, name)
    if hasattr(x, "tocsr") and not isinstance(x, CSR):
        _require_numbers(name, x.dtype)
        _require_two_axes(name, x.shape)  # SciPy's sparse arrays may have one
        _require_countable(name, x.shape, x.nnz)
        points: Any = CSR.from_scipy(x, dtype)
        _require_held(name, x, points.data)
    elif isinstance(x, CSR):
        dtype = floating(x.dtype) if dtype is None and x.dtype.itemsize < 4 else dtype
        points = x if dtype is None else dataclasses.replace(x, data=x.data.astype(dtype))
        _require_held(name, x.data, points.data)
    else:
        points = _from_dense(x, dtype, name)
    _require_two_axes(name, points.shape)
    if points.shape[0] == 0 or points.shape[1] == 0:
        raise InputError(f"{name} is empty, shape {points.shape}: at least one sample with one feature is needed.")
    return points


def is_sparse(x: Any) -> bool:
    """Return whether points, before or after `as_points`, are sparse rows: SciPy's, BCSR or `CSR`."""
    return hasattr(x, "indptr")


def _of_bcsr(x: Any, name: str) -> Any:
    """Convert JAX's BCSR to SciPy's CSR."""
    from scipy.sparse import csr_array

    if not is_concrete(x):
        raise InputError(f"{name} is a traced BCSR: its longest row is not known; convert it to CSR outside jit.")
    _require_two_axes(name, x.shape)
    if x.data.ndim != 1:
        raise InputError(f"{name} is a BCSR with dense or batch axes: entries (nse,) of a matrix are needed.")
    short = jnp.issubdtype(x.data.dtype, jnp.floating) and x.data.dtype.itemsize < 4  # unknown to SciPy
    data = np.asarray(x.data, np.float32 if short else None)
    return csr_array((data, np.asarray(x.indices), np.asarray(x.indptr)), shape=x.shape)


def _from_dense(x: Any, dtype: Any, name: str) -> Any:
    known = hasattr(getattr(x, "dtype", None), "kind")  # a tensor of PyTorch has another dtype
    if known:  # or a Gram operator
        require_part(name, x, "ndim", "an array of points (n, d) is needed")
    try:
        array = with_automatic_axes(x) if known else np.asarray(x)
    except ValueError:
        raise InputError(f"{name} has rows of different lengths: (n, d) is needed.") from None
    if hasattr(x, "todense"):
        raise InputError(f"{name} is a {type(x).__name__}: of sparse formats SciPy's, BCSR and CSR are taken.")
    _require_numbers(name, array.dtype)
    if jnp.issubdtype(array.dtype, jnp.floating) and array.dtype.itemsize not in (4, 8):
        array = array.astype(floating(array.dtype))  # NumPy cannot find NaN in JAX's short floats
    require_finite(name, array)
    with np.errstate(over="ignore"):  # reported below
        # NumPy's memory is copied: `asarray` may share it, and the caller may change it later.
        shared, wanted = isinstance(array, jax.Array), floating(array.dtype) if dtype is None else dtype
        # NumPy converts the dtype: JAX would compile a program for every size.
        points = jnp.asarray(array, wanted) if shared else on_device(np.array(array, wanted))
    if points.dtype.itemsize < array.dtype.itemsize:  # a finite value may be too large for fewer bits
        _require_held(name, array, points)
    return points


def _require_two_axes(name: str, shape: tuple[int, ...]) -> None:
    if len(shape) != 2:
        raise InputError(
            f"{name} has shape {shape}: (n, d) is needed; one feature is x[:, None], one sample x[None, :]."
        )


def _require_countable(name: str, shape: tuple[int, ...], entries: int) -> None:
    """Refuse more columns or entries than int32 can count: larger numbers would wrap."""
    for what, count in (("columns", shape[1]), ("entries", entries)):
        if count > MAX_INT32:
            raise InputError(f"{name} has {count} {what}: up to {MAX_INT32} can be counted (int32).")


def _require_numbers(name: str, dtype: Any) -> None:
    if dtype.kind not in "fiub" and not jnp.issubdtype(dtype, jnp.floating):
        cure = "" if dtype.kind == "c" else f" (`{name}.astype(float)`, once columns of text are encoded)"
        raise InputError(f"{name} has dtype {dtype}: real numbers are needed{cure}.")


def _require_held(name: str, given: Any, held: Any) -> None:
    """Refuse finite values that overflowed in a shorter dtype, with a message other than that for missing values."""
    try:
        require_finite(name, held)
    except InputError:
        values = np.asarray(given.tocsr().data if hasattr(given, "tocsr") else given)
        if not np.isfinite(values).all():
            raise
        largest = float(np.abs(values).max())
        raise InputError(
            f"{name} has values up to {largest:.3g} in size, which {held.dtype} cannot hold: scale the features "
            "(`jaxsvm.datasets.Scaling.standardise(x)(x)`), or turn x64 on."
        ) from None
