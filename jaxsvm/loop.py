"""The only loop: chunk of steps -> look -> refresh -> certify -> decide, in two drivers with one body.

A *round* takes chunks of `check_every` steps until certification is due (the running value of the stop rule says it
holds, `s` has drifted for long enough, nothing moves, or the step cap is met); then it recomputes `s` from scratch,
certifies, and decides. Nothing is decided on running values.

The compiled driver nests two `while_loop`s for that: under `vmap` a `lax.cond` would recompute `s`, a whole
matrix-vector product, in every chunk. The host driver calls the same round, cut into bursts of chunks, so that
Ctrl-C, `max_seconds` and callbacks have their turn between bursts. `fit` uses the host driver for concrete arrays and
the compiled one under tracing; both walk through the same iterates.
"""

import dataclasses
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxsvm.derivatives.rule import differentiable
from jaxsvm.errors import ConvergenceWarning, InputError, is_concrete
from jaxsvm.interruption import Interruption, watching
from jaxsvm.numerics.once import once
from jaxsvm.numerics.precision import in_double, like, widened
from jaxsvm.problems.definiteness import negative_curvature
from jaxsvm.result import Answer, Fit, Status, StatusCode, advice
from jaxsvm.stopping import stop_excess
from jaxsvm.validation import require_seconds, require_solves, require_usable

DOUBT = 8
"""A claim that no certificate bore out costs `n / DOUBT` steps of waiting, each time that many more."""
CLAIM = 0.9
"""The running value must be this far below the threshold before a certification is worth its product."""
STILL = 1000
"""Steps after which an R that stands still is looked into, though alpha may move below its rounding."""
BURST_SECONDS = 0.25
"""How long the host driver lets compiled code run before it looks up."""


class Progress(NamedTuple):
    """What the drivers carry.

    Attributes:
        state: The solver's state.
        answer: The best certified point, in the numbers that a caller gets.
        status: Status code, int32 `()`.
        excess: Running value of the stop rule over its threshold, `()`: at most 1 where it claims to hold.
        refreshed: Step of the last certification, int32 `()`.
        polished: Step of the last polish, int32 `()`.
        lowest: The lowest certified `R` so far, `()`.
        stale: Certifications in a row without progress, int32 `()`.
        misses: Certifications in a row that did not bear out what the running value claimed, int32 `()`.
        idle: Whether the last chunk left `R` where it was, and `excess` too or for long, `()`.
    """

    state: Any
    answer: Answer
    status: Int[Array, ""]
    excess: Float[Array, ""]
    refreshed: Int[Array, ""]
    polished: Int[Array, ""]
    lowest: Float[Array, ""]
    stale: Int[Array, ""]
    misses: Int[Array, ""]
    idle: Bool[Array, ""]


def fit(
    problem: Any,
    solver: Any,
    *,
    key: Array | None = None,
    init: Any = None,
    max_seconds: float | None = None,
    callback: Callable[[Fit], Any] | None = None,
) -> Fit:
    """Solve a problem.

    Args:
        problem: From `svm_problem`, `hinge_problem`, `slack_problem`, `box_problem` or `meb_problem`.
        solver: A solver's configuration, such as `FrankWolfe(variant="smo", tol=1e-4)`.
        key: A random key for solvers that draw; None takes key 0, so that a call repeats.
        init: Where to start: a `Fit` to go on from (the same problem at another C, say), or weights `(n,)`. Steps of an
            unfinished fit (MAX_STEPS, INTERRUPTED) count toward the next polish, so that pieces take no more of them
            than one run; the steps and counters of the answer are those of the piece.
        max_seconds: Stop after about this many seconds, at the end of a chunk, with status INTERRUPTED.
        callback: Called with the best certified `Fit` after every chunk; returning True stops, with status INTERRUPTED.

    Returns:
        The best certified point as a `Fit`. Ctrl-C, or a KeyboardInterrupt of the callback, returns it too, with status
        INTERRUPTED, at the end of a chunk of steps; pass it as `init` to resume. A second Ctrl-C raises.

    Raises:
        InputError: On arguments that cannot be used. A fit that does not converge warns, and its status says so.
    """
    key = jax.random.key(0) if key is None else key
    if is_concrete(problem, solver, key, init):
        return drive(problem, solver, key, init, max_seconds, callback)
    require_usable(solver)
    still = lax.stop_gradient((problem, solver, key, init))
    if is_concrete(still):  # traced for a derivative and nothing else, which rests on the solution, not on the steps
        return differentiable(problem, drive(*still, max_seconds, callback))
    if max_seconds is not None or callback is not None:
        raise InputError("max_seconds and callback need concrete arrays: call `fit` outside jit and vmap.")
    return fit_compiled(problem, solver, key, init)


