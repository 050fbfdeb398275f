"""A round: chunks of steps -> look -> refresh -> certify -> decide. What is traced, whichever driver turns the loop.

A *round* takes chunks of `check_every` steps until certification is due (the running value of the stop rule says it
holds, `s` has drifted for long enough, nothing moves, or the step cap is met); then it recomputes `s` from scratch,
certifies, and decides. Nothing is decided on running values.
"""

from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxsvm.errors import is_concrete
from jaxsvm.numerics.masks import every
from jaxsvm.numerics.precision import in_double, like, widened
from jaxsvm.problems.certificates.definiteness import negative_curvature
from jaxsvm.problems.contract import Problem
from jaxsvm.problems.forms import BoxForm
from jaxsvm.results.fit import Answer, Certificate, Fit, Status, bit_of
from jaxsvm.results.judge import narrowed, refused
from jaxsvm.runtime.loops import fori_loop, while_loop
from jaxsvm.runtime.once import once
from jaxsvm.solvers.contract import Solver
from jaxsvm.solvers.start import Resumed
from jaxsvm.solvers.stopping import CERTIFIED_GAP, stop_excess
from jaxsvm.solvers.validation import require_solves

DOUBT = 8
"""A claim that no certificate bore out costs `n / DOUBT` steps of waiting, each time that many more."""
CLAIM = 0.9
"""The running value must be this far below the threshold before a certification is worth its product."""
MISSES = 2
"""Claims in vain in float64 that a w that is known waits for: another step or two mostly do without it."""
STILL = 1000
"""Steps after which an R that stands still is looked into, though alpha may move below its rounding."""


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


def begin(problem: Problem, solver: Solver, key: Array, init: Any = None) -> Progress:
    """Progress at the start point, of which nothing is certified yet: the decision function 0, to go on from.

    A certificate of the start would be a fifth of the compile time. One that a user gave, which steps of a stochastic
    solver may make worse, is what the first round certifies, before it takes any.
    """
    require_solves(solver, problem)
    state = solver.init(problem, key, init)
    point, _ = solver.dual_point(problem, state)
    infinite, nothing = jnp.asarray(jnp.inf, problem.dtype), jnp.zeros((problem.n,), problem.dtype)
    return Progress(
        state=state,
        answer=Answer(
            # Of two rows the last is the feasible one.
            alpha=(point[-1] if point.ndim == 2 else point).astype(problem.dtype),
            dual_coef=nothing,
            bias=jnp.zeros((), problem.dtype),
            R=jnp.ones((), problem.dtype),
            margins=nothing,
            certificate=Certificate(infinite, -infinite, infinite),
        ),
        status=jnp.where(problem.feasible, Status.RUNNING, Status.INFEASIBLE).astype(jnp.int32),
        excess=infinite,
        refreshed=jnp.zeros((), jnp.int32),
        polished=jnp.zeros((), jnp.int32),
        lowest=infinite,
        stale=jnp.zeros((), jnp.int32),
        misses=jnp.zeros((), jnp.int32),
        idle=jnp.asarray(isinstance(init, Resumed) or hasattr(init, "shape")),
    )


def advance(problem: Problem, solver: Solver, progress: Progress, chunks: Any = None) -> Progress:
    """Take chunks of steps until certification is due (or `chunks` of them are done), the last one cut at the cap."""
    return last_steps(problem, solver, whole_chunks(problem, solver, progress, chunks))


def ends_with_a_chunk(solver: Solver) -> bool:
    """Return whether whole chunks of a fresh fit end exactly at the cap, so that no program needs `last_steps`."""
    return is_concrete(solver.max_steps) and int(solver.max_steps) % solver.check_every == 0


def whole_chunks(problem: Problem, solver: Solver, progress: Progress, chunks: Any = None) -> Progress:
    """Take chunks until certification is due, `chunks` of them are done, or the cap is nearer than another one."""

    def chunk(progress: Progress) -> Progress:
        state = run_steps(problem, solver, progress.state, solver.check_every)
        return look(problem, solver, progress, state)

    def going(carry: tuple[Array, Progress]) -> Array:
        done, progress = carry
        more = _waiting(solver, progress) & has_room(solver, steps_taken(progress))
        return more if chunks is None else more & (done < chunks)

    start = (jnp.zeros((), jnp.int32), progress)
    return while_loop(going, lambda carry: (carry[0] + 1, chunk(carry[1])), start)[1]


