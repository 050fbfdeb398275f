"""Read the columns of a table: pandas, polars, Arrow, a dict of arrays, or a Parquet or CSV file.

Only the columns that are asked for are converted, each to a `Column`. A NaN is missing, as in pandas, except in Arrow
and polars, which have nulls as well.
"""

import datetime
import os
import uuid
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any, Protocol

import numpy as np

from jaxsvm.errors import InputError, require_package
from jaxsvm.relational.tables.columns import (
    SCALED,
    SECONDS_PER_DAY,
    TIME_SCALES,
    Column,
    common_kind,
    integers,
    object_array,
)


def arrow_column(array: Any, where: str) -> Column:
    """Read an Arrow array or chunked array."""
    import pyarrow as pa

    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks() if array.num_chunks != 1 else array.chunk(0)
        if isinstance(array, pa.ChunkedArray):  # of no chunks
            array = pa.array([], array.type)
    type_name = str(array.type)
    if pa.types.is_dictionary(array.type):  # only its values count, not their order or numbers
        try:
            array = array.dictionary_decode()
        except pa.ArrowException as error:
            raise InputError(f"column {where} of type {type_name} cannot be read: {error}") from None
    missing = array.is_null().to_numpy(zero_copy_only=False)
    if isinstance(array.type, pa.BaseExtensionType):
        kind, values, scale = _extension(array, missing)
    else:
        kind, values, scale = _decoded(array, missing)
    return Column(kind, values, missing, scale, type_name)


def _extension(array: Any, missing: np.ndarray) -> tuple[str, np.ndarray, int]:
    """Return the kind, values and scale of an array of an extension type."""
    name, storage = str(getattr(array.type, "extension_name", "")), array.storage
    if name == "arrow.uuid":
        values = [None if value is None else str(uuid.UUID(bytes=value)) for value in storage.to_pylist()]
        return "uuid", object_array(values), 0
    if name == "arrow.bool8":
        return "boolean", storage.fill_null(0).to_numpy() != 0, 0
    return "other", np.zeros(len(missing)), 0


def _decoded(array: Any, missing: np.ndarray) -> tuple[str, np.ndarray, int]:
    """Return the kind, values and scale of an array of a plain type."""
    import pyarrow as pa

    of, kind = pa.types, array.type

    def filled(values: Any) -> np.ndarray:
        return values.fill_null(0).to_numpy(zero_copy_only=False)

    if of.is_null(kind):
        return "null", np.zeros(len(missing)), 0
    if of.is_boolean(kind):
        return "boolean", array.fill_null(False).to_numpy(zero_copy_only=False), 0
    if of.is_integer(kind):
        return "number", integers(filled(array)), 0
    if of.is_floating(kind):
        return "float", array.to_numpy(zero_copy_only=False), 0  # NaN where null
    if of.is_decimal(kind):
        return "number", _unscaled(array, missing), kind.scale
    if of.is_string(kind) or of.is_large_string(kind) or str(kind) == "string_view":
        return "text", object_array(array.to_pylist()), 0
    if of.is_binary(kind) or of.is_large_binary(kind) or of.is_fixed_size_binary(kind) or str(kind) == "binary_view":
        return "bytes", object_array(array.to_pylist()), 0
    if of.is_date(kind):
        return "date", filled(array.cast(pa.date32()).cast(pa.int32())).astype(np.int64) * SECONDS_PER_DAY, 0
    if of.is_timestamp(kind):
        return "timestamp" if kind.tz is None else "zoned", filled(array.cast(pa.int64())), TIME_SCALES[kind.unit]
    if of.is_time(kind):
        bits = pa.int32() if of.is_time32(kind) else pa.int64()
        return "time", filled(array.cast(bits)).astype(np.int64), TIME_SCALES[kind.unit]
    return "other", np.zeros(len(missing)), 0


