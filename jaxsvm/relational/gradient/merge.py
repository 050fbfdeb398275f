"""Count exactly, by sorted merges at a hub with at most two neighbours.

For a row r of the hub and a row a of its first neighbour, the rows of the second that keep the sum at most 1 are the
first k of its sorted scores: a binary search per pair (r, a), prefix sums for the slack, a difference array for the
counts of the second neighbour's rows. This costs O(|T_1 join T_hub| log n); the size of the join has a factor n more.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from jaxsvm.relational.counting.order_statistics import keyed
from jaxsvm.relational.counting.semirings import masked
from jaxsvm.relational.counting.tree import Tree
from jaxsvm.relational.gradient.far import Engine, Request, RowsEngine
from jaxsvm.relational.measured import MEASURED


class MergeEngine(Engine):
    """Sorted merges over a tree that contracts to at most three nodes; exact."""

    name = "merge"

    def __init__(self, tree: Tree) -> None:
        """Contract the tree to at most three nodes, none with more than twice `auto_rows` rows."""
        small = tree.within(3, 2 * MEASURED.auto_rows)
        assert small is not None
        self.tree = small
        self.hub = int(np.argmax([len(small.neighbours(i)) for i in range(small.m)]))
        # The first neighbour makes fewer pairs with the hub; the other one is searched.
        self.near = sorted(small.neighbours(self.hub), key=lambda k: small.pairs(self.hub, k))

    @property
    def pairs(self) -> int:
        """Return the number of binary searches for each call and label."""
        return self.tree.pairs(self.hub, self.near[0]) if len(self.near) == 2 else len(self.tree.weight[self.hub])

    def count(self, sign: int, s: list[np.ndarray], request: Request) -> Any:
        """Count the far rows of one label."""
        tree, hub, tau, squared = self.tree, self.hub, request.tau, request.squared
        weight = masked(tree, sign)
        if tree.m == 1:
            return RowsEngine(tree).count(sign, s, request)
        out, rooms = ([np.zeros(len(w)) for w in weight] for _ in range(2))
        first, last = self.near[0], self.near[-1]
        # The last neighbour's rows of this label by key and score; complex numbers sort and search by both.
        live = np.flatnonzero(weight[last] > 0)
        order = live[np.lexsort((s[last][live], tree.kid[last, hub][live]))]
        kid = tree.kid[last, hub][order]
        known = keyed(kid, s[last][order])
        start = np.searchsorted(kid, np.arange(tree.count[last, hub] + 1))
        mass, moment, second = (np.append(0.0, np.cumsum(weight[last][order] * s[last][order] ** k)) for k in range(3))
        change, shift = np.zeros(len(order) + 1), np.zeros(len(order) + 1)
        slack = squares = 0.0
        for r, a in self._chunks(s, weight):
            w = weight[hub][r] * (1.0 if a is None else weight[first][a])
            t = tau - s[hub][r] - (0.0 if a is None else s[first][a])
            key = tree.kid[hub, last][r]
            begin, end = start[key], np.searchsorted(known, keyed(key, t), side="right")
            far, sums = mass[end] - mass[begin], moment[end] - moment[begin]
            room = t * far - sums
            slack += float(w @ room)
            for total, values in ((out, far), (rooms, room))[: 1 + squared]:
                total[hub] += np.bincount(r, w * values, minlength=len(total[hub]))
                if a is not None:
                    total[first] += np.bincount(a, w * values, minlength=len(total[first]))
            for changes, values in ((change, w), (shift, w * t))[: 1 + squared]:
                opened, closed = (np.bincount(at, values, minlength=len(changes)) for at in (begin, end))
                np.add(changes, opened - closed, out=changes)
            if squared:
                squares += float(w @ (t * (room - sums) + second[end] - second[begin]))
        through = np.cumsum(change)[:-1]
        out[last][order] = through * weight[last][order]
        rooms[last][order] = (np.cumsum(shift)[:-1] - through * s[last][order]) * weight[last][order]
        return out, rooms if squared else None, slack, squares

    def _chunks(self, s: list[np.ndarray], weight: list[np.ndarray]) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        """Yield chunks of pairs of a row of the hub and one of its first neighbour, ordered for local searches."""
        tree, hub = self.tree, self.hub
        rows = np.flatnonzero(weight[hub] > 0)
        rows = rows[np.lexsort((-s[hub][rows], tree.kid[hub, self.near[-1]][rows]))]
        if len(self.near) == 1:
            yield rows, None
            return
        first = self.near[0]
        live = np.flatnonzero(weight[first] > 0)
        order = live[np.lexsort((-s[first][live], tree.kid[first, hub][live]))]
        start = np.searchsorted(tree.kid[first, hub][order], np.arange(tree.count[first, hub] + 1))
        many = np.diff(start)[tree.kid[hub, first][rows]]
        total = np.append(0, np.cumsum(many))
        # 2^20 pairs at a time, about 64 bytes each.
        cuts = np.unique(np.append(np.searchsorted(total, np.arange(0, total[-1], 1 << 20)), len(rows)))
        for low, high in zip(cuts[:-1], cuts[1:], strict=True):
            r, n = rows[low:high], many[low:high]
            begin = start[tree.kid[hub, first][r]]
            inside = np.arange(n.sum()) - np.repeat(np.cumsum(n) - n, n)
            yield np.repeat(r, n), order[np.repeat(begin, n) + inside]
