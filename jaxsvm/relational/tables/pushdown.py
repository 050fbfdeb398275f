"""Write the SQL queries that reduce the tables of a join where they lie, and ask DuckDB of those in memory.

There is one query per table. It projects to keys, features and label, and drops rows without a key. The semijoins of
Yannakakis (1981) up and down the join tree leave just the rows that join. `DENSE_RANK` numbers the key of each edge, in
the same way on both sides, since after the semijoins both have the same keys, of one type (`common_type`). `COUNT(*)`
merges equal rows. Only numbers, features and multiplicities are fetched.

The SQL is standard (EXISTS, window functions, common table expressions), so the same text serves DuckDB and, by ibis,
PostgreSQL, Trino and others that quote names with `"`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from jaxsvm.errors import InputError, require_package
from jaxsvm.relational.tables.columns import (
    DOUBLE,
    Declared,
    Table,
    column,
    comparison_type,
    inexact_keys,
    largest_integer,
    opened,
)
from jaxsvm.relational.tables.keys import Roles

Ask = Callable[[str], Table]
"""A function that returns the result of a query."""


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

    def ask(query: str) -> Table:
        with refusing(require_package("duckdb", "a join of tables").Error):
            found = connection.sql(query)  # None of a statement
            return Table([], []) if found is None else opened("", found.to_arrow_table())

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

    `columns` holds for the name of each what stands in FROM, and its type.

    Raises:
        InputError: On columns that are never equal, and integers and floats that cannot be told apart.
    """
    types = [kind for _, kind in columns.values()]
    described = ", ".join(f"{name} ({kind.name})" for name, (_, kind) in columns.items())
    cast = comparison_type(types, described)
    if cast == DOUBLE and any(kind.integer for kind in types):
        limit = largest_integer(types)
        for source, kind in columns.values():
            value = f"CAST({kind.sql} AS {DOUBLE if kind.kind == 'float' else 'DECIMAL(38, 0)'})"
            test = f"({value} > {limit} OR {value} < -{limit})"
            test += f" AND {value} <> CAST('NaN' AS {DOUBLE})" if kind.kind == "float" else ""
            if number_in(ask(f"SELECT COUNT(*) AS n FROM {source} WHERE {test}"), "n"):
                raise inexact_keys(described, limit)
    return cast


def number_in(table: Table, name: str) -> int:
    """Return the count in a column of a table's only row."""
    return int(column("counted", table, name)[0].as_py())


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
