"""Solve many box problems of up to some thousand samples each, a size class by one compiled program.

`jaxsvm.fit` checks progress four times a second and may change its solver. For 325 problems of some hundred samples
each this takes longer than the problems. So a whole solve, working sets and certificate, is one program, which
several threads call; a long solve calls it again and again, since Ctrl-C is seen between calls only. It works in
float64 on kernel values as they come (float32 is LIBSVM's own choice). It stops when both the relative duality gap and
LIBSVM's violation of the optimality conditions are at most `tol`. Where it does not reach that, the driver of
`jaxsvm.fit` continues.

Linear machines of few features are solved by interior points in feature space from the start: pair steps took seconds
at C = 100, and did not end at C = 1e4.
"""

import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxsvm.estimators.measured import MEASURED
from jaxsvm.gram.build import gram as gram_of
from jaxsvm.gram.contract import Gram
from jaxsvm.gram.dense import DenseGram
from jaxsvm.kernels import Linear
from jaxsvm.loop import measured as loop
from jaxsvm.loop.bursts import next_burst
from jaxsvm.loop.choice import first_choice
from jaxsvm.loop.driver import Options, drive
from jaxsvm.loop.interruption import watching
from jaxsvm.loop.whole import solve_whole
from jaxsvm.problems.box import BoxProblem
from jaxsvm.problems.certificates.definiteness import negative_curvature
from jaxsvm.problems.contract import Problem
from jaxsvm.results.fit import Certificate, Fit
from jaxsvm.results.judge import refused, relative_to, verdict
from jaxsvm.results.status import Status
from jaxsvm.solvers.box.interior_point import InteriorPoint
from jaxsvm.solvers.contract import NEVER, Solver
from jaxsvm.solvers.working_set import WorkingSet
from jaxsvm.solvers.working_set.block import double_steps, pair_steps
from jaxsvm.solvers.working_set.members import ends

ROUNDING_OF_ZERO = 1e-12
"""A violation, or a gap where the optimum is 0, up to which it counts as 0."""
MOST_SETS = 1000
"""Working sets after which the driver continues."""


class BoxData(NamedTuple):
    """A box problem as NumPy arrays: `max q'a - a'Qa/2`, `0 <= a <= upper`, `c'a = e`.

    `Q_ij = y_i y_j (K_ij + offset)`.

    Attributes:
        y: Signs, `(n,)`.
        q: The linear term, `(n,)`.
        upper: Upper bounds, `(n,)`; 0 for an absent sample.
        c: Coefficients of the equality, `(n,)`, or None.
        e: Its right-hand side.
        start: A feasible point, `(n,)`; None starts at 0.
        offset: 1.0 with a regularised bias, else 0.0.
    """

    y: np.ndarray
    q: np.ndarray
    upper: np.ndarray
    c: np.ndarray | None
    e: float = 0.0
    start: np.ndarray | None = None
    offset: float = 0.0

    @property
    def arrays(self) -> tuple[Any, ...]:
        """Return the arrays that a compiled program takes: y, q, upper, c, e."""
        return self.y, self.q, self.upper, self.c, np.float64(self.e)


class Solved(NamedTuple):
    """A solution as NumPy arrays.

    Attributes:
        dual_coef: Coefficients of the decision function, `y a`, `(n,)`.
        bias: Its constant.
        certificate: Primal value, dual value and relative gap of both.
        steps: Pair steps.
        status: How the solve ended.
    """

    dual_coef: np.ndarray
    bias: float
    certificate: Certificate
    steps: int
    status: Status

    def judged(self, tol: float, definite: bool) -> "Solved":
        """Return the solution with its verdict, or with its own status above `tol`; no certificate if indefinite."""
        finite = bool(np.isfinite(self.bias) and np.isfinite(self.dual_coef).all())
        code = verdict(self.certificate, tol, finite=finite, definite=definite, otherwise=self.status)
        known = self.certificate if definite else jax.tree.map(np.asarray, refused(self.certificate, True))
        return self._replace(certificate=known, status=Status(int(code)))


