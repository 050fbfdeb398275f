"""Solve the box problem of an estimator's machine, a size class by one compiled program.

It works in float64 on kernel values as they come (float32 is LIBSVM's own choice), and ends when the relative duality
gap and LIBSVM's violation are at most `tol`. Where they are not, the driver of `jaxsvm.fit` continues.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxsvm.gram.build import gram as gram_of
from jaxsvm.gram.operators import DenseGram, Gram
from jaxsvm.kernels import Linear
from jaxsvm.loop.bursts import next_burst
from jaxsvm.loop.choice import first_choice
from jaxsvm.loop.driver import Options, drive
from jaxsvm.loop.interruption import watching
from jaxsvm.loop.measured import MEASURED
from jaxsvm.numerics.precision import matmul
from jaxsvm.problems.box import BoxProblem
from jaxsvm.problems.certificates.definiteness import negative_curvature
from jaxsvm.problems.contract import Problem
from jaxsvm.problems.machines import NuProblem
from jaxsvm.results.fit import Certificate, Fit, Status
from jaxsvm.results.judge import refused, relative_to, verdict
from jaxsvm.runtime.loops import in_rounds
from jaxsvm.runtime.programs import Program
from jaxsvm.solvers.box.interior_point import InteriorPoint
from jaxsvm.solvers.contract import NEVER, Solver
from jaxsvm.solvers.working_set import WorkingSet
from jaxsvm.solvers.working_set_block import block_steps, ends, ends_of_groups, sides

ROUNDING_OF_ZERO = 1e-12  # a violation, or a gap where the optimum is 0, up to which it counts as 0
SMALL_SET, LARGE_SET = 128, 512  # working sets, up to `samples_at_once` and beyond; measured on pairs of classes
MOST_SETS = 1000  # working sets after which the driver continues
MOST_STEPS_OF_NU = 10_000_000  # pair steps after which a nu machine, which the driver does not continue, ends


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
        return (v, s, violation / 10), more, jnp.where(violation / 10 > tol * least, excess, 0)

    (v, s, _), steps, excess = in_rounds(round, (y * a, s, tol), bounds[0], jnp.asarray(jnp.inf, a.dtype))
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
    (state, excess), steps, _ = in_rounds(round, start, bounds[0], infinite)
    return state.a, state.s, steps, state.counters.steps, excess > 1
