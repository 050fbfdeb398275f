"""The dome test: screen between a solution at a smaller C and one at a larger C.

Source: Ogawa et al. 2014, Appendix B (Theorem 11), corrected, and for references certified to a gap:
docs/mathematics.md, Safe screening. The Intersection Test needs no solution beyond the problem's C, and is as good or
better on most data sets.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array
from numpy.typing import ArrayLike

from jaxsvm.errors import InputError
from jaxsvm.numerics.precision import in_double, widened
from jaxsvm.problems.contract import Restrictable
from jaxsvm.results.fit import Fit
from jaxsvm.runtime.arrays import transfers
from jaxsvm.screening.ball import gap_terms
from jaxsvm.screening.reference import Reference, checked_C, reference_of, require_reference, screenable
from jaxsvm.screening.rules import Screening, decided


@transfers
def dome_test(problem: Restrictable, below: Fit, above: Fit, C_below: ArrayLike, C_above: ArrayLike) -> Screening:
    """Screen by bounds over the dome of all w that can be a solution between two values of C.

    A solution is no longer than the one at a larger C, and `w_a . w* >= |w_a|^2` for that at a smaller C, `w_a`.

    Args:
        problem: The hinge problem to screen, with a regularised bias or none.
        below: A fit at a C that is no larger.
        above: A fit at a C that is no smaller.
        C_below: The C of the first fit, `()`.
        C_above: The C of the second fit, `()`.

    Returns:
        The screening, as `jaxsvm.screening.ball_test_1`; `C_until` is `C_above`, since the dome is the same for all C
        between. If the problem's C is not between, nothing is screened.

    Raises:
        InputError: As `jaxsvm.screening.ball_test_1`, and on a squared hinge.
    """
    problem = screenable(problem)
    if not problem.bounded:
        raise InputError("problem is a squared hinge: the dome test is for the hinge; take `intersection_test`.")
    for name, fit, C in (("below", below, C_below), ("above", above, C_above)):
        require_reference(problem, fit, name)
        checked_C(0 if C is None else C, f"C_{name}")
    arguments = (problem, below, above, C_below, C_above)
    return _dome(*lax.stop_gradient(arguments))


@jax.jit
def _dome(problem: Restrictable, below: Fit, above: Fit, C_below: Any, C_above: Any) -> Screening:
    # Rounded as the problem's own C.
    C_below, C_above = (jnp.asarray(C, problem.dtype) for C in (C_below, C_above))

    @in_double
    def evaluate(problem: Restrictable, below: Fit, above: Fit, C_below: Any, C_above: Any) -> Screening:
        wide = widened(problem)
        dtype = below.margins.dtype
        C_below, C_above = C_below.astype(wide.dtype), C_above.astype(wide.dtype)
        between = (C_below <= wide.C) & (C_above >= wide.C)
        first, second = reference_of(wide, below, C_below, dtype), reference_of(wide, above, C_above, dtype)
        unit, p, error, size = first.unit, first.margins, first.margins_error, first.size
        off_a, off_b = (_distance(wide, ref, C) for ref, C in ((first, C_below), (second, C_above)))
        # The solutions are within these distances of the references.
        longest = (jnp.sqrt(second.square(0)) + off_b) * (1 + 8 * unit)
        square = first.square(0)
        length = jnp.sqrt(jnp.maximum(square - 2 * (first.a @ first.error) - 6 * first.along[1], 0))
        least_square = length**2
        shortest = jnp.maximum(length - off_a, 0)
        plane = (shortest**2 - off_a * longest) * (1 - 8 * unit)

        def least(p: Array) -> Array:
            """Return the least `z . w` over the dome, where `z . w_a = p`."""
            share = p / jnp.where(square > 0, square, 1)
            rest = jnp.maximum(longest**2 - plane**2 / jnp.where(square > 0, square, 1), 0)
            across = jnp.sqrt(rest * jnp.maximum(size**2 - p * share, 0) * (1 + 8 * unit))
            along = jnp.minimum(share * plane, p * plane / jnp.where(least_square > 0, least_square, 1))
            on_plane = jnp.where(least_square > 0, along - across, -jnp.inf)
            free = -longest * size
            inside = (square <= 0) | (-longest * p >= plane * size)
            return jnp.where(inside, free, jnp.maximum(on_plane, free))

        reach = error * longest / jnp.where(length > 0, length, jnp.inf) + unit * size * longest
        low = jnp.minimum(least(p - error), least(p + error)) - reach
        high = -jnp.minimum(least(-p - error), least(-p + error)) + reach
        low, high = jnp.where(between, low, -jnp.inf), jnp.where(between, high, jnp.inf)
        return decided(wide, low, high, jnp.broadcast_to(C_above, wide.y.shape).astype(wide.dtype), problem.dtype)

    return evaluate(problem, below, above, C_below, C_above)


def _distance(wide: Restrictable, reference: Reference, C: Any) -> Array:
    """Return a bound on the distance of a reference's w from the solution at its C: its ball's radius and centre.

    A dual point beyond its bounds there, by rounding or because another C was given, is clipped to them.
    """
    own = dataclasses.replace(wide, C=C)
    a = jnp.minimum(reference.a, own.upper)
    half = (reference.size @ (reference.a - a) + jnp.sqrt(reference.apart)) / 2
    gap = gap_terms(own, a, reference.margins, reference.margins_error).sum()
    return (half + jnp.sqrt(half**2 + gap)) * (1 + 8 * reference.unit)
