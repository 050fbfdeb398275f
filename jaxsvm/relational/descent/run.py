"""Descend: the points, planes and proofs of a fit over a join, for each of its methods; see `fit.py`."""

import dataclasses
import time
from functools import cached_property
from typing import Any

import numpy as np

from jaxsvm.numerics.measured import MEASURED as SIZES
from jaxsvm.numerics.simplex_program import step_inside
from jaxsvm.relational.counting.sampling import Sampler
from jaxsvm.relational.gradient.bundle import Bundle
from jaxsvm.relational.gradient.engine import PseudoGradient, far_counts, from_counts, gradient_interval
from jaxsvm.relational.gradient.far import RowsEngine
from jaxsvm.relational.gradient.weighted_squares import JoinedSquares
from jaxsvm.relational.measured import MEASURED
from jaxsvm.results.fit import Certificate
from jaxsvm.results.judge import judged

ROWS_OF_A_HESSIAN = MEASURED.hessian_rows_per_coefficient * SIZES.largest_direct_system
"""Rows of a join up to which a Hessian contains all of them."""


@dataclasses.dataclass
class Run:
    """The state of a descent."""

    join: Any  # the scaled join
    lam: float  # the strength of the regulariser
    eps: float  # the guard of the paper's method
    engine: Any  # the engine that counts
    planes: Bundle  # the cutting planes
    started: float  # start of the fit, by `time.monotonic`
    max_seconds: float | None = None  # start no further evaluation after so many seconds
    callback: Any = None  # called with the number of evaluations, D and P
    squared: bool = False  # whether the loss is the squared hinge
    best: np.ndarray = dataclasses.field(init=False)  # the best point, `(d,)`
    P: float = np.inf  # upper bound of F at the best point
    D: float = 0.0  # lower bound of the optimum
    taken: int = 0  # number of evaluations
    # D, P and the estimate of F after each step:
    history: list[tuple[float, float, float]] = dataclasses.field(default_factory=list)
    stopped: bool = False  # whether it was interrupted or out of time
    finite: bool = True  # whether the last estimate of F was finite
    pull: float = MEASURED.proximal_pull  # weight of the proximal term, in units of `E x x'`
    ramp: float = 0.0  # half-width of the ramp of counts; 0: none

    def __post_init__(self) -> None:
        self.best = np.zeros(self.join.d)

    @cached_property
    def metric(self) -> np.ndarray:
        """`E x x'` over the join, `(d, d)`; its diagonal, `(d,)`, with more than 1000 features."""
        if self.join.d <= 1000:
            return self.join.moments().second
        pairs = zip(self.join.blocks, self.join.counts(), strict=True)
        squares = [block._replace(X=block.X**2).transposed(count) for block, count in pairs]
        return np.concatenate(squares) / float(self.join.size)

    @property
    def _hessian_of_all(self) -> bool:
        """Whether the Hessian contains every row of the join."""
        most = max(ROWS_OF_A_HESSIAN, MEASURED.hessian_rows_per_coefficient * self.join.d)
        return isinstance(self.engine, RowsEngine) and len(self.engine.tree.weight[0]) <= most

    @property
    def interior(self) -> bool:
        """Whether interior points are affordable: few rows, or many levels, of which drawn rows know too little.

        Their dense systems, solved at each step, have an order of at most 3000.
        """
        if self.squared or not self._hessian_of_all:
            return False
        return JoinedSquares(self.join.blocks, [np.zeros(0, int)] * len(self.join.blocks)).rest <= 3000

    def counts(self, beta: np.ndarray, mode: str, guard: float = 0.0) -> PseudoGradient:
        """Count in one pass, and compute the pseudo-gradient."""
        far = far_counts(
            self.join, beta, guard=guard, mode=mode, engine=self.engine, squared=self.squared, ramp=self.ramp
        )
        return from_counts(self.join, beta, self.lam, far, self.squared)

    def evaluate(self, beta: np.ndarray, proof: bool = True) -> float:
        """Add a plane at beta, and return the estimate of F.

        If counts are bounds, a plane that shall prove one (`proof`) takes two passes.
        """
        if self.engine.bounds and proof:
            low, high = self.counts(beta, "lower"), self.counts(beta, "upper")
            g_low, g_high = gradient_interval(low, high)
            # The constant of the squared hinge is 2 s - s^2, whose second part is at most the upper one.
            least = low.far - (high.objective - low.objective) if self.squared else low.far
            self.planes.add((low.far + high.far) / 2, (g_low + g_high) / 2, least, g_low, g_high)
            estimate, upper = (low.objective + high.objective) / 2, high.objective
        else:
            counted = self.counts(beta, "mid")
            g, bounds = counted.plus + counted.minus, self.engine.bounds
            self.planes.add(counted.far, g, np.nan if bounds else counted.far, g, g)
            estimate, upper = counted.objective, np.inf if bounds else counted.objective
        self.finite = bool(np.isfinite(estimate))
        self.taken += 1
        if upper < self.P:
            self.P, self.best = upper, beta
        return estimate

    def record(self, estimate: float) -> None:
        """Append a line to the history, and call the callback."""
        self.history.append((self.D, self.P, estimate))
        if self.callback is not None:
            self.callback(self.taken, self.D, self.P)

    def improve_bound(self) -> np.ndarray:
        """Raise D to the best bound of the planes; return their weights."""
        D, weights = self.planes.bound()
        self.D = max(self.D, D)
        return weights

    def prove(self, estimate: float) -> np.ndarray:
        """Raise D, record the step, and return the weights of the planes."""
        weights = self.improve_bound()
        self.record(estimate)
        return weights

    def over(self, tol: float, stop: Any) -> bool:
        """Return whether to end: certified, interrupted, out of time, or not finite."""
        late = self.max_seconds is not None and time.monotonic() - self.started > self.max_seconds
        self.stopped = self.stopped or stop.seen or late
        return self.stopped or not self.finite or bool(self.certificate().relative_gap <= tol)

    def certificate(self) -> Certificate:
        """Return the certificate of P and D. By rounding of sums and weights, D may exceed P by 1e-9 D."""
        P, D = np.float64(self.P), np.float64(self.D)
        parts: Any = [np.float64(part) for part in judged(P, D, P - D, D, rounding=1e-9 * abs(D))]
        return Certificate(*parts)

    def bundle_steps(self, max_steps: int, tol: float, stop: Any, first: np.ndarray | None) -> None:
        """Take steps of proximal cutting planes."""
        beta = self.best if first is None else first
        while True:
            before = self.P
            weights = self.prove(self.evaluate(beta))
            if self.taken >= max_steps or self.over(tol, stop):
                return
            beta = self.proximal(before, weights)

    def proximal(self, before: float, weights: np.ndarray) -> np.ndarray:
        """Return the next point of the bundle; the pull to the best point halves after a useful step, else doubles."""
        most = MEASURED.proximal_pull
        helped = before - self.P > 0.1 * max(before - self.D, 0) if np.isfinite(before) else True
        self.pull = max(self.pull / 2, most / 1024) if helped else min(2 * self.pull, 64 * most)
        beta, near = self.planes.near(self.best, self.pull, self.metric)
        self.planes.keep(np.maximum(weights, near))
        return beta

    def newton_steps(self, max_steps: int, tol: float, stop: Any, first: np.ndarray | None) -> None:
        """Take Newton steps on the hinge with a ramp of half-width mu, for engines that are `smooth`.

        Gradients are the join's; the Hessian is that of drawn rows near the margin, whose cost is negligible
        (subsampled Newton). At the ramp's optimum one plane proves all but a part of order mu^2, which is computed: if
        it is much of the remaining gap, mu halves. A step is shortened to the point where its derivative would be 0.
        """
        lam = self.lam
        self.ramp = 0.0 if self.squared else 0.1  # margins are 1
        squares, y, weight = self.hessian_rows()
        centre = self.best if first is None else first
        estimate = self.evaluate(centre)
        while True:
            self.planes.keep(self.prove(estimate))
            if self.taken >= max_steps or self.over(tol, stop):
                return
            lost = estimate - lam * centre @ centre - self.planes.n[-1] - self.planes.g[-1] @ centre
            if lost > 0.25 * max(self.P - self.D, tol * self.D):
                self.ramp /= 2
            gradient = self.planes.g[-1] + 2 * lam * centre
            slack = 1 - y * squares.product(self.join.split(centre))
            curvature = _curvature(slack, weight, None if self.squared else self.ramp)
            direction = -squares.system(curvature, 2 * lam)(gradient)
            start, t = -float(gradient @ direction), 1.0
            for _ in range(4):
                estimate = self.evaluate(centre + t * direction)
                slope = float((self.planes.g[-1] + 2 * lam * (centre + t * direction)) @ direction)
                if slope <= 0.5 * start or self.taken >= max_steps:
                    break
                t *= start / (start + slope)
            centre = centre + t * direction
            stuck = len(self.history) > 30 and self.history[-8][1] - self.P < 1e-4 * self.P
            if t < 1 and stuck and self.taken < max_steps:  # few pieces matter, and planes find their corner
                before = self.P
                weights = self.prove(estimate)
                self.prove(self.evaluate(self.proximal(before, weights)))
                if self.taken < max_steps and not self.over(tol, stop):
                    estimate = self.evaluate(centre)

    def hessian_rows(self) -> tuple[JoinedSquares, np.ndarray, np.ndarray]:
        """Return rows for Hessians, all of the join or drawn ones, with their signs and shares."""
        if self._hessian_of_all:
            tree = self.engine.tree
            rows, weight = [tree.members[0][t] for t in range(len(self.join.blocks))], tree.weight[0]
        else:
            wanted = MEASURED.hessian_rows_per_coefficient * self.join.d
            many = max(1 << 15, min(wanted, ROWS_OF_A_HESSIAN))
            rows = Sampler(self.join).draw(many, np.random.default_rng(0))
            weight = np.ones(many)
        y = self.join.tree.y[rows[self.join.tree.label]]
        return JoinedSquares(self.join.blocks, rows), y, weight / weight.sum()

    def interior_steps(self, max_steps: int, tol: float, stop: Any) -> bool:
        """Take primal-dual interior-point steps over the rows of the join; return False if rounding stopped them.

        The dual is `max mean(a) - |mean(a y x)|^2 / (4 lam)` over `a` in [0, 1]. Each a is a plane that proves its own
        value, and `mean(a y x) / (2 lam)` is the next point. The systems are `I + X' S X`, for any N (Ferris, Munson,
        "Interior-Point Methods for Massive Support Vector Machines", SIAM J. Optimization 2002).
        """
        squares, y, weight = self.hessian_rows()
        a, under, over = np.full(len(y), 0.5), weight.copy(), weight.copy()
        while True:
            mean = squares.transposed(weight * a * y)
            n, beta = float(weight @ a), mean / (2 * self.lam)
            self.planes.add(n, -mean, n, -mean, -mean)
            self.D = max(self.D, n - float(mean @ mean) / (4 * self.lam))
            self.record(self.evaluate(beta))
            if self.taken >= max_steps or self.over(tol, stop):
                return True
            t = 0.1 * float(under @ a + over @ (1 - a)) / (2 * len(y))
            D = under / a + over / (1 - a)
            slope = weight * (1 - y * squares.product(self.join.split(beta))) + t / a - t / (1 - a)
            solve = squares.system(weight**2 / (2 * self.lam * D))
            inner = solve(squares.transposed(weight * y * slope / D) / (2 * self.lam))
            change = (slope - weight * y * squares.product(self.join.split(inner))) / D
            d_under, d_over = t / a - under - under / a * change, t / (1 - a) - over + over / (1 - a) * change
            step = step_inside((a, change), (1 - a, -change), (under, d_under), (over, d_over))
            if not step > 1e-6:
                return False
            a, under, over = a + step * change, under + step * d_under, over + step * d_over

    def plain_steps(self, max_steps: int, tol: float, stop: Any, paper: bool) -> None:
        """Take steps `1 / (2 lam t)`, or those of the paper with its guard, projection and choice."""
        lam, d, bounds = self.lam, self.join.d, self.engine.bounds
        beta, least, chosen = np.zeros(d), np.inf, np.zeros(d)
        radius = np.sqrt(d) / (2 * lam)
        for t in range(1, max_steps + 1):
            proving = not bounds or t > max_steps - 8  # a proof from bounds takes two passes: the last 8 steps only
            estimate = self.evaluate(beta, proof=not bounds or (proving and not paper))
            guarded = self.counts(beta, "lower", self.eps) if paper else None
            estimate = estimate if guarded is None else guarded.objective
            if estimate < least:
                least, chosen = estimate, beta
            if proving:
                self.planes.keep(self.improve_bound())
            self.record(estimate)
            if self.over(tol, stop):
                break
            if guarded is not None:
                beta = beta - guarded.gradient / (lam * np.sqrt(d * t))
                beta = beta * min(1.0, radius / max(np.linalg.norm(beta), 1e-300))
            else:
                beta = beta - (self.planes.g[-1] + 2 * lam * beta) / (2 * lam * t)
        if paper:  # the result is the paper's choice, and P is its own
            self.P = np.inf
            self.evaluate(chosen)
            self.prove(least)


def _curvature(slack: np.ndarray, weight: np.ndarray, ramp: float | None) -> np.ndarray:
    """Return the second derivative of each row's loss, `(n,)`, from slacks `1 - y beta.x` and the shares of the rows.

    A ramp is that of the hinge, and rows farther from the margin give it a floor; None is the squared hinge.
    """
    if ramp is None:
        return 2 * weight * (slack >= 0)
    near = ((max(ramp, 0.02), 1.0), (0.5, 0.05))
    return weight * sum((share / (2 * half) * (np.abs(slack) < half) for half, share in near), np.zeros(len(slack)))
