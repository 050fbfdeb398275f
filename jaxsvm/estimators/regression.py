"""Solve box problems other than classification, with scikit-learn's interface: `SVR`, `NuSVR`, `OneClassSVM`."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Self

import jax
import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import OutlierMixin, RegressorMixin, _fit_context

from jaxsvm.estimators.base import LibsvmEstimator
from jaxsvm.estimators.kernel_values import Samples, samples
from jaxsvm.estimators.machines import MOST_VARIABLES, Progress, first_at_bounds, require_storable, solve
from jaxsvm.estimators.validation import POSITIVE, costs
from jaxsvm.loop.interruption import estimating
from jaxsvm.loop.many import BoxData, Solved, constant_solution, solve_by_driver
from jaxsvm.numerics.sizes import LARGEST_PADDED
from jaxsvm.points.rows import SparseRows
from jaxsvm.problems.machines import one_class_problem, svr_problem, tube
from jaxsvm.results.fit import Certificate, Status

ZERO_OBJECTIVE = (
    "The objective is 0: the points have the origin in their midst in feature space, no plane keeps them apart from "
    "it, and decision values are rounding. Take a kernel of positive values (rbf), or points that are not centred."
)


class OneMachine(LibsvmEstimator):
    """A kernel estimator of a single machine without classes."""

    _variables = 1  # of each sample

    def _learn(self, X: Any, y: Any, weight: np.ndarray) -> tuple[Any, np.ndarray, Samples, np.ndarray, np.ndarray]:
        """Return all checked points; the indices, samples, targets and weights of those of positive weight."""
        values, X = self._learn_kernel(X)
        rows = np.flatnonzero(weight > 0)
        points = X[rows][:, rows] if values.by_values else X[rows]
        return X, rows, samples(values, points, 0.0), y[rows].astype(np.float64), weight[rows]

    def _keep_one(self, X: Any, rows: np.ndarray, solved: Solved, cause: str = "") -> None:
        """Store a solution for the samples `rows`; the variables of absent ones come last."""
        n = len(rows)
        coef = solved.dual_coef[: self._variables * n].reshape(-1, n).sum(axis=0)
        self._keep(X, rows, coef[None], [solved], cause=cause)
        self._n_support = np.array([len(self.support_), 0], np.int32)  # two entries, as in scikit-learn
        self.n_iter_ = solved.steps
        self.certificate_ = Certificate(*(values[0] for values in self.certificate_))

    @property
    def n_support_(self) -> np.ndarray:
        """Return the number of support vectors, `(1,)`."""
        return super().n_support_[:1]


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class Regressor(RegressorMixin, OneMachine):
    """A regression machine, of 2 n variables: those above the tube first."""

    C: float = 1.0
    _variables = 2

    @_fit_context(prefer_skip_nested_validation=True)
    @estimating
    def fit(self, X: ArrayLike | SparseRows, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train on samples with targets y, `(n,)`; return the estimator. The other arguments are those of `SVC.fit`."""
        X, rows, data, target, weight = self._learn(*self._checked(X, y, sample_weight))
        progress, middle = Progress(self, 1), target.min() + np.ptp(target) / 2
        solved = self._solve(data, target - middle, weight, progress)  # far from 0 a small gap would be rounding
        self._keep_one(X, rows, progress.ended(solved._replace(bias=solved.bias + middle)))
        return self

    def predict(self, X: ArrayLike | SparseRows) -> np.ndarray:
        """Return the targets `(m,)` of points `(m, d)`, or of kernel values `(m, n)` for "precomputed"."""
        return self._decisions(X)[:, 0]


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class SVR(Regressor):
    """Support vector regression with a kernel: `min |w|^2 / 2 + sum_i C_i max(0, |y_i - f(x_i)| - epsilon)`.

    Parameters and attributes are those of `sklearn.svm.SVR`; there is also `certificate_`. It is solved as a
    box problem of 2 n variables, one for each side of the tube.

    Args:
        tol: The relative duality gap, and LIBSVM's largest violation (in units of y), > 0.
        C: The cost of a unit of error outside the tube, > 0; infinite is 1e10.
        epsilon: Half the width of the tube, in units of y, >= 0.

    The other parameters are those of `SVC`.

    Attributes:
        support_: Indices of the support vectors, `(s,)`.
        support_vectors_: The support vectors, `(s, d)`.
        n_support_: The number of support vectors, `(1,)`.
        dual_coef_: Coefficients, `(1, s)`.
        intercept_: The constant, `(1,)`.
        coef_: Weights of a linear kernel, `(1, d)`.
        n_iter_: The number of pair steps.
        fit_status_: 0, or 1 if `tol` was not reached (`fit` gave a ConvergenceWarning).
        certificate_: Primal value, dual value and relative gap.
    """

    epsilon: float = 0.1

    def _solve(self, data: Samples, target: np.ndarray, weight: np.ndarray, progress: Progress) -> Solved:
        """Return the solution of 2 n variables: those above the tube first."""
        n, upper = len(target), costs(self.C, weight)
        if np.ptp(target) <= 2 * self.epsilon:  # exactly 0: a solver has its last digits wrong
            return constant_solution(2 * n, 0.0)
        if 2 * n > LARGEST_PADDED:
            with jax.enable_x64(True):
                gram, top = data.operator((slice(0, n),), n), float(upper.max())
                whole = svr_problem(gram, target, top, epsilon=self.epsilon, sample_weight=upper / top)
                return solve_by_driver(whole, self.tol, callback=progress.callback)
        problem = BoxData(*tube(target, self.epsilon), np.tile(upper, 2), "y")
        return solve(data, (slice(0, n),) * 2, problem, self.tol, self.max_iter, progress.callback)


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class NuSVR(Regressor):
    """Support vector regression with a kernel, a share nu of errors in place of the width of the tube.

    `min |w|^2 / 2 + sum_i C_i (nu epsilon + max(0, |y_i - f(x_i)| - epsilon))` over w, b and `epsilon >= 0`. Parameters
    and attributes are those of `sklearn.svm.NuSVR`. Its solution is that of `SVR` at the epsilon that it finds
    (`epsilon_`), and is certified as such.

    Args:
        nu: At most this share of the samples is outside the tube, at least this share is support, in (0, 1].
        C: The cost of a unit of error outside the tube, > 0.

    Attributes:
        epsilon_: Half the width of the tube, in units of y.

    All other parameters and attributes are those of `SVR`.
    """

    nu: float = 0.5
    _limits: ClassVar[dict[str, Any]] = {"C": POSITIVE}

    def _learn(self, X: Any, y: Any, weight: np.ndarray) -> Any:
        require_storable(int(np.count_nonzero(weight > 0)), MOST_VARIABLES // 2, "SVR with an epsilon")
        return super()._learn(X, y, weight)

    def _solve(self, data: Samples, target: np.ndarray, weight: np.ndarray, progress: Progress) -> Solved:
        del progress  # one program
        n, upper = len(target), self.C * weight
        if not np.ptp(target):  # the optimum is 0, and so is the tube
            self.epsilon_ = 0.0
            return constant_solution(2 * n, 0.0)
        start = np.tile(first_at_bounds(self.nu * upper.sum() / 2, upper), 2)
        problem = BoxData(*tube(target, 0.0), np.tile(upper, 2), "tube", start=start)
        solved = solve(data, (slice(0, n),) * 2, problem, self.tol, self.max_iter)
        self.epsilon_ = solved.parameter
        return solved


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class OneClassSVM(OutlierMixin, OneMachine):
    """Novelty detection: the region of feature space that holds all but a share nu of the samples.

    `min |w|^2 / 2 - rho nu n + sum_i max(0, rho - <w, phi(x_i)>)`, in LIBSVM's scale. Parameters and attributes are
    those of `sklearn.svm.OneClassSVM`; there is also `certificate_`.

    Args:
        nu: At most this share of the samples is outside, at least this share is support, in (0, 1].

    The other parameters are those of `SVC`.

    Attributes:
        offset_: rho: `decision_function = score_samples - offset_`.
        certificate_: Primal value, dual value (negative) and relative gap.

    All others are those of `SVR`; `intercept_` is `-rho`.
    """

    nu: float = 0.5

    @_fit_context(prefer_skip_nested_validation=True)
    @estimating
    def fit(
        self, X: ArrayLike | SparseRows, y: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> "OneClassSVM":
        """Train on samples; return the estimator. The arguments are those of `SVC.fit`; y is not used."""
        X, rows, data, _, weight = self._learn(*self._checked(X, None, sample_weight))
        progress = Progress(self, 1)
        solved = progress.ended(_enclosed(data, weight, self.nu, self.tol, self.max_iter, progress.callback))
        self._keep_one(X, rows, solved, ZERO_OBJECTIVE if solved.status == Status.STALLED else "")
        self.offset_ = -self.intercept_
        return self

    def decision_function(self, X: ArrayLike | SparseRows) -> np.ndarray:
        """Return the distances `(m,)` of points `(m, d)` to the boundary, positive inside."""
        return self._decisions(X)[:, 0]

    def score_samples(self, X: ArrayLike | SparseRows) -> np.ndarray:
        """Return the scores `decision_function(X) + offset_`, `(m,)`."""
        return self.decision_function(X) + self.offset_

    def predict(self, X: ArrayLike | SparseRows) -> np.ndarray:
        """Return +1 for points inside, -1 outside, `(m,)`."""
        return np.where(self.decision_function(X) >= 0, 1, -1)


def _enclosed(data: Samples, upper: np.ndarray, nu: float, tol: float, max_iter: int, callback: Any) -> Solved:
    """Return the solution of a one-class machine; STALLED if its objective is 0 up to rounding."""
    n, budget, whole = len(upper), nu * upper.sum(), (slice(0, len(upper)),)
    with jax.enable_x64(True):
        if n > LARGEST_PADDED:
            problem = one_class_problem(data.driven(whole), nu, sample_weight=upper)
            return solve_by_driver(problem, tol, callback=callback)
        problem = BoxData(np.ones(n), np.zeros(n), upper, "y", budget, first_at_bounds(budget, upper))
        floor = 1e-6 * budget * data.largest  # an objective below it counts as 0
        result = solve(data, whole, problem, tol, max_iter, callback, floor)
    if result.status == Status.CONVERGED and abs(float(result.certificate.dual)) <= floor:
        # A gap relative to the dual value would say nothing: it may be rounding alone.
        certificate = result.certificate._replace(relative_gap=np.inf)
        result = result._replace(status=Status.STALLED, certificate=certificate)
    return result
