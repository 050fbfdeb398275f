"""A join whose tables lie in a database: the set-oriented part is SQL that runs there, once.

For each table one query: its projection to keys, features and label; rows without a key away; the semijoins of
Yannakakis (1981) up and down the join tree, which leave just the rows that join; the key of each edge as `DENSE_RANK`,
which numbers both sides alike since after the semijoins both have the same keys; equal rows merged with `COUNT(*)`.
What comes over is numbers, features and multiplicities, as Arrow columns. The iterations then run on these reduced
tables.

The SQL is standard (EXISTS, window functions, common table expressions), so the same text serves DuckDB and, by ibis,
PostgreSQL, Trino and others that quote names with `"`.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxsvm.errors import InputError
from jaxsvm.relational.join_tree import join_tree
from jaxsvm.relational.keys import Attributes, attributes
from jaxsvm.relational.schema import MISSING_CHOICES, Join, features_of

COPIES = "#copies"


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

    try:
        return from_query(ask, tables, label, **options)
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
    return from_query(lambda query: connection.sql(query).to_pyarrow(), tables, label, **options)


def from_query(
    ask: Callable[[str], Any],
    tables: Sequence[str] | Mapping[str, str],
    label: tuple[str, str],
    *,
    features: Mapping[str, Sequence[str]] | None = None,
    keys: Any = None,
    categorical: Mapping[str, Sequence[str]] | None = None,
    positive: Any = None,
    missing: str = "refuse",
) -> Join:
    """The same with `ask`, which answers SQL by an Arrow table."""
    if missing not in MISSING_CHOICES:
        raise InputError(f"missing is {missing!r}: one of {', '.join(MISSING_CHOICES)} is needed.")
    sources = dict(tables) if isinstance(tables, Mapping) else {name: quoted(name) for name in tables}
    if not sources:
        raise InputError("tables is empty: at least one table is needed.")
    columns = {
        name: dict.fromkeys(ask(f"SELECT * FROM {source} LIMIT 0").column_names) for name, source in sources.items()
    }
    if not (
        isinstance(label, tuple | list) and len(label) == 2 and label[0] in columns and label[1] in columns[label[0]]
    ):
        raise InputError(f"label is {label!r}: (table, column) is needed; the tables are {', '.join(columns)}.")
    found = attributes(columns, keys)
    wanted = features_of(columns, found, label, features)
    for name, chosen in wanted.items():
        absent = [c for c in chosen if c not in columns[name]]
        if absent:
            raise InputError(
                f"features[{name!r}] names {', '.join(absent)}: table {name} has {', '.join(columns[name])}."
            )
    names = list(sources)
    shared = [frozenset(key for key, owners in found.items() if name in owners) for name in names]
    edges = join_tree(names, shared, names.index(label[0]), lambda i, j: 0.0)
    parts, edge_keys = _queries(sources, found, wanted, label, edges, missing)
    fetched = {name: ask(query) for name, query in parts.items()}
    empty = [name for name, table in fetched.items() if not table.num_rows]
    if empty:
        raise InputError(
            f"tables make a join without rows (nothing is left of {empty[0]}): look for keys that never match."
        )
    join = Join(
        fetched, (label[0], label[1]), wanted, edge_keys,
        categorical=categorical, positive=positive, missing=missing, copies=dict.fromkeys(names, COPIES),
    )  # fmt: skip
    object.__setattr__(join, "keys", found)  # as the database knows them: `to_sql` joins on them
    return join


def _queries(
    sources: dict[str, str], found: Attributes, wanted: dict[str, list[str]], label: Any, edges: Any, missing: str
) -> tuple[dict[str, str], dict[tuple[str, str], list[str]]]:
    """For each table its query; and the keys of the join of what comes back."""
    names, near = list(sources), {i: [] for i in range(len(sources))}
    for i, j in edges:
        near[i].append(j)
        near[j].append(i)
    order, parent = [names.index(label[0])], {names.index(label[0]): -1}
    for i in order:
        for j in near[i]:
            if j != parent[i]:
                parent[j] = i
                order.append(j)

    def together(i: int, j: int) -> list[tuple[str, str]]:
        both = [o for o in found.values() if names[i] in o and names[j] in o]
        return [(quoted(o[names[i]]), quoted(o[names[j]])) for o in both]

    def semijoin(one: str, i: int, others: list[tuple[str, int]]) -> str:
        tests = []
        for other, j in others:
            equal = " AND ".join(f"b.{theirs} = a.{ours}" for ours, theirs in together(i, j)) or "TRUE"
            tests.append(f"EXISTS (SELECT 1 FROM {other} AS b WHERE {equal})")
        return f"SELECT * FROM {one} AS a" + (f" WHERE {' AND '.join(tests)}" if tests else "")

    steps = []
    for i, name in enumerate(names):
        key_columns = [owners[name] for owners in found.values() if name in owners]
        kept: list[str] = list(dict.fromkeys([*key_columns, *wanted[name], *([label[1]] if name == label[0] else [])]))
        needed = list(key_columns) + (list(kept) if missing == "drop" else [])
        tests = " AND ".join(f"{quoted(c)} IS NOT NULL" for c in sorted(set(needed))) or "TRUE"
        what = ", ".join(map(quoted, kept)) or "1 AS nothing"
        steps.append(f"base{i} AS (SELECT {what} FROM {sources[name]} AS t WHERE {tests})")
    for i in reversed(order):
        steps.append(f"up{i} AS ({semijoin(f'base{i}', i, [(f'up{j}', j) for j in near[i] if j != parent[i]])})")
    for i in order:
        above = [(f"down{parent[i]}", parent[i])] if parent[i] >= 0 else []
        steps.append(f"down{i} AS ({semijoin(f'up{i}', i, above)})")
    queries, keys = {}, {}
    for i, name in enumerate(names):
        chosen = [*wanted[name], *([label[1]] if name == label[0] else [])]
        inner = [f"{quoted(c)} AS c{k}" for k, c in enumerate(chosen)]
        for j in near[i]:
            edge = f"#{min(i, j)}-{max(i, j)}"
            by = ", ".join(ours for ours, _ in together(i, j))
            inner.append(f"DENSE_RANK() OVER (ORDER BY {by}) AS {quoted(edge)}" if by else f"1 AS {quoted(edge)}")
            keys[names[min(i, j)], names[max(i, j)]] = [edge]
        edges_of = [quoted(f"#{min(i, j)}-{max(i, j)}") for j in near[i]]
        group = ", ".join([f"c{k}" for k in range(len(chosen))] + edges_of)
        out = [f"c{k} AS {quoted(c)}" for k, c in enumerate(chosen)] + edges_of
        query = f"SELECT {', '.join([*out, f'COUNT(*) AS {quoted(COPIES)}'])} FROM (SELECT "
        query += f"{', '.join(inner) or '1'} FROM down{i}) AS reduced"
        queries[name] = f"WITH {', '.join(steps)} {query}" + (f" GROUP BY {group}" if group else "")
    return queries, keys


def quoted(name: str) -> str:
    """A name as standard SQL quotes it."""
    return '"' + name.replace('"', '""') + '"'
