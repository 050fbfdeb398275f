"""The state of Newton in both spaces, and their common start."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxsvm.numerics import selection
from jaxsvm.problems.squared_hinge import SquaredHingeProblem
from jaxsvm.results.fit import Counters


class State(NamedTuple):
    """State of Newton.

    Attributes:
        point: Primal point: `kernel.KernelPoint`, or `feature.Iterate`.
        alpha: Dual point on the simplex, `(n,)`.
        s: `Kt alpha`, `(n,)`.
        R: Primal value of the samples that take part so far, `()`, which decreases.
        gap: Relative duality gap of the dual point, or an estimate of it, `()`.
        indefinite: Whether a system was not positive definite, `()`.
        counters: Steps and kernel evaluations.
        effort: Kernel space: samples that take part; feature space: Hessian tiles; int32 `()`.
        rest: Rounding error of the point in the data's dtype: together they have twice its precision.
        memory: Kernel space: rank of each sample in the order of taking part, `(n,)`, or None if all do at once;
            feature space: secant pairs of L-BFGS.
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
    """Return half on a sample of each class: a dual point whose product is cheap."""
    present = problem.ridge > 0
    ends = jnp.stack([selection.argmax(jnp.where(present, sign * problem.y, -jnp.inf))[1] for sign in (1, -1)])
    return jnp.zeros((problem.n,), problem.dtype).at[ends].add(0.5)
