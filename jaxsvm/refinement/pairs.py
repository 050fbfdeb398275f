"""Hard values of C: chains of pair steps on cut-out problems, anchors first, what lies between beside them."""

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxsvm.interruption import Interruption
from jaxsvm.loop import drive
from jaxsvm.problem import SquaredHingeProblem
from jaxsvm.refinement.cut import Cut, exchanged, leaves, smaller
from jaxsvm.refinement.ladder import (
    RESERVE,
    Ladder,
    Lanes,
    Point,
    anchors,
    assess,
    backend,
    mean_point,
    middles,
    restricted,
)
from jaxsvm.result import Status
from jaxsvm.solvers.block_newton import BlockNewton, product
from jaxsvm.solvers.frank_wolfe import FrankWolfe

RESERVE_OF_PARENTS = 0.6
"""Share of `tol` that values above `FREE` are held to: the gap of a mean is at least the mean of the gaps."""

RESERVE_OF_MEANS = 0.95
"""The same for the mean of two points, which takes no steps where it is within."""

FARTHEST = 2.0
"""How far beyond two points their line is followed, in units of their distance."""


def climb_by_pairs(ladders: list[Ladder], solver: BlockNewton, key: Array, stop: Interruption) -> None:
    """Solve what the lanes left: anchors in increasing order, and beside them, in threads, what lies between.

    Threads and not lanes on a CPU: a pair step keeps one core busy, whatever its width, and JAX lets go of Python while
    it runs. What starts from what does not depend on the threads, so that a call repeats to the bit.

    Ctrl-C comes to the main thread alone: the others look at `stop`, as each of their drivers does.
    """
    with ThreadPoolExecutor(_threads()) as pool:
        jobs: list[Future[None]] = []
        try:
            for ladder in ladders:
                _climb_anchors(ladder, solver, key, pool, stop, jobs)
            for job in jobs:
                job.result()
        except KeyboardInterrupt:
            stop.note()
        except BaseException:
            stop.seen = True  # of use to nobody any more: the others end
            raise


def _threads() -> int:
    return len(os.sched_getaffinity(0)) if backend() == "cpu" and hasattr(os, "sched_getaffinity") else 1


def _with_settings(function: Callable[..., None]) -> Callable[..., None]:
    """The function with this thread's settings of JAX, which other threads do not see."""
    config: Any = jax.config
    x64, device, precision = config.jax_enable_x64, config.jax_default_device, config.jax_default_matmul_precision

    def call(*arguments: Any) -> None:
        with jax.enable_x64(x64), jax.default_device(device), jax.default_matmul_precision(precision):
            function(*arguments)

    return call


def _climb_anchors(
    ladder: Ladder,
    solver: BlockNewton,
    key: Array,
    pool: ThreadPoolExecutor,
    stop: Interruption,
    jobs: list[Future[None]],
) -> None:
    """Solve the anchors of a ladder, on cuts that shrink where that is worth the copy; jobs for what lies between."""
    left = [place for place in range(len(ladder.logs)) if place not in ladder.points]
    if not left:
        return
    solved = sorted(place for place in ladder.points if place < left[0])
    chain = [*solved[-1:], *left]
    whole, fill = ladder.problems[0], _with_settings(_fill)
    cut = Cut(np.arange(whole.n), whole.gram)
    for place in (chain[index] for index in anchors(ladder.logs[chain])):
        if stop.seen:
            return
        if solved:
            cut = smaller(ladder, solved[-1], cut)
        start = _ahead(ladder, solved, place)
        while place not in ladder.points or leaves(whole, ladder.points[place], cut):
            if place in ladder.points:
                start = ladder.points[place][:2]
                cut = exchanged(ladder, ladder.points.pop(place), cut)
            point = None if stop.seen else _solved(ladder, place, start, cut, solver, key, stop)
            if point is None:
                return
            problem = ladder.problems[place]
            x, f = _margins(problem.gram, problem.offset, problem.y, point.x)
            ladder.points[place] = point._replace(x=x, f=f)
        between = [other for other in chain if solved and solved[-1] <= other <= place]
        if len(between) > 2:
            jobs.append(pool.submit(fill, ladder, between, cut, solver, key, stop))
        if place not in solved:
            solved.append(place)


def _ahead(ladder: Ladder, solved: list[int], place: int) -> tuple[Array, Array] | None:
    """Where an anchor starts: on the line through two solved values below it; None: nowhere."""
    problem = ladder.problems[place]
    if not solved:
        if place >= ladder.uniform:
            return None
        alike = np.asarray(np.asarray(problem.ridge) > 0, problem.dtype)
        return _margins(problem.gram, problem.offset, problem.y, alike)
    x, f = ladder.points[solved[-1]][:2]
    jump = ladder.times[place] - ladder.times[solved[-1]]
    near = [other for other in solved[:-1] if jump <= FARTHEST * (ladder.times[solved[-1]] - ladder.times[other])]
    if not near:
        return x, f
    before = ladder.points[near[-1]]
    ahead, _ = mean_point(before.x, before.f, x, f, ladder.between(near[-1], solved[-1], place))
    return _margins(problem.gram, problem.offset, problem.y, ahead)


