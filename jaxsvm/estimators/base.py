"""What all kernel estimators share: parameters of the kernel, validation, values between new points and the support."""

from collections.abc import Iterable, Sequence
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import _num_samples, check_is_fitted

from jaxsvm import __version__
from jaxsvm.errors import InputError, warn
from jaxsvm.estimators.training.kernel_values import BLOCK, ROUNDED, KernelValues, kernel_values
from jaxsvm.estimators.validation import checked
from jaxsvm.kernels import Kernel
from jaxsvm.results.fit import Certificate, Status, advice
from jaxsvm.runtime.forking import require_own_process

SEEN = 1e-3
"""Rounding of decision values, whose unit is the margin, from which kernel values of float32 points are in float64."""
DTYPES = [np.float64, np.float32]
PLACED = 2.0**-24
"""What rounding of a place to float32 adds to an RBF value, for each width that it lies from the origin."""
KERNELS = {"linear", "poly", "rbf", "sigmoid", "laplacian", "precomputed"}


class Versioned:
    """A pickle is read by the version of jaxsvm that wrote it: attributes of another one may mean something else."""

    def __getstate__(self) -> dict[str, Any]:
        state: Any = super().__getstate__()
        return {**state, "_jaxsvm_version": __version__}

    def __setstate__(self, state: dict[str, Any]) -> None:
        found = state.get("_jaxsvm_version")
        if found != __version__:
            raise InputError(
                f"a pickle of {type(self).__name__} was written by jaxsvm {found or 'of an unknown version'}, and this "
                f"is {__version__}: install that version, or train again."
            )
        parent: Any = super()
        parent.__setstate__({name: value for name, value in state.items() if name != "_jaxsvm_version"})


