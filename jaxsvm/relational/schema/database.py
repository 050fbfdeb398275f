"""Make a join of tables in a database: the set-oriented part is SQL that runs in the database, once.

There is one query per table. It projects to keys, features and label, and drops rows without a key. The semijoins of
Yannakakis (1981) up and down the join tree leave just the rows that join. `DENSE_RANK` numbers the key of each edge, in
the same way on both sides, since after the semijoins both have the same keys, of one type (`sql_types.py`). `COUNT(*)`
merges equal rows. Only numbers, features and multiplicities are fetched; the iterations run on these reduced tables.

The SQL is standard (EXISTS, window functions, common table expressions), so the same text serves DuckDB and, by ibis,
PostgreSQL, Trino and others that quote names with `"`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from jaxsvm.errors import InputError, require_package
from jaxsvm.relational.schema.assembly import Tables, crossed
from jaxsvm.relational.schema.join import Join, features_of, options_of
from jaxsvm.relational.schema.join_tree import join_tree
from jaxsvm.relational.tables.columns import Column, as_feature, inexact_keys, largest_integer, numbers, require_role
from jaxsvm.relational.tables.keys import Attributes, Keys, attributes
from jaxsvm.relational.tables.pushdown import Plan, edge_name, losses, queries, quoted
from jaxsvm.relational.tables.reading import column, opened
from jaxsvm.relational.tables.sql_types import DOUBLE, Declared, comparison_type, declared
from jaxsvm.runtime.checks import checked

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection
    from ibis.backends import BaseBackend

Ask = Callable[[str], Any]
Types = Callable[[str], dict[str, str]]


@contextlib.contextmanager
def _refusing(error_type: type[Exception], message: str = "the database refuses a query") -> Iterator[None]:
    """Turn an error of the database into an `InputError`."""
    try:
        yield
    except error_type as error:
        raise InputError(f"{message}: {error}") from None


@checked
def from_duckdb(
    source: DuckDBPyConnection | str | os.PathLike[str],
    tables: Sequence[str] | Mapping[str, str],
    label: tuple[str, str],
    *,
    features: Mapping[str, Sequence[str]] | None = None,
    keys: Keys | None = None,
    categorical: Mapping[str, Sequence[str]] | None = None,
    positive: Hashable | None = None,
    missing: str = "refuse",
) -> Join:
    """Make a join of tables or views of a DuckDB database.

    Args:
        source: A connection, or the path of a database file.
        tables: Names of tables or views; or names with the SQL that stands for them in FROM, such as
            `{"sales": "read_parquet('sales/*.parquet')"}`.
        label: The table and column of the label.
        features: The columns of each table that are features, as `Join` takes them; so are those below.
        keys: The columns that join; None: columns of equal names.
        categorical: Columns of numbers, dates, times or UUIDs that are categories, by table.
        positive: The label that is +1; None: the greater one.
        missing: Treatment of missing features: "refuse", "impute" or "drop".

    Raises:
        InputError: On a database that cannot be opened or queried, and on anything that `Join` refuses.
    """
    duckdb = require_package("duckdb", "from_duckdb")
    connection: Any = source
    if isinstance(source, str | os.PathLike):
        path = os.fspath(source)
        if not os.path.exists(path):
            raise InputError(f"source is {path!r}: there is no such file.")
        with _refusing(duckdb.Error, f"source is {path!r}: DuckDB cannot open it"):
            connection = duckdb.connect(path, read_only=True)

    def ask(query: str) -> Any:
        with _refusing(duckdb.Error):
            return connection.sql(query).to_arrow_table()

    def types(query: str) -> dict[str, str]:
        with _refusing(duckdb.Error):
            relation = connection.sql(query)
            named = _distinct_names(relation.columns, [str(kind) for kind in relation.types])
            for c in [c for c, kind in named.items() if kind == "VARCHAR"]:  # its type does not show its collation
                value = f"COALESCE(t.{quoted(c)}, 'a') = 'A', COALESCE(t.{quoted(c)}, '\u00e1') = 'a'"
                said = connection.sql(f"SELECT {value} FROM (SELECT 1) LEFT JOIN ({query}) AS t ON FALSE").fetchall()[0]
                marks = [mark for mark, alike in zip(("NOCASE", "NOACCENT"), said, strict=True) if alike]
                named[c] = " COLLATE ".join(["VARCHAR", *marks])
        return named

    try:
        return _from_queries(ask, types, tables, label, features, keys, categorical, positive, missing, str.lower)
    finally:
        if connection is not source:
            connection.close()


@checked
def from_ibis(
    connection: BaseBackend,
    tables: Sequence[str] | Mapping[str, str],
    label: tuple[str, str],
    *,
    features: Mapping[str, Sequence[str]] | None = None,
    keys: Keys | None = None,
    categorical: Mapping[str, Sequence[str]] | None = None,
    positive: Hashable | None = None,
    missing: str = "refuse",
) -> Join:
    """Make a join of tables of any database that ibis supports and that quotes names with `"`: PostgreSQL, Trino, ...

    Args:
        connection: An ibis backend (`pip install 'ibis-framework[postgres]'`).
        tables: Names of tables or views; or names with the SQL that stands for them in FROM.
        label: The table and column of the label.
        features: The columns of each table that are features, as `Join` takes them; so are those below.
        keys: The columns that join; None: columns of equal names.
        categorical: Columns of numbers, dates, times or UUIDs that are categories, by table.
        positive: The label that is +1; None: the greater one.
        missing: Treatment of missing features: "refuse", "impute" or "drop".

    Raises:
        InputError: On a database that cannot be queried, and on anything that `Join` refuses.
    """
    options, backend = (features, keys, categorical, positive, missing), cast(Any, connection)
    if connection.name == "duckdb":  # ibis 12 asks DuckDB 2 for a method that it no longer has
        return from_duckdb(
            backend.con,
            tables,
            label,
            features=features,
            keys=keys,
            categorical=categorical,
            positive=positive,
            missing=missing,
        )
    if connection.name == "postgres":
        # `connection.sql` fails in ibis 12 with sqlglot 30.30, and brings NUMERIC as decimals of 9 places.
        return _from_queries(*_postgres(connection), tables, label, *options)

    def ask(query: str) -> Any:
        return backend.sql(query).to_pyarrow()

    def types(query: str) -> dict[str, str]:
        schema = ask(query).schema
        return _distinct_names(schema.names, [str(kind) for kind in schema.types])

    return _from_queries(ask, types, tables, label, *options)


def _postgres(connection: Any) -> tuple[Ask, Types]:
    """Return functions that query PostgreSQL, and name the types of its columns, by ibis' own psycopg connection."""
    import psycopg

    def cursor_of(query: str) -> Any:
        with _refusing(psycopg.Error):
            return connection.raw_sql(query)

    def ask(query: str) -> dict[str, list[Any]]:
        with cursor_of(query) as cursor:
            # Such as dates beyond Python's.
            with _refusing(psycopg.Error, "the database has values that cannot be read"):
                rows = cursor.fetchall()
            return {part.name: [row[k] for row in rows] for k, part in enumerate(cursor.description)}

    def types(query: str) -> dict[str, str]:
        with cursor_of(query) as cursor:
            columns = list(cursor.description)
        with cursor_of("SELECT oid, typname FROM pg_type WHERE typtype = 'e'") as cursor:
            enums = dict(cursor.fetchall())
        kinds = [f"ENUM {enums[c.type_code]}" if c.type_code in enums else c.type_display for c in columns]
        return _distinct_names([c.name for c in columns], kinds)

    return ask, types


