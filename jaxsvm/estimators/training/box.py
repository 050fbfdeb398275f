"""Box problems of up to some thousand samples, many of them: one compiled program a size class, no driver between.

`jaxsvm.fit` looks up four times a second, tells what it sees and changes its mind; for 325 problems of some hundred
samples each, that takes longer than the problems. Here a whole solve, working sets and their certificate, is one
program, which several threads call. It solves in float64 with kernel values as they come (float32 ones are LIBSVM's
own choice), and stops by both rules: a relative duality gap of `tol`, and LIBSVM's, a violation of the optimality
conditions of `tol`. What does not end so goes on in `jaxsvm.fit`.

Linear machines of few features are solved by interior points in their space from the start: pair steps took seconds
there at C = 100, and at C = 1e4 did not end.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from jaxsvm.gram.build import gram as gram_of
from jaxsvm.gram.contract import Gram
from jaxsvm.gram.dense import DenseGram
from jaxsvm.kernels import Linear
from jaxsvm.loop.choice import first_choice
from jaxsvm.loop.driver import drive
from jaxsvm.problems.box import BoxProblem
from jaxsvm.problems.contract import Problem
from jaxsvm.problems.definiteness import negative_curvature
from jaxsvm.results.fit import Certificate, Status
from jaxsvm.results.judge import refused, relative_to
from jaxsvm.solvers.box.interior_point import InteriorPoint
from jaxsvm.solvers.contract import Solver
from jaxsvm.solvers.working_set import WorkingSet
from jaxsvm.solvers.working_set.block import double_steps, pair_steps
from jaxsvm.solvers.working_set.members import ends

LARGEST = 8192
"""Samples of a problem that are solved here."""
AT_ONCE = 512
"""Samples of a problem with all kernel values at hand that are one working set."""
STEPS_PER_SAMPLE = 500
TIGHTEST = 1e-7
MOST_SETS = 1000
"""Working sets after which `jaxsvm.fit` goes on."""
FEATURES, SAMPLES_EACH = 64, 10
"""Of a linear kernel: d, or samples a feature, up to and from which interior points in their space are its solver."""
LEAST_FEATURES = 16
"""Features are padded to twice as many, and so on: programs are shared."""
NEARLY = 0.01
"""A relative gap where they end early, at the floor of float64, that pair steps did not make smaller in minutes."""
CLOSER = 1e-5
"""They go on to this share of the gap that is asked for, which costs a few steps: LIBSVM's rule is mostly as strict."""
NO_LIMIT = 2**30
NOTHING = 1e-12
"""A violation, or a gap where the optimum is 0, that counts as none."""


class BoxData(NamedTuple):
    """`max q'a - a'Qa/2`, `0 <= a <= upper`, `c'a = e`, `Q_ij = y_i y_j (K_ij + offset)`, as NumPy arrays.

    Attributes:
        y: Signs, `(n,)`.
        q: The linear term, `(n,)`.
        upper: Upper bounds, `(n,)`; 0 for an absent sample.
        c: Coefficients of the equality, `(n,)`, or None.
        e: Its right-hand side.
        start: A feasible point, `(n,)`, or None: 0 is one.
        offset: 1.0 with a regularised bias, else 0.0.
    """

    y: np.ndarray
    q: np.ndarray
    upper: np.ndarray
    c: np.ndarray | None
    e: float = 0.0
    start: np.ndarray | None = None
    offset: float = 0.0


class Solved(NamedTuple):
    """What comes of it, as NumPy's.

    Attributes:
        dual_coef: Coefficients of the decision function, `y a`, `(n,)`.
        bias: Its constant.
        certificate: Of both.
        steps: Pair steps.
        status: How it ended.
    """

    dual_coef: np.ndarray
    bias: float
    certificate: Certificate
    steps: int
    status: Status


def solve_box(
    gram: Gram, data: BoxData, tol: float, max_iter: int = -1, start_product: Any = None, floor: float | None = None
) -> Solved:
    """Solve a box problem; inside x64.

    Args:
        gram: Its Gram operator, of n points.
        data: The problem.
        tol: The relative duality gap, and the largest violation, that end it, > 0.
        max_iter: A cap on pair steps, looked at between working sets; -1: none.
        start_product: `K (y start)`, `(n,)`, where there is a start.
        floor: Objectives below it count as 0: a gap is relative to no less. None: `NOTHING`, or of small losses (at a
            tiny C) that share of them.

    Returns:
        The answer, with a status other than CONVERGED where it is not certified to `tol`.
    """
    a = np.zeros(len(data.y)) if data.start is None else data.start
    s = np.zeros(len(data.y)) if start_product is None else data.y * start_product
    limit = NO_LIMIT if max_iter < 0 else max_iter
    floor = NOTHING * min(1.0, float(data.upper @ np.abs(data.q))) if floor is None else floor
    arrays = (data.y, data.q, data.upper, data.c, np.float64(data.e))
    found = _solved(gram, arrays, a, s, np.float64(tol), np.int32(limit), np.float64(floor), data.offset)
    alpha, dual_coef, bias, certificate, steps = jax.tree.map(np.asarray, found)
    # Of a problem whose optimum is 0 the gap is relative to nothing.
    certified = float(certificate.relative_gap) <= tol
    if certified or steps >= limit:
        status = Status.CONVERGED if certified else Status.MAX_STEPS
        return on_definite(gram, data, Solved(dual_coef, float(bias), certificate, int(steps), status))
    return solve_further(_problem(gram, arrays, data.offset), tol, alpha, int(steps))


