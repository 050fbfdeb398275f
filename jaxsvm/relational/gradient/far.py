"""What every engine answers: how many rows of the join, through each row of each table, are far from the margin.

A row x of the join with label l is *far* where `score_l(x) = sum_i s_i[r_i] <= 1`: its hinge is active (under every
eps-perturbation of the row, where the scores have a guard). Engines differ in how they count (the paper proves that
exact counts are #P-hard in general):

    rows     the whole join as row numbers of its tables, where it is small enough: exact
    merge    three nodes or two: sorted merges through the middle one: exact
    grid     scores split between two points of a grid: exact for a slightly blurred indicator
    sketch   sorted sketches as messages (the paper's): each count within a factor 1 + eps
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from jaxsvm.relational.counting.tree import Tree


class Far(NamedTuple):
    """Counts for the labels +1 and -1.

    Attributes:
        counts: `counts[sign][table]`, `(n_i,)`: far rows with that label through each row, multiplicities included.
        slack: `slack[sign]`: the sum of `1 - score` over them.
        slacks: The same a row of each table, where the engine was asked for it (squared hinge), else None.
        squares: `squares[sign]`: the sum of squares of `1 - score` over them, where it was asked for, else None.
    """

    counts: tuple[list[np.ndarray], list[np.ndarray]]
    slack: tuple[float, float]
    slacks: Any = None
    squares: tuple[float, float] | None = None


Engine = Callable[..., Far]
"""Of `scores[sign][table]`, a mode, a threshold, and whether sums of slacks and of their squares are wanted."""


def node_scores(tree: Tree, scores: list[np.ndarray]) -> list[np.ndarray]:
    """Scores of the nodes' rows from those of the tables' rows."""
    return [sum((scores[t][rows] for t, rows in member.items()), np.zeros(())) for member in tree.members]


def table_counts(tree: Tree, tables: list[np.ndarray], counts: list[np.ndarray]) -> list[np.ndarray]:
    """Counts of the tables' rows from those of the nodes' rows; `tables` says how long they are."""
    out: list[Any] = [None] * len(tables)
    for member, count in zip(tree.members, counts, strict=True):
        for t, rows in member.items():
            out[t] = np.bincount(rows, count, minlength=len(tables[t]))
    return out


class RowsEngine:
    """The join as row numbers of its tables: O(m N) a call, exact, nothing of the features copied."""

    name = "rows"

    def __init__(self, tree: Tree) -> None:
        """Take a tree that contracts to one node."""
        self.ramp = 0.0
        """Half the width of the ramp that stands for the step from far to close, where a smooth weight is wanted."""
        contracted = tree.within(1, np.inf)
        assert contracted is not None
        self.tree = contracted

    def __call__(
        self,
        scores: tuple[list[np.ndarray], list[np.ndarray]],
        mode: str = "mid",
        tau: float = 1.0,
        squared: bool = False,
    ) -> Far:
        """Count; the mode does not matter, and sums of slacks are there unless a ramp is."""
        del mode, squared
        counts, slack, slacks, squares = [], [], [], []
        for sign, mask in enumerate(self.tree.masks()):
            slack_of = tau - node_scores(self.tree, scores[sign])[0]
            far = self.tree.weight[0] * mask * (slack_of >= 0)
            room = far * slack_of
            if self.ramp:
                far = self.tree.weight[0] * mask * np.clip(slack_of / (2 * self.ramp) + 0.5, 0, 1)
            counts.append(table_counts(self.tree, scores[sign], [far]))
            slacks.append(table_counts(self.tree, scores[sign], [room]) if not self.ramp else None)
            slack.append(float(room.sum()))
            squares.append(float(room @ slack_of))
        both = (squares[0], squares[1])
        return Far((counts[0], counts[1]), (slack[0], slack[1]), None if self.ramp else slacks, both)
