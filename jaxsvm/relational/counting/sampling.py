"""Draw rows of a join uniformly and independently, without forming the join.

Exact weights (Chaudhuri, Motwani, Narasayya, "On Random Sampling over Joins", SIGMOD 1999; Zhao et al. 2018): draw a
row of the root with probability proportional to the number of joined rows through it, then at each edge a row of the
neighbour with the same key, in proportion to the part of the join behind it. O(m log n) per draw.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array

from jaxsvm.errors import InputError, require, require_part
from jaxsvm.relational.counting import tree as counting
from jaxsvm.runtime.arrays import checked, require_whole

if TYPE_CHECKING:
    from jaxsvm.relational.schema.join import Join


class Sample(NamedTuple):
    """A sample of rows of the join.

    Attributes:
        x: Features, `(n, d)`, a column for each level.
        y: Signs, `(n,)`.
        rows: The row of each table, numbered as the join keeps them, `(n,)` each; `join.rows[i]` maps them to given
            rows.
    """

    x: np.ndarray
    y: np.ndarray
    rows: list[np.ndarray]


@checked
def sample(join: Join, n: int, key: Array | int) -> Sample:
    """Draw rows of the join, uniform and independent, with their features.

    Args:
        join: The join.
        n: The number of rows, at least 1.
        key: An integer, or a key of `jax.random`.

    Raises:
        InputError: On another number or key.
    """
    require_part("join", join, "moments", "a `relational.Join` is needed")
    require_whole("n", n, 1)
    return Sample(*join.materialise(Sampler(join).draw(n, generator(key))))


def generator(key: Any) -> np.random.Generator:
    """Return NumPy's generator for an integer or a key of JAX."""
    if isinstance(key, int | np.integer):
        require(bool(key >= 0), f"key is {key}: an integer of at least 0, or a key of jax.random, is needed.")
        return np.random.default_rng(int(key))
    try:
        return np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel())
    except TypeError:
        raise InputError(f"key is a {type(key).__name__}: an integer or a key of jax.random is needed.") from None


class Sampler:
    """Cumulative weights of the root, and of each key's rows at each other node."""

    def __init__(self, join: Any) -> None:
        """Compute the weights in two passes and one sort per node."""
        self.tree = tree = join.tree.simplified
        sent = counting.messages(tree, tree.weight)
        self.root = tree.label
        self.first = np.cumsum(counting.multiplied(tree, sent, self.root, tree.weight[self.root]))
        self.edges, reached = [], [self.root]
        for i in reached:
            for j in tree.neighbours(i):
                if j not in reached:
                    weight = counting.multiplied(tree, sent, j, tree.weight[j], i)
                    order, start = tree.groups[j, i]
                    # Shares within each key: sums of large weights would lose the digits of small keys.
                    share = (weight / sent[j, i][tree.kid[j, i]])[order]
                    self.edges.append((i, j, order, start, np.append(0.0, np.cumsum(share))))
                    reached.append(j)

    def draw(self, n: int, rng: np.random.Generator) -> list[np.ndarray]:
        """Draw n rows of the join: the row of each table, `(n,)` each."""
        tree, at = self.tree, {}
        place = np.searchsorted(self.first, rng.random(n) * self.first[-1], side="right")
        at[self.root] = np.minimum(place, len(self.first) - 1)
        for i, j, order, start, total in self.edges:
            key = tree.kid[i, j][at[i]]
            low, high = start[key], start[key + 1]
            wanted = total[low] + rng.random(n) * (total[high] - total[low])
            place = np.searchsorted(total, wanted, side="right") - 1
            at[j] = order[np.clip(place, low, high - 1)]
        rows = {t: index[at[node]] for node in at for t, index in tree.members[node].items()}
        return [rows[t] for t in sorted(rows)]
