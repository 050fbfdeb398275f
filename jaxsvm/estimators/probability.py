"""Compute probabilities from decision values: Platt's sigmoids, and pairwise coupling for several classes.

Sources: Platt 1999; Wu, Lin and Weng 2004, second approach (LIBSVM's). Floors are LIBSVM's.
"""

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import expit
from sklearn import svm
from sklearn.calibration import _SigmoidCalibration

from jaxsvm.errors import warn
from jaxsvm.estimators.machines import one_thread

_theirs = inspect.signature(svm.SVC).parameters.get("probability")
DEFAULT_PROBABILITY: Any = False if _theirs is None else _theirs.default
"""The default of `probability` in the installed scikit-learn: "deprecated" from version 1.9 on."""


def is_requested(probability: Any) -> bool:
    """Return whether a value of the parameter asks for probabilities."""
    return not isinstance(probability, str) and bool(probability)


def warn_deprecated(estimator: Any) -> None:
    """Warn if `probability` was passed and the installed scikit-learn deprecates it, in its words."""
    name = type(estimator).__name__
    if estimator.probability != "deprecated":
        _warn(
            "The `probability` parameter was deprecated in 1.9 of scikit-learn and will be removed in version 1.11. "
            f"Use `CalibratedClassifierCV({name}(), ensemble=False)` instead of `{name}(probability=True)`"
        )


def deprecated(name: str, values: np.ndarray) -> np.ndarray:
    """Return an attribute that `probability=True` makes, with the warning of the installed scikit-learn."""
    _warn(f"Attribute `{name}` was deprecated in version 1.9 and will be removed in 1.11, as `probability=True` is.")
    return values


def _warn(message: str) -> None:
    if DEFAULT_PROBABILITY == "deprecated":
        warn(message, FutureWarning)


def sigmoids(
    values: np.ndarray, codes: np.ndarray, weight: np.ndarray, places: Sequence[tuple[int, ...]]
) -> list[tuple[float, float]]:
    """Fit slope and shift of a sigmoid per machine: of its first class, or of the second if there is a single one.

    Of decision values f it is `P(positive | f) = 1 / (1 + exp(slope f + shift))`, by scikit-learn.

    `CalibratedClassifierCV` has the same sigmoids, one for each class against the rest: pairs of classes, which LIBSVM
    and ONNX read, it cannot express.
    """
    result = []
    for place, decisions in zip(places, values.T, strict=True):
        mine = np.isin(codes, place) if len(place) == 2 else np.ones(len(codes), bool)
        positive = codes == place[-1 if len(places) == 1 else 0]
        if not mine.any():
            result.append((0.0, 0.0))
            continue
        with one_thread():
            fitted = _SigmoidCalibration().fit(decisions[mine], positive[mine].astype(float), weight[mine])
        result.append((float(fitted.a_), float(fitted.b_)))
    return result


def of_classes(decisions: np.ndarray, fitted: Sequence[tuple[float, float]], k: int, pairs: bool = True) -> np.ndarray:
    """Return probabilities of k classes, `(m, k)`, from decision values `(m, machines)` and the sigmoid of each."""
    slopes, shifts = np.transpose(fitted)
    p = np.clip(expit(-(slopes * decisions + shifts)), 1e-7, 1 - 1e-7)  # LIBSVM's: coupling needs positive ones
    return np.hstack([1 - p, p]) if k == 2 else coupled(p, k) if pairs else p / p.sum(axis=1, keepdims=True)


def coupled(pairs: np.ndarray, k: int) -> np.ndarray:
    """Return probabilities of k classes, `(m, k)`: `min sum_{i != j} (r_ji p_i - r_ij p_j)^2` over the simplex.

    The signs of p are not constrained: for positive r the solution has none negative (Wu, Lin and Weng 2004,
    theorem 1), and is that of a linear system of k + 1 equations. `pairs` are `r_ij = P(i | i or j)`, in LIBSVM's order
    of pairs i < j, `(m, k (k - 1) / 2)`.
    """
    m = len(pairs)
    r = np.zeros((m, k, k))
    i, j = np.triu_indices(k, 1)
    r[:, i, j], r[:, j, i] = pairs, 1 - pairs
    system = np.zeros((m, k + 1, k + 1))
    system[:, :k, :k] = -r * r.transpose(0, 2, 1)
    system[:, range(k), range(k)] = (r**2).sum(axis=1)
    system[:, :k, k] = system[:, k, :k] = 1
    right = np.zeros((m, k + 1, 1))
    right[:, k] = 1
    p = np.clip(np.linalg.solve(system, right)[:, :k, 0], 0, None)  # rounding may make one negative
    return p / p.sum(axis=1, keepdims=True)
