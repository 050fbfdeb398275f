"""The ball theorem: one pair of a primal vector and a dual point bounds every margin of the solution.

For any w and any feasible a the solution w* of `min 1/2 |w|^2 + sum_i loss_i(z_i . w)` lies in the ball with

    centre (w + w_a) / 2,    radius^2 = |w - w_a|^2 / 4 + sum_i e_i,

where `w_a = sum_i a_i z_i` and the terms `e_i >= 0` of the duality gap are `loss_i(p_i) - a_i (t_i - p_i)` plus the
conjugate's part; `P(w) - D(a) = |w - w_a|^2 / 2 + sum_i e_i`. (Add `P(w) - P* >= |w - w*|^2 / 2` and
`D* - D(a) >= |w_a - w*|^2 / 2`, and complete the square.) The published tests are choices of the pair; neither w nor a
has to be optimal. docs/mathematics.md, Safe screening.

Sources: Ogawa, Suzuki, Suzumura, Takeuchi 2014 (the two tests and their intersection). The ball of a pair, its gap
terms and the allowances for rounding are new here.
"""

from typing import Any, NamedTuple, cast

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxsvm.problems.contract import Restrictable
from jaxsvm.problems.squared_hinge import SquaredHingeProblem
from jaxsvm.screening.reference import Reference


class Ball(NamedTuple):
    """A ball that contains the solution's w, given by margins.

    Attributes:
        centre: Margins of the centre, `(n,)`.
        error: Bounds on their errors, `(n,)`.
        square: The radius squared, `()`, with an allowance for rounding.
    """

    centre: Float[Array, " n"]
    error: Float[Array, " n"]
    square: Float[Array, ""]

    def bounds(self, size: Float[Array, " n"]) -> tuple[Array, Array]:
        """Return the least and the largest margin `z_i . w` of any w in the ball, where `|z_i|` is at most `size`."""
        reach = size * jnp.sqrt(self.square) + self.error
        return self.centre - reach, self.centre + reach


def gap_terms(wide: Restrictable, a: Array, p: Array, error: Array) -> Float[Array, " n"]:
    """Return upper bounds of the samples' terms `e_i` of the duality gap: the worst case within the margins' errors.

    Args:
        wide: The problem, in twice the precision.
        a: A feasible dual point, `(n,)`.
        p: Margins of any w, `(n,)`.
        error: Bounds on their errors, `(n,)`.
    """
    below = jnp.maximum(wide.targets - p + error, 0)
    above = jnp.maximum(p - wide.targets + error, 0)
    if wide.bounded:
        return (wide.upper - a) * below + a * above
    C = cast(SquaredHingeProblem, wide).costs
    off = jnp.abs(jnp.maximum(wide.targets - p, 0) - wide.ridge * a) + error
    return jnp.where(C > 0, C / 2 * off**2 + a * above, 0)


def dual_of(wide: Restrictable, p: Array) -> Float[Array, " n"]:
    """Return the dual point of given margins: the slope of the loss."""
    loss = jnp.maximum(wide.targets - p, 0)
    return jnp.where(loss > 0, wide.upper, 0) if wide.bounded else cast(SquaredHingeProblem, wide).costs * loss


def first_ball(wide: Restrictable, reference: Reference) -> Ball:
    """Return the ball of w and `rho a`: its diameter is the segment from w to `rho w_a`, up to the reference's gap."""
    p, rho, unit = reference.margins, reference.rho, reference.unit
    missed = gap_terms(wide, rho * reference.a, p, reference.margins_error).sum() * (1 + unit)
    centre = (p + rho * reference.p) / 2
    error = (reference.margins_error + rho * reference.error) / 2 + unit * jnp.abs(centre)
    return Ball(centre, error, (reference.square(rho) / 4 + missed) * (1 + 8 * unit))


class Difference(NamedTuple):
    """The difference of two dual points of a reference: `delta = rho a - b`, whose support is small, and `q = Q delta`.

    Attributes:
        b: The dual point of the second ball, `(n,)`, feasible.
        delta: `rho a - b`, `(n,)`; 0 where the two agree.
        q: Its products, `(n,)`.
        error: Bounds on their errors, `(n,)`.
        square: A lower bound of `|w_delta|^2`, `()`.
    """

    b: Float[Array, " n"]
    delta: Float[Array, " n"]
    q: Float[Array, " n"]
    error: Float[Array, " n"]
    square: Float[Array, ""]