def _distinct_names(names: Sequence[str], types: Sequence[str]) -> dict[str, str]:
    """Return the type of each column; refuse two columns of one name."""
    twice = [name for name in names if list(names).count(name) > 1]
    if twice:
        raise InputError(f"a table has two columns {twice[0]}: give them different names.")
    return dict(zip(names, types, strict=True))


def _from_queries(
    ask: Ask,
    types: Types,
    tables: Sequence[str] | Mapping[str, str],
    label: tuple[str, str],
    features: Mapping[str, Sequence[str]] | None,
    keys: Any,
    categorical: Mapping[str, Sequence[str]] | None,
    positive: Any,
    missing: str,
    alike: Callable[[str], str] = str,
) -> Join:
    """Make a join of tables in a database; `features` to `missing` are arguments of `Join`.

    `ask` returns the result of a query as a table in any form that `Join` takes, `types` the names of its columns and
    their types. `alike` maps column names that are equal in the database to one.
    """
    if isinstance(tables, str):
        raise InputError(f"tables is {tables!r}: a list of names is needed.")
    sources = dict(tables) if isinstance(tables, Mapping) else {name: quoted(name) for name in tables}
    if not sources:
        raise InputError("tables is empty: at least one table is needed.")
    label, features, categorical = options_of(sources, label, features, categorical, missing)
    columns = {
        name: {c: declared(kind) for c, kind in types(f"SELECT * FROM {source} AS t LIMIT 0").items()}
        for name, source in sources.items()
    }
    known = attributes(columns, keys, label, alike)
    wanted = features_of(columns, known, label, features)
    _check_columns(columns, wanted, label, categorical)
    casts = _casts(ask, sources, columns, known)
    names = list(sources)
    shared = [frozenset(key for key, owners in known.items() if name in owners) for name in names]
    edges = join_tree(names, shared, names.index(label[0]), lambda i, j: 0.0)
    plan = Plan(sources, columns, known, casts, wanted, label, edges, missing)
    given = sources if isinstance(tables, Mapping) else {}
    join = Join.of_tables(_fetched(ask, plan, given), categorical, positive, missing)
    join.notes[:0] = [crossed(names[i], names[j]) for i, j in edges if not shared[i] & shared[j]]
    return join


