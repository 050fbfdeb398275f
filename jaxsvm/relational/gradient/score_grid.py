"""Count on a grid of scores: the fast engine for joins of any size, with a rigorous certificate.

Each row's score is split between the two grid points around it so that its mean is kept: `s = h (b + q)` with shares
`1 - q` and q. Messages are histograms `(G, bins)`; histograms of sums are shifted sums of histograms, exactly. Not the
indicator is counted, but `alpha(x) = P(blurred score of x <= 1)`. D and P hold at any width h, with errors O(m h^2
density): docs/mathematics.md. Cost O(sum_i distinct (keys, bin) of table i * bins), whatever the size of the join.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array  # jax depends on SciPy

from jaxsvm.relational.schema.tree import Counts, Engine, Messages, Tree, masked


class Entries(NamedTuple):
    """The rows of a node on the grid, each split between two bins; equal ones of `(keys, bin)` are merged."""

    keys: dict[int, np.ndarray]  # by neighbour the key of each entry, `(e,)`
    bins: np.ndarray  # its bin, counted from the node's first, `(e,)`
    mass: np.ndarray  # the rows in it, `(e,)`
    lower: np.ndarray  # the entry of the lower point of each row, `(n_i,)`
    above: np.ndarray  # and that of the upper point
    upper: np.ndarray  # the share of the upper point of each row, `(n_i,)`
    width: int  # the number of bins


Threshold = tuple[int, float, float, int]
"""On the grid: the most bins that are far, the slack of bin 0, the width of a bin, half that of the ramp (0: none)."""


class GridEngine(Engine):
    """Histograms of scores over the simplified tree; `bins` bins span the range of scores."""

    name = "grid"

    def __init__(self, tree: Tree, bins: int = 512) -> None:
        """Simplify the tree, and number the combinations of keys of each node's rows."""
        self.tree, self.bins, self.options = tree.simplified, bins, (bins,)
        self.combinations = []  # of each node that of each row, and a row of each
        for i, weight in enumerate(self.tree.weight):
            group = np.zeros(len(weight), np.int64)
            for k in self.tree.neighbours(i):
                group = np.unique(group * self.tree.count[i, k] + self.tree.kid[i, k], return_inverse=True)[1]
            self.combinations.append((group, np.unique(group, return_index=True)[1]))

    def count(self, sign: int, s: list[np.ndarray], tau: float, mode: str, ramp: float) -> Counts:
        tree, weight = self.tree, masked(self.tree, sign)
        live = [w > 0 for w in weight]
        if not all(mask.any() for mask in live):
            return [np.zeros(len(w)) for w in weight], 0.0
        low = [part[mask].min() for part, mask in zip(s, live, strict=True)]
        reach = sum(part[mask].max() - least for part, mask, least in zip(s, live, low, strict=True))
        h = reach / self.bins if reach > 1e-12 else 1.0  # of equal scores, which may differ by rounding
        entries = [self._entries(i, np.where(live[i], (s[i] - low[i]) / h, 0), weight[i]) for i in range(tree.m)]
        room = tau - sum(low)
        limit = int(np.floor(room / h * (1 + 1e-15) + 1e-9))  # rounding may not lose a bin
        threshold = (limit, room, h, int(ramp / h))
        sent: Messages = {}
        for i, j in tree.directed:
            sent[i, j] = self._message(i, j, entries[i], sent)
        out, slack = [], 0.0
        for i in range(tree.m):
            far, *room = weight[i] * self._through(i, entries[i], sent, threshold, 1 + (i == tree.label))
            out.append(far)
            slack += sum(float(part.sum()) for part in room)
        return out, slack

    def _entries(self, i: int, place: np.ndarray, weight: np.ndarray) -> Entries:
        """Return the entries of a node, given the place of each row on the grid, in bins from the node's first."""
        group, first = self.combinations[i]
        bins = np.floor(place).astype(np.int64)
        upper, width = place - bins, int(bins.max()) + 2
        code, at = np.unique(np.append(bins, bins + 1) + width * np.tile(group, 2), return_inverse=True)
        mass = np.bincount(at, np.append(weight * (1 - upper), weight * upper))
        combination, b = np.divmod(code, width)
        keys = {k: self.tree.kid[i, k][first[combination]] for k in self.tree.neighbours(i)}
        return Entries(keys, b, mass, at[: len(place)], at[len(place) :], upper, width)

    def _message(self, i: int, j: int, entries: Entries, sent: Messages) -> np.ndarray:
        """Return the histograms of i's side for each key shared with j, `(G, bins)`."""
        keys, b, mass = entries[:3]
        others = [k for k in self.tree.neighbours(i) if k != j]
        incoming = 1 + sum(sent[k, i].shape[1] - 1 for k in others)
        out = np.zeros((self.tree.count[i, j], entries.width + incoming - 1))
        if not others:
            np.add.at(out, (keys[j], b), mass)
            return out
        for e in _by_bin(b, keys[j], incoming):
            rest, at = _sums([sent[k, i] for k in others], [keys[k][e] for k in others])
            window, g = slice(b[e[0]], b[e[0]] + incoming), keys[j][e]
            edges = np.flatnonzero(np.append(True, np.diff(g) != 0))
            # A sparse matrix of masses times the histograms, so that no entry copies a histogram.
            shares = csr_array((mass[e], at, np.append(edges, len(e))), shape=(len(edges), len(rest)))
            out[g[edges], window] += shares @ rest
        return out

    def _through(self, i: int, entries: Entries, sent: Messages, threshold: Threshold, wanted: int) -> np.ndarray:
        """Return far mass, and of 2 that are wanted slack, through each row of i, for one copy, `(wanted, n_i)`."""
        near = sorted(self.tree.neighbours(i), key=lambda k: sent[k, i].shape[1])
        keys, b, upper = entries.keys, entries.bins, entries.upper
        sums = np.zeros((wanted, len(b)))
        # A node without neighbours has one of a single row of score 0.
        last, key = (sent[near[-1], i], keys[near[-1]]) if near else (np.ones((1, 1)), np.zeros(len(b), np.int64))
        others = [sent[k, i] for k in near[:-1]]
        width = 1 + sum(part.shape[1] - 1 for part in others)
        tables = _beyond(last, entries.width + width - 1, threshold, wanted)
        for e in _by_bin(b, key, width):
            window, at = slice(b[e[0]], b[e[0]] + width), key[e]
            rest, place = _sums(others, [keys[k][e] for k in near[:-1]])
            rest = rest[place]
            for out, table in zip(sums, tables, strict=True):
                out[e] = np.einsum("ew,ew->e", rest, table[:, window].take(at, axis=0))
        return (1 - upper) * sums[:, entries.lower] + upper * sums[:, entries.above]


