"""Ask databases, and write the SQL that reduces the tables of a join, or sums over its rows (`totals`).

Each table is reduced by one query. It projects to keys, features and label, and drops rows without a key. The semijoins
of Yannakakis (1981) up and down the join tree leave just the rows that join. `DENSE_RANK` numbers the key of each edge,
in the same way on both sides, since after the semijoins both have the same keys, of one type (`common_type`).
`COUNT(*)` merges equal rows. The SQL is standard (EXISTS, window functions, common table expressions): one text serves
DuckDB, that of tables in memory too, and PostgreSQL.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jaxsvm.errors import InputError, require_package
from jaxsvm.relational.tables.columns import CATEGORIES, DOUBLE, NUMBERS, Declared, Roles, array_of, declared


class Schema(NamedTuple):
    """What a scoring query knows of the tables."""

    named: dict[str, list[str]]  # the names of all columns of each table
    label: str  # the label's table
    order: list[str]  # the tables from the label's outwards
    keys: dict[str, dict[str, str]]  # the attributes of the join
    optional: list[str]  # the tables of which a row may be absent, those that join through them alone too
    sources: dict[str, str]  # the SQL that stands for a table in FROM, if not its name
    casts: dict[str, str]  # the SQL type in which the database compares an attribute of columns of different types

    def joined(self, tables: dict[str, str]) -> str:
        """Write what follows FROM, each table under its name; `tables` have the SQL of some."""
        sources = {name: quoted(name) for name in self.named} | self.sources | tables
        clauses = [f"{sources[self.label]} AS {quoted(self.label)}"]
        for at, new in enumerate(self.order[1:], 1):
            tests = []
            for key, owners in self.keys.items():
                if new in owners and (before := [name for name in self.order[:at] if name in owners]):
                    ends = (f"{quoted(name)}.{quoted(owners[name])}" for name in (before[0], new))
                    tests.append(" = ".join(compared(end, self.casts.get(key)) for end in ends))
            how = "LEFT JOIN" if new in self.optional else "JOIN"
            clauses.append(f"{how} {sources[new]} AS {quoted(new)} ON {' AND '.join(tests) or 'TRUE'}")
        return "\n".join(clauses)


class Database(NamedTuple):
    """What is asked of a database."""

    ask: Callable[[str], dict[str, Any]]  # returns the result of a query: Arrow arrays by name
    types: Callable[[str], tuple[list[str], list[str]]]  # returns the names of a query's columns and of their types


class Plan(NamedTuple):
    """The description of a join in a database."""

    database: Database  # where the tables are
    sources: dict[str, str]  # the SQL that stands for each table in FROM
    columns: dict[str, dict[str, Declared]]  # the declared type of each column of each table
    roles: Roles  # what the columns are for
    own: bool = False  # whether the database is ours: a column `row` of each table numbers its rows
    edges: Sequence[tuple[str, str]] = ()  # of the join tree, pairs of a table and one further from the label's

    @property
    def links(self) -> list[tuple[int, int, list[str]]]:
        """Return the edges by numbers of tables, with the columns of the keys that the two share."""
        names, keys = list(self.sources), list(self.roles.keys)
        by = [[f"k{keys.index(key)}" for key in self.roles.shared(*edge)] for edge in self.edges]
        return [(names.index(i), names.index(j), ends) for (i, j), ends in zip(self.edges, by, strict=True)]

    def value(self, name: str, column: str) -> str:
        """Write a value that is fetched: categories, and labels that are no numbers, as texts."""
        kind = self.columns[name][column]
        label = (name, column) == self.roles.label
        text = kind.kind not in (*NUMBERS, "boolean") if label else self.is_category(name, column)
        # Drivers round REAL to decimals, and Arrow has no UHUGEINT.
        double = kind.kind == "float" or kind.name == "UHUGEINT"
        return compared(kind.sql, "VARCHAR" if text else DOUBLE if double else None)

    def fetched(self, name: str) -> list[str]:
        """Write the values of table i as columns c{i}_0, c{i}_1, ...: features, and of the label's table the label."""
        i, columns = list(self.sources).index(name), self.roles.fetched(name)
        return [f"{self.value(name, c)} AS c{i}_{k}" for k, c in enumerate(columns)]

    def without(self, name: str) -> tuple[str, str]:
        """Write when a row of a table is left out: it lacks a key, if not one of optional tables, or weighs nothing.

        One of an optional table without weight stays: it is not absent.
        """
        optional = self.roles.optional
        near = [pair for pair in self.edges if name in pair and not (pair[0] == name and pair[1] in optional)]
        columns = dict.fromkeys(self.roles.keys[key][name] for pair in near for key in self.roles.shared(*pair))
        keyless = " OR ".join(f"{self.columns[name][c].sql} IS NULL" for c in columns) or "FALSE"
        return keyless, "FALSE" if name in optional else f"{self.weight(name)} = 0"

    def weight(self, name: str) -> str:
        """Write the weight of a row of a table, as a double."""
        return compared(self.columns[name][self.roles.weights[name]].sql, DOUBLE) if name in self.roles.weights else "1"

    def is_category(self, name: str, column: str) -> bool:
        """Return whether a feature is a category."""
        return self.columns[name][column].kind in CATEGORIES or column in self.roles.categorical.get(name, ())


