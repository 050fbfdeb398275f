"""Calibrated weights: what is known of all the points is made exact on the few.

Weights `v = u / pi` are unbiased; weights near them that give the sample the data's own totals of some variables have
less error in everything that goes along with these variables. Here they are the weight of each class, the loss at the
pilot, and the pilot's dual vector `sum a_i y_i (x_i, 1)`: where that one is met, the pilot satisfies the optimality
conditions of the coreset's problem too, and training on the coreset finds it again. Of the weights that meet them

    min  1/2 sum_i (v'_i - v_i)^2 / (v_i s_i) + 1/2 |A'v' - T|^2 / ridge,    v'_i in [LEAST v_i, MOST v_i]

are taken, with `s = 1 - pi`: points that were certain keep their weights. The dual problem has no constraints and as
many variables as there are totals, a piecewise quadratic, by Newton's method with a line search. The ridge leaves a
part of the totals open where they are many for so few points.

No weight changes by more than the factor `1 + delta` that comes with them, so an epsilon-coreset stays one for
`epsilon + delta (1 + epsilon)`; the bias is of the order 1 / m.

Source: Deville and Särndal 1992 (calibration estimators, their case 7: the truncated linear distance); Chambers 1996
(the ridge).
"""

from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxsvm.numerics.linear.elimination import factored

LEAST, MOST = 0.25, 4.0
"""Weights change by these factors at most."""
RIDGE = 0.01
"""Times the number of totals a point, relative to the totals' own variances."""
TURNS = 40
HALVINGS = 12
ENOUGH = 1e-9


def totals_of(x: Array, y: Array, h: Array, share: Array) -> Float[Array, "n p"]:
    """The variables of each point, per unit of its weight.

    Args:
        x: Points, `(n, d)`, best centred.
        y: Signs, `(n,)`.
        h: Their losses at the pilot, `(n,)`.
        share: Their dual variables, in the part of their boxes, `(n,)` in [0, 1].
    """
    pull = (share * y)[:, None]
    return jnp.concatenate(
        [jnp.stack([(y > 0).astype(h.dtype), (y < 0).astype(h.dtype), h], axis=1), pull * x, pull], axis=1
    )


def reach_of(u: Float[Array, " n"], pi: Float[Array, " n"], A: Float[Array, "n p"]) -> Float[Array, " p"]:
    """How far the weights of a draw can be expected to move each total, squared: the mean of `sum v s A^2`; pure.

    Over all the points, not those drawn: a draw without the few points that a total rests on can hardly move it, and in
    its own measure what is missing there would be worth any change of all weights.

    Args:
        u: Weights, `(n,)`.
        pi: Probabilities of being drawn, `(n,)`; 0: absent.
        A: Variables, `(n, p)`.
    """
    return jnp.where(pi > 0, u * (1 - pi), 0) @ A**2


def calibrated(
    v: Float[Array, " m"], s: Float[Array, " m"], A: Float[Array, "m p"], T: Float[Array, " p"],
    reach: Float[Array, " p"],
) -> Array:  # fmt: skip
    """Weights near v with `A'v'` near T, `(m,)`; pure.

    Args:
        v: Weights, `(m,)`; 0: absent.
        s: How far each may be moved, in [0, 1]; 0: not at all.
        A: Variables, `(m, p)`.
        T: Their totals over the data, `(p,)`.
        reach: What totals are measured by, over all draws (`reach_of`), `(p,)`.
    """
    spread = jnp.sqrt(reach)
    scale = jnp.where(spread > 0, 1 / jnp.where(spread > 0, spread, 1), 0)  # what every draw meets is left out
    A, gap = A * scale[None, :], (T - v @ A) * scale
    ridge = RIDGE * A.shape[1] / jnp.maximum((v > 0).sum(dtype=v.dtype), 1)
    low, high = LEAST - 1, MOST - 1
    width = jnp.where(s > 0, v / jnp.where(s > 0, s, 1), 0)

    def value(t: Array, dot: Array, square: Array) -> Array:
        """The dual objective, where `t = s A l`, `dot = gap l` and `square = |l|^2`."""
        kept = jnp.clip(t, low, high)
        return width @ (kept * (t - 0.5 * kept)) - dot + 0.5 * ridge * square

    def turn(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        step, dual, _ = carry
        t = s * (A @ dual)
        free = (t > low) & (t < high)
        slope = (v * jnp.clip(t, low, high)) @ A - gap + ridge * dual
        H = jnp.matmul((A * jnp.where(free, v * s, 0)[:, None]).T, A, precision=lax.Precision.HIGHEST)
        d = -factored(H + (ridge + 1e-10) * jnp.eye(len(dual), dtype=dual.dtype)).solve(slope)
        ahead = s * (A @ d)
        sizes = 0.5 ** jnp.arange(HALVINGS, dtype=dual.dtype)
        values = lax.map(lambda k: value(t + k * ahead, gap @ (dual + k * d), ((dual + k * d) ** 2).sum()), sizes)
        best = values.min()
        size = jnp.where(best < value(t, gap @ dual, (dual**2).sum()), jnp.where(values == best, sizes, 0).max(), 0)
        return step + 1, dual + size * d, (size == 0) | (jnp.abs(slope).max() < ENOUGH)

    start = (jnp.zeros((), jnp.int32), jnp.zeros_like(T), jnp.asarray(False))
    dual = lax.while_loop(lambda c: (c[0] < TURNS) & ~c[2], turn, start)[1]
    moved = v * (1 + jnp.clip(s * (A @ dual), low, high))
    return jnp.where(jnp.isfinite(moved), moved, v)


def largest_change(before: Array, after: Array) -> Any:
    """The largest relative change of a weight, `()`."""
    return jnp.where(before > 0, jnp.abs(after / jnp.where(before > 0, before, 1) - 1), 0).max(initial=0)
