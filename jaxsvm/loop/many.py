"""Solve many small problems, a size class by one compiled program: the third entrance, beside `fit` and `fit_compiled`.

The drivers check a fit several times a second and may change its solver. For 325 problems of some hundred samples each
that takes longer than the problems. So a solve is one program, which several threads call (`solve_many`); a long one
calls again and again, since Ctrl-C is seen between calls only. It works in float64 on kernel values as they come
(float32 is LIBSVM's own choice). A machine (`solve_box`) ends when the relative duality gap and LIBSVM's violation are
at most `tol`, a chain over C (`chains_whole`) when the gap is. Where they do not, the driver continues.
"""

import concurrent.futures
import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from jaxsvm.gram.build import gram as gram_of
from jaxsvm.gram.operators import DenseGram, Gram, part_of, values_between
from jaxsvm.kernels import Linear
from jaxsvm.loop.bursts import next_burst
from jaxsvm.loop.choice import first_choice
from jaxsvm.loop.driver import Options, drive
from jaxsvm.loop.interruption import Interruption, result_of, watching, with_settings, workers
from jaxsvm.loop.measured import MEASURED
from jaxsvm.numerics.precision import in_double, matmul, rounded, widened
from jaxsvm.numerics.sizes import LARGEST_PADDED
from jaxsvm.problems.box import BoxProblem
from jaxsvm.problems.certificates.definiteness import negative_curvature
from jaxsvm.problems.contract import Parametric, Problem
from jaxsvm.problems.machines import NuProblem
from jaxsvm.results.fit import Answer, Certificate, Counters, Fit, Status, StatusCode, bit_of, limbs_of
from jaxsvm.results.judge import concluded, in_dtype, refused, relative_to, verdict
from jaxsvm.runtime.loops import while_loop
from jaxsvm.runtime.programs import Program
from jaxsvm.solvers.box.interior_point import InteriorPoint
from jaxsvm.solvers.box.sequential_minimal_optimization import SMO
from jaxsvm.solvers.contract import NEVER, Solver
from jaxsvm.solvers.working_set import WorkingSet
from jaxsvm.solvers.working_set_block import block_steps, ends, ends_of_groups, middle_of_block, sides

ROUNDING_OF_ZERO = 1e-12  # a violation, or a gap where the optimum is 0, up to which it counts as 0
STEPS_OF_A_CHECK = 16  # pair steps of a chain between looks at the gap
VALUES_OF_A_PIECE = 16  # values of C in one call of a chain: Ctrl-C is seen between calls
MOST_STEPS_OF_A_VALUE = 50_000  # pair steps of one of them, after which another engine continues
SMALL_SET, LARGE_SET = 128, 512  # working sets, up to `samples_at_once` and beyond; measured on pairs of classes
MOST_SETS = 1000  # working sets after which the driver continues
MOST_STEPS_OF_NU = 10_000_000  # pair steps after which a nu machine, which the driver does not continue, ends


def solve_whole(round: Callable[..., Any], state: Any, limit: Array | int, excess: Array) -> tuple[Any, Array, Array]:
    """Run rounds until the excess is at most 1, or NaN, or `limit` steps are taken; traceable.

    `round` maps a state, and the steps that are left, to the next state, the steps that it took, and the excess: the
    value of the stop rule over its threshold, 0 if no further round can change anything. Return the last state, the
    number of steps and the excess; that of the start may be infinite.
    """

    def turn(solve: tuple[Any, Array, Array]) -> tuple[Any, Array, Array]:
        state, steps, excess = round(solve[0], limit - solve[1])
        return state, solve[1] + jnp.asarray(steps, jnp.int32), excess

    start = (state, jnp.zeros((), jnp.int32), excess)
    return while_loop(lambda solve: (solve[2] > 1) & (solve[1] < limit), turn, start)