@contextlib.contextmanager
def in_memory(tables: Mapping[str, Mapping[str, Any]]) -> Iterator[Database]:
    """Open a DuckDB of tables in memory, each of Arrow arrays by name."""
    duckdb, pa = (require_package(module, "a join of tables") for module in ("duckdb", "pyarrow"))
    with duckdb.connect() as connection:
        for name, columns in tables.items():
            connection.register(name, pa.table(dict(columns)))
        yield of_duckdb(connection)


@contextlib.contextmanager
def connected(source: Any) -> Iterator[tuple[Database, Callable[[str], str]]]:
    """Open a database, and yield it with the function that maps names of columns that are equal there to one."""
    backend = source.name if hasattr(source, "raw_sql") else "duckdb"  # of ibis
    if backend == "postgres":
        yield of_postgres(source), str
    elif backend != "duckdb":
        raise InputError(
            f"source is {backend}: DuckDB and PostgreSQL are read; give tables of another database to `Join` as Arrow "
            "tables, `connection.table(name).to_pyarrow()`."
        )
    elif isinstance(source, str | os.PathLike):
        duckdb, path = require_package("duckdb", "from_database"), os.fspath(source)
        with refusing(duckdb.Error, f"source is {path!r}: DuckDB cannot open it"):
            connection = duckdb.connect(path, read_only=True)
        with connection:
            yield of_duckdb(connection), str.lower
    else:
        yield of_duckdb(getattr(source, "con", source)), str.lower


def of_duckdb(connection: Any) -> Database:
    """Return the functions that ask a connection of DuckDB."""
    error = require_package("duckdb", "a join of tables").Error

    def ask(query: str) -> dict[str, Any]:
        with refusing(error):
            found = connection.sql(query)
            table = None if found is None else found.to_arrow_table()  # None of a statement
            return {} if table is None else {name: array_of(table[name], name) for name in table.column_names}

    def types(query: str) -> tuple[list[str], list[str]]:
        with refusing(error):
            found = connection.sql(query)
            names, kinds = found.columns, [str(kind) for kind in found.types]
            for k in [k for k, kind in enumerate(kinds) if kind == "VARCHAR"]:  # its type does not show its collation
                c = quoted(names[k])
                value = f"COALESCE(t.{c}, 'a') = 'A', COALESCE(t.{c}, '\u00e1') = 'a'"
                said = connection.sql(f"SELECT {value} FROM (SELECT 1) LEFT JOIN ({query}) AS t ON FALSE").fetchall()[0]
                marks = [mark for mark, alike in zip(("NOCASE", "NOACCENT"), said, strict=True) if alike]
                kinds[k] = " COLLATE ".join(["VARCHAR", *marks])
        return names, kinds

    return Database(ask, types)


def of_postgres(connection: Any) -> Database:
    """Return the functions that ask PostgreSQL by ibis' psycopg connection: its `sql` cuts NUMERIC to 9 places."""
    import psycopg

    def cursor_of(query: str) -> Any:
        with refusing(psycopg.Error):
            return connection.raw_sql(query)

    def ask(query: str) -> dict[str, Any]:
        with cursor_of(query) as cursor:
            # Such as dates beyond Python's.
            with refusing(psycopg.Error, "the database has values that cannot be read"):
                rows = cursor.fetchall()
            return {c.name: array_of([row[k] for row in rows], c.name) for k, c in enumerate(cursor.description)}

    def types(query: str) -> tuple[list[str], list[str]]:
        with cursor_of(query) as cursor:
            columns = list(cursor.description)
        with cursor_of("SELECT oid, typname FROM pg_type WHERE typtype = 'e'") as cursor:
            enums = dict(cursor.fetchall())
        kinds = [f"ENUM {enums[c.type_code]}" if c.type_code in enums else c.type_display for c in columns]
        return [c.name for c in columns], kinds

    return Database(ask, types)


