"""Make the fits that stand for values of C that an interrupted path did not reach."""

import dataclasses
from typing import Any

import jax
import numpy as np

from jaxsvm.problems.contract import Problem
from jaxsvm.results.fit import Certificate, Counters, Fit
from jaxsvm.results.status import Status, StatusCode
from jaxsvm.runtime.arrays import on_device


def unreached(nearest: Fit) -> Fit:
    """Return a placeholder for a value that was not reached: the point of the nearest fit, without a certificate.

    Its leaves are NumPy arrays: after Ctrl-C nothing is compiled.
    """
    infinite: Any = np.full_like(np.asarray(nearest.certificate.relative_gap), np.inf)
    return dataclasses.replace(
        jax.tree.map(np.asarray, nearest),
        certificate=Certificate(infinite, -infinite, infinite),
        status=interrupted(),
        counters=jax.tree.map(lambda leaf: np.zeros_like(np.asarray(leaf)), nearest.counters),
    )


def nothing(problem: Problem) -> Fit:
    """Return a placeholder if no value was reached: all zeros, and an infinite gap."""
    zero: Any = np.zeros((), problem.dtype)
    zeros: Any = np.zeros((problem.n,), problem.dtype)
    none: Any = np.zeros((), np.int32)
    limbs: Any = np.zeros((2,), np.int32)
    counters = Counters(none, none, none, none, none, limbs, none)
    certificate = Certificate(zero, zero, zero)
    return unreached(Fit(zeros, zeros, zero, np.ones_like(zero), zeros, certificate, interrupted(), counters))


def interrupted() -> StatusCode:
    """Return the status INTERRUPTED, on the host."""
    code: Any = np.asarray(np.int32(Status.INTERRUPTED))
    return StatusCode(code)


def on_host_stacked(fits: list[Fit]) -> Fit:
    """Stack fits along a new first axis, by NumPy: nothing is compiled."""
    return jax.tree.map(lambda *leaves: on_device(np.stack([np.asarray(leaf) for leaf in leaves])), *fits)


def in_order(fits: dict[int, Fit], logs: np.ndarray, problem: Problem) -> Fit:
    """Stack the fits of all values in order; values that were not reached get the nearest one's point.

    NumPy stacks them: nothing is compiled.

    Args:
        fits: Fits by place.
        logs: Logarithms of the values, `(k,)`.
        problem: The problem, at any value.
    """
    known = dict(fits)
    for place in range(len(logs)):
        if place not in fits:
            nearest = min(fits, key=lambda other: abs(logs[place] - logs[other]), default=None)
            known[place] = nothing(problem) if nearest is None else unreached(fits[nearest])
    return on_host_stacked([known[place] for place in range(len(logs))])
