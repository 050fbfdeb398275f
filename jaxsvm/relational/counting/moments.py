"""Statistics of a join from its tables: sums, means, second moments; scaling by them; and least squares, exactly.

The second moments of two tables' features are `X_i' S`, where `S[r]` is the sum of the other table's features over the
rows of the join through r: one pass a table, and nothing of size d^2 a row, which the covariance ring (Schleich,
Olteanu, Ciucanu, "Learning Linear Regression Models over Factorized Joins", SIGMOD 2016) would carry.
"""

from typing import Any, NamedTuple

import numpy as np

from jaxsvm.relational.counting import semirings as counting

COLUMNS = 64
"""Columns of one table that a pass takes at a time."""
SCALES = ("none", "max", "standard")


class Moments(NamedTuple):
    """Over the rows of a join, in the order of its coefficients.

    Attributes:
        size: N.
        mean: Of each feature, `(d,)`.
        absolute: Of its size, `(d,)`.
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
    """Of a join, O(n d^2 + m n d)."""
    tree, blocks = join.tree, join.blocks
    N = float(join.size)
    out = join.counts()
    of_label = [counting.marginals(tree, counting.masked(tree, sign)) for sign in (0, 1)]
    first = np.cumsum([0] + [block.d for block in blocks])
    second = np.zeros((first[-1], first[-1]))
    for i, block in enumerate(blocks):
        for begin in range(0, block.d, COLUMNS):
            wanted = np.arange(begin, min(begin + COLUMNS, block.d))
            part = columns(block, wanted)
            for j, sums in enumerate(counting.spread(tree, i, part)):
                theirs = [blocks[j].transposed(sums[:, k]) for k in range(len(wanted))]
                second[first[j] : first[j + 1], first[i] + wanted] = np.array(theirs).T.reshape(
                    blocks[j].d, len(wanted)
                )
    gather = np.concatenate
    return Moments(
        join.size,
        gather([b.transposed(o) for b, o in zip(blocks, out, strict=True)]) / N,
        gather([b.absolute().transposed(o) for b, o in zip(blocks, out, strict=True)]) / N,
        (second + second.T) / (2 * N),
        float((of_label[0][0].sum() - of_label[1][0].sum()) / N),
        gather([b.transposed(p - q) for b, p, q in zip(blocks, *of_label, strict=True)]) / N,
    )


def columns(block: Any, wanted: np.ndarray) -> np.ndarray:
    """Some columns of a block, with one for each level of a category, `(n_i, k)`."""
    p = len(block.names)
    parts, first = [block.X[:, wanted[wanted < p]]], p
    for _, codes, levels in block.categories:
        inside = wanted[(wanted >= first) & (wanted < first + len(levels))] - first
        parts.append((codes[:, None] == inside).astype(float))
        first += len(levels)
    return np.concatenate(parts, axis=1)


def least_squares(join: Any, lam: float) -> np.ndarray:
    """The least-squares SVM, `argmin mean (1 - y beta.x)^2 + lam |beta|^2`, `(d,)`, for a join of any size.

    Args:
        join: With a constant feature, where one is wanted (`prepared`).
        lam: The strength of the regulariser, > 0.
    """
    m = moments(join)
    return np.linalg.solve(m.second + lam * np.eye(len(m.mean)), m.label_mean)
