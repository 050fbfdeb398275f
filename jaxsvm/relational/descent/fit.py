"""Fit a linear SVM over a join, with an interval that contains the optimum.

    F(beta) = mean over the join of max(0, 1 - y beta.x) + lam |beta|^2,      lam = 1 / (2 C N)

or the same with the squared hinge, whose Newton steps need no ramp; or with squared errors of a label that is a number,
by one Newton step on the moments of the join.

    bundle    the default: the descent of `jaxsvm.designs` (Newton steps on a ramp, planes, rows near the margin), with
              sums over formed rows, or from counts; with many hundreds of features it begins by products with the rows
    paper     the paper's: guard eps, counts from below, steps `1 / (lam sqrt(d t))` in the ball of radius
              `sqrt(d) / (2 lam)`, the iterate of the least estimate (docs/papers/relational_gradient_descent.md)
    averaged  its Theorem 1: no guard, steps eight times smaller, the mean of all points

Every result has D and P, `D <= F* <= F(beta) <= P`, from the same sums, with no assumption of stability.
"""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from jaxsvm.designs.descent import Lane
from jaxsvm.errors import ConvergenceWarning, InputError, require, warn
from jaxsvm.loop.interruption import watching
from jaxsvm.relational.descent.rows import BIN, Scorer, Term
from jaxsvm.relational.descent.steps import Counted, Descent, PaperDescent, Queried, Squares, against, all_formed
from jaxsvm.relational.gradient.engine import Engine, engine_for, merged, scores
from jaxsvm.relational.schema.assembly import prepared
from jaxsvm.relational.schema.join import MOST_CLASSES, Join, Streamed
from jaxsvm.results.fit import Certificate, Status, StatusCode
from jaxsvm.results.judge import verdict
from jaxsvm.runtime.arrays import Number, require_one_of, require_positive, require_seconds, require_whole, transfers


@dataclasses.dataclass(frozen=True, eq=False)
class RelationalFit(Scorer):
    """A linear SVM over a join, which scores as `Scorer` does; of several classes arrays have one more axis, first."""

    coef: np.ndarray  # coefficients of the unscaled features, `(d,)`, in the order of `feature_names`
    beta: np.ndarray  # those of the scaled features and the constant, in the order of `join.feature_names`
    certificate: Certificate  # primal, dual and relative gap of F
    status: StatusCode  # how the fit ended
    steps: int  # number of evaluations, of all classes together
    engine: str  # the engine, and why it was chosen
    seconds: float  # duration of the fit
    history: np.ndarray  # `(k, 3)`: D, P and the estimate of F after each step, of one or more evaluations
    join: Join  # the scaled join
    descent: Descent | list[Descent]  # its rows and planes; of several classes those of each
    lam: float  # the strength of the regulariser
    feature_names: list[str]  # names of `coef`
    loss: str = "hinge"  # or another one of `fit`
    machines: tuple[RelationalFit, ...] = ()  # of several classes the fit of each against the rest

    def margins(self, at: ArrayLike) -> np.ndarray:
        """Return the share of the joined rows whose margin, `y f(x)`, is at most each threshold `at`, `(k,)`.

        Its differences are a histogram of the whole join. Each takes a count; those on a grid are blurred by a bin.
        """
        require(len(self.classes) == 2, "predicts numbers, which have no margins, or several labels: counts are of two")
        label, at = self.join.tree.label, np.ravel(at).astype(float)
        merge = None if isinstance(self.join, Streamed) else merged(self.join.tree, False)
        if merge is None:
            y, z, weight, _ = self.join.histogram(self.join.linear(self.beta), BIN)
            return np.array([weight[y * z <= tau].sum() for tau in at]) / float(self.join.size)
        far = [merge(scores(self.join, self.beta), tau).counts for tau in at.tolist()]
        return np.array([sum(part[label].sum() for part in parts) for parts in far]) / float(self.join.size)

    def __repr__(self) -> str:
        told = []
        for fitted in self.machines or [self]:
            P, D, gap = (float(part) for part in fitted.certificate)
            whose = f"{fitted.classes[1]}: " if self.machines else ""
            told.append(f"{whose}{fitted.status.name}, F* in [{D:.6g}, {P:.6g}], gap {gap:.1e}")
        return f"RelationalFit({'; '.join(told)}, {self.steps} evaluations, {self.engine})"


