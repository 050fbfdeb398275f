"""Read arrays and columns: npz and Parquet."""

import io
import zipfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np

from jaxsvm.datasets.labels import coded, fault_of_label, fault_of_text, kept
from jaxsvm.datasets.layout import Layout, Piece, Place, Wanted
from jaxsvm.datasets.refusal import AGAIN, BadRow, as_number, fault_of, label_column, label_hint, rounded, rounds
from jaxsvm.datasets.text import compression_of, opened
from jaxsvm.errors import DataError, InputError, require_package
from jaxsvm.points.checks import is_sparse
from jaxsvm.runtime.checks import MAX_INT32

IMPUTE = "fill in what is missing (--impute mean), or leave the row or the column (--drop) out"


class _Faults(dict[int, tuple[str, str]]):
    """The first fault of each row of a piece that is no sample, and what to do about it."""

    def note(self, rows: Any, where: str, fault: Callable[[int], Any], advice: str = IMPUTE) -> None:
        """Note a fault of some rows, `(k,)`."""
        for row in rows.tolist():
            self.setdefault(row, (f"{where} {fault(row)}", advice))

    def piece(self, name: str, begin: int, x: Any, label: Any, file: int) -> Piece:
        """Return the rows without a fault, of a piece that begins at a row of a file."""
        damaged = [BadRow(f"{name}, row {begin + row} (from 0)", *self[row]) for row in sorted(self)]
        after = Place(file, begin + x.shape[0], 0)
        if damaged:
            good = np.ones(x.shape[0], bool)
            good[list(self)] = False
            x, label = x[good], kept(label, good)
        return Piece(x, label, after, damaged)


