"""Make a join of tables in a database: the set-oriented part is SQL that runs there, once; see `tables/pushdown.py`."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from jaxsvm.errors import InputError, require_package
from jaxsvm.relational.schema.join import Join
from jaxsvm.relational.tables.columns import Table, declared, opened
from jaxsvm.relational.tables.keys import Keys, Request, roles_in
from jaxsvm.relational.tables.pushdown import Ask, Plan, asking, quoted, refusing
from jaxsvm.runtime.checks import checked

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection
    from ibis.backends import BaseBackend

Types = Callable[[str], tuple[list[str], list[str]]]
"""A function that returns the names of a query's columns, and the names of their types."""


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
        with refusing(duckdb.Error, f"source is {path!r}: DuckDB cannot open it"):
            connection = duckdb.connect(path, read_only=True)
    try:
        return _of_duckdb(connection, tables, Request(label, features, keys, categorical, positive, missing))
    finally:
        if connection is not source:
            connection.close()


def _of_duckdb(connection: Any, tables: Sequence[str] | Mapping[str, str], asked: Request) -> Join:
    def types(query: str) -> tuple[list[str], list[str]]:
        with refusing(require_package("duckdb", "from_duckdb").Error):
            relation = connection.sql(query)
            names, kinds = relation.columns, [str(kind) for kind in relation.types]
            for k in [k for k, kind in enumerate(kinds) if kind == "VARCHAR"]:  # its type does not show its collation
                c = quoted(names[k])
                value = f"COALESCE(t.{c}, 'a') = 'A', COALESCE(t.{c}, '\u00e1') = 'a'"
                said = connection.sql(f"SELECT {value} FROM (SELECT 1) LEFT JOIN ({query}) AS t ON FALSE").fetchall()[0]
                marks = [mark for mark, alike in zip(("NOCASE", "NOACCENT"), said, strict=True) if alike]
                kinds[k] = " COLLATE ".join(["VARCHAR", *marks])
        return names, kinds

    return _from_queries(asking(connection), types, tables, asked, str.lower)


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
    asked, backend = Request(label, features, keys, categorical, positive, missing), cast(Any, connection)
    if connection.name == "duckdb":  # ibis 12 asks DuckDB 2 for a method that it no longer has
        return _of_duckdb(backend.con, tables, asked)
    if connection.name == "postgres":
        # `connection.sql` fails in ibis 12 with sqlglot 30.30, and brings NUMERIC as decimals of 9 places.
        return _from_queries(*_postgres(connection), tables, asked)

    def ask(query: str) -> Table:
        return opened("", backend.sql(query).to_pyarrow())

    def types(query: str) -> tuple[list[str], list[str]]:
        table = ask(query)
        return table.names, [str(values.type) for values in table.values]

    return _from_queries(ask, types, tables, asked)


def _postgres(connection: Any) -> tuple[Ask, Types]:
    """Return functions that query PostgreSQL, and name the types of its columns, by ibis' own psycopg connection."""
    import psycopg

    def cursor_of(query: str) -> Any:
        with refusing(psycopg.Error):
            return connection.raw_sql(query)

    def ask(query: str) -> Table:
        with cursor_of(query) as cursor:
            # Such as dates beyond Python's.
            with refusing(psycopg.Error, "the database has values that cannot be read"):
                rows = cursor.fetchall()
            names = [part.name for part in cursor.description]
            return Table(names, [[row[k] for row in rows] for k in range(len(names))])

    def types(query: str) -> tuple[list[str], list[str]]:
        with cursor_of(query) as cursor:
            columns = list(cursor.description)
        with cursor_of("SELECT oid, typname FROM pg_type WHERE typtype = 'e'") as cursor:
            enums = dict(cursor.fetchall())
        kinds = [f"ENUM {enums[c.type_code]}" if c.type_code in enums else c.type_display for c in columns]
        return [c.name for c in columns], kinds

    return ask, types


def _from_queries(
    ask: Ask,
    types: Types,
    tables: Sequence[str] | Mapping[str, str],
    asked: Request,
    alike: Callable[[str], str] = str,
) -> Join:
    """Make a join of tables in a database; `alike` maps column names that are equal there to one."""
    if isinstance(tables, str):
        raise InputError(f"tables is {tables!r}: a list of names is needed.")
    given = {str(name): source for name, source in tables.items()} if isinstance(tables, Mapping) else {}
    sources = given or {str(name): quoted(name) for name in tables}
    if not sources:
        raise InputError("tables is empty: at least one table is needed.")
    columns = {}
    for name, source in sources.items():
        names, kinds = types(f"SELECT * FROM {source} AS t LIMIT 0")
        twice = [c for c in names if names.count(c) > 1]
        if twice:
            raise InputError(f"table {name} has two columns {twice[0]}: give them different names.")
        columns[name] = {c: declared(kind, f"t.{quoted(c)}") for c, kind in zip(names, kinds, strict=True)}
    named = {name: list(of_table) for name, of_table in columns.items()}
    return Join.of_plan(Plan(ask, sources, columns, roles_in(named, asked, alike)), named, given)
