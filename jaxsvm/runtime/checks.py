"""Refuse arguments that are not a number, an integer, a choice, a function or a time limit; traced values pass."""

import inspect
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from jaxsvm.errors import InputError

MAX_INT32 = 2**31 - 1


def require_positive(name: str, value: Any, or_zero: bool = False) -> None:
    """Refuse anything but one positive finite number, or 0 if that may be.

    Raises:
        InputError: The message names the argument.
    """
    if not (_is_number(value) and (0 < float(value) < math.inf or or_zero and float(value) == 0)):
        sign = "finite number, not negative," if or_zero else "positive finite number"
        raise InputError(f"{name} is {_shown(value)}: one {sign} is needed.")


def require_finite_number(name: str, value: Any, least: float = 0.0) -> None:
    """Refuse anything but one finite number from `least` on.

    Raises:
        InputError: The message names the argument.
    """
    if not (_is_number(value) and math.isfinite(value) and float(value) >= least):
        at_least = "" if least == -math.inf else f" >= {least:g}"
        raise InputError(f"{name} is {_shown(value)}: one finite number{at_least} is needed.")


def require_whole(name: str, value: Any, least: int) -> None:
    """Refuse anything but one integer from `least` to the largest int32.

    Raises:
        InputError: The message names the argument.
    """
    whole = type(value) is int or np.ndim(value) == 0 and np.asarray(value).dtype.kind in "iu"
    if not (whole and least <= int(value) <= MAX_INT32):
        raise InputError(f"{name} is {_shown(value)}: an integer from {least} to {MAX_INT32} is needed.")


def require_one_of(name: str, value: Any, choices: Iterable[str]) -> None:
    """Refuse a value that is not among the choices.

    Raises:
        InputError: The message names the argument and the choices.
    """
    if value not in choices:
        raise InputError(f"{name} is {value!r}: one of {', '.join(choices)} is needed.")


def require_function(name: str, value: Any, arguments: tuple[str, ...], what: str) -> None:
    """Refuse a value that cannot be called with these arguments; classes are refused too.

    Args:
        name: Name of the argument, for the message.
        value: The argument.
        arguments: Names of the arguments that it will be called with.
        what: Description of what is needed, for the message.

    Raises:
        InputError: The message names the argument.
    """
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
    """Refuse a time limit that is neither None nor a number of seconds >= 0.

    Raises:
        InputError: The message names the argument.
    """
    if max_seconds is not None and not (_is_number(max_seconds) and float(max_seconds) >= 0):
        raise InputError(f"max_seconds is {_shown(max_seconds)}: at least 0 seconds are needed, or None for no limit.")


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) or np.ndim(value) == 0 and np.asarray(value).dtype.kind in "iuf"


def _shown(value: Any) -> str:
    if np.ndim(value):
        return f"an array of shape {np.shape(value)}"
    return repr(value) if isinstance(value, str) else f"{value}"
