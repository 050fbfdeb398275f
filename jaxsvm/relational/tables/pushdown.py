"""Find which columns the join makes equal and which are features, and write the SQL that reduces its tables.

There is one query per table. It projects to keys, features and label, and drops rows without a key. The semijoins of
Yannakakis (1981) up and down the join tree leave just the rows that join. `DENSE_RANK` numbers the key of each edge, in
the same way on both sides, since after the semijoins both have the same keys, of one type (`common_type`). `COUNT(*)`
merges equal rows. Only numbers, features and multiplicities are fetched.

The SQL is standard (EXISTS, window functions, common table expressions), so the same text serves DuckDB and, by ibis,
PostgreSQL, Trino and others that quote names with `"`. Tables in memory are asked by a DuckDB of our own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from jaxsvm.errors import InputError, require_package
from jaxsvm.relational.tables.columns import DOUBLE, Declared, arrays_of, comparison_type
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
    if not (isinstance(listed, Iterable) and listed):
        raise InputError(f"keys[{pair!r}] is {columns!r}: a name, a list of names, or a dict of names is needed.")
    equal = {str(a): str(b) for a, b in (listed.items() if isinstance(listed, Mapping) else ((k, k) for k in listed))}
    for table, own in zip(pair, (equal.keys(), equal.values()), strict=True):
        _require_columns(f"keys[{pair!r}]", named, table, own)
    return equal.items()


def _require_columns(argument: str, named: Mapping[str, Sequence[str]], table: str, columns: Iterable[str]) -> None:
    """Refuse a table and columns that do not exist."""
    if table not in named:
        raise InputError(f"{argument} names table {table}: there are {', '.join(named)}.")
    absent = [c for c in columns if c not in named[table]]
    if absent:
        known = ", ".join(named[table][:20])
        raise InputError(f"{argument}: table {table} has no column {', '.join(absent)}; it has {known}.")


def roles_in(named: Mapping[str, Sequence[str]], asked: Request, alike: Callable[[str], str] = str) -> Roles:
    """Find what each column is for, of the columns `named` by table; `alike` is that of `attributes`."""
    require_one_of("missing", asked.missing, ("refuse", "impute", "drop"))
    if not (isinstance(asked.label, tuple | list) and len(asked.label) == 2 and str(asked.label[0]) in named):
        raise InputError(f"label is {asked.label!r}: (table, column) is needed, the table one of {', '.join(named)}.")
    table, column = label = (str(asked.label[0]), str(asked.label[1]))
    chosen, categorical = _by_table("features", asked.features), _by_table("categorical", asked.categorical)
    keys = attributes(named, asked.keys, label, alike)
    if asked.features is None:
        taken = {(name, key) for owners in keys.values() for name, key in owners.items()} | {label}
        chosen = {name: [c for c in columns if (name, c) not in taken] for name, columns in named.items()}
    _require_columns("label", named, table, [column])
    for name, columns in chosen.items():
        _require_columns("features", named, name, columns)
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
    """Return lists of columns by table, with names as texts, each once."""
    if chosen is not None and not (
        isinstance(chosen, Mapping) and not any(isinstance(columns, str) for columns in chosen.values())
    ):
        raise InputError(f"{argument} is {chosen!r}: a list of columns for each table is needed, {{table: [column]}}.")
    return {str(name): list(dict.fromkeys(map(str, columns))) for name, columns in (chosen or {}).items()}


Ask = Callable[[str], dict[str, Any]]
"""A function that returns the result of a query: Arrow arrays by name."""


class Plan(NamedTuple):
    """The description of a join in a database."""

    ask: Ask  # asks the database
    sources: dict[str, str]  # the SQL that stands for each table in FROM
    columns: dict[str, dict[str, Declared]]  # the declared type of each column of each table
    roles: Roles  # what the columns are for
    own: bool = False  # whether the database is ours: a column `row` of each table numbers its rows

    def tests(self, name: str) -> tuple[str, str]:
        """Write when a row of a table has a key that is missing, and a value that drops it."""
        columns, keys, dropped = self.columns[name], self.roles.keys.values(), []
        keyless = [f"{columns[owners[name]].sql} IS NULL" for owners in keys if name in owners]
        for kind in [columns[c] for c in self.roles.fetched(name)] if self.roles.missing == "drop" else []:
            dropped.append(f"{kind.sql} IS NULL")
            if kind.kind in ("float", "number") and not kind.integer:
                dropped.append(f"CAST({kind.sql} AS {DOUBLE}) = CAST('NaN' AS {DOUBLE})")
        return " OR ".join(keyless) or "FALSE", " OR ".join(dropped) or "FALSE"


@contextlib.contextmanager
def in_memory(tables: Mapping[str, Mapping[str, Any]]) -> Iterator[Ask]:
    """Open a DuckDB of tables in memory, each of Arrow arrays by name, and yield a function that queries it."""
    duckdb, pa = (require_package(module, "a join of tables") for module in ("duckdb", "pyarrow"))
    with duckdb.connect() as connection:
        for name, columns in tables.items():
            connection.register(name, pa.table(dict(columns)))
        yield asking(connection)


def asking(connection: Any) -> Ask:
    """Return a function that queries a connection of DuckDB."""

    def ask(query: str) -> dict[str, Any]:
        with refusing(require_package("duckdb", "a join of tables").Error):
            found = connection.sql(query)
            return {} if found is None else arrays_of(found.to_arrow_table())  # None of a statement

    return ask


@contextlib.contextmanager
def refusing(error_type: type[Exception], message: str = "the database refuses a query") -> Iterator[None]:
    """Turn an error of the database into an `InputError`, and a query that Ctrl-C ended into `KeyboardInterrupt`."""
    try:
        yield
    except error_type as error:
        raise InputError(f"{message}: {error}") from None
    except RuntimeError as error:
        raise KeyboardInterrupt if "interrupted" in str(error) else error from None  # Ctrl-C, in DuckDB's words


def common_type(ask: Ask, columns: Mapping[str, tuple[str, Declared]]) -> str | None:
    """Return the SQL type in which columns are compared exactly, None for their own.

    `columns` holds for the name of each what stands in FROM, and its type. Those that are never equal are refused, and
    integers and floats that cannot be told apart.
    """
    types = [kind for _, kind in columns.values()]
    described = ", ".join(f"{name} ({kind.name})" for name, (_, kind) in columns.items())
    cast = comparison_type(types, described)
    counted = [kind for kind in types if kind.kind == "number"]
    if cast == DOUBLE and counted:
        limit = 2 ** (24 if any(kind.narrow for kind in types) else 53)  # up to which floats tell all integers apart
        inexact = not all(kind.integer for kind in counted)
        for source, kind in columns.values():
            value = f"CAST({kind.sql} AS {DOUBLE if kind.kind == 'float' else 'DECIMAL(38, 0)'})"
            test = f"({value} > {limit} OR {value} < -{limit})"
            test += f" AND {value} <> CAST('NaN' AS {DOUBLE})" if kind.kind == "float" else ""
            if inexact or ask(f"SELECT COUNT(*) AS n FROM {source} WHERE {test}")["n"][0].as_py():
                raise InputError(
                    f"keys join {described}: floats do not tell integers beyond {limit} apart, nor fractions from "
                    "decimals; cast the floats to integers or decimals."
                )
    return cast


def queries(plan: Plan, casts: Mapping[str, str], edges: list[tuple[int, int]]) -> list[str]:
    """Write one query per table: features and label as c0, c1, ..., keys as `edge_name`, multiplicities as n.

    Tables of our own are reduced once, here; in a user's database each query reduces all of them, since nothing is
    written there. Names in the queries are those of this function only: no name of the user collides with one.
    """
    names, near = list(plan.sources), {i: [] for i in range(len(plan.sources))}
    for i, j in edges:
        near[i].append(j)
        near[j].append(i)
    order, parent = [names.index(plan.roles.label[0])], {names.index(plan.roles.label[0]): -1}
    for i in order:
        for j in near[i]:
            if j != parent[i]:
                parent[j] = i
                order.append(j)
    steps = {f"base{i}": _base(plan, casts, name) for i, name in enumerate(names)}

    def shared(i: int, j: int) -> list[str]:
        return [f"k{list(plan.roles.keys).index(key)}" for key in plan.roles.shared(names[i], names[j])]

    for i in reversed(order):
        below = [(f"up{j}", shared(i, j)) for j in near[i] if j != parent[i]]
        steps[f"up{i}"] = _semijoin(f"base{i}", below)
    for i in order:
        above = [(f"down{parent[i]}", shared(i, parent[i]))] if parent[i] >= 0 else []
        steps[f"down{i}"] = _semijoin(f"up{i}", above)
    out = []
    for i, name in enumerate(names):
        inner = [f"c{k}" for k in range(len(plan.roles.fetched(name)))]
        group = ", ".join(inner + [edge_name(i, j) for j in near[i]])
        for j in near[i]:
            by = ", ".join(shared(i, j))
            inner.append(f"DENSE_RANK() OVER (ORDER BY {by}) AS {edge_name(i, j)}" if by else f"1 AS {edge_name(i, j)}")
        first = ", MIN(first) AS first" if plan.own else ""
        query = f"SELECT {group or '1'}, COUNT(*) AS n{first} FROM (SELECT {', '.join([*inner, 'first'])} FROM down{i})"
        query += " AS reduced" + (f" GROUP BY {group}" if group else "")
        out.append(f"{query} ORDER BY {'first' if first else group or '1'}")
    if not plan.own:
        return [f"WITH {', '.join(f'{name} AS ({step})' for name, step in steps.items())} {query}" for query in out]
    for name, step in steps.items():
        plan.ask(f"CREATE TABLE {name} AS {step}")
    return out


def _semijoin(table: str, others: list[tuple[str, list[str]]]) -> str:
    equal = {other: " AND ".join(f"b.{key} = a.{key}" for key in keys) or "TRUE" for other, keys in others}
    tests = [f"EXISTS (SELECT 1 FROM {other} AS b WHERE {test})" for other, test in equal.items()]
    return f"SELECT * FROM {table} AS a" + (f" WHERE {' AND '.join(tests)}" if tests else "")


def edge_name(i: int, j: int) -> str:
    """Return the column name of the key numbers of an edge, the same at both of its ends."""
    return f"e{min(i, j)}_{max(i, j)}"


def losses(plan: Plan, name: str) -> str:
    """Count the rows of a table, as n, those with a missing key, and of the others those that a missing value drops."""
    keyless, dropped = plan.tests(name)
    counts = f"COUNT(CASE WHEN {keyless} THEN 1 END) AS keyless"
    counts += f", COUNT(CASE WHEN NOT ({keyless}) AND ({dropped}) THEN 1 END) AS dropped"
    return f"SELECT COUNT(*) AS n, {counts} FROM {plan.sources[name]} AS t"


def _base(plan: Plan, casts: Mapping[str, str], name: str) -> str:
    """Select the keys, features and label of a table, without the rows that `Plan.tests` name."""
    kept = [f"{'t.row' if plan.own else '0'} AS first"]
    for a, (attribute, owners) in enumerate(plan.roles.keys.items()):
        if name in owners:
            kept.append(f"{compared(plan.columns[name][owners[name]].sql, casts.get(attribute))} AS k{a}")
    for k, kind in enumerate(plan.columns[name][c] for c in plan.roles.fetched(name)):
        # Enumerations and padded texts as their texts; drivers round REAL to decimals, and Arrow has no UHUGEINT.
        double = kind.narrow or kind.name == "UHUGEINT"
        cast = "VARCHAR" if kind.kind in ("text", "uuid") else DOUBLE if double else None
        kept.append(f"{compared(kind.sql, cast)} AS c{k}")
    keyless, dropped = plan.tests(name)
    return f"SELECT {', '.join(kept)} FROM {plan.sources[name]} AS t WHERE NOT ({keyless}) AND NOT ({dropped})"


def compared(value: str, cast: str | None) -> str:
    """Cast a value to another type, if there is one."""
    return value if cast is None else f"CAST({value} AS {cast})"


def quoted(name: str) -> str:
    """Quote a name as standard SQL does."""
    return '"' + name.replace('"', '""') + '"'
