"""One round of a solve: steps -> running value -> refresh -> certificate -> decision. Both drivers share it.

A round takes chunks of `check_every` steps until a certificate is due: the running value of the stop rule holds, `s`
has accumulated rounding for long enough, nothing moves, or the step cap is reached. It then recomputes `s` from
scratch, certifies, and decides. Nothing is decided on running values. Rounds can be traced.

Before the first one `ready` and `start_of` pad a problem and its start to a size that shares compiled programs, and
store kernel values if that pays.
"""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxsvm.errors import is_concrete, require
from jaxsvm.gram.operators import with_values
from jaxsvm.gram.spread import SpreadGram
from jaxsvm.loop.interruption import unless
from jaxsvm.loop.measured import MEASURED
from jaxsvm.numerics.precision import in_double, like, widened
from jaxsvm.problems.certificates import corrections, definiteness
from jaxsvm.problems.contract import BoxForm, Problem
from jaxsvm.problems.padding import padded
from jaxsvm.results.fit import Answer, Certificate, Fit, Status, bit_of
from jaxsvm.results.judge import better_answer, in_dtype, refused, verdict
from jaxsvm.runtime.arrays import lengthened, on_device
from jaxsvm.runtime.loops import fori_loop, once, while_loop
from jaxsvm.solvers.contract import CERTIFIED_GAP, Solver, require_solves, stop_excess
from jaxsvm.solvers.start import Origin, Resumed, Start


class Progress(NamedTuple):
    """Where a solve is."""

    state: Any  # the solver's state
    best: Answer  # the best certified point, in the numbers that a caller gets
    status: Int[Array, ""]  # status code
    excess: Float[Array, ""]  # running value of the stop rule over its threshold: at most 1 if the rule seems to hold
    refreshed: Int[Array, ""]  # step of the last certificate
    earlier: Int[Array, ""]  # steps of the fits that this one continues
    lowest: Float[Array, ""]  # the lowest certified `R` so far
    stalled: Int[Array, ""]  # certificates in a row without progress
    refuted: Int[Array, ""]  # certificates in a row that did not confirm the running value
    # whether the last chunk left `R` and `excess` unchanged, or `R` 1,000 steps after a certificate
    idle: Bool[Array, ""]


@dataclasses.dataclass(frozen=True)
class Certifying:
    """How a state is certified. Static: a program that knows that it needs no correction is smaller."""

    # whether to look for a better w beside a dual point whose gap is too large (`corrections.beside`)
    may_correct: bool = True
    # whether to compute such a w in the space of few features if the solver does not carry one
    by_features: bool = True
    # whether to certify in the data's precision, without an allowance for rounding, because the caller certifies the
    # result again. Products take a third of the time
    provisional: bool = False


def begin(problem: Problem, solver: Solver, key: Array, init: Any = None) -> Progress:
    """Return the progress at the start point, without a certificate: the decision function is 0.

    A certificate of the start would be a fifth of the compile time. A start that a user gave is certified by the first
    round before it takes any step, since steps of a stochastic solver may make it worse.
    """
    require_solves(solver, problem)
    state = solver.init(problem, key, init)
    point, _ = solver.dual_point(problem, state)
    infinite, nothing = jnp.asarray(jnp.inf, problem.dtype), jnp.zeros((problem.n,), problem.dtype)
    none = jnp.zeros((), jnp.int32)
    best = (point[-1] if point.ndim == 2 else point).astype(problem.dtype)  # of two rows the last is the feasible one
    certificate = Certificate(infinite, -infinite, infinite)
    zero, one = jnp.zeros((), problem.dtype), jnp.ones((), problem.dtype)
    answer = Answer(best, nothing, zero, one, nothing, certificate)
    status = jnp.where(problem.feasible, Status.RUNNING, Status.INFEASIBLE).astype(jnp.int32)
    idle = jnp.asarray(isinstance(init, Resumed) or hasattr(init, "shape"))
    progress = Progress(state, answer, status, infinite, none, none, infinite, none, none, idle)
    return progress if problem.gram.spread is None else problem.gram.spread.placed(progress, problem.n)


def advance(problem: Problem, solver: Solver, progress: Progress) -> Progress:
    """Take chunks of steps under tracing until a certificate is due, the last one cut at the cap."""
    progress = whole_chunks(problem, solver, progress, unroll=1)  # a traced program holds each step once
    if is_concrete(solver.max_steps) and int(solver.max_steps) % solver.check_every == 0:
        return progress  # whole chunks of a fresh fit end exactly at the cap
    return last_steps(problem, solver, progress)