def is_indefinite(gram: Gram, data: BoxData) -> bool:
    """Whether a problem's matrix, which no kernel vouches for, is indefinite where its points can move; inside x64."""
    if gram.definite:
        return False
    arrays = (data.y, data.q, data.upper, data.c, np.float64(data.e))
    return bool(_curvature(gram, arrays, data.offset))


@functools.partial(jax.jit, static_argnames="offset")
def _curvature(gram: Gram, arrays: Any, offset: float) -> Any:
    return negative_curvature(_problem(gram, arrays, offset))


def on_definite(gram: Gram, data: BoxData, found: Solved) -> Solved:
    """An answer as it is, or, of an indefinite matrix, without a certificate: there a gap proves nothing."""
    if not is_indefinite(gram, data):
        return found
    certificate: Any = jax.tree.map(np.asarray, refused(found.certificate, True))
    return found._replace(certificate=certificate, status=Status.NOT_PSD)


def few_features(x: Any, n: int) -> bool:
    """Whether a linear machine on n samples of these points `(n, d)` is solved by interior points."""
    return x.shape[1] <= min(n / 2, max(FEATURES, n / SAMPLES_EACH))


def solve_in_features(x: np.ndarray, data: BoxData, tol: float, by_pairs: Callable[[int], Solved]) -> Solved:
    """Solve a box problem of a linear kernel by interior points in the space of its features; inside x64.

    One that is a single working set is left to pair steps first: mostly they take no time.

    Args:
        x: The points, `(n, d)`, of absent samples anything finite.
        data: The problem; its start is not looked at.
        tol: The relative duality gap that is asked for, > 0.
        by_pairs: From a cap on steps to the answer of pair steps.

    Returns:
        As `solve_box`, the better of both answers.
    """
    most = STEPS_PER_SAMPLE * len(data.y)
    before = by_pairs(most) if len(data.y) <= AT_ONCE else None
    if before is not None and before.status == Status.CONVERGED:
        return before
    size = LEAST_FEATURES
    while size < x.shape[1]:
        size *= 2
    operator = gram_of(Linear(), np.pad(np.asarray(x, np.float64), ((0, 0), (0, size - x.shape[1]))))
    problem = _problem(operator, (data.y, data.q, data.upper, data.c, np.float64(data.e)), data.offset)
    found = solve_further(problem, InteriorPoint(tol=CLOSER * tol))
    gap = float(found.certificate.relative_gap)
    if gap <= tol:
        return found._replace(status=Status.CONVERGED)
    if gap <= NEARLY and before is None:
        return found
    other = by_pairs(most) if before is None else before
    return found if gap <= float(other.certificate.relative_gap) else other


def recertified(data: BoxData, dual_coef: np.ndarray, product: np.ndarray) -> tuple[float, Certificate]:
    """The constant and certificate of coefficients whose products with other kernel values are at hand; inside x64.

    Args:
        data: The problem.
        dual_coef: `y a`, `(n,)`.
        product: `K (y a)`, `(n,)`.
    """
    arrays = (data.y, data.q, data.upper, data.c, np.float64(data.e))
    a, s = data.y * dual_coef, data.y * (product + data.offset * dual_coef.sum())
    bias, certificate = jax.tree.map(np.asarray, _assessed(arrays, a, s, data.offset))
    return float(bias), certificate


@functools.partial(jax.jit, static_argnames="offset")
def _assessed(arrays: Any, a: Array, s: Array, offset: float) -> Any:
    answer = _problem(None, arrays, offset).certified(a, s, a.dtype)
    return answer.bias, answer.certificate


def solve_further(problem: Problem, how: Any, init: Any = None, steps: int = 0) -> Solved:
    """Solve a problem as `jaxsvm.fit` does, to a relative duality gap or by a solver; warnings are left to the caller.

    Not by silencing those of `fit`: filters of warnings are those of all threads.
    """
    chosen = not isinstance(how, Solver)
    solver = first_choice(problem, how) if chosen else how
    found = drive(problem, solver, jax.random.key(0), init, warn=False, may_change=chosen)
    certificate = jax.tree.map(np.asarray, found.certificate)
    steps += max(int(found.counters.toward), int(found.steps))
    coef = np.asarray(found.dual_coef, np.float64)
    return Solved(coef, float(found.bias), certificate, steps, Status(int(found.status)))