def hinge_data(y: np.ndarray, upper: np.ndarray, bias: str) -> BoxData:
    """Return the box problem of a hinge machine with signs and costs `(n,)`."""
    c, offset = y if bias == "free" else None, float(bias == "regularized")
    return BoxData(y, np.ones(len(y)), upper, c, offset=offset)


def constant_solution(n: int, bias: float) -> Solved:
    """Return the exact solution whose n coefficients and objective are 0."""
    zero: Any = np.float64(0)
    return Solved(np.zeros(n), bias, Certificate(zero, zero, zero), 0, Status.STALLED).judged(0.0, definite=True)


def solve_box(
    gram: Gram,
    data: BoxData,
    tol: float,
    max_iter: int = -1,
    start_product: Any = None,
    floor: float | None = None,
    callback: Callable[[Fit], Any] | None = None,
) -> Solved:
    """Solve a box problem; call it with x64 on.

    Args:
        gram: The Gram operator of its n points.
        data: The problem.
        tol: The relative duality gap, and the largest violation, to stop at, > 0.
        max_iter: Most pair steps, checked between working sets; -1 sets no limit.
        start_product: `K (y start)`, `(n,)`, if there is a start.
        floor: The gap is relative to at least this objective. None takes `ROUNDING_OF_ZERO`, or that share of the
            losses where they are small (at a tiny C).
        callback: Called on the way, once the driver of `jaxsvm.fit` continues, or None.

    Returns:
        The solution; its status is not CONVERGED if it is not certified to `tol`.
    """
    a = np.zeros(len(data.y)) if data.start is None else data.start
    s = np.zeros(len(data.y)) if start_product is None else data.y * start_product
    limit = NEVER if max_iter < 0 else max_iter
    floor = ROUNDING_OF_ZERO * min(1.0, float(data.upper @ np.abs(data.q))) if floor is None else floor
    steps, left, sets = 0, MOST_SETS, MEASURED.sets_of_a_piece
    with watching() as stop:
        while True:
            began, bounds = time.monotonic(), (min(limit - steps, MEASURED.steps_of_a_piece), min(sets, left))
            result = _solved(gram, data.arrays, a, s, np.float64(tol), np.int32(bounds), np.float64(floor), data.offset)
            a, s, more, used, goes_on, *solution = jax.tree.map(np.asarray, result)
            stop.begun = True
            steps, left = steps + int(more), left - int(used)
            sets = next_burst(sets, int(used), time.monotonic() - began)
            if not goes_on or steps >= limit or left <= 0 or stop.seen:
                break
    alpha, dual_coef, bias, certificate = solution
    if float(certificate.relative_gap) <= tol or steps >= limit or stop.seen:
        status = Status.INTERRUPTED if stop.seen else Status.MAX_STEPS
        solved = Solved(dual_coef, float(bias), certificate, steps, status)
        return solved.judged(tol, definite=not is_indefinite(gram, data))
    return solve_by_driver(box_problem_of(gram, data.arrays, data.offset), tol, alpha, steps, callback)


def is_indefinite(gram: Gram, data: BoxData) -> bool:
    """Return whether a problem's matrix has negative curvature along its feasible directions; call it with x64 on.

    A kernel that is known to be positive semidefinite is not checked.
    """
    return not gram.definite and bool(_curvature(gram, data.arrays, data.offset))


@functools.partial(jax.jit, static_argnames="offset")
def _curvature(gram: Gram, arrays: Any, offset: float) -> Any:
    return negative_curvature(box_problem_of(gram, arrays, offset))


def prefers_features(x: Any, n: int) -> bool:
    """Return whether to solve a linear machine on n samples of points `(n, d)` by interior points in feature space."""
    return x.shape[1] <= min(n / 2, max(MEASURED.features_always_few, n / MEASURED.samples_per_feature))


