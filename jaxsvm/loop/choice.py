"""The solver that is taken where none is named: by what is known before it begins, and by what it sees on the way.

Measured (`benchmarks/working_sets.py`): where the support is narrow, working sets touch a tenth of the kernel matrix
and win; for the hinge they do on wide supports too. For the squared hinge, whose support is all that is inside the
margin, pair steps on stored kernel values are faster then. With few features there are systems in their space.
"""

import dataclasses
import math
from typing import Any, cast

import jax.numpy as jnp
import numpy as np

from jaxsvm.errors import InputError
from jaxsvm.problems.contract import Problem, Restrictable
from jaxsvm.problems.slack import SlackProblem
from jaxsvm.solvers.around.equivalent_hinge import EquivalentHinge
from jaxsvm.solvers.box.barrier_systems import few_features
from jaxsvm.solvers.box.interior_point import InteriorPoint
from jaxsvm.solvers.box.sequential_minimal_optimization import SMO
from jaxsvm.solvers.contract import Solver
from jaxsvm.solvers.simplex.frank_wolfe import FrankWolfe
from jaxsvm.solvers.simplex.newton import Newton
from jaxsvm.solvers.working_set import WorkingSet

SMALL = 2048
"""Samples up to which pair steps on stored values are as fast as sets for the squared hinge (n = 2,000: 0.96 of their
seconds in the geometric mean of nine sets, n = 3,000: 1.34), and half of the programs to compile."""
ONE_SET = 512
"""The same for the hinge (n = 250: 0.87, 500: 0.93, 1,000: 1.25)."""
FEATURES, SAMPLES_EACH = 64, 150
"""Where a kernel has d features: d, or samples a feature, up to and from which interior points in their space are as
fast as working sets at C = 1 already (13 sets, n = 570 to 20,000); at C = 100 and more by ten to a thousand times."""
SYSTEMS = 20
"""Working sets of one new sample that cost as much as interior points, a feature: at d = 180, 28 sets of 128."""
LEAST_SETS = 20
WIDE = ((0.43, 0.45), (0.25, 0.75))
"""Once working sets of the squared hinge have offered seats to so many samples, in n: the share of samples inside the
margin from which pair steps on stored values are faster. It falls while the sets work, and before `SEEN` of them says
little."""
SEEN = 5
GENTLE = 60.0
"""And that only where the kernel's diagonal is no more than so many times the ridge 1 / C: pair steps grow in number
with C, sets hardly do. (22 sets of n = 6,000 and 10 of 12,000, sets / pairs in the geometric mean: C = 1 1.2, 10 .97,
with this rule 1.05, .95; C = 100 .79, C = 1,000 .57.)"""
PAID = 3.0
"""Kernel evaluations, in n^2, after which working sets go on with all values stored."""
CROWDED = 0.6
"""Share of the set that support between its bounds may fill before the hinge takes larger sets: where all of it fits
in, few sets are left to solve; where it is little, smaller ones cost half."""
LARGER = 1024
"""Samples of a larger set; 2,048 were slower on all sets tried."""
LONG = 2.5
"""Seats that sets of the squared hinge have offered, in n, when larger ones take their place, of as many new samples:
these compute a third of the kernel rows where C is large (n = 6,000, C = 1,000: 23,000 for 88,000), in longer blocks.
(a9a, n = 30,000, C = 100: 33 s for 49.)"""
NEAR = 1000
"""A gap within so many times of the tolerance is closed by the sets that have come there sooner than by larger ones."""
FRESH = 128
"""New samples a step of the hinge's sets: 256 computed a third more kernel rows, and took a tenth longer in the
geometric mean of nine sets. Larger sets, which find most rows in their cache, take three times as many."""
CACHE = 2**30
"""Bytes of kernel rows that larger sets keep at the most."""
MANY = 1000
"""Working sets after which something else is tried, but for large n: there no fewer than seat all `ROUNDS` times. (The
hinge on a9a, n = 30,000, C = 100: 515 sets, 13 s; pair steps from the 300th on took 87. The squared hinge at C = 1,000
takes up to 395 at n = 6,000.)"""
ROUNDS = 4
FEW, FEW_SETS = 4, 50
"""Of samples that fill no more than `FEW` sets, sets after which pair steps and their polish are sooner there: linear
kernels at C = 1e5 took three to seven times as long with 300."""