def _unscaled(array: Any, missing: np.ndarray) -> np.ndarray:
    """Return the integers that store decimals."""
    if array.type.bit_width != 128 or not len(array):
        factor = Fraction(10) ** array.type.scale
        return integers([0 if value is None else int(Fraction(value) * factor) for value in array.to_pylist()])
    words = np.frombuffer(array.buffers()[1], np.int64).reshape(-1, 2)[array.offset : array.offset + len(array)]
    low, high = (np.where(missing, 0, part) for part in words.T)
    if np.array_equal(high, low >> 63):
        return low
    pairs = zip(high.tolist(), low.tolist(), strict=True)
    return object_array([(top << 64) + (bottom & (2**64 - 1)) for top, bottom in pairs])


EPOCH = datetime.datetime(1970, 1, 1)


class Columns(Protocol):
    """A table of pandas, polars or Arrow."""

    @property
    def columns(self) -> Any:
        """Return the columns, or their names."""
        ...


TableLike = Mapping[str, Any] | Columns
"""A table of pandas, polars or Arrow, or a dict of arrays."""


def opened(where: str, table: Any) -> Any:
    """Return a table whose columns can be read; open the path of a Parquet or CSV file; refuse anything else."""
    if isinstance(table, str | os.PathLike):
        return _opened_file(where, os.fspath(table))
    # Whose values are here: those of a query (DuckDB, ibis, LazyFrame, Dask) have columns too.
    here = any(hasattr(table, part) for part in ("column_names", "iloc", "to_arrow")) and not hasattr(table, "dask")
    if isinstance(table, Mapping) or here:
        return table
    raise InputError(
        f"{where} is a {type(table).__name__}: a pandas, polars or Arrow table, a dict of arrays, or the path of a "
        "Parquet or CSV file is needed (of a query `.to_arrow_table()`, `.to_pyarrow()`, `.collect()`, `.compute()`)."
    )


def length(name: str, table: Any) -> int:
    """Return the number of rows of a table; refuse columns of different lengths."""
    if not isinstance(table, Mapping):
        return int(table.num_rows) if hasattr(table, "num_rows") else len(table)
    lengths = sorted({len(values) if hasattr(values, "__len__") else -1 for values in table.values()})
    if -1 in lengths or len(lengths) > 1:
        held = "a column that is one value" if -1 in lengths else f"columns of {', '.join(map(str, lengths))} rows"
        raise InputError(f"table {name} has {held}: the same number of rows in every column is needed.")
    return lengths[0] if lengths else 0


def column_names(table: Any) -> list[str]:
    """Return the names of the columns, in order."""
    if isinstance(table, Mapping):
        return [str(key) for key in table]
    return [str(key) for key in (table.column_names if hasattr(table, "column_names") else table.columns)]


def column(name: str, table: Any, wanted: str) -> Column:
    """Read one column of a table; refuse it if it is absent, exists twice, has more than one axis, or mixes kinds."""
    names, where = column_names(table), f"{name}.{wanted}"
    if not wanted and wanted in names:
        raise InputError(
            f"table {name}: column {names.index(wanted)} of the header has no name: name it, or name the columns that "
            "are wanted in features and keys."
        )
    if wanted not in names:
        raise InputError(f"table {name} has no column {wanted}; it has {', '.join(names[:20])}.")
    if names.count(wanted) > 1:
        raise InputError(f"table {name} has {names.count(wanted)} columns {wanted}: give them different names.")
    if hasattr(table, "column_names"):
        return arrow_column(table.column(names.index(wanted)), where)
    own = next(key for key in (table if isinstance(table, Mapping) else table.columns) if str(key) == wanted)
    return column_of(table[own], where)


def column_of(values: Any, where: str) -> Column:
    """Convert an Arrow array, a pandas or polars series, an array or a list to a column."""
    if hasattr(values, "to_arrow"):  # polars
        return arrow_column(values.to_arrow(), where)
    if hasattr(values, "combine_chunks") or type(values).__module__.startswith("pyarrow"):
        return arrow_column(values, where)
    if hasattr(values, "isna") and hasattr(values, "dtype"):
        return _of_pandas(values, where)
    if isinstance(values, np.ma.MaskedArray):
        return _of_array(np.asarray(values.data), np.ma.getmaskarray(values), where)
    # Of a list NumPy would make floats of integers that stand with a float, and text of both.
    return _of_array(object_array(values) if isinstance(values, list | tuple) else np.asarray(values), None, where)


