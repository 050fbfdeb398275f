"""`fit`: a linear SVM over a join, with an interval that holds the optimum.

    F(beta) = mean over the join of max(0, 1 - y beta.x) + lam |beta|^2,      lam = 1 / (2 C N)

or the same with the squared hinge, from sums of slacks in the place of counts; its planes and its certificate are of
the same form, its Newton's steps need no ramp.

Three ways to descend, on counts of any engine:

    bundle  the default: cutting planes with the best weights, a proximal term (`bundle.py`); interior points where
            each row of the join is looked at and few are, or many levels; else Newton's steps, proved by the same
            planes, where the engine can count a smooth weight (rows, grid)
    steps   `beta <- beta - G / (2 lam t)`: F is 2 lam-strongly convex, so the average regret is O(d log T / (lam T));
            ten to two hundred steps where the paper's analysis asks for 10^14
    paper   the paper's: guard eps, counts from below, steps `1 / (lam sqrt(d t))` in the ball of radius
            `sqrt(d) / (2 lam)`, the iterate of the least estimate; constants that go together (Theorem 1 has others)

Every answer carries D and P, `D <= F* <= F(beta) <= P`, from the same counts, with no assumption of stability.
"""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxsvm.errors import InputError
from jaxsvm.loop.interruption import watching
from jaxsvm.relational.descent.run import Run
from jaxsvm.relational.gradient.bundle import Bundle
from jaxsvm.relational.gradient.engine import engine_for
from jaxsvm.relational.schema.join import prepared
from jaxsvm.relational.tables.sql import decision_function, to_sql
from jaxsvm.results.fit import Certificate, Status, StatusCode
from jaxsvm.runtime.checks import require_positive, require_seconds, require_whole

METHODS = ("bundle", "steps", "paper")
LOSSES = ("hinge", "squared_hinge")


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
        """The query that scores every row of the join; see `jaxsvm.relational.tables.sql.to_sql`."""
        return to_sql(self, tables)

    def decision_function(self, rows: Any) -> np.ndarray:
        """Scores of joined rows, `(k,)`; see `jaxsvm.relational.tables.sql.decision_function`."""
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
            first, done = None if init is None else init.beta, False
            if init is not None:
                run.D = max(run.D, run.planes.bound()[0])
            if run.row_by_row:
                done, first = run.interior_steps(max_steps, tol, stop), run.best
            if not done:
                smooth = hasattr(counter, "ramp") or run.squared
                descend = run.newton_steps if smooth else run.bundle_steps
                descend(max_steps, tol, stop, first)
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
        given += [f"{table}.{name}" for c in block.categories for name in c.names]
    code = StatusCode(np.int32(status))  # pyright: ignore[reportArgumentType]
    return RelationalFit(
        np.concatenate(coef), constant, run.best, certificate, code, run.taken, why,
        time.monotonic() - run.started, np.array(run.history), run.join, run.engine, run.planes, run.lam, given,
        "squared_hinge" if run.squared else "hinge",
    )  # fmt: skip
