"""`SVCPath`: C by cross-validation, all values and folds in one computation."""

import functools
from itertools import combinations
from numbers import Integral
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np
from sklearn.base import _fit_context
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import check_cv
from sklearn.utils._param_validation import Interval

from jaxsvm.errors import InputError, warn
from jaxsvm.estimators.classifier import SVC
from jaxsvm.estimators.training.box import AT_ONCE, BoxData, is_indefinite
from jaxsvm.estimators.training.chains import Chain, solve_chains, solve_chains_in_features
from jaxsvm.estimators.training.machines import Machine, Samples, in_threads, size_class
from jaxsvm.estimators.training.multiclass import class_slices, one_thread
from jaxsvm.estimators.training.probability import DEFAULT_PROBABILITY
from jaxsvm.gram.build import gram as gram_of
from jaxsvm.model_selection.cross_validation import C_grid, cross_validate
from jaxsvm.models.model import votes
from jaxsvm.numerics.sizes import LARGEST_PADDED
from jaxsvm.path.solve import checked_values
from jaxsvm.problems.arguments import require_costs
from jaxsvm.problems.squared_hinge import svm_problem

RANGE = (1e-2, 1e3)
"""Of C, where nobody says."""
MANY = 10
"""Pairs from which a program takes all folds of a pair: below, folds are what threads share."""


class _Asked(NamedTuple):
    """A chain of values of C.

    Attributes:
        pair: Of which pair of classes.
        rows: Its samples, of the first class first, `(n,)`.
        weight: Factors of C, `(f, n)`; 0: not trained on.
        folds: Of which folds, `(f,)`.
    """

    pair: int
    rows: np.ndarray
    weight: np.ndarray
    folds: np.ndarray


