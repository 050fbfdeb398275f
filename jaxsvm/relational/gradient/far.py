"""Count the rows of the join, through each row of each table, that are far from the margin: the base of all engines.

A row x of the join with label l is *far* if `score_l(x) = sum_i s_i[r_i] <= 1`: its hinge is active (under every
eps-perturbation of the row, if the scores have a guard). Exact counts are #P-hard in general. Engines are exact merges
(`engine.py`, three nodes at most), a grid of blurred scores, and the paper's sketches, within a factor 1 + eps.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from jaxsvm.relational.counting.tree import Tree

Counts = tuple[list[np.ndarray], float]  # far rows through each row of each node, and the sum of their slacks
Scores = tuple[list[np.ndarray], list[np.ndarray]]


class Far(NamedTuple):
    """Counts of far rows for the labels +1 and -1."""

    # `counts[sign][table]`, `(n_i,)`: far rows with that label through each row, with multiplicities:
    counts: tuple[list[np.ndarray], ...]
    slack: tuple[float, ...]  # `slack[sign]`: the sum of `1 - score` over them


class Engine:
    """A way to count far rows over a join tree."""

    name = ""
    bounds = False  # whether its counts are bounds, which "lower" and "upper" tell apart
    threads = 1  # how many labels are counted at a time
    tree: Tree

    def count(self, sign: int, s: list[np.ndarray], tau: float, mode: str, ramp: float) -> Counts:
        """Count the far rows of a label (sign 0 for +1, 1 for -1) from the scores of each node's rows, `(n_i,)` each.

        tau is the threshold of scores. Engines with `bounds` tell modes apart; others take a ramp of half-width `ramp`,
        or a mean of steps in it, in place of the step from far to close. Return for each node the far rows through each
        of its rows, `(n_i,)`, and the sum of all their slacks.
        """
        raise NotImplementedError

    def __call__(self, scores: Scores, tau: float = 1.0, mode: str = "mid", ramp: float = 0.0) -> Far:
        """Count far rows from the scores of each table's rows, `scores[sign][table]`, `(n_i,)`."""

        def of_label(sign: int) -> Counts:
            tree, s = self.tree, scores[sign]
            nodes = [sum((s[t][rows] for t, rows in member.items()), np.zeros(())) for member in tree.members]
            counts, slack = self.count(sign, nodes, tau, mode, ramp)
            return _of_tables(tree, s, counts), slack

        with ThreadPoolExecutor(self.threads) as pool:
            return Far(*zip(*pool.map(of_label, (0, 1)), strict=True))


def _of_tables(tree: Tree, tables: list[np.ndarray], values: list[np.ndarray]) -> list[np.ndarray]:
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


def running(values: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Return sums up to each of the values, `(k, n)`, within keys that begin at `start`, `(keys + 1,)`, ascending.

    In units of each key, powers of two: sums of large weights would lose the digits of small keys.
    """
    size = np.diff(start)
    head, size = start[:-1][size > 0], size[size > 0]
    unit = np.ldexp(0.5, np.frexp(np.add.reduceat(np.abs(values), head, axis=1))[1]).repeat(size, axis=1)
    total = np.zeros((len(values), len(unit[0]) + 1))
    np.cumsum(values / unit, axis=1, out=total[:, 1:])
    return (total[:, 1:] - total[:, head].repeat(size, axis=1)) * unit
