"""A descent on the support whenever the driver certifies, around any solver of points on the simplex."""

import dataclasses
from typing import Any

import jax
from jaxtyping import Array

from jaxsvm.errors import InputError
from jaxsvm.problems.forms import SimplexForm
from jaxsvm.solvers import polish
from jaxsvm.solvers.around.wrapper import Wrapper, described, require_inner


def polished(solver: Any, products: int = 40) -> "Polished":
    """Descend on the support by conjugate gradients whenever the driver certifies (`jaxsvm.solvers.polish`).

    Args:
        solver: Any simplex solver, a `sampled` one too.
        products: Matrix-vector products a polish, >= 1; static.

    Raises:
        InputError: On another solver, or products < 1.
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
    """Configuration of a polished solver; build it with `polished`. Its state is the inner solver's."""

    bit = 11
    products: int = dataclasses.field(metadata={"static": True})

    layer = 2
    made_by = "polished"

    def polish_interval(self, problem: SimplexForm) -> int:
        """Polish at every certification."""
        del problem
        return 0

    def polish(self, problem: SimplexForm, state: Any) -> Any:
        """Descend by conjugate gradients on the support of a state that was just refreshed."""
        alpha, s = polish.polish(problem, *self._on_simplex(problem, state), products=self.products)
        return self.solver.place(problem, state, alpha, s)

    def polish_begin(self, problem: SimplexForm, state: Any) -> Any:
        """Begin a polish in pieces, for the host driver."""
        return polish.begin(problem, *self._on_simplex(problem, state), products=self.products)

    def polish_step(self, problem: SimplexForm, carry: Any) -> Any:
        """Take one piece more."""
        return polish.further(problem, carry, self.products)

    def polish_end(self, problem: SimplexForm, state: Any, carry: Any) -> Any:
        """Return the state where the polish ended, which began at `state`."""
        return self.solver.place(problem, state, *polish.end(problem, *self._on_simplex(problem, state), carry))

    def _on_simplex(self, problem: SimplexForm, state: Any) -> tuple[Array, Array]:
        point, s = self.solver.dual_point(problem, state)
        return point / point.sum(), s / point.sum()
