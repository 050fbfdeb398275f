"""Build a join from tables: keys as integers, the rows that join, a join tree, one block of features per table.

    join = Join({"sales": sales, "shops": shops}, label=("sales", "returned"))
    join = from_database("shop.duckdb", ["sales", "shops"], label=("sales", "returned"))

The set-oriented part is SQL that runs where the tables lie, once (`tables/pushdown.py`). A join keeps the rows that
take part in it (the marginal counts of one pass show which), with equal rows merged into one with a multiplicity,
numbers as float64 columns and categories as codes, never as columns of zeros and ones. Every feature belongs to one
table: that of a key which several tables share, to the first that names it.
"""

from __future__ import annotations

import copy
import dataclasses
import os
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array, hstack

from jaxsvm.errors import InputError, require, require_package, require_part
from jaxsvm.relational.schema import tree as counting
from jaxsvm.relational.schema.assembly import Block, arranged, assembled, block_of, described
from jaxsvm.relational.tables.columns import Keys, column, declared, levels_of, numbers, opened, roles_in
from jaxsvm.relational.tables.pushdown import Plan, Schema, connected, in_memory, quoted, rows_of_join
from jaxsvm.runtime.arrays import TINY, checked, require_one_of, require_whole

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection
    from ibis.backends import BaseBackend


class Moments(NamedTuple):
    """Statistics over the rows of a join, in the order of its coefficients: N, and means, weighted if rows are."""

    size: float  # the number of rows N; with weights their sum
    mean: np.ndarray  # of each feature, `(d,)`
    absolute: np.ndarray  # of its absolute value, `(d,)`
    second: np.ndarray  # of `x x'`, `(d, d)`
    label: float  # of y, the sign of two classes; NaN of several
    label_mean: np.ndarray  # of `y x`, `(d,)`


