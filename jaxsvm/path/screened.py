"""A warm chain of hinge problems that touches few kernel rows, and leaves out what a safe rule knows.

The path algorithm of Ogawa, Suzuki, Suzumura and Takeuchi 2014: the solution at one C bounds all margins at the next
one; samples that are certainly beyond their margin get 0, those certainly inside it their bound, and the problem of the
others is solved. Where nothing is left to change, the solution answers every larger C.

Where we depart from it (docs/mathematics.md, Safe screening): the products `p = Qa` are carried along the path in twice
the precision. From one C to the next all of `a` is scaled by `rho`, but for few samples: those that are free, or change
sides; `p` follows by their kernel rows. So the rule, the problem of the others and the certificate of the whole cost no
product over all samples. Every answer is certified on all samples: a rule that erred would cost time, not truth.
"""

import dataclasses
from typing import cast

import numpy as np
from jaxtyping import Array

from jaxsvm.gram.dense import part_of, values_between
from jaxsvm.loop.choice import first_choice
from jaxsvm.loop.driver import Options, drive
from jaxsvm.loop.interruption import Interruption
from jaxsvm.numerics.sizes import size_classes
from jaxsvm.path.carried import (
    CLAIM,
    MOST_SETS,
    SMALL,
    Point,
    as_reference,
    certified,
    counted,
    filled_in,
    first_point,
    joined,
    longer,
    look_ahead,
    point_of,
    products_of,
    sets_at_once,
    solved,
)
from jaxsvm.problems.box import BoxProblem
from jaxsvm.problems.certificates.definiteness import is_indefinite
from jaxsvm.results.fit import Fit, Status, bit_of, limbs_of, total_of
from jaxsvm.screening.rules import Rule
from jaxsvm.solvers.box.barrier_systems import few_features
from jaxsvm.solvers.box.interior_point import InteriorPoint
from jaxsvm.solvers.box.sequential_minimal_optimization import SMO
from jaxsvm.solvers.contract import Solver
from jaxsvm.solvers.start import Start
from jaxsvm.solvers.working_set import WorkingSet

SET, CROWDED = 512, 0.6
"""Samples of a working set, and the share of it that starts between its bounds from which larger ones are taken."""
SQUARES = 1000
"""Squares of the number of features whose systems cost a working set, about: at d = 180, 32 sets."""
GATHERED = 4096
"""Up to so many samples steps go along whole stored rows where nothing but absent samples could be left out."""
LARGEST = 8192
"""Samples whose kernel values are stored for one value of C at the most."""


