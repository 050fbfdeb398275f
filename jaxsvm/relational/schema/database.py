"""A join whose tables lie in a database: the set-oriented part is SQL that runs there, once.

For each table one query: its projection to keys, features and label; rows without a key away; the semijoins of
Yannakakis (1981) up and down the join tree, which leave just the rows that join; the key of each edge as `DENSE_RANK`,
which numbers both sides alike, since after the semijoins both have the same keys, and of one type (`sql_types.py`);
equal rows merged with `COUNT(*)`. What comes over is numbers, features and multiplicities. The iterations then run on
these reduced tables.

The SQL is standard (EXISTS, window functions, common table expressions), so the same text serves DuckDB and, by ibis,
PostgreSQL, Trino and others that quote names with `"`.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxsvm.errors import InputError
from jaxsvm.relational.schema.assembly import Tables
from jaxsvm.relational.schema.join import MISSING_CHOICES, Join, features_of
from jaxsvm.relational.schema.join_tree import join_tree
from jaxsvm.relational.tables.columns import Column, as_feature, inexact, largest, numbers, require_role
from jaxsvm.relational.tables.keys import Attributes, attributes
from jaxsvm.relational.tables.pushdown import Plan, edge_name, queries, quoted
from jaxsvm.relational.tables.reading import column, opened
from jaxsvm.relational.tables.sql_types import Declared, comparison_type, declared


def from_duckdb(source: Any, tables: Sequence[str] | Mapping[str, str], label: tuple[str, str], **options: Any) -> Join:
    """A join of tables or views of a DuckDB database.

    Args:
        source: A connection, or the path of a database file.
        tables: Names of tables or views; or names with what stands for them in FROM, such as
            `{"sales": "read_parquet('sales/*.parquet')"}`.
        label: The table and column of the label.
        options: `features`, `keys`, `categorical`, `positive`, `missing`, as in `Join`.

    Raises:
        InputError: On a database that cannot be opened or asked, and as `Join`.
    """
    try:
        import duckdb
    except ImportError as error:
        raise InputError("from_duckdb needs duckdb: pip install 'jaxsvm[relational]'") from error
    if isinstance(source, str | os.PathLike):
        if not os.path.exists(source):
            raise InputError(f"source is {os.fspath(source)!r}: there is no such file.")
        try:
            connection = duckdb.connect(os.fspath(source), read_only=True)
        except duckdb.Error as error:
            raise InputError(f"source is {os.fspath(source)!r}: DuckDB cannot open it: {error}") from None
    else:
        connection = source

    def ask(query: str) -> Any:
        try:
            return connection.sql(query).to_arrow_table()
        except duckdb.Error as error:
            raise InputError(f"the database refuses a query: {error}") from None

    def types(query: str) -> dict[str, str]:
        try:
            found = connection.sql(query)
            named = _once(found.columns, [str(kind) for kind in found.types])
            texts = [c for c, kind in named.items() if kind == "VARCHAR"]
            for c in texts:  # a type does not say how it is compared
                value = f"COALESCE(t.{quoted(c)}, 'a') = 'A', COALESCE(t.{quoted(c)}, '\u00e1') = 'a'"
                said = connection.sql(f"SELECT {value} FROM (SELECT 1) LEFT JOIN ({query}) AS t ON FALSE").fetchall()[0]
                marks = [mark for mark, alike in zip(("NOCASE", "NOACCENT"), said, strict=True) if alike]
                named[c] = " COLLATE ".join(["VARCHAR", *marks])
        except duckdb.Error as error:
            raise InputError(f"the database refuses a query: {error}") from None
        return named

    try:
        return from_query(ask, types, tables, label, alike=str.lower, **options)
    finally:
        if connection is not source:
            connection.close()


def from_ibis(
    connection: Any, tables: Sequence[str] | Mapping[str, str], label: tuple[str, str], **options: Any
) -> Join:
    """The same on any engine that ibis speaks to and that quotes names with `"`: PostgreSQL, Trino, DuckDB, ...

    Args:
        connection: An ibis backend.
        tables: As in `from_duckdb`.
        label: As in `from_duckdb`.
        options: As in `from_duckdb`.
    """
    if connection.name == "duckdb":  # ibis 12 asks DuckDB 2 for a method that it no longer has
        return from_duckdb(connection.con, tables, label, **options)
    if connection.name == "postgres":
        # `connection.sql` fails in ibis 12 with sqlglot 30.30, and brings NUMERIC as decimals of 9 places.
        return from_query(*_postgres(connection), tables, label, **options)
    return from_query(lambda query: connection.sql(query).to_pyarrow(), None, tables, label, **options)


def _postgres(connection: Any) -> tuple[Callable[[str], Any], Callable[[str], dict[str, str]]]:
    """What answers a query of PostgreSQL, and what names the types of its columns, by ibis' own psycopg connection."""
    import psycopg

    def answered(query: str) -> Any:
        try:
            return connection.raw_sql(query)
        except psycopg.Error as error:
            raise InputError(f"the database refuses a query: {error}") from None

    def ask(query: str) -> dict[str, list[Any]]:
        with answered(query) as cursor:
            try:
                rows = cursor.fetchall()
            except psycopg.Error as error:  # such as a date that Python has not
                raise InputError(f"the database has values that cannot be read: {error}") from None
            return {part.name: [row[k] for row in rows] for k, part in enumerate(cursor.description)}

    def types(query: str) -> dict[str, str]:
        with answered(query) as cursor:
            found = list(cursor.description)
        with answered("SELECT oid, typname FROM pg_type WHERE typtype = 'e'") as cursor:
            enums = dict(cursor.fetchall())
        kinds = [f"ENUM {enums[c.type_code]}" if c.type_code in enums else c.type_display for c in found]
        return _once([c.name for c in found], kinds)

    return ask, types


