"""The system on the support, `(B_SS + diag(1 / C_S)) beta_S = 1`, bordered by `y_S . beta_S = 0` with a free bias.

By Cholesky, in the smallest bucket of a power of two that holds the support; or by conjugate gradients on the scaled
system `I + C^1/2 B C^1/2` with a Nystroem preconditioner (Frangella, Tropp, Udell 2023), a product with the kernel
matrix an iteration; under `vmap` the products of all lanes are one matrix product.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from jaxsvm.numerics import masks
from jaxsvm.numerics.linear import nystroem
from jaxsvm.numerics.linear.conjugate_gradients import Apply, Iterate, conjugate_gradients
from jaxsvm.numerics.linear.elimination import padded_factor
from jaxsvm.numerics.masks import every
from jaxsvm.numerics.sizes import in_smallest, size_classes
from jaxsvm.problems.squared_hinge import SquaredHingeProblem
from jaxsvm.runtime.once import once

LANDMARKS = 128
"""Samples of the support that the preconditioner is made of."""
CG_STEPS = 500
ROWS_A_STEP = 128
"""A step of conjugate gradients on a system of m costs about as much as this many of the m columns of its factor: a
product is bound by memory, a factor is not."""


def solve_support(
    problem: SquaredHingeProblem,
    active: Bool[Array, " n"],
    guess: Float[Array, " n"],
    gap: Float[Array, ""],
    method: str,
    factor_limit: int,
) -> tuple[Float[Array, " n"], Float[Array, ""], Bool[Array, ""], Bool[Array, ""]]:
    """The Newton point of an active set.

    Args:
        problem: The problem.
        active: The active set S, `(n,)`.
        guess: Coefficients that conjugate gradients start from, `(n,)`.
        gap: The relative gap now: conjugate gradients solve as well as it deserves.
        method: "auto", "cholesky" or "cg"; static.
        factor_limit: The largest support that "auto" factors; static.

    Returns:
        `beta (n,)`, zero off S; the free bias (0 without); whether the matrix was positive definite; whether its
        entries were finite.
    """
    n, count = problem.n, masks.count(active)
    yes = jnp.asarray(True)
    found = (jnp.zeros((n,), problem.dtype), jnp.zeros((), problem.dtype), yes, yes)
    if method == "cg":
        return _conjugate_gradients(problem, active, guess, gap)
    sizes = size_classes(n if method == "cholesky" else min(n, factor_limit))
    iterate = count > sizes[-1]
    if method == "auto" and n > factor_limit:  # smaller systems are factored sooner than their condition is known
        iterate = iterate | (_steps_expected(problem, count) * ROWS_A_STEP < count)
    found = in_smallest(sizes, count, lambda size, _: _factor(problem, active, size), found, ~iterate)
    if sizes[-1] < n:
        found = once(iterate, lambda _: _conjugate_gradients(problem, active, guess, gap), found)
    return found


def solve_small_support(
    problem: SquaredHingeProblem, active: Bool[Array, " n"], beta: Float[Array, " n"]
) -> Float[Array, " n"]:
    """The Newton point of an active set of at most 256 samples, where it is feasible; else `beta`."""
    size = size_classes(problem.n)[0]
    otherwise = (beta, jnp.zeros((), beta.dtype), jnp.asarray(True), jnp.asarray(True))
    here = masks.count(active) <= size
    found, _, healthy, _ = once(here, lambda _: _factor(problem, active, size), otherwise)
    return jnp.where(healthy & every(found >= 0), found, beta)


def _steps_expected(problem: SquaredHingeProblem, count: Array) -> Array:
    """Conjugate gradient steps to about ten digits without a preconditioner, from a bound of the condition number."""
    condition = 1 + problem.costs.max() * problem.diagonal.max() * count
    return 12 * jnp.sqrt(condition)


def _factor(problem: SquaredHingeProblem, active: Bool[Array, " n"], size: int) -> tuple[Array, Array, Array, Array]:
    """By Cholesky, with one step of refinement; `size` (static) places."""
    index = jnp.nonzero(active, size=size, fill_value=0)[0]
    valid = jnp.arange(size, dtype=jnp.int32) < masks.count(active)
    block = jnp.where(valid[:, None] & valid[None, :], problem.block(index, index), 0)
    factor = padded_factor(block, valid)
    rhs = valid.astype(block.dtype)[:, None]
    if problem.free_bias:
        rhs = jnp.concatenate([rhs, jnp.where(valid, problem.y[index], 0)[:, None]], axis=1)
    found = factor.solve(rhs)
    residual = rhs - jnp.matmul(block, found, precision=lax.Precision.HIGHEST)
    found = found + factor.solve(residual)
    beta, bias = _border(problem, found, rhs)
    healthy = every(jnp.isfinite(found))
    whole = jnp.zeros((problem.n,), beta.dtype).at[index].add(jnp.where(valid, beta, 0))
    return whole, bias, healthy, every(jnp.isfinite(block))


def _border(problem: SquaredHingeProblem, found: Array, rhs: Array) -> tuple[Array, Array]:
    """`beta` and bias of the bordered system, from solutions for 1 and for y."""
    if not problem.free_bias:
        return found[:, 0], jnp.zeros((), found.dtype)
    signs = rhs[:, 1]
    below = signs @ found[:, 1]
    bias = jnp.where(below > 0, (signs @ found[:, 0]) / jnp.where(below > 0, below, 1), 0)
    return found[:, 0] - bias * found[:, 1], bias


def _conjugate_gradients(
    problem: SquaredHingeProblem, active: Bool[Array, " n"], guess: Float[Array, " n"], gap: Float[Array, ""]
) -> tuple[Array, Array, Array, Array]:
    """By preconditioned conjugate gradients on `z = C^-1/2 beta`, from `guess`."""
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
        found = conjugate_gradients(apply, precondition, z, rhs - apply(z), CG_STEPS, unfinished)
        return found.x, found.definite

    ones, definite = solve(root, start)
    found, rhs = ones[:, None], root[:, None]
    if problem.free_bias:
        constant, also = solve(signs, jnp.zeros_like(root))
        found, rhs = jnp.stack([ones, constant], axis=1), jnp.stack([root, signs], axis=1)
        definite = definite & also
    z, bias = _border(problem, found, rhs)
    beta = root * z
    return beta, bias, definite, every(jnp.isfinite(beta))


def _preconditioner(problem: SquaredHingeProblem, active: Bool[Array, " n"], root: Float[Array, " n"]) -> Apply:
    """The inverse of `I + C^1/2 B_SS C^1/2`, about, from evenly spaced samples of the support."""
    landmarks = nystroem.evenly_among(active, LANDMARKS)
    rows = problem.gram.rows(landmarks).astype(root.dtype) + problem.offset
    return nystroem.deflation((root * problem.y)[:, None] * nystroem.features(rows, landmarks))
