"""References of screening rules: a dual point, a w beside it, the margins of both, and bounds on their rounding.

Rules hold with any reference, exact, certified to a gap or not certified, since its gap enters the radius of every
ball. They are evaluated in float64 for all data (`in_double`).

The ball theorem: one pair of a primal vector and a dual point bounds every margin of the solution. For any w and any
feasible a the solution w* of `min 1/2 |w|^2 + sum_i loss_i(z_i . w)` lies in the ball with

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
import numpy as np
from jaxtyping import Array, Float

from jaxsvm.errors import InputError, is_concrete
from jaxsvm.problems.certificates.definiteness import vouched
from jaxsvm.problems.contract import Restrictable, require_problem
from jaxsvm.problems.squared_hinge import SquaredHingeProblem
from jaxsvm.results.fit import Counters, Fit, StatusCode, require_fit
from jaxsvm.runtime.arrays import require_positive
from jaxsvm.runtime.loops import once


class Reference(NamedTuple):
    """A feasible dual point in primal scale with its `w_a`, and the w of the primal beside it.

    In float32 a fit's w is often not that of its dual point (`jaxsvm.problems.certificates.corrections`): the gap of
    its dual point alone may be decades larger.
    """

    a: Float[Array, " n"]  # the dual point, `(n,)`: `w_a = sum_i a_i z_i`, with `z_i = y_i phi(x_i)`
    p: Float[Array, " n"]  # its margins `z_i . w_a`, `(n,)`
    error: Float[Array, " n"]  # bounds on their errors, `(n,)`
    size: Float[Array, " n"]  # upper bounds of `|z_i|`, `(n,)`
    W: Float[Array, ""]  # an upper bound of `|w_a|^2`, `()`
    rho: Float[Array, ""]  # C over the reference's C, `()`: `rho a` is a feasible dual point of the problem to screen
    unit: Any  # the error of a sum of n products, relative to the sum of their sizes, `()`
    turn: Float[Array, " n"]  # margins of `w - w_a`, `(n,)`; 0, as all that follows, if the two are equal
    turn_error: Float[Array, " n"]  # bounds on their errors, `(n,)`
    apart: Float[Array, ""]  # an upper bound of `|w - w_a|^2`, `()`
    along: Float[Array, " 2"]  # `(w - w_a) . w_a` and a bound on its error, `(2,)`

    @property
    def margins(self) -> Float[Array, " n"]:
        """Return the margins of w, `(n,)`."""
        return self.p + self.turn

    @property
    def margins_error(self) -> Float[Array, " n"]:
        """Return bounds on their errors, `(n,)`."""
        return self.error + self.turn_error

    def square(self, rho: Any) -> Float[Array, ""]:
        """Return an upper bound of `|w - rho w_a|^2`; rho is 0 for `|w|^2`."""
        cross, doubt = self.along
        between = self.apart + 2 * (1 - rho) * cross + (1 - rho) ** 2 * self.W
        return jnp.maximum(between, 0) + 2 * jnp.abs(1 - rho) * doubt


def require_screenable(problem: Any) -> None:
    """Refuse a problem for which no rule is safe."""
    require_problem(problem)
    if not problem.restricts:
        raise InputError(
            f"problem is a {type(problem).__name__}: screening is for problems of `svm_problem`, `hinge_problem` and "
            "`box_problem`."
        )
    if problem.equality is not None:
        raise InputError(
            "the problem has a free bias: no screening rule is safe there, since w alone is strongly convex. Take "
            'bias="regularized" (the constant is one more feature).'
        )


def screenable(problem: Any) -> Restrictable:
    """Return a problem that can be screened, after a test of its matrix if the kernel need not be positive definite.

    Under tracing the matrix cannot be tested, and rules screen nothing if the kernel need not be positive definite.

    Raises:
        InputError: If no rule is safe: other problems, a free bias, a matrix that is not positive semidefinite.
    """
    require_screenable(problem)
    return vouched(problem) if is_concrete(problem) else problem


def require_reference(problem: Restrictable, fit: Any, name: str = "reference") -> None:
    """Refuse a reference that is no fit of the problem's samples."""
    require_fit(fit, name)
    if np.shape(fit.alpha) != (problem.n,):
        raise InputError(
            f"{name} has dual variables of shape {np.shape(fit.alpha)}, the problem {problem.n} samples: one fit "
            "of the same samples is needed, such as path[0] of a path."
        )


