"""Build a join from tables: keys as integers, the rows that join, a join tree, one block of features per table.

    join = Join({"sales": sales, "shops": shops}, label=("sales", "returned"))
    join = from_duckdb("shop.duckdb", ["sales", "shops"], label=("sales", "returned"))

The set-oriented part is SQL that runs where the tables lie, once (`tables/pushdown.py`).

A join keeps the rows that take part in it (the marginal counts of one pass show which), with equal rows merged into one
with a multiplicity, numbers as float64 columns and categories as codes, never as columns of zeros and ones. Every
feature belongs to one table: that of a key which several tables share, to the first that names it.
"""

from __future__ import annotations

import copy
import dataclasses
import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array
from scipy.sparse import csr_array, hstack

from jaxsvm.errors import InputError, require, require_package, require_part
from jaxsvm.relational.counting import tree as counting
from jaxsvm.relational.schema.assembly import assembled, check_types
from jaxsvm.relational.tables.columns import array_of, arrays_of, column, declared, opened, python_values
from jaxsvm.relational.tables.pushdown import Ask, Keys, Plan, Request, asking, in_memory, quoted, refusing, roles_in
from jaxsvm.runtime.arrays import checked, require_one_of, require_positive, require_whole

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection
    from ibis.backends import BaseBackend

SCALES = ("none", "max", "standard")


class Moments(NamedTuple):
    """Statistics over the rows of a join, in the order of its coefficients.

    Attributes:
        size: The number of rows N.
        mean: Mean of each feature, `(d,)`.
        absolute: Mean of its absolute value, `(d,)`.
        second: Mean of `x x'`, `(d, d)`.
        label: Mean of y, `()`.
        label_mean: Mean of `y x`, `(d,)`.
    """

    size: float
    mean: np.ndarray
    absolute: np.ndarray
    second: np.ndarray
    label: float
    label_mean: np.ndarray


@checked
def least_squares(join: Join, lam: float) -> np.ndarray:
    """Solve the least-squares SVM, `argmin mean (1 - y beta.x)^2 + lam |beta|^2`, `(d,)`, for a join of any size.

    Args:
        join: A join; with a constant feature, if one is wanted (`prepared`).
        lam: The strength of the regulariser, > 0.

    Raises:
        InputError: On what is no join, and another lam.
    """
    require_part("join", join, "moments", "a `relational.Join` is needed")
    require_positive("lam", lam)
    m = join.moments()
    return np.linalg.solve(m.second + lam * np.eye(len(m.mean)), m.label_mean)


