"""Compute under a condition, without every lane of a `vmap` paying for it."""

from collections.abc import Callable
from typing import TypeVar

import jax.numpy as jnp
from jaxtyping import Array, Bool

from jaxsvm.runtime.loops import while_loop

_T = TypeVar("_T")


def once(condition: Bool[Array, ""], compute: Callable[[_T], _T], value: _T) -> _T:
    """Return `compute(value)` if the condition holds, else `value`.

    This is a loop of at most one turn. Under `vmap` a `lax.cond` computes both branches always; this loop computes only
    if the condition holds in at least one lane.
    """
    start = (condition, value)
    return while_loop(lambda carry: carry[0], lambda carry: (jnp.asarray(False), compute(carry[1])), start)[1]
