"""Shrinking: samples that sit firmly at a bound are left out of a box problem, and looked at again before it ends.

Source: Joachims 1999; Fan, Chen and Lin 2005 (LIBSVM). A sample at 0 or U whose margin lies beyond the largest
violation of the optimality conditions has nothing to do for a while. What is left is a box problem of its own
(`jaxsvm.problems.box.reduced`) with a stored kernel matrix, of one of few sizes, so that few programs are compiled. The
end is decided on the whole problem, by the one driver.
"""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxsvm.gram.build import MEMORY
from jaxsvm.interruption import Interruption, interrupted, watching
from jaxsvm.loop import drive, warn_unless_converged
from jaxsvm.problems.box import BoxProblem, reduced
from jaxsvm.result import Counters, Fit, Status, StatusCode
from jaxsvm.validation import require_seconds, require_usable

SHARE = 0.5
"""Each size of a reduced problem is half of the next larger one, down to `SMALLEST`."""
SMALLEST = 512
LOOK = 500
"""Steps on the whole problem between reduced ones: enough to see what has to come back."""
TENTH = 0.1
"""A reduced problem is solved until this much of the gap is left."""
VISITS = 4
"""Steps on a reduced problem, in units of its size, before the whole is looked at again."""
FRUITLESS = 3
"""Reduced problems in a row that leave the gap as it was, after which the whole problem is left to the one driver."""


def drive_shrunk(
    problem: BoxProblem,
    solver: Any,
    key: Array,
    init: Any = None,
    max_seconds: float | None = None,
    callback: Callable[[Fit], Any] | None = None,
    warn: bool = True,
    stop: Interruption | None = None,
) -> Fit:
    """`jaxsvm.loop.drive` with shrinking: the whole problem and reduced ones in turns, until the whole is certified.

    Args:
        problem: From `hinge_problem` or `box_problem`.
        solver: SMO; its `shrinking` is not looked at.
        key: A random key.
        init: As for `jaxsvm.fit`.
        max_seconds: As for `jaxsvm.fit`.
        callback: Called after each turn on the whole problem.
        warn: Whether to warn of anything but CONVERGED.
        stop: As for `jaxsvm.loop.drive`.

    Returns:
        The best certified point of the whole problem, with the steps of all turns.
    """
    require_usable(solver)
    require_seconds(max_seconds)
    with watching(stop) as stop:
        whole = _in_turns(problem, solver, key, init, max_seconds, callback, stop)
        if warn:
            warn_unless_converged(whole, solver)
    return whole


def _in_turns(
    problem: BoxProblem, solver: Any, key: Array, init: Any, max_seconds: Any, callback: Any, stop: Interruption
) -> Fit:
    plain, started = dataclasses.replace(solver, shrinking=False), time.monotonic()
    spent, look, least, fruitless = Counters.zero(), LOOK, np.inf, 0

    def left() -> float | None:
        return None if max_seconds is None else max(max_seconds - (time.monotonic() - started), 0.0)

    while True:
        cap = jnp.minimum(jnp.asarray(plain.max_steps) - spent.steps, look)
        whole = drive(problem, dataclasses.replace(plain, max_steps=cap), key, init, left(), warn=False, stop=stop)
        spent = _sum(spent, whole.counters)
        whole = dataclasses.replace(whole, counters=spent)
        if (_told(callback, whole, stop) or stop.seen) and whole.status == Status.MAX_STEPS:
            whole = _interrupted(whole)
        if whole.status != Status.MAX_STEPS or int(spent.steps) >= int(plain.max_steps):
            break
        a, s = whole.alpha, problem.matvec(whole.alpha)
        samples = _worth_keeping(problem, a, s) if fruitless < FRUITLESS else None
        look = plain.max_steps if fruitless >= FRUITLESS else LOOK if samples is not None else 2 * look
        if samples is not None:
            index = jnp.asarray(samples, jnp.int32)
            part = reduced(problem, a, s, index)
            gap = float(whole.certificate.relative_gap)
            target = jnp.maximum(jnp.asarray(plain.tol) / 2, TENTH * min(gap, 1.0))  # who is kept will change
            tol = _share_of(target, problem, part, a, s, index)
            cap = jnp.minimum(jnp.asarray(plain.max_steps) - spent.steps, VISITS * len(samples))
            inner = dataclasses.replace(plain, tol=tol, max_steps=cap)
            inner = drive(part, inner, key, a[index], left(), warn=False, stop=stop)
            spent = _sum(spent, inner.counters)
            if stop.seen:  # what the reduced problem came to has no certificate on the whole
                return _interrupted(whole)
            a = a.at[index].set(inner.alpha)
            fruitless, least = (0 if gap < 0.9 * least else fruitless + 1), min(gap, least)
        init = a
    return whole


def _interrupted(whole: Fit) -> Fit:
    return dataclasses.replace(whole, status=StatusCode(jnp.asarray(interrupted().code)))


def _told(callback: Callable[[Fit], Any] | None, whole: Fit, stop: Interruption) -> bool:
    """Whether the callback told it to stop; a KeyboardInterrupt of its own is noted."""
    try:
        return callback is not None and callback(whole) is True
    except KeyboardInterrupt:
        stop.note()
        return True


def _worth_keeping(problem: BoxProblem, a: Array, s: Array) -> np.ndarray | None:
    """Samples that are free, or at a bound within the largest violation of it, filled up to one of the sizes.

    None where that is most of them, or more than memory for a stored matrix.
    """
    bias = problem.best_bias(s)
    c = np.zeros(problem.n) if problem.c is None else np.asarray(problem.c)
    rest = np.asarray(problem.q - s, float) - float(bias) * c
    values, upper = np.asarray(a), np.asarray(problem.upper)
    present, empty, full = upper > 0, values <= 0, values >= upper
    # How far a sample is from being content: free ones want 0, empty ones at most 0, full ones at least 0.
    wrong = np.where(empty, np.maximum(rest, 0), np.where(full, np.maximum(-rest, 0), np.abs(rest)))
    worst = wrong[present].max(initial=0)
    firm = np.where(empty, -rest, np.where(full, rest, -np.inf))
    firm = np.where(present, firm, np.inf)
    kept = int((firm <= worst).sum())
    size = next((size for size in _sizes(problem.n) if size >= kept), None)
    if size is None or size**2 * jnp.dtype(problem.gram.dtype).itemsize > MEMORY:
        return None
    return np.sort(np.argsort(firm, kind="stable")[:size])


def _sizes(n: int) -> list[int]:
    """Sizes of reduced problems, increasing; n itself is none."""
    found, size = [], int(SHARE * n)
    while size >= SMALLEST:
        found.append(size)
        size = int(SHARE * size)
    return found[::-1]


def _share_of(tol: Any, problem: BoxProblem, part: BoxProblem, a: Array, s: Array, index: Array) -> Array:
    """The relative gap of the reduced problem that is `tol` on the whole: their objectives differ in scale."""
    whole = -problem.objective(a, s)
    here = a[index] @ (part.q - part.matvec(a[index]) / 2)
    ratio = jnp.abs(whole) / jnp.maximum(jnp.abs(here), jnp.finfo(a.dtype).tiny)
    return jnp.clip(jnp.asarray(tol, a.dtype) * ratio, 16 * jnp.finfo(a.dtype).eps, 0.5)


def _sum(first: Counters, second: Counters) -> Counters:
    total = jax.tree.map(lambda a, b: a + b, first, second)
    high, low = total.evaluations
    return total._replace(evaluations=jnp.stack([high + (low >> 20), low & (2**20 - 1)]))