def last_steps(problem: Problem, solver: Solver, progress: Progress) -> Progress:
    """Where a chunk has no room: single steps up to the cap, which is exact; else nothing.

    Only there: under vmap each would copy its carry. The host driver compiles them where it gets there.
    """
    short = _waiting(solver, progress) & ~has_room(solver, steps_taken(progress))
    state = while_loop(
        lambda state: short & (state.counters.steps < solver.max_steps),
        lambda state: solver.step(problem, state),
        progress.state,
    )
    return look(problem, solver, progress, state)


def _waiting(solver: Solver, progress: Progress) -> Array:
    return (progress.status == Status.RUNNING) & ~due(solver, progress)


def has_room(solver: Solver, steps: Any) -> Any:
    """Whether the cap on steps leaves room for a whole chunk after so many."""
    return steps + solver.check_every <= solver.max_steps


def run_steps(problem: Problem, solver: Solver, state: Any, steps: int) -> Any:
    """`steps` (static) steps, a few a turn: between turns XLA copies vectors, which costs a quarter of a step."""
    if steps == 1:
        return solver.step(problem, state)
    unroll = min(solver.unroll, steps)
    return fori_loop(0, steps, lambda _, state: solver.step(problem, state), state, unroll=unroll)


def look(problem: Problem, solver: Solver, progress: Progress, state: Any) -> Progress:
    """Progress with a new state, its running excess, and whether it moved at all."""
    moved = state.counters.steps > progress.state.counters.steps
    excess = solver.running_excess(problem, state)
    # R alone would not tell: near the end its decrease is below its rounding, while alpha and s still move.
    long = state.counters.steps - progress.refreshed >= STILL
    still = (state.R == progress.state.R) & ((excess == progress.excess) | long)
    return progress._replace(state=state, excess=excess, idle=jnp.where(moved, still, progress.idle))


def due(solver: Solver, progress: Progress) -> Array:
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
    problem: Problem,
    solver: Solver,
    progress: Progress,
    may_polish: bool = True,
    provisional: bool = False,
    may_correct: bool = True,
) -> Progress:
    """Recompute what drifts, polish where that was earned, certify, keep the better point, and decide.

    In twice the precision, but where the answer is `provisional`: the caller certifies what is made of it.
    Whoever knows that no polish is earned, or that the fit is not `stuck`, leaves out what that would compile.
    """
    may_polish = may_polish and solver.polish_interval(problem) is not None
    assess = partial(_assessed, may_polish=may_polish, provisional=provisional, may_correct=may_correct)
    assess = assess if provisional else in_double(assess)
    earned = earned_polish(problem, solver, progress)
    at_cap = steps_taken(progress) >= solver.max_steps
    gave_up = _gave_up(problem, solver, progress)
    is_stuck = stuck(problem, solver, progress.stale, progress.misses, at_cap)
    may_end = gave_up | at_cap | (progress.stale + 1 >= solver.patience)
    state, answer, excess, R, sound, indefinite = assess(problem, solver, progress.state, earned, is_stuck, may_end)
    gap, best = answer.certificate.relative_gap, progress.answer.certificate.relative_gap
    better = sound & (~(gap > best) | (excess <= 1))

    # Progress is a lower R by more than rounding, or a gap that still shrinks.
    rounding = 4 * jnp.finfo(R.dtype).eps * jnp.abs(R)
    advanced = (progress.lowest - rounding > R) | (gap < 0.99 * best)
    stale = jnp.where(advanced, 0, progress.stale + 1)
    status = jnp.asarray(Status.RUNNING, jnp.int32)
    ruled = excess <= 1
    proven = ruled if solver.stop == CERTIFIED_GAP else gap <= solver.tol
    for condition, code in (  # the first that holds decides
        (progress.status != Status.RUNNING, progress.status),
        (~sound, Status.NOT_FINITE),
        (indefinite, Status.NOT_PSD),
        ((ruled | gave_up) & proven, Status.CONVERGED),
        (ruled | gave_up, Status.UNCERTIFIED),
        (at_cap, Status.MAX_STEPS),
        (stale >= solver.patience, jnp.where(solver.full(problem, progress.state), Status.FULL, Status.STALLED)),
    ):
        status = jnp.where((status == Status.RUNNING) & condition, code, status)
    best_answer = jax.tree.map(lambda new, old: jnp.where(better, new, old), answer, progress.answer)
    if not problem.gram.definite:  # what was certified before the curvature showed proves nothing either
        certificate = refused(best_answer.certificate, status == Status.NOT_PSD)
        best_answer = best_answer._replace(certificate=certificate)
    return progress._replace(
        state=state,
        answer=best_answer,
        status=status,
        excess=excess,
        refreshed=steps_taken(progress),
        polished=jnp.where(earned & may_polish, steps_taken(progress), progress.polished),
        lowest=jnp.where(sound, jnp.minimum(progress.lowest, R), progress.lowest),
        stale=stale,
        misses=jnp.where(progress.excess <= CLAIM, progress.misses + 1, 0),
        idle=jnp.asarray(False),
    )


