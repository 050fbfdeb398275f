"""A join tree without its features: rows, the ids of the keys they share, multiplicities, labels. Edges can contract.

Two neighbours contract into one node whose rows are their joined pairs, held as row numbers of the tables: no feature
is copied. Where one of them has unique keys nothing grows, so a snowflake becomes its fact table; where the whole join
is small it becomes one node, and a linear function of it is a few gathers.
"""

import dataclasses
from functools import cached_property
from typing import NamedTuple

import numpy as np


class Groups(NamedTuple):
    """The rows of a node by the id of a key.

    Attributes:
        order: Rows sorted by id, `(n,)`.
        start: Where each id begins in `order`, `(G + 1,)`.
    """

    order: np.ndarray
    start: np.ndarray


def grouped(kid: np.ndarray, count: int) -> Groups:
    """Rows by the ids `kid` in `0 ... count - 1`."""
    order = np.argsort(kid, kind="stable")
    return Groups(order, np.append(0, np.cumsum(np.bincount(kid, minlength=count))))


@dataclasses.dataclass(frozen=True)
class Tree:
    """Nodes and edges of a join tree.

    Attributes:
        weight: How many equal rows each row stands for, float64 `(n_i,)` a node.
        kid: `kid[i, j]`: the id of the key that each row of i shares with its neighbour j, `(n_i,)`; the same ids in
            `kid[j, i]`.
        count: `count[i, j]`: how many ids the edge has.
        label: The node with the label.
        y: Its signs, float64 `(n_label,)`.
        members: For each node, the tables in it and the row of each table, `(n_i,)`.
    """

    weight: list[np.ndarray]
    kid: dict[tuple[int, int], np.ndarray]
    count: dict[tuple[int, int], int]
    label: int
    y: np.ndarray
    members: list[dict[int, np.ndarray]]

    @property
    def m(self) -> int:
        """How many nodes."""
        return len(self.weight)

    def neighbours(self, i: int) -> list[int]:
        """The neighbours of a node."""
        return [b for a, b in self.kid if a == i]

    @cached_property
    def directed(self) -> list[tuple[int, int]]:
        """All directed edges, each after those that its message is made of."""
        done: list[tuple[int, int]] = []
        waiting = list(self.kid)
        while waiting:
            ready = [(i, j) for i, j in waiting if all((k, i) in done for k in self.neighbours(i) if k != j)]
            done += ready
            waiting = [edge for edge in waiting if edge not in ready]
        return done

    @cached_property
    def groups(self) -> dict[tuple[int, int], Groups]:
        """The rows of `i` by the key shared with `j`."""
        return {edge: grouped(kid, self.count[edge]) for edge, kid in self.kid.items()}

    def pairs(self, i: int, j: int) -> int:
        """Rows of the join of two neighbours."""
        one, two = (np.bincount(self.kid[e], minlength=self.count[e]).astype(float) for e in ((i, j), (j, i)))
        return int(one @ two)

    def masks(self) -> list[np.ndarray]:
        """For the labels +1 and -1: which rows of the label's node have it, float64."""
        return [(self.y == sign).astype(float) for sign in (1, -1)]

    def contract(self, i: int, j: int) -> "Tree":
        """The tree with the neighbours i and j as one node, in i's place."""
        order, start = self.groups[j, i]
        kid = self.kid[i, j]
        many = np.diff(start)[kid]
        mine = np.repeat(np.arange(len(kid)), many)
        theirs = order[np.arange(len(mine)) - np.repeat(np.cumsum(many) - many, many) + np.repeat(start[kid], many)]
        rename = {old: old - (old > j) for old in range(self.m)} | {j: i - (i > j)}
        weights = [weight for old, weight in enumerate(self.weight) if old != j]
        weights[rename[i]] = self.weight[i][mine] * self.weight[j][theirs]
        both = {t: rows[mine] for t, rows in self.members[i].items()}
        both |= {t: rows[theirs] for t, rows in self.members[j].items()}
        members = [member for old, member in enumerate(self.members) if old != j]
        members[rename[i]] = both
        kids = {}
        for (a, b), ids in self.kid.items():
            if {a, b} != {i, j}:
                kids[rename[a], rename[b]] = ids[mine] if a == i else ids[theirs] if a == j else ids
        counts = {(rename[a], rename[b]): G for (a, b), G in self.count.items() if {a, b} != {i, j}}
        y = self.y[mine] if self.label == i else self.y[theirs] if self.label == j else self.y
        return Tree(weights, kids, counts, rename[self.label], y, members)

    @cached_property
    def simplified(self) -> "Tree":
        """The tree without edges whose keys are unique on one side: contracting them makes no row more."""
        tree = self
        while True:
            unique = [(i, j) for i, j in tree.kid if np.bincount(tree.kid[j, i], minlength=1).max() <= 1]
            if not unique:
                return tree
            tree = tree.contract(*unique[0])

    def within(self, nodes: int, rows: float) -> "Tree | None":
        """The simplified tree contracted to so many nodes at most, the cheapest edge first.

        Args:
            nodes: The most nodes.
            rows: The most rows that a node may get.

        Returns:
            None where a node would have more.
        """
        tree = self.simplified
        while tree.m > nodes:
            size, i, j = min((tree.pairs(i, j), i, j) for i, j in tree.kid if i < j)
            if size > rows:
                return None
            tree = tree.contract(i, j)
        return tree