def _problem(gram: Gram | None, arrays: Any, offset: float) -> BoxProblem:
    y, q, upper, c, e = arrays
    y = jnp.asarray(y)
    one = jnp.ones((), y.dtype)
    return BoxProblem(
        gram=cast(Gram, gram),
        y=y,
        q=jnp.asarray(q),
        upper=jnp.asarray(upper),
        c=None if c is None else jnp.asarray(c),
        e=jnp.asarray(e),
        C=one,
        constant=0 * one,
        diagonal=jnp.zeros_like(y) if gram is None else gram.diag().astype(y.dtype) + offset,
        mask=None,
        feasible=one > 0,
        offset=offset,
    )


@functools.partial(jax.jit, static_argnames="offset")
def _solved(gram: Gram, arrays: Any, a: Array, s: Array, tol: Array, limit: Array, floor: Array, offset: float) -> Any:
    """Alpha, coefficients, bias, certificate and pair steps."""
    problem = _problem(gram, arrays, offset)
    solve = _at_once if gram.stored and problem.n <= AT_ONCE else _by_sets
    a, s, steps = solve(problem, a, s, tol, limit, floor)
    answer = problem.certified(a, s, a.dtype)
    return answer.alpha, answer.dual_coef, answer.bias, relative_to(answer.certificate, floor), steps


def _gap(problem: BoxProblem, a: Array, s: Array, floor: Array) -> tuple[Array, Array]:
    """The violation, and the gap relative to the dual value or `floor`."""
    top, bottom = ends(problem, a, s)
    certificate = problem.certificate(a, s, (top + bottom) / 2 if problem.free_bias else None)
    gap = relative_to(certificate, floor).relative_gap
    return top - bottom, jnp.where(top - bottom <= NOTHING, 0, gap)


def _at_once(problem: BoxProblem, a: Array, s: Array, tol: Array, limit: Array, floor: Array) -> tuple[Array, ...]:
    """All samples are one working set; its violation is made smaller until the gap is small too."""
    c = jnp.ones_like(a) if problem.c is None else problem.c
    sign, end = problem.y / c, c * problem.upper
    K = (cast(DenseGram, problem.gram).K.astype(a.dtype) + problem.offset) * jnp.outer(sign, sign)
    low, high = jnp.minimum(0, end), jnp.maximum(0, end)
    steps_of = pair_steps if problem.free_bias else double_steps

    def turn(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        v, s, steps, violation, _ = carry
        most = jnp.minimum(limit - steps, STEPS_PER_SAMPLE * problem.n)
        v, _, more = steps_of(K, low, high, v, (problem.q - s) / c, violation, most)
        s = c * (K @ v)
        return v, s, steps + more, violation / 10, _gap(problem, _of(v), s, floor)[1]

    def _of(v: Array) -> Array:
        return jnp.where(v == end, problem.upper, jnp.clip(v / c, 0, problem.upper))

    start = (c * a, s, jnp.zeros((), jnp.int32), tol, jnp.asarray(jnp.inf, a.dtype))
    v, s, steps, _, _ = lax.while_loop(
        lambda carry: (carry[4] > tol) & (carry[2] < limit) & (carry[3] > tol * TIGHTEST), turn, start
    )
    return _of(v), s, steps


def _by_sets(problem: BoxProblem, a: Array, s: Array, tol: Array, limit: Array, floor: Array) -> tuple[Array, ...]:
    """Working sets, whose kernel rows alone are looked at."""
    size = set_size(problem.n)
    solver = WorkingSet(tol=tol, size=size, fresh=size // 2)

    def turn(carry: tuple[Any, Array]) -> tuple[Any, Array]:
        state = solver.step(problem, carry[0])
        return state, jnp.maximum(*_gap(problem, state.a, state.s, floor)) / tol

    def goes_on(carry: tuple[Any, Array]) -> Array:
        counters = carry[0].counters
        return (carry[1] > 1) & (counters.steps < MOST_SETS) & (counters.toward < limit)

    state = solver.begun(problem, {"a": a, "s": s, "exact": None})
    state, _ = lax.while_loop(goes_on, turn, (state, jnp.asarray(jnp.inf, a.dtype)))
    return state.a, state.s, state.counters.toward


def set_size(n: int) -> int:
    """Samples of a working set: measured on pairs of digits, letters and MNIST's classes."""
    return 128 if n <= 1024 else 256 if n <= 4096 else 512
