"""Dynamic safe screening around any solver: samples whose dual variables are known leave while it runs."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from jaxsvm.errors import InputError
from jaxsvm.numerics.precision import in_double, like, widened
from jaxsvm.numerics.sizes import class_of, filled
from jaxsvm.problems.certificates.definiteness import negative_curvature
from jaxsvm.problems.contract import PROBLEMS, Restrictable
from jaxsvm.runtime.arrays import checked, require_function, require_whole
from jaxsvm.runtime.loops import once
from jaxsvm.screening.reference import reference_fit, require_screenable
from jaxsvm.screening.rules import Rule, gap_safe
from jaxsvm.solvers.around.wrapper import HoldingWrapper, described, require_inner
from jaxsvm.solvers.contract import HandOver, Solver
from jaxsvm.solvers.measured import MEASURED
from jaxsvm.solvers.start import StartLike

SCREENABLE = ("box", "squared hinge")  # kinds of problems that rules apply to


@checked
def screened(solver: Solver, rule: Rule = gap_safe, every: int | None = None) -> "Screened":
    """Leave out samples while a solver runs, once a rule proves their dual variables from its points.

    Args:
        solver: A solver of hinge or squared-hinge problems with a regularised bias or none.
        rule: A rule, a function of a problem and a fit of it, such as `jaxsvm.screening.gap_safe`.
        every: Maximum number of steps between two applications of the rule, >= 1; each costs a certificate. None:
            whenever the solver is certified. Static.

    Returns:
        The screened solver. Its fits are those of the solver, certified on all samples.

    Raises:
        InputError: On `every` < 1; on a solver of other problems, or of a separate w (Pegasos, BallSGD, Perceptron).
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
class Screened(HoldingWrapper[Restrictable]):
    """A solver around which samples leave once their dual variables are known; made by `screened`.

    At each certificate the rule tests the current point (`jaxsvm.screening.gap_safe`: the smaller its gap, the more
    samples it decides). Samples at 0 are masked: steps no longer see them. Samples at their bound are put there, and
    have no reason to move. If few are left, the host driver continues with a smaller problem (`left`; under tracing
    shapes are fixed). Certificates are those of the whole problem: no result relies on the rule.

    Sources: Ndiaye, Fercoq, Gramfort and Salmon 2017; docs/mathematics.md, Safe screening.
    """

    bit = 13
    rule: Any = dataclasses.field(metadata={"static": True})
    every: int | None = dataclasses.field(default=None, metadata={"static": True})

    layer = 3
    made_by = "screened"

    @property
    def solves(self) -> tuple[str, ...]:
        return tuple(kind for kind in self.solver.solves if kind in SCREENABLE)

    @property
    def refresh_every(self) -> int | None:
        """Return the largest number of steps between certificates; the rule is applied at each."""
        return self.solver.refresh_every if self.every is None else self.every

    @property
    def check_every(self) -> int:
        """Return the steps of a chunk: the solver's, or fewer if the rule is applied more often."""
        return self.solver.check_every if self.every is None else min(self.every, self.solver.check_every)

    def problem_inside(self, problem: Restrictable, state: "State") -> Restrictable:
        return _without(problem, state.inactive)

    def init(self, problem: Restrictable, key: Array | None = None, init: "StartLike | None" = None) -> "State":
        require_screenable(problem)
        none_yet = jnp.zeros((problem.n,), bool)
        inner = self.solver.init(_without(problem, none_yet), key, init)
        definite = jnp.asarray(True)
        if not problem.gram.definite:  # tested once: no rule is valid on an indefinite matrix
            definite = ~in_double(lambda problem: negative_curvature(widened(problem), everywhere=True))(problem)
        return State(inner, none_yet, Known(none_yet, none_yet), definite)

    def step(self, problem: Restrictable, state: "State") -> "State":
        """Take the solver's step on undecided samples; first drop samples decided since the last step."""
        state = once((state.known.inactive & ~state.inactive).any(), lambda state: self._leave(problem, state), state)
        return super().step(problem, state)

    def refresh(self, problem: Restrictable, state: "State") -> "State":
        """Recompute the state and apply the rule; samples that it decides leave with the next step."""
        state = super().refresh(problem, state)
        vouched = problem  # rules require that the matrix is declared positive semidefinite
        if not problem.gram.definite:
            vouched = dataclasses.replace(problem, gram=dataclasses.replace(problem.gram, vouched=True))
        known, before = self.rule(vouched, reference_fit(vouched, *self.dual_point(problem, state))), state.known
        inactive = before.inactive | state.definite & known.inactive
        return state._replace(known=Known(inactive, before.at_bound | state.definite & known.at_bound))

    def _leave(self, problem: Restrictable, state: "State") -> "State":
        """Restart the solver at its point, with the known samples at their values."""
        inactive, at_bound = state.known
        point, _ = self.dual_point(problem, state)
        point = jnp.where(inactive, 0, jnp.where(at_bound, problem.upper, point) if problem.bounded else point)
        key = jax.random.fold_in(jax.random.key(0), state.counters.steps)  # other draws than before
        inner = self.solver.init(_without(problem, inactive), key, point)
        return state._replace(inner=like(self.solver.counted(inner, state.counters), state.inner), inactive=inactive)

    def hands_over(self, problem: Restrictable, state: "State", steps: float) -> HandOver | None:
        """Return the solver without the rule, after a fit of undecided samples if they make a much smaller problem."""
        inactive, at_bound = (np.asarray(mask) for mask in state.known)
        present = np.asarray(problem.present)
        # In float32 the products of samples at their bounds would drown the rest: these stay in the problem.
        at_bound = at_bound & (jnp.finfo(problem.dtype).bits == 64)
        kept = present & ~(inactive | at_bound)
        size = class_of(kept.sum(), problem.n)
        if size > MEASURED.worthwhile_share * problem.n:
            return super().hands_over(problem, state, steps)
        values = np.where(at_bound, np.asarray(problem.upper), 0)
        return HandOver(self.solver, undecided=(filled(kept, present, size), values))


class Known(NamedTuple):
    """Samples known to be at 0 and at their bound, `(n,)` each."""

    inactive: Bool[Array, " n"]
    at_bound: Bool[Array, " n"]


class State(NamedTuple):
    """State of a screened solver."""

    inner: Any  # the inner solver's state, on the problem without the inactive samples
    inactive: Bool[Array, " n"]  # samples that are masked since they are known to be at 0
    known: Known  # samples decided at the last refresh
    definite: Bool[Array, ""]  # whether the kernel matrix is positive semidefinite: else the rule is ignored

    R = property(lambda self: self.inner.R)
    indefinite = property(lambda self: self.inner.indefinite)
    counters = property(lambda self: self.inner.counters)


def _without(problem: Restrictable, inactive: Array) -> Restrictable:
    return dataclasses.replace(problem, weight=jnp.where(inactive, 0, problem.weights))
