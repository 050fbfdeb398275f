"""Refuse arguments that are no number, integer, function or time limit; traced values pass."""

import inspect
import math
from typing import Any

import numpy as np

from jaxsvm.errors import InputError

LARGEST = 2**31 - 1
"""Steps are counted in int32."""


def require_positive(name: str, value: Any) -> None:
    """Refuse anything but one positive finite number.

    Raises:
        InputError: Naming it.
    """
    if not (_is_number(value) and 0 < float(value) < math.inf):
        raise InputError(f"{name} is {_shown(value)}: one positive finite number is needed.")


def require_whole(name: str, value: Any, least: int) -> None:
    """Refuse anything but one integer from `least` to what int32 holds.

    Raises:
        InputError: Naming it.
    """
    whole = type(value) is int or np.ndim(value) == 0 and np.asarray(value).dtype.kind in "iu"
    if not (whole and least <= int(value) <= LARGEST):
        raise InputError(f"{name} is {_shown(value)}: an integer from {least} to {LARGEST} is needed.")


def require_function(name: str, value: Any, arguments: tuple[str, ...], what: str) -> None:
    """Refuse what cannot be called with these arguments, a class included.

    Args:
        name: The argument that holds it.
        value: It.
        arguments: What it will be called with, in words.
        what: What is needed, in words.

    Raises:
        InputError: Naming it.
    """
    takes = callable(value) and not isinstance(value, type)
    if takes:
        try:
            inspect.signature(value).bind(*arguments)
        except TypeError:
            takes = False
        except ValueError:  # no signature to look at
            pass
    if not takes:
        raise InputError(f"{name} is {value!r}: {what} is needed, called with ({', '.join(arguments)}).")


def require_seconds(max_seconds: Any) -> None:
    """Refuse a time limit that is neither None nor a number of seconds, at least 0.

    Raises:
        InputError: Naming it.
    """
    if max_seconds is not None and not (_is_number(max_seconds) and float(max_seconds) >= 0):
        raise InputError(f"max_seconds is {_shown(max_seconds)}: at least 0 seconds are needed, or None for no limit.")


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) or np.ndim(value) == 0 and np.asarray(value).dtype.kind in "iuf"


def _shown(value: Any) -> str:
    return (
        f"an array of shape {np.shape(value)}"
        if np.ndim(value)
        else repr(value)
        if isinstance(value, str)
        else f"{value}"
    )
