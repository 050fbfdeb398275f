"""Read columns of tables as Arrow arrays, and these as numbers and as levels; give their types a kind.

    kind       values                                      as a feature
    number     integers, decimals                          a number
    float      float16, float32, float64                   a number
    null       all missing                                 a number
    boolean    True, False                                 a category
    text       texts, enumerations                         a category
    uuid       in canonical form                           a category, if named in `categorical`
    date, timestamp                                        a category, if named in `categorical`
    zoned      an instant (with time zone)                 none
    time, bytes, other                                     none

Only the columns that are asked for are converted. A NaN is missing, as in pandas, except in keys of Arrow and polars,
which have nulls as well. The database compares the columns of a key in its own way if they are declared alike.
Otherwise each is cast to one type that holds all their values exactly: equality and order are those of one type. An
ENUM is ordered by its definition and equal by its text, so two orders of one key would number it differently.
"""

from __future__ import annotations

import datetime
import glob
import os
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from jaxsvm.errors import InputError, require_package

if TYPE_CHECKING:
    import pyarrow as pa

NUMBERS = ("number", "float", "null")
CATEGORIES = ("text", "boolean")
CATEGORIES_BY_REQUEST = ("text", "boolean", "number", "float", "uuid", "date", "timestamp")
"""Kinds whose columns may be named in `categorical`."""
DOUBLE = "DOUBLE PRECISION"


class Declared(NamedTuple):
    """A declared type."""

    name: str  # its name in the database
    kind: str  # one of the kinds above
    digits: int = 0  # digits of a number before the point; 0 if there is no limit
    scale: int = 0  # digits of a number after the point
    integer: bool = False  # whether it is an integer
    narrow: bool = False  # whether it is a float of fewer than 64 bits
    sql: str = ""  # the column in a query


INTEGERS = {
    "TINYINT": 3, "SMALLINT": 5, "INT2": 5, "INT16": 5, "INTEGER": 10, "INT": 10, "INT4": 10, "INT32": 10, "SERIAL": 10,
    "BIGINT": 19, "INT8": 19, "INT64": 19, "UTINYINT": 3, "UINT8": 3, "USMALLINT": 5, "UINT16": 5, "UINTEGER": 10,
    "UINT32": 10, "UBIGINT": 20, "UINT64": 20, "HUGEINT": 39,
}  # fmt: skip
"""Digits of integer types; one of more than 128 bits, or UHUGEINT, can only be compared with its own type."""
OTHERS = [
    (r".* COLLATE ", "other"), (r"UHUGEINT$", "number"),  # equality that is not that of texts; more than 128 bits
    (r"(ENUM|VARCHAR|TEXT|STRING|LARGE_STRING|STRING_VIEW|CHAR|BPCHAR|NAME|CITEXT|CHARACTER|DICTIONARY<VALUES=STRING)\b",
     "text"),
    (r"(BOOLEAN|BOOL)$", "boolean"), (r"(UUID|EXTENSION<ARROW.UUID>)$", "uuid"),
    (r"(BLOB|BYTEA|BINARY|LARGE_BINARY)$", "bytes"),
    (r"(DATE|DATE32\[DAY\])$", "date"), (r"(TIMESTAMPTZ|TIMESTAMP.*(WITH TIME ZONE|TZ=).*)$", "zoned"),
    (r"TIMESTAMP(_S|_MS|_NS|\[\w+\]|\(\d+\))?( WITHOUT TIME ZONE)?$", "timestamp"),
    (r"(TIME|TIME64\[US\])$", "time"), (r"\"?NULL\"?$", "null"),
]  # fmt: skip
FLOATS = {"FLOAT": True, "REAL": True, "FLOAT4": True, "HALFFLOAT": True, "DOUBLE": False, "FLOAT8": False,
          DOUBLE: False}  # fmt: skip
"""Float types: whether they have fewer than 64 bits."""


def declared(name: str, sql: str = "") -> Declared:
    """Parse the name of a type of DuckDB, PostgreSQL or Arrow; `sql` is the column in a query."""
    upper = name.upper().strip()
    if upper in INTEGERS:
        return Declared(name, "number", INTEGERS[upper], integer=True, sql=sql)
    if upper in FLOATS:
        return Declared(name, "float", narrow=FLOATS[upper], sql=sql)
    exact = re.match(r"(?:DECIMAL|NUMERIC)\d*(?:\((\d+)(?:, ?(-?\d+))?\))?$", upper)
    if exact:
        width, scale = int(exact[1] or 0), int(exact[2] or 0)
        return Declared(name, "number", max(width - scale, 0), max(scale, 0), sql=sql)
    return Declared(name, next((kind for shape, kind in OTHERS if re.match(shape, upper)), "other"), sql=sql)


