"""Solve the problem of a block, whose shape does not depend on n: a function of (matrix, bounds, gradient).

`pair_steps` keeps the sum of its variables (an equality constraint), `double_steps` has no constraint. A step of theirs
is a handful of scalars. Interior points of the whole block, some 15 systems a set, took 11 to 16 times as long on an
H100 (n = 20,000). Both are pure functions of small arrays, and return the updated gradient.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxsvm.numerics.line_search import best_in_rectangle
from jaxsvm.numerics.products import diagonal
from jaxsvm.numerics.selection import entry, largest, largest_packed, smallest
from jaxsvm.runtime.loops import fori_loop, while_loop
from jaxsvm.solvers.measured import MEASURED
from jaxsvm.solvers.working_set.members import ends_of_groups

Steps = Callable[..., tuple[Array, Array, Array]]
"""A solver of blocks: from the arguments of `pair_steps` to its results."""


def pair_steps(
    K: Float[Array, "q q"],
    low: Float[Array, " q"],
    high: Float[Array, " q"],
    v: Float[Array, " q"],
    pull: Float[Array, " q"],
    tol: Any,
    limit: Any,
    groups: Bool[Array, " q"] | None = None,
) -> tuple[Float[Array, " q"], Float[Array, " q"], Int[Array, ""]]:
    """Solve a block with an equality constraint by second-order pairs.

    Maximize `pull'(u - v) - 1/2 (u - v)'K(u - v)` over `low <= u <= high`, `sum u = sum v`. Source: Fan, Chen and Lin
    2005 (WSS 2). In these variables (`v_i = c_i a_i` of a box problem) a pair moves the same way for all signs: up by t
    at i, down by t at j.

    Args:
        K: The block's matrix, positive semidefinite.
        low: Lower bounds; equal to `high` in an empty place.
        high: Upper bounds.
        v: Starting point, within the bounds.
        pull: Gradient at the starting point.
        tol: Violation `max pull_up - min pull_low` at which to stop, > 0.
        limit: Maximum number of steps.
        groups: The first of two groups of which each keeps its sum, `(q,)`: pairs are of one group. None: one group.

    Returns:
        The point, its gradient, and the number of steps, `()`.
    """
    D = diagonal(K)
    infinity = jnp.asarray(jnp.inf, K.dtype)

    def pair(carry: tuple[Array, Array, Array], left: Array) -> tuple[Array, Array, Array]:
        v, pull, middle = carry
        # Relative to the middle of the violating pair: what is selected is as exact as the violation is small.
        i = largest_packed(jnp.where(v < high, pull - middle, -infinity))
        row_i, pull_i = lax.dynamic_index_in_dim(K, i, keepdims=False, allow_negative_indices=False), entry(pull, i)
        descent = pull_i - pull
        curvature = jnp.maximum(entry(D, i) + D - 2 * row_i, MEASURED.curvature_floor)
        partners = (v > low) & (descent > 0) & (True if groups is None else groups == entry(groups, i))
        j = largest_packed(jnp.where(partners, descent * descent / curvature, -1))
        descent_j, v_i, v_j = entry(descent, j), entry(v, i), entry(v, j)
        high_i, low_j = entry(high, i), entry(low, j)
        t = jnp.minimum(descent_j / entry(curvature, j), jnp.minimum(high_i - v_i, v_j - low_j))
        usable = (descent_j > 0) & (v_i < high_i) & (v_j > low_j) & (left > 0)
        usable = usable if groups is None else usable & entry(partners, j)
        t = jnp.where(usable, t, 0)
        # Bounds are met exactly, so that comparisons with them are exact.
        new_i = jnp.where(usable & (t >= high_i - v_i), high_i, v_i + t)
        new_j = jnp.where(usable & (t >= v_j - low_j), low_j, v_j - t)
        v = v.at[i].set(new_i).at[j].set(jnp.where(usable, new_j, v_j))
        return (
            v,
            pull - t * (row_i - lax.dynamic_index_in_dim(K, j, keepdims=False, allow_negative_indices=False)),
            middle,
        )

    def turn(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        v, pull, _, steps, _ = carry
        top, bottom = largest(jnp.where(v < high, pull, -infinity)), smallest(jnp.where(v > low, pull, infinity))
        violation = top - bottom
        middle = jnp.where(jnp.isfinite(violation), (top + bottom) / 2, 0)
        if groups is not None:
            middle, violation = ends_of_groups(groups, pull, v < high, v > low)
        left = limit - steps
        v, pull, _ = fori_loop(
            0, MEASURED.steps_per_turn, lambda k, carry: pair(carry, left - k.astype(steps.dtype)), (v, pull, middle)
        )
        return v, pull, middle, jnp.minimum(steps + MEASURED.steps_per_turn, limit), violation > tol

    middle = jnp.zeros((), K.dtype) if groups is None else jnp.zeros_like(v)
    start = (v, pull, middle, jnp.zeros((), jnp.int32), jnp.asarray(True))
    v, pull, _, steps, _ = while_loop(lambda carry: carry[4] & (carry[3] < limit), turn, start)
    return v, pull, steps


def double_steps(
    K: Array, low: Array, high: Array, v: Array, pull: Array, tol: Any, limit: Any
) -> tuple[Array, Array, Array]:
    """Solve a block without an equality by steps of two variables.

    A step moves the variable that gains most alone and the best variable after it, both at once. Source: Steinwart,
    Hush and Scovel 2011 (2D-SMO). Steps of single variables took ten times as many if the entries of K are much alike,
    as with a regularised bias.

    Arguments and results are those of `pair_steps`, except that `high` may be infinite, and that `tol` is compared with
    the largest gradient of a variable that can follow it.
    """
    D = jnp.maximum(diagonal(K), MEASURED.curvature_floor)
    places = jnp.arange(len(v), dtype=jnp.int32)

    def double(carry: tuple[Array, Array], left: Array) -> tuple[Array, Array]:
        v, pull = carry

        def gains(pull: Array) -> tuple[Array, Array]:
            move = jnp.clip(v + pull / D, low, high) - v
            return move, move * (pull - D * move / 2)

        move, gain = gains(pull)
        i = largest_packed(gain)
        row_i = lax.dynamic_index_in_dim(K, i, keepdims=False, allow_negative_indices=False)
        _, gain = gains(pull - entry(move, i) * row_i)
        j = largest_packed(jnp.where(places == i, -1, gain))
        row_j = lax.dynamic_index_in_dim(K, j, keepdims=False, allow_negative_indices=False)
        (v_i, v_j), (low_i, low_j) = (entry(v, i), entry(v, j)), (entry(low, i), entry(low, j))
        high_i, high_j = entry(high, i), entry(high, j)
        curvatures = (entry(D, i), entry(D, j), entry(row_i, j))
        ends_i, ends_j = (low_i - v_i, high_i - v_i), (low_j - v_j, high_j - v_j)
        t_i, t_j, _ = best_in_rectangle((entry(pull, i), entry(pull, j)), curvatures, ends_i, ends_j)
        t_i, t_j = jnp.where(left > 0, t_i, 0), jnp.where((i == j) | (left <= 0), 0, t_j)  # i == j: a single variable
        # Bounds are met exactly, so that comparisons with them are exact.
        new_i = jnp.where(t_i == ends_i[0], low_i, jnp.where(t_i == ends_i[1], high_i, v_i + t_i))
        new_j = jnp.where(t_j == ends_j[0], low_j, jnp.where(t_j == ends_j[1], high_j, v_j + t_j))
        return v.at[i].set(new_i).at[j].set(jnp.where(i == j, new_i, new_j)), pull - (t_i * row_i + t_j * row_j)

    def turn(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        v, pull, steps, _ = carry
        violation = largest(jnp.where(v < high, pull, 0)) - smallest(jnp.where(v > low, pull, 0))
        left = limit - steps
        v, pull = fori_loop(
            0, MEASURED.steps_per_turn, lambda k, carry: double(carry, left - k.astype(steps.dtype)), (v, pull)
        )
        return v, pull, jnp.minimum(steps + MEASURED.steps_per_turn, limit), violation > tol

    start = (v, pull, jnp.zeros((), jnp.int32), jnp.asarray(True))
    v, pull, steps, _ = while_loop(lambda carry: carry[3] & (carry[2] < limit), turn, start)
    return v, pull, steps
