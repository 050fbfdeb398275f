"""`fit`: a linear SVM over a join, with an interval that holds the optimum.

    F(beta) = mean over the join of max(0, 1 - y beta.x) + lam |beta|^2,      lam = 1 / (2 C N)

or the same with the squared hinge, from sums of slacks in the place of counts; its planes and its certificate are of
the same form, its Newton's steps need no ramp.

Three ways to descend, on counts of any engine:

    bundle  the default: cutting planes with the best weights, a proximal term (`bundle.py`); Newton's steps, proved by
            the same planes, where the engine can count a smooth weight (rows, grid)
    steps   `beta <- beta - G / (2 lam t)`: F is 2 lam-strongly convex, so the average regret is O(d log T / (lam T));
            ten to two hundred steps where the paper's analysis asks for 10^14
    paper   the paper's: guard eps, counts from below, steps `1 / (lam sqrt(d t))` in the ball of radius
            `sqrt(d) / (2 lam)`, the iterate of the least estimate; constants that go together (Theorem 1 has others)

Every answer carries D and P, `D <= F* <= F(beta) <= P`, from the same counts, with no assumption of stability.
"""

import dataclasses
import time
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from jaxsvm.errors import InputError
from jaxsvm.interruption import watching
from jaxsvm.problems.judge import judged
from jaxsvm.relational.bundle import Bundle
from jaxsvm.relational.gradient import PseudoGradient, engine_for, far_counts, from_counts, gradient_interval
from jaxsvm.relational.moments import prepared
from jaxsvm.relational.sampling import sample
from jaxsvm.relational.sketch import SketchEngine
from jaxsvm.relational.sql import decision_function, to_sql
from jaxsvm.result import Certificate, Status, StatusCode
from jaxsvm.validation import require_positive, require_seconds, require_whole

METHODS = ("bundle", "steps", "paper")
LOSSES = ("hinge", "squared_hinge")
LAST = 8
"""Steps whose planes prove the bound, where each proof costs two more passes."""


PULL = 0.05
"""Of the proximal term, in units of `E x x'`: half the density of scores at the margin, about."""
RAMP = 0.1
"""Half the width of the first ramp; margins are 1."""
HESSIAN_ROWS = 1 << 15
HESSIAN_ENTRIES = 1 << 23
"""Rows that are drawn for Hessians, and their entries at most."""
ALONE = 30
"""Evaluations after which a step of Newton's that was cut is followed by one of the bundle's, where P stands."""
METRIC = 1000
"""Features up to which the metric is a matrix, not its diagonal."""
ROUNDED = 1e-9
"""By how much D may exceed P by rounding, in units of D: sums over rows, and weights of planes."""


@dataclasses.dataclass(frozen=True, eq=False)
class RelationalFit:
    """A linear SVM over a join.

    Attributes:
        coef: Coefficients of the features as given, `(d,)`, in the order of `feature_names`.
        intercept: The constant.
        beta: Coefficients of the scaled features, the constant's among them: what F is a function of.
        certificate: Primal, dual and relative gap of F.
        status: How it ended.
        steps: Evaluations.
        engine: What counted, and why.
        seconds: How long it took.
        history: `(k, 3)`: D, P and the estimate of F after each step; a step with a line search takes several
            evaluations.
        join: The scaled join.
        counter: The engine itself.
        bundle: The planes: `init` for a fit at another lam.
        lam: The strength of the regulariser.
        feature_names: Of `coef`.
        loss: "hinge" or "squared_hinge".
    """

    coef: np.ndarray
    intercept: float
    beta: np.ndarray
    certificate: Certificate
    status: StatusCode
    steps: int
    engine: str
    seconds: float
    history: np.ndarray
    join: Any
    counter: Any
    bundle: Bundle
    lam: float
    feature_names: list[str]
    loss: str = "hinge"

    def to_sql(self, tables: dict[str, str] | None = None) -> str:
        """The query that scores every row of the join; see `jaxsvm.relational.sql.to_sql`."""
        return to_sql(self, tables)

    def decision_function(self, rows: Any) -> np.ndarray:
        """Scores of joined rows, `(k,)`; see `jaxsvm.relational.sql.decision_function`."""
        return decision_function(self, rows)

    def predict(self, rows: Any) -> np.ndarray:
        """Labels of joined rows, `(k,)`."""
        return self.join.classes[(self.decision_function(rows) >= 0).astype(int)]

    def __repr__(self) -> str:
        P, D, gap = (float(part) for part in self.certificate)
        interval = f"F* in [{D:.6g}, {P:.6g}], gap {gap:.1e}"
        return f"RelationalFit({self.status.name}, {interval}, {self.steps} evaluations, {self.engine})"


