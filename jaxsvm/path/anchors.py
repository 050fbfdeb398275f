"""Solve the values of C of one problem: anchors first, in parallel the values between them.

Newton in the space of features solves them while it pays. The others take pair steps on candidates (the samples that
may be support), or working sets if C is large and many samples are left.
"""

import dataclasses
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxsvm.gram.measured import MEASURED as GRAM
from jaxsvm.gram.operators import Gram, part_of, values_between
from jaxsvm.loop.driver import Options, drive
from jaxsvm.loop.interruption import Interruption, result_of, unless, with_settings, workers
from jaxsvm.loop.measured import MEASURED
from jaxsvm.problems.squared_hinge import SquaredHingeProblem
from jaxsvm.results.fit import Fit, Status, counted_by_name
from jaxsvm.runtime.arrays import on_device
from jaxsvm.runtime.programs import Program
from jaxsvm.solvers import working_set as sets
from jaxsvm.solvers.simplex.feature_newton import FeatureNewton, Known, features, state_at, stepped
from jaxsvm.solvers.simplex.frank_wolfe import FrankWolfe
from jaxsvm.solvers.start import Start

PROVISIONAL = Options(warns=False, provisional=True)


@counted_by_name
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CoarseToFine:
    """Configuration of the solver of whole grids."""

    bit = 14
    inside = None
    width = 16  # points that one product certifies
    tol: Any = 1e-4  # the certified relative gap, > 0

    @property
    def inner_tol(self) -> Any:
        """Return the gap asked of combinations and working sets: below `tol`, since rounding adds to it."""
        return 0.95 * self.tol


class GridPoint(NamedTuple):
    """A dual point in primal scale, and the work that it took."""

    x: Float[Array, " n"]  # coefficients, not negative
    f: Float[Array, " n"]  # margins
    steps: int  # pair steps or Newton rounds
    evaluations: int  # kernel evaluations
    # steps for which f was carried along since it was computed from scratch; None if it is not known for all samples
    carried: int | None = None
    far: bool = False  # whether steps ended far from `tol`


class Grid:
    """One problem at increasing values of C, and the points of those that are solved."""

    def __init__(self, problems: list[SquaredHingeProblem], Cs: np.ndarray) -> None:
        self.problems = problems
        self.logs = np.log(Cs)
        self.points: dict[int, GridPoint] = {}  # of solved values, by place
        first = problems[0]
        ridge = np.asarray(first.ridge)
        kernel = float(np.asarray(first.squares).mean()) - first.offset
        penalty = float((1 / ridge[ridge > 0]).mean() / Cs[0])
        scaled = Cs * penalty * max(kernel, 1e-30)  # `C mean(K_ii)`, of a kernel of zeros too
        self.uniform = int((scaled <= MEASURED.scaled_C_of_equal_weights).sum())  # how many may start with them
        self.steep = int((scaled > MEASURED.scaled_C_of_sets).sum())  # how many, from the top, are for working sets


def anchors(logs: np.ndarray) -> list[int]:
    """Return the places of anchors in increasing logarithms: both ends, and others with a bounded ratio of C."""
    places = [0] if len(logs) else []
    while places and places[-1] < len(logs) - 1:
        furthest = logs[places[-1]] + np.log(MEASURED.factor_between_anchors) + 1e-9  # logarithms are rounded
        places.append(max(int(np.searchsorted(logs, furthest, side="right")) - 1, places[-1] + 1))
    return places


