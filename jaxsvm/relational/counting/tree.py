"""Represent a join tree without its features: rows, the ids of the keys they share, multiplicities, labels.

Two neighbours contract into one node whose rows are their joined pairs, stored as row numbers of the tables; features
are not copied. If one of them has unique keys the node has no more rows than the other, so a snowflake becomes its
fact table. If the whole join is small it becomes one node, and a linear function of it is a few gathers.
"""

import dataclasses
from functools import cached_property

import numpy as np


def grouped(kid: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows sorted by their ids `kid` in `0 ... count - 1`, `(n,)`, and where each id begins, `(count + 1,)`."""
    order = np.argsort(kid, kind="stable")
    return order, np.append(0, np.cumsum(np.bincount(kid, minlength=count)))


@dataclasses.dataclass(frozen=True)
class Tree:
    """A join tree."""

    weight: list[np.ndarray]  # for each node the number of equal rows that each row stands for, float64 `(n_i,)`
    # `kid[i, j]`: the id, `(n_i,)`, of the key that each row of i shares with its neighbour j; as in `kid[j, i]`:
    kid: dict[tuple[int, int], np.ndarray]
    count: dict[tuple[int, int], int]  # `count[i, j]`: the number of ids of the edge
    label: int  # the node with the label
    y: np.ndarray  # its signs, float64 `(n_label,)`
    members: list[dict[int, np.ndarray]]  # for each node, the tables in it and the row of each table, `(n_i,)`

    @property
    def m(self) -> int:
        """Return the number of nodes."""
        return len(self.weight)

    def neighbours(self, i: int) -> list[int]:
        """Return the neighbours of a node."""
        return [b for a, b in self.kid if a == i]

    @cached_property
    def directed(self) -> list[tuple[int, int]]:
        """List the directed edges, each after those that its message depends on."""
        done: list[tuple[int, int]] = []
        waiting = list(self.kid)
        while waiting:
            ready = [(i, j) for i, j in waiting if all((k, i) in done for k in self.neighbours(i) if k != j)]
            done += ready
            waiting = [edge for edge in waiting if edge not in ready]
        return done

    @cached_property
    def groups(self) -> dict[tuple[int, int], tuple[np.ndarray, np.ndarray]]:
        """Return, for each edge (i, j), the rows of i sorted by the key shared with j, and where each key begins."""
        return {edge: grouped(kid, self.count[edge]) for edge, kid in self.kid.items()}

    def pairs(self, i: int, j: int) -> int:
        """Count the rows of the join of two neighbours."""
        one, two = (np.bincount(self.kid[e], minlength=self.count[e]).astype(float) for e in ((i, j), (j, i)))
        return int(one @ two)

    def masks(self) -> list[np.ndarray]:
        """Return, for the labels +1 and -1, a float64 indicator of the rows of the label's node that have it."""
        return [(self.y == sign).astype(float) for sign in (1, -1)]

    def contract(self, i: int, j: int) -> "Tree":
        """Return the tree with the neighbours i and j joined to one node, in i's place."""
        order, start = self.groups[j, i]
        kid = self.kid[i, j]
        many = np.diff(start)[kid]
        mine = np.repeat(np.arange(len(kid)), many)
        theirs = order[np.arange(len(mine)) - np.repeat(np.cumsum(many) - many, many) + np.repeat(start[kid], many)]
        rename = {old: old - (old > j) for old in range(self.m)} | {j: i - (i > j)}
        weights = [weight for old, weight in enumerate(self.weight) if old != j]
        weights[rename[i]] = self.weight[i][mine] * self.weight[j][theirs]
        members = [member for old, member in enumerate(self.members) if old != j]
        members[rename[i]] = {t: rows[mine] for t, rows in self.members[i].items()} | {
            t: rows[theirs] for t, rows in self.members[j].items()
        }
        moved = {i: mine, j: theirs}
        kids, counts = {}, {}
        for (a, b), ids in self.kid.items():
            if {a, b} != {i, j}:
                kids[rename[a], rename[b]] = ids[moved[a]] if a in moved else ids
                counts[rename[a], rename[b]] = self.count[a, b]
        y = self.y[moved[self.label]] if self.label in moved else self.y
        return Tree(weights, kids, counts, rename[self.label], y, members)

    @cached_property
    def simplified(self) -> "Tree":
        """Contract the edges whose keys are unique on one side, which adds no rows; return the tree."""
        tree = self
        while True:
            unique = [(i, j) for i, j in tree.kid if np.bincount(tree.kid[j, i], minlength=1).max() <= 1]
            if not unique:
                return tree
            tree = tree.contract(*unique[0])

    def within(self, nodes: int, rows: float) -> "Tree | None":
        """Contract the simplified tree to at most `nodes` nodes, the cheapest edge first.

        Return None if a node would have more than `rows` rows.
        """
        tree = self.simplified
        while tree.m > nodes:
            size, i, j = min((tree.pairs(i, j), i, j) for i, j in tree.kid if i < j)
            if size > rows:
                return None
            tree = tree.contract(i, j)
        return tree
