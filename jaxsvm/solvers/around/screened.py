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
from jaxsvm.numerics.precision import in_double, like, widened
from jaxsvm.numerics.sizes import size_classes
from jaxsvm.problems.certificates.definiteness import negative_curvature
from jaxsvm.problems.contract import PROBLEMS, Restrictable
from jaxsvm.results.fit import Counters
from jaxsvm.runtime.checks import require_function, require_whole
from jaxsvm.runtime.once import once
from jaxsvm.screening.dynamic import gap_safe
from jaxsvm.screening.reference import reference_fit, require_screenable
from jaxsvm.screening.rules import Rule
from jaxsvm.solvers.around.wrapper import Wrapper, described, require_inner
from jaxsvm.solvers.contract import Solver

SCREENABLE = ("box", "squared hinge")
"""Kinds of problems that rules know."""
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
        InputError: On `every` < 1; on a solver of other problems, or of a w of its own (Pegasos, BallSGD, Perceptron).
            A problem for which no rule is safe (a free bias) is refused when it is solved.
    """
    if every is not None:
        require_whole("every", every, 1)
    require_function("rule", rule, ("problem", "reference fit", "its C"), "a rule of `jaxsvm.screening`")
    require_inner(Screened, solver)
    if not any(kind in SCREENABLE for kind in solver.solves):
        meant = " and ".join(PROBLEMS.get(kind, f"{kind} problems") for kind in solver.solves)
        raise InputError(
            f"solver is {described(solver)}, which is for {meant}: screened() goes around solvers of squared-hinge and "
            "hinge problems, such as FrankWolfe or SMO."
        )
    if solver.rows != 1:
        raise InputError(
            f"solver is {described(solver)}, whose w is not made of its dual variables: screened() sets these one by "
            "one. Take a solver of the dual, such as SMO or SDCA; or leave samples out between fits, by "
            "`solve_path(..., solver=solver, screen=rule)`."
        )
    return Screened(solver, rule, every)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Screened(Wrapper[Restrictable]):
    """Configuration of a screened solver; build it with `screened`."""

    bit = 13
    rule: Any = dataclasses.field(metadata={"static": True})
    every: int | None = dataclasses.field(default=None, metadata={"static": True})

    layer = 3
    made_by = "screened"

    @property
    def solves(self) -> tuple[str, ...]:
        """Kinds of problems of the solver, as far as rules know them."""
        return tuple(kind for kind in self.solver.solves if kind in SCREENABLE)

    @property
    def refresh_every(self) -> int | None:
        """Steps between certificates at the most: the rule looks at each."""
        return self.solver.refresh_every if self.every is None else self.every

    @property
    def check_every(self) -> int:
        """Steps a chunk: the solver's, or less where the rule looks more often."""
        return self.solver.check_every if self.every is None else min(self.every, self.solver.check_every)

    def problem_inside(self, problem: Restrictable, state: "State") -> Restrictable:
        """Return the problem without the samples that are known to be at 0."""
        return _without(problem, state.inactive)

    def state_inside(self, state: "State") -> Any:
        """Return the solver's state."""
        return state.inner

    def with_inside(self, state: "State", inner: Any) -> "State":
        """Return the state with another one of the solver."""
        return state._replace(inner=inner)

    def init(self, problem: Restrictable, key: Array | None = None, init: Any = None) -> "State":
        """The solver's start: nothing is known yet."""
        require_screenable(problem)
        nobody = jnp.zeros((problem.n,), bool)
        inner = self.solver.init(_without(problem, nobody), key, init)
        definite = jnp.asarray(True)
        if not problem.gram.definite:  # looked at once: on another matrix no rule knows anything
            definite = ~in_double(lambda problem: negative_curvature(widened(problem), everywhere=True))(problem)
        return State(inner, nobody, Found(nobody, nobody), definite)

    def step(self, problem: Restrictable, state: "State") -> "State":
        """A step of the solver on what is not known; what has been found since the last one leaves first."""
        state = once(some(state.found.inactive & ~state.inactive), lambda state: self._leave(problem, state), state)
        return super().step(problem, state)

    def refresh(self, problem: Restrictable, state: "State") -> "State":
        """From scratch; and the rule looks at the point: what it has found leaves with the next step."""
        state = super().refresh(problem, state)
        known = problem if problem.gram.definite else _vouched(problem)
        found, before = self.rule(known, reference_fit(known, *self.dual_point(problem, state))), state.found
        inactive = before.inactive | state.definite & found.inactive
        return state._replace(found=Found(inactive, before.at_bound | state.definite & found.at_bound))

    def _leave(self, problem: Restrictable, state: "State") -> "State":
        """The solver begins anew at its point, where what was found has its value."""
        inactive, at_bound = state.found
        point, _ = self.dual_point(problem, state)
        point = jnp.where(inactive, 0, jnp.where(at_bound, problem.upper, point) if problem.bounded else point)
        key = jax.random.fold_in(jax.random.key(0), state.counters.steps)  # whoever draws does not repeat himself
        inner = self.solver.init(_without(problem, inactive), key, point)
        return state._replace(inner=like(self.solver.counted(inner, state.counters), state.inner), inactive=inactive)

    def polish_begin(self, problem: Restrictable, state: "State") -> "Polishing":
        """The same in pieces, for the host driver: before the first."""
        return Polishing(super().polish_begin(problem, state), state.inactive)

    def polish_step(self, problem: Restrictable, carry: "Polishing") -> "Polishing":
        """One piece further."""
        return carry._replace(carry=self.solver.polish_step(_without(problem, carry.inactive), carry.carry))

    def polish_end(self, problem: Restrictable, state: "State", carry: "Polishing") -> "State":
        """The state where the polish ended."""
        return super().polish_end(problem, state, carry.carry)

    @property
    def whole(self) -> Solver:
        """The solver that ends what fewer samples began."""
        return self.solver.whole

    def left(self, problem: Restrictable, state: "State") -> tuple[np.ndarray, Any] | None:
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
        definite: Whether the kernel matrix is positive semidefinite, `()`: else the rule is not heard.
    """

    inner: Any
    inactive: Bool[Array, " n"]
    found: Found
    definite: Bool[Array, ""]

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


def _vouched(problem: Restrictable) -> Restrictable:
    """The problem as rules see it that are heard where its matrix is positive semidefinite alone."""
    return dataclasses.replace(problem, gram=dataclasses.replace(problem.gram, vouched=True))


def _without(problem: Restrictable, inactive: Array) -> Restrictable:
    """The problem without some samples, with all n places: they have no room, or no weight."""
    if problem.bounded:
        return dataclasses.replace(problem, upper=jnp.where(inactive, 0, problem.upper))
    mask = ~inactive if problem.mask is None else problem.mask & ~inactive
    return dataclasses.replace(problem, ridge=jnp.where(inactive, 0, problem.ridge), mask=mask)
