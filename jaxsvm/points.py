"""Sparse rows: a CSR matrix whose rows become dense a block at a time, never all at once."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxsvm.errors import InputError, is_concrete, require_finite
from jaxsvm.numerics.meshes import with_automatic_axes
from jaxsvm.numerics.products import matmul
from jaxsvm.padding import on_device

MAX_INT32 = 2**31 - 1
PARTIAL_SUMS = 2**20
"""Partial sums of a product over rows that are held at a time (8 for each column at least)."""
MOST_BLOCKS = 1024
LEAST_ROWS = 64
"""Rows whose sum is as good one after another."""


class Rows:
    """Points that are no array, whose rows are made where they are asked for: products, and dense rows of some."""

    @property
    def shape(self) -> tuple[int, int]:
        """`(n, d)`."""
        raise NotImplementedError

    @property
    def dtype(self) -> Any:
        """Of the entries."""
        raise NotImplementedError

    @property
    def ndim(self) -> int:
        """2."""
        return 2

    def __len__(self) -> int:
        return self.shape[0]

    def take(self, index: Any) -> "Rows":
        """Some rows, stored alike."""
        raise NotImplementedError

    def dot(self, w: Float[Array, "d *k"]) -> Float[Array, "n *k"]:
        """`X w`."""
        raise NotImplementedError

    def transposed_dot(self, v: Float[Array, "n *k"]) -> Float[Array, "d *k"]:
        """`X' v`."""
        raise NotImplementedError

    def rows(self, index: Int[Array, " t"]) -> Float[Array, "t d"]:
        """Dense rows."""
        raise NotImplementedError

    def squared(self) -> "Rows":
        """The square of each entry."""
        raise NotImplementedError


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CSR(Rows):
    """Compressed sparse rows, `(n, d)`. A pytree; build it with `CSR.from_scipy` or `as_points`.

    Attributes:
        data: The entries, `(nnz,)`.
        indices: Their columns, `(nnz,)` int32.
        indptr: Where each row begins, `(n + 1,)` int32.
        d: Columns; static.
        width: The most entries in a row; static.
    """

    data: Float[Array, " nnz"]
    indices: Int[Array, " nnz"]
    indptr: Int[Array, " n+1"]
    d: int = dataclasses.field(metadata={"static": True})
    width: int = dataclasses.field(metadata={"static": True})

    @staticmethod
    def from_scipy(matrix: Any, dtype: Any = None) -> "CSR":
        """From any SciPy sparse matrix; duplicates are summed."""
        rows = distinct_entries(matrix)
        dtype = floating(rows.dtype) if dtype is None else dtype
        width = int(np.diff(rows.indptr).max(initial=0))
        data = rows.data if rows.nnz else np.zeros(1)  # a gather needs one entry to look at
        indices = rows.indices if rows.nnz else np.zeros(1)
        with np.errstate(over="ignore"):  # `as_points` says it
            entries = jnp.array(data, dtype)  # a copy: `asarray` may share the caller's memory
        return CSR(
            entries,
            jnp.array(indices, jnp.int32),
            jnp.array(rows.indptr, jnp.int32),
            int(rows.shape[1]),
            max(width, 1),
        )

    @property
    def shape(self) -> tuple[int, int]:
        """`(n, d)`."""
        return self.indptr.shape[0] - 1, self.d

    @property
    def dtype(self) -> Any:
        """Of the entries."""
        return self.data.dtype

    def squared(self) -> "CSR":
        """The square of each entry."""
        return dataclasses.replace(self, data=self.data**2)

    def take(self, index: np.ndarray) -> "CSR":
        """Some rows, still sparse; on the host."""
        start, stop = np.asarray(self.indptr)[index], np.asarray(self.indptr)[index + 1]
        lengths = stop - start
        places = np.repeat(start - np.append(0, np.cumsum(lengths)[:-1]), lengths) + np.arange(lengths.sum())
        places = places if len(places) else np.zeros(1, int)
        indptr = np.append(0, np.cumsum(lengths)).astype(np.int32)
        # Placed, with no operation of JAX, which would compile every size.
        data, indices, indptr = jax.device_put(
            (np.asarray(self.data)[places], np.asarray(self.indices)[places], indptr)
        )
        return CSR(data, indices, indptr, self.d, self.width)

    def dot(self, w: Float[Array, "d *k"]) -> Float[Array, "n *k"]:
        """`X w`, O(entries k)."""
        w = jnp.asarray(w)
        data = self.data if w.ndim == 1 else self.data[:, None]
        return jax.ops.segment_sum(data * w[self.indices], self.row_of_entry(), len(self), indices_are_sorted=True)

    def transposed_dot(self, v: Float[Array, "n *k"]) -> Float[Array, "d *k"]:
        """`X' v`, O(entries k): sums of blocks of rows, added in pairs, since one long sum loses digits.

        In float32 a sum of 1,000,000 positive terms, one after another, is off by 3e-4; in 1,024 blocks by 1e-7.
        """
        v = jnp.asarray(v)
        n, width = len(self), self.d * math.prod(v.shape[1:])
        blocks = min(max(PARTIAL_SUMS // width, 8), MOST_BLOCKS, -(-n // LEAST_ROWS))
        data = self.data if v.ndim == 1 else self.data[:, None]
        row = self.row_of_entry()
        terms = (data * v[row]).astype(v.dtype)
        sums = jnp.zeros((blocks, self.d, *v.shape[1:]), v.dtype).at[row // -(-n // blocks), self.indices].add(terms)
        while len(sums) > 1:
            half = len(sums) // 2
            sums = jnp.concatenate([sums[:half] + sums[half : 2 * half], sums[2 * half :]])
        return sums[0]

    def row_of_entry(self) -> Int[Array, " nnz"]:
        """Which row each stored entry is in."""
        rows = jnp.arange(len(self), dtype=jnp.int32)
        return jnp.repeat(rows, jnp.diff(self.indptr), total_repeat_length=self.data.shape[0])

    def rows(self, index: Int[Array, " t"]) -> Float[Array, "t d"]:
        """Dense rows."""
        start, stop = self.indptr[index], self.indptr[index + 1]
        place = start[:, None] + jnp.arange(self.width, dtype=start.dtype)
        inside = place < stop[:, None]
        place = jnp.where(inside, place, 0)
        values = jnp.where(inside, self.data[place], 0)
        columns = jnp.where(inside, self.indices[place], 0)
        t = index.shape[0]
        return jnp.zeros((t, self.d), self.dtype).at[jnp.arange(t)[:, None], columns].add(values)


WIDE_TILE = 2048
"""Dense rows at a time in a product of a wider dtype."""

Points = Float[Array, "n d"] | CSR


def as_points(x: Any, dtype: Any = None, name: str = "x") -> Any:
    """Points as an array `(n, d)` of floats, or as `CSR`.

    Args:
        x: A list, NumPy or JAX array, SciPy sparse matrix, `jax.experimental.sparse.BCSR`, or `CSR`.
        dtype: The dtype wanted; None keeps float32 and float64, promotes shorter floats to float32, and turns integers
            into the default float (see `floating`, which holds for a dtype that is named too).
        name: What the caller calls it.

    Raises:
        InputError: On other shapes, an empty set, NaN or infinity, columns or entries that int32 cannot count.
    """
    dtype = None if dtype is None else floating(dtype)
    if hasattr(x, "tocsr"):
        _require_numbers(name, x.dtype)
        _require_two_axes(name, x.shape)  # SciPy's sparse arrays may have one
        _require_countable(name, x.shape, x.nnz)
        points: Any = CSR.from_scipy(x, dtype)
        _require_held(name, x, points.data)
    elif isinstance(x, CSR):
        dtype = floating(x.dtype) if dtype is None and x.dtype.itemsize < 4 else dtype
        points = x if dtype is None else dataclasses.replace(x, data=x.data.astype(dtype))
        _require_held(name, x.data, points.data)
    elif not isinstance(x, np.ndarray) and _is_bcsr(x):
        if not is_concrete(x):
            raise InputError(f"{name} is a traced BCSR: its longest row is not known; convert it to CSR outside jit.")
        _require_numbers(name, x.data.dtype)
        _require_two_axes(name, x.shape)
        _require_countable(name, x.shape, x.data.shape[0])
        if x.data.ndim != 1:
            raise InputError(f"{name} is a BCSR with dense or batch axes: entries (nse,) of a matrix are needed.")
        width = int(np.diff(np.asarray(x.indptr)).max(initial=0))
        data = jnp.asarray(x.data, floating(x.data.dtype) if dtype is None else dtype)
        indices = jnp.asarray(x.indices, jnp.int32)
        if not len(data):  # a gather needs one entry to look at
            data, indices = jnp.zeros(1, data.dtype), jnp.zeros(1, jnp.int32)
        _require_distinct_entries(name, x)
        points = CSR(data, indices, jnp.asarray(x.indptr, jnp.int32), x.shape[1], max(width, 1))
        _require_held(name, x.data, points.data)
    else:
        try:
            array = with_automatic_axes(x) if hasattr(x, "dtype") else np.asarray(x)
        except ValueError:
            raise InputError(f"{name} has rows of different lengths: (n, d) is needed.") from None
        if hasattr(x, "todense"):
            raise InputError(f"{name} is a {type(x).__name__}: of sparse formats SciPy's, BCSR and CSR are taken.")
        _require_numbers(name, array.dtype)
        if jnp.issubdtype(array.dtype, jnp.floating) and array.dtype.itemsize not in (4, 8):
            array = array.astype(floating(array.dtype))  # NumPy does not look for NaN in short floats of JAX's own
        require_finite(name, array)
        with np.errstate(over="ignore"):  # said below
            # NumPy's memory is copied: `asarray` may share it, and the caller may change it later.
            shared, wanted = isinstance(array, jax.Array), floating(array.dtype) if dtype is None else dtype
            # NumPy converts: JAX would compile that for every size.
            points = jnp.asarray(array, wanted) if shared else on_device(np.array(array, wanted))
        if points.dtype.itemsize < array.dtype.itemsize:  # what was finite may be too large for fewer bits
            _require_held(name, array, points)
    _require_two_axes(name, points.shape)
    if points.shape[0] == 0 or points.shape[1] == 0:
        raise InputError(f"{name} is empty, shape {points.shape}: at least one sample with one feature is needed.")
    return points


def is_sparse(x: Any) -> bool:
    """Whether points, as they came or as `as_points` made them, are sparse rows: SciPy's, BCSR or `CSR`."""
    return hasattr(x, "indptr")


