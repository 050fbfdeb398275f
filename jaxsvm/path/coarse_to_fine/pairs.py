"""Solve hard values of C by chains of pair steps on candidates: anchors first, in parallel the values between them.

If C is large and many samples are left, working sets replace pair steps.
"""

import dataclasses
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxsvm.gram.signed import SignedGram
from jaxsvm.loop.driver import Options, drive
from jaxsvm.loop.interruption import Interruption, unless, with_settings, workers
from jaxsvm.loop.measured import MEASURED as LOOP
from jaxsvm.path.coarse_to_fine.block_newton import BlockNewton
from jaxsvm.path.coarse_to_fine.candidates import Candidates, exchanged, smaller, support_outside
from jaxsvm.path.coarse_to_fine.grid import (
    Grid,
    Lanes,
    Point,
    anchors,
    assess,
    columns,
    combination,
    middles,
)
from jaxsvm.path.measured import MEASURED
from jaxsvm.problems.squared_hinge import SquaredHingeProblem, reciprocals
from jaxsvm.results.fit import Fit
from jaxsvm.results.status import Status
from jaxsvm.runtime.arrays import on_device
from jaxsvm.runtime.programs import Program
from jaxsvm.solvers import working_set as sets
from jaxsvm.solvers.simplex.frank_wolfe import FrankWolfe
from jaxsvm.solvers.start import Start

PROVISIONAL = Options(warns=False, provisional=True)


def solve_by_pairs(grids: list[Grid], solver: BlockNewton, key: Array, stop: Interruption) -> None:
    """Solve the values that the lanes left: anchors in increasing order, and in threads the values between them.

    On a CPU threads are better than lanes: a pair step keeps one core busy at any width, and JAX releases Python's lock
    while it runs. Starts do not depend on the threads, so that a call repeats to the bit. Ctrl-C reaches the main
    thread alone: the drivers of the others check `stop`.
    """
    with ThreadPoolExecutor(workers()) as pool:
        jobs: list[tuple[Grid, Future[dict[int, Point]]]] = []
        try:
            for grid in grids:
                jobs += [(grid, job) for job in _Hard(grid, solver, key, stop).solve_anchors(pool)]
            for grid, job in jobs:
                grid.points.update(job.result())
        except KeyboardInterrupt:
            stop.note()
        except BaseException:
            stop.came = True  # end the other threads
            raise