@contextlib.contextmanager
def refusing(error_type: Any, message: str = "the database refuses a query") -> Iterator[None]:
    """Turn an error of the database into an `InputError`, and a query that Ctrl-C ended into `KeyboardInterrupt`."""
    try:
        yield
    except error_type as error:
        raise InputError(f"{message}: {error}") from None
    except RuntimeError as error:
        raise KeyboardInterrupt if "interrupted" in str(error) else error from None  # Ctrl-C, in DuckDB's words


def common_type(database: Database, columns: Mapping[str, tuple[str, Declared]]) -> str | None:
    """Return the SQL type in which columns are compared exactly, that of their union in the database; None: their own.

    `columns` holds for the name of each what stands in FROM, and its type. ENUMs, ordered by definition and equal by
    text, would number a key differently. Different kinds, and those of a union of another kind, are refused.
    """
    types = [kind for _, kind in columns.values()]
    kinds = {kind.kind for kind in types} - {"null"}
    if len({kind.name for kind in types}) == 1:
        return None
    if kinds == {"text"}:
        return "VARCHAR"
    if len(kinds) < 2 or kinds in ({"integer", "decimal"}, {"date", "timestamp"}):
        union = " UNION ALL ".join(f"SELECT {kind.sql} AS k FROM {source}" for source, kind in columns.values())
        common = declared(database.types(f"SELECT * FROM ({union}) AS t LIMIT 0")[1][0])
        if common.kind in kinds:
            return common.name
    if kinds == {"integer", "float"} and not any(kind.name.upper() in ("FLOAT", "FLOAT4") for kind in types):
        large = [f"FROM {at} WHERE ABS(CAST({kind.sql} AS {DOUBLE})) >= {2**53}" for at, kind in columns.values()]
        if not any(database.ask(f"SELECT COUNT(*) AS n {rows}")["n"][0].as_py() for rows in large):
            return DOUBLE  # which tells these integers apart
    described = ", ".join(f"{name} ({kind.name})" for name, (_, kind) in columns.items())
    raise InputError(
        f"keys join {described}: no type holds the values of all exactly, and values of different kinds are never "
        "equal; cast one of them (pandas: `.astype('Int64')`)."
    )


def keyed_by_two(plan: Plan, casts: Mapping[str, str], core: Sequence[str]) -> tuple[Plan, str]:
    """Add a table of the different keys of two tables of a cyclic core, joined: that of fewest rows; and say so.

    It has all keys of the two, so it takes their place on the cycle, and no row of theirs joins two of its own.
    """
    made, keys = [], plan.roles.keys
    for pair in [pair for pair in itertools.combinations(core, 2) if plan.roles.shared(*pair)]:
        whose = {key: next(n for n in pair if n in of) for key, of in keys.items() if not of.keys().isdisjoint(pair)}
        at = {key: f"k{k}" for k, key in enumerate(whose)}
        columns = {at[k]: plan.columns[name][keys[k][name]]._replace(sql=f"t.{at[k]}") for k, name in whose.items()}
        sides = []
        for name in pair:
            values = [f"{plan.columns[name][keys[key][name]].sql} AS {k}" for key, k in at.items() if name in keys[key]]
            sides.append(f"(SELECT DISTINCT {', '.join(values)} FROM {plan.sources[name]} AS t)")
        both = plan.roles.shared(*pair)
        met = " AND ".join(" = ".join(compared(f"{side}.{at[key]}", casts.get(key)) for side in "ab") for key in both)
        by = ", ".join(at[key] for key in both)
        a, b = (f"(SELECT {by}, CAST(COUNT(*) AS {DOUBLE}) AS n FROM {side} AS d GROUP BY {by})" for side in sides)
        many = plan.database.ask(f"SELECT SUM(a.n * b.n) AS n FROM {a} AS a JOIN {b} AS b ON {met}")["n"][0].as_py()
        rows = ", ".join(["0 AS row", *(f"{'ab'[pair.index(name)]}.{at[key]}" for key, name in whose.items())])
        source = f"(SELECT {rows} FROM {sides[0]} AS a JOIN {sides[1]} AS b ON {met})"
        made.append((many or 0, pair, source, columns, at))
    many, pair, source, columns, at = min(made)
    new, said = " with ".join(pair), f"{many:,.0f} different keys of {pair[0]} with {pair[1]} break it"
    if many > plan.roles.cyclic or new in plan.sources:
        told = f"keys make a cyclic join of {', '.join(core)}: {said}"
        raise InputError(f"{told}; allow cyclic={many:.0f}, name no table {new!r}, or leave a key out.")
    keys = {key: of | {new: at[key]} if key in at else of for key, of in keys.items()}
    roles = plan.roles._replace(keys=keys, features=plan.roles.features | {new: []})
    plan = plan._replace(roles=roles, sources=plan.sources | {new: source}, columns=plan.columns | {new: columns})
    return plan, f"The join is cyclic: {said}."


