"""A computation under a condition that lanes do not all pay for."""

from collections.abc import Callable
from typing import TypeVar

import jax.numpy as jnp
from jaxtyping import Array, Bool

from jaxsvm.runtime.loops import while_loop

_T = TypeVar("_T")


def once(condition: Bool[Array, ""], compute: Callable[[_T], _T], value: _T) -> _T:
    """`compute(value)` where the condition holds, else `value`.

    A loop of one turn at the most: under `vmap` a `lax.cond` would compute it for every lane, whenever it is met; this
    does only where the condition holds in one of them.
    """
    start = (condition, value)
    return while_loop(lambda carry: carry[0], lambda carry: (jnp.asarray(False), compute(carry[1])), start)[1]