class Join:
    """The natural join of some tables, or the join on named keys, with features and a label: never formed.

    Attributes:
        size: The number of rows of the join; with weights their sum.
        feature_names: `table.column` or `table.column=level`, one per coefficient; a constant is `(intercept)`.
        names: Names of the tables, those of keys last.
        rows: For each table, the given row that each kept row came from (the first of equal ones); -1 is absent.
        classes: The labels: of two, those of the signs -1 and +1.
        codes: For each kept row of the label's table the number of its class, `(n,)`.
        tree: The join tree.
        blocks: The features of each table; `unscaled` as the tables have them.
        schema: What a scoring query knows of the tables.
        notes: What was done to the tables: rows that join with nothing, for want of a key or of a partner, and others.
        constant: Whether there is a constant feature.
    """

    constant = False

    def __init__(
        self, tables: Mapping[str, Any], label: tuple[str, str], features: Mapping[str, Sequence[str]] | None = None,
        keys: Keys | None = None, *, categorical: Mapping[str, Sequence[str]] | None = None,
        positive: Hashable | None = None, missing: str = "refuse", weights: Mapping[str, str] | None = None,
        optional: Sequence[str] = (), cyclic: float = 0,
    ) -> None:  # fmt: skip
        """Encode the keys, find the join tree, drop rows that join with nothing, merge equal rows.

        Args:
            tables: By name: pandas, polars or Arrow tables, dicts of arrays.
            label: The table (normally the one of facts) and its column, which has two values or more.
            features: The columns of each table that are features; None: all that are neither keys nor the label.
                Numbers (decimals too) are taken as they are; texts, enumerations and booleans are categories. Other
                types are refused by name.
            keys: The columns that join; None: columns of equal names. Else `{(table, table): columns}`, where columns
                is a name, a list of names, or `{column of the first: column of the second}`. Values are compared
                exactly; columns whose types have no exact common one (texts with integers, say) are refused by name.
            categorical: Columns of integers, dates, timestamps or UUIDs that are categories, by table.
            positive: The label that is +1, against all others; None: the greater one of two.
            missing: Treatment of missing features: "refuse" or "impute" (the mean of the column; a level of its own for
                categories). A missing key joins nothing, as in SQL.
            weights: The column of each table whose rows have weights, at least 0: a row of the join has their product.
                It is no feature unless `features` names it.
            optional: Tables of which a row may be absent, as by LEFT JOIN from the label's table outwards; then so are
                those of tables that join through it alone. Its features are missing, which "impute" fills in.
            cyclic: The most rows of a table of keys that is made where keys lead round a cycle; without it the error
                says how many are needed.
        """
        require_package("duckdb", "a join of tables")
        if not isinstance(tables, Mapping) or not tables:
            found = "empty" if isinstance(tables, Mapping) else f"a {type(tables).__name__}"
            raise InputError(f"tables is {found}: a dict of at least one table by name is needed.")
        given = {str(name): opened(f"tables[{name!r}]", table) for name, table in tables.items()}
        named = {name: table.names for name, table in given.items()}
        roles = roles_in(named, label, features, keys, categorical, positive, missing, weights, optional, cyclic)
        wanted, held = {}, {}
        for i, (name, table) in enumerate(given.items()):
            owned = [*roles.keys.values(), roles.weights]
            needed = [*roles.fetched(name), *(of[name] for of in owned if name in of)]
            wanted[name] = {c: f"c{k}" for k, c in enumerate(dict.fromkeys(needed))}
            arrays = {held_as: column(name, table, c) for c, held_as in wanted[name].items()}
            held[f"t{i}"] = arrays | {"row": np.arange(table.rows)}
        with in_memory(held) as database:
            sources, columns = dict(zip(given, held, strict=True)), {}
            for name, source in sources.items():
                kinds = dict(zip(*database.types(f"FROM {source}"), strict=True))
                columns[name] = {c: declared(kinds[at], f"t.{at}") for c, at in wanted[name].items()}
            self.assemble(*arranged(Plan(database, sources, columns, roles, own=True), named, {}))
        self.schema = self.schema._replace(casts={})  # whoever asks for a query has tables of other types

    def assemble(self, plan: Plan, schema: Schema, notes: list[str]) -> None:
        """Set the attributes."""
        self.names, self.schema, self.notes = list(plan.sources), schema, notes
        self.read(plan)
        self.unscaled = self.blocks
        sums = np.bincount(self.codes, self.counts()[self.tree.label])
        if not (sums.min() > 0 and np.isfinite(sums.sum())):
            raise InputError(f"tables make {min(sums):g} and {max(sums):g} rows (or weights) a label: 0, or too many.")

    def against(self, label: Hashable) -> Join:
        """Return the join with two classes: a label, which is +1, against all others."""
        out, rest = copy.copy(self), [c for c in self.classes.tolist() if c != label]
        if len(rest) == len(self.classes):
            raise InputError(f"label is {label!r}: one of {', '.join(map(str, rest[:10]))} is needed.")
        out.classes = np.array([rest[0] if len(rest) == 1 else f"not {label}", label], object)
        out.codes = (self.codes == self.classes.tolist().index(label)).astype(int)
        out.tree = dataclasses.replace(self.tree, y=2.0 * out.codes - 1)
        return out

    @property
    def targets(self) -> np.ndarray:
        """Return the label of each kept row of its table as a number, `(n,)`."""
        values = self.classes.tolist()
        require(not any(isinstance(v, str | bool) for v in values), f"label has {values[:10]}: numbers are needed.")
        return np.array(values, float)[self.codes]

    def weighted(self, table: int, factor: np.ndarray) -> Join:
        """Return the join with the weights of the kept rows of a table, by its number, multiplied by factors."""
        out = copy.copy(self)
        weight = [w * factor if i == table else w for i, w in enumerate(self.tree.weight)]
        out.tree = dataclasses.replace(self.tree, weight=weight)
        out.__dict__.pop("size", None)  # that of the other weights
        return out

    def hold_out(self, fraction: float, key: int, table: str | None = None) -> tuple[Join, Join]:
        """Divide the join: return the rest, and the part through a fraction, below 1, of the different rows of a table.

        None is the label's table; `key` is the seed. Features, levels and means of missing numbers stay as they are.
        """
        require_whole("key", key, 0)
        name, known = self.schema.label if table is None else table, set(self.schema.named) - set(self.schema.optional)
        if name not in known or not (isinstance(fraction, float) and 0 < fraction < 1):
            told = f"fraction is {fraction!r} and table {table!r}: a number between 0 and 1, and one of"
            raise InputError(f"{told} {', '.join(sorted(known))} (not optional), are needed.")
        i = self.names.index(name)
        live = np.random.default_rng(key).permutation(np.flatnonzero(self.counts()[i]))
        many = round(fraction * len(live))
        require(0 < many < len(live), f"fraction is {fraction}: it is {many} of the {len(live)} rows of {name}.")
        held = np.isin(np.arange(len(self.rows[i])), live[:many])
        return self.weighted(i, ~held), self.weighted(i, held)

    def read(self, plan: Plan) -> None:
        """Set what depends on rows."""
        self.tree, self.blocks, self.codes, self.classes, self.rows = assembled(plan, self.schema.casts, self.notes)

    def parts(self) -> Iterator[tuple[Any, list[np.ndarray]]]:
        """Yield the join, of a streamed one some rows at a time, and the weight of the rows through each row."""
        yield self, self.counts()

    def over(self, of: Callable[[int, Block, np.ndarray], Any], add: np.ufunc = np.add) -> list[Any]:
        """Return sums over parts of a function of the number, block and weights of each table."""
        found = ([of(i, *pair) for i, pair in enumerate(zip(part.blocks, v, strict=True))] for part, v in self.parts())
        return reduce(lambda total, more: list(map(add, total, more)), found)

    def means(self, of: Callable[[Any], Any]) -> np.ndarray:
        """Return the means of a function of the features, of a matrix, over the rows of the join, `(d,)`."""
        return np.concatenate(self.over(lambda _, block, v: of(block.matrix).T @ v)) / float(self.size)

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
        total = float(self.counts()[self.tree.label].sum())
        return int(total) if total < 2**53 and total.is_integer() else total

    def counts(self) -> list[np.ndarray]:
        """Return for each kept row of each table the rows of the join through it, or their weight, float64 `(n_i,)`."""
        return counting.marginals(self.tree, self.tree.weight)

    def aggregate(
        self, factors: Sequence[np.ndarray], add: np.ufunc = np.add, multiply: np.ufunc = np.multiply
    ) -> list[np.ndarray]:
        """Return, for each kept row of each table, a sum of products over the rows of the join through it, `(n_i,)`.

        Sum and product are those of any commutative semiring: `np.minimum` and `np.add` find the least sums. Equal rows
        count once: for copies multiply by `tree.weight`. `factors` has a number for each kept row of each table.
        """
        given, lengths = [np.asarray(part, float) for part in factors], [len(rows) for rows in self.rows]
        if [part.shape for part in given] != [(n,) for n in lengths]:
            raise InputError(f"factors: a vector for each table, of lengths {lengths}, is needed.")
        return counting.marginals(self.tree, given, add, multiply)

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
                names += [f"{table}.{name}{' IS NULL' if level is None else f'={level}'}" for level in levels]
        return names

    @property
    def entries(self) -> int:
        """Return the number of features of a row that are kept: of a category its level alone."""
        return sum(len(block.names) + len(block.categories) for block in self.blocks)

    def features(self, rows: list[Any]) -> np.ndarray | csr_array:
        """Return the features of joined rows, given by the row of each table: sparse (CSR) if there are categories."""
        pairs = list(zip(self.blocks, rows, strict=True))
        if any(block.categories for block in self.blocks):
            return csr_array(hstack([block.sparse[at] for block, at in pairs], format="csr"))
        return np.concatenate([block.X[at] for block, at in pairs], axis=1)

    def __repr__(self) -> str:
        tables = zip(self.names, self.rows, self.blocks, strict=True)
        parts = ", ".join(f"{n} ({len(r)} distinct rows, {b.d} features)" for n, r, b in tables)
        alone = [f" ({note})" for note in self.notes if "different ones" not in note]  # rarely what was meant
        return f"Join of {self.size:,} rows: {parts}{''.join(alone)}"