def distinct_entries(matrix: Any) -> Any:
    """A SciPy sparse matrix as its CSR without duplicates."""
    rows = matrix.tocsr()
    if not rows.has_canonical_format:
        # A copy: `tocsr` of a CSR matrix is the caller's own. Sums of small integers would wrap.
        rows = rows.astype(floating(rows.dtype) if rows.dtype.kind in "biu" else rows.dtype, copy=True)
        rows.sum_duplicates()
    return rows


def _require_two_axes(name: str, shape: tuple[int, ...]) -> None:
    if len(shape) != 2:
        raise InputError(
            f"{name} has shape {shape}: (n, d) is needed; one feature is x[:, None], one sample x[None, :]."
        )


def _is_bcsr(x: Any) -> bool:
    return all(hasattr(x, part) for part in ("data", "indices", "indptr", "shape")) and not hasattr(x, "ravel")


def _require_countable(name: str, shape: tuple[int, ...], entries: int) -> None:
    """Columns and entries are counted in int32: larger numbers would wrap."""
    for what, count in (("columns", shape[1]), ("entries", entries)):
        if count > MAX_INT32:
            raise InputError(f"{name} has {count} {what}: up to {MAX_INT32} can be counted (int32).")


def _require_distinct_entries(name: str, x: Any) -> None:
    """An entry that comes twice would count twice in some sums and once in others."""
    indptr = np.asarray(x.indptr, np.int64)
    rows = np.repeat(np.arange(len(indptr) - 1), indptr[1:] - indptr[:-1])
    place = rows * x.shape[1] + np.asarray(x.indices)[: len(rows)]
    if len(np.unique(place)) < len(place):
        raise InputError(f"{name} is a BCSR with entries that come twice: `sum_duplicates()` makes them one.")


