"""Certify a point without a product, by the sums `s = Qa` that the steps carried along.

A certificate from scratch is a product over all samples, which takes a minute at n = 100,000 if nothing is stored.
Every step rounds the carried sums a little. With all of that rounding counted against the point, the bracket remains
true, and in float64 is hardly wider.
"""

from typing import Any, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxsvm.loop.measured import MEASURED
from jaxsvm.loop.round import Progress, steps_taken
from jaxsvm.numerics.precision import in_double, widened
from jaxsvm.problems.contract import Problem, Restrictable
from jaxsvm.problems.slack import SlackProblem
from jaxsvm.results.fit import Answer
from jaxsvm.results.judge import in_dtype, judged
from jaxsvm.runtime.programs import Program
from jaxsvm.solvers.contract import Solver


def off_by(problem: Problem, point: Float[Array, " n"], s: Float[Array, " n"], steps: Any) -> Float[Array, ""]:
    """Bound the rounding error of carried sums so many steps after they were computed, `()`.

    A step adds at most 4 roundings of the largest sum to each: of two products and a sum. The rounding of the
    coefficients is counted too, once.
    """
    terms = jnp.abs(point).sum() * jnp.abs(problem.diagonal).max()
    return 4 * jnp.finfo(s.dtype).eps * (steps * jnp.abs(s).max() + terms)


def bracketed(wide: Problem, point: Float[Array, " n"], s: Float[Array, " n"], off: Any, dtype: Any) -> Answer:
    """Certify a point whose sums are only known to within `off`.

    Lower margins give a loss that is no smaller, higher sums a dual value that is no larger. The square of w changes by
    at most `off` times the sum of the weights, either way.
    """
    low, high = wide.certified(point, s - off, dtype), wide.certified(point, s + off, dtype)
    more = off * jnp.abs(point).sum()
    primal, dual = low.certificate.primal + more, high.certificate.dual - more
    certificate = judged(primal, dual, primal - dual, jnp.abs(dual), rounding=0)
    return low._replace(margins=(low.margins + high.margins) / 2, certificate=certificate)


def certified_by_sums(problem: Restrictable, point: Float[Array, " n"], s: Float[Array, " n"], steps: Any) -> Answer:
    """Certify a dual point by `s = Qa`, which was carried along for so many steps."""

    @in_double
    def assess(problem: Restrictable, point: Array, s: Array, steps: Any) -> Answer:
        wide = widened(problem)
        point = jnp.clip(point, 0, problem.upper if problem.bounded else None)
        off = off_by(problem, point, s, steps).astype(wide.dtype)
        point, s = point.astype(wide.dtype), s.astype(wide.dtype)
        if not problem.bounded:  # the dual bound is the same at any scale; the primal one is best at this one
            square = (point * s).sum()
            scale = jnp.where(square > 0, point.sum() / jnp.where(square > 0, square, 1), 1)
            point, s, off = scale * point, scale * s, scale * off
        return in_dtype(bracketed(wide, point, s, off, problem.dtype), problem.dtype)

    return assess(problem, point, s, steps)


@Program
def carried_program(problem: Restrictable, solver: Solver, progress: Progress) -> Answer:
    """Return the certified current point if its gap is smaller than that of the best point; else the best point."""
    point, s = solver.dual_point(problem, progress.state)
    current = certified_by_sums(problem, point, s, steps_taken(progress) - progress.refreshed)
    better = current.certificate.relative_gap < progress.best.certificate.relative_gap
    return jax.tree.map(lambda new, old: jnp.where(better, new, old), current, progress.best)


@Program
def level_program(problem: SlackProblem, solver: Solver, progress: Progress) -> Answer:
    """Return the current w of a slack problem, certified by carried responses, with the best bound known.

    The margins shown are those of the responses; the level is lower by all that rounding may have added.
    """
    point, s = solver.dual_point(problem, progress.state)
    steps = steps_taken(progress) - progress.refreshed

    @in_double
    def assess(problem: SlackProblem, a: Array, c: Array, best: Answer, steps: Any) -> Answer:
        wide = widened(problem)
        a, c, p = (part.astype(wide.dtype) for part in (jnp.maximum(a, 0), c, best.alpha))
        off = off_by(problem, a, problem.radius, steps).astype(wide.dtype)
        length = jnp.sqrt(jnp.maximum(a @ c + off * a.sum(), 1))
        rows = jnp.stack([(c - off) / length, jnp.full_like(c, wide.radius**2)])  # p'Qp is not needed, nor known here
        found = wide.certified(jnp.stack([a / length, p]), rows, problem.dtype)
        primal, dual = best.certificate.primal.astype(wide.dtype), found.certificate.dual
        bounds = judged(primal, dual, primal - dual, dual, rounding=0)
        found = found._replace(margins=found.margins + off / length / found.R, certificate=bounds)
        return in_dtype(found, problem.dtype)

    return assess(problem, point[0], s[0], progress.best, steps)


def proves_by_sums(problem: Problem, solver: Solver) -> bool:
    """Return whether to certify by carried sums: a product takes long, and the sums prove something.

    They prove nothing unless a kernel guarantees a semidefinite matrix and the solver carries exact sums, nor for a
    ball, whose dual point has a fixed scale.
    """
    long = problem.n >= MEASURED.samples_of_a_long_product
    return long and solver.traits.carries_sums and problem.restricts and problem.gram.definite


def proved_by_sums(problem: Problem, solver: Solver, progress: Progress) -> Progress:
    """Return the progress with its current point as the best one, if `proves_by_sums` and it is better."""
    if not proves_by_sums(problem, solver):
        return progress
    return progress._replace(best=carried_program(cast(Restrictable, problem), solver, progress))