def first_choice(problem: Problem, tol: Any) -> Solver:
    """The solver to begin with; under tracing the only one.

    Raises:
        InputError: Where none is known.
    """
    if problem.kind == "squared hinge":
        if problem.free_bias or problem.gram.feature_rows is not None:
            return Newton(tol=tol)
        if problem.n <= SMALL:
            return FrankWolfe(tol=tol)
        return WorkingSet(tol=tol) if _storable(problem) else WorkingSet(tol=tol, size=LARGER, fresh=LARGER // 2)
    if problem.kind == "box":
        if systems_pay(problem):
            return InteriorPoint(tol=tol)
        return SMO(tol=tol) if problem.n <= ONE_SET else WorkingSet(tol=tol, fresh=FRESH)
    if problem.kind == "slack":
        hinge = cast(SlackProblem, problem).hinge(1.0)
        few = problem.n <= SMALL and not systems_pay(hinge)  # sets take longer to compile than pair steps to end
        return EquivalentHinge(SMO() if few else first_choice(hinge, tol), tol=tol)
    if problem.kind == "ball":
        return FrankWolfe(tol=tol)
    raise _unknown(problem)


def systems_pay(problem: Problem) -> bool:
    """Whether a box problem has so few features that interior points in their space are its solver, at any C.

    Rounding is no reason against: systems are solved in float64, and at large C a w beside the dual point is certified.
    """
    x = few_features(problem)
    return x is not None and problem.n > ONE_SET and x.shape[1] <= max(FEATURES, problem.n / SAMPLES_EACH)


def exact_solver(problem: Problem, tol: Any) -> Solver:
    """The solver of a path, a fold or a grid of C: one that certifies this kind of problem to any gap.

    Raises:
        InputError: Where none is known.
    """
    if problem.kind == "squared hinge":
        return Newton(tol=tol) if problem.free_bias else FrankWolfe(variant="smo", tol=tol)
    if problem.kind == "box":
        return InteriorPoint(tol=tol) if systems_pay(problem) else SMO(tol=tol)
    if problem.kind == "slack":
        return EquivalentHinge(exact_solver(cast(SlackProblem, problem).hinge(1.0), tol), tol=tol)
    raise _unknown(problem)


def certain_solver(problem: Problem) -> Solver:
    """What solves a problem to where its support is known: Newton near the floor of the dtype; SMO meets bounds sooner.

    Raises:
        InputError: Where none is known.
    """
    narrow = problem.dtype == jnp.float32
    if problem.kind == "squared hinge":
        return Newton(tol=1e-5 if narrow else 1e-12)
    if problem.kind == "box":
        return SMO(tol=1e-4 if narrow else 1e-9)
    raise _unknown(problem)


def second_choice(problem: Problem, solver: Solver, state: Any, excess: Any, ended: bool) -> Solver | None:
    """The solver to hand the point over to, from what a state shows; None: go on as it is. For concrete values.

    Args:
        problem: The problem.
        solver: What has been at it.
        state: Its state.
        excess: Its gap over its tolerance.
        ended: Whether it ended without a proof.
    """
    if isinstance(solver, EquivalentHinge):
        hinge = cast(SlackProblem, problem).hinge(state.search.C)
        following = second_choice(hinge, solver.solver, state.inner, excess, ended)
        return None if following is None else dataclasses.replace(solver, solver=following)
    if not isinstance(solver, WorkingSet):
        return None
    problem, steps = cast(Restrictable, problem), int(state.counters.steps)
    many = MANY if problem.n > FEW * solver.size else FEW_SETS
    many = max(many, ROUNDS * problem.n // solver.fresh)
    if problem.kind == "squared hinge":
        if ended or steps >= many or (_storable(problem) and _too_wide(problem, solver, state, steps)):
            return FrankWolfe(tol=solver.tol)
        if solver.size < LARGER and steps * solver.fresh >= LONG * problem.n and free(problem, state) > solver.size:
            return dataclasses.replace(solver, size=LARGER)
    elif few_features(problem) is not None:
        if ended or steps >= max(SYSTEMS * few_features(problem).shape[1] // solver.fresh, LEAST_SETS):
            return InteriorPoint(tol=solver.tol)
    elif ended or steps >= many:
        return SMO(tol=solver.tol)
    elif solver.size < LARGER and float(excess) > NEAR and free(problem, state) > CROWDED * solver.size:
        return WorkingSet(tol=solver.tol, size=LARGER, fresh=3 * FRESH, cache=_rows_to_keep(problem))
    paid = state.counters.total > PAID * problem.n**2
    if paid and not solver.store and _storable(problem):
        return dataclasses.replace(solver, store=True)
    return None


def _too_wide(problem: Restrictable, solver: WorkingSet, state: Any, steps: int) -> bool:
    """Whether pair steps on stored values would be sooner there than sets of the squared hinge, after so many."""
    offered = steps * solver.fresh / problem.n
    most = next((share for seats, share in WIDE if offered >= seats), 1.0)
    if steps < SEEN or most == 1:
        return False
    present = np.asarray(problem.present)
    values, ridge = np.asarray(problem.gram.diag())[present] + float(problem.offset), np.asarray(problem.ridge)[present]
    return values.mean() <= GENTLE * ridge.mean() and width(problem, state) > most


def _rows_to_keep(problem: Problem) -> int:
    """Kernel rows of larger sets: a quarter of all, in a power of two, as memory permits."""
    wanted = 2 ** math.ceil(math.log2(max(problem.n / 4, 2 * LARGER)))
    permitted = min(CACHE, problem.gram.memory or CACHE) // (problem.n * jnp.dtype(problem.gram.dtype).itemsize)
    return max(min(wanted, permitted), LARGER)


def takes_state(solver: Solver, following: Solver | None) -> bool:
    """Whether the next solver goes on from the state: larger sets, which keep rows and sums."""
    return isinstance(solver, WorkingSet) and isinstance(following, WorkingSet) and solver.store == following.store


def width(problem: Restrictable, state: Any) -> float:
    """Share of the samples that are inside the margin: what the support is growing to."""
    present = np.asarray(problem.present)
    return float((np.asarray(state.s) < np.asarray(problem.targets))[present].mean())


def free(problem: Restrictable, state: Any) -> int:
    """How many dual variables are between their bounds."""
    a = np.asarray(state.a)
    return int(((a > 0) & (a < np.asarray(problem.upper))).sum())


def _unknown(problem: Problem) -> InputError:
    return InputError(f"solver is None: a {type(problem).__name__} has no solver of its own; name one.")


def _storable(problem: Problem) -> bool:
    """Whether all kernel values may be stored, or are."""
    return problem.gram.stored or problem.gram.may_store
