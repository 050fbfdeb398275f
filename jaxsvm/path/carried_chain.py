"""A warm chain of hinge problems that computes few kernel rows and leaves out the samples that a safe rule knows.

The path algorithm of Ogawa, Suzuki, Suzumura and Takeuchi 2014: the solution at one C bounds all margins at the next
one. Samples that are certainly beyond their margin get 0, those certainly inside it their bound, and the problem of the
others is solved. Once nothing is left to change, the solution holds for every larger C.

Unlike there (docs/mathematics.md, Safe screening), the products `p = Qa` are carried along the path in twice the
precision. From one C to the next all of `a` is scaled by `rho`, except for few samples that are free or change sides;
`p` follows by their kernel rows. So the rule, the problem of the others and the certificate of the whole cost no
product over all samples. Every result is certified on all samples: a wrong rule would cost time, not correctness.

`CarriedChain` decides what to do at each C. Its programs: `next_start` scales the last point and leaves out the
samples that a rule knows, `solve_kept` solves for the others, `joined` returns the point of the whole problem, and
`certified` its fit. Their arrays are float64 between programs too, whatever the caller's flag.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxsvm.gram.operators import Gram, part_of, values_between
from jaxsvm.loop.choice import first_choice
from jaxsvm.loop.driver import Options, drive
from jaxsvm.loop.interruption import Interruption
from jaxsvm.loop.measured import MEASURED
from jaxsvm.numerics.precision import in_double, matmul, widened
from jaxsvm.numerics.sizes import class_of, filled
from jaxsvm.path.chains import (
    CarriedPoint,
    as_reference,
    at_bounds,
    certified,
    counters_of,
    first_point,
    lengths,
    narrow,
    point_at,
    scaled_up,
    validity,
)
from jaxsvm.problems.box import BoxProblem
from jaxsvm.problems.certificates.definiteness import is_indefinite
from jaxsvm.results.fit import Fit, Status, bit_of, limbs_of, total_of
from jaxsvm.runtime.loops import in_rounds, once
from jaxsvm.runtime.programs import Program, compiled_ahead
from jaxsvm.screening.rules import Rule, Screening
from jaxsvm.solvers.box.interior_point import InteriorPoint, few_features
from jaxsvm.solvers.contract import Solver
from jaxsvm.solvers.start import Start
from jaxsvm.solvers.working_set import WorkingSet
from jaxsvm.solvers.working_set_block import carried, ends

LARGEST_SPREAD = 1e4  # ratio of upper bounds up to which sums are carried from value to value
NO_STEPS = np.zeros(4, np.int32)  # the work of a value that took none (`certified`)


class NextStart(NamedTuple):
    """The start of the next problem, and the samples that a rule leaves undecided."""

    kept: Bool[Array, " n"]  # undecided samples
    start: Float[Array, " n"]  # their start, and the values of the others
    # the point of the products, float64: `factor a` of undecided samples, of others their values
    base: Float[Array, " n"]
    products: Float[Array, " n"]  # `Q base`, float64
    drift: Float[Array, ""]  # drift of the products (`CarriedPoint`)
    dual: Float[Array, ""]  # the dual objective at `base`
    # how many samples are undecided, how many of them start between their bounds, and how many kernel rows were
    # computed
    counts: Int[Array, " 3"]


class CarriedChain:
    """Solve hinge problems at one C after another, each from the solution before; for host drivers.

    With an equality (a free bias) no rule is safe, and kernel values are stored. If steps and working sets do not reach
    the gap of `solver`, the value is solved as a fit of its own.
    """

    def __init__(self, solver: Solver, key: Array, rule: Rule | None, stop: Interruption) -> None:
        self.solver, self.key, self.rule, self.stop = solver, key, rule, stop
        self.point: CarriedPoint | None = None  # the last solution, if it is certified
        self.before: tuple[BoxProblem, Fit] | None = None
        # whether all further values are solved by systems in the space of few features: steps have become slow, and
        # systems cannot start from a point strictly inside the box
        self.by_systems = False
        self.failed_work = NO_STEPS  # work of attempts that did not solve this value
        self.failed_fit: Fit | None = None  # the fit that they reached, at which the whole problem starts
        self.values_read = 0  # kernel values that the last value's steps would have read in whole rows

    def __call__(self, problem: BoxProblem) -> Fit:
        """Return the fit of the next problem."""
        begins = self.before is None or (self.point is None and int(self.before[1].status) == Status.CONVERGED)
        if begins and (problem.gram.definite or not bool(is_indefinite(problem))):
            wait = compiled_ahead(lambda: self._calls(problem), problem, self.solver)
            self.point = point_at(self.solver, *self.before) if self.before else first_point(problem, self.solver)
            wait()
        fitted = None if self.point is None else self._still_valid(problem, self.point)
        if fitted is None and self.point is not None and not self.by_systems:
            fitted = self._reduced(problem, self.point)
            self.by_systems = fitted is None and self.before is not None and few_features(problem) is not None
        if fitted is None:
            fitted = self._whole(problem)
        self.before = (problem, fitted)
        return fitted

    def _calls(self, problem: BoxProblem) -> list[tuple[Any, ...]]:
        """Return the programs of the first values on stored kernel values, with the shapes of their arguments."""
        if self.rule is not None or not problem.gram.stored:
            return []
        point: Any = at_bounds.shapes(problem, self.solver) if problem.c is None else first_point(problem, self.solver)
        begin = next_start.shapes(problem, point, None)
        return [
            (solve_kept, problem, self.solver, begin, None, problem.gram, self._working_sets(problem, 0)),
            (joined, problem, self.solver, begin, None, begin.start),
            (certified, problem, self.solver, point.points, point.products, NO_STEPS),
            (next_start, problem, point, None),
        ]

    def _whole(self, problem: BoxProblem) -> Fit:
        begin = self.before if self.failed_fit is None else (problem, self.failed_fit)
        warm = None if begin is None else Start.of(begin[1], begin[0])
        solver = InteriorPoint(self.solver.tol) if self.by_systems else first_choice(problem, self.solver.tol)
        fitted = drive(problem, solver, self.key, warm, stop=self.stop, options=Options(warns=False, may_change=True))
        fitted = dataclasses.replace(fitted, counters=counters_of(self.failed_work).plus(fitted.counters))
        self.failed_work, self.failed_fit, self.point = NO_STEPS, None, None
        if int(fitted.status) == Status.CONVERGED:  # with an indefinite matrix no fit is
            self.point = point_at(self.solver, problem, fitted)
        return fitted

    def _still_valid(self, problem: BoxProblem, point: CarriedPoint) -> Fit | None:
        if float(problem.C) < float(point.C):
            return None  # it may be infeasible
        if float(problem.C) > float(point.valid_up_to):
            if not float(point.scaled_gap) <= MEASURED.credible_share:
                return None
            self.point = point = scaled_up(problem, point)
        fitted = certified(problem, self.solver, point.points, point.products, NO_STEPS)
        return fitted if int(fitted.status) == Status.CONVERGED else None

    def _reduced(self, problem: BoxProblem, point: CarriedPoint) -> Fit | None:
        """Solve for the samples that the rule leaves undecided; None if a fit of the whole problem is better."""
        stored = problem.gram.stored
        if self.rule is None and not stored:
            return None  # no sample can be left out
        known = None if self.rule is None else self.rule(problem, as_reference(problem, point), point.C)
        undecided = np.asarray(problem.present) & (True if known is None else ~np.asarray(known.screened))
        size = class_of(undecided.sum(), problem.n)
        # Of a stored matrix gather only what costs less than the last value's rows, read whole.
        short = problem.n <= MEASURED.samples_of_whole_rows if known is None else size**2 > self.values_read
        whole = stored and (size == problem.n or short)
        size = problem.n if whole else size
        if not whole and (size > MEASURED.most_samples_stored_for_a_value or size == problem.n):
            return None
        begin = next_start(problem, point, known)
        _, free, rows = np.asarray(begin.counts).tolist()
        samples = None if whole else filled(np.asarray(begin.kept), np.asarray(problem.present), size)
        gram = problem.gram if whole else part_of(problem.gram, values_between(problem.gram, samples))
        sets = self._working_sets(problem, free)
        steps, read, inside = 0, 0, begin.start
        for _ in range(0, sets.max_steps, sets_at_once(size)):
            inside, more, asked, ended = solve_kept(problem, self.solver, begin, samples, gram, sets)
            steps, read = steps + int(more), read + int(total_of(asked))
            if bool(ended) or self.stop.seen:
                break
            begin = begin._replace(start=filled_in(begin, samples, inside))
        self.values_read = 0 if self.before is None else read * problem.n // size  # the first one starts far away
        point, moved = joined(problem, self.solver, begin, samples, inside)
        evaluations = (read if whole else size**2) + (rows + int(moved)) * problem.n
        work = np.asarray([steps, *limbs_of(evaluations), int(bit_of(sets))], np.int32)
        fitted = certified(problem, self.solver, point.points, point.products, work)
        if int(fitted.status) != Status.CONVERGED:
            self.failed_work, self.failed_fit, self.values_read = work, fitted, problem.n**2
            return None
        self.point = point
        return fitted

    def _working_sets(self, problem: BoxProblem, free: int) -> WorkingSet:
        """Return the working-set solver for a value; `free` samples start between their bounds.

        After its steps the value is solved as a fit of its own. With few features, systems cost about as much as
        d^2 / 1,000 sets (d = 180: 32).
        """
        x = few_features(problem)
        most = MEASURED.sets_of_a_value if x is None or self.before is None else max(x.shape[1] ** 2 // 1000, 20)
        small = MEASURED.samples_of_one_working_set
        crowded = free > MEASURED.crowded_share * small
        return WorkingSet(size=MEASURED.samples_of_a_larger_set if crowded else small, max_steps=most)


def sets_at_once(size: int) -> int:
    """Return how many working sets, at most half of a value's, run between looks at Ctrl-C: always the same."""
    return min(max(MEASURED.samples_times_sets_of_a_piece // size, 1), MEASURED.sets_of_a_value // 2)


def _differ(a: Array, b: Array) -> Bool[Array, " n"]:
    return jnp.abs(a - b) > 1e-14 * jnp.maximum(jnp.abs(a), jnp.abs(b))


@Program
def next_start(problem: BoxProblem, point: CarriedPoint, known: Screening | None) -> NextStart:
    """Scale a point to the next problem and fix the samples that a rule knows; this takes few kernel rows.

    The factor is the ratio of the Cs, or the factor with the largest dual objective if that is smaller: without losses
    a solution does not depend on C.
    """

    @in_double
    def scale(problem: BoxProblem, point: CarriedPoint, known: Screening | None) -> NextStart:
        wide, dtype = widened(problem), problem.dtype
        a, p = point.points[1].astype(wide.dtype), point.products[1]
        best = matmul(wide.targets, a) / jnp.maximum(a @ p, jnp.finfo(wide.dtype).tiny)
        factor = jnp.minimum(wide.C / point.C.astype(wide.dtype), jnp.maximum(best, 1))
        none = jnp.zeros_like(wide.present)
        inactive, at_bound = (none, none) if known is None else (known.inactive, known.at_bound)
        decided, fixed = inactive | at_bound, jnp.where(at_bound, wide.upper, 0)
        # A sample at its bound stays at its bound: one rounding of the factor is no change, nor room to move.
        moved = decided & _differ(fixed, factor * a)
        base = jnp.where(moved, fixed, factor * a)
        inside = _differ(wide.upper, factor * a) & (factor * a < wide.upper)
        start = jnp.where(decided, fixed, jnp.where(inside, factor * a, wide.upper)).astype(dtype)
        q = factor * p
        if known is not None:
            q = q + wide.signed.few_rows_matvec(jnp.where(moved, fixed - factor * a, 0))
        kept = wide.present & ~decided
        free = kept & (start > 0) & (start < problem.upper)
        return NextStart(
            kept=kept,
            start=start,
            base=base,
            products=q,
            drift=(factor * point.drift + matmul(jnp.abs(base), lengths(wide))).astype(dtype),
            dual=(base @ (wide.targets - q / 2)).astype(dtype),
            counts=jnp.stack([kept.sum(), free.sum(), moved.sum()]).astype(jnp.int32),
        )

    return scale(problem, point, known)


@Program
def solve_kept(
    problem: BoxProblem, solver: Solver, begin: NextStart, samples: Array | None, gram: Gram, sets: WorkingSet
) -> tuple[Float[Array, " m"], Int[Array, ""], Int[Array, " 2"], Bool[Array, ""]]:
    """Solve for the undecided `samples` (None: all, of which the decided ones stay), with all others at their values.

    It ends at half of the solver's `tol`: the better a solution, the more it says of the next one, and the more values
    of C it solves. The gap is that of the whole problem, to which the other samples add nothing. `gram` is the stored
    Gram operator of these samples, `sets` their solver.

    Return the values, the steps, the kernel evaluations in limbs, and whether it ended.
    """
    names = ("y", "q", "weights", "squares") + (() if problem.c is None else ("c",))
    fields = {name: getattr(problem, name) for name in names}
    part = {**fields, "kept": begin.kept, "start": begin.start}
    at = {"base": begin.base, "products": begin.products}
    if samples is not None:
        part, at = in_double(lambda *parts: jax.tree.map(lambda leaf: leaf[samples], parts))(part, at)
    kept, start, weight = (part.pop(name) for name in ("kept", "start", "weights"))
    # Decided samples have no room to move, and act on the others through their products alone.
    view = dataclasses.replace(problem, gram=gram, weight=jnp.where(kept, weight, 0), **part)

    def products_at(view: Any, at: Any, a: Array) -> Array:
        change, moved = a - at["base"], kept & _differ(a.astype(at["base"].dtype), at["base"])
        # For a change the data's precision and the stored values suffice.
        return at["products"] + view.signed.few_rows_matvec(jnp.where(moved, change, 0).astype(view.dtype))

    x, p = narrow(at["base"], view.dtype), narrow(at["products"], view.dtype)

    def gap_of(state: Any) -> Array:
        pull = view.q - state.s
        if view.c is not None:  # with a bias in the middle of the violations: no sorting
            pull = pull - view.c * sum(ends(view, state.a, state.s)) / 2
        return (view.upper - state.a) @ jnp.maximum(pull, 0) + state.a @ jnp.maximum(-pull, 0)

    def excess(state: Any) -> Array:
        # The dual objective at the state; that of the start may be decades away, or 0.
        dual = begin.dual + jnp.where(kept, state.a - x, 0) @ (view.q - (p + state.s) / 2)
        gap, goal = gap_of(state), 0.5 * solver.tol * dual  # samples outside add to the gap
        return jnp.where(gap > goal, jnp.where(goal > 0, gap / goal, jnp.inf), 0)

    def round(before: Any, left: Array) -> tuple[Any, Array, Array]:
        del left
        state = sets.step(view, before)
        return state, state.counters.steps - before.counters.steps, excess(state)

    a = jnp.where(kept, start, 0)
    state = sets.begun(view, {"a": a, **in_double(carried)(in_double(products_at)(view, at, a), a)})
    most = jnp.minimum(sets_at_once(len(a)), sets.max_steps)
    state, _, last = in_rounds(round, state, most, excess(state))
    return state.a, state.counters.toward, state.counters.evaluations, ~(last > 1)


@Program
def filled_in(begin: NextStart, samples: Array | None, inside: Array) -> Array:
    """Return the whole point: undecided samples at their new values, the others as they were."""
    values = inside if samples is None else begin.start.at[samples].set(inside)
    return jnp.where(begin.kept, values, begin.start)


@Program
def joined(
    problem: BoxProblem, solver: Solver, begin: NextStart, samples: Array | None, inside: Array
) -> tuple[CarriedPoint, Array]:
    """Return the whole problem's point, not yet certified, and how many kernel rows were computed.

    Products are computed from scratch once rounding may have grown to `2 sqrt(n)` roundings of their terms.
    """
    point = filled_in.function(begin, samples, inside)

    @in_double
    def join(problem: BoxProblem, solver: Solver, begin: NextStart, point: Array) -> Any:
        wide = widened(problem)
        a, base = point.astype(wide.dtype), begin.base
        moved = _differ(a, base)
        change = jnp.where(moved, a - base, 0)
        s = begin.products + wide.signed.few_rows_matvec(change)
        # A certificate makes no room for rounding that was multiplied by every factor of C.
        fresh, drift = matmul(a, lengths(wide)), begin.drift + matmul(jnp.abs(change), lengths(wide))
        lost = drift > 2.0 * problem.n**0.5 * fresh
        s, drift = once(lost, lambda _: (wide.matvec(a), fresh), (s, drift))
        count = jnp.where(lost, problem.n, moved.sum()).astype(jnp.int32)
        valid = validity(problem, solver, point, s)
        return jnp.stack([s, s]), drift.astype(problem.dtype), count, *valid

    products, drift, moved, *valid = join(problem, solver, begin, point)
    return CarriedPoint(jnp.stack([point, point]), products, problem.C, drift, *valid), moved
