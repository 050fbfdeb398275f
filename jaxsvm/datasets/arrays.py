"""Read arrays with NumPy: npz files of points and labels, and npy files, which are mapped into memory."""

import io
from collections.abc import Iterator
from typing import Any

import numpy as np

from jaxsvm.datasets.labels import fault_of_text, rounded
from jaxsvm.datasets.layout import Faults, Layout, Piece, Wanted, choose
from jaxsvm.datasets.tables import FILL
from jaxsvm.datasets.text import compression_of, opened, told
from jaxsvm.errors import DataError, InputError, require_package
from jaxsvm.points.checks import is_sparse
from jaxsvm.runtime.checks import MAX_INT32


class Arrays:
    """Arrays of the training or the test part of an npz file, points dense or CSR; or the rows of an npy file.

    Attributes:
        name: The file.
        x: Points `(n, d)`.
        y: Labels `(n,)`, or None.
        layout: The key of the labels, if one was asked for; of npy their column.
        notes: What was decided.
    """

    def __init__(self, name: str, kind: str, wanted: Wanted, part: str = "train") -> None:
        """Read the arrays; refuse missing keys, shapes that do not agree, and damaged files."""
        self.name, self.notes = name, ()
        x, y = self._of_rows(wanted) if kind == "npy" else self._of_archive(wanted, part)
        if x.ndim != 2 or not x.shape[1] or (y is not None and y.shape != x.shape[:1]):
            issue = "" if y is None else f" and {self.key_y} {y.shape}"
            raise DataError(f"{name}: {self.key_x} has shape {x.shape}{issue}; (n, d) and (n,) are needed, d >= 1.")
        if x.dtype.kind not in "biuf" or (y is not None and y.dtype.kind not in "biufUS"):
            issue = "" if y is None else f" and {self.key_y} {y.dtype}"
            raise DataError(f"{name}: {self.key_x} is {x.dtype}{issue}; numbers, and numbers or strings, are needed.")
        with told(name):
            self.y = np.char.decode(y, "utf-8") if y is not None and y.dtype.kind == "S" else y
        self.x, self.features = x, range(x.shape[1])

    def _of_rows(self, wanted: Wanted) -> tuple[Any, Any]:
        """Return the columns of an array of rows."""
        with told(self.name):
            rows = np.load(self.name, mmap_mode="r", allow_pickle=False)
        if rows.ndim != 2:
            raise DataError(f"{self.name}: has shape {rows.shape}; rows of features and a label are needed.")
        self.key_x = self.key_y = "the array"
        features, label, _, self.layout, self.notes = choose(self.name, None, rows.shape[1], wanted)
        return (rows[:, features] if label is not None else rows), None if label is None else rows[:, label]

    def _of_archive(self, wanted: Wanted, part: str) -> tuple[Any, Any]:
        """Return the arrays of an archive."""
        self.key_x, key_y = ("X", "y") if part == "train" else ("Xt", "yt")
        label, known = wanted.label, wanted.like.label
        if isinstance(label, int) and label is not False:
            raise InputError(f"label is {label}: in an npz file it is a key, such as 'y'.")
        with opened(self.name) as file:
            content = io.BytesIO(file.read()) if compression_of(self.name) else self.name
        with told(self.name), np.load(content, allow_pickle=False) as stored:
            if label is None and part == "train" and isinstance(known, str) and known in stored.files:
                label = known  # a key that was asked for in training
            self.key_y = key_y = label if isinstance(label, str) else key_y
            wants = [key for key in stored.files if key in (key_y, self.key_x) or key.startswith(f"{self.key_x}_")]
            arrays, keys = {key: stored[key] for key in wants}, ", ".join(stored.files)
        self.layout = Layout(label=label if isinstance(label, str) else None)
        labelled = label is not False and (key_y in arrays or not wanted.optional)
        if labelled and key_y not in arrays:
            raise DataError(f"{self.name}: has no labels {key_y!r}; its keys are {keys}: name one (label=, --label).")
        if labelled and wanted.label is None and self.layout.label is not None:
            self.notes = (f"labels are in column {self.layout.label!r}, as in {wanted.whose}",)
        y, fields = arrays[key_y] if labelled else None, [f"{self.key_x}_{part}" for part in CSR]
        if self.key_x in arrays:
            return arrays[self.key_x], y
        if all(field in arrays for field in fields):
            return self._csr(*(arrays[field] for field in fields)), y
        needed = f"{self.key_x}, or {', '.join(fields)}"
        raise DataError(
            f"{self.name}: has no points: {needed} are needed, as in np.savez(file, X=x, y=y); its keys are {keys}."
        )

    def _csr(self, data: np.ndarray, indices: np.ndarray, indptr: np.ndarray, shape: np.ndarray) -> Any:
        sparse = require_package("scipy.sparse", "reading sparse npz files")
        try:
            n, d = shape.tolist()
            if d > MAX_INT32 or {indices.dtype.kind, indptr.dtype.kind} - set("iu"):
                raise ValueError(f"indices are {indices.dtype} of {d} columns: integers below 2**31 are needed")
            x = sparse.csr_array((data, indices, indptr), shape=(n, d))
            x.check_format(full_check=True)
        except (ValueError, TypeError, IndexError, OverflowError) as error:
            raise DataError(f"{self.name}: the CSR arrays do not fit together ({error}); write them again.") from error
        return x

    def pieces(self, step: int | None = None) -> Iterator[Piece]:
        """Yield all rows, `step` a piece; None: all at once."""
        n = self.x.shape[0]
        for begin in range(0, n, step or max(n, 1)):
            yield self._piece(begin, min(begin + (step or n), n))

    def _piece(self, begin: int, end: int) -> Piece:
        raw, faults = self.x[begin:end], Faults()
        entries, columns = (raw.data, raw.indices) if is_sparse(raw) else (np.asarray(raw), None)
        with np.errstate(over="ignore"):
            wide = np.result_type(entries.dtype, np.float32)
            values = entries.astype(np.float64 if wide.itemsize > 8 else wide)
        bad = ~np.isfinite(values) | rounded(entries)
        if columns is None:
            x, (rows, places), found = values, np.nonzero(bad), entries[bad]
        else:
            x = type(raw)((values, columns, raw.indptr), shape=raw.shape)
            x.sum_duplicates()
            places, found = columns[bad], entries[bad]
            rows = np.searchsorted(raw.indptr, np.flatnonzero(bad), side="right") - 1
        for row, column, value in zip(rows.tolist(), places.tolist(), found.tolist(), strict=True):
            faults.setdefault(row, f"column {column} of {self.key_x} is {_fault_of(value)}; {FILL}")
        y = None if self.y is None else np.asarray(self.y[begin:end])
        if y is not None and y.dtype.kind == "U":
            texts, codes = np.unique(y, return_inverse=True)
            found = [fault_of_text(text) for text in texts.tolist()]
            wrong = np.asarray([fault is not None for fault in found], bool)[codes]
            faults.note(wrong, lambda row: f"the label ({self.key_y}) {found[codes[row]]}; remove the row")
        elif y is not None:
            wrong = rounded(y) if y.dtype.kind in "biu" else ~np.isfinite(y) | rounded(y)
            wrong = wrong & (y.dtype.kind == "f")  # whole labels stay whole
            faults.note(wrong, lambda row: f"the label ({self.key_y}) is {_fault_of(y[row])}; remove the row")
        return faults.piece(x, y, lambda row: f"{self.name}, row {begin + row} (from 0)")


CSR = ("data", "indices", "indptr", "shape")


def _fault_of(value: Any) -> str:
    return f"{value}, which float64 does not hold" if np.isfinite(value) else f"{value}"
