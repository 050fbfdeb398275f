"""How a solution moves with its problem: the implicit function theorem on the support, to every order.

On a support that does not change, the coefficients solve a linear system, which is differentiated as such
(`lax.custom_linear_solve`: Gould et al. 2016); which system, and what the support is, each problem knows
(`jaxsvm.problems.contract.Differentiable`). `differentiable` gives the derivatives of that solution to the values of a
fit: whoever asks for none pays nothing. The optimal value needs no system at the first order: by the envelope theorem
its derivative is that of the Lagrangian where the solution stands still.

Systems, and what is made of them, cancel where C is large. So all of it is in twice the precision, and only tangents
are rounded; and the support that a fit of finite precision shows is put right by the solution on it, until it is its
own. Where it never is, where a fit has no answer, or where a system cannot be solved
(`jaxsvm.derivatives.support_equations`), derivatives are NaN: never wrong ones in silence.
"""

import dataclasses
import typing
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from jaxsvm.derivatives.sums import summable, unsummable
from jaxsvm.derivatives.support_equations import plan
from jaxsvm.derivatives.values import Active, Values, values_of
from jaxsvm.errors import is_concrete
from jaxsvm.numerics.masks import some
from jaxsvm.numerics.precision import cast, in_double, like, rounded, widened
from jaxsvm.problems.contract import Differentiable, Problem, require_differentiable
from jaxsvm.problems.forms import BoxForm
from jaxsvm.results.fit import Fit, Status
from jaxsvm.runtime.loops import while_loop
from jaxsvm.runtime.once import once
from jaxsvm.solvers.box import interior_point
from jaxsvm.solvers.box.barrier_systems import affordable

SETTLING = 16
"""Systems that are solved at the most to find the support: most fits need one, which bears theirs out."""
FLOOR = 1e-13
"""The relative gap to which a problem is solved anew."""


def differentiable(problem: Problem, fit: Fit) -> Fit:
    """The same fit, with the derivatives of the solution with respect to the problem.

    Args:
        problem: The problem, traced for derivatives or not.
        fit: A fit of it whose own derivatives, if any, are to be forgotten.

    Returns:
        A fit of equal values. The relative gap, status and counters have no derivative.
    """
    fit = lax.stop_gradient(fit)
    values, status = values_of(fit), fit.status.code
    primal, dual = (_optimal_value(problem, values, status, side) for side in fit.certificate[:2])
    return Fit(
        **_differentiable(problem, values, status)._asdict(),
        certificate=fit.certificate._replace(primal=primal, dual=dual),
        status=fit.status,
        counters=fit.counters,
    )


def optimal_value(problem: Problem, fit: Fit) -> Float[Array, ""]:
    """The dual objective of a fit, with the derivatives of the optimal value: no system for the first of them."""
    fit = lax.stop_gradient(fit)
    return _optimal_value(problem, values_of(fit), fit.status.code, fit.certificate.dual)


def solution_on(
    problem: Differentiable, active: Active, returned: Array | None = None, *, sizes: tuple[int, ...], method: str
) -> Values:
    """`problem.solution_on`, computed in twice the precision and rounded; its derivatives too.

    Args:
        problem: The problem.
        active: The sets.
        returned: The `dual_coef` that a caller has of it; None: what is returned here.
        sizes: As `plan` has it.
        method: As `plan` has it.
    """
    return in_double(partial(_solution_on, sizes=sizes, method=method))(problem, active, returned)


@partial(jax.jit, static_argnames=("sizes", "method"))
def _solution_on(
    problem: Differentiable, active: Active, returned: Array | None, *, sizes: tuple[int, ...], method: str
) -> Values:
    wide, dtype = _wide(problem), problem.dtype
    found = wide.solution_on(active, sizes, method)
    if wide.dtype != dtype:
        coefficients = found.dual_coef
        returned = (rounded(coefficients, dtype) if returned is None else returned).astype(wide.dtype)
        found = found._replace(dual_coef=summable(coefficients, wide.gram.feature_rows, returned, dtype))
    return cast(found, dtype)


def settled(problem: Differentiable, active: Active) -> tuple[Active, Bool[Array, ""]]:
    """Sets whose solution stands on them, found from those of an inexact one, and whether there are any.

    Each solution tells who leaves. Where that goes round in a circle, as the many sets of a fit whose kernel has few
    features may, the problem is solved anew, to the floor of float64.
    """
    problem = lax.stop_gradient(problem)
    may_solve = problem.bounded and affordable(problem)
    active, found = in_double(partial(_settled, anew=may_solve and not is_concrete(problem, active)))(problem, active)
    if may_solve and is_concrete(found) and not bool(found):  # a program that most fits do not need
        return in_double(partial(_settled, anew=True))(problem, active)
    return active, found


