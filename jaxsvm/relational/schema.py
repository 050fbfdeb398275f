"""A join and its features: tables in; keys as integers, rows that join, a join tree, a block of features a table out.

    join = Join({"sales": sales, "shops": shops}, label=("sales", "returned"))

What is kept are the rows that take part in the join (a row that joins with nothing is dropped: the marginal counts of
one pass say which), equal rows merged into one with a multiplicity, numbers as float64 columns and categories as codes,
never as columns of zeros and ones. Every feature belongs to one table: of a key that several tables share, to the first
that names it.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from jaxsvm.errors import InputError
from jaxsvm.relational import counting
from jaxsvm.relational.join_tree import join_tree
from jaxsvm.relational.keys import Attributes, attributes, edge_ids, encoded, require_one_kind
from jaxsvm.relational.moments import Moments, moments
from jaxsvm.relational.tables import NUMERIC, Column, column, column_names, opened
from jaxsvm.relational.tree import Tree

EXACT = 2**53
MISSING_CHOICES = ("refuse", "impute", "drop")


class Category(NamedTuple):
    """A categorical feature: `levels[codes]`; each level has its own coefficient."""

    name: str
    codes: np.ndarray
    levels: np.ndarray


class Block(NamedTuple):
    """The features that a table owns.

    Attributes:
        X: Its numbers, float64 `(n_i, p)`, scaled.
        names: Of the columns of X.
        mean: What was taken off each column, `(p,)`.
        scale: By what each was divided then, `(p,)`.
        fill: What stands for a missing number, `(p,)`; NaN where missing numbers are refused.
        categories: Its categorical features.
    """

    X: np.ndarray
    names: list[str]
    mean: np.ndarray
    scale: np.ndarray
    fill: np.ndarray
    categories: list[Category]

    @property
    def d(self) -> int:
        """How many coefficients."""
        return len(self.names) + sum(len(category.levels) for category in self.categories)

    def product(self, beta: np.ndarray) -> np.ndarray:
        """The score of each row, `(n_i,)`."""
        p = len(self.names)
        score, first = self.X @ beta[:p], p
        for _, codes, levels in self.categories:
            score = score + beta[first + codes]
            first += len(levels)
        return score

    def transposed(self, v: np.ndarray) -> np.ndarray:
        """`X' v`, `(d,)`."""
        parts = [self.X.T @ v]
        parts += [np.bincount(codes, v, minlength=len(levels)) for _, codes, levels in self.categories]
        return np.concatenate(parts)

    def absolute(self) -> "Block":
        """The same with the sizes of the numbers."""
        return self._replace(X=np.abs(self.X))

    def dense(self, rows: np.ndarray) -> np.ndarray:
        """Some rows with a column for each level, `(k, d)`."""
        parts = [self.X[rows]]
        parts += [
            (codes[rows][:, None] == np.arange(len(levels))).astype(float) for _, codes, levels in self.categories
        ]
        return np.concatenate(parts, axis=1)


@dataclasses.dataclass(frozen=True, eq=False)
class Prepared:
    """What engines work on: the tree, its features, its labels. `Join` makes it."""

    names: list[str]
    tree: Tree
    blocks: list[Block]
    classes: np.ndarray
    rows: list[np.ndarray]
    """For each table, the row of the given table that each kept row came from (the first of equal ones)."""
    label_name: tuple[str, str]
    keys: Attributes
    notes: list[str]
    constant: bool = False

    @property
    def d(self) -> int:
        """How many coefficients, the constant's included."""
        return sum(block.d for block in self.blocks)

    def split(self, beta: np.ndarray) -> list[np.ndarray]:
        """A vector of coefficients in the parts of the tables."""
        return np.split(beta, np.cumsum([block.d for block in self.blocks])[:-1])

    @cached_property
    def size(self) -> int | float:
        """How many rows the join has: exact up to 2^53, beyond in float64 (relative error about 1e-14)."""
        total = float(self.counts()[0].sum())
        return int(total) if total < EXACT else total

    def counts(self) -> list[np.ndarray]:
        """For each row kept of each table, how many rows of the join go through it, float64 `(n_i,)`."""
        return counting.marginals(self.tree, self.tree.weight)

    def moments(self) -> "Moments":
        """Means and second moments of features and label over all rows of the join, exact but for rounding."""
        return moments(self)

    @property
    def feature_names(self) -> list[str]:
        """`table.column` or `table.column=level`, one a coefficient; a constant is `(intercept)`."""
        names = []
        for table, block in zip(self.names, self.blocks, strict=True):
            names += [f"{table}.{name}" if name else "(intercept)" for name in block.names]
            names += [f"{table}.{c.name}={level}" for c in block.categories for level in c.levels]
        return names

    def materialise(self, rows: list[np.ndarray] | None = None) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
        """The join itself, or some rows of it: for tests, samples and small joins.

        Returns:
            Features `(N, d)`, signs `(N,)`, and the row of each table, `(N,)` each; multiplicities are written out.
        """
        if rows is None:
            tree = self.tree.within(1, np.inf)
            assert tree is not None
            copies = np.repeat(np.arange(len(tree.weight[0])), tree.weight[0].astype(int))
            rows = [tree.members[0][t][copies] for t in range(len(self.names))]
        x = np.concatenate([block.dense(index) for block, index in zip(self.blocks, rows, strict=True)], axis=1)
        return x, self.tree.y[rows[self.tree.label]], rows


