"""The four methods of a fit over a join; each turn ends with a recorded evaluation. `fit.py` chooses."""

import numpy as np

from jaxsvm.numerics.hinge_program import step_inside
from jaxsvm.relational.descent.run import Run
from jaxsvm.relational.gradient.engine import PseudoGradient

TURNS_TO_HALVE = 10
"""Turns in which cutting planes must halve the gap, or another method takes over."""


class CuttingPlanes:
    """Descend by proximal cutting planes, while they halve the gap: to the end where no other method follows."""

    going = True

    def __init__(self, run: Run, first: np.ndarray, last: bool = True) -> None:
        self.run, self.before, self.last = run, run.P, last
        self.weights = run.prove(run.evaluate(first))

    def advance(self) -> None:
        """Take the next point of the bundle."""
        run = self.run
        beta = run.proximal(self.before, self.weights)
        self.before = run.P
        self.weights = run.prove(run.evaluate(beta))
        if not self.last and len(run.history) > TURNS_TO_HALVE:
            (D, P), (before_D, before_P) = run.history[-1][:2], run.history[-1 - TURNS_TO_HALVE][:2]
            self.going = (before_P - before_D) / 2 >= P - D


class Newton:
    """Descend by Newton steps on the hinge with a ramp of half-width mu, for engines that are `smooth`.

    Gradients are the join's; the Hessian is that of drawn rows near the margin, whose cost is negligible (subsampled
    Newton). At the ramp's optimum one plane proves all but a part of order mu^2, which is computed: if it is much of
    the remaining gap, mu halves. A step is shortened to the point where its derivative would be 0.
    """

    going = True

    def __init__(self, run: Run, first: np.ndarray) -> None:
        self.run, self.centre = run, first
        run.ramp = 0.0 if run.squared else 0.1  # margins are 1
        self.squares, self.y, self.weight = run.hessian_rows()
        self._prove(run.evaluate(first))

    def advance(self) -> None:
        """Take one step, with its line search."""
        run, lam = self.run, self.run.lam
        lost = self.estimate - lam * self.centre @ self.centre - run.planes.n[-1] - run.planes.g[-1] @ self.centre
        if lost > 0.25 * max(run.P - run.D, run.tol * run.D):
            run.ramp /= 2
        gradient = run.planes.g[-1] + 2 * lam * self.centre
        slack = 1 - self.y * self.squares.product(run.join.split(self.centre))
        curvature = _curvature(slack, self.weight, None if run.squared else run.ramp)
        direction = -self.squares.system(curvature, 2 * lam)(gradient)
        start, t, estimate = -float(gradient @ direction), 1.0, self.estimate
        for left in (3, 2, 1, 0):
            estimate = run.evaluate(self.centre + t * direction)
            slope = float((run.planes.g[-1] + 2 * lam * (self.centre + t * direction)) @ direction)
            if slope <= 0.5 * start or run.taken >= run.max_steps or not left:
                break  # the next step begins at a point that was evaluated
            t *= start / (start + slope)
        self.centre = self.centre + t * direction
        stuck = len(run.history) > 30 and run.history[-8][1] - run.P < 1e-4 * run.P
        if t < 1 and stuck and run.taken < run.max_steps:  # few pieces matter, and planes find their corner
            before = run.P
            weights = run.prove(estimate)
            run.prove(run.evaluate(run.proximal(before, weights)))
            if not run.over():
                estimate = run.evaluate(self.centre)
        self._prove(estimate)

    def _prove(self, estimate: float) -> None:
        self.estimate = estimate
        self.run.planes.keep(self.run.prove(estimate))