def _fill(ladder: Ladder, places: list[int], cut: "Cut", solver: BlockNewton, key: Array, stop: Interruption) -> None:
    """Solve the places between the first and the last, level by level.

    All means of a level are certified on the cut by one product; only those that are not within `tol` take steps.
    """
    samples = jnp.asarray(np.asarray(cut.samples, np.int32))
    for level in middles([0, len(places) - 1]):
        tasks = [(places[middle], places[a], places[b]) for middle, a, b in level]
        for first in range(0, len(tasks), solver.lanes):
            if stop.seen:
                return
            group = tasks[first : first + solver.lanes]
            means = [_between(ladder, *task) for task in group]
            gaps = _gaps_on_cut(ladder, [task[0] for task in group], means, samples, cut, solver)
            for (place, _, _), mean, gap in zip(group, means, gaps, strict=True):
                good = gap <= RESERVE_OF_MEANS * solver.tol
                point = mean if good else _solved(ladder, place, mean[:2], cut, solver, key, stop)
                if point is None:
                    return
                ladder.points[place] = point


def _between(ladder: Ladder, place: int, left: int, right: int) -> Point:
    a, b = ladder.points[left], ladder.points[right]
    x, f = mean_point(a.x, a.f, b.x, b.f, ladder.between(left, right, place))
    return Point(x, f, 0, 0)


def _gaps_on_cut(
    ladder: Ladder, places: list[int], points: list[Point], samples: Array, cut: "Cut", solver: BlockNewton
) -> np.ndarray:
    """Relative gaps of points on the cut, `lanes` of them to a product."""
    fill = [0] * (solver.lanes - len(points)) + list(range(len(points)))  # one compiled width for all
    problems = [ladder.problems[places[lane]] for lane in fill]
    gaps = _assess_points(
        restricted(problems[0], samples, cut.gram),
        samples,
        [problem.y for problem in problems],
        [problem.ridge for problem in problems],
        [points[lane].x for lane in fill],
    )
    return np.asarray(gaps)[solver.lanes - len(points) :]


@jax.jit
def _assess_points(template: SquaredHingeProblem, samples: Array, *columns: Any) -> Float[Array, " L"]:
    y, ridge, x = (jnp.stack([column[samples] for column in part], axis=1) for part in columns)
    return assess(template, Lanes(y, ridge, x, x))[2]


def _solved(
    ladder: Ladder,
    place: int,
    start: tuple[Array, Array] | None,
    cut: Cut,
    solver: BlockNewton,
    key: Array,
    stop: Interruption,
) -> Point | None:
    """The point of a place by pair steps on the cut; margins outside are those of the start. None after Ctrl-C."""
    whole = ladder.problems[place]
    share = RESERVE_OF_PARENTS if place >= len(ladder.logs) - ladder.free else RESERVE
    pairs = FrankWolfe(tol=share * solver.tol)
    if start is None:
        fit = drive(whole, pairs, key, warn=False, stop=stop, provisional=True)
        x, f = _primal(fit.alpha, fit.margins, fit.R)
    else:
        samples = jnp.asarray(np.asarray(cut.samples, np.int32))
        part = whole if len(cut.samples) == whole.n else restricted(whole, samples, cut.gram)
        fit = drive(part, pairs, key, _on_cut(*start, samples), warn=False, stop=stop, provisional=True)
        x, f = _scattered(start[1], samples, fit.alpha, fit.margins, fit.R)
    if int(fit.status) == Status.INTERRUPTED:
        return None
    return Point(x, f, int(fit.steps), fit.kernel_evaluations)


@jax.jit(static_argnums=1)
def _margins(gram: Any, offset: float, y: Array, x: Array) -> tuple[Array, Array]:
    """A point without what is negative, and its margins from scratch."""
    x = jnp.maximum(x, 0)
    return x, product(gram, offset, y[:, None], x[:, None])[:, 0]


@jax.jit
def _on_cut(x: Array, f: Array, samples: Array) -> tuple[Array, Array]:
    """The part of a point on a cut, as weights on the simplex and their margins."""
    x, f = x[samples], f[samples]
    return x / x.sum(), f / x.sum()


@jax.jit
def _primal(alpha: Array, margins: Array, R: Array) -> tuple[Array, Array]:
    return alpha / R, margins / R


@jax.jit
def _scattered(f: Array, samples: Array, alpha: Array, margins: Array, R: Array) -> tuple[Array, Array]:
    """A fit on a cut as a point of the whole problem."""
    x = jnp.zeros_like(f).at[samples].set(alpha / R)
    return x, f.at[samples].set(margins / R)
