"""The compiled programs of the host drivers: a start, a burst of steps, a certificate, a polish in pieces.

Each is a program of its own, so that one that is not needed is not compiled, and those that are are compiled beside one
another.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxsvm.loop.interruption import unless
from jaxsvm.loop.round import (
    Progress,
    begin,
    certify,
    due,
    earned_polish,
    last_steps,
    steps_taken,
    whole_chunks,
)
from jaxsvm.numerics.precision import like, widened
from jaxsvm.problems.contract import Problem
from jaxsvm.runtime.programs import Program
from jaxsvm.solvers.contract import Solver
from jaxsvm.solvers.start import Origin

QUICKLY = 8192
"""Samples up to which the steps of working sets are compiled quickly: of more, what sums their rows counts."""
BRIEFLY = 2048
"""Samples up to which fresh starts are compiled without optimisations: of n^2 products a start takes 12 ms longer."""


def _run(
    problem: Problem, solver: Solver, progress: Progress, chunks: Any, at_cap: bool = False
) -> tuple[Progress, Array]:
    """A round without its end, cut short after `chunks` chunks; whether that is due, and whether with a polish.

    At the cap on steps the last ones take the place of chunks.
    """
    steps = last_steps if at_cap else partial(whole_chunks, chunks=chunks)
    progress = steps(problem, solver, progress)
    time_to = due(solver, progress)
    return progress, jnp.stack([time_to, time_to & earned_polish(problem, solver, progress)])


def _assess(
    problem: Problem, solver: Solver, progress: Progress, provisional: bool = False, may_correct: bool = False
) -> Progress:
    """The end of a round, without a polish, and before a fit is stuck without a correction: most fits see neither.

    A program of its own: steps and certificate in one took half as long again to compile.
    """
    return certify(problem, solver, progress, may_polish=False, provisional=provisional, may_correct=may_correct)


def _run_in_place(
    problem: Problem, solver: Solver, rest: Progress, state: Any, chunks: Any, at_cap: bool = False
) -> Any:
    """`_run` whose state, kernel rows of 50 MB, is not copied: the old one is gone."""
    return _run(problem, solver, rest._replace(state=state), chunks, at_cap)


def _assess_in_place(
    problem: Problem, solver: Solver, rest: Progress, state: Any, provisional: bool = False, may_correct: bool = False
) -> Progress:
    """`_assess` whose state is not copied."""
    return _assess(problem, solver, rest._replace(state=state), provisional, may_correct)


compiled_begin = Program(begin)
_fresh_begin = Program(begin, brief=True)
_burst = Program(_run, static_argnames="at_cap")
_burst_in_place = Program(_run_in_place, static_argnames="at_cap", donate_argnames="state")
_long_burst_in_place = jax.jit(_run_in_place, static_argnames="at_cap", donate_argnames="state")
_certify = Program(_assess, static_argnames=("provisional", "may_correct"))
_certify_in_place = Program(_assess_in_place, static_argnames=("provisional", "may_correct"), donate_argnames="state")


def begin_program(start: Any, n: int) -> Program:
    """The program of a start."""
    fresh = start is None or isinstance(start, Origin)
    return _fresh_begin if fresh and n <= BRIEFLY else compiled_begin


def burst_call(problem: Problem, solver: Solver, progress: Progress, *more: Any) -> tuple[Any, ...]:
    """The program of a burst and its arguments: in place where the solver's state is large."""
    if not solver.large_state:
        return (_burst, problem, solver, progress, *more)
    burst = _burst_in_place if problem.n <= QUICKLY else _long_burst_in_place
    return (burst, problem, solver, progress._replace(state=None), progress.state, *more)


def certify_call(problem: Problem, solver: Solver, progress: Progress, *more: Any) -> tuple[Any, ...]:
    """The same of a certificate."""
    if not solver.large_state:
        return (_certify, problem, solver, progress, *more)
    return (_certify_in_place, problem, solver, progress._replace(state=None), progress.state, *more)


def polish_in_pieces(problem: Problem, solver: Solver, progress: Progress, told: Callable[[], bool]) -> Progress | None:
    """Progress with a polished state, whose certificate is due; None where it was told to stop in between.

    A polish can take many times `BURST_SECONDS`: on the host one compiled piece of it at a time.
    """
    with jax.enable_x64(True):  # between pieces a polish is in twice the precision as well
        begun = unless(told, _polish_begin, problem, solver, progress.state)
        if begun is None:
            return None
        fresh, carry = begun
        while bool(carry.going) and not told():
            carry = _polish_step(problem, solver, carry)
        if bool(carry.going):
            return None
        state = _polish_end(problem, solver, progress.state, fresh, carry)
    return progress._replace(state=state, polished=steps_taken(progress))


@Program
def _polish_begin(problem: Problem, solver: Solver, state: Any) -> tuple[Any, Any]:
    wide = widened(problem)
    fresh = solver.refresh(wide, state)
    return fresh, solver.polish_begin(wide, fresh)


@Program
def _polish_step(problem: Problem, solver: Solver, carry: Any) -> Any:
    return solver.polish_step(widened(problem), carry)


@Program
def _polish_end(problem: Problem, solver: Solver, state: Any, fresh: Any, carry: Any) -> Any:
    return like(solver.polish_end(widened(problem), fresh, carry), state)