def _once(names: Sequence[str], types: Sequence[str]) -> dict[str, str]:
    """The type of each column.

    Raises:
        InputError: On two columns of one name.
    """
    twice = [name for name in names if list(names).count(name) > 1]
    if twice:
        raise InputError(f"a table has two columns {twice[0]}: give them different names.")
    return dict(zip(names, types, strict=True))


def from_query(
    ask: Callable[[str], Any],
    types: Callable[[str], dict[str, str]] | None,
    tables: Sequence[str] | Mapping[str, str],
    label: tuple[str, str],
    *,
    alike: Callable[[str], str] = str,
    features: Mapping[str, Sequence[str]] | None = None,
    keys: Any = None,
    categorical: Mapping[str, Sequence[str]] | None = None,
    positive: Any = None,
    missing: str = "refuse",
) -> Join:
    """The same with functions that answer queries.

    Args:
        ask: Answers SQL by a table, in any form that `Join` takes.
        types: Answers SQL by the names of the columns and of their types; None: those of the Arrow tables of `ask`.
        tables: As in `from_duckdb`.
        label: As in `from_duckdb`.
        alike: What makes names of columns equal that are one name to the database.
        features: As in `Join`.
        keys: As in `Join`.
        categorical: As in `Join`.
        positive: As in `Join`.
        missing: As in `Join`.
    """
    if missing not in MISSING_CHOICES:
        raise InputError(f"missing is {missing!r}: one of {', '.join(MISSING_CHOICES)} is needed.")
    if isinstance(tables, str):
        raise InputError(f"tables is {tables!r}: a list of names is needed.")
    sources = dict(tables) if isinstance(tables, Mapping) else {name: quoted(name) for name in tables}
    if not sources:
        raise InputError("tables is empty: at least one table is needed.")
    empty = {name: f"SELECT * FROM {source} AS t LIMIT 0" for name, source in sources.items()}
    if types is None:
        schemas = {name: ask(query).schema for name, query in empty.items()}
        named = {name: _once(schema.names, [str(kind) for kind in schema.types]) for name, schema in schemas.items()}
    else:
        named = {name: types(query) for name, query in empty.items()}
    columns = {name: {c: declared(kind) for c, kind in found.items()} for name, found in named.items()}
    if not (
        isinstance(label, tuple | list) and len(label) == 2 and label[0] in columns and label[1] in columns[label[0]]
    ):
        raise InputError(f"label is {label!r}: (table, column) is needed; the tables are {', '.join(columns)}.")
    if columns[label[0]][label[1]].kind == "other":
        raise InputError(f"label {label[0]}.{label[1]} is {named[label[0]][label[1]]}: cast it to a text or a number.")
    found = attributes(columns, keys, alike)
    wanted = features_of(columns, found, label, features)
    for name, chosen in wanted.items():
        absent = [c for c in chosen if c not in columns[name]]
        if absent:
            raise InputError(
                f"features[{name!r}] names {', '.join(absent)}: table {name} has {', '.join(columns[name])}."
            )
        for c in chosen:
            asked = c in (categorical or {}).get(name, [])
            require_role(columns[name][c].kind, f"{name}.{c}", columns[name][c].name, asked)
    casts = _casts(ask, sources, columns, found)
    names, hub = list(sources), list(sources).index(label[0])
    shared = [frozenset(key for key, owners in found.items() if name in owners) for name in names]
    edges = join_tree(names, shared, hub, lambda i, j: 0.0)
    parts = queries(Plan(sources, columns, found, casts, wanted, (label[0], label[1]), edges, missing))
    fetched = [opened(name, ask(query)) for name, query in zip(names, parts, strict=True)]
    for name, table in zip(names, fetched, strict=True):
        if not len(column(name, table, "n")):
            raise InputError(
                f"tables make a join without rows (nothing is left of {name}): look for keys that never match."
            )

    def values(i: int, k: int, c: str) -> Column:
        part, kind = as_feature(column(names[i], fetched[i], f"c{k}")), columns[names[i]][c]
        # A database brings UUIDs as texts; and a column without values has a type nevertheless.
        return part.changed(kind="uuid" if kind.kind == "uuid" else part.kind, type=kind.name)

    codes: list[dict[str, np.ndarray]] = [{} for _ in names]
    for i, j in edges:
        ends = [column(names[k], fetched[k], edge_name(i, j)).values.astype(np.int64) for k in (i, j)]
        one, two = map(np.unique, ends)
        if not np.array_equal(one, two):
            raise InputError(
                f"tables {names[i]} and {names[j]} have different keys left after what joins was kept: a table changed "
                "between two queries, or its columns of a key have different collations."
            )
        codes[i][edge_name(i, j)], codes[j][edge_name(i, j)] = ends
    read = Tables(
        names,
        [{c: values(i, k, c) for k, c in enumerate(wanted[name])} for i, name in enumerate(names)],
        values(hub, len(wanted[label[0]]), label[1]),
        codes,
        [numbers(column(name, table, "n"), name) for name, table in zip(names, fetched, strict=True)],
    )
    given = sources if isinstance(tables, Mapping) else {}
    return Join.of_tables(
        read, (label[0], label[1]), found, categorical or {}, positive, missing, sources=given, casts=casts
    )


