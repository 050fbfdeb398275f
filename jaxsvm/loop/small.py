"""Solve a small hinge at all values of C by one program, and its certificates by another.

The drivers check a fit several times a second and may change its solver: for 325 problems of some hundred samples each
that takes longer than the problems. So a solve is one program, which threads call (`solve_many`), again and again if it
is long: Ctrl-C is seen between calls. A chain over C (`small_chains`) works in float64 until the gap is `tol`.
"""

import concurrent.futures
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from jaxsvm.gram.operators import DenseGram, Gram, part_of, values_between
from jaxsvm.loop.interruption import Interruption, result_of, with_settings, workers
from jaxsvm.loop.measured import MEASURED
from jaxsvm.numerics.precision import in_double, widened
from jaxsvm.numerics.sizes import padded_size
from jaxsvm.problems.box import BoxProblem
from jaxsvm.results.fit import Answer, Counters, Fit, Status, StatusCode, bit_of, limbs_of
from jaxsvm.results.judge import concluded, in_dtype
from jaxsvm.runtime.arrays import on_device, zero_filled
from jaxsvm.runtime.loops import in_rounds
from jaxsvm.runtime.programs import Program, compiled_ahead
from jaxsvm.solvers.box.sequential_minimal_optimization import SMO
from jaxsvm.solvers.working_set_block import block_steps, middle_of_block

STEPS_OF_A_CHECK = 16  # pair steps of a chain between looks at the gap
VALUES_OF_A_PIECE = 24  # values of C in one call of a chain, at most: Ctrl-C is seen between calls
MOST_STEPS_OF_A_VALUE = 50_000  # pair steps of one of them, after which another engine continues
STEPS_BEFORE_SETS = 2_000  # the same, of more than `samples_at_once`: steps on sets are shorter than those on all
MOST_STEPS_A_SAMPLE = 16  # pair steps of a fit for each sample: working sets are faster where it takes more


def solve_many(
    solve: Callable[[Any], Any], problems: Sequence[Any], ended: Callable[[int, Any], Any] = lambda _, it: it
) -> list[Any]:
    """Return `solve` of each problem, in order, computed by one thread per core, with this thread's settings of JAX.

    This thread calls `ended` with place and result of each, and returns what that returns.
    """
    if workers() < 2 or len(problems) < 2:
        return [ended(place, solve(problem)) for place, problem in enumerate(problems)]
    with concurrent.futures.ThreadPoolExecutor(workers()) as pool:
        found = [pool.submit(with_settings(solve), problem) for problem in problems]
        return [ended(place, result_of(job)) for place, job in enumerate(found)]


