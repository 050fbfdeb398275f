"""Read columns of tables as Arrow arrays, and these as numbers and as levels; find what each column is for.

    kind       values                                      as a feature
    integer, decimal, float, null (all missing)            a number
    boolean, text (texts, enumerations)                    a category
    uuid, date, timestamp, integer                         a category, if named in `categorical`
    zoned (an instant with time zone), time, bytes, other  none

Only columns that are asked for are converted. A NaN is missing, as in pandas, except in keys of Arrow and polars, which
have nulls as well. Levels of categories are texts, as the database writes them, in one way for all types of a kind.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from jaxsvm.errors import InputError, require_package
from jaxsvm.runtime.arrays import require_finite_number, require_one_of

if TYPE_CHECKING:
    import pyarrow as pa

NUMBERS = ("integer", "decimal", "float", "null")
CATEGORIES = ("text", "boolean")
CATEGORIES_BY_REQUEST = ("text", "boolean", "integer", "uuid", "date", "timestamp", "null")
"""Kinds whose columns may be named in `categorical`."""
DOUBLE = "DOUBLE PRECISION"
KINDS = [
    (r".*( COLLATE .*|\])$", "other"),  # equality that is not that of texts; lists
    (r"(U?(TINY|SMALL|BIG|HUGE)INT|INT[248]?|U?INTEGER|(DECIMAL|NUMERIC)\(\d+, ?0\))$", "integer"),
    (r"(DECIMAL|NUMERIC)(\([\d, ]+\))?$", "decimal"),
    (r"(FLOAT[48]?|REAL|DOUBLE)$", "float"), (r"(BOOLEAN|BOOL)$", "boolean"), (r"UUID$", "uuid"),
    (r"(ENUM|VARCHAR|TEXT|BPCHAR|CHAR|NAME|CITEXT)\b", "text"), (r"(BLOB|BYTEA)$", "bytes"), (r"DATE$", "date"),
    (r"(TIMESTAMPTZ|TIMESTAMP WITH TIME ZONE)", "zoned"), (r"TIMESTAMP(_S|_MS|_NS|\(\d\))?$", "timestamp"),
    (r"TIME$", "time"), (r"\"?NULL\"?$", "null"),
]  # fmt: skip
"""Kinds by the names of the types of DuckDB and PostgreSQL; the first that fits counts."""


class Declared(NamedTuple):
    """A declared type."""

    name: str  # its name in the database
    kind: str  # one of the kinds above
    sql: str = ""  # the column in a query


def declared(name: str, sql: str = "") -> Declared:
    """Find the kind of a type of DuckDB or PostgreSQL by its name; `sql` is the column in a query."""
    return Declared(name, next((kind for shape, kind in KINDS if re.match(shape, name.upper())), "other"), sql)


class Columns(Protocol):
    """A table of pandas, polars or Arrow."""

    @property
    def columns(self) -> Any:
        """Return the columns, or their names."""
        ...


TableLike = Mapping[str, Any] | Columns
"""A table of pandas, polars or Arrow, or a dict of arrays."""


class Table(NamedTuple):
    """A table whose columns are not converted yet."""

    names: list[str]
    values: list[Any]  # for each column, what `array_of` takes
    rows: int = 0


def opened(where: str, table: Any) -> Table:
    """Return the columns of a table; refuse columns of different lengths."""
    if isinstance(table, Mapping):
        names, values = list(table), list(table.values())
    elif hasattr(table, "column_names"):  # Arrow
        names, values = table.column_names, table.columns
    elif hasattr(table, "iloc") and not hasattr(table, "dask"):  # pandas
        names, values = list(table.columns), [table.iloc[:, k] for k in range(len(table.columns))]
    elif hasattr(table, "to_arrow"):  # polars
        names, values = table.columns, table.get_columns()
    else:  # whose values are not here: those of a file, or of a query (DuckDB, ibis, LazyFrame, Dask)
        raise InputError(
            f"{where} is a {type(table).__name__}: a pandas, polars or Arrow table, or a dict of arrays, is needed (of "
            "a query `.to_arrow_table()`, `.to_pyarrow()`, `.collect()`, `.compute()`; of a file "
            "`duckdb.read_parquet(path).to_arrow_table()`, `duckdb.read_csv`)."
        )
    lengths = sorted({len(column) if hasattr(column, "__len__") else -1 for column in values})
    if -1 in lengths or len(lengths) > 1:
        held = "a column that is one value" if -1 in lengths else f"columns of {', '.join(map(str, lengths))} rows"
        raise InputError(f"{where} has {held}: the same number of rows in every column is needed.")
    return Table([str(name) for name in names], values, *lengths)


def column(name: str, table: Table, wanted: str) -> pa.Array:
    """Read one column of a table; refuse it if it is absent, exists twice, has more than one axis, or mixes kinds."""
    many = table.names.count(wanted)
    if not wanted and many:
        raise InputError(
            f"table {name}: column {table.names.index(wanted)} of the header has no name: name it, or name the columns "
            "that are wanted in features and keys."
        )
    if many > 1:
        raise InputError(f"table {name} has {many} columns {wanted}: give them different names.")
    return array_of(table.values[table.names.index(wanted)], f"{name}.{wanted}")


def array_of(values: Any, where: str) -> pa.Array:
    """Convert an Arrow array, a pandas or polars series, an array or a list to an Arrow array that DuckDB reads."""
    pa = require_package("pyarrow", "reading tables")
    try:
        return _plain(_converted(values, pa), pa)
    except (ValueError, TypeError, ArithmeticError, NotImplementedError) as error:  # Arrow's errors are some of them
        raise InputError(f"column {where} is no Arrow array of one kind ({error}): cast its values.") from None


def _converted(values: Any, pa: Any) -> Any:
    """Convert values of any library to Arrow; their NaN are nulls there, unless they had nulls already."""
    if hasattr(values, "to_arrow"):  # polars
        return values.to_arrow()
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    dtype = getattr(values, "dtype", None)
    if hasattr(dtype, "pyarrow_dtype"):
        return values.array.__arrow_array__()
    if dtype is None:
        values = list(values) if isinstance(values, list | tuple) else np.asarray(values)
        dtype = getattr(values, "dtype", np.dtype(object))
    kind = dtype.kind if isinstance(dtype, np.dtype) else ""
    if kind == "O":
        return _of_objects(values if isinstance(values, list) else values.tolist(), pa)
    array = pa.array(values, from_pandas=True)
    if pa.types.is_floating(array.type):  # NaN of pandas' Float64 too
        return pa.array(array.to_numpy(zero_copy_only=False), from_pandas=True)
    return array.cast(pa.string()) if kind == "S" else array


def _of_objects(values: list[Any], pa: Any) -> Any:
    """Convert Python objects; refuse times that Arrow would cut."""
    times = [v for v in values if isinstance(v, datetime.date) and v == v]  # but no NaT
    for mixed, test in (
        ("dates and times are mixed", lambda v: isinstance(v, datetime.datetime)),
        ("times with and without a time zone are mixed", lambda v: getattr(v, "tzinfo", None) is None),
    ):
        if len(set(map(test, times))) > 1:
            raise ValueError(mixed)
    if any(getattr(v, "nanosecond", 0) for v in times):
        raise ValueError("nanoseconds need a column of datetime64[ns]")
    return pa.array(values, from_pandas=True)


def _plain(array: Any, pa: Any) -> Any:
    """Cast what DuckDB would cut without a word; refuse types that it does not have, or takes for others."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    of, kind = pa.types, array.type
    if of.is_decimal256(kind) or (isinstance(kind, pa.BaseExtensionType) and kind != pa.uuid()):
        raise TypeError(str(kind))
    casts = {
        pa.time64("us"): of.is_time(kind),
        pa.timestamp("us", "UTC"): of.is_timestamp(kind) and kind.tz is not None,
        pa.float32(): of.is_float16(kind),
    }
    return next((array.cast(to) for to, wanted in casts.items() if wanted and to != kind), array)


