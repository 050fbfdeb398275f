"""Find which columns the join makes equal, and which are features."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from jaxsvm.errors import InputError
from jaxsvm.runtime.arrays import require_one_of

Attributes = dict[str, dict[str, str]]
"""For each attribute of the join, its column in each table that has it."""
Keys: TypeAlias = "Mapping[tuple[str, str], str | Sequence[str] | Mapping[str, str]]"
"""For pairs of tables the columns that join them: a name, several, or `{column of the first: column of the second}`."""


class Request(NamedTuple):
    """The roles of columns, as `Join` takes them."""

    label: tuple[str, str]
    features: Mapping[str, Sequence[str]] | None
    keys: Keys | None
    categorical: Mapping[str, Sequence[str]] | None
    positive: Hashable | None
    missing: str


class Roles(NamedTuple):
    """The roles of all columns of a join."""

    label: tuple[str, str]  # the table and column of the label
    features: dict[str, list[str]]  # the features of each table
    keys: Attributes  # the attributes of the join
    categorical: dict[str, list[str]]  # features that are categories by request
    positive: Hashable | None  # the label that is +1, if it was named
    missing: str  # "refuse", "impute" or "drop"

    def shared(self, one: str, two: str) -> list[str]:
        """Return the attributes that two tables share."""
        return [key for key, owners in self.keys.items() if one in owners and two in owners]

    def fetched(self, name: str) -> list[str]:
        """Return the columns of a table whose values are needed: features, and the label as the last."""
        return [*self.features[name], *([self.label[1]] if name == self.label[0] else [])]


def attributes(
    named: Mapping[str, Sequence[str]], keys: Keys | None, label: tuple[str, str], alike: Callable[[str], str] = str
) -> Attributes:
    """Return the attributes of the join; None of `keys` is a natural join.

    `alike` maps column names that are equal in the database to one (`str.lower` if case does not matter).

    Raises:
        InputError: On tables and columns that do not exist, pairs of no columns, two columns of one table that would
            have to be equal, and a natural join on the label.
    """
    if keys is None:
        where: Attributes = {}
        for name, columns in named.items():
            for key in columns:
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
    classes: list[list[tuple[str, str]]] = []  # of equal columns
    for pair, columns in keys.items():
        for both in _pairs(named, pair, columns):
            ends = list(zip(pair, both, strict=True))
            met = [members for members in classes if not set(ends).isdisjoint(members)]
            classes = [members for members in classes if members not in met]
            classes.append(list(dict.fromkeys([*sum(met, []), *ends])))
    out: Attributes = {}
    for members in classes:
        table, key = members[0]
        if len({t for t, _ in members}) < len(members):
            raise InputError(
                f"keys makes {', '.join(f'{t}.{c}' for t, c in members)} equal, two of them in one table: give a table "
                "that joins twice under two names, once for each of its roles."
            )
        out[key if key not in out else f"{table}.{key}"] = dict(members)
    return out


def _pairs(named: Mapping[str, Sequence[str]], pair: Any, columns: Any) -> Iterable[tuple[str, str]]:
    """Return the pairs of columns that join a pair of tables, after checking that they exist."""
    if not (isinstance(pair, tuple) and len(pair) == 2 and set(pair) <= set(named) and pair[0] != pair[1]):
        raise InputError(f"keys has {pair!r}: a pair of two of the tables {', '.join(named)} is needed.")
    listed = [columns] if isinstance(columns, str) else columns
    if not isinstance(listed, Iterable):
        raise InputError(f"keys[{pair!r}] is {columns!r}: a name, a list of names, or a dict of names is needed.")
    equal = {str(a): str(b) for a, b in (listed.items() if isinstance(listed, Mapping) else ((k, k) for k in listed))}
    if not equal:
        raise InputError(f"keys[{pair!r}] is empty: name the columns that join the two tables, or leave it out.")
    for both in equal.items():
        for table, key in zip(pair, both, strict=True):
            if key not in named[table]:
                known = ", ".join(named[table][:20])
                raise InputError(f"keys[{pair!r}] names {key}: table {table} has no such column; it has {known}.")
    return equal.items()


def roles_in(named: Mapping[str, Sequence[str]], asked: Request, alike: Callable[[str], str] = str) -> Roles:
    """Find what each column is for, of the columns `named` by table; `alike` is that of `attributes`.

    Raises:
        InputError: On a label and on tables and columns that do not exist or have two roles, columns that are no lists
            by table, an unknown treatment of missing features, and what `attributes` refuses.
    """
    require_one_of("missing", asked.missing, ("refuse", "impute", "drop"))
    if not (isinstance(asked.label, tuple | list) and len(asked.label) == 2 and str(asked.label[0]) in named):
        raise InputError(f"label is {asked.label!r}: (table, column) is needed, the table one of {', '.join(named)}.")
    table, column = label = (str(asked.label[0]), str(asked.label[1]))
    chosen, categorical = _by_table("features", asked.features), _by_table("categorical", asked.categorical)
    keys = attributes(named, asked.keys, label, alike)
    if asked.features is None:
        taken = {(name, key) for owners in keys.values() for name, key in owners.items()} | {label}
        chosen = {name: [c for c in columns if (name, c) not in taken] for name, columns in named.items()}
    for name, columns in [(table, [column]), *chosen.items()]:
        if name not in named:
            raise InputError(f"features names table {name}: there are {', '.join(named)}.")
        absent = [c for c in columns if c not in named[name]]
        if absent:
            raise InputError(f"table {name} has no column {', '.join(absent)}; it has {', '.join(named[name][:20])}.")
    if column in chosen.get(table, ()):
        raise InputError(f"features[{table!r}] names {column}, which is the label: leave it out.")
    for owners in keys.values():
        same = [f"{name}.{key}" for name, key in owners.items() if key in chosen.get(name, ())]
        if len(same) > 1:
            raise InputError(f"features names {' and '.join(same)}, which are equal in the join: name one of them.")
    features = {name: chosen.get(name, []) for name in named}
    for name, wanted in categorical.items():
        known = f"the features of {name} are {', '.join(features[name])}" if name in named else (
            f"there are the tables {', '.join(named)}")  # fmt: skip
        if not set(wanted) <= set(features.get(name, ())):
            raise InputError(f"categorical[{name!r}] is {wanted}: {known}.")
    return Roles(label, features, keys, categorical, asked.positive, asked.missing)


def _by_table(argument: str, chosen: Mapping[str, Sequence[str]] | None) -> dict[str, list[str]]:
    """Return lists of columns by table, with names as texts."""
    if chosen is not None and not (
        isinstance(chosen, Mapping) and not any(isinstance(columns, str) for columns in chosen.values())
    ):
        raise InputError(f"{argument} is {chosen!r}: a list of columns for each table is needed, {{table: [column]}}.")
    return {str(name): [str(c) for c in columns] for name, columns in (chosen or {}).items()}