def _beyond(histogram: np.ndarray, bins: int, threshold: Threshold, wanted: int) -> list[np.ndarray]:
    """Return the contributions of each histogram to a sum of u bins, `(G, bins)` for `u = 0, 1, ...`.

    Far mass, and of 2 that are wanted slack. Far is at most `limit` bins together; with a ramp, the mean over the
    limits within its half-width. Slack is `room - h bins` over far bins without a ramp.
    """
    limit, room, h, wide = threshold
    most, u, zero = histogram.shape[1], np.arange(bins), np.zeros((len(histogram), 1))
    end, left = np.clip(limit - u + 1, 0, most), room - h * u

    def running(values: np.ndarray) -> np.ndarray:
        return np.concatenate([zero, np.cumsum(values, axis=1)], axis=1)

    mass = running(histogram)
    count = mass[:, end]
    out = [count]
    if wide:
        sums = running(mass)

        def below(threshold: np.ndarray) -> np.ndarray:  # the sum of counts at thresholds up to this one
            return sums[:, np.clip(threshold + 2, 0, most + 1)] + np.maximum(threshold + 1 - most, 0) * mass[:, -1:]

        out = [(below(limit - u + wide) - below(limit - u - wide - 1)) / (2 * wide + 1)]
    if wanted > 1:
        out.append(left * count - h * running(histogram * np.arange(most))[:, end])
    return out


def _sums(histograms: list[np.ndarray], keys: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return histograms of sums of independent parts, and the row of each entry in them.

    Those of several parts are computed for each entry, directly, since an FFT would lose small counts.
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


def _by_bin(b: np.ndarray, key: np.ndarray, width: int) -> Iterator[np.ndarray]:
    order = np.argsort(b * (int(key.max(initial=0)) + 1) + key)
    most = max((1 << 21) // width, 1)
    for part in np.split(order, np.flatnonzero(np.diff(b[order])) + 1):
        for begin in range(0, len(part), most):
            yield part[begin : begin + most]
