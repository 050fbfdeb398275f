"""Scale columns: learn the scale from training points, apply it to all later ones."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxsvm.errors import InputError, is_concrete, require_finite
from jaxsvm.points.rows import PointsLike, distinct_entries, is_sparse
from jaxsvm.runtime.arrays import in_a_line, transfers


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Scaling:
    """The map `(x - offset) * factor`, column by column, learnt from training points. A pytree.

    Sparse points (SciPy or `jaxsvm` CSR) are scaled but never shifted, since a shift would fill them: the constructors
    give them an offset of zero.

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

        Args:
            x: Points `(n, d)`: anything array-like, or CSR. NumPy and sparse points are summed in float64.

        Raises:
            InputError: If points are not `(n, d)` or not finite.
        """
        points, low, high = _ranges(x)
        unit = _unit_of(low, high)  # squares of numbers near 1 neither overflow nor vanish
        if is_sparse(points):
            return cls(*_offset_and_factor(0 * low, _sparse_deviation(points, unit), low, high, points.dtype))
        xp = _namespace(points)
        accumulator = points.dtype if xp is jnp else np.float64  # NumPy adds up columns in order: float32 loses digits
        mean = xp.mean(points / unit, axis=0, dtype=accumulator) * unit
        deviation = xp.std(points / unit, axis=0, dtype=accumulator) * unit
        return cls(*_offset_and_factor(mean, deviation, low, high, points.dtype))

    @classmethod
    @transfers
    def min_max(cls, x: PointsLike) -> "Scaling":
        """Learn the map of columns to [0, 1], or of sparse ones, divided by their largest absolute value, to [-1, 1].

        Args:
            x: Points `(n, d)`: anything array-like, or CSR.

        Raises:
            InputError: If points are not `(n, d)` or not finite.
        """
        points, low, high = _ranges(x)
        if is_sparse(points):
            low, high = 0 * low, np.maximum(abs(low), abs(high))
        with np.errstate(over="ignore"):
            spread = high - low
        if is_concrete(spread) and not np.isfinite(np.asarray(spread)).all():
            raise InputError(f"x goes from {low.min():.3g} to {high.max():.3g}: more than {points.dtype} can subtract.")
        return cls(*_offset_and_factor(low, spread, low, high, points.dtype))

    @transfers
    def __call__(self, x: PointsLike) -> Any:
        """Scale points `(m, d)`; NumPy and SciPy types are kept; dense `x` may be traced.

        Raises:
            InputError: If the number of columns differs, or points are sparse and the offset is not zero.
        """
        points = _points(x, check=False)
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
        return _with_stored(points, points.data * factor[points.indices])


def _stored(x: Any) -> Any:
    return x.data if is_sparse(x) else x


def _with_stored(x: Any, data: Any) -> Any:
    if not is_sparse(x):
        return data
    if hasattr(x, "tocsr"):
        return type(x)((data, x.indices, x.indptr), shape=x.shape)
    return dataclasses.replace(x, data=data)  # jaxsvm's own CSR


def _namespace(x: Any) -> Any:
    return jnp if isinstance(x, jax.Array) else np


def _points(x: Any, check: bool = True) -> Any:
    """Return points `(n, d)` of their own type, but floating (float32 at least)."""
    if hasattr(x, "tocsr"):
        x = distinct_entries(x)
    elif not (is_sparse(x) or isinstance(x, jax.Array)):
        x = np.asarray(x)
    if len(x.shape) != 2 or (check and 0 in x.shape):
        raise InputError(f"x has shape {x.shape}: points (n, d) are needed.")
    if not jnp.issubdtype(x.dtype, jnp.floating):
        if x.dtype.kind not in "biu":
            raise InputError(f"x is of type {x.dtype}: numbers are needed.")
        x = x.astype(np.result_type(x.dtype, np.float32))
    elif x.dtype.itemsize < 4:
        x = _with_stored(x, _stored(x).astype(np.float32))
    if check:
        require_finite("x", _stored(x))
    return x


def _ranges(x: Any) -> tuple[Any, Any, Any]:
    """Return points as `_points` does, and the least and the largest value of every column; unstored zeros count."""
    points, xp = _points(x), _namespace(x)
    if not is_sparse(points):
        return points, xp.min(points, axis=0), xp.max(points, axis=0)
    indices, data = np.asarray(points.indices), np.asarray(points.data, float)
    full = np.bincount(indices, minlength=points.shape[1]) == points.shape[0]
    low, high = np.where(full, np.inf, 0.0), np.where(full, -np.inf, 0.0)
    np.minimum.at(low, indices, data)
    np.maximum.at(high, indices, data)
    return points, low, high


def _sparse_deviation(x: Any, unit: np.ndarray) -> np.ndarray:
    """Return the standard deviation of every column about its mean, which is computed in some unit."""
    n, d = x.shape
    indices = np.asarray(x.indices)
    data = np.asarray(x.data, float) / unit[indices]
    mean = np.bincount(indices, data, d) / n
    squares = np.bincount(indices, (data - mean[indices]) ** 2, d)
    return np.sqrt((squares + (n - np.bincount(indices, minlength=d)) * mean**2) / n) * unit


def _unit_of(low: Any, high: Any) -> Any:
    """Return a power of two near the largest absolute value of each column: dividing by it rounds nothing."""
    xp = _namespace(low)
    largest = xp.maximum(abs(low), abs(high))
    return xp.ldexp(xp.ones_like(largest), xp.where(largest > 0, xp.frexp(largest)[1] - 1, 0))


def _offset_and_factor(offset: Any, spread: Any, low: Any, high: Any, dtype: Any) -> tuple[Array, Array]:
    """Return offset and 1 / spread in JAX's dtype for `dtype`; 1 if there is no spread that can be inverted.

    A spread of no more than a unit in the last place of the column's largest value, in the dtype of the points, is
    rounding; so are a few such units of the float64 in which it was computed.
    """
    xp = _namespace(spread)
    largest = xp.maximum(abs(low), abs(high))
    eps = max(float(jnp.finfo(dtype).eps), 4 * float(np.finfo(np.float64).eps))
    varies = (low < high) & (spread > eps * largest)
    dtype = jax.dtypes.canonicalize_dtype(dtype)
    with np.errstate(over="ignore"):
        offset, spread = xp.asarray(offset, dtype), xp.asarray(spread).astype(dtype)
    usable = varies & (spread > jnp.finfo(dtype).tiny) & xp.isfinite(spread)
    return jnp.asarray(offset), jnp.asarray(xp.where(usable, 1 / xp.where(usable, spread, 1), 1), dtype)