def _of_pandas(series: Any, where: str) -> Column:
    """Convert a series or an index, by its dtype."""
    kind, missing = series.dtype, np.asarray(series.isna())
    if hasattr(kind, "pyarrow_dtype"):
        return arrow_column(series.array.__arrow_array__(), where)
    if hasattr(kind, "categories"):  # only its values count, not their order
        known, code = _of_pandas(kind.categories, where), np.asarray(series.array.codes)
        if not len(known.values):
            return Column("null", np.zeros(len(code)), missing, 0, str(kind))
        return known.take(np.maximum(code, 0)).changed(missing=missing, type="category")
    if hasattr(kind, "tz"):
        values = np.asarray(series.array.tz_convert("UTC").tz_localize(None))
        return _of_array(values, missing, where).changed(kind="zoned", type=str(kind))
    if hasattr(kind, "numpy_dtype"):  # nullable numbers and booleans
        values = series.to_numpy(dtype=kind.numpy_dtype, na_value=kind.numpy_dtype.type(0))
    else:
        values = series.to_numpy()
    return _of_array(values, missing, where).changed(type=str(kind))


def _of_array(values: np.ndarray, missing: np.ndarray | None, where: str) -> Column:
    """Convert a NumPy array."""
    if values.ndim != 1:
        raise InputError(f"column {where} has shape {values.shape}: one value a row is needed.")
    missing = np.zeros(len(values), bool) if missing is None else np.array(missing, bool)
    kind, type_name = values.dtype.kind, str(values.dtype)
    if kind == "b":
        return Column("boolean", values, missing, 0, type_name)
    if kind in "iu":
        return Column("number", integers(np.where(missing, values.dtype.type(0), values)), missing, 0, type_name)
    if kind == "f" and values.dtype.itemsize <= 8:
        return Column("float", values, missing | np.isnan(values), 0, type_name)
    if kind == "M":
        given = np.datetime_data(values.dtype)[0]
        missing, unit = missing | np.isnat(values), "s" if given in ("Y", "M", "W", "D", "h", "m") else given
        kind = "date" if given in ("Y", "M", "W", "D") else "timestamp"
        if unit in TIME_SCALES:
            ints = np.where(missing, 0, values.astype(f"M8[{unit}]").astype(np.int64))
            return Column(kind, ints, missing, TIME_SCALES[unit], type_name)
    if kind in "UT":
        return _of_objects(values.astype(object), missing, where).changed(kind="text", type=type_name)
    if kind == "S":
        text = np.array([value.decode("utf-8", "surrogateescape") for value in values.tolist()], object)
        return Column("text", text, missing, 0, type_name)
    if kind == "O":
        return _of_objects(values, missing, where)
    return Column("other", values, missing, 0, type_name)


def _of_objects(values: np.ndarray, missing: np.ndarray, where: str) -> Column:
    """Convert Python objects, which must be of one kind."""
    missing = missing | np.fromiter((_is_missing(value) for value in values), bool, len(values))
    present = values[~missing]
    kinds = {t: _kind_of(t) for t in set(map(type, present))}
    type_name = ", ".join(sorted(t.__name__ for t in kinds))
    if any(issubclass(t, datetime.datetime) for t in kinds):
        zones = {getattr(value, "tzinfo", None) is not None for value in present}
        kinds = {t: "zoned" if k == "timestamp" and True in zones else k for t, k in kinds.items()}
        if len(zones) > 1:
            raise InputError(f"column {where} mixes times with and without a time zone: cast them to one kind.")
    kind = common_kind(list(kinds.values()))
    if kind is None and len(set(kinds.values())) > 1:
        raise InputError(f"column {where} mixes values of {type_name}: cast them to one kind.")
    kind = kind or "other"
    if kind == "float" and "number" in kinds.values():
        inexact = [v for v in present if not isinstance(v, float | np.floating) and (v != int(v) or abs(v) > 2**53)]
        if inexact:
            raise InputError(f"column {where} mixes floats with {inexact[0]}, which no float holds: cast one of them.")
    if kind in ("null", "float"):
        out = np.zeros(len(values))
        out[~missing] = [float(value) for value in present]
        return Column(kind, out, missing, 0, type_name)
    out = np.zeros(len(values), object)
    converted, scale = CONVERSIONS[kind](present) if kind in CONVERSIONS else (list(present), 0)
    out[~missing] = converted
    if kind in SCALED:
        out = integers(out)
    return Column(kind, out.astype(bool) if kind == "boolean" else out, missing, scale, type_name)


