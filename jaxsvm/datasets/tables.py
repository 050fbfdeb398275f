"""Arrays and columns: npz and Parquet."""

import io
import zipfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from jaxsvm.datasets.labels import Texts, fault_of_label, fault_of_text, kept
from jaxsvm.datasets.layout import Layout, Piece, Place, Wanted
from jaxsvm.datasets.numbers import as_number, fault_of, rounded, rounds
from jaxsvm.datasets.refusal import AGAIN, BadRow, label_column, label_hint, need
from jaxsvm.datasets.text import compression_of, opened
from jaxsvm.errors import DataError, InputError
from jaxsvm.points.checks import is_sparse
from jaxsvm.runtime.checks import MAX_INT32

ROWS = 1 << 16
"""Rows a piece."""


class Npz:
    """Arrays of the training or the test part, points dense or CSR; they are read at once.

    `label=False` reads points alone, and so does `optional` where the labels' key is not there.
    """

    def __init__(self, name: str, wanted: Wanted, part: str = "train"):
        """Look at all of it.

        Raises:
            DataError: Where keys are missing, shapes do not agree, or the file is damaged.
        """
        self.name = name
        self.key_x, key_y = ("X", "y") if part == "train" else ("Xt", "yt")
        label, known = wanted.label, wanted.like.label
        if isinstance(label, int) and label is not False:
            raise InputError(f"label is {label}: in an npz file it is a key, such as 'y'.")
        key_y = label if isinstance(label, str) else key_y
        content = _whole(name)
        try:
            with np.load(content, allow_pickle=False) as stored:
                if label is None and part == "train" and isinstance(known, str) and known in stored.files:
                    label = key_y = known  # a key that was asked for in training
                wants = [key for key in stored.files if key in (key_y, self.key_x) or key.startswith(f"{self.key_x}_")]
                arrays = {key: stored[key] for key in wants}
                keys = ", ".join(stored.files)
        except Exception as error:  # EOF, CRC, a bad header: damage shows itself in many ways
            if "allow_pickle" in str(error) and zipfile.is_zipfile(content):
                raise DataError(
                    f"{name}: holds pickled objects, which are never loaded; save numeric arrays."
                ) from error
            raise DataError(f"{name}: not a whole npz file ({error}){AGAIN}") from error
        labelled = label is not False and (key_y in arrays or not wanted.optional)
        if labelled and key_y not in arrays:
            raise DataError(f"{name}: has no labels {key_y!r}; its keys are {keys}.")
        self.key_y, y = key_y, arrays[key_y] if labelled else None
        self.x = x = self._points(arrays, keys)
        if x.ndim != 2 or not x.shape[0] or not x.shape[1] or (y is not None and y.shape != x.shape[:1]):
            found = "" if y is None else f" and {key_y} {y.shape}"
            raise DataError(f"{name}: {self.key_x} has shape {x.shape}{found}; (n, d) and (n,) are needed, n, d >= 1.")
        if x.dtype.kind not in "biuf" or (y is not None and y.dtype.kind not in "biufUS"):
            found = "" if y is None else f" and {key_y} {y.dtype}"
            raise DataError(f"{name}: {self.key_x} is {x.dtype}{found}; numbers, and numbers or strings, are needed.")
        self.y, self.width = None if y is None else _text(name, key_y, y), x.shape[1]
        self.layout = Layout(label=label if isinstance(label, str) else None)
        self.notes = () if y is None else wanted.notes(self.layout.label, False, False)

    strange: np.ndarray = np.zeros(0, int)
    """Entries of CSR points that are no numbers, or not those that float64 holds."""

    def _points(self, arrays: dict[str, np.ndarray], keys: str) -> Any:
        key_x, fields = self.key_x, ("data", "indices", "indptr", "shape")
        if key_x in arrays:
            return arrays[key_x]
        if all(f"{key_x}_{field}" in arrays for field in fields):
            stored = {field: arrays[f"{key_x}_{field}"] for field in fields}
            if stored["data"].dtype.kind not in "biuf":
                raise DataError(f"{self.name}: {key_x}_data is {stored['data'].dtype}; numbers are needed.")
            with np.errstate(invalid="ignore"):
                self.strange = np.flatnonzero(~np.isfinite(stored["data"]) | rounded(stored["data"]))
            return _csr_of_arrays(self.name, stored)
        needed = f"{key_x}, or {key_x}_data, {key_x}_indices, {key_x}_indptr and {key_x}_shape"
        raise DataError(f"{self.name}: has no points: {needed} are needed; its keys are {keys}.")

    def pieces(self, at: Place, step: int | None = None) -> Iterator[Piece]:
        """All rows from a place on, so many a piece; None: all of them."""
        n: int = self.x.shape[0]
        for begin in range(at.offset, n, n if step is None else step):
            rows = slice(begin, min(begin + (n if step is None else step), n))
            faults, x = self._faults(begin, rows)
            y = None if self.y is None else self.y[rows]
            if y is not None:
                for row in np.flatnonzero(_strange(y)):
                    fault = fault_of_text(str(y[row])) if y.dtype.kind == "U" else f"is {fault_of(y[row])}"
                    found = f"the label ({self.key_y}) {fault}"
                    faults.setdefault(begin + int(row), (found, "remove the row or fill it in"))
            damaged = [BadRow(f"{self.name}, row {i} (from 0)", *faults[i]) for i in sorted(faults)]
            good = np.ones(x.shape[0], bool)
            good[[i - begin for i in faults]] = False
            x, y = (x, y) if good.all() else (x[good], kept(y, good))
            yield Piece(x, y, Place(at.file, rows.stop, 0), damaged)

    def _faults(self, begin: int, rows: slice) -> tuple[dict[int, tuple[str, str]], Any]:
        """What is wrong with rows, and the points as floats."""
        faults: dict[int, tuple[str, str]] = {}
        if is_sparse(self.x):
            x = self.x[rows]
            for entry in self.strange.tolist():
                row = int(np.searchsorted(self.x.indptr, entry, side="right")) - 1
                if rows.start <= row < rows.stop:
                    found = f"column {self.x.indices[entry]} of {self.key_x} is {fault_of(self.x.data[entry])}"
                    faults.setdefault(row, (found, "remove or impute it first"))
            x.sum_duplicates()
            return faults, x
        raw = self.x[rows]
        x = _floats(raw)
        bad = ~np.isfinite(x) | rounded(raw)
        for row in np.flatnonzero(bad.any(axis=1)) if bad.any() else ():
            column = int(bad[row].argmax())
            found = f"column {column} of {self.key_x} is {fault_of(raw[row, column])}"
            faults[begin + int(row)] = (found, "remove or impute it first")
        return faults, x