class Npz:
    """Arrays of the training or the test part, points dense or CSR, read at once.

    `label=False` reads points alone, and so does `optional` if the labels' key is missing.
    """

    def __init__(self, name: str, wanted: Wanted, part: str = "train"):
        """Read the arrays; refuse missing keys, shapes that do not agree, and damaged files."""
        self.name = name
        self.key_x, key_y = ("X", "y") if part == "train" else ("Xt", "yt")
        label, known = wanted.label, wanted.like.label
        if isinstance(label, int) and label is not False:
            raise InputError(f"label is {label}: in an npz file it is a key, such as 'y'.")
        key_y = label if isinstance(label, str) else key_y
        content = _seekable(name)
        try:
            with np.load(content, allow_pickle=False) as stored:
                if label is None and part == "train" and isinstance(known, str) and known in stored.files:
                    label = key_y = known  # a key that was asked for in training
                wants = [key for key in stored.files if key in (key_y, self.key_x) or key.startswith(f"{self.key_x}_")]
                arrays = {key: stored[key] for key in wants}
                keys = ", ".join(stored.files)
        except Exception as error:  # EOF, CRC, a bad header: damage shows in many ways
            if "allow_pickle" in str(error) and zipfile.is_zipfile(content):
                advice = "save numbers, and labels of text as np.asarray(y, str)"
                raise DataError(f"{name}: holds pickled objects, which are never loaded; {advice}.") from error
            raise DataError(f"{name}: not a whole npz file ({error}){AGAIN}") from error
        labelled = label is not False and (key_y in arrays or not wanted.optional)
        if labelled and key_y not in arrays:
            raise DataError(f"{name}: has no labels {key_y!r}; its keys are {keys}: name one (label=, --label).")
        self.key_y, y = key_y, arrays[key_y] if labelled else None
        self.unusable = np.zeros(0, int)  # entries of CSR points that are not finite or change as float64
        self.x = x = self._points(arrays, keys)
        if x.ndim != 2 or not x.shape[0] or not x.shape[1] or (y is not None and y.shape != x.shape[:1]):
            issue = "" if y is None else f" and {key_y} {y.shape}"
            raise DataError(f"{name}: {self.key_x} has shape {x.shape}{issue}; (n, d) and (n,) are needed, n, d >= 1.")
        if x.dtype.kind not in "biuf" or (y is not None and y.dtype.kind not in "biufUS"):
            issue = "" if y is None else f" and {key_y} {y.dtype}"
            raise DataError(f"{name}: {self.key_x} is {x.dtype}{issue}; numbers, and numbers or strings, are needed.")
        self.y, self.width = None if y is None else _text(name, key_y, y), x.shape[1]
        self.layout = Layout(label=label if isinstance(label, str) else None)
        self.notes = () if y is None else wanted.notes(self.layout.label, False, False)

    def _points(self, arrays: dict[str, np.ndarray], keys: str) -> Any:
        key_x, fields = self.key_x, ("data", "indices", "indptr", "shape")
        if key_x in arrays:
            return arrays[key_x]
        if all(f"{key_x}_{field}" in arrays for field in fields):
            stored = {field: arrays[f"{key_x}_{field}"] for field in fields}
            if stored["data"].dtype.kind not in "biuf":
                raise DataError(f"{self.name}: {key_x}_data is {stored['data'].dtype}; numbers are needed.")
            with np.errstate(invalid="ignore"):
                self.unusable = np.flatnonzero(~np.isfinite(stored["data"]) | rounded(stored["data"]))
            return _csr_of_arrays(self.name, stored)
        needed = f"{key_x}, or {key_x}_data, {key_x}_indices, {key_x}_indptr and {key_x}_shape"
        raise DataError(
            f"{self.name}: has no points: {needed} are needed, as in np.savez(file, X=x, y=y); its keys are {keys}."
        )

    def pieces(self, at: Place, step: int | None = None) -> Iterator[Piece]:
        """Yield all rows from a place on, `step` a piece; None: all at once."""
        n: int = self.x.shape[0]
        for begin in range(at.offset, n, step or n):
            rows, faults = slice(begin, min(begin + (step or n), n)), _Faults()
            x = self._floats(rows, faults)
            y = None if self.y is None else self.y[rows]
            if y is not None:
                wrong, where = np.flatnonzero(_no_labels(y)), f"the label ({self.key_y})"
                faults.note(wrong, where, partial(_fault_in, y), "remove the row or fill it in")
            yield faults.piece(self.name, begin, x, y, at.file)

    def _floats(self, rows: slice, faults: _Faults) -> Any:
        """Return the points as floats."""
        raw = self.x[rows]
        if is_sparse(self.x):
            for entry in self.unusable.tolist():
                row = int(np.searchsorted(self.x.indptr, entry, side="right")) - 1
                if rows.start <= row < rows.stop:
                    issue = f"column {self.x.indices[entry]} of {self.key_x} is {fault_of(self.x.data[entry])}"
                    faults.setdefault(row - rows.start, (issue, IMPUTE))
            raw.sum_duplicates()
            return raw
        x = _floats(raw)
        bad = ~np.isfinite(x) | rounded(raw)
        for row in np.flatnonzero(bad.any(axis=1)).tolist() if bad.any() else ():
            column = int(bad[row].argmax())
            faults[row] = (f"column {column} of {self.key_x} is {fault_of(raw[row, column])}", IMPUTE)
        return x


def _seekable(name: str) -> Any:
    if not compression_of(name):
        return name
    with opened(name) as file:
        return io.BytesIO(file.read())


def _floats(values: np.ndarray) -> np.ndarray:
    wide = np.result_type(values.dtype, np.float32)
    return values.astype(np.float64 if wide.itemsize > 8 else wide, copy=False)


def _text(name: str, key: str, y: np.ndarray) -> np.ndarray:
    """Decode labels that are bytes."""
    if y.dtype.kind != "S":
        return y
    try:
        return np.char.decode(y, "utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{name}: {key} holds bytes that are no UTF-8 text ({error}).") from error


def _no_labels(y: np.ndarray) -> np.ndarray:
    """Return which entries are no labels."""
    if y.dtype.kind in "biu":
        return np.zeros(len(y), bool)
    if y.dtype.kind == "f":
        return ~np.isfinite(y) | rounded(y)
    values, codes = np.unique(y, return_inverse=True)
    return _faulty(values.tolist(), fault_of_text)[codes]


