"""The water level: the worst margin after a budget of slack has been spent as well as it can be.

Source: Cotter, Shalev-Shwartz, Srebro, "The Kernelized Stochastic Batch Perceptron" (ICML 2012), whose printed routines
are wrong; the closed forms of the specification (1.3, 2.2, 2.3) stand here. Over a floor of heights `c_i` and widths
`w_i` pour a volume V: the surface stands at

    level = min_{p in simplex} p'c + V max_i p_i / w_i = min_k (sum of w c over the k lowest + V) / (their sum of w),

the root of `sum_i w_i max(0, level - c_i) = V`. A minimising p, uniform (in units of w) on the k lowest, is a
supergradient of the level with respect to c. An unregularised bias turns the floor into two basins, one a class, which
the bias moves against each other: there p has half of its mass in each.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from jaxsvm.errors import InputError, is_concrete

METHODS = ("sort", "newton", "bisection")
NEWTON_PASSES = 100
"""More than Newton's method takes: 11 were seen at n = 60,000, and each pass drops at least one sample."""
HALVINGS = {"float32": 32, "float64": 62}


class WaterLevel(NamedTuple):
    """A level and what it rests on.

    Attributes:
        level: The level, `()`.
        p: A minimax-optimal distribution over the samples, `(n,)`: `level = p . c + V max_i p_i / w_i`.
        bias: The bias at which the level is reached, `()`: the middle where a whole interval does; 0 without one.
    """

    level: Float[Array, "..."]
    p: Float[Array, "... n"]
    bias: Float[Array, "..."]


def water_level(c: Any, volume: Any, *, weight: Any = None, method: str = "sort") -> WaterLevel:
    """The largest `min_i (c_i + xi_i)` over `xi >= 0`, `sum_i w_i xi_i <= volume`.

    Args:
        c: Responses, `(n,)`.
        volume: V, `()`, not negative: `n nu` in the slack-constrained problem.
        weight: w, `(n,)`, not negative; 0 is absence; None: all 1.
        method: "sort" (closed form), "newton" (a few passes, no sorting) or "bisection" (a fixed number of passes:
            best under `vmap`, where a loop runs to its slowest lane's end).

    Returns:
        The level, p and bias 0.

    Raises:
        InputError: On values out of range.
    """
    if method not in METHODS:
        raise InputError(f"method is {method!r}: one of {', '.join(METHODS)} is needed.")
    c, w, volume = _checked(c, volume, weight)
    # Relative to the lowest: a small volume would be lost beside large responses (spec 6.6).
    lowest = jnp.where(w > 0, c, jnp.inf).min()
    rest = jnp.where(w > 0, c - lowest, jnp.inf)
    level, p = {"sort": _by_sorting, "newton": _by_newton, "bisection": _by_bisection}[method](rest, w, volume)
    return WaterLevel(lowest + level, p, jnp.zeros_like(level))


def water_level_with_bias(c: Any, y: Any, volume: Any, *, weight: Any = None, method: str = "sort") -> WaterLevel:
    """The largest `min_i (c_i + y_i b + xi_i)` over `xi >= 0`, `sum_i w_i xi_i <= volume` and all b (spec 2.3).

    Args:
        c: Responses without the bias, `(n,)`.
        y: Signs, `(n,)`, both present.
        volume: V, `()`, not negative.
        weight: w, `(n,)`; None: all 1.
        method: "sort" (closed form), or "bisection" (of the bias; no sorting).

    Returns:
        The level, p with half of its mass in each class, and b.

    Raises:
        InputError: On values out of range.
    """
    if method not in ("sort", "bisection"):
        raise InputError(f"method is {method!r}: sort or bisection is needed for two basins.")
    c, w, volume = _checked(c, volume, weight)
    y = jnp.asarray(y, c.dtype)
    if y.shape != c.shape:
        raise InputError(f"y has shape {y.shape}: {c.shape} is needed, one a response.")
    return _two_basins(c, y, volume, w) if method == "sort" else _two_basins_by_bisection(c, y, volume, w)


