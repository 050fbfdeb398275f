"""Box problems with two equalities, those of nu: pairs of second order within a class, as LIBSVM's `Solver_NU`."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from jaxsvm.numerics.selection import entry, largest_packed

TURN = 8
"""Steps between looks at the violation."""
TAU = 1e-12
"""LIBSVM's floor of a curvature."""


class Solution(NamedTuple):
    """Where the steps ended.

    Attributes:
        a: The point, `(n,)`.
        s: `Qa`, `(n,)`.
        levels: The gradient `s - q` of free samples of the positive class, and of the negative one, two numbers.
        steps: Pair steps.
    """

    a: Array
    s: Array
    levels: tuple[Array, Array]
    steps: Array


def minimized(K: Array, y: Array, q: Array, upper: Array, a: Array, tol: Array, limit: Array) -> Solution:
    """`min a'Qa / 2 - q'a` over `0 <= a <= upper`, the sum of each class as at the start, `Q_ij = y_i y_j K_ij`.

    Args:
        K: Kernel values, `(n, n)`.
        y: Signs: the classes, `(n,)`.
        q: The linear term, `(n,)`.
        upper: Upper bounds, `(n,)`; 0 for an absent sample.
        a: A feasible point, `(n,)`.
        tol: The largest violation within a class that ends it, > 0.
        limit: A cap on pair steps.
    """
    D = jnp.diagonal(K).astype(a.dtype)
    positive, infinity = y > 0, jnp.inf

    def product(a: Array) -> Array:
        return y * (K.astype(a.dtype) @ (y * a))

    def ends_of(g: Array, a: Array, mine: Array) -> tuple[Array, Array]:
        """The largest `-g` that can grow, and the smallest that can shrink, of a class."""
        return (
            jnp.where(mine & (a < upper), -g, -infinity).max(),
            jnp.where(mine & (a > 0), -g, infinity).min(),
        )

    def look(g: Array, a: Array) -> tuple[Array, Array]:
        """The middle of each sample's class, and the larger violation of both."""
        ends = [ends_of(g, a, mine) for mine in (positive, ~positive)]
        # Where a class is full, or one sample of it moves, nothing violates.
        widths = [jnp.where(jnp.isfinite(top - bottom), top - bottom, 0) for top, bottom in ends]
        middles = [jnp.where(jnp.isfinite(top - bottom), (top + bottom) / 2, 0) for top, bottom in ends]
        return jnp.where(positive, *middles), jnp.maximum(*widths)

    def pair(carry: tuple[Array, Array, Array], left: Array) -> tuple[Array, Array, Array]:
        a, g, middle = carry
        i = largest_packed(jnp.where(a < upper, -g - middle, -infinity))
        row_i = y * entry(y, i) * lax.dynamic_index_in_dim(K, i, keepdims=False)
        descent = g - entry(g, i)
        curvature = jnp.maximum(entry(D, i) + D - 2 * row_i, TAU)
        usable = (a > 0) & (descent > 0) & (y == entry(y, i))
        j = largest_packed(jnp.where(usable, descent * descent / curvature, -1))
        room_i, room_j = entry(upper, i) - entry(a, i), entry(a, j)
        t = jnp.minimum(entry(descent, j) / entry(curvature, j), jnp.minimum(room_i, room_j))
        moves = entry(usable, j) & (room_i > 0) & (left > 0)
        t = jnp.where(moves, t, 0)
        a_i = jnp.where(moves & (t >= room_i), entry(upper, i), entry(a, i) + t)
        a_j = jnp.where(moves & (t >= room_j), 0, entry(a, j) - t)
        row_j = y * entry(y, j) * lax.dynamic_index_in_dim(K, j, keepdims=False)
        a = a.at[i].set(a_i).at[j].set(jnp.where(moves, a_j, a.at[i].set(a_i)[j]))
        return a, g + t * (row_i - row_j), middle

    def turn(carry: Any) -> Any:
        a, g, steps, _ = carry
        middle, _ = look(g, a)
        left = limit - steps
        a, g, _ = lax.fori_loop(0, TURN, lambda k, carry: pair(carry, left - k.astype(steps.dtype)), (a, g, middle))
        return a, g, jnp.minimum(steps + TURN, limit), look(g, a)[1]

    g = product(a) - q
    start = (a, g, jnp.zeros((), jnp.int32), look(g, a)[1])
    a, _, steps, _ = lax.while_loop(lambda carry: (carry[3] > tol) & (carry[2] < limit), turn, start)
    s = product(a)

    def level_of(mine: Array) -> Array:
        free, g = mine & (a > 0) & (a < upper), s - q
        top, bottom = ends_of(g, a, mine)
        middle = jnp.where(jnp.isfinite(bottom), (top + bottom) / 2, top)
        between = jnp.where(jnp.isfinite(top), middle, bottom)
        return jnp.where(free.any(), jnp.where(free, g, 0).sum() / jnp.maximum(free.sum(), 1), -between)

    return Solution(a, s, (level_of(positive), level_of(~positive)), steps)