def _fault_in(y: np.ndarray, row: int) -> str | None:
    return fault_of_text(str(y[row])) if y.dtype.kind == "U" else f"is {fault_of(y[row])}"


def _faulty(texts: Iterable[str], fault: Callable[[str], Any]) -> np.ndarray:
    return np.asarray([fault(text) is not None for text in texts], bool)


def _csr_of_arrays(name: str, fields: dict[str, np.ndarray]) -> Any:
    sparse = require_package("scipy.sparse", "reading sparse npz files")
    try:
        shape = tuple(fields["shape"].tolist())
        indices, indptr = _counted(fields["indices"], "indices", shape[1] - 1), fields["indptr"]
        indptr = _counted(indptr, "indptr", len(fields["data"]))
        x = sparse.csr_array((_floats(fields["data"]), indices, indptr), shape=shape)
        x.check_format(full_check=True)
    except (ValueError, TypeError, IndexError, OverflowError) as error:
        raise DataError(f"{name}: the CSR arrays do not fit together ({error}); write them again.") from error
    return x


def _counted(values: np.ndarray, what: str, last: int) -> np.ndarray:
    """Convert whole numbers from 0 to `last` to int32, checked before the cast, which would wrap them."""
    if last > MAX_INT32:
        raise ValueError(f"{what} may go to {last}: up to {MAX_INT32} can be counted")
    if values.dtype.kind not in "iu":
        raise ValueError(f"{what} are {values.dtype}: integers are needed")
    if values.size and not 0 <= int(values.min()) <= int(values.max()) <= last:
        raise ValueError(f"{what} go from {values.min()} to {values.max()}: from 0 to {last} is possible")
    return values.astype(np.int32)


def parquet_file(name: str, asked: Iterable[Any] = ()) -> tuple[Any, list[Any], tuple[str, ...]]:
    """Return an open Parquet file, its fields without pandas' index, and a note if that is a column.

    Args:
        name: The file.
        asked: Names that the caller or the training file gives to columns: none of them is left out.
    """
    parquet = require_package("pyarrow.parquet", "reading Parquet files")
    try:
        file = parquet.ParquetFile(_seekable(name))
        schema = file.schema_arrow
        written = (schema.pandas_metadata or {}).get("index_columns", [])
    except Exception as error:  # as above
        raise _damaged(name, error) from error
    if not file.metadata.num_rows:
        raise DataError(f"{name}: the table has no rows: it has no samples.")
    index = [key for key in written if isinstance(key, str) and key not in asked and key in schema.names]
    fields = [field for field in schema if field.name not in index]
    if not index:
        return file, fields, ()
    named = ", ".join(repr(key) for key in index if not key.startswith("__index_level_"))
    return file, fields, (f"the index that pandas wrote as a column is left out{named and f' ({named})'}",)


def _damaged(name: str, error: Exception) -> DataError:
    return DataError(f"{name}: not a whole Parquet file ({str(error).strip()}){AGAIN}")


