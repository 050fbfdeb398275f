"""Counts under one additive inequality from small sorted sketches: each within a factor 1 + eps, at any size.

Abo-Khamis, Im, Moseley, Pruhs, Samadian, "Approximate Aggregate Queries Under Additive Inequalities" (arXiv
2003.10588): Inside-Out in the semiring of multisets of scores (union, sums of pairs), where each multiset is cut down
to a sketch that keeps the order statistics at ranks which grow by a factor. Where we depart from it:

- Ranks are integers, `w_0 = 1, w_(k+1) = max(w_k + 1, floor((1 + eps_0) w_k))`: unfloored powers, as printed, would
  break `count^ <= count` for small counts. Groups of up to `2 / eps` rows are kept exactly.
- One compression a message instead of one for each pairwise union: a union costs nothing (the worse factor of the two
  holds), only compressions and products multiply errors. On a path of m tables they do so m - 1 times at most, so
  `eps_0 = (1 + eps)^(1 / E) - 1` with E from the tree; sketches are a hundred times smaller than by the printed
  analysis.
- A cell of ranks `(w_(k-1), w_k]` has all its mass at one representative: its last rank ("lower": `count / (1 + eps) <=
  count^ <= count`), its first ("upper"), or one inside ("mid"). Total mass is exact.
- "mid" may be off to both sides, so its cells are twice as wide for the same factor: `c_k = floor((1 + eps_0) w_(k-1))
  + 1` stands for ranks up to `w_k = floor((1 + eps_0) c_k)`. Half the points, and a quarter of the pairs of products.

What costs is sorting: `n_i K` points a message. The program runs on the host, in chunks of `POINTS` points; what a
chunk computes is in `order_statistics.py`, in NumPy on CPUs, compiled on accelerators.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxsvm.errors import InputError
from jaxsvm.relational.counting import semirings as counting
from jaxsvm.relational.counting.order_statistics import (
    KEYS,
    far_sums,
    far_sums_compiled,
    sums_at_ranks,
    sums_at_ranks_compiled,
)
from jaxsvm.relational.counting.tree import Tree, grouped
from jaxsvm.relational.gradient.far import Far, node_scores, table_counts

POINTS = 1 << 18
"""Points (score and weight) that are sorted at a time on a CPU, some 50 bytes each; they stay in the cache."""
POINTS_COMPILED = 1 << 24
"""The same on an accelerator."""
MODES = ("lower", "upper", "mid")
SLACK = 1 - 1e-12
"""Of a rank, for the rounding of masses beyond 2^53."""


class Grid(NamedTuple):
    """Cells of ranks: the last one of each, and in "mid" the one that stands for it."""

    last: np.ndarray
    middle: np.ndarray


def rank_grid(eps: float, size: float) -> np.ndarray:
    """Integer ranks from 1 to `size` or beyond, each at most a factor `1 + eps` (or 1) above the one before."""
    grid = [1.0]
    while grid[-1] < size:
        grid.append(max(grid[-1] + 1, np.floor((1 + eps) * grid[-1])))
    return np.array(grid)


def middle_grid(eps: float, size: float) -> Grid:
    """Cells up to `size` or beyond whose middle counts for each of their ranks within a factor `1 + eps`."""
    last, middle = [], []
    while not last or last[-1] < size:
        middle.append(np.floor((1 + eps) * last[-1]) + 1 if last else 1.0)
        last.append(max(middle[-1], np.floor((1 + eps) * middle[-1])))
    return Grid(np.array(last), np.array(middle))


class Step(NamedTuple):
    """One compression of the program.

    Attributes:
        name: Of the sketches that it makes.
        node: Whose rows are points, or -1 for a product of two sketches.
        to: The neighbour that the message is for.
        sources: Names of the sketches that are added: "" is that of the score 0 alone.
    """

    name: str
    node: int
    to: int
    sources: tuple[str, ...]


class Chunk(NamedTuple):
    """Sketches that are made at a time.

    Attributes:
        out: Which, `(R,)`.
        rows: Of a message: the rows that each is made of, `(R, M)`, filled up with the one beyond the last. Of a
            product: None.
    """

    out: np.ndarray
    rows: np.ndarray | None


class Plan(NamedTuple):
    """What does not depend on scores, for modes that share their cells.

    Attributes:
        grid: The cells of each sketch.
        chunks: By label and step.
        rows: By label and node: rows in chunks for their counts, by the key of their last neighbour.
    """

    grid: dict[str, Grid]
    chunks: tuple[dict[str, list[Chunk]], ...]
    rows: tuple[dict[int, list[np.ndarray]], ...]


def _message(i: int, j: int) -> str:
    return f"{i}>{j}"


def _product(i: int, near: tuple[int, ...]) -> str:
    return f"{i}<" + "*".join(map(str, near))


class SketchEngine:
    """Configured for a tree and an accuracy; each count is within a factor `1 + eps`."""

    name = "sketch"

    def __init__(self, tree: Tree, eps: float, simplify: bool = True, compiled: bool | None = None) -> None:
        """Plan: exact sizes of all groups, the accuracy of one compression, grids of ranks, chunks.

        Args:
            tree: The join tree.
            eps: The relative accuracy of counts, in (0, 1].
            simplify: Whether edges with unique keys are contracted first.
            compiled: Whether XLA does the work; None: not on a CPU, where NumPy sorts faster.
        """
        if not 0 < eps <= 1:
            raise InputError(f"eps is {eps}: the relative accuracy of counts, above 0 and at most 1, is needed.")
        self.tree = tree = tree.simplified if simplify else tree
        self.eps = eps
        self.compiled = jax.default_backend() != "cpu" if compiled is None else compiled
        self.points = POINTS_COMPILED if self.compiled else POINTS
        totals = counting.messages(tree, tree.weight)
        self.near = {i: sorted(tree.neighbours(i), key=lambda k, i=i: totals[k, i].max()) for i in range(tree.m)}
        self.steps, self.products, self.through = self._program()
        self.sizes = {name: total.max() for name, total in self._totals([np.asarray(w) for w in tree.weight]).items()}
        self.totals = [self._totals(counting.masked(tree, sign)) for sign in (0, 1)]
        # A compression of groups that stay exact costs no accuracy.
        self.free = {name for name, size in self.sizes.items() if size <= 2 / eps}
        self.exponent = self._exponent()
        self.eps0 = (1 + eps) ** (1 / max(self.exponent, 1)) - 1
        self.plans: dict[bool, Plan] = {}

    def __call__(
        self,
        scores: tuple[list[np.ndarray], list[np.ndarray]],
        mode: str = "mid",
        tau: float = 1.0,
        squared: bool = False,
    ) -> Far:
        """Count, as `mode` says; sums of slacks come with it."""
        del squared
        if mode not in MODES:
            raise InputError(f"mode is {mode!r}: one of {', '.join(MODES)} is needed.")
        plan = self.plan(mode)

        def of_label(sign: int) -> tuple[list[np.ndarray], list[np.ndarray], float, float]:
            far, room, squares = self._run(plan, sign, node_scores(self.tree, scores[sign]), mode, tau)
            tables = [table_counts(self.tree, scores[sign], part) for part in (far, room)]
            return tables[0], tables[1], float(room[self.tree.label].sum()), squares

        # NumPy lets go of the interpreter while it sorts, so the labels have a core each.
        with ThreadPoolExecutor(1 if self.compiled else 2) as pool:
            one, two = pool.map(of_label, (0, 1))
        return Far((one[0], two[0]), (one[2], two[2]), [one[1], two[1]], (one[3], two[3]))

    # --- the plan ---

    def plan(self, mode: str) -> Plan:
        """Of a mode; made once."""
        both = mode == "mid"
        if both not in self.plans:
            grid = {step.name: self._grid(step.name, both) for step in self.steps}
            width = {name: len(cells.last) for name, cells in grid.items()} | {"": 1}
            chunks = tuple({step.name: self._chunks(step, width, sign) for step in self.steps} for sign in (0, 1))
            rows = tuple({i: self._rows_of(i, width, sign) for i in range(self.tree.m)} for sign in (0, 1))
            self.plans[both] = Plan(grid, chunks, rows)
        return self.plans[both]

    def _grid(self, name: str, both: bool) -> Grid:
        """The cells of a sketch."""
        size = self.sizes[name]
        if name in self.free:
            return Grid(*[np.arange(1.0, size + 1)] * 2)
        return middle_grid(self.eps0, size) if both else Grid(*[rank_grid(self.eps0, size)] * 2)

    def _program(self) -> tuple[list[Step], dict[str, Any], list[tuple[str, str]]]:
        """Compressions in an order that works; for each product its combinations; what makes counts."""
        tree, steps, products = self.tree, [], {}

        def product(i: int, near: tuple[int, ...]) -> str:
            """The name of the sketch of sums over these neighbours of i."""
            if len(near) < 2:
                return _message(near[0], i) if near else ""
            name = _product(i, near)
            if name not in products:
                left = product(i, near[:-1])
                one, two = self._id(i, near[:-1], products), tree.kid[i, near[-1]]
                code, ids = np.unique(one * tree.count[i, near[-1]] + two, return_inverse=True)
                products[name] = (*np.divmod(code, tree.count[i, near[-1]]), ids)
                steps.append(Step(name, -1, -1, (left, _message(near[-1], i))))
            return name

        for i, j in tree.directed:
            others = product(i, tuple(k for k in self.near[i] if k != j))
            steps.append(Step(_message(i, j), i, j, (others,)))
        through = []
        for i in range(tree.m):
            near = self.near[i]
            through.append((product(i, tuple(near[:-1])), _message(near[-1], i) if near else ""))
        return steps, products, through

    def _id(self, i: int, near: tuple[int, ...], products: dict[Any, Any]) -> np.ndarray:
        """Which row of the sketch of these neighbours each row of i looks at."""
        if not near:
            return np.zeros(len(self.tree.weight[i]), np.int64)
        return self.tree.kid[i, near[0]] if len(near) == 1 else products[_product(i, near)][2]

    def _totals(self, factors: list[np.ndarray]) -> dict[str, np.ndarray]:
        """The mass of each row of each sketch."""
        total: dict[str, np.ndarray] = {
            _message(*edge): sent for edge, sent in counting.messages(self.tree, factors).items()
        }
        for step in self.steps:
            if step.node < 0:
                one, two, _ = self.products[step.name]
                total[step.name] = total[step.sources[0]][one] * total[step.sources[1]][two]
        return total

    def _exponent(self) -> int:
        """How often a factor `1 + eps_0` is lost at most, in any count."""
        lost: dict[str, int] = {"": 0}
        for step in self.steps:
            lost[step.name] = sum(lost[name] for name in step.sources) + (step.name not in self.free)
        return max(lost[a] + lost[b] for a, b in self.through)

    def _live(self, i: int, sign: int) -> np.ndarray:
        """The rows of a node that count for a label."""
        tree = self.tree
        return np.flatnonzero(tree.masks()[sign]) if i == tree.label else np.arange(len(tree.weight[i]))

    def _chunks(self, step: Step, width: dict[str, int], sign: int) -> list[Chunk]:
        """The sketches of a step in chunks of about equal groups, so that little is filled up."""
        if step.node < 0:
            kept = max(1, self.points // (width[step.sources[0]] * width[step.sources[1]]))
            out = np.arange(len(self.products[step.name][0]))
            return [Chunk(out[begin : begin + kept], None) for begin in range(0, len(out), kept)]
        i, j, live = step.node, step.to, self._live(step.node, sign)
        n, each = len(self.tree.weight[i]), width[step.sources[0]]
        order, start = grouped(self.tree.kid[i, j][live], self.tree.count[i, j])
        size = np.diff(start)
        groups, chunks, begin = np.argsort(-size, kind="stable"), [], 0
        groups = groups[size[groups] > 0]
        while begin < len(groups):
            most = int(size[groups[begin]])
            inside = groups[begin : begin + max(1, self.points // (most * each))]
            inside = inside[: np.searchsorted(-size[inside], -(3 * most // 4), side="right")]
            begin += len(inside)
            place = np.arange(most)
            points = start[inside][:, None] + np.minimum(place, size[inside][:, None] - 1)
            chunks.append(Chunk(inside, np.where(place < size[inside][:, None], live[order[points]], n)))
        return chunks

    def _rows_of(self, i: int, width: dict[str, int], sign: int) -> list[np.ndarray]:
        """The rows of a node in chunks for its counts."""
        live = self._live(i, sign)
        key = self.tree.kid[i, self.near[i][-1]][live] if self.near[i] else np.zeros(len(live), np.int64)
        order = np.argsort(key, kind="stable")
        most = max(1, self.points // (4 * width[self.through[i][0]]))
        block = key[order] // (KEYS if not self.compiled else len(live) + 1)
        cuts = np.union1d(np.flatnonzero(np.diff(block)) + 1, np.arange(most, len(live), most))
        return [part for part in np.split(live[order], cuts) if len(part)]

    # --- a pass ---

    def _run(
        self, plan: Plan, sign: int, s: list[np.ndarray], mode: str, tau: float
    ) -> tuple[list[np.ndarray], list[np.ndarray], float]:
        """Far rows of one label through each row of each node, the sums of their slacks, and of all squared slacks."""
        at_ranks = sums_at_ranks_compiled if self.compiled else sums_at_ranks
        count = far_sums_compiled if self.compiled else far_sums
        tree, near = self.tree, self.near
        sketches = {"": (np.zeros((1, 1)), np.ones((1, 1)))}
        s = [np.append(part, np.inf) for part in s]
        weight = [np.append(part, 0.0) for part in tree.weight]
        for step in self.steps:
            mass, rank = _ranks(plan.grid[step.name], self.totals[sign][step.name], mode)
            H = np.full(mass.shape, np.inf)
            A, a = sketches[step.sources[-1]]
            if step.node < 0:
                (B, b), (one, two, _) = sketches[step.sources[0]], self.products[step.name]
                for out, _ in plan.chunks[sign][step.name]:
                    look = np.repeat(two[out][:, None], B.shape[1], axis=1)
                    H[out] = at_ranks(B[one[out]], b[one[out]], A, a, look, rank[out])
            else:
                i = step.node
                look = np.append(self._id(i, tuple(k for k in near[i] if k != step.to), self.products), 0)
                for out, rows in plan.chunks[sign][step.name]:
                    H[out] = at_ranks(s[i][rows], weight[i][rows], A, a, look[rows], rank[out])
            sketches[step.name] = (np.where(mass > 0, H, np.inf), mass)
        far, room = ([np.zeros(len(w)) for w in tree.weight] for _ in range(2))
        total = 0.0
        for i, (first, second) in enumerate(self.through):
            (A, a), (B, b) = sketches[first], sketches[second]
            rest = self._id(i, tuple(near[i][:-1]), self.products)
            last = tree.kid[i, near[i][-1]] if near[i] else np.zeros(len(rest), np.int64)
            for rows in plan.rows[sign][i]:
                some, sums, squares = count(tau - s[i][rows], A, a, rest[rows], B, b, last[rows])
                far[i][rows], room[i][rows] = weight[i][rows] * some, weight[i][rows] * sums
                total += float(weight[i][rows] @ squares) if i == tree.label else 0.0
        return far, room, total


def _ranks(grid: Grid, total: np.ndarray, mode: str) -> tuple[np.ndarray, np.ndarray]:
    """The mass of each cell of each sketch, and the rank of what stands for it, `(G, K)` each."""
    high = np.minimum(grid.last, total[:, None])
    below = np.append(0, grid.last[:-1])
    mass = np.maximum(high - below, 0)
    rank = {"lower": high, "upper": below + 1 + 0 * high, "mid": grid.middle + 0 * high}[mode]
    return mass, np.minimum(rank, high) * SLACK
