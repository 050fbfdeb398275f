"""Rows of a join drawn uniformly and independently, without the join.

Exact weights (Chaudhuri, Motwani, Narasayya, "On Random Sampling over Joins", SIGMOD 1999; Zhao et al. 2018): a row of
the root with probability proportional to how many joined rows go through it, then at each edge a row of the neighbour
with the same key, in proportion to the part of the join behind it. O(m log n) a draw.
"""

from typing import Any, NamedTuple

import jax
import numpy as np

from jaxsvm.errors import InputError
from jaxsvm.relational.counting import semirings as counting
from jaxsvm.runtime.checks import require_whole


class Sample(NamedTuple):
    """Rows of the join.

    Attributes:
        x: Features, `(n, d)`, a column for each level.
        y: Signs, `(n,)`.
        rows: The row of each table, as the join keeps them, `(n,)` each; `join.rows[i]` says which given rows these
            are.
    """

    x: np.ndarray
    y: np.ndarray
    rows: list[np.ndarray]


def sample(join: Any, n: int, key: Any) -> Sample:
    """Rows of the join, uniform and independent, with their features.

    Args:
        join: The join.
        n: How many.
        key: An integer, or a key of `jax.random`.
    """
    require_whole("n", n, 1)
    rows = Sampler(join).draw(n, generator(key))
    x = np.concatenate([block.dense(index) for block, index in zip(join.blocks, rows, strict=True)], axis=1)
    return Sample(x, join.tree.y[rows[join.tree.label]], rows)


def generator(key: Any) -> np.random.Generator:
    """NumPy's, from an integer or a key of JAX."""
    if isinstance(key, int | np.integer):
        return np.random.default_rng(int(key))
    try:
        return np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel())
    except TypeError:
        raise InputError(f"key is a {type(key).__name__}: an integer or a key of jax.random is needed.") from None


class Sampler:
    """What draws need: cumulative weights of the root, and of each key's rows at each other node."""

    def __init__(self, join: Any) -> None:
        """Two passes and a sort a node."""
        self.tree = tree = join.tree.simplified
        sent = counting.messages(tree, tree.weight)
        self.root = tree.label
        self.first = np.cumsum(counting.marginals(tree, tree.weight)[self.root])
        self.edges, reached = [], [self.root]
        for i in reached:
            for j in tree.neighbours(i):
                if j not in reached:
                    weight = tree.weight[j]
                    for k in tree.neighbours(j):
                        weight = weight if k == i else weight * sent[k, j][tree.kid[j, k]]
                    order, start = tree.groups[j, i]
                    # Shares within each key: sums of whole weights would lose the digits of small keys.
                    share = (weight / sent[j, i][tree.kid[j, i]])[order]
                    total = np.append(0.0, np.cumsum(share))
                    self.edges.append((i, j, order, start, total))
                    reached.append(j)

    def draw(self, n: int, rng: np.random.Generator) -> list[np.ndarray]:
        """The row of each table, `(n,)` each."""
        tree, at = self.tree, {}
        place = np.searchsorted(self.first, rng.random(n) * self.first[-1], side="right")
        at[self.root] = np.minimum(place, len(self.first) - 1)
        for i, j, order, start, total in self.edges:
            key = tree.kid[i, j][at[i]]
            low, high = start[key], start[key + 1]
            wanted = total[low] + rng.random(n) * (total[high] - total[low])
            place = np.searchsorted(total, wanted, side="right") - 1
            at[j] = order[np.clip(place, low, high - 1)]
        out: dict[int, np.ndarray] = {}
        for node, rows in at.items():
            out |= {t: index[rows] for t, index in tree.members[node].items()}
        return [out[t] for t in sorted(out)]