@transfers
def fit(
    join: Join, lam: float | None = None, eps: float = 0.1, engine: str | Engine = "auto", *, C: float | None = None,
    tol: float = 1e-3, max_steps: int = 200, scale: str = "none", intercept: bool = True, method: str = "bundle",
    loss: str = "hinge", max_seconds: float | None = None, callback: Callable[[int, float, float], Any] | None = None,
    delta: float | None = None, alpha: float = 1.0, class_weight: Mapping[Any, float] | str | None = None,
) -> RelationalFit:  # fmt: skip
    """Train a linear SVM over a join, and warn (`ConvergenceWarning`) if it is not certified to `tol`.

    Of several classes each is trained against the rest, from one preparation, and has its own certificate.

    Args:
        join: A `Join`.
        lam: The strength of the regulariser in `mean hinge + lam |beta|^2`, > 0; `1 / (2 C N)`.
        eps: The accuracy of the sketch's counts, in (0, 1].
        engine: "auto" (chosen by cost; `fit.engine` says which), "formed", "merge", "grid" or "sketch".
        C: The penalty of `|beta|^2 / 2 + C sum hinge`, instead of lam.
        tol: The relative gap at which the fit ends.
        max_steps: Cap on evaluations.
        scale: Scaling of numbers: "none", "max" (the paper's) or "standard"; `coef` is for unscaled numbers.
        intercept: Whether there is a constant feature 1, regularised like the others.
        method: "bundle", "paper" or "averaged"; see the module.
        loss: "hinge"; "squared_hinge": `mean max(0, 1 - y beta.x)^2 + lam |beta|^2`, where C is that of
            `|beta|^2 / 2 + C sum hinge^2`; or "squared_error", of a label that is a number t, which the score predicts:
            `mean (t - beta.x)^2 + lam |beta|^2`, from moments.
        max_seconds: Start no further evaluation after so many seconds.
        callback: Called with the step, D and P.
        delta: Of the paper's method: eps is `min(delta / 8, alpha)`, and the end is after the steps of Theorem 2.
        alpha: The perturbation that the join withstands, in (0, 1]: `stability` computes it.
        class_weight: Factors of the losses of rows by their label, above 0, or "balanced": the same total for each.
    """
    if (lam is None) == (C is None):
        raise InputError("lam and C: give one of the two (lam = 1 / (2 C N)).")
    for name, value in (("lam", lam), ("C", C), ("tol", tol), ("eps", eps), ("delta", delta), ("alpha", alpha)):
        if value is not None:
            require_positive(name, value)
    require_whole("max_steps", max_steps, 1)
    require_seconds(max_seconds)
    require_one_of("method", method, ("bundle", "paper", "averaged"))
    require_one_of("loss", loss, ("hinge", "squared_hinge", "squared_error"))
    numeric = loss == "squared_error"
    if (loss != "hinge" and method != "bundle") or (numeric and (engine != "auto" or class_weight is not None)):
        told = f"method is {method!r}, engine {engine!r}, class_weight {class_weight!r}"
        raise InputError(f"{told}: leave out what is for the hinge for {loss=}.")
    if delta is not None and (delta > 1 or method != "paper"):
        raise InputError(f"delta is {delta} and method {method!r}: at most 1, and 'paper', are needed.")
    started, eps = time.monotonic(), eps if delta is None else min(delta / 8, alpha)
    scaled = prepared(join, scale, intercept, class_weight)
    lam = float(lam if C is None else 1 / (2 * float(C) * float(scaled.size)))  # pyright: ignore
    told = f"scale is {scale!r}: {method=} presumes numbers of size 1 at most; take scale='max'."
    require(method == "bundle" or max(part.max(initial=0) for part in scaled.largest()) <= 1, told)
    labels, least = len(scaled.classes), min(np.bincount(scaled.codes, scaled.counts()[scaled.tree.label]))
    several = labels > 2 and not numeric
    require(numeric or least > 0, "join has no rows of one of its labels: hold out other ones, or fewer.")
    told = f"label has {labels} values, above {MOST_CLASSES}: take `positive`, or of numbers loss='squared_error'."
    require(numeric or labels <= MOST_CLASSES, told)
    joins = [scaled.against(label) for label in scaled.classes.tolist()] if several else [scaled]
    rows, why = (Squares(scaled), "moments, exact") if numeric else _rows_for(joins[0], engine, eps, method, tol, loss)
    mean = method == "averaged"
    paper: Any = partial(PaperDescent, eps=0.0 if mean else eps, delta=delta or 0.0, mean=mean)
    squares = np.append(scaled.means("square"), [1.0, 1.0])
    fits = []
    with watching() as stop:
        for one in joins:
            lane = Lane.at(np.zeros(scaled.d + 1), "none", loss != "hinge")
            kind = Descent if method == "bundle" else paper
            descent = kind(against(rows, one) if several else rows, lane, 1 / (2 * lam), sizes=np.sqrt(squares))
            descent.terms = scaled.terms + rows.n
            descent.tol, descent.max_steps, descent.stop, descent.callback = tol, max_steps, stop, callback
            descent.deadline = np.inf if max_seconds is None else started + max_seconds
            descent.run()
            if method == "bundle" and not numeric and descent.unit < lane.P:  # stopped early: at 0 every loss is 1
                lane.P, lane.best = descent.unit, np.zeros_like(lane.best)
            fits.append(result_of(one, descent, lam, tol, why, started))
    fitted = together(fits, scaled) if several else fits[0]
    warn_of_uncertified([fitted])
    return fitted