def whole_chunks(
    problem: Problem, solver: Solver, progress: Progress, chunks: Any = None, unroll: int | None = None
) -> Progress:
    """Take chunks until a certificate is due, `chunks` of them are done, or the cap leaves no room for another one.

    `unroll` replaces the solver's own number of steps per turn: a traced program holds each step once.
    """

    def chunk(progress: Progress) -> Progress:
        state = run_steps(problem, solver, progress.state, solver.check_every, unroll or solver.unroll)
        return _with_state(problem, solver, progress, state)

    def unfinished(carry: tuple[Array, Progress]) -> Array:
        done, progress = carry
        more = _stepping(solver, progress) & (steps_taken(progress) + solver.check_every <= solver.max_steps)
        return more if chunks is None else more & (done < chunks)

    start = (jnp.zeros((), jnp.int32), progress)
    return while_loop(unfinished, lambda carry: (carry[0] + 1, chunk(carry[1])), start)[1]


def last_steps(problem: Problem, solver: Solver, progress: Progress) -> Progress:
    """Take single steps up to the cap if it leaves no room for a chunk; else none.

    The cap is exact. Under vmap each of these steps copies its carry; the host driver compiles them only at the cap.
    """
    short = _stepping(solver, progress) & ~(steps_taken(progress) + solver.check_every <= solver.max_steps)
    state = while_loop(
        lambda state: short & (state.counters.steps < solver.max_steps),
        lambda state: solver.step(problem, state),
        progress.state,
    )
    return _with_state(problem, solver, progress, state)


def _stepping(solver: Solver, progress: Progress) -> Array:
    return (progress.status == Status.RUNNING) & ~certificate_due(solver, progress)


def run_steps(problem: Problem, solver: Solver, state: Any, steps: int, unroll: int) -> Any:
    """Take `steps` steps, `unroll` a turn (both static): XLA copies vectors between turns, a quarter of a step."""
    if steps == 1:
        return solver.step(problem, state)
    return fori_loop(0, steps, lambda _, state: solver.step(problem, state), state, unroll=min(unroll, steps))


def _with_state(problem: Problem, solver: Solver, progress: Progress, state: Any) -> Progress:
    """Return the progress with a new state, its running excess, and whether it is idle."""
    moved = state.counters.steps > progress.state.counters.steps
    excess = solver.running_excess(problem, state).astype(problem.dtype)  # a `tol` of NumPy would widen it
    # R alone would not tell: near the end its decrease is below its rounding, while alpha and s still move.
    long = state.counters.steps - progress.refreshed >= MEASURED.steps_before_doubt
    unchanged = (state.R == progress.state.R) & ((excess == progress.excess) | long)
    return progress._replace(state=state, excess=excess, idle=jnp.where(moved, unchanged, progress.idle))


def certificate_due(solver: Solver, progress: Progress) -> Array:
    """Return whether it is time to recompute and certify."""
    since = steps_taken(progress) - progress.refreshed
    n = progress.best.alpha.shape[-1]
    # A running value that a certificate refuted is not believed again before n / 8 more steps a refutation, which cost
    # about as much as a certificate. One step of a solver that checks after each step costs that much.
    wait = 0 if solver.check_every == 1 else n // 8
    seems_solved = (progress.excess <= MEASURED.credible_share) & (since > progress.refuted * wait)
    broken = ~jnp.isfinite(progress.state.R)
    last = steps_taken(progress) >= solver.max_steps
    indefinite = progress.state.indefinite
    return seems_solved | broken | last | indefinite | progress.idle | (since >= refresh_interval(solver, n))


