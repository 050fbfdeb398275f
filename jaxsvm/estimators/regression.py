"""`SVR` and `OneClassSVM`: box problems that are no classification, as scikit-learn's, with certified answers."""

from numbers import Real
from typing import Any, ClassVar

import jax
import numpy as np
import scipy.sparse as sp
from sklearn.base import OutlierMixin, RegressorMixin, _fit_context
from sklearn.utils import column_or_1d
from sklearn.utils._param_validation import Interval
from sklearn.utils.validation import _num_samples, check_is_fitted

from jaxsvm.estimators.base import KernelEstimator, dense, require_finite
from jaxsvm.estimators.training.box import LARGEST, BoxData, Solved, solve_box, solve_further, solve_in_features
from jaxsvm.estimators.training.machines import Samples, hard_margin, samples, size_class
from jaxsvm.estimators.validation import costs, require_finite_decisions, sample_weights
from jaxsvm.gram.build import gram as gram_of
from jaxsvm.problems.box import box_problem
from jaxsvm.results.fit import Certificate, Status

TRIFLE = 1e-6
"""Objectives of a one-class machine, in units of `nu n max K_ii`, that count as 0: its points have 0 in their midst."""
MIDST = (
    "The objective is 0: the points have the origin in their midst in feature space, no plane keeps them apart from "
    "it, and decision values are rounding. Take a kernel of positive values (rbf), or points that are not centred."
)


class OneMachine(KernelEstimator):
    """What both do once they have their problem's solution, and in prediction."""

    def _regression(
        self, X: Any, y: Any, sample_weight: Any
    ) -> tuple[Any, np.ndarray, Samples, np.ndarray, np.ndarray]:
        """All points; of those with a positive weight their indices, samples, targets and weights."""
        X, y = self._checked_points(X, y)
        y = column_or_1d(y, warn=True).astype(np.float64)
        n = _num_samples(X)
        if n != len(y):
            raise ValueError(f"X and y have incompatible shapes.\nX has {n} samples, but y has {len(y)}.")
        values, X = self._learn_kernel(X)
        weight = sample_weights(sample_weight, n)
        rows = np.flatnonzero(weight > 0)
        points = X[rows][:, rows] if values.by_values else X[rows]
        return X, rows, samples(values, points, 0.0), y[rows], weight[rows]

    def _keep(self, X: Any, rows: np.ndarray, coef: np.ndarray, solved: Solved, cause: str = "") -> None:
        """Attributes of a solution with coefficients of the samples `rows`."""
        require_finite(coef, solved.bias, [solved.certificate], [solved.status])
        kept = np.flatnonzero(coef)
        self._keep_support(X, rows[kept])
        self._n_support = np.array([len(kept), 0], np.int32)  # two entries, as scikit-learn's
        self.dual_coef_ = sp.csr_array(coef[None, kept]) if self._sparse else coef[None, kept]
        self.intercept_ = np.array([solved.bias])
        self.n_iter_ = solved.steps
        self._report([solved.certificate], [solved.status], single=True, cause=cause)

    @property
    def n_support_(self) -> np.ndarray:
        """How many support vectors there are, `(1,)`."""
        if not hasattr(self, "_n_support"):
            raise AttributeError("n_support_ is there once the estimator is fitted.")
        return self._n_support[:1]

    @property
    def coef_(self) -> Any:
        """Weights of a linear kernel, `(1, d)`."""
        if self.kernel != "linear":
            raise AttributeError("coef_ is only available when using a linear kernel")
        check_is_fitted(self)
        weights = np.asarray((self.support_vectors_.T @ dense(self.dual_coef_).T).T)
        if self._sparse:
            return sp.csr_array(weights)
        weights.flags.writeable = False
        return weights

    def _decisions(self, X: Any) -> np.ndarray:
        """`f(x)`, `(m,)`."""
        check_is_fitted(self)
        if self.kernel == "linear" and not self._sparse:
            return require_finite_decisions(self._linear_decisions(X)[:, 0])
        found = []
        for _, K in self._support_values(X):
            if self._n_support.sum() != K.shape[1]:
                raise ValueError(f"The internal representation of {type(self).__name__} was altered")
            found.append(K @ dense(self.dual_coef_)[0] + self.intercept_[0])
        return require_finite_decisions(np.concatenate(found))


