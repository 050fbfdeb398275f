"""Search along a line: bisection, and the exact minimum of a squared hinge for Newton's steps and the free bias."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxsvm.runtime.loops import fori_loop, while_loop

CURVATURE_FLOOR = 1e-12  # smallest curvature that a step of dual variables divides by: LIBSVM's


def bisected(is_below: Callable[[Array], Array], low: Array, high: Array, turns: int) -> tuple[Array, Array]:
    """Halve a bracket `turns` times; `is_below(t)` tells whether t lies below the sought value."""

    def halve(_: Any, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = (low + high) / 2
        below = is_below(middle)
        return jnp.where(below, middle, low), jnp.where(below, high, middle)

    return fori_loop(0, turns, halve, (low, high))


def hinge_minimum(
    slack: Float[Array, " n"],
    change: Float[Array, " n"],
    C: Float[Array, " n"],
    linear: Any,
    quadratic: Any,
    bracket: tuple[Any, Any],
    start: Any,
    enough: Any = 0.0,
) -> Float[Array, ""]:
    """Return the `t` that minimises `linear t + quadratic t^2 / 2 + 1/2 sum_i C_i max(0, slack_i + t change_i)^2`.

    The derivative is piecewise linear and increasing. Newton's method on it, kept inside a bracket, finds the right
    piece in two to five passes over two vectors, at most 60, without sorting breakpoints. A minimum outside the bracket
    is clipped to the nearer end. The search ends at a derivative of the size `enough`; 0 finds the exact piece.
    """

    def derivatives(t: Array) -> tuple[Array, Array, Array]:
        moved = slack + t * change
        pull = C * change
        terms = pull * jnp.maximum(moved, 0)
        slope = linear + quadratic * t + terms.sum()
        rounding = 4 * jnp.finfo(slack.dtype).eps * (jnp.abs(linear) + jnp.abs(quadratic * t) + jnp.abs(terms).sum())
        return slope, quadratic + jnp.where(moved > 0, pull * change, 0).sum(), rounding

    def improve(carry: tuple[Array, ...]) -> tuple[Array, ...]:
        k, low, high, t, _ = carry
        slope, curvature, rounding = derivatives(t)
        low, high = jnp.where(slope <= 0, t, low), jnp.where(slope > 0, t, high)
        step = slope / jnp.where(curvature > 0, curvature, 1)
        # Strictly inside: steps from one end to the other would never shrink the bracket.
        inside = (curvature > 0) & (t - step > low) & (t - step < high)
        # An unchanged curvature does not end the search: with equal costs two pieces can have the same.
        done = (jnp.abs(slope) <= jnp.maximum(enough, rounding)) | ~jnp.isfinite(slope)
        t_next = jnp.where(inside, t - step, (low + high) / 2)
        return k + 1, low, high, jnp.where(done, t, t_next), done

    low, high = (jnp.asarray(end, slack.dtype) for end in bracket)
    first = (jnp.zeros((), jnp.int32), low, high, jnp.asarray(start, slack.dtype), slack[0] > jnp.inf)
    return while_loop(lambda carry: ~carry[-1] & (carry[0] < 60), improve, first)[3]


def best_bias(margins: Float[Array, " n"], y: Float[Array, " n"], C: Float[Array, " n"], R: Any) -> Float[Array, ""]:
    """Return the unregularised bias b that minimises `sum_i C_i max(0, R - margins_i - y_i b)^2`.

    `margins` are `y_i h(x_i)` without the bias; absent samples have C = 0.
    """
    slack = R - margins
    # Beyond these ends one class has no slack left, and the other pulls back.
    high = jnp.where((y > 0) & (C > 0), slack, -jnp.inf).max()
    low = -jnp.where((y < 0) & (C > 0), slack, -jnp.inf).max()
    low, high = jnp.minimum(low, high), jnp.maximum(low, high)
    scale = jnp.maximum(C.max(), jnp.finfo(C.dtype).tiny)  # keeps curvatures in range
    return hinge_minimum(slack, -y, C / scale, 0.0, 0.0, (low, high), (low + high) / 2)


def best_in_rectangle(
    g: tuple[Array, Array], Q: tuple[Array, Array, Array], box_i: tuple[Array, Array], box_j: tuple[Array, Array]
) -> tuple[Array, Array, Array]:
    """Maximise `g't - 1/2 t'Qt` over a rectangle that contains 0, from its interior and its four sides.

    `Q` is `Q_ii`, `Q_jj` and `Q_ij`; bounds may be infinite. Returns `t_i`, `t_j` and the maximum.
    """
    (g_i, g_j), (D_i, D_j, Q_ij) = g, Q

    def value(t_i: Array, t_j: Array) -> Array:
        return g_i * t_i + g_j * t_j - (D_i * t_i * t_i + D_j * t_j * t_j) / 2 - Q_ij * t_i * t_j

    def given(t: Array, g: Array, D: Array, box: tuple[Array, Array]) -> Array:
        return jnp.clip((g - Q_ij * t) / jnp.maximum(D, CURVATURE_FLOOR), *box)

    determinant = D_i * D_j - Q_ij * Q_ij
    scale = jnp.where(determinant > 0, determinant, 1)
    inner_i, inner_j = (g_i * D_j - g_j * Q_ij) / scale, (g_j * D_i - g_i * Q_ij) / scale
    inside = (determinant > 0) & (inner_i >= box_i[0]) & (inner_i <= box_i[1])
    inside = inside & (inner_j >= box_j[0]) & (inner_j <= box_j[1])
    best_i, best_j = jnp.where(inside, inner_i, 0), jnp.where(inside, inner_j, 0)
    best = jnp.where(inside, value(inner_i, inner_j), 0)
    sides = [(end, given(end, g_j, D_j, box_j)) for end in box_i]
    sides += [(given(end, g_i, D_i, box_i), end) for end in box_j]
    for t_i, t_j in sides:
        on_side = value(t_i, t_j)
        better = ~inside & (on_side > best)
        best_i, best_j = jnp.where(better, t_i, best_i), jnp.where(better, t_j, best_j)
        best = jnp.where(better, on_side, best)
    return best_i, best_j, best