def certify(problem: Problem, solver: Solver, progress: Progress, how: Certifying = Certifying()) -> Progress:  # noqa: B008 (frozen)
    """Recompute what drifts, certify, keep the better point, and decide.

    All in twice the precision, unless `how.provisional`.
    """
    assess = partial(_assessed, how=how)
    assess = assess if how.provisional else in_double(assess)
    at_cap = steps_taken(progress) >= solver.max_steps
    unconfirmed = _ends_unconfirmed(problem, solver, progress)
    may_end = unconfirmed | at_cap | (progress.stalled + 1 >= solver.patience)
    state, point, excess, R, sound, indefinite = assess(problem, solver, progress.state, may_end)
    gap, best_gap = point.certificate.relative_gap, progress.best.certificate.relative_gap
    better = sound & (~(gap > best_gap) | (excess <= 1))
    best = jax.tree.map(lambda new, old: jnp.where(better, new, old), point, progress.best)
    if solver.traits.finds_both:
        best = better_answer(point, progress.best, better, problem.of_level)
    known = (best if solver.traits.finds_both and problem.gram.definite else point).certificate

    # Progress is a lower R by more than rounding, or a gap that still shrinks by a hundredth.
    rounding = 4 * jnp.finfo(R.dtype).eps * jnp.abs(R)
    advanced = (progress.lowest - rounding > R) | (gap < 0.99 * best_gap)
    stalled = jnp.where(advanced, 0, progress.stalled + 1)
    status = jnp.asarray(Status.RUNNING, jnp.int32)
    ended = unconfirmed | (known.relative_gap <= solver.tol if solver.stop == CERTIFIED_GAP else excess <= 1)
    judged = verdict(known, solver.tol, finite=sound, definite=~indefinite, otherwise=Status.UNCERTIFIED)
    full = solver.full(problem, progress.state)
    for condition, code in reversed(
        (  # the first that holds decides
            (progress.status != Status.RUNNING, progress.status),
            (sound & indefinite & problem.gram.definite, Status.STALLED),  # of a definite kernel it is rounding
            (~sound | indefinite | ended, judged),
            (at_cap, Status.MAX_STEPS),
            (
                stalled >= solver.patience,
                Status.STALLED if full is False else jnp.where(full, Status.FULL, Status.STALLED),
            ),
        )
    ):
        status = jnp.where(condition, code, status)
    # What was certified before the curvature showed proves nothing either.
    best = best._replace(certificate=refused(best.certificate, indefinite))
    return progress._replace(
        state=state,
        best=best,
        status=status,
        excess=excess,
        refreshed=steps_taken(progress),
        lowest=jnp.where(sound, jnp.minimum(progress.lowest, R), progress.lowest),
        stalled=stalled,
        refuted=jnp.where(progress.excess <= MEASURED.credible_share, progress.refuted + 1, 0),
        idle=jnp.asarray(False),
    )


def needs_correction(problem: Problem, solver: Solver, progress: Progress) -> bool:
    """Return, on the host, whether further steps cannot close the gap, so that the corrected w is worth computing.

    A w that the solver carries is tried once a running value is refuted; in float64 after three refutations, since
    a few more steps usually suffice there.
    """
    ended = int(progress.stalled) > 0 or int(steps_taken(progress)) >= int(solver.max_steps)
    refutations = 1 if jnp.finfo(problem.dtype).bits < 64 else 3
    return ended or solver.carries_weights(problem) and int(progress.refuted) >= refutations


def can_correct(problem: Problem, solver: Solver) -> bool:
    """Return whether a corrected w may lower the gap: in float64 only if the solver carries w."""
    return problem.corrects and (jnp.finfo(problem.dtype).bits < 64 or solver.carries_weights(problem))


def _assessed(problem: Problem, solver: Solver, state: Any, may_end: Array, how: Certifying) -> tuple[Any, ...]:
    """Recompute the state and certify it, in twice the precision unless provisional.

    Return the state, its certified point, the stop rule's excess, the objective, whether all is finite, and whether the
    kernel showed a negative curvature.
    """
    wide = problem if how.provisional else widened(problem)
    fresh = solver.refresh(wide, state)
    point, s = solver.dual_point(wide, fresh)
    R = wide.objective(point, s)
    corrects = how.may_correct and not how.provisional and point.ndim == 1 and can_correct(problem, solver)
    if not corrects:
        certified = wide.certified(point, s, problem.dtype)
    else:
        w = solver.feature_weights(wide, fresh) if solver.carries_weights(problem) else None
        box, tol = cast(BoxForm, wide), solver.tol
        both, products, bias = corrections.beside(box, point, s, problem.dtype, tol, may_end, w, how.by_features)
        certified = box.certified(both, products, problem.dtype, bias)
        if wide.dtype == problem.dtype:  # the gap of two points has more rounding than that of one
            alone = wide.certified(point, s, problem.dtype)
            better = alone.certificate.relative_gap <= certified.certificate.relative_gap
            certified = jax.tree.map(lambda one, two: jnp.where(better, one, two), alone, certified)
    if how.provisional:
        certified = certified._replace(certificate=wide.certificate(point, s))
    excess = stop_excess(wide, solver, point, s, certified.certificate)
    sound = jnp.isfinite(R) & jnp.isfinite((point * s).sum())  # no product with an infinite s is finite
    indefinite = fresh.indefinite | wide.indefinite(R)
    if not wide.gram.definite:
        indefinite = once(
            sound & ((excess <= 1) | may_end),
            lambda known: known | definiteness.negative_curvature(wide, everywhere=point.ndim == 2),
            indefinite,
        )
    excess, R = excess.astype(problem.dtype), R.astype(problem.dtype)
    return like(fresh, state), in_dtype(certified, problem.dtype), excess, R, sound, indefinite


def _ends_unconfirmed(problem: Problem, solver: Solver, progress: Progress) -> Array:
    """Return whether a sampled solver without a final check ends because its samples showed no violator.

    With a full buffer they showed none because no sample could enter: that does not end a fit.
    """
    if solver.final_check != "none":
        return jnp.asarray(False)
    return (progress.excess <= MEASURED.credible_share) & ~jnp.asarray(solver.full(problem, progress.state))