def together(fits: list[RelationalFit], join: Join) -> RelationalFit:
    """Return the fits of several classes, each against the rest, as one."""
    every = list(zip(*(fitted.terms for fitted in fits), strict=True))
    parts: Any = map(np.array, zip(*(fitted.certificate for fitted in fits), strict=True))
    codes: Any = np.array([int(fitted.status.code) for fitted in fits])
    return dataclasses.replace(
        fits[-1], terms=[terms[0]._replace(coef=sum((term.coef for term in terms), [])) for terms in every],
        **{name: np.array([getattr(fitted, name) for fitted in fits]) for name in ("intercept", "coef", "beta")},
        certificate=Certificate(*parts), status=StatusCode(codes),
        steps=sum(fitted.steps for fitted in fits), history=np.concatenate([fitted.history for fitted in fits]),
        descent=[fitted.descent for fitted in fits], classes=join.classes, join=join, machines=tuple(fits),
    )  # fmt: skip


def _rows_for(join: Join, engine: Any, eps: float, method: str, tol: float, loss: str) -> tuple[Any, str]:
    """Return what evaluates points of a scaled join, and the reason of the choice."""
    many, streamed = f"{float(join.size):,.0f} rows", isinstance(join, Streamed)
    how = "sketch" if isinstance(engine, Engine) or method != "bundle" else engine
    require_one_of("engine", how, ("auto", "formed", "merge", "grid", "sketch"))
    if loss != "hinge" and how not in ("auto", "formed", "grid"):
        raise InputError(f"engine is {engine!r}, which counts rows of hinges: {loss=} takes 'formed' or 'grid'.")
    if how in ("auto", "formed") and not streamed:
        if (rows := all_formed(join, wanted=how == "formed")) is not None:
            return rows, f"formed: the join has {many}, each kept with its features, exact"
        require(how != "formed", f"engine is 'formed': {many} do not fit; take 'auto'.")
        how = "merge" if loss == "hinge" and merged(join.tree, False) else "grid"
    if how in ("auto", "formed", "grid"):
        return Queried(join, tol), f"{'streamed' if streamed else 'grid'}: {many}, counted by bins of their scores"
    counter, why = engine_for(join, engine, eps)
    return Counted(join, counter), why


@transfers
def fit_path(
    join: Join, lams: Iterable[Number], eps: float = 0.1, engine: str | Engine = "auto", **options: Any
) -> list[RelationalFit]:
    """Fit at several lam, in their order, and warn once; after Ctrl-C at no further one: the fits so far are returned.

    All other arguments are those of `fit`: `callback` is called on the way of each.
    """
    if not isinstance(lams, Iterable):
        raise InputError(f"lams is {lams!r}: several values are needed.")
    with watching() as stop, warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        fits = [fit(join, float(lam), eps, engine, **options) for lam in takewhile(lambda _: not stop.seen, lams)]
    warn_of_uncertified(fits)
    return fits


