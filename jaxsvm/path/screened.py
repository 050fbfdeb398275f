"""A warm chain of hinge problems that computes few kernel rows and leaves out the samples that a safe rule knows.

The path algorithm of Ogawa, Suzuki, Suzumura and Takeuchi 2014: the solution at one C bounds all margins at the next
one. Samples that are certainly beyond their margin get 0, those certainly inside it their bound, and the problem of the
others is solved. Once nothing is left to change, the solution holds for every larger C.

Unlike there (docs/mathematics.md, Safe screening), the products `p = Qa` are carried along the path in twice the
precision. From one C to the next all of `a` is scaled by `rho`, except for few samples that are free or change sides;
`p` follows by their kernel rows. So the rule, the problem of the others and the certificate of the whole cost no
product over all samples. Every result is certified on all samples: a wrong rule would cost time, not correctness.
"""

import dataclasses
from typing import Any, cast

import numpy as np
from jaxtyping import Array

from jaxsvm.gram.dense import part_of, values_between
from jaxsvm.loop.choice import first_choice
from jaxsvm.loop.driver import Options, drive
from jaxsvm.loop.interruption import Interruption
from jaxsvm.loop.measured import MEASURED as LOOP
from jaxsvm.numerics.sizes import class_of, filled
from jaxsvm.path.carried import (
    Point,
    as_reference,
    certified,
    counters_of,
    first_point,
    point_of,
    products_of,
    scaled_up,
)
from jaxsvm.path.measured import MEASURED
from jaxsvm.path.next_problem import filled_in, joined, next_start, sets_at_once, solve_kept
from jaxsvm.problems.box import BoxProblem
from jaxsvm.problems.certificates.definiteness import is_indefinite
from jaxsvm.results.fit import Fit, bit_of, limbs_of, total_of
from jaxsvm.results.status import Status
from jaxsvm.runtime.programs import compiled_ahead
from jaxsvm.screening.rules import Rule
from jaxsvm.solvers.box.barrier_systems import few_features
from jaxsvm.solvers.box.interior_point import InteriorPoint
from jaxsvm.solvers.box.sequential_minimal_optimization import SMO
from jaxsvm.solvers.contract import Solver
from jaxsvm.solvers.start import Start
from jaxsvm.solvers.working_set import WorkingSet


