"""Differentiate a solution with respect to its problem: the implicit function theorem on the support, to every order.

On a support that does not change, the coefficients solve a linear system, which is differentiated as such
(`lax.custom_linear_solve`: Gould et al. 2016). Each problem defines its system and its support
(`jaxsvm.problems.contract.Differentiable`). `differentiable` attaches the derivatives of that solution to the values of
a fit; they cost nothing unless they are used. The optimal value needs no system at the first order: by the envelope
theorem its derivative is that of the Lagrangian at a fixed solution.

At large C the systems and their results cancel digits. So everything is computed in twice the precision and only
tangents are rounded, and the support that a fit of finite precision shows is corrected by the solution on it until both
agree. If they never do, if a fit has no solution, or if a system cannot be solved
(`jaxsvm.derivatives.support_equations`), derivatives are NaN, never silently wrong.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Bool, Float, Int

from jaxsvm.derivatives.support_equations import Inside, Shift, Solved, exact, plan, solved, summable, unsummable
from jaxsvm.numerics.precision import bits_of, cast, in_double, like, of_bits, rounded, widened
from jaxsvm.problems.contract import Differentiable, Problem, require_differentiable
from jaxsvm.results.fit import Active, Fit, Status, Values, values_of
from jaxsvm.runtime.arrays import promoting, tangent_of
from jaxsvm.runtime.loops import in_groups, while_loop
from jaxsvm.runtime.programs import Program
from jaxsvm.solvers.box.interior_point import affordable


def differentiable(problem: Problem, fit: Fit) -> Fit:
    """Attach the derivatives of the solution with respect to the problem to a fit; those that it has are dropped.

    Its values stay. The relative gap, status and counters have no derivative.
    """
    fit = lax.stop_gradient(fit)
    values, status = values_of(fit), fit.status.code
    primal, dual = _optimal_value(problem, values, status, fit.certificate[:2])
    certificate = fit.certificate._replace(primal=primal, dual=dual)
    return Fit(*_differentiable(problem, values, status), certificate, fit.status, fit.counters)


def optimal_value(problem: Problem, fit: Fit) -> Float[Array, ""]:
    """Return the dual objective of a fit with the derivatives of the optimal value; the first one needs no system."""
    fit = lax.stop_gradient(fit)
    return _optimal_value(problem, values_of(fit), fit.status.code, fit.certificate.dual)


def solution_on(problem: Differentiable, active: Active, *, sizes: tuple[int, ...], method: str) -> Values:
    """Compute the solution on active sets in twice the precision, with its derivatives, and round both.

    The sizes of the factor and the method are those of `plan`.
    """
    bits = in_double(partial(_solved_on, sizes=sizes, method=method))(lax.stop_gradient(problem), active)
    return in_double(_values_of)(problem, active, bits, None)


@Program.full(static=("sizes", "method"))
def _solved_on(problem: Differentiable, active: Active, *, sizes: tuple[int, ...], method: str) -> Solved:
    wide = _wide(problem)
    return bits_of(solved(wide, cast(active, wide.dtype), sizes, method))


@Program.full()
def _values_of(problem: Differentiable, active: Active, bits: Solved, returned: Array | None) -> Values:
    """Return the values of a solution; `returned`: the `dual_coef` that the caller has, None: those of the result."""
    wide, dtype = _wide(problem), problem.dtype
    values = wide.values_at(exact(wide, active, *of_bits(bits)))
    if wide.dtype != dtype:
        coefficients = values.dual_coef
        returned = (rounded(coefficients, dtype) if returned is None else returned).astype(wide.dtype)
        values = values._replace(dual_coef=summable(coefficients, wide.gram.feature_rows, returned, dtype))
    return cast(values, dtype)


def settled(problem: Differentiable, active: Active) -> tuple[Active, Solved, Bool[Array, ""]]:
    """Iterate the active sets until they agree with the solution on them, which shows the samples that leave their set.

    If that circles, as it may with a kernel of few features, interior points follow (`Inside`), and
    the sets that they end with. Return the sets, the bits of their equations and solution, and whether they agree.
    """
    # One by one: side by side each lane of a `vmap` repeats what the last one needs. The gradient of 64 lanes of 100 x
    # 10 takes 126 ms, in groups of 8 649, all together 1,280.
    return in_groups(1, in_double(_settled), lax.stop_gradient(problem), active)


class _Settling(NamedTuple):
    """State of the iteration: turns, an interior point, the sets, the solution on those before, whether they differ."""

    turn: Int[Array, ""]
    inside: Any
    active: Active
    solved: Solved
    moved: Bool[Array, ""]


@Program.full()
def _settled(problem: Differentiable, active: Active) -> tuple[Active, Solved, Bool[Array, ""]]:
    wide = _wide(problem)
    sizes, method = plan(wide, active.free)  # traced: whatever the sets become
    most = 16  # systems; most fits need one, which confirms their sets
    inner = 60 if problem.bounded and affordable(problem) else 0  # systems of interior points; 25 to 35 are usual

    def correct(at: _Settling) -> _Settling:
        active, shift, x = at.active, None, at.inside
        inside = (at.turn >= most) & (at.turn < most + inner)
        chosen = partial(jax.tree.map, partial(jnp.where, inside))
        if x is not None:
            active, shift = chosen(x.equations(wide), (active, Shift(*[jnp.zeros_like(wide.y)] * 3)))
        solution = solved(wide, active, sizes, method, shift)
        values = wide.values_at(solution.point)
        new = wide.active_set(values, active)
        moved = ((new.free != active.free) | (new.bound != active.bound) | ~jnp.isfinite(values.margins)).any()
        turn = at.turn + jnp.ones((), jnp.int32)
        if x is not None:
            x, ended = x.moved(wide, solution.point, inside)
            new, moved = chosen(x.sets(wide), new), moved | inside
            turn = jnp.where(inside & ended, most + inner, turn)
        return _Settling(turn, x, new, solution, moved)

    begun = cast(active, wide.dtype)
    shapes = jax.eval_shape(lambda: solved(wide, begun, sizes, method))
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    x = Inside.first(wide) if inner else None
    start = _Settling(jnp.zeros((), jnp.int32), x, begun, nothing, jnp.ones((), bool))
    end = while_loop(lambda at: (at.turn < most + inner + (most if inner else 0)) & at.moved, correct, start)
    return like(end.active, active), bits_of(end.solved), ~end.moved


@jax.custom_jvp
def _differentiable(problem: Problem, values: Values, status: Array) -> Values:
    """Return the values; the rule below uses the rest."""
    del problem, status
    return values


@partial(_differentiable.defjvp, symbolic_zeros=True)
@promoting()
def _move(primals: Any, tangents: Any) -> tuple[Values, Values]:
    """Return the values and the tangents of the exact solution on their support."""
    (problem, values, status), (dproblem, _, _) = primals, tangents
    problem = require_differentiable(problem)
    active, bits, agree = settled(problem, problem.active_set(values))
    of = in_double(_values_of)
    push = partial(tangent_of, lambda problem: of(problem, active, bits, values.dual_coef), (problem,))
    # At the next order the values move too: they come from the function whose rule this is.
    moved = _or_nan(_failed(status, agree), push, (dproblem,))
    coefficients = _or_nan(unsummable(problem, values.dual_coef), lambda part: part, moved.dual_coef)
    return _differentiable(problem, values, status), moved._replace(dual_coef=coefficients)


@jax.custom_jvp
def _optimal_value(problem: Problem, values: Values, status: Array, bounds: Any) -> Any:
    del problem, values, status
    return bounds


@partial(_optimal_value.defjvp, symbolic_zeros=True)
@promoting()
def _envelope(primals: Any, tangents: Any) -> tuple[Any, Any]:
    """Return the bounds, and the tangent of the Lagrangian: to first order the motion of the solution adds nothing.

    At the next order it does. Rounded coefficients are no optimum, so for a narrow dtype the solution of the system
    replaces them.
    """
    (problem, values, status, bounds), (dproblem, *_) = primals, tangents
    problem = require_differentiable(problem)
    agree = jnp.asarray(True)
    if jnp.finfo(problem.dtype).bits < 64:
        active, bits, agree = settled(problem, problem.active_set(values))
        of = in_double(_lagrangian_of)
        push = partial(tangent_of, lambda moving: of(moving, problem, active, bits), (problem,))
    else:
        solution = _differentiable(problem, values, status)
        push = partial(tangent_of, lambda moving: moving.lagrangian(solution, problem.targets), (problem,))
    moved = _or_nan(_failed(status, agree), push, (dproblem,))
    return _optimal_value(problem, values, status, bounds), jax.tree.map(lambda _: moved, bounds)


@Program.full()
def _lagrangian_of(problem: Differentiable, fixed: Any, active: Active, bits: Solved) -> Array:
    """Return the Lagrangian of a problem at the solution of `fixed`, which moves at the next order."""
    at = _wide(fixed)
    solution = at.values_at(exact(at, active, *of_bits(bits)))
    return _wide(problem).lagrangian(solution, at.targets).astype(problem.dtype)


def _wide(problem: Differentiable) -> Any:
    """Widen a problem to twice the precision, with its features: each use of narrow ones would round a cotangent."""
    if jnp.finfo(problem.dtype).bits >= 64:
        return problem
    wide = widened(problem)
    if wide.gram.feature_rows is None and not wide.gram.kernel.linear:
        return wide
    return dataclasses.replace(wide, gram=cast(wide.gram, wide.dtype))


def _failed(status: Array, agree: Array) -> Array:
    return (status == Status.NOT_FINITE) | (status == Status.INFEASIBLE) | (status == Status.NOT_PSD) | ~agree


def _or_nan(failed: Array, push: Callable[[Any], Any], tangents: Any) -> Any:
    """Return `push(tangents)` of a linear function, or NaN if the fit has failed; backward, NaN or 0.

    Backward, a failed fit whose cotangents are all 0 (its caller has masked it) must give 0, and what the function
    itself makes of them may be NaN. So both ends of it are linear solves with an identity, which let a transposed
    solve be stated: at the result cotangents become 0, and a flag says whether they were; at the other end the flag
    replaces what comes back. Each array has a solve of its own, so that what does not move, or is not asked for, costs
    nothing; the flag is one more number of it, since JAX has no derivative of a solve of which only a part moves.
    """
    flags, solve = [], partial(lax.custom_linear_solve, lambda known: known)

    def enter(leaf: Any) -> Any:
        if isinstance(leaf, SymbolicZero):
            return leaf
        moving = solve(jnp.append(leaf, 0), lambda _, known: known, entered)
        flags.append(moving[-1])
        return moving[:-1].reshape(jnp.shape(leaf))

    def entered(_: Any, known: Array) -> Array:
        return jnp.append(jnp.where(failed, known[-1], known[:-1]), 0)

    def leave(part: Array) -> Array:
        given = jnp.append(part, jnp.asarray(sum(flags), part.dtype))
        return solve(given, lambda _, v: jnp.where(failed, jnp.nan, v), masked)[:-1].reshape(part.shape)

    def masked(_: Any, known: Array) -> Array:
        asked = jnp.where((known != 0).any(), jnp.asarray(jnp.nan, known.dtype), 0)
        return jnp.append(jnp.where(failed, 0, known[:-1]), asked)

    return jax.tree.map(leave, push(jax.tree.map(enter, tangents)))
