"""Use a join as a design matrix, for `jaxsvm.designs` and all other solvers.

    rows = relational.design(join)
    fit = jaxsvm.designs.fit(rows, C=1.0)                                 # passes over the tables
    gram = jaxsvm.gram(jaxsvm.kernels.Linear(), rows.x)                           # all rows in memory
    fit = jaxsvm.fit(jaxsvm.svm_problem(gram, rows.y, C, sample_weight=rows.weight), jaxsvm.Newton())

This is for joins whose rows can be counted one by one. A pass forms some at a time: memory holds row numbers only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.sparse import csr_array  # jax depends on SciPy

from jaxsvm.designs.contract import Chunk
from jaxsvm.designs.places.arrays import OfChunks
from jaxsvm.errors import InputError, require_part
from jaxsvm.points.rows import CSR
from jaxsvm.relational.counting.tree import drawn
from jaxsvm.relational.schema.join import Join
from jaxsvm.runtime.arrays import in_a_line, require_whole, transfers

ENTRIES_OF_A_CHUNK = 1 << 23  # numbers of a join's rows that are formed at a time: 64 MiB
MOST_ROWS = 1 << 27  # merged rows of a join for which vectors are formed


@dataclasses.dataclass(frozen=True, eq=False)
class Design(OfChunks):
    """Rows of a join, as a problem needs them: all, equal ones once, or drawn ones."""

    __repr__ = in_a_line

    join: Join
    place: list[np.ndarray]  # the row of each table, as the join keeps them, `(N,)`; `join.rows` maps to given ones
    y: np.ndarray  # signs, `(N,)`
    weight: np.ndarray  # the number (weight) of equal rows that each row stands for, `(N,)`: `sample_weight`
    names: list[str]  # of the coefficients
    classes: tuple[Any, ...]  # the two labels

    @property
    def n(self) -> int:
        """Return the number of distinct rows of the join."""
        return len(self.y)

    @property
    def d(self) -> int:
        """Return the number of features."""
        return self.join.d

    def chunks(self) -> Iterator[Chunk]:
        """Yield all rows in chunks of one size; the last one is filled up with rows of weight 0."""
        size = min(self.n, max(ENTRIES_OF_A_CHUNK // max(self.join.entries, 1), 1))
        for first in range(0, self.n, size):
            index = np.minimum(np.arange(first, first + size), self.n - 1)
            weight = np.where(np.arange(first, first + size) < self.n, self.weight[index], 0.0)
            x: Any = self.join.features([place[index] for place in self.place])
            if not isinstance(x, np.ndarray):
                x = CSR(x.data, x.indices, x.indptr, self.d, x.nnz // size)
            yield Chunk(x, (self.y[index] > 0).astype(float), weight, np.int64(first))

    @property
    def x(self) -> np.ndarray | csr_array:
        """Return the features of all rows, formed, `(N, d)`."""
        return self.join.features(self.place)


def _design(join: Join, place: list[np.ndarray], weight: np.ndarray) -> Design:
    labels = tuple(join.classes.tolist())
    return Design(join, place, join.tree.y[place[join.tree.label]], weight, join.feature_names, labels)


def rows_of(join: Any, most: float) -> Design | None:
    """Return the different rows of a join; None if there are more than `most`."""
    tree = join.tree.within(1, most) if join.tree.rows <= most else None
    if tree is None:
        return None
    live = np.flatnonzero(tree.weight[0])  # rows of an optional table may weigh nothing
    return _design(join, [tree.members[0][t][live] for t in range(len(join.names))], tree.weight[0][live])


@transfers
def design(join: Join) -> Design:
    """Return a join, or `fit.join`, which is scaled, as a design matrix.

    Raises:
        InputError: On a join of more than `MOST_ROWS` merged rows, too many for vectors with an entry for each.
    """
    require_part("join", join, "moments", "a `relational.Join` is needed")
    found = rows_of(join, MOST_ROWS)
    if found is None:
        raise InputError(f"join has {float(join.size):.3g} rows, too many for vectors of them; take relational.fit.")
    return found


@transfers
def sample(join: Join, n: int, key: int) -> Design:
    """Draw n rows of the join, independent, each in proportion to its weight; `key` is the seed.

    Raises:
        InputError: On an n below 1, or a key that is no integer of at least 0.
    """
    require_part("join", join, "moments", "a `relational.Join` is needed")
    require_whole("n", n, 1)
    require_whole("key", key, 0)
    return _design(join, drawn(join.tree, n, np.random.default_rng(key)), np.ones(n))
