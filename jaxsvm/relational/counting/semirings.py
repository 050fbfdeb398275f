"""Inside-Out: sums over the rows of a join from two passes over its tables, in any commutative semiring.

With a factor `f_i[r]` for each row of each table, the message of table i to its neighbour j and the marginal of a row
are

    msg(i -> j)[g] = sum over rows r of i with key g of  f_i[r] * product of msg(k -> i)[key of r] over neighbours k !=
    j out(i)[r]      = f_i[r] * product of msg(k -> i)[key of r] over all neighbours k

(Abo Khamis, Ngo, Rudra, "FAQ: Questions Asked Frequently", PODS 2016; all messages at once instead of one root a
table.) With `+` and `*` the marginal is how many rows of the join go through r. Counts are float64: sums and products
of numbers that are not negative, so beyond 2^53 they are right to about `m eps log n`, relatively.
"""

from typing import Any, NamedTuple

import numpy as np

from jaxsvm.relational.counting.tree import Tree


class Semiring(NamedTuple):
    """A commutative semiring on float64.

    Attributes:
        add: A NumPy ufunc.
        multiply: A NumPy ufunc that distributes over it.
        zero: Neutral for `add`.
        one: Neutral for `multiply`.
    """

    add: Any
    multiply: Any
    zero: float
    one: float


COUNTS = Semiring(np.add, np.multiply, 0.0, 1.0)
SMALLEST = Semiring(np.minimum, np.add, np.inf, 0.0)
"""The least sum of scores of any row (min, +)."""
LARGEST = Semiring(np.maximum, np.add, -np.inf, 0.0)
"""The largest (max, +)."""

Messages = dict[tuple[int, int], np.ndarray]


def messages(tree: Tree, factors: list[np.ndarray], ring: Semiring = COUNTS) -> Messages:
    """All messages, `(G,)` a directed edge.

    Args:
        tree: The join tree.
        factors: `f_i`, float64 `(n_i,)` a node.
        ring: The semiring.
    """
    sent: Messages = {}
    for i, j in tree.directed:
        value = _at(tree, factors[i], sent, i, ring, j)
        out = np.full(tree.count[i, j], ring.zero)
        if ring.add is np.add:
            out = np.bincount(tree.kid[i, j], value, minlength=len(out))
        else:
            ring.add.at(out, tree.kid[i, j], value)
        sent[i, j] = out
    return sent


def marginals(tree: Tree, factors: list[np.ndarray], ring: Semiring = COUNTS) -> list[np.ndarray]:
    """`out(i)`, `(n_i,)` a node: of the rows of the join through each row."""
    sent = messages(tree, factors, ring)
    return [_at(tree, factors[i], sent, i, ring) for i in range(tree.m)]


def _at(
    tree: Tree, factor: np.ndarray, sent: Messages, i: int, ring: Semiring, without: int | None = None
) -> np.ndarray:
    """The factor of each row of i times the messages that it gets from all neighbours but one."""
    for k in tree.neighbours(i):
        if k != without:
            factor = ring.multiply(factor, sent[k, i][tree.kid[i, k]])
    return factor


def masked(tree: Tree, sign: int) -> list[np.ndarray]:
    """The multiplicities, 0 for rows of the other label: factors that count one label's rows."""
    kept = tree.weight[tree.label] * tree.masks()[sign]
    return [kept if i == tree.label else weight for i, weight in enumerate(tree.weight)]


def spread(tree: Tree, source: int, values: np.ndarray) -> list[np.ndarray]:
    """For each row of each node the sum of `values` of the source's row over the rows of the join through it.

    Args:
        tree: The join tree.
        source: A node.
        values: `(n_source, k)`.

    Returns:
        `(n_i, k)` a node.
    """
    sent = messages(tree, tree.weight)
    out: list[Any] = [None] * tree.m
    out[source] = _without(tree, sent, source)[:, None] * values
    inside, parent = {source: values}, {source: source}  # what a row brings from the source's side
    reached = [source]
    for i in reached:
        for j in tree.neighbours(i):
            if j != parent[i]:
                rest = _without(tree, sent, i, j, parent[i])[:, None] * inside[i]
                order, start = tree.groups[i, j]
                inside[j] = np.add.reduceat(rest[order], start[:-1], axis=0)[tree.kid[j, i]]
                out[j] = _without(tree, sent, j, i)[:, None] * inside[j]
                parent[j] = i
                reached.append(j)
    return out


def _without(tree: Tree, sent: Messages, i: int, *left: int) -> np.ndarray:
    factor = tree.weight[i]
    for k in tree.neighbours(i):
        if k not in left:
            factor = factor * sent[k, i][tree.kid[i, k]]
    return factor
