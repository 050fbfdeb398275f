"""Exact counts by sorted merges at a hub with at most two neighbours.

For a row r of the hub and a row a of its first neighbour the partners in the second that keep the sum at most 1 are the
first k of its sorted scores: one binary search a pair (r, a), prefix sums for the slack, and a difference array for the
counts of the partners. O(|T_1 join T_hub| log n) instead of the size of the join, which has a factor n more.
"""

import numpy as np

from jaxsvm.relational.counting.tree import Tree
from jaxsvm.relational.gradient.far import Far, node_scores, table_counts

PAIRS = 1 << 20
"""Pairs that are looked at a time: about 64 bytes each."""


class MergeEngine:
    """Configured for a tree that contracts to three nodes at most; exact."""

    name = "merge"

    def __init__(self, tree: Tree, rows: float = 2e7) -> None:
        """Contract to three nodes at most, none larger than `rows`."""
        small = tree.within(3, rows)
        assert small is not None
        self.tree = small
        degrees = [len(small.neighbours(i)) for i in range(small.m)]
        self.hub = int(np.argmax(degrees))
        near = self.tree.neighbours(self.hub)
        # Pairs with the neighbour that makes fewer of them; the other one is searched.
        self.near = sorted(near, key=lambda k: self.tree.pairs(self.hub, k))

    @property
    def pairs(self) -> int:
        """Binary searches a call and label."""
        return self.tree.pairs(self.hub, self.near[0]) if len(self.near) == 2 else len(self.tree.weight[self.hub])

    def __call__(
        self,
        scores: tuple[list[np.ndarray], list[np.ndarray]],
        mode: str = "mid",
        tau: float = 1.0,
        squared: bool = False,
    ) -> Far:
        """Count; the mode does not matter. `squared` asks for sums of slacks too."""
        del mode
        counts, slack, slacks, squares = [], [], [], []
        for sign, mask in enumerate(self.tree.masks()):
            weight = [w * mask if i == self.tree.label else w for i, w in enumerate(self.tree.weight)]
            of_node, rooms, total, second = self._count(node_scores(self.tree, scores[sign]), weight, tau, squared)
            counts.append(table_counts(self.tree, scores[sign], of_node))
            slacks.append(table_counts(self.tree, scores[sign], rooms))
            slack.append(total)
            squares.append(second)
        more = (slacks, (squares[0], squares[1])) if squared else (None, None)
        return Far((counts[0], counts[1]), (slack[0], slack[1]), *more)

    def _count(
        self, s: list[np.ndarray], weight: list[np.ndarray], tau: float, squared: bool
    ) -> tuple[list[np.ndarray], list[np.ndarray], float, float]:
        """Far rows through each row of each node; and, if asked for, the sums of their slacks and of squared ones."""
        tree, hub = self.tree, self.hub
        out, rooms = ([np.zeros(len(w)) for w in weight] for _ in range(2))
        if tree.m == 1:
            far = weight[0] * (s[0] <= tau)
            room = far * (tau - s[0])
            return [far], [room], float(room.sum()), float(room @ (tau - s[0]))
        last = self.near[-1]
        # The second neighbour's rows of this label by key and score; complex numbers sort and search by both.
        live = np.flatnonzero(weight[last] > 0)
        order = live[np.lexsort((s[last][live], tree.kid[last, hub][live]))]
        kid = tree.kid[last, hub][order]
        known = _pairs_of(kid, s[last][order])
        start = np.searchsorted(kid, np.arange(tree.count[last, hub] + 1))
        mass = np.append(0.0, np.cumsum(weight[last][order]))
        moment, second = (np.append(0.0, np.cumsum(weight[last][order] * s[last][order] ** k)) for k in (1, 2))
        change, shift = np.zeros(len(order) + 1), np.zeros(len(order) + 1)
        slack = squares = 0.0
        for r, a in self._chunks(s, weight):
            w = weight[hub][r] * (1.0 if a is None else weight[self.near[0]][a])
            t = tau - s[hub][r] - (0.0 if a is None else s[self.near[0]][a])
            key = tree.kid[hub, last][r]
            end = np.searchsorted(known, _pairs_of(key, t), side="right")
            begin = start[key]
            far = mass[end] - mass[begin]
            first = moment[end] - moment[begin]
            room = t * far - first
            slack += float(w @ room)
            out[hub] += np.bincount(r, w * far, minlength=len(out[hub]))
            if a is not None:
                out[self.near[0]] += np.bincount(a, w * far, minlength=len(out[self.near[0]]))
            change += np.bincount(begin, w, minlength=len(change)) - np.bincount(end, w, minlength=len(change))
            if squared:
                squares += float(w @ (t * (room - first) + second[end] - second[begin]))
                rooms[hub] += np.bincount(r, w * room, minlength=len(out[hub]))
                if a is not None:
                    rooms[self.near[0]] += np.bincount(a, w * room, minlength=len(out[self.near[0]]))
                wt = w * t
                shift += np.bincount(begin, wt, minlength=len(shift)) - np.bincount(end, wt, minlength=len(shift))
        through = np.cumsum(change)[:-1]
        out[last][order] = through * weight[last][order]
        rooms[last][order] = (np.cumsum(shift)[:-1] - through * s[last][order]) * weight[last][order]
        return out, rooms, slack, squares

    def _chunks(self, s: list[np.ndarray], weight: list[np.ndarray]):
        """Pairs of a row of the hub and one of its first neighbour, some at a time, in an order that searches like."""
        tree, hub = self.tree, self.hub
        rows = np.flatnonzero(weight[hub] > 0)
        rows = rows[np.lexsort((-s[hub][rows], tree.kid[hub, self.near[-1]][rows]))]
        if len(self.near) == 1:
            yield rows, None
            return
        one = self.near[0]
        live = np.flatnonzero(weight[one] > 0)
        order = live[np.lexsort((-s[one][live], tree.kid[one, hub][live]))]
        start = np.searchsorted(tree.kid[one, hub][order], np.arange(tree.count[one, hub] + 1))
        many = np.diff(start)[tree.kid[hub, one][rows]]
        total = np.append(0, np.cumsum(many))
        cuts = np.unique(np.append(np.searchsorted(total, np.arange(0, total[-1], PAIRS)), len(rows)))
        for low, high in zip(cuts[:-1], cuts[1:], strict=True):
            r, n = rows[low:high], many[low:high]
            first = start[tree.kid[hub, one][r]]
            inside = np.arange(n.sum()) - np.repeat(np.cumsum(n) - n, n)
            yield np.repeat(r, n), order[np.repeat(first, n) + inside]


def _pairs_of(key: np.ndarray, score: np.ndarray) -> np.ndarray:
    out = np.empty(len(key), complex)
    out.real, out.imag = key, score
    return out
