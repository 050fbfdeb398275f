"""`SVC`: kernel support vector classification, scikit-learn's estimator with certified answers."""

from itertools import combinations
from numbers import Real
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from sklearn.base import ClassifierMixin, _fit_context
from sklearn.exceptions import NotFittedError
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils._param_validation import Hidden, Interval, StrOptions
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import _ovr_decision_function, check_classification_targets
from sklearn.utils.validation import _num_samples, check_is_fitted

from jaxsvm.errors import InputError
from jaxsvm.estimators.base import KernelEstimator, dense, require_finite, warn_of
from jaxsvm.estimators.training.box import Solved
from jaxsvm.estimators.training.machines import Machine, Samples, hard_margin, samples, train, undecided
from jaxsvm.estimators.training.multiclass import (
    against_rest,
    class_slices,
    coefficients,
    decisions,
    last_of_dag,
    pairs,
    weights_of_pairs,
)
from jaxsvm.estimators.training.probability import (
    DEFAULT_PROBABILITY,
    Sigmoid,
    coupled,
    cross_fitted,
    is_asked,
    sigmoids,
    warn_attribute_deprecated,
    warn_deprecated,
)
from jaxsvm.estimators.validation import (
    class_factors,
    costs,
    require_classes,
    require_finite_decisions,
    sample_weights,
)
from jaxsvm.models.model import votes


def _has_probability(estimator: Any) -> bool:
    if not is_asked(estimator.probability):
        raise AttributeError("predict_proba is not available when probability=False")
    return True


