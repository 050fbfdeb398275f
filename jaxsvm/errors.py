"""Errors and warnings: each message names the argument, its value, and what to do.

Every error that a wrong input can cause is an `InputError`, which is a `ValueError`. Only concrete values can be
checked: under `jax.jit` and its relatives the same faults become a status (`jaxsvm.Status`), never a silent result.
"""

import importlib
import sys
import warnings
from typing import Any

import jax
import jax.core
import numpy as np


class InputError(ValueError):
    """An argument that cannot be used; the message names it, its value, and what to do."""


class DataError(InputError):
    """A file that cannot be read as data; the message names the file, the line and what was expected."""


class MissingPackageError(InputError, ImportError):
    """An optional package that a call needs cannot be imported; the message has the command that installs it."""


class ConvergenceError(RuntimeError):
    """A fit is not certified; raised by `jaxsvm.check`."""


class ConvergenceWarning(UserWarning):
    """A fit ended without the requested certificate; given by the host driver."""


class PrecisionWarning(UserWarning):
    """Rounding has made a result unreliable; the message says what to do."""


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line that called this library, however deep inside it the warning arises.

    Args:
        message: What is wrong, and what to do.
        category: Class of the warning.
    """
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).split(".")[0] == "jaxsvm":
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def require(holds: bool, message: str) -> None:
    """Raise an `InputError` with the message unless the condition holds."""
    if not holds:
        raise InputError(message)


def require_part(name: str, value: Any, part: str, need: str) -> None:
    """Raise an `InputError` that says what is needed if an argument's class lacks the attribute `part`."""
    require(hasattr(value, part), f"{name} is a {type(value).__name__}: {need}.")


EXTRAS = {
    "dask": ("dask", "cluster"), "duckdb": ("duckdb", "relational"), "matplotlib": ("matplotlib", "plot"),
    "onnx": ("onnx", "onnx"), "pyarrow": ("pyarrow", "cli"), "rich": ("rich", "cli"), "scipy": ("scipy", "sklearn"),
    "sklearn": ("scikit-learn", "sklearn"), "typer": ("typer", "cli"),
}  # fmt: skip
"""Optional modules: the package that holds each, and the extra that installs it."""


def require_package(module: str, purpose: str) -> Any:
    """Import and return an optional module.

    The first part of its name is one of `EXTRAS`; `purpose` says in the message what needs it.

    Raises:
        MissingPackageError: If it cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package, extra = EXTRAS[module.split(".", maxsplit=1)[0]]
        message = f"{purpose} needs {package}, which cannot be imported ({error}): pip install 'jaxsvm[{extra}]'"
        raise MissingPackageError(message) from error


def is_concrete(*trees: Any) -> bool:
    """Return whether every leaf holds a concrete value: none is traced."""
    return not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(trees))


def require_finite(name: str, values: Any) -> None:
    """Refuse NaN and infinity in concrete `values`.

    Args:
        name: Name of the argument, for the message.
        values: Any array; a traced one passes, since it has no values yet.

    Raises:
        InputError: If a value is not finite; the message says how many are not and where the first one is.
    """
    if not is_concrete(values):
        return
    if isinstance(values, jax.Array) and not values.is_fully_addressable:  # of several processes, which all raise
        count = int((~jax.numpy.isfinite(values)).sum())
        return require(
            count == 0, f"{name} has {count} value(s) that are NaN or infinite: remove or impute them first."
        )
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


def of_a_user(kernel: Any, x: Any, z: Any) -> Any:
    """Return what a user's function makes of points; raise an InputError with its own error as the cause."""
    try:
        return kernel(x, z)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"the kernel function that was passed raises {type(error).__name__}: {error}") from error
