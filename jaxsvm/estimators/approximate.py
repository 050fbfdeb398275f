"""Classify large data by features of a kernel (`NystroemSVC`), or by a few weighted samples (`CoresetSVC`)."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin, _fit_context
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted

from jaxsvm.coresets import coreset
from jaxsvm.estimators.base import JaxsvmEstimator, LinearEstimator, report, require_finite
from jaxsvm.estimators.kernel_values import kernel_values, padded_rows
from jaxsvm.estimators.linear import LinearSVC
from jaxsvm.estimators.machines import weighted_problem
from jaxsvm.estimators.validation import (
    POSITIVE,
    ClassWeight,
    EstimatorKernel,
    Gamma,
    Seed,
    checked,
    labelled,
    require_finite_decisions,
    signs_against_rest,
)
from jaxsvm.gram.build import gram as gram_of
from jaxsvm.kernels import Kernel, Linear
from jaxsvm.loop.interruption import estimating, until_halt
from jaxsvm.loop.many import Solved, solve_by_driver
from jaxsvm.numerics.sizes import size_class
from jaxsvm.points.rows import SparseRows
from jaxsvm.runtime.arrays import require_own_process, transfers


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class NystroemSVC(ClassifierMixin, JaxsvmEstimator):
    """Kernel classification of many samples: a `LinearSVC` on features that approximate the kernel.

    The features are Nystroem's, of landmarks chosen by pivoted Cholesky (`jaxsvm.gram(rank=)`), or random Fourier
    features. The certificate is that of the problem with these features.

    Args:
        n_components: The number of features, >= 1; at most that of samples for "nystroem".
        kernel: "rbf", "laplacian", "poly", "sigmoid", or a kernel of `jaxsvm.kernels`.
        gamma: "scale" (`1 / (d var(X))`), "auto" (`1 / d`) or a number, >= 0.
        degree: The degree of "poly", >= 1.
        coef0: The constant of "poly" (>= 0) and "sigmoid".
        method: "nystroem" or "fourier" (for "rbf" and "laplacian").
        landmarks: "pivoted" or "random".
        loss: "squared_hinge" or "hinge".
        C: The cost of a loss of 1, > 0; times class and sample weights.
        tol: The relative duality gap to certify for each class, > 0.
        class_weight: Factors of C by class, "balanced", or None.
        random_state: The seed of landmarks and frequencies.

    Attributes:
        classes_: Labels, sorted, `(k,)`.
        coef_: Weights of the features, `(1, r)` or `(k, r)`.
        intercept_: Biases.
        certificate_: Primal value, dual value and relative gap of each class.
        n_iter_: The largest number of steps of a class.
        fit_status_: 0, or 1 if a class is not certified to `tol`.
    """

    n_components: int = 100
    kernel: EstimatorKernel = "rbf"
    gamma: Gamma = "scale"
    degree: int = 3
    coef0: float = 0.0
    method: str = "nystroem"
    landmarks: str = "pivoted"
    loss: str = "squared_hinge"
    C: float = 1.0
    tol: float = 1e-4
    class_weight: ClassWeight | None = None
    random_state: Seed | None = None
    _limits: ClassVar[dict[str, Any]] = {
        "kernel": [StrOptions({"rbf", "laplacian", "poly", "sigmoid"}), Kernel],
        "C": POSITIVE,
    }

    @_fit_context(prefer_skip_nested_validation=True)
    @estimating
    def fit(self, X: ArrayLike | SparseRows, y: ArrayLike, sample_weight: ArrayLike | None = None) -> "NystroemSVC":
        """Choose features and train on them; return the estimator.

        Args:
            X: Points, `(n, d)`.
            y: Labels, `(n,)`, of two classes or more.
            sample_weight: Factors of C, `(n,)`.
        """
        points, labels = checked(self, X, y, accept_sparse=False)
        check_classification_targets(labels)
        kernel = kernel_values(self.kernel, self.gamma, self.coef0, self.degree, points).kernel
        key = jax.random.key(check_random_state(self.random_state).randint(2**31 - 1))
        weight = _check_sample_weight(sample_weight, points, dtype=np.float64, ensure_non_negative=True)
        present = points[weight > 0]  # an absent sample cannot be a landmark
        if not len(present):
            raise ValueError("Invalid input - all samples have zero weights.")
        rank = min(self.n_components, len(present)) if self.method == "nystroem" else self.n_components
        with jax.enable_x64(True):
            operator = gram_of(kernel, present, rank=rank, method=self.method, landmarks=self.landmarks, key=key)
            basis, _ = operator.expansion(np.zeros(len(present)))
            self._basis = jax.tree.map(np.asarray, basis)
        self._linear = LinearSVC(loss=self.loss, C=self.C, tol=self.tol, class_weight=self.class_weight)
        self._linear.fit(self._features(points), labels, weight)
        for name in ("classes_", "coef_", "intercept_", "certificate_", "n_iter_", "fit_status_"):
            setattr(self, name, getattr(self._linear, name))
        return self

    def _features(self, X: np.ndarray) -> np.ndarray:
        """Return features of points, `(m, r)`, computed in blocks of up to 4,096 rows of one shape."""
        require_own_process()
        step = min(4096, size_class(len(X)))
        with jax.enable_x64(True):
            blocks = [
                np.asarray(_features(self._basis, padded_rows(X[start : start + step], step)))
                for start in range(0, len(X), step)
            ]
        return np.concatenate(blocks)[: len(X)]

    @transfers
    def decision_function(self, X: ArrayLike | SparseRows) -> np.ndarray:
        """Return decision values of points `(m, d)`: `(m,)` for two classes, positive for the second, else `(m, k)`."""
        check_is_fitted(self)
        values = (
            self._features(checked(self, X, accept_sparse=False, reset=False)) @ self._linear.coef_.T
            + self._linear.intercept_
        )
        return require_finite_decisions(values[:, 0] if values.shape[1] == 1 else values)

    @transfers
    def predict(self, X: ArrayLike | SparseRows) -> np.ndarray:
        """Return the labels `(m,)` of points `(m, d)`."""
        values = self.decision_function(X)
        return self._linear.classes_[(values > 0).astype(int) if values.ndim == 1 else values.argmax(axis=1)]


@jax.jit
def _features(basis: Any, x: Any) -> Any:
    return basis(x)


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class CoresetSVC(LinearEstimator):
    """A linear hinge SVM with a free bias, trained on a coreset: a few weighted samples.

    `min |w|^2 / 2 + C sum_i max(0, 1 - y_i f(x_i))`, each class against the rest, each on its own coreset
    (`jaxsvm.coresets.coreset`). The certificate is that of the problem of the coreset.

    Args:
        C: The cost of a unit of slack, > 0.
        m: The number of points of a coreset, >= 2; ten times d is a good size.
        tol: The relative duality gap of the fit to the coreset, > 0.
        class_weight: Factors of C by class, "balanced", or None.
        random_state: The seed of the draws.

    Attributes:
        classes_: Labels, sorted, `(k,)`.
        coef_: Weights, `(1, d)` or `(k, d)`.
        intercept_: Biases.
        coreset_sizes_: The number of points of each coreset.
        certificate_: Primal value, dual value and relative gap of each class, on its coreset.
        n_iter_: The largest number of steps of a class.
        fit_status_: 0, or 1 if a class is not certified to `tol`.
    """

    C: float = 1.0
    m: int = 1000
    tol: float = 1e-3
    class_weight: ClassWeight | None = None
    random_state: Seed | None = None
    _limits: ClassVar[dict[str, Any]] = {"C": POSITIVE}

    @_fit_context(prefer_skip_nested_validation=True)
    @estimating
    def fit(self, X: ArrayLike | SparseRows, y: ArrayLike, sample_weight: ArrayLike | None = None) -> "CoresetSVC":
        """Draw a coreset for each class against the rest, and train on it; return the estimator.

        Args:
            X: Points, `(n, d)`; sparse ones are made dense.
            y: Labels, `(n,)`, of two classes or more.
            sample_weight: Factors of C, `(n,)`; 0 leaves a sample out.
        """
        points, codes, weight = labelled(self, X, y, sample_weight)
        present = weight > 0
        points, weight = (points.toarray() if sp.issparse(points) else points)[present], weight[present]
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        signs = signs_against_rest(codes[present], len(self.classes_))
        results = [self._fit_one(points, y, weight, seed) for y in until_halt(signs)]
        solved = [solution for solution, _, _ in results]
        coef, self.coreset_sizes_ = np.stack([w for _, w, _ in results]), [size for _, _, size in results]
        require_finite(coef, solved)
        self.coef_ = coef
        self.intercept_ = np.array([solution.bias for solution in solved])
        self.n_iter_ = max(1, *(solution.steps for solution in solved))
        report(self, solved)
        return self

    def _fit_one(self, x: np.ndarray, y: np.ndarray, weight: np.ndarray, seed: int) -> tuple[Solved, np.ndarray, int]:
        """Return the solution on a coreset, its weights, and the size of the coreset: all samples if they are few."""
        C = float(self.C)
        if self.m < len(y):
            small = coreset(x, y, C, int(self.m), seed, sample_weight=weight)
            x, y, weight, C = np.asarray(small.x), np.asarray(small.y), np.asarray(small.weight), small.C
        n = len(y)
        with jax.enable_x64(True):
            operator = gram_of(Linear(), padded_rows(x, size_class(n)))
            solution = solve_by_driver(weighted_problem(operator, y, weight, C, "hinge", "free"), self.tol)
        return solution, x.T @ solution.dual_coef[:n], n