class ScreenedChain:
    """Solve hinge problems at one C after another, each from the solution before; for host drivers.

    With an equality (a free bias) no rule is safe, and kernel values are stored.

    Attributes:
        solver: The solver whose gap is asked for. If steps and working sets do not reach it, the value is solved as a
            fit of its own.
        rule: The rule that leaves samples out; None for none.
        point: The last solution, None before the first and after one that is not certified.
        fit: The last fit.
        old: Its problem.
        by_systems: Whether all further values are solved by systems in the space of few features: steps have become
            slow, and they cannot start from a point strictly inside the box.
        lost: Work of attempts that did not solve this value (`_work`).
        reached: The fit that it reached, at which the whole problem starts; None if there is none.
        asked: Kernel values that the last value's steps would have read in whole rows.
    """

    def __init__(self, solver: Solver, key: Array, rule: Rule | None, stop: Interruption) -> None:
        self.solver, self.key, self.rule, self.stop = solver, key, rule, stop
        self.point: Point | None = None
        self.fit: Fit | None = None
        self.old: BoxProblem | None = None
        self.by_systems = False
        self.lost = _work(0, 0, None)
        self.reached: Fit | None = None
        self.asked = 0

    def __call__(self, problem: BoxProblem) -> Fit:
        """Return the fit of the next problem."""
        if self.point is None and self.fit is None and (problem.gram.definite or not bool(is_indefinite(problem))):
            wait = compiled_ahead(lambda: self._calls(problem), problem, self.solver)
            self.point = first_point(problem, self.solver)
            wait()
        fitted = None if self.point is None else self._still_valid(problem, self.point)
        if fitted is None and self.point is not None and not self.by_systems:
            fitted = self._reduced(problem, self.point)
            self.by_systems = fitted is None and self.fit is not None and few_features(problem) is not None
        if fitted is None:
            fitted = self._whole(problem)
        self.fit, self.old = fitted, problem
        return fitted

    def _calls(self, problem: BoxProblem) -> list[tuple[Any, ...]]:
        """Return the programs of the first values on stored kernel values, with the shapes of their arguments."""
        if self.rule is not None or not problem.gram.stored:
            return []
        point = first_point.shapes(problem, self.solver)
        begin = next_start.shapes(problem, point, None)
        sets, work = self._working_sets(problem, 0), _work(0, 0, None)
        return [
            (solve_kept, problem, self.solver, begin, None, problem.gram, sets),
            (joined, problem, self.solver, begin, None, point.a),
            (certified, problem, self.solver, point.a, point.products, work),
            (next_start, problem, point, None),
        ]

    def _whole(self, problem: BoxProblem) -> Fit:
        """Solve the whole problem as a fit of its own."""
        warm = None if self.fit is None else Start.of(self.fit, cast(BoxProblem, self.old))
        warm = warm if self.reached is None else Start.of(self.reached, problem)
        tol = self.solver.tol
        solver = InteriorPoint(tol) if self.by_systems else first_choice(problem, tol)
        fitted = drive(problem, solver, self.key, warm, stop=self.stop, options=Options(warns=False, may_change=True))
        fitted = dataclasses.replace(fitted, counters=counters_of(self.lost).plus(fitted.counters))
        self.lost, self.reached = _work(0, 0, None), None
        self.point = None
        if int(fitted.status) == Status.CONVERGED:  # with an indefinite matrix no fit is
            products = products_of(problem, fitted.alpha)
            self.point = point_of(problem, self.solver, fitted.alpha, products)
        return fitted

    def _still_valid(self, problem: BoxProblem, point: Point) -> Fit | None:
        """Return the last solution if it solves this problem too."""
        if float(problem.C) < float(point.C):
            return None  # it may be infeasible
        if float(problem.C) > float(point.valid_up_to):
            if point.w is not None or not float(point.scaled_gap) <= LOOP.credible_share:
                return None
            self.point = point = point._replace(**scaled_up(problem, point))
        pair = (point.a, point.products) if point.w is None else (point.w, point.w_products)
        fitted = certified(problem, self.solver, *pair, _work(0, 0, None))
        return fitted if int(fitted.status) == Status.CONVERGED else None

    def _reduced(self, problem: BoxProblem, point: Point) -> Fit | None:
        """Solve for the samples that the rule leaves undecided; None if a fit of the whole problem is better."""
        stored = problem.gram.stored
        if self.rule is None and not stored:
            return None  # no sample can be left out
        known = None if self.rule is None else self.rule(problem, as_reference(problem, point), point.C)
        left = np.asarray(problem.present) & (True if known is None else ~np.asarray(known.screened))
        size = class_of(left.sum(), problem.n)
        # Of a stored matrix gather only what costs less than the last value's rows, read whole.
        short = problem.n <= MEASURED.samples_of_whole_rows if known is None else size**2 > self.asked
        whole = stored and (size == problem.n or short)
        size = problem.n if whole else size
        if not whole and (size > 8192 or size == problem.n):  # too many kernel values to store for one value of C
            return None
        begin = next_start(problem, point, known)
        _, free, rows = np.asarray(begin.counts).tolist()
        samples = None if whole else filled(np.asarray(begin.kept), np.asarray(problem.present), size)
        gram = problem.gram if whole else part_of(problem.gram, values_between(problem.gram, samples))
        sets = self._working_sets(problem, free)
        steps, read, inside = 0, 0, begin.start
        by_steps = size <= MEASURED.samples_of_short_rows
        for _ in range(0, 1 if by_steps else sets.max_steps, sets_at_once(size)):
            inside, more, asked, ended = solve_kept(problem, self.solver, begin, samples, gram, sets)
            steps, read = steps + int(more), read + int(total_of(asked))
            if bool(ended) or self.stop.seen:
                break
            begin = begin._replace(start=filled_in(begin, samples, inside))
        self.asked = 0 if self.fit is None else read * problem.n // size  # the first value starts far away
        evaluations = read if whole else size**2
        point, moved = joined(problem, self.solver, begin, samples, inside)
        work = _work(steps, evaluations + (rows + int(moved)) * problem.n, SMO() if by_steps else sets)
        fitted = certified(problem, self.solver, point.a, point.products, work)
        if int(fitted.status) != Status.CONVERGED:
            self.lost, self.reached, self.asked = work, fitted, problem.n**2
            return None
        self.point = point
        return fitted

    def _working_sets(self, problem: BoxProblem, free: int) -> WorkingSet:
        """Return the working-set solver for a value; `free` samples start between their bounds.

        After 100 of them the value is solved as a fit of its own. With few features, systems cost about as much as
        d^2 / 1,000 sets (d = 180: 32).
        """
        x = few_features(problem)
        most = 100 if x is None or self.fit is None else max(x.shape[1] ** 2 // 1000, 20)
        small = LOOP.samples_of_one_working_set
        crowded = free > LOOP.crowded_share * small
        return WorkingSet(size=LOOP.samples_of_a_larger_set if crowded else small, max_steps=most)


def _work(steps: int, evaluations: int, solver: Solver | None) -> np.ndarray:
    """Return the work of a value, as `certified` takes it."""
    bit = 0 if solver is None else int(bit_of(solver))
    return np.asarray([steps, *limbs_of(evaluations), bit], np.int32)
