"""`NystroemSVC` and `CoresetSVC`: large data by features of a kernel, or by a few weighted samples."""

from numbers import Integral, Real
from typing import Any, ClassVar

import jax
import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator, ClassifierMixin, _fit_context
from sklearn.linear_model._base import LinearClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted

from jaxsvm.coresets import coreset
from jaxsvm.estimators.base import Versioned, report
from jaxsvm.estimators.linear import LinearSVC
from jaxsvm.estimators.training.box import solve_further
from jaxsvm.estimators.training.kernel_values import kernel_values, padded_rows
from jaxsvm.estimators.validation import (
    FiniteDecisions,
    checked,
    class_factors,
    require_classes,
    require_finite_decisions,
)
from jaxsvm.gram.build import gram as gram_of
from jaxsvm.kernels import Kernel, Linear
from jaxsvm.numerics.sizes import size_class
from jaxsvm.problems.box import hinge_problem
from jaxsvm.runtime.forking import require_own_process

ROWS = 4096
"""Rows whose features are computed at a time."""


class NystroemSVC(ClassifierMixin, Versioned, BaseEstimator):
    """Kernel classification of many samples: a `LinearSVC` on features that approximate the kernel.

    Nystroem features of landmarks that pivoted Cholesky picks (`jaxsvm.gram(rank=)`), or random Fourier features. The
    certificate is that of the problem with these features.

    Args:
        n_components: Features, >= 1; no more than samples for "nystroem".
        kernel: "rbf", "laplacian", "poly", "sigmoid", or a kernel of `jaxsvm.kernels`.
        gamma: As for `SVC`.
        degree: As for `SVC`.
        coef0: As for `SVC`.
        method: "nystroem" or "fourier" (for "rbf" and "laplacian").
        landmarks: "pivoted" or "random".
        loss: "squared_hinge" or "hinge".
        C: As for `LinearSVC`.
        tol: The relative duality gap that each class is certified to, > 0.
        class_weight: As for `LinearSVC`.
        random_state: Of landmarks and frequencies.

    Attributes:
        classes_: Labels, sorted, `(k,)`.
        coef_: Weights of the features, `(1, r)` or `(k, r)`.
        intercept_: Biases.
        certificate_: Primal value, dual value and relative gap a class.
        n_iter_: The most steps of a class.
        fit_status_: 0, or 1 where a class is not certified to `tol`.
        n_features_in_: d.
        feature_names_in_: Names of the columns, where they have any.
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "n_components": [Interval(Integral, 1, None, closed="left")],
        "kernel": [StrOptions({"rbf", "laplacian", "poly", "sigmoid"}), Kernel],
        "gamma": [StrOptions({"scale", "auto"}), Interval(Real, 0.0, None, closed="left")],
        "degree": [Interval(Integral, 1, None, closed="left")],
        "coef0": [Interval(Real, None, None, closed="neither")],
        "method": [StrOptions({"nystroem", "fourier"})],
        "landmarks": [StrOptions({"pivoted", "random"})],
        "loss": [StrOptions({"hinge", "squared_hinge"})],
        "C": [Interval(Real, 0.0, None, closed="neither")],
        "tol": [Interval(Real, 0.0, None, closed="neither")],
        "class_weight": [None, dict, StrOptions({"balanced"})],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        *,
        n_components: int = 100,
        kernel: Any = "rbf",
        gamma: Any = "scale",
        degree: int = 3,
        coef0: float = 0.0,
        method: str = "nystroem",
        landmarks: str = "pivoted",
        loss: str = "squared_hinge",
        C: float = 1.0,  # noqa: N803
        tol: float = 1e-4,
        class_weight: Any = None,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.kernel = kernel
        self.gamma = gamma
        self.degree = degree
        self.coef0 = coef0
        self.method = method
        self.landmarks = landmarks
        self.loss = loss
        self.C = C
        self.tol = tol
        self.class_weight = class_weight
        self.random_state = random_state

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "NystroemSVC":
        """Choose features and train on them.

        Args:
            X: Points, `(n, d)`.
            y: Labels, `(n,)`, of two classes or more.
            sample_weight: Factors of C, `(n,)`.

        Returns:
            The estimator.
        """
        X, y = checked(self, X, y, accept_sparse=False)
        check_classification_targets(y)
        kernel = kernel_values(self.kernel, self.gamma, self.coef0, self.degree, X).kernel
        key = jax.random.key(check_random_state(self.random_state).randint(2**31 - 1))
        weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        present = X[weight > 0]  # who is absent is no landmark
        if not len(present):
            raise ValueError("Invalid input - all samples have zero weights.")
        rank = min(self.n_components, len(present)) if self.method == "nystroem" else self.n_components
        with jax.enable_x64(True):
            operator = gram_of(kernel, present, rank=rank, method=self.method, landmarks=self.landmarks, key=key)
            basis, _ = operator.expansion(np.zeros(len(present)))
            self._basis = jax.tree.map(np.asarray, basis)
        self._linear = LinearSVC(loss=self.loss, C=self.C, tol=self.tol, class_weight=self.class_weight)
        self._linear.fit(self._features(X), y, weight)
        for name in ("classes_", "coef_", "intercept_", "certificate_", "n_iter_", "fit_status_"):
            setattr(self, name, getattr(self._linear, name))
        return self

    def _features(self, X: np.ndarray) -> np.ndarray:
        """Features of points, `(m, r)`, in blocks of one shape."""
        require_own_process()
        step = min(ROWS, size_class(len(X)))
        with jax.enable_x64(True):
            blocks = [
                np.asarray(_features(self._basis, padded_rows(X[start : start + step], step)))
                for start in range(0, len(X), step)
            ]
        return np.concatenate(blocks)[: len(X)]

    def decision_function(self, X: Any) -> np.ndarray:
        """Decision values, `(m,)` for two classes, else `(m, k)`."""
        check_is_fitted(self)
        X = checked(self, X, accept_sparse=False, reset=False)
        values = self._features(X) @ self._linear.coef_.T + self._linear.intercept_
        return require_finite_decisions(values[:, 0] if values.shape[1] == 1 else values)

    def predict(self, X: Any) -> np.ndarray:
        """Labels, `(m,)`."""
        values = self.decision_function(X)
        return self._linear.classes_[(values > 0).astype(int) if values.ndim == 1 else values.argmax(axis=1)]


@jax.jit
def _features(basis: Any, x: Any) -> Any:
    return basis(x)


class CoresetSVC(FiniteDecisions, LinearClassifierMixin, Versioned, BaseEstimator):
    """A linear hinge SVM with a free bias, trained on a coreset: a few weighted samples.

    `min |w|^2 / 2 + C sum_i max(0, 1 - y_i f(x_i))`, each class against the rest, each on a coreset of its own
    (`jaxsvm.coresets.coreset`). Its certificate is that of the problem of the coreset.

    Args:
        C: The cost of a unit of slack, > 0.
        m: Points of a coreset, >= 2; ten times d is a good size.
        tol: The relative duality gap of the fit to the coreset, > 0.
        class_weight: Factors of C a class, "balanced", or None.
        random_state: Of the draws.

    Attributes:
        classes_: Labels, sorted, `(k,)`.
        coef_: Weights, `(1, d)` or `(k, d)`.
        intercept_: Biases.
        coreset_sizes_: Points of each coreset.
        certificate_: Primal value, dual value and relative gap a class, of the coresets.
        n_iter_: The most steps of a class.
        fit_status_: 0, or 1 where a class is not certified to `tol`.
        n_features_in_: d.
        feature_names_in_: Names of the columns, where they have any.
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "C": [Interval(Real, 0.0, None, closed="neither")],
        "m": [Interval(Integral, 2, None, closed="left")],
        "tol": [Interval(Real, 0.0, None, closed="neither")],
        "class_weight": [None, dict, StrOptions({"balanced"})],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        *,
        C: float = 1.0,  # noqa: N803
        m: int = 1000,
        tol: float = 1e-3,
        class_weight: Any = None,
        random_state: Any = None,
    ) -> None:
        self.C = C
        self.m = m
        self.tol = tol
        self.class_weight = class_weight
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "CoresetSVC":
        """Draw a coreset for each class against the rest, and train on it.

        Args:
            X: Points, `(n, d)`; sparse ones are made dense.
            y: Labels, `(n,)`, of two classes or more.
            sample_weight: Factors of C, `(n,)`; 0 is absence.

        Returns:
            The estimator.
        """
        X, y = checked(self, X, y)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        k = len(self.classes_)
        if k < 2:
            raise ValueError(f"The number of classes has to be greater than one; got {k} class: two are needed.")
        weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        weight = weight * class_factors(self.class_weight, self.classes_, y)[codes]
        require_classes(codes, weight, self.classes_, every=True)
        present = weight > 0
        points = (X.toarray() if sp.issparse(X) else X)[present]
        codes, weight = codes[present], weight[present]
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        solved, coefs, self.coreset_sizes_ = [], [], []
        for one in [1] if k == 2 else range(k):
            found, w, size = self._one(points, np.where(codes == one, 1.0, -1.0), weight, seed)
            solved.append(found)
            coefs.append(w)
            self.coreset_sizes_.append(size)
        self.coef_, self.intercept_ = np.stack(coefs), np.array([one.bias for one in solved])
        self.n_iter_ = max(1, *(one.steps for one in solved)) if len(solved) > 1 else max(1, solved[0].steps)
        report(self, [one.certificate for one in solved], [one.status for one in solved])
        return self

    def _one(self, x: np.ndarray, y: np.ndarray, weight: np.ndarray, seed: int) -> Any:
        """A fit to a coreset, its weights, and how many points that has; of few samples all are taken."""
        C = float(self.C)
        if self.m < len(y):
            small = coreset(x, y, C, int(self.m), seed, sample_weight=weight)
            x, y, weight, C = np.asarray(small.x), np.asarray(small.y), np.asarray(small.weight), small.C
        n = len(y)
        size = size_class(n)
        with jax.enable_x64(True):
            operator = gram_of(Linear(), padded_rows(x, size))
            absent, top = np.zeros(size - n), float(weight.max())
            problem = hinge_problem(
                operator, np.append(y, absent + 1), C * top, bias="free", sample_weight=np.append(weight / top, absent)
            )
            found = solve_further(problem, self.tol)
        return found, x.T @ found.dual_coef[:n], n