class Join:
    """The natural join of some tables, or the join on named keys, with features and a label: never formed.

    Attributes:
        size: The number of rows of the join.
        feature_names: `table.column` or `table.column=level`, one per coefficient; a constant is `(intercept)`.
        names: Names of the tables.
        rows: For each table, the given row that each kept row came from (the first of equal ones).
        classes: The labels of the signs -1 and +1.
        tree: The join tree.
        blocks: The features of each table.
        keys: The attributes of the join.
        sources: The SQL that stands for a table in FROM, if not its name; `to_sql` uses it.
        casts: The SQL type in which the database compares an attribute of columns of different types.
        named: The names of all columns of each table.
        notes: What was done to the tables: rows that join with nothing, for want of a key or of a partner, and others.
        constant: Whether there is a constant feature.
    """

    constant = False

    def __init__(
        self, tables: Mapping[str, Any], label: tuple[str, str], features: Mapping[str, Sequence[str]] | None = None,
        keys: Keys | None = None, *, categorical: Mapping[str, Sequence[str]] | None = None,
        positive: Hashable | None = None, missing: str = "refuse",
    ) -> None:  # fmt: skip
        """Encode the keys, find the join tree, drop rows that join with nothing, merge equal rows.

        Args:
            tables: By name: pandas, polars or Arrow tables, dicts of arrays, paths of Parquet or CSV files.
            label: The table (normally the one of facts) and its column, which has two values.
            features: The columns of each table that are features; None: all that are neither keys nor the label.
                Numbers (decimals too) are taken as they are; texts, enumerations and booleans are categories. Other
                types are refused by name.
            keys: The columns that join; None: columns of equal names. Else `{(table, table): columns}`, where columns
                is a name, a list of names, or `{column of the first: column of the second}`. Values are compared
                exactly; columns whose types have no exact common one (texts with integers, say) are refused by name.
            categorical: Columns of numbers, dates, times or UUIDs that are categories, by table.
            positive: The label that is +1; None: the greater one.
            missing: Treatment of missing features: "refuse", "impute" (the mean of the column; a level of its own for
                categories) or "drop" the row. A missing key joins nothing, as in SQL.

        Raises:
            InputError: On anything that does not fit, a cyclic join, and a join without rows or with one label.
        """
        require_package("duckdb", "a join of tables")
        if not isinstance(tables, Mapping) or not tables:
            found = "empty" if isinstance(tables, Mapping) else f"a {type(tables).__name__}"
            raise InputError(f"tables is {found}: a dict of at least one table by name is needed.")
        given = {str(name): opened(f"tables[{name!r}]", table) for name, table in tables.items()}
        named = {name: table.names for name, table in given.items()}
        roles = roles_in(named, Request(label, features, keys, categorical, positive, missing))
        columns, held = {}, {}
        for i, (name, table) in enumerate(given.items()):
            needed = dict.fromkeys([*roles.fetched(name), *(of[name] for of in roles.keys.values() if name in of)])
            arrays = {f"c{k}": column(name, table, c) for k, c in enumerate(needed)}
            columns[name] = {c: declared(str(arrays[f"c{k}"].type), f"t.c{k}") for k, c in enumerate(needed)}
            held[f"t{i}"] = arrays | {"row": np.arange(table.rows)}
        check_types(columns, roles)  # before DuckDB meets a type that it does not have
        with in_memory(held) as ask:
            sources = dict(zip(given, held, strict=True))
            self.assemble(Plan(ask, sources, columns, roles, own=True), named, {})
        self.casts = {}  # whoever asks for a query has tables of other types

    def assemble(self, plan: Plan, named: dict[str, list[str]], sources: dict[str, str]) -> None:
        """Set the attributes: `named` are the columns of each table, `sources` what `to_sql` reads."""
        self.names, self.keys, self.sources = list(plan.sources), plan.roles.keys, sources
        self.named = list(named.values())
        self.tree, self.blocks, self.classes, self.rows, self.notes, self.casts = assembled(plan)
        if not np.isfinite(float(self.size)):
            raise InputError("tables make a join of more than 1e308 rows: float64 cannot count it.")

    @property
    def d(self) -> int:
        """Return the number of coefficients, with the constant's."""
        return sum(block.d for block in self.blocks)

    def split(self, beta: np.ndarray) -> list[np.ndarray]:
        """Split a vector of coefficients into the parts of the tables."""
        return np.split(beta, np.cumsum([block.d for block in self.blocks])[:-1])

    @cached_property
    def size(self) -> int | float:
        """Return the number of rows of the join: exact up to 2^53, beyond in float64 (relative error about 1e-14)."""
        total = float(self.counts()[0].sum())
        return int(total) if total < 2**53 else total

    def counts(self) -> list[np.ndarray]:
        """Return, for each kept row of each table, the number of rows of the join through it, float64 `(n_i,)`."""
        return counting.marginals(self.tree, self.tree.weight)

    def moments(self) -> Moments:
        """Return means and second moments of features and label over all rows of the join, exact but for rounding.

        In O(n d^2 + m n d) for m tables of n rows, with d features in all.
        """
        tree, N, out = self.tree, float(self.size), self.counts()

        def through(i: int, factor: np.ndarray) -> np.ndarray:
            """Return the means of all features times a factor of the rows of one table, `(d,)`."""
            factors = [w * factor if j == i else w for j, w in enumerate(tree.weight)]
            return self.transposed(counting.marginals(tree, factors)) / N

        units = [(i, block.matrix @ unit) for i, block in enumerate(self.blocks) for unit in np.eye(block.d)]
        second = np.reshape([through(i, column) for i, column in units], (self.d, self.d))
        label = float(out[tree.label] @ tree.y) / N
        return Moments(
            self.size, self.transposed(out) / N, self.transposed(out, abs) / N, (second + second.T) / 2, label,
            through(tree.label, tree.y),
        )  # fmt: skip

    def transposed(self, v: list[np.ndarray], of: Callable[[Any], Any] = lambda X: X) -> np.ndarray:
        """Return `X_i' v_i` of all tables, `(d,)`, or of a function of their features."""
        return np.concatenate([of(block.matrix).T @ part for block, part in zip(self.blocks, v, strict=True)])

    @property
    def feature_names(self) -> list[str]:
        """Name each coefficient: `table.column`, `table.column=level`, or `(intercept)` for the constant."""
        names = []
        for table, block in zip(self.names, self.blocks, strict=True):
            names += ["(intercept)" if name is None else f"{table}.{name}" for name in block.names]
            for name, levels in block.categories.items():
                values = python_values(levels)
                names += [f"{table}.{name}{' IS NULL' if value is None else f'={value}'}" for value in values]
        return names

    def materialise(self, rows: list[np.ndarray] | None = None) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
        """Form the join, or some rows of it: for tests, samples and small joins.

        Args:
            rows: The row of each table, `(N,)` each; None: all rows of the join, equal ones once per copy.

        Returns:
            Features `(N, d)`, signs `(N,)`, and the row of each table, `(N,)` each.
        """
        if rows is None:
            found = self.distinct(np.inf)
            assert found is not None
            rows = [np.repeat(at, found[1].astype(int)) for at in found[0]]
        x = self.features(rows)
        return x if isinstance(x, np.ndarray) else x.toarray(), self.tree.y[rows[self.tree.label]], rows

    def distinct(self, most: float) -> tuple[list[np.ndarray], np.ndarray] | None:
        """Return the row of each table of each distinct row of the join, and how often it comes; None beyond `most`."""
        tree = self.tree.within(1, most)
        return None if tree is None else ([tree.members[0][t] for t in range(len(self.names))], tree.weight[0])

    @property
    def entries(self) -> int:
        """Return the number of features of a row that are kept: of a category its level alone."""
        return sum(len(block.names) + len(block.categories) for block in self.blocks)

    def features(self, rows: list[np.ndarray]) -> np.ndarray | csr_array:
        """Return the features of joined rows, given by the row of each table: sparse (CSR) if there are categories."""
        pairs = list(zip(self.blocks, rows, strict=True))
        if any(block.categories for block in self.blocks):
            return csr_array(hstack([block.sparse[at] for block, at in pairs], format="csr"))
        return np.concatenate([block.X[at] for block, at in pairs], axis=1)

    def __repr__(self) -> str:
        parts = ", ".join(
            f"{n} ({len(r)} distinct rows, {b.d} features)"
            for n, r, b in zip(self.names, self.rows, self.blocks, strict=True)
        )
        alone = [f" ({note})" for note in self.notes if "share no key" in note]  # rarely what was meant
        return f"Join of {self.size:,} rows: {parts}{''.join(alone)}"


