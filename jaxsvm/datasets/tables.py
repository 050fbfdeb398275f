"""Readers of arrays and columns: npz and Parquet."""

import io
import zipfile
from typing import Any

import numpy as np

from jaxsvm.datasets.layout import Layout, Read, Wanted
from jaxsvm.datasets.refusal import AGAIN, label_column, label_hint, need
from jaxsvm.errors import DataError, InputError, require_finite
from jaxsvm.points import MAX_INT32, is_sparse


def read_npz(name: str, content: bytes, wanted: Wanted, part: str) -> Read:
    """Points, dense or CSR, and labels, of the training or the test part.

    `label=False` reads points alone, and so does `optional` where the labels' key is not there.

    Raises:
        DataError: Where keys are missing, shapes do not agree, or the file is damaged.
    """
    key_x, key_y = ("X", "y") if part == "train" else ("Xt", "yt")
    label, known = wanted.label, wanted.like.label
    if isinstance(label, int) and label is not False:
        raise InputError(f"label is {label}: in an npz file it is a key, such as 'y'.")
    key_y = label if isinstance(label, str) else key_y
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as stored:
            if label is None and part == "train" and isinstance(known, str) and known in stored.files:
                label = key_y = known  # a key that was asked for in training
            arrays = {key: stored[key] for key in stored.files if key in (key_y, key_x) or key.startswith(f"{key_x}_")}
            keys = ", ".join(stored.files)
    except Exception as error:  # EOF, CRC, a bad header: damage shows itself in many ways
        if "allow_pickle" in str(error) and zipfile.is_zipfile(io.BytesIO(content)):
            raise DataError(f"{name}: holds pickled objects, which are never loaded; save numeric arrays.") from error
        raise DataError(f"{name}: not a whole npz file ({error}){AGAIN}") from error
    labelled = label is not False and (key_y in arrays or not wanted.optional)
    if labelled and key_y not in arrays:
        raise DataError(f"{name}: has no labels {key_y!r}; its keys are {keys}.")
    if key_x in arrays:
        x = arrays[key_x]
    elif all(f"{key_x}_{field}" in arrays for field in ("data", "indices", "indptr", "shape")):
        x = _csr_of_arrays(
            name, {field: arrays[f"{key_x}_{field}"] for field in ("data", "indices", "indptr", "shape")}
        )
    else:
        needed = f"{key_x}, or {key_x}_data, {key_x}_indices, {key_x}_indptr and {key_x}_shape"
        raise DataError(f"{name}: has no points: {needed} are needed; its keys are {keys}.")
    y = arrays[key_y] if labelled else None
    if x.ndim != 2 or not x.shape[0] or not x.shape[1] or (y is not None and y.shape != x.shape[:1]):
        found = "" if y is None else f" and {key_y} {y.shape}"
        raise DataError(f"{name}: {key_x} has shape {x.shape}{found}; (n, d) and (n,) are needed, n, d >= 1.")
    if x.dtype.kind not in "biuf" or (y is not None and y.dtype.kind not in "biufUS"):
        found = "" if y is None else f" and {key_y} {y.dtype}"
        raise DataError(f"{name}: {key_x} is {x.dtype}{found}; numbers, and numbers or strings, are needed.")
    _refuse_not_finite(name, key_x, x.data if is_sparse(x) else x)
    layout = Layout(label=label if isinstance(label, str) else None)
    if y is None:
        return Read(x, None, layout)
    _refuse_not_finite(name, key_y, y)
    return Read(x, _wide_labels(y), layout, wanted.notes(layout.label, False, False))


def _csr_of_arrays(name: str, fields: dict[str, np.ndarray]) -> Any:
    sparse = need("scipy.sparse", "scipy", "sparse npz")
    try:
        shape = tuple(fields["shape"].tolist())
        indices, indptr = _counted(fields["indices"], "indices", shape[1] - 1), fields["indptr"]
        indptr = _counted(indptr, "indptr", len(fields["data"]))
        x = sparse.csr_array((fields["data"], indices, indptr), shape=shape)
        x.check_format(full_check=True)
    except (ValueError, TypeError, IndexError) as error:
        raise DataError(f"{name}: the CSR arrays do not fit together ({error}); write them again.") from error
    x.sum_duplicates()
    return x