def queries(plan: Plan, casts: Mapping[str, str]) -> tuple[Callable[[str], dict[str, Any]], list[str]]:
    """Return what asks a query of the rows that join, `down{i}` of table i, and write one for each table.

    It has the columns of `Plan.fetched`, keys of edges as e0_1, ..., multiplicities as n, weights as w.
    Tables of our own are reduced once, here; in a user's database, where nothing is written, each query reduces all.
    Names in the queries are those of this function only: no name of the user collides with one. An optional table has
    one row more, of NULLs, if rows of the table before it have no partner (n is 0): their key of that edge is NULL.
    """
    names, optional = list(plan.sources), plan.roles.optional
    edges = plan.links
    steps = {f"base{i}": _base(plan, casts, name) for i, name in enumerate(names)}
    order = [names.index(plan.roles.label[0]), *(j for _, j, _ in edges)]
    for i in reversed(order):
        below = [(f"up{j}", by) for at, j, by in edges if at == i and names[j] not in optional]
        steps[f"up{i}"] = _semijoin(f"base{i}", below)
    for i in order:
        above = [(at, by) for at, j, by in edges if j == i]
        steps[f"down{i}"] = _semijoin(f"up{i}", [(f"down{at}", by) for at, by in above])
        for at, by in above if names[i] in optional else ():
            down, steps[f"alone{i}"] = steps.pop(f"down{i}"), _semijoin(f"down{at}", [(f"up{i}", by)], "NOT EXISTS")
            steps[f"down{i}"] = f"{down} UNION ALL {_absent(f'up{i}')} WHERE EXISTS (SELECT 1 FROM alone{i})"
    out = []
    for i, name in enumerate(names):
        inner, rows = [f"c{i}_{k}" for k in range(len(plan.roles.fetched(name)))], f"down{i} AS a"
        near = [edge for edge in edges if i in edge[:2]]
        group = ", ".join(inner + [f"e{at}_{j}" for at, j, _ in near])
        for at, j, by in near:
            whose = f"m{j}" if at == i and names[j] in optional else "a"
            if whose != "a":
                met = " AND ".join(f"{whose}.{key} = a.{key}" for key in by)
                rows += f" LEFT JOIN (SELECT DISTINCT {', '.join(by)} FROM up{j}) AS {whose} ON {met}"
            rank = f"DENSE_RANK() OVER (ORDER BY {', '.join(f'{whose}.{key}' for key in by)})" if by else "1"
            inner.append(f"{rank} AS e{at}_{j}")
        first = ", COALESCE(MIN(first), -1) AS first" if plan.own else ""
        query = f"SELECT {group or '1'}, COUNT(first) AS n, SUM(w) AS w{first} "
        query += f"FROM (SELECT {', '.join([*inner, 'first', 'w'])} FROM {rows})"
        query += " AS reduced" + (f" GROUP BY {group}" if group else "")
        out.append(f"{query} ORDER BY {'first' if first else group or '1'}")
    for name in list(steps) if plan.own else ():
        plan.database.ask(f"CREATE TABLE {name} AS {steps.pop(name)}")
    before = f"WITH {', '.join(f'{name} AS ({step})' for name, step in steps.items())} " if steps else ""
    return lambda query: plan.database.ask(before + query), out