LARGE, MOST_TIMES = 1 << 25, 10  # used values of a table that is streamed unasked; rows of the join, for each of theirs
MOST_FEATURES, ENTRIES_OF_A_PART = 500, 1 << 20  # of a streamed join; numbers of its rows that are here at a time


class Streamed(Join):
    """A join whose tables stay in the database, which forms the rows anew in each pass; the tree has labels only."""

    source: Any  # what `from_database` was given
    y: np.ndarray  # of a part, signs

    def read(self, plan: Plan) -> None:
        self.query, self.columns = rows_of_join(plan, self.schema)
        found = described(plan, self.schema.casts, self.notes, self.query)
        self.tree, self.blocks, self.codes, self.classes, self.labels, self.n = found
        if self.d >= MOST_FEATURES:
            raise InputError(f"tables have {self.d} features: a streamed join has fewer than {MOST_FEATURES}.")
        self.rows, self.chosen = [range(0)] * len(self.blocks), [plan.roles.features[name] for name in self.names]
        self.missing, self.weights = plan.roles.missing, np.maximum(self.tree.weight[self.tree.label], TINY)

    @property
    def moments(self) -> Any:  # pyright: ignore
        """Refuse what needs the tables in memory."""
        told = "`fit` and `fit_path` with the default engine and method, and `to_sql`, take it; see streamed=False"
        raise InputError(f"join is streamed from the database: {told}.")

    aggregate = hold_out = moments  # pyright: ignore

    def parts(self) -> Iterator[tuple[Any, list[np.ndarray]]]:
        """Yield joined rows, with their signs as `y`."""
        seen, most = 0, max(ENTRIES_OF_A_PART // max(self.entries, 1), 1)
        with connected(self.source) as (database, _):
            for whole in database.parts(self.query, self.columns):
                for at in range(0, whole.num_rows, most):
                    rows = dict(zip(self.columns, whole.slice(at, most).columns, strict=True))
                    part, label, ones = copy.copy(self), levels_of(rows["y"], self.labels)[1], np.ones(len(rows["y"]))
                    part.y, part.blocks, seen = self.tree.y[label], [], seen + len(label)
                    for i, (name, block) in enumerate(zip(self.names, self.blocks, strict=True)):
                        given = {c: rows[f"c{i}_{k}"] for k, c in enumerate(self.chosen[i])}
                        new = block_of(name, ones, given, block.kinds, self.missing, block)
                        X = np.column_stack([new.X, ones])[:, : len(block.names)] - block.mean  # a constant is the last
                        part.blocks.append(dataclasses.replace(block, X=X / block.scale, codes=new.codes))
                    factor = (self.tree.weight[self.tree.label] / self.weights)[label]
                    yield part, [numbers(rows["w"], "w") * factor] * len(self.blocks)
        if seen != self.n:
            raise InputError(f"tables make {seen} rows, and made {self.n} before: they changed between two passes.")

    def __repr__(self) -> str:
        alone = "".join(f" ({note})" for note in self.notes)
        return f"Join of {self.size:,} rows of {', '.join(self.names)}, streamed from the database{alone}"


def prepared(
    join: Join, scale: str = "none", intercept: bool = False, class_weight: Mapping[Any, float] | str | None = None
) -> Join:
    """Scale the features of a join, add a constant one to the label's table, and weight its labels.

    "max" scales by the largest absolute value of a feature among rows that join, as in the paper, "standard" to mean 0
    and variance 1 over them; levels of categories stay 0 and 1. The constant is regularised like the others.
    """
    require_part("join", join, "blocks", "a `relational.Join` is needed")
    require_one_of("scale", scale, ("none", "max", "standard"))
    N, blocks, zeros = float(join.size), [], [np.zeros(len(block.names)) for block in join.blocks]
    means, sizes = zeros, [part + 1 for part in zeros]
    if scale == "max":
        sizes = join.over(lambda _, block, v: np.abs(block.X[v > 0]).max(axis=0, initial=0), np.maximum)
    elif scale == "standard":
        means = join.over(lambda _, block, v: block.X.T @ v / N)
        sizes = map(np.sqrt, join.over(lambda i, block, v: ((block.X - means[i]) ** 2).T @ v / N))
        sizes = [np.where(s > 1e-12 * np.abs(m), s, 0) for s, m in zip(sizes, means, strict=True)]  # else rounding
    for i, (given, m, s) in enumerate(zip(join.blocks, means, sizes, strict=True)):
        number = np.array([name is not None for name in given.names], bool)
        mean, size = np.where(number, m, 0.0), np.where(number & (s > 0), s, 1.0)
        # Numbers may have been scaled before, `x = mean + scale X`: combine both.
        X, names, fill = (given.X - mean) / size, given.names, given.fill
        mean, size = given.mean + given.scale * mean, given.scale * size
        if intercept and i == join.tree.label and not join.constant:
            X, names = np.append(X, np.ones((len(X), 1)), axis=1), [*names, None]
            mean, size, fill = np.append(mean, 0.0), np.append(size, 1.0), np.append(fill, np.nan)
        blocks.append(dataclasses.replace(given, X=X, names=names, mean=mean, scale=size, fill=fill))
    out = copy.copy(join)
    out.blocks, out.constant = blocks, intercept or join.constant
    if class_weight is not None:
        sums = np.bincount(join.codes, join.counts()[join.tree.label])
        out = out.weighted(join.tree.label, _factors(join.classes.tolist(), class_weight, sums)[join.codes])
    return out


def _factors(classes: list[Any], class_weight: Mapping[Any, float] | str, sums: np.ndarray) -> np.ndarray:
    """Return the factors of the labels, `(k,)`, given the sums of weights of each, `(k,)`."""
    if class_weight == "balanced":
        return sums.sum() / (len(sums) * sums)
    known = isinstance(class_weight, Mapping) and set(class_weight) <= set(classes)
    if not known or not all(np.isfinite(factor) and factor > 0 for factor in class_weight.values()):  # pyright: ignore
        raise InputError(f"class_weight is {class_weight!r}: 'balanced', or factors above 0 of {classes}, are needed.")
    return np.array([class_weight.get(c, 1.0) for c in classes], float)  # pyright: ignore


@checked
def from_database(
    source: DuckDBPyConnection | BaseBackend | str | os.PathLike[str], tables: Sequence[str] | Mapping[str, str],
    label: tuple[str, str], *, features: Mapping[str, Sequence[str]] | None = None, keys: Keys | None = None,
    categorical: Mapping[str, Sequence[str]] | None = None, positive: Hashable | None = None, missing: str = "refuse",
    weights: Mapping[str, str] | None = None, optional: Sequence[str] = (), cyclic: float = 0,
    streamed: bool | None = None,
) -> Join:  # fmt: skip
    """Make a join of tables or views of a database.

    `source` is DuckDB's connection, or the path of its file; or, of PostgreSQL, the connection of ibis,
    `ibis.postgres.connect` (`pip install 'ibis-framework[postgres]'`). `tables` are names of tables or views; or names
    with the SQL that stands for them in FROM, such as `{"sales": "read_parquet('sales/*.parquet')"}`. The label and all
    further arguments are those of `Join`.

    `streamed` leaves the tables in the database, which forms the joined rows anew in each pass of a fit; None: if a
    table has more than `LARGE` values, and the join no more than `MOST_TIMES` as many rows as its tables.
    """
    if isinstance(tables, str):
        raise InputError(f"tables is {tables!r}: a list of names is needed.")
    given = {str(name): table for name, table in tables.items()} if isinstance(tables, Mapping) else {}
    sources = given or {str(name): quoted(name) for name in tables}
    if not sources:
        raise InputError("tables is empty: at least one table is needed.")
    columns = {}
    with connected(source) as (database, alike):
        for name, table in sources.items():
            names, kinds = database.types(f"SELECT * FROM {table} AS t LIMIT 0")
            twice = [c for c in names if names.count(c) > 1]
            if twice:
                raise InputError(f"table {name} has two columns {twice[0]}: give them different names.")
            columns[name] = {c: declared(kind, f"t.{quoted(c)}") for c, kind in zip(names, kinds, strict=True)}
        named = {name: list(of_table) for name, of_table in columns.items()}
        roles = roles_in(named, label, features, keys, categorical, positive, missing, weights, optional, cyclic, alike)
        plan, of, notes = arranged(Plan(database, sources, columns, roles), named, given)
        join: Any = object.__new__(Streamed if (_is_large(plan, of) if streamed is None else streamed) else Join)
        join.source = source
        join.assemble(plan, of, notes)
    return join


def _is_large(plan: Plan, schema: Schema) -> bool:
    """Return whether a table has many values, and the join, counted so far, few rows for those of its tables."""
    rows, used = {}, {name: len(plan.roles.fetched(name)) + len(plan.roles.shared(name, name)) for name in schema.named}
    for name in used:
        rows[name] = plan.database.ask(f"SELECT COUNT(*) AS n FROM {plan.sources[name]} AS t")["n"][0].as_py()
    most = MOST_TIMES * sum(rows.values())
    few = f"SELECT COUNT(*) AS n FROM (SELECT 1 AS one FROM {schema.joined({})} LIMIT {int(most) + 1}) AS t"
    return max(rows[n] * used[n] for n in used) > LARGE and plan.database.ask(few)["n"][0].as_py() <= most
