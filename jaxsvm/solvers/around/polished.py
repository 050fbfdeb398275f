"""A polish at every certificate, around any solver of points on the simplex."""

import dataclasses
from typing import Any, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxsvm.errors import InputError
from jaxsvm.numerics.precision import like
from jaxsvm.problems.contract import SimplexForm
from jaxsvm.runtime.checks import checked
from jaxsvm.runtime.loops import while_loop
from jaxsvm.solvers.around.wrapper import Wrapper, described, require_inner
from jaxsvm.solvers.contract import Finisher, HandOver, Solver
from jaxsvm.solvers.simplex.conjugate_gradients import finisher_of


@checked
def polished(solver: Solver, products: int = 40) -> "Polished":
    """Polish a solver's point at every certificate (`jaxsvm.solvers.simplex.conjugate_gradients`).

    Args:
        solver: Any simplex solver, also a `sampled` one.
        products: Largest number of matrix-vector products of a polish, >= 1; static.

    Returns:
        The polished solver, for `jaxsvm.fit` like any other.

    Raises:
        InputError: On another kind of solver, or products < 1.
    """
    require_inner(Polished, solver)
    if not solver.traits.has_place:
        raise InputError(
            f"solver is {described(solver)}: polished() goes around a solver of points on the simplex, such as "
            "FrankWolfe or CoreVectorMachine."
        )
    if products < 1:
        raise InputError(f"products is {products}: at least 1 is needed.")
    return Polished(solver, products)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Polished(Wrapper[SimplexForm]):
    """A solver that is polished at every certificate; made by `polished`. Its state is the inner solver's.

    Problems: those of the inner solver, on the simplex (squared hinge, enclosing balls).
    Cost of a polish: at most `products` products with the kernel matrix, or for squared-hinge problems of at most 2,048
    samples up to 30 linear systems on the support.
    Rate: on a fixed support that of conjugate gradients; Newton is finite.
    Sources: Polyak 1969; Nocedal and Wright, section 16.7.
    """

    bit = 11
    products: int = dataclasses.field(metadata={"static": True})

    layer = 2
    made_by = "polished"

    def finisher(self, problem: SimplexForm) -> None:
        """Return None: it comes with every certificate."""

    def hands_over(self, problem: SimplexForm, state: Any, steps: float) -> HandOver | None:
        """Return how the inner solver goes on, but not to a finisher."""
        return super().hands_over(problem, state, 0)

    def refresh(self, problem: SimplexForm, state: Any) -> Any:
        """Recompute the state, and move it to where the finisher ends, if R is lower there."""
        fresh = self.solver.refresh(problem, state)
        point, s = self.solver.dual_point(problem, fresh)
        alpha, s = point / point.sum(), s / point.sum()
        finisher = cast(Finisher, finisher_of(problem, self.products, self.tol, self.stop)).solver
        ended = finisher.refresh(problem, _steps(problem, finisher, finisher.init(problem, None, alpha)))
        end, s_end = finisher.dual_point(problem, ended)
        end, s_end = end / end.sum(), s_end / end.sum()
        lower = end @ s_end < alpha @ s
        moved = self.solver.place(problem, fresh, jnp.where(lower, end, alpha), jnp.where(lower, s_end, s))
        return self.solver.refresh(problem, like(moved, state))


def _steps(problem: SimplexForm, solver: Solver, state: Any) -> Any:
    """Take steps until the gap is small, nothing changes, or the cap is reached."""

    def turn(carry: tuple[Any, Array]) -> tuple[Any, Array]:
        before, excess = carry[0], solver.running_excess(problem, carry[0])
        after = solver.step(problem, before)
        found = solver.running_excess(problem, after)
        goes_on = (found > 1) & ((found != excess) | (after.R != before.R))
        return after, goes_on & (after.counters.steps < solver.max_steps)

    return while_loop(lambda carry: carry[1], turn, (state, jnp.asarray(solver.max_steps) > 0))[0]
