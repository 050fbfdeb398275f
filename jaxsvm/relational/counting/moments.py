"""Compute statistics of a join from its tables: sums, means, second moments; and least squares, exactly.

The second moments of two tables' features are `X_i' S`, where `S[r]` is the sum of the other table's features over the
rows of the join through r: one pass per table, without the d^2 numbers per row that the covariance ring would carry
(Schleich, Olteanu, Ciucanu, "Learning Linear Regression Models over Factorized Joins", SIGMOD 2016).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jaxsvm.errors import require_part
from jaxsvm.relational.counting import semirings as counting
from jaxsvm.runtime.checks import checked, require_positive

if TYPE_CHECKING:
    from jaxsvm.relational.schema.join import Join

SCALES = ("none", "max", "standard")


class Moments(NamedTuple):
    """Statistics over the rows of a join, in the order of its coefficients.

    Attributes:
        size: The number of rows N.
        mean: Mean of each feature, `(d,)`.
        absolute: Mean of its absolute value, `(d,)`.
        second: Mean of `x x'`, `(d, d)`.
        label: Mean of y, `()`.
        label_mean: Mean of `y x`, `(d,)`.
    """

    size: float
    mean: np.ndarray
    absolute: np.ndarray
    second: np.ndarray
    label: float
    label_mean: np.ndarray


def moments(join: Any) -> Moments:
    """Return the moments of a join of m tables of n rows, with d features in all, in O(n d^2 + m n d)."""
    tree, blocks = join.tree, join.blocks
    N = float(join.size)
    out = join.counts()
    plus, minus = (counting.marginals(tree, counting.masked(tree, sign)) for sign in (0, 1))
    first = np.cumsum([0] + [block.d for block in blocks])
    second = np.zeros((first[-1], first[-1]))
    for i, block in enumerate(blocks):
        for begin in range(0, block.d, 64):  # columns of one pass, which bounds its memory
            wanted = np.arange(begin, min(begin + 64, block.d))
            for j, sums in enumerate(counting.spread(tree, i, block.columns(wanted))):
                theirs = np.array([blocks[j].transposed(column) for column in sums.T])
                second[first[j] : first[j + 1], first[i] + wanted] = theirs.T.reshape(blocks[j].d, len(wanted))
    gather = np.concatenate
    return Moments(
        join.size,
        gather([b.transposed(o) for b, o in zip(blocks, out, strict=True)]) / N,
        gather([b.absolute().transposed(o) for b, o in zip(blocks, out, strict=True)]) / N,
        (second + second.T) / (2 * N),
        float((plus[0].sum() - minus[0].sum()) / N),
        gather([b.transposed(p - q) for b, p, q in zip(blocks, plus, minus, strict=True)]) / N,
    )


@checked
def least_squares(join: Join, lam: float) -> np.ndarray:
    """Solve the least-squares SVM, `argmin mean (1 - y beta.x)^2 + lam |beta|^2`, `(d,)`, for a join of any size.

    Args:
        join: A join; with a constant feature, if one is wanted (`prepared`).
        lam: The strength of the regulariser, > 0.

    Raises:
        InputError: On what is no join, and another lam.
    """
    require_part("join", join, "moments", "a `relational.Join` is needed")
    require_positive("lam", lam)
    m = moments(join)
    return np.linalg.solve(m.second + lam * np.eye(len(m.mean)), m.label_mean)
