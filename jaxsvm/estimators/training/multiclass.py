"""Combine machines of two classes for several: coefficients in LIBSVM's layout, and decision values from them."""

import functools
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from jaxsvm.estimators.training.machines import Machine
from jaxsvm.loop.many import Solved


def class_slices(codes: np.ndarray, k: int) -> list[slice]:
    """Return the slice of samples of each class, for codes `(n,)` in increasing order."""
    return _slices(np.searchsorted(codes, np.arange(k + 1)))


def _slices(ends: np.ndarray) -> list[slice]:
    return [slice(int(low), int(high)) for low, high in zip(ends[:-1], ends[1:], strict=True)]


def pairs(classes: Sequence[slice], upper: np.ndarray) -> list[Machine]:
    """Return the machines of all pairs of classes in LIBSVM's order: (0, 1), (0, 2), ..., (1, 2), ..."""
    return [Machine((i, j), np.concatenate([upper[i], upper[j]])) for i, j in combinations(classes, 2)]


def against_rest(classes: Sequence[slice], upper: np.ndarray) -> list[Machine]:
    """Return the machines of each class against all others."""
    parts = [(classes[k], *classes[:k], *classes[k + 1 :]) for k in range(len(classes))]
    return [Machine(part, np.concatenate([upper[piece] for piece in part])) for part in parts]


def coefficients(classes: Sequence[slice], machines: Any, solved: Sequence[Solved], by_pairs: bool) -> np.ndarray:
    """Return coefficients, positive for the first class.

    Of pairs in LIBSVM's layout, `(k - 1, n)`: a sample of class i has row j - 1 for class j > i, row j for j < i. Else
    one row per class, `(k, n)`.
    """
    coef = np.zeros((len(classes) - by_pairs, classes[-1].stop))
    rows = combinations(range(len(classes)), 2) if by_pairs else ((row, row) for row in range(len(classes)))
    for places, machine, solution in zip(rows, machines, solved, strict=True):
        start = 0
        for number, part in enumerate(machine.parts):
            row = places[0] if not by_pairs or number else places[1] - 1
            coef[row, part] = solution.dual_coef[start : start + part.stop - part.start]
            start += part.stop - part.start
    return coef


def decisions(K: Any, coef: np.ndarray, counts: np.ndarray, bias: np.ndarray, by_pairs: bool) -> np.ndarray:
    """Return the decision values of all machines, `(m, machines)`, positive for the first class.

    Args:
        K: Kernel values of new points against the support, sorted by class, `(m, support)`.
        coef: Coefficients of the support, in the layout of `coefficients`.
        counts: Support vectors of each class, `(k,)`.
        bias: The constant of each machine, `(machines,)`.
        by_pairs: Whether there is a machine for each pair of classes.
    """
    if len(bias) == 1 or not by_pairs:
        return K @ coef.T + bias
    parts = _slices(np.append(0, np.cumsum(counts)))
    with one_thread():
        of_class = [K[:, part] @ coef[:, part].T for part in parts]
    pairs = combinations(range(len(parts)), 2)
    return np.stack([of_class[i][:, j - 1] + of_class[j][:, i] for i, j in pairs], axis=1) + bias


def one_thread() -> Any:
    """Return a context for thin matrix products, where threads of a BLAS wait 20 times as long as they work."""
    return _blas().limit(limits=1, user_api="blas")


_blas = functools.cache(ThreadpoolController)  # finding the libraries takes milliseconds


def last_of_dag(decisions: np.ndarray, k: int) -> np.ndarray:
    """Return the class `(m,)` that is left when k - 1 decisions each remove the first or last class of a list.

    Args:
        decisions: Decision values of all pairs, `(m, k (k - 1) / 2)`.
        k: The number of classes.
    """
    rows = np.arange(len(decisions))
    place = np.zeros((k, k), int)
    place[np.triu_indices(k, 1)] = np.arange(k * (k - 1) // 2)
    first, last = np.zeros(len(rows), int), np.full(len(rows), k - 1)
    for _ in range(k - 1):
        for_first = decisions[rows, place[first, last]] > 0
        first, last = np.where(for_first, first, first + 1), np.where(for_first, last - 1, last)
    return first