class SVR(RegressorMixin, OneMachine):
    """Support vector regression with a kernel: `min |w|^2 / 2 + sum_i C_i max(0, |y_i - f(x_i)| - epsilon)`.

    Parameters and attributes are those of `sklearn.svm.SVR`; `certificate_` is beside them. It is solved as a box
    problem of 2 n variables, one for each side of the tube.

    Args:
        kernel: As for `SVC`.
        degree: As for `SVC`.
        gamma: As for `SVC`.
        coef0: As for `SVC`.
        tol: The relative duality gap, and LIBSVM's largest violation (in units of y), > 0.
        C: The cost of a unit of error outside the tube, > 0; infinite as for `SVC`: a tube that holds all samples.
        epsilon: Half the width of the tube, in units of y, >= 0.
        shrinking: Taken for scikit-learn's sake; without effect, as `cache_size` and `verbose` are.
        cache_size: See `shrinking`.
        verbose: See `shrinking`.
        max_iter: As for `SVC`.

    Attributes:
        support_: Indices of the support vectors, `(s,)`.
        support_vectors_: They, `(s, d)`.
        n_support_: How many, `(1,)`.
        dual_coef_: Coefficients, `(1, s)`.
        intercept_: The constant, `(1,)`.
        coef_: Weights of a linear kernel, `(1, d)`.
        n_iter_: Pair steps.
        fit_status_: 0, or 1 where `tol` was not reached (then there was a ConvergenceWarning).
        certificate_: Primal value, dual value and relative gap.
        n_features_in_: d.
        feature_names_in_: Names of the columns, where they have any.
        shape_fit_: Shape of the training points.
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **KernelEstimator._parameter_constraints,
        "C": [Interval(Real, 0.0, None, closed="right")],
        "epsilon": [Interval(Real, 0.0, None, closed="left")],
    }

    scikit_learn_class = "SVR"

    def __init__(
        self,
        *,
        kernel: Any = "rbf",
        degree: int = 3,
        gamma: Any = "scale",
        coef0: float = 0.0,
        tol: float = 1e-3,
        C: float = 1.0,  # noqa: N803
        epsilon: float = 0.1,
        shrinking: bool = True,
        cache_size: float = 200,
        verbose: bool = False,
        max_iter: int = -1,
    ) -> None:
        self.kernel = kernel
        self.degree = degree
        self.gamma = gamma
        self.coef0 = coef0
        self.tol = tol
        self.C = C
        self.epsilon = epsilon
        self.shrinking = shrinking
        self.cache_size = cache_size
        self.verbose = verbose
        self.max_iter = max_iter

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "SVR":
        """Train on samples with targets.

        Args:
            X: Points, `(n, d)`, dense, a frame, or sparse; kernel values `(n, n)` for "precomputed".
            y: Targets, `(n,)`.
            sample_weight: Factors of C, `(n,)`; what is not positive is left out.

        Returns:
            The estimator.
        """
        X, rows, data, target, weight = self._regression(X, y, sample_weight)
        upper = costs(self.C, weight)

        def at(scale: float) -> Solved:
            return _regressed(data, target, scale * upper, self.epsilon, self.tol, self.max_iter)

        solved = hard_margin(at, np.tile(upper, 2)) if np.isinf(self.C) else at(1.0)
        coef = solved.dual_coef[: len(rows)] + solved.dual_coef[len(rows) :]
        self._keep(X, rows, coef, solved)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Predicted targets, `(m,)`.

        Args:
            X: Points, `(m, d)`; kernel values against all training samples, `(m, n)`, for "precomputed".
        """
        return self._decisions(X)


def _regressed(
    data: Samples, target: np.ndarray, upper: np.ndarray, epsilon: float, tol: float, max_iter: int
) -> Solved:
    """The solution of 2 n variables: those above the tube first."""
    n, size, data = len(target), size_class(2 * len(target)), data.looked_at()
    there = target[upper > 0]
    if there.max() - there.min() <= 2 * epsilon:  # 0 is exact, and no solver's last digits are
        nothing: Any = np.float64(0)
        middle = float(there.min() + there.max()) / 2
        return Solved(np.zeros(2 * n), middle, Certificate(nothing, nothing, nothing), 0, Status.CONVERGED)
    y, q, U = np.ones(size), np.zeros(size), np.zeros(size)
    y[n : 2 * n], q[: 2 * n], U[: 2 * n] = -1, np.concatenate([target, -target]) - epsilon, np.tile(upper, 2)
    with jax.enable_x64(True):
        if 2 * n <= LARGEST:
            problem, parts = BoxData(y, q, U, y), (slice(0, n), slice(0, n))

            def by_pairs(most: int) -> Solved:
                return solve_box(data.operator(parts, size), problem, tol, most)

            x = data.features(parts, size) if max_iter < 0 else None
            found = by_pairs(max_iter) if x is None else solve_in_features(x, problem, tol, by_pairs)
        else:
            y, q, U = y[: 2 * n], q[: 2 * n], U[: 2 * n]
            operator = data.operator((slice(0, n), slice(0, n)), 2 * n)
            found = solve_further(box_problem(operator, q, U, y=y, c=y), tol)
    return found._replace(dual_coef=found.dual_coef[: 2 * n])


