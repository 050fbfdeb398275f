"""Descend on linear SVMs of which passes over the rows see sums only, with certificates from planes.

    min over w, b    F(w, b) = w'w / 2 + sum_i c_i max(0, z_i)

Each pass evaluates one trial point: the loss, a plane below it and its Hessian. There are two kinds of steps:

    Newton     A ramp of width mu makes the hinge smooth (`losses.py`). At the optimum of the smooth F one plane proves
               all but what the ramp loses, of order mu^2 while many rows lie on it; so mu shrinks as Newton converges.
    few rows   Once few rows lie on the ramp, rows near the margin are fetched, and the problem with their hinges, all
               others being linear, is solved on the host. Its dual variables make another plane, and if no other row
               crosses the margin the step ends at the optimum.

A trial is accepted if the slope along the step has halved, else the step is shortened to where the slope would be 0.

Planes prove: for weights lambda on the simplex, with `sum lambda_t e_t = 0` if the constant is not regularised,
`D = sum lambda_t s_t - |sum lambda_t pull_t|^2 / 2` is a lower bound of F. The best weights are those of a small
program. Rows keep no state: what a run needs to go on is one `Lane` each SVM, and each pass serves all of them.

Sources: Chapelle 2007 (Newton's method on the primal); Teo, Vishwanathan, Smola, Le 2010 (planes).
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxsvm.designs.contract import Chunk, Design, Total
from jaxsvm.designs.losses import REACHES, Describe, Evaluate, Lanes, Near, Spread, Sums
from jaxsvm.designs.measured import MEASURED
from jaxsvm.designs.places.arrays import ArrayDesign, unless_halted
from jaxsvm.errors import InputError, require
from jaxsvm.loop.interruption import run_passes, until_halt, watching
from jaxsvm.numerics.hinge_program import ROUNDED, TURNS, hinge_minimum, simplex_maximum, solved
from jaxsvm.numerics.precision import rounding
from jaxsvm.results.fit import Certificate
from jaxsvm.results.judge import judged
from jaxsvm.runtime.arrays import TINY, device_memory, memory, require_memory, zero_filled


@dataclasses.dataclass
class Lane:
    """The descent of one SVM, in arrays and numbers of NumPy."""

    penalty: np.ndarray  # curvature of the regulariser, `(p,)`: 1; for the constant 1, or 0 if it is not regularised
    constant: bool  # whether there is a constant
    square: bool  # whether the hinges are squared
    mu: float  # width of the ramp; of squared hinges, which have none, the unit of `reach`
    w: np.ndarray  # the last accepted point, the constant last, `(p,)`
    step: np.ndarray  # the step from there, `(p,)`
    slope: float = 0.0  # derivative of F along it, with a minus sign
    t: float = 0.0  # part of the step to try next
    tries: int = 0  # how many trials of this step were refused
    idle: int = 0  # passes since P or D last improved
    reach: float = 0.0  # distance to the margin within which rows are to be fetched at w; 0: none
    best: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0))  # the point of the least value, `(p,)`
    P: float = np.inf  # its value, an upper bound of the optimum
    D: float = 0.0  # a lower bound of it
    s: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(1))  # constants of planes, `(k,)`; the first 0
    pull: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((1, 0)))  # slopes with a minus sign, `(k, p)`
    off: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(1))  # how much rounding may have raised them
    wide: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((1, 0)))  # and their slopes be off, `(k, p)`

    @staticmethod
    def at(w: np.ndarray, bias: str, square: bool, mu: float = MEASURED.first_ramp) -> "Lane":
        """Return a lane whose first trial is w, `(p,)`; a hinge begins with a ramp of width mu."""
        w = np.append(w[:-1], 0.0) if bias == "none" else w  # the start may be a fit with a constant
        penalty = np.ones(len(w))
        penalty[-1] = 0.0 if bias == "free" else 1.0
        mu = 1.0 if square else mu
        return Lane(penalty, bias != "none", square, mu, w, 0 * w, best=w, pull=0 * w[None], wide=0 * w[None])

    @property
    def trial(self) -> np.ndarray:
        """Return the point to evaluate next, `(p,)`."""
        return self.w + self.t * self.step

    def evaluated(self, sums: Total, tol: float, wide: np.ndarray | None = None) -> None:
        """Take the `Sums` at the trial point into account (for the curvature, what solves with it); choose the next."""
        w, loss, before = self.trial, float(sums.loss), (self.P, self.D)
        value = 0.5 * float(self.penalty @ w**2) + loss
        if value < self.P:
            self.P, self.best = value, w
        pull = self.add_plane(float(sums.s), sums.pull, wide=wide)
        self.raise_bound()
        self.idle = 0 if before != (self.P, self.D) else self.idle + 1
        gradient = self.penalty * w - pull
        slope = float(gradient @ self.step)
        if self.t > 0 and slope > MEASURED.slope_of_a_trial * self.slope and self.tries < MEASURED.refused_trials:
            self.t *= self.slope / (self.slope + slope)
            self.tries += 1
            return
        short = 0 < self.t < MEASURED.short_step
        self.w = w
        self.go(-self._solved(sums.curvature, gradient), gradient)
        lost = loss - (sums.s - float(pull @ w))
        left = max(self.slope / 2, MEASURED.share_of_a_ramp * tol * max(self.D, 0.0))
        self.reach = self._reach(sums.near, MEASURED.most_rows, short)
        if short and self.slope / 2 > lost and not self.square:
            self.mu /= MEASURED.narrowing
        elif lost > left and not self.square:
            self.mu *= float(np.clip(np.sqrt(left / lost), MEASURED.narrowing, 1))

    def _solved(self, curvature: Total, gradient: np.ndarray) -> np.ndarray:
        if callable(curvature):
            return np.asarray(curvature(gradient))
        H = curvature + np.diag(self.penalty)
        if not self.constant:
            H[-1] = H[:, -1] = np.eye(len(H))[-1]
        return solved(H, gradient)

    def _reach(self, near: np.ndarray, most: int, short: bool) -> float:
        """Return the reach within which rows are to be fetched; 0: none.

        They are if few rows have curvature, or a short step showed that others get some, or all rows are few.
        """
        curved = near[0 if self.square else 1]  # rows with curvature
        fits = np.flatnonzero(near <= most)
        few = short or curved < MEASURED.rows_near * len(self.w) or near[-1] <= most
        return REACHES[fits[-1]] * self.mu if few and len(fits) and fits[-1] > 0 else 0.0

    def go(self, step: np.ndarray, gradient: np.ndarray) -> None:
        """Choose a step from w, `(p,)`, with the gradient there."""
        self.step, self.slope, self.t, self.tries = step, -float(gradient @ step), 1.0, 0

    def add_plane(self, s: float, pull: np.ndarray, off: float = 0.0, wide: np.ndarray | None = None) -> np.ndarray:
        """Add a plane, which rounding raised by `off` near the best point at most; return the slopes that count."""
        pull = np.asarray(pull) if self.constant else np.append(pull[:-1], 0.0)
        self.s, self.pull = np.append(self.s, s), np.append(self.pull, pull[None], axis=0)
        self.off, wide = np.append(self.off, off), np.zeros_like(pull) if wide is None else wide
        self.wide = np.append(self.wide, wide[None], axis=0)
        return pull

    def raise_bound(self) -> np.ndarray:
        """Raise D to the best bound of the planes, of which few stay; return the point that they have least, `(p,)`."""
        e = np.where(self.penalty[-1] > 0, 0.0, self.pull[:, -1])  # slopes in a free constant
        weights = self._weights(e)
        alone = (np.arange(len(e)) == len(e) - 1).astype(float)  # near the optimum the last plane proves most
        self.D, least = max(self.D, self._bound(weights, e), self._bound(alone, e)), weights @ self.pull
        if len(self.s) > MEASURED.planes:
            worth = weights.copy()
            worth[[0, 1, 2, -3, -2, -1]] = np.inf
            kept = np.sort(np.argsort(-worth, kind="stable")[: MEASURED.planes // 2])
            self.s, self.pull, self.off, self.wide = (p[kept] for p in (self.s, self.pull, self.off, self.wide))
        return least

    def _bound(self, weights: np.ndarray, e: np.ndarray) -> float:
        """Return the bound that planes of these weights prove, less its rounding; -inf if slopes e cannot cancel."""
        slope = float(weights @ e)
        if slope != 0:  # a little of the plane that falls most the other way
            other = e.argmin() if slope > 0 else e.argmax()
            if not slope * e[other] < 0:
                return -np.inf
            weights = weights + (np.arange(len(e)) == other) * (-slope / e[other])
            weights = weights / weights.sum()
        slopes, sizes = weights @ self.pull, weights @ np.abs(self.pull)
        size = weights @ np.abs(self.s) + self.penalty * np.abs(slopes) @ sizes
        size = size + np.abs(self.best[-1]) * (weights @ np.abs(e))
        rounded = weights @ self.off + np.finfo(float).eps * size
        return float(weights @ self.s - 0.5 * self.penalty @ (np.abs(slopes) + weights @ self.wide) ** 2 - rounded)

    def _weights(self, e: np.ndarray) -> np.ndarray:
        both = e.min() < 0 < e.max()
        usable = np.ones(len(e), bool) if both else e == 0
        pull, weights = (self.pull * np.sqrt(self.penalty))[usable], np.zeros(len(e))
        weights[usable] = simplex_maximum(self.s[usable], pull @ pull.T, e if both else None)
        return weights

    def solve_near(self, rows: "Hinges", sums: Total) -> None:
        """Step to the optimum of the problem in which only these rows near the margin of w have hinges."""
        pull, constant, eps = sums.pull, rows.constant(rows.a, self.square), np.finfo(float).eps
        pull = pull if self.constant else np.append(pull[:-1], 0.0)
        linear, rest = pull - rows.a @ rows.X, float(sums.s) - constant
        off = eps * (abs(sums.s) + abs(constant) + 2 * np.abs(pull) @ np.abs(self.best))
        w, a = hinge_minimum(rows.X, rows.q, rows.c, linear, self.penalty, self.square, until_halt(range(TURNS)))
        gradient = self.penalty * self.w - linear - rows.a @ rows.X
        self.add_plane(rest + rows.constant(a, self.square), linear + a @ rows.X, off)
        self.raise_bound()
        if gradient @ (w - self.w) < 0:
            self.go(w - self.w, gradient)
        self.reach = 0.0

    def certificate(self, n: int, C: float, sizes: np.ndarray) -> Certificate:
        """Return the certificate of `best`, with allowances for the rounding of scores and of sums of n terms.

        A hinge is off by what its z is, a squared one by z times that, and so are planes, whose loss is that of D at
        most. `sizes`, of `Run`, bound such sums as the roots of sums of squares do.
        """
        P, D = np.float64(self.P), np.float64(self.D)
        terms, each = rounding(n, np.float64), rounding(len(self.best), np.float64)
        unit = 2 * (terms + each) * (np.abs(np.append(self.best, 1.0)) @ sizes)
        loss = np.maximum(P - 0.5 * self.penalty @ self.best**2, 0)
        losses = np.stack([loss, np.minimum(loss, D)])
        off = unit * (np.sqrt(2 * losses * C) + C * unit if self.square else np.full(2, C * sizes[-2])) * (P > 0)
        P, D = P + off[0] + 4 * terms * P, np.maximum(D - off[1], 0)
        return judged(P, D, abs(P - D) if ROUNDED * D >= D - P else P - D, D, rounding=ROUNDED * D)


@dataclasses.dataclass(frozen=True)
class Hinges:
    """Hinges of fetched rows, for one lane."""

    X: np.ndarray  # `sigma (x, 1)`, `(m, p)`
    q: np.ndarray  # where they begin, `(m,)`
    c: np.ndarray  # their factors, > 0, `(m,)`
    a: np.ndarray  # dual variables at the lane's point, `(m,)`

    def constant(self, a: np.ndarray, square: bool) -> float:
        """Return the constant of the plane of dual variables, `(m,)`."""
        return float(self.q @ a - (a @ (a / self.c) / 2 if square else 0))


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
        """Describe the rows in one pass; put lanes at `(l, d + 1)`, or at 0, or the optimum on a part of many rows."""
        needed, known = bytes_of(len(self.machines), self.design.d), [m for m in (memory(), device_memory()) if m]
        what = f"C is of {len(self.machines):,} machines (values, classes and folds), whose Hessians"
        require_memory(needed, what, "fit some at a time, or fewer features", min(known, default=None))
        design, classes = self.design, self.design.classes
        weights, x, moments = self.describe()
        require(self.weight > 0, "design has no row with a positive weight: at least one must count.")
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
            square, mu = self.evaluate.loss == "squared_hinge", MEASURED.first_ramp * unit
            w = np.zeros(design.d + 1) if init is None else _moved(init[number], -self.centre)
            if part is not None:
                w, mu = _moved(part.lanes[number].best, part.centre - self.centre), part.lanes[number].mu
            lane = Lane.at(w, self.bias, square, mu)
            if self.bias == "free":
                for s, pull in self._extremes(machine, weights[rows].sum(axis=0), x[rows].sum(axis=0), moments[rows]):
                    lane.add_plane(s, pull)
            self.lanes.append(lane)

    def describe(self) -> list[np.ndarray]:
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
        most = MEASURED.most_rows
        if n <= most:
            return None
        rows = self.design.chosen(Spread(n, min(most // 4, n // MEASURED.rows_per_start_row)))
        rows = rows._replace(first=np.int64(0))  # of evenly spread numbers, one fold might have all
        m = len(rows.weight)
        if not m:  # none of them has a weight
            return None
        share = self.weight / max(float(rows.weight.sum()), TINY)
        machines = [machine._replace(C=machine.C * share) for machine in self.machines]
        part = ArrayDesign(rows, m, self.design.classes)
        tol = min(MEASURED.tols_of_a_start * self.tol, MEASURED.rough_gap)
        run = Run(part, self.evaluate, machines, self.bias, self.epsilon, tol)
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
                lane.mu = 2 * max(float(np.quantile(z, min(1.0, (p / m) ** 0.5))), 1e-9)
        return run

    @property
    def going(self) -> list[int]:
        """Return the indices of the lanes that are neither certified nor stalled."""
        lanes = [k for k, lane in enumerate(self.lanes) if lane.idle <= MEASURED.idle_passes]
        return [k for k in lanes if not self.certificate(k).relative_gap <= self.tol]

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
    return 8 * (machines * p * (2 * p + MEASURED.planes) + 2 * p * MEASURED.most_rows)


@jax.jit(static_argnums=0)
def _hinges_of(evaluate: Evaluate, rows: Chunk, points: Lanes) -> Any:
    return evaluate.hinges(rows, points)


def _hinges(evaluate: Evaluate, rows: Chunk, points: Lanes) -> tuple[np.ndarray, ...]:
    """Return sigma, q, c and a of fetched rows, `(sides, m, l)`, by a program for each power of two from 256 on."""
    m = len(rows.weight)
    size = _rounded_up(max(m, 256))
    parts = (*rows[:3], np.broadcast_to(rows.first, m))
    padded = Chunk(*(zero_filled(part, size) for part in parts))
    with jax.enable_x64(True):
        return tuple(part[:, :m] for part in jax.device_get(unless_halted(_hinges_of, evaluate, padded, points)))


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
