"""Find which columns the join makes equal and which are features, and write the SQL that reduces its tables.

There is one query per table. It projects to keys, features and label, and drops rows without a key. The semijoins of
Yannakakis (1981) up and down the join tree leave just the rows that join. `DENSE_RANK` numbers the key of each edge, in
the same way on both sides, since after the semijoins both have the same keys, of one type (`common_type`). `COUNT(*)`
merges equal rows. The SQL is standard (EXISTS, window functions, common table expressions): one text serves DuckDB,
that of tables in memory too, and PostgreSQL.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from jaxsvm.errors import InputError, require_package
from jaxsvm.relational.tables.columns import CATEGORIES, DOUBLE, NUMBERS, Declared, array_of, arrays_of, declared
from jaxsvm.runtime.arrays import require_finite_number, require_one_of

Attributes = dict[str, dict[str, str]]
"""For each attribute of the join, its column in each table that has it."""
Keys: TypeAlias = "Mapping[tuple[str, str], str | Sequence[str] | Mapping[str, str]]"
"""For pairs of tables the columns that join them: a name, several, or `{column of the first: column of the second}`."""


class Schema(NamedTuple):
    """What a scoring query knows of the tables."""

    named: dict[str, list[str]]  # the names of all columns of each table
    label: str  # the label's table
    order: list[str]  # the tables from the label's outwards
    keys: Attributes  # the attributes of the join
    optional: list[str]  # the tables of which a row may be absent, those that join through them alone too
    sources: dict[str, str]  # the SQL that stands for a table in FROM, if not its name
    casts: dict[str, str]  # the SQL type in which the database compares an attribute of columns of different types


class Roles(NamedTuple):
    """The roles of all columns of a join."""

    label: tuple[str, str]  # the table and column of the label
    features: dict[str, list[str]]  # the features of each table
    keys: Attributes  # the attributes of the join
    categorical: dict[str, list[str]]  # features that are categories by request
    positive: Hashable | None  # the label that is +1, if it was named
    missing: str  # "refuse" or "impute"
    weights: dict[str, str]  # the column of weights of each table that has one
    optional: set[str]  # tables whose rows may be absent
    cyclic: float  # the most rows of a table of keys that breaks a cycle

    def shared(self, one: str, two: str) -> list[str]:
        """Return the attributes that two tables share."""
        return [key for key, owners in self.keys.items() if one in owners and two in owners]

    def fetched(self, name: str) -> list[str]:
        """Return the columns of a table whose values are needed: features, and the label as the last."""
        return [*self.features[name], *([self.label[1]] if name == self.label[0] else [])]


def attributes(
    named: Mapping[str, Sequence[str]], keys: Keys | None, own: Iterable[tuple[str, str]], alike: Callable[[str], str]
) -> Attributes:
    """Return the attributes of the join; None of `keys` is a natural join.

    `own` are columns of label and weights, which no other table may have then. `alike` maps column names that are equal
    in the database to one (`str.lower` if case does not matter).
    """
    if keys is None:
        where: Attributes = {}
        for name, columns in named.items():
            for key in columns:
                where.setdefault(alike(key), {})[name] = key
        for name, column in own:
            others = [n for owners in where.values() if owners.get(name) == column for n in owners if n != name]
            if others:
                told = f"{name}.{column} is also the name of a column of {', '.join(others)}, so it would be a key"
                raise InputError(f"{told}: name the columns that join in keys.")
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


def roles_in(
    named: Mapping[str, Sequence[str]], label: tuple[str, str], features: Mapping[str, Sequence[str]] | None,
    keys: Keys | None, categorical: Mapping[str, Sequence[str]] | None, positive: Hashable | None, missing: str,
    weights: Mapping[str, str] | None, optional: Sequence[str], cyclic: float, alike: Callable[[str], str] = str,
) -> Roles:  # fmt: skip
    """Find what each column is for, of the columns `named` by table; `alike` is that of `attributes`."""
    require_one_of("missing", missing, ("refuse", "impute"))
    require_finite_number("cyclic", cyclic)
    if not (isinstance(label, tuple | list) and len(label) == 2 and str(label[0]) in named):
        raise InputError(f"label is {label!r}: (table, column) is needed, the table one of {', '.join(named)}.")
    table, column = label = (str(label[0]), str(label[1]))
    chosen, asked = _by_table("features", features), _by_table("categorical", categorical)
    if not isinstance(weights or {}, Mapping):
        raise InputError(f"weights is {weights!r}: the column of each table that has one is needed, {{table: column}}.")
    weighted = {str(name): str(of) for name, of in (weights or {}).items()}
    for name, of in weighted.items():
        _require_columns("weights", named, name, [of])
    loose = {optional} if isinstance(optional, str) else set(map(str, optional))
    if not loose <= set(named) - {table} or (loose and missing != "impute"):
        raise InputError(
            f"optional is {optional!r} and missing {missing!r}: tables other than the label's, {table}, and "
            "missing='impute', are needed."
        )
    equal = attributes(named, keys, [label, *weighted.items()], alike)
    if features is None:
        used = {(name, key) for owners in equal.values() for name, key in owners.items()} | {label, *weighted.items()}
        chosen = {name: [c for c in columns if (name, c) not in used] for name, columns in named.items()}
    _require_columns("label", named, table, [column])
    for name, columns in chosen.items():
        _require_columns("features", named, name, columns)
    if column in chosen.get(table, ()):
        raise InputError(f"features[{table!r}] names {column}, which is the label: leave it out.")
    for owners in equal.values():
        same = [f"{name}.{key}" for name, key in owners.items() if key in chosen.get(name, ())]
        if len(same) > 1:
            raise InputError(f"features names {' and '.join(same)}, which are equal in the join: name one of them.")
    taken = {name: chosen.get(name, []) for name in named}
    for name, wanted in asked.items():
        known = f"the features of {name} are {', '.join(taken[name])}" if name in named else (
            f"there are the tables {', '.join(named)}")  # fmt: skip
        if not set(wanted) <= set(taken.get(name, ())):
            raise InputError(f"categorical[{name!r}] is {wanted}: {known}.")
    return Roles(label, taken, equal, asked, positive, missing, weighted, loose, cyclic)


def _by_table(argument: str, chosen: Mapping[str, Sequence[str]] | None) -> dict[str, list[str]]:
    """Return lists of columns by table, with names as texts, each once."""
    if chosen is not None and not (
        isinstance(chosen, Mapping) and not any(isinstance(columns, str) for columns in chosen.values())
    ):
        raise InputError(f"{argument} is {chosen!r}: a list of columns for each table is needed, {{table: [column]}}.")
    return {str(name): list(dict.fromkeys(map(str, columns))) for name, columns in (chosen or {}).items()}


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
    def tables(self) -> list[frozenset[str]]:
        """Return the attributes of each table."""
        return [frozenset(self.roles.shared(name, name)) for name in self.sources]

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
            return {} if found is None else arrays_of(found.to_arrow_table())  # None of a statement

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
def refusing(error_type: type[Exception], message: str = "the database refuses a query") -> Iterator[None]:
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

    Raises:
        InputError: If it has more rows than are allowed, before it is made.
    """
    made, keys = [], plan.roles.keys
    for pair in [pair for pair in itertools.combinations(core, 2) if plan.roles.shared(*pair)]:
        whose = {key: next(n for n in pair if n in of) for key, of in keys.items() if not of.keys().isdisjoint(pair)}
        at = {key: f"k{k}" for k, key in enumerate(whose)}
        columns = {
            at[key]: plan.columns[name][keys[key][name]]._replace(sql=f"t.{at[key]}") for key, name in whose.items()
        }
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