class ScreenedChain:
    """Fits of one C after another, each from the one before. For host drivers, of hinge problems.

    With an equality (a free bias) no rule is safe, and kernel values are stored.

    Attributes:
        solver: Whose gap is asked for. What sets and steps do not end here is solved as a fit of its own.
        rule: What leaves samples out; None: nothing.
        point: The last solution, None before the first, and after one that is not certified.
        fit: The last fit.
        old: Its problem.
        by_systems: Whether all further values are solved by systems in the space of few features: steps have become
            slow, and what is strictly inside the box is no point for them to start from.
    """

    def __init__(self, solver: Solver, key: Array, rule: Rule | None, stop: Interruption) -> None:
        self.solver, self.key, self.rule, self.stop = solver, key, rule, stop
        self.point: Point | None = None
        self.fit: Fit | None = None
        self.old: BoxProblem | None = None
        self.by_systems = False
        self.lost = _done(0, 0, None)  # what was taken for this value in vain

    def __call__(self, here: BoxProblem) -> Fit:
        """The fit of the next problem."""
        if self.point is None and self.fit is None and (here.gram.definite or not bool(is_indefinite(here))):
            self.point = first_point(here, self.solver)
        fitted = None if self.point is None else self._known(here, self.point)
        if fitted is None and self.point is not None and not self.by_systems:
            fitted = self._reduced(here, self.point)
            self.by_systems = fitted is None and self.fit is not None and few_features(here) is not None
        if fitted is None:
            warm = None if self.fit is None else Start.of(self.fit, cast(BoxProblem, self.old))
            solver = InteriorPoint(self.solver.tol) if self.by_systems else first_choice(here, self.solver.tol)
            fitted = drive(here, solver, self.key, warm, stop=self.stop, options=Options(may_change=True))
            fitted = dataclasses.replace(fitted, counters=counted(self.lost).plus(fitted.counters))
            self.lost = _done(0, 0, None)
            self.point = None
            if int(fitted.status) == Status.CONVERGED:  # of an indefinite matrix nothing is
                products = products_of(here, fitted.alpha)
                self.point = point_of(here, self.solver, fitted.alpha, products)
        self.fit, self.old = fitted, here
        return fitted

    def _known(self, here: BoxProblem, point: Point) -> Fit | None:
        """The last solution, where it is this one's too."""
        if float(here.C) < float(point.C):
            return None  # what is feasible there may not be here
        if float(here.C) > float(point.reach):
            if point.w is not None or not float(point.lengthened) <= CLAIM:
                return None
            self.point = point = point._replace(**longer(here, point))
        pair = (point.a, point.products) if point.w is None else (point.w, point.w_products)
        fitted, excess = certified(here, self.solver, *pair, _done(0, 0, None))
        return fitted if float(excess) <= 1 else None

    def _reduced(self, here: BoxProblem, point: Point) -> Fit | None:
        """The solution of what the rule leaves over; None where the whole problem's solver had better go on."""
        stored = here.gram.stored
        if self.rule is None and not stored:
            return None  # nothing says what could be left out
        found = None if self.rule is None else self.rule(here, as_reference(here, point), point.C)
        look = look_ahead(here, point, found)
        kept, free, rows = np.asarray(look.counts).tolist()
        size = min(size for size in size_classes(here.n) if size >= kept)
        whole = stored and (size == here.n or (self.rule is None and here.n <= GATHERED))
        size = here.n if whole else size
        if not whole and (size > LARGEST or size == here.n):
            return None
        samples = None if whole else _filled(np.asarray(look.kept), np.asarray(here.present), size)
        gram = here.gram if whole else part_of(here.gram, values_between(here.gram, samples))
        few = few_features(here)
        most = MOST_SETS if few is None or self.fit is None else max(few.shape[1] ** 2 // SQUARES, 20)
        sets = WorkingSet(size=SET if free <= CROWDED * SET else 1024, max_steps=most)
        steps, taken, inside = 0, 0 if whole else size**2, look.start
        for _ in range(0, most if size > SMALL else 1, sets_at_once(size)):
            inside, more, asked, done = solved(here, self.solver, look, samples, gram, sets)
            steps, taken = steps + int(more), taken + (total_of(asked) if whole else 0)
            if bool(done) or self.stop.seen:
                break
            look = look._replace(start=filled_in(look, samples, inside))
        point, moved = joined(here, self.solver, look, samples, inside)
        done = _done(steps, taken + (rows + int(moved)) * here.n, SMO() if size <= SMALL else sets)
        fitted, excess = certified(here, self.solver, point.a, point.products, done)
        if not float(excess) <= 1:
            self.lost = done
            return None
        self.point = point
        return fitted


def _done(steps: int, evaluations: int, solver: Solver | None) -> np.ndarray:
    """What a value took, as `certified` takes it."""
    bit = 0 if solver is None else int(bit_of(solver))
    return np.asarray([steps, *limbs_of(evaluations), bit], np.int32)


def _filled(kept: np.ndarray, present: np.ndarray, size: int) -> np.ndarray:
    """Indices of what is kept, filled up to a size with other samples, absent ones last."""
    order = np.argsort(np.where(kept, 0, np.where(present, 1, 2)), kind="stable")
    return np.sort(order[:size]).astype(np.int32)
