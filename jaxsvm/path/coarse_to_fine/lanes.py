"""Solve easy values of C in lanes of the block Newton method."""

from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from jaxsvm.gram.contract import Gram
from jaxsvm.loop.interruption import Interruption, unless
from jaxsvm.path.coarse_to_fine.block_newton import BlockNewton, newton_round, preconditioner
from jaxsvm.path.coarse_to_fine.grid import Grid, Lanes, Point, anchors, assess, combination, middles
from jaxsvm.runtime.programs import Program

Task = tuple[int, int, tuple[int, ...]]


def solve_by_lanes(grids: list[Grid], solver: BlockNewton, key: Array, stop: Interruption) -> None:
    """Solve the easy values of all grids, until `stop`; values that need more than `max_rounds` are left unsolved."""
    waiting = _easy_tasks(grids)
    if not waiting:
        return
    template = grids[0].problems[0]
    gram, offset = template.gram, template.offset
    P = _preconditioner(gram, offset, solver.rank, key)
    width = min(solver.lanes, 2 ** int(np.ceil(np.log2(len(waiting)))))
    empty = jnp.zeros((template.n, width), template.dtype)
    lanes = Lanes(jnp.ones((template.n, width), template.dtype), empty, empty, empty)
    running: list[Task | None] = [None] * width
    rounds, products = np.zeros(width, int), np.zeros(width, int)
    failed: set[tuple[int, int]] = set()
    while not stop.seen:
        combined = False
        for lane in [lane for lane in range(width) if running[lane] is None]:
            task = running[lane] = _next_ready(waiting, grids, failed)
            if task is not None:
                lanes = _load(lanes, lane, *_columns(grids[task[0]], *task[1:]))
                rounds[lane], products[lane] = 0, 0
                combined = combined or bool(task[2])
        if not any(running):
            return
        if not combined:  # it may need no round
            moved = unless(lambda: stop.seen, _round, gram, offset, P, lanes, solver)
            if moved is None:
                return
            c, f, count = moved
            lanes = lanes._replace(c=c, f=f)
            rounds, products = rounds + 1, products + int(count)
        x, f, gaps = assess(template, lanes)
        gaps = np.asarray(gaps)
        for lane, task in enumerate(running):
            if task is None:
                continue
            number, place, _ = task
            if gaps[lane] <= solver.inner_tol:
                evaluations = template.n**2 * int(products[lane] + 1)
                grids[number].points[place] = Point(x[:, lane], f[:, lane], int(rounds[lane]), evaluations)
            elif rounds[lane] >= solver.max_rounds:
                failed.add((number, place))
            else:
                continue
            running[lane] = None


def _easy_tasks(grids: list[Grid]) -> list[Task]:
    """Return (grid, place, parents) of all easy values: anchors first, then level by level."""
    tasks = []
    for number, grid in enumerate(grids):
        places = anchors(grid.logs[: grid.easy])
        order = [(place, ()) for place in places]
        order += [(middle, (a, b)) for level in middles(places) for middle, a, b in level]
        tasks += [(rank, number, place, parents) for rank, (place, parents) in enumerate(order)]
    return [task[1:] for task in sorted(tasks, key=lambda task: task[:2])]


def _next_ready(waiting: list[Task], grids: list[Grid], failed: set[tuple[int, int]]) -> Task | None:
    """Take the first task whose parents are solved; a task with a failed parent fails too."""
    for task in list(waiting):
        number, place, parents = task
        if any((number, parent) in failed for parent in parents):
            failed.add((number, place))
            waiting.remove(task)
        elif all(parent in grids[number].points for parent in parents):
            waiting.remove(task)
            return task
    return None


def _columns(grid: Grid, place: int, parents: tuple[int, ...]) -> tuple[Array, Array, Array, Array]:
    """Return the problem of a place, and its start: 0, or the best combination of its parents."""
    problem = grid.problems[place]
    if parents:
        a, b = (grid.points[parent] for parent in parents)
        x, f = combination(problem.ridge, a[:2], b[:2], 1.0)
    else:
        x = f = jnp.zeros((problem.n,), problem.dtype)
    return problem.y, problem.ridge, x, f


_preconditioner = Program(preconditioner, static_argnums=(1, 2))


@partial(Program, static_argnums=1)
def _round(gram: Gram, offset: float, P: Any, lanes: Lanes, solver: BlockNewton) -> tuple[Array, Array, Int[Array, ""]]:
    return newton_round(gram, offset, P, lanes.y, lanes.ridge, lanes.c, lanes.f, solver)


@Program
def _load(lanes: Lanes, lane: Any, *columns: Array) -> Lanes:
    return Lanes(*(whole.at[:, lane].set(column) for whole, column in zip(lanes, columns, strict=True)))
