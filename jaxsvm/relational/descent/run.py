"""What descends: points, planes and proofs of a fit over a join, whichever way it takes; see `descent.py`."""

import time
from functools import cached_property
from typing import Any

import numpy as np

from jaxsvm.relational.counting.sampling import Sampler
from jaxsvm.relational.gradient.bundle import Bundle
from jaxsvm.relational.gradient.engine import PseudoGradient, far_counts, from_counts, gradient_interval
from jaxsvm.relational.gradient.far import RowsEngine
from jaxsvm.relational.gradient.sketch import SketchEngine
from jaxsvm.relational.gradient.weighted_squares import JoinedSquares
from jaxsvm.results.fit import Certificate
from jaxsvm.results.judge import judged

LAST = 8
"""Steps whose planes prove the bound, where each proof costs two more passes."""


PULL = 0.05
"""Of the proximal term, in units of `E x x'`: half the density of scores at the margin, about."""
RAMP = 0.1
"""Half the width of the first ramp; margins are 1."""
HESSIAN_ROWS = 1 << 15
HESSIAN_SHARE = 64
"""Rows that are drawn for Hessians, at least; and for each coefficient."""
EXACT_ROWS = 1 << 17
"""Rows up to which all of them are in the Hessian, and interior points take them one by one."""
SYSTEM = 3000
"""The order of the largest dense system that is solved at each step."""
ALONE = 30
"""Evaluations after which a step of Newton's that was cut is followed by one of the bundle's, where P stands."""
METRIC = 1000
"""Features up to which the metric is a matrix, not its diagonal."""
ROUNDED = 1e-9
"""By how much D may exceed P by rounding, in units of D: sums over rows, and weights of planes."""


