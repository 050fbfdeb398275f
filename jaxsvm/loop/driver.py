"""The only loop: rounds (`jaxsvm.loop.round`) until one decides that it is over, in two drivers.

The compiled driver nests two `while_loop`s for that: under `vmap` a `lax.cond` would recompute `s`, a whole
matrix-vector product, in every chunk. The host driver calls the same round, cut into bursts of chunks, so that
Ctrl-C, `max_seconds` and callbacks have their turn between bursts. `fit` uses the host driver for concrete arrays and
the compiled one under tracing; both walk through the same iterates.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from jaxsvm.errors import ConvergenceWarning, InputError, is_concrete, warn
from jaxsvm.loop.bursts import begin_program, burst_call, certify_call, polish_in_pieces
from jaxsvm.loop.carried_certificate import TOO_LONG, carried, carried_program, proves_by_sums
from jaxsvm.loop.choice import first_choice, second_choice, takes_state
from jaxsvm.loop.differentiation import differentiable
from jaxsvm.loop.interruption import LONG, Interruption, answering, unless, watching
from jaxsvm.loop.prepare import ready, start_of
from jaxsvm.loop.round import (
    Progress,
    advance,
    begin,
    certify,
    corrects,
    ends_with_a_chunk,
    finish,
    steps_taken,
    stuck,
    whole_chunks,
)
from jaxsvm.problems.contract import Problem, Restrictable, require_problem
from jaxsvm.problems.padding import trimmed
from jaxsvm.results.fit import Counters, Fit, Status, advice, better_of, bit_of
from jaxsvm.runtime.checks import require_seconds
from jaxsvm.runtime.loops import while_loop
from jaxsvm.runtime.meshes import in_automatic_axes
from jaxsvm.runtime.programs import compiled_ahead
from jaxsvm.runtime.transfers import transfers
from jaxsvm.solvers.contract import Solver
from jaxsvm.solvers.start import Origin, given_start
from jaxsvm.solvers.validation import require_usable

DEFAULT_TOL = 1e-4
"""The relative gap where neither a solver nor one is named."""
BURST_SECONDS = 0.25
"""How long the host driver lets compiled code run before it looks up."""
PATIENCE = 0.4
"""Seconds that the last certificate of a fit that was told to stop may take."""
EVERY_CHUNK = 2048
"""Samples up to which a callback sees a certificate of every chunk: the product takes as long as the call."""


@transfers
def fit(
    problem: Any,
    solver: Any = None,
    *,
    tol: Any = None,
    key: Array | None = None,
    init: Any = None,
    max_seconds: float | None = None,
    callback: Callable[[Fit], Any] | None = None,
    interrupt: str = "return",
) -> Fit:
    """Solve a problem.

    Args:
        problem: From `svm_problem`, `hinge_problem`, `slack_problem`, `box_problem` or `meb_problem`.
        solver: A solver's configuration, such as `FrankWolfe(variant="smo", tol=1e-4)`; None chooses
            (`jaxsvm.loop.choice`), and goes on with another one where what it sees calls for that.
        tol: The relative duality gap, > 0, where no solver is named; None: 1e-4.
        key: A random key for solvers that draw; None takes key 0, so that a call repeats.
        init: Where to start: a `Fit` to go on from (the same problem at another C, say), or finite weights `(n,)`. The
            start is certified first: no answer is worse. Steps of an unfinished fit (MAX_STEPS, INTERRUPTED) count
            toward the next polish, and stochastic solvers take the steps that come after those that led to it, so
            that pieces take no more than one run; the steps and counters of the answer are those of the piece.
        max_seconds: Stop after about this many seconds, at the end of a chunk, with status INTERRUPTED.
        callback: Called with the best certified `Fit` after every chunk of steps; returning True stops, with status
            INTERRUPTED. Where it stands is certified for the callback's sake after the first chunk, then after every
            chunk up to n = 2,048, else once steps have cost as much as a certificate: the steps that follow are those
            that they would be without one, and a run ends as soon as it is seen to have converged.
        interrupt: What Ctrl-C, or a KeyboardInterrupt of the callback, does: "return" returns the best certified point,
            with status INTERRUPTED, to be passed as `init` to resume; "raise" raises KeyboardInterrupt instead. A
            second Ctrl-C raises in any case, in this fit or within two seconds in the next one.

    Returns:
        The best certified point as a `Fit`.

    Raises:
        InputError: On arguments that cannot be used. A fit that does not converge warns, and its status says so.
        KeyboardInterrupt: As `interrupt` says.
    """
    if solver is not None and tol is not None:
        raise InputError("tol is for fits without a solver of their own: name it there, as in `WorkingSet(tol=1e-3)`.")
    key = jax.random.key(0) if key is None else key
    require_problem(problem)
    init = given_start(init, problem.n)
    chosen = solver is None
    solver = first_choice(problem, DEFAULT_TOL if tol is None else tol) if chosen else solver
    if is_concrete(problem, solver, key, init):
        with answering(interrupt) as stop:
            return drive(problem, solver, key, init, max_seconds, callback, stop=stop, may_change=chosen)
    require_usable(solver)
    still = lax.stop_gradient((problem, solver, key, init))
    if is_concrete(still):  # traced for a derivative and nothing else, which rests on the solution, not on the steps
        with answering(interrupt) as stop:
            found = drive(*still, max_seconds, callback, stop=stop, may_change=chosen)
        return differentiable(problem, found)
    if max_seconds is not None or callback is not None:
        raise InputError("max_seconds and callback need concrete arrays: call `fit` outside jit and vmap.")
    return fit_compiled(problem, solver, key, init)


@in_automatic_axes
def fit_compiled(problem: Problem, solver: Solver, key: Array, init: Any = None) -> Fit:
    """The compiled driver: `fit` for use inside `jit`, `vmap` and `scan`.

    Args:
        problem: As for `fit`.
        solver: As for `fit`.
        key: A random key.
        init: A `Fit` to go on from; weights `(n,)`; a `Start` (which spares a matrix-vector product); or None.

    Returns:
        The best certified point, differentiable with respect to the problem (`jaxsvm.loop.differentiation`).
    """
    require_usable(solver)
    advanced = whole_chunks if ends_with_a_chunk(solver) else advance
    still, solver, key, init = lax.stop_gradient((problem, solver, key, init))
    still = ready(still, solver)
    begun = begin(still, solver, key, start_of(init, still, solver, still.n))
    progress = _credited(still, solver, begun, init)
    progress = while_loop(
        lambda progress: progress.status == Status.RUNNING,
        lambda progress: certify(still, solver, advanced(still, solver, progress)),
        progress,
    )
    return differentiable(problem, _with_credit(finish(solver, progress), progress))


def drive(
    problem: Problem,
    solver: Solver,
    key: Array,
    init: Any = None,
    max_seconds: float | None = None,
    callback: Callable[[Fit], Any] | None = None,
    warn: bool = True,
    stop: Interruption | None = None,
    provisional: bool = False,
    may_change: bool = False,
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
        may_change: Whether to go on with another solver where `second_choice` has one.

    Returns:
        The best certified point; its counters are those of all solvers that were at it.
    """
    require_usable(solver)
    require_seconds(max_seconds)
    started, n, spent, best, may_leave = time.monotonic(), problem.n, [], None, not provisional
    state = None  # what another solver goes on from
    deadline = np.inf if max_seconds is None else started + max_seconds
    with watching(stop) as stop:
        told = None if callback is None else lambda fitted: callback(trimmed(fitted, n))
        while True:
            here = ready(problem, solver, lambda: stop.seen or time.monotonic() > deadline)
            left = None if max_seconds is None else max(max_seconds - (time.monotonic() - started), 0.0)
            start = start_of(init, here, solver, n) if state is None else state
            leaves = (may_change, may_leave and problem.restricts)
            progress = _driven(here, solver, key, start, init, left, told, stop, provisional, leaves)
            fitted = finish(solver, progress) if provisional else _with_credit(finish(solver, progress), progress)
            fitted = trimmed(fitted, n)
            best = fitted if best is None else better_of(best, fitted)
            spent.append(fitted.counters)
            if leaves[1] and int(progress.status) == Status.RUNNING and solver.left(here, progress.state) is not None:
                init, may_leave = _of_fewer(cast(Restrictable, here), solver, key, progress, stop), False
                spent.append(init.counters)
                init, solver = np.asarray(init.alpha)[:n], solver.whole
                continue
            grown = solver.grown(here, progress.state) if int(progress.status) == Status.RUNNING else None
            if grown is not None:
                init, key = np.asarray(solver.dual_point(here, progress.state)[0])[:n], jax.random.fold_in(key, 1)
                solver = grown
                continue
            following = _following(here, solver, progress) if may_change and not stop.seen else None
            if following is None:
                break
            state = progress.state if takes_state(solver, following) else None
            init, solver = np.atleast_2d(solver.dual_point(here, progress.state)[0])[-1, :n], following
        best = fitted if int(fitted.status) == Status.CONVERGED else best
        fitted = dataclasses.replace(best, counters=reduce(Counters.plus, spent), status=fitted.status)
        if warn:
            warn_unless_converged(fitted, solver)
    return fitted


