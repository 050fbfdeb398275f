"""Represent a join tree without its features: rows, the ids of the keys they share, multiplicities, labels.

Two neighbours contract into one node whose rows are their joined pairs, stored as row numbers of the tables. If one of
them has unique keys the node has no more rows than the other: a snowflake becomes its fact table.

Inside-Out sums over the rows of a join in two passes over its tables. With a factor `f_i[r]` for each row of each
table, the message of table i to its neighbour j and the marginal of a row are

    msg(i -> j)[g] = sum over rows r of i with key g of
                     f_i[r] * product of msg(k -> i)[key of r] over neighbours k != j
    out(i)[r]      = f_i[r] * product of msg(k -> i)[key of r] over all neighbours k

(Abo Khamis, Ngo, Rudra, "FAQ: Questions Asked Frequently", PODS 2016). Of multiplicities the marginal is the number of
rows of the join through r, in float64: beyond 2^53 its relative error is about `m eps log n`. `drawn` draws rows of the
join (Chaudhuri, Motwani, Narasayya, "On Random Sampling over Joins", SIGMOD 1999), O(m log n) each: one of the root in
proportion to its marginal, then at each edge one of the neighbour in proportion to the part of the join behind it.

A row x of the join with label l is *far* if `score_l(x) = sum_i s_i[r_i] <= 1`: its hinge is active (under every
eps-perturbation of the row, if the scores have a guard). Exact counts are #P-hard in general. `gradient` has engines.
"""

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, NamedTuple, cast

import numpy as np


