"""Methods of a fit over a join: `designs.descent.Lane`, interior points, steps of subgradients; `fit.py` chooses."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxsvm.designs.descent import Lane
from jaxsvm.designs.measured import MEASURED
from jaxsvm.loop.interruption import Interruption, run_passes
from jaxsvm.numerics.hinge_program import step_inside
from jaxsvm.relational.descent.rows import MANY_FEATURES, Counted, Formed, Plane
from jaxsvm.results.fit import Certificate


@dataclasses.dataclass
class Descent:
    """Descend by Newton steps, planes and fetched rows, each turn from one evaluation.

    The lane minimises `F / (2 lam)`: with shares of rows, `|beta|^2 / 2 + unit mean loss`, where `unit = 1 / (2 lam)`.
    """

    rows: Any  # `Formed` or `Counted`
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
        return self.finite and self.lane.idle <= MEASURED.idle_passes

    def certificate(self) -> Certificate:
        """Return the certificate of F."""
        P, D, gap = self.lane.certificate(self.terms, self.C, self.sizes)
        if not self.lane.best.any():  # every loss is 1, without rounding
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
        if len(self.lane.s) == 1:
            self.start()
        run_passes(self, self.over, self.stop)

    def go_on_from(self, other: Descent) -> None:
        """Begin at the best point of another descent over the same rows; its planes are scaled."""
        lane, known, more = self.lane, other.lane, self.unit / other.unit
        lane.w = lane.best = known.best
        lane.mu, lane.s, lane.pull = known.mu, more * known.s, more * known.pull
        lane.off, lane.wide = more * known.off, more * known.wide
        lane.raise_bound()

    def start(self) -> None:
        """Begin at the optimum of few rows, and with the ramp that suits it."""
        p = self.lane.w.size
        most = MEASURED.rows_fetched(p)
        if isinstance(self.rows, Counted):
            part = self.rows.drawn
        elif len(self.rows.y) > most and self.rows.d <= MANY_FEATURES:
            part = self.rows.part(min(most // 4, len(self.rows.y) // MEASURED.rows_per_start_row))
        else:
            return
        lane = Lane.at(self.lane.w, "none", self.lane.square, self.lane.mu)
        few = kind_for(part, lane.square)(
            part, lane, self.unit, 10 * self.tol, MEASURED.start_passes, self.stop, self.deadline
        )
        few.sizes = self.sizes
        few.run()
        self.lane.w = self.lane.best = few.lane.best
        if not lane.square:
            z = np.abs(1 - part.y * (part.X @ lane.best[:-1]))
            self.lane.mu = 2 * float(np.quantile(z, min(1.0, (p / len(z)) ** 0.5)))

    def advance(self) -> None:
        """Evaluate the trial point, and choose the next one."""
        lane, C = self.lane, self.C
        sums = self.rows.sums(lane.trial[:-1], C, lane.mu, lane.square)
        self.finite, self.taken = bool(np.isfinite(sums.loss)), self.taken + 1
        if self.finite:
            value, mu = float(lane.trial @ lane.trial) / 2 + float(sums.loss), lane.mu
            lane.evaluated(sums, self.tol, sums.wide)
            if lane.reach > 0 and not self.certificate().relative_gap <= self.tol:
                hinges: Any = self.rows.hinges(lane.w[:-1], C, mu, lane.square, lane.reach)
                if len(hinges.q):
                    lane.solve_near(hinges, sums)
            elif lane.idle > 1:  # few pieces matter, and planes find their corner
                near = 0.5 ** (lane.idle // 3)  # the longer nothing helps, the nearer to the best point
                lane.w, lane.t = lane.best + near * (lane.raise_bound() - lane.best), 0.0
            self.record(value)


@dataclasses.dataclass
class InteriorPoints(Descent):
    """Descend by primal-dual interior points over rows of many features; where rounding ends them, as `Descent`.

    The dual is `max unit mean(a) - |unit mean(a y x)|^2 / 2` over `a` in [0, 1]. Each a is a plane that proves its own
    value, and `unit mean(a y x)` is the next point. The systems are `I + X' S X`, for any N (Ferris, Munson,
    "Interior-Point Methods for Massive Support Vector Machines", SIAM J. Optimization 2002).
    """

    a: Any = None  # the dual variables, `(n,)`; None before the first turn
    under: Any = None  # slacks of `a >= 0`, `(n,)`
    above: Any = None  # slacks of `a <= 1`, `(n,)`
    inside: bool = True  # whether steps are long enough

    def advance(self) -> None:
        """Take one step, or a turn of `Descent`."""
        if self.inside and self.a is not None:
            self.inside = self._step() > 1e-6
        if not self.inside:
            super().advance()
            return
        rows, lane, share = self.rows, self.lane, self.rows.share
        if self.a is None:
            self.a, self.under, self.above = np.full(len(share), 0.5), share.copy(), share.copy()
        beta = self.unit * (rows.X.T @ (share * self.a * rows.y))
        lane.w = np.append(beta, 0.0)
        lane.add_plane(self.unit * float(share @ self.a), lane.w)
        lane.raise_bound()
        value = float(beta @ beta) / 2 + self.unit * float(share @ np.maximum(1 - rows.y * (rows.X @ beta), 0))
        self.finite, self.taken = bool(np.isfinite(value)), self.taken + 1
        if value < lane.P:
            lane.P, lane.best = value, lane.w
        self.record(value)

    def _step(self) -> float:
        """Take one step; return its length."""
        X, y, share, a, under, over = self.rows.X, self.rows.y, self.rows.share, self.a, self.under, self.above
        t = 0.1 * float(under @ a + over @ (1 - a)) / (2 * len(y))
        D = under / a + over / (1 - a)
        slope = share * (1 - y * (X @ self.lane.w[:-1])) + t / a - t / (1 - a)
        right = np.append(self.unit * (X.T @ (share * y * slope / D)), 0.0)
        inner = self.rows.solved(self.unit * share**2 / D, right)[:-1]
        change = (slope - share * y * (X @ inner)) / D
        d_under, d_over = t / a - under - under / a * change, t / (1 - a) - over + over / (1 - a) * change
        step = step_inside((a, change), (1 - a, -change), (under, d_under), (over, d_over))
        self.a, self.under, self.above = a + step * change, under + step * d_under, over + step * d_over
        return step


def kind_for(rows: Formed | Counted, squared: bool) -> type[Descent]:
    """Return the descent for rows: interior points for the hinge of many features, else `Descent`."""
    return InteriorPoints if isinstance(rows, Formed) and rows.d > MANY_FEATURES and not squared else Descent


@dataclasses.dataclass
class Subgradient(Descent):
    """Descend by steps `1 / (2 lam t)`, or by those of the paper with its guard, projection and choice.

    D is sought at every tenth step and at the end. A proof from counts that are bounds takes two passes: it is sought
    in the last 8 steps only; of the paper's steps in the last one, at the chosen point.
    """

    paper: bool = False
    eps: float = 0.1  # the guard
    least: float = np.inf  # the least estimate of F, in the units of the lane
    chosen: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0))  # the paper's choice: its point
    upper: float = np.inf  # an upper bound there

    def evaluate(self, beta: np.ndarray, proof: bool) -> tuple[Plane, float]:
        """Add the plane at a point; also return the upper bound of F there."""
        plane, lane, value = self.rows.plane(beta, False, proof=proof), self.lane, float(beta @ beta) / 2
        self.taken, self.finite = self.taken + 1, bool(np.isfinite(plane.estimate))
        if not np.isnan(plane.s):
            wide = None if plane.wide is None else np.append(self.unit * plane.wide, 0.0)
            lane.add_plane(self.unit * plane.s, np.append(self.unit * plane.pull, 0.0), wide=wide)
        upper = value + self.unit * plane.loss
        if upper < lane.P:
            lane.P, lane.best = upper, np.append(beta, 0.0)
        return plane, upper

    def over(self) -> bool:
        """Return whether to end, with one evaluation left if the paper's choice has no upper bound yet."""
        last = self.max_steps - self.taken == 1 < self.max_steps
        return super().over() or (self.paper and self.upper == np.inf and last)

    def advance(self) -> None:
        """Evaluate the point, and take one step."""
        lane, d = self.lane, self.lane.w.size - 1
        beta, lam, t, left = lane.w[:-1], 1 / (2 * self.unit), self.taken + 1, self.max_steps - self.taken
        plane, upper = self.evaluate(beta, self.max_steps == 1 if self.paper else left <= 8)
        estimate = float(beta @ beta) / 2 + self.unit * plane.estimate
        if self.paper:
            guarded = self.rows.counts(beta, "lower", self.eps, lam=lam)
            estimate = self.unit * guarded.objective
            after = beta - guarded.gradient / (lam * np.sqrt(d * t))
            after = after * min(1.0, np.sqrt(d) / (2 * lam) / max(np.linalg.norm(after), 1e-300))
        else:
            after = beta - (beta - self.unit * plane.pull) / t
        if estimate < self.least:
            self.least, self.chosen, self.upper = estimate, beta, upper
        if t % 10 == 0:
            lane.raise_bound()
        lane.w = np.append(after, 0.0)
        self.record(estimate)

    def start(self) -> None:
        """Begin at 0."""

    def run(self) -> None:
        """Take steps, then the paper's choice of all points, whose own objective is P, and raise D."""
        super().run()
        if self.paper and self.taken:
            if self.upper == np.inf:
                self.upper = self.evaluate(self.chosen, True)[1]
            self.lane.P, self.lane.best = self.upper, np.append(self.chosen, 0.0)
        self.lane.raise_bound()
        if self.history:
            self.history[-1][:2] = [self.lane.D / self.unit, self.lane.P / self.unit]
