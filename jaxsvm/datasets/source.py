"""Make pieces of rows from anything: files of one kind of rows one after another, or a frame.

Columns of the other files are put in the order of the first by name, or refused. Files without rows are passed over.
"""

import dataclasses
import functools
import glob
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from jaxsvm.datasets.labels import Texts, of_texts, rounded
from jaxsvm.datasets.layout import (
    NAMED,
    UNSEEN,
    Columns,
    Fault,
    Layout,
    Piece,
    Reader,
    Wanted,
    choose,
    of_labels,
    without,
)
from jaxsvm.datasets.tables import Column, Table, delimited, opened, svmlight, told, typed
from jaxsvm.errors import DataError, InputError, require_package
from jaxsvm.gram.measured import MEASURED
from jaxsvm.points.rows import is_sparse
from jaxsvm.runtime.arrays import MAX_INT32

FORMATS = {
    "csv": (".csv", ".tsv"), "npz": (".npz",), "npy": (".npy",), "parquet": (".parquet", ".pq"),
    "feather": (".feather", ".arrow", ".ipc"), "svmlight": (),
}  # fmt: skip
"""Formats by the ends of files' names; svmlight has any other."""
TABLES = ("csv", "parquet", "feather", "frame")
"""Formats whose columns may hold text, lack values, and be left out."""


def arrays(name: str, kind: str, wanted: Wanted) -> Reader:
    """Open an npz file, for the arrays of its training or test part, or the rows of an npy file."""
    with told(name):
        x, y, chosen, titles = (_of_rows if kind == "npy" else _of_archive)(name, wanted)
        y = np.char.decode(y, "utf-8") if y is not None and y.dtype.kind == "S" else y
    fit = x.ndim == 2 and x.shape[1] and x.dtype.kind in "biuf"
    if not fit or (y is not None and (y.shape != x.shape[:1] or y.dtype.kind not in "biufU")):
        found = "" if y is None else f" and {titles[1]} is {y.dtype} of shape {y.shape}"
        needed = "numbers (n, d), d >= 1, and numbers or strings (n,) are needed"
        raise DataError(f"{name}: {titles[0]} is {x.dtype} of shape {x.shape}{found}; {needed}.")

    def pieces(step: int | None) -> Iterator[Piece]:
        n = x.shape[0]
        for first in range(0, n, step or max(n, 1)):
            last = min(first + (step or n), n)
            yield _piece(x[first:last], None if y is None else np.asarray(y[first:last]), titles, f"{name}, row", first)

    return Reader(name, chosen, pieces)


def _of_rows(name: str, wanted: Wanted) -> tuple[Any, Any, Columns, tuple[str, str]]:
    """Return features and labels of an array of rows, which columns they are, and what they are called."""
    rows = np.load(name, mmap_mode="r", allow_pickle=False)
    if rows.ndim != 2:
        raise DataError(f"{name}: has shape {rows.shape}; rows of features and a label are needed.")
    chosen = choose(name, list(range(rows.shape[1])), wanted)
    x, y = (rows, None) if chosen.label is None else (rows[:, chosen.features], rows[:, chosen.label])
    return x, y, chosen, ("the array", "the array")


def _of_archive(name: str, wanted: Wanted) -> tuple[Any, Any, Columns, tuple[str, str]]:
    """Return the arrays of an archive, points dense or CSR, and their keys."""
    label, known, y, notes = wanted.label, wanted.like.label, None, ()
    points, key = ("X", "y") if wanted.part == "train" else ("Xt", "yt")
    with np.load(name, allow_pickle=False) as stored:
        if label is None and wanted.part == "train" and isinstance(known, str) and known in stored.files:
            label, notes = known, (f"labels are in column {known!r}, as in {wanted.whose}",)
        key = key if label is None or label is False else label
        if label is not False and (key in stored.files or not wanted.optional):
            if key not in stored.files:
                keys = ", ".join(stored.files)
                raise DataError(f"{name}: has no labels {key!r}; its keys are {keys}: name one (label=, --label).")
            y = stored[key]
        if points in stored.files:
            x = stored[points]
        else:
            fields = [f"{points}_{part}" for part in ("data", "indices", "indptr", "shape")]
            if not {*fields} <= {*stored.files}:
                needed = f"{points}, or {', '.join(fields)}"
                raise DataError(f"{name}: has no points: {needed} are needed, as in np.savez(file, X=x, y=y).")
            data, indices, indptr, (n, d) = (stored[field] for field in fields)
            if d > MAX_INT32 or {indices.dtype.kind, indptr.dtype.kind} - set("iu"):
                raise ValueError(f"indices are {indices.dtype} of {d} columns: integers below 2**31 are needed")
            sparse = require_package("scipy.sparse", "reading sparse npz files")
            x = sparse.csr_array((data, indices, indptr), shape=(n, d))
            x.check_format(full_check=True)
    features = list(range(x.shape[-1])) if x.ndim == 2 else []
    return x, y, Columns(features, None, (), Layout(label=label or None), notes), (points, key)


