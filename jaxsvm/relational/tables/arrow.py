"""Read tables (pandas, polars, Arrow, dicts of arrays, files) as Arrow arrays, and these as numbers and as levels.

Only the columns that are asked for are converted. A NaN is missing, as in pandas, except in keys of Arrow and polars,
which have nulls as well.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from jaxsvm.errors import InputError, require_package
from jaxsvm.relational.tables.sql_types import NUMBERS, declared

if TYPE_CHECKING:
    import pyarrow as pa


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


def _opened_file(where: str, path: str) -> Any:
    """Read a Parquet or CSV file as an Arrow table."""
    if not os.path.exists(path):
        raise InputError(f"{where} is {path!r}: there is no such file.")
    csv, parquet = (require_package(f"pyarrow.{kind}", "reading files of tables") for kind in ("csv", "parquet"))
    kind = path.lower().removesuffix(".gz")
    try:
        if kind.endswith((".parquet", ".pq")):
            return parquet.read_table(path)
        if kind.endswith((".csv", ".txt")):
            options = csv.ConvertOptions(strings_can_be_null=True, null_values=["", "NA", "NaN", "NULL"])
            return csv.read_csv(path, convert_options=options)
    except (ValueError, OSError) as error:
        raise InputError(f"{where}, the file {path!r}, cannot be read: {error}") from None
    raise InputError(f"{where} is {path!r}: a .parquet or .csv file is needed.")


def length(name: str, table: Any) -> int:
    """Return the number of rows of a table; refuse columns of different lengths."""
    columns = table.values() if isinstance(table, Mapping) else [table]
    lengths = sorted({len(values) if hasattr(values, "__len__") else -1 for values in columns})
    if -1 in lengths or len(lengths) > 1:
        held = "a column that is one value" if -1 in lengths else f"columns of {', '.join(map(str, lengths))} rows"
        raise InputError(f"table {name} has {held}: the same number of rows in every column is needed.")
    return lengths[0] if lengths else 0


def column_names(table: Any) -> list[str]:
    """Return the names of the columns, in order."""
    if isinstance(table, Mapping):
        return [str(key) for key in table]
    return [str(key) for key in (table.column_names if hasattr(table, "column_names") else table.columns)]


def column(name: str, table: Any, wanted: str) -> pa.Array:
    """Read one column of a table; refuse it if it is absent, exists twice, has more than one axis, or mixes kinds."""
    names = column_names(table)
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
        return array_of(table.column(names.index(wanted)), f"{name}.{wanted}")
    own = next(key for key in (table if isinstance(table, Mapping) else table.columns) if str(key) == wanted)
    return array_of(table[own], f"{name}.{wanted}")


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
    if kind == "O":
        return _of_objects(list(values), pa)
    if str(dtype) in ("datetime64[Y]", "datetime64[M]", "datetime64[W]", "datetime64[h]", "datetime64[m]"):
        values = values.astype("M8[s]" if str(dtype)[-2] in "hm" else "M8[D]")
    if isinstance(values, np.ma.MaskedArray):
        values, mask = values.data, np.ma.getmaskarray(values)
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

    coded = present(array).dictionary_encode(null_encoding="encode")
    order = pc.call_function("array_sort_indices", [coded.dictionary])
    place = np.empty(len(order), np.int32)
    place[order.to_numpy()] = np.arange(len(order))
    return coded.dictionary.take(order), place[coded.indices.to_numpy()]


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