def fit_compiled(problem: Any, solver: Any, key: Array, init: Any = None) -> Fit:
    """The compiled driver: `fit` for use inside `jit`, `vmap` and `scan`.

    Args:
        problem: As for `fit`.
        solver: As for `fit`.
        key: A random key.
        init: A `Fit` to go on from; weights `(n,)`; a `Start` (which spares a matrix-vector product); or None.

    Returns:
        The best certified point, differentiable with respect to the problem (`jaxsvm.derivatives.rule`).
    """
    require_usable(solver)
    still, solver, key, init = lax.stop_gradient((problem, solver, key, init))
    progress = _credited(still, solver, begin(still, solver, key, _start(init)), init)
    progress = lax.while_loop(
        lambda progress: progress.status == Status.RUNNING,
        lambda progress: certify(still, solver, advance(still, solver, progress)),
        progress,
    )
    return differentiable(problem, _with_credit(finish(still, solver, progress), progress))


def begin(problem: Any, solver: Any, key: Array, init: Any = None) -> Progress:
    """Progress at the start point, on the solver's own numbers: in a narrow dtype they certify nothing."""
    require_solves(solver, problem)
    state = solver.init(problem, key, init)
    point, s = solver.dual_point(problem, state)
    answer = problem.certified(point, s, problem.dtype)
    infinite = jnp.asarray(jnp.inf, problem.dtype)
    if jnp.finfo(problem.dtype).bits < 64:
        answer = answer._replace(certificate=answer.certificate._replace(relative_gap=infinite))
    return Progress(
        state=state,
        answer=jax.tree.map(lambda leaf: leaf.astype(problem.dtype), answer),
        status=jnp.where(problem.feasible, Status.RUNNING, Status.INFEASIBLE).astype(jnp.int32),
        excess=infinite,
        refreshed=jnp.zeros((), jnp.int32),
        polished=jnp.zeros((), jnp.int32),
        lowest=infinite,
        stale=jnp.zeros((), jnp.int32),
        misses=jnp.zeros((), jnp.int32),
        idle=jnp.asarray(False),
    )


def advance(problem: Any, solver: Any, progress: Progress, chunks: Any = None) -> Progress:
    """Take chunks of steps until certification is due (or `chunks` of them are done)."""

    def waiting(progress: Progress) -> Array:
        return (progress.status == Status.RUNNING) & ~due(solver, progress)

    def chunk(progress: Progress) -> Progress:
        state = run_steps(problem, solver, progress.state, solver.check_every)
        return look(problem, solver, progress, state)

    def room(progress: Progress) -> Array:
        return steps_taken(progress) + solver.check_every <= solver.max_steps

    done, progress = lax.while_loop(
        lambda carry: waiting(carry[1]) & room(carry[1]) & (True if chunks is None else carry[0] < chunks),
        lambda carry: (carry[0] + 1, chunk(carry[1])),
        (jnp.zeros((), jnp.int32), progress),
    )
    # The last chunk may be shorter: the cap is exact. Single steps, and only there: under vmap each would copy
    # its carry.
    short = waiting(progress) & ~room(progress)
    state = lax.while_loop(
        lambda state: short & (state.counters.steps < solver.max_steps),
        lambda state: solver.step(problem, state),
        progress.state,
    )
    del done
    return look(problem, solver, progress, state)


def run_steps(problem: Any, solver: Any, state: Any, steps: int) -> Any:
    """`steps` (static) steps, a few a turn: between turns XLA copies vectors, which costs a quarter of a step."""
    unroll = min(solver.unroll, steps)
    return lax.fori_loop(0, steps, lambda _, state: solver.step(problem, state), state, unroll=unroll)


def look(problem: Any, solver: Any, progress: Progress, state: Any) -> Progress:
    """Progress with a new state, its running excess, and whether it moved at all."""
    moved = state.counters.steps > progress.state.counters.steps
    excess = solver.running_excess(problem, state)
    # R alone would not tell: near the end its decrease is below its rounding, while alpha and s still move.
    long = state.counters.steps - progress.refreshed >= STILL
    still = (state.R == progress.state.R) & ((excess == progress.excess) | long)
    return progress._replace(state=state, excess=excess, idle=jnp.where(moved, still, progress.idle))


