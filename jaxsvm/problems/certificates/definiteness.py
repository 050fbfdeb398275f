"""Test whether a kernel matrix is positive semidefinite, if its kernel does not guarantee it.

On an indefinite matrix a duality gap proves nothing: the "primal" is not convex, and the dual has better points
elsewhere. Solvers see negative curvature along their own steps, but may never step there. So the matrix is tested
before a fit is called converged: by a Cholesky factor up to 8,192 samples, by Lanczos' smallest Ritz value beyond.
"""

import dataclasses
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxsvm.errors import InputError
from jaxsvm.gram.signed import SignedGram
from jaxsvm.numerics.linear import factored
from jaxsvm.numerics.precision import in_double, matmul, widened
from jaxsvm.problems.contract import Problem
from jaxsvm.problems.measured import MEASURED
from jaxsvm.runtime.loops import scan
from jaxsvm.runtime.programs import Program

P = TypeVar("P", bound=Problem)


@Program
def is_indefinite(problem: Problem) -> Bool[Array, ""]:
    """Return whether the matrix is indefinite, so that certificates prove nothing, in twice the precision.

    Directions off the equality count too: a corrected w moves along them.
    """
    return in_double(lambda problem: negative_curvature(widened(problem), everywhere=True))(problem)


def vouched(problem: P) -> P:
    """Mark the Gram operator of a concrete problem as positive semidefinite; refuse it if it is not."""
    if problem.gram.definite:
        return problem
    with jax.ensure_compile_time_eval():  # a concrete problem may occur inside a user's jit
        indefinite = bool(is_indefinite(problem))
    if indefinite:
        raise InputError(
            f"the kernel matrix ({type(problem.gram.kernel).__name__}) is not positive semidefinite: no bound holds on "
            "it, and neither rules nor certificates say anything. Choose another kernel, or other parameters of it."
        )
    return dataclasses.replace(problem, gram=dataclasses.replace(problem.gram, vouched=True))


def negative_curvature(problem: Problem, everywhere: bool = False) -> Bool[Array, ""]:
    """Return whether the matrix without its ridge has a clearly negative eigenvalue in directions that points can move.

    Points move among the samples that are present and, with an equality, along it. Twelve products with a matrix of
    more than 8,192 samples may miss a small eigenvalue. One of `-16 eps n max|K|`, with the eps of the entries, may be
    rounding. `everywhere` tests directions off the equality as well.
    """
    present, u = problem.present, None if everywhere else problem.equality
    u = None if u is None else jnp.where(present, u, 0) / jnp.linalg.norm(jnp.where(present, u, 0))
    eps = float(jnp.finfo(problem.gram.dtype).eps)
    largest = jnp.where(present, jnp.abs(problem.gram.diag() + problem.offset), 0).max().astype(problem.dtype)
    if problem.n <= MEASURED.samples_factored:
        return _by_cholesky(problem, present, u, eps, largest)
    return _by_lanczos(problem, present, u, eps, largest)


def _by_cholesky(problem: Problem, present: Array, u: Any, eps: float, largest: Array) -> Bool[Array, ""]:
    everything = jnp.arange(problem.n, dtype=jnp.int32)
    B = SignedGram(problem.gram, problem.y, problem.offset).block(everything, everything)
    Q = jnp.where(present[:, None] & present, B, 0)
    largest = jnp.maximum(largest, jnp.abs(Q).max())
    if u is not None:
        Qu = matmul(Q, u)
        Q = Q - jnp.outer(Qu, u) - jnp.outer(u, Qu) + (u @ Qu) * jnp.outer(u, u)
    shift = jnp.maximum(16 * eps * problem.n * largest, jnp.finfo(Q.dtype).tiny)
    factor = factored(Q + shift * jnp.eye(problem.n, dtype=Q.dtype))
    return jnp.isfinite(Q).all() & ~jnp.isfinite(factor.L).all()


def _by_lanczos(problem: Problem, present: Array, u: Any, eps: float, largest: Array) -> Bool[Array, ""]:
    signed, products = SignedGram(problem.gram, problem.y, problem.offset), MEASURED.products_of_lanczos

    def inside(v: Float[Array, " n"]) -> Float[Array, " n"]:
        v = jnp.where(present, v, 0)
        return v if u is None else v - (u @ v) * u

    def apply(v: Float[Array, " n"]) -> Float[Array, " n"]:
        return inside(signed.matvec(inside(v)))

    def step(carry: tuple[Array, Array], k: Array) -> tuple[tuple[Array, Array], None]:
        V, W = carry
        w = apply(V[k])
        W = W.at[k].set(w)
        for _ in range(2):  # twice is enough to stay orthogonal
            w = w - matmul(V.T, matmul(V, w))
        norm = jnp.linalg.norm(w)
        fresh = jnp.where(norm > 0, w / jnp.where(norm > 0, norm, 1), 0)
        return (V.at[k + 1].set(fresh, mode="drop"), W), None

    # In float32: without the x64 flag there are no 64 random bits, whatever is enabled around the call.
    first = inside(jax.random.normal(jax.random.key(0), (problem.n,), jnp.float32).astype(problem.dtype))
    V = jnp.zeros((products, problem.n), problem.dtype).at[0].set(first / jnp.linalg.norm(first))
    (V, W), _ = scan(step, (V, jnp.zeros_like(V)), jnp.arange(products, dtype=jnp.int32))
    T = matmul(V, W.T)
    shift = 16 * eps * problem.n * largest
    factor = factored((T + T.T) / 2 + shift * jnp.eye(products, dtype=T.dtype))
    return jnp.isfinite(T).all() & ~jnp.isfinite(factor.L).all()