def _checked(c: Any, volume: Any, weight: Any) -> tuple[Array, Array, Array]:
    c = jnp.asarray(c)
    c = c if jnp.issubdtype(c.dtype, jnp.floating) else c.astype(jnp.result_type(float))
    if c.ndim != 1 or c.shape[0] == 0:
        raise InputError(f"c has shape {c.shape}: (n,) with n >= 1 is needed (use vmap for lanes).")
    w = jnp.ones_like(c) if weight is None else jnp.asarray(weight, c.dtype)
    if w.shape != c.shape:
        raise InputError(f"weight has shape {w.shape}: {c.shape} is needed, one a response.")
    if np.shape(volume) != ():
        raise InputError(f"volume has shape {np.shape(volume)}: one number is needed.")
    if is_concrete(volume) and not float(volume) >= 0:
        raise InputError(f"volume is {float(volume)}: it must not be negative.")
    return c, w, jnp.asarray(volume, c.dtype)


def _by_sorting(rest: Array, w: Array, volume: Array) -> tuple[Array, Array]:
    """`F_k = (sum of the k lowest + V) / k`: the smallest, and its k lowest as p."""
    order = jnp.argsort(rest)
    heights, widths = rest[order], w[order]
    mass = jnp.cumsum(widths)
    filled = jnp.cumsum(jnp.where(widths > 0, widths * heights, 0))
    levels = jnp.where(widths > 0, (filled + volume) / jnp.where(mass > 0, mass, 1), jnp.inf)
    k = jnp.argmin(levels)
    p = jnp.where(jnp.arange(rest.shape[0]) <= k, widths, 0) / mass[k]
    return levels[k], jnp.zeros_like(p).at[order].set(p)


