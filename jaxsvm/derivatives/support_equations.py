"""The linear system on a support: what the derivatives of a solution, and the solution itself, come from.

It is solved by conjugate gradients under the best preconditioner there is: a Cholesky factor of the support's matrix
(stored Gram, at most 4,096 samples; the iterations are then what is known as refinement), Woodbury's formula for a
low-rank Gram, and the same formula with Nystroem features and what they leave of the diagonal for all else, in O(n
tile) memory. A system that cannot be solved gives NaN: never a wrong derivative in silence.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from jaxsvm.errors import is_concrete
from jaxsvm.gram.low_rank import LowRankGram
from jaxsvm.gram.operators import DenseGram
from jaxsvm.numerics.once import once

FACTOR_LIMIT = 4096
"""The largest support whose matrix is factored: 128 MiB in float64."""
SMALLEST = 256
LANDMARKS = 128
CG_STEPS = 1000
REFINEMENTS = 6
"""Iterations where the preconditioner is the inverse up to rounding."""
Apply = Callable[[Float[Array, " n"]], Float[Array, " n"]]


def plan(problem: Any, support: Any) -> tuple[tuple[int, ...], str]:
    """How the system is solved: sizes of a factor to choose from, and "cholesky", "features" or "nystroem"."""
    # Without a ridge the matrix may be as good as singular, which conjugate gradients alone do not survive.
    if not problem.bounded:
        if isinstance(problem.gram, LowRankGram):
            return (), "features"
        if not isinstance(problem.gram, DenseGram):  # a factor would break the promise of O(n tile) memory
            return (), "nystroem"
    sizes = factor_sizes(problem.n, support)
    return (sizes, "cholesky") if sizes[-1] <= FACTOR_LIMIT else ((), "nystroem")


def factor_sizes(n: int, support: Any) -> tuple[int, ...]:
    """Powers of two up to n; only the one that holds the support where that has values."""
    sizes = [SMALLEST]
    while sizes[-1] < n:
        sizes.append(2 * sizes[-1])
    sizes[-1] = n
    if is_concrete(support):
        count = int(support.sum())
        sizes = [next(size for size in sizes if count <= size)]
    return tuple(sizes)


def solver(
    problem: Any, support: Bool[Array, " n"], sizes: tuple[int, ...], method: str, u: Float[Array, " n"] | None = None
) -> Apply:
    """`b -> x` with `(Kt + u u')_SS x_S = b_S`, and `x = b` off S; differentiable in b and in the problem, not in u."""
    y, ridge = lax.stop_gradient(problem.y), _ridge(problem)
    u = jnp.zeros_like(y) if u is None else jnp.where(support, lax.stop_gradient(u), 0)

    def matvec(v: Array) -> Array:
        signed = jnp.where(support, y * v, 0)
        inside = y * (problem.gram.matvec(signed) + problem.offset * signed.sum()) + ridge * v + u * (u @ v)
        return jnp.where(support, inside, v)

    still = lax.stop_gradient(problem)

    def product(v: Array) -> Array:  # the same, at the price of the support; it is never differentiated
        signed = jnp.where(support, y * v, 0)
        inside = y * (still.gram.support_matvec(signed) + still.offset * signed.sum()) + lax.stop_gradient(ridge) * v
        return jnp.where(support, inside + u * (u @ v), v)

    precondition = (
        _factor(still, support, sizes, u)
        if method == "cholesky"
        else _woodbury(still, support, method == "features", u)
    )
    steps = CG_STEPS if method == "nystroem" else REFINEMENTS

    def solve(_: Any, b: Array) -> Array:
        return conjugate_gradients(product, precondition, b, steps)

    return lambda b: lax.custom_linear_solve(matvec, b, solve, symmetric=True)


def _ridge(problem: Any) -> Float[Array, " n"]:
    """What a problem adds to the diagonal; a box problem adds nothing."""
    return getattr(problem, "ridge", jnp.zeros_like(problem.y))


def conjugate_gradients(product: Apply, precondition: Apply, b: Float[Array, " n"], steps: int) -> Float[Array, " n"]:
    """Preconditioned conjugate gradients to the floor of the dtype; NaN where a thousandth of the digits is missing."""
    eps = jnp.finfo(b.dtype).eps
    start = precondition(b)
    scale = b @ start
    target = (16 * eps) ** 2 * scale

    def step(carry: tuple[Array, ...]) -> tuple[Array, ...]:
        k, x, r, p, rq = carry
        Ap = product(p)
        curvature = p @ Ap
        t = jnp.where(curvature > 0, rq / jnp.where(curvature > 0, curvature, 1), 0)
        x, r = x + t * p, r - t * Ap
        q = precondition(r)
        after = r @ q
        return k + 1, x, r, q + after / jnp.where(rq > 0, rq, 1) * p, after

    def going(carry: tuple[Array, ...]) -> Array:
        return (carry[0] < steps) & (carry[4] > target)

    x = jnp.zeros_like(b)
    first = (jnp.zeros((), jnp.int32), x, b, start, scale)
    _, x, _, _, _ = lax.while_loop(going, step, first)
    rest = b - product(x)
    solved = rest @ precondition(rest) <= eps**0.8 * scale  # squared: 3e-7 of b in float64, 2e-3 in float32
    return jnp.where(solved | (scale == 0), x, jnp.nan)


def _factor(problem: Any, support: Bool[Array, " n"], sizes: tuple[int, ...], u: Float[Array, " n"]) -> Apply:
    """Solves with a Cholesky factor of `(Kt + u u')_SS`, in the smallest of the sizes that holds S."""
    largest, count = sizes[-1], support.sum(dtype=jnp.int32)
    index = jnp.nonzero(support, size=largest, fill_value=0)[0]
    valid = jnp.arange(largest) < count
    L, below = jnp.eye(largest, dtype=problem.dtype), -1
    for size in sizes:
        here = (count > below) & (count <= size)
        compute = partial(_padded_factor, problem, index[:size], valid[:size], u)
        L, below = once(here, compute, L), size

    def precondition(r: Array) -> Array:
        found = jax.scipy.linalg.cho_solve((L, True), jnp.where(valid, r[index], 0))
        return jnp.where(support, jnp.zeros_like(r).at[index].add(jnp.where(valid, found, 0)), r)

    return precondition


def _padded_factor(problem: Any, index: Array, valid: Array, u: Array, L: Array) -> Array:
    size = index.shape[0]
    values = problem.gram.block(index, index).astype(problem.dtype) + problem.offset
    signs = jnp.where(valid, problem.y[index], 0)
    extra = jnp.where(valid, u[index], 0)
    values = signs[:, None] * values * signs + extra[:, None] * extra
    # What rounding may take from the smallest eigenvalue; the refinement takes the shift out again.
    floor = 2 * jnp.finfo(values.dtype).eps * jnp.sqrt(jnp.asarray(size, values.dtype)) * jnp.diagonal(values).max()
    values = values + jnp.diag(jnp.where(valid, _ridge(problem)[index] + floor, 1))
    return lax.dynamic_update_slice(L, jnp.linalg.cholesky(values), (0, 0))


def _woodbury(problem: Any, support: Bool[Array, " n"], exact: bool, u: Float[Array, " n"]) -> Apply:
    """`(D + F F')^-1` on S, for features F of `Kt` and the rest D of its diagonal."""
    F = problem.gram.Z.astype(problem.dtype) if exact else _nystroem(problem, support)
    rest = 0 if exact else jnp.maximum(problem.gram.diag() - (F * F).sum(axis=1), 0)
    constant = jnp.full((problem.n, 1), problem.offset**0.5, F.dtype)
    F = jnp.where(support, problem.y, 0)[:, None] * jnp.concatenate([F, constant], axis=1)
    F = jnp.concatenate([F, u[:, None]], axis=1)
    D = jnp.where(support, _ridge(problem) + rest, 1)
    scaled = F / D[:, None]
    inner = jnp.eye(F.shape[1], dtype=F.dtype) + jnp.matmul(F.T, scaled, precision=lax.Precision.HIGHEST)
    L = jnp.linalg.cholesky(inner)

    def precondition(r: Array) -> Array:
        return jnp.where(support, r / D - scaled @ jax.scipy.linalg.cho_solve((L, True), scaled.T @ r), r)

    return precondition


def _nystroem(problem: Any, support: Bool[Array, " n"]) -> Float[Array, "n r"]:
    """Features `F` with `F F' ~ K`, of samples that stand evenly in the support."""
    n, count = problem.n, support.sum(dtype=jnp.int32)
    landmarks = min(LANDMARKS, n)
    ranks = (jnp.arange(landmarks, dtype=jnp.int32) * count) // landmarks + 1
    index = jnp.clip(jnp.searchsorted(jnp.cumsum(support, dtype=jnp.int32), ranks), 0, n - 1)
    columns = problem.gram.rows(index).astype(problem.dtype)
    inner = columns[:, index]
    jitter = 8 * landmarks * jnp.finfo(inner.dtype).eps * jnp.trace(inner)
    L = jnp.linalg.cholesky(inner + jitter * jnp.eye(landmarks, dtype=inner.dtype))
    return jax.scipy.linalg.solve_triangular(L, columns, lower=True).T
