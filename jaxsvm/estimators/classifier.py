"""Classify with kernel support vector machines: scikit-learn's `SVC` and `NuSVC`, with certified solutions."""

from __future__ import annotations

import dataclasses
from itertools import combinations
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin, _fit_context
from sklearn.exceptions import NotFittedError
from sklearn.utils import check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import _ovr_decision_function
from sklearn.utils.validation import check_is_fitted

from jaxsvm.estimators import probability as probabilities
from jaxsvm.estimators.base import KernelEstimator, LibsvmEstimator, warn_of
from jaxsvm.estimators.kernel_values import Samples, samples
from jaxsvm.estimators.machines import (
    MOST_VARIABLES,
    Machine,
    Progress,
    against_rest,
    class_slices,
    coefficients,
    decisions,
    first_at_bounds,
    pairs,
    require_storable,
    solve,
    train,
    undecided,
)
from jaxsvm.estimators.validation import ClassWeight, Seed, class_factors, classes_of, costs, require_classes
from jaxsvm.loop.interruption import estimating, until_halt
from jaxsvm.loop.many import ROUNDING_OF_ZERO, BoxData, Solved
from jaxsvm.models.machines import votes
from jaxsvm.models.model import is_positive
from jaxsvm.points.rows import SparseRows
from jaxsvm.solvers.contract import Solver

FOLDS = 5  # whose left-out decision values sigmoids are fitted to, as LIBSVM does


