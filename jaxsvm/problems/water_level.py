"""The water level: the worst margin after a budget of slack has been spent in the best way.

Source: Cotter, Shalev-Shwartz, Srebro, "The Kernelized Stochastic Batch Perceptron" (ICML 2012), whose printed routines
are wrong (docs/papers/stochastic_batch_perceptron.md, Errata); these are closed forms. A volume V of water over a floor
of heights `c_i` and widths `w_i` has its surface at

    level = min_{p in simplex} p'c + V max_i p_i / w_i = min_k (sum of w c over the k lowest + V) / (their sum of w),

the root of `sum_i w_i max(0, level - c_i) = V`. A minimising p, uniform (in units of w) on the k lowest, is a
supergradient of the level with respect to c. With an unregularised bias there are two basins, one for each class, which
the bias moves against each other: p then has half of its mass in each.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from jaxsvm.errors import InputError, is_concrete, require_finite
from jaxsvm.numerics import selection
from jaxsvm.problems.arguments import checked_signs, require_both_classes
from jaxsvm.runtime.arrays import transfers
from jaxsvm.runtime.loops import fori_loop, once, while_loop

HALVINGS = {"float32": 32, "float64": 62}
"""Bisections by dtype: about its digits and the exponent's range."""


class WaterLevel(NamedTuple):
    """A level, with the distribution and the bias that prove it.

    Attributes:
        level: The level, `()`.
        p: A minimax-optimal distribution over the samples, `(n,)`: `level = p . c + V max_i p_i / w_i`.
        bias: The bias that reaches the level, `()`: the middle of an interval of such biases; 0 without a bias.
    """

    level: Float[Array, ...]
    p: Float[Array, "... n"]
    bias: Float[Array, ...]


@transfers
def water_level(c: ArrayLike, volume: ArrayLike, *, weight: ArrayLike | None = None) -> WaterLevel:
    """Return the largest `min_i (c_i + xi_i)` over `xi >= 0`, `sum_i w_i xi_i <= volume`, by Newton's method.

    Args:
        c: Responses, `(n,)`; infinite ones stay dry.
        volume: V, `()`, not negative: `n nu` in the slack-constrained problem.
        weight: w, `(n,)`, not negative; 0 removes a response; None: all 1.

    Returns:
        The level, p and bias 0.

    Raises:
        InputError: On a dtype that is not real; on concrete weights that are negative, infinite or all zero, a volume
            that is negative or infinite, or responses of NaN or -infinity.
    """
    c, w, volume = _checked(c, volume, weight)
    # Relative to the lowest response: rounding would lose a small volume in large responses.
    lowest = jnp.where(w > 0, c, jnp.inf).min()
    rest = jnp.where(w > 0, c - lowest, jnp.inf)
    level = _fallen(*lax.stop_gradient((rest, w, volume)))
    covered = jnp.where(rest <= level, w, 0)  # the lowest, with `rest = 0`, is
    same = (volume + jnp.where(covered > 0, covered * rest, 0).sum()) / covered.sum()  # has derivatives too
    return WaterLevel(lowest + level + (same - lax.stop_gradient(same)), covered / covered.sum(), jnp.zeros_like(level))


@transfers
def water_level_with_bias(
    c: ArrayLike, y: ArrayLike, volume: ArrayLike, *, weight: ArrayLike | None = None
) -> WaterLevel:
    """Return the largest `min_i (c_i + y_i b + xi_i)` over `xi >= 0`, `sum_i w_i xi_i <= volume` and all b, by sorting.

    Args:
        c: Responses without the bias, `(n,)`.
        y: Signs, `(n,)`, both present.
        volume: V, `()`, not negative.
        weight: w, `(n,)`; None: all 1.

    Returns:
        The level, p with half of its mass in each class, and b.

    Raises:
        InputError: As `water_level`; on signs other than -1 and +1, or a class without a positive weight.
    """
    c, w, volume = _checked(c, volume, weight)
    y = checked_signs(y, c.shape[0], c.dtype)
    if is_concrete(c, y, weight):
        require_both_classes(y, w)
    return _two_basins(c, y, volume, w)