def fit(
    join: Any,
    lam: float | None = None,
    eps: float = 0.1,
    engine: Any = "auto",
    *,
    C: float | None = None,
    tol: float = 1e-3,
    max_steps: int = 200,
    scale: str = "none",
    intercept: bool = True,
    method: str = "bundle",
    loss: str = "hinge",
    init: RelationalFit | None = None,
    max_seconds: float | None = None,
    callback: Callable[[int, float, float], Any] | None = None,
) -> RelationalFit:
    """Train a linear SVM over a join.

    Args:
        join: A `Join`.
        lam: The strength of the regulariser in `mean hinge + lam |beta|^2`, > 0; `1 / (2 C N)`.
        eps: The accuracy of the sketch's counts, in (0, 1].
        engine: "auto" (chosen by cost: `fit.engine` says), "rows", "merge", "grid" or "sketch"; see `engine_for`.
        C: The penalty of `|beta|^2 / 2 + C sum hinge`, instead of lam.
        tol: The relative gap that ends it.
        max_steps: Cap on evaluations.
        scale: What is done to numbers first: "none", "max" (the paper's) or "standard"; `coef` is for those given.
        intercept: Whether there is a constant; it is regularised, as one more feature 1.
        method: "bundle", "steps" or "paper"; see the module.
        loss: "hinge", or "squared_hinge": `mean max(0, 1 - y beta.x)^2 + lam |beta|^2`, where C is that of
            `|beta|^2 / 2 + C sum hinge^2`.
        init: A fit of the same join, scale, engine and loss at another lam: its planes hold here too.
        max_seconds: Begin no further evaluation after so many seconds.
        callback: Called with the step, D and P.

    Raises:
        InputError: On arguments that cannot be used.
    """
    if (lam is None) == (C is None):
        raise InputError("lam and C: give one of the two (lam = 1 / (2 C N)).")
    for name, value in (("lam", lam), ("C", C), ("tol", tol), ("eps", eps)):
        if value is not None:
            require_positive(name, value)
    require_whole("max_steps", max_steps, 1)
    require_seconds(max_seconds)
    if method not in METHODS:
        raise InputError(f"method is {method!r}: one of {', '.join(METHODS)} is needed.")
    if loss not in LOSSES:
        raise InputError(f"loss is {loss!r}: one of {', '.join(LOSSES)} is needed.")
    if loss != "hinge" and method != "bundle":
        raise InputError(f"method is {method!r}, which is for the hinge: leave it out for loss={loss!r}.")
    if init is not None and init.loss != loss:
        raise InputError(f"init is a fit of the {init.loss}, whose planes are not those of the {loss}.")
    started = time.monotonic()
    lam = 1 / (2 * float(C) * float(join.size)) if lam is None else float(lam)  # pyright: ignore[reportArgumentType]
    scaled = prepared(join, scale, intercept) if init is None else init.join
    counter, why = engine_for(scaled, engine, eps) if isinstance(engine, str) else (engine, engine.name)
    planes = Bundle.empty(scaled.d, lam) if init is None else dataclasses.replace(init.bundle, lam=lam)
    run = Run(scaled, lam, eps, counter, planes, started, max_seconds, callback, loss == "squared_hinge")
    with watching() as stop:
        if method == "bundle":
            smooth = hasattr(counter, "ramp") or run.squared
            descend = run.newton_steps if smooth else run.bundle_steps
            descend(max_steps, tol, stop, None if init is None else init.beta)
        else:
            run.plain_steps(max_steps, tol, stop, paper=method == "paper")
    return answer(run, tol, why)


def fit_path(join: Any, lams: Any, eps: float = 0.1, engine: Any = "auto", **options: Any) -> list[RelationalFit]:
    """Fits at several lam, each from the planes of the one before: they are below the hinge whatever lam is.

    Args:
        join: A `Join`.
        lams: The values; taken from the largest to the smallest, returned in their order.
        eps: As in `fit`.
        engine: As in `fit`.
        options: As in `fit`.
    """
    lams, fits = [float(lam) for lam in lams], {}
    before = None
    for lam in sorted(set(lams), reverse=True):
        before = fits[lam] = fit(join, lam, eps, engine if before is None else before.counter, init=before, **options)
    return [fits[lam] for lam in lams]


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
        """`E x x'` over the join; its diagonal where there are many features."""
        if self.join.d <= METRIC:
            return self.join.moments().second
        pairs = zip(self.join.blocks, self.join.counts(), strict=True)
        squares = [block._replace(X=block.X**2).transposed(count) for block, count in pairs]
        return np.diag(np.concatenate(squares) / float(self.join.size))

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
        rows = max(min(HESSIAN_ROWS, HESSIAN_ENTRIES // self.join.d), 64)
        drawn = sample(self.join, rows, 0)
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
            direction = -np.linalg.solve(_hessian(drawn, centre, ramp, lam), gradient)
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


def answer(run: Run, tol: float, why: str) -> RelationalFit:
    """The fit of a run."""
    certificate = run.certificate()
    proven = certificate.relative_gap <= tol
    status = Status.CONVERGED if proven else Status.INTERRUPTED if run.stopped else Status.MAX_STEPS
    status = status if run.finite else Status.NOT_FINITE
    coef, constant, given = [], 0.0, []
    for table, block, part in zip(run.join.names, run.join.blocks, run.join.split(run.best), strict=True):
        p = len(block.names)
        numbers = part[:p] / block.scale
        constant -= float(numbers @ block.mean)
        real = np.array([bool(name) for name in block.names], bool)
        constant += float(numbers[~real].sum())
        coef += [numbers[real], part[p:]]
        given += [f"{table}.{name}" for name in block.names if name]
        given += [f"{table}.{c.name}={level}" for c in block.categories for level in c.levels]
    code = StatusCode(np.int32(status))  # pyright: ignore[reportArgumentType]
    return RelationalFit(
        np.concatenate(coef), constant, run.best, certificate, code, run.taken, why,
        time.monotonic() - run.started, np.array(run.history), run.join, run.engine, run.planes, run.lam, given,
        "squared_hinge" if run.squared else "hinge",
    )  # fmt: skip


def _hessian(drawn: Any, beta: np.ndarray, ramp: float | None, lam: float) -> np.ndarray:
    """Of F with a ramp, from drawn rows; rows farther from the margin give it a floor. Squared where ramp is None."""
    slack, H = 1 - drawn.y * (drawn.x @ beta), 2 * lam * np.eye(len(beta))
    if ramp is None:
        far = drawn.x[slack >= 0]
        return H + 2 * (far.T @ far) / len(slack)
    for half, share in ((max(ramp, 0.02), 1.0), (0.5, 0.05)):
        near = drawn.x[np.abs(slack) < half]
        H += share * (near.T @ near) / (2 * half * len(slack))
    return H
