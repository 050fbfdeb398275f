"""Choose C by cross-validation, all values and folds in one computation: `SVCPath`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import check_cv

from jaxsvm.errors import InputError, warn
from jaxsvm.estimators.classifier import KernelClassifier
from jaxsvm.estimators.kernel_values import Samples
from jaxsvm.estimators.machines import Machine, one_thread, weighted_problem
from jaxsvm.gram.build import gram as gram_of
from jaxsvm.loop.interruption import answering
from jaxsvm.loop.many import hinge_data, is_indefinite, padded_size, solve_chain, solve_many
from jaxsvm.loop.measured import MEASURED
from jaxsvm.model_selection.cross_validation import C_grid, Scores, cross_validate
from jaxsvm.model_selection.folds import Folds
from jaxsvm.models.machines import votes
from jaxsvm.path.solve import checked_values
from jaxsvm.problems.arguments import require_costs


class _Task(NamedTuple):
    """Chains of values of C to solve: a pair of classes in some folds, by their places, and their samples `(n,)`."""

    pair: int
    folds: list[int]
    rows: np.ndarray


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
        data, c, k = data.with_definiteness(), len(self.Cs_), len(self.classes_)
        for C in (self.Cs_[0], self.Cs_[-1]):
            require_costs(C, weight, np.float64)
        K = data.values.between(data.x, data.x) if data.K is None else data.K
        trains = np.zeros((len(folds), len(codes)), bool)
        for fold, (train, _) in enumerate(folds):
            trains[fold, train] = True
        trained = np.stack([np.bincount(codes[train], minlength=k) > 0 for train in trains])
        tasks = []
        for pair, place in enumerate(self._places):
            present = np.flatnonzero(trained[:, place].all(axis=1)).tolist()
            # From 10 pairs on there are enough for every thread, and the folds of a pair share its kernel values.
            for some in [present] if len(self._places) >= 10 and present else [[fold] for fold in present]:
                tasks.append(_Task(pair, some, np.flatnonzero(trains[some].any(axis=0) & np.isin(codes, place))))
        solve = functools.partial(self._solve_chains, data, K, codes, trains * weight)
        solved = list(zip(tasks, solve_many(solve, tasks, lambda task: padded_size(len(task.rows))), strict=True))
        self.largest_gap_, correct = np.zeros((len(folds), c)), np.zeros((c, len(codes)), bool)
        for fold, (_, test) in enumerate(folds):
            # A class that the fold does not train on is never told.
            known = [float(trained[fold][i]) - float(trained[fold][j]) for i, j in self._places]
            decisions = np.tile(np.sign(known)[:, None, None], (1, c, len(test)))
            with one_thread():
                between = np.asarray(K[test], np.float64)
                for task, chains in solved:
                    if chain := chains.get(fold):
                        decisions[task.pair] = chain.coef @ between[:, task.rows].T + chain.bias[:, None]
                        self.largest_gap_[fold] = np.maximum(self.largest_gap_[fold], chain.gap)
            told = votes(decisions.reshape(len(decisions), -1).T, k).reshape(c, -1)
            correct[:, test] = told == codes[test]
        self._warn_of_gaps()
        return correct

    def _solve_chains(self, data: Samples, K: np.ndarray, codes: np.ndarray, weight: np.ndarray, task: _Task) -> Any:
        """Solve all values of C in each fold; the gaps are infinite if the kernel matrix is indefinite."""
        rows, n = task.rows, len(task.rows)
        size = padded_size(n)
        filled = np.append(rows, np.repeat(rows[:1], size - n))
        gram, y, chains = data.values.stored(K[np.ix_(filled, filled)], data.definite), np.ones(size), {}
        y[:n] = np.where(codes[rows] == codes[rows[0]], 1.0, -1.0)
        x = data.features([rows], size) if n > MEASURED.samples_of_one_working_set else None
        for fold in task.folds:
            problem = hinge_data(y, np.append(weight[fold, rows], np.zeros(size - n)), self.bias)
            chain = solve_chain(gram, problem, self.Cs_, self.tol, x)
            if is_indefinite(gram, problem):
                chain = chain._replace(gap=np.full_like(chain.gap, np.inf))
            chains[fold] = chain._replace(coef=chain.coef[:, :n])
        return chains

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