def _has_probability(estimator: Any) -> bool:
    if not probabilities.is_requested(estimator.probability):
        raise AttributeError("predict_proba is not available when probability=False")
    return True


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class KernelClassifier(ClassifierMixin, KernelEstimator):
    """A classifier by machines of two classes, of pairs of classes or of each against the rest; see `SVC`."""

    class_weight: ClassWeight | None = None
    decision_function_shape: str = "ovr"
    # What some derived classes have as parameters.
    loss, bias, multi_class = "hinge", "free", "ovo"
    probability, break_ties, random_state, solver = probabilities.DEFAULT_PROBABILITY, False, None, None
    _may_round = True  # kernel values may be float32

    @_fit_context(prefer_skip_nested_validation=True)
    @estimating
    def fit(self, X: ArrayLike | SparseRows, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train on labelled samples; return the estimator.

        Args:
            X: Points, `(n, d)`, dense, a frame, or sparse; kernel values `(n, n)` for "precomputed".
            y: Labels, `(n,)`, of two classes or more.
            sample_weight: Factors of C, `(n,)`; samples whose factor is not positive are left out.
        """
        probabilities.warn_deprecated(self)
        points, labels, weight = self._checked(X, y, sample_weight)
        self.classes_, codes = classes_of(labels)
        counted = weight if self.multi_class == "ovr" else None  # LIBSVM's pairs count samples
        self.class_weight_ = class_factors(self.class_weight, self.classes_, labels, counted)
        present = weight * self.class_weight_[codes]
        self._require_classes(codes, present)  # before a user's kernel is computed, which may take long
        values, points = self._learn_kernel(points)
        order = np.argsort(codes, kind="stable")  # sorted by class, the samples of a machine are slices
        order = order[present[order] > 0]
        sorted_points = points[order][:, order] if values.by_values else points[order]
        rounds = self._may_round and self.loss == "hinge" and self.solver is None  # certified in float64 later
        data = samples(values, sorted_points, self.tol if rounds else 0.0, rounds and len(self.classes_) == 2)
        self._order, self._codes, self._weight = order, codes, weight
        self._train_all(points, data)
        del self._order, self._codes, self._weight
        self._probA = self._probB = np.zeros(0)  # not those of a fit before, if Ctrl-C comes here
        if probabilities.is_requested(self.probability):
            self._probA, self._probB = np.array(self._calibrated(data, codes[order], weight[order])).T
        return self

    def _train_all(self, X: Any, data: Samples) -> None:
        """Train all machines, and store their support, coefficients and certificates."""
        k, order = len(self.classes_), self._order
        classes = class_slices(np.bincount(self._codes[order], minlength=k))
        machines = self._machines(classes, self._weight[order])
        solved = self._trained(data, machines)
        coef = coefficients(classes, machines, solved, self._by_pairs)
        sign = -1.0 if k == 2 else 1.0  # LIBSVM's first class is scikit-learn's negative one
        self._keep(X, order, coef, solved, sign)
        self._n_support = np.bincount(self._codes[self.support_], minlength=k).astype(np.int32)
        self.n_iter_ = np.array([solution.steps for solution in solved], np.int32)
        self._parameters = np.array([solution.parameter for solution in solved])

    def _require_classes(self, codes: np.ndarray, weight: np.ndarray) -> None:
        require_classes(codes, weight, self.classes_, every=not self._by_pairs)

    @property
    def _by_pairs(self) -> bool:
        return self.multi_class != "ovr" or len(self.classes_) == 2

    def _machines(self, classes: list[slice], weight: np.ndarray) -> list[Machine]:
        sizes, C = [part.stop - part.start for part in classes], getattr(self, "C", 1.0)  # some have none
        upper = costs(C, weight * np.repeat(self.class_weight_, sizes))
        return (pairs if self._by_pairs else against_rest)(classes, upper)

    def _trained(self, data: Samples, machines: list[Machine]) -> list[Solved]:
        """Train the machines; a class without samples of positive weight is never predicted."""
        ready = [machine for machine in machines if len(np.unique(machine.signs)) == 2]
        solved = iter(train(self, data, ready, Progress(self, len(ready))) if ready else [])
        return [next(solved) if len(np.unique(machine.signs)) == 2 else undecided(machine) for machine in machines]

    def _calibrated(self, data: Samples, codes: np.ndarray, weight: np.ndarray) -> list[tuple[float, float]]:
        """Fit one sigmoid per machine to decision values of samples that were left out; codes are increasing.

        Each class is dealt to `FOLDS` folds in turn, in random order. A machine whose training samples lack a side
        tells the other one, as in LIBSVM.
        """
        n, k, ended = len(codes), len(self.classes_), []
        order = np.lexsort((check_random_state(self.random_state).permutation(n), codes))
        values = np.empty((n, len(self._places)))
        for fold in until_halt(range(min(FOLDS, n))):
            test = np.sort(order[fold::FOLDS])
            rest = np.setdiff1d(np.arange(n), test)
            classes = class_slices(np.bincount(codes[rest], minlength=k))
            machines = self._machines(classes, weight[rest])
            solved = self._trained(data.part(rest), machines)
            ended += solved
            coef, bias = coefficients(classes, machines, solved, self._by_pairs), np.array([one.bias for one in solved])
            kept = np.flatnonzero((coef != 0).any(axis=0))
            counts = np.bincount(codes[rest][kept], minlength=k)
            for rows, K in data.between(test, rest[kept]):
                values[test[rows]] = decisions(K, coef[:, kept], counts, bias, self._by_pairs)
        warn_of(self, "machines of probability=True", ended)
        return probabilities.sigmoids(-values if k == 2 else values, codes, weight, self._places)

    @property
    def _places(self) -> list[tuple[int, ...]]:
        """Return the class indices of each machine: a pair, or one against the rest."""
        k = len(self.classes_)
        return list(combinations(range(k), 2)) if self._by_pairs else [(code,) for code in range(k)]

    @property
    def probA_(self) -> np.ndarray:  # noqa: N802
        """Return the slope of each sigmoid, `(machines,)`; empty without `probability`."""
        return probabilities.deprecated("probA_", self._probA)

    @property
    def probB_(self) -> np.ndarray:  # noqa: N802
        """Return the shift of each sigmoid, `(machines,)`."""
        return probabilities.deprecated("probB_", self._probB)

    def decision_function(self, X: ArrayLike | SparseRows) -> np.ndarray:
        """Return decision values.

        Args:
            X: Points, `(m, d)`; kernel values against all training samples, `(m, n)`, for "precomputed".

        Returns:
            Values `(m,)` for two classes, positive for the second; else one column per class `(m, k)`, or per pair
            `(m, k (k - 1) / 2)` with `decision_function_shape="ovo"`.
        """
        values, k = self._decisions(X), len(self.classes_)
        if k == 2:
            return values[:, 0]
        if self.decision_function_shape == "ovr" and self._by_pairs:
            return _ovr_decision_function(values < 0, -values, k)
        return values

    def predict(self, X: ArrayLike | SparseRows) -> np.ndarray:
        """Return the labels `(m,)` of points `(m, d)`, or of kernel values `(m, n)` for "precomputed"."""
        check_is_fitted(self)
        if self.break_ties and self.decision_function_shape == "ovo":
            raise ValueError("break_ties must be False when decision_function_shape is 'ovo'")
        k = len(self.classes_)
        if k == 2:
            codes = is_positive(self._decisions(X)[:, 0]).astype(int)  # 0 is of the second class, as in LIBSVM
        elif not self._by_pairs or self.break_ties:
            codes = self.decision_function(X).argmax(axis=1)
        else:
            codes = votes(self._decisions(X), k)
        return self.classes_[codes]

    @available_if(_has_probability)
    def predict_proba(self, X: ArrayLike | SparseRows) -> np.ndarray:
        """Return probabilities, one column per class `(m, k)`, of an estimator fitted with `probability=True`.

        They come from sigmoids of machines trained on other samples: the largest need not be the label of `predict`.
        """
        check_is_fitted(self)
        if not len(self._probA):
            raise NotFittedError("predict_proba is not available when fitted with probability=False: fit again.")
        fitted = list(zip(self._probA, self._probB, strict=True))
        return probabilities.of_classes(self._decisions(X), fitted, len(self.classes_), self._by_pairs)

    @available_if(_has_probability)
    def predict_log_proba(self, X: ArrayLike | SparseRows) -> np.ndarray:
        """Return the logarithms of `predict_proba(X)`."""
        return np.log(self.predict_proba(X))


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class SVC(KernelClassifier, LibsvmEstimator):
    """Support vector classification with a kernel: `min |w|^2 / 2 + sum_i C_i max(0, 1 - y_i f(x_i))`.

    Parameters, attributes and signs are those of `sklearn.svm.SVC` (of version 1.9), with more choices; each machine of
    two classes comes with a duality gap (`certificate_`).

    Args:
        C: The cost of a unit of slack, > 0; times class and sample weights. Infinite is 1e10: a hard margin, where no
            coefficient of the hinge reaches that.
        kernel: "rbf", "linear", "poly", "sigmoid", "laplacian" or "precomputed"; a function of two sets of points that
            returns their kernel matrix, as in scikit-learn; or a kernel of `jaxsvm.kernels`.
        degree: The degree of "poly", >= 1.
        gamma: "scale" (`1 / (d var(X))`), "auto" (`1 / d`), "median", "paper" (`kernels.width`) or a number, >= 0.
        coef0: The constant of "poly" (>= 0) and "sigmoid".
        loss: "hinge", or "squared_hinge" (`C_i max(0, 1 - y_i f)^2`, as in scikit-learn's `LinearSVC`).
        bias: "free" (LIBSVM's), "regularized" (one more feature of value 1) or "none".
        multi_class: "ovo" (all pairs of classes, which vote, LIBSVM's) or "ovr" (each class against the rest).
        shrinking: Accepted for compatibility with scikit-learn; no effect.
        probability: Whether to fit sigmoids for `predict_proba`, by five-fold cross-validation.
        tol: The relative duality gap to certify for each machine, and LIBSVM's largest violation, > 0.
        cache_size: Accepted for compatibility with scikit-learn; no effect.
        class_weight: Factors of C by class, "balanced" (by the sum of sample weights for "ovr", by the number of
            samples for pairs, as in LIBSVM), or None.
        verbose: Whether to print once a second, and at the end, the gap, the steps and the time left.
        max_iter: Most pair steps of a machine, checked between working sets; -1 sets no limit.
        decision_function_shape: "ovr" (one column per class) or "ovo" (one column per pair) of `decision_function`.
        break_ties: Whether decision values break ties of votes, which takes "ovr" columns.
        random_state: The seed of the folds of `probability`, and of a solver that draws.
        solver: A solver's configuration, such as `jaxsvm.FrankWolfe(variant="smo", tol=1e-4)`, for a loss and a bias
            that it is for; its own tolerance and number of steps then take the place of `tol` and `max_iter`.

    Attributes:
        classes_: Labels, sorted, `(k,)`.
        support_: Indices of the support vectors, by class, `(s,)`.
        support_vectors_: The support vectors, `(s, d)`.
        n_support_: The number of support vectors of each class, `(k,)`.
        dual_coef_: `y_i a_i` in LIBSVM's layout, `(k - 1, s)`; with "ovr" and three classes or more `(k, s)`.
        intercept_: The constant of each machine.
        coef_: The weights of each machine, for a linear kernel.
        class_weight_: Factors of C, `(k,)`.
        n_iter_: The number of pair steps of each machine, `(k (k - 1) / 2,)`.
        fit_status_: 0, or 1 if a machine is not certified to `tol` (`fit` gave a ConvergenceWarning).
        certificate_: Primal value, dual value and relative gap of each machine: `dual <= optimum <= primal`.
        probA_: The slope of each sigmoid, `(machines,)`; empty without `probability`.
        probB_: The shift of each sigmoid, `(machines,)`.
        n_features_in_: The number of features d.
        feature_names_in_: Names of the columns, if they have any.
        shape_fit_: The shape of the training points.
    """

    C: float = 1.0
    loss: str = "hinge"
    bias: str = "free"
    multi_class: str = "ovo"
    probability: bool | str = probabilities.DEFAULT_PROBABILITY
    break_ties: bool = False
    random_state: Seed | None = None
    solver: Solver | None = None


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class NuSVC(KernelClassifier, LibsvmEstimator):
    """Support vector classification with a kernel, nu in place of C.

    `min a'Qa / 2` over `0 <= a <= 1`, where the sum of each class is `nu n / 2` (Schoelkopf et al. 2000; LIBSVM's
    scale). Its solution divided by its margin r is that of `SVC(C=1 / r)`, and is certified as such: `certificate_` is
    that of the hinge problem at that C. Parameters and attributes are those of `sklearn.svm.NuSVC`.

    Args:
        nu: At most this share of the samples has margin errors, at least this share is support; in (0, 1], up to twice
            the share of the smaller class.
        class_weight: Factors of sample weights by class, "balanced", or None; nu is a share of their sum.

    Attributes:
        C_: The C at which `SVC` has the same solution, one number per machine.

    All other parameters and attributes are those of `SVC`.
    """

    nu: float = 0.5
    probability: bool | str = probabilities.DEFAULT_PROBABILITY
    break_ties: bool = False
    random_state: Seed | None = None
    _may_round = False  # kernel values are float64 throughout

    @property
    def C_(self) -> np.ndarray:  # noqa: N802
        """Return the C at which `SVC` has the same solution, `(machines,)`."""
        return self._parameters

    def _trained(self, data: Samples, machines: list[Machine]) -> list[Solved]:
        progress = Progress(self, len(machines))
        return [progress.ended(self._solve(data, machine)) for machine in until_halt(machines)]

    def _require_classes(self, codes: np.ndarray, weight: np.ndarray) -> None:
        try:
            super()._require_classes(codes, weight)
        except ValueError as error:
            raise ValueError(f"specified nu is infeasible: {error}") from None  # as LIBSVM says it
        weight = np.maximum(weight, 0)
        sums, counts = (np.bincount(codes, values, len(self.classes_)) for values in (weight, weight > 0))
        for i, j in self._places:
            largest = 2 * min(sums[i], sums[j]) / max(sums[i] + sums[j], np.finfo(float).tiny)
            if 0 < largest < self.nu:
                most = f"at most twice the smaller class's share of the weights, {largest:.6g}, is possible."
                raise ValueError(f"specified nu is infeasible: nu is {self.nu}, and {most}")
            require_storable(int(counts[i] + counts[j]), MOST_VARIABLES, "SVC with a C")

    def _solve(self, data: Samples, machine: Machine) -> Solved:
        """Solve a machine; a fold of `probability` that is too uneven for nu takes the largest that is possible."""
        smaller = min((machine.upper[machine.signs == sign].sum() for sign in (-1, 1)), default=0.0)
        if smaller <= 0:
            return undecided(machine)
        budget, start = min(self.nu * machine.upper.sum() / 2, smaller * (1 - ROUNDING_OF_ZERO)), np.zeros(machine.n)
        for sign in (-1, 1):
            mine = np.flatnonzero(machine.signs == sign)
            start[mine] = first_at_bounds(budget, machine.upper[mine])
        problem = BoxData(machine.signs, np.zeros(machine.n), machine.upper, "nu", start=start)
        return solve(data, machine.parts, problem, self.tol, self.max_iter)
