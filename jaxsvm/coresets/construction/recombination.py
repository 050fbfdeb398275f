"""Few points with the very totals of all: Caratheodory's theorem, by groups.

A sum `sum_i u_i A_i` of points with p variables is also one of p of these points, with other weights: while there are
more, a combination of them vanishes, and moving the weights along it takes one of them to 0 and leaves the sum. So
many points are taken by groups: the sums of 2 (p + 1) groups are points too, and half of them do.

Here the variables are those that weights are calibrated to (`calibration.py`), the pilot's dual vector among them:
where its total is kept, the pilot is optimal on the few points too. What they remember is the solution, of fewer points
than five a feature better than any draw; the weights of a draw are near those of all the data at every `(w, b)`, and
these are not: they have no epsilon.

Source: Maalouf, Jubran and Feldman 2019, Algorithm 2 ("Fast and accurate least-mean-squares solvers"); Litterer and
Lyons 2012. On the host, by NumPy: it is done once a coreset, and its shapes depend on the data.
"""

from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from jaxsvm.coresets.construction.calibration import totals_of

GROUPS = 2
"""Groups a variable: of twice as many as are kept, half are left in each round."""


def recombine(
    key: Array, found: Any, x: Array, y: Array, u: Array, m: int
) -> tuple[Int[np.ndarray, " k"], Float[np.ndarray, " k"]]:
    """At most m points with the totals of all, m >= d + 5, and their weights, by a `Proposal`; on the host."""
    A = np.asarray(totals_of(x - found.origin[None, :], y, found.h, found.share))
    weight, share = np.asarray(u), np.asarray(found.share)
    # A point inside its box has the margin 1 at the pilot, and says what b is: the one that is farthest inside stays.
    inside = int(np.argmax(weight * np.minimum(share, 1 - share)))
    others = np.where(np.arange(len(weight)) == inside, 0, weight)
    rows, moved = recombined(others, A, m - 1, np.random.default_rng(np.asarray(jax.random.key_data(key))))
    return np.append(rows, inside), np.append(moved, weight[inside])


def recombined(
    u: Float[np.ndarray, " n"], A: Float[np.ndarray, "n p"], m: int, generator: np.random.Generator
) -> tuple[Int[np.ndarray, " k"], Float[np.ndarray, " k"]]:
    """At most m of the points, m >= p, and weights with which their totals are those of all.

    Args:
        u: Weights, `(n,)`, not negative.
        A: Variables of each point.
        m: How many points may be left.
        generator: Of the groups that are made.

    Returns:
        Rows, and their weights, positive.
    """
    rows = np.flatnonzero(u > 0)
    v = u[rows]
    spread = np.sqrt(v @ A[rows] ** 2)
    A = A / np.where(spread > 0, spread, 1)
    while len(rows) > m:
        groups = np.array_split(generator.permutation(len(rows)), min(len(rows), GROUPS * (A.shape[1] + 1)))
        sums = np.stack([v[group] @ A[rows[group]] for group in groups])
        factors = _fewer(sums, np.asarray([len(group) for group in groups]), m)
        left = np.concatenate([group for group, factor in zip(groups, factors, strict=True) if factor > 0])
        if len(left) == len(rows):  # rounding: nothing can be moved
            break
        scale = np.concatenate([np.full(len(group), factor) for group, factor in zip(groups, factors, strict=True)])
        scale = scale[scale > 0]
        rows, v = rows[left], v[left] * scale
    return rows, v


def _fewer(sums: Float[np.ndarray, "g p"], sizes: Int[np.ndarray, " g"], m: int) -> Float[np.ndarray, " g"]:
    """Factors of groups, not negative, that keep the total of their sums: 0 until m points are left, or p groups."""
    p, left = sums.shape[1], sizes.sum()
    vanishing = np.linalg.qr(sums, mode="complete")[0][:, p:]  # columns d with sums' d = 0
    factors = np.ones(len(sums))
    while left > m and vanishing.shape[1]:
        d, vanishing = vanishing[:, 0], vanishing[:, 1:]
        reach = np.full(len(d), np.inf)
        np.divide(factors, np.abs(d), out=reach, where=(factors > 0) & (d != 0))
        down, up = np.where(d > 0, reach, np.inf), np.where(d < 0, reach, np.inf)
        gone = int(np.argmin(np.minimum(down, up)))  # whichever way is shorter
        if not np.isfinite(reach[gone]):  # nothing is left of this one
            continue
        factors = np.maximum(factors + (up[gone] if d[gone] < 0 else -down[gone]) * d, 0)
        factors[gone] = 0
        left -= sizes[gone]
        vanishing = vanishing - np.outer(d / d[gone], vanishing[gone])
        vanishing[factors == 0] = 0
    return factors
