"""Solve the linear system on a support, which gives the solution and its derivatives.

Conjugate gradients solve it with one of three preconditioners: a Cholesky factor of the support's matrix (stored Gram,
at most 4,096 samples; the iterations are then iterative refinement); Woodbury's formula for a low-rank Gram; otherwise
the same formula with Nystroem features and the rest of the diagonal, in O(n tile) memory. A system that cannot be
solved gives NaN, never a wrong derivative.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxsvm.errors import is_concrete
from jaxsvm.numerics import masks
from jaxsvm.numerics.linear import nystroem
from jaxsvm.numerics.linear.conjugate_gradients import Apply
from jaxsvm.numerics.linear.elimination import LAPACK_SIZE, Factor, identity, padded_factor, semifactored
from jaxsvm.numerics.measured import MEASURED
from jaxsvm.numerics.products import diagonal, plus_diagonal
from jaxsvm.numerics.sizes import in_smallest, size_classes, sizes_of_factors
from jaxsvm.runtime.loops import while_loop

if TYPE_CHECKING:
    from jaxsvm.problems.contract import Differentiable


def plan(problem: "Differentiable", support: Any) -> tuple[tuple[int, ...], str]:
    """Choose how to solve the system: sizes of a factor, and "cholesky", "features" or "nystroem"."""
    # Without a ridge the matrix may be nearly singular, and conjugate gradients alone fail.
    if not problem.bounded:
        if problem.gram.rank is not None:
            return (), "features"
        if not problem.gram.may_store:  # a factor would break the promise of O(n tile) memory
            return (), "nystroem"
    sizes = factor_sizes(problem.n, support)
    return (sizes, "cholesky") if 8 * sizes[-1] ** 2 <= MEASURED.bytes_held else ((), "nystroem")


def factor_sizes(n: int, support: Any) -> tuple[int, ...]:
    """Return size classes up to n; only the one that holds the support if that is concrete."""
    if not is_concrete(support):
        return sizes_of_factors(n)
    count = int(support.sum())
    return (next(size for size in size_classes(n) if count <= size),)


def solver(
    problem: "Differentiable",
    support: Bool[Array, " n"],
    sizes: tuple[int, ...],
    method: str,
    u: Float[Array, " n"] | None = None,
) -> tuple[Bool[Array, " n"], Apply]:
    """Return a solver of `(Kt + u u')_SS x_S = b_S` for the samples S of a support that the others do not explain.

    Args:
        problem: The problem.
        support: The samples of the support, `(n,)`.
        sizes: From `plan`.
        method: From `plan`.
        u: A vector, `(n,)`, or None for 0.

    Returns:
        S, `(n,)`: the whole support unless the matrix is singular; and `b -> x`, with `x = b` off S, differentiable in
        b and in the problem, not in u.
    """
    y, ridge = lax.stop_gradient(problem.y), problem.ridge
    u = jnp.zeros_like(y) if u is None else jnp.where(support, lax.stop_gradient(u), 0)
    constant = lax.stop_gradient(problem)
    if method == "cholesky":
        support, precondition = _factor(constant, support, sizes, u)
        u = jnp.where(support, u, 0)
    else:
        precondition = _woodbury(constant, support, method == "features", u)

    def matvec(v: Array) -> Array:
        inside = problem.signed.matvec(jnp.where(support, v, 0)) + ridge * v + u * (u @ v)
        return jnp.where(support, inside, v)

    def product(v: Array) -> Array:  # the same at the cost of the support; never differentiated
        inside = constant.signed.support_matvec(jnp.where(support, v, 0)) + lax.stop_gradient(ridge) * v
        return jnp.where(support, inside + u * (u @ v), v)

    steps = 1000 if method == "nystroem" else 6  # the other preconditioners are inverses up to rounding

    def solve(_: Any, b: Array) -> Array:
        return _solved(product, precondition, b, steps)

    return support, lambda b: lax.custom_linear_solve(matvec, b, solve, symmetric=True)


class _Solving(NamedTuple):
    """State of conjugate gradients: solution, residual, next direction, and `energy = r' P^-1 r`, now and at first.

    `checks`: whether the next turn recomputes the residual from scratch; `ended`: whether the last one did.
    """

    turns: Int[Array, ""]
    x: Float[Array, " n"]
    r: Float[Array, " n"]
    p: Float[Array, " n"]
    energy: Float[Array, ""]
    first: Float[Array, ""]
    checks: Bool[Array, ""]
    ended: Bool[Array, ""]


def _solved(product: Apply, precondition: Apply, b: Float[Array, " n"], steps: int) -> Float[Array, " n"]:
    """Solve by conjugate gradients to the precision of the dtype; return NaN if a thousandth of the digits is missing.

    The first turn has no direction yet, and the last one uses its product for the solution's residual. So the program
    has one product and one preconditioner.
    """
    eps = jnp.finfo(b.dtype).eps

    def turn(at: _Solving) -> _Solving:
        Av = product(jnp.where(at.checks, at.x, at.p))
        curvature = at.p @ Av
        moves = ~at.checks & ~(curvature <= 0)  # a NaN is to show
        t = jnp.where(moves, at.energy / jnp.where(moves, curvature, 1), 0)
        x, r = at.x + t * at.p, jnp.where(at.checks, b - Av, at.r - t * Av)
        q = precondition(r)
        energy, begins = r @ q, at.turns == 0
        first = jnp.where(begins, energy, at.first)
        p = q + jnp.where(begins, 0, energy / jnp.where(at.energy > 0, at.energy, 1)) * at.p
        enough = (at.turns >= steps) | ~(energy > (16 * eps) ** 2 * first)
        return _Solving(at.turns + 1, x, r, p, energy, first, enough & ~at.checks, at.checks)

    zero, no = jnp.zeros((), b.dtype), jnp.asarray(False)
    nothing = jnp.zeros_like(b)
    start = _Solving(jnp.zeros((), jnp.int32), nothing, b, nothing, zero, zero, no, no)
    end = while_loop(lambda at: ~at.ended, turn, start)
    solved = end.energy <= eps**0.8 * end.first  # squared: 3e-7 of b in float64, 2e-3 in float32
    return jnp.where(solved | (end.first == 0), end.x, jnp.nan)


def _factor(
    problem: "Differentiable", support: Bool[Array, " n"], sizes: tuple[int, ...], u: Float[Array, " n"]
) -> tuple[Bool[Array, " n"], Apply]:
    """Return the samples that others do not explain, and solves with a Cholesky factor of `(Kt + u u')_SS`."""
    largest, count = sizes[-1], masks.count(support)
    index = masks.places_first(support)[:largest]
    valid = jnp.arange(largest, dtype=count.dtype) < count

    def factor(size: int, whole: Factor) -> Factor:
        at, ridge = index[:size], problem.ridge[index[:size]]
        values = problem.gram.block(at, at).astype(problem.dtype) + problem.offset
        values = jnp.outer(problem.y[at], problem.y[at]) * values + jnp.outer(u[at], u[at])
        values = plus_diagonal(values, ridge)
        if problem.bounded and size < LAPACK_SIZE:  # there is no ridge
            values = jnp.where(valid[:size, None] & valid[None, :size], values, 0)
            # A sample of which the others leave less than this is explained by them.
            return semifactored(values, 1e-11 * diagonal(values).max()).within(whole)
        return padded_factor(values, valid[:size]).within(whole)

    factored = in_smallest(sizes, count, factor, identity(largest, problem.dtype))
    known = valid & ~(diagonal(factored.L)[:largest] == 0)  # NaN must propagate
    support = jnp.zeros_like(support).at[index].max(known)

    def precondition(r: Array) -> Array:
        solved = factored.solve(jnp.where(known, r[index], 0))
        return jnp.where(support, jnp.zeros_like(r).at[index].add(jnp.where(known, solved, 0)), r)

    return support, precondition


def _woodbury(problem: "Differentiable", support: Bool[Array, " n"], exact: bool, u: Float[Array, " n"]) -> Apply:
    """Return `(D + F F')^-1` on S, for features F of `Kt` and the rest D of its diagonal; the identity off S."""
    if exact:
        F, rest = problem.gram.design.astype(problem.dtype), 0
    else:
        landmarks = nystroem.evenly_among(support, MEASURED.landmarks)
        F = nystroem.features(problem.gram.rows(landmarks).astype(problem.dtype), landmarks)
        rest = nystroem.unexplained(problem.gram.diag(), F)
    constant = jnp.full((problem.n, 1), problem.offset**0.5, F.dtype)
    F = jnp.where(support, problem.y, 0)[:, None] * jnp.concatenate([F, constant], axis=1)
    F = jnp.concatenate([F, u[:, None]], axis=1)
    return nystroem.woodbury(F, jnp.where(support, problem.ridge + rest, 1))