class Run:
    """What descends, and what it knows."""

    def __init__(self, join: Any, lam: float, eps: float, engine: Any, planes: Bundle, started: float,
                 max_seconds: float | None, callback: Any, squared: bool = False) -> None:  # fmt: skip
        self.squared = squared
        self.join, self.lam, self.eps, self.engine, self.planes = join, lam, eps, engine, planes
        self.started, self.max_seconds, self.callback = started, max_seconds, callback
        self.best, self.P, self.D = np.zeros(join.d), np.inf, 0.0
        self.pull = PULL
        self.taken, self.history, self.stopped, self.finite = 0, [], False, True

    @cached_property
    def metric(self) -> np.ndarray:
        """`E x x'` over the join, `(d, d)`; its diagonal, `(d,)`, where there are many features."""
        if self.join.d <= METRIC:
            return self.join.moments().second
        pairs = zip(self.join.blocks, self.join.counts(), strict=True)
        squares = [block._replace(X=block.X**2).transposed(count) for block, count in pairs]
        return np.concatenate(squares) / float(self.join.size)

    @property
    def row_by_row(self) -> bool:
        """Whether interior points are affordable: few rows, or many levels, of which drawn rows know too little."""
        if self.squared or not isinstance(self.engine, RowsEngine):
            return False
        few = len(self.engine.tree.weight[0]) <= max(EXACT_ROWS, HESSIAN_SHARE * self.join.d)
        return few and JoinedSquares(self.join.blocks, [np.zeros(0, int)] * len(self.join.blocks)).rest <= SYSTEM

    def counts(self, beta: np.ndarray, mode: str, guard: float = 0.0) -> PseudoGradient:
        """One pass."""
        far = far_counts(self.join, beta, self.eps, guard=guard, mode=mode, engine=self.engine, squared=self.squared)
        return from_counts(self.join, beta, self.lam, far, self.squared)

    def evaluate(self, beta: np.ndarray, proof: bool = True) -> float:
        """The estimate of F; a plane more; with `proof` (dearer for the sketch only) a better interval."""
        if not isinstance(self.engine, SketchEngine):
            found = self.counts(beta, "mid")
            g = found.plus + found.minus
            self.planes.add(found.far, g, found.far, g, g)
            estimate = upper = found.objective
        elif proof:
            low, high = self.counts(beta, "lower"), self.counts(beta, "upper")
            g_low, g_high = gradient_interval(low, high)
            # Of the squared hinge the constant is 2 s - s^2, whose second part is at most the upper one.
            least = low.far - (high.objective - low.objective) if self.squared else low.far
            self.planes.add((low.far + high.far) / 2, (g_low + g_high) / 2, least, g_low, g_high)
            estimate, upper = (low.objective + high.objective) / 2, high.objective
        else:
            found = self.counts(beta, "mid")
            g = found.plus + found.minus
            self.planes.add(found.far, g, np.nan, g, g)
            estimate, upper = found.objective, np.inf
        self.finite = bool(np.isfinite(estimate))
        self.taken += 1
        if upper < self.P:
            self.P, self.best = upper, beta
        return estimate

    def noted(self, estimate: float) -> None:
        """One line of history, and the callback."""
        self.history.append((self.D, self.P, estimate))
        if self.callback is not None:
            self.callback(self.taken, self.D, self.P)

    def over(self, tol: float, stop: Any) -> bool:
        """Whether to end: certified, told to, out of time, or not finite."""
        late = self.max_seconds is not None and time.monotonic() - self.started > self.max_seconds
        self.stopped = self.stopped or stop.seen or late
        return self.stopped or not self.finite or bool(self.certificate().relative_gap <= tol)

    def certificate(self) -> Certificate:
        """What P and D prove: the planes and the counts round, and no more than that."""
        P, D = np.float64(self.P), np.float64(self.D)
        found: Any = [np.float64(part) for part in judged(P, D, P - D, D, rounding=ROUNDED * abs(D))]
        return Certificate(*found)

    def bundle_steps(self, max_steps: int, tol: float, stop: Any, first: np.ndarray | None) -> None:
        """Proximal cutting planes only."""
        beta = self.best if first is None else first
        while True:
            before = self.P
            weights = self.prove(self.evaluate(beta))
            if self.taken >= max_steps or self.over(tol, stop):
                return
            beta = self.proximal(before, weights)

    def proximal(self, before: float, weights: np.ndarray) -> np.ndarray:
        """The next point of the bundle; the pull to the best one falls where steps helped and doubles where not."""
        helped = before - self.P > 0.1 * max(before - self.D, 0) if np.isfinite(before) else True
        self.pull = max(self.pull / 2, PULL / 1024) if helped else min(2 * self.pull, 64 * PULL)
        beta, near = self.planes.near(self.best, self.pull, self.metric)
        self.planes.keep(np.maximum(weights, near))
        return beta

    def newton_steps(self, max_steps: int, tol: float, stop: Any, first: np.ndarray | None) -> None:
        """Newton's steps on the hinge with a ramp of half-width mu, for engines that count one.

        Gradients are the join's; the Hessian is that of some drawn rows near the margin, which costs nothing
        beside them (subsampled Newton). At the ramp's optimum one plane proves all but a part of order mu^2, which is
        seen: where it is much of what is left, mu halves. Too long a step is cut where its derivative would be 0.
        """
        lam = self.lam
        if not self.squared:
            self.engine.ramp = RAMP
        squares, y, weight = self.looked_at()
        centre = self.best if first is None else first
        estimate = self.evaluate(centre)
        while True:
            self.planes.keep(self.prove(estimate))
            if self.taken >= max_steps or self.over(tol, stop):
                break
            lost = estimate - lam * centre @ centre - self.planes.n[-1] - self.planes.g[-1] @ centre
            if not self.squared and lost > 0.25 * max(self.P - self.D, tol * self.D):
                self.engine.ramp /= 2
            gradient = self.planes.g[-1] + 2 * lam * centre
            ramp = None if self.squared else self.engine.ramp
            slack = 1 - y * squares.product(self.join.split(centre))
            direction = -squares.system(_curvature(slack, weight, ramp), 2 * lam)(gradient)
            start, t = -float(gradient @ direction), 1.0
            for _ in range(4):
                estimate = self.evaluate(centre + t * direction)
                slope = float((self.planes.g[-1] + 2 * lam * (centre + t * direction)) @ direction)
                if slope <= 0.5 * start or self.taken >= max_steps:
                    break
                t *= start / (start + slope)
            centre = centre + t * direction
            stuck = len(self.history) > ALONE and self.history[-8][1] - self.P < 1e-4 * self.P
            if t < 1 and stuck and self.taken < max_steps:  # cut: few pieces matter, and planes find their corner
                before = self.P
                weights = self.prove(estimate)
                self.prove(self.evaluate(self.proximal(before, weights)))
                if self.taken < max_steps and not self.over(tol, stop):
                    estimate = self.evaluate(centre)
        if not self.squared:
            self.engine.ramp = 0.0

    def looked_at(self) -> tuple[JoinedSquares, np.ndarray, np.ndarray]:
        """Rows for Hessians, all of the join or drawn ones: with their signs and shares."""
        exact = isinstance(self.engine, RowsEngine)
        if exact and len(self.engine.tree.weight[0]) <= max(EXACT_ROWS, HESSIAN_SHARE * self.join.d):
            tree = self.engine.tree
            rows, weight = [tree.members[0][t] for t in range(len(self.join.blocks))], tree.weight[0]
        else:
            many = max(HESSIAN_ROWS, min(HESSIAN_SHARE * self.join.d, EXACT_ROWS))
            rows = Sampler(self.join).draw(many, np.random.default_rng(0))
            weight = np.ones(many)
        return (
            JoinedSquares(self.join.blocks, rows),
            self.join.tree.y[rows[self.join.tree.label]],
            weight / weight.sum(),
        )

    def interior_steps(self, max_steps: int, tol: float, stop: Any) -> bool:
        """A primal-dual interior point over the rows of the join; whether it came to an end.

        The dual is `max mean(a) - |mean(a y x)|^2 / (4 lam)` over `a` in [0, 1]: each a is a plane that proves its own
        value, and `mean(a y x) / (2 lam)` the next point. Its systems are `I + X' S X`, whatever N is (Ferris, Munson,
        "Interior-Point Methods for Massive Support Vector Machines", SIAM J. Optimization 2002).
        """
        squares, y, weight = self.looked_at()
        a, under, over = np.full(len(y), 0.5), weight.copy(), weight.copy()
        while True:
            mean = squares.transposed(weight * a * y)
            n, beta = float(weight @ a), mean / (2 * self.lam)
            self.planes.add(n, -mean, n, -mean, -mean)
            self.D = max(self.D, n - float(mean @ mean) / (4 * self.lam))
            self.noted(self.evaluate(beta))
            if self.taken >= max_steps or self.over(tol, stop):
                return True
            t = 0.1 * float(under @ a + over @ (1 - a)) / (2 * len(y))
            D = under / a + over / (1 - a)
            slope = weight * (1 - y * squares.product(self.join.split(beta))) + t / a - t / (1 - a)
            solve = squares.system(weight**2 / (2 * self.lam * D))
            inner = solve(squares.transposed(weight * y * slope / D) / (2 * self.lam))
            change = (slope - weight * y * squares.product(self.join.split(inner))) / D
            d_under, d_over = t / a - under - under / a * change, t / (1 - a) - over + over / (1 - a) * change
            ends = ((a, change), (1 - a, -change), (under, d_under), (over, d_over))
            step = min(1.0, *(0.99 / max(np.max(-d / v), 1e-300) for v, d in ends))
            if not step > 1e-6:  # rounding has the last word: planes and Newton's steps go on
                return False
            a, under, over = a + step * change, under + step * d_under, over + step * d_over

    def prove(self, estimate: float) -> np.ndarray:
        """The best D of the planes; their weights."""
        D, weights, _ = self.planes.bound()
        self.D = max(self.D, D)
        self.noted(estimate)
        return weights

    def plain_steps(self, max_steps: int, tol: float, stop: Any, paper: bool) -> None:
        """`1 / (2 lam t)`, or the paper's steps, guard, projection and choice."""
        lam, d, sketch = self.lam, self.join.d, isinstance(self.engine, SketchEngine)
        beta, least, chosen = np.zeros(d), np.inf, np.zeros(d)
        radius = np.sqrt(d) / (2 * lam)
        for t in range(1, max_steps + 1):
            last = t > max_steps - LAST
            estimate = self.evaluate(beta, proof=not sketch or (last and not paper))
            guarded = self.counts(beta, "lower", self.eps) if paper else None
            estimate = estimate if guarded is None else guarded.objective
            if estimate < least:
                least, chosen = estimate, beta
            if not sketch or last:
                self.D = max(self.D, self.planes.bound()[0])
                self.planes.keep(self.planes.bound()[1])
            self.noted(estimate)
            if self.over(tol, stop):
                break
            if guarded is not None:
                beta = beta - guarded.gradient / (lam * np.sqrt(d * t))
                beta = beta * min(1.0, radius / max(np.linalg.norm(beta), 1e-300))
            else:
                beta = beta - (self.planes.g[-1] + 2 * lam * beta) / (2 * lam * t)
        if paper:  # what is returned is the paper's choice, and P is its own
            self.P = np.inf
            self.evaluate(chosen)
            self.D = max(self.D, self.planes.bound()[0])
            self.noted(least)


def _curvature(slack: np.ndarray, weight: np.ndarray, ramp: float | None) -> np.ndarray:
    """The second derivative of each row's loss with a ramp; rows farther from the margin give it a floor.

    Args:
        slack: `1 - y beta.x`, `(n,)`.
        weight: The share of each row, `(n,)`.
        ramp: Half the width of the ramp; None for the squared hinge.
    """
    if ramp is None:
        return 2 * weight * (slack >= 0)
    near = ((max(ramp, 0.02), 1.0), (0.5, 0.05))
    return weight * sum((share / (2 * half) * (np.abs(slack) < half) for half, share in near), np.zeros(len(slack)))