def queries(plan: Plan, casts: Mapping[str, str]) -> list[str]:
    """Write one query per table: features and label as c0, c1, ..., keys of edges as e0_1, ..., multiplicities as n.

    Tables of our own are reduced once, here; in a user's database, where nothing is written, each query reduces all.
    Names in the queries are those of this function only: no name of the user collides with one. An optional table has
    one row more, of NULLs, if rows of the table before it have no partner (n is 0): their key of that edge is NULL.
    """
    names, optional = list(plan.sources), plan.roles.optional
    edges = [(names.index(i), names.index(j)) for i, j in plan.edges]
    steps = {f"base{i}": _base(plan, casts, name) for i, name in enumerate(names)}
    order = [names.index(plan.roles.label[0]), *(j for _, j in edges)]

    def shared(i: int, j: int) -> list[str]:
        return [f"k{list(plan.roles.keys).index(key)}" for key in plan.roles.shared(names[i], names[j])]

    for i in reversed(order):
        below = [(f"up{j}", shared(i, j)) for at, j in edges if at == i and names[j] not in optional]
        steps[f"up{i}"] = _semijoin(f"base{i}", below)
    for i in order:
        above = [(at, shared(at, i)) for at, j in edges if j == i]
        steps[f"down{i}"] = _semijoin(f"up{i}", [(f"down{at}", by) for at, by in above])
        for at, by in above if names[i] in optional else ():
            alone = _semijoin(f"down{at}", [(f"up{i}", by)], "NOT EXISTS")
            one = f"SELECT a.* FROM (SELECT 1 AS one) AS o LEFT JOIN up{i} AS a ON FALSE WHERE EXISTS ({alone})"
            steps[f"down{i}"] += f" UNION ALL {one}"
    out = []
    for i, name in enumerate(names):
        inner, rows = [f"c{k}" for k in range(len(plan.roles.fetched(name)))], f"down{i} AS a"
        group = ", ".join(inner + [f"e{at}_{j}" for at, j in edges if i in (at, j)])
        for at, j in [edge for edge in edges if i in edge]:
            by, whose = shared(at, j), f"m{j}" if at == i and names[j] in optional else "a"
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
    if not plan.own:
        return [f"WITH {', '.join(f'{name} AS ({step})' for name, step in steps.items())} {query}" for query in out]
    for name, step in steps.items():
        plan.database.ask(f"CREATE TABLE {name} AS {step}")
    return out


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
    for k, c in enumerate(plan.roles.fetched(name)):
        kind = plan.columns[name][c]
        label = (name, c) == plan.roles.label
        text = kind.kind not in (*NUMBERS, "boolean") if label else plan.is_category(name, c)
        # Drivers round REAL to decimals, and Arrow has no UHUGEINT.
        double = kind.kind == "float" or kind.name == "UHUGEINT"
        kept.append(f"{compared(kind.sql, 'VARCHAR' if text else DOUBLE if double else None)} AS c{k}")
    return f"SELECT {', '.join(kept)} FROM {plan.sources[name]} AS t WHERE NOT ({' OR '.join(plan.without(name))})"


def compared(value: str, cast: str | None) -> str:
    """Cast a value to another type, if there is one."""
    return value if cast is None else f"CAST({value} AS {cast})"


def quoted(name: str) -> str:
    """Quote a name as standard SQL does."""
    return '"' + name.replace('"', '""') + '"'
