"""What solvers on the simplex share."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxsvm.numerics.products import sums
from jaxsvm.problems.contract import SimplexForm
from jaxsvm.solvers.contract import SIMPLEX, Solver, Traits
from jaxsvm.solvers.start import StartLike, start


class SimplexSolver(Solver[SimplexForm]):
    """A solver whose state is a point `alpha` of the simplex, with `s = Kt alpha`, `R = alpha . s` and `scale`.

    It implements `at`, which makes the state at a point, and `step`.

    Attributes:
        start: "random", "two-point" or "uniform".
        draw: Size of the random draw.
    """

    solves = SIMPLEX
    traits = Traits(has_place=True, searches_vertices=True)
    start: str = "uniform"
    draw: int = 20

    def init(self, problem: SimplexForm, key: Array | None = None, init: "StartLike | None" = None) -> Any:
        return self.at(*start(problem, key, self.start, self.draw, init))

    def refresh(self, problem: SimplexForm, state: Any) -> Any:
        """Put alpha back on the simplex, and recompute `s` and `R`, which drift by rounding."""
        return state._replace(**simplex_point(problem, state.alpha, state.R))

    def place(self, problem: SimplexForm, state: Any, alpha: Float[Array, " n"], s: Float[Array, " n"]) -> Any:
        return state._replace(alpha=alpha, s=s, R=alpha @ s)

    def dual_point(self, problem: SimplexForm, state: Any) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        return state.scale * state.alpha, state.scale * state.s


def simplex_point(problem: SimplexForm, alpha: Float[Array, " n"], R: Float[Array, ""]) -> dict[str, Array]:
    """Recompute alpha, s, R and scale of a state, with alpha such that `scale alpha` are numbers of its dtype.

    The numbers `scale alpha` are the coefficients of a fit (`problem.returned`).
    """
    given = problem.returned(jnp.maximum(alpha, 0), R)
    wide = given.astype(problem.dtype)
    (total,) = sums(wide)
    alpha = wide / total
    s = problem.matvec(alpha)
    return {"alpha": alpha, "s": s, "R": sums(alpha * s)[0], "scale": total}
