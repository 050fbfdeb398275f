"""What a step of Newton carries, in either space, and how both spaces begin."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxsvm.numerics import selection
from jaxsvm.problems.squared_hinge import SquaredHingeProblem
from jaxsvm.results.fit import Counters


class State(NamedTuple):
    """Where Newton stands.

    Attributes:
        point: The primal point: `kernel.KernelPoint`, or `feature.Iterate`.
        alpha: The dual point on the simplex, `(n,)`.
        s: Its `Kt alpha`, `(n,)`.
        R: The primal value among the samples that take part so far, `()`: what descends. (The loop asks only whether it
            moves.)
        gap: The relative duality gap of the dual point, or an estimate of it, `()`.
        indefinite: Whether a system was not positive definite, `()`.
        counters: Steps and kernel evaluations.
        effort: Kernel space: samples that take part; feature space: Hessian tiles; int32 `()`.
        rest: What the data's dtype could not hold of the point, which is known to twice its precision.
        memory: Kernel space: the rank of each sample in the order of taking part, `(n,)`, or None where all do at once;
            feature space: the pairs of L-BFGS.
    """

    point: Any
    alpha: Float[Array, " n"]
    s: Float[Array, " n"]
    R: Float[Array, ""]
    gap: Float[Array, ""]
    indefinite: Bool[Array, ""]
    counters: Counters
    effort: Int[Array, ""]
    memory: Any
    rest: Any


def pair_of_classes(problem: SquaredHingeProblem) -> Float[Array, " n"]:
    """Half on a sample of each class: a dual point whose product is cheap."""
    present = problem.ridge > 0
    ends = jnp.stack([selection.argmax(jnp.where(present, sign * problem.y, -jnp.inf))[1] for sign in (1, -1)])
    return jnp.zeros((problem.n,), problem.dtype).at[ends].add(0.5)


def counted(counters: Counters, n: int, columns: Int[Array, ""]) -> Counters:
    """Counters after a step that took so many columns of n kernel values."""
    one = jnp.asarray(1, jnp.int32)
    evaluations = jnp.minimum(columns, (2**30 - 1) // n) * n
    return counters._replace(steps=counters.steps + one, toward=counters.toward + one).evaluated(evaluations)