def _of_fewer(problem: Restrictable, solver: Solver, key: Array, progress: Progress, stop: Interruption) -> Fit:
    """The fit of what is not known, with the others at their values: a point of the whole, not yet certified."""
    samples, fixed = cast("tuple[Any, Any]", solver.left(problem, progress.state))
    point = np.asarray(solver.dual_point(problem, progress.state)[0])
    part = problem.restrict(jnp.asarray(samples), fixed=fixed)
    inside = drive(part, solver, key, point[samples], warn=False, stop=stop)
    whole = fixed.astype(point.dtype)
    whole[samples] = np.asarray(inside.alpha)
    return dataclasses.replace(inside, alpha=whole)


UNFINISHED = (Status.RUNNING, Status.STALLED, Status.MAX_STEPS)
"""What another solver may go on from: MAX_STEPS is a cap of the choice's own."""


def _following(problem: Problem, solver: Solver, progress: Progress) -> Solver | None:
    """The solver to go on with, if any, once one has ended or been told to leave."""
    status = int(progress.status)
    if status not in UNFINISHED:
        return None
    return second_choice(problem, solver, progress.state, progress.excess, ended=status != Status.RUNNING)


def _first_calls(
    problem: Problem, solver: Solver, key: Array, start: Any, provisional: bool
) -> Iterator[tuple[Any, ...]]:
    """The programs that every fit needs, by the shapes of their arguments."""
    progress = begin_program(start, problem.n).shapes(problem, solver, key, start)
    yield burst_call(problem, solver, progress, 1, solver.check_every > int(solver.max_steps))
    yield certify_call(problem, solver, progress, provisional, False)
    if problem.n >= LONG and proves_by_sums(problem, solver):
        yield carried_program, problem, solver, progress


