"""Wrappers around a solver: they forward the whole contract of `solvers/contract.py`.

A wrapper derives from `Wrapper` and overrides what it changes. Hooks determine what the inner solver is given:
`solver_at`, `problem_inside`, `state_inside`, `with_inside`. `tests/test_wrappers.py` checks that every member is
forwarded by name.

Wrappers nest in a fixed order, each at most once, from the inside: sampled, polished.
"""

import dataclasses
import functools
from typing import Any, ClassVar

from jaxsvm.errors import InputError
from jaxsvm.problems.contract import Problem
from jaxsvm.results.fit import Counters
from jaxsvm.solvers.contract import HandOver, P, Solver, Traits


def _inner(name: str) -> Any:
    def value(wrapper: Any) -> Any:
        """Return the inner solver's; a field of the wrapper by the same name replaces it."""
        return getattr(wrapper.solver, name)

    return functools.cached_property(value)


def _forwarded(name: str) -> Any:

    @functools.wraps(getattr(Solver, name))
    def method(self: "Wrapper[Any]", *arguments: Any) -> Any:
        return getattr(self.solver, name)(*arguments)

    return method


def _passed(name: str, moves: bool = False) -> Any:

    @functools.wraps(getattr(Solver, name))
    def method(self: "Wrapper[Any]", problem: Any, state: Any) -> Any:
        result = getattr(self.solver_at(state), name)(*self._given(problem, state))
        return self.with_inside(state, result) if moves else result

    return method


# ruff: noqa: RUF009
# pyright: reportIncompatibleVariableOverride=false, reportIncompatibleMethodOverride=false


@dataclasses.dataclass(frozen=True)
class Wrapper(Solver[P]):
    """A solver around another solver. Members that a subclass does not override are the inner solver's."""

    solver: Solver  # the inner solver's configuration

    layer: ClassVar[int]  # place in the order of nesting: a wrapper goes around solvers and wrappers of lower layers
    made_by: ClassVar[str]  # name of the function that makes it

    solves, tol, max_steps, stop, unroll = map(_inner, ("solves", "tol", "max_steps", "stop", "unroll"))
    patience, final_check, rows = map(_inner, ("patience", "final_check", "rows"))
    check_every, refresh_every = map(_inner, ("check_every", "refresh_every"))

    @property
    def traits(self) -> Traits:
        """Return the inner solver's, whose products may be those of some samples."""
        return dataclasses.replace(self.solver.traits, carries_sums=False)

    @property
    def inside(self) -> Solver:
        return self.solver

    def solver_at(self, state: Any) -> Solver:
        """Return the inner solver's configuration at a state."""
        return self.solver

    def problem_inside(self, problem: P, state: Any) -> Problem:
        """Return the problem that the inner solver sees."""
        return problem

    def state_inside(self, state: Any) -> Any:
        """Return the inner solver's state."""
        return state

    def with_inside(self, state: Any, inner: Any) -> Any:
        """Return the state with another inner state."""
        return inner

    def _given(self, problem: P, state: Any) -> tuple[Any, Any]:
        return self.problem_inside(problem, state), self.state_inside(state)

    init = _forwarded("init")
    step = _passed("step", moves=True)
    refresh = _passed("refresh", moves=True)
    dual_point = _passed("dual_point")
    running_excess = _passed("running_excess")
    feature_weights = _passed("feature_weights")
    full = _passed("full")
    stores = _forwarded("stores")
    carries_weights = _forwarded("carries_weights")
    finisher = _forwarded("finisher")

    def counted(self, state: Any, counters: Counters) -> Any:
        return self.with_inside(state, self.solver.counted(self.state_inside(state), counters))

    def hands_over(self, problem: P, state: Any, steps: float) -> HandOver | None:
        """Return how the inner solver's fit goes on: a finisher without the wrapper, to which it comes back."""
        inner = self.solver_at(state).hands_over(*self._given(problem, state), steps)
        if inner is None or inner.back is not None:
            return inner and inner._replace(back=self)
        return inner._replace(solver=dataclasses.replace(self, solver=inner.solver))


class HoldingWrapper(Wrapper[P]):
    """A wrapper whose state has the inner solver's as its field `inner`."""

    def state_inside(self, state: Any) -> Any:
        return state.inner

    def with_inside(self, state: Any, inner: Any) -> Any:
        return state._replace(inner=inner)


def require_inner(wrapper: type[Wrapper], solver: Any) -> None:
    """Refuse anything but a solver, and wrappers of the same layer or above."""
    if isinstance(solver, type) or not isinstance(solver, Solver):
        shown = solver.__name__ if isinstance(solver, type) else repr(solver)
        raise InputError(
            f"solver is {shown}: {wrapper.made_by}() goes around a solver's configuration, such as "
            "`jaxsvm.FrankWolfe(tol=1e-4)`."
        )
    if isinstance(solver, Wrapper) and solver.layer >= wrapper.layer:
        raise InputError(
            f"solver is {described(solver)}: {wrapper.made_by}() does not go around {solver.made_by}(); nest "
            "transformations in the order polished(sampled(solver)), each at most once."
        )


def described(solver: Solver) -> str:
    """Return the name of a configuration, such as "polished(FrankWolfe)"."""
    return f"{solver.made_by}({described(solver.solver)})" if isinstance(solver, Wrapper) else type(solver).__name__
