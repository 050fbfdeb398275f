"""References of screening rules: a dual point, the margins of its w, and bounds on their rounding.

Rules hold with any reference, exact, certified to a gap or not certified, since its gap enters the radius of every ball
(`jaxsvm.screening.ball`). They are evaluated in float64 for all data (`in_double`).
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxsvm.errors import InputError, is_concrete
from jaxsvm.problems.certificates.definiteness import vouched
from jaxsvm.problems.contract import Restrictable, require_problem
from jaxsvm.results.fit import Counters, Fit
from jaxsvm.results.status import StatusCode
from jaxsvm.runtime.loops import once


class Reference(NamedTuple):
    """A feasible dual point in primal scale, and its w.

    Attributes:
        a: The dual point, `(n,)`: `w = sum_i a_i z_i`, with `z_i = y_i phi(x_i)`.
        p: Its margins `z_i . w`, `(n,)`.
        error: Bounds on their errors, `(n,)`.
        size: Upper bounds of `|z_i|`, `(n,)`.
        W: An upper bound of `|w|^2`, `()`.
        rho: C over the reference's C, `()`: `rho a` is a feasible dual point of the problem to screen.
        unit: The error of a sum of n products, relative to the sum of their sizes, `()`.
    """

    a: Float[Array, " n"]
    p: Float[Array, " n"]
    error: Float[Array, " n"]
    size: Float[Array, " n"]
    W: Float[Array, ""]
    rho: Float[Array, ""]
    unit: Any


def require_screenable(problem: Any) -> None:
    """Refuse a problem for which no rule is safe.

    Raises:
        InputError: With an alternative.
    """
    require_problem(problem)
    if not problem.restricts:
        raise InputError(
            f"problem is a {type(problem).__name__}: screening is for problems of `svm_problem`, `hinge_problem` and "
            "`box_problem`."
        )
    if problem.equality is not None:
        raise InputError(
            "the problem has a free bias: no screening rule is safe there, since w alone is strongly convex. Take "
            'bias="regularized" (the constant is one more feature), or leave samples out by a heuristic that is '
            "checked: `solve_path(reduction=NearMargin())`."
        )


def screenable(problem: Any) -> Restrictable:
    """Return a problem that can be screened, after a test of its matrix if the kernel need not be positive definite.

    Under tracing the matrix cannot be tested, and rules screen nothing if the kernel need not be positive definite.

    Raises:
        InputError: If no rule is safe: other problems, a free bias, a matrix that is not positive semidefinite.
    """
    require_screenable(problem)
    return vouched(problem) if is_concrete(problem) else problem


def reference_of(wide: Restrictable, fit: Fit, C_ref: Any, narrow: Any) -> Reference:
    """Return the reference that a fit makes; inside `in_double`.

    Args:
        wide: The problem to screen, in twice the precision.
        fit: A fit of the same samples, at any C.
        C_ref: The C that it was solved at, `()`; None derives it from the fit (`_scale`).
        narrow: The dtype that the fit's numbers were rounded to.
    """
    dtype = wide.dtype
    coef = wide.y * fit.dual_coef.astype(dtype)
    a = fit.alpha.astype(dtype) if wide.bounded else coef
    a = jnp.where(wide.present & jnp.isfinite(a), jnp.maximum(a, 0), 0)
    p, wide_eps = fit.margins.astype(dtype), float(jnp.finfo(dtype).eps) / 2
    narrow_eps = float(jnp.finfo(narrow).eps) / 2
    # If the fit's w or bias is not that of its dual point, the margins of the point are computed anew.
    constant = fit.dual_coef.astype(dtype)
    stray = jnp.abs(fit.bias.astype(dtype) - wide.offset * constant.sum())
    other = stray > (4 * wide.n**0.5 + 8) * narrow_eps * wide.offset * jnp.abs(constant).sum()
    p = once(jnp.any(coef != a) | other, lambda _: wide.signed.support_matvec(a).astype(dtype), p)
    unit = (4 * wide.n**0.5 + 8) * wide_eps
    size = jnp.sqrt(jnp.maximum(wide.signed.diag().astype(dtype), 0)) * (1 + 2 * max(narrow_eps, wide_eps))
    error = unit * size * (size @ a) + jnp.where(other, 0, stray)
    if narrow_eps > wide_eps:  # margins and bias were rounded once to be returned
        error = error + narrow_eps * (jnp.abs(p) + jnp.abs(fit.bias.astype(dtype)))
    W = jnp.maximum(a @ p, 0) + a @ error
    return Reference(a, p, error, size, W, _scale(wide, a, p, W, C_ref), unit)


def reference_fit(problem: Restrictable, point: Array, s: Array) -> Fit:
    """Return the fit of a dual point with its own w, as a reference for rules.

    Args:
        problem: The problem.
        point: A dual point, `(n,)`, in any scale.
        s: Its products, `(n,)`.
    """
    total = 1.0 if problem.bounded else point @ s
    beta = point if problem.bounded else point / jnp.where(total > 0, total, 1)
    margins = problem.margins(point, s) / (1.0 if problem.bounded else jnp.where(total > 0, total, 1))
    coef = problem.y * beta
    bias, R = problem.offset * coef.sum(), jnp.asarray(total, problem.dtype)
    certificate, status = problem.certificate(point, s), StatusCode(jnp.zeros((), jnp.int32))
    return Fit(point, coef, bias, R, margins, certificate, status, Counters.zero())


def _scale(wide: Restrictable, a: Array, p: Array, W: Array, C_ref: Any) -> Array:
    """Return the factor that takes the reference's dual point to the new problem; any feasible one is safe.

    It is C over the reference's C, if that is given, or follows from the hinge's dual variables: those of samples with
    a loss are at their bound. Otherwise (no sample has a loss, so that the solution is that of all larger C too; or
    there are no bounds) it is the factor of the smallest ball.
    """
    largest = _largest(wide, a)
    if C_ref is not None:
        return jnp.minimum(wide.C / jnp.asarray(C_ref, wide.dtype), largest)
    best = best_scale(wide, a, p, W)
    if not wide.bounded:
        return best
    # At the bound up to rounding, and with a clear loss, which a solution has at the upper bound alone.
    at_bound = (a > 0) & (a * largest >= wide.upper * (1 - 1e-6))
    known = jnp.any(at_bound & (wide.targets - p > 1e-3 * jnp.abs(wide.targets)))
    return jnp.where(known, largest, best)


def best_scale(wide: Restrictable, a: Array, p: Array, W: Array) -> Array:
    """Return the feasible factor of the dual point that minimises the ball of both: a parabola's minimum."""
    loss = jnp.where(wide.present, wide.targets - p, 0)
    if wide.bounded:
        return jnp.clip(1 + 2 * (a @ loss) / jnp.where(W > 0, W, 1), 0, _largest(wide, a))
    square = (jnp.where(wide.present, wide.ridge, 0) * a) @ a
    return jnp.maximum((W / 2 + a @ loss) / jnp.where(W + square > 0, W / 2 + square, 1), 0)


def _largest(wide: Restrictable, a: Array) -> Any:
    """Return the largest factor that keeps a dual point feasible."""
    if not wide.bounded:
        return jnp.inf
    room = jnp.where(a > 0, wide.upper / jnp.where(a > 0, a, 1), jnp.inf).min()
    return jnp.where(jnp.isfinite(room), room, 1.0)


def checked_C(C_ref: Any) -> Any:
    """Return the C of a reference, `()`, or None.

    Raises:
        InputError: On a concrete C that is not positive and finite.
    """
    if C_ref is not None and is_concrete(C_ref) and not 0 < float(C_ref) < float("inf"):
        raise InputError(f"C_ref is {C_ref}: the positive C that the reference was solved at is needed.")
    return C_ref
