"""Rules that know, before a problem is solved, where samples of its solution are: from a solution at another C.

Every rule is a pure function `rule(problem, reference) -> Screening`, under `jit`, and under `vmap` over C or over
references. Source: Ogawa, Suzuki, Suzumura, Takeuchi 2014, in the corrected forms of docs/mathematics.md, Safe
screening, which hold for references that are certified to a gap, and in floating point. The squared hinge has the same
rules by the same theorem (`jaxsvm.screening.ball`).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from jaxsvm.numerics.precision import in_double, widened
from jaxsvm.problems.contract import Restrictable
from jaxsvm.results.fit import Fit
from jaxsvm.runtime.transfers import transfers
from jaxsvm.screening.ball import difference, first_ball, gap_terms, intersection_bounds, second_ball
from jaxsvm.screening.reference import Reference, checked_C, reference_of, screenable

FURTHEST = 1e9
"""How far an interval of C is followed, in units of the reference's C."""


class Screening(NamedTuple):
    """What a rule says of the solution of a problem. A pytree.

    Attributes:
        lower: No margin `y_i f(x_i)` of the solution is below, `(n,)`.
        upper: None is above, `(n,)`.
        inactive: Samples whose dual variable is certainly 0, `(n,)`: their margin is above its target (1).
        at_bound: Samples whose dual variable is certainly at its upper bound, `(n,)`: their margin is below. Of a
            squared hinge, which has no such bound, none.
        C_until: C up to which (down to which, where the reference's is larger) the sample stays screened by this
            reference, `(n,)`; NaN where it is not screened. Rules without an interval form have the problem's own C.
    """

    lower: Float[Array, " n"]
    upper: Float[Array, " n"]
    inactive: Bool[Array, " n"]
    at_bound: Bool[Array, " n"]
    C_until: Float[Array, " n"]

    @property
    def screened(self) -> Bool[Array, " n"]:
        """Samples whose dual variable is known, `(n,)`."""
        return self.inactive | self.at_bound


Rule = Callable[[Restrictable, Fit, Any], Screening]
"""`rule(problem, reference, C_ref)`, as those below."""


def ball_test_1(problem: Any, reference: Fit, C_ref: Any = None) -> Screening:
    """Ball Test 1: the ball whose diameter is the segment from the reference's w to its multiple at the new C.

    The DVI rule of Wang, Wonka and Ye 2014 is the same test. It costs O(n), and has an interval form: `C_until`.

    Args:
        problem: The problem to be screened, from `svm_problem`, `hinge_problem` or `box_problem`, with a regularised
            bias or none.
        reference: A fit of the same samples at another C, larger or smaller, converged or not.
        C_ref: The C of the reference, `()`; None finds it in its dual variables.

    Returns:
        The bounds, `(n,)`, in the problem's dtype, rounded outward; and what follows from them.

    Raises:
        InputError: On a free bias or a matrix that is not positive semidefinite, for which no rule is safe, and other
            problems that are not for screening. (Under tracing nothing is known where no kernel vouches for the
            matrix.)
    """
    return _screened(screenable(problem), reference, checked_C(C_ref), _first)


def ball_test_2(problem: Any, reference: Fit, C_ref: Any = None) -> Screening:
    """Ball Test 2: of the reference's w and the dual point that the first ball's centre calls for.

    Weak by itself (it does not shrink as C nears the reference's); it needs no gap of the reference. It costs the
    kernel columns of the samples that are free, or change sides.

    Args:
        problem: As for `ball_test_1`.
        reference: As for `ball_test_1`.
        C_ref: As for `ball_test_1`.

    Returns:
        As `ball_test_1`.

    Raises:
        InputError: As `ball_test_1`.
    """
    return _screened(screenable(problem), reference, checked_C(C_ref), _second)


def intersection_test(problem: Any, reference: Fit, C_ref: Any = None) -> Screening:
    """The Intersection Test: the bounds over both balls at once, never weaker than either (Theorem 8).

    It costs the kernel columns of the samples that are free, or change sides. It has no interval form of its own:
    `C_until` is that of Ball Test 1 where that screens the sample too, else the problem's C.

    Args:
        problem: As for `ball_test_1`.
        reference: As for `ball_test_1`.
        C_ref: As for `ball_test_1`.

    Returns:
        As `ball_test_1`.

    Raises:
        InputError: As `ball_test_1`.
    """
    return _screened(screenable(problem), reference, checked_C(C_ref), _both)


dvi = ball_test_1
"""The rule of Wang, Wonka and Ye 2014 from the dual variational inequality: Ball Test 1 with the reference's own w."""


def _first(wide: Restrictable, reference: Reference) -> tuple[Array, Array, Array]:
    low, high = first_ball(wide, reference).bounds(reference.size)
    return low, high, _until(wide, reference, low, high)


def _second(wide: Restrictable, reference: Reference) -> tuple[Array, Array, Array]:
    ball = second_ball(wide, reference, difference(wide, reference))
    return *ball.bounds(reference.size), jnp.broadcast_to(wide.C, wide.y.shape)


