"""Make queries `(w, b)`, plausible trained machines, and score each point by its share of their objectives.

A bound on a sensitivity is loose by a large and uneven factor (15 to 30 on real sets). The largest share that a point
has of the objective at some tens of plausible queries is no bound, but close to the sensitivities that matter. Drawing
by a mixture of both keeps the guarantee of the bounds, with their share, and most of the accuracy of the scores.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from jaxsvm.coresets.measured import MEASURED
from jaxsvm.coresets.pilot import Pilot, solve
from jaxsvm.coresets.sampling import independent
from jaxsvm.numerics.linear.elimination import factored


def pool(
    key: Array, x: Float[Array, "n d"], y: Float[Array, " n"], u: Float[Array, " n"], C: Any, gamma: Float[Array, " n"],
    at: Pilot,
) -> Float[Array, "q d+1"]:  # fmt: skip
    """Return queries as rows `(w, b)`; pure.

    They are the pilot, `(0, +-1)`, and the solutions of subsets that are drawn by the bounds gamma, at several C: large
    subsets, then small ones (`largest`).
    """
    size, large = max(8, min(MEASURED.points_per_subset, x.shape[0] // 2)), MEASURED.subsets_solved
    own = np.minimum([size] * large + list(MEASURED.points_per_small_subset), size)[:, None]
    count = len(own)
    draws, values = jax.random.split(key)
    index = independent(draws, gamma, count * size).reshape(count, size)
    share = gamma / jnp.maximum(gamma.sum(), jnp.finfo(u.dtype).tiny)
    weight = u[index] / jnp.maximum(own * share[index], jnp.finfo(u.dtype).tiny)
    weight = jnp.where(np.arange(size) < own, weight, 0)
    # C spread evenly over three decades on a logarithmic scale, one value in each of equal parts, for either size.
    part = np.where(np.arange(count) < large, np.arange(count) / large, (np.arange(count) - large) / (count - large))
    width = np.where(np.arange(count) < large, 1 / large, 1 / (count - large))
    exponent = (part + width * jax.random.uniform(values, (count,), u.dtype)) * 3 - 2

    def solved(lane: tuple[Array, Array, Array]) -> Array:
        index, weight, C = lane
        w, b, *_ = solve(x[index], y[index], C * weight, tol=MEASURED.rough_gap)
        return jnp.append(w, b)

    small = lax.map(solved, (index, weight, C * 10**exponent))
    small = jnp.where(jnp.isfinite(small), small, 0)
    fixed = (
        jnp.zeros((3, x.shape[1] + 1), x.dtype).at[0].set(jnp.append(at.w, at.b)).at[1:, -1].set(jnp.array([1.0, -1.0]))
    )
    return jnp.concatenate([fixed, small])


def hinges(x: Float[Array, "n d"], y: Float[Array, " n"], queries: Float[Array, "q d+1"]) -> Float[Array, "n q"]:
    """Return the hinge loss of every point at every query."""
    f = jnp.matmul(x, queries[:, :-1].T, precision=lax.Precision.HIGHEST) + queries[None, :, -1]
    return jnp.maximum(0, 1 - y[:, None] * f)


def objectives(queries: Array, h: Float[Array, "n q"], u: Float[Array, " n"], C: Any, share: Any = 1.0) -> Array:
    """Return `F` at every query, `(q,)`, with a share of the regulariser."""
    return share * 0.5 * (queries[:, :-1] ** 2).sum(axis=1) + C * (u @ h)


def scores(
    x: Array, y: Array, u: Array, C: Any, queries: Float[Array, "q d+1"], scaled: bool, floor: Any = 0.0
) -> Float[Array, " n"]:
    """Return the largest share of F that each point has at the queries, `(n,)`; pure."""
    h = hinges(x, y, queries)
    F = objectives(queries, h, u, C) + floor
    own = jnp.where(scaled, 0.5 * (queries[:, :-1] ** 2).sum(axis=1) / u.sum(), 0.0)
    tiny = jnp.finfo(u.dtype).tiny
    return largest(u[:, None] * (own[None, :] + C * h) / jnp.maximum(F, tiny)[None, :])


def largest(shares: Float[Array, "n q"]) -> Float[Array, " n"]:
    """Return each point's score from its shares of the objectives at the queries of `pool`.

    A far point is in every large subset and has no loss at their solutions: only small ones leave it out. These are
    poor machines, so only points that dominate the objective there count (otherwise the error on HTRU2 is 1.6 times as
    large).
    """
    few = len(MEASURED.points_per_small_subset)
    rare = shares[:, -few:].max(axis=1, initial=0)
    return jnp.maximum(shares[:, :-few].max(axis=1, initial=0), jnp.where(rare > MEASURED.dominant_share, rare, 0))


def pulls(x: Array, u: Array, share: Array) -> Float[Array, " n"]:
    """Return the pull `u a |z|` of each point on the pilot's dual vector, in the metric of `sum u a z z'`; pure.

    Here `z = (x, 1)`, and a is the share of each dual variable in its box. Probabilities proportional to the pull
    estimate that vector with the least variance in this metric.
    """
    z, half = with_metric(x, u, share)
    pull = u * share * jnp.linalg.norm(z @ half.T, axis=1)
    return jnp.where(jnp.isfinite(pull), pull, 0)


def with_metric(x: Array, u: Array, share: Array) -> tuple[Float[Array, "n d+1"], Float[Array, "d+1 d+1"]]:
    """Return `z = (x, 1)` and the inverse Cholesky factor of `sum u share z z'`, slightly shifted; pure."""
    z = jnp.concatenate([x, jnp.ones((x.shape[0], 1), x.dtype)], axis=1)
    M = jnp.matmul((z * (u * share)[:, None]).T, z, precision=lax.Precision.HIGHEST)
    M = M + (1e-9 * jnp.trace(M) + jnp.finfo(x.dtype).tiny) * jnp.eye(z.shape[1], dtype=x.dtype)
    return z, factored(M).lower_solve(jnp.eye(len(M), dtype=x.dtype))
