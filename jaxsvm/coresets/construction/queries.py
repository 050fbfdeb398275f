"""Queries `(w, b)`: solutions of small subsets and what else a trained machine may be, and what each point is to them.

A bound on a sensitivity is loose by a large and uneven factor (15 to 30 on real sets); the largest share that a point
has of the objective at some tens of plausible queries is no bound at all, but near to what matters. Drawing by a
mixture of both keeps the guarantee of the first, with its share, and gets most of its accuracy from the second.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxsvm.coresets.construction.sampling import independent
from jaxsvm.coresets.pilot import Pilot, solve
from jaxsvm.numerics.linear.elimination import factored

QUERIES = 24
"""Small subsets that are solved."""
SUBSET = 256
"""Their points."""
LOOSE = 1e-3
"""The relative gap to which they are solved."""


def pool(
    key: Array, x: Float[Array, "n d"], y: Float[Array, " n"], u: Float[Array, " n"], C: Any, gamma: Float[Array, " n"],
    at: Pilot, count: int = QUERIES, size: int = SUBSET,
) -> Float[Array, "q d+1"]:  # fmt: skip
    """Queries as rows `(w, b)`: the pilot, `(0, +-1)`, and solutions of subsets drawn by gamma at several C; pure."""
    size = max(8, min(size, x.shape[0] // 2))
    draws, values = jax.random.split(key)
    index = independent(draws, gamma, count * size).reshape(count, size)
    share = gamma / jnp.maximum(gamma.sum(), jnp.finfo(u.dtype).tiny)
    weight = u[index] / jnp.maximum(size * share[index], jnp.finfo(u.dtype).tiny)
    # C spread evenly over three decades on a logarithmic scale, one value in each of `count` equal parts.
    exponent = (jnp.arange(count, dtype=u.dtype) + jax.random.uniform(values, (count,), u.dtype)) / count * 3 - 2

    def one(lane: tuple[Array, Array, Array]) -> Array:
        index, weight, C = lane
        w, b, *_ = solve(x[index], y[index], C * weight, tol=LOOSE)
        return jnp.append(w, b)

    small = lax.map(one, (index, weight, C * 10**exponent))
    small = jnp.where(jnp.isfinite(small), small, 0)
    fixed = (
        jnp.zeros((3, x.shape[1] + 1), x.dtype).at[0].set(jnp.append(at.w, at.b)).at[1:, -1].set(jnp.array([1.0, -1.0]))
    )
    return jnp.concatenate([fixed, small])


def hinges(x: Float[Array, "n d"], y: Float[Array, " n"], queries: Float[Array, "q d+1"]) -> Float[Array, "n q"]:
    """The hinge loss of every point at every query."""
    f = jnp.matmul(x, queries[:, :-1].T, precision=lax.Precision.HIGHEST) + queries[None, :, -1]
    return jnp.maximum(0, 1 - y[:, None] * f)


def objectives(queries: Array, h: Float[Array, "n q"], u: Float[Array, " n"], C: Any, share: Any = 1.0) -> Array:
    """`F` at every query, `(q,)`, with a share of the regulariser."""
    return share * 0.5 * (queries[:, :-1] ** 2).sum(axis=1) + C * (u @ h)


def scores(
    x: Array, y: Array, u: Array, C: Any, queries: Float[Array, "q d+1"], scaled: bool, floor: Any = 0.0
) -> Float[Array, " n"]:
    """The largest share of F that each point has at the queries, `(n,)`; pure."""
    h = hinges(x, y, queries)
    F = objectives(queries, h, u, C) + floor
    own = jnp.where(scaled, 0.5 * (queries[:, :-1] ** 2).sum(axis=1) / u.sum(), 0.0)
    tiny = jnp.finfo(u.dtype).tiny
    return (u[:, None] * (own[None, :] + C * h) / jnp.maximum(F, tiny)[None, :]).max(axis=1, initial=0)


def pulls(x: Array, u: Array, share: Array) -> Float[Array, " n"]:
    """Each point's part in the pilot's dual vector: `u a |z|`, `z = (x, 1)`, in the metric of `sum u a z z'`; pure.

    With probabilities proportional to it the vector is estimated with the least variance in that metric.

    Args:
        x: Points, `(n, d)`.
        u: Weights, `(n,)`.
        share: Dual variables of the pilot, in the part of their boxes, `(n,)`.
    """
    z = jnp.concatenate([x, jnp.ones((x.shape[0], 1), x.dtype)], axis=1)
    M = jnp.matmul((z * (u * share)[:, None]).T, z, precision=lax.Precision.HIGHEST)
    M = M + (1e-9 * jnp.trace(M) + jnp.finfo(x.dtype).tiny) * jnp.eye(z.shape[1], dtype=x.dtype)
    half = factored(M).lower_solve(jnp.eye(len(M), dtype=x.dtype))
    found = u * share * jnp.linalg.norm(z @ half.T, axis=1)
    return jnp.where(jnp.isfinite(found), found, 0)