def rows_of_join(plan: Plan, schema: Schema) -> str:
    """Write the query of the joined rows that have a weight w."""
    columns = dict(plan.columns)
    for name in schema.named:
        columns[name] = {c: of._replace(sql=f"{quoted(name)}.{quoted(c)}") for c, of in columns[name].items()}
    plan = plan._replace(columns=columns)
    kept = sum((plan.fetched(name) for name in schema.named), [])
    weight = [f"CAST(1 AS {DOUBLE})", *(f"COALESCE({plan.weight(name)}, 1)" for name in plan.roles.weights)]
    formed = f"SELECT {', '.join(kept)}, {' * '.join(weight)} AS w FROM {schema.joined({})}"
    return f"SELECT * FROM ({formed}) AS formed WHERE w > 0"


class Nodes(NamedTuple):
    """Tables of a database whose joined rows are summed over, or nodes of several tables each."""

    ask: Callable[[str], dict[str, Any]]
    steps: dict[str, str]  # queries: `base{i}` of node i, with weights w, if there is no such table
    edges: list[tuple[int, int, list[str]]]  # of the join tree, from the label outwards, with the columns of the keys
    members: list[set[int]]  # the tables of each node
    hub: int  # the node of the label
    optional: set[int] | frozenset[int] = frozenset()  # the nodes of which a row may be absent
    factor: str = "1e0"  # of the weights of the hub's rows


def nodes_of(plan: Plan, casts: Mapping[str, str]) -> Nodes:
    """Return the tables of a plan; columns of keys are k0, k1, ..., and others those of `Plan.fetched`."""
    names = list(plan.sources)
    steps = {f"base{i}": _base(plan, casts, name) for i, name in enumerate(names)}
    optional = {i for i, name in enumerate(names) if name in plan.roles.optional}
    members, hub = [{i} for i in range(len(names))], names.index(plan.roles.label[0])
    return Nodes(plan.database.ask, steps, plan.links, members, hub, optional)


def totals(
    nodes: Nodes, values: Sequence[Sequence[str]], wanted: Sequence[Product], by: str = "0",
    scores: Sequence[str] | None = None, weight: str = "COALESCE(w, 1)",
) -> dict[str, Any]:  # fmt: skip
    """Sum products over the joined rows, which are not formed: each node sends sums to the one before it.

    A product is of the weight and of `values[t][k]` of some tables t, SQL of the columns of their node. The sums s0,
    s1, ... are those of rows of one y, SQL of the hub's columns, and one b: the `scores` of the tables add up to b, of
    each node divided between the whole numbers around it in such shares that the mean is kept.
    """
    steps, points = dict(nodes.steps), f"SELECT CAST(0 AS {DOUBLE}) AS up{' UNION ALL SELECT 1' if scores else ''}"

    def named(of: set[int]) -> dict[Product, str]:
        return {part: f"s{k}" for k, part in enumerate(dict.fromkeys(_part(product, of) for product in wanted))}

    def send(i: int, above: list[str], y: str, before: int = -1) -> set[int]:
        """Write the message `m{i}` to the node before, by their keys; return the tables whose rows it sums."""
        near = [(a + b - i, ends) for a, b, ends in nodes.edges if i in (a, b)]
        beyond, done = [(j, ends) for j, ends in near if j != before], set(nodes.members[i])
        rows, z = f"base{i}", " + ".join(scores[t] for t in nodes.members[i]) if scores else "0e0"
        if i in nodes.optional:
            rows = f"(SELECT * FROM base{i} UNION ALL {_absent(f'base{i}')})"
        factor = nodes.factor if i == nodes.hub else "1e0"
        rows = f"SELECT *, {z} AS z, {weight} * {factor} AS v{y} FROM {rows} AS t"
        share = "v * (1 - ABS(z - FLOOR(z) - up))"
        rows = f"SELECT t.*, FLOOR(z) + up AS b, {share} AS m FROM ({rows}) AS t, ({points}) AS u"
        keys = list(dict.fromkeys([*above, *(key for _, ends in beyond for key in ends)]))
        sums = {s: " * ".join(["m", *(values[t][k] for t, k in part)]) for part, s in named(done).items()}
        query = _summed(keys, "b", sums, f"({rows}) AS a", bool(scores) or not beyond)
        for at, (j, ends) in enumerate(beyond):
            those, theirs, how = send(j, ends, "", i), "m.{0}", "LEFT JOIN" if j in nodes.optional else "JOIN"
            met = " AND ".join(f"a.{key} = m.{key}" for key in ends) or "TRUE"
            rows = f"({query}) AS a {how} m{j} AS m ON {met}"
            if j in nodes.optional:
                theirs, none = "COALESCE(m.{0}, o.{0})", f"{ends[0]} IS NULL"
                rows += f" LEFT JOIN (SELECT * FROM m{j} WHERE {none}) AS o ON m.{none}"
            one, two, both = named(done), named(those), named(done | those)
            pairs = {s: (one[_part(part, done)], two[_part(part, those)]) for part, s in both.items()}
            sums = {s: f"a.{mine} * {theirs.format(other)}" for s, (mine, other) in pairs.items()}
            keys, done = list(dict.fromkeys([*above, *(k for _, of in beyond[at + 1 :] for k in of)])), done | those
            query = _summed(keys, f"a.b + {theirs.format('b')}", sums, rows, bool(scores) or at + 1 == len(beyond))
        steps[f"m{i}"] = query
        return done

    send(nodes.hub, ["y"], f", {by} AS y")
    before = ", ".join(f"{name} AS ({step})" for name, step in steps.items())
    return nodes.ask(f"WITH {before} SELECT * FROM m{nodes.hub}")


