"""Differentiate a solution in C, sample weights, kernel parameters, points and precomputed Gram entries.

`jax.grad`, `jax.jvp` and their combinations work on `jaxsvm.fit` itself. This module is for a fit that exists already,
for derivatives to rounding, and for finding samples where they do not exist:

    fit = implicit.solution(problem)                     # solved and differentiable
    fit = implicit.solution(problem, support=known_fit)  # one linear system, no solver
    value = implicit.value(problem, known_fit)           # its gradient needs no system
    kinks = implicit.one_sided(problem, fit)             # derivatives differ by side

Labels have no derivative. A sample of weight 0 is absent, also for derivatives.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float
from numpy.typing import ArrayLike

from jaxsvm.derivatives.support_equations import factor_sizes, kinks, plan
from jaxsvm.errors import InputError, is_concrete
from jaxsvm.loop import differentiation as rule
from jaxsvm.loop.driver import fit as solve
from jaxsvm.numerics.precision import in_double, matmul, widened
from jaxsvm.problems.ball import BallProblem
from jaxsvm.problems.certificates.definiteness import negative_curvature
from jaxsvm.problems.contract import Differentiable, require_differentiable
from jaxsvm.problems.squared_hinge import SquaredHingeProblem
from jaxsvm.results.fit import Active, Certificate, Counters, Fit, StatusCode, Values, require_fit
from jaxsvm.results.judge import narrowed, refused, verdict
from jaxsvm.runtime.arrays import transfers
from jaxsvm.solvers.box.sequential_minimal_optimization import SMO
from jaxsvm.solvers.contract import Solver
from jaxsvm.solvers.simplex.newton import Newton


@transfers
def solution(
    problem: Differentiable,
    support: Fit | ArrayLike | None = None,
    *,
    solver: Solver | None = None,
    method: str = "auto",
    tol: ArrayLike = 1e-4,
) -> Fit:
    """Return the exact solution on a support, differentiable to every order in both modes.

    Args:
        problem: From `svm_problem`, `hinge_problem` or `box_problem`.
        support: Which samples carry weight: a mask `(n,)` of bool, or a `Fit` of this problem (its samples inside the
            margin); None solves the problem first, without derivatives. A box problem needs a `Fit`, which shows which
            samples are free and which at their bound.
        solver: Solver if `support` is None; None takes Newton, to the floor of the dtype (SMO for a box).
        method: How the linear system is solved: "cholesky" (a matrix of the support's size), "cg" (products with the
            kernel matrix only: O(n tile) memory for a tiled Gram), or "auto".
        tol: Relative duality gap up to which the result counts as a solution, > 0.

    Returns:
        The solution of `Kt_SS beta_S = 1` (with the samples at C for a box) as a `Fit` with its certificate. Its
        status is CONVERGED if the certificate proves a relative gap of at most `tol`. Else it is STALLED: S is not the
        support of a solution, or the dtype is too narrow to prove it (float32 at large C).

    Raises:
        InputError: On another kind of problem, or an invalid support.
    """
    require_differentiable(problem)
    if support is None:
        fixed = lax.stop_gradient(problem)
        found = solve(fixed, _to_the_floor(fixed) if solver is None else solver)
        active = rule.settled(fixed, fixed.active_set(found))[0]
    elif isinstance(support, Fit):
        active = problem.active_set(lax.stop_gradient(support))
    elif problem.bounded:
        raise InputError(f"support is a {type(support).__name__}: for a box problem a fit of it is needed, or None.")
    else:
        mask = lax.stop_gradient(_checked_mask(support, problem.n)) & problem.present
        active = Active(mask, jnp.zeros_like(mask))
    sizes, method = _plan(problem, active.free, method)
    values = rule.solution_on(problem, active, sizes=sizes, method=method)
    certificate, definite = _certificate(*lax.stop_gradient((problem, values)))
    finite = jnp.isfinite(values.margins).all() & jnp.isfinite(values.bias)
    code = verdict(certificate, tol, finite=finite, definite=definite)
    fitted = Fit(*values, certificate, StatusCode(code), Counters.zero())
    dual = rule.optimal_value(problem, fitted)
    primal = dual + lax.stop_gradient(certificate.primal - certificate.dual)
    return dataclasses.replace(fitted, certificate=certificate._replace(primal=primal, dual=dual))


@transfers
def value(problem: SquaredHingeProblem | BallProblem, fit: Fit) -> Float[Array, ""]:
    """Return the optimal value `1 / (2 R)`, differentiable by the envelope theorem: its gradient needs no system.

    Args:
        problem: From `svm_problem`, traced for derivatives; or from `meb_problem`, whose value is the squared radius
            `sum alpha_i K_ii - alpha' K alpha` and has first derivatives only.
        fit: A fit of it, to a tight gap: the error of the value is of second order in that of the fit, the error of its
            gradient of first order. It may be computed outside the differentiated function: the second derivative
            still includes the motion of the solution.

    Returns:
        The value, `()`: the dual objective of the fit.

    Raises:
        InputError: On another kind of problem.
    """
    if isinstance(problem, BallProblem):
        require_fit(fit)
        return _squared_radius(problem, lax.stop_gradient(fit.alpha))
    require_differentiable(problem)
    require_fit(fit)
    return rule.optimal_value(problem, fit)


def _radius_around(problem: BallProblem, alpha: Float[Array, " n"]) -> Float[Array, ""]:
    return matmul(alpha, problem.squares - problem.points.matvec(alpha) - problem.ridge * alpha)


_squared_radius = jax.custom_jvp(_radius_around)


@_squared_radius.defjvp
def _of_the_centre(primals: Any, tangents: Any) -> Any:
    problem, alpha = primals
    return jax.jvp(lambda moving: _radius_around(moving, alpha), (_at_rest(problem),), tangents[:1])


_at_rest = jax.custom_jvp(lambda problem: problem)  # derivatives through it would miss how the centre moves


@_at_rest.defjvp
def _refused(primals: Any, tangents: Any) -> Any:
    raise InputError("a squared radius has first derivatives only: the second ones need the motion of the centre.")


@transfers
def one_sided(problem: Differentiable, fit: Fit, tol: ArrayLike = 1e-6) -> Bool[Array, " n"]:
    """Return which samples are at a kink: on the margin, so that an arbitrarily small change moves them across.

    Args:
        problem: From `svm_problem`, `hinge_problem` or `box_problem`.
        fit: A fit of it, certified to well below `tol` squared.
        tol: How close to 1 a margin `y_i f(x_i)` counts as on it, > 0.

    Returns:
        A mask, `(n,)`. If a sample is marked, derivatives are one-sided: they hold while the marked samples stay in
        their sets. In a hinge problem, samples between their bounds that depend linearly on others (duplicates, points
        on a grid, more than d + 1 samples of a linear kernel) are marked too: w and the bias are then unique, but the
        coefficients are not, and derivatives keep those of marked samples fixed. If a free bias leaves no sample
        between its bounds, the samples at the ends of the interval of optimal biases are marked: derivatives by C and
        by features are right there, those by weights, which break the equality, do not exist.
    """
    require_differentiable(problem)
    require_fit(fit)
    return kinks(problem, fit, tol)


def _to_the_floor(problem: Differentiable) -> Solver:
    """Return a solver that determines the support: Newton near the floor of the dtype, or SMO with exact bounds."""
    narrow = problem.dtype == jnp.float32
    return SMO(tol=1e-4 if narrow else 1e-9) if problem.bounded else Newton(tol=1e-5 if narrow else 1e-12)


@in_double
def _certificate(problem: Differentiable, values: Values) -> tuple[Certificate, Any]:
    wide = widened(problem)
    certificate = wide.certificate_of(jax.tree.map(lambda leaf: leaf.astype(wide.dtype), values), problem.dtype)
    indefinite = False if problem.gram.definite else negative_curvature(wide, everywhere=True)
    return narrowed(refused(certificate, indefinite), problem.dtype), jnp.logical_not(indefinite)


def _checked_mask(support: Any, n: int) -> Bool[Array, " n"]:
    mask = jnp.asarray(support)
    if mask.shape != (n,) or mask.dtype != bool:
        raise InputError(
            f"support has shape {mask.shape} and dtype {mask.dtype}: a mask ({n},) of bool is needed, such as "
            "`fit.alpha > 0`, or a fit."
        )
    if is_concrete(mask) and not np.asarray(mask).any():
        raise InputError("support is empty: a solution has at least one support vector.")
    return mask


def _plan(problem: Differentiable, mask: Array, method: str) -> tuple[tuple[int, ...], str]:
    if method not in ("auto", "cholesky", "cg"):
        raise InputError(f'method is {method!r}: "auto", "cholesky" or "cg" is needed.')
    if method == "cg":
        return (), "nystroem"
    if method == "cholesky":
        return factor_sizes(problem.n, mask), "cholesky"
    return plan(problem, mask)
