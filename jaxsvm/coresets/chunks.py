"""Files read a piece at a time: svmlight, CSV, npz and Parquet, from any row on, damaged lines named.

A *place* is `(file, offset, line)`: which file, the byte (text, as it is before compression) or row (npz, Parquet) that
comes next, and the number of lines before it. Pieces end at places that depend on nothing but the files, so that a run
which begins at one goes on as if it had never stopped.
"""

import bz2
import dataclasses
import gzip
import math
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from jaxsvm.datasets.reading import FORMATS
from jaxsvm.datasets.refusal import as_number, need, shown
from jaxsvm.errors import DataError, InputError

TEXT = 1 << 22
"""Bytes of text a piece."""
ROWS = 1 << 16
"""Rows a piece."""
NAMED = 20
"""Damaged lines whose places are kept."""


class Place(NamedTuple):
    """Where a run stands: file, byte or row, lines before it."""

    file: int = 0
    offset: int = 0
    line: int = 0


class Piece(NamedTuple):
    """Rows of one file, and where the next piece begins.

    Attributes:
        x: Points, `(k, d)` float64.
        label: Their labels as the file has them: numbers or strings, `(k,)`.
        after: Where the next piece begins.
        damaged: What was found in lines that are no samples: the file, the line and the fault.
    """

    x: np.ndarray
    label: np.ndarray
    after: Place
    damaged: list[str]


@dataclasses.dataclass(frozen=True)
class Source:
    """Files of one kind of rows.

    Attributes:
        paths: The files, in their order.
        features: d; None: to be found out by a `scan` (svmlight), or in the first row.
        label: The column of the labels (CSV, Parquet: a name or an index; the last one by default), or the key (npz).
        zero_based: Whether svmlight indices count from 0; None: to be found out.
        header: Whether CSV files have one; None: a first line without a number is one.
        format: Of files whose names do not tell.
    """

    paths: tuple[str, ...]
    features: int | None = None
    label: str | int | None = None
    zero_based: bool | None = None
    header: bool | None = None
    format: str | None = None

    def kind(self, path: str) -> str:
        """svmlight, csv, npz or parquet.

        Raises:
            DataError: Where the name does not tell.
        """
        bare = path.lower().removesuffix(".gz").removesuffix(".bz2")
        for kind, ends in FORMATS.items():
            if self.format == kind or (self.format is None and bare.endswith(ends)):
                return kind
        raise DataError(f"{path}: the name does not tell its format: say format='svmlight', 'csv', 'npz' or 'parquet'.")

    def pieces(self, start: Place | None = None) -> Iterator[Piece]:
        """All rows from a place on."""
        start = Place() if start is None else start
        for number in range(start.file, len(self.paths)):
            path = self.paths[number]
            if not os.path.exists(path):
                raise DataError(f"{path}: there is no such file.")
            at = start if number == start.file else Place(number)
            kind = self.kind(path)
            yield from {"npz": self._npz, "parquet": self._parquet}.get(kind, self._text)(path, at)

    def _text(self, path: str, at: Place) -> Iterator[Piece]:
        reader = _Svmlight(self) if self.kind(path) == "svmlight" else _CSV(self)
        with _opened(path) as file:
            reader.begin(path, file)
            file.seek(max(at.offset, reader.first))
            line = max(at.line, reader.lines)
            while True:
                block = file.read(TEXT)
                if not block:
                    return
                block += file.readline()
                lines = block.splitlines()
                x, label, damaged = reader.parsed(lines, path, line)
                line += len(lines)
                yield Piece(x, label, Place(at.file, file.tell(), line), damaged)

    def _npz(self, path: str, at: Place) -> Iterator[Piece]:
        with np.load(path, allow_pickle=False) as stored:
            key = self.label if isinstance(self.label, str) else "y"
            if key not in stored or ("X" not in stored and "X_indptr" not in stored):
                raise DataError(f"{path}: X (or X_data, ...) and {key} are needed; its keys are {', '.join(stored)}.")
            label = stored[key]
            if "X" in stored:
                points: Any = stored["X"]
            else:
                sparse = need("scipy.sparse", "scipy", "sparse npz")
                parts = (stored["X_data"], stored["X_indices"], stored["X_indptr"])
                points = sparse.csr_array(parts, shape=tuple(stored["X_shape"].tolist()))
        for begin in range(at.offset, len(label), ROWS):
            rows = points[begin : begin + ROWS]
            rows = np.asarray(rows.toarray() if hasattr(rows, "toarray") else rows, np.float64)
            yield self._checked(path, rows, label[begin : begin + ROWS], at.file, begin)

    def _parquet(self, path: str, at: Place) -> Iterator[Piece]:
        file = need("pyarrow.parquet", "pyarrow", "Parquet").ParquetFile(path)
        names = file.schema_arrow.names
        column = names.index(self.label) if isinstance(self.label, str) else self.label
        column = (len(names) - 1 if column is None else column) % len(names)
        begin = 0
        for batch in file.iter_batches(ROWS):
            if begin >= at.offset:
                columns = [batch.column(j).to_numpy(zero_copy_only=False) for j in range(len(names)) if j != column]
                rows = np.stack(columns, axis=1).astype(np.float64)
                yield self._checked(path, rows, np.asarray(batch.column(column)), at.file, begin)
            begin += len(batch)

    def _checked(self, path: str, x: np.ndarray, label: np.ndarray, file: int, begin: int) -> Piece:
        bad = ~np.isfinite(x).all(axis=1)
        damaged = [f"{path}, row {begin + i} (from 0): a value is missing or not finite" for i in np.flatnonzero(bad)]
        return Piece(x[~bad], np.asarray(label)[~bad], Place(file, begin + len(x), 0), damaged)


