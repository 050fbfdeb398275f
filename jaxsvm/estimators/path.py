"""Choose C by cross-validation, all values and folds in one computation: `SVCPath`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import count
from typing import Any

import jax
import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import check_cv

from jaxsvm.errors import warn
from jaxsvm.estimators.classifier import KernelClassifier
from jaxsvm.estimators.kernel_values import Samples
from jaxsvm.estimators.machines import Machine, Progress, class_slices, one_thread, weighted_problem
from jaxsvm.loop.interruption import watching
from jaxsvm.loop.measured import MEASURED
from jaxsvm.loop.small import solve_many
from jaxsvm.model_selection.cross_validation import C_grid, Scores
from jaxsvm.model_selection.folds import Folds, fold_masks, require_classes
from jaxsvm.models.machines import votes
from jaxsvm.path.solve import PathOptions, checked_values, solve_parts
from jaxsvm.problems.arguments import require_costs


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

    All others are those of `SVC` at `C_`, trained on all samples. Ctrl-C in the folds raises KeyboardInterrupt, and
    keeps `C_` and the scores that were reached; the others are NaN, of an infinite gap.
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
        masks = fold_masks(self._codes, check_cv(cv, self._codes, classifier=True))
        counted, labels = self._weight * self.class_weight_[self._codes], self.classes_[self._codes]
        for label in self.classes_ if self.loss != "hinge" and len(self.classes_) > 2 else [None]:
            told = labels if label is None else np.where(labels == label, f"{label}", f"all but {label}")
            require_classes(masks, told, counted, "cv")
        folds = [tuple(np.flatnonzero(mask[self._order]) for mask in fold) for fold in masks]
        # Samples that the factor of their class leaves out count as wrong, as their class is never predicted.
        totals = np.array([fold.test @ np.maximum(self._weight, 0) for fold in masks])
        with jax.enable_x64(True), watching() as stop:
            correct_of = self._correct_by_pairs if self.loss == "hinge" else self._correct_against_rest
            correct = correct_of(data, codes, np.maximum(weight, 0), folds, stop)
        self.scores_ = np.array([correct[:, t] @ self._weight[self._order][t] for _, t in folds]) / totals[:, None]
        scores = Scores(self.Cs_, self.scores_)
        self.mean_score_, self.standard_error_ = scores.mean, scores.standard_error
        self.C_ = scores.C_one_standard_error if self.one_standard_error else scores.C
        if stop.came:
            known = f"{np.isfinite(self.scores_).sum()} of {self.scores_.size} scores of folds"
            raise KeyboardInterrupt(f"scores_ has {known}, and C_ the best C of these; no machine is trained.")
        failed = ~(self.largest_gap_ <= self.tol)  # NaN too
        if failed.any():
            warn(
                f"{failed.sum()} of {failed.size} fits of folds are not certified, with a relative duality gap of up "
                f"to {self.largest_gap_.max():.3g} (tol {self.tol:.3g}). Consider scaling the data, smaller values of "
                "C, or a larger tol.",
                ConvergenceWarning,
            )
        return super()._trained(data, [machine._replace(upper=self.C_ * machine.upper) for machine in machines])

    def _correct_by_pairs(
        self, data: Samples, codes: np.ndarray, weight: np.ndarray, folds: Any, stop: Any
    ) -> np.ndarray:
        """Return which left-out samples are correct at each C, by folds of all pairs on parts of one kernel matrix."""
        Cs: Any = self.Cs
        self.Cs_ = np.sort(np.asarray(Cs, float)) if np.ndim(Cs) else np.geomspace(1e-2, 1e3, Cs)
        c, k, places = len(self.Cs_), len(self.classes_), np.array(self._places)
        for C in (self.Cs_[0], self.Cs_[-1]):
            require_costs(C, weight, np.float64)
        K = data.values.between(data.x, data.x) if data.K is None else data.K
        trains = np.array([np.isin(np.arange(len(codes)), train) for train, _ in folds]) & (weight > 0)
        # Whether a fold trains on the first and on the second class of each pair, `(folds, pairs, 2)`.
        known = np.stack([trains[:, codes == code].any(axis=1) for code in range(k)], axis=1)[:, places]
        rows = [np.flatnonzero(np.isin(codes, place)) for place in places]
        classes = class_slices(np.bincount(codes, minlength=k))
        options = self._options(int(known.all(axis=2).sum()) * c)

        def solve(pair: int) -> list[Any]:
            mine, present = rows[pair], known[:, pair].all(axis=1)
            if not present.any():
                return []
            parts = [classes[code] for code in places[pair]]
            large = len(mine) > MEASURED.samples_of_one_working_set and data.features(parts, len(mine)) is not None
            operator = (data if large else data._replace(K=K)).driven(parts)
            y = np.where(codes[mine] == places[pair, 0], 1.0, -1.0)
            problem = weighted_problem(operator, y, weight[mine], 1.0, self.loss, self.bias)
            told = np.pad(trains[present][:, mine], ((0, 0), (0, operator.n - len(mine)))).astype(float)
            return solve_parts(problem, told, self.Cs_ * weight[mine].max(), options, stop)

        fits = solve_many(solve, range(len(places)))
        self.largest_gap_, correct = np.zeros((len(folds), c)), np.zeros((c, len(codes)))
        of_fold = [iter(found) for found in fits]
        for fold, (_, test) in enumerate(folds):
            decisions, between = np.zeros((len(places), c, len(test))), np.asarray(K[test], np.float64)
            with one_thread():
                for pair, (told, present) in enumerate(zip(decisions, known[fold], strict=True)):
                    if not present.all():  # a class that the fold does not train on is never told
                        told[:] = float(present[0]) - float(present[1])
                        continue
                    fit, mine = next(of_fold[pair]), rows[pair]
                    coef, bias = np.asarray(fit.dual_coef, float)[:, : len(mine)], np.asarray(fit.bias)
                    told[:] = coef @ between[:, mine].T + bias[:, None]
                    told[fit.status.name == "INTERRUPTED"] = np.nan
                    self.largest_gap_[fold] = np.maximum(self.largest_gap_[fold], fit.certificate.relative_gap)
            correct[:, test] = votes(decisions.reshape(len(decisions), -1).T, k).reshape(c, -1) == codes[test]
            correct[np.ix_(np.isnan(decisions).any(axis=(0, 2)), test)] = np.nan
        return correct

    def _options(self, fits: int) -> PathOptions:
        """Return how the folds are solved: if verbose, with lines of progress on so many fits."""
        progress, ended = Progress(self, fits), count(1)

        def say(*_: Any) -> None:
            progress.say("fits of the folds", next(ended))

        return PathOptions(jax.random.key(0), tol=self.tol, callback=say if progress.verbose else None)

    def _correct_against_rest(
        self, data: Samples, codes: np.ndarray, weight: np.ndarray, folds: Any, stop: Any
    ) -> np.ndarray:
        """Return which left-out samples are correct at each C: all folds and values of a class in one computation."""
        n, k = len(codes), len(self.classes_)
        operator, top = data.driven((slice(0, n),)), float(weight.max())
        trains = np.array([np.isin(np.arange(operator.n), train) for train, _ in folds])
        signs = [np.where(codes == code, 1.0, -1.0) for code in ([0] if k == 2 else range(k))]
        problems = [weighted_problem(operator, y, weight / top, 0.5, self.loss, self.bias) for y in signs]  # of C = 1
        Cs: Any = self.Cs
        self.Cs_ = np.sort(np.asarray(Cs, float)) if np.ndim(Cs) else C_grid(problems[0], Cs) / (2 * top)
        values, self.largest_gap_ = np.zeros((len(signs), len(self.Cs_), n)), np.zeros((len(folds), len(self.Cs_)))
        options = self._options(len(signs) * self.largest_gap_.size)
        for value, problem, y in zip(values, problems, signs, strict=True):
            fits = solve_parts(problem, trains.astype(float), self.Cs_ * (2 * top), options, stop)
            for fold, ((_, test), fit) in enumerate(zip(folds, fits, strict=True)):
                value[:, test] = np.asarray(fit.margins)[:, test] * y[test]
                value[np.ix_(fit.status.name == "INTERRUPTED", test)] = np.nan
                self.largest_gap_[fold] = np.maximum(self.largest_gap_[fold], fit.certificate.relative_gap)
        right = (values[0] > 0) == (codes == 0) if k == 2 else np.argmax(values, axis=0) == codes
        return np.where(np.isnan(values).any(axis=0), np.nan, right)
