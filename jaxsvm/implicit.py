"""Derivatives of a solution: with respect to C, sample weights, kernel parameters, points and precomputed Gram entries.

`jax.grad`, `jax.jvp` and all that is made of them go through `jaxsvm.fit` itself. This module is for those who already
have a fit, want its derivatives to rounding, or want to know where there are none:

    fit = implicit.solution(problem)                       # solved and differentiable, to every order
    fit = implicit.solution(problem, support=known_fit)    # one linear system, no solver
    value = implicit.value(problem, known_fit)             # the optimal value; its gradient needs no system
    kinks = implicit.one_sided(problem, fit)               # samples where the two one-sided derivatives differ

Labels have no derivative. A sample of weight 0 is absent, and stays so for derivatives.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

from jaxsvm.derivatives import box, rule
from jaxsvm.derivatives.support_equations import factor_sizes, plan
from jaxsvm.errors import InputError, is_concrete
from jaxsvm.loop import fit as solve
from jaxsvm.numerics.precision import in_double, widened
from jaxsvm.problems.box import BoxProblem
from jaxsvm.problems.squared_hinge import SquaredHingeProblem
from jaxsvm.result import Certificate, Counters, Fit, Status, StatusCode
from jaxsvm.solvers.newton import Newton
from jaxsvm.solvers.sequential_minimal_optimization import SMO

TIGHT = {"float64": 1e-12, "float32": 1e-5}
"""The relative gap that `solution` asks of its own solver: close to the floor of the dtype."""
BOX_TIGHT = {"float64": 1e-9, "float32": 1e-4}
"""The same of SMO, which meets bounds exactly long before: what is free solves the system in the end."""


def solution(problem: Any, support: Any = None, *, solver: Any = None, method: str = "auto") -> Fit:
    """The exact solution on a support, differentiable to every order in both modes.

    Args:
        problem: From `svm_problem`, `hinge_problem` or `box_problem`.
        support: Which samples carry weight: a mask `(n,)` of bool, or a `Fit` of this problem (its samples inside the
            margin); None solves the problem first, without derivatives. For a box problem a `Fit` only: it tells free
            samples from those at their bound.
        solver: What solves it where `support` is None; None takes Newton, to the floor of the dtype (SMO for a box).
        method: How the linear system is solved: "cholesky" (a matrix of the support's size), "cg" (products with the
            kernel matrix only: O(n tile) memory for a tiled Gram), or "auto".

    Returns:
        The solution of `Kt_SS beta_S = 1` (of `jaxsvm.derivatives.box` for a box) as a `Fit` with its certificate. Its
        status is CONVERGED where the certificate bears the support out (a relative gap of at most 1e-6, in float32
        1e-3), else STALLED: then S is not the support of a solution.

    Raises:
        InputError: On another kind of problem, or a support that is none.
    """
    if isinstance(problem, BoxProblem):
        return _box_solution(problem, support, solver, method)
    _require_squared_hinge(problem)
    if support is None:
        still = lax.stop_gradient(problem)
        support = solve(still, Newton(tol=TIGHT[jnp.dtype(problem.dtype).name]) if solver is None else solver)
    if isinstance(support, Fit):
        support = rule.active_set(problem, support.margins)
    mask = lax.stop_gradient(_checked_mask(support, problem.n)) & (problem.ridge > 0)
    sizes, method = _plan(problem, mask, method)
    return _as_fit(problem, rule.on_support(problem, mask, sizes=sizes, method=method))


def value(problem: Any, fit: Fit) -> Float[Array, ""]:
    """The optimal value `1 / (2 R)`, by the envelope theorem: its gradient is one product, no linear system.

    Args:
        problem: From `svm_problem`, traced for derivatives.
        fit: A fit of it, to a tight gap: the error of the value is the square of that of the fit, that of its gradient
            is of the first order. It may be computed outside of the differentiated function: the second derivative
            takes the motion of the solution into account all the same.

    Returns:
        The value, `()`: the dual objective of the fit.

    Raises:
        InputError: On another kind of problem.
    """
    if not isinstance(problem, BoxProblem):
        _require_squared_hinge(problem)
    return rule.optimal_value(problem, fit)


def one_sided(problem: Any, fit: Fit, tol: Any = 1e-6) -> Bool[Array, " n"]:
    """Samples at a kink: on the margin without weight, where an arbitrarily small move lets them in or not.

    Args:
        problem: From `svm_problem`.
        fit: A fit of it, certified to well below `tol` squared.
        tol: How close to 1 a margin `y_i f(x_i)` counts as on it, > 0.

    Returns:
        A mask, `(n,)`. Where any is true, the derivative is that of one side: the side on which these samples stay as
        they are.
    """
    if isinstance(problem, BoxProblem):
        return box.kinks(problem, fit, tol)
    present = problem.ridge > 0
    return lax.stop_gradient(present & (jnp.abs(fit.margins - 1) <= tol))


def _box_solution(problem: BoxProblem, support: Any, solver: Any, method: str) -> Fit:
    if support is None:
        still = lax.stop_gradient(problem)
        support = solve(still, SMO(tol=BOX_TIGHT[jnp.dtype(problem.dtype).name]) if solver is None else solver)
    if not isinstance(support, Fit):
        raise InputError(f"support is a {type(support).__name__}: for a box problem a fit of it is needed, or None.")
    sets = box.sets_of(problem, support.alpha)
    sizes, chosen = box.plan(problem, sets.free)
    if method != "auto":
        sizes, chosen = _plan(problem, sets.free, method)
    values = rule.on_sets(problem, sets, sizes=sizes, method=chosen)
    still, point = lax.stop_gradient((problem, values))
    a = jnp.clip(point.alpha, 0, still.upper)
    certificate = _box_certificate(still, a, point.bias)
    rounding = 1024 * jnp.finfo(a.dtype).eps * still.upper.max()
    feasible = jnp.all(jnp.abs(a - point.alpha) <= rounding)
    gap = jnp.where(feasible, certificate.relative_gap, jnp.inf)
    value = rule.optimal_value(problem, dataclasses.replace(support, **values._asdict()))
    return Fit(
        **values._asdict(),
        certificate=Certificate(primal=value + (certificate.primal - certificate.dual), dual=value, relative_gap=gap),
        status=_judged(gap, point.bias),
        counters=Counters.zero(),
    )


@in_double
def _certificate(problem: SquaredHingeProblem, beta: Float[Array, " n"]) -> Certificate:
    wide = widened(problem)
    point = beta.astype(wide.dtype)
    found = wide.certified(point, wide.matvec(point), problem.dtype).certificate
    return jax.tree.map(lambda leaf: leaf.astype(problem.dtype), found)


@in_double
def _box_certificate(problem: BoxProblem, a: Float[Array, " n"], bias: Float[Array, ""]) -> Certificate:
    """Of the bias that is returned: the system's, not the best one."""
    wide = widened(problem)
    point, b = a.astype(wide.dtype), bias.astype(wide.dtype)
    s = wide.matvec(point)
    found = wide.certified(point, s, problem.dtype).certificate
    constant = wide.offset * (wide.y @ point)
    without = s - wide.y * constant
    direction = wide.c if wide.free_bias else wide.offset * wide.y
    slack = jnp.maximum(0, wide.q - without - b * direction)
    missed = jnp.abs(b * (wide.c @ point - wide.e)) if wide.free_bias else 0.0
    primal = (point @ without + wide.offset * b**2) / 2 + b * wide.e + wide.upper @ slack + missed
    gap = jnp.maximum(found.relative_gap, (primal - found.dual) / jnp.abs(found.dual))
    found = Certificate(primal=jnp.maximum(primal, found.primal), dual=found.dual, relative_gap=gap)
    return jax.tree.map(lambda leaf: leaf.astype(problem.dtype), found)