def stuck(problem: Problem, solver: Solver, stale: Any, misses: Any, at_cap: Any) -> Any:
    """Whether steps no longer help: then a w beside the dual point may; one that is known, at a claim in vain.

    In float64 a few more steps mostly do without.

    The arguments are those of `Progress`, and whether the cap on steps is met; of the host's numbers, a bool.
    """
    ended = (stale > 0) | at_cap
    if not solver.carries_weights(problem):
        return ended
    return ended | (misses > (0 if jnp.finfo(problem.dtype).bits < 64 else MISSES))


def corrects(problem: Problem, solver: Solver) -> bool:
    """Whether a w beside the dual point may help: rounding is no floor of float64, but to a w that is known."""
    return problem.corrects and (jnp.finfo(problem.dtype).bits < 64 or solver.carries_weights(problem))


def _assessed(
    problem: Problem,
    solver: Solver,
    state: Any,
    earned: Array,
    stuck: Array,
    may_end: Array,
    may_polish: bool,
    provisional: bool,
    may_correct: bool = True,
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
    if may_correct and not provisional and point.ndim == 1 and corrects(problem, solver):
        w = solver.feature_weights(wide, fresh) if solver.carries_weights(problem) else None
        answer, excess = _put_beside(cast(BoxForm, wide), solver, (point, s, problem.dtype, w), stuck, answer, excess)
    sound = jnp.isfinite(R) & every(jnp.isfinite(s)) & jnp.isfinite((point * s).sum())
    indefinite = fresh.indefinite | wide.indefinite(R)
    if not wide.gram.definite:
        indefinite = once(
            sound & ((excess <= 1) | may_end),
            lambda found: found | negative_curvature(wide, everywhere=point.ndim == 2),
            indefinite,
        )
    certificate = narrowed(answer.certificate, problem.dtype)
    narrow, excess, R = jax.tree.map(lambda leaf: leaf.astype(problem.dtype), (answer, excess, R))
    return like(fresh, state), narrow._replace(certificate=certificate), excess, R, sound, indefinite


def _put_beside(
    wide: BoxForm, solver: Solver, there: tuple[Any, ...], stuck: Array, answer: Answer, excess: Array
) -> tuple[Answer, Array]:
    """Where steps no longer help and the coefficients' dtype is what is left of the gap: a w beside the dual point."""

    def put(_: Any) -> tuple[Answer, Array]:
        point, s, dtype, _ = there
        beside = wide.certified(*wide.beside(*there), dtype)
        return beside, stop_excess(wide, solver, point, s, beside.certificate)

    wanted = stuck & (excess > 1)
    beside, left = once(wanted, put, (answer, excess))
    better = left < excess
    return jax.tree.map(lambda new, old: jnp.where(better, new, old), (beside, left), (answer, excess))


def earned_polish(problem: Problem, solver: Solver, progress: Progress) -> Array:
    """Whether the steps since the last polish have spent as much as a polish costs."""
    interval = solver.polish_interval(problem)
    if interval is None:
        return jnp.asarray(False)
    return steps_taken(progress) - progress.polished >= interval


def _gave_up(problem: Problem, solver: Solver, progress: Progress) -> Array:
    """A sampled solver without a final check ends where its samples saw no violator, borne out or not.

    With a full buffer they saw none because they were not let in: that is no such end.
    """
    if solver.final_check != "none":
        return jnp.asarray(False)
    return (progress.excess <= CLAIM) & ~jnp.asarray(solver.full(problem, progress.state))


def finish(solver: Solver, progress: Progress) -> Fit:
    """The best certified point as a `Fit`, with the name of its solver: nothing is computed."""
    return progress.answer.fit(progress.status, progress.state.counters._replace(solvers=bit_of(solver)))


def refresh_interval(solver: Solver, n: int) -> int:
    """Steps between refreshes at the most: a refresh is a product, which costs thousands of steps."""
    return max(4000, n) if solver.refresh_every is None else solver.refresh_every


def steps_taken(progress: Progress) -> Int[Array, ""]:
    """Steps taken so far."""
    return progress.state.counters.steps