@dataclasses.dataclass(frozen=True)
class _Hard:
    """The hard values of one grid, and how they are solved."""

    grid: Grid
    solver: BlockNewton
    key: Array
    stop: Interruption

    def solve_anchors(self, pool: ThreadPoolExecutor) -> "list[Future[dict[int, Point]]]":
        """Solve the anchors on working sets that shrink if that is worth the copy; return jobs for values between."""
        grid, jobs = self.grid, []
        left = [place for place in range(len(grid.logs)) if place not in grid.points]
        solved = sorted(place for place in grid.points if left and place < left[0])
        chain = [*solved[-1:], *left] if left else []
        whole, fill = grid.problems[0], with_settings(self.fill)
        working_set = Candidates.of(np.arange(whole.n), whole.gram)
        for place in (chain[index] for index in anchors(grid.logs[chain])) if chain else ():
            if self.stop.seen:
                break
            if solved:
                working_set = smaller(grid, solved[-1], working_set)
            start = self.start(solved, place)
            while place not in grid.points or support_outside(whole, grid.points[place], working_set):
                if place in grid.points:
                    start = grid.points[place][:2]
                    working_set = exchanged(grid, grid.points.pop(place), working_set)
                point = None if self.stop.seen else self.point(place, start, working_set)
                if point is None:
                    return jobs
                grid.points[place] = point
                if self.stop.seen or (exact := self.from_scratch(grid.problems[place], point.x)) is None:
                    return jobs
                grid.points[place] = point._replace(x=exact[0], f=exact[1], carried=0)
            between = [other for other in chain if solved and solved[-1] <= other <= place]
            if len(between) > 2:
                ends = {end: grid.points[end] for end in (between[0], between[-1])}
                jobs.append(pool.submit(fill, between, ends, working_set))
            if place not in solved:
                solved.append(place)
        return jobs

    def from_scratch(self, problem: SquaredHingeProblem, x: Array) -> tuple[Array, Array] | None:
        """Return a point with negative parts cut to 0, and its margins; None after Ctrl-C."""
        if problem.n < LOOP.samples_of_a_long_product:
            return _margins(problem.signed, x)
        return unless(lambda: self.stop.seen, _margins, problem.signed, x)

    def start(self, solved: list[int], place: int) -> tuple[Array, Array] | None:
        """Return the start of an anchor, in the span of two solved values below it, up to twice their distance.

        None for no start, or after Ctrl-C.
        """
        grid = self.grid
        problem = grid.problems[place]
        if not solved:
            if place >= grid.uniform:
                return None
            equal = np.asarray(np.asarray(problem.weights) > 0, problem.dtype)
            return self.from_scratch(problem, jnp.asarray(equal))
        x, f = grid.points[solved[-1]][:2]
        jump = grid.logs[place] - grid.logs[solved[-1]]
        near = [other for other in solved[:-1] if jump <= 2.0 * (grid.logs[solved[-1]] - grid.logs[other])]
        if not near:
            return x, f
        ahead, _ = combination(problem.ridge, grid.points[near[-1]][:2], (x, f), jnp.inf)
        further = self.from_scratch(problem, ahead)
        # With negative weights cut it may be a worse point than x, and still leaves fewer steps.
        return further if further is None or bool(np.asarray(further[0]).any()) else (x, f)

    def fill(self, places: list[int], ends: dict[int, Point], working_set: Candidates) -> dict[int, Point]:
        """Solve the places between the first and the last, level by level; after Ctrl-C return those that are solved.

        One product certifies the combinations of a level on the working set; only those not within `tol` take steps.
        """
        points = dict(ends)
        for level in middles([0, len(places) - 1]):
            tasks = [(places[middle], places[a], places[b]) for middle, a, b in level]
            for first in range(0, len(tasks), self.solver.lanes):
                if self.stop.seen:
                    return points
                group = tasks[first : first + self.solver.lanes]
                starts = [self.combined(points, *task) for task in group]
                gaps = self.gaps([task[0] for task in group], starts, working_set)
                for (place, _, _), start, gap in zip(group, starts, gaps, strict=True):
                    good = gap <= self.solver.inner_tol
                    point = start if good else self.point(place, start[:2], working_set)
                    if point is None:
                        return points
                    points[place] = point
        return points

    def combined(self, points: dict[int, Point], place: int, left: int, right: int) -> Point:
        """Return the best combination of two points for a place between them."""
        x, f = combination(self.grid.problems[place].ridge, points[left][:2], points[right][:2], 1.0)
        return Point(x, f, 0, 0)

    def gaps(self, places: list[int], points: list[Point], working_set: Candidates) -> np.ndarray:
        """Return the relative gaps of points on the working set, `lanes` of them to a product."""
        empty = self.solver.lanes - len(points)
        fill = [0] * empty + list(range(len(points)))  # one compiled width for all
        problems = [self.grid.problems[places[lane]] for lane in fill]
        part = problems[0].restrict(working_set.places, gram=working_set.gram)
        parts = [(problem.y, problem.weights, points[i].x) for problem, i in zip(problems, fill, strict=True)]
        Cs = np.stack([np.asarray(problem.C) for problem in problems])
        stacked = (columns(vectors)[working_set.samples] for vectors in zip(*parts, strict=True))
        return np.asarray(_assess_points(part, Cs, *stacked))[empty:]

    def point(self, place: int, start: tuple[Array, Array] | None, working_set: Candidates) -> Point | None:
        """Solve a place by steps; margins outside its working set are those of the start.

        After Ctrl-C return the best certified point; None if there is none.
        """
        grid, whole = self.grid, self.grid.problems[place]
        steps = stepper(grid, place, len(working_set.samples), self.solver.inner_tol)
        all_samples = len(working_set.samples) == whole.n
        if start is None:
            fit = drive(whole, steps, self.key, stop=self.stop, options=PROVISIONAL)
            x, f = _scattered(fit.margins, np.arange(whole.n), fit)
        else:
            part = whole if all_samples else whole.restrict(working_set.places, gram=working_set.gram)
            point, margins, R = _on_working_set(*start, working_set.samples)
            fit = drive(part, steps, self.key, Start(point, margins, R, part), stop=self.stop, options=PROVISIONAL)
            x, f = _scattered(start[1], working_set.samples, fit)
        if int(fit.status) == Status.INTERRUPTED and not np.isfinite(fit.certificate.relative_gap):
            return None
        carried = int(fit.steps) if start is None or all_samples else None
        return Point(x, f, int(fit.steps), fit.kernel_evaluations, carried)


@Program
def _assess_points(template: SquaredHingeProblem, Cs: Array, y: Array, weight: Array, x: Array) -> Float[Array, " L"]:
    return assess.function(template, Lanes(y, reciprocals(weight * Cs[None, :]), x, x))[2]


def stepper(grid: Grid, place: int, samples: int, tol: float) -> Any:
    """Return the solver of a place on so many samples: pair steps, or up to 1,000 working sets if that is too slow."""
    steep = place >= len(grid.logs) - grid.steep
    large = samples >= MEASURED.samples_for_working_sets
    return sets.WorkingSet(tol=tol, max_steps=1000) if steep and large else FrankWolfe(tol=tol)


@Program
def _margins(signed: SignedGram, x: Array) -> tuple[Array, Array]:
    """Return a point with negative parts cut to 0, and its margins from scratch."""
    x = jnp.maximum(x, 0)
    return x, signed.matvec(x)


def _on_working_set(x: Any, f: Any, samples: np.ndarray) -> tuple[Array, Array, Array]:
    """Return weights on the simplex, margins and scale of a part of a point; on the host."""
    x, f = np.asarray(x)[samples], np.asarray(f)[samples]
    total = x.sum()
    return on_device(x / total), on_device(f), on_device(1 / total)


def _scattered(f: Any, samples: np.ndarray, fit: Fit) -> tuple[Array, Array]:
    """Return a fit on a working set as a point of the whole problem, whose other margins are f; on the host."""
    margins = np.array(f)
    x = np.zeros_like(margins)
    x[samples] = np.asarray(fit.alpha) / np.asarray(fit.R)
    margins[samples] = np.asarray(fit.margins)
    return on_device(x), on_device(margins)