def middles(places: list[int]) -> Iterator[list[tuple[int, int, int]]]:
    """Yield the places between anchors as levels of (middle, left, right); each level needs only earlier ones."""
    gaps = list(zip(places, places[1:], strict=False))
    while gaps := [(a, b) for a, b in gaps if b - a > 1]:
        yield [((a + b) // 2, a, b) for a, b in gaps]
        gaps = [half for a, b in gaps for half in ((a, (a + b) // 2), ((a + b) // 2, b))]


@Program
def combination(ridge: Array, a: tuple[Array, Array], b: tuple[Array, Array], most: Any) -> tuple[Array, Array]:
    """Return the best dual point of the span of two, `x = s (x_a + w (x_b - x_a))`, and its margins.

    Each is given with its margins; w is at most `most`, 1 or more. The dual objective on the span is a quadratic, whose
    maximum needs no product with the kernel matrix.
    """
    (x, f), dx, df = a, b[0] - a[0], b[1] - a[1]
    s, ds = f + ridge * x, df + ridge * dx
    xx, xd, dd = x @ s, dx @ s, dx @ ds
    # The maximum over s at w is `(t + w dt)^2 / (xx + 2 w xd + w^2 dd)`.
    t, dt = x.sum(), dx.sum()
    slope, curve = xx * dt - xd * t, dd * t - xd * dt
    w = jnp.clip(jnp.where(curve > 0, slope / jnp.where(curve > 0, curve, 1), 1), 0, most)
    size = (t + w * dt) / (xx + w * (2 * xd + w * dd))
    scale = jnp.where(jnp.isfinite(size) & (size > 0), size, 1)
    return scale * (x + w * dx), scale * (f + w * df)


# --- candidates


class Candidates(NamedTuple):
    """Samples that may be support, on the host and on the device, and their Gram operator."""

    samples: np.ndarray
    places: Int[Array, " m"]
    gram: Gram | None

    @staticmethod
    def of(samples: np.ndarray, gram: Gram | None) -> "Candidates":
        """Return the candidates of these indices, with their Gram operator."""
        return Candidates(samples, on_device(np.asarray(samples, np.int32)), gram)


def support_outside(whole: SquaredHingeProblem, point: GridPoint, working_set: Candidates) -> bool:
    """Return whether samples outside the working set are support of this point. Absent ones never are."""
    support = (np.asarray(point.f) < 1) & (np.asarray(whole.weights) > 0)
    support[working_set.samples] = False
    return bool(support.any())


def sizes(n: int) -> list[int]:
    """Return the sizes of working sets of n samples, decreasing from n.

    Each is a share of the one before: few sizes for all values, widths and folds share their programs. Below 1,024 a
    step costs what starting its kernels costs.
    """
    result, share, tile = [n], MEASURED.share_of_a_smaller_set, GRAM.rows_per_tile
    while (smaller := int(np.ceil(share * result[-1] / tile)) * tile) >= 1024 and smaller < result[-1]:
        result.append(smaller)
    return result


def smaller(grid: Grid, place: int, working_set: Candidates) -> Candidates:
    """Return a smaller working set around a solved value, if its candidates fit into one."""
    whole, point = grid.problems[place], grid.points[place]
    kept = _kept(whole, point, MEASURED.margin_of_candidates)
    size = min(size for size in sizes(whole.n) if size >= kept)
    if size >= len(working_set.samples) or size**2 * jnp.dtype(whole.gram.dtype).itemsize > GRAM.bytes_to_store:
        return working_set
    return _working_set_around(whole, point, size)


def exchanged(grid: Grid, point: GridPoint, working_set: Candidates) -> Candidates:
    """Return a working set of the same size around a point with support outside; a larger one if all is support."""
    whole = grid.problems[0]
    kept = _kept(whole, point, 0.0)
    size = max(len(working_set.samples), min(size for size in sizes(whole.n) if size >= kept))
    return Candidates.of(np.arange(whole.n), whole.gram) if size == whole.n else _working_set_around(whole, point, size)


def _kept(whole: SquaredHingeProblem, point: GridPoint, margin: float) -> int:
    near = (np.asarray(point.f) < 1 + margin) | (np.asarray(point.x) > 0)
    return int((near & (np.asarray(whole.weights) > 0)).sum())


def _working_set_around(whole: SquaredHingeProblem, point: GridPoint, size: int) -> Candidates:
    """Fill a working set up to a size: support first, then by margin, absent samples last."""
    margins = np.where(np.asarray(point.x) > 0, -np.inf, np.asarray(point.f))
    order = np.argsort(np.where(np.asarray(whole.weights) > 0, margins, np.inf), kind="stable")
    samples = np.sort(order[:size])
    result = Candidates.of(samples, None)
    return result._replace(gram=part_of(whole.gram, values_between(whole.gram, result.places)))


# --- chains


def solve_in_chains(grids: list[Grid], solver: CoarseToFine, key: Array, stop: Interruption) -> None:
    """Solve the anchors in increasing order, and in threads the values between them, and several grids.

    On a CPU threads are better than lanes: a pair step keeps one core busy at any width, and JAX releases Python's lock
    while it runs. Starts do not depend on the threads, so that a call repeats to the bit. Ctrl-C reaches the main
    thread alone: the drivers of the others check `stop`.
    """
    with ThreadPoolExecutor(workers()) as pool:
        jobs: list[tuple[Grid, Future[dict[int, GridPoint]]]] = []
        try:
            last = [grid.problems[-1] for grid in grids]
            Z = features(last[0], max(float(np.asarray(each.C) * np.asarray(each.weights).max()) for each in last), key)
            chains = [_Hard(grid, solver, key, stop) for grid in grids]
            if len(chains) == 1:
                jobs = [(grids[0], job) for job in chains[0].solve_anchors(pool, Z)]
            else:
                solved = [pool.submit(with_settings(chain.solve_anchors), pool, Z) for chain in chains]
                jobs = [(grid, job) for grid, each in zip(grids, solved, strict=True) for job in result_of(each)]
            for grid, job in jobs:
                grid.points.update(result_of(job))
        except KeyboardInterrupt:
            stop.note()
        except BaseException:
            stop.came = True  # end the other threads
            raise


@dataclasses.dataclass
class InFeatures:
    """Newton in the space of features on the values of one grid.

    Where features serve by far, values between two solved ones take no product: all are certified together in the end.
    """

    # the features; None once a value was too slow: the rest is too large for C, and for larger ones
    Z: Float[Array, "n r"] | None
    tol: float  # the relative gap to reach
    run: Callable[..., Any]  # calls a program; None after Ctrl-C
    known: Known | None = None  # what is known of the last support
    first_gap: float = np.inf  # the gap that the first product of the last value found

    def point(
        self, problem: SquaredHingeProblem, start: tuple[Any, Any] | None, between: bool = False
    ) -> GridPoint | None:
        """Solve a problem from a point of any signs and its margins, or from 0; clear `Z` if that does not reach `tol`.

        Between two solved points no product is taken if the last value, which started further away, had a first gap far
        below `tol`: the final certificate shows the gap. Else margins are from scratch; None if there is no point.
        """
        if self.Z is None:
            return None
        x, f = (jnp.zeros_like(problem.y),) * 2 if start is None else start
        state, best, solver = state_at(self.Z, x, f), None, FeatureNewton(self.Z, self.tol)
        state = state if self.known is None else state._replace(known=self.known)
        sure = between and self.first_gap <= MEASURED.sure_share_of_the_gap * self.tol
        for products in range(1, 2 if sure else solver.max_steps + 1):
            state = self.run(stepped, problem, solver, state, not sure)
            if state is None:
                return best
            self.known, gap = state.known, float(state.gap)
            if sure:
                return GridPoint(state.x, state.f, int(state.counters.toward), 0)
            self.first_gap = gap if products == 1 else self.first_gap
            if gap < np.inf:
                best = GridPoint(state.x, state.f, int(state.counters.toward), products * problem.n**2, 0)
            if gap <= self.tol:
                return best
            if bool(state.slow):
                break
        self.Z = None
        return best


@dataclasses.dataclass(frozen=True)
class _Hard:
    """The hard values of one grid, and how they are solved."""

    grid: Grid
    solver: CoarseToFine
    key: Array
    stop: Interruption

    def solve_anchors(self, pool: ThreadPoolExecutor, Z: Array | None) -> "list[Future[dict[int, GridPoint]]]":
        """Solve a coarse grid in increasing C; hand each stretch between two anchors to the pool.

        Stop at Ctrl-C, or where the gap is far: larger values end further off.
        """
        grid, jobs, solved = self.grid, [], []
        working_set = Candidates.of(np.arange(grid.problems[0].n), grid.problems[0].gram)
        newton, fill = InFeatures(Z, self.solver.inner_tol, self.run), with_settings(self.fill)
        for place in anchors(grid.logs):
            working_set = self.anchor(solved, place, working_set, newton)
            if working_set is None or grid.points[place].far:
                break
            if solved and place - solved[-1] > 1:
                ends = {end: grid.points[end] for end in (solved[-1], place)}
                stretch = range(solved[-1], place + 1)
                jobs.append(pool.submit(fill, stretch, ends, working_set, dataclasses.replace(newton)))
            solved.append(place)
        return jobs

    def anchor(self, solved: list[int], place: int, working_set: Candidates, newton: InFeatures) -> Candidates | None:
        """Solve an anchor by Newton in features, else by steps on candidates until no support lies outside.

        Return the candidates, fewer if that is worth the copy; None after Ctrl-C, with or without a point.
        """
        grid, problem = self.grid, self.grid.problems[place]
        point = None if self.stop.seen else newton.point(problem, self.ahead(solved, place))
        if newton.Z is not None and point is not None:
            grid.points[place] = point
            return working_set
        if solved:
            working_set = smaller(grid, solved[-1], working_set)
        start = self.start(solved, place) if point is None else point[:2]
        digits = MEASURED.carried_roundings * np.finfo(problem.dtype).eps
        while not self.stop.seen and (point := self.point(place, start, working_set)) is not None:
            grid.points[place], self.stop.begun = point, True
            if self.stop.seen:
                break
            if point.carried is None or self.solver.inner_tol <= digits:  # not all margins were carried
                if (exact := self.from_scratch(problem, point.x)) is None:
                    break
                grid.points[place] = point._replace(x=exact[0], f=exact[1], carried=0)
            if point.far or not support_outside(problem, grid.points[place], working_set):
                return working_set
            start = grid.points[place][:2]
            working_set = exchanged(grid, grid.points.pop(place), working_set)
        return None

    def run(self, program: Callable[..., Any], problem: SquaredHingeProblem, *arguments: Any) -> Any:
        """Call a program that takes a product with the kernel matrix; None after Ctrl-C."""
        if problem.n < MEASURED.samples_of_a_long_product:
            return program(problem, *arguments)
        return unless(lambda: self.stop.seen, program, problem, *arguments)

    def from_scratch(self, problem: SquaredHingeProblem, x: Array) -> tuple[Array, Array] | None:
        """Return a point with negative parts cut to 0, and its margins; None after Ctrl-C."""
        return self.run(_margins, problem, x)

    def ahead(self, solved: list[int], place: int) -> tuple[Array, Array] | None:
        """Extrapolate two solved values to an anchor at most twice as far above; with no such pair return the last.

        Coefficients may be negative. None if no value is solved.
        """
        if not solved:
            return None
        points, logs = self.grid.points, self.grid.logs
        last = points[solved[-1]][:2]
        jump = logs[place] - logs[solved[-1]]
        near = [other for other in solved[:-1] if jump <= 2.0 * (logs[solved[-1]] - logs[other])]
        return combination(self.grid.problems[place].ridge, points[near[-1]][:2], last, jnp.inf) if near else last

    def start(self, solved: list[int], place: int) -> tuple[Array, Array] | None:
        """Return the start of an anchor. None for no start, or after Ctrl-C."""
        problem, ahead = self.grid.problems[place], self.ahead(solved, place)
        if ahead is None:
            if place >= self.grid.uniform:
                return None
            equal = np.asarray(np.asarray(problem.weights) > 0, problem.dtype)
            return self.from_scratch(problem, jnp.asarray(equal))
        further = self.from_scratch(problem, ahead[0])
        # With negative weights cut it may be a worse point than the last, and still leaves fewer steps.
        no_point = further is not None and not np.asarray(further[0]).any()
        return self.grid.points[solved[-1]][:2] if no_point else further

    def fill(
        self, places: range, ends: dict[int, GridPoint], working_set: Candidates, newton: InFeatures
    ) -> dict[int, GridPoint]:
        """Solve the places between the first and the last, level by level; after Ctrl-C return those that are solved.

        A combination has the margins of its ends, so that its gap needs no product; only those not within `tol` take
        steps.
        """
        points = dict(ends)
        for middle, a, b in (task for level in middles([0, len(places) - 1]) for task in level):
            if self.stop.seen:
                return points
            place, problem = places[middle], self.grid.problems[places[middle]]
            x, f, gap = _combined(problem, points[places[a]][:2], points[places[b]][:2])
            point = GridPoint(x, f, 0, 0)
            if not float(gap) <= float(self.solver.inner_tol):
                better = newton.point(problem, point[:2], between=True)
                if better is None or newton.Z is None:
                    better = self.point(place, (better or point)[:2], working_set)
                if better is None:
                    return points
                point = better
            points[place] = point
        return points

    def point(self, place: int, start: tuple[Array, Array] | None, working_set: Candidates) -> GridPoint | None:
        """Solve a place by steps; margins outside its working set are those of the start.

        After Ctrl-C return the best certified point; None if there is none.
        """
        grid, whole = self.grid, self.grid.problems[place]
        steps = stepper(grid, place, len(working_set.samples), self.solver.inner_tol)
        all_samples = len(working_set.samples) == whole.n
        if start is None:
            fit = drive(whole, steps, self.key, stop=self.stop, options=PROVISIONAL)
            x, f = _scattered(fit.margins, np.arange(whole.n), fit)
        else:
            part = whole if all_samples else whole.restrict(working_set.places, gram=working_set.gram)
            point, margins, R = _on_working_set(*start, working_set.samples)
            fit = drive(part, steps, self.key, Start(point, margins, R, part), stop=self.stop, options=PROVISIONAL)
            x, f = _scattered(start[1], working_set.samples, fit)
        if int(fit.status) == Status.INTERRUPTED and not np.isfinite(fit.certificate.relative_gap):
            return None
        carried = int(fit.steps) if start is None or all_samples else None
        return GridPoint(x, f, int(fit.steps), int(fit.kernel_evaluations), carried, is_far(fit, self.solver.tol))


def is_far(fit: Fit, tol: float) -> bool:
    """Return whether steps ended far from `tol`."""
    return float(fit.certificate.relative_gap) > MEASURED.far_gap * float(tol)


@Program
def _combined(problem: SquaredHingeProblem, a: Any, b: Any) -> tuple[Array, Array, Array]:
    x, f = combination.function(problem.ridge, a, b, 1.0)
    alpha, margins = x / x.sum(), (f + problem.ridge * x) / x.sum()
    return x, f, problem.certificate(alpha, margins).relative_gap


def stepper(grid: Grid, place: int, samples: int, tol: float) -> Any:
    """Return the solver of a place on so many samples: pair steps, or working sets if that is too slow."""
    steep = place >= len(grid.logs) - grid.steep
    if steep and samples >= MEASURED.samples_for_working_sets:
        return sets.WorkingSet(tol=tol, max_steps=MEASURED.sets_of_a_problem)
    return FrankWolfe(tol=tol)


@Program
def _margins(problem: SquaredHingeProblem, x: Array) -> tuple[Array, Array]:
    x = jnp.maximum(x, 0)
    return x, problem.signed.matvec(x)


def _on_working_set(x: Any, f: Any, samples: np.ndarray) -> tuple[Array, Array, Array]:
    """Return weights on the simplex, margins and scale of a part of a point; on the host."""
    x, f = np.asarray(x)[samples], np.asarray(f)[samples]
    total = x.sum()
    return on_device((x / total, f, 1 / total))


def _scattered(f: Any, samples: np.ndarray, fit: Fit) -> tuple[Array, Array]:
    """Return a fit on a working set as a point of the whole problem, whose other margins are f; on the host."""
    margins = np.array(f)
    x = np.zeros_like(margins)
    x[samples] = np.asarray(fit.alpha) / np.asarray(fit.R)
    margins[samples] = np.asarray(fit.margins)
    return on_device((x, margins))
