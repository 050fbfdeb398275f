"""What every transformation of a solver shares: it hands the whole contract of `solvers/contract.py` on.

A transformation derives from `Wrapper`, overrides what it changes, and says by three hooks what the inner solver is
given: `problem_inside`, `state_inside`, `with_inside`. Nothing is forwarded by default: `tests/test_wrappers.py` holds
the contract against what is named here.

Transformations nest in one order, each once, from the inside: sampled, polished, screened.
"""

import dataclasses
from typing import Any, ClassVar

from jaxtyping import Array, Bool, Float

from jaxsvm.errors import InputError
from jaxsvm.problems.contract import Problem
from jaxsvm.results.fit import Counters
from jaxsvm.solvers.contract import P, Solver


class _Inner:
    """A configuration member that is the inner solver's; a field of the wrapper by the same name takes its place."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, wrapper: Any, owner: type | None = None) -> Any:
        return self if wrapper is None else getattr(wrapper.solver, self.name)


def _inner() -> Any:
    return _Inner()


# ruff: noqa: RUF009
# pyright: reportIncompatibleVariableOverride=false, reportIncompatibleMethodOverride=false


@dataclasses.dataclass(frozen=True)
class Wrapper(Solver[P]):
    """A solver around another one. What a subclass does not override is the inner solver's.

    Attributes:
        solver: The inner solver's configuration.
        layer: The place in the order of nesting: it goes around solvers and wrappers of lower layers.
        made_by: The function that users call for it.
    """

    solver: Solver

    layer: ClassVar[int]
    made_by: ClassVar[str]

    solves = _inner()
    tol = _inner()
    max_steps = _inner()
    stop = _inner()
    unroll = _inner()
    patience = _inner()
    pads = _inner()
    large_state = _inner()
    takes_start = _inner()
    resumes = _inner()
    knows_origin = _inner()
    final_check = _inner()
    check_every = _inner()
    refresh_every = _inner()
    rows = _inner()
    has_place = False
    searches_vertices = False
    carries_sums = False  # the inner products may be those of some samples alone

    @property
    def inside(self) -> Solver:
        """The inner solver's configuration."""
        return self.solver

    def problem_inside(self, problem: P, state: Any) -> Problem:
        """Return the problem that the inner solver sees."""
        del state
        return problem

    def state_inside(self, state: Any) -> Any:
        """Return the inner solver's state."""
        return state

    def with_inside(self, state: Any, inner: Any) -> Any:
        """Return the state with another one of the inner solver."""
        del state
        return inner

    def _given(self, problem: P, state: Any) -> tuple[Any, Any]:
        return self.problem_inside(problem, state), self.state_inside(state)

    def init(self, problem: P, key: Array | None = None, init: Any = None) -> Any:
        """Start as the inner solver does."""
        return self.solver.init(problem, key, init)

    def step(self, problem: P, state: Any) -> Any:
        """Take the inner solver's step."""
        return self.with_inside(state, self.solver.step(*self._given(problem, state)))

    def refresh(self, problem: P, state: Any) -> Any:
        """Recompute what drifts in the inner state."""
        return self.with_inside(state, self.solver.refresh(*self._given(problem, state)))

    def dual_point(self, problem: P, state: Any) -> tuple[Array, Array]:
        """Return the inner solver's point and its products."""
        return self.solver.dual_point(*self._given(problem, state))

    def stores(self, problem: P) -> bool:
        """Say whether the inner solver is faster with all kernel values stored."""
        return self.solver.stores(problem)

    def running_excess(self, problem: P, state: Any) -> Float[Array, ""]:
        """Return the inner solver's running value of the stop rule."""
        return self.solver.running_excess(*self._given(problem, state))

    def carries_weights(self, problem: P) -> bool:
        """Say whether the inner states have w in the space of the features."""
        return self.solver.carries_weights(problem)

    def feature_weights(self, problem: P, state: Any) -> Float[Array, " d"]:
        """Return the inner solver's w."""
        return self.solver.feature_weights(*self._given(problem, state))

    def counted(self, state: Any, counters: Counters) -> Any:
        """Return the state with other counters."""
        return self.with_inside(state, self.solver.counted(self.state_inside(state), counters))

    def full(self, problem: P, state: Any) -> Any:
        """Say whether the inner solver has no room for another sample."""
        return self.solver.full(*self._given(problem, state))

    def grown(self, problem: P, state: Any) -> Solver | None:
        """Return the same transformation of the inner solver with more room; None where that has enough."""
        inner = self.solver.grown(*self._given(problem, state))
        return None if inner is None else dataclasses.replace(self, solver=inner)

    def left(self, problem: P, state: Any) -> tuple[Any, Any] | None:
        """Return what samples the inner solver had better go on with."""
        return self.solver.left(*self._given(problem, state))

    @property
    def whole(self) -> Solver:
        """The same transformation of the solver that goes on where one of fewer samples has ended."""
        return dataclasses.replace(self, solver=self.solver.whole)

    def polish_interval(self, problem: P) -> int | None:
        """Return the steps that earn the inner solver's polish; None where it has none."""
        return self.solver.polish_interval(problem)

    def polish(self, problem: P, state: Any) -> Any:
        """Polish the inner state."""
        return self.with_inside(state, self.solver.polish(*self._given(problem, state)))

    def polish_begin(self, problem: P, state: Any) -> Any:
        """Begin a polish in pieces, for the host driver."""
        return self.solver.polish_begin(*self._given(problem, state))

    def polish_step(self, problem: P, carry: Any) -> Any:
        """Take one piece more."""
        return self.solver.polish_step(problem, carry)

    def polish_end(self, problem: P, state: Any, carry: Any) -> Any:
        """Return the state where the polish ended, which began at `state`."""
        return self.with_inside(state, self.solver.polish_end(*self._given(problem, state), carry))

    def place(self, problem: P, state: Any, alpha: Float[Array, " n"], s: Float[Array, " n"]) -> Any:
        """Move the inner state to another point."""
        return self.with_inside(state, self.solver.place(*self._given(problem, state), alpha, s))

    def wants_vertex(self, problem: P, state: Any) -> Bool[Array, ""]:
        """Say whether the inner solver's next step searches all samples for a vertex."""
        return self.solver.wants_vertex(*self._given(problem, state))

    def at(self, alpha: Float[Array, " n"], s: Float[Array, " n"], counters: Counters) -> Any:
        """Begin the inner solver at a point."""
        return self.solver.at(alpha, s, counters)


def require_inner(wrapper: type[Wrapper], solver: Any) -> None:
    """Refuse what a transformation does not go around: no solver at all, or a wrapper of its own layer or above.

    Raises:
        InputError: Naming both, and the order of nesting.
    """
    if isinstance(solver, type) or not isinstance(solver, Solver):
        shown = solver.__name__ if isinstance(solver, type) else repr(solver)
        raise InputError(
            f"solver is {shown}: {wrapper.made_by}() goes around a solver's configuration, such as "
            "`jaxsvm.FrankWolfe(tol=1e-4)`."
        )
    if isinstance(solver, Wrapper) and solver.layer >= wrapper.layer:
        raise InputError(
            f"solver is {described(solver)}: {wrapper.made_by}() does not go around {solver.made_by}(); nest "
            "transformations in the order screened(polished(sampled(solver))), each at most once."
        )


def described(solver: Solver) -> str:
    """Name a configuration as it was written, such as "polished(FrankWolfe)"."""
    return f"{solver.made_by}({described(solver.solver)})" if isinstance(solver, Wrapper) else type(solver).__name__