class KernelEstimator(Versioned, BaseEstimator):
    """Kernel, data and support of an estimator. Those derived from it have the parameters that are read here."""

    kernel: Any
    degree: int
    gamma: Any
    coef0: float
    tol: float
    max_iter: int
    coef_: Any
    dual_coef_: Any
    _sparse: bool
    _n_support: np.ndarray
    intercept_: np.ndarray

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "kernel": [StrOptions(KERNELS), callable],
        "degree": [Interval(Integral, 0, None, closed="left")],
        "gamma": [StrOptions({"scale", "auto"}), Interval(Real, 0.0, None, closed="left")],
        "coef0": [Interval(Real, None, None, closed="neither")],
        "tol": [Interval(Real, 0.0, None, closed="neither")],
        "shrinking": ["boolean"],
        "cache_size": [Interval(Real, 0, None, closed="neither")],
        "verbose": ["verbose"],
        "max_iter": [Interval(Integral, -1, None, closed="left")],
    }

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = self.kernel == "precomputed"
        tags.input_tags.sparse = self.kernel != "precomputed"
        return tags

    @property
    def _takes_anything(self) -> bool:
        """Whether the kernel is a function of two sets, of whatever it likes: only it looks at points."""
        return callable(self.kernel) and not isinstance(self.kernel, Kernel)

    def _checked_points(self, X: Any, y: Any = None) -> Any:
        """Training points, and targets where there are any."""
        require_own_process()
        if sp.issparse(X) and self.kernel == "precomputed":
            raise TypeError("Sparse precomputed kernels are not supported.")
        if self._takes_anything:
            return X, y
        if y is None:
            X = checked(self, X, dtype=DTYPES)
        else:
            X, y = checked(self, X, y, dtype=DTYPES, y_numeric=False, multi_output=False)
        if self.kernel == "precomputed" and X.shape[0] != X.shape[1]:
            raise ValueError(
                f"Precomputed matrix must be a square matrix. Input is a {X.shape[0]}x{X.shape[1]} matrix."
            )
        return X, y

    def _learn_kernel(self, X: Any) -> tuple[KernelValues, Any]:
        """The kernel for these training points, and the points; kernel values in their place for a function of sets."""
        values = kernel_values(self.kernel, self.gamma, self.coef0, self.degree, X)
        self.shape_fit_ = X.shape if hasattr(X, "shape") else (_num_samples(X),)
        self._gamma = values.parameters.get("gamma", 0.0)
        self._sparse = sp.issparse(X) and not values.by_values
        self._seen = X if self._takes_anything else None
        if self._takes_anything:
            n = self.shape_fit_[0]
            X = values.between(X, X)
            if X.shape != (n, n):
                raise ValueError(
                    f"kernel returns values of shape {X.shape} for {n} points and themselves: X.shape[0] should be "
                    f"equal to X.shape[1], ({n}, {n}) is needed."
                )
        return values, X

    def _keep_support(self, X: Any, support: np.ndarray) -> None:
        """Support in the order in which coefficients are."""
        self.support_ = support.astype(np.int32)
        if self.kernel == "precomputed" or self._takes_anything:
            self.support_vectors_ = np.empty((0, 0))
        else:
            self.support_vectors_ = X[self.support_]

    def _support_values(self, X: Any) -> Iterable[tuple[slice, np.ndarray]]:
        """Blocks of rows of X with their kernel values against the support, `(rows, support)`."""
        check_is_fitted(self)
        if self._takes_anything:
            values = kernel_values(self.kernel, self.gamma, self.coef0, self.degree, None)
            K = values.between(X, self._seen)
            self._require_columns(K)
            yield slice(0, K.shape[0]), K[:, self.support_]
            return
        X = self._points(X)
        if self.kernel == "precomputed":
            self._require_columns(X)
            yield slice(0, X.shape[0]), np.asarray(X)[:, self.support_]
            return
        if not len(self.support_):
            yield slice(0, X.shape[0]), np.zeros((X.shape[0], 0))
            return
        values = kernel_values(self.kernel, self._gamma, self.coef0, self.degree, X)
        yield from values.blocks(X, self._support_in(values))

    def _points(self, X: Any) -> Any:
        """Points or kernel values to decide on, as they are."""
        return checked(self, X, dtype=DTYPES, reset=False)

    def _support_in(self, values: KernelValues) -> Any:
        """The support vectors, in float64 where values in float32 would be seen in decisions."""
        support = self.support_vectors_
        if support.dtype != np.float32:
            return support
        if values.name != "rbf" or sp.issparse(support):
            return support.astype(np.float64)
        centred = support - support.mean(axis=0, dtype=np.float64)
        reach = np.sqrt(values.parameters["gamma"] * np.einsum("ij,ij->i", centred, centred).max(initial=0))
        seen = (ROUNDED + PLACED * reach) * np.linalg.norm(dense(self.dual_coef_), axis=1).max()
        return support if seen < SEEN else support.astype(np.float64)

    def _linear_decisions(self, X: Any) -> np.ndarray:
        """Decision values of a linear kernel, a column a machine: by weights, O(m d), and in float64.

        Not for support vectors that are sparse: their weights are dense, of as many features as there may be words.
        """
        X = self._points(X)
        if self._n_support.sum() != self.support_vectors_.shape[0]:
            raise ValueError(f"The internal representation of {type(self).__name__} was altered")
        weights = dense(self.coef_).T.astype(np.float64)
        step = X.shape[0] if sp.issparse(X) else max(BLOCK // X.shape[1], 1)  # what is copied, where X is in float32
        parts = [X[start : start + step] @ weights for start in range(0, X.shape[0], step)]
        return np.concatenate(parts) + self.intercept_

    def _require_columns(self, K: Any) -> None:
        if K.shape[1] != self.shape_fit_[0]:
            raise ValueError(
                f"X.shape[1] = {K.shape[1]} should be equal to {self.shape_fit_[0]}, the number of samples at "
                "training time"
            )

    def _report(
        self, certificates: list[Certificate], statuses: list[Status], single: bool = False, cause: str = ""
    ) -> None:
        report(self, certificates, statuses, cause)
        if single:
            self.certificate_ = Certificate(*(values[0] for values in self.certificate_))


def report(estimator: Any, certificates: list[Certificate], statuses: list[Status], cause: str = "") -> None:
    """Keep certificates, one entry a problem; warn where one is not what was asked for."""
    stacked: Any = Certificate(*(_column(values) for values in zip(*certificates, strict=True)))
    estimator.certificate_ = stacked
    if getattr(estimator, "_steps_suffice", False):  # steps are what was asked for: to end with them is no failure
        statuses = [Status.CONVERGED if status == Status.MAX_STEPS else status for status in statuses]
    estimator.fit_status_ = int(any(status != Status.CONVERGED for status in statuses))
    if not cause and Status.INFEASIBLE in statuses and np.isinf(getattr(estimator, "C", 1.0)):
        cause = (
            "C is infinite, and a coefficient reaches the bound of C = 1e10: no function without errors was found. "
            "Take a finite C, or scale the data."
        )
    warn_of(estimator, "problem(s)", certificates, statuses, cause)


def warn_of(
    estimator: Any, what: str, certificates: Sequence[Certificate], statuses: Sequence[Status], cause: str = ""
) -> None:
    """Warn where one of several problems ended as something else than CONVERGED, in LIBSVM's words if it was capped."""
    failed = [place for place, status in enumerate(statuses) if status != Status.CONVERGED]
    if not failed:
        return
    if not cause and Status.NOT_PSD in statuses:
        cause = f"The kernel matrix is indefinite, so that nothing is certified. {advice(Status.NOT_PSD)}"
    worst = max(float(certificates[place].relative_gap) for place in failed)
    names = ", ".join(sorted({statuses[place].name for place in failed}))
    capped = Status.MAX_STEPS in [statuses[place] for place in failed] and getattr(estimator, "max_iter", -1) >= 0
    warn(
        (f"Solver terminated early (max_iter={estimator.max_iter}).  " if capped else "")
        + (cause or "Consider pre-processing your data with StandardScaler or MinMaxScaler.")
        + f" {len(failed)} of {len(statuses)} {what} ended as {names}, with a relative duality gap of up to "
        f"{worst:.3g} (tol {estimator.tol:.3g})."
        + ("" if cause else " A larger max_iter, a smaller C, or a larger tol may help too."),
        ConvergenceWarning,
    )


def _column(values: Any) -> Any:
    return np.array(values, np.float64)


def require_finite(coef: np.ndarray, bias: Any, certificates: list[Certificate], statuses: list[Status]) -> None:
    """Refuse an answer of kernel values that overflowed: a solver keeps its last finite point, whose primal is not.

    (Of an indefinite matrix, and of a nu machine that was capped before it had a margin, no primal value is known
    either, and the status says so.)
    """
    pairs = zip(certificates, statuses, strict=True)
    primal = np.array([float(one.primal) for one, status in pairs if status not in (Status.NOT_PSD, Status.MAX_STEPS)])
    if not (np.isfinite(coef).all() and np.isfinite(bias).all() and np.isfinite(primal).all()):
        raise ValueError(
            "The dual coefficients or intercepts are not finite. The input data may contain large values and need to "
            "be preprocessed."
        )


def dense(values: Any) -> np.ndarray:
    """An array, of a sparse one its entries."""
    return values.toarray() if sp.issparse(values) else np.asarray(values)