def _whole(name: str) -> Any:
    """A file that is read from any place."""
    if not compression_of(name):
        return name
    with opened(name) as file:
        return io.BytesIO(file.read())


def _floats(values: np.ndarray) -> np.ndarray:
    """Numbers as the smallest float, of four bytes at least and eight at most, that holds them."""
    wide = np.result_type(values.dtype, np.float32)
    return values.astype(np.float64 if wide.itemsize > 8 else wide, copy=False)


def _text(name: str, key: str, y: np.ndarray) -> np.ndarray:
    """Labels, bytes as text."""
    if y.dtype.kind != "S":
        return y
    try:
        return np.char.decode(y, "utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{name}: {key} holds bytes that are no UTF-8 text ({error}).") from error


def _strange(y: np.ndarray) -> np.ndarray:
    """Where a label is none."""
    if y.dtype.kind in "biu":
        return np.zeros(len(y), bool)
    if y.dtype.kind == "f":
        return ~np.isfinite(y) | rounded(y)
    values, codes = np.unique(y, return_inverse=True)
    return np.asarray([fault_of_text(text) is not None for text in values.tolist()], bool)[codes]


def _csr_of_arrays(name: str, fields: dict[str, np.ndarray]) -> Any:
    sparse = need("scipy.sparse", "scipy", "sparse npz")
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
    """Whole numbers from 0 to `last` as int32: looked at before the cast, which would wrap them."""
    if last > MAX_INT32:
        raise ValueError(f"{what} may go to {last}: up to {MAX_INT32} can be counted")
    if values.dtype.kind not in "iu":
        raise ValueError(f"{what} are {values.dtype}: integers are needed")
    if values.size and not 0 <= int(values.min()) <= int(values.max()) <= last:
        raise ValueError(f"{what} go from {values.min()} to {values.max()}: from 0 to {last} is possible")
    return values.astype(np.int32)


