"""Run the descents of many linear SVMs at once: each pass over the rows serves all that have not ended."""

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxsvm.designs.contract import Chunk, Design
from jaxsvm.designs.descent import Hinges, Lane
from jaxsvm.designs.losses import Describe, Evaluate, Lanes, Near, Spread, Sums
from jaxsvm.designs.measured import MEASURED
from jaxsvm.designs.places.arrays import ArrayDesign
from jaxsvm.errors import InputError
from jaxsvm.loop.interruption import run_passes, watching
from jaxsvm.results.fit import Certificate
from jaxsvm.runtime.arrays import device_memory, memory, require_memory, zero_filled


class Machine(NamedTuple):
    """One linear SVM."""

    C: float  # factor of the loss
    positive: int = 1  # the number of the class that is +1
    fold: int = -1  # the fold that is left out; -1: none


@dataclasses.dataclass
class Run:
    """The state of a run."""

    design: Design  # the rows
    evaluate: Evaluate  # what a pass computes
    machines: list[Machine]  # the SVMs
    bias: str  # "regularized", "none" or "free"
    epsilon: float  # half-width of the tube of regression
    tol: float  # the relative gap at which a machine ends
    lanes: list[Lane] = dataclasses.field(default_factory=list)  # their descents
    passes: int = 0  # over the rows
    weight: float = 0.0  # the sum of all weights
    centre: float = 0.0  # the mean of targets if the constant is free, else 0: lanes see targets less this
    # Roots of the weighted sums of squares of features, 1 and q: scores and losses round in such units.
    sizes: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0))
    # Sums that describe the rows, by which a resumed run checks that they are the same.
    described: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0))

    def begin(self, init: np.ndarray | None = None) -> None:
        """Describe the rows in one pass, and put each lane at its first point.

        Args:
            init: Points `(l, d + 1)`; None: 0, or the optimum on a small part of many rows.

        Raises:
            InputError: If a class has no row of positive weight, or the Hessians of the machines do not fit in memory.
        """
        needed, known = bytes_of(len(self.machines), self.design.d), [m for m in (memory(), device_memory()) if m]
        what = f"C is of {len(self.machines):,} machines (values, classes and folds), whose Hessians"
        require_memory(needed, what, "fit some at a time, or fewer features", min(known, default=None))
        design, classes = self.design, self.design.classes
        weights, x, moments = self.describe()
        if not self.weight > 0:
            raise InputError("design has no row with a positive weight: at least one must count.")
        first, second = moments.sum(axis=0) / self.weight  # of targets
        unit = 1.0 if classes is not None else float(np.sqrt(max(second - first**2, 0))) or 1.0
        part = None if init is not None else self.part_of_rows()
        for number, machine in enumerate(self.machines):
            _require_cost(machine.C * self.weight / design.n)
            rows = [k for k in range(self.evaluate.folds) if k != machine.fold]
            if machine.fold >= 0 and not weights[machine.fold].sum() > 0:
                raise InputError(
                    f"folds is {self.evaluate.folds}: fold {machine.fold} has no row with a positive weight."
                )
            if classes is not None:
                _require_both(weights[rows].sum(axis=0), classes, machine)
            square = self.evaluate.loss == "squared_hinge"
            mu = 1.0 if square else MEASURED.first_ramp * unit
            w = np.zeros(design.d + 1) if init is None else _moved(init[number], -self.centre)
            if part is not None:
                w, mu = _moved(part.lanes[number].best, part.centre - self.centre), part.lanes[number].mu
            lane = Lane.at(w, self.bias, square, mu)
            if self.bias == "free":
                for s, pull in self._extremes(machine, weights[rows].sum(axis=0), x[rows].sum(axis=0), moments[rows]):
                    lane.add_plane(s, pull)
            self.lanes.append(lane)

    def describe(self) -> Any:
        """Return weights, sums of features and moments of targets, of folds and classes, in one pass."""
        *found, squares = self.design.total(Describe(self.evaluate.folds, len(self.design.classes or ())))
        self.passes, self.described = self.passes + 1, np.concatenate([np.ravel(part) for part in found])
        self.weight, regression = float(found[0].sum()), self.design.classes is None
        first, second = found[2].sum(axis=0)
        if regression and self.bias == "free" and self.weight > 0:
            self.centre = float(first / self.weight)
        begins = 2 * (4 * second + self.epsilon**2 * self.weight) if regression else self.weight
        self.sizes = np.sqrt(np.append(squares, [self.weight, begins]))
        return found

    def _extremes(self, machine: Machine, weights: Any, x: Any, moments: Any) -> list[tuple[float, np.ndarray]]:
        """Return two planes whose slopes in a free constant have different signs: all `a = c` on one side."""
        many, C = weights.sum(), machine.C
        if self.design.classes is None:
            sums = np.append(x.sum(axis=0), many)
            y = moments[:, 0].sum() - self.centre * many
            return [(C * (sign * y - self.epsilon * many), sign * C * sums) for sign in (1.0, -1.0)]
        half = 0.5 if self.evaluate.loss == "squared_hinge" else 1.0
        own = np.append(x[machine.positive], weights[machine.positive])
        others = np.delete(np.arange(len(weights)), machine.positive)  # a difference would cancel small weights
        rest = np.append(x[others].sum(axis=0), weights[others].sum())
        return [(C * half * own[-1], C * own), (C * half * rest[-1], -C * rest)]

    def part_of_rows(self) -> "Run | None":
        """Solve the machines on a small part of many rows, to find the first point and ramp width for all rows.

        Scores of that point are off by about `sqrt(p / m)`, and so about that share of the rows is on the wrong side.
        """
        n, p = self.design.n, self.design.d + 1
        most = MEASURED.rows_fetched(p)
        if n <= most:
            return None
        rows = self.design.chosen(Spread(n, min(most // 4, n // MEASURED.rows_per_start_row)))
        rows = rows._replace(first=np.int64(0))  # of evenly spread numbers, one fold might have all
        m = len(rows.weight)
        if not m:  # none of them has a weight
            return None
        share = self.weight / max(float(rows.weight.sum()), 1e-300)
        machines = [machine._replace(C=machine.C * share) for machine in self.machines]
        part = ArrayDesign(rows, m, self.design.classes)
        run = Run(part, self.evaluate, machines, self.bias, self.epsilon, min(10 * self.tol, MEASURED.rough_gap))
        try:
            run.begin()
        except InputError:  # a class that is rare
            return None
        with watching() as stop:
            run_passes(run, lambda: run.passes >= MEASURED.start_passes or stop.seen, stop)
        for k, lane in enumerate(run.lanes):
            lane.w, lane.t = lane.best, 0.0
            if not lane.square:
                points = run.points([k])
                sigma, q, c, _ = (part[:, :, 0] for part in _hinges(self.evaluate, rows, points))
                z = np.abs(q - sigma * (rows.x @ lane.w[:-1] + lane.w[-1]))[c > 0]
                lane.mu = 2 * float(np.quantile(z, min(1.0, (p / m) ** 0.5)))
        return run

    @property
    def going(self) -> list[int]:
        """Return the indices of the lanes that are neither certified nor stalled."""
        idle = MEASURED.idle_passes
        return [
            k
            for k, lane in enumerate(self.lanes)
            if not self.certificate(k).relative_gap <= self.tol and lane.idle <= idle
        ]

    def best(self, lane: int) -> np.ndarray:
        """Return the best point of a lane, `(p,)`."""
        return _moved(self.lanes[lane].best, self.centre)

    def certificate(self, lane: int) -> Certificate:
        """Return the certificate of a lane."""
        return self.lanes[lane].certificate(self.design.n, self.machines[lane].C, self.sizes)

    def advance(self) -> None:
        """Evaluate the trial points of all lanes that have not ended; fetch rows for those that ask for them."""
        going = self.going
        places = going + [going[-1]] * (_rounded_up(len(going)) - len(going))
        points = self.points(places)
        sums = [Sums(*parts) for parts in zip(*self.design.total(self.evaluate, points), strict=True)]
        self.passes += 1
        for place, k in enumerate(going):
            self.lanes[k].evaluated(sums[place], self.tol)
        asking = [place for place, k in enumerate(going) if self.lanes[k].reach > 0 and k in self.going]
        if not asking:
            return
        reach = np.full(len(places), -1.0)
        reach[asking] = [self.lanes[going[place]].reach for place in asking]
        rows = self.design.chosen(Near(self.evaluate), points, reach)
        self.passes += 1
        if not len(rows.weight):
            return
        sigma, q, c, a = _hinges(self.evaluate, rows, points)
        X = np.column_stack([rows.x, np.ones(len(rows.weight))])
        for place in asking:
            lane = self.lanes[going[place]]
            side, row = np.nonzero(c[:, :, place] > 0)
            signed = sigma[side, row, place][:, None] * X[row]
            if not lane.constant:
                signed[:, -1] = 0
            hinges = Hinges(signed, *(part[side, row, place] for part in (q, c, a)))
            lane.solve_near(hinges, sums[place])

    def points(self, places: list[int]) -> Lanes:
        """Return the trial points of some lanes."""
        lanes, machines = [self.lanes[k] for k in places], [self.machines[k] for k in places]
        return Lanes(
            np.stack([lane.trial for lane in lanes]),
            np.asarray([machine.C for machine in machines], float),
            np.asarray([machine.positive for machine in machines], np.int32),
            np.asarray([machine.fold for machine in machines], np.int32),
            np.asarray([lane.mu for lane in lanes], float),
            np.full(len(places), float(self.epsilon)),
            np.full(len(places), self.centre),
        )


def bytes_of(machines: int, d: int) -> int:
    """Return the bytes that machines of d features take beside the rows: two Hessians, planes, and rows fetched."""
    p = d + 1
    return 8 * (machines * p * (2 * p + MEASURED.planes) + 2 * p * MEASURED.rows_fetched(p))


@partial(jax.jit, static_argnums=0)
def _hinges_of(evaluate: Evaluate, rows: Chunk, points: Lanes) -> Any:
    return evaluate.hinges(rows, points)


def _hinges(evaluate: Evaluate, rows: Chunk, points: Lanes) -> tuple[np.ndarray, ...]:
    """Return sigma, q, c and a of fetched rows, `(sides, m, l)`, from a few sizes of programs."""
    m = len(rows.weight)
    size = _rounded_up(max(m, 256))
    parts = (*rows[:3], np.broadcast_to(rows.first, m))
    padded = Chunk(*(zero_filled(part, size) for part in parts))
    with jax.enable_x64(True):
        return tuple(part[:, :m] for part in jax.device_get(_hinges_of(evaluate, padded, points)))


def _moved(w: np.ndarray, constant: float) -> np.ndarray:
    return np.append(w[:-1], w[-1] + constant)


def _rounded_up(count: int) -> int:
    return 1 << (count - 1).bit_length()


def _require_cost(cost: float) -> None:
    """Refuse a cost of a row whose losses float64 flushes to 0, which would prove an optimum of 0, or overflow."""
    least = float(np.finfo(float).tiny / np.finfo(float).eps)
    if not least <= cost <= 1 / least:
        raise InputError(
            f"C times the mean weight is {cost:.3g}: from {least:.3g} to {1 / least:.3g} is needed; change C, or the "
            "unit of the weights."
        )


def _require_both(weights: np.ndarray, classes: tuple[Any, ...], machine: Machine) -> None:
    others = np.delete(weights, machine.positive).sum()
    for name, weight in ((classes[machine.positive], weights[machine.positive]), ("the others", others)):
        if not weight > 0:
            where = "" if machine.fold < 0 else f" outside fold {machine.fold}"
            raise InputError(f"y has no row of class {name} with a positive weight{where}: two classes are needed.")
