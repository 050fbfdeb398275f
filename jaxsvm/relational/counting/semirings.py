"""Inside-Out: sum over the rows of a join in two passes over its tables, in any commutative semiring.

With a factor `f_i[r]` for each row of each table, the message of table i to its neighbour j and the marginal of a row
are

    msg(i -> j)[g] = sum over rows r of i with key g of
                     f_i[r] * product of msg(k -> i)[key of r] over neighbours k != j
    out(i)[r]      = f_i[r] * product of msg(k -> i)[key of r] over all neighbours k

(Abo Khamis, Ngo, Rudra, "FAQ: Questions Asked Frequently", PODS 2016; all messages at once instead of one root per
table.) With `+` and `*` the marginal is the number of rows of the join that go through r. Counts are float64: sums and
products of nonnegative numbers, so beyond 2^53 their relative error is about `m eps log n`.
"""

from typing import Any, NamedTuple

import numpy as np

from jaxsvm.relational.counting.tree import Tree


class Semiring(NamedTuple):
    """A commutative semiring on float64."""

    add: Any  # a NumPy ufunc
    multiply: Any  # a NumPy ufunc that distributes over it
    zero: float  # the neutral element of `add`


COUNTS = Semiring(np.add, np.multiply, 0.0)
Messages = dict[tuple[int, int], np.ndarray]


def messages(tree: Tree, factors: list[np.ndarray], ring: Semiring = COUNTS) -> Messages:
    """Return all messages, `(G,)` per directed edge, of the factors `f_i`, float64 `(n_i,)` per node."""
    sent: Messages = {}
    for i, j in tree.directed:
        value = multiplied(tree, sent, i, factors[i], j, ring=ring)
        if ring.add is np.add:
            sent[i, j] = np.bincount(tree.kid[i, j], value, minlength=tree.count[i, j])
        else:
            sent[i, j] = np.full(tree.count[i, j], ring.zero)
            ring.add.at(sent[i, j], tree.kid[i, j], value)
    return sent


def marginals(tree: Tree, factors: list[np.ndarray], ring: Semiring = COUNTS) -> list[np.ndarray]:
    """Return `out(i)`, `(n_i,)` per node: the sum over the rows of the join through each row."""
    sent = messages(tree, factors, ring)
    return [multiplied(tree, sent, i, factors[i], ring=ring) for i in range(tree.m)]


def multiplied(
    tree: Tree, sent: Messages, i: int, factor: np.ndarray, *without: int, ring: Semiring = COUNTS
) -> np.ndarray:
    """Multiply the factor of each row of i, `(n_i,)`, by its messages from all neighbours but those of `without`."""
    for k in tree.neighbours(i):
        if k not in without:
            factor = ring.multiply(factor, sent[k, i][tree.kid[i, k]])
    return factor


def masked(tree: Tree, sign: int) -> list[np.ndarray]:
    """Return the multiplicities, 0 for rows of the other label: factors that count one label's rows."""
    kept = tree.weight[tree.label] * tree.masks()[sign]
    return [kept if i == tree.label else weight for i, weight in enumerate(tree.weight)]


def spread(tree: Tree, source: int, values: np.ndarray) -> list[np.ndarray]:
    """Sum, for each row of each node, the `values` `(n_source, k)` of the source over the rows of the join through it.

    Returns `(n_i, k)` per node.
    """
    sent = messages(tree, tree.weight)
    out: list[Any] = [None] * tree.m
    out[source] = multiplied(tree, sent, source, tree.weight[source])[:, None] * values
    inside, parent = {source: values}, {source: source}  # inside: the sum over the source's side of each row
    reached = [source]
    for i in reached:
        for j in tree.neighbours(i):
            if j != parent[i]:
                rest = multiplied(tree, sent, i, tree.weight[i], j, parent[i])[:, None] * inside[i]
                order, start = tree.groups[i, j]
                inside[j] = np.add.reduceat(rest[order], start[:-1], axis=0)[tree.kid[j, i]]
                out[j] = multiplied(tree, sent, j, tree.weight[j], i)[:, None] * inside[j]
                parent[j] = i
                reached.append(j)
    return out