def _piece(raw: Any, y: np.ndarray | None, titles: tuple[str, str], where: str, first: int) -> Piece:
    """Return some rows of arrays, without those that hold what is no number or label."""
    entries = raw.data if is_sparse(raw) else np.asarray(raw)
    with np.errstate(over="ignore"):
        wide = np.result_type(entries.dtype, np.float32)
        x = entries.astype(np.float64 if wide.itemsize > 8 else wide)
    wrong = ~np.isfinite(x) | rounded(entries)
    if is_sparse(raw):
        x, wrong = (type(raw)((part, raw.indices, raw.indptr), shape=raw.shape, copy=True) for part in (x, wrong))
        x.sum_duplicates()

    def fault(row: int) -> str:
        column = int(wrong[[row]].nonzero()[1][0])
        return f"column {column} of {titles[0]} is {raw[row, column]}; a finite number that float64 holds is needed"

    faults: list[Fault] = [(np.asarray(wrong.sum(axis=1)).ravel() > 0, fault)]
    if y is not None:
        texts, codes = np.unique(y, return_inverse=True) if y.dtype.kind == "U" else (y, None)
        faults.append(of_labels(y if codes is None else Texts(texts.tolist(), codes), f"the label ({titles[1]})"))
    return without(faults, x, y, lambda rows: [f"{where} {first + row} (from 0)" for row in rows])


