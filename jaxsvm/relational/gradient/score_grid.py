"""Counts on a grid of scores: the fast engine for joins of any size, whose certificate is rigorous all the same.

Each row's score is split between the two grid points beside it so that its mean is kept: `s = h (b + q)` with shares
`1 - q` and q.
Messages are histograms `(G, bins)`, and histograms of sums are shifted sums of histograms, exactly. What is counted is

    alpha(x) = P(blurred score of x <= 1)  in [0, 1]

instead of the indicator. Any such alpha gives a valid dual value, its sums over x are exact, and since the blur keeps
means and the hinge is convex, the blurred hinge is an upper bound of the hinge. So D and P hold at any width h, with
errors O(m h^2 density); rounding to the nearest point, as usual, would have errors O(m h), unbounded on one side.

Cost O(sum_i distinct (keys, bin) of table i * bins); nothing grows with the size of the join.
"""

from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array  # jax depends on SciPy

from jaxsvm.relational.counting.tree import Tree
from jaxsvm.relational.gradient.far import Far, node_scores, table_counts

BINS = 512
ENTRIES = 1 << 21
"""Histogram entries that are worked on at a time."""


class Split(NamedTuple):
    """The rows of a node with a mass, on the grid: two entries a row.

    Attributes:
        bins: The bin of the lower point, counted from the node's first, `(n_i,)`.
        upper: Which share the upper point gets, `(n_i,)`.
        base: The score of bin 0.
        width: How many bins.
    """

    bins: np.ndarray
    upper: np.ndarray
    base: float
    width: int


