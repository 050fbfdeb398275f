"""Draw points with given probabilities: independently, or systematically without repetition.

The theory of coresets is about independent draws with weights `u / (m q)`. Systematic sampling (Madow 1949) walks along
an ordering of the points with one random offset and takes a point wherever the running sum of the inclusion
probabilities passes a whole number. It is unbiased too and takes no point twice. Neighbours in the ordering are
represented in proportion, which removes their part of the variance. The tail bounds of the theory do not cover it.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxsvm.errors import InputError
from jaxsvm.numerics.line_search import bisected
from jaxsvm.runtime.checks import checked, require_positive, require_whole


@checked
def sample_size(
    total: float, epsilon: float, delta: float, *, features: int | None = None, queries: int | None = None,
    constant: float = 1.0,
) -> int:  # fmt: skip
    """Return how many independent draws make an epsilon-coreset with probability 1 - delta.

    Args:
        total: The sum t of the sensitivity bounds that the points are drawn by, at least 1.
        epsilon: The relative error, in (0, 1).
        delta: The probability of failure, in (0, 1).
        features: d, for all queries at once: `constant t / epsilon^2 ((d + 1) log t + log 1 / delta)`. The universal
            constant is not known, so this is a heuristic.
        queries: N, for N queries that are fixed before the draw (Bernstein's inequality: a proof).
        constant: The constant of the formula for `features`.

    Raises:
        InputError: If a number is out of its range, or unless exactly one of `features` and `queries` is given.
    """
    for name, value in (("epsilon", epsilon), ("delta", delta)):
        require_positive(name, value)
        if value >= 1:
            raise InputError(f"{name} is {value}: a number between 0 and 1 is needed.")
    require_positive("total", total)
    require_positive("constant", constant)
    if total < 1:
        raise InputError(f"total is {total}: bounds on sensitivities add up to at least 1.")
    if (features is None) == (queries is None):
        raise InputError("features and queries: one of the two is needed, for all queries or for a finite number.")
    require_whole("features" if queries is None else "queries", features if queries is None else queries, 1)
    if queries is not None:
        rate = (2 * (total - 1) + 2 * total * epsilon / 3) / epsilon**2
        return math.ceil(rate * math.log(2 * queries / delta))
    assert features is not None
    return math.ceil(constant * total / epsilon**2 * ((features + 1) * math.log(total) + math.log(1 / delta)))


def query_error(total: float, m: int, delta: float) -> float:
    """Return the relative error that one query, fixed before m independent draws, exceeds with probability delta.

    The inverse of `sample_size(total, epsilon, delta, queries=1)`.
    """
    rate = math.log(2 / delta) / m
    linear = total * rate / 3
    return linear + math.sqrt(linear**2 + 2 * (total - 1) * rate)


def independent(key: Array, q: Float[Array, " n"], m: int) -> Int[Array, " m"]:
    """Draw m indices independently, with probabilities proportional to q; pure."""
    ends = jnp.cumsum(q)
    targets = jax.random.uniform(key, (m,), q.dtype) * ends[-1]
    last = jnp.where(q > 0, jnp.arange(q.shape[0], dtype=jnp.int32), 0).max()
    return jnp.minimum(jnp.searchsorted(ends, targets, side="right").astype(jnp.int32), last)


def inclusion(q: Float[Array, " n"], m: Any) -> Float[Array, " n"]:
    """Return `pi = min(1, c q)` with `sum pi = m`; if no more than m points have q > 0, 1 for these; pure."""
    positive = q > 0
    q = q / jnp.maximum(q.sum(), jnp.finfo(q.dtype).tiny)
    few = positive.sum() <= m
    least = jnp.where(positive, q, jnp.inf).min()

    def too_small(log_c: Array) -> Array:  # a logarithm: c may have to be very large
        return jnp.minimum(1, jnp.exp(log_c) * q).sum() < m

    ends = (jnp.log(jnp.asarray(m, q.dtype)) - 1e-3, jnp.log(1 / least) + 1e-3)
    scale = jnp.exp(bisected(too_small, *ends, 100)[1])
    return jnp.where(few, positive.astype(q.dtype), jnp.minimum(1, scale * q))


def systematic(key: Array, pi: Float[Array, " n"], order: Int[Array, " n"], m: int) -> Int[Array, " m"]:
    """Draw m indices, each with its inclusion probability pi, along a permutation of the points; pure, m static.

    The probabilities add up to m, or fewer points than m have the probability 1: the rest of the indices are then n.
    """
    along = jnp.cumsum(pi[order])
    whole = jnp.round(along[-1])
    # Spread the rounding of the last sum over all: exactly m whole numbers are passed.
    along = along * (whole / jnp.maximum(along[-1], 1))
    passed = jnp.floor(along.at[-1].set(whole) + jax.random.uniform(key, (), pi.dtype))
    taken = jnp.diff(passed, prepend=0.0) > 0
    places = jnp.nonzero(taken, size=m, fill_value=pi.shape[0])[0]
    return jnp.append(order, pi.shape[0])[places].astype(jnp.int32)
