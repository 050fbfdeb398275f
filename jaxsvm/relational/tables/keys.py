"""Number the values of keys: the columns that the join makes equal get the same small integers in every table."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from jaxsvm.errors import InputError
from jaxsvm.relational.tables.columns import shared_codes
from jaxsvm.relational.tables.reading import column, column_names

Attributes = dict[str, dict[str, str]]
"""For each attribute of the join, its column in each table that has it."""
Keys: TypeAlias = "Mapping[tuple[str, str], str | Sequence[str] | Mapping[str, str]]"
"""For pairs of tables the columns that join them: a name, several, or `{column of the first: column of the second}`."""


def root(parent: dict[Any, Any], node: Hashable) -> Any:
    """Return the representative of a node's class in a union-find structure; a new node is its own."""
    while parent.setdefault(node, node) != node:
        node = parent[node]
    return node


def attributes(
    tables: Mapping[str, Any], keys: Keys | None, label: tuple[str, str], alike: Callable[[str], str] = str
) -> Attributes:
    """Return the attributes of the join.

    Args:
        tables: Tables by name.
        keys: None: columns of equal names (a natural join). Else pairs of tables with the columns that join them:
            `{("flights", "weather"): ["origin", "time_hour"], ("flights", "airports"): {"dest": "faa"}}`.
        label: The table and column of the label.
        alike: Maps column names that are equal in the database to one (`str.lower` if case does not matter).

    Raises:
        InputError: On tables and columns that do not exist, pairs of no columns, two columns of one table that would
            have to be equal, and a natural join on the label.
    """
    if keys is None:
        where: Attributes = {}
        for name, table in tables.items():
            for key in column_names(table):
                where.setdefault(alike(key), {})[name] = key
        others = [n for owners in where.values() if owners.get(label[0]) == label[1] for n in owners if n != label[0]]
        if others:
            raise InputError(
                f"label {label[0]}.{label[1]} is also the name of a column of {', '.join(others)}, so it would be a "
                "key: name the columns that join in keys."
            )
        return {key: owners for key, owners in where.items() if len(owners) > 1}
    if not isinstance(keys, Mapping):
        raise InputError(
            f"keys is a {type(keys).__name__}: pairs of tables with their columns are needed, such as "
            '{("sales", "shops"): ["shop"], ("sales", "days"): {"sold_on": "day"}}.'
        )
    parent: dict[tuple[str, str], tuple[str, str]] = {}
    for pair, columns in keys.items():
        for ours, theirs in _pairs(tables, pair, columns):
            parent[root(parent, (pair[1], theirs))] = root(parent, (pair[0], ours))
    classes: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for node in parent:
        classes.setdefault(root(parent, node), []).append(node)
    out: Attributes = {}
    for (table, key), members in classes.items():
        if len({t for t, _ in members}) < len(members):
            raise InputError(
                f"keys makes {', '.join(f'{t}.{c}' for t, c in members)} equal, two of them in one table: give a table "
                "that joins twice under two names, once for each of its roles."
            )
        out[key if key not in out else f"{table}.{key}"] = dict(members)
    return out


def _pairs(tables: Mapping[str, Any], pair: Any, columns: Any) -> Iterable[tuple[str, str]]:
    """Return the pairs of columns that join a pair of tables, after checking that they exist."""
    if not (isinstance(pair, tuple) and len(pair) == 2 and set(pair) <= set(tables) and pair[0] != pair[1]):
        raise InputError(f"keys has {pair!r}: a pair of two of the tables {', '.join(tables)} is needed.")
    listed = [columns] if isinstance(columns, str) else columns
    if not isinstance(listed, Iterable):
        raise InputError(f"keys[{pair!r}] is {columns!r}: a name, a list of names, or a dict of names is needed.")
    named = {str(a): str(b) for a, b in (listed.items() if isinstance(listed, Mapping) else ((k, k) for k in listed))}
    if not named:
        raise InputError(f"keys[{pair!r}] is empty: name the columns that join the two tables, or leave it out.")
    for both in named.items():
        for table, key in zip(pair, both, strict=True):
            if key not in column_names(tables[table]):
                known = ", ".join(column_names(tables[table])[:20])
                raise InputError(f"keys[{pair!r}] names {key}: table {table} has no such column; it has {known}.")
    return named.items()


def encoded(tables: Mapping[str, Any], wanted: Attributes) -> dict[str, dict[str, np.ndarray]]:
    """Return `codes[table][attribute] (n,)`: the values of attributes as integers; -1 (joins nothing) where missing."""
    codes: dict[str, dict[str, np.ndarray]] = {name: {} for name in tables}
    for attribute, owners in wanted.items():
        columns = [column(name, tables[name], key) for name, key in owners.items()]
        parts, _ = shared_codes(columns, [f"{name}.{key}" for name, key in owners.items()])
        for name, code in zip(owners, parts, strict=True):
            codes[name][attribute] = code
    return codes


def edge_ids(one: list[np.ndarray], two: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray, int]:
    """Assign ids to the combinations of codes, `(n_i,)` each, on both sides of an edge; also return their number."""
    n = len(one[0])
    ids = np.zeros(n + len(two[0]), np.int64)
    for a, b in zip(one, two, strict=True):
        code = np.concatenate([a, b])
        _, ids = np.unique(ids * (code.max(initial=0) + 1) + code, return_inverse=True)
    return ids[:n], ids[n:], int(ids.max(initial=-1)) + 1
