"""Choose the solver of a problem if the user names none, and change it during the fit.

Measured (`benchmarks/working_sets.py`): if few samples are support vectors, working sets compute a tenth of the kernel
matrix and are fastest; for the hinge also if many are. The support of the squared hinge is everything inside the
margin: if that is wide, pair steps on stored kernel values are faster. Few features: systems in their space.
"""

import dataclasses
import math
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxsvm.errors import InputError
from jaxsvm.loop.measured import MEASURED
from jaxsvm.problems.contract import Problem, Restrictable
from jaxsvm.problems.slack import SlackProblem
from jaxsvm.problems.squared_hinge import SquaredHingeProblem
from jaxsvm.solvers.around.equivalent_hinge import EquivalentHinge
from jaxsvm.solvers.box.interior_point import InteriorPoint, affordable, few_features
from jaxsvm.solvers.box.sequential_minimal_optimization import SMO
from jaxsvm.solvers.contract import HandOver, Solver, with_max_steps
from jaxsvm.solvers.simplex.feature_newton import FeatureNewton, features
from jaxsvm.solvers.simplex.frank_wolfe import FrankWolfe
from jaxsvm.solvers.simplex.newton import Newton
from jaxsvm.solvers.working_set import WorkingSet


def first_choice(problem: Problem, tol: Any, *, sets: bool = True, traced: bool = False) -> Solver:
    """Return the solver to begin with; `sets` permits working sets.

    Under tracing (`traced`) no other one takes over. A linear kernel has fewer features than samples, or not many more:
    pair steps may then take very long at large C, and coefficients are not unique. Interior points end after 15 to 40
    steps at any C.
    """
    small = problem.n <= MEASURED.samples_of_a_small_problem
    if problem.kind == "squared hinge":
        x, dense = problem.gram.design, problem.gram.feature_rows is not None
        if problem.free_bias or dense or (x is not None and x.shape[1] < problem.n):
            return Newton(tol=tol)
        if not sets:
            return FrankWolfe(tol=tol)
        if small:
            return FrankWolfe(tol=tol, start="uniform")  # a start from a random draw is a third of the program
        size = MEASURED.samples_of_a_larger_set
        return WorkingSet(tol=tol) if _storable(problem) else WorkingSet(tol=tol, size=size, fresh=size // 2)
    if problem.kind == "box":
        if systems_pay(problem) or traced and _systems_fit(problem):
            return InteriorPoint(tol=tol)
        pairs = not sets or problem.n <= MEASURED.samples_of_one_working_set
        return SMO(tol=tol) if pairs else WorkingSet(tol=tol, fresh=MEASURED.new_samples_of_a_set)
    if isinstance(problem, SlackProblem):
        hinge = problem.hinge(1.0)
        # Working sets take longer to compile than pair steps take to solve.
        pairs = small and not traced and sets and not systems_pay(hinge)
        return EquivalentHinge(SMO() if pairs else first_choice(hinge, tol, sets=sets, traced=traced), tol=tol)
    if problem.kind in (others := {"ball": FrankWolfe, "nu": SMO}):
        return others[problem.kind](tol=tol)
    raise InputError(f"solver is None: a {type(problem).__name__} has no solver of its own; name one.")


def _systems_fit(problem: Problem) -> bool:
    small = affordable(problem) and problem.n <= MEASURED.samples_of_a_traced_system
    return problem.gram.feature_rows is not None and (small or few_features(problem) is not None)


def before_features(problem: Problem, solver: Solver) -> Solver:
    """Return the solver of a squared hinge at a large C with a few steps only: then its kernel's features are tried."""
    gram = problem.gram
    fits = problem.kind == "squared hinge" and not problem.free_bias and gram.design is None and gram.spread is None
    large = fits and _storable(problem) and _curvature(cast(Restrictable, problem)) > MEASURED.curvature_of_features
    return with_max_steps(solver, _few_steps(solver)) if large else solver


def _few_steps(solver: Solver) -> int:
    return MEASURED.chunks_before_features * solver.check_every


def systems_pay(problem: Problem) -> bool:
    """Return whether interior points solve a box problem fastest at any C: its kernel has few features.

    Rounding does not matter: systems are solved in float64, and at large C a corrected w is certified.
    """
    x, few = few_features(problem), problem.n / MEASURED.samples_per_feature_of_a_hinge
    several_sets = problem.n > MEASURED.samples_of_one_working_set
    return x is not None and several_sets and x.shape[1] <= max(MEASURED.features_always_few, few)


def exact_solver(problem: Problem, tol: Any) -> Solver:
    """Return the solver of a path, a fold or a grid of C: one that certifies this kind of problem to any gap."""
    return first_choice(problem, tol, sets=False)


def second_choice(problem: Problem, solver: Solver, state: Any, excess: Any, ended: bool) -> HandOver | None:
    """Return how a fit goes on with another solver from a concrete state; None to keep the present one.

    `excess` is its gap over its tolerance; `ended` says whether it ended without a proof.
    """
    if isinstance(solver, EquivalentHinge):
        hinge = cast(SlackProblem, problem).hinge(state.search.C)
        other = second_choice(hinge, solver.solver, state.inner, excess, ended)
        return None if other is None else HandOver(dataclasses.replace(solver, solver=other.solver))
    if isinstance(solver, FeatureNewton):
        return HandOver(first_choice(problem, solver.tol)) if ended else None
    if ended and isinstance(problem, SquaredHingeProblem) and int(solver.max_steps) == _few_steps(solver):
        Z = features(problem, float(np.asarray(problem.C) * np.asarray(problem.weights).max()), jax.random.key(0))
        more = with_max_steps(solver, type(solver).max_steps)
        return HandOver(more if Z is None else FeatureNewton(Z, solver.tol))
    if not isinstance(solver, WorkingSet):
        return None
    problem, steps = cast(Restrictable, problem), int(state.counters.steps)
    # For large n, wait until every sample may have been in a set four times.
    enough = MEASURED.sets_of_a_problem if problem.n > 4 * solver.size else MEASURED.sets_of_a_small_problem
    exhausted = ended or steps >= max(enough, 4 * problem.n // solver.fresh)
    larger = MEASURED.samples_of_a_larger_set
    if problem.kind == "squared hinge":
        if exhausted or (_storable(problem) and _too_wide(problem, solver, state, steps)):
            return HandOver(FrankWolfe(tol=solver.tol))
        crowded = steps * solver.fresh >= MEASURED.places_before_larger_sets * problem.n
        if solver.size < larger and crowded and free(problem, state) > solver.size:
            return HandOver(dataclasses.replace(solver, size=larger), takes_state=True)  # which keeps rows and sums
    elif (x := few_features(problem)) is not None:
        sets = MEASURED.sets_of_interior_points
        if ended or steps >= max(sets * x.shape[1] // solver.fresh, sets):
            return HandOver(InteriorPoint(tol=solver.tol))
    elif exhausted:
        return HandOver(SMO(tol=solver.tol))
    elif (
        solver.size < larger
        and float(excess) > MEASURED.excess_of_larger_sets
        and free(problem, state) > MEASURED.crowded_share * solver.size
    ):
        more = 3 * MEASURED.new_samples_of_a_set  # larger sets find most rows in their cache
        sets = WorkingSet(tol=solver.tol, size=larger, fresh=more, cache=_rows_to_keep(problem))
        return HandOver(sets, takes_state=not solver.store)
    pays = state.counters.total > MEASURED.passes_before_storing * problem.n**2 and _storable(problem)
    return HandOver(dataclasses.replace(solver, store=True)) if pays and not solver.store else None


def _too_wide(problem: Restrictable, solver: WorkingSet, state: Any, steps: int) -> bool:
    """Return whether pair steps on stored values are faster than working sets of the squared hinge after these steps.

    They are not if the kernel's diagonal exceeds the ridge 1 / C by far: pair steps grow in number with C.
    """
    offered = steps * solver.fresh / problem.n
    widest = next((share for places, share in MEASURED.wide_supports if offered >= places), 1.0)
    if steps < MEASURED.sets_before_a_width or widest >= 1 or _curvature(problem) > MEASURED.curvature_of_sets:
        return False
    inside = np.asarray(state.s) < np.asarray(problem.targets)  # the margin: support vectors in the end
    return float(inside[np.asarray(problem.present)].mean()) > widest


def _curvature(problem: Restrictable) -> float:
    present = np.asarray(problem.present)
    values, ridge = np.asarray(problem.gram.diag())[present] + float(problem.offset), np.asarray(problem.ridge)[present]
    return float(values.mean() / ridge.mean())


def _rows_to_keep(problem: Problem) -> int:
    """Return the kernel rows that larger sets keep: n / 4 as a power of two, within the memory."""
    larger, limit = MEASURED.samples_of_a_larger_set, MEASURED.bytes_of_rows
    wanted = 2 ** math.ceil(math.log2(max(problem.n / 4, 2 * larger)))
    permitted = min(limit, problem.gram.memory or limit) // (problem.n * jnp.dtype(problem.gram.dtype).itemsize)
    return max(min(wanted, permitted), larger)


def free(problem: Restrictable, state: Any) -> int:
    """Return the number of dual variables between their bounds."""
    a = np.asarray(state.a)
    return int(((a > 0) & (a < np.asarray(problem.upper))).sum())


def _storable(problem: Problem) -> bool:
    return problem.gram.stored or problem.gram.may_store