def _judged(gap: Array, number: Array) -> StatusCode:
    """CONVERGED where the gap bears the support out."""
    code = jnp.where(gap <= jnp.finfo(gap.dtype).eps ** (3 / 8), Status.CONVERGED, Status.STALLED)
    return StatusCode(jnp.where(jnp.isfinite(number), code, Status.NOT_FINITE).astype(jnp.int32))


def _require_squared_hinge(problem: Any) -> None:
    if not isinstance(problem, SquaredHingeProblem):
        raise InputError(
            f"problem is a {type(problem).__name__}: one from `svm_problem`, `hinge_problem` or `box_problem` is "
            "needed."
        )


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


def _plan(problem: Any, mask: Array, method: str) -> tuple[tuple[int, ...], str]:
    if method not in ("auto", "cholesky", "cg"):
        raise InputError(f'method is {method!r}: "auto", "cholesky" or "cg" is needed.')
    if method == "cg":
        return (), "nystroem"
    if method == "cholesky":
        return factor_sizes(problem.n, mask), "cholesky"
    return plan(problem, mask)


def _as_fit(problem: SquaredHingeProblem, values: rule.Values) -> Fit:
    """The values as a fit, with the certificate of the point on the simplex that they are."""
    still, point = lax.stop_gradient((problem, values))
    certificate = _certificate(still, jnp.maximum(point.alpha, 0) / point.R)
    # A point that had to be clipped is not the one that is returned: then no certificate at all.
    rounding = 64 * jnp.finfo(point.alpha.dtype).eps
    feasible = jnp.all(point.alpha >= -rounding * jnp.abs(point.alpha).max())
    gap = jnp.where(feasible, certificate.relative_gap, jnp.inf)
    dual = 1 / (2 * values.R)
    return Fit(
        **values._asdict(),
        certificate=certificate._replace(primal=dual * (1 + gap), dual=dual, relative_gap=gap),
        status=_judged(gap, point.R),
        counters=Counters.zero(),
    )
