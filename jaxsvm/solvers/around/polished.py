"""A polish at every certificate, around any solver of points on the simplex."""

import dataclasses
from typing import Any

import jax
from jaxtyping import Array

from jaxsvm.errors import InputError
from jaxsvm.problems.forms import SimplexForm
from jaxsvm.runtime.checks import checked
from jaxsvm.solvers import polish
from jaxsvm.solvers.around.wrapper import Wrapper, described, require_inner
from jaxsvm.solvers.contract import Solver


@checked
def polished(solver: Solver, products: int = 40) -> "Polished":
    """Polish a solver's point at every certificate (`jaxsvm.solvers.polish`).

    Args:
        solver: Any simplex solver, also a `sampled` one.
        products: Largest number of matrix-vector products of a polish, >= 1; static.

    Returns:
        The polished solver, for `jaxsvm.fit` like any other.

    Raises:
        InputError: On another kind of solver, or products < 1.
    """
    require_inner(Polished, solver)
    if not solver.has_place:
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

    def polish_interval(self, problem: SimplexForm) -> int:
        """Return 0: polish at every certificate."""
        return 0

    def polish_begin(self, problem: SimplexForm, state: Any) -> Any:
        """Begin a polish."""
        return polish.begin(problem, *self._on_simplex(problem, state), products=self.products)

    def polish_step(self, problem: SimplexForm, carry: Any) -> Any:
        """Take the next piece."""
        return polish.further(problem, carry, self.products)

    def polish_end(self, problem: SimplexForm, state: Any, carry: Any) -> Any:
        """Return the state at the end of the polish that began at `state`."""
        return self.solver.place(problem, state, *polish.end(problem, *self._on_simplex(problem, state), carry))

    def _on_simplex(self, problem: SimplexForm, state: Any) -> tuple[Array, Array]:
        point, s = self.solver.dual_point(problem, state)
        return point / point.sum(), s / point.sum()