class BoxData(NamedTuple):
    """A box problem as NumPy arrays: `max q'a - a'Qa/2`, `0 <= a <= upper`, `y'a = e`.

    `Q_ij = y_i y_j (K_ij + offset)`.
    """

    y: np.ndarray  # signs, `(n,)`
    q: np.ndarray  # the linear term, `(n,)`
    upper: np.ndarray  # upper bounds, `(n,)`; 0 for an absent sample
    # whether there is the equality, "y"; "" for none; "nu" or "tube" for that of a nu machine, of two classes or of
    # regression, whose groups keep the sums that they have at the start
    equality: str
    e: float = 0.0  # its right-hand side
    start: np.ndarray | None = None  # a feasible point, `(n,)`; None starts at 0
    offset: float = 0.0  # 1.0 with a regularised bias, else 0.0

    @property
    def arrays(self) -> tuple[Any, ...]:
        """Return the arrays that a compiled program takes: y, q, upper, e."""
        return self.y, self.q, self.upper, np.float64(self.e)

    @property
    def form(self) -> tuple[str, float]:
        """Return what a program is compiled for."""
        return self.equality, self.offset


class Solved(NamedTuple):
    """A solution as NumPy arrays."""

    dual_coef: np.ndarray  # coefficients of the decision function, `y a`, `(n,)`
    bias: float  # its constant
    certificate: Certificate  # primal value, dual value and relative gap of both
    steps: int  # pair steps
    status: Status  # how the solve ended
    parameter: float = np.nan  # the C, or epsilon, that nu stands for; NaN without nu

    def judged(self, tol: float, definite: bool) -> "Solved":
        """Return the solution with its verdict, or with its own status above `tol`; no certificate if indefinite."""
        finite = bool(np.isfinite(self.bias) and np.isfinite(self.dual_coef).all())
        code = verdict(self.certificate, tol, finite=finite, definite=definite, otherwise=self.status)
        known = self.certificate if definite else jax.tree.map(np.asarray, refused(self.certificate, True))
        return self._replace(certificate=known, status=Status(int(code)))


def hinge_data(y: np.ndarray, upper: np.ndarray, bias: str) -> BoxData:
    """Return the box problem of a hinge machine with signs and costs `(n,)`."""
    return BoxData(y, np.ones(len(y)), upper, "y" if bias == "free" else "", offset=float(bias == "regularized"))


def constant_solution(n: int, bias: float) -> Solved:
    """Return the exact solution whose n coefficients and objective are 0."""
    zero: Any = np.float64(0)
    return Solved(np.zeros(n), bias, Certificate(zero, zero, zero), 0, Status.STALLED).judged(0.0, definite=True)


def padded_size(n: int, up_to: int = LARGEST_PADDED) -> int:
    """Return the size that n samples, up to a number, are padded to: 64, 96, 128, 192, 256, ..., two a power of two."""
    wide = max(64, 2 ** (n - 1).bit_length())
    return n if n > up_to else wide * 3 // 4 if n <= wide * 3 // 4 and wide > 64 else wide


def solve_many(
    solve: Callable[[Any], Any], problems: Sequence[Any], program: Callable[[Any], Any], ended: Any = lambda _, it: it
) -> list[Any]:
    """Return `solve` of each problem, in order, computed by one thread per core, with this thread's settings of JAX.

    The first of each program, which `program` names, comes before the others, since it compiles. This thread calls
    `ended` with place and result of each, and returns what that returns.
    """
    if workers() < 2 or len(problems) < 2:
        return [ended(place, solve(problem)) for place, problem in enumerate(problems)]
    first = set({program(problems[place]): place for place in reversed(range(len(problems)))}.values())
    results: dict[int, Any] = {}
    with concurrent.futures.ThreadPoolExecutor(workers()) as pool:
        for batch in (sorted(first), [place for place in range(len(problems)) if place not in first]):
            found = [pool.submit(with_settings(solve), problems[place]) for place in batch]
            results.update((place, ended(place, result_of(job))) for place, job in zip(batch, found, strict=True))
    return [results[place] for place in range(len(problems))]