class Join(Prepared):
    """The natural join of some tables, or the join on named keys, with features and a label: never formed.

    Attributes:
        size: How many rows the join has.
        notes: What was done to the tables.
    """

    def __init__(
        self,
        tables: Mapping[str, Any],
        label: tuple[str, str],
        features: Mapping[str, Sequence[str]] | None = None,
        keys: Any = None,
        *,
        categorical: Mapping[str, Sequence[str]] | None = None,
        positive: Any = None,
        missing: str = "refuse",
        copies: Mapping[str, str] | None = None,
    ) -> None:
        """Encode the keys, find the join tree, drop rows that join with nothing, merge equal rows.

        Args:
            tables: By name: pandas or Arrow tables, dicts of arrays, paths of Parquet or CSV files.
            label: The table (normally the one of facts) and its column, which has two values.
            features: The columns of each table that are features; None: all that are neither keys nor the label.
                Numbers are taken as they are; strings and booleans are categories.
            keys: What joins; None: columns of equal names. Else `{(table, table): columns}`, where columns is a name, a
                list of names, or `{column of the first: column of the second}`.
            categorical: Columns of numbers that are categories, by table.
            positive: The label that is +1; None: the greater one.
            missing: What is done about missing features: "refuse", "impute" (the mean of the column; a level of its own
                for categories) or "drop" the row. A missing key joins nothing, as in SQL.
            copies: For tables whose equal rows were merged already, the column that says how many there were.

        Raises:
            InputError: On anything that does not fit, a cyclic join, and a join without rows or with one label.
        """
        if not isinstance(tables, Mapping) or not tables:
            raise InputError("tables is empty: a dict of at least one table by name is needed.")
        if missing not in MISSING_CHOICES:
            raise InputError(f"missing is {missing!r}: one of {', '.join(MISSING_CHOICES)} is needed.")
        tables = {str(name): opened(str(name), table) for name, table in tables.items()}
        names = list(tables)
        if not (isinstance(label, tuple | list) and len(label) == 2 and label[0] in tables):
            raise InputError(f"label is {label!r}: (table, column) is needed, the table one of {', '.join(names)}.")
        notes: list[str] = []
        for name, counted in (copies or {}).items():
            features = {**(features or features_of(tables, attributes(tables, keys), label, None))}
            features[name] = [c for c in features.get(name, []) if c != counted]
        found = attributes(tables, keys)
        codes = encoded(tables, found)
        wanted = features_of(tables, found, label, features)
        as_category = {name: set(columns) for name, columns in (categorical or {}).items()}
        columns = {name: {c: column(name, tables[name], c) for c in wanted[name]} for name in names}
        target = column(label[0], tables[label[0]], label[1])
        kept = [np.ones(_length(name, tables[name]), bool) for name in names]
        for place, name in enumerate(names):
            for code in codes[name].values():
                kept[place] &= code >= 0
            if missing == "drop":
                for part in columns[name].values():
                    kept[place] &= ~part.missing
            if missing == "drop" and name == label[0]:
                kept[place] &= ~target.missing
        rows = [np.flatnonzero(mask) for mask in kept]
        shared = [frozenset(codes[name]) for name in names]

        def cost(i: int, j: int) -> float:
            one, two, G = _edge(codes, names, rows, shared, i, j)
            return float(np.bincount(one, minlength=G).astype(float) @ np.bincount(two, minlength=G))

        edges = join_tree(names, shared, names.index(label[0]), cost)
        for i, j in edges:
            if not shared[i] & shared[j]:
                notes.append(f"{names[i]} and {names[j]} share no key: every row of one joins every row of the other.")
        rows = _reduced(names, codes, rows, shared, edges, notes)
        y, classes = _signs(label, target, rows[names.index(label[0])], positive)
        weights = [_copies(name, tables[name], (copies or {}).get(name), rows[k]) for k, name in enumerate(names)]
        blocks = []
        for name, index, weight in zip(names, rows, weights, strict=True):
            parts = {c: Column(v.values[index], v.missing[index]) for c, v in columns[name].items()}
            blocks.append(_block(name, weight, parts, as_category.get(name, set()), missing))
        for place, name in enumerate(names):
            same = [codes[name][a][rows[place]] for a in shared[place]]
            same += list(blocks[place].X.T) + [category.codes for category in blocks[place].categories]
            same += [y] if name == label[0] else []
            first, kind = merged(same, len(rows[place]))
            if len(first) < len(kind):
                notes.append(f"{name}: {len(kind)} rows are {len(first)} different ones.")
                rows[place], weights[place] = rows[place][first], np.bincount(kind, weights[place])
                cut = [category._replace(codes=category.codes[first]) for category in blocks[place].categories]
                blocks[place] = blocks[place]._replace(X=blocks[place].X[first], categories=cut)
                y = y[first] if name == label[0] else y
        kid, count = {}, {}
        for i, j in edges:
            kid[i, j], kid[j, i], count[i, j] = _edge(codes, names, rows, shared, i, j)
            count[j, i] = count[i, j]
        members = [{i: np.arange(len(index))} for i, index in enumerate(rows)]
        tree = Tree(weights, kid, count, names.index(label[0]), y, members)
        super().__init__(names, tree, blocks, classes, rows, (label[0], label[1]), found, notes)
        if not np.isfinite(float(self.size)):
            raise InputError("tables make a join of more than 1e308 rows: float64 cannot count it.")

    def __repr__(self) -> str:
        parts = ", ".join(
            f"{n} ({len(r)} rows, {b.d} features)" for n, r, b in zip(self.names, self.rows, self.blocks, strict=True)
        )
        return f"Join of {self.size:,} rows: {parts}"


