"""Columns of a table, whatever holds it: pandas, Arrow, a dict of arrays, or a Parquet or CSV file.

A column becomes one NumPy array of numbers, strings or dates, and a mask of what is missing in it. Nothing else of a
table is looked at, and only the columns that are asked for are converted.
"""

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from jaxsvm.errors import InputError

NUMERIC = "fiu"
CATEGORICAL = "bUM"


class Column(NamedTuple):
    """One column.

    Attributes:
        values: Numbers, booleans, strings or dates, `(n,)`; anything where `missing`.
        missing: Which are missing, bool `(n,)`.
    """

    values: np.ndarray
    missing: np.ndarray


def opened(name: str, table: Any) -> Any:
    """A table whose columns can be asked for: a path is read (Parquet, CSV), everything else is itself.

    Raises:
        InputError: On a file that is absent or of another kind, or something that is no table.
    """
    if isinstance(table, str | os.PathLike):
        return _read(name, os.fspath(table))
    if isinstance(table, Mapping) or hasattr(table, "columns"):
        return table
    raise InputError(
        f"tables[{name!r}] is a {type(table).__name__}: a pandas or Arrow table, a dict of arrays, or the path of a "
        "Parquet or CSV file is needed."
    )


def column_names(table: Any) -> list[str]:
    """The names of the columns, in order."""
    if isinstance(table, Mapping):
        return [str(key) for key in table]
    return [str(key) for key in (table.column_names if hasattr(table, "column_names") else table.columns)]


def column(name: str, table: Any, wanted: str) -> Column:
    """One column of a table.

    Raises:
        InputError: On a column that is absent, has more than one axis, or holds something else than numbers, booleans,
            strings or dates.
    """
    if wanted not in column_names(table):
        raise InputError(f"table {name} has no column {wanted}; it has {', '.join(column_names(table)[:20])}.")
    found = table.column(wanted) if hasattr(table, "column_names") else table[wanted]
    if hasattr(found, "combine_chunks"):  # Arrow: a copy only where there are nulls or strings
        missing = found.is_null().to_numpy() if found.null_count else None
        values = found.to_numpy()
    elif hasattr(found, "isna"):  # pandas
        missing = found.isna().to_numpy()
        values = found.to_numpy()
    else:
        missing = np.ma.getmaskarray(found) if isinstance(found, np.ma.MaskedArray) else None
        values = np.asarray(found.data if isinstance(found, np.ma.MaskedArray) else found)
    if values.ndim != 1:
        raise InputError(f"column {wanted} of table {name} has shape {values.shape}: one value a row is needed.")
    return _cleaned(f"{name}.{wanted}", values, missing)


def _cleaned(where: str, values: np.ndarray, missing: np.ndarray | None) -> Column:
    if values.dtype.kind == "O":
        absent = np.array([value is None or value != value for value in values], bool)
        missing = absent if missing is None else missing | absent
        present = values[~missing]
        kinds = {type(value) for value in present[:: max(1, len(present) // 1000)]}
        if kinds and not any(issubclass(kind, str) for kind in kinds):
            try:
                plain = np.asarray(present.tolist())
            except ValueError:
                plain = present
            if plain.dtype.kind not in NUMERIC + CATEGORICAL:
                plain = np.asarray([str(value) for value in present])  # decimals, UUIDs and their like
        else:
            plain = present.astype(str)
        values = np.zeros(len(missing), plain.dtype if len(plain) else np.dtype("U1"))
        values[~missing] = plain
    if values.dtype.kind == "S":
        values = values.astype(str)
    if values.dtype.kind == "T":
        values = values.astype(str)
    if values.dtype.kind not in NUMERIC + CATEGORICAL:
        raise InputError(f"column {where} has dtype {values.dtype}: numbers, booleans, strings or dates are needed.")
    found = np.isnan(values) if values.dtype.kind == "f" else np.isnat(values) if values.dtype.kind == "M" else None
    missing = np.zeros(len(values), bool) if missing is None else np.asarray(missing, bool)
    return Column(values, missing if found is None else missing | found)


def _read(name: str, path: str) -> Any:
    if not os.path.exists(path):
        raise InputError(f"tables[{name!r}] is {path!r}: there is no such file.")
    try:
        import pyarrow.csv
        import pyarrow.parquet
    except ImportError as error:
        raise InputError("reading files of tables needs pyarrow: pip install 'jaxsvm[relational]'") from error
    kind = path.lower().removesuffix(".gz")
    try:
        if kind.endswith((".parquet", ".pq")):
            return pyarrow.parquet.read_table(path)
        if kind.endswith((".csv", ".txt")):
            options = pyarrow.csv.ConvertOptions(strings_can_be_null=True, null_values=["", "NA", "NaN", "NULL"])
            return pyarrow.csv.read_csv(path, convert_options=options)
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise InputError(f"tables[{name!r}], the file {path!r}, cannot be read: {error}") from None
    raise InputError(f"tables[{name!r}] is {path!r}: a .parquet or .csv file is needed.")