def _certified(
    problem: Problem, solver: Solver, progress: Progress, provisional: bool, until: Callable[[], bool] = lambda: False
) -> Progress:
    """Progress with the certificate of where it stands; without it once `until` holds, where carried sums are to go by.

    Then a large state is gone, but for its counters.
    """
    certify, *rest = _certificate(problem, solver, progress, provisional)
    if problem.n < LONG or not proves_by_sums(problem, solver):
        return certify(*rest)
    counters = jax.tree.map(np.array, progress.state.counters)  # copies
    found = unless(until, certify, *rest)
    return progress._replace(state=solver.counted(progress.state, counters)) if found is None else found


def _certificate(problem: Problem, solver: Solver, progress: Progress, provisional: bool) -> tuple[Any, ...]:
    """The program of that certificate and its arguments."""
    # On the host: single operations of JAX are compiled one by one.
    at_cap = int(steps_taken(progress)) >= int(solver.max_steps)
    is_stuck = stuck(problem, solver, int(progress.stale), int(progress.misses), at_cap)
    more = (provisional, corrects(problem, solver) and is_stuck)
    return certify_call(problem, solver, progress, *more)


def _worth_a_look(problem: Problem, progress: Progress, shown: int | None) -> bool:
    """Whether to certify where a fit stands for a callback, which has seen it last after so many evaluations, if ever.

    Beyond `EVERY_CHUNK` samples no sooner than steps have cost as much as the products of a certificate.
    """
    if shown is None or problem.n <= EVERY_CHUNK:
        return True
    a_product = problem.n * (problem.n if getattr(problem, problem.operator).design is None else 1)
    return progress.state.counters.total - shown >= a_product


def _looked_at(problem: Problem, solver: Solver, progress: Progress, provisional: bool, until: Any) -> Progress:
    """Progress whose best certified point is no worse than where it stands; its steps go on as if nobody had looked."""
    looked = progress._replace(stale=jnp.zeros_like(progress.stale))
    looked = _certified(problem, solver, looked, provisional, until)
    if int(looked.status) != Status.RUNNING:
        return looked
    # A large state is gone: it goes on as from a certificate.
    return progress._replace(answer=looked.answer, state=looked.state if solver.large_state else progress.state)