def merged(columns: list[np.ndarray], n: int) -> tuple[np.ndarray, np.ndarray]:
    """Equal rows: the first of each kind, and the kind of each row, `(n,)`.

    Rows are told apart by a 64-bit sum of their scrambled columns; where that would merge two that differ, nothing is.
    """
    mark = np.zeros(n, np.uint64)
    for place, values in enumerate(columns):
        bits = np.ascontiguousarray(values.astype(float) + 0.0).view(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        bits = bits * np.uint64((0xBF58476D1CE4E5B9 + 2 * place * 0x94D049BB) % 2**64)
        mark = (mark ^ bits ^ (bits >> np.uint64(31))) * np.uint64(0x94D049BB133111EB)
        mark ^= mark >> np.uint64(29)
    _, first, kind = np.unique(mark, return_index=True, return_inverse=True)
    if all(np.array_equal(values, values[first][kind]) for values in columns):
        return first, kind
    return np.arange(n), np.arange(n)


def _length(name: str, table: Any) -> int:
    lengths = (
        {len(column(name, table, c).values) for c in column_names(table)[:1]}
        if isinstance(table, Mapping)
        else {int(table.num_rows) if hasattr(table, "num_rows") else len(table)}
    )
    if isinstance(table, Mapping):
        lengths |= {len(np.asarray(values)) for values in table.values()}
    if len(lengths) != 1 or 0 in lengths:
        found = f"columns of {', '.join(map(str, sorted(lengths)))} rows" if len(lengths) > 1 else "no rows"
        raise InputError(f"table {name} has {found}: at least one row, the same number in every column, is needed.")
    return lengths.pop()


def _copies(name: str, table: Any, counted: str | None, rows: np.ndarray) -> np.ndarray:
    if counted is None:
        return np.ones(len(rows))
    values = column(name, table, counted).values.astype(float)[rows]
    if not (values >= 1).all() or (values != np.floor(values)).any():
        raise InputError(f"copies[{name!r}] is {counted}: positive whole numbers are needed in it.")
    return values


def features_of(tables: Any, keys: Attributes, label: Any, features: Any) -> dict[str, list[str]]:
    """The columns of each table that are features.

    Raises:
        InputError: On tables that do not exist, the label, and columns that the join makes equal.
    """
    taken = {(table, key) for owners in keys.values() for table, key in owners.items()} | {tuple(label)}
    if features is None:
        return {n: [c for c in column_names(t) if (n, c) not in taken] for n, t in tables.items()}
    for name in features:
        if name not in tables:
            raise InputError(f"features names table {name}: there are {', '.join(tables)}.")
    wanted = {name: list(features.get(name, [])) for name in tables}
    if label[1] in wanted[label[0]]:
        raise InputError(f"features[{label[0]!r}] names {label[1]}, which is the label: leave it out.")
    for owners in keys.values():
        named = [f"{table}.{key}" for table, key in owners.items() if key in wanted[table]]
        if len(named) > 1:
            raise InputError(f"features names {' and '.join(named)}, which are equal in the join: name one of them.")
    return wanted


def _edge(codes: Any, names: Any, rows: Any, shared: Any, i: int, j: int) -> tuple[np.ndarray, np.ndarray, int]:
    common = sorted(shared[i] & shared[j])
    if not common:
        return np.zeros(len(rows[i]), np.int64), np.zeros(len(rows[j]), np.int64), 1
    return edge_ids(*([codes[names[k]][a][rows[k]] for a in common] for k in (i, j)))


def _reduced(names: Any, codes: Any, rows: Any, shared: Any, edges: Any, notes: list[str]) -> list[np.ndarray]:
    """The rows that take part in the join: those through which a row of it goes."""
    kid, count = {}, {}
    for i, j in edges:
        kid[i, j], kid[j, i], count[i, j] = _edge(codes, names, rows, shared, i, j)
        count[j, i] = count[i, j]
    ones = [np.ones(len(index)) for index in rows]
    tree = Tree(ones, kid, count, 0, np.empty(0), [{} for _ in rows])
    # In (max, min) a count cannot overflow, and says as well whether there is any.
    through = counting.marginals(tree, ones, counting.Semiring(np.maximum, np.minimum, 0.0, 1.0))
    out = [index[there > 0] for index, there in zip(rows, through, strict=True)]
    if not len(out[0]):
        pairs = "; ".join(f"{names[i]} with {names[j]} on {', '.join(sorted(shared[i] & shared[j]))}" for i, j in edges)
        raise InputError(f"tables make a join without rows ({pairs}): look for keys that never match.")
    for name, before, after in zip(names, rows, out, strict=True):
        if len(after) < len(before):
            notes.append(f"{name}: {len(before) - len(after)} of {len(before)} rows join with nothing.")
    return out


def _signs(label: Any, target: Column, rows: np.ndarray, positive: Any) -> tuple[np.ndarray, np.ndarray]:
    values, missing = target.values[rows], target.missing[rows]
    if missing.any():
        raise InputError(
            f"label {label[0]}.{label[1]} is missing in {missing.sum()} rows: remove them, or missing='drop'."
        )
    classes = np.unique(values)
    if positive is not None:
        if positive not in classes:
            raise InputError(f"positive is {positive!r}: the label has {', '.join(map(str, classes[:10]))}.")
        negative = [c for c in classes if c != positive]
        classes = np.array([negative[0] if len(negative) == 1 else f"not {positive}", positive], object)
    if len(classes) != 2:
        shown = ", ".join(map(str, classes[:10]))
        raise InputError(f"label {label[0]}.{label[1]} has {len(classes)} values among rows that join ({shown}): two "
                         "are needed, or `positive`, which is told from all others.")  # fmt: skip
    return np.where(values == classes[1], 1.0, -1.0), classes


def _block(table: str, weight: np.ndarray, parts: dict[str, Column], categorical: set[str], missing: str) -> Block:
    numbers, names, fills, categories = [], [], [], []
    for name, part in parts.items():
        require_one_kind(part, f"{table}.{name}")
        absent = int(part.missing.sum())
        if absent and missing == "refuse":
            raise InputError(
                f"feature {table}.{name} is missing in {absent} of {len(part.values)} rows that join: choose "
                "missing='impute' or 'drop', or leave it out of features."
            )
        if part.values.dtype.kind in NUMERIC and name not in categorical:
            values = part.values.astype(float)
            if np.isinf(values).any():
                raise InputError(f"feature {table}.{name} has infinite values: remove them or make them missing.")
            known = ~part.missing
            fill = np.average(values[known], weights=weight[known]) if missing == "impute" and known.any() else np.nan
            names.append(name)
            fills.append(0.0 if missing == "impute" and np.isnan(fill) else fill)
            numbers.append(np.where(part.missing, fills[-1], values))
        else:
            text = np.where(part.missing, "(missing)", part.values.astype(str)) if absent else part.values
            levels, codes = np.unique(text, return_inverse=True)
            categories.append(Category(name, codes.astype(np.int32), levels))
    X = np.stack(numbers, axis=1) if numbers else np.zeros((len(weight), 0))
    p = len(names)
    return Block(X, names, np.zeros(p), np.ones(p), np.array(fills), categories)
