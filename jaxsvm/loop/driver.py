"""Solve a problem: run a solver in rounds (`jaxsvm.loop.round`) until its stop rule holds.

Two drivers turn the same rounds, through the same iterates. `drive` works on concrete arrays: it calls compiled bursts
of steps (`jaxsvm.loop.bursts`), so that Ctrl-C, `max_seconds` and callbacks have their turn in between, and may hand
over to another solver. `fit_compiled` works under tracing: it nests two `while_loop`s, since under `vmap` a `lax.cond`
would recompute `s`, a whole matrix-vector product, in every chunk. `fit` chooses between them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial, reduce
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array
from numpy.typing import ArrayLike

from jaxsvm.errors import ConvergenceWarning, InputError, is_concrete, warn
from jaxsvm.loop.bursts import begun, is_far, run
from jaxsvm.loop.choice import before_features, first_choice, second_choice
from jaxsvm.loop.differentiation import differentiable
from jaxsvm.loop.interruption import Interruption, answering, watching
from jaxsvm.loop.measured import MEASURED
from jaxsvm.loop.round import (
    Certifying,
    Progress,
    advance,
    begin,
    certify,
    finish,
    ready,
    ready_together,
    start_of,
    steps_taken,
    with_earlier_steps,
)
from jaxsvm.loop.small import small_chains
from jaxsvm.numerics.precision import in_double, widened
from jaxsvm.problems.box import BoxProblem
from jaxsvm.problems.certificates.rounded_values import warn_of_rounded_values
from jaxsvm.problems.contract import Problem, require_problem
from jaxsvm.problems.padding import trimmed
from jaxsvm.results.fit import Answer, Counters, Fit, Status, advice
from jaxsvm.results.judge import in_dtype
from jaxsvm.runtime.arrays import given_key, on_device, require_seconds, transfers
from jaxsvm.runtime.loops import host_drives, in_automatic_axes, in_groups, while_loop
from jaxsvm.runtime.programs import Program
from jaxsvm.solvers.contract import NEVER, HandOver, Solver, require_usable, with_max_steps
from jaxsvm.solvers.start import given_start


@dataclasses.dataclass(frozen=True)
class Options:
    """How `drive` solves a problem."""

    warns: bool = True  # whether to warn unless the fit converges
    may_change: bool = False  # whether another solver may take over (`second_choice`)
    # whether the caller certifies the result again. Certificates on the way then stay in the data's precision, whose
    # products take a third of the time
    provisional: bool = False


DEFAULT = Options()
QUIET = Options(warns=False)


@transfers
def fit(
    problem: Problem,
    solver: Solver | None = None,
    *,
    tol: ArrayLike | None = None,
    key: Array | None = None,
    init: Fit | ArrayLike | None = None,
    max_seconds: float | None = None,
    callback: Callable[[Fit], Any] | None = None,
    interrupt: str = "return",
) -> Fit:
    """Solve a problem, and certify the answer.

    Examples:
        >>> problem = jaxsvm.hinge_problem(jaxsvm.gram(jaxsvm.kernels.RBF(0.5), x), y, C=10.0)
        >>> fit = jaxsvm.fit(problem, tol=1e-4)
        >>> print(fit.status.name, fit.certificate.relative_gap)

    Args:
        problem: From `svm_problem`, `hinge_problem`, `slack_problem`, `box_problem` or `meb_problem`.
        solver: A solver's configuration, such as `FrankWolfe(variant="smo", tol=1e-4)`; None chooses one
            (`jaxsvm.loop.choice`), and changes to another if the fit's progress calls for it.
        tol: The relative duality gap, > 0, if no solver is named; None: 1e-4.
        key: A random key for solvers that draw; None takes key 0, so that a call repeats.
        init: Where to start: a `Fit` (of the same problem at another C, say), or finite weights `(n,)`. The start is
            certified first, so the result is no worse. An unfinished fit (MAX_STEPS, INTERRUPTED) is continued: in
            pieces it takes no more steps than in a single call. Counters of the result are those of the last piece.
        max_seconds: Stop after about this many seconds, at the end of a chunk, with status INTERRUPTED.
        callback: Called with the best certified `Fit` after every chunk of steps; it stops the fit, with status
            INTERRUPTED, by returning True. Above n = 2,048 the current point is certified for it only once steps have
            cost as much as a certificate; in between it gets the Stochastic Batch Perceptron's current w (by the
            responses that steps carry along, in a wider bracket), and of other solvers the same fit once more, with the
            steps of that fit. The answer is as good as without one, and may come by other steps.
        interrupt: What Ctrl-C, or a KeyboardInterrupt of the callback, does: "return" returns the best certified point,
            with status INTERRUPTED, which `init` resumes; "raise" raises KeyboardInterrupt instead. A second Ctrl-C
            always raises, in this fit or within two seconds in the next one.

    Returns:
        The best certified point as a `Fit`. Its status says whether it converged; if not, there is a warning.

    Raises:
        InputError: On arguments that cannot be used.
        KeyboardInterrupt: As `interrupt` says.
    """
    if solver is not None and tol is not None:
        raise InputError("tol is for fits without a solver of their own: name it there, as in `WorkingSet(tol=1e-3)`.")
    key = given_key(key)
    require_problem(problem)
    init = given_start(init, problem.n)
    options = Options(may_change=solver is None)
    tol = 1e-4 if tol is None else tol
    concrete = is_concrete(problem, solver, tol, key, init)
    driven = host_drives(problem.gram, concrete=concrete)
    problems = problem if concrete else lax.stop_gradient(problem)
    traced = not (driven and is_concrete(problems, tol, key, init))
    solver = first_choice(problem, tol, traced=traced) if solver is None else solver
    require_usable(solver)
    constant = (problems, solver, key, init) if concrete else (problems, *lax.stop_gradient((solver, key, init)))
    if driven and is_concrete(constant):
        require_seconds(max_seconds)
        with answering(interrupt) as stop, stop.within(max_seconds):
            result = drive(*constant, stop=stop, callback=callback, options=options)
        warn_of_rounded_values(problems, result, float(constant[1].tol))
        # Traced for derivatives alone: these rest on the solution, not on the steps.
        return result if concrete else jax.jit(differentiable)(problem, result)
    if max_seconds is not None or callback is not None:
        where = "concrete arrays: call `fit` outside jit and vmap" if not concrete else "a mesh of one process"
        raise InputError(f"max_seconds and callback need {where}.")
    result = (jax.jit(fit_compiled) if is_concrete(constant) else fit_compiled)(problem, solver, key, init)
    if concrete:
        warn_unless_converged(result, solver, problem)
    return result


@in_automatic_axes
def fit_compiled(problem: Problem, solver: Solver, key: Array, init: Any = None) -> Fit:
    """Solve a problem under tracing: `fit` for use inside `jit`, `vmap` and `scan`.

    `init` is a `Fit` to continue; weights `(n,)`; a `Start` (which saves a matrix-vector product); or None. The fit is
    differentiable with respect to the problem (`jaxsvm.loop.differentiation`).
    """
    require_usable(solver)
    n = problem.n
    (problem,) = ready_together([problem], [solver], pad=False)  # derivatives use the kernel values stored here
    start = start_of(init, problem, solver, n)
    constant, key, start, init = lax.stop_gradient((problem, key, start, init))
    solver = solver if is_concrete(solver) else lax.stop_gradient(solver)
    long = solver.traits.long_steps and problem.n >= MEASURED.samples_of_a_long_step
    fitted = in_groups(1 if long else MEASURED.lanes_together, _solved, constant, solver, key, start, init)
    result, spread = trimmed(differentiable(problem, fitted), n), problem.gram.spread
    return result if spread is None else spread.placed(result)  # each process can read it


def _solved(problem: Problem, solver: Solver, key: Array, start: Any, init: Any) -> Fit:
    """Run rounds under tracing until the status is decided, without derivatives; `start` is `start_of(init)`."""
    how = Certifying(by_features=False)
    progress = begin(problem, solver, key, start)
    progress = while_loop(
        lambda progress: progress.status == Status.RUNNING,
        lambda progress: certify(problem, solver, advance(problem, solver, progress), how),
        with_earlier_steps(problem, solver, progress, init),
    )
    return finish(solver, progress)


def drive(
    problem: Problem,
    solver: Solver,
    key: Array | None,
    init: Any = None,
    *,
    stop: Interruption | None = None,
    callback: Callable[[Fit], Any] | None = None,
    options: Options = DEFAULT,
) -> Fit:
    """Solve a problem of concrete arrays on the host: run the solver and those that take over from it.

    Args are those of `fit`, but that `init` may be a `Start`; of a caller that runs several fits `stop` is its flag.

    Returns:
        The best certified point, with the status of the last solver and the counters of all.
    """
    require_usable(solver)
    n, best, counters = problem.n, None, []

    def shown(fit: Fit) -> Any:
        fit = trimmed(fit, n)
        known = fit if best is None else _better_of(best, fit)
        total = reduce(Counters.plus, [*counters, fit.counters])
        return cast(Any, callback)(dataclasses.replace(known, counters=total, status=fit.status))

    with watching(stop) as stop:
        alone = options.may_change and init is callback is None
        if alone and (small := _small_fit(problem, solver, stop)) is not None:
            return small
        turn = Turn(before_features(problem, solver) if options.may_change else solver, given_key(key), init)
        while True:
            solver, problem = turn.solver, ready(problem, turn.solver, lambda: stop.seen)
            start = start_of(turn.init, problem, solver, n) if turn.state is None else turn.state
            progress = begun(problem, solver, turn.key, start, turn.init, options.provisional)
            finisher = solver.finisher(problem)
            due = NEVER if finisher is None else finisher.after * 2**turn.returns - int(progress.earlier)
            awaited = 0 if finisher is None or turn.returns else 2 * finisher.after
            following = partial(_following, problem, turn, may_change=options.may_change)
            report, provisional = None if callback is None else shown, options.provisional
            progress, following = run(problem, solver, progress, stop, report, following, provisional, due, awaited)
            result = trimmed(finish(solver, progress), n)
            # Rounded values of a definite kernel turned out indefinite: nothing that was certified before is proved.
            refuted = int(result.status) == Status.STALLED and float(result.certificate.dual) == -np.inf
            best = result if best is None or refuted else _better_of(best, result)
            counters.append(result.counters)
            if following is not None and not refuted:
                turn = _handed_over(problem, turn, progress, following, n)
            elif refuted or turn.back is None or int(result.status) in (Status.CONVERGED, Status.INTERRUPTED):
                break
            else:
                turn = turn.returned(result if best is result else None, int(result.counters.steps))
        if turn.back is not None:  # stopped within a finisher, which is due at once where the fit is continued
            counters[-1] = counters[-1]._replace(alone=counters[-2].alone)
        best = result if int(result.status) == Status.CONVERGED else best
        stalled = int(result.status) == Status.STALLED and not float(best.certificate.relative_gap) < 1
        if problem.corrects and stalled and not options.provisional:
            best = _better_of(trimmed(_of_nothing(problem).fit(result.status.code, result.counters), n), best)
        best = dataclasses.replace(best, counters=reduce(Counters.plus, counters), status=result.status)
        if options.warns:
            warn_unless_converged(best, solver, problem)
    return best


def _small_fit(problem: Problem, solver: Solver, stop: Interruption) -> Fit | None:
    """Return the fit of a concrete hinge problem that `small_chains` certifies to the solver's `tol`; else None."""
    if not isinstance(problem, BoxProblem) or np.count_nonzero(problem.weights) > MEASURED.samples_at_once:
        return None
    padded, n = ready(problem, solver, lambda: stop.seen), problem.n
    fits = small_chains(padded, np.asarray(padded.weights)[None], np.asarray(padded.C)[None], float(solver.tol), stop)
    known = fits is not None and int(fits.status.code[0, 0]) == Status.CONVERGED
    return on_device(trimmed(jax.tree.map(lambda leaf: leaf[0, 0], fits), n)) if known else None


