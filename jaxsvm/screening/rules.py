"""Rules that screen samples before a problem is solved, from a solution at another C.

Every rule is a pure function `rule(problem, reference) -> Screening`, also under `jit`, and under `vmap` over C or over
references. Source: Ogawa, Suzuki, Suzumura, Takeuchi 2014, in the corrected forms of docs/mathematics.md, Safe
screening, which hold in floating point and for references that are certified to a gap. The squared hinge has the same
rules by the same theorem (`jaxsvm.screening.reference`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from jax import lax
from jaxtyping import Array, Bool, Float
from numpy.typing import ArrayLike

from jaxsvm.numerics.precision import in_double, rounded, widened
from jaxsvm.problems.contract import Restrictable
from jaxsvm.results.fit import Fit
from jaxsvm.runtime.arrays import Number, checked, in_a_line, transfers
from jaxsvm.runtime.programs import Program
from jaxsvm.screening.reference import (
    Reference,
    best_scale,
    checked_C,
    difference,
    first_ball,
    intersection_bounds,
    mean_of,
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
    """

    __repr__ = in_a_line

    lower: Float[Array, " n"]
    upper: Float[Array, " n"]
    inactive: Bool[Array, " n"]
    at_bound: Bool[Array, " n"]

    @property
    def screened(self) -> Bool[Array, " n"]:
        """Return which samples have a known dual variable, `(n,)`."""
        return self.inactive | self.at_bound

    def rows(
        self, x: np.ndarray | sp.csr_matrix, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> tuple[Any, np.ndarray, np.ndarray]:
        """Return rows, labels and weights that are left for any solver of the linear hinge, such as LIBLINEAR.

        Samples at their bound become one: the mean of `y_i x_i`, of label 1 and with the sum of their weights. Its
        margin is below 1 as theirs are, so the slope of the objective, and thus w, is that of the whole problem.

        Args:
            x: The points, dense or a SciPy matrix of rows, `(n, d)`; with a regularised bias, with its column of ones.
            y: Their labels in {-1, +1}, `(n,)`.
            sample_weight: Their weights, `(n,)`; None: 1.
        """
        y = np.asarray(y)
        weight = np.ones(len(y)) if sample_weight is None else np.asarray(sample_weight, float)
        bound, kept = np.asarray(self.at_bound), ~np.asarray(self.screened) & (weight > 0)
        if not bound.any():
            return x[kept], y[kept], weight[kept]
        total = weight[bound].sum()
        mean = (x[bound].T @ (weight * y)[bound] / total)[None].astype(x.dtype)
        rows = sp.vstack([x[kept], sp.csr_matrix(mean)], "csr") if sp.issparse(x) else np.vstack([x[kept], mean])
        return rows, np.append(y[kept], 1), np.append(weight[kept], total)


Rule = Callable[[Restrictable, Fit, Number | None], Screening]
"""`rule(problem, reference, C_ref)`, such as `ball_test_1`."""


@checked
def ball_test_1(problem: Restrictable, reference: Fit, C_ref: ArrayLike | None = None) -> Screening:
    """Screen by Ball Test 1: the ball whose diameter reaches from the reference's w to its multiple at the new C.

    The DVI rule of Wang, Wonka and Ye 2014 is the same test. It costs O(n).

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
    the kernel columns of samples that are free or change sides. Arguments, result and errors: as `ball_test_1`.
    """
    return screened_by(screenable(problem), reference, checked_C(C_ref), _second)


@checked
def intersection_test(problem: Restrictable, reference: Fit, C_ref: ArrayLike | None = None) -> Screening:
    """Screen by the Intersection Test: bounds over both balls at once, never weaker than either (Theorem 8).

    It costs the kernel columns of samples that are free or change sides. Arguments, result and errors: as
    `ball_test_1`.
    """
    return screened_by(screenable(problem), reference, checked_C(C_ref), _both)


dvi = ball_test_1
"""The rule of Wang, Wonka and Ye 2014 from the dual variational inequality: Ball Test 1 with the reference's own w."""


def _first(wide: Restrictable, reference: Reference, dtype: Any) -> Screening:
    return decided(wide, *first_ball(wide, reference).bounds(reference.size), dtype)


def _second(wide: Restrictable, reference: Reference, dtype: Any) -> Screening:
    ball = second_ball(wide, reference, difference(wide, reference))
    return decided(wide, *ball.bounds(reference.size), dtype)


def _both(wide: Restrictable, reference: Reference, dtype: Any) -> Screening:
    first, apart = first_ball(wide, reference), difference(wide, reference)
    second = second_ball(wide, reference, apart)
    return decided(wide, *intersection_bounds(first, second, apart, reference.size, reference.unit), dtype)


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


def decided(wide: Restrictable, low: Array, high: Array, dtype: Any) -> Screening:
    """Return the samples that bounds screen: those strictly beyond their target. NaN screens nothing."""
    if not wide.gram.definite:  # the theorem needs a positive semidefinite matrix
        low, high = jnp.full_like(low, -jnp.inf), jnp.full_like(high, jnp.inf)
    low, high = jnp.where(jnp.isnan(low), -jnp.inf, low), jnp.where(jnp.isnan(high), jnp.inf, high)
    inactive, at_bound = wide.present & (low > wide.targets), wide.present & (high < wide.targets)
    if not wide.bounded:
        at_bound = jnp.zeros_like(at_bound)
    return Screening(_outward(low, dtype, -jnp.inf), _outward(high, dtype, jnp.inf), inactive, at_bound)


def _outward(bound: Array, dtype: Any, toward: float) -> Array:
    narrow, sign = rounded(bound, dtype), jnp.sign(toward)
    beyond = jnp.nextafter(narrow.astype(dtype), jnp.asarray(toward, dtype))
    return jnp.where(narrow * sign >= bound * sign, narrow.astype(dtype), beyond)


@checked
def gap_safe(problem: Restrictable, reference: Fit, C_ref: ArrayLike | None = None) -> Screening:
    """Screen a problem by a point of it, also on the way to the solution; a smaller gap screens more samples.

    For the hinge it uses the ball of `first_ball` with `w = w_a`, whose radius is at most the root of the
    gap: the published radius over the root of 2. For the squared hinge it combines that ball with two on the simplex
    (docs/mathematics.md, Safe screening). Sources: Ndiaye, Fercoq, Gramfort and Salmon 2017 (gap-safe rules); Raj et
    al. 2016 (simplex). The balls are new here.

    Arguments, result and errors: as `ball_test_1`, but the reference may be a fit of the problem itself, at any gap,
    and `C_ref` is not used.
    """
    del C_ref
    return screened_by(screenable(problem), reference, None, _of_a_point)


def _of_a_point(wide: Restrictable, reference: Reference, dtype: Any) -> Screening:
    """Screen a problem by a reference that is a point of it; inside `in_double`.

    The `rho` of the reference is not used.
    """
    rho = best_scale(wide, reference)
    low, high = first_ball(wide, reference._replace(rho=rho)).bounds(reference.size)
    screening = decided(wide, low, high, dtype)
    if wide.bounded or not wide.gram.definite:
        return screening
    return screening._replace(inactive=screening.inactive | (wide.present & _outside_on_simplex(wide, reference)))


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
def two_sided_test(problem: Restrictable, below: Fit, above: Fit, C_below: ArrayLike, C_above: ArrayLike) -> Screening:
    """Screen, as `ball_test_1`, by two fits, one at a smaller and one at a larger C: the best of three bounds.

    The mean of the two dual points is feasible at the C between them that is the same mean, and mostly nearly optimal:
    its gap ball (`gap_safe`) is one bound, Intersection Tests from either fit are the others. On published sets it
    screens up to 20 times what the paper's dome test does from the same two fits (docs/papers). New here.

    Args:
        problem: The problem to screen, with a regularised bias or none.
        below: A fit of the same samples at a C that is no larger.
        above: A fit at a C that is no smaller. (If the problem's C is not between, the bounds hold and are wide.)
        C_below: The C of the first fit, `()`.
        C_above: The C of the second fit, `()`.
    """
    problem = screenable(problem)
    for name, fit, C in (("below", below, C_below), ("above", above, C_above)):
        require_reference(problem, fit, name)
        checked_C(0 if C is None else C, f"C_{name}")
    return _two_sided(*lax.stop_gradient((problem, below, above, C_below, C_above)))


@Program.full()
def _two_sided(problem: Restrictable, below: Fit, above: Fit, C_below: Any, C_above: Any) -> Screening:
    @in_double
    def evaluate(problem: Restrictable, below: Fit, above: Fit, *Cs: Any) -> Screening:
        wide, narrow = widened(problem), below.margins.dtype
        ends = [reference_of(wide, fit, C, narrow) for fit, C in zip((below, above), Cs, strict=True)]
        low, high = (jnp.asarray(C, wide.dtype) for C in Cs)
        share = jnp.clip((wide.C - low) / jnp.where(high > low, high - low, 1), 0, 1)
        found = [_both(wide, end, wide.dtype) for end in ends]
        found.append(_of_a_point(wide, mean_of(ends[0], ends[1], share), wide.dtype))
        lower, upper = jnp.stack([one.lower for one in found]).max(0), jnp.stack([one.upper for one in found]).min(0)
        screening = decided(wide, lower, upper, problem.dtype)
        inactive = jnp.stack([one.inactive for one in found]).any(0)  # the simplex knows what bounds do not say
        return screening._replace(inactive=screening.inactive | inactive)

    return evaluate(problem, below, above, C_below, C_above)