def result_of(join: Join, descent: Descent, lam: float, tol: float, why: str, started: float) -> RelationalFit:
    """Return the fit at the best point of a descent."""
    certificate, best = descent.certificate(), descent.lane.best[:-1]
    ended = Status.INTERRUPTED if descent.stopped else Status.MAX_STEPS if descent.going else Status.STALLED
    code = StatusCode(verdict(certificate, tol, finite=descent.finite, definite=True, otherwise=ended))
    terms, constant = [], 0.0
    for table, block, part in zip(join.names, join.blocks, join.split(best), strict=True):
        at = len(block.names)
        numbers = part[:at] / block.scale
        constant -= float(numbers @ block.mean)
        for name, value, fill in zip(block.names, numbers.tolist(), block.fill.tolist(), strict=True):
            if name is None:
                constant += value
            else:
                terms.append(Term(table, name, "number", [value], None, None if np.isnan(fill) else fill))
        for name, levels in block.categories.items():
            terms.append(Term(table, name, block.kinds[name], part[at : at + len(levels)].tolist(), levels))
            at += len(levels)
    coef = np.array([c for term in terms for c in term.coef])
    names = [name for name in join.feature_names if name != "(intercept)"]
    loss = "squared_error" if isinstance(descent.rows, Squares) else "squared_hinge" if descent.lane.square else "hinge"
    classes = np.array([]) if loss == "squared_error" else join.classes
    history, seconds = np.array(descent.history).reshape(-1, 3), time.monotonic() - started
    parts: Any = (terms, constant, classes, join.schema, coef, best, certificate, code, descent.taken, why, seconds)
    rest: Any = (history, join, descent, lam, names, loss)
    return RelationalFit(*parts, *rest)


def warn_of_uncertified(fits: list[RelationalFit]) -> None:
    """Warn once of the fits over joins that are not certified."""
    fits = [one for fitted in fits for one in fitted.machines or [fitted]]
    failed = [fitted for fitted in fits if fitted.status != Status.CONVERGED]
    if failed:
        gap = max(float(fitted.certificate.relative_gap) for fitted in failed)
        warn(
            f"{len(failed)} of {len(fits)} fits over a join ended as {failed[0].status.name}, with a relative gap of "
            f"up to {gap:.2g}. Scale the numbers (scale='standard'), take a larger lam (a smaller C), another engine, "
            "a larger tol, more `max_steps`, more time, or `designs.fit` of `relational.design(join)`.",
            ConvergenceWarning,
        )


class Stability(NamedTuple):
    """How stable a join is (the paper's Definition 12), and what its Theorem 2 takes for that; see `stability`."""

    alpha: float  # how far features may be perturbed, by factors of `1 +- alpha`
    gamma: float  # what is within `1 + 2 delta` of the optimum of one perturbation is within `1 + gamma` of another's
    eps: float  # the accuracy of counts, `min(delta / 8, alpha)`
    steps: float  # the steps after which `fit(method="paper", eps=eps)` is within `1 + gamma` of the optimum


@transfers
def stability(join: Join, lam: float, delta: float = 0.1, *, scale: str = "max", intercept: bool = True) -> Stability:
    """Compute alpha and gamma such that a join is (alpha, delta, gamma)-stable, from one fit and the means of |x|.

    A perturbation moves F by at most `alpha mean|x|.|beta|`, so every join is stable for some alpha. The minima of two
    are within `1 + delta / 8`, too, which the proof of Theorem 2 needs. The arguments are those of `fit`.
    """
    require_positive("delta", delta)
    scaled = prepared(join, scale, intercept)
    if delta > 1 or len(scaled.classes) > 2:
        raise InputError(f"delta is {delta}, of {len(scaled.classes)} labels: at most 1, and two labels, are needed.")
    fitted = fit(scaled, lam, intercept=False)
    P, D, _ = map(float, fitted.certificate)
    A = scaled.means("size")
    a, drift, alpha, most, r, least = float(np.linalg.norm(A)), float(A @ np.abs(fitted.beta)), 0.0, P, 1.0, D
    for _ in range(50):  # to a fixed point
        most = P + alpha * drift  # of all minima
        r = min(np.sqrt(most / lam), (1 + alpha) * a / (2 * lam))  # and of the norms of their points
        least = max(D - alpha * a * r, 1e-100)
        alpha = min(float(delta * least / (16 * a * r)), 1.0)
    near = np.sqrt((1 + 2 * delta) * most / lam)
    gamma = 2 * delta + 2 * alpha * a * ((1 + 2 * delta) * r + near) / least
    steps = (256 * scaled.d**1.5 / (lam * delta * least)) ** 2
    return Stability(alpha, float(gamma), min(delta / 8, alpha), steps)