@Program
def _of_nothing(problem: Problem) -> Answer:
    """Certify `alpha = 0`: a point of a fit that stalled may be worse than the function 0."""

    def certified(problem: Problem, zero: Array) -> Answer:
        wide = widened(problem)
        return in_dtype(wide.certified(zero.astype(wide.dtype), zero.astype(wide.dtype), problem.dtype), problem.dtype)

    return in_double(certified)(problem, jnp.zeros((problem.n,), problem.dtype))


def _better_of(first: Fit, second: Fit) -> Fit:
    """Return the fit with the smaller certified gap, on the host; the second if they are level.

    Relative gaps of 1 and more say nothing: then the difference of the primal and the dual value counts.
    """
    (primal, dual, gap), (upper, lower, other) = (map(float, fit.certificate) for fit in (first, second))
    better = gap < other if min(gap, other) < 1 else primal - dual < upper - lower
    return first if better else second


class Turn(NamedTuple):
    """What one solver is given of a fit."""

    solver: Solver  # the solver
    key: Array  # its random key
    init: Any  # where it starts: what the caller of `drive` gave, or weights of all samples
    state: Any = None  # the state that it takes over; None if it starts at `init`
    back: Solver | None = None  # the solver that follows if this one is a finisher and proves nothing; else None
    returns: int = 0  # how many finishers came back

    def returned(self, better: Fit | None, steps: int) -> "Turn":
        """Return the turn after a finisher of so many steps, from its point if that is better, else from its start."""
        solver = with_max_steps(cast(Solver, self.back), max(int(cast(Solver, self.back).max_steps) - steps, 0))
        init = self.init if better is None else np.asarray(better.alpha)
        return Turn(solver, self.key, init, returns=self.returns + 1)


