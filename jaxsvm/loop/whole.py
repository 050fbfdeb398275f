"""Solve one of many small problems in a single compiled program: the third entrance, beside `fit` and `fit_compiled`.

The drivers check a fit several times a second and certify what they see. For hundreds of problems of some hundred
samples each that takes longer than the problems; here a solve is one loop of a program, and its caller certifies the
result.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from jaxsvm.runtime.loops import while_loop


def solve_whole(round: Callable[..., Any], state: Any, limit: Array | int, excess: Array) -> tuple[Any, Array, Array]:
    """Run rounds until the excess is at most 1, or NaN, or `limit` steps are taken; traceable.

    Args:
        round: Maps a state, and the steps that are left, to the next state, the steps that it took, and the excess: the
            value of the stop rule over its threshold, 0 if no further round can change anything.
        state: The start, a pytree.
        limit: The most steps.
        excess: The excess at the start, `()`; infinite if it is not known.

    Returns:
        The last state, the number of steps, int32 `()`, and the excess.
    """

    def turn(solve: tuple[Any, Array, Array]) -> tuple[Any, Array, Array]:
        state, steps, excess = round(solve[0], limit - solve[1])
        return state, solve[1] + jnp.asarray(steps, jnp.int32), excess

    start = (state, jnp.zeros((), jnp.int32), excess)
    return while_loop(lambda solve: (solve[2] > 1) & (solve[1] < limit), turn, start)