def _require_numbers(name: str, dtype: Any) -> None:
    if dtype.kind not in "fiub" and not jnp.issubdtype(dtype, jnp.floating):
        cure = "" if dtype.kind == "c" else f" (`{name}.astype(float)`, once columns of text are encoded)"
        raise InputError(f"{name} has dtype {dtype}: real numbers are needed{cure}.")


def _require_held(name: str, given: Any, held: Any) -> None:
    """Refuse finite values that fewer bits made infinite: these are not missing, and nothing is to be imputed."""
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


def floating(dtype: Any) -> Any:
    """What to compute in: float32 at least, float64 for float64 (where x64 is on); JAX's default float for integers.

    Shorter floats (float16, bfloat16, 8 bits) are promoted to float32, which holds each of their values: sums and
    certificates in 8 or 11 bits prove nothing. Longer ones become float64.
    """
    if not jnp.issubdtype(dtype, jnp.floating):
        return jax.dtypes.canonicalize_dtype(float)
    return jax.dtypes.canonicalize_dtype(np.float32 if jnp.dtype(dtype).itemsize <= 4 else np.float64)


def dense_rows(x: Any, index: Int[Array, " t"]) -> Float[Array, "t d"]:
    """Rows of dense or sparse points."""
    return x.rows(index) if isinstance(x, Rows) else x[index]


