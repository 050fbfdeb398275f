"""Prepare a problem, a start, and the earlier steps of a fit that is continued, for a driver.

Problems are padded to sizes that share compiled programs, and their kernel values are stored if that pays: once a
call, undone at its end.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxsvm.errors import InputError, is_concrete
from jaxsvm.gram.dense import with_values
from jaxsvm.gram.spread import SpreadGram
from jaxsvm.loop.interruption import unless
from jaxsvm.loop.measured import MEASURED
from jaxsvm.loop.round import Progress, steps_taken
from jaxsvm.problems.contract import Problem
from jaxsvm.problems.padding import padded
from jaxsvm.results.fit import Fit, bit_of
from jaxsvm.results.status import Status
from jaxsvm.runtime.arrays import lengthened
from jaxsvm.solvers.contract import Solver
from jaxsvm.solvers.start import Resumed, Start

P = TypeVar("P", bound=Problem)


def ready(problem: P, solver: Solver, until: Callable[[], bool] | None = None) -> P:
    """Prepare a problem for a solver: pad it to its size class and store its kernel values, if the solver prefers.

    A prepared problem is returned as it is. A caller of several fits on one operator prepares once, before the drivers
    do. The result has `problem.n` samples; `jaxsvm.problems.padding.trimmed` cuts fits of it.

    Args:
        problem: A problem, traced or not.
        solver: Its solver.
        until: Stop waiting for kernel values once it holds, and store none; None: always wait.
    """
    return ready_together([problem], [solver], until=until)[0]


def ready_together(
    problems: Sequence[P], solvers: Sequence[Solver], pad: bool = True, until: Callable[[], bool] | None = None
) -> list[P]:
    """Prepare several problems; those on one operator share what is stored of it.

    Args:
        problems: The problems.
        solvers: The solver of each.
        pad: Whether they may be padded: not if a user's function sees them. Those on a mesh always are.
        until: Stop waiting for kernel values once it holds, and store none; None: always wait.
    """
    prepared: dict[Any, Any] = {}
    result = []
    for problem, solver in zip(problems, solvers, strict=True):
        name, stores = problem.operator, solver.stores(problem)
        pads = (pad and solver.traits.pads) or isinstance(problem.gram, SpreadGram)
        key = (id(getattr(problem, name)), pads, stores)
        if key not in prepared:
            longer = padded(problem) if pads else problem
            gram = getattr(longer, name)
            if stores and until is not None and problem.n >= MEASURED.samples_of_a_long_product:
                gram = unless(until, with_values, gram) or gram
            elif stores:
                gram = with_values(gram)
            prepared[key] = (longer is not problem, gram.with_squares())
        is_longer, gram = prepared[key]
        if is_longer:
            result.append(padded(problem, gram))
        else:
            same = gram is getattr(problem, name)
            result.append(problem if same else dataclasses.replace(problem, **{name: gram}))
    return result


def start_of(init: Any, problem: Problem, solver: Solver, n: int) -> Any:
    """Return the start of a solver for a padded problem; a fit becomes the `Start` or `Resumed` that the solver takes.

    Raises:
        InputError: On weights of another length than n.
    """
    size = problem.n
    if isinstance(init, Fit) and solver.traits.resumes and np.shape(init.alpha) == (n,):
        if size != n:
            parts = {name: lengthened(getattr(init, name), size, 0) for name in ("alpha", "dual_coef")}
            init = dataclasses.replace(init, **parts)
        return Resumed.of(init, problem.y, solver)
    init = init.alpha if isinstance(init, Fit) else init
    if init is None or n == size:
        return init
    shape = np.shape(init.point if isinstance(init, Start) else init)
    if shape != (n,):
        raise InputError(f"init has weights of shape {shape}: ({n},) is needed.")
    if not isinstance(init, Start):
        return lengthened(init, size, 0)
    point, margins = (lengthened(part, size, 0) for part in (init.point, init.margins))
    return Start(point, margins, init.R, padded(init.problem))


def with_earlier_steps(problem: Problem, solver: Solver, progress: Progress, init: Any) -> Progress:
    """Count the steps of the fit that this one continues: a fit in pieces hands over where a single one would.

    A finisher needs the steps of an unfinished fit. Of a solver without one, all its own steps that led here count.
    """
    if not isinstance(init, Fit):
        return progress
    code, steps, bits = _on_host((init.status.code, init.counters.alone, init.counters.solvers))
    if solver.finisher(problem) is None:
        counts = (bits & bit_of(solver)) > 0
    else:
        counts = (code == Status.MAX_STEPS) | (code == Status.INTERRUPTED)
    return progress._replace(earlier=jnp.asarray(steps * counts, jnp.int32))


def with_steps_alone(fit: Fit, progress: Progress) -> Fit:
    """Store the steps with those of earlier fits in a fit, for a fit that continues it."""
    steps, earlier = _on_host((steps_taken(progress), progress.earlier))
    return dataclasses.replace(fit, counters=fit.counters._replace(alone=jnp.asarray(steps + earlier)))


def _on_host(values: Any) -> Any:
    return jax.tree.map(np.asarray, values) if is_concrete(values) else values