def _following(problem: Problem, turn: Turn, progress: Progress, *, may_change: bool) -> HandOver | None:
    """Return what goes on with a fit, also with one that ended as STALLED or MAX_STEPS; None for nothing."""
    status, solver = int(progress.status), turn.solver
    if status == Status.RUNNING:
        taken, times = int(steps_taken(progress)), 2**turn.returns  # at C = 1e8 Newton needs more than 40 steps
        handed = solver.hands_over(problem, progress.state, (taken + int(progress.earlier)) / times)
        left, most = int(solver.max_steps) - taken, 0 if handed is None else times * int(handed.solver.max_steps)
        # A finisher that the cap cuts short proves nothing, and fits in pieces would begin it again and again.
        if handed is not None and (handed.back is None or most <= left):
            return handed._replace(solver=with_max_steps(handed.solver, min(most, left)))
    if may_change and status in (Status.RUNNING, Status.STALLED, Status.MAX_STEPS):  # a cap of `first_choice`'s own
        return second_choice(problem, solver, progress.state, progress.excess, status != Status.RUNNING)
    return None


def _handed_over(problem: Any, turn: Turn, progress: Progress, following: HandOver, n: int) -> Turn:
    """Return the next solver's turn."""
    init = np.atleast_2d(turn.solver.dual_point(problem, progress.state)[0])[-1]
    remaining = max(int(turn.solver.max_steps) - int(steps_taken(progress)), 0)
    key = jax.random.fold_in(turn.key, 1) if following.draws_anew else turn.key
    state = progress.state if following.takes_state else None
    back = following.back and with_max_steps(following.back, remaining)
    return Turn(following.solver, key, init[:n], state, back, turn.returns)