def _check_columns(columns: Any, wanted: dict[str, list[str]], label: Any, categorical: Mapping[str, Any]) -> None:
    """Refuse a label and features that do not exist or have no role."""
    table, name = label
    if name not in columns[table]:
        raise InputError(f"label is {label!r}: table {table} has the columns {', '.join(columns[table])}.")
    if columns[table][name].kind == "other":
        raise InputError(f"label {table}.{name} is {columns[table][name].name}: cast it to a text or a number.")
    for table, chosen in wanted.items():
        known, absent = columns[table], [c for c in chosen if c not in columns[table]]
        if absent:
            raise InputError(f"features[{table!r}] names {', '.join(absent)}: table {table} has {', '.join(known)}.")
        for c in chosen:
            require_role(known[c].kind, f"{table}.{c}", known[c].name, c in categorical.get(table, []))


def _fetched(ask: Ask, plan: Plan, given: dict[str, str]) -> Tables:
    """Run the queries of a plan; `given` are the sources that the user gave."""
    names, hub = list(plan.sources), list(plan.sources).index(plan.label[0])
    tables = [opened(name, ask(query)) for name, query in zip(names, queries(plan), strict=True)]
    lost = []
    counts = [numbers(column(name, table, "n"), name) for name, table in zip(names, tables, strict=True)]
    for name, count in zip(names, counts, strict=True):
        if not len(count):
            raise InputError(
                f"tables make a join without rows (nothing is left of {name}): look for keys that never match."
            )
        counted = opened(name, ask(losses(plan, name)))
        total, *gone = (float(numbers(column(name, counted, part), name)[0]) for part in ("n", "keyless", "dropped"))
        lost.append(np.array([*gone, total - sum(gone) - count.sum()]))

    def values(i: int, k: int, c: str) -> Column:
        part, kind = as_feature(column(names[i], tables[i], f"c{k}")), plan.columns[names[i]][c]
        # A database brings UUIDs as texts; and a column without values has a type nevertheless.
        return part.changed(kind="uuid" if kind.kind == "uuid" else part.kind, type=kind.name)

    codes: list[dict[str, np.ndarray]] = [{} for _ in names]
    for i, j in plan.edges:
        ends = [column(names[k], tables[k], edge_name(i, j)).values.astype(np.int64) for k in (i, j)]
        if not np.array_equal(np.unique(ends[0]), np.unique(ends[1])):
            raise InputError(
                f"tables {names[i]} and {names[j]} have different keys among the rows that join: a table changed "
                "between two queries, or its columns of a key have different collations."
            )
        codes[i][edge_name(i, j)], codes[j][edge_name(i, j)] = ends
    columns = [{c: values(i, k, c) for k, c in enumerate(plan.features[name])} for i, name in enumerate(names)]
    target = values(hub, len(plan.features[plan.label[0]]), plan.label[1])
    named = [list(plan.columns[name]) for name in names]
    return Tables(names, columns, target, codes, counts, plan.label, named, lost, plan.keys, given, plan.casts)


def _casts(
    ask: Ask, sources: dict[str, str], columns: dict[str, dict[str, Declared]], keys: Attributes
) -> dict[str, str]:
    """Return the type in which each attribute of columns that are declared differently is compared."""
    casts = {}
    for attribute, owners in keys.items():
        types = {(name, key): columns[name][key] for name, key in owners.items()}
        described = ", ".join(f"{name}.{key} ({kind.name})" for (name, key), kind in types.items())
        cast = comparison_type(list(types.values()), described)
        if cast is None:
            continue
        casts[attribute] = cast
        if cast == DOUBLE and any(kind.integer for kind in types.values()):
            limit = largest_integer(any(kind.narrow for kind in types.values()))
            for (name, key), kind in types.items():
                is_float = kind.kind == "float"
                value = f"CAST(t.{quoted(key)} AS {DOUBLE if is_float else 'DECIMAL(38, 0)'})"
                test = f"({value} > {limit} OR {value} < -{limit})"
                test += f" AND {value} <> CAST('NaN' AS {DOUBLE})" if is_float else ""
                query = f"SELECT COUNT(*) AS n FROM {sources[name]} AS t WHERE {test}"
                if numbers(column(name, ask(query), "n"), name)[0]:
                    raise inexact_keys(described, limit)
    return casts
