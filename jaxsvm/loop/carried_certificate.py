"""What the products that steps carry along prove of a point: a certificate without a product, for who cannot wait.

A certificate from scratch is a product over all samples, a minute at n = 100,000 where nothing is stored. Every step
rounds the carried `s = Qa` a little: with all of it counted against the point the bracket is still true, and in float64
hardly wider.
"""

from typing import Any, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxsvm.loop.round import Progress, steps_taken
from jaxsvm.numerics.precision import in_double, widened
from jaxsvm.problems.contract import Problem, Restrictable
from jaxsvm.results.fit import Answer
from jaxsvm.results.judge import judged, narrowed
from jaxsvm.runtime.programs import Program
from jaxsvm.solvers.contract import Solver

A_STEP = 4
"""Units of rounding of the largest sum that a step may add to each, two products and a sum."""


TOO_LONG = 16_384
"""Samples from which a product is too long for who was told to stop."""


def off_by(problem: Problem, point: Float[Array, " n"], s: Float[Array, " n"], steps: Any) -> Float[Array, ""]:
    """By how much rounding may have made carried sums wrong, so many steps after they were computed, `()`.

    That of the coefficients themselves is counted too, once.
    """
    terms = jnp.abs(point).sum() * jnp.abs(problem.diagonal).max()
    return A_STEP * jnp.finfo(s.dtype).eps * (steps * jnp.abs(s).max() + terms)


def bracketed(wide: Problem, point: Float[Array, " n"], s: Float[Array, " n"], off: Any, dtype: Any) -> Answer:
    """A point as it is returned, and what is true of it wherever within `off` its sums lie.

    Margins that are lower give a loss that is no smaller, sums that are higher a dual value that is no larger; squares
    of w differ by no more than `off` times the sum of the weights, each way.
    """
    low, high = wide.certified(point, s - off, dtype), wide.certified(point, s + off, dtype)
    more = off * jnp.abs(point).sum()
    primal, dual = low.certificate.primal + more, high.certificate.dual - more
    certificate = judged(primal, dual, primal - dual, jnp.abs(dual), rounding=0)
    return low._replace(margins=(low.margins + high.margins) / 2, certificate=certificate)


def answer_of(problem: Restrictable, point: Float[Array, " n"], s: Float[Array, " n"], steps: Any) -> Answer:
    """A dual point, whose `s = Qa` was carried along for so many steps, as it is returned."""

    @in_double
    def assess(problem: Restrictable, point: Array, s: Array, steps: Any) -> Answer:
        wide = widened(problem)
        point = jnp.clip(point, 0, problem.upper if problem.bounded else None)
        off = off_by(problem, point, s, steps).astype(wide.dtype)
        point, s = point.astype(wide.dtype), s.astype(wide.dtype)
        if not problem.bounded:  # in any scale a point proves the same of the dual, in the best one most of the primal
            square = (point * s).sum()
            scale = jnp.where(square > 0, point.sum() / jnp.where(square > 0, square, 1), 1)
            point, s, off = scale * point, scale * s, scale * off
        answer = bracketed(wide, point, s, off, problem.dtype)
        narrow = jax.tree.map(lambda leaf: leaf.astype(problem.dtype), answer)
        return narrow._replace(certificate=narrowed(answer.certificate, problem.dtype))

    return assess(problem, point, s, steps)


@Program
def carried_program(problem: Restrictable, solver: Solver, progress: Progress) -> Answer:
    """Where steps stand, if that is proven to be better than the answer so far; else that."""
    point, s = solver.dual_point(problem, progress.state)
    answer = answer_of(problem, point, s, steps_taken(progress) - progress.refreshed)
    better = answer.certificate.relative_gap < progress.answer.certificate.relative_gap
    return jax.tree.map(lambda new, old: jnp.where(better, new, old), answer, progress.answer)


def proves_by_sums(problem: Problem, solver: Solver) -> bool:
    """Whether carried sums prove anything: not where no kernel vouches for the matrix, or a solver carries none.

    Of a ball they prove nothing here either: its dual point has one scale.
    """
    return solver.carries_sums and problem.restricts and problem.gram.definite


def carried(problem: Problem, solver: Solver, progress: Progress) -> Progress:
    """Progress whose answer is where its steps stand, if carried sums prove that to be better; else as it was."""
    if not proves_by_sums(problem, solver):
        return progress
    return progress._replace(answer=carried_program(cast(Restrictable, problem), solver, progress))
