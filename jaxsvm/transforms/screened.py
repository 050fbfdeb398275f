"""Samples that are known leave while a solver runs: the dynamic form of safe screening, around any solver.

At each certificate a rule looks at the point that was reached (`jaxsvm.screening.gap_safe`: the smaller its gap, the
more it says). Samples that are known to be at 0 are
masked: steps no longer see them; those that are known to be at their bound are put there, and have no reason to move.
Where few are left the host driver goes on with a problem of these (`left`; under tracing shapes are fixed).
Certificates are of the whole problem: no answer rests on the rule.

Sources: Ndiaye, Fercoq, Gramfort and Salmon 2017; docs/mathematics.md, Safe screening.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxsvm.errors import InputError
from jaxsvm.numerics.masks import some
from jaxsvm.numerics.once import once
from jaxsvm.numerics.precision import like
from jaxsvm.numerics.sizes import size_classes
from jaxsvm.result import Counters
from jaxsvm.screening.dynamic import gap_safe
from jaxsvm.screening.reference import reference_fit, require_screenable
from jaxsvm.screening.rules import Rule
from jaxsvm.solvers.contract import Solver

WORTH = 0.5
"""A smaller problem is worth its making where it has no more than this share of the samples."""


def screened(solver: Any, rule: Rule = gap_safe, every: int | None = None) -> "Screened":
    """A solver that leaves out what is known of the solution, from its own points on the way.

    Args:
        solver: A solver of hinge or squared-hinge problems with a regularised bias or none.
        rule: What knows: of a problem and a fit of it, as `jaxsvm.screening.gap_safe`.
        every: Steps between two looks of the rule at the most, >= 1; each costs a certificate. None: where the solver
            is certified anyway. Static.

    Returns:
        The solver. Its fits are those of the solver, certified on all samples.

    Raises:
        InputError: On `every` < 1. A problem for which no rule is safe (a free bias) is refused when it is solved.
    """
    if every is not None and every < 1:
        raise InputError(f"every is {every}: at least 1 step lies between two looks.")
    return Screened(solver, rule, every)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Screened(Solver):
    """Configuration of a screened solver; build it with `screened`."""

    solver: Any
    rule: Any = dataclasses.field(metadata={"static": True})
    every: int | None = dataclasses.field(default=None, metadata={"static": True})

    def __getattr__(self, name: str) -> Any:
        """Caps, stop rule and kinds are the solver's."""
        if name.startswith("__") or name in ("solver", "rule", "every"):
            raise AttributeError(name)
        return getattr(self.solver, name)

    @property
    def solves(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The solver's, as far as rules know them."""
        return tuple(kind for kind in self.solver.solves if kind in ("box", "squared hinge"))

    @property
    def stop(self) -> str:
        """The solver's."""
        return self.solver.stop

    @property
    def unroll(self) -> int:
        """The solver's."""
        return self.solver.unroll

    @property
    def patience(self) -> int:
        """The solver's."""
        return self.solver.patience

    @property
    def pads(self) -> bool:
        """The solver's."""
        return self.solver.pads

    @property
    def refresh_every(self) -> int | None:
        """Steps between certificates at the most: the rule looks at each."""
        return self.solver.refresh_every if self.every is None else self.every

    @property
    def check_every(self) -> int:
        """The solver's, or less where the rule looks more often."""
        return self.solver.check_every if self.every is None else min(self.every, self.solver.check_every)

    def stores(self, problem: Any) -> bool:
        """The solver's."""
        return self.solver.stores(problem)

    def init(self, problem: Any, key: Array | None = None, init: Any = None) -> "State":
        """The solver's start: nothing is known yet."""
        require_screenable(problem)
        nobody = jnp.zeros((problem.n,), bool)
        inner = self.solver.init(_without(problem, nobody), key, init)
        return State(inner, nobody, Found(nobody, nobody))

    def step(self, problem: Any, state: "State") -> "State":
        """A step of the solver on what is not known; what has been found since the last one leaves first."""
        state = once(some(state.found.inactive & ~state.inactive), lambda state: self._leave(problem, state), state)
        return state._replace(inner=self.solver.step(_without(problem, state.inactive), state.inner))

    def refresh(self, problem: Any, state: "State") -> "State":
        """From scratch; and the rule looks at the point: what it has found leaves with the next step."""
        state = state._replace(inner=self.solver.refresh(_without(problem, state.inactive), state.inner))
        found = self.rule(problem, reference_fit(problem, *self.dual_point(problem, state)))
        before = state.found
        return state._replace(found=Found(before.inactive | found.inactive, before.at_bound | found.at_bound))

    def _leave(self, problem: Any, state: "State") -> "State":
        """The solver begins anew at its point, where what was found has its value."""
        inactive, at_bound = state.found
        point, _ = self.dual_point(problem, state)
        point = jnp.where(inactive, 0, jnp.where(at_bound, problem.upper, point) if problem.bounded else point)
        inner = self.solver.init(_without(problem, inactive), None, point)
        return state._replace(inner=like(inner._replace(counters=state.counters), state.inner), inactive=inactive)

    def dual_point(self, problem: Any, state: "State") -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """The solver's: what is known to be at 0 is there."""
        return self.solver.dual_point(_without(problem, state.inactive), state.inner)

    def running_excess(self, problem: Any, state: "State") -> Float[Array, ""]:
        """The solver's, of what is not known: the others have no part in the gap."""
        return self.solver.running_excess(_without(problem, state.inactive), state.inner)

    def polish_interval(self, problem: Any) -> int | None:
        """The solver's: a polish sees what is not known."""
        return self.solver.polish_interval(problem)

    def polish(self, problem: Any, state: "State") -> "State":
        """The solver's, of what is not known."""
        return state._replace(inner=self.solver.polish(_without(problem, state.inactive), state.inner))

    def polish_begin(self, problem: Any, state: "State") -> "Polishing":
        """The same in pieces, for the host driver: before the first."""
        carry = self.solver.polish_begin(_without(problem, state.inactive), state.inner)
        return Polishing(carry, state.inactive)

    def polish_step(self, problem: Any, carry: "Polishing") -> "Polishing":
        """One piece further."""
        return carry._replace(carry=self.solver.polish_step(_without(problem, carry.inactive), carry.carry))

    def polish_end(self, problem: Any, state: "State", carry: "Polishing") -> "State":
        """The state where the polish ended."""
        inner = self.solver.polish_end(_without(problem, state.inactive), state.inner, carry.carry)
        return state._replace(inner=inner)

    @property
    def whole(self) -> Any:
        """The solver that ends what fewer samples began."""
        return self.solver

    def left(self, problem: Any, state: "State") -> tuple[np.ndarray, Any] | None:
        """Samples to go on with, and the values of the others: where that is worth a smaller problem. On the host."""
        inactive, at_bound = (np.asarray(mask) for mask in state.found)
        present = np.asarray(problem.present)
        # In float32 what those at their bounds carry over would drown the rest: there they stay, and do not move.
        at_bound = at_bound & (jnp.finfo(problem.dtype).bits == 64)
        kept = present & ~(inactive | at_bound)
        size = min(size for size in size_classes(problem.n) if size >= kept.sum())
        if size > WORTH * problem.n:
            return None
        order = np.argsort(np.where(kept, 0, np.where(present, 1, 2)), kind="stable")
        return np.sort(order[:size]).astype(np.int32), np.where(at_bound, np.asarray(problem.upper), 0)


class Found(NamedTuple):
    """What the rule knows, `(n,)` each: samples at 0, and samples at their bound."""

    inactive: Bool[Array, " n"]
    at_bound: Bool[Array, " n"]


class Polishing(NamedTuple):
    """A polish under way: the solver's own carry, and the samples that it does not see."""

    carry: Any
    inactive: Bool[Array, " n"]

    @property
    def going(self) -> Bool[Array, ""]:
        """Whether it is at work."""
        return self.carry.going


class State(NamedTuple):
    """Where a screened solver stands.

    Attributes:
        inner: The solver's state, on the problem without the samples that are known to be at 0.
        inactive: These, `(n,)`.
        found: What the rule knew at its last look.
    """

    inner: Any
    inactive: Bool[Array, " n"]
    found: Found

    @property
    def R(self) -> Float[Array, ""]:
        """The solver's; of what is not known, the objective of the whole."""
        return self.inner.R

    @property
    def indefinite(self) -> Bool[Array, ""]:
        """The solver's."""
        return self.inner.indefinite

    @property
    def counters(self) -> Counters:
        """The solver's."""
        return self.inner.counters


def _without(problem: Any, inactive: Array) -> Any:
    """The problem without some samples, with all n places: they have no room, or no weight."""
    if problem.bounded:
        return dataclasses.replace(problem, upper=jnp.where(inactive, 0, problem.upper))
    mask = ~inactive if problem.mask is None else problem.mask & ~inactive
    return dataclasses.replace(problem, ridge=jnp.where(inactive, 0, problem.ridge), mask=mask)
