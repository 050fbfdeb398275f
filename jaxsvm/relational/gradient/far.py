"""Count the rows of the join, through each row of each table, that are far from the margin: the base of all engines.

A row x of the join with label l is *far* if `score_l(x) = sum_i s_i[r_i] <= 1`: its hinge is active (under every
eps-perturbation of the row, if the scores have a guard). The paper proves that exact counts are #P-hard in general.
The engines count in different ways:

    rows     the whole join as row numbers of its tables, if it is small enough: exact
    merge    at most three nodes: sorted merges through the middle one: exact
    grid     scores split between two points of a grid: exact for a slightly blurred indicator
    sketch   sorted sketches as messages (the paper's): each count within a factor 1 + eps
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from jaxsvm.relational.counting.tree import Tree

Scores = tuple[list[np.ndarray], list[np.ndarray]]


class Far(NamedTuple):
    """Counts of far rows for the labels +1 and -1."""

    # `counts[sign][table]`, `(n_i,)`: far rows with that label through each row, with multiplicities:
    counts: tuple[list[np.ndarray], ...]
    slack: tuple[float, ...]  # `slack[sign]`: the sum of `1 - score` over them
    slacks: Any = None  # the same a row of each table, if it was asked for (squared hinge), else None
    # `squares[sign]`: the sum of squares of `1 - score` over them; valid only with `slacks`:
    squares: tuple[float, ...] = (0.0, 0.0)


class Request(NamedTuple):
    """The options of a count."""

    mode: str = "mid"  # "lower", "upper" or "mid"; only engines with `bounds` tell them apart
    tau: float = 1.0  # the threshold of the scores
    squared: bool = False  # whether sums of slacks per row, and of squared slacks, are needed
    # Half-width of the ramp that replaces the step from far to close, for engines without `bounds`; 0: none:
    ramp: float = 0.0


class Engine:
    """A way to count far rows over a join tree."""

    name = ""
    bounds = False  # whether its counts are bounds, which "lower" and "upper" tell apart
    threads = 1  # how many labels are counted at a time
    tree: Tree

    def plan(self, mode: str) -> Any:
        """Prepare a mode, before any scores are known."""

    def least_ramp(self, s: list[np.ndarray]) -> float:
        """Return the least half-width of a ramp that counts can tell from a step, for scores of tables."""
        return 1e-6

    def count(
        self, sign: int, s: list[np.ndarray], request: Request
    ) -> tuple[list[np.ndarray], list[np.ndarray] | None, float, float]:
        """Count the far rows of a label (sign 0 for +1, 1 for -1) from the scores of each node's rows, `(n_i,)` each.

        Return for each node the far rows through each of its rows and the sums of their slacks (None unless asked for),
        `(n_i,)` each; the sum of all slacks; the sum of their squares (arbitrary unless asked for).
        """
        raise NotImplementedError

    def __call__(self, scores: Scores, request: Request) -> Far:
        """Count far rows from the scores of each table's rows, `scores[sign][table]`, `(n_i,)`."""
        self.plan(request.mode)

        def of_label(sign: int) -> tuple[Any, ...]:
            tree, s = self.tree, scores[sign]
            nodes = [sum((s[t][rows] for t, rows in member.items()), np.zeros(())) for member in tree.members]
            *parts, slack, squares = self.count(sign, nodes, request)
            return *(None if part is None else _of_tables(tree, s, part) for part in parts), slack, squares

        with ThreadPoolExecutor(self.threads) as pool:
            counts, slacks, slack, squares = zip(*pool.map(of_label, (0, 1)), strict=True)
        return Far(counts, slack, None if slacks[0] is None else slacks, squares)


def _of_tables(tree: Tree, tables: list[np.ndarray], values: list[np.ndarray]) -> list[np.ndarray]:
    """Sum values of the nodes' rows over the tables' rows; `tables` gives the lengths."""
    out: list[Any] = [None] * len(tables)
    for member, value in zip(tree.members, values, strict=True):
        for t, rows in member.items():
            out[t] = np.bincount(rows, value, minlength=len(tables[t]))
    return out


def keyed(key: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Return complex numbers, which order by key and then by value."""
    out = np.empty(np.broadcast(key, value).shape, complex)
    out.real, out.imag = key, value
    return out