def finish(solver: Solver, progress: Progress) -> Fit:
    """Return the best certified point as a `Fit`, with its solver, and all steps for a fit that continues it."""
    counters, earlier = _on_host((progress.state.counters, progress.earlier))  # the next burst may take the state
    counters = counters._replace(alone=counters.steps + earlier)
    counters = on_device(counters) if is_concrete(counters) else counters
    return progress.best.fit(progress.status, counters._replace(solvers=bit_of(solver)))


def refresh_interval(solver: Solver, n: int) -> int:
    """Return the largest number of steps between refreshes."""
    return max(MEASURED.steps_of_a_refresh, n) if solver.refresh_every is None else solver.refresh_every


def steps_taken(progress: Progress) -> Int[Array, ""]:
    """Return the number of steps taken so far."""
    return progress.state.counters.steps


P = TypeVar("P", bound=Problem)


# --- before the first round


def ready(problem: P, solver: Solver, until: Callable[[], bool] | None = None) -> P:
    """Prepare a problem for a solver: pad it to its size class and store its kernel values, if the solver prefers.

    A prepared problem is returned as it is. A caller of several fits on one operator prepares once, before the drivers
    do. The result has `problem.n` samples; `jaxsvm.problems.padding.trimmed` cuts fits of it.
    """
    return ready_together([problem], [solver], until=until)[0]


def ready_together(
    problems: Sequence[P], solvers: Sequence[Solver], pad: bool = True, until: Callable[[], bool] | None = None
) -> list[P]:
    """Prepare several problems, each for its solver; those on one operator share what is stored of it.

    Problems that a user's function sees are not to be padded; those on a mesh always are. Once `until` holds, it waits
    for no kernel values, and stores none.
    """
    prepared: dict[Any, Any] = {}
    result = []
    for problem, solver in zip(problems, solvers, strict=True):
        name, stores = problem.operator, solver.stores(problem)
        pads = (pad and solver.traits.pads) or isinstance(problem.gram, SpreadGram)
        key = (id(getattr(problem, name)), pads, stores)
        if key in prepared:
            is_longer, gram = prepared[key]
            longer = padded(problem, gram) if is_longer else problem
        else:
            longer = padded(problem) if pads else problem
            gram = getattr(longer, name)
            if stores and until is not None and problem.n >= MEASURED.samples_of_a_long_product:
                gram = unless(until, with_values, gram) or gram
            elif stores:
                gram = with_values(gram)
            gram = gram.with_squares()
            prepared[key] = (longer is not problem, gram)
        same = gram is getattr(longer, name)
        result.append(longer if same else dataclasses.replace(longer, **{name: gram}))
    return result


def start_of(init: Any, problem: Problem, solver: Solver, n: int) -> Any:
    """Return the start of a solver for a padded problem: of a fit the `Start` or `Resumed` that the solver takes."""
    size = problem.n
    if init is None:
        return Origin.of(problem) if solver.traits.knows_origin else None
    if isinstance(init, Fit) and solver.traits.resumes and np.shape(init.alpha) == (n,):
        if size != n:
            parts = {name: getattr(init, name) for name in ("alpha", "dual_coef")}
            init = dataclasses.replace(init, **lengthened(parts, size, 0))
        return Resumed.of(init, problem.y, solver)
    init = init.alpha if isinstance(init, Fit) else init
    if n == size:
        return init
    shape = np.shape(init.point if isinstance(init, Start) else init)
    require(shape == (n,), f"init has weights of shape {shape}: ({n},) is needed.")
    if not isinstance(init, Start):
        return lengthened(init, size, 0)
    point, margins = lengthened((init.point, init.margins), size, 0)
    return Start(point, margins, init.R, padded(init.problem))


def with_earlier_steps(problem: Problem, solver: Solver, progress: Progress, init: Any) -> Progress:
    """Count the steps of the fit that this one continues: a fit in pieces hands over where a single one would.

    A finisher needs the steps of an unfinished fit. Of a solver without one, all its own steps that led here count.
    """
    if not isinstance(init, Fit):
        return progress
    code, steps, bits = _on_host((init.status.code, init.counters.alone, init.counters.solvers))
    if solver.finisher(problem) is None:
        counts = (bits & bit_of(solver)) > 0
    else:
        counts = (code == Status.MAX_STEPS) | (code == Status.INTERRUPTED)
    return progress._replace(earlier=jnp.asarray(steps * counts, jnp.int32))


def _on_host(values: Any) -> Any:
    return jax.tree.map(np.array, values) if is_concrete(values) else values  # copies: nothing is left of a donated one
