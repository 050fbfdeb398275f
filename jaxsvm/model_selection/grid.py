"""Propose a grid of C from the data; say where the best value of a grid is an end of it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from jaxsvm.errors import InputError, is_concrete
from jaxsvm.gram.signed import SignedGram
from jaxsvm.loop.choice import exact_solver
from jaxsvm.loop.driver import QUIET, drive
from jaxsvm.loop.interruption import watching
from jaxsvm.loop.round import ready
from jaxsvm.problems.contract import Parametric, require_problem
from jaxsvm.results.status import Status
from jaxsvm.runtime.arrays import transfers
from jaxsvm.solvers.contract import Solver
from jaxsvm.solvers.start import Start


def end_of(name: str, best: float | None, values: ArrayLike) -> str | None:
    """Say that the best of several values is the smallest or the largest one; None if it is neither."""
    if best is None:
        return None
    ends = {float(np.max(values)): ("largest", "larger", 10), float(np.min(values)): ("smallest", "smaller", 0.1)}
    if len(ends) < 2 or best not in ends:
        return None
    end, others, factor = ends[best]
    tried = f"score a few from there to {factor * best:.3g}"
    return f"The best {name}, {best:.4g}, is the {end} of the grid: {others} ones may be better ({tried})."


@transfers
def C_grid(  # noqa: N802 (C is the field's name)
    problem: Parametric, n: int = 64, *, change: float = 0.02, largest: float = 1e6, solver: Solver | None = None
) -> Float[np.ndarray, " n"]:
    """Return a grid of C from the data: from "every sample is a support vector" to "nothing changes any more".

    Below `1 / max_i (B 1)_i` (B the signed kernel matrix) every margin of the solution `beta ~ C (1 - C B 1)` is below
    1: this is the lower end. The upper end is the first C, in steps of ten from there, at which a step of ten changes
    the margins by less than `change`, or that the solver does not certify.

    Args:
        problem: A problem of `svm_problem` or `hinge_problem`; its own C is not used.
        n: The number of values, >= 1.
        change: The relative change of the margins (root mean square) that counts as none, > 0.
        largest: The largest ratio of the upper end to the lower end, >= 10; not a C. For values between two Cs use
            `np.geomspace(least, most, n)` in place of a grid.
        solver: The solver at each decade, to a few digits; None takes the exact one of the problem's kind.

    Returns:
        Increasing values, evenly spaced in log C, `(n,)`.

    Raises:
        InputError: If an argument cannot be used.
        KeyboardInterrupt: On Ctrl-C: a part of a grid is of no use.
    """
    if not isinstance(n, int | np.integer) or n < 1:
        raise InputError(f"n is {n!r}: the number of values, at least 1, is needed.")
    if not is_concrete(problem):
        raise InputError("C_grid needs concrete arrays: call it outside jit and vmap.")
    if not (change > 0 and largest >= 10):
        raise InputError(f"change is {change} and largest {largest}: change > 0 and largest >= 10 are needed.")
    require_problem(problem)
    if problem.parameter != "C":
        raise InputError(f"problem is a {type(problem).__name__}: a grid of C is for `svm_problem` or `hinge_problem`.")
    first, weights = problem.at(1.0), np.asarray(problem.weights)
    pull = np.asarray(SignedGram(problem.gram, problem.y, problem.offset).support_matvec(jnp.asarray(weights)))
    low = float(1 / max(pull.max() * float(weights.max()), float(first.diagonal.max()), np.finfo(float).tiny))
    solver, key = exact_solver(first, 1e-2) if solver is None else solver, jax.random.key(0)
    problem = ready(problem, solver)
    high, before, warm = low, None, None
    with watching() as stop:
        while high < low * largest:
            at_high = problem.at(high)
            fit = drive(at_high, solver, key, warm, stop=stop, options=QUIET)
            stop.check()
            warm, margins = Start.of(fit, at_high), np.asarray(fit.margins, float)
            if before is not None and np.linalg.norm(margins - before) <= change * np.linalg.norm(margins):
                high /= 10
                break
            if int(fit.status) != Status.CONVERGED:  # nor will larger values be
                break
            high, before = high * 10, margins
    return np.geomspace(low, max(high, 10 * low), n) if n > 1 else np.array([np.sqrt(low * max(high, 10 * low))])