def taken(x: Any, index: Any) -> Any:
    """Rows of dense or sparse points, stored as these are; of sparse ones on the host."""
    return x.take(np.asarray(index)) if isinstance(x, Rows) else x[index]


def entrywise(function: Callable[[Array], Array], x: Any) -> Any:
    """A function that is 0 at 0 of every entry of dense or sparse points."""
    return dataclasses.replace(x, data=function(x.data)) if isinstance(x, CSR) else function(x)


def product(x: Any, w: Float[Array, "d *k"]) -> Float[Array, "n *k"]:
    """`X w` of dense or sparse points; dense ones of a narrower dtype are widened some rows at a time."""
    if isinstance(x, Rows):
        return x.dot(w)

    if x.dtype == w.dtype:
        return matmul(x, w)
    return by_row_tiles(x.shape[0], WIDE_TILE, lambda index: matmul(x[index].astype(w.dtype), w))


def transposed_product(x: Any, v: Float[Array, "n *k"]) -> Float[Array, "d *k"]:
    """`X' v` of dense or sparse points."""
    if isinstance(x, Rows):
        return x.transposed_dot(v)
    x = x.astype(v.dtype)
    if v.ndim > 1:
        return matmul(x.T, v)
    return jax.lax.platform_dependent(x, v, cpu=_column_sums, default=_vector_product)


def _column_sums(x: Float[Array, "n d"], v: Float[Array, " n"]) -> Float[Array, " d"]:
    """`x' v`: on the CPU twice as fast as the product, and 14 times as exact in float32 at n = 200,000."""
    return (x * v[:, None]).sum(axis=0)


def _vector_product(x: Float[Array, "n d"], v: Float[Array, " n"]) -> Float[Array, " d"]:
    return matmul(v, x)


def by_row_tiles(n: int, tile: int, rows: Callable[[Array], Array]) -> Array:
    """`rows(index)` for all indices, `tile` at a time, put together along the first axis."""
    tile = max(1, min(tile, n))
    whole = n // tile
    head = jax.lax.map(rows, jnp.arange(whole * tile, dtype=jnp.int32).reshape(whole, tile))
    head = head.reshape(whole * tile, *head.shape[2:])
    if n % tile == 0:
        return head
    return jnp.concatenate([head, rows(jnp.arange(whole * tile, n, dtype=jnp.int32))])
