"""Statistics of a join from its tables: sums, means, second moments; scaling by them; and least squares, exactly.

The second moments of two tables' features are `X_i' S`, where `S[r]` is the sum of the other table's features over the
rows of the join through r: one pass a table, and nothing of size d^2 a row, which the covariance ring (Schleich,
Olteanu, Ciucanu, "Learning Linear Regression Models over Factorized Joins", SIGMOD 2016) would carry.
"""

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from jaxsvm.errors import InputError
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


def prepared(join: Any, scale: str = "none", intercept: bool = False) -> Any:
    """A join with scaled features, and a constant one in the label's table.

    Args:
        join: Features as given.
        scale: "none"; "max": by the largest size of a feature among rows that join, as in the paper; "standard": mean 0
            and variance 1 over the rows of the join, whose perturbations then are smaller too. Levels of categories
            stay 0 and 1.
        intercept: Whether there is a constant feature 1; it is regularised like the others.

    Raises:
        InputError: On another scale.
    """
    if scale not in SCALES:
        raise InputError(f"scale is {scale!r}: one of {', '.join(SCALES)} is needed.")
    N, blocks = float(join.size), []
    for i, (given, out) in enumerate(zip(join.blocks, join.counts(), strict=True)):
        mean, size, number = np.zeros(len(given.names)), np.ones(len(given.names)), np.array(given.names, object) != ""
        if scale == "max":
            size = np.abs(given.X).max(axis=0, initial=0)
        elif scale == "standard":
            mean = given.X.T @ out / N
            size = np.sqrt(((given.X - mean) ** 2).T @ out / N)
            size = np.where(size > 1e-12 * np.abs(mean), size, 0)
        mean, size = np.where(number, mean, 0.0), np.where(number & (size > 0), size, 1.0)
        # Of numbers that were scaled before, `x = mean + scale X`, both together.
        both = {"mean": given.mean + given.scale * mean, "scale": given.scale * size}
        scaled = given._replace(X=(given.X - mean) / size, **both)
        if intercept and i == join.tree.label and not join.constant:
            scaled = scaled._replace(
                X=np.append(scaled.X, np.ones((len(scaled.X), 1)), axis=1),
                names=[*scaled.names, ""],
                mean=np.append(scaled.mean, 0.0),
                scale=np.append(scaled.scale, 1.0),
                fill=np.append(scaled.fill, np.nan),
            )
        blocks.append(scaled)
    from jaxsvm.relational.schema.join import Prepared

    fields = {field.name: getattr(join, field.name) for field in dataclasses.fields(Prepared)}
    return Prepared(**fields | {"blocks": blocks, "constant": intercept or join.constant})


def least_squares(join: Any, lam: float) -> np.ndarray:
    """The least-squares SVM, `argmin mean (1 - y beta.x)^2 + lam |beta|^2`, `(d,)`, for a join of any size.

    Args:
        join: With a constant feature, where one is wanted (`prepared`).
        lam: The strength of the regulariser, > 0.
    """
    m = moments(join)
    return np.linalg.solve(m.second + lam * np.eye(len(m.mean)), m.label_mean)
