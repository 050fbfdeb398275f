"""Solve easy values of C in lanes of the block Newton method."""

import dataclasses
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from jaxsvm.gram.contract import Gram
from jaxsvm.loop.interruption import Interruption, unless
from jaxsvm.loop.passes import run_passes
from jaxsvm.path.coarse_to_fine.block_newton import BlockNewton, newton_round, preconditioner
from jaxsvm.path.coarse_to_fine.grid import Grid, Lanes, Point, anchors, assess, combination, middles
from jaxsvm.runtime.programs import Program

Task = tuple[int, int, tuple[int, ...]]


def solve_by_lanes(grids: list[Grid], solver: BlockNewton, key: Array, stop: Interruption) -> None:
    """Solve the easy values of all grids, until `stop`; values that need more than `max_rounds` are left unsolved."""
    waiting = _easy_tasks(grids)
    if waiting:
        run = _Running.of(grids, solver, key, stop, waiting)
        run.load()
        run_passes(run, lambda: stop.seen, stop)


@dataclasses.dataclass
class _Running:
    """Values that are being solved, a lane each.

    Attributes:
        grids: The grids.
        solver: Tolerance and lanes.
        stop: The flag of Ctrl-C.
        waiting: Values that no lane has taken.
        P: The preconditioner.
        lanes: Their points.
        tasks: The value of each lane, or None.
        rounds: Newton rounds of each value so far, `(lanes,)`.
        products: Products with the kernel matrix of each, `(lanes,)`.
        failed: Values that took too many rounds.
        combined: Whether a lane was loaded with a combination, which may need no round.
    """

    grids: list[Grid]
    solver: BlockNewton
    stop: Interruption
    waiting: list[Task]
    P: Any
    lanes: Lanes
    tasks: list[Task | None]
    rounds: np.ndarray
    products: np.ndarray
    failed: set[tuple[int, int]] = dataclasses.field(default_factory=set)
    combined: bool = False

    @classmethod
    def of(
        cls, grids: list[Grid], solver: BlockNewton, key: Array, stop: Interruption, waiting: list[Task]
    ) -> "_Running":
        """Return empty lanes, one per value, but at most `solver.lanes`."""
        template = grids[0].problems[0]
        P = _preconditioner(template.gram, template.offset, solver.rank, key)
        width = min(solver.lanes, 2 ** int(np.ceil(np.log2(len(waiting)))))
        empty = jnp.zeros((template.n, width), template.dtype)
        lanes = Lanes(jnp.ones((template.n, width), template.dtype), empty, empty, empty)
        none = np.zeros(width, int)
        return cls(grids, solver, stop, waiting, P, lanes, [None] * width, none, none.copy())

    @property
    def going(self) -> bool:
        """Return whether a lane is solving a value of C."""
        return any(self.tasks)

    def advance(self) -> None:
        """Take a round unless a start may need none, keep what is solved, and load the lanes that are free."""
        template, solver = self.grids[0].problems[0], self.solver
        if not self.combined:
            arguments = (template.gram, template.offset, self.P, self.lanes, solver)
            moved = unless(lambda: self.stop.seen, _round, *arguments)
            if moved is None:
                return
            c, f, count = moved
            self.lanes = self.lanes._replace(c=c, f=f)
            self.rounds, self.products = self.rounds + 1, self.products + int(count)
        x, f, gaps = assess(template, self.lanes)
        gaps = np.asarray(gaps)
        for lane, task in enumerate(self.tasks):
            if task is None:
                continue
            number, place, _ = task
            if gaps[lane] <= solver.inner_tol:
                evaluations = template.n**2 * int(self.products[lane] + 1)
                self.grids[number].points[place] = Point(x[:, lane], f[:, lane], int(self.rounds[lane]), evaluations)
            elif self.rounds[lane] >= solver.max_rounds:
                self.failed.add((number, place))
            else:
                continue
            self.tasks[lane] = None
        self.load()

    def load(self) -> None:
        """Give each free lane a value that is ready."""
        self.combined = False
        for lane in [lane for lane, task in enumerate(self.tasks) if task is None]:
            task = self.tasks[lane] = _next_ready(self.waiting, self.grids, self.failed)
            if task is not None:
                self.lanes = _loaded(self.lanes, lane, *_columns(self.grids[task[0]], *task[1:]))
                self.rounds[lane], self.products[lane] = 0, 0
                self.combined = self.combined or bool(task[2])


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
def _loaded(lanes: Lanes, lane: Any, *columns: Array) -> Lanes:
    return Lanes(*(whole.at[:, lane].set(column) for whole, column in zip(lanes, columns, strict=True)))