def files_of(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> tuple[str, ...]:
    """Return the files that one or more names stand for, in order: of a directory all, and `*` is as in a shell."""
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
    """Return the format by the end of a file's name; refuse what is no file."""
    if not os.path.exists(name):
        raise DataError(f"{name}: there is no such file{', and none that fits' if '*' in name else ''}.")
    if not os.path.isfile(name):
        what = "a directory" if os.path.isdir(name) else "a pipe or a device, and files are read more than once"
        raise DataError(f"{name}: this is {what}; name a file.")
    end = os.path.splitext(re.sub(r"\.(gz|bz2)$", "", name.lower()))[1]
    return format or next((kind for kind, ends in FORMATS.items() if end in ends), "svmlight")


@dataclasses.dataclass(frozen=True)
class Source:
    """Files of one kind of rows, or a frame."""

    paths: tuple[str, ...]
    wanted: Wanted = Wanted()  # what is asked of them
    format: str | None = None  # of files whose names do not tell
    frame: Any = None  # the frame, in place of files
    columns: tuple[Column, ...] | None = None  # what is done to the features of tables; None: nothing
    tables: tuple[Table, ...] | None = None  # what was read before; None: the files are read
    base: int | None = None  # the first index of svmlight files, once it is known

    @property
    def name(self) -> str:
        """Return the names of the files."""
        return ", ".join(self.paths)

    def kind(self, path: str) -> str:
        """Return the format of a file; refuse one that does not exist."""
        return "frame" if self.frame is not None else kind_of(path, self.format)

    def stamps(self) -> list[list[int]]:
        """Return the size and the time of change of each file, which tell whether it has changed."""
        for path in self.paths:
            self.kind(path)
        return [[(of := os.stat(path)).st_size, of.st_mtime_ns] for path in self.paths]

    def held(self) -> "Source":
        """Return the source with its tables as they are written, in memory."""
        tables = [(table, list(table.batches(None))) for table in self.readers()]
        held = (dataclasses.replace(table, batches=lambda _, rows=rows: rows) for table, rows in tables)
        return dataclasses.replace(self, tables=tuple(held))

    def readers(self) -> Iterator[Any]:
        """Yield the reader of each file that has rows; refuse other columns than those of the first."""
        if self.tables is not None:
            yield from (dataclasses.replace(table, columns=self.columns) for table in self.tables)
            return
        wanted, first = self.wanted, ""
        for path in self.paths:
            kind = self.kind(path)
            if kind != "frame" and _is_blank(path):
                continue
            if (kind == "svmlight") != (self.kind(self.paths[0]) == "svmlight"):
                raise DataError(f"{path}: this is {kind}, and {self.paths[0]} is not: files of one kind are needed.")
            if kind == "svmlight":
                rows = functools.partial(svmlight, path, self.wanted.label is not False)
                yield Reader(path, Columns([], None, (), Layout(), ()), rows)
                continue
            if kind in TABLES:
                reader = delimited(path, wanted) if kind == "csv" else typed(path, kind, wanted, self.frame)
                reader = dataclasses.replace(reader, columns=self.columns)
            else:
                reader = arrays(path, kind, wanted)
            width = len(reader.chosen.features)
            if wanted.features not in (None, width):
                given = f"{first} has {wanted.features}" if first else f"features={wanted.features} was given"
                raise DataError(f"{path}: has {width} feature columns; {given}.")
            if not first:
                wanted, first = dataclasses.replace(wanted, features=width), path
                if wanted.like == Layout():
                    wanted = dataclasses.replace(wanted, like=reader.chosen.layout, whose=path)
            yield reader

    def pieces(self) -> Iterator[Piece]:
        """Yield all rows, some at a time; svmlight's once d and the first index are known (`with_first_index`)."""
        for reader in self.readers():
            rows = max(1, MEASURED.bytes_per_block // (8 * max(len(reader.chosen.features), 1)))
            yield from map(self.based, reader.pieces(rows))

    def based(self, piece: Piece) -> Piece:
        """Return points of svmlight with d columns from the first index on, once it is known; others as they are."""
        d = self.wanted.features or 0
        if self.base is None:
            return piece
        of = (piece.x.data, (piece.x.indices - self.base).astype(np.int32), piece.x.indptr.astype(np.int32))
        x = type(piece.x)(of, shape=(piece.x.shape[0], max(piece.x.shape[1], d)))
        x.resize((x.shape[0], d))
        x.eliminate_zeros()
        return piece._replace(x=x)

    def with_first_index(self, lowest: int, highest: int) -> tuple["Source", tuple[str, ...]]:
        """Return svmlight files with d and the first index, of which the indices that occur tell, and notes."""
        wanted, name, notes = self.wanted, self.name, ()
        training, d, base = wanted.like.index_base, wanted.features, min(lowest, 1)
        if wanted.zero_based is not None:
            base = int(not wanted.zero_based)
        elif training is not None:
            base = training
            known = "indices are taken to count from 0, as in the training file, though no index is 0 here"
            notes = (f"{known} (--index-base 1 else)",) if base == 0 < lowest else ()
        if lowest < base:
            raise DataError(
                f"{name}: its indices count from 0 (the index 0 occurs); they were said to count from 1, or taken to "
                "do so in training: say zero_based=True (--index-base 0), in training too if those do."
            )
        found = highest + 1 - base
        if d is None and found <= 0:
            raise DataError(f"{name}: no line has a feature; svmlight lines look like '+1 3:0.5 7:1'.")
        if d is not None and found > d:
            if wanted.like == Layout() or notes:
                counted = "" if base else ", and indices count from 0"
                raise DataError(f"{name}: the feature index is {highest}{counted}, and features={d} was given.")
            notes = (f"the {found - d} features above {d - 1 + base}, {UNSEEN}, are left out",)
        wanted = dataclasses.replace(wanted, features=found if d is None else d)
        return dataclasses.replace(self, wanted=wanted, base=base), notes


def _is_blank(name: str) -> bool:
    """Return whether nothing but blanks is in a file."""
    with opened(name) as file:
        return not any(part.strip() for part in iter(lambda: file.read(1 << 16), b""))


@dataclasses.dataclass(frozen=True)
class Scan:
    """The result of a first pass over files."""

    source: Source  # with d, and the first index of svmlight files
    rows: int  # rows that are samples
    damaged: int  # lines that are not
    messages: list[str]  # about the first of them
    labels: list[Any]  # the different labels in sorted order; none if they are targets of regression


def scan(source: Source, damaged: str = "stop", labelled: bool = True) -> Scan:
    """Read all rows once and count; refuse a damaged line, unless these are skipped; collect labels of classes."""
    rows, bad, messages, d, lowest, highest = 0, 0, [], 0, 1, -1
    texts: set[str] = set()
    values: set[Any] = set()
    for piece in source.pieces():
        bad, messages = counted(piece, damaged, bad, messages)
        rows, d = rows + piece.x.shape[0], max(d, piece.x.shape[1])
        if labelled:
            (texts if isinstance(piece.label, Texts) else values).update(different(piece.label)[0])
        if is_sparse(piece.x):
            lowest = min(lowest, int(piece.x.indices.min(initial=1)))
            highest = max(highest, int(piece.x.indices.max(initial=-1)))
    if not rows:
        raise DataError(f"{messages[0] if messages else source.name}: no line is a sample.")
    labels = {*of_texts(source.name, sorted(texts)).tolist(), *values}
    if len({isinstance(label, str) for label in labels}) > 1:
        raise DataError(f"{source.name}: labels are text in some files and numbers in others: write all of them alike.")
    found = dataclasses.replace(source, wanted=dataclasses.replace(source.wanted, features=d))
    if source.kind(source.paths[0]) == "svmlight":
        found, _ = source.with_first_index(lowest, highest)
    return Scan(found, rows, bad, messages, sorted(labels))


def counted(piece: Piece, how: str, bad: int, messages: list[str]) -> tuple[int, list[str]]:
    """Add a piece's damaged lines to their number and to the messages about the first, or refuse the first."""
    if piece.damaged and how == "stop":
        raise DataError(f"{piece.messages()[0]}. Mend it, or skip such lines (damaged='skip').")
    return bad + piece.damaged, [*messages, *(piece.messages() if len(messages) < NAMED else ())][:NAMED]


def different(label: Any) -> tuple[list[Any], np.ndarray]:
    """Return the different labels of a piece, and the code of each row."""
    if isinstance(label, Texts):
        return label.values, label.codes
    values, codes = np.unique(label, return_inverse=True)
    return values.tolist(), codes
