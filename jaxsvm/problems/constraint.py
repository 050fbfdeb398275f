"""The equality constraint of a box problem: feasible points near others, and the bias, which is its multiplier."""

import dataclasses
from typing import TYPE_CHECKING, Any, TypeVar

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from jaxsvm.errors import InputError, is_concrete
from jaxsvm.numerics.line_search import bisected
from jaxsvm.numerics.products import sums
from jaxsvm.runtime.arrays import computed

if TYPE_CHECKING:
    from jaxsvm.problems.box import BoxProblem

P = TypeVar("P", bound="BoxProblem")


def feasible_point(problem: "BoxProblem", a: Float[Array, " n"]) -> Float[Array, " n"]:
    """Return the nearest feasible point: `clip(a - t c, 0, U)` with the multiplier t that meets the equality."""
    if problem.c is None:
        return jnp.clip(a, 0, problem.upper)
    a, c = jnp.clip(a, 0, problem.upper), problem.c

    def at(t: Array) -> Array:
        return jnp.clip(a - t * c, 0, problem.upper)

    # Beyond these ends every sample is at the bound that c pulls it to.
    reach = (jnp.maximum(a, problem.upper - a) / jnp.where(c == 0, 1, jnp.abs(c))).max()

    # A float64 bracket has fewer bits to lose.
    low, high = bisected(lambda t: c @ at(t) > problem.e, -reach, reach, 64)
    reached, size = sums(c * a, jnp.abs(c * a))
    met = jnp.abs(reached - problem.e) <= _rounding(problem, size)
    return jnp.where(met, a, on_equality(problem, at((low + high) / 2)))


def on_equality(problem: "BoxProblem", a: Float[Array, " n"]) -> Float[Array, " n"]:
    """Return a point of the box moved back onto the equality that rounding took it off.

    Each sample moves by the same share of its room. Only samples inside the box move if they suffice, since
    derivatives depend on which samples are at a bound.
    """
    if problem.c is None:
        return a
    met, size = sums(problem.c * a, jnp.abs(problem.c * a))
    too_much = met - problem.e
    target = jnp.where(problem.c * too_much > 0, 0, problem.upper)
    room = jnp.abs(problem.c * (target - a))
    inside = (a > 0) & (a < problem.upper)
    of_inside, of_all = sums(jnp.where(inside, room, 0), jnp.where(problem.present, room, 0))
    enough = of_inside > jnp.abs(too_much)
    moved, total = jnp.where(enough, inside, problem.present), jnp.where(enough, of_inside, of_all)
    off = jnp.abs(too_much) > _rounding(problem, size)
    share = jnp.where(off, jnp.clip(jnp.abs(too_much) / jnp.where(total > 0, total, 1), 0, 1), 0)
    return jnp.where(moved, a + share * (target - a), a)


def best_bias(problem: "BoxProblem", s: Float[Array, " n"]) -> Float[Array, ""]:
    """Return the b that minimises the primal for margins s without b; the middle of the interval if there is one."""
    if problem.c is None:
        return jnp.zeros((), s.dtype)
    weight = problem.upper * jnp.abs(problem.c)
    breaks = jnp.where(weight > 0, (problem.q - s) / jnp.where(problem.c == 0, 1, problem.c), jnp.inf)
    upward, total = sums(jnp.where(problem.c > 0, weight, 0), weight)
    breaks, steps = lax.sort((breaks, weight), num_keys=1)
    # The slope right of each break; at -infinity every sample with c > 0 has slack.
    slope, rounding = problem.e - upward + jnp.cumsum(steps), 8 * jnp.finfo(s.dtype).eps * total
    first = jnp.where(slope >= -rounding, breaks, jnp.inf).min()
    last = jnp.where(slope > rounding, breaks, jnp.inf).min()
    bias = (first + jnp.where(last < jnp.inf, last, first)) / 2
    return jnp.where(first < jnp.inf, bias, 0)


def _rounding(problem: "BoxProblem", size: Float[Array, ""]) -> Float[Array, ""]:
    """Bound the rounding of `c'a - e`, where `|c|'|a|` is the size."""
    return 4 * jnp.finfo(size.dtype).eps * (size + jnp.abs(problem.e))


def checked(problem: P) -> P:
    """Return a box problem that is not feasible if its box holds no point of the equality, up to rounding."""
    if problem.c is None:
        return problem

    def within(_: Any, c: Array, e: Array, upper: Array) -> Array:
        least, most = _ends(c, upper)
        slack = 8 * jnp.finfo(c.dtype).eps * abs(c * upper).sum()
        return (e >= least - slack) & (e <= most + slack)

    met = computed(within, problem.c, problem.e, problem.upper)
    if is_concrete(met) and bool(met):
        return problem
    return dataclasses.replace(problem, feasible=problem.feasible & met)


def require_reachable(problem: "BoxProblem") -> None:
    """Refuse concrete coefficients c with zeros in the box, or a right-hand side e that the box does not reach.

    Raises:
        InputError: Naming the argument.
    """
    if problem.c is None or not is_concrete(problem.c, problem.e, problem.upper):
        return
    c, upper = np.asarray(problem.c), np.asarray(problem.upper)
    if ((c == 0) & (upper != 0)).any():
        raise InputError("c holds 0: every point in the box (upper > 0) takes part in the equality constraint.")
    if not bool(checked(problem).feasible) and bool(problem.feasible):
        least, most = _ends(c, upper)
        raise InputError(
            f"e is {float(problem.e)}: c'a lies between {float(least):.6g} and {float(most):.6g} in this box."
        )


def _ends(c: Any, upper: Any) -> tuple[Any, Any]:
    """Return the least and the largest `c'a` in the box."""
    terms = c * upper
    return terms.clip(max=0).sum(), terms.clip(min=0).sum()