class Sample(NamedTuple):
    """A sample of rows of the join.

    Attributes:
        x: Features, `(n, d)`, a column for each level.
        y: Signs, `(n,)`.
        rows: The row of each table, numbered as the join keeps them, `(n,)` each; `join.rows[i]` maps them to given
            rows.
    """

    x: np.ndarray
    y: np.ndarray
    rows: list[np.ndarray]


@checked
def sample(join: Join, n: int, key: Array | int) -> Sample:
    """Draw rows of the join, uniform and independent, with their features.

    Args:
        join: The join.
        n: The number of rows, at least 1.
        key: An integer, or a key of `jax.random`.

    Raises:
        InputError: On another number or key.
    """
    require_part("join", join, "moments", "a `relational.Join` is needed")
    require_whole("n", n, 1)
    return Sample(*join.materialise(counting.Sampler(join.tree).draw(n, generator(key))))


def generator(key: Any) -> np.random.Generator:
    """Return NumPy's generator for an integer or a key of JAX."""
    if isinstance(key, int | np.integer):
        require(bool(key >= 0), f"key is {key}: an integer of at least 0, or a key of jax.random, is needed.")
        return np.random.default_rng(int(key))
    try:
        return np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel())
    except TypeError:
        raise InputError(f"key is a {type(key).__name__}: an integer or a key of jax.random is needed.") from None