def solve_box(
    gram: Gram, data: BoxData, tol: float, max_iter: int = -1, start_product: Any = None, floor: float | None = None,
    callback: Callable[[Fit], Any] | None = None,
) -> Solved:  # fmt: skip
    """Solve a box problem; call it with x64 on.

    Args:
        gram: The Gram operator of its n points; stored for a nu machine.
        data: The problem.
        tol: The relative duality gap, and the largest violation, to stop at, > 0.
        max_iter: Most pair steps, checked between working sets; -1 sets no limit.
        start_product: `K (y start)`, `(n,)`, if there is a start; None computes it.
        floor: The gap is relative to at least this objective. None takes `ROUNDING_OF_ZERO`, or that share of the
            losses where they are small (at a tiny C).
        callback: Called on the way, once the driver of `jaxsvm.fit` continues, or None.
    """
    a = np.zeros(len(data.y)) if data.start is None else data.start
    if start_product is None:
        start_product = a if data.start is None else np.asarray(jax.jit(type(gram).matvec)(gram, data.y * a))
    s = data.y * (start_product + data.offset * (data.y @ a))
    of_nu = data.equality in ("nu", "tube")
    limit = max_iter if max_iter >= 0 else MOST_STEPS_OF_NU if of_nu else NEVER
    floor = ROUNDING_OF_ZERO * min(1.0, float(data.upper @ np.abs(data.q))) if floor is None else floor
    steps, left, sets = 0, MOST_SETS, MEASURED.sets_of_a_piece
    piece = MEASURED.steps_of_a_piece * MEASURED.samples_at_once // max(len(a), MEASURED.samples_at_once)
    with watching() as stop:
        while True:
            began, bounds = time.monotonic(), np.array((min(limit - steps, piece), min(sets, left)), np.int32)
            result = _solved(gram, data.arrays, a, s, np.float64(tol), bounds, np.float64(floor), data.form)
            a, s, more, used, goes_on, *solution = jax.tree.map(np.asarray, result)
            stop.begun = True
            steps, left = steps + int(more), left - int(used)
            sets = next_burst(sets, int(used), time.monotonic() - began)
            if not goes_on or steps >= limit or left <= 0 or stop.seen:
                break
    alpha, dual_coef, bias, certificate, parameter = solution
    ended = float(certificate.relative_gap) <= tol or steps >= limit or stop.seen
    if ended or of_nu:
        status = Status.INTERRUPTED if stop.seen else Status.MAX_STEPS
        solved = Solved(dual_coef, float(bias), certificate, steps, status, float(parameter))
        return solved.judged(tol, definite=not is_indefinite(gram, data))
    return solve_by_driver(box_problem_of(gram, data.arrays, data.form), tol, alpha, steps, callback)


def is_indefinite(gram: Gram, data: BoxData) -> bool:
    """Return whether a matrix that may be indefinite is so along the feasible directions; call it with x64 on."""
    return not gram.definite and bool(_curvature(gram, data.arrays, data.form))


@Program.full(static=("form",))
def _curvature(gram: Gram, arrays: Any, form: tuple[str, float]) -> Any:
    return negative_curvature(box_problem_of(gram, arrays, form))


def prefers_features(x: Any, n: int) -> bool:
    """Return whether to solve a linear machine on n samples of points `(n, d)` by interior points in feature space."""
    return x.shape[1] <= min(n / 2, max(MEASURED.features_always_few, n / MEASURED.samples_per_feature))


def solve_in_features(x: np.ndarray, data: BoxData, tol: float, by_pairs: Callable[[int], Solved]) -> Solved:
    """Solve a box problem of a linear kernel by interior points in the space of its features; call it with x64 on.

    Pair steps took seconds at C = 100, and did not end at C = 1e4. A problem of a single working set is first tried by
    them (`by_pairs`, given the most steps): that mostly takes no time. The better of both solutions is returned. Points
    of absent samples may be anything finite; a start is not used.
    """
    most = MEASURED.steps_per_sample * len(data.y)
    before = by_pairs(most) if len(data.y) <= MEASURED.samples_of_one_working_set else None
    if before is not None and before.status in (Status.CONVERGED, Status.INTERRUPTED):
        return before
    size = max(16, 2 ** (x.shape[1] - 1).bit_length())  # of columns: similar numbers of features share a program
    operator = gram_of(Linear(), np.pad(np.asarray(x, np.float64), ((0, 0), (0, size - x.shape[1]))))
    problem = box_problem_of(operator, data.arrays, data.form)
    # A gap of 1e-5 tol costs a few more steps, and mostly satisfies LIBSVM's rule too.
    result = solve_by_driver(problem, InteriorPoint(tol=1e-5 * tol)).judged(tol, operator.definite)
    gap = float(result.certificate.relative_gap)
    if result.status == Status.CONVERGED:
        return result
    if before is None and (gap <= MEASURED.acceptable_gap or result.status == Status.INTERRUPTED):
        return result
    other = by_pairs(most) if before is None else before
    return result if gap <= float(other.certificate.relative_gap) else other


