"""Several classes from machines of two: coefficients in LIBSVM's layout, and decision values from them."""

import functools
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from jaxsvm.estimators.training.box import Solved
from jaxsvm.estimators.training.machines import Machine


def class_slices(codes: np.ndarray, k: int) -> list[slice]:
    """Where the samples of each class lie, of codes `(n,)` in increasing order."""
    ends = np.searchsorted(codes, np.arange(k + 1))
    return [slice(int(low), int(high)) for low, high in zip(ends[:-1], ends[1:], strict=True)]


def pairs(classes: Sequence[slice], upper: np.ndarray) -> list[Machine]:
    """One class against another, all pairs in LIBSVM's order: (0, 1), (0, 2), ..., (1, 2), ..."""
    return [Machine((i, j), np.concatenate([upper[i], upper[j]])) for i, j in combinations(classes, 2)]


def against_rest(classes: Sequence[slice], upper: np.ndarray) -> list[Machine]:
    """Each class against all others."""
    found = []
    for place, one in enumerate(classes):
        parts = (one, *(other for index, other in enumerate(classes) if index != place))
        found.append(Machine(parts, np.concatenate([upper[part] for part in parts])))
    return found


def coefficients_of_pairs(classes: Sequence[slice], solved: Sequence[Solved]) -> np.ndarray:
    """LIBSVM's layout, `(k - 1, n)`: a sample of class i has row j - 1 for class j > i, row j for j < i."""
    k, n = len(classes), classes[-1].stop
    coef = np.zeros((k - 1, n))
    for (i, j), one in zip(combinations(range(k), 2), solved, strict=True):
        middle = classes[i].stop - classes[i].start
        coef[j - 1, classes[i]] = one.dual_coef[:middle]
        coef[i, classes[j]] = one.dual_coef[middle:]
    return coef


def coefficients_against_rest(classes: Sequence[slice], machines: Any, solved: Sequence[Solved]) -> np.ndarray:
    """A row a class, `(k, n)`."""
    coef = np.zeros((len(classes), classes[-1].stop))
    for row, machine, one in zip(coef, machines, solved, strict=True):
        start = 0
        for part in machine.parts:
            row[part] = one.dual_coef[start : start + part.stop - part.start]
            start += part.stop - part.start
    return coef


def coefficients(classes: Sequence[slice], machines: Any, solved: Sequence[Solved], by_pairs: bool) -> np.ndarray:
    """LIBSVM's layout for pairs (one row of two classes), else a row a class; positive for the first class."""
    return coefficients_of_pairs(classes, solved) if by_pairs else coefficients_against_rest(classes, machines, solved)


def decisions(K: np.ndarray, coef: np.ndarray, counts: np.ndarray, bias: np.ndarray, by_pairs: bool) -> np.ndarray:
    """Decision values of all machines, `(m, machines)`.

    Args:
        K: Kernel values of new points against the support, sorted by class, `(m, support)`.
        coef: As `coefficients` has them, of the support.
        counts: How many of the support are of each class, `(k,)`.
        bias: Of each machine.
        by_pairs: Whether the machines are those of pairs.
    """
    if len(bias) == 1 or not by_pairs:
        return K @ coef.T + bias
    return decisions_of_pairs(K, coef, counts, bias)


def decisions_of_pairs(values: np.ndarray, coef: np.ndarray, n_support: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Decision values of all pairs, `(m, k (k - 1) / 2)`, positive on the side of the first class.

    Args:
        values: Kernel values of new points against the support, sorted by class, `(m, support)`.
        coef: LIBSVM's layout, `(k - 1, support)`.
        n_support: How many of each class, `(k,)`.
        bias: Of each pair.
    """
    ends = np.append(0, np.cumsum(n_support))
    parts = [slice(int(low), int(high)) for low, high in zip(ends[:-1], ends[1:], strict=True)]
    with one_thread():
        of_class = [values[:, part] @ coef[:, part].T for part in parts]
    found = [of_class[i][:, j - 1] + of_class[j][:, i] for i, j in combinations(range(len(parts)), 2)]
    return np.stack(found, axis=1) + bias


def one_thread() -> Any:
    """A context for thin matrix products: threads of a BLAS wait for each other 20 times as long as they work."""
    return _blas().limit(limits=1, user_api="blas")


@functools.cache
def _blas() -> ThreadpoolController:
    """Handles of the libraries for matrix products: to find them takes milliseconds."""
    return ThreadpoolController()


def weights_of_pairs(points: Any, coef: np.ndarray, n_support: np.ndarray) -> np.ndarray:
    """Weight vectors of a linear kernel, one a pair, `(k (k - 1) / 2, d)`."""
    ends = np.append(0, np.cumsum(n_support))
    parts = [slice(int(low), int(high)) for low, high in zip(ends[:-1], ends[1:], strict=True)]
    of_class = [np.asarray((points[part].T @ coef[:, part].T).T) for part in parts]
    return np.stack([of_class[i][j - 1] + of_class[j][i] for i, j in combinations(range(len(parts)), 2)])


def last_of_dag(decisions: np.ndarray, k: int) -> np.ndarray:
    """The class that is left of a list from which the first one or the last one goes k - 1 times, `(m,)`."""
    rows = np.arange(len(decisions))
    place = np.zeros((k, k), int)
    place[np.triu_indices(k, 1)] = np.arange(k * (k - 1) // 2)
    first, last = np.zeros(len(rows), int), np.full(len(rows), k - 1)
    for _ in range(k - 1):
        for_first = decisions[rows, place[first, last]] > 0
        first, last = np.where(for_first, first, first + 1), np.where(for_first, last - 1, last)
    return first