def prepared(join: Join, scale: str = "none", intercept: bool = False) -> Join:
    """Scale the features of a join, and add a constant one to the label's table.

    Args:
        join: The join.
        scale: "none"; "max": by the largest absolute value of a feature among rows that join, as in the paper;
            "standard": to mean 0 and variance 1 over the rows of the join, whose perturbations then are smaller too.
            Levels of categories stay 0 and 1.
        intercept: Whether to add a constant feature 1; it is regularised like the others.

    Raises:
        InputError: On another scale.
    """
    require_part("join", join, "moments", "a `relational.Join` is needed")
    require_one_of("scale", scale, SCALES)
    N, blocks = float(join.size), []
    for i, (given, out) in enumerate(zip(join.blocks, join.counts(), strict=True)):
        number = np.array([name is not None for name in given.names], bool)
        mean, size = np.zeros(len(number)), np.ones(len(number))
        if scale == "max":
            size = np.abs(given.X).max(axis=0, initial=0)
        elif scale == "standard":
            mean = given.X.T @ out / N
            size = np.sqrt(((given.X - mean) ** 2).T @ out / N)
            size = np.where(size > 1e-12 * np.abs(mean), size, 0)
        mean, size = np.where(number, mean, 0.0), np.where(number & (size > 0), size, 1.0)
        # Numbers may have been scaled before, `x = mean + scale X`: combine both.
        X, names, fill = (given.X - mean) / size, given.names, given.fill
        mean, size = given.mean + given.scale * mean, given.scale * size
        if intercept and i == join.tree.label and not join.constant:
            X, names = np.append(X, np.ones((len(X), 1)), axis=1), [*names, None]
            mean, size, fill = np.append(mean, 0.0), np.append(size, 1.0), np.append(fill, np.nan)
        blocks.append(dataclasses.replace(given, X=X, names=names, mean=mean, scale=size, fill=fill))
    out = copy.copy(join)
    out.blocks, out.constant = blocks, intercept or join.constant
    return out


Types = Callable[[str], tuple[list[str], list[str]]]
"""A function that returns the names of a query's columns, and the names of their types."""


@checked
def from_duckdb(
    source: DuckDBPyConnection | str | os.PathLike[str], tables: Sequence[str] | Mapping[str, str],
    label: tuple[str, str], *, features: Mapping[str, Sequence[str]] | None = None, keys: Keys | None = None,
    categorical: Mapping[str, Sequence[str]] | None = None, positive: Hashable | None = None, missing: str = "refuse",
) -> Join:  # fmt: skip
    """Make a join of tables or views of a DuckDB database: a connection, or the path of a file.

    `tables` are names of tables or views; or names with the SQL that stands for them in FROM, such as
    `{"sales": "read_parquet('sales/*.parquet')"}`. The label and all further arguments are those of `Join`.

    Raises:
        InputError: On a database that cannot be opened or queried, and on anything that `Join` refuses.
    """
    duckdb = require_package("duckdb", "from_duckdb")
    connection: Any = source
    if isinstance(source, str | os.PathLike):
        path = os.fspath(source)
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
    connection: BaseBackend, tables: Sequence[str] | Mapping[str, str],
    label: tuple[str, str], *, features: Mapping[str, Sequence[str]] | None = None, keys: Keys | None = None,
    categorical: Mapping[str, Sequence[str]] | None = None, positive: Hashable | None = None, missing: str = "refuse",
) -> Join:  # fmt: skip
    """Make a join of tables of any database that ibis supports and that quotes names with `"`: PostgreSQL, Trino, ...

    `connection` is an ibis backend (`pip install 'ibis-framework[postgres]'`); `tables` are names of tables or views,
    or names with the SQL that stands for them in FROM. The label and all further arguments are those of `Join`.

    Raises:
        InputError: On a database that cannot be queried, and on anything that `Join` refuses.
    """
    asked = Request(label, features, keys, categorical, positive, missing)
    backend: Any = connection
    if connection.name == "duckdb":  # ibis 12 asks DuckDB 2 for a method that it no longer has
        return _of_duckdb(backend.con, tables, asked)
    if connection.name == "postgres":
        # `connection.sql` fails in ibis 12 with sqlglot 30.30, and brings NUMERIC as decimals of 9 places.
        return _from_queries(*_postgres(connection), tables, asked)

    def ask(query: str) -> dict[str, Any]:
        return arrays_of(backend.sql(query).to_pyarrow())

    def types(query: str) -> tuple[list[str], list[str]]:
        schema = backend.sql(query).to_pyarrow().schema
        return schema.names, [str(kind) for kind in schema.types]

    return _from_queries(ask, types, tables, asked)


def _postgres(connection: Any) -> tuple[Ask, Types]:
    """Return functions that query PostgreSQL, and name the types of its columns, by ibis' own psycopg connection."""
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
    join = object.__new__(Join)
    join.assemble(Plan(ask, sources, columns, roles_in(named, asked, alike)), named, given)
    return join
