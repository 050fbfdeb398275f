"""Share what kernel estimators have in common: parameters of the kernel, the support, decision values, reports."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, _fit_context
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model._base import LinearClassifierMixin
from sklearn.utils import column_or_1d, get_tags
from sklearn.utils.validation import _num_samples, check_is_fitted

from jaxsvm import __version__
from jaxsvm.errors import require, warn
from jaxsvm.estimators.kernel_values import ERROR_A_WIDTH, FLOAT32_ERROR, VALUES_PER_BLOCK, KernelValues, kernel_values
from jaxsvm.estimators.machines import decisions
from jaxsvm.estimators.validation import (
    LIMITS,
    EstimatorKernel,
    Gamma,
    checked,
    labelled,
    require_finite_decisions,
    sample_weights,
)
from jaxsvm.kernels import Kernel
from jaxsvm.loop.interruption import estimating
from jaxsvm.loop.many import Solved
from jaxsvm.points.rows import DenseOrSparse, SparseRows
from jaxsvm.results.fit import Certificate, Status, advice
from jaxsvm.runtime.arrays import require_own_process, transfers

DTYPES = [np.float64, np.float32]


class JaxsvmEstimator(BaseEstimator):
    """An estimator whose parameters are the fields of a dataclass.

    A pickle of it is read only by the version of jaxsvm that wrote it: attributes may change meaning.
    """

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...  # what a fit stores

    _limits: ClassVar[dict[str, Any]] = {}  # of parameters that differ from `LIMITS`

    @property
    def _parameter_constraints(self) -> dict[str, Any]:
        return {name: (LIMITS | self._limits)[name] for name in LIMITS.keys() & self._get_param_names()}

    def __getstate__(self) -> dict[str, Any]:
        state: Any = super().__getstate__()
        return {**state, "_jaxsvm_version": __version__}

    def __setstate__(self, state: dict[str, Any]) -> None:
        version = state.get("_jaxsvm_version")
        written = f"a pickle of {type(self).__name__} was written by jaxsvm {version or 'of an unknown version'}"
        need = f"this is {__version__}: install that version, or train again."
        require(version == __version__, f"{written}, and {need}")
        super().__setstate__({name: value for name, value in state.items() if name != "_jaxsvm_version"})


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class KernelEstimator(JaxsvmEstimator):
    """An estimator with a kernel and support vectors; `SVC` describes its parameters."""

    kernel: EstimatorKernel = "rbf"
    degree: int = 3
    gamma: Gamma = "scale"
    coef0: float = 0.0
    tol: float = 1e-3
    verbose: bool = False
    _by_pairs = False

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = self.kernel == "precomputed"
        tags.input_tags.sparse = self.kernel != "precomputed"
        return tags

    @property
    def _takes_anything(self) -> bool:
        """Return whether the kernel is a function of two sets: only it reads the points, which may have any type."""
        return callable(self.kernel) and not isinstance(self.kernel, Kernel)

    def _checked(self, X: Any, y: Any, sample_weight: Any) -> tuple[Any, np.ndarray, np.ndarray]:
        """Return checked training points, targets (zeros without any) and weights, `(n,)`."""
        require_own_process()
        if y is None and get_tags(self).target_tags.required:
            raise ValueError(f"This {type(self).__name__} estimator requires y to be passed, but the target y is None.")
        if sp.issparse(X) and self.kernel == "precomputed":
            raise TypeError("Sparse precomputed kernels are not supported.")
        if not self._takes_anything and y is None:
            X = checked(self, X, dtype=DTYPES)
        elif not self._takes_anything:
            X, y = checked(self, X, y, dtype=DTYPES, y_numeric=False, multi_output=False)
        if self.kernel == "precomputed":
            shape = f"Input is a {X.shape[0]}x{X.shape[1]} matrix."
            require(X.shape[0] == X.shape[1], f"Precomputed matrix must be a square matrix. {shape}")
        n = _num_samples(X)
        y = np.zeros(n) if y is None else column_or_1d(y, warn=True)
        if n != len(y):
            raise ValueError(f"X and y have incompatible shapes.\nX has {n} samples, but y has {len(y)}.")
        return X, y, sample_weights(sample_weight, n)

    def _learn_kernel(self, X: Any) -> tuple[KernelValues, Any]:
        """Return the kernel for these training points, and the points; kernel values instead for a function of sets."""
        values = kernel_values(self.kernel, self.gamma, self.coef0, self.degree, X)
        self.shape_fit_ = X.shape if hasattr(X, "shape") else (_num_samples(X),)
        self._gamma = float(values.parameters.get("gamma", 0.0))
        self._sparse = sp.issparse(X) and not values.by_values
        self._seen = X if self._takes_anything else None
        if self._takes_anything:
            n = self.shape_fit_[0]
            X = values.between(X, X)
            need = f"X.shape[0] should be equal to X.shape[1], ({n}, {n}) is needed."
            got = f"kernel returns values of shape {X.shape} for {n} points and themselves"
            require(X.shape == (n, n), f"{got}: {need}")
        return values, X

    def _keep(
        self, X: Any, rows: np.ndarray, coef: np.ndarray, solved: Sequence[Solved], sign: float = 1.0, cause: str = ""
    ) -> None:
        """Store solutions: coefficients of the samples `rows` of X, `(machines, rows)`, and constants, times a sign."""
        require_finite(coef, solved)
        kept = np.flatnonzero((coef != 0).any(axis=0))
        self.support_ = rows[kept].astype(np.int32)
        if self.kernel == "precomputed" or self._takes_anything:
            self.support_vectors_ = np.empty((0, 0))
        else:
            self.support_vectors_ = X[self.support_]
        coef = sign * coef[:, kept]
        self.dual_coef_ = sp.csr_array(coef) if self._sparse else coef
        self.intercept_ = sign * np.array([solution.bias for solution in solved])
        report(self, solved, cause)

    @property
    def n_support_(self) -> np.ndarray:
        """Return the number of support vectors of each class, `(k,)`; without classes `(1,)`."""
        check_is_fitted(self)
        return self._n_support

    @property
    def coef_(self) -> DenseOrSparse:
        """Return the weights of a linear kernel, `(machines, d)`."""
        if self.kernel != "linear":
            raise AttributeError("coef_ is only available when using a linear kernel")
        check_is_fitted(self)
        points, dual, zero = self.support_vectors_, dense(self.dual_coef_), 0 * self.intercept_
        weights = np.asarray(decisions(points.T, dual, self._n_support, zero, self._by_pairs).T)
        if self._sparse:
            return sp.csr_array(weights)
        weights.flags.writeable = False
        return weights

    @transfers
    def _decisions(self, X: Any) -> np.ndarray:
        """Return decision values, one column per machine; of two classes positive on the side of the second."""
        check_is_fitted(self)
        if self._n_support.sum() != len(self.support_):
            raise ValueError(f"The internal representation of {type(self).__name__} was altered")
        if self.kernel == "linear" and not self._sparse:
            return require_finite_decisions(self._linear_decisions(X))
        model = (dense(self.dual_coef_), self._n_support, self.intercept_, self._by_pairs)
        return require_finite_decisions(np.concatenate([decisions(K, *model) for K in self._support_values(X)]))

    def _support_values(self, X: Any) -> Iterable[np.ndarray]:
        """Yield kernel values of blocks of rows of X against the support, `(rows, support)`."""
        if self._takes_anything:
            X = kernel_values(self.kernel, self.gamma, self.coef0, self.degree, None).between(X, self._seen)
        else:
            X = checked(self, X, dtype=DTYPES, reset=False)
        if self._takes_anything or self.kernel == "precomputed":
            need = f"should be equal to {self.shape_fit_[0]}, the number of samples at training time"
            require(X.shape[1] == self.shape_fit_[0], f"X.shape[1] = {X.shape[1]} {need}")
            yield np.asarray(X)[:, self.support_]
        elif not len(self.support_):
            yield np.zeros((X.shape[0], 0))
        else:
            values = kernel_values(self.kernel, self._gamma, self.coef0, self.degree, X)
            yield from (K for _, K in values.blocks(X, self._support_in(values)))

    def _support_in(self, values: KernelValues) -> Any:
        """Return the support vectors, in float64 if float32 kernel values would change decisions by 1e-3 margins."""
        support = self.support_vectors_
        if support.dtype != np.float32:
            return support
        if values.name != "rbf" or sp.issparse(support):
            return support.astype(np.float64)
        centred = support - support.mean(axis=0, dtype=np.float64)
        reach = np.sqrt(values.parameters["gamma"] * np.einsum("ij,ij->i", centred, centred).max(initial=0))
        error = (FLOAT32_ERROR + ERROR_A_WIDTH * reach) * np.linalg.norm(dense(self.dual_coef_), axis=1).max()
        return support if error < 1e-3 else support.astype(np.float64)

    def _linear_decisions(self, X: Any) -> np.ndarray:
        """Return decision values of a linear kernel, one column per machine: from weights, O(m d), and in float64.

        It is not for sparse support vectors: their weights are dense, of as many features as a text has words.
        """
        X = checked(self, X, dtype=DTYPES, reset=False)
        weights = dense(self.coef_).T.astype(np.float64)
        # The product copies a block of X if it is in float32.
        step = X.shape[0] if sp.issparse(X) else max(VALUES_PER_BLOCK // X.shape[1], 1)
        parts = [X[start : start + step] @ weights for start in range(0, X.shape[0], step)]
        return np.concatenate(parts) + self.intercept_


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class LibsvmEstimator(KernelEstimator):
    """A kernel estimator with the other parameters of LIBSVM's."""

    shrinking: bool = True
    cache_size: float = 200
    max_iter: int = -1