def comparison_type(types: Sequence[Declared], columns: str) -> str | None:
    """Return the type to which columns are cast to be compared exactly; None if they are declared alike."""
    foreign = types[0].kind == "other" and types[0].name.startswith("extension<")  # of Arrow: DuckDB has its bits only
    if len({t.name for t in types}) == 1 and not foreign:
        return None
    kinds = frozenset(t.kind for t in types) - {"null"}
    kind = {frozenset(("number", "float")): "float", frozenset(("date", "timestamp")): "timestamp"}.get(kinds)
    kind = kind or (next(iter(kinds), "null") if len(kinds) < 2 else "other")
    numbers = [t for t in types if t.kind == "number"]
    unequal = InputError(f"keys join {columns}: values of different kinds are never equal; cast one of them.")
    if any(t.name.upper() == "UHUGEINT" for t in types):
        raise unequal
    if kind == "float":
        return DOUBLE
    if kind == "number":
        digits, scale = max(t.digits for t in numbers), max(t.scale for t in numbers)
        if not all(t.digits or t.scale for t in numbers):
            return "NUMERIC"  # PostgreSQL's, without a limit
        if digits + scale <= 38:
            return f"DECIMAL(38, {scale})"
        if not scale:
            return "HUGEINT"
        raise InputError(f"keys join {columns}: no type holds the values of all exactly; cast one of them.")
    if kind == "timestamp" and any(re.search(r"_NS|\[NS\]", t.name.upper()) for t in types):
        return "TIMESTAMP_NS"
    plain = {"text": "VARCHAR", "timestamp": "TIMESTAMP", "date": "DATE", "boolean": "BOOLEAN", "null": "INTEGER"}
    if kind not in plain:
        raise unequal
    return plain[kind]


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
    """Return the columns of a table; open the path of a Parquet or CSV file; refuse columns of different lengths."""
    if isinstance(table, str | os.PathLike):
        table = _opened_file(where, os.fspath(table))
    if isinstance(table, Mapping):
        names, values = list(table), list(table.values())
    elif hasattr(table, "column_names"):  # Arrow
        names, values = table.column_names, table.columns
    elif hasattr(table, "iloc") and not hasattr(table, "dask"):  # pandas
        names, values = list(table.columns), [table.iloc[:, k] for k in range(len(table.columns))]
    elif hasattr(table, "to_arrow"):  # polars
        names, values = table.columns, table.get_columns()
    else:  # whose values are not here: those of a query (DuckDB, ibis, LazyFrame, Dask)
        raise InputError(
            f"{where} is a {type(table).__name__}: a pandas, polars or Arrow table, a dict of arrays, or the path of a "
            "Parquet or CSV file is needed (of a query `.to_arrow_table()`, `.to_pyarrow()`, `.collect()`, "
            "`.compute()`)."
        )
    lengths = sorted({len(column) if hasattr(column, "__len__") else -1 for column in values})
    if -1 in lengths or len(lengths) > 1:
        held = "a column that is one value" if -1 in lengths else f"columns of {', '.join(map(str, lengths))} rows"
        raise InputError(f"{where} has {held}: the same number of rows in every column is needed.")
    return Table([str(name) for name in names], values, *lengths)


def _opened_file(where: str, path: str) -> Any:
    """Read a Parquet or CSV file as an Arrow table, as DuckDB does."""
    duckdb, kind = require_package("duckdb", "reading files of tables"), path.lower().removesuffix(".gz")
    if not os.path.exists(path) or not kind.endswith((".parquet", ".pq", ".csv", ".txt")):
        raise InputError(f"{where} is {path!r}: a .parquet or .csv file that exists is needed.")
    parquet = kind.endswith((".parquet", ".pq"))
    csv = "read_csv(?, delim = ',', header = true, nullstr = ['', 'NA', 'NaN', 'NULL'])"
    try:
        with duckdb.connect() as connection:
            return connection.sql(
                f"FROM {'read_parquet(?)' if parquet else csv}", params=[glob.escape(path)]
            ).to_arrow_table()
    except duckdb.Error as error:
        raise InputError(f"{where}, the file {path!r}, cannot be read: {error}") from None


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
    kind, mask = dtype.kind if isinstance(dtype, np.dtype) else "", None
    if isinstance(values, np.ma.MaskedArray):
        values, mask = values.data, np.ma.getmaskarray(values)
    if kind == "O":
        return _of_objects(list(values if mask is None else np.where(mask, None, values)), pa)
    array = pa.array(values, mask=mask, from_pandas=True)
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
    try:
        return pa.array(values, from_pandas=True)
    except OverflowError:  # integers beyond 64 bits
        return pa.array([Decimal(v) if isinstance(v, int) else v for v in values], from_pandas=True)


def _plain(array: Any, pa: Any) -> Any:
    """Give values that are compared one type, without a loss."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    of, kind = pa.types, array.type
    if of.is_dictionary(kind):  # only its values count, not their order or numbers
        return _plain(array.dictionary_decode(), pa)
    one_type = {
        pa.date32(): of.is_date(kind),
        pa.time64("us"): of.is_time(kind),
        pa.timestamp("us", "UTC"): of.is_timestamp(kind) and kind.tz is not None,
        pa.binary(): of.is_fixed_size_binary(kind) or str(kind) in ("large_binary", "binary_view"),
        pa.float32(): str(kind) == "halffloat",
    }
    if of.is_decimal(kind) and kind.bit_width > 128:
        one_type[pa.decimal128(38, kind.scale)] = True
    return next((array.cast(to) for to, wanted in one_type.items() if wanted and to != kind), array)


def numbers(array: pa.Array, where: str) -> np.ndarray:
    """Convert numbers to float64 `(n,)`, each rounded once; NaN where missing; refuse others."""
    import pyarrow as pa

    if declared(str(array.type)).kind not in NUMBERS:
        raise InputError(f"column {where} holds {array.type}: numbers are needed.")
    if pa.types.is_decimal(array.type):
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
    """Return the values as Python has them, dates and times as SQL writes them; None where missing."""
    import pyarrow as pa

    if pa.types.is_date(array.type) or pa.types.is_timestamp(array.type):
        texts = array.cast(pa.string()).to_pylist()
        return [text.rstrip("0").rstrip(".") if text and "." in text else text for text in texts]
    if pa.types.is_decimal(array.type) and not array.type.scale:
        return [value if value is None else int(value) for value in array.to_pylist()]
    return array.to_pylist()
