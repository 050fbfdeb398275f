"""Cross-validate over folds x C in one computation; propose a grid of C from the data.

A fold is the same problem with its held-out samples absent (weight 0): one Gram operator serves all folds, and each fit
comes with the margins of the held-out samples. Nystroem Grams are the exception: no landmark may be a held-out sample,
so each fold has its own Gram.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, TypedDict, Unpack, overload

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import ArrayLike

from jaxsvm.errors import InputError, is_concrete, require
from jaxsvm.gram.signed import SignedGram
from jaxsvm.loop.choice import exact_solver
from jaxsvm.loop.driver import QUIET, drive
from jaxsvm.loop.interruption import Interruption, answering, watching
from jaxsvm.loop.round import ready
from jaxsvm.model_selection.folds import Fold, Folds, fold_masks, require_classes
from jaxsvm.models.model import is_right
from jaxsvm.path.chains import stacked, warn_of_unfinished
from jaxsvm.path.solve import PathOptions, checked_values, problems_at_widths, require_widths, solve_parts
from jaxsvm.problems.contract import Parametric, require_problem
from jaxsvm.problems.padding import trimmed
from jaxsvm.problems.slack import SlackProblem, equivalent_nu
from jaxsvm.results.fit import Certificate, Fit, Status, StatusCode
from jaxsvm.runtime.arrays import given_key, in_a_line, require_one_of, require_seconds, require_whole, transfers
from jaxsvm.runtime.loops import host_drives
from jaxsvm.solvers.contract import Solver
from jaxsvm.solvers.start import Start


def end_of(name: str, best: float | None, values: ArrayLike) -> str | None:
    """Say that the best of several values is the smallest or the largest one; None if it is neither."""
    if best is None:
        return None
    ends = {float(np.max(values)): ("largest", "larger", 10), float(np.min(values)): ("smallest", "smaller", 0.1)}
    if len(ends) < 2 or best not in ends:
        return None
    end, others, factor = ends[best]
    tried = f"score a few from there to {factor * best:.3g}"
    return f"The best {name}, {best:.4g}, is the {end} of the grid: {others} ones may be better ({tried})."


@transfers
def C_grid(  # noqa: N802 (C is the field's name)
    problem: Parametric, n: int = 64, *, change: float = 0.02, largest: float = 1e6, solver: Solver | None = None,
    callback: Callable[[float, Fit], object] | None = None,
) -> Float[np.ndarray, " n"]:  # fmt: skip
    """Return a grid of C from the data: from "every sample is a support vector" to "nothing changes any more".

    Below `1 / max_i (B 1)_i` (B the signed kernel matrix) every margin of the solution `beta ~ C (1 - C B 1)` is below
    1: this is the lower end. The upper end is the first C, in steps of ten from there, at which a step of ten changes
    the margins by less than `change`, or that the solver does not certify.

    Args:
        problem: A problem of `svm_problem` or `hinge_problem`; its own C is not used. Of `slack_problem`: the values
            are those of nu, between the ends of its hinge's grid.
        n: The number of values, >= 1.
        change: The relative change of the margins (root mean square) that counts as none, > 0.
        largest: The largest ratio of the upper end to the lower end, >= 10; not a C. For values between two Cs use
            `np.geomspace(least, most, n)` in place of a grid.
        solver: The solver at each decade, to a few digits; None takes the exact one of the problem's kind.
        callback: Called after each decade with its C and its fit.

    Returns:
        Increasing values, evenly spaced in log C, `(n,)`.

    Raises:
        KeyboardInterrupt: On Ctrl-C: a part of a grid is of no use.
    """
    require_whole("n", n, 1)
    require(is_concrete(problem), "C_grid needs concrete arrays: call it outside jit and vmap.")
    if not (change > 0 and largest >= 10):
        raise InputError(f"change is {change} and largest {largest}: change > 0 and largest >= 10 are needed.")
    require_problem(problem)
    if isinstance(problem, SlackProblem):
        nus: list[float] = []

        def tell(C: float, fit: Fit) -> None:
            nus.append(float(equivalent_nu(problem.hinge(C), fit)))
            _ = callback is None or callback(nus[-1], fit)

        C_grid(problem.hinge(1.0), 2, change=change, largest=largest, solver=solver, callback=tell)
        return _spaced(min(nu for nu in nus if nu > 0), max(nus), n)
    need = "a grid of C is for `svm_problem` or `hinge_problem`, one of nu for `slack_problem`"
    require(problem.parameter == "C" and not problem.regression, f"problem is a {type(problem).__name__}: {need}.")
    first, weights, samples = problem.at(1.0), np.asarray(problem.weights), problem.n
    pull = np.asarray(SignedGram(problem.gram, problem.y, problem.offset).support_matvec(jnp.asarray(weights)))
    low = float(1 / max(pull.max() * float(weights.max()), float(first.diagonal.max()), np.finfo(float).tiny))
    solver, key = exact_solver(first, 1e-2) if solver is None else solver, jax.random.key(0)
    problem = ready(problem, solver)
    high, before, warm = low, None, None
    with watching() as stop:
        while high < low * largest:
            at_high = problem.at(high)
            fit = drive(at_high, solver, key, warm, stop=stop, options=QUIET)
            stop.check()
            if callback is not None:
                callback(high, trimmed(fit, samples))
            warm, margins = Start.of(fit, at_high), np.asarray(fit.margins, float)
            if before is not None and np.linalg.norm(margins - before) <= change * np.linalg.norm(margins):
                high /= 10
                break
            if int(fit.status) != Status.CONVERGED:  # nor will larger values be
                break
            high, before = high * 10, margins
    return _spaced(low, max(high, 10 * low), n)


def _spaced(low: float, high: float, n: int) -> Float[np.ndarray, " n"]:
    return np.geomspace(low, high, n) if n > 1 else np.array([np.sqrt(low * high)])


SCORES = ("accuracy", "balanced_accuracy", "squared_hinge")  # of classes; "r2" of regression


@dataclasses.dataclass(frozen=True)
class Scores:
    """Scores of k values of C on every fold.

    Attributes:
        Cs: The values, in the order of the argument, `(k,)`.
        scores: Score of each fold at each value, `(folds, k)`; larger is better; NaN of a fit
            that Ctrl-C left out, or whose relative gap is 1 or more (it says nothing of this C).
    """

    Cs: Float[np.ndarray, " k"]
    scores: Float[np.ndarray, "folds k"]

    def __repr__(self) -> str:
        note = {} if self.note is None else {"note": self.note}
        best, C, cautious = map(np.float64, (np.nanmax(self.mean, initial=-np.inf), self.C, self.C_one_standard_error))
        return in_a_line(self, C=C, best=best, C_one_standard_error=cautious, **note)

    @property
    def note(self) -> str | None:
        """Say that the best C is an end of the grid, and that folds were left out; return None if neither is so."""
        used, folds = int(self.counted.sum()), len(self.scores)
        left = f"C is chosen by {used} of {folds} folds: the others were not reached." if used < folds else None
        return " ".join(filter(None, (left, end_of("C", self.C, self.Cs)))) or None

    @property
    def counted(self) -> Bool[np.ndarray, " folds"]:
        """Return which folds scores are compared on: all, or the most that have scores at the same C if none has all.

        Of as many folds those are taken that have scores at more values of C. Without any score it is all.
        """
        reached = ~np.isnan(self.scores)
        numbers = reached.sum(axis=0), [reached[at].all(axis=0).sum() for at in reached.T]
        best = reached[:, np.lexsort(numbers[::-1])[-1]]
        return best if best.any() else ~best

    @property
    def mean(self) -> Float[np.ndarray, " k"]:
        """Return the mean score of each C over the folds that count (`counted`), `(k,)`; NaN if one of them is."""
        return self.scores[self.counted].mean(axis=0)

    @property
    def standard_error(self) -> Float[np.ndarray, " k"]:
        """Return the standard error of `mean`, `(k,)`: the standard deviation of the folds' scores over `sqrt(folds)`.

        The deviation has `folds - 1` in its denominator (`ddof=1`); 0 with one fold.
        """
        scores = self.scores[self.counted]
        return scores.std(axis=0, ddof=1) / np.sqrt(len(scores)) if len(scores) > 1 else np.zeros_like(self.mean)

    @property
    def C(self) -> float:  # noqa: N802
        """Return the C of the best mean, the smallest of equals; NaN if no C has a score."""
        return self._smallest(np.nanmax(self.mean, initial=-np.inf))

    @property
    def C_one_standard_error(self) -> float:  # noqa: N802
        """Return the smallest C whose mean lies within one standard error of the best."""
        best = np.flatnonzero(self.Cs == self.C)[:1]
        return self._smallest((self.mean - self.standard_error)[best].max(initial=-np.inf))

    def _smallest(self, score: Any) -> float:
        """Return the smallest value whose mean is at least `score`; NaN if there is none."""
        enough = self.Cs[self.mean >= score]
        return float(enough.min()) if len(enough) else float("nan")


@dataclasses.dataclass(frozen=True, repr=False)
class CrossValidation(Scores):
    """Scores of k values of C on every fold, each fit certified.

    Attributes:
        folds: The fold in which each sample is held out, `(n,)`; the last of several; -1: never.
        fits: The fits, leading axes `(folds, k)`.
    """

    folds: Int[np.ndarray, " n"]
    fits: Fit

    @property
    def certificate(self) -> Certificate:
        """Return the certificates, `(folds, k)` in each field."""
        return self.fits.certificate

    @property
    def status(self) -> StatusCode:
        """Return how each fit ended, `(folds, k)`; prints as counts. `.name`: names; `.code`: integers of `Status`."""
        return self.fits.status


@dataclasses.dataclass(frozen=True)
class WidthValidation:
    """Cross-validations of k values of C at g widths of the kernel, on the same folds.

    Attributes:
        gammas: The widths, in the order of the argument, `(g,)`.
        results: The cross-validation at each.
    """

    gammas: Float[np.ndarray, " g"]
    results: tuple[CrossValidation, ...]

    def __repr__(self) -> str:
        size = f"{len(self.gammas)} widths x {len(self.Cs)} values of C"
        note = "" if self.note is None else f". {self.note}"
        best = f"best mean score {np.nanmax(self.mean, initial=-np.inf):.6g} at C={self.C:.6g}, gamma={self.gamma:.6g}"
        return f"WidthValidation({size}, {best}{note})"

    @property
    def note(self) -> str | None:
        """Say which of the best C and gamma is an end of the grid; return None if neither is."""
        found = (self.best.note, end_of("gamma", self.gamma, self.gammas))
        return " ".join(filter(None, found)) or None

    @property
    def Cs(self) -> Float[np.ndarray, " k"]:  # noqa: N802
        """Return the values of C, `(k,)`."""
        return self.results[0].Cs

    @property
    def mean(self) -> Float[np.ndarray, "g k"]:
        """Return the mean score over folds of each gamma and C, `(g, k)`; NaN where Ctrl-C left one out."""
        return np.stack([result.mean for result in self.results])

    @property
    def best(self) -> CrossValidation:
        """Return the cross-validation at `gamma`."""
        return self.results[self._place]

    @property
    def gamma(self) -> float:
        """Return the gamma of the best mean score; of equals the smallest, whose decision function is the smoothest."""
        return float(self.gammas[self._place])

    @property
    def C(self) -> float:  # noqa: N802
        """Return the C of the best mean score at `gamma`; the smallest of equals."""
        return self.best.C

    @property
    def _place(self) -> int:
        scores = np.array([np.nanmax(result.mean, initial=-np.inf) for result in self.results])
        places = np.flatnonzero(scores == scores.max())
        return int(places[np.argmin(self.gammas[places])])


class Options(TypedDict, total=False):
    """Options of `cross_validate` that do not change what it returns."""

    score: str | None
    solver: Solver | None
    tol: ArrayLike
    seed: int
    key: Array | None
    max_seconds: float | None
    callback: Callable[[int, Fit], object] | None
    interrupt: str


@overload
def cross_validate(
    problem: Parametric, Cs: ArrayLike, folds: Folds = 5, *, gammas: None = None, **options: Unpack[Options]
) -> CrossValidation: ...
@overload
def cross_validate(
    problem: Parametric, Cs: ArrayLike, folds: Folds = 5, *, gammas: ArrayLike, **options: Unpack[Options]
) -> WidthValidation: ...


@transfers
def cross_validate(
    problem: Parametric,
    Cs: ArrayLike,
    folds: Folds = 5,
    *,
    gammas: ArrayLike | None = None,
    score: str | None = None,
    solver: Solver | None = None,
    tol: ArrayLike = 1e-3,
    seed: int = 0,
    key: Array | None = None,
    max_seconds: float | None = None,
    callback: Callable[[int, Fit], object] | None = None,
    interrupt: str = "return",
) -> CrossValidation | WidthValidation:
    """Score values of C on held-out folds.

    Example:
        >>> scored = jaxsvm.cross_validate(problem, jaxsvm.C_grid(problem, 16), folds=5)
        >>> fit = jaxsvm.fit(problem.at(scored.C))

    Args:
        problem: A problem of `svm_problem`, `hinge_problem` or `svr_problem` (or `slack_problem`, with values of nu).
            Its sample weights count in fits and scores; its own C is not used. The landmarks of a Nystroem Gram are
            chosen again in each fold, by the same rule, among its training samples.
        Cs: Values of C, `(k,)`, in any order.
        folds: The number of folds (stratified by class); or a splitter of scikit-learn (any object with `split(X, y)`);
            or pairs `(train, test)` in a list, tuple or generator (`splitter.split(x, y, groups)`), each part
            indices of samples or a boolean mask; or the fold of each sample, `(n,)` integers with -1 for "never held
            out". A sample in neither part of a pair does not count in that fold.
        gammas: Widths of the kernel, `(g,)`, in place of the problem's own: each is scored on the same folds. Distances
            are computed once where they fit beside the kernel values.
        score: "accuracy" (None), "balanced_accuracy" (the mean over classes) or "squared_hinge" (the loss, negated); of
            regression "r2" (None).
        solver: The solver of every fit; None chooses one by the problem.
        tol: The relative duality gap to certify for each fit.
        seed: The seed of the shuffle that deals samples to folds.
        key: A random key for the solver.
        max_seconds: Begin nothing more after about so many seconds, as after Ctrl-C.
        callback: Called after each fit of each fold with the place of its C, and the fit: for a progress bar.
        interrupt: The effect of Ctrl-C: "return" the fits so far, or "raise" KeyboardInterrupt.

    Returns:
        Scores, standard errors, the chosen values, and all fits with their certificates; with `gammas` those of each
        width. A warning says once what is not certified. After Ctrl-C or `max_seconds` fits that were not reached are
        INTERRUPTED, with an infinite gap and a score of NaN; the choice is among the values that every fold reached, or
        if there are none, that the most folds reached (`note` says how many).
    """
    require(is_concrete(problem, Cs, folds), "cross_validate needs concrete arrays: call it outside jit and vmap.")
    require_problem(problem)
    if not host_drives(problem.gram):
        raise InputError("problem is on a mesh of several processes: fit `problem.weighted(fold)` for each fold.")
    require(problem.parameter is not None, f"problem is a {type(problem).__name__}: it has no C to choose.")
    values = np.asarray(checked_values(Cs, problem.kind), float)
    scores = ("r2",) if problem.regression else SCORES
    score = score or scores[0]
    require_one_of("score", score, scores)
    require_whole("seed", seed, 0)
    labels, weights = _samples_of(problem)
    masks = fold_masks(np.zeros(len(labels)) if problem.regression else labels, folds, seed)
    if not problem.regression:
        require_classes(masks, labels, weights)
    elif alone := [k for k, fold in enumerate(masks) if len(np.unique(labels[fold.test & (weights > 0)])) < 2]:
        raise InputError(f"folds: R2 needs two targets that differ; fold {alone[0]} holds out none: use fewer folds.")
    if gammas is not None:
        require_widths(problem, gammas)
    key = given_key(key)
    require_seconds(max_seconds)
    options = PathOptions(key, solver, tol, callback=callback)
    validated = partial(_validated, values=values, masks=masks, options=options, score=score, seed=seed)
    with answering(interrupt) as stop, stop.within(max_seconds):
        if gammas is None:
            results = [validated(problem, stop=stop)]
        else:
            results = [validated(at_width, stop=stop) for (at_width,) in problems_at_widths(problem, gammas, options)]
    warn_of_unfinished([result.fits for result in results], values, (solver or options).tol)
    return results[0] if gammas is None else WidthValidation(np.asarray(gammas, float), tuple(results))


def _samples_of(problem: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return label, or target, and weight of each sample, `(n,)`; variables of regression are two a sample."""
    weights = np.asarray(problem.weights, float)
    if not problem.regression:
        return np.asarray(problem.y), weights
    above, below = np.split(np.asarray(problem.q, float), 2)
    return (above - below) / 2, weights[: len(above)]


