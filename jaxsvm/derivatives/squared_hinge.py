"""Derivatives of squared-hinge solutions: the samples inside the margin solve a linear system.

On a support S, `beta = alpha / R` solves `Kt_SS beta_S = 1` (Chapelle et al. 2002), with a free bias `Kt_SS beta_S + b
y_S = 1`, `y . beta = 0`. The optimal value `1 / (2 R)` needs no system: its derivative is `-1/2 beta' dKt beta`.
"""

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from jaxsvm.derivatives.support_equations import Point
from jaxsvm.derivatives.values import Active, Values, negligible
from jaxsvm.numerics.masks import every, some
from jaxsvm.results.fit import Certificate

if TYPE_CHECKING:
    from jaxsvm.problems.squared_hinge import SquaredHingeProblem


def active_set(problem: "SquaredHingeProblem", values: Any, before: Active | None = None) -> Active:
    """Return the samples inside the margin: those with alpha > 0 at the exact solution.

    Before the solution is exact, margins tell more than alpha: a first-order solver leaves a little alpha on samples
    outside the support. An empty set, which no solution has, becomes all samples, so that NaN is not lost in gradients.
    """
    present, slack = problem.ridge > 0, 1 - values.margins
    if before is None:
        inside = present & (slack > 0)
    else:
        share, off = negligible(problem, values.dual_coef)
        off = off + share
        inside = present & jnp.where(before.free, ~(slack < -off), slack > off)
    return lax.stop_gradient(Active(inside | ~some(inside), jnp.zeros_like(inside)))


def values_at(problem: "SquaredHingeProblem", point: Point) -> Values:
    """Return the values of a point of the equations, `beta`; `alpha` may be negative if S is no solution's support."""
    beta = point.a
    R, coefficients = 1 / beta.sum(), lax.stop_gradient(problem.y) * beta
    return Values(beta * R, coefficients, problem.offset * coefficients.sum() + point.b, R, point.products)


def lagrangian(problem: "SquaredHingeProblem", values: Values) -> Float[Array, ""]:
    """Return `-1/2 beta' Kt beta`, by tiles: its derivative by the problem needs no n x n matrix of its own."""
    beta = values.alpha / values.R
    return -(problem.signed.quadratic_form(beta) + problem.ridge @ beta**2) / 2


def kinks(problem: "SquaredHingeProblem", values: Any, tol: Any) -> Bool[Array, " n"]:
    """Return the samples on the margin: their alpha is 0, and a small change may make it positive."""
    return lax.stop_gradient((problem.ridge > 0) & (jnp.abs(values.margins - 1) <= tol))


def certificate_of(problem: "SquaredHingeProblem", values: Values, dtype: Any) -> Certificate:
    """Return the certificate of a solution's values as numbers of `dtype`; an infinite gap if infeasible."""
    beta = jnp.maximum(values.alpha, 0) / values.R
    certificate = problem.certified(beta, problem.matvec(beta), dtype).certificate
    # A point that had to be clipped is not the returned one, which has no certificate then.
    rounding = 64 * jnp.finfo(dtype).eps
    feasible = every(values.alpha >= -rounding * jnp.abs(values.alpha).max())
    gap = jnp.where(feasible, certificate.relative_gap, jnp.inf)
    dual = 1 / (2 * values.R)
    return Certificate(primal=dual * (1 + gap), dual=dual, relative_gap=gap)