def _counted(values: np.ndarray, what: str, last: int) -> np.ndarray:
    """Whole numbers from 0 to `last` as int32: looked at before the cast, which would wrap them."""
    if last > MAX_INT32:
        raise ValueError(f"{what} may go to {last}: up to {MAX_INT32} can be counted")
    if values.dtype.kind not in "iu":
        raise ValueError(f"{what} are {values.dtype}: integers are needed")
    if values.size and not 0 <= int(values.min()) <= int(values.max()) <= last:
        raise ValueError(f"{what} go from {values.min()} to {values.max()}: from 0 to {last} is possible")
    return values.astype(np.int32)


def _wide_labels(y: np.ndarray) -> np.ndarray:
    """Small integers become int64, so that arithmetic on labels cannot overflow; bytes become text."""
    if y.dtype.kind in "iu":
        return y.astype(np.int64)
    return y.astype(str) if y.dtype.kind == "S" else y


def _refuse_not_finite(name: str, key: str, values: np.ndarray) -> None:
    try:
        require_finite(key, values)
    except InputError as error:
        raise DataError(f"{name}: {error}") from error


def read_parquet(name: str, content: bytes, wanted: Wanted) -> Read:
    """Dense points, labels, and the names of the columns.

    Raises:
        DataError: Where a column holds no numbers or a missing one, the columns are not those of the training file, or
            the file is damaged.
    """
    pa = need("pyarrow", "pyarrow", "Parquet")
    parquet = need("pyarrow.parquet", "pyarrow", "Parquet")
    try:
        table = parquet.read_table(io.BytesIO(content))
    except Exception as error:  # as above
        raise DataError(f"{name}: not a whole Parquet file ({str(error).strip()}){AGAIN}") from error
    if not table.num_rows:
        raise DataError(f"{name}: the table has no rows: it has no samples.")
    if "__index_level_0__" in table.column_names:
        raise DataError(f"{name}: holds the index of a pandas table as a column; write it with index=False.")
    keys = table.column_names
    place = wanted.label_in(name, keys, len(keys))
    column = label_column(name, keys, len(keys), place)
    places = [i for i in range(len(keys)) if i != column]
    names = tuple(keys[i] for i in places)
    order = wanted.order(name, names)
    places = places if order is None else [places[i] for i in order]
    hints = {i: label_hint(keys[i], keys[-1]) for i in places} if place is None else {}
    columns = [_parquet_column(name, pa, table, i, False, hints.get(i, "")) for i in places]
    y = None if column is None else _wide_labels(_parquet_column(name, pa, table, column, True))
    x = np.empty((table.num_rows, len(columns)), np.result_type(np.float32, *(values.dtype for values in columns)))
    for j, values in enumerate(columns):
        x[:, j] = values
    key = None if column is None else keys[column]
    notes = wanted.notes(key, column == len(keys) - 1, order is not None)
    return Read(x, y, Layout(tuple(keys[i] for i in places), key), notes)


def _parquet_column(name: str, pa: Any, table: Any, i: int, is_label: bool, hint: str = "") -> np.ndarray:
    values, where = table.column(i), f"column {i} ({table.column_names[i]})"
    if values.null_count:
        row = values.is_null().to_numpy().argmax()
        raise DataError(f"{name}, row {row} (from 0): {where} is missing; remove or impute it first.")
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if pa.types.is_decimal(values.type):
        values = values.cast(pa.float64())
    kind = values.type
    numeric = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    if is_label and (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return np.asarray(values.to_pylist(), dtype=str)
    if not numeric:
        allowed = "numbers, booleans or strings" if is_label else "numbers or booleans (encode it, or leave it out)"
        raise DataError(f"{name}: {where} is of type {kind}; {allowed} are needed{hint}.")
    array = values.to_numpy()
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        row = int((~np.isfinite(array)).argmax())
        raise DataError(f"{name}, row {row} (from 0): {where} is {array[row]}; remove or impute it first.")
    return array
