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

from jaxsvm.datasets.labels import Texts, of_texts, rounded
from jaxsvm.datasets.layout import NAMED, Faults, Layout, Piece, Wanted, choose
from jaxsvm.datasets.tables import Delimited, Typed
from jaxsvm.datasets.text import Svmlight, compression_of, opened, told
from jaxsvm.errors import DataError, InputError, require_package
from jaxsvm.gram.measured import MEASURED
from jaxsvm.points.rows import is_sparse
from jaxsvm.runtime.arrays import MAX_INT32


class Arrays:
    """Arrays of the training or the test part of an npz file, points dense or CSR; or the rows of an npy file."""

    notes = ()

    def __init__(self, name: str, kind: str, wanted: Wanted) -> None:
        """Read the arrays; refuse missing keys, shapes that do not agree, and damaged files."""
        self.name = name
        with told(name):
            x, y = self._of_rows(wanted) if kind == "npy" else self._of_archive(wanted)
            self.y = np.char.decode(y, "utf-8") if y is not None and y.dtype.kind == "S" else y
        fit = x.ndim == 2 and x.shape[1] and x.dtype.kind in "biuf"
        if not fit or (y is not None and (y.shape != x.shape[:1] or y.dtype.kind not in "biufUS")):
            issue = "" if y is None else f" and {self._key_y} is {y.dtype} of shape {y.shape}"
            found = f"{self._key_x} is {x.dtype} of shape {x.shape}{issue}"
            raise DataError(f"{name}: {found}; numbers (n, d), d >= 1, and numbers or strings (n,) are needed.")
        self.x, self.features = x, range(x.shape[1])

    def _of_rows(self, wanted: Wanted) -> tuple[Any, Any]:
        """Return the columns of an array of rows."""
        rows = np.load(self.name, mmap_mode="r", allow_pickle=False)
        if rows.ndim != 2:
            raise DataError(f"{self.name}: has shape {rows.shape}; rows of features and a label are needed.")
        self._key_x = self._key_y = "the array"
        features, label, _, self.layout, self.notes = choose(self.name, list(range(rows.shape[1])), wanted)
        return (rows[:, features] if label is not None else rows), None if label is None else rows[:, label]

    def _of_archive(self, wanted: Wanted) -> tuple[Any, Any]:
        """Return the arrays of an archive."""
        train, label, known = wanted.part == "train", wanted.label, wanted.like.label
        if isinstance(label, int) and label is not False:
            raise InputError(f"label is {label}: in an npz file it is a key, such as 'y'.")
        with opened(self.name) as file:
            content = io.BytesIO(file.read()) if compression_of(self.name) else self.name
        with np.load(content, allow_pickle=False) as stored:
            if label is None and train and isinstance(known, str) and known in stored.files:
                label = known  # a key that was asked for in training
                self.notes = (f"labels are in column {label!r}, as in {wanted.whose}",)
            self._key_x, key = ("X", "y") if train else ("Xt", "yt")
            self._key_y = key = label if isinstance(label, str) else key
            self.layout, y = Layout(label=label if isinstance(label, str) else None), None
            if label is not False and (key in stored.files or not wanted.optional):
                if key not in stored.files:
                    keys = ", ".join(stored.files)
                    raise DataError(
                        f"{self.name}: has no labels {key!r}; its keys are {keys}: name one (label=, --label)."
                    )
                y = stored[key]
            if self._key_x in stored.files:
                return stored[self._key_x], y
            fields = [f"{self._key_x}_{part}" for part in ("data", "indices", "indptr", "shape")]
            if not {*fields} <= {*stored.files}:
                needed = f"{self._key_x}, or {', '.join(fields)}"
                raise DataError(f"{self.name}: has no points: {needed} are needed, as in np.savez(file, X=x, y=y).")
            data, indices, indptr, (n, d) = (stored[field] for field in fields)
        if d > MAX_INT32 or {indices.dtype.kind, indptr.dtype.kind} - set("iu"):
            raise ValueError(f"indices are {indices.dtype} of {d} columns: integers below 2**31 are needed")
        x = require_package("scipy.sparse", "reading sparse npz files").csr_array((data, indices, indptr), shape=(n, d))
        x.check_format(full_check=True)
        return x, y

    def pieces(self, step: int | None = None) -> Iterator[Piece]:
        """Yield all rows, `step` a piece; None: all at once."""
        n = self.x.shape[0]
        for begin in range(0, n, step or max(n, 1)):
            yield self._piece(begin, min(begin + (step or n), n))

    def _piece(self, begin: int, end: int) -> Piece:
        raw, y, faults = self.x[begin:end], None if self.y is None else np.asarray(self.y[begin:end]), Faults()
        entries = raw.data if is_sparse(raw) else np.asarray(raw)
        with np.errstate(over="ignore"):
            wide = np.result_type(entries.dtype, np.float32)
            values = entries.astype(np.float64 if wide.itemsize > 8 else wide)
        x, wrong = values, ~np.isfinite(values) | rounded(entries)
        if is_sparse(raw):
            x, wrong = (type(raw)((part, raw.indices, raw.indptr), shape=raw.shape, copy=True) for part in (x, wrong))
            x.sum_duplicates()
        for row, column in zip(*(at.tolist() for at in wrong.nonzero()), strict=True):
            said = f"column {column} of {self._key_x} is {raw[row, column]}"
            faults.setdefault(row, lambda _, said=said: f"{said}; a finite number that float64 holds is needed")
        if y is not None:
            texts, codes = np.unique(y, return_inverse=True) if y.dtype.kind == "U" else (y, None)
            faults.of_labels(y if codes is None else Texts(texts.tolist(), codes), f"the label ({self._key_y})")
        return faults.piece(x, y, lambda row: f"{self.name}, row {begin + row} (from 0)")


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
    wanted: Wanted = Wanted()  # what is asked of them
    format: str | None = None  # of files whose names do not tell
    frame: Any = None  # the frame, in place of files

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

    def readers(self) -> Iterator[Any]:
        """Yield the reader of each file that has rows; refuse other columns than those of the first."""
        wanted, first = self.wanted, ""
        for path in self.paths:
            kind = self.kind(path)
            if kind != "frame" and _is_blank(path):
                continue
            if kind == "svmlight":
                yield Svmlight(path, wanted.label is not False, 1 - bool(wanted.zero_based))
                continue
            reader = (
                Delimited(path, wanted)
                if kind == "csv"
                else Typed(path, kind, wanted, self.frame)
                if kind in TABLES
                else Arrays(path, kind, wanted)
            )
            width = len(reader.features)
            if wanted.features not in (None, width):
                given = f"{first} has {wanted.features}" if first else f"features={wanted.features} was given"
                raise DataError(f"{path}: has {width} feature columns; {given}.")
            if not first:
                wanted, first = dataclasses.replace(wanted, features=width), path
                if wanted.like == Layout():
                    wanted = dataclasses.replace(wanted, like=reader.layout, whose=path)
            yield reader

    def step(self, reader: Any) -> int:
        """Return the number of rows of a piece."""
        return max(1, MEASURED.bytes_per_block // (8 * max(len(reader.features), 1)))

    def pieces(self) -> Iterator[Piece]:
        """Yield all rows, once d and the first index are known; refuse a file that holds something else."""
        for reader in self.readers():
            for piece in reader.pieces(self.step(reader)):
                known = reader.layout.index_base is None
                yield (
                    piece
                    if known
                    else piece._replace(x=based(reader.name, piece.x, reader.layout.index_base, self.wanted.features))
                )


NO_FEATURE = "no line has a feature; svmlight lines look like '+1 3:0.5 7:1'"


def based(name: str, x: Any, base: int, d: int | None) -> Any:
    """Return points of svmlight, CSR, whose first column is the first index; refuse others than d features."""
    found = _features(name, int(x.indices.min(initial=base)), int(x.indices.max(initial=-1)), base, d)
    indices, indptr = (x.indices - base).astype(np.int32), x.indptr.astype(np.int32)
    x = type(x)((x.data, indices, indptr), shape=(x.shape[0], found))
    x.eliminate_zeros()
    return x


def _features(name: str, lowest: int, highest: int, base: int, d: int | None) -> int:
    """Return d, or the number of features up to the highest index; refuse indices that do not fit."""
    if lowest < base:
        raise DataError(
            f"{name}: its indices count from 0 (the index 0 occurs); they were said to count from 1, or taken to do "
            "so in training: say zero_based=True (--index-base 0), in training too if those do."
        )
    if d is not None and highest - base >= d:
        counted = "" if base else ", and indices count from 0"
        raise DataError(f"{name}: the feature index is {highest}{counted}, and features={d} was given.")
    return max(highest + 1 - base, 0) if d is None else d


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
    """Read all rows once and count; refuse a damaged line, unless these are skipped.

    With `labelled`, labels are classes, which are collected.
    """
    rows, bad, messages, wanted, d, least = 0, 0, [], source.wanted, 0, 1
    texts: set[str] = set()
    values: set[Any] = set()
    for reader in source.readers():
        for piece in reader.pieces(source.step(reader)):
            bad, messages = counted(piece, damaged, bad, messages)
            rows, d = rows + piece.x.shape[0], max(d, piece.x.shape[1])
            if labelled:
                (texts if isinstance(piece.label, Texts) else values).update(different(piece.label)[0])
            if isinstance(reader, Svmlight):
                least = min(least, int(piece.x.indices.min(initial=1)))
    if not rows:
        raise DataError(f"{messages[0] if messages else source.name}: no line is a sample.")
    labels = {*of_texts(source.name, sorted(texts)).tolist(), *values}
    if len({isinstance(label, str) for label in labels}) > 1:
        raise DataError(f"{source.name}: labels are text in some files and numbers in others: write all of them alike.")
    if source.kind(source.paths[0]) == "svmlight":
        zero_based = least == 0 if wanted.zero_based is None else wanted.zero_based
        d = _features(source.name, least, d - 1, 1 - zero_based, wanted.features)
        wanted = dataclasses.replace(wanted, zero_based=zero_based)
    if not 0 < d <= MAX_INT32:
        raise DataError(f"{messages[0] if messages else f'{source.name}: {NO_FEATURE}'}.")
    found = dataclasses.replace(source, wanted=dataclasses.replace(wanted, features=d))
    return Scan(found, rows, bad, messages, sorted(labels))


def counted(piece: Piece, how: str, bad: int, messages: list[str]) -> tuple[int, list[str]]:
    """Add a piece's damaged lines to their number and to the messages about the first, or refuse the first."""
    if piece.damaged and how == "stop":
        raise DataError(f"{piece.messages[0]}. Mend it, or skip such lines (damaged='skip').")
    return bad + piece.damaged, [*messages, *piece.messages][:NAMED]


def different(label: Any) -> tuple[list[Any], np.ndarray]:
    """Return the different labels of a piece, and the code of each row."""
    if isinstance(label, Texts):
        return label.values, label.codes
    values, codes = np.unique(label, return_inverse=True)
    return values.tolist(), codes
