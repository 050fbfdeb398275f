"""From columns and numbered keys to what engines work on: rows that join, merged, a join tree, features, labels."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from jaxsvm.errors import InputError
from jaxsvm.relational.counting import semirings as counting
from jaxsvm.relational.counting.tree import Tree
from jaxsvm.relational.schema.blocks import Block, block_of
from jaxsvm.relational.schema.join_tree import join_tree
from jaxsvm.relational.tables.columns import Column, distinct, shown
from jaxsvm.relational.tables.keys import edge_ids


class Tables(NamedTuple):
    """Tables that were read.

    Attributes:
        names: Of the tables.
        columns: For each, the columns of its features.
        target: The label's.
        codes: For each, the number of each row's value of each attribute, `(n_i,)`; -1 where missing.
        weights: For each, how many equal rows each row stands for, float64 `(n_i,)`.
    """

    names: list[str]
    columns: list[dict[str, Column]]
    target: Column
    codes: list[dict[str, np.ndarray]]
    weights: list[np.ndarray]


class Parts(NamedTuple):
    """What `Prepared` has of the same names."""

    tree: Tree
    blocks: list[Block]
    classes: np.ndarray
    rows: list[np.ndarray]
    notes: list[str]


def assembled(
    tables: Tables, label: tuple[str, str], categorical: Mapping[str, set[str]], positive: Any, missing: str
) -> Parts:
    """Drop rows that join with nothing, merge equal rows, make features of columns and signs of labels.

    Raises:
        InputError: On a cyclic join, one without rows or with one label, and columns that are no features.
    """
    names, codes, hub = tables.names, tables.codes, tables.names.index(label[0])
    rows, notes = [], []
    for place, weight in enumerate(tables.weights):
        kept = np.ones(len(weight), bool)
        for code in codes[place].values():
            kept &= code >= 0
        if missing == "drop":
            for part in [*tables.columns[place].values(), *([tables.target] if place == hub else [])]:
                kept &= ~part.missing
        rows.append(np.flatnonzero(kept))
    shared = [frozenset(code) for code in codes]

    def cost(i: int, j: int) -> float:
        one, two, G = _edge(codes, rows, shared, i, j)
        return float(np.bincount(one, minlength=G).astype(float) @ np.bincount(two, minlength=G))

    edges = join_tree(names, shared, hub, cost)
    for i, j in edges:
        if not shared[i] & shared[j]:
            notes.append(f"{names[i]} and {names[j]} share no key: every row of one joins every row of the other.")
    rows = _reduced(names, codes, rows, shared, edges, notes)
    y, classes = _signs(label, tables.target.take(rows[hub]), positive)
    weights = [weight[index] for weight, index in zip(tables.weights, rows, strict=True)]
    blocks = []
    for name, index, weight, columns in zip(names, rows, weights, tables.columns, strict=True):
        parts = {c: part.take(index) for c, part in columns.items()}
        blocks.append(block_of(name, weight, parts, categorical.get(name, set()), missing))
    for place, name in enumerate(names):
        same = [codes[place][a][rows[place]] for a in shared[place]]
        same += list(blocks[place].X.T) + [category.codes for category in blocks[place].categories]
        same += [y] if place == hub else []
        first, kind = merged(same, len(rows[place]))
        if len(first) < len(kind):
            notes.append(f"{name}: {len(kind)} rows are {len(first)} different ones.")
            rows[place], weights[place] = rows[place][first], np.bincount(kind, weights[place])
            cut = [category._replace(codes=category.codes[first]) for category in blocks[place].categories]
            blocks[place] = blocks[place]._replace(X=blocks[place].X[first], categories=cut)
            y = y[first] if place == hub else y
    kid, count = _edges(codes, rows, shared, edges)
    members = [{i: np.arange(len(index))} for i, index in enumerate(rows)]
    return Parts(Tree(weights, kid, count, hub, y, members), blocks, classes, rows, notes)


def merged(columns: list[np.ndarray], n: int) -> tuple[np.ndarray, np.ndarray]:
    """Equal rows: the first of each kind, and the kind of each row, `(n,)`.

    Rows are told apart by a 64-bit sum of their scrambled columns; where that would merge two that differ, nothing is.
    """
    mark = np.zeros(n, np.uint64)
    for place, values in enumerate(columns):
        bits = np.ascontiguousarray(values.astype(float) + 0.0).view(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        bits = bits * np.uint64((0xBF58476D1CE4E5B9 + 2 * place * 0x94D049BB) % 2**64)
        mark = (mark ^ bits ^ (bits >> np.uint64(31))) * np.uint64(0x94D049BB133111EB)
        mark ^= mark >> np.uint64(29)
    _, first, kind = np.unique(mark, return_index=True, return_inverse=True)
    if all(np.array_equal(values, values[first][kind]) for values in columns):
        return first, kind
    return np.arange(n), np.arange(n)


def _edge(codes: Any, rows: Any, shared: Any, i: int, j: int) -> tuple[np.ndarray, np.ndarray, int]:
    common = sorted(shared[i] & shared[j])
    if not common:
        return np.zeros(len(rows[i]), np.int64), np.zeros(len(rows[j]), np.int64), 1
    return edge_ids(*([codes[k][a][rows[k]] for a in common] for k in (i, j)))


def _edges(codes: Any, rows: Any, shared: Any, edges: Any) -> tuple[dict[Any, np.ndarray], dict[Any, int]]:
    kid, count = {}, {}
    for i, j in edges:
        kid[i, j], kid[j, i], count[i, j] = _edge(codes, rows, shared, i, j)
        count[j, i] = count[i, j]
    return kid, count


def _reduced(names: Any, codes: Any, rows: Any, shared: Any, edges: Any, notes: list[str]) -> list[np.ndarray]:
    """The rows that take part in the join: those through which a row of it goes."""
    kid, count = _edges(codes, rows, shared, edges)
    ones = [np.ones(len(index)) for index in rows]
    tree = Tree(ones, kid, count, 0, np.empty(0), [{} for _ in rows])
    # In (max, min) a count cannot overflow, and says as well whether there is any.
    through = counting.marginals(tree, ones, counting.Semiring(np.maximum, np.minimum, 0.0, 1.0))
    out = [index[there > 0] for index, there in zip(rows, through, strict=True)]
    if not len(out[0]):
        pairs = "; ".join(f"{names[i]} with {names[j]} on {', '.join(sorted(shared[i] & shared[j]))}" for i, j in edges)
        raise InputError(f"tables make a join without rows ({pairs}): look for keys that never match.")
    for name, before, after in zip(names, rows, out, strict=True):
        if len(after) < len(before):
            notes.append(f"{name}: {len(before) - len(after)} of {len(before)} rows join with nothing.")
    return out


def _signs(label: tuple[str, str], target: Column, positive: Any) -> tuple[np.ndarray, np.ndarray]:
    if target.missing.any():
        raise InputError(
            f"label {label[0]}.{label[1]} is missing in {target.missing.sum()} rows: remove them, or missing='drop'."
        )
    known, code = distinct(target, f"{label[0]}.{label[1]}")
    classes = shown(known)
    if positive is not None:
        values = classes.tolist()
        if positive not in values:
            raise InputError(f"positive is {positive!r}: the label has {', '.join(map(str, values[:10]))}.")
        code = (code == values.index(positive)).astype(int)
        negative = [c for c in values if c != positive]
        classes = np.array([negative[0] if len(negative) == 1 else f"not {positive}", positive], object)
    if len(classes) != 2:
        held = ", ".join(map(str, classes[:10]))
        raise InputError(f"label {label[0]}.{label[1]} has {len(classes)} values among rows that join ({held}): two "
                         "are needed, or `positive`, which is told from all others.")  # fmt: skip
    return np.where(code == 1, 1.0, -1.0), classes
