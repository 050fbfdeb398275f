"""Check the data of a coreset: points, signs and weights become float64 arrays of the host."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxsvm.datasets.labels import is_nothing
from jaxsvm.errors import InputError, is_concrete, require_finite
from jaxsvm.gram.measured import MEASURED
from jaxsvm.points.rows import CSR


def as_data(x: Any, y: Any, sample_weight: Any = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return points `(n, d)`, signs and weights `(n,)`, float64.

    Refused are traced arrays, shapes that do not agree, labels that are no signs, weights that are negative or all 0,
    NaN or infinity, and sparse points that are too wide to be made dense.
    """
    if not is_concrete(x, y, sample_weight):
        raise InputError("x, y or sample_weight is being traced: coresets are made outside jit.")
    x = _dense(x)
    if x.dtype.kind == "O":
        try:
            x = np.asarray(x, np.float64)
        except (TypeError, ValueError) as error:
            raise InputError(f"x holds objects that are no numbers ({error}): impute missing ones.") from error
    if x.ndim != 2 or not x.size:
        raise InputError(f"x has shape {x.shape}: (n, d) with n, d >= 1 is needed.")
    if x.dtype.kind not in "biuf":
        raise InputError(f"x has dtype {x.dtype}: real numbers are needed.")
    y = np.asarray(y)
    if y.shape != (len(x),):
        raise InputError(f"y has shape {y.shape}: one sign a sample is needed, ({len(x)},).")
    if y.dtype.kind == "O":  # data frames with missing values
        missing = np.asarray([is_nothing(label) for label in y.tolist()], bool)
        if missing.any():
            raise InputError(f"y has {missing.sum()} missing label(s), the first at index {missing.argmax()}.")
        y = np.asarray(y.tolist())
    if y.dtype.kind not in "biuf" or not np.isin(y, (-1, 1)).all():
        raise InputError("y holds other labels than -1 and +1: `jaxsvm.datasets.two_classes` makes signs.")
    u = np.ones(len(x)) if sample_weight is None else np.asarray(sample_weight, np.float64)
    if u.shape != y.shape:
        raise InputError(f"sample_weight has shape {u.shape}: one weight a sample is needed, {y.shape}.")
    require_finite("x", x)
    require_finite("sample_weight", u)
    if (u < 0).any() or not u.any():
        fault = f"the least is {u.min():.3g}" if (u < 0).any() else "all are 0"
        raise InputError(f"sample_weight: {fault}; weights that are not negative, one of them positive, are needed.")
    return np.asarray(x, np.float64), y.astype(np.float64), u


def float_dtype(x: Any) -> Any:
    """Return the dtype that a coreset of points x has: their own if it is floating, else float64."""
    dtype = np.dtype(getattr(x, "dtype", np.float64))
    return dtype if dtype.kind == "f" else np.float64


def as_key(key: Any) -> Array:
    """Return a random key from a key or a seed; refuse a traced one, for which the number of points is not known."""
    if not is_concrete(key):
        raise InputError("key is being traced: make coresets outside jit and vmap, one for each key in a loop.")
    if isinstance(key, int | np.integer):
        return jax.random.key(int(key))
    if not isinstance(key, jax.Array):
        raise InputError(f"key is {key!r}: a random key (jax.random.key) or a whole number is needed.")
    return jax.random.wrap_key_data(key) if key.dtype == np.uint32 else key


def centred(x: Array, u: Array) -> Array:
    """Subtract the weighted mean from the points, which changes no result but its rounding."""
    return x - (u @ x) / jnp.maximum(u.sum(), jnp.finfo(u.dtype).tiny)


def _dense(x: Any) -> np.ndarray:
    if hasattr(x, "tocsr") or isinstance(x, CSR):
        taken = x.shape[0] * x.shape[1] * 8
        if taken > MEASURED.bytes_to_store:
            raise InputError(
                f"x is sparse and {x.shape[0]} x {x.shape[1]}: coresets work on dense points (cells have dense means), "
                f"which take {taken / 2**30:.1f} GiB here, of {MEASURED.bytes_to_store >> 30} allowed; hand it over in "
                "parts (`Stream`), or with fewer features."
            )
        if isinstance(x, CSR):
            return np.asarray(x.rows(jnp.arange(len(x))))
        return x.toarray()
    return np.asarray(x)