class Parquet:
    """Dense points of a table, by its columns."""

    def __init__(self, name: str, wanted: Wanted):
        """Check the schema; refuse columns without numbers, other columns than in training, and damaged files."""
        self.name, self._pa = name, require_package("pyarrow", "reading Parquet files")
        self.file, fields, indices = parquet_file(name, wanted.asked)
        self.keys = keys = [field.name for field in fields]
        place = wanted.label_in(name, keys, len(keys))
        self.column = column = label_column(name, keys, len(keys), place)
        places = [i for i in range(len(keys)) if i != column]
        order = wanted.order(name, tuple(keys[i] for i in places))
        self.places = places if order is None else [places[i] for i in order]
        self.width = len(places)
        for i in self.places:
            self._require(fields[i].type, i, False, label_hint(keys[i], keys[-1]) if place is None else "")
        if column is not None:
            self._require(fields[column].type, column, True, "")
        key = None if column is None else keys[column]
        self.notes = indices + wanted.notes(key, column == len(keys) - 1, order is not None)
        self.layout = Layout(tuple(keys[i] for i in self.places), key)

    def _require(self, kind: Any, i: int, is_label: bool, hint: str) -> None:
        types = self._pa.types
        kind = kind.value_type if types.is_dictionary(kind) else kind
        numeric = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind)
        if not (numeric or is_label and self._is_text(kind)):
            encode = "encode it (--one-hot), or leave it out (--drop)"
            allowed = "numbers, booleans or strings" if is_label else f"numbers or booleans ({encode})"
            where = f"column {i} ({self.keys[i]})"
            raise DataError(f"{self.name}: {where} is of type {kind}; {allowed} are needed{hint}.")

    def _is_text(self, kind: Any) -> bool:
        types = self._pa.types
        view = getattr(types, "is_string_view", lambda kind: False)
        return types.is_string(kind) or types.is_large_string(kind) or view(kind)

    def pieces(self, at: Place, step: int | None = None) -> Iterator[Piece]:
        """Yield all rows from a place on, `step` a piece."""
        begin, batches = 0, self.file.iter_batches(*() if step is None else (step,), columns=self.keys)
        while True:
            try:
                batch = next(batches)
            except StopIteration:
                return
            except Exception as error:  # as above
                raise _damaged(self.name, error) from error
            if begin >= at.offset:
                yield self._piece(batch, begin, at.file)
            begin += len(batch)

    def _piece(self, batch: Any, begin: int, file: int) -> Piece:
        faults = _Faults()
        columns = [self._numbers(batch.column(i), i, faults) for i in self.places]
        label = None if self.column is None else self._labels(batch.column(self.column), self.column, faults)
        x = np.empty((len(batch), len(columns)), np.result_type(np.float32, *(values.dtype for values in columns)))
        for j, values in enumerate(columns):
            x[:, j] = values
        return faults.piece(self.name, begin, x, label, file)

    def _plain(self, values: Any, i: int, faults: _Faults) -> tuple[Any, np.ndarray, str]:
        if self._pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        null, where = values.is_null().to_numpy(zero_copy_only=False), f"column {i} ({self.keys[i]})"
        faults.note(np.flatnonzero(null), where, lambda row: "is missing")
        return values, null, where

    def _numbers(self, values: Any, i: int, faults: _Faults) -> np.ndarray:
        values, null, where = self._plain(values, i, faults)
        if self._pa.types.is_decimal(values.type):
            raw = ["0" if value is None else str(value) for value in values.to_pylist()]
            array = np.asarray([as_number(text) for text in raw], np.float64)
            wrong = np.asarray([rounds(t, v) for t, v in zip(raw, array.tolist(), strict=True)], bool)
        else:
            raw = _filled(values, null)
            array = _floats(raw)
            wrong = ~np.isfinite(array) | rounded(raw)
        faults.note(np.flatnonzero(wrong), where, lambda row: f"is {fault_of(raw[row])}")
        return array

    def _labels(self, values: Any, i: int, faults: _Faults) -> Any:
        values, null, where = self._plain(values, i, faults)
        decimal = self._pa.types.is_decimal(values.type)
        if not decimal and not self._is_text(values.type):
            array = _filled(values, null)
            faults.note(np.flatnonzero(_no_labels(array)), where, lambda row: f"is {fault_of(array[row])}")
            return array
        texts = ["" if value is None else str(value) for value in values.to_pylist()]
        fault, label = fault_of_label if decimal else fault_of_text, coded(texts)
        wrong = _faulty(label.values, fault)[label.codes] & ~null
        faults.note(np.flatnonzero(wrong), where, lambda row: fault(texts[row]))
        return label if decimal else np.asarray(label.values, dtype=str)[label.codes]


def _filled(values: Any, null: np.ndarray) -> np.ndarray:
    """Return a column as an array of its own type, 0 for missing values: NULLs would make floats of integers."""
    if null.any():
        values = values.cast("float32") if str(values.type) == "halffloat" else values
        values = values.fill_null(False if str(values.type) == "bool" else 0)
    return values.to_numpy(zero_copy_only=False)
