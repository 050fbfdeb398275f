"""Make pieces of rows from anything: files of one kind of rows one after another, or a frame.

Columns of the other files are put in the order of the first by name, or refused. Files without rows are passed over.
"""

import dataclasses
import glob
import io
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from jaxsvm.datasets.labels import Texts, fault_of_text, of_texts, rounded
from jaxsvm.datasets.layout import Faults, Layout, Piece, Wanted, choose
from jaxsvm.datasets.scaling import Moments
from jaxsvm.datasets.tables import FILL, Delimited, Typed
from jaxsvm.datasets.text import Svmlight, compression_of, opened, told
from jaxsvm.errors import DataError, InputError, require_package
from jaxsvm.gram.measured import MEASURED
from jaxsvm.points.rows import is_sparse
from jaxsvm.runtime.arrays import MAX_INT32


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


FORMATS = {
    "svmlight": (".svm", ".svmlight", ".libsvm", ".txt"), "csv": (".csv", ".tsv"), "npz": (".npz",), "npy": (".npy",),
    "parquet": (".parquet", ".pq"), "feather": (".feather", ".arrow", ".ipc"),
}  # fmt: skip
TABLES = ("csv", "parquet", "feather", "frame")
"""Formats whose columns may hold text, lack values, and be left out."""
SVMLIGHT = rb"[^\s:,;]+([ \t]+[0-9]+:[ \t]*[^\s:,;]+)+"
"""A line of svmlight, to recognise LIBSVM's own files: `a9a`, `a9a.t` or `mnist.scale`."""


