"""Scale columns: learn the scale from training points, apply it to all later ones."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxsvm.errors import InputError, is_concrete, require_finite, require_package
from jaxsvm.points.rows import PointsLike, distinct_entries, entrywise, is_sparse, scipy_rows
from jaxsvm.runtime.arrays import in_a_line, transfers


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Scaling:
    """The map `(x - offset) * factor`, column by column, learnt from training points. A pytree.

    The constructors learn it outside `jit`; it is applied anywhere. Sparse points (SciPy or `jaxsvm` CSR) are scaled
    but never shifted, since a shift would fill them: the constructors give them an offset of zero.

    Attributes:
        offset: `(d,)`.
        factor: `(d,)`; 1 for a constant column.
    """

    __repr__ = in_a_line

    offset: Float[Array, " d"]
    factor: Float[Array, " d"]

    @classmethod
    @transfers
    def standardise(cls, x: PointsLike) -> "Scaling":
        """Learn the map of columns to mean 0 and standard deviation 1 (over n); sparse columns keep their mean.

        Points `(n, d)` are anything array-like, or CSR. They are summed in float64.

        Raises:
            InputError: If points are not `(n, d)`, not finite, or traced.
        """
        points, low, high = _ranges(x)
        largest = np.maximum(abs(low), abs(high))
        unit = np.ldexp(np.ones_like(largest), np.clip(np.frexp(largest)[1] - 1, -1000, 1000))
        if is_sparse(points):
            points.data /= unit[points.indices]  # squares of numbers near 1 neither overflow nor vanish
            sums = require_package("sklearn.utils.sparsefuncs", "scaling sparse points")
            mean, deviation = 0 * unit, np.sqrt(sums.mean_variance_axis(points, axis=0)[1])
        else:
            points = points / unit
            mean, deviation = (f(points, axis=0, dtype=np.float64) for f in (np.mean, np.std))
        return cls(*_offset_and_factor(mean * unit, deviation * unit, low, high))

    @classmethod
    @transfers
    def min_max(cls, x: PointsLike) -> "Scaling":
        """Learn the map of columns to [0, 1], or of sparse ones, divided by their largest size, to [-1, 1]."""
        points, low, high = _ranges(x)
        if is_sparse(points):
            low, high = 0 * low, np.maximum(abs(low), abs(high))
        with np.errstate(over="ignore"):
            spread = high - low
        if not np.isfinite(spread).all():
            raise InputError(f"x goes from {low.min():.3g} to {high.max():.3g}: more than {low.dtype} can subtract.")
        return cls(*_offset_and_factor(low, spread, low, high))

    @transfers
    def __call__(self, x: PointsLike) -> Any:
        """Scale points `(m, d)`; NumPy and SciPy types are kept; dense `x` may be traced.

        Raises:
            InputError: If the number of columns differs, or points are sparse and the offset is not zero.
        """
        points = _points(x)
        d = self.offset.shape[0]
        if points.shape[1] != d:
            raise InputError(f"x has {points.shape[1]} columns: {d} are needed, as in the points of the scaling.")
        offset, factor = self.offset, self.factor
        if not isinstance(_stored(points), jax.Array) and is_concrete(offset, factor):
            offset, factor = np.asarray(offset), np.asarray(factor)  # keeps the types of NumPy and SciPy
        offset, factor = offset.astype(points.dtype), factor.astype(points.dtype)
        if not is_sparse(points):
            return (points - offset) * factor
        if is_concrete(self.offset) and np.asarray(self.offset).any():
            hint = "make the scaling from sparse points, or pass dense ones"
            raise InputError(f"x is sparse and the scaling shifts its columns, which would fill it: {hint}.")
        return entrywise(lambda data: data * factor[points.indices], points)


def _stored(x: Any) -> Any:
    return x.data if is_sparse(x) else x


def _points(x: Any) -> Any:
    """Return points `(n, d)` of their own type, but floating (float32 at least)."""
    if hasattr(x, "tocsr"):
        x = distinct_entries(x)
    elif not (is_sparse(x) or isinstance(x, jax.Array)):
        x = np.asarray(x)
    if len(x.shape) != 2:
        raise InputError(f"x has shape {x.shape}: points (n, d) are needed.")
    if not jnp.issubdtype(x.dtype, jnp.floating):
        if x.dtype.kind not in "biu":
            raise InputError(f"x is of type {x.dtype}: numbers are needed.")
        x = x.astype(np.result_type(x.dtype, np.float32))
    elif x.dtype.itemsize < 4:
        x = entrywise(lambda values: values.astype(np.float32), x)
    return x


def _ranges(x: Any) -> tuple[Any, np.ndarray, np.ndarray]:
    """Return concrete points, of NumPy or SciPy's CSR, and the least and the largest value of every column."""
    points = _points(x)
    if 0 in points.shape:
        raise InputError(f"x has shape {points.shape}: points (n, d) are needed.")
    require_finite("x", _stored(points))
    if not is_concrete(points):
        raise InputError("x is being traced: learn the scaling outside jit, or write (x - x.mean(0)) / x.std(0).")
    if not is_sparse(points):
        points = np.asarray(points)
        return points, points.min(axis=0), points.max(axis=0)
    rows = scipy_rows(points).copy()
    return rows, rows.min(axis=0).toarray().ravel(), rows.max(axis=0).toarray().ravel()


def _offset_and_factor(offset: Any, spread: Any, low: np.ndarray, high: np.ndarray) -> tuple[Array, Array]:
    """Return offset and 1 / spread in JAX's dtype for that of the points; 1 if there is no spread that can be inverted.

    A spread of no more than a unit in the last place of the column's largest value, in the dtype of the points, is
    rounding; so are a few such units of the float64 in which it was computed.
    """
    eps = max(np.finfo(low.dtype).eps, 4 * np.finfo(np.float64).eps)
    varies = (low < high) & (spread > eps * np.maximum(abs(low), abs(high)))
    dtype = jax.dtypes.canonicalize_dtype(low.dtype)
    with np.errstate(over="ignore"):
        offset, spread = np.asarray(offset, dtype), np.asarray(spread, dtype)
    usable = varies & (spread > np.finfo(dtype).tiny) & np.isfinite(spread)
    return jnp.asarray(offset), jnp.asarray(np.where(usable, 1 / np.where(usable, spread, 1), 1), dtype)
