"""Solve the problem of a block, whose shape does not depend on n: a function of (matrix, bounds, gradient).

`pair_steps` keeps the sum of its variables (an equality constraint), `double_steps` has no constraint. A step of theirs
is a handful of scalars, which suits a CPU. `interior_steps` takes some 15 systems of the whole block instead: few large
operations, for accelerators (not measured on one yet). All are pure functions of small arrays, and return the updated
gradient.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxsvm.gram.dense import DenseGram
from jaxsvm.kernels import Precomputed
from jaxsvm.numerics.line_search import best_in_rectangle
from jaxsvm.numerics.precision import double, in_double
from jaxsvm.numerics.products import diagonal, matmul
from jaxsvm.numerics.selection import entry, largest, largest_packed, smallest
from jaxsvm.problems.box import BoxProblem
from jaxsvm.runtime.loops import fori_loop, while_loop
from jaxsvm.solvers.box import interior_point
from jaxsvm.solvers.measured import MEASURED

Steps = Callable[..., tuple[Array, Array, Array]]
"""A solver of blocks: from the arguments of `pair_steps` to its results."""


def steps_for(free: bool, fat: bool) -> Steps:
    """Return the solver of blocks with or without an equality, by interior points if `fat`."""
    if fat:
        return partial(interior_steps, free=free)
    return pair_steps if free else double_steps


def pair_steps(
    K: Float[Array, "q q"],
    low: Float[Array, " q"],
    high: Float[Array, " q"],
    v: Float[Array, " q"],
    pull: Float[Array, " q"],
    tol: Any,
    limit: Any,
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
        j = largest_packed(jnp.where((v > low) & (descent > 0), descent * descent / curvature, -1))
        descent_j, v_i, v_j = entry(descent, j), entry(v, i), entry(v, j)
        high_i, low_j = entry(high, i), entry(low, j)
        t = jnp.minimum(descent_j / entry(curvature, j), jnp.minimum(high_i - v_i, v_j - low_j))
        usable = (descent_j > 0) & (v_i < high_i) & (v_j > low_j) & (left > 0)
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
        left = limit - steps
        v, pull, _ = fori_loop(
            0, MEASURED.steps_per_turn, lambda k, carry: pair(carry, left - k.astype(steps.dtype)), (v, pull, middle)
        )
        return v, pull, middle, jnp.minimum(steps + MEASURED.steps_per_turn, limit), violation > tol

    start = (v, pull, jnp.zeros((), K.dtype), jnp.zeros((), jnp.int32), jnp.asarray(True))
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


def interior_steps(
    K: Array, low: Array, high: Array, v: Array, pull: Array, tol: Any, limit: Any, free: bool
) -> tuple[Array, Array, Array]:
    """Solve a block by interior points (`jaxsvm.solvers.box.interior_point`), in twice the precision.

    Arguments and results are those of `pair_steps` if `free`, else those of `double_steps`; steps are systems, at most
    60 whatever `limit` is. A variable without a bound moves by `block_reach` at most. A block whose violation is at
    most `tol` is solved to a share of it. The start is returned if it is no worse.
    """

    def solve(*block: Array) -> tuple[Array, Array, Array]:
        wide = double(block[0].dtype)
        K, low, high, v, pull, tol = (part.astype(wide) for part in block)
        alone = jnp.where(low < high, jnp.abs(pull) / jnp.maximum(diagonal(K), MEASURED.curvature_floor), 0)
        bounded, move = jnp.isfinite(high), largest(alone)
        most = jnp.where(bounded, high, v + MEASURED.block_reach * move)
        # Distances are from the bound nearer to 0: sums of the others would lose the digits of small ones.
        signs = jnp.where(jnp.abs(low) <= jnp.abs(most), 1.0, -1.0).astype(wide)
        base, far = jnp.where(signs > 0, low, most), jnp.where(signs > 0, most, low)
        problem = _problem(K, signs, most - low, signs * (pull + matmul(K, v - base)), (v - base).sum(), free)
        width = jnp.where(bounded, jnp.minimum(problem.upper, move), problem.upper).sum()
        width = width / jnp.maximum(problem.present.sum(dtype=wide), 1)
        goal = MEASURED.block_products_left * tol * width

        def goes_on(at: interior_point.Going) -> Array:
            return at.going & (tol > 0) & (interior_point.mean_product(problem.present, at.x) > goal)

        begin, further = interior_point.begin(problem), partial(interior_point.further, problem, tol=0)
        at = while_loop(goes_on, further, begin)
        # A multiplier above `tol` would be a violation anywhere but at its bound.
        x = at.x
        a = jnp.where((x.z > tol) & (x.a < x.t), 0, jnp.where((x.w > tol) & (x.t < x.a), problem.upper, x.a))
        a = problem.on_equality(jnp.where(problem.present, jnp.clip(a, 0, problem.upper), 0))
        # Bounds are met exactly, so that comparisons with them are exact.
        new = jnp.where(a == problem.upper, far, base + signs * a)
        slope = matmul(K, new - v)
        better = (new - v) @ (pull - slope / 2) > 0
        return jnp.where(better, new, v), jnp.where(better, pull - slope, pull), at.rounds

    none = jnp.inf if free else 0.0
    violation = largest(jnp.where(v < high, pull, -none)) - smallest(jnp.where(v > low, pull, none))
    tol = jnp.minimum(tol, MEASURED.violation_left * jnp.maximum(violation, 0)).astype(v.dtype)
    new, left, steps = in_double(solve)(K, low, high, v, pull, tol)
    return new.astype(v.dtype), left.astype(v.dtype), steps


def _problem(K: Array, signs: Array, upper: Array, q: Array, e: Array, free: bool) -> BoxProblem:
    """Return `max q'a - 1/2 (s a)'K(s a)`, `0 <= a <= upper`, and `s'a = e` if `free`, with the signs s."""
    zero = jnp.zeros((), q.dtype)
    places = jnp.arange(len(q), dtype=jnp.int32)
    gram = DenseGram(Precomputed(), places, jnp.zeros((1,), q.dtype), K, vouched=True)
    equality = signs if free else None
    C, feasible = jnp.ones_like(zero), jnp.asarray(True)
    return BoxProblem(gram, signs, q, upper, equality, e, C, zero, diagonal(K), feasible, 0.0)