def due(solver: Any, progress: Progress) -> Array:
    """Whether it is time to recompute and certify."""
    since = steps_taken(progress) - progress.refreshed
    n = progress.answer.alpha.shape[-1]
    # What was claimed in vain is not believed again before steps have cost as much as a certificate. One step of a
    # solver that looks after each does.
    wait = 0 if solver.check_every == 1 else n // DOUBT
    claims = (progress.excess <= CLAIM) & (since > progress.misses * wait)
    broken = ~jnp.isfinite(progress.state.R)
    last = steps_taken(progress) >= solver.max_steps
    indefinite = progress.state.indefinite
    return claims | broken | last | indefinite | progress.idle | (since >= refresh_interval(solver, n))


def certify(
    problem: Any, solver: Any, progress: Progress, may_polish: bool = True, provisional: bool = False
) -> Progress:
    """Recompute what drifts, polish where that was earned, certify, keep the better point, and decide.

    In twice the precision, but where the answer is `provisional`: the caller certifies what is made of it.
    """
    may_polish = may_polish and _polish_interval(problem, solver) is not None
    assess = partial(_assessed, may_polish=may_polish, provisional=provisional)
    assess = assess if provisional else in_double(assess)
    earned = earned_polish(problem, solver, progress)
    stuck = (progress.stale > 0) | (steps_taken(progress) >= solver.max_steps)
    state, answer, excess, R, sound, indefinite = assess(problem, solver, progress.state, earned, stuck)
    gap, best = answer.certificate.relative_gap, progress.answer.certificate.relative_gap
    better = sound & (~(gap > best) | (excess <= 1))

    # Progress is a lower R by more than rounding, or a gap that still shrinks.
    rounding = 4 * jnp.finfo(R.dtype).eps * jnp.abs(R)
    advanced = (progress.lowest - rounding > R) | (gap < 0.99 * best)
    stale = jnp.where(advanced, 0, progress.stale + 1)
    status = jnp.asarray(Status.RUNNING, jnp.int32)
    for condition, code in (  # the first that holds decides
        (progress.status != Status.RUNNING, progress.status),
        (~sound, Status.NOT_FINITE),
        (indefinite, Status.NOT_PSD),
        (excess <= 1, Status.CONVERGED),
        (_gave_up(solver, progress), Status.STALLED),
        (steps_taken(progress) >= solver.max_steps, Status.MAX_STEPS),
        (stale >= solver.patience, Status.STALLED),
    ):
        status = jnp.where((status == Status.RUNNING) & condition, code, status)
    return progress._replace(
        state=state,
        answer=jax.tree.map(lambda new, old: jnp.where(better, new, old), answer, progress.answer),
        status=status,
        excess=excess,
        refreshed=steps_taken(progress),
        polished=jnp.where(earned & may_polish, steps_taken(progress), progress.polished),
        lowest=jnp.where(sound, jnp.minimum(progress.lowest, R), progress.lowest),
        stale=stale,
        misses=jnp.where(progress.excess <= CLAIM, progress.misses + 1, 0),
        idle=jnp.asarray(False),
    )


def _assessed(
    problem: Any, solver: Any, state: Any, earned: Array, stuck: Array, may_polish: bool, provisional: bool
) -> tuple[Any, ...]:
    """The state from scratch, polished where that was earned, and what it is worth; all of it in twice the precision.

    Provisionally: in the data's precision, and without an allowance for its rounding.

    Returns:
        The state, the answer, the stop rule's excess, the objective, whether all is finite, and whether the kernel
        showed a negative curvature.
    """
    wide = problem if provisional else widened(problem)
    fresh = solver.refresh(wide, state)

    def polish(fresh: Any) -> Any:
        return like(solver.refresh(wide, like(solver.polish(wide, fresh), state)), fresh)

    if may_polish:
        fresh = once(earned, polish, fresh)
    point, s = solver.dual_point(wide, fresh)
    R = wide.objective(point, s)
    answer = wide.certified(point, s, problem.dtype)
    if provisional:
        answer = answer._replace(certificate=wide.certificate(point, s))
    excess = stop_excess(wide, solver, point, s, answer.certificate)
    if wide.corrects and point.ndim == 1 and wide.dtype != problem.dtype:
        answer, excess = _put_beside(wide, solver, point, s, problem.dtype, stuck, answer, excess)
    sound = jnp.isfinite(R) & jnp.all(jnp.isfinite(s))
    indefinite = fresh.indefinite | wide.indefinite(R)
    if not wide.gram.definite:
        indefinite = once(
            sound & (excess <= 1),
            lambda found: found | negative_curvature(wide, everywhere=point.ndim == 2),
            indefinite,
        )
    narrow = jax.tree.map(lambda leaf: leaf.astype(problem.dtype), (answer, excess, R))
    return like(fresh, state), *narrow, sound, indefinite