class OneClassSVM(OutlierMixin, OneMachine):
    """Novelty detection: the region of feature space that holds all but a share nu of the samples.

    `min |w|^2 / 2 - rho nu n + sum_i max(0, rho - <w, phi(x_i)>)`, in LIBSVM's scale. Parameters and attributes are
    those of `sklearn.svm.OneClassSVM`; `certificate_` is beside them.

    Args:
        kernel: As for `SVC`.
        degree: As for `SVC`.
        gamma: As for `SVC`.
        coef0: As for `SVC`.
        tol: The relative duality gap, and LIBSVM's largest violation, > 0.
        nu: At most this share of the samples are outside, at least it is support, in (0, 1].
        shrinking: Taken for scikit-learn's sake; without effect, as `cache_size` and `verbose` are.
        cache_size: See `shrinking`.
        verbose: See `shrinking`.
        max_iter: As for `SVC`.

    Attributes:
        support_: Indices of the support vectors, `(s,)`.
        support_vectors_: They, `(s, d)`.
        n_support_: How many, `(1,)`.
        dual_coef_: Coefficients, `(1, s)`.
        intercept_: `-rho`, `(1,)`.
        offset_: rho: `decision_function = score_samples - offset_`.
        coef_: Weights of a linear kernel, `(1, d)`.
        n_iter_: Pair steps.
        fit_status_: 0, or 1 where `tol` was not reached (then there was a ConvergenceWarning).
        certificate_: Primal value, dual value (negative) and relative gap.
        n_features_in_: d.
        feature_names_in_: Names of the columns, where they have any.
        shape_fit_: Shape of the training points.
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **KernelEstimator._parameter_constraints,
        "nu": [Interval(Real, 0.0, 1.0, closed="right")],
    }

    scikit_learn_class = "OneClassSVM"

    def __init__(
        self,
        *,
        kernel: Any = "rbf",
        degree: int = 3,
        gamma: Any = "scale",
        coef0: float = 0.0,
        tol: float = 1e-3,
        nu: float = 0.5,
        shrinking: bool = True,
        cache_size: float = 200,
        verbose: bool = False,
        max_iter: int = -1,
    ) -> None:
        self.kernel = kernel
        self.degree = degree
        self.gamma = gamma
        self.coef0 = coef0
        self.tol = tol
        self.nu = nu
        self.shrinking = shrinking
        self.cache_size = cache_size
        self.verbose = verbose
        self.max_iter = max_iter

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> "OneClassSVM":
        """Train on samples without labels.

        Args:
            X: Points, `(n, d)`, dense, a frame, or sparse; kernel values `(n, n)` for "precomputed".
            y: Not looked at.
            sample_weight: Weights of samples, `(n,)`; what is not positive is left out.

        Returns:
            The estimator.
        """
        X, _ = self._checked_points(X)
        n = _num_samples(X)
        values, X = self._learn_kernel(X)
        weight = sample_weights(sample_weight, n)
        rows = np.flatnonzero(weight > 0)
        points = X[rows][:, rows] if values.by_values else X[rows]
        solved = _enclosed(samples(values, points, 0.0), weight[rows], self.nu, self.tol, self.max_iter)
        self._keep(X, rows, solved.dual_coef, solved, MIDST if solved.status == Status.STALLED else "")
        self.offset_ = -self.intercept_
        return self

    def decision_function(self, X: Any) -> np.ndarray:
        """Signed distances to the boundary, `(m,)`, positive inside.

        Args:
            X: Points, `(m, d)`; kernel values against all training samples, `(m, n)`, for "precomputed".
        """
        return self._decisions(X)

    def score_samples(self, X: Any) -> np.ndarray:
        """Unshifted scores `decision_function(X) + offset_`, `(m,)`."""
        return self._decisions(X) + self.offset_

    def predict(self, X: Any) -> np.ndarray:
        """+1 inside, -1 outside, `(m,)`."""
        return np.where(self._decisions(X) >= 0, 1, -1)


def _enclosed(data: Samples, upper: np.ndarray, nu: float, tol: float, max_iter: int) -> Solved:
    n, size, data = len(upper), size_class(len(upper)), data.looked_at()
    budget = nu * upper.sum()
    before = np.append(0, np.cumsum(upper)[:-1])
    start, U = np.zeros(size), np.zeros(size)
    start[:n], U[:n] = np.clip(budget - before, 0, upper), upper  # LIBSVM's: the first samples, at their bounds
    with jax.enable_x64(True):
        if n > LARGEST:
            operator = gram_of(data.values.kernel, data.x) if data.K is None else data.operator((slice(0, n),), n)
            return solve_further(box_problem(operator, np.zeros(n), upper, c=1.0, e=budget), tol)
        operator = data.operator((slice(0, n),), size)
        ones, product = np.ones(size), np.zeros(size)
        full = np.flatnonzero(start)
        if data.K is None:
            for rows, K in data.values.blocks(data.x, data.x[full]):
                product[rows] = K @ start[full]
        else:
            product[:n] = data.K[:, full] @ start[full]
        problem = BoxData(ones, np.zeros(size), U, ones, budget, start)
        floor = TRIFLE * budget * float(np.asarray(operator.diag()).max())
        found = solve_box(operator, problem, tol, max_iter, product, floor)
        if found.status == Status.CONVERGED and abs(float(found.certificate.dual)) <= floor:
            # There is nothing that a gap could be relative to: the dual value may be rounding alone.
            certificate = found.certificate._replace(relative_gap=np.inf)
            found = found._replace(status=Status.STALLED, certificate=certificate)
    return found._replace(dual_coef=found.dual_coef[:n])
