"""Read columns of tables as Arrow arrays, and these as numbers and as levels; give the types of a database a kind.

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
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from jaxsvm.errors import InputError, require_package

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


def arrays_of(table: pa.Table) -> dict[str, pa.Array]:
    """Return the columns of the result of a query, whose names are ours."""
    return {name: array_of(values, name) for name, values in zip(table.column_names, table.columns, strict=True)}


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
    place = pc.call_function("index_in", [values], pc.SetLookupOptions(levels))
    return levels, place.to_numpy().astype(np.int32)


def present(array: pa.Array) -> pa.Array:
    """Return the values of a feature: a NaN is missing, and -0.0 is 0.0."""
    import pyarrow as pa

    if pa.types.is_floating(array.type):
        return pa.array(array.to_numpy(zero_copy_only=False) + 0, from_pandas=True)
    return array


def python_values(array: pa.Array) -> list[Any]:
    """Return the values as Python has them; None where missing."""
    import pyarrow as pa

    if pa.types.is_decimal(array.type) and not array.type.scale:
        return [value if value is None else int(value) for value in array.to_pylist()]
    return array.to_pylist()
