"""What every driver asks of a solver's numbers and of a time limit before it begins: one place, so that all ask alike.

Fits, chains, lanes and what calls them go through `require_usable`; traced values pass, since they have none yet.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxsvm.errors import InputError, is_concrete
from jaxsvm.stopping import STOP_RULES

LARGEST = 2**31 - 1
"""Steps are counted in int32."""


def require_usable(solver: Any) -> None:
    """Refuse a configuration that no driver can run: each field that the solver has, and those of a solver inside it.

    Raises:
        InputError: Naming the field, what was found and what is needed.
    """
    for name, require in RULES.items():
        if hasattr(solver, name) and is_concrete(value := getattr(solver, name)):
            require(name, value)
    if hasattr(solver, "solver"):  # of a transformation
        require_usable(solver.solver)


def require_one_chain(solver: Any, where: str) -> None:
    """Refuse what only turns on the host can do, where there are none.

    Raises:
        InputError: On shrinking.
    """
    if getattr(solver, "shrinking", False):
        raise InputError(
            f"shrinking is True: {where} cannot shrink; take shrinking=False, or one chain of concrete values (no "
            "lanes, outside jit)."
        )


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
    kind = np.asarray(value).dtype.kind  # Python's integers beyond 64 bits are objects
    whole = np.ndim(value) == 0 and (kind in "iu" or kind == "O" and isinstance(value, int))
    if not (whole and least <= int(value) <= LARGEST):
        raise InputError(f"{name} is {_shown(value)}: an integer from {least} to {LARGEST} is needed.")


def require_seconds(max_seconds: Any) -> None:
    """Refuse a time limit that is neither None nor a number of seconds, at least 0.

    Raises:
        InputError: Naming it.
    """
    if max_seconds is not None and not (_is_number(max_seconds) and float(max_seconds) >= 0):
        raise InputError(f"max_seconds is {_shown(max_seconds)}: at least 0 seconds are needed, or None for no limit.")


def _require_rule(name: str, value: Any) -> None:
    if value not in STOP_RULES:
        raise InputError(f"{name} is {value!r}: one of {', '.join(STOP_RULES)} is needed.")


def _require_interval(name: str, value: Any) -> None:
    if value is not None:
        require_whole(name, value, 1)


def _from(least: int) -> Callable[[str, Any], None]:
    return lambda name, value: require_whole(name, value, least)


RULES: dict[str, Callable[[str, Any], None]] = {
    "stop": _require_rule,
    "tol": require_positive,
    "inner_tol": require_positive,
    "radius": require_positive,
    "steps": _from(0),
    "max_steps": _from(0),
    "burn_in": _from(0),
    "polish_products": _from(0),
    "check_every": _from(1),
    "refresh_every": _require_interval,
    "draw": _from(2),
}
"""What a field of that name must be, in any solver."""


def _is_number(value: Any) -> bool:
    return np.ndim(value) == 0 and np.asarray(value).dtype.kind in "iuf"


def _shown(value: Any) -> str:
    return (
        f"an array of shape {np.shape(value)}"
        if np.ndim(value)
        else repr(value)
        if isinstance(value, str)
        else f"{value}"
    )
