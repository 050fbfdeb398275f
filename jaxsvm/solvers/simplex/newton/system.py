"""Solve the system on the support, `(B_SS + diag(1 / C_S)) beta_S = 1`.

With a free bias it is bordered by `y_S . beta_S = 0`. It is factored by Cholesky, at the smallest power of two that
holds the support; or solved by conjugate gradients on the scaled system `I + C^1/2 B C^1/2` with a Nystroem
preconditioner (Frangella, Tropp, Udell 2023), with a product with the kernel matrix in each iteration; under `vmap` the
products of all lanes are a single matrix product.
"""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxsvm.numerics import masks
from jaxsvm.numerics.linear import nystroem
from jaxsvm.numerics.linear.conjugate_gradients import Apply, Iterate, conjugate_gradients
from jaxsvm.numerics.linear.elimination import padded_factor
from jaxsvm.numerics.masks import every
from jaxsvm.numerics.measured import MEASURED as SIZES
from jaxsvm.numerics.products import matmul
from jaxsvm.numerics.sizes import in_smallest, sizes_of_factors
from jaxsvm.problems.squared_hinge import SquaredHingeProblem
from jaxsvm.runtime.loops import fori_loop, once
from jaxsvm.solvers.measured import MEASURED


def solve_support(
    problem: SquaredHingeProblem, active: Array, guess: Array, gap: Array, method: str, factor_limit: int
) -> tuple[Array, Array, Array, Array]:
    """Solve for the Newton point of an active set.

    Args:
        problem: The problem.
        active: The active set S, `(n,)`.
        guess: Coefficients at which conjugate gradients start, `(n,)`.
        gap: Current relative gap: the smaller, the more exact are conjugate gradients.
        method: "auto", "cholesky" or "cg"; static.
        factor_limit: Largest support that "auto" factors; static.

    Returns:
        `beta (n,)`, zero off S; the free bias (0 without); whether the matrix was positive definite; whether its
        entries were finite.
    """
    n, count = problem.n, masks.count(active)
    yes = jnp.asarray(True)
    solution = (jnp.zeros((n,), problem.dtype), jnp.zeros((), problem.dtype), yes, yes)
    if method == "cg":
        return _conjugate_gradients(problem, active, guess, gap)
    sizes = sizes_of_factors(n if method == "cholesky" else min(n, factor_limit))
    iterate = count > sizes[-1]
    if method == "auto" and n > factor_limit:  # a smaller system is always factored
        # Steps to about ten digits without a preconditioner, by a bound of the condition number.
        steps = 12 * jnp.sqrt(1 + problem.costs.max() * problem.diagonal.max() * count)
        iterate = iterate | (steps * MEASURED.columns_per_product < count)
    solution = in_smallest(sizes, count, lambda size, _: _factor(problem, active, size), solution, ~iterate)
    if sizes[-1] < n:
        solution = once(iterate, lambda _: _conjugate_gradients(problem, active, guess, gap), solution)
    return solution


def solve_small_support(
    problem: SquaredHingeProblem, active: Bool[Array, " n"], beta: Float[Array, " n"]
) -> Float[Array, " n"]:
    """Return the Newton point of an active set of the smallest size, if it is feasible; else `beta`."""
    size = sizes_of_factors(problem.n)[0]
    otherwise = (beta, jnp.zeros((), beta.dtype), jnp.asarray(True), jnp.asarray(True))
    fits = masks.count(active) <= size
    solution, _, healthy, _ = once(fits, lambda _: _factor(problem, active, size), otherwise)
    return jnp.where(healthy & every(solution >= 0), solution, beta)


def _factor(problem: SquaredHingeProblem, active: Bool[Array, " n"], size: int) -> tuple[Array, Array, Array, Array]:
    """Solve by Cholesky in `size` (static) places, with a step of refinement."""
    index = masks.places_first(active)[:size]
    valid = jnp.arange(size, dtype=jnp.int32) < masks.count(active)
    block = jnp.where(valid[:, None] & valid[None, :], problem.block(index, index), 0)
    factor = padded_factor(block, valid)
    rhs = valid.astype(block.dtype)[:, None]
    if problem.free_bias:
        rhs = jnp.concatenate([rhs, jnp.where(valid, problem.y[index], 0)[:, None]], axis=1)

    def refine(_: Any, solution: Array) -> Array:
        return solution + factor.solve(rhs - matmul(block, solution))

    solution = fori_loop(0, 2, refine, jnp.zeros_like(rhs))
    beta, bias = _border(problem, solution, rhs)
    healthy = every(jnp.isfinite(solution))
    whole = jnp.zeros((problem.n,), beta.dtype).at[index].add(jnp.where(valid, beta, 0))
    return whole, bias, healthy, every(jnp.isfinite(block))


def _border(problem: SquaredHingeProblem, solution: Array, rhs: Array) -> tuple[Array, Array]:
    """Return `beta` and bias of the bordered system, from solutions for 1 and for y."""
    if not problem.free_bias:
        return solution[:, 0], jnp.zeros((), solution.dtype)
    signs = rhs[:, 1]
    below = signs @ solution[:, 1]
    bias = jnp.where(below > 0, (signs @ solution[:, 0]) / jnp.where(below > 0, below, 1), 0)
    return solution[:, 0] - bias * solution[:, 1], bias


def _conjugate_gradients(
    problem: SquaredHingeProblem, active: Bool[Array, " n"], guess: Float[Array, " n"], gap: Float[Array, ""]
) -> tuple[Array, Array, Array, Array]:
    """Solve the Newton system by preconditioned conjugate gradients on `z = C^-1/2 beta`, from `guess`."""
    root = jnp.where(active, jnp.sqrt(problem.costs), 0)
    signs = root * problem.y

    def apply(z: Array) -> Array:
        return z + root * problem.signed.support_matvec(root * z)

    precondition = _preconditioner(problem, active, root)
    # The dual point is off by C times the residual, relative to z and not to the right-hand side; and the gap is about
    # the condition number times the square of that.
    tol = jnp.clip(1e-5 * jnp.sqrt(gap), max(1e-12, 4 * float(jnp.finfo(root.dtype).eps)), 1e-7)
    start = jnp.where(active, guess, 0) / jnp.where(root > 0, root, 1)

    def unfinished(at: Iterate) -> Array:
        return (at.r @ at.r > tol**2 * (at.x @ at.x)) & at.definite

    def solve(rhs: Array, z: Array) -> tuple[Array, Array]:
        solution = conjugate_gradients(
            apply, precondition, z, rhs - apply(z), MEASURED.conjugate_gradient_steps, unfinished
        )
        return solution.x, solution.definite

    ones, definite = solve(root, start)
    solution, rhs = ones[:, None], root[:, None]
    if problem.free_bias:
        constant, also = solve(signs, jnp.zeros_like(root))
        solution, rhs = jnp.stack([ones, constant], axis=1), jnp.stack([root, signs], axis=1)
        definite = definite & also
    z, bias = _border(problem, solution, rhs)
    beta = root * z
    return beta, bias, definite, every(jnp.isfinite(beta))


def _preconditioner(problem: SquaredHingeProblem, active: Bool[Array, " n"], root: Float[Array, " n"]) -> Apply:
    """Approximate the inverse of `I + C^1/2 B_SS C^1/2`, from evenly spaced samples of the support."""
    landmarks = nystroem.evenly_among(active, SIZES.landmarks)
    rows = problem.gram.rows(landmarks).astype(root.dtype) + problem.offset
    return nystroem.deflation((root * problem.y)[:, None] * nystroem.features(rows, landmarks))
