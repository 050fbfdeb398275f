"""Make the rows that join, a join tree, features and labels from columns and numbered keys."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxsvm.errors import InputError
from jaxsvm.relational.counting import semirings as counting
from jaxsvm.relational.counting.tree import Tree
from jaxsvm.relational.schema.blocks import Block, block_of
from jaxsvm.relational.schema.join_tree import join_tree
from jaxsvm.relational.tables.columns import Column, distinct, python_values
from jaxsvm.relational.tables.keys import Attributes, edge_ids


class Tables(NamedTuple):
    """The tables of a join, as read."""

    names: list[str]  # names of the tables
    columns: list[dict[str, Column]]  # for each, the columns of its features
    target: Column  # the label's column
    # For each, the number of each row's value of each attribute, `(n_i,)`; -1 where missing:
    codes: list[dict[str, np.ndarray]]
    weights: list[np.ndarray]  # for each, the number of equal rows that each row stands for, float64 `(n_i,)`
    label: tuple[str, str]  # the table and column of the label
    named: list[list[str]]  # the names of all columns of each
    # For each, how many rows were left out before: with a missing key, dropped for a missing value, without a partner:
    lost: list[np.ndarray]
    keys: Attributes  # the attributes of the join
    sources: dict[str, str]  # the SQL that stands for a table in FROM, if not its name
    casts: dict[str, str]  # the SQL type in which the database compares an attribute of columns of different types


def assembled(
    tables: Tables, categorical: Mapping[str, Sequence[str]], positive: Any, missing: str
) -> tuple[Tree, list[Block], np.ndarray, list[np.ndarray], list[str]]:
    """Drop rows that join with nothing, merge equal rows, make features of columns and signs of labels.

    Returns:
        The tree, the features of each table, the two labels, the given row of each kept row, and notes.

    Raises:
        InputError: On a cyclic join, one without rows or with one label, and columns that are no features.
    """
    _check_categorical(tables, categorical)
    names, codes, hub = tables.names, tables.codes, tables.names.index(tables.label[0])
    rows, lost, notes = [], [], []
    for i, weight in enumerate(tables.weights):
        keyed = np.logical_and.reduce([code >= 0 for code in codes[i].values()] or [np.ones(len(weight), bool)])
        kept = keyed.copy()
        if missing == "drop":
            for part in [*tables.columns[i].values(), *([tables.target] if i == hub else [])]:
                kept &= ~part.missing
        rows.append(np.flatnonzero(kept))
        lost.append(tables.lost[i] + [weight[~keyed].sum(), weight[keyed & ~kept].sum(), weight[kept].sum()])
    shared = [frozenset(code) for code in codes]

    @functools.cache
    def rows_of(i: int, key: str) -> np.ndarray:
        return np.bincount(codes[i][key][rows[i]], minlength=1).astype(float)

    def cost(i: int, j: int) -> float:
        if len(shared[i] & shared[j]) == 1:
            one, two = (rows_of(k, *(shared[i] & shared[j])) for k in (i, j))
            return float(one[: len(two)] @ two[: len(one)])
        one, two, G = _edge(codes, rows, i, j)
        return float(np.bincount(one, minlength=G).astype(float) @ np.bincount(two, minlength=G))

    edges = join_tree(names, shared, hub, cost)
    for i, j in edges:
        if not shared[i] & shared[j]:
            notes.append(crossed(names[i], names[j]))
    rows = _reduced(names, codes, rows, edges)
    for name, index, weight, gone in zip(names, rows, tables.weights, lost, strict=True):
        kept = float(weight[index].sum())
        notes += _losses(name, kept, gone - [0, 0, kept])
    y, classes = _signs(tables.label, tables.target.take(rows[hub]), positive)
    weights, blocks = [], []
    for i, name in enumerate(names):
        weight = tables.weights[i][rows[i]]
        parts = {c: part.take(rows[i]) for c, part in tables.columns[i].items()}
        block = block_of(name, weight, parts, set(categorical.get(name, ())), missing)
        same = [codes[i][a][rows[i]] for a in sorted(shared[i])] + list(block.X.T)
        same += [category.codes for category in block.categories] + ([y] if i == hub else [])
        first, kind = _merged(same, len(rows[i]))
        if len(first) < len(kind):
            notes.append(f"{name}: {len(kind)} rows are {len(first)} different ones.")
            rows[i], weight, block = rows[i][first], np.bincount(kind, weight), block.take(first)
            y = y[first] if i == hub else y
        weights.append(weight)
        blocks.append(block)
    members = [{i: np.arange(len(index))} for i, index in enumerate(rows)]
    return Tree(weights, *_edges(codes, rows, edges), hub, y, members), blocks, classes, rows, notes


def _check_categorical(tables: Tables, categorical: Mapping[str, Sequence[str]]) -> None:
    """Refuse `categorical` with tables or features that do not exist."""
    for name, chosen in categorical.items():
        if name not in tables.names:
            known = f"there are the tables {', '.join(tables.names)}"
        else:
            columns = tables.columns[tables.names.index(name)]
            if set(chosen) <= set(columns):
                continue
            known = f"the features of {name} are {', '.join(columns)}"
        raise InputError(f"categorical[{name!r}] is {list(chosen)}: {known}.")


def _merged(columns: list[np.ndarray], n: int) -> tuple[np.ndarray, np.ndarray]:
    """Find equal rows: return the first of each kind, and the kind of each row, `(n,)`.

    Rows are told apart by a 64-bit hash of their columns. If it would merge two that differ, nothing is merged.
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