class GridEngine:
    """Configured for a tree: how many bins the range of scores has."""

    name = "grid"

    def __init__(self, tree: Tree, bins: int = BINS) -> None:
        """Take the simplified tree."""
        self.tree = tree.simplified
        self.bins = bins
        self.step = 0.0
        """The width h of the last call."""
        self.ramp = 0.0
        """As that of `RowsEngine`."""

    def __call__(
        self,
        scores: tuple[list[np.ndarray], list[np.ndarray]],
        mode: str = "mid",
        tau: float = 1.0,
        squared: bool = False,
    ) -> Far:
        """Count; the mode does not matter. `squared` asks for sums of slacks too, of blurred scores."""
        del mode
        counts, slack, slacks, squares = [], [], [], []
        for sign, mask in enumerate(self.tree.masks()):
            s = node_scores(self.tree, scores[sign])
            weight = [w * mask if i == self.tree.label else w for i, w in enumerate(self.tree.weight)]
            of_node, rooms, second = self._count(s, weight, tau, squared)
            counts.append(table_counts(self.tree, scores[sign], of_node))
            slacks.append(table_counts(self.tree, scores[sign], rooms))
            slack.append(float(rooms[self.tree.label].sum()))
            squares.append(second)
        more = (slacks, (squares[0], squares[1])) if squared else (None, None)
        return Far((counts[0], counts[1]), (slack[0], slack[1]), *more)

    def _count(
        self, s: list[np.ndarray], weight: list[np.ndarray], tau: float, squared: bool
    ) -> tuple[list[np.ndarray], list[np.ndarray], float]:
        """Far rows through each row, the sums of their slacks (of the label's node, or all), and of squared ones."""
        tree = self.tree
        live = [w > 0 for w in weight]
        if not all(mask.any() for mask in live):
            return [np.zeros(len(w)) for w in weight], [np.zeros(len(w)) for w in weight], 0.0
        low = [part[mask].min() for part, mask in zip(s, live, strict=True)]
        reach = sum(part[mask].max() - least for part, mask, least in zip(s, live, low, strict=True))
        self.step = h = reach / self.bins if reach > 1e-12 else 1.0
        splits = [_split(part, mask, least, h) for part, mask, least in zip(s, live, low, strict=True)]
        limit = int(np.floor((tau - sum(low)) / h * (1 + 1e-15) + 1e-9))  # far: the sum of bins is at most this
        sent: dict[tuple[int, int], np.ndarray] = {}
        for i, j in tree.directed:
            others = [k for k in tree.neighbours(i) if k != j]
            sent[i, j] = self._message(i, j, others, splits[i], weight[i], sent)
        out, rooms, squares = [], [], 0.0
        for i in range(tree.m):
            label = i == tree.label
            wanted = 1 + (label or squared) + (label and squared)
            parts = self._through(i, splits[i], weight[i], sent, limit, h, tau - sum(low), wanted)
            out.append(parts[0])
            rooms.append(parts[1] if wanted > 1 else np.zeros(len(weight[i])))
            squares = float(parts[2].sum()) if wanted > 2 else squares
        return out, rooms, squares

    def _entries(self, i: int, split: Split, weight: np.ndarray, near: list[int]):
        """(Keys, bin) of a node, equal ones once where that is cheap: keys, bin, mass; each row's two places."""
        tree = self.tree
        combination, size = np.zeros(len(weight), np.int64), 1
        for k in near:
            combination, size = combination * tree.count[i, k] + tree.kid[i, k], size * tree.count[i, k]
        n, width = len(weight), split.width
        mass = np.concatenate([weight * (1 - split.upper), weight * split.upper])
        if size * width > 8 * len(mass):  # few can be equal
            keys = {k: np.concatenate([tree.kid[i, k]] * 2) for k in near}
            return keys, np.concatenate([split.bins, split.bins + 1]), mass, np.arange(n), np.arange(n, 2 * n)
        code = np.concatenate([split.bins, split.bins + 1]) + width * np.concatenate([combination] * 2)
        kept = np.flatnonzero(np.bincount(code, minlength=size * width))
        place = np.zeros(size * width, np.int64)
        place[kept] = np.arange(len(kept))
        total, place = np.bincount(code, mass, minlength=size * width)[kept], place[code]
        key, b = np.divmod(kept, width)
        keys = []
        for k in reversed(near):
            key, part = np.divmod(key, tree.count[i, k])
            keys.append(part)
        return dict(zip(near, reversed(keys), strict=True)), b, total, place[:n], place[n:]

    def _message(self, i, j, others, split, weight, sent):
        tree = self.tree
        keys, b, mass, _, _ = self._entries(i, split, weight, [j, *others])
        incoming = _rest_width([sent[k, i] for k in others])
        out = np.zeros((tree.count[i, j], split.width + incoming - 1))
        if not others:
            np.add.at(out, (keys[j], b), mass)
            return out
        for e in _by_bin(b, keys[j], incoming):
            rest, at = _rest([sent[k, i] for k in others], [keys[k][e] for k in others])
            window, g = slice(b[e[0]], b[e[0]] + incoming), keys[j][e]
            edges = np.flatnonzero(np.append(True, np.diff(g) != 0))
            # A sparse matrix of masses times the histograms: no copy of a histogram an entry.
            if 4 * len(edges) > len(out):
                edges = np.searchsorted(g, np.arange(len(out) + 1))
                out[:, window] += csr_array((mass[e], at, edges), shape=(len(out), len(rest))) @ rest
            else:
                shares = csr_array((mass[e], at, np.append(edges, len(e))), shape=(len(edges), len(rest)))
                out[g[edges], window] += shares @ rest
        return out

    def _through(self, i, split, weight, sent, limit, h, room, wanted):
        """Of each row: far mass, slack, squared slack; the first so many of these."""
        tree = self.tree
        near = sorted(tree.neighbours(i), key=lambda k: sent[k, i].shape[1])
        keys, b, _, lower, upper = self._entries(i, split, weight, near)
        found = np.zeros((wanted, len(b)))
        wide = int(self.ramp / h)
        if not near:
            slack = np.maximum(room - h * b, 0)
            found[:] = [np.clip((limit + wide + 1 - b) / (2 * wide + 1), 0, 1), slack, slack**2][:wanted]
        else:
            others = [sent[k, i] for k in near[:-1]]
            width = _rest_width(others)
            tables = _beyond(sent[near[-1], i], split.width + width - 1, limit, h, room, wide, wanted)
            for e in _by_bin(b, keys[near[-1]], width):
                window, at = slice(b[e[0]], b[e[0]] + width), keys[near[-1]][e]
                rest, place = _rest(others, [keys[k][e] for k in near[:-1]])
                rest = rest[place]
                for out, table in zip(found, tables, strict=True):
                    out[e] = np.einsum("ew,ew->e", rest, table[:, window].take(at, axis=0))
        return weight * ((1 - split.upper) * found[:, lower] + split.upper * found[:, upper])


