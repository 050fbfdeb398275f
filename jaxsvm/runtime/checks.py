"""Refuse arguments that are not a number, an integer, a choice, a function or a time limit; traced values pass.

Each check raises an InputError that names the argument, what was found, and what is needed. `checked` reads
annotations: what no other check looks at must at least be of the kind that the signature says.
"""

import functools
import inspect
import math
import os
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from jaxsvm.errors import InputError

MAX_INT32 = 2**31 - 1
_F = TypeVar("_F", bound=Callable[..., Any])


def require_positive(name: str, value: Any, or_zero: bool = False) -> None:
    """Refuse anything but one positive finite number, or 0 if that may be."""
    if not (_is_number(value) and (0 < float(value) < math.inf or or_zero and float(value) == 0)):
        sign = "finite number, not negative," if or_zero else "positive finite number"
        raise InputError(f"{name} is {_shown(value)}: one {sign} is needed.")


def require_finite_number(name: str, value: Any, least: float = 0.0) -> None:
    """Refuse anything but one finite number from `least` on."""
    if not (_is_number(value) and math.isfinite(value) and float(value) >= least):
        at_least = "" if least == -math.inf else f" >= {least:g}"
        raise InputError(f"{name} is {_shown(value)}: one finite number{at_least} is needed.")


def require_whole(name: str, value: Any, least: int) -> None:
    """Refuse anything but one integer from `least` to the largest int32."""
    whole = type(value) is int or np.ndim(value) == 0 and np.asarray(value).dtype.kind in "iu"
    if not (whole and least <= int(value) <= MAX_INT32):
        raise InputError(f"{name} is {_shown(value)}: an integer from {least} to {MAX_INT32} is needed.")


def require_one_of(name: str, value: Any, choices: Iterable[str]) -> None:
    """Refuse a value that is not among the choices."""
    if value not in choices:
        raise InputError(f"{name} is {value!r}: one of {', '.join(choices)} is needed.")


def require_function(name: str, value: Any, arguments: tuple[str, ...], what: str) -> None:
    """Refuse a value that cannot be called with these arguments; classes are refused too."""
    takes = callable(value) and not isinstance(value, type)
    if takes:
        try:
            inspect.signature(value).bind(*arguments)
        except TypeError:
            takes = False
        except ValueError:  # it has no signature to inspect
            pass
    if not takes:
        raise InputError(f"{name} is {value!r}: {what} is needed, called with ({', '.join(arguments)}).")


def require_seconds(max_seconds: Any) -> None:
    """Refuse a time limit that is neither None nor a number of seconds >= 0."""
    if max_seconds is not None and not (_is_number(max_seconds) and float(max_seconds) >= 0):
        raise InputError(f"max_seconds is {_shown(max_seconds)}: at least 0 seconds are needed, or None for no limit.")


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) or np.ndim(value) == 0 and np.asarray(value).dtype.kind in "iuf"


def _shown(value: Any) -> str:
    if getattr(value, "ndim", 0):
        return f"an array of shape {np.shape(value)}"
    return str(value)[:80] if not isinstance(value, str) else repr(value[:80])


def is_numeric(value: Any) -> bool:
    """Return whether a value is real numbers: an array, what becomes one, or a traced one."""
    if isinstance(value, jax.Array | int | float | np.number) or hasattr(value, "nnz") or hasattr(value, "indptr"):
        return not np.iscomplexobj(value)
    try:
        array = np.asarray(value)
        array = array.astype(float) if array.dtype == object and value is not None else array
    except (TypeError, ValueError):  # ragged lists, objects
        return False
    return array.dtype.kind == "b" or any(jnp.issubdtype(array.dtype, kind) for kind in (np.integer, np.floating))


def _is_single(value: Any) -> bool:
    return is_numeric(value) and np.ndim(value) == 0


def _is_whole(value: Any) -> bool:
    return _is_single(value) and (isinstance(value, jax.core.Tracer) or float(value).is_integer())


def _has(*parts: str) -> Callable[[Any], bool]:
    return lambda value: not isinstance(value, type | str) and all(hasattr(value, part) for part in parts)


def _of(*classes: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, classes)