@Program.full(static=("form",))
def recertified(gram: Any, arrays: Any, coef: Array, product: Any, form: tuple[str, float]) -> tuple[Any, ...]:
    """Return coefficients `y a`, on the constraints if there is an operator, product, constant and certificate."""
    problem = box_problem_of(gram, arrays, form)
    if gram is not None:
        coef = problem.y * problem.feasible_point(problem.y * coef)
        product = gram.support_matvec(coef)
    result = problem.certified(problem.y * coef, problem.y * (product + problem.offset * coef.sum()), coef.dtype)
    return coef, product, result.bias, result.certificate


def solve_by_driver(
    problem: Problem, how: Any, init: Any = None, steps: int = 0, callback: Any = None, key: Any = None
) -> Solved:
    """Solve a problem by the driver of `jaxsvm.fit`, without its warnings: a filter of them would apply to all threads.

    `how` is a solver, or the relative duality gap to reach by the solvers that the driver chooses; `steps` were taken
    before, and count in the result.
    """
    chosen = not isinstance(how, Solver)
    solver = first_choice(problem, how) if chosen else how
    options = Options(warns=False, may_change=chosen)
    fit = drive(problem, solver, key, init, callback=callback, options=options)
    certificate, coef = jax.tree.map(np.asarray, fit.certificate), np.asarray(fit.dual_coef, np.float64)
    taken = steps + max(int(fit.counters.toward), int(fit.steps))
    return Solved(coef, float(fit.bias), certificate, taken, Status(int(fit.status)))


def box_problem_of(gram: Gram | None, arrays: Any, form: tuple[str, float]) -> BoxProblem:
    """Return the problem of `BoxData.arrays` and `.form`, unchecked; a certificate alone needs no Gram operator."""
    (y, q, upper, e), (equality, offset) = map(jnp.asarray, arrays), form
    one, zero = jnp.ones((), y.dtype), jnp.zeros((), y.dtype)
    diagonal = jnp.zeros_like(y) if gram is None else gram.diag().astype(y.dtype) + offset
    parts = (cast(Gram, gram), y, q, upper, y if equality else None, e, one, zero, diagonal, one > 0, offset)
    return NuProblem(*parts, equality == "tube") if equality in ("nu", "tube") else BoxProblem(*parts)


@Program.full(static=("form",))
def _solved(
    gram: Gram, arrays: Any, a: Array, s: Array, tol: Array, bounds: Array, floor: Array, form: tuple[str, float]
) -> Any:
    """Return a, s, pair steps, working sets, whether to go on, and alpha, coefficients, bias and certificate of a."""
    problem = box_problem_of(gram, arrays, form)
    whole = gram.stored and (problem.n <= MEASURED.samples_at_once or problem.groups is not None)
    a, s, *progress = (at_once if whole else _by_sets)(problem, a, s, tol, bounds, floor)
    result = problem.certified(a, s, a.dtype)
    parameter = problem.machine(a, s)[-1] if isinstance(problem, NuProblem) else jnp.full((), jnp.nan, a.dtype)
    exact = result.certificate  # the floor only ends what rounding would not
    known = jax.tree.map(lambda a, b: jnp.where(exact.relative_gap <= tol, a, b), exact, relative_to(exact, floor))
    return a, s, *progress, result.alpha, result.dual_coef, result.bias, known, parameter