def reference_of(wide: Restrictable, fit: Fit, C_ref: Any, narrow: Any) -> Reference:
    """Return the reference that a fit makes; inside `in_double`.

    `wide` is the problem to screen, `narrow` the dtype that the fit's numbers were rounded to. C_ref None derives it
    from the fit (`_scale`).
    """
    dtype = wide.dtype
    coef = wide.y * fit.dual_coef.astype(dtype)
    a = fit.alpha.astype(dtype) if wide.bounded else coef
    a = jnp.where(wide.present & jnp.isfinite(a), jnp.maximum(a, 0), 0)
    p, wide_eps = fit.margins.astype(dtype), float(jnp.finfo(dtype).eps) / 2
    narrow_eps = float(jnp.finfo(narrow).eps) / 2
    # If the fit's bias is not that of its w, or w not that of the dual point, margins are computed anew.
    constant = fit.dual_coef.astype(dtype)
    stray = jnp.abs(fit.bias.astype(dtype) - wide.offset * constant.sum())
    other = stray > (4 * wide.n**0.5 + 8) * narrow_eps * wide.offset * jnp.abs(constant).sum()
    delta = jnp.where(jnp.isfinite(coef), coef - a, 0)

    def anew(_: Any) -> tuple[Array, Array]:
        return tuple(wide.signed.support_matvec(v).astype(dtype) for v in (a, delta))  # pyright: ignore[reportReturnType]

    fresh = jnp.any(coef != a) | other
    p, turn = once(fresh, anew, (p, jnp.zeros_like(p)))
    unit = (4 * wide.n**0.5 + 8) * wide_eps
    size = jnp.sqrt(jnp.maximum(wide.signed.diag().astype(dtype), 0)) * (1 + 2 * max(narrow_eps, wide_eps))
    total, stretch = (size * a).sum(), (size * jnp.abs(delta)).sum()
    returned = stray + jnp.zeros_like(p)
    if narrow_eps > wide_eps:  # margins and bias were rounded once to be returned
        returned = returned + narrow_eps * (jnp.abs(p) + jnp.abs(fit.bias.astype(dtype)))
    error = unit * size * total + jnp.where(fresh, 0, returned)
    W = jnp.maximum(a @ p, 0) + a @ error
    apart = jnp.maximum(delta @ turn, 0) + unit * stretch**2
    along = jnp.stack([delta @ p, unit * stretch * (total + stretch) + jnp.abs(delta) @ error])
    whole = Reference(a, p, error, size, W, jnp.ones_like(W), unit, turn, unit * size * stretch, apart, along)
    return whole._replace(rho=_scale(wide, whole, C_ref))


def mean_of(one: Reference, other: Reference, share: Any) -> Reference:
    """Return the mean of two references, `share` of it of the other: a dual point and its w, with their bounds."""

    def mean(here: Array, there: Array) -> Array:
        return (1 - share) * here + share * there

    a, p, turn = mean(one.a, other.a), mean(one.p, other.p), mean(one.turn, other.turn)
    unit, size = one.unit, one.size
    error = mean(one.error, other.error) + unit * (jnp.abs(one.p) + jnp.abs(other.p) + size * (size @ a))
    turn_error = mean(one.turn_error, other.turn_error) + unit * (jnp.abs(one.turn) + jnp.abs(other.turn))
    W, length = jnp.maximum(a @ p, 0) + a @ error, mean(jnp.sqrt(one.apart), jnp.sqrt(other.apart))
    apart = length**2 * (1 + 8 * unit)
    along = jnp.stack([jnp.zeros_like(W), jnp.sqrt(apart * W)])  # only its size is known
    return Reference(a, p, error, size, W, jnp.ones_like(W), unit, turn, turn_error, apart, along)


def reference_fit(problem: Restrictable, point: Array, s: Array) -> Fit:
    """Return the fit of a dual point with its own w, as a reference for rules.

    The point may be in any scale.
    """
    total = 1.0 if problem.bounded else point @ s
    beta = point if problem.bounded else point / jnp.where(total > 0, total, 1)
    margins = problem.margins(point, s) / (1.0 if problem.bounded else jnp.where(total > 0, total, 1))
    coef = problem.y * beta
    bias, R = problem.offset * coef.sum(), jnp.asarray(total, problem.dtype)
    certificate, status = problem.certificate(point, s), StatusCode(jnp.zeros((), jnp.int32))
    return Fit(point, coef, bias, R, margins, certificate, status, Counters.zero())