def numbers(array: pa.Array, where: str) -> np.ndarray:
    """Convert numbers to float64 `(n,)`, each rounded once; NaN where missing; refuse others."""
    import pyarrow as pa

    of, kind = pa.types, array.type
    if not any(test(kind) for test in (of.is_integer, of.is_floating, of.is_decimal, of.is_null)):
        raise InputError(f"column {where} holds {array.type}: numbers are needed.")
    if of.is_decimal(kind):
        array = array.cast(pa.string())
    return array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)


def levels_of(array: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """Return the different values in order, the missing one last, and the place of each row's, int32 `(n,)`."""
    import pyarrow.compute as pc

    values = present(array)
    levels = pc.call_function("unique", [values])
    levels = levels.take(pc.call_function("array_sort_indices", [levels]))
    return levels, pc.call_function("index_in", [values], pc.SetLookupOptions(levels)).to_numpy().astype(np.int32)


def present(array: pa.Array) -> pa.Array:
    """Return the values of a feature: a NaN is missing, and -0.0 is 0.0."""
    import pyarrow as pa

    if pa.types.is_floating(array.type):
        return pa.array(array.to_numpy(zero_copy_only=False) + 0, from_pandas=True)
    return array


Attributes = dict[str, dict[str, str]]
"""For each attribute of the join, its column in each table that has it."""
Keys: TypeAlias = "Mapping[tuple[str, str], str | Sequence[str] | Mapping[str, str]]"
"""For pairs of tables the columns that join them: a name, several, or `{column of the first: column of the second}`."""


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
