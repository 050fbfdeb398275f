"""Rules that screen samples before a problem is solved, from a solution at another C.

Every rule is a pure function `rule(problem, reference) -> Screening`, also under `jit`, and under `vmap` over C or over
references. Source: Ogawa, Suzuki, Suzumura, Takeuchi 2014, in the corrected forms of docs/mathematics.md, Safe
screening, which hold in floating point and for references that are certified to a gap. The squared hinge has the same
rules by the same theorem (`jaxsvm.screening.reference`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float
from numpy.typing import ArrayLike

from jaxsvm.errors import InputError
from jaxsvm.numerics.precision import in_double, rounded, widened
from jaxsvm.problems.contract import Restrictable
from jaxsvm.results.fit import Fit
from jaxsvm.runtime.arrays import TINY, Number, checked, in_a_line, transfers
from jaxsvm.runtime.programs import Program
from jaxsvm.screening.reference import (
    Reference,
    best_scale,
    checked_C,
    difference,
    first_ball,
    gap_terms,
    intersection_bounds,
    reference_of,
    require_reference,
    screenable,
    second_ball,
)


class Screening(NamedTuple):
    """Bounds of a problem's solution, and the samples that they screen. A pytree.

    Attributes:
        lower: Lower bounds of the solution's margins `y_i f(x_i)`, `(n,)`.
        upper: Upper bounds of the margins, `(n,)`.
        inactive: Samples whose dual variable is certainly 0, `(n,)`: their margin is above its target (1).
        at_bound: Samples whose dual variable is certainly at its upper bound, `(n,)`: their margin is below. A squared
            hinge has no such bound, and no such samples.
        C_until: C up to which (down to which, if the reference's is larger) the sample stays screened by this
            reference, `(n,)`; NaN if it is not screened. Rules without an interval form give the problem's own C.
    """

    __repr__ = in_a_line

    lower: Float[Array, " n"]
    upper: Float[Array, " n"]
    inactive: Bool[Array, " n"]
    at_bound: Bool[Array, " n"]
    C_until: Float[Array, " n"]

    @property
    def screened(self) -> Bool[Array, " n"]:
        """Return which samples have a known dual variable, `(n,)`."""
        return self.inactive | self.at_bound


Rule = Callable[[Restrictable, Fit, Number | None], Screening]
"""`rule(problem, reference, C_ref)`, such as `ball_test_1`."""


@checked
def ball_test_1(problem: Restrictable, reference: Fit, C_ref: ArrayLike | None = None) -> Screening:
    """Screen by Ball Test 1: the ball whose diameter reaches from the reference's w to its multiple at the new C.

    The DVI rule of Wang, Wonka and Ye 2014 is the same test. It costs O(n), and has an interval form: `C_until`.

    Args:
        problem: The problem to screen, from `svm_problem`, `hinge_problem` or `box_problem`, with a regularised bias or
            none.
        reference: A fit of the same samples at another C, larger or smaller, converged or not.
        C_ref: The C of the reference, `()`; None derives it from its dual variables.

    Returns:
        The bounds, `(n,)`, in the problem's dtype, rounded outward; and the samples that they screen.

    Raises:
        InputError: On a free bias or a matrix that is not positive semidefinite, for which no rule is safe, and on
            problems of other kinds. (Under tracing the matrix cannot be tested; nothing is screened if the kernel need
            not be positive definite.)
    """
    return screened_by(screenable(problem), reference, checked_C(C_ref), _first)


@checked
def ball_test_2(problem: Restrictable, reference: Fit, C_ref: ArrayLike | None = None) -> Screening:
    """Screen by Ball Test 2: the ball of the reference's w and the dual point of the first ball's centre.

    It is weak by itself (it does not shrink as C nears the reference's), but needs no gap of the reference. It costs
    the kernel columns of samples that are free or change sides.

    Args:
        problem: The problem to screen, with a regularised bias or none.
        reference: A fit of the same samples at another C.
        C_ref: The C of the reference, `()`; None derives it.

    Returns:
        The screening, as `ball_test_1`.

    Raises:
        InputError: As `ball_test_1`.
    """
    return screened_by(screenable(problem), reference, checked_C(C_ref), _second)


@checked
def intersection_test(problem: Restrictable, reference: Fit, C_ref: ArrayLike | None = None) -> Screening:
    """Screen by the Intersection Test: bounds over both balls at once, never weaker than either (Theorem 8).

    It costs the kernel columns of samples that are free or change sides. It has no interval form of its own: `C_until`
    is that of Ball Test 1 if it screens the sample too, else the problem's C.

    Args:
        problem: The problem to screen, with a regularised bias or none.
        reference: A fit of the same samples at another C.
        C_ref: The C of the reference, `()`; None derives it.

    Returns:
        The screening, as `ball_test_1`.

    Raises:
        InputError: As `ball_test_1`.
    """
    return screened_by(screenable(problem), reference, checked_C(C_ref), _both)


dvi = ball_test_1
"""The rule of Wang, Wonka and Ye 2014 from the dual variational inequality: Ball Test 1 with the reference's own w."""


def _first(wide: Restrictable, reference: Reference, dtype: Any) -> Screening:
    low, high = first_ball(wide, reference).bounds(reference.size)
    return decided(wide, low, high, _until(wide, reference, low, high), dtype)


def _second(wide: Restrictable, reference: Reference, dtype: Any) -> Screening:
    ball = second_ball(wide, reference, difference(wide, reference))
    return decided(wide, *ball.bounds(reference.size), jnp.broadcast_to(wide.C, wide.y.shape), dtype)


def _both(wide: Restrictable, reference: Reference, dtype: Any) -> Screening:
    first, apart = first_ball(wide, reference), difference(wide, reference)
    second = second_ball(wide, reference, apart)
    low, high = intersection_bounds(first, second, apart, reference.size, reference.unit)
    until = _until(wide, reference, *first.bounds(reference.size))
    return decided(wide, low, high, jnp.where(jnp.isnan(until), wide.C, until), dtype)


@transfers
def screened_by(problem: Restrictable, fit: Fit, C_ref: Any, rule: Any) -> Screening:
    """Evaluate a rule in twice the precision; return its results in the problem's dtype."""
    require_reference(problem, fit)
    problem, fit, C_ref = lax.stop_gradient((problem, fit, C_ref))
    return _evaluated(problem, fit, C_ref, rule)


@Program.full(static=("rule",))
def _evaluated(problem: Restrictable, fit: Fit, C_ref: Any, rule: Any) -> Screening:
    @in_double
    def evaluate(problem: Restrictable, fit: Fit, C_ref: Any) -> Screening:
        wide = widened(problem)
        return rule(wide, reference_of(wide, fit, C_ref, fit.margins.dtype), problem.dtype)

    return evaluate(problem, fit, C_ref)


def decided(wide: Restrictable, low: Array, high: Array, until: Any, dtype: Any) -> Screening:
    """Return the samples that bounds screen: those strictly beyond their target. NaN screens nothing."""
    if not wide.gram.definite:  # the theorem needs a positive semidefinite matrix
        low, high = jnp.full_like(low, -jnp.inf), jnp.full_like(high, jnp.inf)
    low, high = jnp.where(jnp.isnan(low), -jnp.inf, low), jnp.where(jnp.isnan(high), jnp.inf, high)
    inactive, at_bound = wide.present & (low > wide.targets), wide.present & (high < wide.targets)
    if not wide.bounded:
        at_bound = jnp.zeros_like(at_bound)
    until = jnp.where(inactive | at_bound, until, jnp.nan)
    return Screening(_outward(low, dtype, -jnp.inf), _outward(high, dtype, jnp.inf), inactive, at_bound,
                     until.astype(dtype))  # fmt: skip


def _outward(bound: Array, dtype: Any, toward: float) -> Array:
    narrow, sign = rounded(bound, dtype), jnp.sign(toward)
    beyond = jnp.nextafter(narrow.astype(dtype), jnp.asarray(toward, dtype))
    return jnp.where(narrow * sign >= bound * sign, narrow.astype(dtype), beyond)


def _until(wide: Restrictable, reference: Reference, low: Array, high: Array) -> Float[Array, " n"]:
    """Return the other end of the interval of C on which Ball Test 1 screens a sample that it screens now.

    With `v = rho - 1`, the margins p of `w_a`, and the margin of `(w + w_a) / 2` beyond its target by m, a sample stays
    screened while `(m + v p / 2)^2 > |z|^2 (|w - (1 + v) w_a|^2 / 4 + (1 + v) G)`. The left minus the right is concave
    in v, so the test at both ends proves the interval. NaN if it does not hold, or there is no such form.
    """
    a, p, error, size, W, rho, unit, *_ = reference
    if not wide.bounded:  # no bound shows multiples of its dual points
        return jnp.where((low > wide.targets) | (high < wide.targets), wide.C, jnp.nan)
    gap = gap_terms(wide, rho * a, reference.margins, reference.margins_error).sum() * (1 + unit)
    gap = gap / jnp.where(rho > 0, rho, 1)
    middle = (reference.margins + p) / 2
    side = jnp.where(middle > wide.targets, 1.0, -1.0)
    beyond, slope = side * (middle - wide.targets) - error, side * p / 2
    A = jnp.minimum(slope**2 - size**2 * W / 4, 0)
    B = 2 * beyond * slope - size**2 * (gap - reference.along[0] / 2)
    D = beyond**2 - size**2 * (gap + reference.apart / 4)
    root = jnp.sqrt(jnp.maximum(B**2 - 4 * A * D, 0))
    # The root on the side of the new C, in the form that does not cancel; a little inside (1e-6), and finite (1e9).
    upward = jnp.where(B >= 0, (B + root) / jnp.where(A < 0, -2 * A, TINY), 2 * D / jnp.maximum(root - B, TINY))
    downward = jnp.where(B <= 0, (B - root) / jnp.where(A < 0, -2 * A, TINY), -2 * D / jnp.maximum(root + B, TINY))
    end = jnp.where(rho >= 1, jnp.minimum(upward * (1 - 1e-6), 1e9), jnp.maximum(downward * (1 - 1e-6), -1.0))
    end = jnp.where(rho >= 1, jnp.maximum(end, rho - 1), jnp.minimum(end, rho - 1))

    def holds(v: Array) -> Array:
        centre = middle + v * p / 2
        radius = jnp.sqrt((reference.square(1 + v) / 4 + (1 + v) * gap) * (1 + 8 * unit))
        rounded = (reference.margins_error + (1 + v) * error) / 2 + unit * jnp.abs(centre) + size * radius * unit
        return side * (centre - wide.targets) - rounded > size * radius

    now = (low > wide.targets) | (high < wide.targets)
    C_ref = wide.C / jnp.where(rho > 0, rho, 1)
    whole = now & (beyond > 0) & holds(jnp.zeros_like(end)) & holds(end)
    return jnp.where(now, jnp.where(whole, C_ref * (1 + end), wide.C), jnp.nan)


@checked
def gap_safe(problem: Restrictable, reference: Fit, C_ref: ArrayLike | None = None) -> Screening:
    """Screen a problem by a point of it, also on the way to the solution; a smaller gap screens more samples.

    For the hinge it uses the ball of `first_ball` with `w = w_a`, whose radius is at most the root of the
    gap: the published radius over the root of 2. For the squared hinge it combines that ball with two on the simplex
    (docs/mathematics.md, Safe screening). Sources: Ndiaye, Fercoq, Gramfort and Salmon 2017 (gap-safe rules); Raj et
    al. 2016 (simplex). The balls are new here.

    Args:
        problem: The problem to screen, with a regularised bias or none.
        reference: A fit of it, at any gap; or of the same samples at another C.
        C_ref: Not used; all rules take it.

    Returns:
        The screening, as `jaxsvm.screening.ball_test_1`; `C_until` is the problem's C.

    Raises:
        InputError: As `jaxsvm.screening.ball_test_1`.
    """
    del C_ref
    return screened_by(screenable(problem), reference, None, _of_a_point)


def _of_a_point(wide: Restrictable, reference: Reference, dtype: Any) -> Screening:
    """Screen a problem by a reference that is a point of it; inside `in_double`.

    The `rho` of the reference is not used.
    """
    rho = best_scale(wide, reference)
    low, high = first_ball(wide, reference._replace(rho=rho)).bounds(reference.size)
    screening = decided(wide, low, high, wide.C, dtype)
    if wide.bounded or not wide.gram.definite:
        return screening
    inactive = screening.inactive | (wide.present & _outside_on_simplex(wide, reference))
    return screening._replace(inactive=inactive, C_until=jnp.where(inactive, wide.C.astype(dtype), jnp.nan))


def _outside_on_simplex(wide: Restrictable, reference: Reference) -> Array:
    """Return the samples that have no weight by the geometry of the enclosing ball.

    With `h = H alpha` of a point on the simplex, `V = alpha . h`, `m = min h` and `g = V - m`, the solution v* is
    within `sqrt(g)` of `v = sum_i alpha_i z_i` (points with a coordinate more each, for the ridge), and in the dome
    `|v* - v / 2| <= sqrt(V) / 2`, `v . v* >= m`; a sample has no weight where `z_i . v* > |v*|^2` for all v* there.
    """
    a, p, error, size, W, _, unit, *_ = reference  # a w of its own has no other margins here
    total = a.sum()
    alpha = a / jnp.where(total > 0, total, 1)
    h = p / jnp.where(total > 0, total, 1) + wide.ridge * alpha
    off = error / jnp.where(total > 0, total, 1) + unit * jnp.abs(h)
    length = jnp.sqrt(size**2 + wide.ridge) * (1 + unit)
    present = wide.present
    V = alpha @ h
    doubt = unit * (V + W / jnp.where(total > 0, total, 1) ** 2) + alpha @ off
    m = jnp.where(present, h - off, jnp.inf).min()
    g = jnp.maximum(V + doubt - m, 0)
    clear = jnp.where(present, h + off, jnp.inf).min()  # not below the true minimum
    near = (h - off - jnp.sqrt(g) * length > clear) & (4 * g * (1 + 8 * unit) < length**2)
    # The smallest ball around the dome.
    V_high = jnp.maximum(V + doubt, 0)
    deep = m >= V_high / 2
    c = jnp.where(deep, m / jnp.where(V_high > 0, V_high, 1), 0.5)
    r = jnp.where(deep, jnp.sqrt(jnp.maximum(m * g / jnp.where(V_high > 0, V_high, 1), 0)), jnp.sqrt(V_high) / 2)
    r = r * (1 + 8 * unit)
    dome = (c * (h - off) - r * length > c**2 * V_high - r**2 + doubt) & (2 * r < length)
    return (total > 0) & (near | dome)


@transfers
def dome_test(problem: Restrictable, below: Fit, above: Fit, C_below: ArrayLike, C_above: ArrayLike) -> Screening:
    """Screen by bounds over the dome of all w that can be a solution between two values of C.

    A solution is no longer than the one at a larger C, and `w_a . w* >= |w_a|^2` for that at a smaller C, `w_a`.
    Source: Ogawa et al. 2014, Appendix B (Theorem 11), corrected, and for references certified to a gap
    (docs/mathematics.md, Safe screening). `intersection_test` needs no fit at a larger C, and is mostly as good.

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


@Program.full()
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
            across = jnp.sqrt(rest * jnp.maximum(size**2 - p * share, 0))
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
    """Return a bound on the distance of a reference's w from the solution at its C: its ball's radius and centre."""
    own = dataclasses.replace(wide, C=C)
    a = jnp.minimum(reference.a, own.upper)  # it may be beyond them by rounding, or since another C was given
    half = (reference.size @ (reference.a - a) + jnp.sqrt(reference.apart)) / 2
    gap = gap_terms(own, a, reference.margins, reference.margins_error).sum()
    return (half + jnp.sqrt(half**2 + gap)) * (1 + 8 * reference.unit)