def _put_beside(
    wide: Any, solver: Any, point: Array, s: Array, dtype: Any, stuck: Array, answer: Answer, excess: Array
) -> tuple[Answer, Array]:
    """Where steps no longer help and the coefficients' dtype is what is left of the gap: a w beside the dual point."""

    def put(_: Any) -> tuple[Answer, Array]:
        beside = wide.certified(*wide.beside(point, s, dtype), dtype)
        return beside, stop_excess(wide, solver, point, s, beside.certificate)

    wanted = stuck & (excess > 1)
    beside, there = once(wanted, put, (answer, excess))
    better = there < excess
    return jax.tree.map(lambda new, old: jnp.where(better, new, old), (beside, there), (answer, excess))


def _polish_interval(problem: Any, solver: Any) -> int | None:
    """Steps that earn a polish; None where the solver has none."""
    return solver.polish_interval(problem)


def earned_polish(problem: Any, solver: Any, progress: Progress) -> Array:
    """Whether the steps since the last polish have spent as much as a polish costs."""
    interval = _polish_interval(problem, solver)
    if interval is None:
        return jnp.asarray(False)
    return steps_taken(progress) - progress.polished >= interval


def _gave_up(solver: Any, progress: Progress) -> Array:
    """A sampled solver without a final check ends where its samples saw no violator, borne out or not."""
    return jnp.asarray(solver.final_check == "none") & (progress.excess <= CLAIM)


def finish(problem: Any, solver: Any, progress: Progress) -> Fit:
    """The best certified point as a `Fit`."""
    del problem, solver
    return Fit(**progress.answer._asdict(), status=StatusCode(progress.status), counters=progress.state.counters)


def refresh_interval(solver: Any, n: int) -> int:
    """Steps between refreshes at the most: a refresh is a product, which costs thousands of steps."""
    return max(4000, n) if solver.refresh_every is None else solver.refresh_every


def steps_taken(progress: Progress) -> Int[Array, ""]:
    """Steps taken so far."""
    return progress.state.counters.steps


_begin = jax.jit(begin)


@jax.jit
def _finish(problem: Any, solver: Any, progress: Progress) -> Fit:
    return _with_credit(finish(problem, solver, progress), progress)


@partial(jax.jit, static_argnames="provisional")
def _burst(
    problem: Any, solver: Any, progress: Progress, chunks: Any, last: Any, provisional: bool = False
) -> tuple[Progress, Array]:
    """A round cut short after `chunks` chunks, and whether a certification with a polish is due.

    It certifies by itself where that is due without one, or where this burst is the last: a polish is half of the
    compile time, and most fits see none.
    """
    progress = advance(problem, solver, progress, chunks)
    time_to = due(solver, progress)
    polish_due = time_to & earned_polish(problem, solver, progress) & ~jnp.asarray(last)
    plain = partial(certify, problem, solver, may_polish=False, provisional=provisional)
    return lax.cond((time_to | last) & ~polish_due, plain, lambda progress: progress, progress), polish_due


def drive(
    problem: Any,
    solver: Any,
    key: Array,
    init: Any = None,
    max_seconds: float | None = None,
    callback: Callable[[Fit], Any] | None = None,
    warn: bool = True,
    stop: Interruption | None = None,
    provisional: bool = False,
) -> Fit:
    """The host driver: bursts of chunks, and between them the clock, the callback and Ctrl-C.

    Args:
        problem: As for `fit`.
        solver: As for `fit`.
        key: A random key.
        init: As for `fit_compiled`.
        max_seconds: As for `fit`.
        callback: As for `fit`.
        warn: Whether to warn of anything but CONVERGED.
        stop: What whoever calls for several fits looks at between them; None: nobody does.
        provisional: Whether the caller certifies what comes of it: then the certificates on the way stay in the data's
            precision, whose products take a third of the time.

    Returns:
        The best certified point.
    """
    require_usable(solver)
    require_seconds(max_seconds)
    with watching(stop) as stop:
        progress = _driven(problem, solver, key, init, max_seconds, callback, stop, provisional)
        fitted = _finish(problem, solver, progress)
        if warn:
            warn_unless_converged(fitted, solver)
    return fitted