def _violation_and_gap(problem: BoxProblem, a: Array, s: Array, floor: Array) -> tuple[Array, Array]:
    if problem.groups is None:
        top, bottom = ends(problem, a, s)
        violation, bias = top - bottom, (top + bottom) / 2 if problem.free_bias else None
    else:
        violation, bias = ends_of_groups(problem.groups, *sides(problem, a, s))[1], None
    gap = relative_to(problem.certificate(a, s, bias), floor).relative_gap
    return violation, jnp.where(violation <= ROUNDING_OF_ZERO, 0, gap)


def at_once(problem: BoxProblem, a: Array, s: Array, tol: Array, bounds: Array, floor: Array) -> tuple[Array, ...]:
    """Solve on all samples as one working set: reduce the violation tenfold until the gap is small too."""
    y, upper, K = problem.y, problem.upper, cast(DenseGram, problem.gram).K.astype(a.dtype)
    K, end = K + problem.offset if problem.offset else K, y * upper
    low, high = jnp.minimum(0, end), jnp.maximum(0, end)
    least = 1e-7 if problem.groups is None else 1e-4  # in `tol`: rounding; a nu machine without a margin has no gap

    def round(state: tuple[Array, Array, Array], left: Array) -> tuple[Any, Array, Array]:
        v, s, violation = state
        most = jnp.minimum(left, MEASURED.steps_per_sample * problem.n)
        gradient = y * (problem.q - s)
        v, _, more = block_steps(K, low, high, v, gradient, violation, most, problem.free_bias, problem.groups)
        s = y * matmul(K, v)
        excess = _violation_and_gap(problem, y * v, s, floor)[1] / tol
        violation = violation / 10
        return (v, s, violation), more, jnp.where(violation > tol * least, excess, 0)

    (v, s, _), steps, excess = solve_whole(round, (y * a, s, tol), bounds[0], jnp.asarray(jnp.inf, a.dtype))
    return y * v, s, steps, 0 * steps, excess > 1