def _scale(wide: Restrictable, reference: Reference, C_ref: Any) -> Array:
    """Return the factor that takes the reference's dual point to the new problem; any feasible one is safe.

    It is C over the reference's C, if that is given, or follows from the hinge's dual variables: those of samples with
    a loss are at their bound. Otherwise (no sample has a loss, so that the solution is that of all larger C too; or
    there are no bounds) it is the factor of the smallest ball.
    """
    a, largest = reference.a, _largest(wide, reference.a)
    if C_ref is not None:
        return jnp.minimum(wide.C / jnp.asarray(C_ref, wide.dtype), largest)
    best = best_scale(wide, reference)
    if not wide.bounded:
        return best
    # At the bound up to rounding, and with a clear loss, which a solution has at the upper bound alone.
    at_bound = (a > 0) & (a * largest >= wide.upper * (1 - 1e-6))
    known = jnp.any(at_bound & (wide.targets - reference.margins > 1e-3 * jnp.abs(wide.targets)))
    return jnp.where(known, largest, best)


def best_scale(wide: Restrictable, reference: Reference) -> Array:
    """Return the feasible factor of the dual point that minimises the ball of it and w: a parabola's minimum."""
    a, W = reference.a, reference.W
    loss = jnp.where(wide.present, wide.targets - reference.margins, 0)
    if wide.bounded:
        return jnp.clip(1 + (reference.along[0] + 2 * (a @ loss)) / jnp.where(W > 0, W, 1), 0, _largest(wide, a))
    square = (jnp.where(wide.present, wide.ridge, 0) * a) @ a
    return jnp.maximum((W / 2 + a @ loss) / jnp.where(W + square > 0, W / 2 + square, 1), 0)


def _largest(wide: Restrictable, a: Array) -> Any:
    if not wide.bounded:
        return jnp.inf
    room = jnp.where(a > 0, wide.upper / jnp.where(a > 0, a, 1), jnp.inf).min()
    return jnp.where(jnp.isfinite(room), room, 1.0)


def checked_C(C_ref: Any, name: str = "C_ref") -> Any:
    """Return the C of a reference, `()`, or None; refuse anything but one positive finite number; traced ones pass."""
    if C_ref is not None and (is_concrete(C_ref) or np.ndim(C_ref)):
        require_positive(name, C_ref)
    return C_ref


class Ball(NamedTuple):
    """A ball that contains the solution's w, given by margins."""

    centre: Float[Array, " n"]  # margins of the centre, `(n,)`
    error: Float[Array, " n"]  # bounds on their errors, `(n,)`
    square: Float[Array, ""]  # the radius squared, `()`, with an allowance for rounding

    def bounds(self, size: Float[Array, " n"]) -> tuple[Array, Array]:
        """Return the least and the largest margin `z_i . w` of any w in the ball, where `|z_i|` is at most `size`."""
        reach = size * jnp.sqrt(self.square) + self.error
        return self.centre - reach, self.centre + reach


def gap_terms(wide: Restrictable, a: Array, p: Array, error: Array) -> Float[Array, " n"]:
    """Return upper bounds of the samples' terms `e_i` of the duality gap: the worst case within the margins' errors.

    The margins p are those of any w; a is a feasible dual point.
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
    """The difference of two dual points: `delta = rho a - b`, whose support is small, and `q = Q delta`."""

    b: Float[Array, " n"]  # the dual point of the second ball, `(n,)`, feasible
    delta: Float[Array, " n"]  # `rho a - b`, `(n,)`; 0 where the two agree
    q: Float[Array, " n"]  # its products, `(n,)`
    error: Float[Array, " n"]  # bounds on their errors, `(n,)`
    square: Float[Array, ""]  # a lower bound of `|w_delta|^2`, `()`


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
    total = (size * jnp.abs(delta)).sum()
    square = jnp.maximum(delta @ q - unit * total**2, 0)
    return Difference(b, delta, q, unit * size * total, square)


def second_ball(wide: Restrictable, reference: Reference, apart: Difference) -> Ball:
    """Return the ball of the same w and the dual point of the first ball's centre."""
    p, error, rho, unit = reference.margins, reference.margins_error, reference.rho, reference.unit
    _, delta, q, error_q, _ = apart
    total = (reference.size * jnp.abs(delta)).sum()
    # w - w_b = w - rho w_a + w_delta, and these may cancel.
    margins = reference.turn + (1 - rho) * reference.p
    error_between = reference.turn_error + jnp.abs(1 - rho) * reference.error
    between = reference.square(rho) + 2 * (delta @ margins) + delta @ q
    stretch = jnp.abs(1 - rho) * (reference.size * reference.a).sum() + jnp.sqrt(reference.apart)
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