def _checked(c: Any, volume: Any, weight: Any) -> tuple[Array, Array, Array]:
    for name, values in (("c", c), ("volume", volume), ("weight", weight)):
        kind = getattr(values, "dtype", None) or np.asarray(0 if values is None else values).dtype
        if not any(jnp.issubdtype(kind, real) for real in (jnp.floating, jnp.integer, jnp.bool_)):
            raise InputError(f"{name} has dtype {kind}: real numbers are needed.")
    c = jnp.asarray(c)
    if not jnp.issubdtype(c.dtype, jnp.floating) or c.dtype.itemsize < 4:
        c = c.astype(jnp.float32 if jnp.issubdtype(c.dtype, jnp.floating) else jnp.result_type(float))
    if c.ndim != 1 or c.shape[0] == 0:
        raise InputError(f"c has shape {c.shape}: (n,) with n >= 1 is needed (use vmap for lanes).")
    w = jnp.ones_like(c) if weight is None else jnp.asarray(weight, c.dtype)
    if w.shape != c.shape:
        raise InputError(f"weight has shape {w.shape}: {c.shape} is needed, one a response.")
    if np.shape(volume) != ():
        raise InputError(f"volume has shape {np.shape(volume)}: one number is needed.")
    if weight is not None and is_concrete(weight):
        if not (np.asarray(weight) >= 0).all():
            raise InputError(f"weight holds {float(np.min(weight))}: widths must not be negative.")
        if not (np.asarray(weight) > 0).any():
            raise InputError("weight is zero everywhere: at least one response must count.")
        require_finite("weight", weight)
    if is_concrete(volume) and not 0 <= float(volume) < np.inf:
        raise InputError(f"volume is {float(volume)}: a finite number, not negative, is needed.")
    if is_concrete(c, weight):
        counted = np.asarray(c)[np.asarray(w) > 0]
        if not ((counted > -np.inf).all() and (counted < np.inf).any()):
            raise InputError("c holds NaN or -infinity, or no finite value: water has no level over such a floor.")
    w = jnp.where(c < jnp.inf, w, 0)  # no water reaches an infinite response
    return jnp.where(c < jnp.inf, c, 0), w, jnp.asarray(volume, c.dtype)