def _by_newton(rest: Array, w: Array, volume: Array) -> tuple[Array, Array]:
    """Newton's method from the right on a convex piecewise linear function: monotone, ends on the right piece."""
    finite = jnp.where(w > 0, rest, 0)

    def fill(g: Array) -> Array:
        covered = (rest < g) & (w > 0)
        mass = jnp.where(covered, w, 0).sum()
        return jnp.where(mass > 0, (volume + jnp.where(covered, w * finite, 0).sum()) / jnp.where(mass > 0, mass, 1), 0)

    def fall(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        k, _, g = carry
        return k + 1, g, fill(g)

    start = (volume + (w * finite).sum()) / w.sum()
    first = (jnp.zeros((), jnp.int32), jnp.full_like(start, jnp.inf), start)
    _, above, g = lax.while_loop(lambda carry: (carry[2] < carry[1]) & (carry[0] < NEWTON_PASSES), fall, first)
    level = jnp.minimum(above, g)
    return level, _covered(rest, w, level)


def _by_bisection(rest: Array, w: Array, volume: Array) -> tuple[Array, Array]:
    """A fixed number of halvings, and one step of Newton's, which makes it exact."""
    lowest_width = jnp.where(w > 0, w, jnp.inf).min()

    def halve(_: Any, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = (low + high) / 2
        over = jnp.where(w > 0, w * jnp.maximum(0, middle - rest), 0).sum() >= volume
        return jnp.where(over, low, middle), jnp.where(over, middle, high)

    steps = HALVINGS[jnp.dtype(rest.dtype).name]
    _, high = lax.fori_loop(0, steps, halve, (jnp.zeros_like(volume), volume / lowest_width))
    covered = (rest < high) & (w > 0)
    mass = jnp.where(covered, w, 0).sum()
    level = (volume + jnp.where(covered, w * rest, 0).sum()) / jnp.where(mass > 0, mass, 1)
    level = jnp.where(mass > 0, level, 0)
    return level, _covered(rest, w, level)


def _covered(rest: Array, w: Array, level: Array) -> Array:
    """The p on the samples at or below the level, of which there is at least one: the lowest, with `rest = 0`."""
    p = jnp.where(rest <= level, w, 0)
    return p / p.sum()


def _two_basins(c: Array, y: Array, volume: Array, w: Array) -> WaterLevel:
    """`2 level = min_m (V + S+(m) + S-(m)) / m` over the mass m that each class has covered.

    `S(m)`, the sum of the lowest heights of a class up to mass m, is piecewise linear: the minimum lies at a mass where
    a sample of one of the two classes is covered in full.
    """
    sides = [_Basin.of(c, jnp.where(y * sign > 0, w, 0)) for sign in (1, -1)]
    most = jnp.minimum(sides[0].mass[-1], sides[1].mass[-1])
    candidates = jnp.concatenate([side.mass for side in sides])
    usable = (candidates > 0) & (candidates <= most * (1 + 8 * jnp.finfo(c.dtype).eps))
    masses = jnp.minimum(jnp.where(usable, candidates, most), most)
    shift = sum(side.lowest for side in sides)  # the sums are relative to the lowest height of their class
    doubled = (volume + sum(side.sum_up_to(masses) for side in sides)) / masses
    best = jnp.argmin(jnp.where(usable, doubled, jnp.inf))
    m, twice = masses[best], doubled[best] + shift

    (top, after), (top_n, after_n) = (side.around(m) for side in sides)
    room = jnp.maximum(twice - top - top_n, 0)
    up, up_n = jnp.minimum(room, after - top), jnp.minimum(room, after_n - top_n)
    plus, minus = top + (room + up - up_n) / 2, top_n + (room - up + up_n) / 2
    plus_p, minus_p = (side.share(m, c.shape[0]) for side in sides)
    p = plus_p + minus_p
    return WaterLevel((plus + minus) / 2, p / p.sum(), (minus - plus) / 2)


class _Basin(NamedTuple):
    """One class in increasing order; the samples of the other, of width 0, last."""

    order: Array
    heights: Array
    widths: Array
    mass: Array
    lowest: Array

    @classmethod
    def of(cls, c: Array, w: Array) -> "_Basin":
        order = jnp.argsort(jnp.where(w > 0, c, jnp.inf))
        return cls(order, c[order], w[order], jnp.cumsum(w[order]), c[order[0]])

    def sum_up_to(self, masses: Array) -> Array:
        filled = jnp.cumsum(self.widths * (self.heights - self.lowest))
        zero = jnp.zeros((1,), filled.dtype)
        return jnp.interp(masses, jnp.concatenate([zero, self.mass]), jnp.concatenate([zero, filled]))

    def around(self, m: Array) -> tuple[Array, Array]:
        """The highest covered height at mass m, and the next one: the same where a sample is covered in part."""
        slack = 8 * jnp.finfo(m.dtype).eps * m
        last = jnp.searchsorted(self.mass, m - slack)  # the first place whose mass reaches m
        following = jnp.searchsorted(self.mass, m + slack, side="right")
        n = self.heights.shape[0]
        inside = (following < n) & (self.widths[jnp.minimum(following, n - 1)] > 0)
        after = jnp.where(inside, self.heights[jnp.minimum(following, n - 1)], jnp.inf)
        return self.heights[last], after

    def share(self, m: Array, n: int) -> Array:
        """What of each sample lies below mass m."""
        covered = jnp.clip(m - (self.mass - self.widths), 0, self.widths)
        return jnp.zeros((n,), m.dtype).at[self.order].add(covered)


def _two_basins_by_bisection(c: Array, y: Array, volume: Array, w: Array) -> WaterLevel:
    """The level for a given bias is concave in it: its slope is the mass covered in one class less the other's."""

    def at(b: Array) -> tuple[Array, Array, Array]:
        found = water_level(c + y * b, volume, weight=w, method="newton")
        return found.level, found.p, y @ found.p

    lowest = [jnp.where((y * sign > 0) & (w > 0), c, jnp.inf).min() for sign in (1, -1)]
    spread = volume / jnp.where(w > 0, w, jnp.inf).min()  # no level stands further above the lowest sample
    middle = (lowest[1] - lowest[0]) / 2

    def halve(_: Any, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        b = (low + high) / 2
        rising = at(b)[2] > 0
        return jnp.where(rising, b, low), jnp.where(rising, high, b)

    steps = HALVINGS[jnp.dtype(c.dtype).name]
    low, high = lax.fori_loop(0, steps, halve, (middle - spread, middle + spread))
    b = (low + high) / 2
    # At the best b the masses differ only by samples that stand at the level: p is a mixture of both sides' p.
    (level, left, more), (other, right, less) = at(low), at(high)
    mix = jnp.where(more - less > 0, -less / jnp.where(more - less > 0, more - less, 1), 0.5)
    p = mix * left + (1 - mix) * right
    return WaterLevel(jnp.maximum(level, other), p, b)
