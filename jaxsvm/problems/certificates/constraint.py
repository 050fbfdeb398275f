"""The equality constraint of a box problem: feasible points near others, and the bias, which is its multiplier."""

import dataclasses
from typing import Any, TypeVar

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from jaxsvm.errors import InputError, is_concrete
from jaxsvm.numerics.line_search import bisected
from jaxsvm.numerics.precision import sums
from jaxsvm.problems.contract import BoxForm
from jaxsvm.runtime.arrays import computed

P = TypeVar("P", bound=BoxForm)


def feasible_point(problem: BoxForm, a: Float[Array, " n"]) -> Float[Array, " n"]:
    """Return a feasible point: `clip(a - t c, 0, U)` with the multiplier t that meets the equality, for `_movers`."""
    if problem.c is None:
        return jnp.clip(a, 0, problem.upper)
    a, c = jnp.clip(a, 0, problem.upper), problem.c
    too_much, _, moved, _ = _movers(problem, problem.c, a)

    def at(t: Array) -> Array:
        return jnp.where(moved, jnp.clip(a - t * c, 0, problem.upper), a)

    # Beyond these ends every sample is at the bound that c pulls it to.
    reach = (jnp.maximum(a, problem.upper - a) / jnp.where(c == 0, 1, jnp.abs(c))).max()

    # A float64 bracket has fewer bits to lose.
    low, high = bisected(lambda t: c @ at(t) > problem.e, -reach, reach, 64)
    return jnp.where(too_much == 0, a, on_equality(problem, at((low + high) / 2)))


def on_equality(problem: BoxForm, a: Float[Array, " n"]) -> Float[Array, " n"]:
    """Return a point of the box moved back onto the equality that rounding took it off.

    Each of `_movers` moves by the same share of its room.
    """
    if problem.c is None:
        return a
    too_much, target, moved, room = _movers(problem, problem.c, a)
    share = jnp.clip(jnp.abs(too_much) / jnp.where(room > 0, room, 1), 0, 1)
    return jnp.where(moved, a + share * (target - a), a)


def _movers(problem: BoxForm, c: Any, a: Float[Array, " n"]) -> tuple[Array, Array, Array, Array]:
    """Return by how much `c'a` is above e, 0 if rounding explains it, and which samples move to bring it back.

    Only samples inside the box move if they suffice, since derivatives depend on which samples are at a bound; else
    only the support: the others would become support, a whole class of them, for a rounding error. Returned are the
    excess, the bound that each sample moves toward, which ones do, and by how much all of them can change `c'a`.
    """
    met, size = sums(c * a, jnp.abs(c * a))
    too_much = jnp.where(jnp.abs(met - problem.e) <= _rounding(problem, size), 0, met - problem.e)
    target = jnp.where(c * too_much > 0, 0, problem.upper)
    room, support = jnp.where(problem.present, jnp.abs(c * (target - a)), 0), a > 0
    inside = support & (a < problem.upper)
    of_inside, of_support, of_all = sums(jnp.where(inside, room, 0), jnp.where(support, room, 0), room)
    enough, supported = of_inside > jnp.abs(too_much), of_support >= jnp.abs(too_much)
    moved = jnp.where(enough, inside, jnp.where(supported, support, problem.present))
    return too_much, target, moved, jnp.where(enough, of_inside, jnp.where(supported, of_support, of_all))


def best_bias(problem: BoxForm, s: Float[Array, " n"]) -> Float[Array, ""]:
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


def _rounding(problem: BoxForm, size: Float[Array, ""]) -> Float[Array, ""]:
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


def require_reachable(problem: BoxForm) -> None:
    """Refuse concrete coefficients c with zeros in the box, or a right-hand side e that the box does not reach."""
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