Product = tuple[tuple[int, int], ...]
"""Values that are multiplied, each by the number of its table and its place there."""


def _part(product: Product, of: set[int]) -> Product:
    return tuple(value for value in product if value[0] in of)


def _summed(keys: list[str], b: str, sums: dict[str, str], rows: str, grouped: bool) -> str:
    """Sum by keys and bin; without bins a message has one row a key, and a join with it is grouped later."""
    found = [f"SUM({of}) AS {s}" if grouped else f"{of} AS {s}" for s, of in sums.items()]
    query = f"SELECT {', '.join([*(f'a.{key}' for key in keys), f'{b} AS b', *found])} FROM {rows}"
    return query + f" GROUP BY {', '.join(str(1 + k) for k in range(len(keys) + 1))}" * grouped


def _absent(table: str) -> str:
    return f"SELECT a.* FROM (SELECT 1 AS one) AS o LEFT JOIN {table} AS a ON FALSE"


def _semijoin(table: str, others: list[tuple[str, list[str]]], exist: str = "EXISTS") -> str:
    equal = {other: " AND ".join(f"b.{key} = a.{key}" for key in keys) or "TRUE" for other, keys in others}
    tests = [f"{exist} (SELECT 1 FROM {other} AS b WHERE {test})" for other, test in equal.items()]
    return f"SELECT * FROM {table} AS a" + (f" WHERE {' AND '.join(tests)}" if tests else "")


def _base(plan: Plan, casts: Mapping[str, str], name: str) -> str:
    """Select the keys, features, label and weight of a table, without the rows that have no key or weigh nothing."""
    kept = [f"{'t.row' if plan.own else '0'} AS first", f"{plan.weight(name)} AS w"]
    for a, (attribute, owners) in enumerate(plan.roles.keys.items()):
        if name in owners:
            kept.append(f"{compared(plan.columns[name][owners[name]].sql, casts.get(attribute))} AS k{a}")
    kept += plan.fetched(name)
    return f"SELECT {', '.join(kept)} FROM {plan.sources[name]} AS t WHERE NOT ({' OR '.join(plan.without(name))})"


def compared(value: str, cast: str | None) -> str:
    """Cast a value to another type, if there is one."""
    return value if cast is None else f"CAST({value} AS {cast})"


def quoted(name: str) -> str:
    """Quote a name as standard SQL does."""
    return '"' + name.replace('"', '""') + '"'


def is_level(value: str, level: str | None) -> str:
    """Write whether a category has a level; None is the missing one."""
    return f"{value} IS NULL" if level is None else f"CAST({value} AS VARCHAR) = {literal(level)}"


def number_of(value: str, fill: float) -> str:
    """Write a feature as a double, with what replaces a missing one, if it is no NaN."""
    value = compared(value, DOUBLE)
    return value if fill != fill else f"COALESCE(NULLIF({value}, CAST('NaN' AS {DOUBLE})), {double(fill)})"


def literal(value: Any) -> str:
    """Write a label or level as SQL."""
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return double(value) if isinstance(value, float) else str(value)


def double(value: Any) -> str:
    """Write a double as SQL; a literal without an exponent would be a decimal."""
    text = repr(float(value))
    if not math.isfinite(value):  # a label
        return f"CAST('{text}' AS {DOUBLE})"
    return f"({text})" if "e" in text else f"({text}e0)"
