"""Build a join from tables: keys as integers, the rows that join, a join tree, one block of features per table.

    join = Join({"sales": sales, "shops": shops}, label=("sales", "returned"))
    join = from_database("shop.duckdb", ["sales", "shops"], label=("sales", "returned"))

The set-oriented part is SQL that runs where the tables lie (`tables/pushdown.py`). A join in memory keeps the rows that
take part in it, equal ones once with a multiplicity, numbers as float64 columns and categories as codes. Every feature
belongs to one table: that of a key which several share, to the first that names it.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import os
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array, hstack

from jaxsvm.errors import InputError, require, require_package
from jaxsvm.relational.schema import tree as counting
from jaxsvm.relational.schema.assembly import arranged, assembled, described
from jaxsvm.relational.tables import pushdown as sql
from jaxsvm.relational.tables.columns import Keys, column, declared, numbers, opened, roles_in
from jaxsvm.runtime.arrays import TINY, checked, require_whole

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
        with sql.in_memory(held) as database:
            sources, columns = dict(zip(given, held, strict=True)), {}
            for name, source in sources.items():
                kinds = dict(zip(*database.types(f"FROM {source}"), strict=True))
                columns[name] = {c: declared(kinds[at], f"t.{at}") for c, at in wanted[name].items()}
            self.assemble(*arranged(sql.Plan(database, sources, columns, roles, own=True), named, {}))
        self.schema = self.schema._replace(casts={})  # whoever asks for a query has tables of other types

    def assemble(self, plan: sql.Plan, schema: sql.Schema, notes: list[str]) -> None:
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

    def read(self, plan: sql.Plan) -> None:
        """Set what depends on rows."""
        self.tree, self.blocks, self.codes, self.classes, self.rows = assembled(plan, self.schema.casts, self.notes)
        self.terms = sum(map(len, self.rows))  # of a sum

    def means(self, form: str = "value") -> np.ndarray:
        """Return the means of the features, of their squares or sizes (`FORMS`) over the rows of the join, `(d,)`."""
        return self.transposed(self.counts(), FORMS[form][0]) / float(self.size)

    @contextlib.contextmanager
    def nodes(self, scores: Sequence[np.ndarray] = ()) -> Iterator[sql.Nodes]:
        """Open a database of the nodes of the simplified tree, with scores of the kept rows of each table."""
        tree, held = self.tree.simplified, {}
        names = {(i, j): f"e{min(i, j)}_{max(i, j)}" for i, j in tree.kid}
        for i, member in enumerate(tree.members):
            columns = {"w": tree.weight[i]} | {names[i, j]: tree.kid[i, j] for j in tree.neighbours(i)}
            for t, rows in member.items():
                columns |= {f"x{t}_{k}": x[rows] for k, x in enumerate(self.blocks[t].X.T)}
                columns |= {f"c{t}_{k}": code[rows] for k, code in enumerate(self.blocks[t].codes.T)}
                columns |= {f"z{t}": scores[t][rows]} if len(scores) else {}
            held[f"base{i}"] = columns | ({"sign": tree.y} if i == tree.label else {})
        with sql.in_memory(held) as database:
            edges = [(i, j, [names[i, j]]) for i, j in tree.outward]
            yield sql.Nodes(database.ask, {}, edges, [set(member) for member in tree.members], tree.label)

    _sign: Any = "sign"  # the sign of a row's label, in SQL of the columns of its node

    def values(self) -> list[list[str]]:
        """Write the features of each table in SQL of the columns of its node, of many levels none."""
        out = []
        for t, block in enumerate(self.blocks):
            whose = [k for k, levels in enumerate(block.categories.values()) for _ in levels]
            levels = [f"(CASE WHEN c{t}_{k} = {code} THEN 1e0 ELSE 0e0 END)" for code, k in enumerate(whose)]
            out.append([f"x{t}_{k}" for k in range(len(block.names))] + levels * (len(levels) <= MANY_LEVELS))
        return out

    def linear(self, beta: np.ndarray) -> list[Any]:
        """Return what the kept rows of each table add to the scores of coefficients, `(n_i,)`; of streamed ones SQL."""
        return [block.matrix @ part for block, part in zip(self.blocks, self.split(beta), strict=True)]

    def totals(
        self, values: list[list[str]], wanted: list[Any], given: Sequence[np.ndarray] = (), by: str = "0",
        scores: Sequence[str] | None = None, table: int = -1,
    ) -> tuple[np.ndarray, ...]:  # fmt: skip
        """Return signs or labels y, bins b, `(k,)`, and sums, `(k, len(wanted))`: see `tables.pushdown.totals`."""
        with self.nodes(given) as known:
            nodes = known._replace(hub=next((i for i, of in enumerate(known.members) if table in of), known.hub))
            y, b, *sums = (numbers(part, name) for name, part in sql.totals(nodes, values, wanted, by, scores).items())
        require(not np.isnan(y).any(), "tables have labels that they had not before: they changed between two queries.")
        return y, b, np.stack([b, *sums], axis=1)[:, 1:]

    def histogram(self, scores: list[Any], width: float, features: bool = False) -> tuple[np.ndarray, ...]:
        """Sum over the rows of a sign and a bin of the sum of `scores`, those of `linear`, in units of the width.

        Return signs, scores, and weights, `(k,)` each, and the sums of features, `(k, d)`, if they are wanted.
        """
        texts = isinstance(scores[0], str)
        values = self.values() if features else [[] for _ in scores]
        parts = [f"({part}) / {sql.double(width)}" if texts else f"z{t}" for t, part in enumerate(scores)]
        given = () if texts else [part / width for part in scores]
        y, b, sums = self.totals(values, [(), *singles(values)], given, self._sign, parts)
        X = np.split(sums[:, 1:], np.cumsum([len(part) for part in values])[:-1], axis=1)
        for t, block in enumerate(self.blocks if features and not texts else ()):
            if (levels := block.d - X[t].shape[1]) > 0:
                X[t] = np.append(X[t], self._by_level(t, levels, b + 1j * y, given, parts), axis=1)
        sums = np.concatenate([sums[:, :1], *X], axis=1)
        y, b, sums = (part[sums[:, 0] > 0] for part in (y, b, sums))  # a row without weight may lack a number
        if not np.isclose(now := sums[:, 0].sum(), float(self.size), 1e-6, 0):
            raise InputError(f"tables make {now:.15g} rows, and made {self.size} before: they changed meanwhile.")
        return y, width * b, sums[:, 0], sums[:, 1:]

    def _by_level(self, t: int, levels: int, bins: np.ndarray, *of: Any) -> np.ndarray:
        """Sum over the rows of each level of a table in each bin, with its table as the hub: a level has few bins."""
        (given, parts), signs, order = of, [[] for _ in self.blocks], np.argsort(bins)
        signs[self.tree.label] = [f"(CASE WHEN {self._sign} {side} 0 THEN 1e0 ELSE 0e0 END)" for side in "<>"]
        codes = f"UNNEST([{', '.join(f'c{t}_{k}' for k in range(self.blocks[t].codes.shape[1]))}])"
        code, b, sums = self.totals(signs, singles(signs), given, codes, parts, t)
        (row, side), found = np.nonzero(sums), np.zeros((len(bins), levels))
        place = order[np.searchsorted(bins[order], b[row] + 1j * (2 * side - 1))]
        found[place, code[row].astype(int)] = sums[row, side]
        return found

    def largest(self) -> list[np.ndarray]:
        """Return the largest absolute values of the numbers of each table among rows that join."""
        pairs = zip(self.blocks, self.counts(), strict=True)
        return [np.abs(block.X[v > 0]).max(axis=0, initial=0) for block, v in pairs]

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
            return self.transposed(self.weighted(i, factor).counts()) / N

        units = [(i, block.matrix @ unit) for i, block in enumerate(self.blocks) for unit in np.eye(block.d)]
        second = np.reshape([through(i, column) for i, column in units], (self.d, self.d))
        label = float(out[tree.label] @ tree.y) / N
        means, second = (self.means("value"), self.means("size")), (second + second.T) / 2
        return Moments(self.size, *means, second, label, through(tree.label, tree.y))

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


FORMS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "value": (lambda X: X, "{0}"), "square": (lambda X: X * X, "{0} * {0}"), "size": (abs, "ABS({0})")
}  # fmt: skip
"""Functions of features, and the same in SQL."""
LARGE, MOST_TIMES = 1 << 25, 10  # used values of a table that is streamed unasked; rows formed, for each of its own
MOST_FEATURES, MOST_CLASSES = 500, 1000  # of a streamed join
MANY_LEVELS = 128  # of the categories of a table in memory, above which they are summed by rows, not in columns
SUMS_OF_A_QUERY = 1000  # PostgreSQL returns 1664 columns at most


class Streamed(Join):
    """A join whose tables stay in the database, which sums over its rows; the tree has labels only."""

    source: Any  # what `from_database` was given

    def read(self, plan: sql.Plan) -> None:
        self.query = sql.rows_of_join(plan, self.schema)
        found = described(plan, self.schema.casts, self.notes)
        self.tree, self.blocks, self.codes, self.classes, self.labels, self.terms, rows = found
        if self.d >= MOST_FEATURES:
            raise InputError(f"tables have {self.d} features: a streamed join has fewer than {MOST_FEATURES}.")
        self.rows, self.chosen = [range(0)] * len(self.blocks), [plan.roles.features[name] for name in self.names]
        self.plan, self.large, self.given = plan, self.terms > MOST_TIMES * rows, self.tree.weight

    @property
    def aggregate(self) -> Any:  # pyright: ignore
        """Refuse what needs the tables in memory."""
        told = "`fit` and `fit_path` of the default method, `moments`, `score` and `to_sql` take it; see streamed=False"
        raise InputError(f"join is streamed from the database: {told}.")

    hold_out = aggregate  # pyright: ignore

    def values(self, form: str = "value") -> list[list[str]]:
        """Write the features of each table, or a function of them, in SQL of its columns c0, c1, ..."""
        out: list[list[str]] = []
        for i, (block, chosen) in enumerate(zip(self.blocks, self.chosen, strict=True)):
            at = {c: f"c{i}_{k}" for k, c in enumerate(chosen)}
            each = zip(block.names, block.mean, block.scale, block.fill, strict=True)
            row = [c and f"(({sql.number_of(at[c], f)} - {sql.double(m)}) / {sql.double(s)})" for c, m, s, f in each]
            tests = [sql.is_level(at[c], level) for c, levels in block.categories.items() for level in levels]
            row += [f"(CASE WHEN {test} THEN 1e0 ELSE 0e0 END)" for test in tests]
            out.append([FORMS[form][1].format(value or "1e0") for value in row])
        return out

    @contextlib.contextmanager
    def nodes(self, scores: Sequence[np.ndarray] = ()) -> Iterator[sql.Nodes]:
        hub = self.tree.label
        factor = self.of_label(self.tree.weight[hub] / np.maximum(self.given[hub], TINY))
        with sql.connected(self.source) as (database, _):
            formed = sql.Nodes(database.ask, {"base0": self.query}, [], [set(range(len(self.blocks)))], 0)
            large = sql.nodes_of(self.plan._replace(database=database), self.schema.casts)
            yield (large if self.large else formed)._replace(factor=factor)

    _sign: Any = property(lambda self: self.of_label(self.tree.y))

    def of_label(self, numbers_of: np.ndarray) -> str:
        """Write the number of each label, `(k,)`, in SQL of the columns of its table: of very many itself."""
        hub, many = self.tree.label, len(np.unique(numbers_of))
        label = f"c{hub}_{len(self.chosen[hub])}"
        if many > MOST_CLASSES:
            return sql.compared(label, sql.DOUBLE)
        pairs = zip(map(sql.literal, self.labels.to_pylist()), numbers_of, strict=True)
        cases = " ".join(f"WHEN {known} THEN {sql.double(value)}" for known, value in pairs)
        return f"(CASE {sql.compared(label, 'VARCHAR')} {cases} END)" if many > 1 else sql.double(numbers_of[0])

    def means(self, form: str = "value") -> np.ndarray:
        values = self.values(form)
        return self.totals(values, singles(values))[2][0] / float(self.size)

    def linear(self, beta: np.ndarray) -> list[Any]:
        pairs = (zip(row, part, strict=True) for row, part in zip(self.values(), self.split(beta), strict=True))
        return [" + ".join(["0e0", *(f"{sql.double(b)} * {x}" for x, b in pair if b)]) for pair in pairs]

    def largest(self) -> list[np.ndarray]:
        out = []
        with sql.connected(self.source) as (database, _):
            ask = sql.queries(self.plan._replace(database=database), self.schema.casts)[0]
            for i, (block, values) in enumerate(zip(self.blocks, self.values("size"), strict=True)):
                most = [f"MAX({value}) AS s{k}" for k, value in enumerate(["0e0", *values[: len(block.names)]])]
                found = ask(f"SELECT {', '.join(most)} FROM down{i} WHERE COALESCE(w, 1) > 0")
                out.append(np.array([numbers(part, "s")[0] for part in found.values()])[1:])
        return out

    def moments(self) -> Moments:
        values, hub, d, upper = self.values(), self.tree.label, self.d, np.triu_indices(self.d)
        one, t = singles(values), (hub, len(values[hub]))
        values[hub].append(self._sign)
        wanted = [(t,), *one, *((t, *part) for part in one), *((*one[a], *one[b]) for a, b in zip(*upper, strict=True))]
        parts = [wanted[at : at + SUMS_OF_A_QUERY] for at in range(0, len(wanted), SUMS_OF_A_QUERY)]
        found = np.concatenate([self.totals(values, part)[2][0] for part in parts]) / float(self.size)
        second = np.zeros((d, d))
        second[upper] = second.T[upper] = found[1 + 2 * d :]
        return Moments(self.size, found[1 : 1 + d], self.means("size"), second, found[0], found[1 + d : 1 + 2 * d])

    def __repr__(self) -> str:
        alone = "".join(f" ({note})" for note in self.notes)
        return f"Join of {self.size:,} rows of {', '.join(self.names)}, streamed from the database{alone}"


def singles(values: list[list[str]]) -> list[tuple[tuple[int, int]]]:
    """Return the products of one value each."""
    return [((t, k),) for t, part in enumerate(values) for k in range(len(part))]


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

    `streamed` leaves the tables in the database, which forms the joined rows anew in each pass of a fit, or if there
    are more than `MOST_TIMES` as many as its tables have, counts them; None: if a table has more than `LARGE` values.
    """
    if isinstance(tables, str):
        raise InputError(f"tables is {tables!r}: a list of names is needed.")
    given = {str(name): table for name, table in tables.items()} if isinstance(tables, Mapping) else {}
    sources = given or {str(name): sql.quoted(name) for name in tables}
    if not sources:
        raise InputError("tables is empty: at least one table is needed.")
    columns = {}
    with sql.connected(source) as (database, alike):
        for name, table in sources.items():
            names, kinds = database.types(f"SELECT * FROM {table} AS t LIMIT 0")
            twice = [c for c in names if names.count(c) > 1]
            if twice:
                raise InputError(f"table {name} has two columns {twice[0]}: give them different names.")
            columns[name] = {c: declared(kind, f"t.{sql.quoted(c)}") for c, kind in zip(names, kinds, strict=True)}
        named = {name: list(of_table) for name, of_table in columns.items()}
        roles = roles_in(named, label, features, keys, categorical, positive, missing, weights, optional, cyclic, alike)
        plan, of, notes = arranged(sql.Plan(database, sources, columns, roles), named, given)
        join: Any = object.__new__(Streamed if (_is_large(plan) if streamed is None else streamed) else Join)
        join.source = source
        join.assemble(plan, of, notes)
    return join


def _is_large(plan: sql.Plan) -> bool:
    """Return whether a table has many values that are used."""
    used = {name: len(plan.roles.fetched(name)) + len(plan.roles.shared(name, name)) for name in plan.sources}
    counts = [f"SELECT {many} * COUNT(*) AS n FROM {plan.sources[name]} AS t" for name, many in used.items()]
    return any(plan.database.ask(count)["n"][0].as_py() > LARGE for count in counts)
