"""Probabilities from decision values: Platt's sigmoids, and pairwise coupling for several classes.

Sources: Platt 1999, by the Newton method of Lin, Lin and Weng 2007; Wu, Lin and Weng 2004, second approach (LIBSVM's).
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit
from sklearn import svm

from jaxsvm.errors import warn

_theirs = inspect.signature(svm.SVC).parameters.get("probability")
DEFAULT_PROBABILITY: Any = False if _theirs is None else _theirs.default
"""What `probability` is where nobody says, as in the installed scikit-learn: "deprecated" from version 1.9 on."""
FOLDS = 5

CLIP = 1e-7
"""Probabilities of a pair are no nearer to 0 and 1 (LIBSVM's): coupling needs positive ones."""
MOST_STEPS = 100
STEEPEST = 1e-12
"""Added to the curvature, LIBSVM's."""
SMALLEST_STEP = 1e-10
ENOUGH = 1e-8
"""A gradient, in units of the weights' sum, that ends it."""


def is_asked(probability: Any) -> bool:
    """Whether this value of the parameter asks for probabilities."""
    return not isinstance(probability, str) and bool(probability)


def warn_deprecated(estimator: Any) -> None:
    """Warn where `probability` was given and the installed scikit-learn does, in its words."""
    if DEFAULT_PROBABILITY == "deprecated" and estimator.probability != "deprecated":
        name = type(estimator).__name__
        warn(
            "The `probability` parameter was deprecated in 1.9 of scikit-learn and will be removed in version 1.11. "
            f"Use `CalibratedClassifierCV({name}(), ensemble=False)` instead of `{name}(probability=True)`",
            FutureWarning,
        )


def warn_attribute_deprecated(name: str) -> None:
    """Warn where the installed scikit-learn does of an attribute that `probability=True` makes."""
    if DEFAULT_PROBABILITY == "deprecated":
        message = (
            f"Attribute `{name}` was deprecated in version 1.9 and will be removed in 1.11, as `probability=True` is."
        )
        warn(message, FutureWarning)


def cross_fitted(
    decide: Callable[[np.ndarray, np.ndarray], np.ndarray],
    codes: np.ndarray,
    places: Sequence[tuple[int, ...]],
    random: np.random.RandomState,
) -> np.ndarray:
    """Decision values of samples that machines were not trained on, `(n, machines)`, of five folds.

    Each class is dealt to the folds by turns, in random order; of fewer samples than folds some folds lack it. Where
    the samples to train on lack one side of a machine its value is 1 on the other side, as in LIBSVM.

    Args:
        decide: From indices of samples to train on, and of others, to values of these, `(others, machines)`.
        codes: Classes, increasing, `(n,)`; two of them at least.
        places: The classes of each machine: a pair, or one against the rest; positive for the first.
        random: Of the order.
    """
    n, k, fold = len(codes), 1 + max(map(max, places)), np.empty(len(codes), int)
    fold[np.lexsort((random.permutation(n), codes))] = np.arange(n) % FOLDS
    values = np.empty((n, len(places)))
    for one in range(min(FOLDS, n)):
        test, rest = np.flatnonzero(fold == one), np.flatnonzero(fold != one)
        there = np.bincount(codes[rest], minlength=k) > 0
        values[test] = decide(rest, test) if there.sum() > 1 else 0
        for at, place in enumerate(places):
            first = there[place[0]]
            other = there[place[1]] if len(place) == 2 else np.delete(there, place[0]).any()
            if first != other:
                values[test, at] = float(first) - float(other)
    return values


def sigmoids(
    values: np.ndarray, codes: np.ndarray, weight: np.ndarray, places: Sequence[tuple[int, ...]]
) -> list["Sigmoid"]:
    """A sigmoid a machine, for its first class, of a single machine of two classes for the second."""
    found = []
    for place, decisions in zip(places, values.T, strict=True):
        mine = np.isin(codes, place) if len(place) == 2 else np.ones(len(codes), bool)
        positive = codes == place[-1 if len(places) == 1 else 0]
        found.append(fitted_sigmoid(decisions[mine], positive[mine], weight[mine]))
    return found


class Sigmoid(NamedTuple):
    """`P(positive | f) = 1 / (1 + exp(slope f + shift))`."""

    slope: float
    shift: float

    def __call__(self, decisions: np.ndarray) -> np.ndarray:
        """Probabilities of the positive class, clipped."""
        return np.clip(expit(-(self.slope * decisions + self.shift)), CLIP, 1 - CLIP)


def fitted_sigmoid(decisions: np.ndarray, positive: np.ndarray, weight: np.ndarray) -> Sigmoid:
    """The sigmoid of the largest likelihood, with Platt's targets in place of 0 and 1.

    Args:
        decisions: Values of samples that were left out, `(m,)`.
        positive: Whether each is of the positive class, `(m,)`.
        weight: Weights of the samples, `(m,)`.
    """
    many, few = weight[positive].sum(), weight[~positive].sum()
    target = np.where(positive, (many + 1) / (many + 2), 1 / (few + 2))
    slope, shift = 0.0, np.log((few + 1) / (many + 1))

    def loss(slope: float, shift: float) -> float:
        exponent = slope * decisions + shift
        return float(weight @ (np.logaddexp(0, exponent) - (1 - target) * exponent))

    value = loss(slope, shift)
    for _ in range(MOST_STEPS):
        p = expit(-(slope * decisions + shift))
        pull, curve = weight * (target - p), weight * p * (1 - p)
        gradient = np.array([pull @ decisions, pull.sum()])
        if np.abs(gradient).max() < ENOUGH * weight.sum():
            break
        cross = curve @ decisions
        hessian = np.array([[curve @ decisions**2, cross], [cross, curve.sum()]]) + STEEPEST * np.eye(2)
        move = -np.linalg.lstsq(hessian, gradient)[0]
        step = 1.0
        while step >= SMALLEST_STEP:
            new = loss(slope + step * move[0], shift + step * move[1])
            if new < value + 1e-4 * step * (gradient @ move):
                break
            step /= 2
        else:
            break
        slope, shift, value = slope + step * move[0], shift + step * move[1], new
    return Sigmoid(float(slope), float(shift))


def coupled(pairs: np.ndarray, k: int) -> np.ndarray:
    """Probabilities of k classes, `(m, k)`: `min sum_{i != j} (r_ji p_i - r_ij p_j)^2` over the simplex.

    Without the signs in mind: where all r are positive the solution is (Wu, Lin and Weng 2004, theorem 1), a linear
    system of k + 1 equations.

    Args:
        pairs: `r_ij = P(i | i or j)`, in LIBSVM's order of pairs i < j, `(m, k (k - 1) / 2)`.
        k: How many classes.
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
    found = np.clip(np.linalg.solve(system, right)[:, :k, 0], 0, None)  # of rounding
    return found / found.sum(axis=1, keepdims=True)
