"""The fits that a path returns: stacked by NumPy, with those that stand for values that were not reached; one warning.

After Ctrl-C nothing is compiled.
"""

import dataclasses
from typing import Any, cast

import jax
import numpy as np

from jaxsvm.errors import ConvergenceWarning, warn
from jaxsvm.problems.contract import Problem
from jaxsvm.results.fit import Certificate, Counters, Fit
from jaxsvm.results.status import Status, StatusCode, advice
from jaxsvm.runtime.arrays import on_device


def unreached(nearest: Fit) -> Fit:
    """Return a placeholder for a value that was not reached: the point of the nearest fit, without a certificate."""
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
    return StatusCode(cast(Any, np.asarray(np.int32(Status.INTERRUPTED))))


def on_host_stacked(fits: list[Fit]) -> Fit:
    """Stack fits along a new first axis."""
    return jax.tree.map(lambda *leaves: on_device(np.stack([np.asarray(leaf) for leaf in leaves])), *fits)


def in_order(fits: dict[int, Fit], Cs: np.ndarray, problem: Problem) -> Fit:  # noqa: N803
    """Stack the fits of all values in order; values that were not reached get the nearest one's point.

    Args:
        fits: Fits by place.
        Cs: The values, `(k,)`.
        problem: The problem, at any value.
    """
    known, logs = dict(fits), np.log(np.maximum(Cs, np.finfo(float).tiny))  # nu may be 0
    for place in range(len(logs)):
        if place not in fits:
            nearest = min(fits, key=lambda other: abs(logs[place] - logs[other]), default=None)
            known[place] = nothing(problem) if nearest is None else unreached(fits[nearest])
    return on_host_stacked([known[place] for place in range(len(logs))])


def warn_of_unfinished(fits: list[Fit], Cs: Any, tol: Any) -> None:
    """Say how many fits ended how, from which value on, the largest gap, and what helps; nothing if all converged.

    Args:
        fits: Fits with a last axis of k.
        Cs: Their values, `(k,)`.
        tol: The relative gap that was asked for.
    """
    codes = np.stack([np.asarray(fit.status.code) for fit in fits])
    failed = codes != Status.CONVERGED
    if not failed.any():
        return
    gaps = np.stack([np.asarray(fit.certificate.relative_gap, float) for fit in fits])
    first = np.broadcast_to(np.asarray(Cs, float), codes.shape)[failed].min()
    reached = gaps[failed & np.isfinite(gaps)]
    largest = f", with relative gaps of up to {reached.max():.2g}" if reached.size else ""
    most = Status(np.bincount(codes[failed]).argmax())
    warn(
        f"{int(failed.sum())} of {codes.size} fits are not certified to tol {float(tol):.2g}: "
        f"{StatusCode(cast(Any, codes[failed])).tally()}, the first at {first:.4g}{largest}. "
        f"{advice(most, fits[0])}",
        ConvergenceWarning,
    )
