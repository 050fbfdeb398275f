"""Choose few points with exactly the totals of all: Caratheodory's theorem, applied to groups.

A sum `sum_i u_i A_i` of points with p variables is also a sum of p of these points with other weights: while there are
more than p, some combination of them vanishes, and moving the weights along it takes one of them to 0 and keeps the
sum. To go fast, this is done with the sums of 2 (p + 1) groups of points, of which half are left.

The variables are those that weights are calibrated to (`calibration.py`), among them the pilot's dual vector: as its
total is kept, the pilot is optimal on the few points too. With fewer than five points per feature they reproduce the
solution better than any draw. The weights of a draw represent all the data at every `(w, b)`; these do not, so no
epsilon is known for them.

Source: Maalouf, Jubran and Feldman 2019, Algorithm 2 ("Fast and accurate least-mean-squares solvers"); Litterer and
Lyons 2012. NumPy on the host: it runs once per coreset, and its shapes depend on the data.
"""

from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from jaxsvm.coresets.construction.calibration import totals_of


def recombine(
    key: Array, proposal: Any, x: Array, y: Array, u: Array, m: int
) -> tuple[Int[np.ndarray, " k"], Float[np.ndarray, " k"]]:
    """Return at most m >= d + 5 rows, and weights with which they have the totals of all points (`Proposal`)."""
    A = np.asarray(totals_of(x - proposal.origin[None, :], y, proposal.h, proposal.share))
    weight, share = np.asarray(u), np.asarray(proposal.share)
    # A point inside its box has the margin 1 at the pilot, which determines b: keep the one farthest inside.
    inside = int(np.argmax(weight * np.minimum(share, 1 - share)))
    others = np.where(np.arange(len(weight)) == inside, 0, weight)
    rows, moved = recombined(others, A, m - 1, np.random.default_rng(np.asarray(jax.random.key_data(key))))
    return np.append(rows, inside), np.append(moved, weight[inside])


def recombined(
    u: Float[np.ndarray, " n"], A: Float[np.ndarray, "n p"], m: int, generator: np.random.Generator
) -> tuple[Int[np.ndarray, " k"], Float[np.ndarray, " k"]]:
    """Return at most m of the points, m >= p, and positive weights that keep the totals `u A` of all."""
    rows = np.flatnonzero(u > 0)
    v = u[rows]
    spread = np.sqrt(v @ A[rows] ** 2)
    A = A / np.where(spread > 0, spread, 1)
    while len(rows) > m:
        groups = np.array_split(generator.permutation(len(rows)), min(len(rows), 2 * (A.shape[1] + 1)))
        sums = np.stack([v[group] @ A[rows[group]] for group in groups])
        factors = _fewer(sums, np.asarray([len(group) for group in groups]), m)
        left = np.concatenate([group for group, factor in zip(groups, factors, strict=True) if factor > 0])
        if len(left) == len(rows):  # rounding: no weight can move
            break
        scale = np.repeat(factors, [len(group) for group in groups])
        rows, v = rows[left], v[left] * scale[scale > 0]
    return rows, v


def _fewer(sums: Float[np.ndarray, "g p"], sizes: Int[np.ndarray, " g"], m: int) -> Float[np.ndarray, " g"]:
    """Return factors of groups that keep the total of their sums, 0 for as many as leave m points, or p groups."""
    p, left = sums.shape[1], sizes.sum()
    vanishing = np.linalg.qr(sums, mode="complete")[0][:, p:]  # columns d with sums' d = 0
    factors = np.ones(len(sums))
    while left > m and vanishing.shape[1]:
        d, vanishing = vanishing[:, 0], vanishing[:, 1:]
        reach = np.full(len(d), np.inf)
        np.divide(factors, np.abs(d), out=reach, where=(factors > 0) & (d != 0))
        down, up = np.where(d > 0, reach, np.inf), np.where(d < 0, reach, np.inf)
        gone = int(np.argmin(np.minimum(down, up)))  # the shorter way
        if not np.isfinite(reach[gone]):  # this column has no free group left
            continue
        factors = np.maximum(factors + (up[gone] if d[gone] < 0 else -down[gone]) * d, 0)
        factors[gone] = 0
        left -= sizes[gone]
        vanishing = vanishing - np.outer(d / d[gone], vanishing[gone])
        vanishing[factors == 0] = 0
    return factors