def grouped(kid: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows sorted by their ids `kid` in `0 ... count - 1`, `(n,)`, and where each id begins, `(count + 1,)`."""
    order = np.argsort(kid, kind="stable")
    return order, np.append(0, np.cumsum(np.bincount(kid, minlength=count)))


@dataclasses.dataclass(frozen=True)
class Tree:
    """A join tree."""

    weight: list[np.ndarray]  # for each node the number (weight) of equal rows that a row is, float64 `(n_i,)`
    # `kid[i, j]`: the id, `(n_i,)`, of the key that each row of i shares with its neighbour j; as in `kid[j, i]`, which
    # comes next, if i is the one nearer to the label; edges come from the label outwards:
    kid: dict[tuple[int, int], np.ndarray]
    count: dict[tuple[int, int], int]  # `count[i, j]`: the number of ids of the edge
    label: int  # the node with the label
    y: np.ndarray  # its signs, float64 `(n_label,)`; NaN of several classes
    members: list[dict[int, np.ndarray]]  # for each node, the tables in it and the row of each table, `(n_i,)`

    @property
    def m(self) -> int:
        """Return the number of nodes."""
        return len(self.weight)

    @cached_property
    def rows(self) -> float:
        """Return the number of different rows of the join."""
        return float(marginals(self, [np.ones(len(weight)) for weight in self.weight])[0].sum())

    def neighbours(self, i: int) -> list[int]:
        """Return the neighbours of a node."""
        return [b for a, b in self.kid if a == i]

    @property
    def outward(self) -> list[tuple[int, int]]:
        """List the edges from the node with the label, each after that which leads to it."""
        return list(self.kid)[::2]

    @property
    def directed(self) -> list[tuple[int, int]]:
        """List the directed edges, each after those that its message depends on."""
        return [(j, i) for i, j in reversed(self.outward)] + self.outward

    @cached_property
    def groups(self) -> dict[tuple[int, int], tuple[np.ndarray, np.ndarray]]:
        """Return, for each edge (i, j), the rows of i sorted by the key shared with j, and where each key begins."""
        return {edge: grouped(kid, self.count[edge]) for edge, kid in self.kid.items()}

    def pairs(self, i: int, j: int) -> int:
        """Count the rows of the join of two neighbours."""
        one, two = (np.bincount(self.kid[e], minlength=self.count[e]).astype(float) for e in ((i, j), (j, i)))
        return int(one @ two)

    def partners(self, i: int, j: int, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the pairs of rows of i and of its neighbour j with the same key: places in `rows`, and rows of j."""
        order, start = self.groups[j, i]
        kid = self.kid[i, j][rows]
        many = np.diff(start)[kid]
        mine = np.repeat(np.arange(len(kid)), many)
        return mine, order[np.arange(len(mine)) + np.repeat(start[kid] - np.cumsum(many) + many, many)]

    def contract(self, i: int, j: int) -> "Tree":
        """Return the tree with the neighbours i and j joined to one node, in i's place."""
        moved = dict(zip((i, j), self.partners(i, j, np.arange(len(self.weight[i]))), strict=True))
        rename = {old: old - (old > j) for old in range(self.m)} | {j: i - (i > j)}
        weights = [weight for old, weight in enumerate(self.weight) if old != j]
        weights[rename[i]] = self.weight[i][moved[i]] * self.weight[j][moved[j]]
        members = [member for old, member in enumerate(self.members) if old != j]
        members[rename[i]] = {t: rows[at] for old, at in moved.items() for t, rows in self.members[old].items()}
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
        for i, j in self.kid:
            if np.bincount(self.kid[j, i], minlength=1).max() <= 1:
                return self.contract(i, j).simplified
        return self

    def within(self, nodes: int, rows: float) -> "Tree | None":
        """Contract to at most `nodes` nodes, the cheapest edge first; None if a node had more rows than `rows`."""
        tree = self.simplified
        while tree.m > nodes:
            size, i, j = min((tree.pairs(i, j), i, j) for i, j in tree.kid if i < j)
            if size > rows:
                return None
            tree = tree.contract(i, j)
        return tree


Messages = dict[tuple[int, int], np.ndarray]


def messages(tree: Tree, factors: list[np.ndarray], add: np.ufunc = np.add, by: np.ufunc = np.multiply) -> Messages:
    """Return all messages, `(G,)` per directed edge, of the factors `f_i`, float64 `(n_i,)` per node."""
    sent: Messages = {}
    for i, j in tree.directed:
        value = multiplied(tree, sent, i, factors[i], j, by=by)
        if add is np.add:
            sent[i, j] = np.bincount(tree.kid[i, j], value, minlength=tree.count[i, j])
        else:
            order, start = tree.groups[i, j]
            sent[i, j] = add.reduceat(value[order], start[:-1])
    return sent


def marginals(tree: Tree, factors: list[np.ndarray], *of: np.ufunc) -> list[np.ndarray]:
    """Return `out(i)`, `(n_i,)` per node: the sum over the rows of the join through each row; `of` is a semiring."""
    sent = messages(tree, factors, *of)
    return [multiplied(tree, sent, i, factors[i], by=of[1] if of else np.multiply) for i in range(tree.m)]


def multiplied(tree: Tree, sent: Messages, i: int, factor: Any, *but: int, by: np.ufunc = np.multiply) -> np.ndarray:
    """Multiply the factor of each row of i, `(n_i,)`, by its messages from all neighbours but those of `but`."""
    for k in tree.neighbours(i):
        if k not in but:
            factor = by(factor, sent[k, i][tree.kid[i, k]])
    return factor


def masked(tree: Tree, sign: int) -> list[np.ndarray]:
    """Return the multiplicities, 0 for rows of the other label than +1 (sign 0) or -1 (sign 1)."""
    kept = tree.weight[tree.label] * (tree.y == (1, -1)[sign])
    return [kept if i == tree.label else weight for i, weight in enumerate(tree.weight)]


def drawn(tree: Tree, n: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Draw n rows of the join, in proportion to weights: the row of each table, `(n,)` each."""
    tree, at = tree.simplified, {}
    sent = messages(tree, tree.weight)
    through = np.cumsum(multiplied(tree, sent, tree.label, tree.weight[tree.label]))
    at[tree.label] = np.minimum(np.searchsorted(through, rng.random(n) * through[-1], side="right"), len(through) - 1)
    for i, j in tree.outward:
        order, start = tree.groups[j, i]
        # Shares within each key: sums of large weights would lose the digits of small keys.
        share = multiplied(tree, sent, j, tree.weight[j], i) / np.maximum(sent[j, i], 1e-300)[tree.kid[j, i]]
        total, key = np.append(0.0, np.cumsum(share[order])), tree.kid[i, j][at[i]]
        low, high = start[key], start[key + 1]
        wanted = total[low] + rng.random(n) * (total[high] - total[low])
        at[j] = order[np.clip(np.searchsorted(total, wanted, side="right") - 1, low, high - 1)]
    rows = {t: index[at[node]] for node in at for t, index in tree.members[node].items()}
    return [rows[t] for t in sorted(rows)]


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
    options: tuple[Any, ...] = ()  # what else it is made from

    def count(self, sign: int, s: list[np.ndarray], tau: float, mode: str, ramp: float) -> Counts:
        """Count the far rows of a label (sign 0 for +1, 1 for -1) from the scores of each node's rows, `(n_i,)` each.

        tau is the threshold of scores. Engines with `bounds` tell modes apart; others take a ramp of half-width `ramp`,
        or a mean of steps in it, in place of the step from far to close. Return for each node the far rows through each
        of its rows, `(n_i,)`, and the sum of all their slacks.
        """
        raise NotImplementedError

    def against(self, join: Any) -> "Engine":
        """Return the engine for other labels of the same rows, those of a join."""
        y, kind = join.tree.y[self.tree.members[self.tree.label][join.tree.label]], cast(Any, type(self))
        return kind(dataclasses.replace(self.tree, y=y), *self.options)

    def __call__(self, scores: Scores, tau: float = 1.0, mode: str = "mid", ramp: float = 0.0) -> Far:
        """Count far rows from the scores of each table's rows, `scores[sign][table]`, `(n_i,)`."""

        def of_label(sign: int) -> Counts:
            tree, s = self.tree, scores[sign]
            nodes = [sum((s[t][rows] for t, rows in member.items()), np.zeros(())) for member in tree.members]
            counts, slack = self.count(sign, nodes, tau, mode, ramp)
            each = {t: (rows, count) for of, count in zip(tree.members, counts, strict=True) for t, rows in of.items()}
            return [np.bincount(*each[t], minlength=len(part)) for t, part in enumerate(s)], slack

        with ThreadPoolExecutor(self.threads) as pool:
            return Far(*zip(*pool.map(of_label, (0, 1)), strict=True))


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