def _beyond(
    histogram: np.ndarray, bins: int, limit: int, h: float, room: float, wide: int, wanted: int
) -> list[np.ndarray]:
    """What each histogram adds to a sum of u bins, `(G, bins)` for `u = 0, 1, ...`: far mass, slack, its square.

    Far is what is at most `limit` bins together; `wide` is the half-width of a ramp in its place, the mean over the
    limits within it. Slack is `room - h bins` of what is far without a ramp. The first `wanted` of the three.
    """
    most, u, nothing = histogram.shape[1], np.arange(bins), np.zeros((len(histogram), 1))
    end, left = np.clip(limit - u + 1, 0, most), room - h * u

    def running(values: np.ndarray) -> np.ndarray:
        return np.concatenate([nothing, np.cumsum(values, axis=1)], axis=1)

    mass, ramped = running(histogram), None
    if wide:
        sums = running(mass)

        def below(threshold: np.ndarray) -> np.ndarray:  # counts at thresholds up to this one, summed
            return sums[:, np.clip(threshold + 2, 0, most + 1)] + np.maximum(threshold + 1 - most, 0) * mass[:, -1:]

        ramped = (below(limit - u + wide) - below(limit - u - wide - 1)) / (2 * wide + 1)
    count = mass[:, end]
    found = [count if ramped is None else ramped]
    if wanted > 1:
        first = h * running(histogram * np.arange(most))[:, end]
        found.append(left * count - first)
        if wanted > 2:
            second = h**2 * running(histogram * np.arange(most) ** 2)[:, end]
            found.append(left * (found[1] - first) + second)
    return found


def _split(s: np.ndarray, live: np.ndarray, low: float, h: float) -> Split:
    place = np.where(live, (s - low) / h, 0)
    bins = np.floor(place)
    return Split(bins.astype(np.int64), place - bins, low, int(bins.max()) + 2)


def _rest_width(histograms: list[np.ndarray]) -> int:
    return 1 + sum(part.shape[1] - 1 for part in histograms)


def _rest(histograms: list[np.ndarray], keys: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Histograms of sums of independent parts, and which of them each entry has.

    Of several parts they are made for each entry, directly, since an FFT would lose small counts.
    """
    if not histograms:
        return np.ones((1, 1)), np.zeros(1, np.int64)
    if len(histograms) == 1:
        return histograms[0], keys[0]
    out = histograms[0][keys[0]]
    for part, key in zip(histograms[1:], keys[1:], strict=True):
        theirs = part[key]
        both = np.zeros((len(out), out.shape[1] + theirs.shape[1] - 1))
        short, long = (out, theirs) if out.shape[1] < theirs.shape[1] else (theirs, out)
        for b in np.flatnonzero(short.any(axis=0)):
            both[:, b : b + long.shape[1]] += short[:, b : b + 1] * long
        out = both
    return out, np.arange(len(out))


def _by_bin(b: np.ndarray, key: np.ndarray, width: int):
    """Entries of one bin at a time, by their key, few enough to hold a histogram for each."""
    order = np.argsort(b * (int(key.max(initial=0)) + 1) + key)
    most = max(ENTRIES // width, 1)
    for part in np.split(order, np.flatnonzero(np.diff(b[order])) + 1):
        for begin in range(0, len(part), most):
            yield part[begin : begin + most]