class SVCPath(SVC):
    """Support vector classification whose C is chosen by cross-validation, as `LassoCV` chooses its alpha.

    All values of C and all folds share one kernel matrix and the compiled programs; every fit is certified.

    Args:
        Cs: Values of C, or how many of a grid: from 0.01 to 1,000, or with the squared hinge as the data propose
            (`jaxsvm.C_grid`).
        cv: Folds: a number, a splitter of scikit-learn, or pairs of indices.
        kernel: As for `SVC`.
        degree: As for `SVC`.
        gamma: As for `SVC`.
        coef0: As for `SVC`.
        loss: "hinge" (all pairs of classes), or "squared_hinge" (`C max(0, 1 - y f)^2`, each class against the rest, by
            `jaxsvm.cross_validate`: for thousands of samples and fine grids of C).
        bias: "free", "regularized" or "none".
        one_standard_error: Whether C is the smallest whose mean score is within one standard error of the best.
        tol: The relative duality gap that every fit is certified to, > 0.
        class_weight: As for `SVC`.
        decision_function_shape: As for `SVC`.

    Attributes:
        C_: The value chosen.
        Cs_: The values tried, increasing, `(c,)`.
        scores_: Accuracy of each fold at each value, by the weights of its samples if there are any, `(folds, c)`.
        mean_score_: Its mean over folds, `(c,)`.
        standard_error_: Of that mean, `(c,)`.
        largest_gap_: The largest relative duality gap of each fit that was scored, `(folds, c)`, for kernel values as
            they are held (float32 where there are many and tol is 1e-5 or more).

    All others are those of `SVC` at `C_`, trained on all samples.
    """

    probability = DEFAULT_PROBABILITY
    break_ties = False

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **{
            name: SVC._parameter_constraints[name]
            for name in ("kernel", "degree", "gamma", "coef0", "loss", "bias", "tol", "class_weight")
        },
        "decision_function_shape": SVC._parameter_constraints["decision_function_shape"],
        "Cs": [Interval(Integral, 1, None, closed="left"), "array-like"],
        "cv": ["cv_object"],
        "one_standard_error": ["boolean"],
    }

    def __init__(
        self,
        *,
        Cs: Any = 20,  # noqa: N803
        cv: Any = 5,
        kernel: Any = "rbf",
        degree: int = 3,
        gamma: Any = "scale",
        coef0: float = 0.0,
        loss: str = "hinge",
        bias: str = "free",
        one_standard_error: bool = False,
        tol: float = 1e-3,
        class_weight: Any = None,
        decision_function_shape: str = "ovr",
    ) -> None:
        self.Cs = Cs
        self.cv = cv
        self.kernel = kernel
        self.degree = degree
        self.gamma = gamma
        self.coef0 = coef0
        self.loss = loss
        self.bias = bias
        self.one_standard_error = one_standard_error
        self.tol = tol
        self.class_weight = class_weight
        self.decision_function_shape = decision_function_shape

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "SVCPath":
        """Choose C and train with it; arguments as for `SVC.fit`."""
        if np.ndim(self.Cs):
            checked_values(self.Cs)
        super().fit(X, y, sample_weight)
        return self

    @property
    def _cost(self) -> float:
        return 1.0  # until it is chosen

    @property
    def multi_class(self) -> str:
        """All pairs of classes with a hinge, each against the rest with its square."""
        return "ovo" if self.loss == "hinge" else "ovr"

    def _trained(self, data: Samples, machines: list[Machine]) -> Any:
        classes, weight = _classes_of(machines, len(self.classes_))
        codes = np.repeat(np.arange(len(classes)), [part.stop - part.start for part in classes])
        splitter: Any = check_cv(self.cv, self._codes, classifier=True)
        place = np.full(len(self._codes), -1)  # of samples as they came among those that are sorted by class
        place[self._order] = np.arange(len(codes))
        parts = [tuple(map(np.asarray, pair)) for pair in splitter.split(np.zeros(len(place)), self._codes)]
        dealt = [tuple(there[there >= 0] for there in (place[train], place[test])) for train, test in parts]
        # Of what is not trained on because of its class's factor: told wrong, as the class is never told.
        totals = np.array([np.maximum(self._weight[test], 0).sum() for _, test in parts])
        for fold, (train, _) in enumerate(dealt):
            self._require_fold(fold, len(dealt), codes[train], totals[fold])
        if self.loss == "hinge":
            right = self._right_by_pairs(data, codes, weight, dealt)
        else:
            with jax.enable_x64(True):
                right = self._right_against_rest(data, classes, codes, weight, dealt)
        self._choose(right, self._weight[self._order], dealt, totals)
        return super()._trained(data, [machine._replace(upper=self.C_ * machine.upper) for machine in machines])

    def _require_fold(self, fold: int, folds: int, codes: np.ndarray, total: float) -> None:
        """Refuse a fold that nothing can be trained or scored on."""
        there = np.unique(codes)
        if len(there) < 2:
            found = f"samples of the class {self.classes_[there].tolist()[0]!r} alone" if len(there) else "no sample"
            raise InputError(
                f"cv trains fold {fold + 1} of {folds} on {found} (of those of positive weight): two classes are "
                "needed; take fewer folds, stratified ones, or other weights."
            )
        if total <= 0:
            raise InputError(
                f"cv leaves no sample of positive weight to score fold {fold + 1} of {folds} on: take fewer folds, or "
                "other weights."
            )

    def _choose(self, right: np.ndarray, weight: np.ndarray, dealt: Any, totals: np.ndarray) -> None:
        """Set `C_` and what it was chosen by, of whether each sample was told right when left out, `(c, n)`."""
        self.scores_ = np.array([right[:, test] @ weight[test] for _, test in dealt]) / totals[:, None]
        self.mean_score_ = self.scores_.mean(axis=0)
        spread = self.scores_.std(axis=0, ddof=1) if len(dealt) > 1 else 0 * self.mean_score_
        self.standard_error_ = spread / np.sqrt(len(dealt))
        best = int(self.mean_score_.argmax())
        if self.one_standard_error:
            best = int((self.mean_score_ >= self.mean_score_[best] - self.standard_error_[best]).argmax())
        self.C_ = float(self.Cs_[best])

    def _right_by_pairs(self, data: Samples, codes: np.ndarray, weight: np.ndarray, dealt: Any) -> np.ndarray:
        """Every fold and value of C by chains of all pairs, whose kernel values are parts of one matrix."""
        k, m = len(self.classes_), len(codes)
        self.Cs_ = np.sort(np.asarray(self.Cs, float)) if np.ndim(self.Cs) else np.geomspace(*RANGE, self.Cs)
        data = data.looked_at()
        for C in (self.Cs_[0], self.Cs_[-1]):
            require_costs(C, weight, np.float64)
        K = data.values.between(data.x, data.x) if data.K is None else data.K
        trains = np.zeros((len(dealt), m))
        for fold, (train_rows, _) in enumerate(dealt):
            trains[fold, train_rows] = weight[train_rows]
        places = list(combinations(range(k), 2))
        asked = self._asked(class_slices(codes, k), trains)
        with jax.enable_x64(True):
            solve = functools.partial(self._chain, data, K, codes)
            chains = in_threads(solve, asked, key=lambda one: (size_class(len(one.rows)), len(one.folds)))
        self.largest_gap_ = np.zeros((len(dealt), len(self.Cs_)))
        for one, chain in zip(asked, chains, strict=True):
            np.maximum.at(self.largest_gap_, one.folds, chain.gap)
        right = np.zeros((len(self.Cs_), m), bool)
        for fold, (_, test) in enumerate(dealt):
            there = np.bincount(codes, trains[fold], minlength=k) > 0
            decisions = np.empty((len(places), len(self.Cs_), len(test)))
            for pair, (i, j) in enumerate(places):  # a class without samples in a fold is never told
                decisions[pair] = np.sign(float(there[i]) - float(there[j]))
            with one_thread():
                between = np.asarray(K[test], np.float64)
                for one, chain in zip(asked, chains, strict=True):
                    for place in np.flatnonzero(one.folds == fold):
                        decisions[one.pair] = chain.coef[place] @ between[:, one.rows].T + chain.bias[place][:, None]
            told = votes(decisions.reshape(len(places), -1).T, k).reshape(len(self.Cs_), -1)
            right[:, test] = told == codes[test]
        self._warn_of_gaps()
        return right

    def _asked(self, classes: list[slice], trains: np.ndarray) -> list[_Asked]:
        """Chains of all pairs and folds: all folds at once where there are pairs for every thread."""
        found = []
        for pair, (i, j) in enumerate(combinations(classes, 2)):
            rows = np.r_[i, j]
            sides = [trains[:, part].sum(axis=1) > 0 for part in (i, j)]
            folds = np.flatnonzero(sides[0] & sides[1])
            if len(classes) * (len(classes) - 1) / 2 >= MANY:
                found.append(_Asked(pair, rows, trains[np.ix_(folds, rows)], folds))
                continue
            for fold in folds:
                present = rows[trains[fold, rows] > 0]
                found.append(_Asked(pair, present, trains[fold, present][None], np.array([fold])))
        return [one for one in found if len(one.folds)]

    def _chain(self, data: Samples, K: np.ndarray, codes: np.ndarray, one: _Asked) -> Chain:
        n = len(one.rows)
        size = n if n > LARGEST_PADDED else size_class(n)
        y, weight = np.ones(size), np.zeros((len(one.folds), size))
        y[:n], weight[:, :n] = np.where(codes[one.rows] == codes[one.rows[0]], 1.0, -1.0), one.weight
        x = data.features([one.rows], size) if n > AT_ONCE else None
        with jax.enable_x64(True):  # a thread of its own has JAX's settings anew
            if x is None:
                found = solve_chains(data.values, _part(K, one.rows, size), y, weight, self.Cs_, self.bias, self.tol)
            else:
                operator = functools.cache(lambda: data.values.stored(_part(K, one.rows, size)))
                found = solve_chains_in_features(x, operator, y, weight, self.Cs_, self.bias, self.tol)
        if not data.vouched:
            one_machine = BoxData(y, np.ones(size), weight.max(axis=0), y if self.bias == "free" else None)
            one_machine = one_machine._replace(offset=float(self.bias == "regularized"))
            with jax.enable_x64(True):
                if is_indefinite(data.values.stored(_part(K, one.rows, size)), one_machine):
                    found = found._replace(gap=np.full_like(found.gap, np.inf))
        return found._replace(coef=found.coef[:, :, :n])

    def _warn_of_gaps(self) -> None:
        failed = ~(self.largest_gap_ <= self.tol)  # NaN too
        if failed.any():
            warn(
                f"{failed.sum()} of {failed.size} fits of folds are not certified, with a relative duality gap of up "
                f"to {self.largest_gap_.max():.3g} (tol {self.tol:.3g}). Consider scaling the data, smaller values of "
                "C, or a larger tol.",
                ConvergenceWarning,
            )

    def _right_against_rest(
        self, data: Samples, classes: list[slice], codes: np.ndarray, weight: np.ndarray, dealt: Any
    ) -> np.ndarray:
        """Every fold and value of C of a class against the rest in one computation."""
        n = len(codes)
        size = size_class(n) if n <= LARGEST_PADDED else n
        if data.K is None:
            operator = gram_of(data.values.kernel, data.x, store=True)
        else:
            operator = data.operator((slice(0, n),), size)
        size = operator.n
        scale = 2 * float(weight.max())
        there = np.append(weight / weight.max(), np.zeros(size - n))
        masks = [(np.isin(np.arange(size), train), np.isin(np.arange(size), test)) for train, test in dealt]
        found, gaps = [], []
        for one in [0] if len(classes) == 2 else range(len(classes)):
            y = np.append(np.where(codes == one, 1.0, -1.0), np.ones(size - n))
            problem = svm_problem(operator, y, 1.0, bias=self.bias, sample_weight=there)
            if not found:
                given = np.asarray(self.Cs, float) if np.ndim(self.Cs) else C_grid(problem, self.Cs) / scale
                self.Cs_ = np.sort(given)
            fits = cross_validate(problem, self.Cs_ * scale, masks, tol=self.tol).fits
            gaps.append(np.asarray(fits.certificate.relative_gap))
            values = np.zeros((len(self.Cs_), n))
            for fold, (_, test) in enumerate(dealt):
                values[:, test] = np.asarray(fits.margins[fold])[:, test] * y[test]
            found.append(values)
        self.largest_gap_ = np.max(gaps, axis=0)
        return (found[0] > 0) == (codes == 0) if len(classes) == 2 else np.argmax(found, axis=0) == codes


def _classes_of(machines: list[Machine], k: int) -> tuple[list[slice], np.ndarray]:
    """Where the samples of each class lie, and the weight of each sample."""
    found: dict[Any, tuple[slice, np.ndarray]] = {}
    for machine in machines:
        start = 0
        for part in machine.parts:
            stop = start + part.stop - part.start
            found[part.start, part.stop] = (part, machine.upper[start:stop])
            start = stop
    ordered = [found[key] for key in sorted(found)]
    assert len(ordered) == k
    return [part for part, _ in ordered], np.concatenate([weight for _, weight in ordered])


def _part(K: np.ndarray, rows: np.ndarray, size: int) -> np.ndarray:
    """Kernel values among some samples, and absent ones up to `size`."""
    values = np.zeros((size, size), K.dtype)
    values[: len(rows), : len(rows)] = K[np.ix_(rows, rows)]
    return values
