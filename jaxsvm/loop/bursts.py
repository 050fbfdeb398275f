"""Run a solver on the host: compiled bursts of steps and, between them, the clock, the callback and Ctrl-C.

A start, a burst and a certificate are programs of their own: one that is not needed is not compiled, and the others are
compiled in parallel.
"""

import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxsvm.loop.interruption import Interruption, unless
from jaxsvm.loop.measured import MEASURED
from jaxsvm.loop.round import (
    Certifying,
    Progress,
    begin,
    can_correct,
    certificate_due,
    certify,
    finish,
    last_steps,
    needs_correction,
    steps_taken,
    whole_chunks,
    with_earlier_steps,
)
from jaxsvm.numerics.precision import in_double, widened
from jaxsvm.problems.contract import Problem, Restrictable
from jaxsvm.problems.slack import SlackProblem
from jaxsvm.results.fit import Answer, Fit, Status
from jaxsvm.results.judge import in_dtype, judged
from jaxsvm.runtime.programs import BRIEF, Program, compiled_ahead
from jaxsvm.solvers.contract import NEVER, Solver

# --- the loop


def run(
    problem: Problem,
    solver: Solver,
    progress: Progress,
    stop: Interruption,
    callback: Callable[[Fit], Any] | None,
    successor: Callable[[Progress], Any],
    provisional: bool,
    due: int = NEVER,
    awaited: int = 0,
) -> tuple[Progress, Any]:
    """Run bursts of steps from `progress` until the fit ends, must stop, or has a successor, which is returned with it.

    `successor` is called with the progress between bursts; what it returns continues the fit, unless it is None. Bursts
    end at `due`, the steps after which a finisher is to go on, so that seconds do not decide when it does; before
    `awaited` steps a fit that awaits its finisher is not hopeless. The status is RUNNING only if there is a successor.
    """
    chunks, evaluations_shown, certifiable, told_to_stop = 1, -math.inf, False, False
    mark, shown = (0, math.inf), None if callback is None else finish(solver, progress)
    running = int(progress.status) == Status.RUNNING and not stop.came
    while running:
        try:
            before, steps = time.monotonic(), int(steps_taken(progress))
            at_cap = steps + solver.check_every > int(solver.max_steps)
            chunks = min(chunks, -(-(due - steps) // solver.check_every)) if steps < due else chunks
            burst, *arguments = _burst_call(problem, solver, progress, chunks, at_cap)
            progress, certifies = burst(*arguments)
            certifies, certifiable, stop.begun = bool(certifies), True, True
            if certifies:
                progress = _certified(problem, solver, progress, provisional, lambda: stop.seen)
            elif callback is not None and _worth_showing(problem, progress, evaluations_shown):
                passing = progress._replace(stalled=jnp.zeros_like(progress.stalled))  # no end comes of it
                passing = _certified(problem, solver, passing, provisional, lambda: stop.seen)
                progress = progress._replace(best=passing.best)
                certifies, evaluations_shown = True, progress.state.counters.total
            jax.block_until_ready(progress)
            seconds = time.monotonic() - before
            if certifies:
                progress, mark = _ended_if_hopeless(problem, solver, progress, mark, awaited)
            if int(progress.status) == Status.RUNNING and not stop.seen:
                following = successor(progress)
                if following is not None:
                    return progress, following
            if callback is not None:  # then each burst is one chunk
                if certifies:
                    shown = finish(solver, progress)
                elif solver.traits.carries_sums and problem.of_level:
                    current = level_program(cast(SlackProblem, problem), solver, progress)
                    shown = finish(solver, progress._replace(best=current))
                told_to_stop = callback(cast(Fit, shown)) is True
            else:
                used = (int(steps_taken(progress)) - steps) // solver.check_every
                chunks = next_burst(chunks, used, seconds)
        except KeyboardInterrupt:  # raised by a callback, or by a handler of the user's own
            stop.note()
        running = int(progress.status) == Status.RUNNING and not (told_to_stop or stop.seen)
    if int(progress.status) == Status.RUNNING:
        progress = _stopped(problem, solver, progress, provisional, certifiable)
    return progress, None if stop.seen else successor(progress)


def _ended_if_hopeless(
    problem: Problem, solver: Solver, progress: Progress, mark: tuple[int, float], awaited: int = 0
) -> tuple[Progress, tuple[int, float]]:
    """Return the progress, ended if the cap on steps comes before its gap is small, and the next mark.

    A mark is a number of steps and the gap after them; the next one comes after twice as many. At the rate since the
    mark (digits a step, which only linear convergence keeps up) the steps to `tol` are known. Part of the cap, more
    where the gap proves something, and some steps for each sample come first: rates of the beginning say nothing.
    Solvers that never stall take the steps that they were asked for. Rates of 1 / steps are not STALLED.
    """
    steps, gap, (before, at_mark) = int(steps_taken(progress)), float(progress.best.certificate.relative_gap), mark
    if int(progress.status) != Status.RUNNING or steps < 2 * before or solver.patience >= NEVER:
        return progress, mark
    cap = int(solver.max_steps)
    least = max(MEASURED.steps_before_hopeless, MEASURED.steps_a_sample_before_hopeless * problem.n, awaited)
    early = steps < max(cap / MEASURED.parts_before_hopeless[gap < 1], least)
    if not early and before and is_far(gap, solver):
        digits, missing = math.log(at_mark / gap) if gap < at_mark else 0.0, math.log(gap / float(solver.tol))
        if missing * (steps - before) > digits * (cap - steps):
            status = Status.STALLED if gap >= 1 else Status.MAX_STEPS
            return progress._replace(status=jnp.asarray(np.int32(status))), mark
    return progress, (steps, gap)


def is_far(gap: float, solver: Solver) -> bool:
    """Return whether a gap is two digits above the solver's `tol`, or proves nothing."""
    return gap >= min(1.0, MEASURED.far_from_tol * float(solver.tol))


def begun(problem: Problem, solver: Solver, key: Array, start: Any, init: Any, provisional: bool) -> Progress:
    """Return the progress at the start; every program that a fit needs is compiled by then.

    The solver starts at `start` (`start_of`). If `init` is an unfinished fit, its steps count toward a finisher.
    """
    given = (problem, solver, key, start)
    wait = compiled_ahead(lambda: _first_calls(*given, provisional), *given, provisional)
    progress = _begin_program(start, problem.n)(*given)
    progress = with_earlier_steps(problem, solver, progress, init)
    wait()
    return progress


def _first_calls(
    problem: Problem, solver: Solver, key: Array, start: Any, provisional: bool
) -> Iterator[tuple[Any, ...]]:
    progress = _begin_program(start, problem.n).shapes(problem, solver, key, start)
    yield _burst_call(problem, solver, progress, 1, solver.check_every > int(solver.max_steps))
    yield _certify, problem, solver, progress, Certifying(may_correct=False, provisional=provisional)
    if proves_by_sums(problem, solver):
        yield carried_program, problem, solver, progress


def next_burst(chunks: int, used: int, seconds: float) -> int:
    """Return the chunks of the next burst, after one that took `used` of its chunks in so many seconds.

    A burst is to take about `MEASURED.seconds_of_a_burst`. One that ended early says nothing of a longer one.
    """
    if seconds < MEASURED.seconds_of_a_burst / 2:
        return min(2 * chunks, 2 * max(used, 1))
    return max(chunks // 2, 1) if seconds > 2 * MEASURED.seconds_of_a_burst else chunks


def _stopped(problem: Problem, solver: Solver, progress: Progress, provisional: bool, certifiable: bool) -> Progress:
    """Return the progress of a solve that was stopped, as INTERRUPTED; its point is certified if that is quick.

    Before the first burst nothing is certified, since even that program may not be compiled.
    """
    if certifiable:
        patience = time.monotonic() + MEASURED.seconds_of_a_last_certificate
        by_sums = proves_by_sums(problem, solver)
        if by_sums:
            progress = progress._replace(best=carried_program(cast(Restrictable, problem), solver, progress))
        if problem.n < MEASURED.samples_of_a_last_product or not by_sums:
            progress = _certified(problem, solver, progress, provisional, lambda: time.monotonic() > patience)
    interrupted = jnp.asarray(np.int32(Status.INTERRUPTED))
    return progress._replace(status=interrupted) if int(progress.status) == Status.RUNNING else progress


# --- certificates


def _certified(
    problem: Problem, solver: Solver, progress: Progress, provisional: bool, until: Callable[[], bool]
) -> Progress:
    """Certify the current point; if carried sums prove enough, give up once `until` holds."""
    corrects = can_correct(problem, solver) and needs_correction(problem, solver, progress)
    how = Certifying(may_correct=corrects, provisional=provisional)
    if not proves_by_sums(problem, solver):
        certified = _certify(problem, solver, progress, how)
    else:
        certified = unless(until, _certify, problem, solver, progress, how) or progress
    state = jax.tree.map(
        lambda new, old: old if new is None else new, certified.state, progress.state, is_leaf=lambda leaf: leaf is None
    )
    return certified._replace(state=state)


def _worth_showing(problem: Problem, progress: Progress, evaluations_shown: float) -> bool:
    """Return whether to certify the current point for a callback: of a large problem once steps have cost as much.

    `evaluations_shown` are those up to the last point that it saw.
    """
    product = problem.n * (problem.n if getattr(problem, problem.operator).design is None else 1)
    small = problem.n <= MEASURED.samples_of_a_small_problem
    return small or progress.state.counters.total - evaluations_shown >= product


# --- the programs


# A state comes apart from the rest of the progress: a large one (50 MB of kernel rows) is donated, and its caller drops
# its copy.


def _run(
    problem: Problem, solver: Solver, rest: Progress, state: Any, chunks: Any, at_cap: bool = False
) -> tuple[Progress, Array]:
    """Take up to `chunks` chunks of steps, or at their cap the last ones; return also whether a certificate is due."""
    steps = last_steps if at_cap else partial(whole_chunks, chunks=chunks)
    progress = steps(problem, solver, rest._replace(state=state))
    return progress, certificate_due(solver, progress)


def _certify(problem: Problem, solver: Solver, progress: Progress, how: Certifying) -> Progress:
    """Certify; what of the state stays as it is (50 MB of kernel rows) is None in the result: XLA would copy it."""
    certified = certify(problem, solver, progress, how)
    changed = jax.tree.map(lambda new, old: None if new is old else new, certified.state, progress.state)
    return certified._replace(state=changed)


begin_program = Program(begin)
_fresh_begin = Program(begin, options=BRIEF)
_burst = Program(_run, static=("at_cap",))
_burst_in_place = Program(_run, static=("at_cap",), donated="state")
_long_burst_in_place = Program(_run, options=None, static=("at_cap",), donated="state")
_certify = Program(_certify, static=("how",))


def _begin_program(start: Any, n: int) -> Program:
    """Return the program of a start; small fresh ones are not optimised (12 ms slower for n^2 products)."""
    fresh = not jax.tree.leaves(start)  # None, or an `Origin`
    return _fresh_begin if fresh and n <= MEASURED.samples_of_a_small_problem else begin_program


def _burst_call(problem: Problem, solver: Solver, progress: Progress, chunks: Any, at_cap: bool) -> tuple[Any, ...]:
    """Return the program of a burst and its arguments; a large state is donated."""
    burst = _burst_in_place if problem.n <= MEASURED.samples_of_a_long_row else _long_burst_in_place
    burst = burst if solver.traits.large_state else _burst
    return (burst, problem, solver, progress._replace(state=None), progress.state, chunks, at_cap)


# --- certificates without a product
# A certificate from scratch is a product over all samples, which takes a minute at n = 100,000 if nothing is stored.
# Steps carry the sums `s = Qa` along. With all of their rounding counted against the point the bracket remains true,
# and in float64 is hardly wider.


@in_double
def certified_by_sums(problem: Restrictable, point: Float[Array, " n"], s: Float[Array, " n"], steps: Any) -> Answer:
    """Certify a dual point by `s = Qa`, which was carried along for so many steps.

    Lower margins give a loss that is no smaller, higher sums a dual value that is no
    larger. The square of w changes by at most the error times the sum of the weights, either way.
    """
    wide = widened(problem)
    point = jnp.clip(point, 0, problem.upper if problem.bounded else None)
    off = _off_by(problem, point, s, steps)
    point, s, off = (part.astype(wide.dtype) for part in (point, s, off))
    if not problem.bounded:  # the dual bound is the same at any scale; the primal one is best at this one
        square = (point * s).sum()
        scale = jnp.where(square > 0, point.sum() / jnp.where(square > 0, square, 1), 1)
        point, s, off = scale * point, scale * s, scale * off
    low, high = (wide.certified(point, sums, problem.dtype) for sums in (s - off, s + off))
    more = off * point.sum()
    primal, dual = low.certificate.primal + more, high.certificate.dual - more
    certificate = judged(primal, dual, primal - dual, jnp.abs(dual), rounding=0)
    found = low._replace(margins=(low.margins + high.margins) / 2, certificate=certificate)
    return in_dtype(found, problem.dtype)


@Program
def carried_program(problem: Restrictable, solver: Solver, progress: Progress) -> Answer:
    """Return the certified current point if its gap is smaller than that of the best point; else the best point."""
    point, s = solver.dual_point(problem, progress.state)
    current = certified_by_sums(problem, point, s, steps_taken(progress) - progress.refreshed)
    better = current.certificate.relative_gap < progress.best.certificate.relative_gap
    return jax.tree.map(lambda new, old: jnp.where(better, new, old), current, progress.best)


@Program
@in_double
def level_program(problem: SlackProblem, solver: Solver, progress: Progress) -> Answer:
    """Return the current w of a slack problem, certified by carried responses, with the best bound known.

    Margins are those of the responses; the level is lower by rounding, and unknown if no kernel proves definiteness.
    """
    point, s = solver.dual_point(problem, progress.state)
    wide, best, a = widened(problem), progress.best, jnp.maximum(point[0], 0)
    off = _off_by(problem, a, problem.radius, steps_taken(progress) - progress.refreshed)
    a, c, p, off, primal = (part.astype(wide.dtype) for part in (a, s[0], best.alpha, off, best.certificate.primal))
    length = jnp.sqrt(jnp.maximum(a @ c + off * a.sum(), 1))
    rows = jnp.stack([(c - off) / length, jnp.full_like(c, wide.radius**2)])  # p'Qp is not needed, nor known here
    found = wide.certified(jnp.stack([a / length, p]), rows, problem.dtype)
    low = found.certificate.dual
    bounds = judged(primal, low, primal - low, low, rounding=0, feasible=problem.gram.definite)
    return in_dtype(found._replace(margins=found.margins + off / length / found.R, certificate=bounds), problem.dtype)


def _off_by(problem: Problem, point: Float[Array, " n"], s: Float[Array, " *n"], steps: Any) -> Float[Array, ""]:
    """Bound the rounding error of carried sums so many steps after they were computed, `()`.

    A step adds at most 4 roundings of the largest sum to each: of two products and a sum. The rounding of the
    coefficients is counted too, once.
    """
    terms = point.sum() * jnp.abs(problem.diagonal).max()
    return 4 * jnp.finfo(s.dtype).eps * (steps * jnp.abs(s).max() + terms)


def proves_by_sums(problem: Problem, solver: Solver) -> bool:
    """Return whether to certify by carried sums: a product takes long, and the sums prove something.

    They prove nothing unless a kernel guarantees a semidefinite matrix and the solver carries exact sums, nor for a
    ball, whose dual point has a fixed scale.
    """
    long = problem.n >= MEASURED.samples_of_a_long_product
    return long and solver.traits.carries_sums and problem.restricts and problem.gram.definite