def _casts(
    ask: Callable[[str], Any], sources: dict[str, str], columns: dict[str, dict[str, Declared]], found: Attributes
) -> dict[str, str]:
    """The type in which each attribute of columns that are declared differently is compared."""
    casts = {}
    for attribute, owners in found.items():
        types = [columns[name][key] for name, key in owners.items()]
        listed = ", ".join(
            f"{name}.{key} ({kind.name})" for (name, key), kind in zip(owners.items(), types, strict=True)
        )
        cast = comparison_type(types, listed)
        if cast is None:
            continue
        casts[attribute] = cast
        if cast == "DOUBLE PRECISION" and any(kind.integer for kind in types):
            most = largest(any(kind.narrow for kind in types))
            for (name, key), kind in zip(owners.items(), types, strict=True):
                value = f"CAST(t.{quoted(key)} AS {'DOUBLE PRECISION' if kind.kind == 'float' else 'DECIMAL(38, 0)'})"
                test = f"({value} > {most} OR {value} < -{most})" + (
                    f" AND {value} <> CAST('NaN' AS DOUBLE PRECISION)" if kind.kind == "float" else ""
                )
                query = f"SELECT COUNT(*) AS n FROM {sources[name]} AS t WHERE {test}"
                if numbers(column(name, ask(query), "n"), name)[0]:
                    raise inexact(listed, most)
    return casts
