"""Solve many values of C at once, coarse to fine, and certify each.

A `Grid` is one problem (a fold, a class) at increasing values of C. Its *anchors*, about a factor 2 apart, are solved
first. A value between two solved ones starts from the best dual point in their span (`combination`), which needs no
product with the kernel matrix. Its gap is 1e-5 to 6e-4 between anchors: most of 64 values need their certificate alone.

Anchors are solved in chains: by Newton in the space of features where some hundred reproduce the kernel matrix
(`FeatureNewton`), else by pair steps on candidates: a working set of the samples that may be support, whose kernel
matrix is stored. Every result is certified on the whole problem, from scratch, many values to one product with the
kernel matrix.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxsvm.gram.signed import SignedGram
from jaxsvm.loop.bursts import certified_by_sums
from jaxsvm.loop.driver import QUIET, drive
from jaxsvm.loop.interruption import Interruption, unless, watching
from jaxsvm.loop.measured import MEASURED
from jaxsvm.numerics.precision import in_double, widened
from jaxsvm.path.anchors import CoarseToFine, Grid, GridPoint, is_far, solve_in_chains, stepper
from jaxsvm.path.chains import in_order, interrupted, stacked
from jaxsvm.problems.certificates.definiteness import is_indefinite
from jaxsvm.problems.squared_hinge import SquaredHingeProblem, reciprocals
from jaxsvm.results.fit import Answer, Counters, Fit, Status, bit_of, limbs_of
from jaxsvm.results.judge import concluded, in_dtype
from jaxsvm.runtime.arrays import on_device
from jaxsvm.runtime.programs import Program, compiled_ahead
from jaxsvm.solvers.simplex.frank_wolfe import FrankWolfe
from jaxsvm.solvers.start import Start


def solve_grids(
    grids: list[Grid], solver: CoarseToFine, key: Array, report: Callable[[int, int, Fit], Any] | None = None,
    stop: Interruption | None = None,
) -> list[Fit]:  # fmt: skip
    """Solve grids of the same values of C on one Gram operator; return their fits, an axis for the places first.

    After Ctrl-C the points so far are certified, which takes a few products; values that were not reached are
    INTERRUPTED, without a certificate, at the nearest point. `report` is called with grid, place and fit of each value.
    """
    with watching(stop) as stop:
        wait = compiled_ahead(lambda: _last_call(grids, solver), grids[0].problems[0], _width(grids, solver))
        try:
            solve_in_chains(grids, solver, key, stop)
        except KeyboardInterrupt:  # raised by a handler of the user's own
            stop.note()
        wait()
        return _certified(grids, solver, key, report, stop)


def _width(grids: list[Grid], solver: CoarseToFine) -> int:
    return min(solver.width, sum(len(grid.logs) for grid in grids))


def _last_call(grids: list[Grid], solver: CoarseToFine) -> list[tuple[Any, ...]]:
    """Return the programs that certify all values, with the shapes of their arguments."""
    whole, width = grids[0].problems[0], _width(grids, solver)
    none: Any = np.zeros(0)
    vector, stacked = (jax.ShapeDtypeStruct(shape, whole.dtype) for shape in ((whole.n,), (whole.n, width)))
    Cs, counters = np.zeros((width,), whole.dtype), _counters([GridPoint(none, none, 0, 0)] * width, solver)
    last = (whole, stacked, stacked, Cs, stacked, stacked, counters, solver.tol, np.asarray(True))
    calls: list[tuple[Any, ...]] = [(_finish, *last)]
    if _too_long(whole):
        calls.append((_finish_carried, whole, vector, vector, 0, _taken(counters, 0), solver.tol))
    return calls


def _certified(grids: list[Grid], solver: CoarseToFine, key: Array, report: Any, stop: Interruption) -> list[Fit]:
    """Certify every point on the whole problem; solve those that are not within `tol` further, and report all."""
    whole = grids[0].problems[0]
    every = [(number, place) for number, grid in enumerate(grids) for place in range(len(grid.logs))]
    tasks = [(number, place) for number, place in every if not stop.seen or place in grids[number].points]
    definite = whole.gram.definite or not bool(is_indefinite(whole))
    groups = _by_products(grids, tasks, solver, stop, definite)
    if groups is None:
        reached = [(number, place) for number, place in tasks if place in grids[number].points]
        tasks = [(number, place) for number, place in reached if grids[number].points[place].carried is not None]
        groups = []
        for number, place in tasks:
            point = grids[number].points[place]
            counters = _taken(_counters([point], solver), 0)
            problem = grids[number].problems[place]
            groups.append(stacked([_finish_carried(problem, point.x, point.f, point.carried, counters, solver.tol)]))
    if not tasks:
        return [in_order({}, np.exp(grid.logs), grid.problems[0]) for grid in grids]
    fits = jax.tree.map(lambda *leaves: np.concatenate(leaves)[: len(tasks)], *groups)
    if not definite:
        return [_of_grid(fits, tasks, number, grid) for number, grid in enumerate(grids)]
    ended: dict[int, int] = {}
    for lane in np.flatnonzero(fits.status.code != Status.CONVERGED).tolist():  # in increasing order of C
        number, place = tasks[lane]
        if number in ended and not stop.seen:
            fits.status.code[lane] = ended[number]
            continue
        fit = _finished(grids[number], place, solver, key, _taken(fits, lane), stop)
        if is_far(fit, solver.tol):
            ended[number] = int(fit.status)
        jax.tree.map(lambda leaf, new, lane=lane: leaf.__setitem__(lane, new), fits, fit)
    try:
        if report is not None:
            for lane, task in enumerate(tasks):
                report(*task, jax.tree.map(jnp.asarray, _taken(fits, lane)))
    except KeyboardInterrupt:  # all values are solved by now: only the reports end
        stop.note()
    return [_of_grid(fits, tasks, number, grid) for number, grid in enumerate(grids)]


def _by_products(
    grids: list[Grid], tasks: list[tuple[int, int]], solver: CoarseToFine, stop: Interruption, definite: bool
) -> list[Fit] | None:
    """Certify the points of all tasks, `width` of them to a product; None if a stopped call has no time for it."""
    until = (lambda: stop.seen) if _too_long(grids[0].problems[0]) else None
    if until is not None and until():
        return None
    width, groups = _width(grids, solver), []
    for first in range(0, len(tasks), width):
        group = [tasks[min(first + lane, len(tasks) - 1)] for lane in range(width)]  # the last one fills up
        problems = [grids[number].problems[place] for number, place in group]
        points = [_nearest(grids[number], place) for number, place in group]
        # Stacked on the host: a program of L arguments compiles long.
        y, weight = (np.stack([getattr(each, name) for each in problems], axis=1) for name in ("y", "weights"))
        x, f = (np.stack([getattr(each, name) for each in points], axis=1) for name in ("x", "f"))
        Cs = np.stack([np.asarray(problem.C) for problem in problems])
        ending = (_counters(points, solver), solver.tol, np.asarray(definite))
        arguments = (grids[0].problems[0], y, weight, Cs, x, f, *ending)
        fits = _finish(*arguments) if until is None else unless(until, _finish, *arguments)
        if fits is None:
            return None
        groups.append(fits)
    return groups


def _finished(grid: Grid, place: int, solver: CoarseToFine, key: Array, fit: Fit, stop: Interruption) -> Fit:
    """Solve a fit that is not within `tol` further, on the whole problem; return it as it is after Ctrl-C."""
    if stop.seen:
        return dataclasses.replace(fit, status=interrupted())
    problem = grid.problems[place]
    steps = stepper(grid, place, problem.n, solver.tol)
    fit = drive(problem, steps, key, Start.of(fit, problem), stop=stop, options=QUIET)
    if isinstance(steps, FrankWolfe) or stop.seen or int(fit.status) == Status.CONVERGED:
        return fit
    return drive(problem, FrankWolfe(tol=solver.tol), key, Start.of(fit, problem), stop=stop, options=QUIET)


def _of_grid(fits: Fit, tasks: list[tuple[int, int]], number: int, grid: Grid) -> Fit:
    lanes = {place: lane for lane, (other, place) in enumerate(tasks) if other == number}
    if len(lanes) == len(grid.logs):
        return on_device(jax.tree.map(lambda leaf: leaf[lanes[0] : lanes[0] + len(lanes)], fits))
    return in_order({place: _taken(fits, lane) for place, lane in lanes.items()}, np.exp(grid.logs), grid.problems[0])


def _taken(fits: Any, lane: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[lane], fits)


def _too_long(whole: SquaredHingeProblem) -> bool:
    return whole.n >= MEASURED.samples_of_a_last_product and whole.gram.definite


@Program
def _finish_carried(problem: SquaredHingeProblem, x: Array, f: Array, steps: Any, counters: Counters, tol: Any) -> Fit:
    answer = certified_by_sums(problem, x, f + problem.ridge * x, steps)
    return concluded(answer, tol, counters, definite=problem.gram.definite)


def _nearest(grid: Grid, place: int) -> GridPoint:
    nearest = min(grid.points, key=lambda other: abs(other - place), default=None)
    if nearest is None:
        equal = grid.problems[0].present.astype(grid.problems[0].dtype)
        return GridPoint(equal, jnp.zeros_like(equal), 0, 0)
    return grid.points[nearest]


def _counters(points: list[GridPoint], solver: CoarseToFine) -> Counters:
    steps, none = np.asarray([point.steps for point in points], np.int32), np.zeros(len(points), np.int32)
    limbs, kind = limbs_of([point.evaluations for point in points]), none + bit_of(solver)
    parts: Any = steps, steps, none, none, none, limbs, kind
    return on_device(Counters(*parts))


@Program
def _finish(
    template: SquaredHingeProblem, y: Array, weight: Array, Cs: Array, x: Array, f: Array, counters: Counters, tol: Any,
    definite: Array,
) -> Fit:  # fmt: skip
    """Certify dual points `x (n, L)` with margins f from scratch, lanes first."""
    C = weight * Cs[None, :]
    x, ridge = jnp.where(C > 0, jnp.maximum(x, 0), 0), reciprocals(C)
    # To about primal scale: a dual point may have any, but the decision function that is returned has this one.
    square = (x * (f + ridge * x)).sum(axis=0)
    scale = jnp.where(square > 0, x.sum(axis=0) / jnp.where(square > 0, square, 1), 1)
    # A scale that is off moves the primal to second order. A factor of a few roundings rounds all numbers the same way,
    # which moves it to first order.
    x = jnp.where(jnp.abs(scale - 1) > 64 * jnp.finfo(x.dtype).eps, scale, 1)[None, :] * x
    certified = in_double(_certified_lanes)(template, y, C, x)
    return jax.vmap(lambda answer, counters: concluded(answer, tol, counters, definite=definite))(certified, counters)


def _certified_lanes(template: SquaredHingeProblem, y: Array, C: Array, x: Array) -> Answer:
    """Certify points in twice the precision; the products of all lanes are one."""
    wide = widened(template)
    y, C, x = (column.astype(wide.dtype) for column in (y, C, x))
    margins = SignedGram(wide.gram, y, wide.offset).matvec(x)

    def one(y: Array, C: Array, beta: Array, margins: Array) -> Answer:
        problem = dataclasses.replace(wide, y=y, C=jnp.ones_like(wide.C), weight=C)
        return problem.certified(beta, margins + problem.ridge * beta, template.dtype)

    certified = jax.vmap(one, in_axes=1)(y, C, x, margins)
    return in_dtype(certified, template.dtype)
