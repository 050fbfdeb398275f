"""What estimators are given and what they hand out, checked in one place: points, weights, and decision values."""

from numbers import Real
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.utils import compute_class_weight
from sklearn.utils.validation import validate_data

from jaxsvm.errors import InputError
from jaxsvm.runtime.forking import require_own_process

MOST_INDEX = np.iinfo(np.int32).max


def checked(estimator: Any, X: Any, *y: Any, **options: Any) -> Any:
    """Check points, and targets, as scikit-learn does; of sparse points make CSR without duplicate entries.

    Args:
        estimator: Whose number and names of features they are held to, or give.
        X: Points, `(m, d)`: dense, a frame, or sparse of any format.
        *y: Targets, `(m,)`, or nothing.
        **options: Of `sklearn.utils.validation.validate_data`, in place of float64, C order and CSR.

    Returns:
        The points, or points and targets. What was given is not changed.
    """
    if y:  # a fit, which computes whatever it is given
        require_own_process()
    options = {"dtype": np.float64, "order": "C", "accept_sparse": "csr", **options}
    found = validate_data(estimator, X, *y, **options)
    return (canonical(found[0]), found[1]) if y else canonical(found)


def canonical(X: Any) -> Any:
    """CSR whose entries are each there once, in order, with 32-bit indices; a copy where they are not. Others as is.

    scikit-learn's kernels and SciPy's products read entries as they stand: the square of a row is not that of sums.
    """
    if not sp.issparse(X):
        return X
    if X.indices.dtype != np.int32 or X.indptr.dtype != np.int32:
        if max(*X.shape, X.nnz) > MOST_INDEX:
            raise ValueError(f"X has shape {X.shape} and {X.nnz} entries: up to {MOST_INDEX} of each are taken.")
        X = type(X)((X.data, X.indices.astype(np.int32), X.indptr.astype(np.int32)), shape=X.shape)
    if not X.has_canonical_format:
        X = X.copy()
        X.sum_duplicates()
        if not np.isfinite(X.data).all():
            raise ValueError("X has duplicate entries whose sum is infinite: scale it first.")
    return X


def class_factors(class_weight: Any, classes: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Factors of C a class, `(k,)`; 0 leaves the samples of a class out.

    Args:
        class_weight: A dictionary by label, "balanced", or None.
        classes: The labels, sorted, `(k,)`.
        y: The label of each sample, `(n,)`.

    Raises:
        InputError: On a factor that is negative, NaN, infinite or no number.
    """
    for label, factor in class_weight.items() if isinstance(class_weight, dict) else ():
        if not (isinstance(factor, Real) and 0 <= float(factor) < np.inf):
            raise InputError(
                f"class_weight is {factor!r} for the class {label!r}: a finite factor >= 0 is needed, where 0 leaves "
                "the class out."
            )
    return np.asarray(compute_class_weight(class_weight, classes=classes, y=y), np.float64)


def sample_weights(sample_weight: Any, n: int) -> np.ndarray:
    """Weights of samples, `(n,)`, as LIBSVM reads them: what is not positive is left out.

    Raises:
        ValueError: On another shape, values that are not finite, or none that is positive.
    """
    if sample_weight is None:
        return np.ones(n)
    weight = np.asarray(sample_weight, np.float64)
    weight = np.full(n, float(weight)) if weight.ndim == 0 else weight
    if weight.shape != (n,):
        raise ValueError(f"sample_weight and X have incompatible shapes: {weight.shape} vs {(n,)}")
    if not np.isfinite(weight).all():
        raise ValueError("sample_weight contains NaN or infinity: finite weights are needed.")
    if not (weight > 0).any():
        raise ValueError("Invalid input - all samples have zero or negative weights.")
    return weight


def require_classes(codes: np.ndarray, weight: np.ndarray, classes: np.ndarray, every: bool) -> None:
    """Refuse weights that leave samples of one class alone, or, where every class is needed, that leave one out.

    Args:
        codes: The class of each sample, `(n,)`.
        weight: Weights of samples times factors of classes, `(n,)`; what is not positive is absent.
        classes: Labels, sorted, `(k,)`.
        every: Whether each class is told from the rest, which one without samples cannot be; pairs do without it.
    """
    there = np.isin(np.arange(len(classes)), codes[weight > 0])
    if there.sum() < 2:
        raise ValueError("Invalid input - all samples with positive weights belong to the same class.")
    if every and not there.all():
        absent = classes[~there].tolist()[0]
        raise InputError(
            f"sample_weight and class_weight leave no sample of the class {absent!r}, which cannot be told "
            "from the rest then: leave its samples out of X and y, or take machines of pairs (SVC)."
        )


def costs(C: float, weight: np.ndarray) -> np.ndarray:
    """Costs `C_i` of samples, `(n,)`: C times their weights; 1 where C is infinite, for `hard_margin` to multiply."""
    return np.where(weight > 0, 1.0, 0.0) if np.isinf(C) else C * weight


def require_finite_decisions(values: np.ndarray) -> np.ndarray:
    """Decision values as they are, where all are finite.

    Raises:
        InputError: Where kernel values, or their sums, overflowed: such a value is on neither side.
    """
    finite = np.isfinite(values)
    bad = ~(finite if values.ndim == 1 else finite.all(axis=1))
    if bad.any():
        raise InputError(
            f"X has {bad.sum()} point(s) whose decision value is not finite, the first in row {int(bad.argmax())}: "
            "kernel values overflow there. Scale the features, as in training, or look for what is wrong in that row."
        )
    return values


class FiniteDecisions:
    """Of a linear classifier of scikit-learn's: what `decision_function` and `predict` say is finite, or refused."""

    def decision_function(self, X: Any) -> np.ndarray:
        """Decision values, `(m,)` for two classes, positive for the second; else `(m, k)`.

        Args:
            X: Points, `(m, d)`, dense, a frame, or sparse.
        """
        parent: Any = super()
        return require_finite_decisions(parent.decision_function(X))