def _is_missing(value: Any) -> bool:
    """Return whether a Python value stands for a missing one: None, NaN, NA, NaT."""
    if value is None:
        return True
    if isinstance(value, float | np.floating):
        return bool(value != value)
    if isinstance(value, Decimal):
        return value.is_nan()
    return type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, np.datetime64) and bool(np.isnat(value)))


KINDS = [
    ((bool, np.bool_), "boolean"), ((int, np.integer, Decimal), "number"), ((float, np.floating), "float"),
    (str, "text"), ((bytes, bytearray), "bytes"), (uuid.UUID, "uuid"), (datetime.datetime, "timestamp"),
    (datetime.date, "date"), (datetime.time, "time"),
]  # fmt: skip


def _kind_of(value_type: type) -> str:
    return next((kind for types, kind in KINDS if issubclass(value_type, types)), "other")


def _decimals(values: Any) -> tuple[list[int], int]:
    """Write integers and decimals as integers with a common decimal scale."""
    scale = 0
    for value in values:
        if isinstance(value, Decimal):
            if not value.is_finite():
                raise InputError(f"a column of decimals has {value}: remove it or make it missing.")
            scale = max(scale, -int(value.as_tuple().exponent))
    return [
        int(Fraction(value) * 10**scale) if isinstance(value, Decimal) else int(value) * 10**scale for value in values
    ], scale


def _times(values: Any) -> tuple[list[int], int]:
    """Count microseconds since 1970, or nanoseconds if any value has them (pandas)."""
    fine = any(getattr(value, "nanosecond", 0) for value in values)
    out = []
    for value in values:
        if not isinstance(value, datetime.datetime):
            count = (value - EPOCH.date()).days * SECONDS_PER_DAY * 1_000_000
        else:
            plain = value if value.tzinfo is None else value.astimezone(datetime.UTC).replace(tzinfo=None)
            plain = datetime.datetime(*plain.timetuple()[:6], plain.microsecond)  # also of pandas' timestamps
            count = (plain - EPOCH) // datetime.timedelta(microseconds=1)
        out.append(count * 1000 + getattr(value, "nanosecond", 0) if fine else count)
    return out, 9 if fine else 6


def _texts(values: Any) -> tuple[list[str], int]:
    return [str(value) for value in values], 0


CONVERSIONS: dict[str, Any] = {
    "number": _decimals,
    "date": lambda values: ([(value - EPOCH.date()).days * SECONDS_PER_DAY for value in values], 0),
    "timestamp": _times,
    "zoned": _times,
    "time": lambda values: (
        [((v.hour * 60 + v.minute) * 60 + v.second) * 1_000_000 + v.microsecond for v in values],
        6,
    ),
    "text": _texts,
    "bytes": lambda values: ([bytes(value) for value in values], 0),
    "uuid": _texts,
}
"""For a kind, the function that converts Python objects; it returns values and their scale."""


def _opened_file(where: str, path: str) -> Any:
    """Read a Parquet or CSV file as an Arrow table."""
    if not os.path.exists(path):
        raise InputError(f"{where} is {path!r}: there is no such file.")
    for module in ("pyarrow.csv", "pyarrow.parquet"):
        require_package(module, "reading files of tables")
    import pyarrow.csv
    import pyarrow.parquet

    kind = path.lower().removesuffix(".gz")
    try:
        if kind.endswith((".parquet", ".pq")):
            return pyarrow.parquet.read_table(path)
        if kind.endswith((".csv", ".txt")):
            options = pyarrow.csv.ConvertOptions(strings_can_be_null=True, null_values=["", "NA", "NaN", "NULL"])
            return pyarrow.csv.read_csv(path, convert_options=options)
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise InputError(f"{where}, the file {path!r}, cannot be read: {error}") from None
    raise InputError(f"{where} is {path!r}: a .parquet or .csv file is needed.")