def _fallen(heights: Array, w: Array, volume: Array, above: Any = jnp.inf) -> Array:
    """Return the level by Newton's method, which falls from the second pass on; the first counts what is below `above`.

    If a pass does not move the level although it costs more than the volume, rounding put it just above a heavy sample,
    whose term hides the slack of lighter ones: the search continues below that sample. Each other pass uncovers one
    sample or more (11 passes were seen at n = 60,000).
    """
    eps = jnp.finfo(heights.dtype).eps

    def fill(g: Array) -> Array:
        covered = (heights < g) & (w > 0)
        mass = jnp.where(covered, w, 0).sum()
        level = (volume + jnp.where(covered, w * heights, 0).sum()) / jnp.where(mass > 0, mass, 1)
        return jnp.where(mass > 0, level, g)

    def fall(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        k, _, g = carry

        def below(following: Array) -> Array:
            cost = jnp.where(w > 0, w * jnp.maximum(g - heights, 0), 0).sum()
            top = jnp.where((heights < g) & (w > 0), heights, -jnp.inf).max()
            hidden = (cost > volume * (1 + 8 * eps * heights.shape[0])) & (top > -jnp.inf)
            return jnp.where(hidden, top, following)

        following = fill(g)
        return k + 1, g, once(following >= g, below, following)

    start = fill(jnp.asarray(above, heights.dtype))
    first = (jnp.zeros((), jnp.int32), jnp.full_like(start, jnp.inf), start)
    _, above, g = while_loop(lambda carry: (carry[2] < carry[1]) & (carry[0] < 100), fall, first)
    return jnp.minimum(above, g)


def _two_basins(c: Array, y: Array, volume: Array, w: Array) -> WaterLevel:
    """Solve `2 level = min_m (V + S+(m) + S-(m)) / m` over the mass m that is covered in each class.

    `S(m)`, the sum of the lowest heights of a class up to mass m, is piecewise linear. So the minimum lies at a mass
    where a sample of one of the classes is covered in full.
    """
    # Both classes are lanes of one computation, which compiles in half the time of two.
    sides = jax.vmap(_Basin.of, (None, 0))(c, jnp.stack([jnp.where(y * sign > 0, w, 0) for sign in (1, -1)]))
    most = sides.mass[:, -1].min()
    candidates = sides.mass.ravel()
    usable = (candidates > 0) & (candidates <= most * (1 + 8 * jnp.finfo(c.dtype).eps))
    masses = jnp.minimum(jnp.where(usable, candidates, most), most)
    shift = sides.lowest.sum()  # the sums are relative to the lowest height of their class
    doubled = (volume + jax.vmap(_Basin.sum_up_to, (0, None))(sides, masses).sum(axis=0)) / masses
    best = selection.lowest(jnp.where(usable, doubled, jnp.inf))
    m, twice = masses[best], doubled[best] + shift

    (top, top_n), (after, after_n) = jax.vmap(_Basin.around, (0, None))(sides, m)
    room = jnp.maximum(twice - top - top_n, 0)
    up, up_n = jnp.minimum(room, after - top), jnp.minimum(room, after_n - top_n)
    plus, minus = top + (room + up - up_n) / 2, top_n + (room - up + up_n) / 2
    p = jax.vmap(_Basin.share, (0, None))(sides, m).sum(axis=0)
    return WaterLevel((plus + minus) / 2, p / p.sum(), (minus - plus) / 2)


class _Basin(NamedTuple):
    """One class in increasing order; the samples of the other class, of width 0, are last."""

    order: Array
    heights: Array
    widths: Array
    mass: Array
    lowest: Array

    @classmethod
    def of(cls, c: Array, w: Array) -> _Basin:
        order = jnp.argsort(jnp.where(w > 0, c, jnp.inf))
        return cls(order, c[order], w[order], jnp.cumsum(w[order]), c[order[0]])

    def sum_up_to(self, masses: Array) -> Array:
        filled = jnp.cumsum(self.widths * (self.heights - self.lowest))
        zero = jnp.zeros((1,), filled.dtype)
        return jnp.interp(masses, jnp.concatenate([zero, self.mass]), jnp.concatenate([zero, filled]))

    def around(self, m: Array) -> tuple[Array, Array]:
        """Return the highest covered height at mass m and the next one; the same if a sample is covered in part."""
        slack = 8 * jnp.finfo(m.dtype).eps * m
        last = (self.mass < m - slack).sum()  # the first place whose mass reaches m
        following = (self.mass <= m + slack).sum()
        n = self.heights.shape[0]
        inside = (following < n) & (self.widths[jnp.minimum(following, n - 1)] > 0)
        after = jnp.where(inside, self.heights[jnp.minimum(following, n - 1)], jnp.inf)
        return self.heights[last], after

    def share(self, m: Array) -> Array:
        """Return the part of each sample that lies below mass m."""
        covered = jnp.clip(m - (self.mass - self.widths), 0, self.widths)
        return jnp.zeros_like(covered).at[self.order].add(covered)


def level_by_bisection(c: Array, y: Array, volume: Array, w: Array) -> WaterLevel:
    """Return what `water_level_with_bias` does, without sorting and without derivatives.

    Bisect the bias: the level is concave in it, and its slope is the difference of covered masses.
    """
    eps, steps = jnp.finfo(c.dtype).eps, HALVINGS[jnp.dtype(c.dtype).name]
    present, sides = w > 0, [jnp.where(y * sign > 0, w, 0) for sign in (1, -1)]
    heights = jnp.where(present, c, jnp.inf)
    lowest, lowest_n = (jnp.where(y * sign > 0, heights, jnp.inf).min() for sign in (1, -1))
    middle = (lowest_n - lowest) / 2
    floor = (lowest + lowest_n) / 2  # the lowest heights of both classes at `middle`; others are relative to it
    rest = jnp.where(present, c + y * middle - floor, 0)
    # No best bias is further from the middle than the level if all the water were in one class.
    spread = jnp.maximum(*(_fallen(rest, side, volume) for side in sides))

    def at(b: Array, guess: Array) -> tuple[Array, Array]:
        heights = rest + y * b
        low = -jnp.abs(b)
        level = _fallen(heights, w, volume, jnp.where(guess > low, guess, low + spread))
        # A heavy sample at the surface holds any volume: rounding must not put it above.
        return level, jnp.where(heights <= level + 4 * eps * (jnp.abs(heights) + jnp.abs(level)), y * w, 0).sum()

    def halve(_: Any, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        low, high, guess = carry
        b = (low + high) / 2
        level, slope = at(b, guess)
        return jnp.where(slope > 0, b, low), jnp.where(slope > 0, high, b), level

    low, high, guess = fori_loop(0, steps, halve, (-spread, spread, spread))
    b = (low + high) / 2
    level, _ = at(b, guess)
    rounding = 16 * eps * (jnp.abs(rest) + jnp.abs(b) + jnp.abs(level)) + 4 * spread * 2.0**-steps
    p, room = _balanced(rest + y * b - level, rounding, y, w)
    return WaterLevel(floor + level, p, middle + b + room)


def _balanced(over: Array, rounding: Array, y: Array, w: Array) -> tuple[Array, Array]:
    """Return p at a best bias, and the distance to the middle of the best biases.

    In each class the samples below the level are covered, and as much of those at the level as makes the covered masses
    equal. If that is all of them or none, the classes can be moved against each other without changing the level.
    `over` are heights above the level, `rounding` bounds on their rounding, and w widths, `(n,)` each.
    """
    sides = [(y * sign > 0) & (w > 0) for sign in (1, -1)]
    # At a best bias each class has a covered sample, whatever rounding says.
    touched = [over <= jnp.maximum(rounding, jnp.where(side, over, jnp.inf).min()) for side in sides]
    under = [side & (over < -rounding) for side in sides]
    level_with = [side & touch & ~below for side, touch, below in zip(sides, touched, under, strict=True)]
    sure, partly = ([jnp.where(part, w, 0).sum() for part in parts] for parts in (under, level_with))
    least = jnp.maximum(*sure)
    mass = jnp.where(least > 0, least, jnp.minimum(*(s + t for s, t in zip(sure, partly, strict=True))))
    eps = 64 * jnp.finfo(w.dtype).eps  # relative to what is compared: light widths vanish in the total
    halves, tops, nexts = [], [], []
    for side, below, at, full, extra in zip(sides, under, level_with, sure, partly, strict=True):
        share = jnp.clip((mass - full) / jnp.where(extra > 0, extra, 1), 0, 1)
        half = jnp.where(below, w, jnp.where(at, share * w, 0))
        halves.append(half / half.sum() / 2)
        some, rest = mass - full > eps * mass, full + extra - mass > eps * (full + extra)
        tops.append(-jnp.where(below | (at & some), over, -jnp.inf).max())
        nexts.append(jnp.where(side & ~below & ~(at & ~rest), over, jnp.inf).min())
    right, left = jnp.minimum(tops[0], nexts[1]), jnp.minimum(nexts[0], tops[1])
    return halves[0] + halves[1], (jnp.maximum(right, 0) - jnp.maximum(left, 0)) / 2