def _validated(
    problem: Parametric,
    values: np.ndarray,
    masks: list[Fold],
    options: PathOptions,
    score: str,
    seed: int,
    stop: Interruption,
) -> CrossValidation:
    """Solve each fold, and score it on its held-out samples: one operator serves all, unless it has landmarks."""
    # Before a stopped product keeps all cores.
    labels, weights = _samples_of(problem)
    trains = np.stack([np.resize(fold.train, problem.n) for fold in masks]).astype(float)
    fits = solve_parts(problem, trains, values, options, stop, seed)
    scores = np.stack([_scores(fit, fold.test, labels, weights, score) for fit, fold in zip(fits, masks, strict=True)])
    number_of = np.full(len(labels), -1)
    for number, fold in enumerate(masks):
        number_of[fold.test] = number
    return CrossValidation(values, scores, number_of, stacked(fits))


def r2(errors: np.ndarray, of_mean: Any) -> np.ndarray:
    """Return R2 of sums of squared errors, `of_mean` being those of the targets' mean."""
    return 1 - errors / of_mean


def _scores(fit: Fit, mask: np.ndarray, labels: np.ndarray, weights: np.ndarray, score: str) -> np.ndarray:
    """Return the score at each C, from margins of the held-out samples in primal scale, `(k,)`."""
    held = mask & (weights > 0)
    margins = np.asarray(fit.margins, float)[:, : len(held)][:, held]
    unknown = ~(np.asarray(fit.certificate.relative_gap) < 1)  # as good as the point of another value
    margins[unknown | (np.asarray(fit.status) == Status.INTERRUPTED)] = np.nan
    w, sign = weights[held], labels[held]
    if score == "r2":
        return r2(((margins - sign) ** 2) @ w, w @ (sign - np.average(sign, weights=w)) ** 2)
    if score == "squared_hinge":
        return -(w * np.maximum(0, 1 - margins) ** 2).sum(axis=1) / w.sum()
    right = np.where(np.isnan(margins), np.nan, is_right(margins, sign))
    if score == "accuracy":
        return (w * right).sum(axis=1) / w.sum()
    classes = [sign == value for value in (-1, 1) if (sign == value).any()]
    return np.mean([(w[c] * right[:, c]).sum(axis=1) / w[c].sum() for c in classes], axis=0)
