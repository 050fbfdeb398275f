"""The block's own problem, of a shape that does not depend on n: a function of (matrix, bounds, gradient).

`pair_steps` keeps the sum of its variables (an equality constraint), `single_steps` keeps nothing. Both are pure
functions of small arrays, so that another backend can put its own kernel in their place. They return the gradient that
they carry along, for whoever goes on from there.
"""

from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxsvm.numerics.selection import entry, largest_packed

TURN = 8
"""Steps between looks at the violation: a look costs about what a step does."""
TAU = 1e-12
"""LIBSVM's floor of a curvature."""


def pair_steps(
    K: Float[Array, "q q"],
    low: Float[Array, " q"],
    high: Float[Array, " q"],
    v: Float[Array, " q"],
    pull: Float[Array, " q"],
    tol: Any,
    limit: Any,
) -> tuple[Float[Array, " q"], Float[Array, " q"], Int[Array, ""]]:
    """`max pull'(u - v) - 1/2 (u - v)'K(u - v)` over `low <= u <= high`, `sum u = sum v`, by second-order pairs.

    Sources: Fan, Chen and Lin 2005 (WSS 2). In these variables (`v_i = c_i a_i` of a box problem) a pair moves the same
    way whatever the signs: up by t at i, down by t at j.

    Args:
        K: The block's matrix, positive semidefinite.
        low: Lower bounds; equal to `high` in an empty place.
        high: Upper bounds.
        v: Where to start, within the bounds.
        pull: The gradient there.
        tol: The violation `max pull_up - min pull_low` that ends it, > 0.
        limit: The step cap.

    Returns:
        The point, the gradient there, and the steps taken, `()`.
    """
    D = jnp.diagonal(K)
    infinity = jnp.asarray(jnp.inf, K.dtype)

    def pair(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        v, pull, middle = carry
        # Relative to the middle of the violating pair: what is selected is as exact as the violation is small.
        i = largest_packed(jnp.where(v < high, pull - middle, -infinity))
        row_i, pull_i = lax.dynamic_index_in_dim(K, i, keepdims=False), entry(pull, i)
        descent = pull_i - pull
        curvature = jnp.maximum(entry(D, i) + D - 2 * row_i, TAU)
        j = largest_packed(jnp.where((v > low) & (descent > 0), descent * descent / curvature, -1))
        descent_j, v_i, v_j = entry(descent, j), entry(v, i), entry(v, j)
        high_i, low_j = entry(high, i), entry(low, j)
        t = jnp.minimum(descent_j / entry(curvature, j), jnp.minimum(high_i - v_i, v_j - low_j))
        usable = (descent_j > 0) & (v_i < high_i) & (v_j > low_j)
        t = jnp.where(usable, t, 0)
        # Bounds are met exactly, so that a sample is at one or is not.
        new_i = jnp.where(usable & (t >= high_i - v_i), high_i, v_i + t)
        new_j = jnp.where(usable & (t >= v_j - low_j), low_j, v_j - t)
        v = v.at[i].set(new_i).at[j].set(jnp.where(usable, new_j, v_j))
        return v, pull - t * (row_i - lax.dynamic_index_in_dim(K, j, keepdims=False)), middle

    def turn(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        v, pull, _, steps, _ = carry
        top, bottom = jnp.where(v < high, pull, -infinity).max(), jnp.where(v > low, pull, infinity).min()
        violation = top - bottom
        middle = jnp.where(jnp.isfinite(violation), (top + bottom) / 2, 0)
        v, pull, _ = lax.fori_loop(0, TURN, lambda _, carry: pair(carry), (v, pull, middle))
        return v, pull, middle, steps + TURN, violation > tol

    start = (v, pull, jnp.zeros((), K.dtype), jnp.zeros((), jnp.int32), jnp.asarray(True))
    v, pull, _, steps, _ = lax.while_loop(lambda carry: carry[4] & (carry[3] < limit), turn, start)
    return v, pull, steps


def single_steps(
    K: Float[Array, "q q"],
    low: Float[Array, " q"],
    high: Float[Array, " q"],
    v: Float[Array, " q"],
    pull: Float[Array, " q"],
    tol: Any,
    limit: Any,
) -> tuple[Float[Array, " q"], Float[Array, " q"], Int[Array, ""]]:
    """The same without the equality: each step moves the variable that gains most by itself (Steinwart et al. 2011).

    Args:
        K: As for `pair_steps`.
        low: As for `pair_steps`.
        high: As for `pair_steps`.
        v: As for `pair_steps`.
        pull: As for `pair_steps`.
        tol: The largest gradient of a variable that can follow it that ends it, > 0.
        limit: As for `pair_steps`.

    Returns:
        As for `pair_steps`.
    """
    D = jnp.maximum(jnp.diagonal(K), TAU)

    def single(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        v, pull = carry
        move = jnp.clip(v + pull / D, low, high) - v
        i = largest_packed(move * (pull - D * move / 2))
        t, v_i = entry(move, i), entry(v, i)
        new = jnp.clip(v_i + entry(pull, i) / entry(D, i), entry(low, i), entry(high, i))
        return v.at[i].set(new), pull - t * lax.dynamic_index_in_dim(K, i, keepdims=False)

    def turn(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        v, pull, steps, _ = carry
        violation = jnp.where(v < high, pull, 0).max() - jnp.where(v > low, pull, 0).min()
        v, pull = lax.fori_loop(0, TURN, lambda _, carry: single(carry), (v, pull))
        return v, pull, steps + TURN, violation > tol

    start = (v, pull, jnp.zeros((), jnp.int32), jnp.asarray(True))
    v, pull, steps, _ = lax.while_loop(lambda carry: carry[3] & (carry[2] < limit), turn, start)
    return v, pull, steps
