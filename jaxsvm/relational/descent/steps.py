"""What a descent sees of a join, and methods of a fit; `fit.py` chooses.

A point is evaluated on the rows of the join (`Formed`), from counts (`Counted`) or by a database (`Queried`). Methods
are `designs.descent.Lane`, products with all rows of many features, as in `LinearSVC`, and the steps of the paper.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import time
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import numpy as np
from scipy.sparse import csr_array, diags_array  # jax depends on SciPy
from scipy.sparse.linalg import aslinearoperator, cg

from jaxsvm.designs.descent import Hinges, Lane
from jaxsvm.designs.losses import REACHES, Sums
from jaxsvm.designs.measured import MEASURED as DESIGNS
from jaxsvm.loop.interruption import Interruption, run_passes
from jaxsvm.numerics.hinge_program import RIDGE, minimum_by_products
from jaxsvm.relational.descent.rows import Design, rows_of, sample
from jaxsvm.relational.gradient.engine import PseudoGradient, far_counts, from_counts, gradient_interval
from jaxsvm.relational.measured import MEASURED
from jaxsvm.relational.schema.join import Streamed
from jaxsvm.results.fit import Certificate
from jaxsvm.runtime.arrays import TINY, memory

MANY_FEATURES = 500  # coefficients above which rows are not fetched: a fit begins by products with all of them
MOST_BINS = 1 << 14  # of scores, for each of their root mean square
LARGEST_SYSTEM = 1000  # order of a dense system, from which on conjugate gradients take over


class Formed:
    """Rows of a join with their features, dense or sparse: all of them, or drawn ones."""

    def __init__(self, X: Any, y: np.ndarray, weight: np.ndarray, at: Any = None, total: Any = None) -> None:
        """Take features, `(n, d)`, signs, weights, the kept rows of the label's table, `(n,)`, and all rows' weight."""
        self.X, self.y, self.share, self.at = X, y, weight / (total or weight.sum()), at
        self.n, self.d = X.shape

    @property
    def few(self) -> Formed | None:
        """Return some of the rows, evenly spread, to begin with; None if all are few."""
        n, most = self.n, DESIGNS.most_rows
        if n <= most:
            return None
        size = min(most // 4, n // DESIGNS.rows_per_start_row)
        index = np.arange(size) * n // size
        return Formed(self.X[index], self.y[index], self.share[index])

    def _pieces(self, beta: np.ndarray, C: float, mu: float, squared: bool) -> tuple[np.ndarray, ...]:
        """Return slacks, factors of the losses and dual variables, `(n,)` each."""
        z, c = 1 - self.y * (self.X @ beta), C * self.share
        return z, c, c * (np.maximum(z, 0) if squared else np.clip(z / mu + 0.5, 0, 1))

    def sums(self, beta: np.ndarray, C: float, mu: float, squared: bool) -> tuple[Sums, None]:
        """Return the sums at a point, `(d,)`, whose constant is one of the features."""
        z, c, a = self._pieces(beta, C, mu, squared)
        loss = float(a @ z / 2 if squared else c @ np.maximum(z, 0))
        constant, pull = a.sum() - (loss if squared else 0), np.append(self.X.T @ (self.y * a), 0.0)
        curvature = np.where(z > 0, c, 0) if squared else np.where(np.abs(z) < mu / 2, c / mu, 0)
        near = np.full(len(REACHES), np.inf)  # no rows are fetched
        if self.d <= MANY_FEATURES:
            place = np.searchsorted(np.multiply(REACHES, mu), -z if squared else np.abs(z))
            near = np.bincount(place, minlength=len(REACHES)).cumsum()[: len(REACHES)]
        parts: Any = (loss, constant, pull, partial(self.solved, curvature), near)
        return Sums(*parts), None

    def hinges(self, beta: np.ndarray, C: float, mu: float, squared: bool, reach: float) -> Hinges:
        """Return the hinges of the rows within reach of the margin."""
        z, c, a = self._pieces(beta, C, mu, squared)
        index = np.flatnonzero((-z if squared else np.abs(z)) <= reach)
        X = self.X[index] if isinstance(self.X, np.ndarray) else self.X[index].toarray()
        X = np.append(self.y[index, None] * X, np.zeros((len(index), 1)), axis=1)
        return Hinges(X, np.ones(len(index)), c[index], a[index])

    def solved(self, D: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Solve `(I + X' diag(D) X) v = b`, `(d + 1,)`, whose last entry is 0."""
        few, chunk, d = np.flatnonzero(D), 1 << 16, self.d  # rows that are copied at a time
        parts = [few[begin : begin + chunk] for begin in range(0, len(few), chunk)]
        if d <= LARGEST_SYSTEM:
            H: Any = np.eye(d)
            for part in parts:
                X = self.X[part]
                H = H + X.T @ (X * D[part, None])
            return solved_densely(H, b)
        X = self.X if isinstance(self.X, csr_array) else csr_array(self.X)
        scale = 1 / np.sqrt(1 + (X * X).T @ D)
        right = X[few] * np.sqrt(D[few])[:, None] * scale
        left, system = right.T.tocsr(), aslinearoperator(diags_array(scale**2))
        system = system + aslinearoperator(left) @ aslinearoperator(right)
        return np.append(scale * cg(system, scale * b[:-1], rtol=1e-10, maxiter=4000)[0], 0.0)