def _next_burst(chunks: int, used: int, took: float) -> int:
    """Chunks of the next burst, for it to take about `BURST_SECONDS`.

    Args:
        chunks: Those of the last one.
        used: How many of them it took: one that ended early says nothing of a longer one.
        took: Its seconds.
    """
    if took < BURST_SECONDS / 2:
        return min(2 * chunks, 2 * max(used, 1))
    return max(chunks // 2, 1) if took > 2 * BURST_SECONDS else chunks


def _driven(
    problem: Problem,
    solver: Solver,
    key: Array,
    start: Any,
    init: Any,
    max_seconds: Any,
    callback: Any,
    stop: Interruption,
    provisional: bool = False,
    leaves: tuple[bool, bool] = (False, False),
) -> Progress:
    """Progress at its end, or where it was told to stop; still RUNNING where somebody else had better go on.

    (That is another solver, or the same on fewer samples: `leaves` says which of these may be.)
    """
    started, chunks, told, begun = time.monotonic(), 1, False, False
    start = Origin.of(problem) if start is None and solver.knows_origin else start
    given, shown = (problem, solver, key, start, provisional), None
    wait = compiled_ahead(lambda: _first_calls(*given), *given)
    progress = _credited(problem, solver, begin_program(start, problem.n)(problem, solver, key, start), init)
    wait()
    running = int(progress.status) == Status.RUNNING and not stop.seen

    def late() -> bool:
        return max_seconds is not None and time.monotonic() - started > max_seconds

    def enough() -> bool:
        return stop.seen or late()

    while running:
        try:
            before, steps = time.monotonic(), int(progress.state.counters.steps)
            at_cap = steps + solver.check_every > int(solver.max_steps)
            burst, *rest = burst_call(problem, solver, progress, chunks, at_cap)
            progress, flags = burst(*rest)
            begun = True
            time_to, polish_due = np.asarray(flags).tolist()
            if polish_due:
                polished = polish_in_pieces(problem, solver, progress, enough)
                time_to, progress = polished is not None, polished or progress
            if time_to:
                if problem.n >= LONG:  # so that there is something to stop with while the product is computed
                    progress = carried(problem, solver, progress)
                progress = _certified(problem, solver, progress, provisional, enough)
            elif callback is not None and _worth_a_look(problem, progress, shown):
                progress = _looked_at(problem, solver, progress, provisional, enough)
                shown = None if _gone(progress) else progress.state.counters.total
            if _gone(progress):
                break
            jax.block_until_ready(progress)
            took = time.monotonic() - before
            running = int(progress.status) == Status.RUNNING
            if running and leaves[0] and _following(problem, solver, progress) is not None:
                return progress
            if running and leaves[1] and solver.left(problem, progress.state) is not None:
                return progress
            if running and solver.grown(problem, progress.state) is not None:
                return progress
            if callback is not None:
                told = callback(_with_credit(finish(solver, progress), progress)) is True
            else:  # with a callback every burst is one chunk
                used = (int(progress.state.counters.steps) - steps) // solver.check_every
                chunks = _next_burst(chunks, used, took)
        except KeyboardInterrupt:  # of a callback, or a handler of the user's own
            stop.note()
        running = int(progress.status) == Status.RUNNING and not (told or enough())
    if int(progress.status) != Status.RUNNING:
        return progress
    if begun and not _gone(progress):  # else even that is not compiled, perhaps: the start point has its certificate
        patience = time.monotonic() + PATIENCE
        progress = carried(problem, solver, progress) if problem.n >= LONG else progress
        if problem.n < TOO_LONG or not proves_by_sums(problem, solver):
            progress = _certified(problem, solver, progress, provisional, lambda: time.monotonic() > patience)
    interrupted = jnp.asarray(np.int32(Status.INTERRUPTED))
    return progress._replace(status=interrupted) if int(progress.status) == Status.RUNNING else progress


def _gone(progress: Progress) -> bool:
    """Whether its state was handed on to a computation that nobody waited for."""
    return any(leaf.is_deleted() for leaf in jax.tree.leaves(progress.state) if hasattr(leaf, "is_deleted"))


def _credited(problem: Problem, solver: Solver, progress: Progress, init: Any) -> Progress:
    """Progress that goes on from an unfinished fit has the steps to its credit that the fit took since its last polish.

    Else a fit in pieces, each shorter than what earns a polish, would never see one. What is earned comes at once, with
    the start's certificate.
    """
    if not isinstance(init, Fit):
        return progress
    interval = solver.polish_interval(problem)
    code, steps, bits = _on_host((init.status.code, init.counters.unpolished, init.counters.solvers))
    if interval is None:  # nothing is to be earned: all steps of this solver that led here
        return progress._replace(polished=jnp.asarray(-steps * ((bits & bit_of(solver)) > 0), jnp.int32))
    steps = steps * ((code == Status.MAX_STEPS) | (code == Status.INTERRUPTED))
    return progress._replace(polished=jnp.asarray(-steps, jnp.int32))


def _with_credit(fitted: Fit, progress: Progress) -> Fit:
    """The fit with the steps since its last polish, for whoever goes on from it."""
    steps, polished = _on_host((steps_taken(progress), progress.polished))
    counters = fitted.counters._replace(unpolished=jnp.asarray(steps - polished))
    return dataclasses.replace(fitted, counters=counters)


def _on_host(values: Any) -> Any:
    """As NumPy's where they are concrete: single operations of JAX are compiled one by one."""
    return jax.tree.map(np.asarray, values) if is_concrete(values) else values


def warn_unless_converged(fitted: Fit, solver: Solver) -> None:
    """Warn of a fit that ended in any other way."""
    status = Status(int(fitted.status))
    if status != Status.CONVERGED:
        warn(
            f"{type(solver).__name__} ended as {status.name} after {int(fitted.steps)} steps with a relative gap of "
            f"{float(fitted.certificate.relative_gap):.3g} (tol {float(solver.tol):.3g}). {advice(status)}",
            ConvergenceWarning,
        )
