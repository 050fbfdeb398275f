"""Choose C by cross-validation, all values and folds in one computation: `SVCPath`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from itertools import combinations
from typing import Any, NamedTuple

import jax
import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import check_cv

from jaxsvm.errors import InputError, warn
from jaxsvm.estimators.classifier import KernelClassifier
from jaxsvm.estimators.kernel_values import Samples
from jaxsvm.estimators.machines import Machine, class_slices, one_thread, weighted_problem
from jaxsvm.gram.build import gram as gram_of
from jaxsvm.loop.chains import Chain, solve_chains
from jaxsvm.loop.interruption import answering
from jaxsvm.loop.many import hinge_data, is_indefinite, padded_size, solve_many
from jaxsvm.loop.measured import MEASURED
from jaxsvm.model_selection.cross_validation import Scores, cross_validate
from jaxsvm.model_selection.folds import Folds
from jaxsvm.model_selection.grid import C_grid
from jaxsvm.models.machines import votes
from jaxsvm.path.solve import checked_values
from jaxsvm.problems.arguments import require_costs


class _Task(NamedTuple):
    """A chain of values of C to solve.

    Attributes:
        pair: The pair of classes, by its place.
        rows: Its samples, of the first class first, `(n,)`.
        weight: Factors of C, `(f, n)`; 0: not trained on.
        folds: The folds, `(f,)`.
    """

    pair: int
    rows: np.ndarray
    weight: np.ndarray
    folds: np.ndarray


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class SVCPath(KernelClassifier):
    """Support vector classification whose C is chosen by cross-validation, as `LassoCV` chooses its alpha.

    All values of C and all folds share one kernel matrix and the compiled programs; every fit is certified.

    Args:
        Cs: Values of C, or the size of a grid: from 0.01 to 1,000, or with the squared hinge from the data
            (`jaxsvm.C_grid`).
        cv: The folds: a number, a splitter of scikit-learn, or pairs of indices.
        loss: "hinge" (all pairs of classes), or "squared_hinge" (`C max(0, 1 - y f)^2`, each class against the rest, by
            `jaxsvm.cross_validate`: for thousands of samples and fine grids of C).
        one_standard_error: Whether C is the smallest whose mean score is within one standard error of the best.
        tol: The relative duality gap to certify for every fit, > 0.

    The other parameters are those of `SVC`.

    Attributes:
        C_: The chosen value.
        Cs_: The values, increasing, `(c,)`.
        scores_: Accuracy of each fold at each value, weighted if samples have weights, `(folds, c)`.
        mean_score_: Its mean over folds, `(c,)`.
        standard_error_: The standard error of that mean, `(c,)`.
        largest_gap_: The largest relative duality gap of each fit that was scored, `(folds, c)`, for kernel values as
            they are stored (float32 if there are many and tol is 1e-5 or more).

    All others are those of `SVC` at `C_`, trained on all samples.
    """

    Cs: int | Sequence[float] | np.ndarray = 20
    cv: Folds | None = 5
    loss: str = "hinge"
    bias: str = "free"
    one_standard_error: bool = False

    @property
    def multi_class(self) -> str:
        """Return "ovo" (pairs of classes) with the hinge, "ovr" (each against the rest) with its square."""
        return "ovo" if self.loss == "hinge" else "ovr"

    def _trained(self, data: Samples, machines: list[Machine]) -> Any:
        """Choose C by the folds, and train the machines of all samples with it."""
        if np.ndim(self.Cs):
            checked_values(self.Cs)
        codes = self._codes[self._order]
        weight = self._weight[self._order] * self.class_weight_[codes]
        cv: Any = self.cv
        splitter: Any = check_cv(cv, self._codes, classifier=True)
        place = np.full(len(self._codes), -1)  # of samples in their original order among those sorted by class
        place[self._order] = np.arange(len(codes))
        parts = [tuple(map(np.asarray, pair)) for pair in splitter.split(np.zeros(len(place)), self._codes)]
        folds = [tuple(rows[rows >= 0] for rows in (place[train], place[test])) for train, test in parts]
        # Samples that the factor of their class leaves out count as wrong, as their class is never predicted.
        totals = np.array([np.maximum(self._weight[test], 0).sum() for _, test in parts])
        for fold, (train, _) in enumerate(folds):
            self._require_fold(fold, len(folds), codes[train], totals[fold])
        with jax.enable_x64(True), answering("raise"):
            correct_of = self._correct_by_pairs if self.loss == "hinge" else self._correct_against_rest
            correct = correct_of(data, codes, weight, folds)
        self._choose(correct, self._weight[self._order], folds, totals)
        return super()._trained(data, [machine._replace(upper=self.C_ * machine.upper) for machine in machines])

    def _require_fold(self, fold: int, folds: int, codes: np.ndarray, total: float) -> None:
        """Refuse a fold that trains on less than two classes, or scores no sample."""
        present = self.classes_[np.unique(codes)].tolist()
        if len(present) < 2:
            rest = f"samples of the class {present[0]!r} alone" if present else "no sample"
            raise InputError(
                f"cv trains fold {fold + 1} of {folds} on {rest} (of those of positive weight): two classes are "
                "needed; take fewer folds, stratified ones, or other weights."
            )
        if total <= 0:
            raise InputError(
                f"cv leaves no sample of positive weight to score fold {fold + 1} of {folds} on: take fewer folds, or "
                "other weights."
            )

    def _choose(self, correct: np.ndarray, weight: np.ndarray, folds: Any, totals: np.ndarray) -> None:
        """Set `C_` and the scores it is chosen by, from whether each sample was correct when left out, `(c, n)`."""
        self.scores_ = np.array([correct[:, test] @ weight[test] for _, test in folds]) / totals[:, None]
        scores = Scores(self.Cs_, self.scores_)
        self.mean_score_, self.standard_error_ = scores.mean, scores.standard_error
        self.C_ = scores.C_one_standard_error if self.one_standard_error else scores.C

    def _correct_by_pairs(self, data: Samples, codes: np.ndarray, weight: np.ndarray, folds: Any) -> np.ndarray:
        """Return which left-out samples are correct at each C, by chains of all pairs on parts of one kernel matrix."""
        Cs: Any = self.Cs
        self.Cs_ = np.sort(np.asarray(Cs, float)) if np.ndim(Cs) else np.geomspace(1e-2, 1e3, Cs)
        data = data.with_definiteness()
        for C in (self.Cs_[0], self.Cs_[-1]):
            require_costs(C, weight, np.float64)
        K = data.values.between(data.x, data.x) if data.K is None else data.K
        trains = np.zeros((len(folds), len(codes)))
        for fold, (train, _) in enumerate(folds):
            trains[fold, train] = weight[train]
        tasks = _tasks(class_slices(codes, len(self.classes_)), trains)
        solve = functools.partial(self._solve_chain, data, K, codes)
        chains = solve_many(solve, tasks, lambda task: (padded_size(len(task.rows)), len(task.folds)))
        self.largest_gap_ = np.zeros((len(folds), len(self.Cs_)))
        for task, chain in zip(tasks, chains, strict=True):
            np.maximum.at(self.largest_gap_, task.folds, chain.gap)
        correct = np.zeros((len(self.Cs_), len(codes)), bool)
        solved = list(zip(tasks, chains, strict=True))
        for fold, (_, test) in enumerate(folds):
            counts = np.bincount(codes, trains[fold], minlength=len(self.classes_))
            correct[:, test] = self._predicted(K[test], solved, fold, counts > 0) == codes[test]
        self._warn_of_gaps()
        return correct

    def _predicted(self, K: np.ndarray, solved: list[tuple[_Task, Chain]], fold: int, present: np.ndarray) -> Any:
        """Return the class of each left-out sample of a fold at each C, by votes of the pairs, `(c, m)`.

        Args:
            K: Kernel values of these samples against all, `(m, n)`.
            solved: The chains of all pairs and folds.
            fold: The fold.
            present: Whether the fold trains on each class; a class without samples is never predicted.
        """
        k = len(present)
        places = list(combinations(range(k), 2))
        decisions = np.empty((len(places), len(self.Cs_), len(K)))
        for pair, (i, j) in enumerate(places):
            decisions[pair] = np.sign(float(present[i]) - float(present[j]))
        with one_thread():
            between = np.asarray(K, np.float64)
            for task, chain in solved:
                for place in np.flatnonzero(task.folds == fold):
                    decisions[task.pair] = chain.coef[place] @ between[:, task.rows].T + chain.bias[place][:, None]
        return votes(decisions.reshape(len(places), -1).T, k).reshape(len(self.Cs_), -1)

    def _solve_chain(self, data: Samples, K: np.ndarray, codes: np.ndarray, task: _Task) -> Chain:
        """Solve all values of C for the folds of a task; the gaps are infinite if the kernel matrix is indefinite."""
        n = len(task.rows)
        size = padded_size(n)
        y, weight = np.ones(size), np.zeros((len(task.folds), size))
        y[:n], weight[:, :n] = np.where(codes[task.rows] == codes[task.rows[0]], 1.0, -1.0), task.weight

        part = np.zeros((size, size), K.dtype)
        part[:n, :n] = K[np.ix_(task.rows, task.rows)]
        x = data.features([task.rows], size) if n > MEASURED.samples_of_one_working_set else None
        gram = data.values.stored(part, data.definite)
        chain = solve_chains(gram, y, weight, self.Cs_, self.bias, self.tol, x)
        if is_indefinite(gram, hinge_data(y, weight.max(axis=0), self.bias)):
            chain = chain._replace(gap=np.full_like(chain.gap, np.inf))
        return chain._replace(coef=chain.coef[:, :, :n])

    def _warn_of_gaps(self) -> None:
        failed = ~(self.largest_gap_ <= self.tol)  # NaN too
        if failed.any():
            warn(
                f"{failed.sum()} of {failed.size} fits of folds are not certified, with a relative duality gap of up "
                f"to {self.largest_gap_.max():.3g} (tol {self.tol:.3g}). Consider scaling the data, smaller values of "
                "C, or a larger tol.",
                ConvergenceWarning,
            )

    def _correct_against_rest(self, data: Samples, codes: np.ndarray, weight: np.ndarray, folds: Any) -> np.ndarray:
        """Return which left-out samples are correct at each C: all folds and values of a class in one computation."""
        n, k = len(codes), len(self.classes_)
        if data.K is None:
            operator = gram_of(data.values.kernel, data.x, store=True)
        else:
            operator = data.operator((slice(0, n),), padded_size(n))
        scale = 2 * float(weight.max())
        samples = np.arange(operator.n)
        masks = [(np.isin(samples, train), np.isin(samples, test)) for train, test in folds]
        values, gaps = [], []
        for code in [0] if k == 2 else range(k):
            y = np.where(codes == code, 1.0, -1.0)
            problem = weighted_problem(operator, y, weight / weight.max(), 0.5, self.loss, self.bias)  # of C = 1
            if not gaps:
                Cs: Any = self.Cs
                self.Cs_ = np.sort(np.asarray(Cs, float)) if np.ndim(Cs) else C_grid(problem, Cs) / scale
            fits = cross_validate(problem, self.Cs_ * scale, masks, tol=self.tol).fits
            gaps.append(np.asarray(fits.certificate.relative_gap))
            values.append(np.zeros((len(self.Cs_), n)))
            for fold, (_, test) in enumerate(folds):
                values[-1][:, test] = np.asarray(fits.margins[fold])[:, test] * y[test]
        self.largest_gap_ = np.max(gaps, axis=0)
        return (values[0] > 0) == (codes == 0) if k == 2 else np.argmax(values, axis=0) == codes


def _tasks(classes: list[slice], trains: np.ndarray) -> list[_Task]:
    """Return the chains of all pairs and folds; from 10 pairs on, all folds of a pair are one task.

    Args:
        classes: The samples of each class.
        trains: Factors of C in each fold, `(folds, n)`; 0: not trained on.
    """
    places = list(combinations(classes, 2))
    tasks = []
    for pair, (i, j) in enumerate(places):
        rows = np.r_[i, j]
        folds = np.flatnonzero((trains[:, i].sum(axis=1) > 0) & (trains[:, j].sum(axis=1) > 0))
        if len(places) >= 10:  # enough pairs for every thread
            tasks.append(_Task(pair, rows, trains[np.ix_(folds, rows)], folds))
            continue
        for fold in folds:
            present = rows[trains[fold, rows] > 0]
            tasks.append(_Task(pair, present, trains[fold, present][None], np.array([fold])))
    return [task for task in tasks if len(task.folds)]
