"""Calibrate weights: give the drawn points the exact totals of some variables of all the points.

Weights `v = u / pi` are unbiased. Weights near them that give the sample the data's own totals of some variables have
less error in everything correlated with these variables. The variables are the weight of each class, the loss at the
pilot, and the pilot's dual vector `sum a_i y_i (x_i, 1)`: if that one is met, the pilot satisfies the optimality
conditions of the coreset's problem too, so training on the coreset finds it again. The weights minimise

    1/2 sum_i (v'_i - v_i)^2 / (v_i s_i) + 1/2 |A'v' - T|^2 / ridge,    v'_i in [v_i / 4, 4 v_i]

with `s = 1 - pi`: points that were certain keep their weights. The dual problem is unconstrained and piecewise
quadratic, with one variable per total; Newton's method with a line search solves it. The ridge leaves a part of the
totals unmet if there are many totals for so few points.

If no weight changes by more than the factor `1 + delta`, an epsilon-coreset stays one for
`epsilon + delta (1 + epsilon)`; the bias is of the order 1 / m.

Source: Deville and Särndal 1992 (calibration estimators, their case 7: the truncated linear distance); Chambers 1996
(the ridge).
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxsvm.coresets.measured import MEASURED
from jaxsvm.numerics.linear.elimination import factored


def totals_of(x: Array, y: Array, h: Array, share: Array) -> Float[Array, "n p"]:
    """Return the calibrated variables of each point, per unit of its weight.

    From points x (best centred), signs y, losses h at the pilot, and dual variables as shares of their boxes.
    """
    pull = (share * y)[:, None]
    of_classes = jnp.stack([(y > 0).astype(h.dtype), (y < 0).astype(h.dtype), h], axis=1)
    return jnp.concatenate([of_classes, pull * x, pull], axis=1)


def reach_of(u: Float[Array, " n"], pi: Float[Array, " n"], A: Float[Array, "n p"]) -> Float[Array, " p"]:
    """Return the mean of `sum v s A^2` over all draws with probabilities pi: the squared scales of the totals; pure.

    The mean is over all points, not over those drawn: a draw that misses the few points a total rests on can hardly
    move that total, and measured by the draw alone, the missing part would justify any change of all weights.
    """
    return jnp.where(pi > 0, u * (1 - pi), 0) @ A**2


def calibrated(
    v: Float[Array, " m"], s: Float[Array, " m"], A: Float[Array, "m p"], T: Float[Array, " p"],
    reach: Float[Array, " p"],
) -> Array:  # fmt: skip
    """Return weights near v (0: absent) with `A'v'` near T, the totals over the data; pure.

    s in [0, 1] limits how far each weight may move (0: not at all); `reach` is that of `reach_of`.
    """
    spread = jnp.sqrt(reach)
    scale = jnp.where(spread > 0, 1 / jnp.where(spread > 0, spread, 1), 0)  # drop totals that every draw meets
    A, gap = A * scale[None, :], (T - v @ A) * scale
    ridge = MEASURED.ridge_per_total * A.shape[1] / jnp.maximum((v > 0).sum(dtype=v.dtype), 1)
    low, high = 1 / MEASURED.largest_weight_change - 1, MEASURED.largest_weight_change - 1
    width = jnp.where(s > 0, v / jnp.where(s > 0, s, 1), 0)

    def value(t: Array, dot: Array, square: Array) -> Array:
        """Return the dual objective, with `t = s A l`, `dot = gap l` and `square = |l|^2`."""
        kept = jnp.clip(t, low, high)
        return width @ (kept * (t - 0.5 * kept)) - dot + 0.5 * ridge * square

    def newton(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        step, dual, _ = carry
        t = s * (A @ dual)
        free = (t > low) & (t < high)
        slope = (v * jnp.clip(t, low, high)) @ A - gap + ridge * dual
        H = jnp.matmul((A * jnp.where(free, v * s, 0)[:, None]).T, A, precision=lax.Precision.HIGHEST)
        d = -factored(H + (ridge + 1e-10) * jnp.eye(len(dual), dtype=dual.dtype)).solve(slope)
        ahead = s * (A @ d)
        sizes = 0.5 ** jnp.arange(12, dtype=dual.dtype)  # of the line search: all at once, the best one is taken
        values = lax.map(lambda k: value(t + k * ahead, gap @ (dual + k * d), ((dual + k * d) ** 2).sum()), sizes)
        best = values.min()
        size = jnp.where(best < value(t, gap @ dual, (dual**2).sum()), jnp.where(values == best, sizes, 0).max(), 0)
        return step + 1, dual + size * d, (size == 0) | (jnp.abs(slope).max() < 1e-9)

    start = (jnp.zeros((), jnp.int32), jnp.zeros_like(T), jnp.asarray(False))
    dual = lax.while_loop(lambda c: (c[0] < 40) & ~c[2], newton, start)[1]
    moved = v * (1 + jnp.clip(s * (A @ dual), low, high))
    return jnp.where(jnp.isfinite(moved), moved, v)
