"""The exact minimum of a squared-hinge objective along a line: what Newton's steps and the free bias both need."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxsvm.runtime.loops import while_loop

EVALUATIONS = 60
"""Bisections that leave nothing of a bracket; Newton's steps on the derivative usually need two to five."""
SLOPE_LEFT = 1e-2
"""Of the first derivative: where so little of it is left, a search on the way to another point may end."""


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
    """The `t` that minimises `linear t + quadratic t^2 / 2 + 1/2 sum_i C_i max(0, slack_i + t change_i)^2`.

    The derivative is piecewise linear and rises: Newton's method on it, kept inside a bracket, ends on the right piece
    after a few passes over two vectors. No sorting of breakpoints.

    Args:
        slack: `(n,)`.
        change: `(n,)`.
        C: Costs, `(n,)`, not negative.
        linear: Derivative of the rest at 0.
        quadratic: Curvature of the rest, >= 0.
        bracket: Ends that hold the minimum between them (or the ends are good enough).
        start: The first point to try.
        enough: A derivative of this size will do; 0 goes to the exact piece.
    """

    def derivatives(t: Array) -> tuple[Array, Array, Array]:
        here = slack + t * change
        pull = C * change
        terms = pull * jnp.maximum(here, 0)
        slope = linear + quadratic * t + terms.sum()
        rounding = 4 * jnp.finfo(slack.dtype).eps * (jnp.abs(linear) + jnp.abs(quadratic * t) + jnp.abs(terms).sum())
        return slope, quadratic + jnp.where(here > 0, pull * change, 0).sum(), rounding

    def improve(carry: tuple[Array, ...]) -> tuple[Array, ...]:
        k, low, high, t, _ = carry
        slope, curvature, rounding = derivatives(t)
        low, high = jnp.where(slope <= 0, t, low), jnp.where(slope > 0, t, high)
        step = slope / jnp.where(curvature > 0, curvature, 1)
        # Strictly: from one end to the other and back the bracket would never shrink.
        inside = (curvature > 0) & (t - step > low) & (t - step < high)
        # Not where the curvature stays as it was: with equal costs two pieces can have the same.
        done = (jnp.abs(slope) <= jnp.maximum(enough, rounding)) | ~jnp.isfinite(slope)
        t_next = jnp.where(inside, t - step, (low + high) / 2)
        return k + 1, low, high, jnp.where(done, t, t_next), done

    low, high = (jnp.asarray(end, slack.dtype) for end in bracket)
    first = (
        jnp.zeros((), jnp.int32),
        low,
        high,
        jnp.asarray(start, slack.dtype),
        slack[0] > jnp.inf,
    )
    return while_loop(lambda carry: ~carry[-1] & (carry[0] < EVALUATIONS), improve, first)[3]


def best_bias(margins: Float[Array, " n"], y: Float[Array, " n"], C: Float[Array, " n"], R: Any) -> Float[Array, ""]:
    """The constant b that minimises `sum_i C_i max(0, R - margins_i - y_i b)^2`: an unregularised bias.

    Args:
        margins: `y_i h(x_i)` without the bias, `(n,)`.
        y: Signs, `(n,)`.
        C: Costs, `(n,)`; 0 where a sample is absent.
        R: The margin that is asked for, `()`.
    """
    slack = R - margins
    # Beyond these ends one class has no slack left, and the other pulls back.
    high = jnp.where((y > 0) & (C > 0), slack, -jnp.inf).max()
    low = -jnp.where((y < 0) & (C > 0), slack, -jnp.inf).max()
    low, high = jnp.minimum(low, high), jnp.maximum(low, high)
    scale = jnp.maximum(C.max(), jnp.finfo(C.dtype).tiny)  # keeps curvatures in range
    return hinge_minimum(slack, -y, C / scale, 0.0, 0.0, (low, high), (low + high) / 2)
