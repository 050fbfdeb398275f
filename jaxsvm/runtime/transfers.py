"""Transfers between host and device that are meant: what `jax.transfer_guard` forbids is what nobody asked for."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import jax

from jaxsvm.runtime.forking import require_own_process

_F = TypeVar("_F", bound=Callable[..., Any])


def transfers(function: _F) -> _F:
    """Let a function that works on the host move its arguments to the device, and read the numbers that it decides by.

    Args:
        function: A public function whose arguments may be NumPy arrays or Python numbers.

    Returns:
        The function; inside it transfers are allowed, whatever `jax.transfer_guard` says outside. In a process that was
        forked from one that had computed it is refused (`jaxsvm.runtime.forking`).
    """

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        require_own_process()
        with jax.transfer_guard("allow"):
            return function(*arguments, **named)

    return cast(_F, call)