class LinearEstimator(LinearClassifierMixin, JaxsvmEstimator):
    """A linear classifier whose `decision_function` and `predict` refuse values that are not finite."""

    _sparse: ClassVar[Any] = "csr"  # the form of sparse points that it takes; False: none

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = bool(self._sparse)
        return tags

    @_fit_context(prefer_skip_nested_validation=True)
    @estimating
    def fit(
        self, X: ArrayLike | SparseRows, y: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Train on labelled samples, each class against the rest; return the estimator.

        Args:
            X: Points, `(n, d)`, dense, a frame, or sparse.
            y: Labels, `(n,)`, of two classes or more.
            sample_weight: Factors of C, `(n,)`, not negative; 0 leaves a sample out.
        """
        points, codes, weight = labelled(self, X, y, sample_weight, accept_sparse=self._sparse)
        solved, coef, intercept = self._trained(points, codes, weight)
        require_finite(coef, solved)
        self.coef_, self.intercept_ = coef, intercept
        self.n_iter_ = max(1, *(solution.steps for solution in solved))
        report(self, solved)
        return self

    @transfers
    def decision_function(self, X: ArrayLike | SparseRows) -> np.ndarray:
        """Return decision values of points `(m, d)`: `(m,)` for two classes, positive for the second; else `(m, k)`."""
        return require_finite_decisions(super().decision_function(X))


def report(estimator: Any, solved: Sequence[Solved], cause: str = "") -> None:
    """Store the certificates of an estimator's problems; warn if one is not of the requested accuracy.

    With `_steps_suffice`, the steps of an estimator may end a solve without a warning.
    """
    columns = zip(*(solution.certificate for solution in solved), strict=True)
    estimator.certificate_ = Certificate(*(np.array(values, np.float64) for values in columns))  # pyright: ignore
    estimator._statuses = tuple(Status(int(solution.status)) for solution in solved)
    if getattr(estimator, "_steps_suffice", False):
        solved = [solution for solution in solved if solution.status != Status.MAX_STEPS]
    statuses = {solution.status for solution in solved}
    estimator.fit_status_ = int(any(status != Status.CONVERGED for status in statuses))
    warn_of(estimator, "problem(s)", solved, cause)


def warn_of(estimator: Any, what: str, solved: Sequence[Solved], cause: str = "") -> None:
    """Warn if one of several problems is not CONVERGED; in LIBSVM's words if `max_iter` stopped it."""
    failed = [solution for solution in solved if solution.status != Status.CONVERGED]
    if not failed:
        return
    statuses = {solution.status for solution in failed}
    if not cause and Status.NOT_PSD in statuses:
        cause = f"The kernel matrix is indefinite, so that nothing is certified. {advice(Status.NOT_PSD)}"
    if not cause and statuses == {Status.INTERRUPTED}:
        cause = "Ctrl-C ended the fit: what is certified by then is kept."
    worst = max(float(solution.certificate.relative_gap) for solution in failed)
    names = ", ".join(sorted(status.name for status in statuses))
    capped = Status.MAX_STEPS in statuses and getattr(estimator, "max_iter", -1) >= 0
    warn(
        (f"Solver terminated early (max_iter={estimator.max_iter}).  " if capped else "")
        + (cause or "Consider pre-processing your data with StandardScaler or MinMaxScaler.")
        + f" {len(failed)} of {len(solved)} {what} ended as {names}, with a relative duality gap of up to "
        f"{worst:.3g} (tol {estimator.tol:.3g})." + ("" if cause else f" {_remedies(estimator, capped)} may help too."),
        ConvergenceWarning,
    )


def _remedies(estimator: Any, capped: bool) -> str:
    """Name those parameters of an estimator that may end a solve as CONVERGED, in a phrase."""
    has = estimator.get_params(deep=False)
    helps = {"larger max_iter": capped, "larger nu": "nu" in has and "C" not in has}
    helps |= {"smaller C": "C" in has, "smaller Cs": "Cs" in has, "larger tol": True}
    words = [f"a {change}" for change, applies in helps.items() if applies]
    phrase = " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))
    return phrase[0].upper() + phrase[1:]


def require_finite(coef: np.ndarray, solved: Sequence[Solved]) -> None:
    """Refuse solutions from kernel values that overflowed: the primal value of a solver's last finite point is not.

    An indefinite matrix, and a nu machine that was stopped before it had a margin, have no primal value either; their
    status says so.
    """
    if any(one.status == Status.INTERRUPTED and not one.certificate.relative_gap < np.inf for one in solved):
        raise KeyboardInterrupt  # one of them has nothing yet
    unknown = (Status.NOT_PSD, Status.MAX_STEPS)
    numbers = [float(solution.certificate.primal) for solution in solved if solution.status not in unknown]
    numbers += [solution.bias for solution in solved]
    finite = bool(np.isfinite(numbers).all() and np.isfinite(coef).all())
    cause = "The input data may contain large values and need to be preprocessed."
    require(finite, f"The dual coefficients or intercepts are not finite. {cause}")


def dense(values: Any) -> np.ndarray:
    """Return an array; for a sparse one its entries."""
    return values.toarray() if sp.issparse(values) else np.asarray(values)