class Parquet:
    """Dense points of a table, by its columns.

    Attributes:
        layout: The columns.
    """

    def __init__(self, name: str, wanted: Wanted):
        """Look at its schema.

        Raises:
            DataError: Where a column holds no numbers, the columns are not those of the training file, or the file is
                damaged.
        """
        self.name, self._pa = name, need("pyarrow", "pyarrow", "Parquet")
        parquet = need("pyarrow.parquet", "pyarrow", "Parquet")
        try:
            self.file = parquet.ParquetFile(_whole(name))
            schema = self.file.schema_arrow
        except Exception as error:  # as above
            raise DataError(f"{name}: not a whole Parquet file ({str(error).strip()}){AGAIN}") from error
        if not self.file.metadata.num_rows:
            raise DataError(f"{name}: the table has no rows: it has no samples.")
        self.keys = keys = schema.names
        if "__index_level_0__" in keys:
            raise DataError(f"{name}: holds the index of a pandas table as a column; write it with index=False.")
        place = wanted.label_in(name, keys, len(keys))
        self.column = column = label_column(name, keys, len(keys), place)
        places = [i for i in range(len(keys)) if i != column]
        order = wanted.order(name, tuple(keys[i] for i in places))
        self.places = places if order is None else [places[i] for i in order]
        self.width = len(places)
        for i in self.places:
            self._require(schema.field(i).type, i, False, label_hint(keys[i], keys[-1]) if place is None else "")
        if column is not None:
            self._require(schema.field(column).type, column, True, "")
        key = None if column is None else keys[column]
        self.notes = wanted.notes(key, column == len(keys) - 1, order is not None)
        self.layout = Layout(tuple(keys[i] for i in self.places), key)

    def _require(self, kind: Any, i: int, is_label: bool, hint: str) -> None:
        types = self._pa.types
        kind = kind.value_type if types.is_dictionary(kind) else kind
        numeric = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind)
        if not (numeric or is_label and self._is_text(kind)):
            allowed = "numbers, booleans or strings" if is_label else "numbers or booleans (encode it, or leave it out)"
            where = f"column {i} ({self.keys[i]})"
            raise DataError(f"{self.name}: {where} is of type {kind}; {allowed} are needed{hint}.")

    def _is_text(self, kind: Any) -> bool:
        types = self._pa.types
        view = getattr(types, "is_string_view", lambda kind: False)
        return types.is_string(kind) or types.is_large_string(kind) or view(kind)

    def pieces(self, at: Place, step: int | None = None) -> Iterator[Piece]:
        """All rows from a place on."""
        begin = 0
        for batch in self._batches(step or ROWS):
            if begin >= at.offset:
                yield self._piece(batch, begin, at.file)
            begin += len(batch)

    def _batches(self, step: int) -> Iterator[Any]:
        batches = self.file.iter_batches(step)
        while True:
            try:
                batch = next(batches)
            except StopIteration:
                return
            except Exception as error:  # as above
                raise DataError(f"{self.name}: not a whole Parquet file ({str(error).strip()}){AGAIN}") from error
            yield batch

    def _piece(self, batch: Any, begin: int, file: int) -> Piece:
        faults: dict[int, tuple[str, str]] = {}
        columns = [self._numbers(batch.column(i), i, faults) for i in self.places]
        label = None if self.column is None else self._labels(batch.column(self.column), self.column, faults)
        x = np.empty((len(batch), len(columns)), np.result_type(np.float32, *(values.dtype for values in columns)))
        for j, values in enumerate(columns):
            x[:, j] = values
        good = np.ones(len(batch), bool)
        good[list(faults)] = False
        damaged = [BadRow(f"{self.name}, row {begin + i} (from 0)", *faults[i]) for i in sorted(faults)]
        if damaged:
            x, label = x[good], kept(label, good)
        return Piece(x, label, Place(file, begin + len(batch), 0), damaged)

    def _plain(self, values: Any) -> tuple[Any, np.ndarray]:
        """A column without a dictionary, and where it has no value."""
        if self._pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        return values, values.is_null().to_numpy(zero_copy_only=False)

    def _note(self, faults: Any, rows: Any, i: int, what: Any) -> None:
        for row in rows.tolist():
            found = f"column {i} ({self.keys[i]}) is {what(row)}"
            faults.setdefault(row, (found, "remove or impute it first"))

    def _numbers(self, values: Any, i: int, faults: Any) -> np.ndarray:
        values, null = self._plain(values)
        self._note(faults, np.flatnonzero(null), i, lambda row: "missing")
        if self._pa.types.is_decimal(values.type):
            texts = ["0" if value is None else str(value) for value in values.to_pylist()]
            array = np.asarray([as_number(text) for text in texts], np.float64)
            wrong = np.asarray([rounds(t, v) for t, v in zip(texts, array.tolist(), strict=True)], bool)
            self._note(faults, np.flatnonzero(wrong), i, lambda row: fault_of(texts[row]))
            return array
        raw = _filled(values, null)
        array = _floats(raw)
        self._note(faults, np.flatnonzero(~np.isfinite(array) | rounded(raw)), i, lambda row: fault_of(raw[row]))
        return array

    def _labels(self, values: Any, i: int, faults: Any) -> Any:
        values, null = self._plain(values)
        self._note(faults, np.flatnonzero(null), i, lambda row: "missing")
        if self._pa.types.is_decimal(values.type) or self._is_text(values.type):
            decimal = self._pa.types.is_decimal(values.type)
            texts = ["" if value is None else str(value) for value in values.to_pylist()]
            places: dict[str, int] = {}
            codes = np.asarray([places.setdefault(text, len(places)) for text in texts], int)
            fault = fault_of_label if decimal else fault_of_text
            strange = np.asarray([fault(text) is not None for text in places], bool)[codes] & ~null
            for row in np.flatnonzero(strange).tolist():
                found = f"column {i} ({self.keys[i]}) {fault(texts[row])}"
                faults.setdefault(row, (found, "remove or impute it first"))
            return Texts(list(places), codes) if decimal else np.asarray(list(places), dtype=str)[codes]
        array = _filled(values, null)
        self._note(faults, np.flatnonzero(_strange(array)), i, lambda row: fault_of(array[row]))
        return array


def _filled(values: Any, null: np.ndarray) -> np.ndarray:
    """A column as an array of its own type, with 0 where it has no value: NULLs would make floats of integers."""
    if null.any():
        values = values.cast("float32") if str(values.type) == "halffloat" else values
        values = values.fill_null(False if str(values.type) == "bool" else 0)
    return values.to_numpy(zero_copy_only=False)