class _Svmlight:
    """Lines `label index:value ...`."""

    def __init__(self, source: Source):
        self.source, self.first, self.lines = source, 0, 0

    def begin(self, path: str, file: Any) -> None:
        """There is no header."""
        del path, file

    def parsed(self, lines: list[bytes], path: str, before: int) -> tuple[np.ndarray, np.ndarray, list[str]]:
        """Points, labels, faults."""
        d, base = self.source.features, 0 if self.source.zero_based else 1
        assert d is not None, "a scan comes first"
        x, labels, damaged = np.zeros((len(lines), d)), np.zeros(len(lines)), []
        good = np.zeros(len(lines), bool)
        for i, line in enumerate(lines):
            tokens = line.split(b"#", 1)[0].split()
            if not tokens:
                continue
            try:
                pairs = [token.split(b":") for token in tokens[1:] if not token.startswith(b"qid:")]
                index = np.array([int(pair[0]) for pair in pairs], np.int64) - base
                value = np.array([float(pair[1]) for pair in pairs])
                labels[i] = float(tokens[0])
                usable = (index >= 0).all() and (np.diff(index) > 0).all() and np.isfinite(value).all()
                if not usable or not math.isfinite(labels[i]) or (index >= d).any():
                    raise ValueError
                x[i, index] = value
                good[i] = True
            except (ValueError, IndexError):
                text = shown(line[:60].decode("utf-8", "replace"))
                damaged.append(f"{path}, line {before + i + 1}: {text} is no svmlight line of at most {d} features")
        return x[good], labels[good], damaged


class _CSV:
    """Lines of numbers with `,`, `;` or tabs between."""

    def __init__(self, source: Source):
        self.source, self.first, self.lines = source, 0, 0

    def begin(self, path: str, file: Any) -> None:
        """Look at the first line."""
        line = file.readline()
        text = line.decode("utf-8-sig", "replace").strip()
        self.delimiter = max(",;\t", key=text.count)
        fields = [field.strip().strip('"') for field in text.split(self.delimiter)]
        named = all(as_number(field) is None for field in fields) if self.source.header is None else self.source.header
        label = self.source.label
        if isinstance(label, str):
            if label not in fields:
                raise InputError(f"label is {label!r}: {path} has no column of that name; it has {', '.join(fields)}.")
            named, label = True, fields.index(label)
        self.width = len(fields)
        if self.width < 2:
            raise DataError(f"{path}: there is one column only; features and a label are needed.")
        self.column = (self.width - 1 if label is None else label) % self.width
        self.first, self.lines = (len(line), 1) if named else (0, 0)

    def parsed(self, lines: list[bytes], path: str, before: int) -> tuple[np.ndarray, np.ndarray, list[str]]:
        """Points, labels, faults."""
        x, labels, damaged = np.zeros((len(lines), self.width - 1)), [], []
        good = np.zeros(len(lines), bool)
        for i, line in enumerate(lines):
            if not line.strip():
                continue
            fields = line.decode("utf-8", "replace").removeprefix("\ufeff").split(self.delimiter)
            try:
                if len(fields) != self.width:
                    raise ValueError(f"found {len(fields)} fields, {self.width} are needed")
                label = fields.pop(self.column).strip().strip('"')
                if label.lower() in ("", "nan"):
                    raise ValueError("the label is missing")
                x[i] = np.array(fields, np.float64)
                if not np.isfinite(x[i]).all():
                    raise ValueError("a value is not finite")
                labels.append(label)
                good[i] = True
            except ValueError as error:
                damaged.append(f"{path}, line {before + i + 1}: {error}")
        values = [as_number(label) for label in labels]
        typed = np.asarray(labels) if None in values else np.asarray(values, np.float64)
        return x[good], typed, damaged


def scan_svmlight(source: Source) -> tuple[int, bool]:
    """How many features svmlight files have, and whether their indices count from 0, from one look at all lines."""
    largest, least = 0, 1
    for path in source.paths:
        if source.kind(path) == "svmlight":
            with _opened(path) as file:
                for line in file:
                    for token in line.split(b"#", 1)[0].split()[1:]:
                        index = token.split(b":", 1)[0]
                        if index.isdigit() and int(index) < 2**31:
                            largest, least = max(largest, int(index)), min(least, int(index))
    return largest + (1 if least == 0 else 0), least == 0


def _opened(path: str) -> Any:
    try:
        if path.lower().endswith(".gz"):
            return gzip.open(path, "rb")
        return bz2.open(path, "rb") if path.lower().endswith(".bz2") else open(path, "rb")
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}.") from error
