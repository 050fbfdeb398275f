"""Check the arguments and results of estimators: points, labels, weights, and decision values."""

from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
from sklearn.utils import compute_class_weight
from sklearn.utils._param_validation import Hidden, Interval, StrOptions
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, validate_data

from jaxsvm.errors import InputError, require
from jaxsvm.kernels import Kernel
from jaxsvm.runtime.arrays import require_own_process
from jaxsvm.solvers.contract import Solver

EstimatorKernel = str | Kernel | Callable[[Any, Any], Any]
"""A kernel's name, a kernel, or a function of two sets of points that returns their kernel matrix."""
Gamma = float | Literal["scale", "auto", "median", "paper"]
"""`1 / (d var(X))`, `1 / d`, a rule of `jaxsvm.kernels.width`, or a number."""
ClassWeight = Mapping[Any, float] | Literal["balanced"]
"""Factors of C by class, or "balanced"."""
Seed = int | np.random.RandomState
"""The seed of a random choice, or NumPy's generator."""
POSITIVE, COUNT = [Interval(Real, 0.0, None, closed="neither")], [Interval(Integral, 1, None, closed="left")]
SHARE, NOT_NEGATIVE = [Interval(Real, 0.0, 1.0, closed="right")], [Interval(Real, 0.0, None, closed="left")]
LIMITS: dict[str, list[Any]] = {
    "C": [Interval(Real, 0.0, None, closed="right")],
    "Cs": [*COUNT, "array-like"],
    "alpha": POSITIVE,
    "average": [StrOptions({"linear", "uniform", "last"})],
    "batch": COUNT,
    "bias": [StrOptions({"free", "regularized", "none"})],
    "break_ties": ["boolean"],
    "cache_size": POSITIVE,
    "class_weight": [StrOptions({"balanced"}), dict, None],
    "coef0": [Interval(Real, None, None, closed="neither")],
    "cv": ["cv_object"],
    "decision_function_shape": [StrOptions({"ovr", "ovo"})],
    "degree": [Interval(Integral, 0, None, closed="left")],
    "dual": ["boolean", StrOptions({"auto"})],
    "early_stopping": ["boolean"],
    "epsilon": NOT_NEGATIVE,
    "fit_intercept": ["boolean"],
    "gamma": [StrOptions({"scale", "auto", "median", "paper"}), *NOT_NEGATIVE],
    "intercept_scaling": POSITIVE,
    "kernel": [StrOptions({"linear", "poly", "rbf", "sigmoid", "laplacian", "precomputed"}), callable],
    "loss": [StrOptions({"hinge", "squared_hinge"})],
    "m": [Interval(Integral, 2, None, closed="left")],
    "max_iter": [Interval(Integral, -1, None, closed="left")],
    "multi_class": [StrOptions({"ovo", "ovr"})],
    "nu": SHARE,
    "one_standard_error": ["boolean"],
    "passes": [StrOptions({"auto"}), *COUNT],
    "penalty": [StrOptions({"l2"})],
    "probability": ["boolean", Hidden(StrOptions({"deprecated"}))],
    "random_state": ["random_state"],
    "shrinking": ["boolean"],
    "solver": [Solver, None],
    "steps": COUNT,
    "tol": POSITIVE,
    "validation_fraction": [Interval(Real, 0.0, 1.0, closed="neither")],
    "verbose": ["verbose"],
}
"""What scikit-learn's checks admit for each parameter; a class names what differs in its `_limits`."""


def checked(estimator: Any, X: Any, *y: Any, **options: Any) -> Any:
    """Check points, and targets, as scikit-learn does; convert sparse points to CSR without duplicate entries.

    Options are those of `sklearn.utils.validation.validate_data`, in place of float64, C order and CSR.
    """
    if y:
        require_own_process()
    options = {"dtype": np.float64, "order": "C", "accept_sparse": "csr", **options}
    result = validate_data(estimator, X, *y, **options)
    return (canonical(result[0]), result[1]) if y else canonical(result)


def canonical(X: Any) -> Any:
    """Return CSR with each entry stored once, in order, with 32-bit indices; a copy if necessary. Others are unchanged.

    scikit-learn's kernels and SciPy's products read entries as stored: the squares of duplicates do not add up to the
    square of their sum.
    """
    if not sp.issparse(X):
        return X
    if X.indices.dtype != np.int32 or X.indptr.dtype != np.int32:
        if max(*X.shape, X.nnz) > (most := np.iinfo(np.int32).max):
            raise ValueError(f"X has shape {X.shape} and {X.nnz} entries: up to {most} of each are taken.")
        X = type(X)((X.data, X.indices.astype(np.int32), X.indptr.astype(np.int32)), shape=X.shape)
    if not X.has_canonical_format:
        X = X.copy()
        X.sum_duplicates()
        if not np.isfinite(X.data).all():
            raise ValueError("X has duplicate entries whose sum is infinite: scale it first.")
    return X


