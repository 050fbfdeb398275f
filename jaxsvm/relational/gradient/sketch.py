"""Count under one additive inequality from small sorted sketches: each count within a factor 1 + eps, at any size.

Abo-Khamis, Im, Moseley, Pruhs, Samadian, "Approximate Aggregate Queries Under Additive Inequalities" (arXiv
2003.10588): Inside-Out in the semiring of multisets of scores (union, sums of pairs), where each is cut to a sketch of
order statistics at ranks that grow by a factor: integer ranks here, one compression a message, and exact groups of up
to `2 / eps` rows (docs/mathematics.md). A cell of ranks `(w_(k-1), w_k]` puts its mass on one: its last ("lower":
`count / (1 + eps) <= count^ <= count`), its first ("upper"), or the middle one ("mid"; of two by turns). The cost is
sorting: `n_i K` points a message, by NumPy, which is faster than XLA.
"""

from typing import Any, NamedTuple

import numpy as np

from jaxsvm.errors import InputError
from jaxsvm.relational.measured import MEASURED
from jaxsvm.relational.schema.tree import Counts, Engine, Tree, grouped, keyed, masked, messages
from jaxsvm.runtime.arrays import memory, require_memory


def rank_grid(eps: float, size: float) -> np.ndarray:
    """Return integer ranks from 1 to `size` or beyond, each at most a factor `1 + eps` (or 1) above the one before."""
    grid = [1.0]
    while grid[-1] < size:
        grid.append(max(grid[-1] + 1, np.floor((1 + eps) * grid[-1])))
    return np.array(grid)


class Step(NamedTuple):
    """One compression of the program."""

    name: str  # name of the sketches that it makes
    node: int  # the node whose rows are points, or -1 for a product of two sketches
    to: int  # the neighbour that the message is for
    sources: tuple[str, ...]  # names of the sketches that are added; "" is the sketch of the score 0 alone


Chunk = tuple[np.ndarray, np.ndarray | None]
"""Sketches that are made at a time, `(R,)`, and the rows that a message makes them of, `(R, M)`; padding is the row
beyond the last. None for a product."""


