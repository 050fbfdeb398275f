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
from typing import Any

import numpy as np

from jaxsvm.errors import InputError
from jaxsvm.relational.counting import semirings as counting
from jaxsvm.relational.counting.moments import SCALES, Moments, moments
from jaxsvm.relational.counting.tree import Tree
from jaxsvm.relational.schema.assembly import Tables, assembled
from jaxsvm.relational.schema.blocks import Block
from jaxsvm.relational.tables.columns import as_feature, numbers
from jaxsvm.relational.tables.keys import Attributes, attributes, encoded
from jaxsvm.relational.tables.reading import column, column_names, opened

EXACT = 2**53
MISSING_CHOICES = ("refuse", "impute", "drop")


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
    sources: dict[str, str] = dataclasses.field(default_factory=dict)
    """What stands for a table in FROM, where that is not its name: `to_sql` asks the same."""
    casts: dict[str, str] = dataclasses.field(default_factory=dict)
    """The SQL type in which the database compares an attribute of columns of different types."""

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
            names += [f"{table}.{name}" for c in block.categories for name in c.names]
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
            tables: By name: pandas, polars or Arrow tables, dicts of arrays, paths of Parquet or CSV files.
            label: The table (normally the one of facts) and its column, which has two values.
            features: The columns of each table that are features; None: all that are neither keys nor the label.
                Numbers (decimals too) are taken as they are; texts, enumerations and booleans are categories. Other
                types are refused by name.
            keys: What joins; None: columns of equal names. Else `{(table, table): columns}`, where columns is a name, a
                list of names, or `{column of the first: column of the second}`. Values are compared exactly; columns
                whose types have no exact common one (texts with integers, say) are refused by name.
            categorical: Columns of numbers, dates, times or UUIDs that are categories, by table.
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
        for name, counted in (copies or {}).items():
            features = {**(features or features_of(tables, attributes(tables, keys), label, None))}
            features[name] = [c for c in features.get(name, []) if c != counted]
        found = attributes(tables, keys)
        codes = encoded(tables, found)
        wanted = features_of(tables, found, label, features)
        columns = [{c: as_feature(column(name, tables[name], c)) for c in wanted[name]} for name in names]
        target = as_feature(column(label[0], tables[label[0]], label[1]))
        weights = [_copies(name, tables[name], (copies or {}).get(name)) for name in names]
        self._assemble(
            Tables(names, columns, target, [codes[name] for name in names], weights),
            (label[0], label[1]), found, categorical or {}, positive, missing,
        )  # fmt: skip

    def _assemble(
        self, tables: Tables, label: tuple[str, str], keys: Attributes, categorical: Mapping[str, Sequence[str]],
        positive: Any, missing: str, sources: Mapping[str, str] | None = None, casts: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        for name, chosen in categorical.items():
            known = list(tables.columns[tables.names.index(name)]) if name in tables.names else None
            if known is None or not set(chosen) <= set(known):
                raise InputError(
                    f"categorical[{name!r}] is {list(chosen)}: "
                    + (f"the features of {name} are {', '.join(known)}." if known is not None else
                       f"there are the tables {', '.join(tables.names)}.")
                )  # fmt: skip
        parts = assembled(tables, label, {name: set(chosen) for name, chosen in categorical.items()}, positive, missing)
        super().__init__(
            tables.names, parts.tree, parts.blocks, parts.classes, parts.rows, label, keys, parts.notes,
            sources=dict(sources or {}), casts=dict(casts or {}),
        )  # fmt: skip
        if not np.isfinite(float(self.size)):
            raise InputError("tables make a join of more than 1e308 rows: float64 cannot count it.")

    @classmethod
    def of_tables(cls, tables: Tables, *arguments: Any, **options: Any) -> "Join":
        """The join of tables whose columns were read and whose keys are numbered; arguments as in `_assemble`."""
        join = object.__new__(cls)
        join._assemble(tables, *arguments, **options)
        return join

    def __repr__(self) -> str:
        parts = ", ".join(
            f"{n} ({len(r)} rows, {b.d} features)" for n, r, b in zip(self.names, self.rows, self.blocks, strict=True)
        )
        return f"Join of {self.size:,} rows: {parts}"


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


def _copies(name: str, table: Any, counted: str | None) -> np.ndarray:
    n = _length(name, table)
    if counted is None:
        return np.ones(n)
    values = numbers(column(name, table, counted), f"{name}.{counted}")
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


def prepared(join: Any, scale: str = "none", intercept: bool = False) -> Any:
    """A join with scaled features, and a constant one in the label's table.

    Args:
        join: Features as given.
        scale: "none"; "max": by the largest size of a feature among rows that join, as in the paper; "standard": mean 0
            and variance 1 over the rows of the join, whose perturbations then are smaller too. Levels of categories
            stay 0 and 1.
        intercept: Whether there is a constant feature 1; it is regularised like the others.

    Raises:
        InputError: On another scale.
    """
    if scale not in SCALES:
        raise InputError(f"scale is {scale!r}: one of {', '.join(SCALES)} is needed.")
    N, blocks = float(join.size), []
    for i, (given, out) in enumerate(zip(join.blocks, join.counts(), strict=True)):
        mean, size, number = np.zeros(len(given.names)), np.ones(len(given.names)), np.array(given.names, object) != ""
        if scale == "max":
            size = np.abs(given.X).max(axis=0, initial=0)
        elif scale == "standard":
            mean = given.X.T @ out / N
            size = np.sqrt(((given.X - mean) ** 2).T @ out / N)
            size = np.where(size > 1e-12 * np.abs(mean), size, 0)
        mean, size = np.where(number, mean, 0.0), np.where(number & (size > 0), size, 1.0)
        # Of numbers that were scaled before, `x = mean + scale X`, both together.
        both = {"mean": given.mean + given.scale * mean, "scale": given.scale * size}
        scaled = given._replace(X=(given.X - mean) / size, **both)
        if intercept and i == join.tree.label and not join.constant:
            scaled = scaled._replace(
                X=np.append(scaled.X, np.ones((len(scaled.X), 1)), axis=1),
                names=[*scaled.names, ""],
                mean=np.append(scaled.mean, 0.0),
                scale=np.append(scaled.scale, 1.0),
                fill=np.append(scaled.fill, np.nan),
            )
        blocks.append(scaled)
    fields = {field.name: getattr(join, field.name) for field in dataclasses.fields(Prepared)}
    return Prepared(**fields | {"blocks": blocks, "constant": intercept or join.constant})