def warn_unless_converged(fitted: Fit, solver: Solver, problem: Problem) -> None:
    """Warn of a fit that ended in any other way; where little was proved, of columns that differ much first."""
    status, gap = Status(int(fitted.status)), float(fitted.certificate.relative_gap)
    if status != Status.CONVERGED:
        numeric = status in (Status.STALLED, Status.MAX_STEPS, Status.NOT_FINITE)
        scaling = _uneven(problem.gram.x) if is_far(gap, solver) and numeric else ""
        warn(
            f"{type(solver).__name__} ended as {status.name} after {int(fitted.steps)} steps with a relative gap of "
            f"{gap:.5g} (tol {float(solver.tol):.3g}). {scaling}{advice(status, fitted)}",
            ConvergenceWarning,
        )


def _uneven(x: Any) -> str:
    """Advise to scale the columns of dense points `(n, d)` where the widest is a hundred times the narrowest."""
    dense = isinstance(x, np.ndarray | jax.Array) and getattr(x, "is_fully_addressable", True)
    if not dense or x.ndim != 2 or not jnp.issubdtype(x.dtype, jnp.floating):
        return ""
    widths = np.ptp(np.asarray(x, np.float64), axis=0)
    widths, widest = widths[widths > 0], int(np.argmax(widths))
    if len(widths) < 2 or not widths.max() >= 100 * widths.min():
        return ""
    return f"Scale the columns first: column {widest} spans {widths.max():.3g}, the narrowest {widths.min():.3g}. "
