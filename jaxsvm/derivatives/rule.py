"""How a solution moves with its problem: the implicit function theorem on the support, to every order.

On a support S that does not change, `beta = alpha / R` solves `Kt_SS beta_S = 1`, which is differentiated as a linear
system (`lax.custom_linear_solve`: Gould et al. 2016; Chapelle et al. 2002 for this SVM). `differentiable` gives the
derivatives of that solution to the values of a fit: whoever asks for none pays nothing. The optimal value needs no
system at the first order: by the envelope theorem its derivative is `-1/2 beta' dKt beta`.

A fit without an answer, or a system that cannot be solved (`jaxsvm.derivatives.support_equations`), gives NaN: never a
wrong derivative in silence. Box problems have their own equations, in `jaxsvm.derivatives.box`.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from jaxsvm.derivatives import box as box_sensitivity
from jaxsvm.derivatives.support_equations import plan, solver
from jaxsvm.errors import InputError
from jaxsvm.problems.box import BoxProblem
from jaxsvm.problems.squared_hinge import SquaredHingeProblem
from jaxsvm.result import Fit, Status


class Values(NamedTuple):
    """What moves of a `Fit`, by its names."""

    alpha: Float[Array, " n"]
    dual_coef: Float[Array, " n"]
    bias: Float[Array, ""]
    R: Float[Array, ""]
    margins: Float[Array, " n"]


def differentiable(problem: Any, fit: Fit) -> Fit:
    """The same fit, with the derivatives of the solution with respect to the problem.

    Args:
        problem: The problem, traced for derivatives or not.
        fit: A fit of it whose own derivatives, if any, are to be forgotten.

    Returns:
        A fit of equal values. The relative gap, status and counters have no derivative.
    """
    fit = lax.stop_gradient(fit)
    values, status = Values(fit.alpha, fit.dual_coef, fit.bias, fit.R, fit.margins), fit.status.code
    primal, dual = (_optimal_value(problem, values, status, side) for side in fit.certificate[:2])
    return Fit(
        **_differentiable(problem, values, status)._asdict(),
        certificate=fit.certificate._replace(primal=primal, dual=dual),
        status=fit.status,
        counters=fit.counters,
    )


def optimal_value(problem: Any, fit: Fit) -> Float[Array, ""]:
    """The dual objective of a fit, with the derivatives of the optimal value: no system for the first of them."""
    fit = lax.stop_gradient(fit)
    values = Values(fit.alpha, fit.dual_coef, fit.bias, fit.R, fit.margins)
    return _optimal_value(problem, values, fit.status.code, fit.certificate.dual)


@jax.custom_jvp
def _differentiable(problem: Any, values: Values, status: Array) -> Values:
    """The values; what `problem` is here for is the rule below."""
    del problem, status
    return values


@_differentiable.defjvp
def _move(primals: Any, tangents: Any) -> tuple[Values, Values]:
    """Tangents of the exact solution on the support of the values."""
    (problem, values, status), (dproblem, _, _) = primals, tangents
    if isinstance(problem, BoxProblem):
        sets = box_sensitivity.sets_of(problem, values.alpha)
        sizes, method = box_sensitivity.plan(problem, sets.free)
        moved = _push(partial(on_sets, sizes=sizes, method=method), sets, problem, dproblem)
    else:
        _require_squared_hinge(problem)
        support = active_set(problem, values.margins)
        sizes, method = plan(problem, support)
        moved = _push(partial(on_support, sizes=sizes, method=method), support, problem, dproblem)
    # At the next order the values move too: they are taken from the function whose rule this is.
    return _differentiable(problem, values, status), jax.tree.map(partial(_answered, status), moved)


@jax.custom_jvp
def _optimal_value(problem: Any, values: Values, status: Array, value: Array) -> Array:
    """The value; what all else is here for is the rule below."""
    del problem, values, status
    return value


@_optimal_value.defjvp
def _envelope(primals: Any, tangents: Any) -> tuple[Array, Array]:
    """`-1/2 beta' dKt beta`: that beta moves as well changes nothing at a maximum; at the next order it does."""
    (problem, values, status, value), (dproblem, *_) = primals, tangents
    here = _differentiable(problem, values, status)
    if isinstance(problem, BoxProblem):
        moved = _push(
            lambda problem, here: box_sensitivity.lagrangian(problem, here.alpha, here.margins, here.bias),
            here,
            problem,
            dproblem,
        )
    else:
        _require_squared_hinge(problem)
        moved = -_push(quadratic_form, here.alpha / here.R, problem, dproblem) / 2
    return _optimal_value(problem, values, status, value), _answered(status, moved)


def _answered(status: Array, tangent: Array) -> Array:
    """A tangent, or NaN where the fit holds no solution that could move."""
    failed = (status == Status.NOT_FINITE) | (status == Status.INFEASIBLE) | (status == Status.NOT_PSD)
    return tangent * jnp.where(failed, jnp.nan, 1)  # a product, so that NaN goes backward as well


def _push(function: Any, argument: Any, problem: Any, dproblem: Any) -> Any:
    """The tangent of `function(problem, argument)` in the direction `dproblem`."""
    return jax.jvp(lambda problem: function(problem, argument), (problem,), (dproblem,))[1]


def _require_squared_hinge(problem: Any) -> None:
    if not isinstance(problem, SquaredHingeProblem):
        raise InputError(
            f"problem is a {type(problem).__name__}: derivatives of a solution exist for squared-hinge and hinge "
            "problems (svm_problem, hinge_problem, box_problem). Put `jax.lax.stop_gradient` around the fit if none "
            "are meant."
        )


def active_set(problem: SquaredHingeProblem, margins: Float[Array, " n"]) -> Bool[Array, " n"]:
    """Samples inside the margin, `(n,)`: where alpha > 0 at the solution, and closer to that set than alpha before it.

    A first-order solver leaves a little alpha on samples that have long left the support. An empty set, which no
    solution has, is all samples instead: through an empty one a NaN would go backward as 0.
    """
    inside = (problem.ridge > 0) & (margins < 1)
    return lax.stop_gradient(inside | ~inside.any())


def quadratic_form(problem: SquaredHingeProblem, beta: Float[Array, " n"]) -> Float[Array, ""]:
    """`beta' Kt beta`, by tiles; its derivative with respect to the problem needs no n x n matrix of its own."""
    signed = lax.stop_gradient(problem.y) * beta
    return signed @ problem.gram.matvec(signed) + problem.offset * signed.sum() ** 2 + problem.ridge @ beta**2


@partial(jax.jit, static_argnames=("sizes", "method"))
def on_support(
    problem: SquaredHingeProblem, support: Bool[Array, " n"], *, sizes: tuple[int, ...], method: str
) -> Values:
    """The solution of `Kt_SS beta_S = 1` (with a free bias `Kt_SS beta_S + b y_S = 1`, `y . beta = 0`) as values.

    Args:
        problem: The problem; derivatives of any order flow from it, except from y.
        support: S, `(n,)`.
        sizes: As `plan` has it; static.
        method: As `plan` has it; static.

    Returns:
        The values; `alpha` may be negative where S is not the support of a solution.
    """
    y = lax.stop_gradient(problem.y)
    solve = solver(problem, support, sizes, method)
    beta, constant = solve(support.astype(problem.dtype)), jnp.zeros((), problem.dtype)
    if problem.free_bias:
        other = solve(jnp.where(support, y, 0))
        constant = (y @ beta) / (y @ other)
        beta = beta - constant * other
    R, coefficients = 1 / beta.sum(), y * beta
    bias = constant + problem.offset * coefficients.sum()
    margins = y * (problem.gram.matvec(coefficients) + bias)
    return Values(beta * R, coefficients, bias, R, margins)


@partial(jax.jit, static_argnames=("sizes", "method"))
def on_sets(problem: BoxProblem, sets: box_sensitivity.Sets, *, sizes: tuple[int, ...], method: str) -> Values:
    """`box_sensitivity.on_sets` as values."""
    return Values(*box_sensitivity.on_sets(problem, sets, sizes=sizes, method=method))