def solved_densely(H: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Solve `H v = b`, whose last entry is 0, `(d + 1,)`."""
    scale, ridge = 1 / np.sqrt(np.diagonal(H)), RIDGE * len(H) * np.eye(len(H))  # I may be lost in what is added to it
    return np.append(scale * np.linalg.solve(H * scale * scale[:, None] + ridge, scale * b[:-1]), 0.0)


def all_formed(join: Any, wanted: bool) -> Formed | None:
    """Return all rows of a join with their features if they fit in memory and are few, or are wanted; else None."""
    ratio = MEASURED.formed_ratio * sum(len(block.X) for block in join.blocks)
    few = np.inf if wanted else max(MEASURED.formed_rows, ratio)
    room = (memory() or np.inf) / 4 / (16 * max(join.entries, 1))  # a quarter of it, 16 bytes an entry
    return None if (found := rows_of(join, min(MEASURED.auto_rows, few, room))) is None else _formed(found)


def _formed(rows: Design) -> Formed:
    return Formed(rows.x, rows.y, rows.weight, rows.place[rows.join.tree.label])


def against(rows: Any, join: Any) -> Any:
    """Return the rows with other labels, those of a join."""
    out = copy.copy(rows)
    if isinstance(rows, Formed):
        out.y = join.tree.y[rows.at]
    else:
        out.join, out.few = join, rows.few and against(rows.few, join)
        out.engine = rows.engine and rows.engine.against(join)
    return out


class Counted:
    """A join of which an engine counts the far rows, with drawn rows for what has few digits: Hessians."""

    def __init__(self, join: Any, engine: Any) -> None:
        """Take a scaled join, and its engine."""
        self.join, self.engine, self.n = join, engine, 0

    @cached_property
    def few(self) -> Formed | None:
        """Return drawn rows of the join; None of one that is streamed."""
        many = int(np.clip(MEASURED.hessian_rows_per_coefficient * self.join.d, *MEASURED.hessian_rows))
        return None if isinstance(self.join, Streamed) else _formed(sample(self.join, many, 0))

    def counts(self, beta: Any, mode: str, guard: float = 0, ramp: float = 0, lam: float = 0) -> PseudoGradient:
        """Count in one pass, and compute the pseudo-gradient."""
        far = far_counts(self.join, beta, guard=guard, mode=mode, engine=self.engine, ramp=ramp)
        return from_counts(self.join, beta, lam, far)

    def plane(self, beta: np.ndarray, unit: float, ramp: float = 0.0) -> tuple[Any, ...]:
        """Return the plane below unit times the mean hinge at a point: `unit mean hinge >= s - pull.(beta, 0)`.

        It is an upper bound of the loss there, s, pull `(d + 1,)`, and by how much pull may be off, `(d + 1,)`: None of
        exact counts. Of counts that are bounds it takes two passes.
        """
        if not self.engine.bounds:
            counted = self.counts(beta, "mid", ramp=ramp)
            return unit * counted.objective, unit * counted.far, np.append(-unit * counted.gradient, 0.0), None
        low, high = (self.counts(beta, mode) for mode in ("lower", "upper"))
        least, most = gradient_interval(low, high)
        middle, wide = (np.append(unit / 2 * part, 0.0) for part in (-(least + most), most - least))
        return unit * high.objective, unit * low.far, middle, wide

    def sums(self, beta: np.ndarray, C: float, mu: float, squared: bool) -> tuple[Sums, np.ndarray | None]:
        """Return the sums at a point, `(d,)`, with curvatures of drawn rows, and by how much slopes may be off."""
        ramp = max(mu / 2, 1e-6)
        loss, s, pull, wide = self.plane(beta, C, ramp)
        parts: Any = (loss, s, pull, self.curvature(beta, C, ramp, squared), np.full(len(REACHES), np.inf))
        return Sums(*parts), wide

    def curvature(self, beta: np.ndarray, C: float, ramp: float, squared: bool) -> Any:
        """Return the curvature of drawn rows at a point, of a ramp in which enough of them have some."""
        few: Any = self.few
        z = np.sort(np.abs(1 - few.y * (few.X @ beta)))
        seen = float(z[min(MEASURED.rows_of_a_ramp * few.d, len(z) - 1)])
        return few.sums(beta, C, 2 * max(ramp, seen), squared)[0].curvature


class Queried(Counted):
    """Rows of a join that a database counts, by bins of their scores: each evaluation is a query.

    The bins of a row have its score as mean, so its loss is at most theirs (Jensen), and the mean of dual variables
    there is one of the row, which gives a plane: both are bounds at any width.
    """

    def __init__(self, join: Any, tol: float) -> None:
        """Take a scaled join, and the relative gap at which the fit ends."""
        super().__init__(join, None)
        self.tol, self.least, self.times, self.squares = tol, 2.0, 1, join.means("square")
        of: Any = join.moments() if isinstance(join, Streamed) else None
        self.normal = of and of.second - np.outer(of.mean, of.mean)  # the covariance of the features

    def sums(self, beta: np.ndarray, C: float, mu: float, squared: bool) -> tuple[Sums, None]:
        """Return the sums at a point, `(d,)`, with curvatures of drawn rows, or of normal ones of the same scores."""
        # Of scores about as large as this a share of h / spread is near the margin, and each row there h / 8 off, but
        # for rows at the margin, since 1 / h is whole.
        spread = 1.0 if squared else 1 + float(np.abs(beta) @ self.squares**0.5)
        h = max(1 / np.ceil(2 * self.times / (self.tol * self.least * spread) ** 0.5), spread / MOST_BINS)
        y, z, mass, X = self.join.histogram(self.join.linear(beta), h, features=True)
        slack, c, mu = 1 - y * z, C * mass / float(self.join.size), max(mu, 4 * h)
        a = c * (np.maximum(slack, 0) if squared else np.clip(slack / mu + 0.5, 0, 1))
        loss, X = float(a @ slack / 2 if squared else c @ np.maximum(slack, 0)), X / np.maximum(mass, TINY)[:, None]
        value = (loss + float(beta @ beta) / 2) / C * (1 + squared)
        self.times, self.least = self.times * (1 + (value >= self.least)), min(self.least, value)
        if self.normal is None:
            curvature = self.curvature(beta, C, mu / 2, squared)
        else:
            order, rows = np.argsort(np.abs(slack)), min(self.join.terms, MEASURED.hessian_rows[0])
            share = min(MEASURED.rows_of_a_ramp * len(beta) / rows, 0.9)
            seen = np.abs(slack)[order][np.searchsorted(np.cumsum(c[order]), share * c.sum())]
            half = max(mu / 2, seen)  # within which enough of the rows have curvature
            near = np.where(slack > 0, c, 0) if squared else np.where(np.abs(slack) <= half, c / (2 * half), 0)
            pull = self.normal @ beta
            rest = self.normal - np.outer(pull, pull) / max(float(beta @ pull), TINY)
            curvature = partial(solved_densely, np.eye(len(beta)) + X.T @ (X * near[:, None]) + near.sum() * rest)
        s, pull = a.sum() - loss * squared, np.append(X.T @ (y * a), 0.0)
        parts: Any = (loss, s, pull, curvature, np.full(len(REACHES), np.inf))
        return Sums(*parts), None


class Squares:
    """A scaled join whose label is a number t: `C mean (t - beta.x)^2 / 2` by moments, with allowances for rounding."""

    def __init__(self, join: Any) -> None:
        self.few, self.n, t, of = None, 0, join.targets, copy.copy(join)
        of.tree = dataclasses.replace(join.tree, y=t)
        self.moments, self.square = of.moments(), float(join.counts()[join.tree.label] @ t**2 / join.size)
        self.sizes, terms = np.sqrt(np.diagonal(self.moments.second)), join.terms
        self.rounded = np.finfo(float).eps * (4 + terms**0.5 / 16)  # four times that of a sum

    def sums(self, beta: np.ndarray, C: float, mu: float, squared: bool) -> tuple[Sums, np.ndarray]:
        """Return the sums at a point, `(d,)`, and by how much slopes may be off."""
        S, m, size = self.moments.second, self.moments.label_mean, self.square**0.5 + np.abs(beta) @ self.sizes
        pull, off, near = C * (m - S @ beta), C / 2 * self.rounded * size**2, np.full(len(REACHES), np.inf)
        loss = C / 2 * (self.square - float(beta @ m)) - float(beta @ pull) / 2
        newton = partial(solved_densely, np.eye(len(S)) + C * S)
        parts: Any = (loss + off, loss - off + float(pull @ beta), np.append(pull, 0.0), newton, near)
        return Sums(*parts), np.append(C * self.rounded * size * self.sizes, 0.0)


@dataclasses.dataclass
class Descent:
    """Descend by Newton steps, planes and fetched rows, each turn from one evaluation.

    The lane minimises `F / (2 lam)`: with shares of rows, `|beta|^2 / 2 + unit mean loss`, where `unit = 1 / (2 lam)`.
    """

    rows: Any  # `Formed`, `Counted`, `Queried` or `Squares`
    lane: Lane  # its constant is 0
    unit: float
    tol: float = 0.0  # the relative gap at which to end
    max_steps: int = 1  # the most evaluations
    stop: Interruption = dataclasses.field(default_factory=Interruption)
    deadline: float = math.inf  # by `time.monotonic`
    callback: Callable[[int, float, float], Any] | None = None  # called with the number of evaluations, D and P
    sizes: np.ndarray = dataclasses.field(default_factory=lambda: np.ones(1))  # of features: see `Lane.certificate`
    terms: int = 1  # number of terms of a sum
    taken: int = 0  # number of evaluations
    history: list[list[float]] = dataclasses.field(default_factory=list)  # D, P and an estimate of F after each turn
    stopped: bool = False  # whether it was interrupted or out of time
    finite: bool = True  # whether the last estimate of F was finite

    @property
    def C(self) -> float:
        """Return the factor of the lane's losses, of which a squared one has a half."""
        return self.unit * (1 + self.lane.square)

    @property
    def going(self) -> bool:
        """Return whether further turns may change anything."""
        return self.finite and self.lane.idle <= DESIGNS.idle_passes

    def certificate(self) -> Certificate:
        """Return the certificate of F."""
        P, D, gap = self.lane.certificate(self.terms, self.C, self.sizes)
        if not (self.lane.best.any() or isinstance(self.rows, Squares)):  # every loss is 1, without rounding
            P = np.minimum(P, self.unit)
        parts: Any = (P / self.unit, D / self.unit, np.float64(gap))
        return Certificate(*parts)

    def over(self) -> bool:
        """Return whether to end: certified, at the cap, interrupted or out of time."""
        self.stopped = self.stopped or self.stop.seen or time.monotonic() > self.deadline
        return self.stopped or self.taken >= self.max_steps or bool(self.certificate().relative_gap <= self.tol)

    def record(self, estimate: float) -> None:
        """Append a line to the history, and call the callback."""
        self.history.append([self.lane.D / self.unit, self.lane.P / self.unit, estimate / self.unit])
        if self.callback is not None:
            self.callback(self.taken, *self.history[-1][:2])

    def run(self) -> None:
        """Take turns until the end."""
        if isinstance(self.rows, Formed) and self.rows.d > MANY_FEATURES:
            self.solve_by_products(self.rows)
        else:
            self.start()
        run_passes(self, self.over, self.stop)
        self.over()  # an evaluation that Ctrl-C ended is none

    def solve_by_products(self, rows: Formed) -> None:
        """Begin at the optimum, as far as products with the rows find it: one evaluation, which nothing interrupts."""
        lane, c = self.lane, self.C * rows.share
        found = minimum_by_products(rows.X, rows.y, c, lane.square, 0.5 * self.tol)  # rounding is added
        lane.w, a = np.append(found.w, 0.0), found.a
        s = a.sum() - (a @ (a / c) / 2 if lane.square else 0)
        lane.add_plane(float(s), np.append(rows.X.T @ (rows.y * a), 0.0))
        lane.raise_bound()
        self.taken += 1
        if found.value < lane.P:
            lane.P, lane.best = found.value, lane.w
        self.record(found.value)

    def start(self) -> None:
        """Begin at the optimum of few rows, and with the ramp that suits it."""
        part, p, square = self.rows.few, self.lane.w.size, self.lane.square
        if part is None:
            return
        lane, passes = Lane.at(self.lane.w, "none", square, self.lane.mu), DESIGNS.start_passes
        few = Descent(part, lane, self.unit, DESIGNS.tols_of_a_start * self.tol, passes, self.stop, self.deadline)
        few.sizes = self.sizes
        few.run()
        self.lane.w = self.lane.best = few.lane.best
        if not square:
            z = np.abs(1 - part.y * (part.X @ lane.best[:-1]))
            self.lane.mu = 2 * max(float(np.quantile(z, min(1.0, (p / len(z)) ** 0.5))), 1e-9)  # many lie at it

    def advance(self) -> None:
        """Evaluate the trial point, and choose the next one."""
        lane, C = self.lane, self.C
        sums, wide = self.rows.sums(lane.trial[:-1], C, lane.mu, lane.square)
        self.finite, self.taken = bool(np.isfinite(sums.loss)), self.taken + 1
        if self.finite:
            value, mu = float(lane.trial @ lane.trial) / 2 + float(sums.loss), lane.mu
            lane.evaluated(sums, self.tol, wide)
            if lane.reach > 0 and not self.certificate().relative_gap <= self.tol:
                hinges: Any = self.rows.hinges(lane.w[:-1], C, mu, lane.square, lane.reach)
                if len(hinges.q):
                    lane.solve_near(hinges, sums)
            elif lane.idle > 1:  # few pieces matter, and planes find their corner
                near = 0.5 ** (lane.idle // 3)  # the longer nothing helps, the nearer to the best point
                lane.w, lane.t = lane.best + near * (lane.raise_bound() - lane.best), 0.0
            self.record(value)


@dataclasses.dataclass
class PaperDescent(Descent):
    """Descend by the steps of the paper, with its guard, projection and choice of a point.

    Planes of exact counts are kept, and D is sought at every tenth step and at the end. Of counts that are bounds a
    proof takes two passes: it is sought at the chosen point only, at the end.
    """

    eps: float = 0.1  # the guard
    delta: float = 0.0  # that of Theorem 2, after whose steps to end; 0: none
    mean: bool = False  # whether to take the steps of Theorem 1, and the mean of all points
    total: Any = 0.0  # the sum of all points
    least: float = np.inf  # the least estimate of F, in the units of the lane
    chosen: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0))  # the point of that estimate
    upper: float = np.inf  # an upper bound there

    @property
    def going(self) -> bool:
        """Return whether fewer steps are taken than those of Theorem 2, by the least estimate so far."""
        root = 512 * (self.lane.w.size - 1) ** 1.5 * self.unit / max(self.delta * self.least / self.unit, TINY)
        return super().going and (self.taken == 0 or math.sqrt(self.taken) < root)

    def evaluate(self, beta: np.ndarray) -> float:
        """Add the plane at a point; return the upper bound of F there."""
        loss, s, pull, wide = self.rows.plane(beta, self.unit)
        self.lane.add_plane(s, pull, wide=wide)
        return float(beta @ beta) / 2 + loss

    def advance(self) -> None:
        """Evaluate the point, and take one step."""
        lane, d, beta, lam = self.lane, self.lane.w.size - 1, self.lane.w[:-1], 1 / (2 * self.unit)
        upper, self.taken = np.inf if self.rows.engine.bounds else self.evaluate(beta), self.taken + 1
        if upper < lane.P:
            lane.P, lane.best = upper, lane.w
        guarded = self.rows.counts(beta, "lower", self.eps, lam=lam)
        estimate = self.unit * guarded.objective
        self.finite = bool(np.isfinite(estimate))
        if estimate < self.least:
            self.least, self.chosen, self.upper = estimate, beta, upper
        self.total = self.total + beta
        after = beta - guarded.gradient / ((8 if self.mean else 1) * lam * np.sqrt(d * self.taken))
        lane.w = np.append(after * min(1.0, np.sqrt(d) / (2 * lam) / max(np.linalg.norm(after), TINY)), 0.0)
        if self.taken % 10 == 0:  # a bound costs more than a step
            lane.raise_bound()
        self.record(estimate)

    def run(self) -> None:
        """Take steps from 0, then the choice of all points, whose own objective is P, and raise D."""
        run_passes(self, self.over, self.stop)
        if self.taken:
            if self.mean:
                self.chosen, self.upper = self.total / self.taken, np.inf
            self.upper = self.evaluate(self.chosen) if self.upper == np.inf else self.upper
            self.lane.P, self.lane.best = self.upper, np.append(self.chosen, 0.0)
        self.lane.raise_bound()
        if self.history:
            self.history[-1][:2] = [self.lane.D / self.unit, self.lane.P / self.unit]
