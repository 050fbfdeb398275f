"""Check the points that a caller passes: dense arrays, SciPy and JAX sparse matrices, data frames."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxsvm.errors import InputError, is_concrete, require_finite, require_part
from jaxsvm.points.rows import CSR
from jaxsvm.runtime.arrays import floating, on_device
from jaxsvm.runtime.checks import MAX_INT32
from jaxsvm.runtime.meshes import with_automatic_axes


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
