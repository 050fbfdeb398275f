"""Build the Gram operator of a data set; all are differentiable with respect to kernel parameters and data.

By default `gram(kernel, x)` computes no values: `TiledGram` computes rows on demand in O(n d) memory, and has the
budget that a solver may use to store all n x n values as a `DenseGram`. `LowRankGram` works on features.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.typing import DTypeLike

from jaxsvm.errors import InputError, PrecisionWarning, is_concrete, require_finite, warn
from jaxsvm.gram.low_rank import low_rank_gram
from jaxsvm.gram.measured import MEASURED
from jaxsvm.gram.operators import DenseGram, Gram, TiledGram, dense_values
from jaxsvm.kernels import Precomputed, as_kernel
from jaxsvm.kernels.contract import KernelLike
from jaxsvm.kernels.distances import place
from jaxsvm.points.rows import CSR, PointsLike, as_points
from jaxsvm.runtime.arrays import device_memory, floating, require_memory, transfers


@transfers
def gram(
    kernel: KernelLike,
    x: PointsLike,
    tile: int | None = None,
    rank: int | None = None,
    *,
    store: bool | None = None,
    dtype: DTypeLike | None = None,
    memory: int = MEASURED.bytes_to_store,
    method: str = "nystroem",
    landmarks: str = "pivoted",
    key: Array | None = None,
) -> Gram:
    """Build the Gram operator of a data set.

    Args:
        kernel: A kernel of `jaxsvm.kernels`, or a function of two points.
        x: The points, `(n, d)`: NumPy or JAX array, SciPy CSR; for `Precomputed()` the kernel matrix `(n, n)`.
        tile: Rows at a time; makes a `TiledGram` whose values are never stored.
        rank: Number of features; makes a `LowRankGram`.
        store: True: store all kernel values now, whatever their size; pays if several calls use one operator. False:
            never store them. None: a fit, a path or a cross-validation stores them while it runs, if its solver is
            faster with them and they fit `memory`.
        dtype: Dtype of the kernel values; None: that of the data. With float32 values of float64 data, dual variables
            stay in float64.
        memory: Budget in bytes for stored kernel values if `store` is None.
        method: "nystroem" or "fourier", with `rank`.
        landmarks: "pivoted" (greedy, by pivoted Cholesky) or "random", with "nystroem".
        key: A random key for landmarks or frequencies; None takes key 0.

    Returns:
        `DenseGram`, `TiledGram` or `LowRankGram`.

    Raises:
        InputError: On bad points, an asymmetric precomputed matrix, or values out of range.

    Warns:
        PrecisionWarning: If points lie so far from 0 that their dtype cannot resolve the width of the kernel.
    """
    kernel = as_kernel(kernel)
    if store and (tile is not None or rank is not None):
        raise InputError("store is True: leave `tile` and `rank` None, which say that values are not stored.")
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
    if store:
        needed = n * n * jnp.dtype(dtype).itemsize
        what = f"store is True, and the kernel values of {n:,} points"
        require_memory(needed, what, "leave it None to compute them on demand, or give `rank`", device_memory())
        return DenseGram(kernel, points, shift, dense_values(kernel, points, dtype, near), near)
    budget = memory if tile is None and store is None else 0
    return TiledGram(kernel, points, shift, min(tile or MEASURED.rows_per_tile, n), dtype, None, near, budget)


def _warn_of_collapse(far: float, dtype: Any) -> None:
    """Warn if the spacing of the points' dtype exceeds a sixteenth of the kernel's width."""
    apart = far * float(jnp.finfo(dtype).eps)
    if apart > 1 / 16:
        warn(
            f"x lies up to {far:.2g} widths of the kernel away from 0, where {jnp.dtype(dtype)} numbers are "
            f"{apart:.2g} widths apart: points were rounded that much before the kernel saw them, and its values say "
            "little. Standardise before rounding (`jaxsvm.datasets.Scaling.standardise(x)(x)` of float64 NumPy), give "
            "float64 points with x64 turned on, or take a wider kernel (a smaller gamma).",
            PrecisionWarning,
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
        require_symmetric("x", np.asarray(K))
    return DenseGram(kernel, jnp.arange(K.shape[0], dtype=jnp.int32), jnp.zeros((0,), K.dtype), K)


def require_symmetric(name: str, K: np.ndarray) -> None:
    """Refuse kernel values `(n, n)`, of NumPy, that are not finite, or not symmetric up to the rounding of their dtype.

    (Inside a user's jit JAX traces operations on concrete values too.)
    """
    require_finite(name, K)
    worst, largest = float(np.abs(K - K.T).max(initial=0)), float(np.abs(K).max(initial=0))
    eps = float(np.finfo(K.dtype if np.issubdtype(K.dtype, np.floating) else float).eps)
    if not worst <= 1e3 * eps * largest:
        raise InputError(f"{name} is a kernel matrix with |K - K'| up to {worst:.3g}: it must be symmetric.")
