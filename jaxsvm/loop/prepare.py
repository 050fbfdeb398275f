"""A problem as drivers work on it: padded to a size whose programs are shared, its kernel values stored if that pays.

Both are decided here, once a call, and cut off or let go of in the end.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from jaxsvm.errors import InputError
from jaxsvm.gram.dense import with_values
from jaxsvm.loop.interruption import LONG, unless
from jaxsvm.problems.contract import Problem
from jaxsvm.problems.padding import padded
from jaxsvm.results.fit import Fit
from jaxsvm.runtime.arrays import lengthened
from jaxsvm.solvers.contract import Solver
from jaxsvm.solvers.start import Resumed, Start

P = TypeVar("P", bound=Problem)


def ready(problem: P, solver: Solver, until: Callable[[], bool] | None = None) -> P:
    """The problem with absent samples up to its size class, and all kernel values stored: where its solver wants that.

    Whoever calls a driver several times, or for several problems on one operator, does this first and once: a driver
    finds it done. What comes of it has `problem.n` samples: `jaxsvm.problems.padding.trimmed` cuts it.

    Args:
        problem: A problem, traced or not.
        solver: What is to solve it.
        until: As for `ready_together`.
    """
    return ready_together([problem], [solver], until=until)[0]


def ready_together(
    problems: Sequence[P], solvers: Sequence[Solver], pad: bool = True, until: Callable[[], bool] | None = None
) -> list[P]:
    """The same for several problems: those on one operator share what is stored of it.

    Args:
        problems: The problems.
        solvers: What is to solve each.
        pad: Whether they may be padded: not where a user's function sees them.
        until: Once it holds nobody waits for kernel values any more, and none are stored; None: never.
    """
    made: dict[Any, Any] = {}
    found = []
    for problem, solver in zip(problems, solvers, strict=True):
        name, stores = problem.operator, solver.stores(problem)
        pads = pad and solver.pads
        key = (id(getattr(problem, name)), pads, stores)
        if key not in made:
            longer = padded(problem) if pads else problem
            gram = getattr(longer, name)
            if stores:
                if until is None or problem.n < LONG:
                    gram = with_values(gram)
                else:
                    gram = unless(until, with_values, gram) or gram
            made[key] = (longer is not problem, gram.with_squares())
        is_longer, gram = made[key]
        if is_longer:
            found.append(padded(problem, gram))
        else:
            found.append(problem if gram is getattr(problem, name) else dataclasses.replace(problem, **{name: gram}))
    return found


def start_of(init: Any, problem: Problem, solver: Solver, n: int) -> Any:
    """Where a solver is to start, with absent samples up to the problem's size: of a fit what the solver takes of it.

    Raises:
        InputError: On weights of another length than n.
    """
    size = problem.n
    if isinstance(init, Fit) and solver.resumes and np.shape(init.alpha) == (n,):
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