def labelled(estimator: Any, X: Any, y: Any, sample_weight: Any, **options: Any) -> tuple[Any, np.ndarray, np.ndarray]:
    """Check labelled samples of a linear classifier, with the options of `checked`; store `classes_`.

    Returns points, the class of each sample, `(n,)`, and weights of samples times factors of their classes, `(n,)`.
    """
    if y is None and hasattr(X, "chosen"):
        fits = "fits rows wherever they lie, and predicts (squares of hinges count half there: 2 C)."
        raise InputError(f"X is a design: `jaxsvm.designs.fit(X, C, loss=...)` {fits}")
    X, y = checked(estimator, X, y, **options)
    estimator.classes_, codes = classes_of(y)
    weight = weights_of(estimator, X, y, sample_weight)
    require_classes(codes, weight, estimator.classes_, every=True)
    return X, codes, weight


def classes_of(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the sorted labels, at least two, and the place of each sample's label among them."""
    check_classification_targets(y)
    classes, codes = np.unique(y, return_inverse=True)
    if len(classes) < 2:
        raise ValueError(f"The number of classes has to be greater than one; got {len(classes)} class: two are needed.")
    return classes, codes


def weights_of(estimator: Any, X: Any, y: np.ndarray, sample_weight: Any) -> np.ndarray:
    """Return weights of samples times factors of their classes, `(n,)`, for an estimator with `classes_`."""
    weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    factors = class_factors(estimator.class_weight, estimator.classes_, y, weight)
    return weight * factors[np.searchsorted(estimator.classes_, y)]


def signs_against_rest(codes: np.ndarray, k: int) -> list[np.ndarray]:
    """Return the signs `(n,)` of each class against the rest; of two classes, those of the second alone."""
    return [np.where(codes == code, 1.0, -1.0) for code in ([1] if k == 2 else range(k))]


def class_factors(
    class_weight: Any, classes: np.ndarray, y: np.ndarray, weight: np.ndarray | None = None
) -> np.ndarray:
    """Return factors of C a class, `(k,)`; 0 leaves the samples of a class out.

    With weights of samples, `(n,)`, "balanced" adds them up in place of counting samples; those that are not positive
    count as 0.
    """
    for label, factor in class_weight.items() if isinstance(class_weight, dict) else ():
        usable = isinstance(factor, Real) and 0 <= float(factor) < np.inf
        need = "a finite factor >= 0 is needed, where 0 leaves the class out."
        require(usable, f"class_weight is {factor!r} for the class {label!r}: {need}")
    if not (isinstance(class_weight, str) and class_weight == "balanced"):
        return np.asarray(compute_class_weight(class_weight, classes=classes, y=y), np.float64)
    sums = np.bincount(np.searchsorted(classes, y), None if weight is None else np.maximum(weight, 0), len(classes))
    return sums.sum() / (len(classes) * np.where(sums > 0, sums, 1))


def sample_weights(sample_weight: Any, n: int) -> np.ndarray:
    """Return weights of samples, `(n,)`, as LIBSVM reads them: those that are not positive leave their samples out."""
    if sample_weight is None:
        return np.ones(n)
    weight = np.asarray(sample_weight, np.float64)
    weight = np.full(n, float(weight)) if weight.ndim == 0 else weight
    require(weight.shape == (n,), f"sample_weight and X have incompatible shapes: {weight.shape} vs {(n,)}")
    require(bool(np.isfinite(weight).all()), "sample_weight contains NaN or infinity: finite weights are needed.")
    require(bool((weight > 0).any()), "Invalid input - all samples have zero or negative weights.")
    return weight


def require_classes(codes: np.ndarray, weight: np.ndarray, classes: np.ndarray, every: bool) -> None:
    """Refuse weights `(n,)` that leave samples of a single class, or, if every class is needed, that leave one out.

    Every class is needed where each is separated from the rest; pairs do not need it.
    """
    present = np.isin(np.arange(len(classes)), codes[weight > 0])
    if present.sum() < 2:
        raise ValueError("Invalid input - all samples with positive weights belong to the same class.")
    if every and not present.all():
        absent = classes[~present].tolist()[0]
        told = f"sample_weight and class_weight leave no sample of the class {absent!r}, which cannot be told"
        raise InputError(f"{told} from the rest then: leave it out of X and y, or take machines of pairs (SVC).")


def costs(C: float, weight: np.ndarray) -> np.ndarray:
    """Return costs `C_i` of samples, `(n,)`: C times weights, where an infinite C is 1e10."""
    return (1e10 if np.isinf(C) else C) * weight


def require_finite_decisions(values: np.ndarray) -> np.ndarray:
    """Return decision values unchanged if all are finite: one that overflowed is on neither side."""
    finite = np.isfinite(values)
    bad = ~(finite if values.ndim == 1 else finite.all(axis=1))
    if bad.any():
        where = f"{bad.sum()} point(s) whose decision value is not finite, the first in row {int(bad.argmax())}"
        cause = (
            "kernel values overflow there. Scale the features, as in training, or look for what is wrong in that row."
        )
        raise InputError(f"X has {where}: {cause}")
    return values