def _driven(
    problem: Any,
    solver: Any,
    key: Array,
    init: Any,
    max_seconds: Any,
    callback: Any,
    stop: Interruption,
    provisional: bool = False,
) -> Progress:
    """Progress at its end, or where it was told to stop."""
    started, chunks, told, begun = time.monotonic(), 1, False, False
    progress = _credited(problem, solver, _begin(problem, solver, key, _start(init)), init)
    running = int(progress.status) == Status.RUNNING and not stop.seen

    def late() -> bool:
        return max_seconds is not None and time.monotonic() - started > max_seconds

    while running:
        try:
            before = time.monotonic()
            progress, polish_due = _burst(problem, solver, progress, chunks, False, provisional)
            begun = True
            if bool(polish_due):
                polished = polish_in_pieces(problem, solver, progress, lambda: stop.seen or late())
                progress, _ = (progress, None) if polished is None else _burst(problem, solver, polished, 0, True)
            jax.block_until_ready(progress)
            took = time.monotonic() - before
            if callback is not None:
                told = callback(_finish(problem, solver, progress)) is True
            elif took < BURST_SECONDS / 2:  # with a callback every burst is one chunk
                chunks = min(2 * chunks, 2**20)
            elif took > 2 * BURST_SECONDS:
                chunks = max(chunks // 2, 1)
        except KeyboardInterrupt:  # of a callback, or a handler of the user's own
            stop.note()
        running = int(progress.status) == Status.RUNNING and not (told or stop.seen or late())
    if int(progress.status) != Status.RUNNING:
        return progress
    if begun:  # else even that is not compiled, perhaps: the start point has its certificate
        progress, _ = _burst(problem, solver, progress, 0, True)
    interrupted = jnp.asarray(np.int32(Status.INTERRUPTED))
    return progress._replace(status=interrupted) if int(progress.status) == Status.RUNNING else progress


def polish_in_pieces(problem: Any, solver: Any, progress: Progress, told: Callable[[], bool]) -> Progress | None:
    """Progress with a polished state, whose certificate is due; None where it was told to stop in between.

    A polish can take many times `BURST_SECONDS`: on the host one compiled piece of it at a time.
    """
    with jax.enable_x64(True):  # between pieces a polish is in twice the precision as well
        fresh, carry = _polish_begin(problem, solver, progress.state)
        while bool(carry.going) and not told():
            carry = _polish_step(problem, solver, carry)
        if bool(carry.going):
            return None
        state = _polish_end(problem, solver, progress.state, fresh, carry)
    return progress._replace(state=state, polished=steps_taken(progress))


@jax.jit
def _polish_begin(problem: Any, solver: Any, state: Any) -> tuple[Any, Any]:
    wide = widened(problem)
    fresh = solver.refresh(wide, state)
    return fresh, solver.polish_begin(wide, fresh)


@jax.jit
def _polish_step(problem: Any, solver: Any, carry: Any) -> Any:
    return solver.polish_step(widened(problem), carry)


@jax.jit
def _polish_end(problem: Any, solver: Any, state: Any, fresh: Any, carry: Any) -> Any:
    return like(solver.polish_end(widened(problem), fresh, carry), state)


def _start(init: Any) -> Any:
    """Where a solver is to start: of a fit its weights alone."""
    return init.alpha if isinstance(init, Fit) else init


def _credited(problem: Any, solver: Any, progress: Progress, init: Any) -> Progress:
    """Progress that goes on from an unfinished fit has the steps to its credit that the fit took since its last polish.

    Else a fit in pieces, each shorter than what earns a polish, would never see one. What is earned is due at once.
    """
    interval = _polish_interval(problem, solver)
    if not isinstance(init, Fit) or interval is None:
        return progress
    code, steps = _on_host((init.status.code, init.counters.unpolished))
    steps = steps * ((code == Status.MAX_STEPS) | (code == Status.INTERRUPTED))
    return progress._replace(
        polished=jnp.asarray(-steps, jnp.int32), idle=jnp.asarray((steps >= interval) & (steps > 0))
    )


def _with_credit(fitted: Fit, progress: Progress) -> Fit:
    """The fit with the steps since its last polish, for whoever goes on from it."""
    counters = fitted.counters._replace(unpolished=steps_taken(progress) - progress.polished)
    return dataclasses.replace(fitted, counters=counters)


def _on_host(values: Any) -> Any:
    """As NumPy's where they are concrete: single operations of JAX are compiled one by one."""
    return jax.tree.map(np.asarray, values) if is_concrete(values) else values


def warn_unless_converged(fitted: Fit, solver: Any) -> None:
    """Warn of a fit that ended in any other way."""
    status = Status(int(fitted.status))
    if status != Status.CONVERGED:
        warnings.warn(
            f"{type(solver).__name__} ended as {status.name} after {int(fitted.steps)} steps with a relative gap of "
            f"{float(fitted.certificate.relative_gap):.3g} (tol {float(solver.tol):.3g}). {advice(status)}",
            ConvergenceWarning,
            stacklevel=4,
        )
