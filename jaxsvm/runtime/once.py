"""Compute under a condition, without every lane of a `vmap` paying for it."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool

from jaxsvm.runtime.loops import mapped_axes, while_loop

_T = TypeVar("_T")


def once(condition: Bool[Array, ""], compute: Callable[[_T], _T], value: _T) -> _T:
    """Return `compute(value)` if the condition holds, else `value`.

    This is a loop of at most one turn. Under `vmap` a `lax.cond` computes both branches always; this loop computes only
    if the condition holds in at least one lane.
    """
    captured: list[Any] = []
    if not mapped_axes():  # in a `shard_map` the converted function would mark as varying what varies already
        compute, captured = jax.closure_convert(compute, value)

    def turn(carry: tuple[Bool[Array, ""], _T]) -> tuple[Bool[Array, ""], _T]:
        # What is captured is tied to the carry: XLA computes what a loop does not change before it, even if it takes no
        # turn, and in lanes that is most of a polish.
        value, tied = lax.optimization_barrier((carry[1], captured))
        return jnp.asarray(False), compute(value, *tied)

    return while_loop(lambda carry: carry[0], turn, (condition, value))[1]