def solve_in_features(x: np.ndarray, data: BoxData, tol: float, by_pairs: Callable[[int], Solved]) -> Solved:
    """Solve a box problem of a linear kernel by interior points in the space of its features; call it with x64 on.

    A problem of a single working set is first tried by pair steps, which mostly take no time.

    Args:
        x: The points, `(n, d)`; those of absent samples may be anything finite.
        data: The problem; its start is not used.
        tol: The relative duality gap to reach, > 0.
        by_pairs: Solves the problem by pair steps, given the most steps.

    Returns:
        The better of both solutions, as `solve_box` returns it.
    """
    most = MEASURED.steps_per_sample * len(data.y)
    before = by_pairs(most) if len(data.y) <= loop.MEASURED.samples_of_one_working_set else None
    if before is not None and before.status in (Status.CONVERGED, Status.INTERRUPTED):
        return before
    size = max(16, 2 ** (x.shape[1] - 1).bit_length())  # of columns: similar numbers of features share a program
    operator = gram_of(Linear(), np.pad(np.asarray(x, np.float64), ((0, 0), (0, size - x.shape[1]))))
    problem = box_problem_of(operator, data.arrays, data.offset)
    # A gap of 1e-5 tol costs a few more steps, and mostly satisfies LIBSVM's rule too.
    result = solve_by_driver(problem, InteriorPoint(tol=1e-5 * tol)).judged(tol, operator.definite)
    gap = float(result.certificate.relative_gap)
    if result.status == Status.CONVERGED:
        return result
    if before is None and (gap <= MEASURED.acceptable_gap or result.status == Status.INTERRUPTED):
        return result
    other = by_pairs(most) if before is None else before
    return result if gap <= float(other.certificate.relative_gap) else other


def recertified(data: BoxData, dual_coef: np.ndarray, product: np.ndarray) -> tuple[float, Certificate]:
    """Return the constant and the certificate of coefficients for other kernel values; call it with x64 on.

    Args:
        data: The problem.
        dual_coef: `y a`, `(n,)`.
        product: `K (y a)`, `(n,)`, with the other kernel values.
    """
    a, s = data.y * dual_coef, data.y * (product + data.offset * dual_coef.sum())
    bias, certificate = jax.tree.map(np.asarray, _assessed(data.arrays, a, s, data.offset))
    return float(bias), certificate


@functools.partial(jax.jit, static_argnames="offset")
def _assessed(arrays: Any, a: Array, s: Array, offset: float) -> Any:
    result = box_problem_of(None, arrays, offset).certified(a, s, a.dtype)
    return result.bias, result.certificate


def solve_by_driver(
    problem: Problem, how: Any, init: Any = None, steps: int = 0, callback: Callable[[Fit], Any] | None = None
) -> Solved:
    """Solve a problem by the driver of `jaxsvm.fit`, without its warnings.

    The driver gives no warning, rather than a filter that removes it: filters apply to all threads.

    Args:
        problem: Any problem of the library.
        how: A solver, or the relative duality gap to reach by the solvers that the driver chooses.
        init: Dual variables to start from, `(n,)`, or None.
        steps: Steps taken before, which count in the result.
        callback: Called with the best certified fit on the way, or None.
    """
    chosen = not isinstance(how, Solver)
    solver = first_choice(problem, how) if chosen else how
    options = Options(warns=False, may_change=chosen)
    fit = drive(problem, solver, jax.random.key(0), init, callback=callback, options=options)
    return solved_of(fit, steps + max(int(fit.counters.toward), int(fit.steps)))


def solved_of(fit: Any, steps: int) -> Solved:
    """Return a `jaxsvm.Fit` as NumPy arrays."""
    certificate = jax.tree.map(np.asarray, fit.certificate)
    coef = np.asarray(fit.dual_coef, np.float64)
    return Solved(coef, float(fit.bias), certificate, steps, Status(int(fit.status)))