class InteriorPoints:
    """Descend by primal-dual interior points over the rows of the join.

    The dual is `max mean(a) - |mean(a y x)|^2 / (4 lam)` over `a` in [0, 1]. Each a is a plane that proves its own
    value, and `mean(a y x) / (2 lam)` is the next point. The systems are `I + X' S X`, for any N (Ferris, Munson,
    "Interior-Point Methods for Massive Support Vector Machines", SIAM J. Optimization 2002).
    """

    going = True
    """Whether rounding, of values or of systems, leaves room for another step."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.squares, self.y, self.weight = run.hessian_rows()
        self.a, self.under, self.over = np.full(len(self.y), 0.5), self.weight.copy(), self.weight.copy()
        self._evaluate()

    def _evaluate(self) -> None:
        run, weight, a = self.run, self.weight, self.a
        mean = self.squares.transposed(weight * a * self.y)
        n, self.beta = float(weight @ a), mean / (2 * run.lam)
        run.planes.add(n, -mean, n, -mean, -mean)
        run.D = max(run.D, n - float(mean @ mean) / (4 * run.lam))
        run.record(run.evaluate(self.beta))

    def advance(self) -> None:
        """Take one step."""
        run, squares, y, weight = self.run, self.squares, self.y, self.weight
        a, under, over = self.a, self.under, self.over
        t = 0.1 * float(under @ a + over @ (1 - a)) / (2 * len(y))
        D = under / a + over / (1 - a)
        slope = weight * (1 - y * squares.product(run.join.split(self.beta))) + t / a - t / (1 - a)
        solve = squares.system(weight**2 / (2 * run.lam * D))
        inner = solve(squares.transposed(weight * y * slope / D) / (2 * run.lam))
        change = (slope - weight * y * squares.product(run.join.split(inner))) / D
        d_under, d_over = t / a - under - under / a * change, t / (1 - a) - over + over / (1 - a) * change
        step = step_inside((a, change), (1 - a, -change), (under, d_under), (over, d_over))
        self.going = step > 1e-6 and squares.solved
        if self.going:
            self.a, self.under, self.over = a + step * change, under + step * d_under, over + step * d_over
            self._evaluate()


class Subgradient:
    """Descend by steps `1 / (2 lam t)`, or by those of the paper with its guard, projection and choice.

    D is sought at every tenth step and at the end. A proof from counts that are bounds takes two passes: it is sought
    in the last 8 steps only; of the paper's steps in the last one, at the chosen point.
    """

    going = True

    def __init__(self, run: Run, paper: bool) -> None:
        self.run, self.paper, self.t = run, paper, 1
        self.beta, self.least = np.zeros(run.join.d), np.inf
        self.chosen, self.upper = self.beta, np.inf  # the paper's choice, and an upper bound of F there
        self.guarded = self._evaluate()

    def _evaluate(self) -> PseudoGradient | None:
        """Evaluate the point; return the paper's pseudo-gradient."""
        run, left = self.run, self.run.max_steps - self.t
        proof = not run.engine.bounds or (run.max_steps == 1 if self.paper else left < 8)
        estimate = run.evaluate(self.beta, proof)
        guarded = run.counts(self.beta, "lower", run.eps) if self.paper else None
        estimate = estimate if guarded is None else guarded.objective
        if estimate < self.least:
            self.least, self.chosen, self.upper = estimate, self.beta, run.upper
        if self.t % 10 == 0:
            run.planes.keep(run.improve_bound())
        run.record(estimate)
        return guarded

    def over(self) -> bool:
        """Return whether to end, with one evaluation left if the paper's choice has no upper bound yet."""
        left = self.run.max_steps - self.run.taken
        return self.run.over() or (self.paper and self.upper == np.inf and left == 1)

    def advance(self) -> None:
        """Take one step."""
        run, beta, d, t = self.run, self.beta, self.run.join.d, self.t
        if self.guarded is None:
            self.beta = beta - (run.planes.g[-1] + 2 * run.lam * beta) / (2 * run.lam * t)
        else:
            beta = beta - self.guarded.gradient / (run.lam * np.sqrt(d * t))
            radius = np.sqrt(d) / (2 * run.lam)
            self.beta = beta * min(1.0, radius / max(np.linalg.norm(beta), 1e-300))
        self.t = t + 1
        self.guarded = self._evaluate()

    def finish(self) -> None:
        """Take the paper's choice of all points, whose own objective is P, and raise D."""
        run = self.run
        if self.paper:
            if self.upper == np.inf:
                run.evaluate(self.chosen)
                self.upper = run.upper
            run.P, run.best = self.upper, self.chosen
        run.improve_bound()
        run.history[-1] = (run.D, run.P, run.history[-1][2])


def _curvature(slack: np.ndarray, weight: np.ndarray, ramp: float | None) -> np.ndarray:
    """Return the second derivative of each row's loss, `(n,)`, from slacks `1 - y beta.x` and the shares of the rows.

    A ramp is that of the hinge, and rows farther from the margin give it a floor; None is the squared hinge.
    """
    if ramp is None:
        return 2 * weight * (slack >= 0)
    near = ((max(ramp, 0.02), 1.0), (0.5, 0.05))
    return weight * sum((share / (2 * half) * (np.abs(slack) < half) for half, share in near), np.zeros(len(slack)))
