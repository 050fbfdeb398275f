"""Easy values of C: lanes of the block Newton method."""

from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from jaxsvm.gram.contract import Gram
from jaxsvm.loop.interruption import Interruption, unless
from jaxsvm.path.coarse_to_fine.block_newton import BlockNewton, newton_round, preconditioner
from jaxsvm.path.coarse_to_fine.grid import RESERVE, Grid, Lanes, Point, anchors, assess, mean_point, middles
from jaxsvm.runtime.programs import Program


def solve_by_lanes(grids: list[Grid], solver: BlockNewton, key: Array, stop: Interruption) -> None:
    """Solve the easy values of all grids, until `stop`; what does not end in `max_rounds` is left to pair steps."""
    waiting = _easy_tasks(grids)
    if not waiting:
        return
    template = grids[0].problems[0]
    n, dtype = template.n, template.dtype
    gram, offset = template.gram, template.offset
    P = _preconditioner(gram, offset, solver.rank, key)
    width = min(solver.lanes, 2 ** int(np.ceil(np.log2(len(waiting)))))
    empty = jnp.zeros((n, width), dtype)
    lanes = Lanes(jnp.ones((n, width), dtype), empty, empty, empty)
    inside: list[Any] = [None] * width
    rounds, products = np.zeros(width, int), np.zeros(width, int)
    failed: set[tuple[int, int]] = set()
    tol = RESERVE * solver.tol
    while not stop.seen:
        loaded = False
        for lane in range(width):
            if inside[lane] is None:
                task = _next_ready(waiting, grids, failed)
                if task is not None:
                    number, place, parents = task
                    c, f = _start(grids[number], place, parents, n, dtype)
                    problem = grids[number].problems[place]
                    lanes = _load(lanes, lane, problem.y, problem.ridge, c, f)
                    inside[lane], rounds[lane], products[lane] = task, 0, 0
                    loaded = loaded or bool(parents)
        if not any(inside):
            return
        if not loaded:
            found = unless(lambda: stop.seen, _round, gram, offset, P, lanes, solver)
            if found is None:
                return
            c, f, took = found
            lanes = lanes._replace(c=c, f=f)
            rounds, products = rounds + 1, products + int(took)
        x, f, gaps = assess(template, lanes)
        gaps = np.asarray(gaps)
        for lane in range(width):
            if inside[lane] is None:
                continue
            number, place, _ = inside[lane]
            if gaps[lane] <= tol:
                evaluations = n * n * int(products[lane] + 1)
                grids[number].points[place] = Point(x[:, lane], f[:, lane], int(rounds[lane]), evaluations)
            elif rounds[lane] >= solver.max_rounds:
                failed.add((number, place))
            else:
                continue
            inside[lane] = None


def _easy_tasks(grids: list[Grid]) -> list[tuple[int, int, tuple[int, ...]]]:
    """(grid, place, parents) of all easy values: anchors first, then level by level."""
    tasks = []
    for number, grid in enumerate(grids):
        places = anchors(grid.logs[: grid.easy])
        order = [(place, ()) for place in places]
        order += [(middle, (a, b)) for level in middles(places) for middle, a, b in level]
        tasks += [(rank, number, place, parents) for rank, (place, parents) in enumerate(order)]
    return [task[1:] for task in sorted(tasks, key=lambda task: task[:2])]


def _next_ready(waiting: list[Any], grids: list[Grid], failed: set[tuple[int, int]]) -> Any:
    """Take the first task whose parents are solved; a task with a failed parent fails with it."""
    for task in list(waiting):
        number, place, parents = task
        if any((number, parent) in failed for parent in parents):
            failed.add((number, place))
            waiting.remove(task)
        elif all(parent in grids[number].points for parent in parents):
            waiting.remove(task)
            return task
    return None


def _start(grid: Grid, place: int, parents: tuple[int, ...], n: int, dtype: Any) -> tuple[Array, Array]:
    if not parents:
        return jnp.zeros((n,), dtype), jnp.zeros((n,), dtype)
    left, right = parents
    a, b = grid.points[left], grid.points[right]
    return mean_point(a.x, a.f, b.x, b.f, grid.between(left, right, place))


_preconditioner = Program(preconditioner, static_argnums=(1, 2))


@partial(Program, static_argnums=1)
def _round(gram: Gram, offset: float, P: Any, lanes: Lanes, solver: BlockNewton) -> tuple[Array, Array, Int[Array, ""]]:
    return newton_round(gram, offset, P, lanes.y, lanes.ridge, lanes.c, lanes.f, solver)


@Program
def _load(lanes: Lanes, lane: Any, *columns: Array) -> Lanes:
    return Lanes(*(whole.at[:, lane].set(column) for whole, column in zip(lanes, columns, strict=True)))