def small_chains(problem: BoxProblem, weights: np.ndarray, Cs: np.ndarray, tol: Any, stop: Interruption) -> Fit | None:
    """Return fits of a concrete hinge problem with several weights of its samples, `(m, n)`, at values of C, `(k,)`.

    They have axes of m and k, on the host, in the order of both. Those that are not certified to `tol` are RUNNING, as
    are those after Ctrl-C. None if the problem is not for it (`_small_machine`), or nothing was solved.
    """
    weights = np.asarray(weights, problem.dtype)
    rows = np.flatnonzero((weights > 0).any(axis=0))
    if (machine := _small_machine(problem, weights, rows)) is None:
        return None
    order, pieces, m = np.argsort(Cs, kind="stable"), -(-len(Cs) // VALUES_OF_A_PIECE), len(weights)
    size = -(-len(Cs) // (2 * pieces)) * 2 if len(Cs) > 1 else 1  # even: similar numbers of values share programs
    values = np.pad(np.asarray(Cs, np.float64)[order], (0, -len(order) % size), mode="edge")
    calls = m if workers() > 1 else 1  # of all weights where threads share no work: one costs a millisecond of Python
    shares = zero_filled(weights[:, rows].T.astype(float), machine.n).T.reshape(calls, -1, machine.n)
    zero, one, each = np.zeros(shares.shape[1:]), np.ones(m // calls), np.zeros((m // calls, size))
    nothing = np.zeros((*each.shape, machine.n)), each + 1, each, each.astype(np.int32)
    solved, points = [], calls * [(zero, zero, values[0] * one, (one, 0 * one, one < 0), one < 0)]
    goal = np.float64((1.0 if problem.dtype == np.float64 else 0.8) * tol)  # answers in float32 are rounded
    spare = 1 + np.float64(min(64 * float(jnp.finfo(problem.dtype).eps), float(tol) / 10))  # a gap of twice it
    cap = MOST_STEPS_OF_A_VALUE if len(rows) <= MEASURED.samples_at_once else STEPS_BEFORE_SETS
    most = min((MEASURED.steps_per_sample if size > 1 else MOST_STEPS_A_SAMPLE) * machine.n, cap)
    bounds = values[-1], goal, np.int32(most), spare

    def solve(call: int) -> Any:
        if stop.seen:
            return nothing
        points[call], found = _chains(machine, shares[call], piece, points[call], bounds)
        return jax.tree.map(np.asarray, found)

    def certifying(Cs: np.ndarray, found: Sequence[Any]) -> tuple[Any, ...]:
        """Return the arguments of `_certified`: as many rows as there are weights and values."""
        coef, length, biases, steps = map(np.concatenate, zip(*found, strict=True))
        wanted, at = np.zeros((m, size, 2, problem.n), problem.dtype), Cs.astype(problem.dtype)
        wanted[..., 1, rows] = np.minimum(np.abs(coef[..., : len(rows)]), at[:, None] * weights[:, None, rows])
        wanted[..., 0, :] = length[..., None] * wanted[..., 1, :]
        read = [machine.n**2 * (not solved and not place) for place in range(m * size)]  # values serve all weights
        parts = np.repeat(weights, size, axis=0), np.tile(at, m), biases.ravel(), wanted.reshape(-1, 2, problem.n)
        return problem, *parts, (steps.ravel(), limbs_of(read)), np.asarray(tol)

    wait = compiled_ahead(
        lambda: [(_certified, *certifying(values[:size], calls * [nothing]))], problem, weights, values[:size]
    )
    for piece in values.reshape(-1, size):
        if stop.seen:
            break
        with jax.enable_x64(True):
            found = solve_many(solve, range(calls))
        wait()
        fits = _certified(*certifying(piece, found))
        solved.append(jax.tree.map(lambda leaf: np.asarray(leaf).reshape(m, size, *leaf.shape[1:]), fits))
    if not solved:
        return None
    done, places = size * len(solved), np.argsort(order)
    fits: Fit = jax.tree.map(lambda *of: np.concatenate(of, axis=1)[:, np.minimum(places, done - 1)], *solved)
    codes: Any = np.where(places < done, fits.status.code, np.int32(Status.RUNNING))
    return dataclasses.replace(fits, status=StatusCode(codes))


def _small_machine(problem: BoxProblem, weights: np.ndarray, rows: np.ndarray) -> BoxProblem | None:
    """Return a hinge problem at C = 1 on stored values of the samples `rows`, which have a weight, padded, in float64.

    None of many samples, a kernel that may be indefinite or has features, an equality other than that of a hinge.
    """
    few = len(rows) <= MEASURED.samples_of_a_small_problem and bool((weights > 0).any(axis=1).all())
    usable = problem.groups is None and problem.gram.definite and problem.gram.feature_rows is None
    if not (few and usable and jax.default_backend() == "cpu"):
        return None
    n, size, free = len(rows), padded_size(len(rows)), problem.c is not None
    if free and (float(problem.e) != 0 or (np.asarray(problem.c) != np.asarray(problem.y))[rows].any()):
        return None
    y, q, squares = np.ones(size), np.ones(size), np.zeros(size)
    y[:n], q[:n] = (np.asarray(part)[rows] for part in (problem.y, problem.q))
    K = _values(problem.gram, np.append(rows, np.repeat(rows[:1], size - n)), problem.offset)
    one, zero = np.ones(()), np.zeros(())
    parts: Any = on_device((y, q, squares, y if free else None, zero, one, zero, squares, np.asarray(True)))
    return cast(Any, BoxProblem)(part_of(problem.gram, K), *parts, 0.0)


@Program.full()
def _values(gram: Gram, samples: Array, offset: float) -> Array:
    """Return the kernel values between samples, and the offset, in float64: each chain would write them anew."""
    return in_double(lambda gram, samples: values_between(gram, samples).astype(np.float64) + offset)(gram, samples)


@Program
def _certified(
    problem: Any, weights: Array, Cs: Array, biases: Array, points: Array, work: tuple[Array, Array], tol: Array
) -> Fit:
    """Return the fits of w and dual variables, `(k, 2, n)`, of weights, `(k, n)`, at C, `(k,)`; RUNNING above `tol`.

    Biases, `(k,)`, are given: to find the best ones is a sort, which takes three quarters of the time.
    """

    @in_double
    def certified(problem: Any, *lanes: Array) -> Answer:
        def at(weight: Array, C: Array, bias: Array, point: Array) -> Answer:
            here = widened(dataclasses.replace(problem, weight=weight).at(C))
            point = point.astype(here.dtype)
            return in_dtype(here.certified(point, here.matvec(point), problem.dtype, bias), problem.dtype)

        return jax.vmap(at)(*lanes)

    def fit(answer: Answer, steps: Array, read: Array) -> Fit:
        counters = Counters.zero()._replace(steps=steps, toward=steps, evaluations=read, solvers=bit_of(SMO()))
        return concluded(answer, tol, counters, definite=True, otherwise=Status.RUNNING)

    return jax.vmap(fit)(certified(problem, weights, Cs, biases, points), *work)


@Program
def _chains(machine: BoxProblem, weights: Array, Cs: Array, points: Any, bounds: tuple[Array, ...]) -> tuple[Any, Any]:
    """Return, of each of several weights, the next point, and of increasing C coefficients, lengths, biases and steps.

    As C grows, coefficients at the upper bound stay there, and all others are scaled with it. A point is `y a`, its
    product, its C, its length, its bias and whether it serves all larger values (no sample is at its bound), and
    whether a value took more than its steps: all later ones are left out then. A length is by how much w has to be
    longer: without a sample at its bound rounding leaves losses, which any C multiplies. `bounds` are the largest C of
    all pieces, the gap, the most steps of a value, and a factor of lengths.
    """
    y, q, (largest, tol, most, spare) = machine.y, machine.q, bounds
    K = cast(DenseGram, machine.gram).K

    def solved(weight: Array, before: Any, C: Array) -> Any:
        v, product, C_before, (*how, serves), failed = before
        problem = dataclasses.replace(machine, weight=weight, C=C)
        box = jnp.minimum(0, y * problem.upper), jnp.maximum(0, y * problem.upper)
        by, full = C / C_before, y * v >= C_before * weight * (1 - 8 * jnp.finfo(y.dtype).eps)
        grown = jnp.where(serves, v, y * jnp.where(full, problem.upper, jnp.minimum(y * v * by, problem.upper)))
        product = product * jnp.where(serves, 1, by)

        def round(state: tuple[Array, ...], left: Array) -> tuple[Any, Array, Array]:
            del left
            v, pull, more = block_steps(K, *box, state[0], state[1], 0.0, STEPS_OF_A_CHECK, problem.free_bias)
            middle, violation = middle_of_block(*box, v, pull, problem.free_bias)
            a, r = y * v, y * (pull - middle)
            dual = jnp.maximum(a @ (q + y * pull) / 2, jnp.finfo(y.dtype).tiny)
            gap = (problem.upper - a) @ jnp.maximum(0, r) + a @ jnp.maximum(0, -r)
            # What no bound holds back serves all larger values too, whose losses cost more.
            held, longer = ((a >= problem.upper) & (weight > 0)).any(), problem.scale_without_loss(q - r)
            goal = 0.9 * tol * jnp.where(held, 1, C / largest)  # less than `tol`: products are rounded
            length = jnp.where(held | ~jnp.isfinite(longer), 1, spare * longer)
            return (v, pull, length, length * middle, ~held), more, jnp.where(violation > 0, gap / dual / goal, 0)

        start: Any = (grown, y * q - product, *how, serves), jnp.where(failed, 0, most), jnp.where(serves, 0, jnp.inf)
        (v, pull, *how, serves), steps, over = in_rounds(round, *start)
        return (v, y * q - pull, C, (*how, serves), failed | (over > 1)), (v, *how, steps)

    return lax.map(lambda chain: lax.scan(lambda *of: solved(chain[0], *of), chain[1], Cs), (weights, points))
