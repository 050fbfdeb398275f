"""Solve one of many small problems in a single compiled program: the third entrance, beside `fit` and `fit_compiled`.

The drivers check a fit several times a second and certify what they see. For hundreds of problems of some hundred
samples each that takes longer than the problems; here a solve is one loop of a program, and its caller certifies the
result.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from jaxsvm.runtime.loops import while_loop


class Whole(NamedTuple):
    """Where such a solve is.

    Attributes:
        state: What a round changes.
        steps: Number of steps taken, int32 `()`.
        excess: The value of the stop rule over its threshold, `()`; 0 if no further round can change anything.
    """

    state: Any
    steps: Int[Array, ""]
    excess: Float[Array, ""]


Round = Callable[[Any, Any], tuple[Any, ArrayLike, Array]]
"""Maps a state, and the steps that are left, to the next state, the steps that it took, and the excess."""


def solve_whole(round: Round, state: Any, limit: Array | int, excess: Array) -> Whole:
    """Run rounds until the excess is at most 1, or NaN, or `limit` steps are taken; traceable.

    Args:
        round: One round.
        state: The start, a pytree.
        limit: The most steps.
        excess: The excess at the start, `()`; infinite if it is not known.
    """

    def goes_on(solve: Whole) -> Array:
        return (solve.excess > 1) & (solve.steps < limit)

    def turn(solve: Whole) -> Whole:
        state, steps, excess = round(solve.state, limit - solve.steps)
        return Whole(state, solve.steps + jnp.asarray(steps, jnp.int32), excess)

    return while_loop(goes_on, turn, Whole(state, jnp.zeros((), jnp.int32), excess))