def _edge(codes: Any, rows: Any, i: int, j: int) -> tuple[np.ndarray, np.ndarray, int]:
    common = sorted(codes[i].keys() & codes[j].keys())
    if not common:
        return np.zeros(len(rows[i]), np.int64), np.zeros(len(rows[j]), np.int64), 1
    return edge_ids(*([codes[k][a][rows[k]] for a in common] for k in (i, j)))


def _edges(codes: Any, rows: Any, edges: Any) -> tuple[dict[Any, np.ndarray], dict[Any, int]]:
    """Return `kid` and `count` of the tree with these edges."""
    kid, count = {}, {}
    for i, j in edges:
        kid[i, j], kid[j, i], count[i, j] = _edge(codes, rows, i, j)
        count[j, i] = count[i, j]
    return kid, count


def crossed(first: str, second: str) -> str:
    """Return the note on two tables that join without a key."""
    return f"{first} and {second} share no key: every row of one joins every row of the other."


def _losses(name: str, kept: float, lost: np.ndarray) -> list[str]:
    """Return the notes on the rows of a table that are no part of the join, by the reasons of `Tables.lost`."""
    reasons = ("join with nothing: a key is missing", "are dropped: a value is missing",
               "join with nothing: their keys have no partner")  # fmt: skip
    parts, total = zip(lost, reasons, strict=True), kept + lost.sum()
    return [f"{name}: {many:.0f} of {total:.0f} rows {reason}." for many, reason in parts if many > 0]


def _reduced(names: Any, codes: Any, rows: Any, edges: Any) -> list[np.ndarray]:
    """Return the rows of each table through which a row of the join goes."""
    ones = [np.ones(len(index)) for index in rows]
    tree = Tree(ones, *_edges(codes, rows, edges), 0, np.empty(0), [{} for _ in rows])
    # In (max, min) a count cannot overflow, and shows as well whether there is any.
    through = counting.marginals(tree, ones, counting.Semiring(np.maximum, np.minimum, 0.0))
    out = [index[any_row > 0] for index, any_row in zip(rows, through, strict=True)]
    if not len(out[0]):
        keys = {(i, j): ", ".join(sorted(codes[i].keys() & codes[j].keys())) for i, j in edges}
        pairs = "; ".join(f"{names[i]} with {names[j]} on {key}" for (i, j), key in keys.items())
        raise InputError(f"tables make a join without rows ({pairs}): look for keys that never match.")
    return out


def _signs(label: tuple[str, str], target: Column, positive: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the signs of a label, `(n,)`, and its two classes."""
    name = f"{label[0]}.{label[1]}"
    if target.missing.any():
        raise InputError(f"label {name} is missing in {target.missing.sum()} rows: remove them, or missing='drop'.")
    known, code = distinct(target, name)
    classes = python_values(known)
    if positive is not None:
        values = classes.tolist()
        if isinstance(positive, str) and positive not in values:  # as a command gives it
            positive = next((value for value in values if str(value).lower() == positive.lower()), positive)
        if positive not in values:
            raise InputError(f"positive is {positive!r}: the label has {', '.join(map(str, values[:10]))}.")
        code = (code == values.index(positive)).astype(int)
        negative = [c for c in values if c != positive]
        classes = np.array([negative[0] if len(negative) == 1 else f"not {positive}", positive], object)
    if len(classes) != 2:
        values = ", ".join(map(str, classes[:10]))
        raise InputError(
            f"label {name} has {len(classes)} values among rows that join ({values}): two are needed, or `positive`, "
            "which is set against all others."
        )
    return np.where(code == 1, 1.0, -1.0), classes