Kind = tuple[Callable[[Any], bool], str]
NUMBERS, NONE = (is_numeric, "real numbers"), (lambda value: value is None, "None")
LABELS: Kind = (lambda value: np.ndim(value) > 0 and not np.iscomplexobj(value), "one entry a sample")
"""Arrays that may hold text."""
KINDS: dict[str, Kind] = {
    **dict.fromkeys(("ArrayLike", "Number", "Count", "number", "integer", "Float"), NUMBERS),
    **dict.fromkeys(("Array", "ndarray"), (lambda value: hasattr(value, "dtype") and is_numeric(value), "an array")),
    **dict.fromkeys(("Sequence", "tuple"), (_has("__len__"), "several")),
    "float": (_is_single, "a number"),
    "int": (_is_whole, "an integer"),
    "PointsLike": (lambda value: hasattr(value, "columns") or is_numeric(value), "real numbers"),
    "str": (_of(str), "text"),
    "PathLike": (_of(os.PathLike), "a path"),
    "bool": (_of(bool, np.bool_), "True or False"),
    "Literal": (_of(bool, str), "False"),
    "None": NONE,
    "Callable": (callable, "a function"),
    "Solver": (_has("stores"), "a solver"),
    "Gram": (_has("matvec", "diag"), "a Gram operator (`jaxsvm.gram(kernel, x)`)"),
    "Kernel": (_has("matrix"), "a kernel, such as RBF(gamma=0.5)"),
    "Fit": (_has("dual_coef", "certificate"), "a fit"),
    "DesignFit": (_has("coef", "certificate"), "a fit of a design"),
    "Model": (_has("basis", "coef"), "a model (`compact(fit, problem)`)"),
    "Iterable": (_has("__iter__"), "several"),
    "Mapping": (_has("items"), "a mapping of names"),
    "DTypeLike": (lambda value: np.dtype(value) is not None, "a dtype"),
    "GradientTransformation": (_has("init", "update"), "an optimiser of optax"),
    "Axes": (_has("plot"), "axes of matplotlib"),
    "Mesh": (_has("axis_names", "devices"), "a mesh (`jax.make_mesh`)"),
    "Layout": (_has("columns", "index_base"), "a layout (`dataset.layout`)"),
    "Scaling": (_has("offset", "factor"), "a scaling (`jaxsvm.datasets.Scaling`)"),
}
"""What parts of an annotation ask of a value. A union with a part that is not here is not checked."""


def _holds(test: Callable[[Any], bool], value: Any) -> bool:
    try:
        return bool(test(value))
    except (TypeError, ValueError):  # ragged lists have no shape, objects no dtype
        return False


def _kinds_of(name: str, annotation: Any) -> list[Kind]:
    """Return the kinds that an argument's annotation admits; none if a part of it is not known."""
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    while "[" in text:  # from within
        text = re.sub(r"\[[^\[\]]*\]", "", text)
    parts = sorted({part.strip().rpartition(".")[2] for part in text.split("|")})
    of_labels = {"ArrayLike": LABELS, "None": NONE} if name in ("y", "labels", "groups") else KINDS
    return [of_labels[part] for part in parts] if of_labels.keys() >= {*parts} and name != "return" else []


def checked(function: _F) -> _F:
    """Wrap a function so that an InputError names the argument of another kind than its annotation, where one fails.

    Where the function refuses such an argument by itself, its own words are raised. Text and complex numbers, of which
    NumPy makes real ones, are refused in any case.
    """
    parameters = inspect.signature(function).parameters
    names = [name for name, parameter in parameters.items() if parameter.kind <= parameter.POSITIONAL_OR_KEYWORD]
    annotations = getattr(function, "__annotations__", {})  # a partial has none
    known = {name: kinds for name, text in annotations.items() if (kinds := _kinds_of(name, text))}

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        for name, value in (*zip(names, arguments, strict=False), *named.items()):
            if name in known and not any(_holds(test, value) for test, _ in known[name]):
                break  # of another kind
        else:
            return function(*arguments, **named)
        error = None
        try:
            result = function(*arguments, **named)
        except InputError:
            raise
        except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as raised:  # about this argument
            error, result = raised, None
        if error is None and not isinstance(value, str) and not _holds(np.iscomplexobj, value):
            return result  # it serves all the same
        need = " or ".join(dict.fromkeys(what for _, what in known[name]))
        raise InputError(f"{name} is {_shown(value)}: {need} is needed.") from error

    return cast(_F, call)
