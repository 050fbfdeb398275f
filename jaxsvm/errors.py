"""What goes wrong, said to people: the argument, what was found, what to do.

Every error that a wrong input can cause is an `InputError`, which is a `ValueError`. Values can only be
looked at when they are concrete: under `jax.jit` and its relatives the same faults become a status
(`jaxsvm.Status`), never a silent answer.
"""

import sys
import warnings
from typing import Any

import jax
import jax.core
import numpy as np


class InputError(ValueError):
    """An argument that cannot be used: its message names it, what was found, and what to do."""


class DataError(InputError):
    """A file that cannot be read as data: its message names the file, the line and what was expected."""


class ConvergenceError(RuntimeError):
    """Raised by `jaxsvm.check` for an answer that is not certified."""


class ConvergenceWarning(UserWarning):
    """Given by the host driver when a fit ends without the certificate that was asked for."""


class PrecisionWarning(UserWarning):
    """Given where numbers were rounded so coarsely that what is computed of them says little: it names the cure."""


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line that called this library, however deep inside of it the warning arises.

    Args:
        message: What was found, and what to do.
        category: A class of warnings.
    """
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).split(".")[0] == "jaxsvm":
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def is_concrete(*trees: Any) -> bool:
    """Whether every leaf holds a value that Python may look at (no leaf is being traced)."""
    return not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(trees))


def require_finite(name: str, values: Any) -> None:
    """Refuse NaN and infinity in concrete `values`; say how many there are and where the first one is.

    Args:
        name: The argument, as the caller knows it.
        values: Any array; a traced one passes, since it has no values yet.

    Raises:
        InputError: Where a value is not finite.
    """
    if not is_concrete(values):
        return
    array = np.asarray(values)
    if not np.issubdtype(array.dtype, np.inexact):
        return
    with np.errstate(over="ignore", invalid="ignore"):
        total = array.sum(dtype=array.dtype)
    if np.isfinite(total):  # one fast pass: a sum is finite only if all are
        return
    bad = np.argwhere(~np.isfinite(array))
    if len(bad):
        raise InputError(
            f"{name} has {len(bad)} value(s) that are NaN or infinite, the first at index {tuple(bad[0].tolist())}: "
            "remove or impute them first."
        )