def _by_sets(problem: BoxProblem, a: Array, s: Array, tol: Array, bounds: Array, floor: Array) -> tuple[Array, ...]:
    """Solve by working sets: only their kernel rows are read."""
    size = SMALL_SET if problem.n <= MEASURED.samples_at_once else LARGE_SET
    solver = WorkingSet(tol=tol, size=size, fresh=size // 2)

    def round(before: Any, left: Array) -> tuple[Any, Array, Array]:
        del left
        state = solver.step(problem, before[0])
        excess = jnp.maximum(*_violation_and_gap(problem, state.a, state.s, floor)) / tol
        more = state.counters.toward - before[0].counters.toward
        return (state, excess), more, jnp.where(state.counters.steps < bounds[1], excess, 0)

    infinite = jnp.asarray(jnp.inf, a.dtype)
    start = solver.begun(problem, {"a": a, "s": s, "exact": None}), infinite
    (state, excess), steps, _ = solve_whole(round, start, bounds[0], infinite)
    return state.a, state.s, steps, state.counters.steps, excess > 1


def fit_whole(problem: Problem, tol: Any, stop: Interruption) -> Fit | None:
    """Return the certified fit of a concrete hinge problem that `chains_whole` is for; else None."""
    if not isinstance(problem, BoxProblem):
        return None
    fits = chains_whole(problem, np.asarray(problem.weights)[None], np.asarray(problem.C)[None], tol, stop)
    known = fits is not None and int(fits.status.code[0, 0]) == Status.CONVERGED
    return jax.tree.map(lambda leaf: leaf[0, 0], fits) if known else None


def chains_whole(problem: Parametric, weights: np.ndarray, Cs: np.ndarray, tol: Any, stop: Interruption) -> Fit | None:
    """Return fits of a concrete hinge problem with several weights of its samples, `(m, n)`, at values of C, `(k,)`.

    They have axes of m and k, on the host, in the order of both. Those that are not certified to `tol` are RUNNING, as
    are those after Ctrl-C. None if the problem is not for it (`_small_machine`), or nothing was solved.
    """
    machines = [_small_machine(problem, weight) for weight in weights]
    if any(machine is None for machine in machines):
        return None
    order, size = np.argsort(Cs, kind="stable"), VALUES_OF_A_PIECE if len(Cs) > 1 else 1
    values = np.pad(np.asarray(Cs, np.float64)[order], (0, -len(order) % size), mode="edge")
    zeros = [np.zeros(machine[0].n) for machine in machines]
    points, pieces = [(zero, zero, values[0], np.asarray(False)) for zero in zeros], []
    goal = np.float64((1.0 if problem.dtype == np.float64 else 0.8) * tol)  # answers in float32 are rounded

    def solve(m: int) -> Any:
        if stop.seen:
            return np.zeros((size, len(zeros[m]))), np.zeros(size, np.int32)
        gram, data = machines[m]
        points[m], found = _chain(gram, data.arrays, piece, points[m], values[-1], goal, data.form)
        return jax.tree.map(np.asarray, found)

    for piece in values.reshape(-1, size):
        if stop.seen:
            break
        with jax.enable_x64(True):
            found = solve_many(solve, range(len(weights)), lambda m: len(zeros[m]))
        a = np.zeros((len(weights), size, problem.n), problem.dtype)
        for each, weight, (coef, _) in zip(a, weights, found, strict=True):
            each[:, weight > 0] = np.abs(coef[:, : (weight > 0).sum()])
        read = [[len(zero) ** 2 * (not pieces and not k) for k in range(size)] for zero in zeros]
        work = np.stack([steps for _, steps in found]), limbs_of(read)
        pieces.append(_certified(problem, weights, piece.astype(problem.dtype), a, work, np.asarray(tol)))
    if not pieces:
        return None
    done, places = size * len(pieces), np.argsort(order)
    fits: Fit = jax.tree.map(lambda *of: np.concatenate(of, axis=1)[:, np.minimum(places, done - 1)], *pieces)
    codes: Any = np.where(places < done, fits.status.code, np.int32(Status.RUNNING))
    return dataclasses.replace(fits, status=StatusCode(codes))


def _small_machine(problem: Problem, weight: np.ndarray) -> Any:
    """Return the kernel values of samples of positive weight, and a hinge problem's machine on them at C = 1, padded.

    None of many samples, a kernel that may be indefinite or has features, an equality other than that of a hinge.
    """
    rows, box = np.flatnonzero(weight), cast(BoxProblem, problem)
    few = isinstance(problem, BoxProblem) and problem.groups is None and 0 < len(rows) <= MEASURED.samples_at_once
    if not (few and problem.gram.definite) or problem.gram.feature_rows is not None or jax.default_backend() != "cpu":
        return None
    n, size, free = len(rows), padded_size(len(rows)), box.c is not None
    if free and (float(box.e) != 0 or (np.asarray(box.c) != np.asarray(box.y))[rows].any()):
        return None
    y, q, upper = np.ones(size), np.ones(size), np.zeros(size)
    y[:n], q[:n], upper[:n] = (np.asarray(part)[rows] for part in (box.y, box.q, weight))
    gram = part_of(problem.gram, values_between(problem.gram, np.append(rows, np.repeat(rows[:1], size - n))))
    return gram, BoxData(y, q, upper, "y" if free else "", offset=problem.offset)


@Program
def _certified(problem: Any, weights: Array, Cs: Array, a: Array, work: tuple[Array, Array], tol: Array) -> Fit:
    """Return the fits of dual variables `(m, k, n)` of weights `(m, n)` and C, `(k,)`; RUNNING above `tol`."""
    spare = 1 + 64 * jnp.finfo(problem.dtype).eps  # products of a point that is made longer are rounded again

    @in_double
    def certified(problem: Any, weights: Array, Cs: Array, a: Array) -> Answer:
        def at(weight: Array, C: Array, a: Array) -> Answer:
            here = widened(dataclasses.replace(problem, weight=weight).at(C))
            a = rounded(here.on_equality(jnp.clip(a.astype(here.dtype), 0, here.upper)), problem.dtype)
            a = a.astype(here.dtype)
            s = here.matvec(a)
            # Without a sample at its bound rounding leaves losses, which any C multiplies: a longer w has none.
            longer, held = scale_without_loss(here, here.margins(a, s)), ((a >= here.upper) & (a > 0)).any()
            w = jnp.where(held | ~jnp.isfinite(longer), a, rounded(longer * spare * a, problem.dtype).astype(a.dtype))
            answer = here.certified(jnp.stack([w, a]), jnp.stack([here.matvec(w), s]), problem.dtype)
            return in_dtype(answer, problem.dtype)

        return jax.vmap(jax.vmap(at, (None, 0, 0)), (0, None, 0))(weights, Cs, a)

    def fit(answer: Answer, steps: Array, read: Array) -> Fit:
        counters = Counters.zero()._replace(steps=steps, toward=steps, evaluations=read, solvers=bit_of(SMO()))
        return concluded(answer, tol, counters, definite=True, otherwise=Status.RUNNING)

    return jax.vmap(jax.vmap(fit))(certified(problem, weights, Cs, a), *work)


def scale_without_loss(wide: BoxProblem, margins: Array) -> Array:
    """Return the factor of w and its bias that leaves no sample a loss; infinite if none does."""
    scale = jnp.where(wide.targets > 0, wide.targets, 1)
    ratio = jnp.where(wide.present & (wide.targets > 0), margins / scale, jnp.inf)
    least = ratio.min()
    return jnp.where(least > 0, 1 / jnp.where(least > 0, least, 1), jnp.inf)


def _grown(a: Array, weight: Array, before: Array, C: Array) -> Array:
    """Return the start at C from a solution at a smaller value: scaled if a sample is at its bound, else as it is."""
    full = ((weight > 0) & (a >= before * weight * (1 - ROUNDING_OF_ZERO))).any()
    return jnp.minimum(a * jnp.where(full, C / before, 1), C * weight)


@Program.full(static=("form",))
def _chain(
    gram: DenseGram, arrays: Any, Cs: Array, point: Any, largest: Array, tol: Array, form: tuple[str, float]
) -> tuple[Any, Any]:
    """Return the next point, and coefficients and steps at increasing values; `arrays` are those of C = 1.

    As C grows, coefficients at the upper bound stay there, and all others are scaled with it. A point is `y a`, its
    product, its C, and whether a value took more than its steps: all later ones are left out then.
    """
    y, q, weight, e = arrays
    K, most = gram.K.astype(y.dtype) + form[1], min(MEASURED.steps_per_sample * len(y), MOST_STEPS_OF_A_VALUE)

    def solved(before: Any, C: Array) -> Any:
        v, product, C_before, failed = before
        problem = box_problem_of(gram, (y, q, C * weight, e), form)
        box = jnp.minimum(0, y * problem.upper), jnp.maximum(0, y * problem.upper)
        grown = y * _grown(y * v, weight, C_before, C)
        product = product * jnp.where((grown == v).all(), 1, C / C_before)

        def round(state: tuple[Array, Array], left: Array) -> tuple[Any, Array, Array]:
            del left
            v, pull, more = block_steps(K, *box, *state, 0.0, STEPS_OF_A_CHECK, problem.free_bias)
            return (v, pull), more, excess(v, pull)

        def excess(v: Array, pull: Array) -> Array:
            middle, violation = middle_of_block(*box, v, pull, problem.free_bias)
            a, r = y * v, y * (pull - middle)
            dual = jnp.maximum(a @ (q + y * pull) / 2, ROUNDING_OF_ZERO)
            gap = (problem.upper - a) @ jnp.maximum(0, r) + a @ jnp.maximum(0, -r)
            # What no bound holds back serves all larger values too, whose losses cost more.
            held = ((a >= problem.upper) & (weight > 0)).any()
            goal = 0.9 * tol * jnp.where(held, 1, C / largest)  # less than `tol`: products are rounded
            return jnp.where(violation > 0, gap / dual / goal, 0)

        start = grown, y * q - product
        (v, pull), steps, over = solve_whole(round, start, jnp.where(failed, 0, most), excess(*start))
        return (v, y * q - pull, C, failed | (over > 1)), (v, steps)

    return lax.scan(solved, point, Cs)