class SVC(ClassifierMixin, KernelEstimator):
    """Support vector classification with a kernel: `min |w|^2 / 2 + sum_i C_i max(0, 1 - y_i f(x_i))`.

    Parameters, attributes and signs are those of `sklearn.svm.SVC` (of version 1.9), with more choices; each machine of
    two classes comes with a duality gap (`certificate_`).

    Args:
        C: The cost of a unit of slack, > 0; times class and sample weights. Infinite, with the hinge, is the hard
            margin: the solution of every C from some one on; a ConvergenceWarning where there is none up to 1e10.
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
            values of five-fold cross-fitting; those of pairs are coupled (Wu, Lin and Weng 2004). The most probable
            class need not be the one that `predict` tells, as with LIBSVM. Deprecated where the installed scikit-learn
            says so (1.9): `CalibratedClassifierCV(SVC(), ensemble=False)` takes its place.
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
        "C": [Interval(Real, 0.0, None, closed="right")],
        "loss": [StrOptions({"hinge", "squared_hinge"})],
        "bias": [StrOptions({"free", "regularized", "none"})],
        "multi_class": [StrOptions({"ovo", "ddag", "ovr"})],
        "probability": ["boolean", Hidden(StrOptions({"deprecated"}))],
        "class_weight": [StrOptions({"balanced"}), dict, None],
        "decision_function_shape": [StrOptions({"ovr", "ovo"})],
        "break_ties": ["boolean"],
        "random_state": ["random_state"],
    }

    scikit_learn_class = "SVC"

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
        probability: Any = DEFAULT_PROBABILITY,
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
        warn_deprecated(self)
        X, y = self._checked_points(X, y)
        codes = self._learn_classes(y)
        n = _num_samples(X)
        if n != len(codes):
            raise ValueError(f"X and y have incompatible shapes.\nX has {n} samples, but y has {len(codes)}.")
        values, X = self._learn_kernel(X)
        weight = sample_weights(sample_weight, n)
        self._require_classes(codes, weight * self.class_weight_[codes])
        present = weight * self.class_weight_[codes] > 0
        # Sorted by class: a machine's samples are slices.
        order = np.argsort(codes, kind="stable")
        order = order[present[order]]
        sorted_points = X[order][:, order] if values.by_values else X[order]
        classes = class_slices(codes[order], len(self.classes_))
        machines = self._machines(classes, weight[order])
        self._order, self._codes, self._weight = order, codes, weight
        data = samples(values, sorted_points, self.tol if self._may_round else 0.0)
        solved = self._trained(data, machines)
        coef = coefficients(classes, machines, solved, self._by_pairs)
        bias = np.array([one.bias for one in solved])
        require_finite(coef, bias, [one.certificate for one in solved], [one.status for one in solved])
        kept = np.flatnonzero((coef != 0).any(axis=0))
        self._keep_support(X, order[kept])
        self._n_support = np.bincount(codes[self.support_], minlength=len(self.classes_)).astype(np.int32)
        sign = -1.0 if len(self.classes_) == 2 else 1.0  # LIBSVM's first class is scikit-learn's negative one
        coef = sign * coef[:, kept]
        self.dual_coef_ = sp.csr_array(coef) if self._sparse else coef
        self.intercept_ = sign * bias
        self.n_iter_ = np.array([one.steps for one in solved], np.int32)
        self._report([one.certificate for one in solved], [one.status for one in solved])
        del self._order, self._codes, self._weight
        calibrated = self._calibrated(data, codes[order], weight[order]) if is_asked(self.probability) else []
        self._probA = np.array([one.slope for one in calibrated])
        self._probB = np.array([one.shift for one in calibrated])
        return self

    def _require_classes(self, codes: np.ndarray, weight: np.ndarray) -> None:
        require_classes(codes, weight, self.classes_, every=not self._by_pairs)

    def _learn_classes(self, y: Any) -> np.ndarray:
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        self.class_weight_ = class_factors(self.class_weight, self.classes_, y)
        if len(self.classes_) < 2:
            raise ValueError(
                f"The number of classes has to be greater than one; got {len(self.classes_)} class: two are needed."
            )
        return codes

    @property
    def _cost(self) -> float:
        if np.isinf(self.C) and self.loss != "hinge":
            raise InputError(
                f"C is infinite, with loss={self.loss!r}: only the hinge has a hard margin; name a finite C."
            )
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
        upper = costs(self._cost, weight * np.repeat(self.class_weight_, sizes))
        return (pairs if self._by_pairs else against_rest)(classes, upper)

    def _trained(self, data: Samples, machines: list[Machine]) -> list[Solved]:
        """A fit a machine; a class that has no sample of positive weight is never told."""
        ready = [machine for machine in machines if len(np.unique(machine.signs)) == 2]

        def at(C: float, some: list[Machine]) -> list[Solved]:
            some = [machine._replace(upper=C * machine.upper) for machine in some]
            return train(data, some, loss=self.loss, bias=self.bias, tol=self.tol, max_iter=self._most_steps)

        if np.isinf(getattr(self, "C", 1.0)):
            solved = iter([hard_margin(lambda C, one=one: at(C, [one])[0], one.upper) for one in ready])
        else:
            solved = iter(at(1.0, ready) if ready else [])
        return [next(solved) if len(np.unique(machine.signs)) == 2 else undecided(machine) for machine in machines]

    def _left_out(self, data: Samples, machines: list[Machine]) -> list[Solved]:
        """Machines on a part of the samples, for decision values of the others."""
        return self._trained(data, machines)

    def _calibrated(self, data: Samples, codes: np.ndarray, weight: np.ndarray) -> list[Sigmoid]:
        """A sigmoid a machine, of decision values that were computed for samples left out; codes are increasing."""
        k, ended = len(self.classes_), []

        def decide(rest: np.ndarray, test: np.ndarray) -> np.ndarray:
            classes = class_slices(codes[rest], k)
            machines = self._machines(classes, weight[rest])
            solved = self._left_out(data.part(rest), machines)
            ended.extend(solved)
            coef, bias = coefficients(classes, machines, solved, self._by_pairs), np.array([one.bias for one in solved])
            kept = np.flatnonzero((coef != 0).any(axis=0))
            counts = np.bincount(codes[rest][kept], minlength=k)
            blocks = data.between(test, rest[kept])
            return np.concatenate([decisions(K, coef[:, kept], counts, bias, self._by_pairs) for _, K in blocks])

        values = cross_fitted(decide, codes, self._places, check_random_state(self.random_state))
        warn_of(self, "machines of probability=True", [one.certificate for one in ended], [one.status for one in ended])
        return sigmoids(-values if k == 2 else values, codes, weight, self._places)

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
    def probA_(self) -> np.ndarray:  # noqa: N802
        """Slope of each sigmoid, `(machines,)`; empty without `probability`."""
        slopes = self._probA
        warn_attribute_deprecated("probA_")
        return slopes

    @property
    def probB_(self) -> np.ndarray:  # noqa: N802
        """Shift of each sigmoid, `(machines,)`."""
        shifts = self._probB
        warn_attribute_deprecated("probB_")
        return shifts

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
            return require_finite_decisions(self._linear_decisions(X))
        found, coef = [], dense(self.dual_coef_)
        for _, K in self._support_values(X):
            if self._n_support.sum() != K.shape[1]:
                raise ValueError(f"The internal representation of {type(self).__name__} was altered")
            found.append(decisions(K, coef, self._n_support, self.intercept_, self._by_pairs))
        return require_finite_decisions(np.concatenate(found))

    def decision_function(self, X: Any) -> np.ndarray:
        """Decision values.

        Args:
            X: Points, `(m, d)`; kernel values against all training samples, `(m, n)`, for "precomputed".

        Returns:
            `(m,)` for two classes, positive for the second; else a column a class `(m, k)`, or a pair
            `(m, k (k - 1) / 2)` with `decision_function_shape="ovo"`.
        """
        values, k = self._decisions(X), len(self.classes_)
        if k == 2:
            return values[:, 0]
        if self.decision_function_shape == "ovr" and self._by_pairs:
            return _ovr_decision_function(values < 0, -values, k)
        return values

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
        """Probabilities, a column a class `(m, k)`; for an estimator that was fitted with `probability=True`.

        They come of sigmoids, of machines trained on other samples: the largest need not be the label of `predict`.
        """
        check_is_fitted(self)
        if not len(self._probA):
            raise NotFittedError("predict_proba is not available when fitted with probability=False: fit again.")
        known = [Sigmoid(slope, shift) for slope, shift in zip(self._probA, self._probB, strict=True)]
        found = np.stack([one(values) for one, values in zip(known, self._decisions(X).T, strict=True)], axis=1)
        if len(self.classes_) == 2:
            return np.hstack([1 - found, found])
        return coupled(found, len(self.classes_)) if self._by_pairs else found / found.sum(axis=1, keepdims=True)

    @available_if(_has_probability)
    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Logarithms of `predict_proba`."""
        return np.log(self.predict_proba(X))
