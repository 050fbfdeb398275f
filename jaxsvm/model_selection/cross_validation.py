"""Cross-validate over folds x C in one computation, and propose a grid of C from the data.

A fold is the same problem with its held-out samples absent (weight 0): one Gram operator serves all folds, and each fit
comes with the margins of the held-out samples. Nystroem Grams are the exception: no landmark may be a held-out sample,
so each fold has its own Gram.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxsvm.errors import ConvergenceWarning, InputError, is_concrete, warn
from jaxsvm.gram.low_rank import LowRankGram, landmarks_among
from jaxsvm.gram.signed import SignedGram
from jaxsvm.loop.choice import exact_solver
from jaxsvm.loop.driver import QUIET, drive
from jaxsvm.loop.interruption import answering, watching
from jaxsvm.loop.prepare import ready
from jaxsvm.model_selection.folds import Fold, fold_masks
from jaxsvm.models.model import is_right
from jaxsvm.path.options import Options, checked_values
from jaxsvm.path.placeholders import on_host_stacked
from jaxsvm.path.solve import solve_together
from jaxsvm.results.fit import Certificate, Fit
from jaxsvm.results.status import StatusCode
from jaxsvm.runtime.checks import require_one_of
from jaxsvm.runtime.summary import in_a_line
from jaxsvm.runtime.transfers import transfers
from jaxsvm.solvers.start import Start

SCORES = ("accuracy", "balanced_accuracy", "squared_hinge")


@dataclasses.dataclass(frozen=True)
class Scores:
    """Scores of k values of C on every fold.

    Attributes:
        Cs: The values, in the order of the argument, `(k,)`.
        scores: Score of each fold at each value, `(folds, k)`; larger is better; NaN if Ctrl-C left it out.
    """

    Cs: Float[np.ndarray, " k"]
    scores: Float[np.ndarray, "folds k"]

    @property
    def mean(self) -> Float[np.ndarray, " k"]:
        """Mean over folds, `(k,)`; NaN if one of them is."""
        return self.scores.mean(axis=0)

    @property
    def standard_error(self) -> Float[np.ndarray, " k"]:
        """The standard error of that mean, `(k,)`."""
        folds = len(self.scores)
        return self.scores.std(axis=0, ddof=1) / np.sqrt(folds) if folds > 1 else np.zeros_like(self.mean)

    @property
    def C(self) -> float:  # noqa: N802
        """The value of the best mean; the smallest of equals; NaN if Ctrl-C left no value that every fold reached."""
        return self._smallest(self.mean.max(initial=-np.inf, where=np.isfinite(self.mean)))

    @property
    def C_one_standard_error(self) -> float:  # noqa: N802
        """The smallest value whose mean lies within one standard error of the best."""
        best = np.flatnonzero(self.Cs == self.C)[:1]
        return self._smallest((self.mean - self.standard_error)[best].max(initial=-np.inf))

    def _smallest(self, score: Any) -> float:
        """Return the smallest value whose mean is at least `score`; NaN if there is none."""
        enough = self.Cs[self.mean >= score]
        return float(enough.min()) if len(enough) else float("nan")


@dataclasses.dataclass(frozen=True)
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
        """Certificates, `(folds, k)` in each field."""
        return self.fits.certificate

    @property
    def status(self) -> StatusCode:
        """Status codes, `(folds, k)`."""
        return self.fits.status

    def __repr__(self) -> str:
        return in_a_line(self, C=self.C, C_one_standard_error=self.C_one_standard_error)


@transfers
def cross_validate(
    problem: Any,
    Cs: Any,
    folds: Any = 5,
    groups: Any = None,
    *,
    score: str = "accuracy",
    solver: Any = None,
    tol: Any = 1e-3,
    seed: int = 0,
    key: Array | None = None,
    interrupt: str = "return",
) -> CrossValidation:
    """Score values of C on held-out folds.

    Args:
        problem: A problem of `svm_problem` or `hinge_problem` (or `slack_problem`, with values of nu). Its sample
            weights count in fits and scores; its own C is not used. The landmarks of a Nystroem Gram are chosen again
            in each fold, by the same rule, among its training samples.
        Cs: Values of C, `(k,)`, in any order.
        folds: The number of folds (stratified by class, or by group if groups are given); or a splitter of scikit-learn
            (any object with `split(X, y, groups)`); or pairs `(train, test)` in a list, tuple or generator, each part
            indices of samples or a boolean mask; or the fold of each sample, `(n,)` integers with -1 for "never held
            out". A sample in neither part of a pair does not count in that fold.
        groups: Group of each sample, `(n,)`: samples of a group are held out together. For a number or a splitter.
        score: "accuracy", "balanced_accuracy" (the mean over classes) or "squared_hinge" (the loss, negated).
        solver: The solver of every fit; None chooses one by the problem.
        tol: The relative duality gap to certify for each fit.
        seed: The seed of the shuffle that deals samples to folds.
        key: A random key for the solver.
        interrupt: The effect of Ctrl-C: "return" the fits so far, or "raise" KeyboardInterrupt.

    Returns:
        Scores, standard errors, the chosen values, and all fits with their certificates. After Ctrl-C the choice is
        among the values that every fold reached.

    Raises:
        InputError: If an argument cannot be used.
    """
    if not is_concrete(problem, Cs, folds, groups):
        raise InputError("cross_validate needs concrete arrays: call it outside jit and vmap.")
    if problem.parameter is None:
        raise InputError(f"problem is a {type(problem).__name__}: it has no C to choose.")
    values = np.asarray(checked_values(Cs), float)
    require_one_of("score", score, SCORES)
    labels, weights = np.asarray(problem.y), np.asarray(problem.weights, float)
    masks = fold_masks(labels, folds, groups, seed)
    for number, fold in enumerate(masks):
        _require_classes(labels, weights, fold, number)
    parts = [problem.weighted(fold.train.astype(float)) for fold in masks]
    key = jax.random.key(0) if key is None else key
    options = Options(key, solver, tol)
    with answering(interrupt) as stop:
        if isinstance(problem.gram, LowRankGram) and problem.gram.landmarks is not None:
            keys, fits = jax.random.split(jax.random.key(seed), len(parts)), []
            for part, drawn in zip(parts, keys, strict=True):  # one Gram operator at a time
                gram = landmarks_among(problem.gram, np.asarray(part.present), drawn)
                fits += solve_together([part.on(gram)], values, options, stop)
        else:
            fits = solve_together(parts, values, options, stop)
    scores = np.stack([_scores(fit, fold.test, labels, weights, score) for fit, fold in zip(fits, masks, strict=True)])
    stacked = on_host_stacked(fits)
    _warn_of_unfinished(stacked)
    number_of = np.full(len(labels), -1)
    for number, fold in enumerate(masks):
        number_of[fold.test] = number
    return CrossValidation(values, scores, number_of, stacked)


def _require_classes(labels: np.ndarray, weights: np.ndarray, fold: Fold, number: int) -> None:
    for part, name in ((fold.train & (weights > 0), "left to train on"), (fold.test & (weights > 0), "held out")):
        missing = [sign for sign in (-1, 1) if not (labels[part] == sign).any()]
        if not part.any() or (missing and name == "left to train on"):
            raise InputError(
                f"folds: fold {number} has no sample{'' if not part.any() else f' of class {missing[0]:+d}'} {name}: "
                "use fewer folds, or other groups."
            )


def _scores(fit: Fit, mask: np.ndarray, labels: np.ndarray, weights: np.ndarray, score: str) -> np.ndarray:
    """Return the score at each C, from margins of the held-out samples in primal scale, `(k,)`."""
    held = mask & (weights > 0)
    margins = np.asarray(fit.margins, float)[:, held]
    margins[np.isinf(np.asarray(fit.certificate.relative_gap))] = np.nan  # not reached: a point of another value
    w, sign = weights[held], labels[held]
    if score == "squared_hinge":
        return -(w * np.maximum(0, 1 - margins) ** 2).sum(axis=1) / w.sum()
    right = np.where(np.isnan(margins), np.nan, is_right(margins, sign))
    if score == "accuracy":
        return (w * right).sum(axis=1) / w.sum()
    classes = [sign == value for value in (-1, 1) if (sign == value).any()]
    return np.mean([(w[c] * right[:, c]).sum(axis=1) / w[c].sum() for c in classes], axis=0)


def _warn_of_unfinished(fits: Fit) -> None:
    codes = np.asarray(fits.status.code)
    if (codes != 1).any():
        fold, place = (int(axis[0]) for axis in np.nonzero(codes != 1))
        warn(
            f"{int((codes != 1).sum())} of {codes.size} fits are not certified; fold {fold} at value {place} ended as "
            f"{fits.status[fold, place].name}: `check(result.fits[fold])` tells more.",
            ConvergenceWarning,
        )


@transfers
def C_grid(  # noqa: N802 (C is the field's name)
    problem: Any, n: int = 64, *, change: float = 0.02, largest: float = 1e6, solver: Any = None
) -> Float[np.ndarray, " n"]:
    """Return a grid of C from the data: from "every sample is a support vector" to "nothing changes any more".

    Below `1 / max_i (B 1)_i` (B the signed kernel matrix) every margin of the solution `beta ~ C (1 - C B 1)` is below
    1: this is the lower end. The upper end is the first C, in steps of ten from there, at which a step of ten changes
    the margins by less than `change`.

    Args:
        problem: A problem of `svm_problem` or `hinge_problem`; its own C is not used.
        n: The number of values, >= 1.
        change: The relative change of the margins (root mean square) that counts as none, > 0.
        largest: The largest upper end, in units of the lower end, >= 10.
        solver: The solver at each decade, to a few digits; None takes the exact one of the problem's kind.

    Returns:
        Increasing values, evenly spaced in log C, `(n,)`.

    Raises:
        InputError: If an argument cannot be used.
        KeyboardInterrupt: On Ctrl-C: a part of a grid is of no use.
    """
    if not isinstance(n, int | np.integer) or n < 1:
        raise InputError(f"n is {n!r}: the number of values, at least 1, is needed.")
    if not is_concrete(problem):
        raise InputError("C_grid needs concrete arrays: call it outside jit and vmap.")
    if not (change > 0 and largest >= 10):
        raise InputError(f"change is {change} and largest {largest}: change > 0 and largest >= 10 are needed.")
    if problem.parameter != "C":
        raise InputError(f"problem is a {type(problem).__name__}: a grid of C is for `svm_problem` or `hinge_problem`.")
    first, weights = problem.at(1.0), np.asarray(problem.weights)
    pull = np.asarray(SignedGram(problem.gram, problem.y, problem.offset).support_matvec(jnp.asarray(weights)))
    low = float(1 / max(pull.max() * float(weights.max()), float(first.diagonal.max()), np.finfo(float).tiny))
    solver, key = exact_solver(first, 1e-2) if solver is None else solver, jax.random.key(0)
    problem = ready(problem, solver)
    high, before, warm = low, None, None
    with watching() as stop:
        while high < low * largest:
            at_high = problem.at(high)
            fit = drive(at_high, solver, key, warm, stop=stop, options=QUIET)
            if stop.seen:
                raise KeyboardInterrupt
            warm, margins = Start.of(fit, at_high), np.asarray(fit.margins, float)
            if before is not None and np.linalg.norm(margins - before) <= change * np.linalg.norm(margins):
                high /= 10
                break
            high, before = high * 10, margins
    return np.geomspace(low, max(high, 10 * low), n) if n > 1 else np.array([np.sqrt(low * max(high, 10 * low))])
