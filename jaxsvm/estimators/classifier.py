"""`SVC`: kernel support vector classification, scikit-learn's estimator with certified answers."""

from itertools import combinations
from numbers import Real
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from sklearn.base import ClassifierMixin, _fit_context, clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import StratifiedKFold
from sklearn.utils import check_random_state, column_or_1d, compute_class_weight
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.metaestimators import _safe_split, available_if
from sklearn.utils.multiclass import _ovr_decision_function, check_classification_targets
from sklearn.utils.validation import check_is_fitted

from jaxsvm.estimators.base import KernelEstimator, dense, require_finite
from jaxsvm.estimators.box import Solved
from jaxsvm.estimators.multiclass import (
    against_rest,
    class_slices,
    coefficients_against_rest,
    coefficients_of_pairs,
    decisions_of_pairs,
    last_of_dag,
    pairs,
    weights_of_pairs,
)
from jaxsvm.estimators.probability import Sigmoid, coupled, fitted_sigmoid
from jaxsvm.estimators.training import Machine, Samples, samples, train
from jaxsvm.model import votes
from jaxsvm.result import Certificate, Status


def _has_probability(estimator: Any) -> bool:
    if not estimator.probability:
        raise AttributeError("predict_proba is not available when probability=False")
    return True


class SVC(ClassifierMixin, KernelEstimator):
    """Support vector classification with a kernel: `min |w|^2 / 2 + sum_i C_i max(0, 1 - y_i f(x_i))`.

    Parameters, attributes and signs are those of `sklearn.svm.SVC` (of version 1.9), with more choices; each machine of
    two classes comes with a duality gap (`certificate_`).

    Args:
        C: The cost of a unit of slack, > 0; times class and sample weights.
        kernel: "rbf", "linear", "poly", "sigmoid", "laplacian" or "precomputed"; a function of two sets of points that
            returns their kernel matrix, as scikit-learn has it; or a kernel of `jaxsvm.kernels`.
        degree: Of "poly", >= 1.
        gamma: "scale" (`1 / (d var(X))`), "auto" (`1 / d`) or a number, >= 0.
        coef0: Of "poly" (>= 0) and "sigmoid".
        loss: "hinge", or "squared_hinge" (`C_i max(0, 1 - y_i f)^2`, as `LinearSVC` of scikit-learn counts).
        bias: "free" (LIBSVM's), "regularized" (one more feature of value 1) or "none".
        multi_class: "ovo" (all pairs of classes, which vote, LIBSVM's), "ddag" (all pairs, of which k - 1 decide about
            a point: each strikes out a class; Platt, Cristianini and Shawe-Taylor 2000) or "ovr" (each class against
            the rest).
        shrinking: Taken for scikit-learn's sake; without effect, as `cache_size` and `verbose` are.
        probability: Whether `fit` calibrates decision values too, for `predict_proba`: a sigmoid a machine (Platt's) on
            values of five-fold cross-fitting; those of pairs are coupled (Wu, Lin and Weng 2004).
        tol: The relative duality gap that each machine is certified to, > 0; up to 8,192 samples moreover LIBSVM's
            largest violation. From 1e-5 on kernel values are held in float32, as LIBSVM holds them, where there are
            many; the certificate is that of the points as they are given.
        cache_size: See `shrinking`.
        class_weight: Factors of C a class, "balanced", or None.
        verbose: See `shrinking`.
        max_iter: A cap on pair steps of a machine, looked at between working sets; -1: none.
        decision_function_shape: "ovr" (a column a class) or "ovo" (a column a pair) of `decision_function`.
        break_ties: Whether ties of votes are broken by decision values, which takes "ovr" columns.
        random_state: Of the folds of `probability`.

    Attributes:
        classes_: Labels, sorted, `(k,)`.
        support_: Indices of the support vectors, by class, `(s,)`.
        support_vectors_: They, `(s, d)`.
        n_support_: How many of each class, `(k,)`.
        dual_coef_: `y_i a_i` in LIBSVM's layout, `(k - 1, s)`; with "ovr" and three classes or more `(k, s)`.
        intercept_: A constant a machine.
        coef_: Weights a machine, of a linear kernel.
        class_weight_: Factors of C, `(k,)`.
        n_iter_: Pair steps a machine, `(k (k - 1) / 2,)`.
        fit_status_: 0, or 1 where a machine is not certified to `tol` (then there was a ConvergenceWarning).
        certificate_: Primal value, dual value and relative gap a machine: `dual <= optimum <= primal`.
        probA_: Slope of each sigmoid, `(machines,)`; empty without `probability`.
        probB_: Shift of each sigmoid, `(machines,)`.
        n_features_in_: d.
        feature_names_in_: Names of the columns, where they have any.
        shape_fit_: Shape of the training points.
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **KernelEstimator._parameter_constraints,
        "C": [Interval(Real, 0.0, None, closed="neither")],
        "loss": [StrOptions({"hinge", "squared_hinge"})],
        "bias": [StrOptions({"free", "regularized", "none"})],
        "multi_class": [StrOptions({"ovo", "ddag", "ovr"})],
        "probability": ["boolean"],
        "class_weight": [StrOptions({"balanced"}), dict, None],
        "decision_function_shape": [StrOptions({"ovr", "ovo"})],
        "break_ties": ["boolean"],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        *,
        C: float = 1.0,  # noqa: N803
        kernel: Any = "rbf",
        degree: int = 3,
        gamma: Any = "scale",
        coef0: float = 0.0,
        loss: str = "hinge",
        bias: str = "free",
        multi_class: str = "ovo",
        shrinking: bool = True,
        probability: bool = False,
        tol: float = 1e-3,
        cache_size: float = 200,
        class_weight: Any = None,
        verbose: bool = False,
        max_iter: int = -1,
        decision_function_shape: str = "ovr",
        break_ties: bool = False,
        random_state: Any = None,
    ) -> None:
        self.C = C
        self.kernel = kernel
        self.degree = degree
        self.gamma = gamma
        self.coef0 = coef0
        self.loss = loss
        self.bias = bias
        self.multi_class = multi_class
        self.shrinking = shrinking
        self.probability = probability
        self.tol = tol
        self.cache_size = cache_size
        self.class_weight = class_weight
        self.verbose = verbose
        self.max_iter = max_iter
        self.decision_function_shape = decision_function_shape
        self.break_ties = break_ties
        self.random_state = random_state

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "SVC":
        """Train on labelled samples.

        Args:
            X: Points, `(n, d)`, dense, a frame, or sparse; kernel values `(n, n)` for "precomputed".
            y: Labels, `(n,)`, of two classes or more.
            sample_weight: Factors of C, `(n,)`; what is not positive is left out.

        Returns:
            The estimator.
        """
        given = X
        X, y = self._checked_points(X, y)
        codes = self._learn_classes(y)
        n = X.shape[0] if hasattr(X, "shape") else len(X)
        if n != len(codes):
            raise ValueError(f"X and y have incompatible shapes.\nX has {n} samples, but y has {len(codes)}.")
        values, X = self._learn_kernel(X)
        weight = self._checked_weights(sample_weight, codes, n)
        # Sorted by class: a machine's samples are slices.
        order = np.argsort(codes, kind="stable")
        order = order[weight[order] > 0]
        sorted_points = X[order][:, order] if values.by_values else X[order]
        classes = class_slices(codes[order], len(self.classes_))
        machines = self._machines(classes, weight[order])
        self._order, self._codes = order, codes
        solved = self._trained(samples(values, sorted_points, self.tol if self._may_round else 0.0), machines)
        if self._by_pairs:
            coef = coefficients_of_pairs(classes, solved)
        else:
            coef = coefficients_against_rest(classes, machines, solved)
        bias = np.array([one.bias for one in solved])
        require_finite(coef, bias, [one.certificate for one in solved])
        kept = np.flatnonzero((coef != 0).any(axis=0))
        self._keep_support(X, order[kept])
        self._n_support = np.bincount(codes[self.support_], minlength=len(self.classes_)).astype(np.int32)
        sign = -1.0 if len(self.classes_) == 2 else 1.0  # LIBSVM's first class is scikit-learn's negative one
        coef = sign * coef[:, kept]
        self.dual_coef_ = sp.csr_array(coef) if self._sparse else coef
        self.intercept_ = sign * bias
        self.n_iter_ = np.array([one.steps for one in solved], np.int32)
        self._report([one.certificate for one in solved], [one.status for one in solved])
        del self._order, self._codes
        calibrated = self._calibrated(given, y, codes, weight) if getattr(self, "probability", False) else []
        self.probA_ = np.array([one.slope for one in calibrated])
        self.probB_ = np.array([one.shift for one in calibrated])
        return self

    def _learn_classes(self, y: Any) -> np.ndarray:
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        self.class_weight_ = compute_class_weight(self.class_weight, classes=self.classes_, y=y)
        if len(self.classes_) < 2:
            raise ValueError(
                f"The number of classes has to be greater than one; got {len(self.classes_)} class: two are needed."
            )
        return codes

    def _checked_weights(self, sample_weight: Any, codes: np.ndarray, n: int) -> np.ndarray:
        """Weights of samples, `(n,)`, as LIBSVM reads them: what is not positive is left out."""
        if sample_weight is None:
            return np.ones(n)
        weight = np.asarray(sample_weight, np.float64)
        if weight.ndim == 0:
            weight = np.full(n, float(weight))
        if weight.shape != (n,):
            raise ValueError(f"sample_weight and X have incompatible shapes: {weight.shape} vs {(n,)}")
        if not np.isfinite(weight).all():
            raise ValueError("sample_weight contains NaN or infinity: finite weights are needed.")
        present = np.unique(codes[weight > 0])
        if not len(present):
            raise ValueError("Invalid input - all samples have zero or negative weights.")
        if len(present) < 2:
            raise ValueError("Invalid input - all samples with positive weights belong to the same class.")
        return weight

    @property
    def _cost(self) -> float:
        return self.C

    @property
    def _may_round(self) -> bool:
        """Whether kernel values may be float32: where the answer is then certified in float64 (`training`)."""
        return self.loss == "hinge"

    @property
    def _most_steps(self) -> int:
        return getattr(self, "max_iter", -1)  # not all that are derived from it have one

    @property
    def _by_pairs(self) -> bool:
        return self.multi_class != "ovr" or len(self.classes_) == 2

    def _machines(self, classes: list[slice], weight: np.ndarray) -> list[Machine]:
        sizes = [part.stop - part.start for part in classes]
        upper = self._cost * weight * np.repeat(self.class_weight_, sizes)
        return (pairs if self._by_pairs else against_rest)(classes, upper)

    def _trained(self, data: Samples, machines: list[Machine]) -> list[Solved]:
        """A fit a machine; one whose class has no sample of positive weight decides nothing, as in LIBSVM."""
        ready = [machine for machine in machines if len(np.unique(machine.signs)) == 2]
        solved = iter(
            train(data, ready, loss=self.loss, bias=self.bias, tol=self.tol, max_iter=self._most_steps) if ready else []
        )
        return [next(solved) if len(np.unique(machine.signs)) == 2 else _undecided(machine) for machine in machines]

    def _calibrated(self, X: Any, y: Any, codes: np.ndarray, weight: np.ndarray) -> list[Sigmoid]:
        """A sigmoid a machine, of decision values that were computed for samples left out."""
        folds = StratifiedKFold(5, shuffle=True, random_state=check_random_state(self.random_state))
        plain: Any = clone(self)
        plain.set_params(probability=False)
        places, k = self._places, len(self.classes_)
        values = np.full((len(codes), len(places)), np.nan)
        for train_rows, test in folds.split(codes, codes):
            points, labels = _safe_split(plain, X, y, train_rows)
            held_out, _ = _safe_split(plain, X, y, test, train_rows)
            plain.fit(points, labels, weight[train_rows])
            there = [int(np.searchsorted(self.classes_, one)) for one in plain.classes_]
            of_part = {tuple(there[one] for one in place): at for at, place in enumerate(plain._places)}
            known = [(at, of_part[place]) for at, place in enumerate(places) if place in of_part]
            decisions = plain._decisions(held_out)
            if len(there) == 2 < k:
                decisions = -decisions  # of two classes positive on the side of the second
            for at, source in known:
                values[test, at] = decisions[:, source]
        found = []
        for place, decisions in zip(places, values.T, strict=True):
            mine = np.isfinite(decisions) & (weight > 0) & (np.isin(codes, place) if len(place) == 2 else True)
            positive = codes == (place[1] if k == 2 else place[0])
            found.append(fitted_sigmoid(decisions[mine], positive[mine], weight[mine]))
        return found

    @property
    def _places(self) -> list[tuple[int, ...]]:
        """The classes of each machine: a pair, or one against the rest."""
        k = len(self.classes_)
        return list(combinations(range(k), 2)) if self._by_pairs else [(one,) for one in range(k)]

    @property
    def n_support_(self) -> np.ndarray:
        """How many support vectors each class has, `(k,)`."""
        if not hasattr(self, "_n_support"):
            raise AttributeError("n_support_ is there once the estimator is fitted.")
        return self._n_support

    @property
    def coef_(self) -> Any:
        """Weights of a linear kernel, one row a machine."""
        if self.kernel != "linear":
            raise AttributeError("coef_ is only available when using a linear kernel")
        check_is_fitted(self)
        dual = dense(self.dual_coef_)
        if len(self.classes_) == 2 or not self._by_pairs:
            weights = np.asarray((self.support_vectors_.T @ dual.T).T)
        else:
            weights = weights_of_pairs(self.support_vectors_, dual, self._n_support)
        if self._sparse:
            return sp.csr_array(weights)
        weights.flags.writeable = False
        return weights

    def _decisions(self, X: Any) -> np.ndarray:
        """A column a machine; of two classes positive on the side of the second."""
        check_is_fitted(self)
        if self.kernel == "linear" and not self._sparse:
            return self._linear_decisions(X)
        found = []
        for _, K in self._support_values(X):
            coef = dense(self.dual_coef_)
            if self._n_support.sum() != K.shape[1]:
                raise ValueError(f"The internal representation of {type(self).__name__} was altered")
            if len(self.classes_) == 2 or not self._by_pairs:
                found.append(K @ coef.T + self.intercept_)
            else:
                found.append(decisions_of_pairs(K, coef, self._n_support, self.intercept_))
        return np.concatenate(found)

    def decision_function(self, X: Any) -> np.ndarray:
        """Decision values.

        Args:
            X: Points, `(m, d)`; kernel values against all training samples, `(m, n)`, for "precomputed".

        Returns:
            `(m,)` for two classes, positive for the second; else a column a class `(m, k)`, or a pair
            `(m, k (k - 1) / 2)` with `decision_function_shape="ovo"`.
        """
        decisions = self._decisions(X)
        k = len(self.classes_)
        if k == 2:
            return decisions[:, 0]
        if self.decision_function_shape == "ovr" and self._by_pairs:
            return _ovr_decision_function(decisions < 0, -decisions, k)
        return decisions

    def predict(self, X: Any) -> np.ndarray:
        """Labels, `(m,)`; arguments as for `decision_function`."""
        check_is_fitted(self)
        if self.break_ties and self.decision_function_shape == "ovo":
            raise ValueError("break_ties must be False when decision_function_shape is 'ovo'")
        k = len(self.classes_)
        if k == 2:
            codes = (self._decisions(X)[:, 0] > 0).astype(int)
        elif self.multi_class == "ddag":
            codes = last_of_dag(self._decisions(X), k)
        elif not self._by_pairs or self.break_ties:
            codes = self.decision_function(X).argmax(axis=1)
        else:
            codes = votes(self._decisions(X), k)
        return self.classes_[codes]

    @available_if(_has_probability)
    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities, a column a class `(m, k)`; for an estimator that was fitted with `probability=True`."""
        check_is_fitted(self)
        if not len(self.probA_):
            raise NotFittedError("predict_proba is not available when fitted with probability=False: fit again.")
        sigmoids = [Sigmoid(slope, shift) for slope, shift in zip(self.probA_, self.probB_, strict=True)]
        decisions = self._decisions(X)
        found = np.stack([one(values) for one, values in zip(sigmoids, decisions.T, strict=True)], axis=1)
        if len(self.classes_) == 2:
            return np.hstack([1 - found, found])
        return coupled(found, len(self.classes_)) if self._by_pairs else found / found.sum(axis=1, keepdims=True)

    @available_if(_has_probability)
    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Logarithms of `predict_proba`."""
        return np.log(self.predict_proba(X))


def _undecided(machine: Machine) -> Solved:
    zero: Any = np.float64(0)
    return Solved(np.zeros(machine.n), 0.0, Certificate(zero, zero, zero), 0, Status.CONVERGED)