@partial(jax.jit, static_argnames="anew")
def _settled(problem: Differentiable, active: Active, *, anew: bool) -> tuple[Active, Bool[Array, ""]]:
    wide = _wide(problem)
    sizes, method = plan(wide, active.free)  # traced: whatever the sets become

    def going(carry: tuple[Array, Active, Array]) -> Array:
        return (carry[0] < SETTLING * (1 + anew)) & carry[2]

    def solve_anew(_: Active) -> Active:
        a = interior_point.solved(typing.cast(BoxForm, wide), FLOOR)
        margins = wide.margins(a, wide.matvec(a))
        zero = jnp.zeros((), a.dtype)
        return wide.active_set(Values(a, wide.y * a, zero, zero, margins))

    def correct(carry: tuple[Array, Active, Array]) -> tuple[Array, Active, Array]:
        turn, active, _ = carry
        if anew:
            active = once(turn == SETTLING, solve_anew, active)
        there = wide.solution_on(active, sizes, method)
        new = wide.active_set(there, active)
        moved = some((new.free != active.free) | (new.bound != active.bound) | ~jnp.isfinite(there.margins))
        return turn + jnp.ones((), jnp.int32), new, moved

    start = (jnp.zeros((), jnp.int32), cast(active, wide.dtype), jnp.ones((), bool))
    _, found, moving = while_loop(going, correct, start)
    return like(found, active), ~moving


@jax.custom_jvp
def _differentiable(problem: Problem, values: Values, status: Array) -> Values:
    """The values; what `problem` is here for is the rule below."""
    del problem, status
    return values


@_differentiable.defjvp
def _move(primals: Any, tangents: Any) -> tuple[Values, Values]:
    """Tangents of the exact solution on the support of the values."""
    (problem, values, status), (dproblem, _, _) = primals, tangents
    problem = require_differentiable(problem)
    active, found = settled(problem, problem.active_set(values))
    sizes, method = plan(problem, active.free)
    solve = partial(solution_on, active=active, returned=values.dual_coef, sizes=sizes, method=method)
    moved = _push(solve, problem, dproblem)
    # At the next order the values move too: they are taken from the function whose rule this is.
    moved = jax.tree.map(partial(_answered, status, found), moved)
    coefficients = _answered(status, ~unsummable(problem, values.dual_coef), moved.dual_coef)
    return _differentiable(problem, values, status), moved._replace(dual_coef=coefficients)


@jax.custom_jvp
def _optimal_value(problem: Problem, values: Values, status: Array, value: Array) -> Array:
    """The value; what all else is here for is the rule below."""
    del problem, values, status
    return value


@_optimal_value.defjvp
def _envelope(primals: Any, tangents: Any) -> tuple[Array, Array]:
    """That of the Lagrangian: that the solution moves as well changes nothing at an optimum; at the next order it does.

    Rounded coefficients are not where that holds: of a narrow dtype the solution is taken from its system.
    """
    (problem, values, status, value), (dproblem, *_) = primals, tangents
    problem = require_differentiable(problem)
    found = jnp.asarray(True)
    if jnp.finfo(problem.dtype).bits < 64:
        active, found = settled(problem, problem.active_set(values))
        sizes, method = plan(problem, active.free)
        of = in_double(partial(_lagrangian_on, sizes=sizes, method=method))
        moved = _push(lambda moving: of(moving, problem, active), problem, dproblem)
    else:
        here = _differentiable(problem, values, status)
        moved = _push(lambda problem: problem.lagrangian(here), problem, dproblem)
    return _optimal_value(problem, values, status, value), _answered(status, found, moved)


@partial(jax.jit, static_argnames=("sizes", "method"))
def _lagrangian_on(
    problem: Differentiable, solved: Any, active: Active, *, sizes: tuple[int, ...], method: str
) -> Array:
    values = _wide(solved).solution_on(active, sizes, method)
    return _wide(problem).lagrangian(values).astype(problem.dtype)


def _wide(problem: Differentiable) -> Any:
    """The problem in twice the precision; its features too, each use of which would round its part of a cotangent."""
    if jnp.finfo(problem.dtype).bits >= 64:
        return problem
    wide = widened(problem)
    if wide.gram.feature_rows is None and not wide.gram.kernel.linear:
        return wide
    return dataclasses.replace(wide, gram=cast(wide.gram, wide.dtype))


def _answered(status: Array, found: Array, tangent: Array) -> Array:
    """A tangent, or NaN where the fit holds no solution that could move, or not the sets that it moves on."""
    failed = (status == Status.NOT_FINITE) | (status == Status.INFEASIBLE) | (status == Status.NOT_PSD) | ~found
    return tangent * jnp.where(failed, jnp.nan, 1)  # a product, so that NaN goes backward as well


def _push(function: Any, problem: Differentiable, dproblem: Any) -> Any:
    """The tangent of `function(problem)` in the direction `dproblem`."""
    return jax.jvp(function, (problem,), (dproblem,))[1]
