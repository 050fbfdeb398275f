"""Allow the transfers between host and device that this library makes on purpose, under `jax.transfer_guard` too."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import jax

from jaxsvm.runtime.forking import require_own_process
from jaxsvm.runtime.meshes import automatic_context

_F = TypeVar("_F", bound=Callable[..., Any])


def transfers(function: _F) -> _F:
    """Wrap a host function so that it may move its arguments to the device and read results back.

    Args:
        function: A public function whose arguments may be NumPy arrays or Python numbers.

    Returns:
        The function; inside it transfers are allowed, whatever `jax.transfer_guard` says outside. It refuses to run in
        a forked child of a process that had computed (`jaxsvm.runtime.forking`). A mesh that is set has Auto axes
        inside (`jaxsvm.runtime.meshes`).
    """

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        require_own_process()
        with jax.transfer_guard("allow"), automatic_context(arguments, named):
            return function(*arguments, **named)

    return cast(_F, call)
