"""Read files of one kind of rows one after another, a piece at a time, from any place on.

The columns of the other files are put in the order of the first by name, or refused.
"""

import dataclasses
import glob
import os
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from jaxsvm.datasets.labels import Texts, of_texts
from jaxsvm.datasets.layout import Layout, Piece, Place, Wanted
from jaxsvm.datasets.reading import kind_of, reader_of
from jaxsvm.datasets.scaling import Moments
from jaxsvm.datasets.svmlight import scan_svmlight
from jaxsvm.errors import DataError, InputError
from jaxsvm.gram.measured import MEASURED
from jaxsvm.runtime.checks import MAX_INT32


def files_of(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> tuple[str, ...]:
    """Return the files that one or more names stand for, in order; a name that is no file may have `*` as in a shell.

    Raises:
        InputError: If there is no name.
    """
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if wrong := [name for name in given if not isinstance(name, str | os.PathLike)]:
        raise InputError(f"paths holds {wrong[0]!r}: names of files are needed.")
    names = [os.fspath(name) for name in given]
    if not names:
        raise InputError("paths is empty: one file at least is needed.")
    found = ([name] if os.path.exists(name) else sorted(glob.glob(name)) or [name] for name in names)
    return tuple(file for files in found for file in files)


@dataclasses.dataclass(frozen=True)
class Source:
    """Files of one kind of rows."""

    paths: tuple[str, ...]
    features: int | None = None  # d; None: as many as the first file has, of svmlight by `found_out`
    label: str | int | None = None  # column (CSV, Parquet: a name or an index; the last by default) or key (npz)
    zero_based: bool | None = None  # whether svmlight indices count from 0; None: `found_out` decides, or else from 1
    header: bool | None = None  # whether CSV files have one; None: a first line without a number is one
    format: str | None = None  # of files whose names do not tell

    def kind(self, path: str) -> str:
        """Return the format of a file: svmlight, csv, npz or parquet; refuse one that does not exist."""
        if not os.path.exists(path):
            raise DataError(f"{path}: there is no such file{', and none that fits' if '*' in path else ''}.")
        return kind_of(path, self.format)

    def found_out(self) -> "Source":
        """Return the source with d and the first index known, for which svmlight files are read once."""
        paths = [path for path in self.paths if self.kind(path) == "svmlight"]
        if not paths or (self.features is not None and self.zero_based is not None):
            return self
        largest, least = scan_svmlight(paths)
        zero_based = least == 0 if self.zero_based is None else self.zero_based
        d = largest + (1 if zero_based else 0)
        if self.features is None and not 0 < d <= MAX_INT32:
            raise DataError(f"{', '.join(paths)}: no line has a feature; svmlight lines look like '+1 3:0.5 7:1'.")
        return dataclasses.replace(self, features=self.features or d, zero_based=zero_based)

    def stamps(self) -> list[list[int]]:
        """Return the size and the time of change of each file, which tell whether it has changed."""
        for path in self.paths:
            self.kind(path)
        return [[(of := os.stat(path)).st_size, of.st_mtime_ns] for path in self.paths]

    def pieces(self, start: Place | None = None) -> Iterator[Piece]:
        """Yield all rows from a place on; refuse a file that holds something else, or other columns than the first."""
        start, like, d = Place() if start is None else start, Layout(), self.features
        first = self.paths[0]
        for number, path in enumerate(self.paths):
            if 0 < number < start.file:
                continue
            kind = self.kind(path)
            if isinstance(self.label, int) and kind == "npz":
                raise InputError(f"label is {self.label}: in an npz file it is a key, such as 'y'.")
            wanted = Wanted(self.label, features=d, like=like, whose=first)
            reader = reader_of(path, kind, wanted, self.header, 0 if self.zero_based else 1, self.features)
            like = reader.layout if number == 0 else like
            width = reader.width if kind != "svmlight" else self.features
            if d is not None and width != d:
                wants = f"features={d} was given" if self.features is not None else f"{first} has {d}"
                raise DataError(f"{path}: has {width} feature columns; {wants}.")
            d = width
            if number >= start.file:
                at = start if number == start.file else Place(number)
                yield from reader.pieces(at, max(1, MEASURED.bytes_per_block // (8 * max(d or 1, 1))))


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

    Args:
        source: The files.
        damaged: "stop" or "skip".
        labelled: Whether labels are classes, which are collected.
    """
    source = source.found_out()
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
        raise DataError(f"{piece.damaged[0]} Mend it, or skip such lines (damaged='skip').")
    return bad + len(piece.damaged), (lines + [str(row) for row in piece.damaged])[:20]


def different(label: Any) -> tuple[list[Any], np.ndarray]:
    """Return the different labels of a piece, and the code of each row."""
    if isinstance(label, Texts):
        return label.values, label.codes
    values, codes = np.unique(label, return_inverse=True)
    return values.tolist(), codes