def files_of(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> tuple[str, ...]:
    """Return the files that one or more names stand for, in order: of a directory all, and `*` is as in a shell.

    Raises:
        InputError: If there is no name.
    """
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if wrong := [name for name in given if not isinstance(name, str | os.PathLike)]:
        raise InputError(f"paths holds {wrong[0]!r}: names of files are needed.")
    if not given:
        raise InputError("paths is empty: one file at least is needed.")
    files: list[str] = []
    for name in [os.fspath(name) for name in given]:
        found = glob.glob(os.path.join(glob.escape(name), "*") if os.path.isdir(name) else name)
        parts = [part for part in sorted(found) if os.path.basename(part)[0] not in "._"]  # Spark's and Dask's own
        if os.path.isdir(name) and not parts:
            raise DataError(f"{name}: there is no file in this directory.")
        files += [name] if os.path.isfile(name) else parts or [name]
    return tuple(files)


def kind_of(name: str, format: str | None = None) -> str:  # noqa: A002
    """Return the format by the end of a file's name, or else by the first line of svmlight; refuse what is no file."""
    if not os.path.exists(name) and name != "-":
        raise DataError(f"{name}: there is no such file{', and none that fits' if '*' in name else ''}.")
    if not os.path.isfile(name):
        what = "a directory" if os.path.isdir(name) else "a pipe or a device, and files are read more than once"
        raise DataError(f"{name}: this is {what}; name a file.")
    if format is not None:
        return format
    suffix = os.path.splitext(name.lower().removesuffix(compression_of(name)))[1]
    for kind, suffixes in FORMATS.items():
        if suffix in suffixes:
            return kind
    with opened(name) as file:
        lines = (line.split(b"#")[0] for line in file)
        first = next((line for line in lines if line.strip()), b"").strip()
    if re.fullmatch(SVMLIGHT, first):
        return "svmlight"
    known = ", ".join(suffix for suffixes in FORMATS.values() for suffix in suffixes)
    raise DataError(
        f"{name}: the format of {suffix!r} files is not known, and its first line is not svmlight's; known are "
        f"{known}, also with .gz or .bz2. Rename it if it is one of them (a table of text is .csv), unpack it (.zip, "
        '.xz), save it as one (a spreadsheet as CSV), or say what it is: load(path, format="csv").'
    )


@dataclasses.dataclass(frozen=True)
class Source:
    """Files of one kind of rows, or a frame."""

    paths: tuple[str, ...]
    features: int | None = None  # d; None: as many as the first file has, of svmlight by `found_out`
    label: Any = None  # column (a name or an index; the last by default) or key (npz); False: none
    zero_based: bool | None = None  # whether svmlight indices count from 0; None: `found_out` decides, or else from 1
    header: bool | None = None  # whether CSV files have one; None: see `tables.names_columns`
    format: str | None = None  # of files whose names do not tell
    separator: str | None = None  # of fields in CSV files
    decimal: str = "."  # the decimal mark of CSV files
    part: str = "train"  # of npz files
    wanted: Wanted = Wanted()  # what is asked of the columns besides
    frame: Any = None  # the frame, in place of files

    def kind(self, path: str) -> str:
        """Return the format of a file; refuse one that does not exist."""
        return "frame" if self.frame is not None else kind_of(path, self.format)

    def found_out(self, damaged: str = "stop") -> "Source":
        """Return the source with d and the first index known, for which svmlight files are read once; see `scan`."""
        paths = [path for path in self.paths if self.kind(path) == "svmlight"]
        if not paths or (self.features is not None and self.zero_based is not None):
            return self
        largest, least, bad, lines = -1, 1, 0, []
        for path in paths:
            for piece in Svmlight(path).pieces():
                bad, lines = counted(piece, damaged, bad, lines)
                if piece.x.nnz:
                    largest, least = max(largest, piece.x.shape[1] - 1), min(least, int(piece.x.indices.min()))
        zero_based = least == 0 if self.zero_based is None else self.zero_based
        d = largest + (1 if zero_based else 0)
        if self.features is None and not 0 < d <= MAX_INT32:
            found = [*lines, f"{', '.join(paths)}: no line has a feature; svmlight lines look like '+1 3:0.5 7:1'"]
            raise DataError(f"{found[0]}.")
        return dataclasses.replace(self, features=self.features or d, zero_based=zero_based)

    def stamps(self) -> list[list[int]]:
        """Return the size and the time of change of each file, which tell whether it has changed."""
        for path in self.paths:
            self.kind(path)
        return [[(of := os.stat(path)).st_size, of.st_mtime_ns] for path in self.paths]

    def readers(self, as_written: bool = False) -> Iterator[Any]:
        """Yield the reader of each file that has rows; `as_written` leaves indices of svmlight as they are."""
        wanted = dataclasses.replace(self.wanted, label=self.label, features=self.features)
        base, first = None if as_written else 1 - bool(self.zero_based), ""
        for path in self.paths:
            kind = self.kind(path)
            if kind != "frame" and _is_blank(path):
                continue
            if kind == "svmlight":
                reader: Any = Svmlight(path, base, None if as_written else self.features, self.label is not False)
            elif kind in TABLES:
                reader = (
                    Delimited(path, wanted, self.header, self.separator, self.decimal)
                    if kind == "csv"
                    else Typed(path, kind, wanted, self.frame)
                )
            else:
                reader = Arrays(path, kind, wanted, self.part)
            width = wanted.features if kind == "svmlight" else len(reader.features)
            if wanted.features not in (None, width):
                given = "features={} was given" if self.features is not None else f"{first} has {{}}"
                raise DataError(f"{path}: has {width} feature columns; {given.format(wanted.features)}.")
            if not first:
                wanted = dataclasses.replace(wanted, features=width)
                if self.wanted.like == Layout():
                    wanted = dataclasses.replace(wanted, like=reader.layout, whose=path)
                first = path
            yield reader

    def pieces(self) -> Iterator[Piece]:
        """Yield all rows; refuse a file that holds something else, or other columns than the first."""
        for reader in self.readers():
            d = self.features if isinstance(reader, Svmlight) else len(reader.features)
            yield from reader.pieces(max(1, MEASURED.bytes_per_block // (8 * max(d or 1, 1))))


def _is_blank(name: str) -> bool:
    """Return whether nothing but blanks is in a file."""
    with opened(name) as file:
        return not any(part.strip() for part in iter(lambda: file.read(1 << 16), b""))


@dataclasses.dataclass(frozen=True)
class Scan:
    """The result of a first pass over files, as JSON values."""

    rows: int  # rows that are samples
    damaged: int  # lines that are not
    named: list[str]  # messages about the first 20 of them
    features: int  # d
    zero_based: bool | None  # of svmlight files
    labels: list[Any]  # the different labels in sorted order; none if they are targets of regression
    mean: list[float]  # of the columns, `(d,)`
    scale: list[float]  # their standard deviations, 1 for constant columns, `(d,)`


def scan(source: Source, damaged: str = "stop", labelled: bool = True) -> Scan:
    """Read all rows once and count; refuse a damaged line, unless these are skipped.

    With `labelled`, labels are classes, which are collected.
    """
    source = source.found_out(damaged)
    bad, lines, moments = 0, [], Moments()
    texts: set[str] = set()
    values: set[Any] = set()
    for piece in source.pieces():
        bad, lines = counted(piece, damaged, bad, lines)
        if labelled:
            (texts if isinstance(piece.label, Texts) else values).update(different(piece.label)[0])
        if piece.x.shape[0]:
            moments.add(dense(piece.x))
    where = ", ".join(source.paths)
    if not moments.rows:
        raise DataError(f"{where}: no line is a sample.")
    labels = {*of_texts(where, sorted(texts)).tolist(), *values}
    if len({isinstance(label, str) for label in labels}) > 1:
        raise DataError(f"{where}: labels are text in some files and numbers in others: write all of them alike.")
    mean, scale = moments.mean().tolist(), moments.spread().tolist()
    return Scan(moments.rows, bad, lines, len(mean), source.zero_based, sorted(labels), mean, scale)


def dense(x: Any) -> np.ndarray:
    """Return the points of a piece as a dense array of float64, `(k, d)`."""
    return np.asarray(x.toarray() if hasattr(x, "toarray") else x, np.float64)


def counted(piece: Piece, how: str, bad: int, lines: list[str]) -> tuple[int, list[str]]:
    """Add a piece's damaged lines to their number and to the messages about the first 20, or refuse the first."""
    if piece.damaged and how == "stop":
        raise DataError(f"{piece.damaged[0]}. Mend it, or skip such lines (damaged='skip').")
    return bad + len(piece.damaged), (lines + piece.damaged)[:20]


def different(label: Any) -> tuple[list[Any], np.ndarray]:
    """Return the different labels of a piece, and the code of each row."""
    if isinstance(label, Texts):
        return label.values, label.codes
    values, codes = np.unique(label, return_inverse=True)
    return values.tolist(), codes
