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

from jaxsvm.derivatives.support_equations import factor_sizes, plan
from jaxsvm.derivatives.values import Active, Values
from jaxsvm.errors import InputError, is_concrete
from jaxsvm.loop import differentiation as rule
from jaxsvm.loop.choice import certain_solver
from jaxsvm.loop.driver import fit as solve
from jaxsvm.numerics.precision import in_double, widened
from jaxsvm.problems.contract import Differentiable, require_differentiable
from jaxsvm.results.fit import Certificate, Counters, Fit, Status, StatusCode
from jaxsvm.solvers.contract import Solver


def solution(problem: Any, support: Any = None, *, solver: Any = None, method: str = "auto", tol: Any = 1e-4) -> Fit:
    """The exact solution on a support, differentiable to every order in both modes.

    Args:
        problem: From `svm_problem`, `hinge_problem` or `box_problem`.
        support: Which samples carry weight: a mask `(n,)` of bool, or a `Fit` of this problem (its samples inside the
            margin); None solves the problem first, without derivatives. For a box problem a `Fit` only: it tells free
            samples from those at their bound.
        solver: What solves it where `support` is None; None takes Newton, to the floor of the dtype (SMO for a box).
        method: How the linear system is solved: "cholesky" (a matrix of the support's size), "cg" (products with the
            kernel matrix only: O(n tile) memory for a tiled Gram), or "auto".
        tol: The relative duality gap at which the solution counts as one, > 0.

    Returns:
        The solution of `Kt_SS beta_S = 1` (of `jaxsvm.derivatives.box` for a box) as a `Fit` with its certificate. Its
        status is CONVERGED where the certificate proves a relative gap of at most `tol`, as that of any fit, else
        STALLED: S is not the support of a solution, or the dtype is too narrow to prove it (float32 at large C).

    Raises:
        InputError: On another kind of problem, or a support that is none.
    """
    require_differentiable(problem)
    if support is None:
        active = _solved_sets(lax.stop_gradient(problem), solver)
    elif isinstance(support, Fit):
        active = problem.active_set(lax.stop_gradient(support))
    elif problem.bounded:
        raise InputError(f"support is a {type(support).__name__}: for a box problem a fit of it is needed, or None.")
    else:
        mask = lax.stop_gradient(_checked_mask(support, problem.n)) & problem.present
        active = Active(mask, jnp.zeros_like(mask))
    sizes, method = _plan(problem, active.free, method)
    values = rule.solution_on(problem, active, sizes=sizes, method=method)
    certificate = _certificate(*lax.stop_gradient((problem, values)))
    gap, dual = certificate.relative_gap, certificate.dual
    found = Fit(
        **values._asdict(), certificate=certificate, status=_judged(gap, tol, values.bias), counters=Counters.zero()
    )
    dual = rule.optimal_value(problem, found)
    primal = dual + lax.stop_gradient(certificate.primal - certificate.dual)
    return dataclasses.replace(found, certificate=certificate._replace(primal=primal, dual=dual))


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
    require_differentiable(problem)
    return rule.optimal_value(problem, fit)


def one_sided(problem: Any, fit: Fit, tol: Any = 1e-6) -> Bool[Array, " n"]:
    """Samples at a kink: on the margin, where an arbitrarily small move lets them in or not.

    Args:
        problem: From `svm_problem`.
        fit: A fit of it, certified to well below `tol` squared.
        tol: How close to 1 a margin `y_i f(x_i)` counts as on it, > 0.

    Returns:
        A mask, `(n,)`. Where any is true, the derivative is that of one side: the side on which these samples stay as
        they are. Of a hinge problem more samples may be between their bounds than its kernel tells apart (twins, points
        on a grid, more than d + 1 of a linear kernel): those that the others explain are named too. There the
        coefficients of a solution are not unique, its w and bias are; the derivatives are of the coefficients that
        leave these samples' own where they are.
    """
    require_differentiable(problem)
    return problem.kinks(fit, tol)


def _solved_sets(problem: Differentiable, solver: Solver) -> Active:
    """The active sets of a problem that is solved for them."""
    solver = certain_solver(problem) if solver is None else solver
    return rule.settled(problem, problem.active_set(solve(problem, solver)))[0]


@in_double
def _certificate(problem: Differentiable, values: Values) -> Certificate:
    wide = widened(problem)
    found = wide.certificate_of(jax.tree.map(lambda leaf: leaf.astype(wide.dtype), values), problem.dtype)
    return jax.tree.map(lambda leaf: leaf.astype(problem.dtype), found)


def _judged(gap: Array, tol: Any, number: Array) -> StatusCode:
    """Return CONVERGED where the gap is at most `tol`, NOT_FINITE where the solution is not, else STALLED."""
    code = jnp.where(gap <= tol, Status.CONVERGED, Status.STALLED)
    return StatusCode(jnp.where(jnp.isfinite(number), code, Status.NOT_FINITE).astype(jnp.int32))


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
