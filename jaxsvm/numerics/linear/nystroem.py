"""Nystroem features (Williams and Seeger 2001), preconditioners made of them, and conjugate gradients with these."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxsvm.numerics import selection
from jaxsvm.numerics.linear.elimination import Factor, factored, semifactored
from jaxsvm.numerics.precision import count, diagonal, matmul, plus_diagonal
from jaxsvm.runtime.arrays import promoting
from jaxsvm.runtime.loops import fori_loop, while_loop

BLOCK = 64
"""Features of a block."""


def evenly_among(members: Bool[Array, " n"], most: int) -> Int[Array, " landmarks"]:
    """Return `most` (or n) indices of members, evenly spaced; some repeat if there are fewer members."""
    n, number = members.shape[0], count(members)
    landmarks = min(most, n)
    ranks = (jnp.arange(landmarks, dtype=jnp.int32) * number) // landmarks + 1
    return jnp.clip(jnp.searchsorted(jnp.cumsum(members, dtype=jnp.int32), ranks), 0, n - 1)


def pivots(row: Callable[[Array], Float[Array, " n"]], diagonal: Float[Array, " n"], rank: int) -> Int[Array, " rank"]:
    """Choose landmarks by pivoted Cholesky: each is the point with the largest residual `K_ii - |F_i|^2`.

    `diagonal` is minus infinity where i may not be chosen; at least `rank` may. `rank` is static.
    """

    def choose(k: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        rest, factor, index = carry
        _, i = selection.argmax(rest)
        column = row(i) - matmul(factor[:, i], factor)
        pivot = rest[i]
        column = jnp.where(pivot > 0, column / jnp.sqrt(jnp.where(pivot > 0, pivot, 1)), 0)
        rest = jnp.where(rest >= 0, jnp.maximum(rest - column**2, 0), -jnp.inf).at[i].set(-jnp.inf)  # never again
        return rest, factor.at[k].set(column), index.at[k].set(i)

    start = (diagonal, jnp.zeros((rank, len(diagonal)), diagonal.dtype), jnp.zeros((rank,), jnp.int32))
    return fori_loop(0, rank, choose, start)[2]


def features(rows: Float[Array, "q n"], landmarks: Int[Array, " q"]) -> Float[Array, "n q"]:
    """Compute `F` with `F F' ~ K` from rows of K by a Cholesky factor, for preconditioners.

    Landmarks that depend linearly on others, such as repeated ones, have columns of 0.
    """
    inner = rows[:, landmarks]
    floor = 8 * len(landmarks) * jnp.finfo(inner.dtype).eps * diagonal(inner).sum()
    return semifactored(inner, floor).lower_solve(rows).T


def features_in_blocks(
    rows: Callable[[Array], Array],
    diagonal: Float[Array, " n"],
    most: int,
    ends: tuple[Any, Any],
    floor: Any,
    key: Array,
) -> tuple[Float[Array, "n most"], Int[Array, ""], Float[Array, ""]]:
    """Compute `Z` with a positive semidefinite `K - Z Z'` of a small trace, by pivoted Cholesky in blocks.

    A block's candidates are drawn in proportion to what is left of their diagonal (Chen, Epperly, Tropp and Webber
    2023); of them pivots are taken greedily. So nearly all of the `n most^2` operations are products of matrices.

    Args:
        rows: Function from `2 BLOCK` indices to these rows of K.
        diagonal: `K_ii`, `(n,)`.
        most: Largest number of features, a multiple of `BLOCK`; static.
        ends: Two traces of `K - Z Z'`. No features are added once it is at most the first, or once it falls so slowly
            that `most` features would leave more than the second.
        floor: Diagonal entries up to this size are taken for rounding.
        key: A random key.

    Returns:
        The features `(n, most)`, 0 beyond those taken; the number taken; the trace that they leave.
    """
    n, (enough, at_most) = len(diagonal), ends
    keys = jax.random.split(key, most // BLOCK)

    def goes_on(carry: tuple[Array, ...]) -> Array:
        k, _, _, trace, before = carry
        at_end = trace * (trace / before) ** (most // BLOCK - k).astype(trace.dtype)  # or more
        return (k < most // BLOCK) & (trace > enough) & ((k == 0) | (at_end <= at_most))

    def block(carry: tuple[Array, ...]) -> tuple[Array, ...]:
        k, Z, rest, trace, _ = carry
        times = jax.random.exponential(keys[k], (n,), jnp.float32).astype(rest.dtype)
        _, drawn = lax.top_k(rest / jnp.maximum(times, 1e-30), min(2 * BLOCK, n))
        drawn = drawn.astype(jnp.int32)

        def less(i: Array, left: Array) -> Array:
            return left - matmul(Z[i][drawn], Z[i].T)

        left = fori_loop(0, k, less, rows(drawn).astype(rest.dtype))
        inner = left[:, drawn]
        chosen = pivots(lambda i: inner[i], inner.diagonal(), BLOCK)
        new = semifactored(inner[chosen][:, chosen], floor).lower_solve(left[chosen])
        rest = jnp.maximum(rest - (new * new).sum(axis=0), 0).at[drawn[chosen]].set(0)
        rest = jnp.where(rest > floor, rest, 0)
        return k + 1, Z.at[k].set(new.T), rest, rest.sum(), trace

    Z = jnp.zeros((most // BLOCK, n, BLOCK), diagonal.dtype)
    trace = diagonal.sum()
    k, Z, _, trace, _ = while_loop(goes_on, block, (jnp.zeros((), jnp.int32), Z, diagonal, trace, trace))
    return jnp.moveaxis(Z, 0, 1).reshape(n, most), k * BLOCK, trace


@jax.custom_jvp
def inverse_root(inner: Float[Array, "q q"], share: Any) -> Float[Array, "q q"]:
    """Compute `W` with `W W' = inner^-1` on the landmarks that do not depend linearly on those before them.

    Args:
        inner: Positive semidefinite matrix between the landmarks.
        share: A landmark whose pivot is at most this share of the largest diagonal entry counts as dependent: its
            column of W is 0.
    """
    factor = semifactored(inner, share * diagonal(inner).max())
    return factor.lower_solve(jnp.eye(len(inner), dtype=inner.dtype)).T


@inverse_root.defjvp
@promoting()
def _(primals: Any, tangents: Any) -> tuple[Array, Array]:
    W = inverse_root(*primals)
    moved = jnp.tril(matmul(matmul(W.T, (tangents[0] + tangents[0].T) / 2), W))
    moved = plus_diagonal(moved, -diagonal(moved) / 2)
    return W, -matmul(W, moved.T)


def unexplained(diagonal: Float[Array, " n"], F: Float[Array, "n r"]) -> Float[Array, " n"]:
    """Return the diagonal of `K - F F'`, not below 0: better than 0 as an estimate of that matrix."""
    return jnp.maximum(diagonal - (F * F).sum(axis=1), 0)


def woodbury(F: Float[Array, "n r"], D: Any) -> Callable[[Float[Array, " n"]], Float[Array, " n"]]:
    """Return `r -> (diag(D) + F F')^-1 r` for a positive D, `(n,)`, as a pytree of arrays."""
    scaled = F / D[:, None]
    inner = jnp.eye(F.shape[1], dtype=F.dtype) + matmul(F.T, scaled)
    return jax.tree_util.Partial(_by_woodbury, factored(inner), scaled, D)


def _by_woodbury(factor: Factor, scaled: Float[Array, "n r"], D: Any, r: Float[Array, " n"]) -> Float[Array, " n"]:
    return r / D - scaled @ factor.solve(scaled.T @ r)


def deflation(F: Float[Array, "n r"]) -> Callable[[Float[Array, " n"]], Float[Array, " n"]]:
    """Return `r -> P^-1 r` for `P ~ I + K` with `K ~ F F'`, up to a factor (Frangella, Tropp, Udell 2023).

    The part of K outside F is taken to be as large in all directions as the smallest eigenvalue of F F'. On Newton's
    systems this takes up to 40 % fewer iterations than `woodbury` with a diagonal rest (radial kernels in 2 to 4
    dimensions), and up to 25 % more (in 20 dimensions).
    """
    squares = matmul(F.T, F)
    own = diagonal(squares)
    size = own.sum()
    counts = own > jnp.finfo(F.dtype).eps * F.shape[1] * size  # false for landmarks that depend on others
    one = jnp.eye(F.shape[1], dtype=F.dtype)
    inverse = factored(plus_diagonal(squares, jnp.where(counts, 1, 1 + size)))

    def toward_least(_: Any, v: Array) -> Array:
        v = inverse.solve(v)
        return v / jnp.linalg.norm(v)

    # 8 powers of the inverse: the smallest eigenvalue is needed to a tenth only.
    v = fori_loop(0, 8, toward_least, jnp.where(counts, 1, 0) / jnp.sqrt(jnp.maximum(counts.sum(), 1)))
    level = 1 + v @ squares @ v
    factor = factored(squares + level * one)
    return lambda r: r - F @ factor.solve(r @ F)


Apply = Callable[[Float[Array, " n"]], Float[Array, " n"]]


class Iterate(NamedTuple):
    """An iterate of conjugate gradients."""

    steps: Int[Array, ""]  # products computed, int32 `()`
    x: Float[Array, " n"]  # current solution, `(n,)`
    r: Float[Array, " n"]  # its residual, updated recursively, `(n,)`
    p: Float[Array, " n"]  # next direction, `(n,)`
    energy: Float[Array, ""]  # `r' P^-1 r` with the preconditioner P, `()`
    first: Float[Array, ""]  # energy of the first iterate, `()`
    definite: Bool[Array, ""]  # whether no direction of negative curvature was met, `()`


def conjugate_gradients(
    product: Apply,
    precondition: Apply,
    x: Float[Array, " n"],
    r: Float[Array, " n"],
    most: int,
    unfinished: Callable[[Iterate], Array],
) -> Iterate:
    """Solve `A x = b`, A symmetric positive definite, from a first guess (Hestenes and Stiefel 1952).

    The first guess x has the residual `r = b - A x`; `precondition` is `r -> P^-1 r`; `most` is static.

    Returns:
        The last iterate; a NaN in a product shows in its residual.
    """

    def step(at: Iterate) -> Iterate:
        Ap = product(at.p)
        curvature = at.p @ Ap
        none = curvature <= 0  # False for NaN, which must show
        t = jnp.where(none, 0, at.energy / jnp.where(none, 1, curvature))
        x, r = at.x + t * at.p, at.r - t * Ap
        q = precondition(r)
        energy = r @ q
        p = q + energy / jnp.where(at.energy > 0, at.energy, 1) * at.p
        return Iterate(at.steps + 1, x, r, p, energy, at.first, at.definite & ~(curvature < 0))

    q = precondition(r)
    energy = r @ q
    start = Iterate(jnp.zeros((), jnp.int32), x, r, q, energy, energy, jnp.asarray(True))
    return while_loop(lambda at: (at.steps < most) & unfinished(at), step, start)