def _both(wide: Restrictable, reference: Reference) -> tuple[Array, Array, Array]:
    first, apart = first_ball(wide, reference), difference(wide, reference)
    second = second_ball(wide, reference, apart)
    low, high = intersection_bounds(first, second, apart, reference.size, reference.unit)
    until = _until(wide, reference, *first.bounds(reference.size))
    return low, high, jnp.where(jnp.isnan(until), wide.C, until)


@transfers
def _screened(problem: Restrictable, fit: Fit, C_ref: Any, rule: Any) -> Screening:
    """A rule's answer, found in twice the precision, in the problem's dtype."""
    problem, fit, C_ref = lax.stop_gradient((problem, fit, C_ref))
    return _evaluated(problem, fit, C_ref, rule)


@jax.jit(static_argnames="rule")
def _evaluated(problem: Restrictable, fit: Fit, C_ref: Any, rule: Any) -> Screening:
    @in_double
    def evaluate(problem: Restrictable, fit: Fit, C_ref: Any) -> Screening:
        wide = widened(problem)
        reference = reference_of(wide, fit, C_ref, fit.margins.dtype)
        low, high, until = rule(wide, reference)
        return decided(wide, low, high, until, problem.dtype)

    return evaluate(problem, fit, C_ref)


def decided(wide: Restrictable, low: Array, high: Array, until: Any, dtype: Any) -> Screening:
    """What follows from bounds: strictly beyond its target, and not otherwise; what is not a number says nothing."""
    if not wide.gram.definite:  # the one theorem is of positive semidefinite matrices
        low, high = jnp.full_like(low, -jnp.inf), jnp.full_like(high, jnp.inf)
    low, high = jnp.where(jnp.isnan(low), -jnp.inf, low), jnp.where(jnp.isnan(high), jnp.inf, high)
    inactive, at_bound = wide.present & (low > wide.targets), wide.present & (high < wide.targets)
    if not wide.bounded:
        at_bound = jnp.zeros_like(at_bound)
    until = jnp.where(inactive | at_bound, until, jnp.nan)
    return Screening(_outward(low, dtype, -jnp.inf), _outward(high, dtype, jnp.inf), inactive, at_bound,
                     until.astype(dtype))  # fmt: skip


def _outward(bound: Array, dtype: Any, toward: float) -> Array:
    """The nearest number of a narrower dtype that bounds the same."""
    narrow = bound.astype(dtype)
    beyond = jnp.nextafter(narrow, jnp.asarray(toward, dtype))
    return jnp.where(narrow.astype(bound.dtype) * jnp.sign(toward) >= bound * jnp.sign(toward), narrow, beyond)


def _until(wide: Restrictable, reference: Reference, low: Array, high: Array) -> Float[Array, " n"]:
    """The other end of the interval of C on which Ball Test 1 screens a sample that it screens now.

    Where `v = rho - 1` and m is by how much the reference's margin is beyond its target, a sample stays screened while
    `(m + v p / 2)^2 > |z|^2 (v^2 W / 4 + (1 + v) G)`: the left less the right is concave in v, so that the test's
    holding at both ends proves the interval. NaN where it does not hold, or there is no such form.
    """
    a, p, error, size, W, rho, unit = reference
    if not wide.bounded:  # its dual points are no multiples of each other that a bound would name
        return jnp.where((low > wide.targets) | (high < wide.targets), wide.C, jnp.nan)
    gap = gap_terms(wide, rho * a, p, error).sum() * (1 + unit) / jnp.where(rho > 0, rho, 1)
    side = jnp.where(p > wide.targets, 1.0, -1.0)
    beyond, slope = side * (p - wide.targets) - error, side * p / 2
    A = jnp.minimum(slope**2 - size**2 * W / 4, 0)
    B, D = 2 * beyond * slope - size**2 * gap, beyond**2 - size**2 * gap
    root = jnp.sqrt(jnp.maximum(B**2 - 4 * A * D, 0))
    # The root on the side of the new C, in the form that does not cancel.
    upward = jnp.where(B >= 0, (B + root) / jnp.where(A < 0, -2 * A, 1e-300), 2 * D / jnp.maximum(root - B, 1e-300))
    downward = jnp.where(B <= 0, (B - root) / jnp.where(A < 0, -2 * A, 1e-300), -2 * D / jnp.maximum(root + B, 1e-300))
    end = jnp.where(rho >= 1, jnp.minimum(upward * (1 - 1e-6), FURTHEST), jnp.maximum(downward * (1 - 1e-6), -1.0))
    end = jnp.where(rho >= 1, jnp.maximum(end, rho - 1), jnp.minimum(end, rho - 1))

    def holds(v: Array) -> Array:
        t = 1 + v / 2
        radius = jnp.sqrt((v**2 * W / 4 + (1 + v) * gap) * (1 + 8 * unit))
        rounded = unit * jnp.abs(t * p) + size * radius * unit
        return side * (t * p - wide.targets) - jnp.abs(t) * error - rounded > size * radius

    now = (low > wide.targets) | (high < wide.targets)
    C_ref = wide.C / jnp.where(rho > 0, rho, 1)
    whole = now & (beyond > 0) & holds(jnp.zeros_like(end)) & holds(end)
    return jnp.where(now, jnp.where(whole, C_ref * (1 + end), wide.C), jnp.nan)
