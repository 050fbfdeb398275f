"""Keys: which columns of which tables must be equal, and their values as small integers, the same in every table."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxsvm.errors import InputError
from jaxsvm.relational.tables.columns import shared_codes
from jaxsvm.relational.tables.reading import column, column_names

Attributes = dict[str, dict[str, str]]
"""For each attribute of the join, its column in each table that has it."""


def attributes(tables: Mapping[str, Any], keys: Any, alike: Callable[[str], str] = str) -> Attributes:
    """The attributes of the join.

    Args:
        tables: By name.
        keys: None: columns of equal names (a natural join). Else pairs of tables with what joins them:
            `{("flights", "weather"): ["origin", "time_hour"], ("flights", "airports"): {"dest": "faa"}}`.
        alike: Of names: those that it makes equal are one name to the database (`str.lower` where case is nothing).

    Raises:
        InputError: On tables and columns that do not exist, pairs of no columns, and two columns of one table that
            would have to be equal.
    """
    if keys is None:
        where: Attributes = {}
        for name, table in tables.items():
            for key in column_names(table):
                where.setdefault(alike(key), {})[name] = key
        return {key: found for key, found in where.items() if len(found) > 1}
    parent: dict[tuple[str, str], tuple[str, str]] = {}

    def root(node: tuple[str, str]) -> tuple[str, str]:
        parent.setdefault(node, node)
        while parent[node] != node:
            node = parent[node]
        return node

    if not isinstance(keys, Mapping):
        raise InputError(
            f"keys is a {type(keys).__name__}: pairs of tables with their columns are needed, such as "
            '{("sales", "shops"): ["shop"], ("sales", "days"): {"sold_on": "day"}}.'
        )
    for pair, columns in keys.items():
        if not (isinstance(pair, tuple) and len(pair) == 2 and set(pair) <= set(tables) and pair[0] != pair[1]):
            raise InputError(f"keys has {pair!r}: a pair of two of the tables {', '.join(tables)} is needed.")
        listed = [columns] if isinstance(columns, str) else columns
        named = dict(listed) if isinstance(listed, Mapping) else {key: key for key in listed}
        if not named:
            raise InputError(f"keys[{pair!r}] is empty: name the columns that join the two tables, or leave it out.")
        for ours, theirs in named.items():
            for table, key in zip(pair, (ours, theirs), strict=True):
                if key not in column_names(tables[table]):
                    known = ", ".join(column_names(tables[table])[:20])
                    raise InputError(f"keys[{pair!r}] names {key}: table {table} has no such column; it has {known}.")
            parent[root((pair[1], theirs))] = root((pair[0], ours))
    classes: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for node in parent:
        classes.setdefault(root(node), []).append(node)
    found = {}
    for (table, key), members in classes.items():
        inside = [f"{t}.{c}" for t, c in members]
        if len({t for t, _ in members}) < len(members):
            raise InputError(
                f"keys makes {', '.join(inside)} equal, two of them in one table: give a table that joins twice under "
                "two names, once for each of its roles."
            )
        found[key if key not in found else f"{table}.{key}"] = dict(members)
    return found


def encoded(tables: Mapping[str, Any], wanted: Attributes) -> dict[str, dict[str, np.ndarray]]:
    """The values of each attribute as integers, `codes[table][attribute] (n,)`; -1 where missing, which joins nothing.

    Raises:
        InputError: On an attribute whose columns hold values of different kinds.
    """
    codes: dict[str, dict[str, np.ndarray]] = {name: {} for name in tables}
    for attribute, owners in wanted.items():
        columns = [column(name, tables[name], key) for name, key in owners.items()]
        found, _ = shared_codes(columns, [f"{name}.{key}" for name, key in owners.items()])
        for name, code in zip(owners, found, strict=True):
            codes[name][attribute] = code
    return codes


def edge_ids(one: list[np.ndarray], two: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray, int]:
    """Dense ids of the combinations of codes on both sides of an edge, and how many there are.

    Args:
        one: Codes of the shared attributes on one side, each `(n_i,)`.
        two: The same on the other.
    """
    n = len(one[0])
    ids = np.zeros(n + len(two[0]), np.int64)
    for a, b in zip(one, two, strict=True):
        code = np.concatenate([a, b])
        _, ids = np.unique(ids * (code.max(initial=0) + 1) + code, return_inverse=True)
    return ids[:n], ids[n:], int(ids.max(initial=-1)) + 1