def difference(wide: Restrictable, reference: Reference) -> Difference:
    """Return the difference to the dual point of the first ball's centre, which minimises the balls' intersection.

    (Ogawa et al., Section IV-C: `s_i = 1` where the centre's margin is below 1.) Samples whose `rho a` is at its bound
    keep it, so that only free samples and those that change sides cost kernel columns.
    """
    size, rho, unit = reference.size, reference.rho, reference.unit
    scaled = rho * reference.a
    b = dual_of(wide, (reference.margins + rho * reference.p) / 2)
    if wide.bounded:
        b = jnp.where((b > 0) & (scaled >= wide.upper * (1 - 1e-6)), scaled, b)
    delta = scaled - b
    q = wide.signed.few_rows_matvec(delta)
    total = size @ jnp.abs(delta)
    square = jnp.maximum(delta @ q - unit * total**2, 0)
    return Difference(b, delta, q, unit * size * total, square)


def second_ball(wide: Restrictable, reference: Reference, apart: Difference) -> Ball:
    """Return the ball of the same w and the dual point of the first ball's centre."""
    p, error, rho, unit = reference.margins, reference.margins_error, reference.rho, reference.unit
    _, delta, q, error_q, _ = apart
    total = reference.size @ jnp.abs(delta)
    # w - w_b = w - rho w_a + w_delta, and these may cancel.
    margins = reference.turn + (1 - rho) * reference.p
    error_between = reference.turn_error + jnp.abs(1 - rho) * reference.error
    between = reference.square(rho) + 2 * (delta @ margins) + delta @ q
    stretch = jnp.abs(1 - rho) * (reference.size @ reference.a) + jnp.sqrt(reference.apart)
    allowed = unit * (stretch + total) ** 2 + 2 * (jnp.abs(delta) @ error_between)
    missed = gap_terms(wide, apart.b, p, error).sum() * (1 + unit)
    square = ((jnp.maximum(between, 0) + allowed) / 4 + missed) * (1 + 8 * unit)
    centre = (p + rho * reference.p) / 2
    reach = (error + rho * reference.error + error_q) / 2 + unit * (jnp.abs(centre) + jnp.abs(q / 2))
    return Ball(centre - q / 2, reach, square)


def intersection_bounds(
    first: Ball, second: Ball, apart: Difference, size: Float[Array, " n"], unit: Any
) -> tuple[Array, Array]:
    """Return the least and the largest margin over the intersection of the two balls.

    For every `lam` in [0, 1] the ball with centre `m1 - lam phi`, `phi = m1 - m2`, and `r^2 = (1 - lam) r1^2 + lam r2^2
    - lam (1 - lam) |phi|^2` contains the intersection, and the best of them is exact (Theorem 8's cases are its
    clipping). Any `lam`, however rounded, is safe, and no case is 0 / 0.
    """
    turn, square = apart.q / 2, apart.square / 4
    safe = jnp.where(square > 0, square, 1)
    A = second.square - first.square + square
    kappa_square = second.square - A**2 / (4 * safe)
    along = turn**2 / safe
    across = jnp.sqrt(jnp.maximum(size**2 - along, 0))
    step = jnp.sqrt(jnp.maximum(kappa_square, 0)) * turn / (safe * jnp.where(across > 0, across, 1))
    fallback = jnp.where(first.square <= second.square, 0.0, 1.0)
    usable = (square > 0) & (kappa_square > 0) & (across > 0)

    def at(lam: Array) -> tuple[Array, Array]:
        rounded = lam * (1 - lam) * square
        left = jnp.maximum((1 - lam) * first.square + lam * second.square - rounded, 0) * (1 + 8 * unit)
        reach = size * jnp.sqrt(left) + first.error + lam * apart.error / 2
        reach = reach + 8 * unit * (jnp.abs(first.centre) + jnp.abs(turn))
        middle = first.centre - lam * turn
        return middle - reach, middle + reach

    def best_lam(sign: float) -> Array:
        lam = 1 - (A / (2 * safe) + sign * step)
        return jnp.clip(jnp.where(usable & jnp.isfinite(lam), lam, fallback), 0, 1)

    low, _ = at(best_lam(1.0))
    _, high = at(best_lam(-1.0))
    # The best of three: the bounds of either ball alone hold too.
    ends = [first.bounds(size), second.bounds(size)]
    return jnp.maximum(low, jnp.maximum(ends[0][0], ends[1][0])), jnp.minimum(high, jnp.minimum(ends[0][1], ends[1][1]))