def box_problem_of(
    gram: Gram | None, arrays: Any, offset: float = 0.0, C: Any = None, diagonal: Any = None
) -> BoxProblem:  # noqa: N803
    """Return the problem of `BoxData.arrays`, without the checks of `jaxsvm.box_problem`; traceable.

    Args:
        gram: Its Gram operator; None where only a certificate is computed.
        arrays: y, q, upper, c, e.
        offset: 1.0 with a regularised bias, else 0.0.
        C: The value that the problem reports, `()`; None: 1.
        diagonal: `K_ii + offset`, `(n,)`; None computes it, or takes 0 without a Gram operator.
    """
    y, q, upper, c, e = arrays
    y = jnp.asarray(y)
    one = jnp.ones((), y.dtype)
    weight = jnp.asarray(upper) if C is None else jnp.asarray(upper) / C
    c, C = None if c is None else jnp.asarray(c), one if C is None else C
    if diagonal is None:
        diagonal = jnp.zeros_like(y) if gram is None else gram.diag().astype(y.dtype) + offset
    q, e, zero = jnp.asarray(q), jnp.asarray(e), 0 * one
    return BoxProblem(cast(Gram, gram), y, q, weight, c, e, C, zero, diagonal, one > 0, offset)


@functools.partial(jax.jit, static_argnames="offset")
def _solved(gram: Gram, arrays: Any, a: Array, s: Array, tol: Array, bounds: Array, floor: Array, offset: float) -> Any:
    """Return a, s, pair steps, working sets, whether to go on, and alpha, coefficients, bias and certificate of a."""
    problem = box_problem_of(gram, arrays, offset)
    at_once = gram.stored and problem.n <= MEASURED.samples_at_once
    a, s, *progress = (_at_once if at_once else _by_sets)(problem, a, s, tol, bounds, floor)
    result = problem.certified(a, s, a.dtype)
    known = relative_to(result.certificate, floor)
    return a, s, *progress, result.alpha, result.dual_coef, result.bias, known


def _violation_and_gap(problem: BoxProblem, a: Array, s: Array, floor: Array) -> tuple[Array, Array]:
    """Return the violation, and the gap relative to the dual value or `floor`."""
    top, bottom = ends(problem, a, s)
    certificate = problem.certificate(a, s, (top + bottom) / 2 if problem.free_bias else None)
    gap = relative_to(certificate, floor).relative_gap
    return top - bottom, jnp.where(top - bottom <= ROUNDING_OF_ZERO, 0, gap)


def _at_once(problem: BoxProblem, a: Array, s: Array, tol: Array, bounds: Array, floor: Array) -> tuple[Array, ...]:
    """Solve on all samples as one working set: reduce the violation tenfold until the gap is small too."""
    c = jnp.ones_like(a) if problem.c is None else problem.c
    sign, end = problem.y / c, c * problem.upper
    K = (cast(DenseGram, problem.gram).K.astype(a.dtype) + problem.offset) * jnp.outer(sign, sign)
    low, high = jnp.minimum(0, end), jnp.maximum(0, end)
    steps_of = pair_steps if problem.free_bias else double_steps

    def round(state: tuple[Array, Array, Array], left: Array) -> tuple[Any, Array, Array]:
        v, s, violation = state
        most = jnp.minimum(left, MEASURED.steps_per_sample * problem.n)
        v, _, more = steps_of(K, low, high, v, (problem.q - s) / c, violation, most)
        s = c * (K @ v)
        excess = _violation_and_gap(problem, _of(v), s, floor)[1] / tol
        violation = violation / 10
        # A violation of 1e-7 tol is at the rounding of float64.
        return (v, s, violation), more, jnp.where(violation > tol * 1e-7, excess, 0)

    def _of(v: Array) -> Array:
        return jnp.where(v == end, problem.upper, jnp.clip(v / c, 0, problem.upper))

    (v, s, _), steps, excess = solve_whole(round, (c * a, s, tol), bounds[0], jnp.asarray(jnp.inf, a.dtype))
    return _of(v), s, steps, 0 * steps, excess > 1


def _by_sets(problem: BoxProblem, a: Array, s: Array, tol: Array, bounds: Array, floor: Array) -> tuple[Array, ...]:
    """Solve by working sets: only their kernel rows are read."""
    # Measured on pairs of digits, letters and MNIST's classes.
    size = 128 if problem.n <= 1024 else 256 if problem.n <= 4096 else 512
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