class SketchEngine(Engine):
    """Sorted sketches over a tree; each count is within a factor `1 + eps`."""

    name, bounds = "sketch", True
    threads = 2  # NumPy releases the interpreter while it sorts

    def __init__(self, tree: Tree, eps: float) -> None:
        """Plan the program: exact sizes of all groups, and the accuracy of one compression for that of counts, eps."""
        if not 0 < eps <= 1:
            raise InputError(f"eps is {eps}: the relative accuracy of counts, above 0 and at most 1, is needed.")
        if any((weight % 1).any() for weight in tree.weight):
            raise InputError("engine is 'sketch', which counts: weights are not whole numbers; take 'merge' or 'grid'.")
        self.tree, self.options = tree, (eps,)
        totals = messages(tree, tree.weight)
        self.near = {i: sorted(tree.neighbours(i), key=lambda k, i=i: totals[k, i].max()) for i in range(tree.m)}
        self.steps, self.products, self.through = self._program()
        sizes = {name: total.max() for name, total in self._totals(tree.weight).items()}
        self.totals = [self._totals(masked(tree, sign)) for sign in (0, 1)]
        # A compression of groups that stay exact costs no accuracy.
        self.free = {name for name, size in sizes.items() if size <= 2 / eps}
        lost: dict[str, int] = {"": 0}  # how often a factor `1 + eps_0` is lost at most
        for step in self.steps:
            lost[step.name] = sum(lost[name] for name in step.sources) + (step.name not in self.free)
        self.exponent = max(lost[a] + lost[b] for a, b in self.through)  # in any count
        self.eps0 = (1 + eps) ** (1 / max(self.exponent, 1)) - 1
        self.grid = {  # the last ranks of cells
            name: np.arange(1.0, size + 1) if name in self.free else rank_grid(self.eps0, size)
            for name, size in sizes.items()
        }
        width = {name: len(last) for name, last in self.grid.items()} | {"": 1}
        self.chunks = [{step.name: self._chunks(step, width, sign) for step in self.steps} for sign in (0, 1)]
        # Rows in chunks for their counts, by the key of their last neighbour:
        self.rows = [{i: self._rows_of(i, width, sign) for i in range(tree.m)} for sign in (0, 1)]

    def _program(self) -> tuple[list[Step], dict[str, Any], list[tuple[str, str]]]:
        """Return compressions in a valid order; the combinations of each product; the two sketches of each count."""
        tree, steps, products = self.tree, [], {}

        def product(i: int, near: tuple[int, ...]) -> str:
            """Return the name of the sketch of sums over these neighbours of i; add its steps."""
            if len(near) < 2:
                return f"{near[0]}>{i}" if near else ""
            name = f"{i}<" + "*".join(map(str, near))
            if name not in products:
                left = product(i, near[:-1])
                many = tree.count[i, near[-1]]
                rest = products[left][2] if left in products else tree.kid[i, near[0]]
                code, ids = np.unique(rest * many + tree.kid[i, near[-1]], return_inverse=True)
                products[name] = (*np.divmod(code, many), ids)
                steps.append(Step(name, -1, -1, (left, f"{near[-1]}>{i}")))
            return name

        for i, j in tree.directed:
            others = product(i, tuple(k for k in self.near[i] if k != j))
            steps.append(Step(f"{i}>{j}", i, j, (others,)))
        through = [(product(i, tuple(near[:-1])), f"{near[-1]}>{i}" if near else "") for i, near in self.near.items()]
        return steps, products, through

    def _id(self, i: int, name: str, near: list[int]) -> np.ndarray:
        """Return the row of a sketch, that of sums over the neighbours `near` of i, for each row of i."""
        if not near:
            return np.zeros(len(self.tree.weight[i]), np.int64)
        return self.products[name][2] if name in self.products else self.tree.kid[i, near[0]]

    def _totals(self, factors: list[np.ndarray]) -> dict[str, np.ndarray]:
        total = {f"{i}>{j}": sent for (i, j), sent in messages(self.tree, factors).items()}
        for step in self.steps:
            if step.node < 0:
                one, two, _ = self.products[step.name]
                total[step.name] = total[step.sources[0]][one] * total[step.sources[1]][two]
        return total

    def _chunks(self, step: Step, width: dict[str, int], sign: int) -> list[Chunk]:
        """Divide the sketches of a step into chunks of groups of about equal size, so that there is little padding."""
        if step.node < 0:
            kept = max(1, MEASURED.points_per_sort // (width[step.sources[0]] * width[step.sources[1]]))
            out = np.arange(len(self.products[step.name][0]))
            return [(out[begin : begin + kept], None) for begin in range(0, len(out), kept)]
        i, j, live = step.node, step.to, np.flatnonzero(masked(self.tree, sign)[step.node])
        n, each = len(self.tree.weight[i]), width[step.sources[0]]
        order, start = grouped(self.tree.kid[i, j][live], self.tree.count[i, j])
        size = np.diff(start)
        groups, chunks, begin = np.argsort(-size, kind="stable"), [], 0
        groups = groups[size[groups] > 0]
        sums = int(size.max(initial=0)) * each
        require_memory(64 * sums, f"engine is 'sketch': one key has {sums:,} sums, which", "take 'grid'", memory())
        while begin < len(groups):
            most = int(size[groups[begin]])
            inside = groups[begin : begin + max(1, MEASURED.points_per_sort // (most * each))]
            inside = inside[: np.searchsorted(-size[inside], -(3 * most // 4), side="right")]
            begin += len(inside)
            place = np.arange(most)
            points = start[inside][:, None] + np.minimum(place, size[inside][:, None] - 1)
            chunks.append((inside, np.where(place < size[inside][:, None], live[order[points]], n)))
        return chunks

    def _rows_of(self, i: int, width: dict[str, int], sign: int) -> list[np.ndarray]:
        live = np.flatnonzero(masked(self.tree, sign)[i])
        key = self.tree.kid[i, self.near[i][-1]][live] if self.near[i] else np.zeros(len(live), np.int64)
        order = np.argsort(key, kind="stable")
        most = max(1, MEASURED.points_per_sort // (4 * width[self.through[i][0]]))
        block = key[order] // MEASURED.keys_per_search
        cuts = np.union1d(np.flatnonzero(np.diff(block)) + 1, np.arange(most, len(live), most))
        return [part for part in np.split(live[order], cuts) if len(part)]

    def count(self, sign: int, s: list[np.ndarray], tau: float, mode: str, ramp: float) -> Counts:
        tree, slack = self.tree, 0.0
        s = [np.append(part, np.inf) for part in s]
        sketches = self._sketches(sign, s, mode)
        far = [np.zeros(len(w)) for w in tree.weight]
        for i, (first, second) in enumerate(self.through):
            near = self.near[i]
            rest = self._id(i, first, near[:-1])
            last = tree.kid[i, near[-1]] if near else np.zeros(len(rest), np.int64)
            for rows in self.rows[sign][i]:
                parts = far_sums(tau - s[i][rows], *sketches[first], rest[rows], *sketches[second], last[rows])
                far[i][rows], rooms = (tree.weight[i][rows] * part for part in parts)
                slack += float(rooms.sum()) if i == tree.label else 0.0
        return far, slack

    def _sketches(self, sign: int, s: list[np.ndarray], mode: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Return the scores and masses of all sketches of one label."""
        sketches, chunks = {"": (np.zeros((1, 1)), np.ones((1, 1)))}, self.chunks[sign]
        weight = [np.append(part, 0.0) for part in self.tree.weight]
        for name, i, to, sources in self.steps:
            mass, rank = _ranks(self.grid[name], self.totals[sign][name], mode)
            H = np.full(mass.shape, np.inf)
            A, a = sketches[sources[-1]]
            if i < 0:
                (B, b), (one, two, _) = sketches[sources[0]], self.products[name]
                for out, _ in chunks[name]:
                    which = np.repeat(two[out][:, None], B.shape[1], axis=1)
                    H[out] = sums_at_ranks(B[one[out]], b[one[out]], A, a, which, rank[out])
            else:
                which = np.append(self._id(i, sources[0], [k for k in self.near[i] if k != to]), 0)
                for out, rows in chunks[name]:
                    H[out] = sums_at_ranks(s[i][rows], weight[i][rows], A, a, which[rows], rank[out])
            sketches[name] = (np.where(mass > 0, H, np.inf), mass)
        return sketches


def _ranks(last: np.ndarray, total: np.ndarray, mode: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the mass of each cell of each sketch, and the rank of its representative, `(G, K)` each."""
    high, first = np.minimum(last, total[:, None]), np.append(0, last[:-1]) + 1
    mass = np.maximum(high - first + 1, 0)
    rank = {"lower": high, "upper": first, "mid": (first + high + np.arange(len(last)) % 2) // 2}[mode]
    return mass, np.minimum(rank, high) * (1 - 1e-12)  # masses beyond 2^53 are rounded


def sums_at_ranks(
    s: np.ndarray, w: np.ndarray, A: np.ndarray, a: np.ndarray, sketch: np.ndarray, rank: np.ndarray
) -> np.ndarray:
    """Return the least sums `s + A[sketch]`, with weights `w a[sketch]`, whose running weights reach ranks, `(R, k)`.

    Scores s, weights w and the row of A that each score is added to are `(R, M)`. Sketches A, ascending, and their
    weights a are `(G, K)`. A score +inf with weight 0 is padding. `rank`, `(R, k)`, is ascending, at most the sum of
    weights.
    """
    R, points = len(s), s.shape[1] * A.shape[1]
    value = (s[:, :, None] + A[sketch]).reshape(R, points)
    weight = (w[:, :, None] * a[sketch]).reshape(R, points)
    rows = np.arange(R)[:, None]
    order = np.argsort(value, axis=1) + points * rows
    running = np.cumsum(weight.ravel()[order], axis=1)
    below = np.searchsorted(keyed(rows, running).ravel(), keyed(rows, rank)) - points * rows
    return value.ravel()[np.take_along_axis(order, np.minimum(below, points - 1), axis=1)]


def far_sums(
    t: np.ndarray, A: np.ndarray, a: np.ndarray, rest: np.ndarray, B: np.ndarray, b: np.ndarray, last: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return for each t the weight of the sums `A[rest] + B[last] <= t`, and their totals of `t - sum`.

    Thresholds t, `(R,)`, are finite. Sketches A, `(G, K)`, and B, `(H, L)`, are ascending, with weights a and b; +inf
    with weight 0 is padding. `rest` and `last`, `(R,)`, are the rows of A and B of each threshold; `last` is ascending,
    within `MEASURED.keys_per_search`.
    """
    first, many = int(last[0]), int(last[-1] - last[0]) + 1
    B, b, key = B[first : first + many], b[first : first + many], (last - first)[:, None]
    live = b > 0
    if not live.any():
        return np.zeros(len(t)), np.zeros(len(t))
    low, high = float(B[live].min()), float(B[live].max())
    left = t[:, None] - np.where(a > 0, A, 0)[rest]
    # An offset keeps the sketches apart in one ascending array; each lies within low - 1 and high + 1.
    apart = (high - low + 4) * np.arange(many)[:, None]
    known = (np.where(live, B, high + 1) + apart).ravel()
    place = np.searchsorted(known, np.clip(left, low - 1, high + 0.5) + apart[key[:, 0]], side="right")
    place += key  # each row begins with a sum over no entry
    none, share = np.zeros((many, 1)), a[rest]
    mass, moment = (
        np.concatenate([none, np.cumsum(part, axis=1)], axis=1).ravel()[place] for part in (b, b * np.where(live, B, 0))
    )
    return np.einsum("rk,rk->r", share, mass), np.einsum("rk,rk->r", share, left * mass - moment)
