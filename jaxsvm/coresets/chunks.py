"""Files read a piece at a time: svmlight, CSV, npz and Parquet, from any row on, damaged lines named.

A *place* is `(file, offset, line)`: which file, the byte (text, as it is before compression) or row (npz, Parquet) that
comes next, and the number of lines before it. Pieces end at places that depend on nothing but the files, so that a run
which begins at one goes on as if it had never stopped.
"""

import bz2
import dataclasses
import gzip
import importlib
import math
import os
import warnings
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
DENSE = 1 << 28
"""Bytes that the rows of a piece may take."""
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
                fast = reader.fast(block)
                lines = [] if fast is not None else block.splitlines()
                x, label, damaged = (*fast, []) if fast is not None else reader.parsed(lines, path, line)
                line += block.count(b"\n") + (not block.endswith(b"\n")) if fast is not None else len(lines)
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
        step = max(1, min(ROWS, DENSE // (8 * points.shape[1])))  # sparse rows become dense ones here
        for begin in range(at.offset, len(label), step):
            rows = points[begin : begin + step]
            rows = np.asarray(rows.toarray() if hasattr(rows, "toarray") else rows, np.float64)
            yield self._checked(path, rows, label[begin : begin + step], at.file, begin)

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

    def fast(self, block: bytes) -> tuple[np.ndarray, np.ndarray] | None:
        """Points and labels of a block without a fault; None: look at its lines."""
        d, base = self.source.features, 0 if self.source.zero_based else 1
        assert d is not None, "a scan comes first"
        found = svmlight_entries(block)
        if found is None:
            return None
        label, row, index, value = found
        index = index - base
        inside = not len(index) or (index.min() >= 0 and index.max() < d)
        if not inside or not (np.isfinite(value).all() and np.isfinite(label).all()):
            return None
        x = np.zeros((len(label), d))
        x[row, index] = value
        return x, label

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

    def fast(self, block: bytes) -> tuple[np.ndarray, np.ndarray] | None:
        """Points and labels of a block without a fault, by pyarrow; None: look at its lines."""
        try:
            arrow: Any = importlib.import_module("pyarrow")
            csv: Any = importlib.import_module("pyarrow.csv")
        except ImportError:
            return None
        if b'"' in block or block.count(b"\r") != block.count(b"\r\n"):
            return None
        names = [str(j) for j in range(self.width)]
        types = {name: arrow.string() if j == self.column else arrow.float64() for j, name in enumerate(names)}
        try:
            table = csv.read_csv(
                arrow.BufferReader(block),
                csv.ReadOptions(column_names=names, use_threads=False, block_size=len(block) + 1),
                csv.ParseOptions(delimiter=self.delimiter, quote_char=False),
                csv.ConvertOptions(column_types=types, null_values=[], strings_can_be_null=False),
            )
        except arrow.ArrowInvalid:
            return None
        columns = [table.column(j).to_numpy() for j in range(self.width) if j != self.column]
        x = np.stack(columns, axis=1)
        label, place = np.unique(table.column(self.column).to_numpy().astype(str), return_inverse=True)
        label = np.array([text.strip() for text in label.tolist()])
        if not np.isfinite(x).all() or any(text.lower() in ("", "nan") for text in label.tolist()):
            return None
        values = [as_number(text) for text in label.tolist()]
        return x, (label if None in values else np.asarray(values, np.float64))[place]

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


def svmlight_entries(block: bytes) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None:
    """Labels, and row, index and value of each entry, of svmlight lines; None where any line is not plain and sound.

    Every token but the first of a line has to be digits, one colon and something that is not blank, and all of them
    together as many numbers as that makes; indices rise. What is none of this (comments and `qid:` too) is for
    the path that looks at lines.
    """
    if b"#" in block or b"q" in block or block.count(b"\r") != block.count(b"\r\n"):
        return None
    text = np.frombuffer(block + b"\n", np.uint8)
    colon, end = text == ord(":"), text == ord("\n")
    blank = end | (text == ord(" ")) | (text == ord("\t")) | (text == ord("\r"))
    first = ~blank & np.append(True, blank[:-1])
    starts, places = np.flatnonzero(first), np.flatnonzero(colon)
    line = np.cumsum(end)[starts]  # the newlines before a token
    opening = np.append(True, line[1:] != line[:-1])[: len(starts)]
    entries = starts[~opening]
    if len(places) != len(entries) or not len(starts):
        return None
    ends = np.append(starts[1:], len(text))[~opening]
    if ((places <= entries) | (places >= ends)).any() or blank[places + 1].any():
        return None
    digits = np.append(0, np.cumsum((text >= ord("0")) & (text <= ord("9"))))
    if (digits[places] - digits[entries] != places - entries).any():
        return None
    plus = np.flatnonzero(text == ord("+"))
    if len(plus) and not (_among(text[plus - 1], b" \t\n:eE") & _among(text[plus + 1], b"0123456789.")).all():
        return None
    numbers = _numbers(block)
    if numbers is None or len(numbers) != len(starts) + len(entries):
        return None
    at = np.cumsum(np.where(opening, 1, 2)) - 1  # of each token's last number
    row = (np.cumsum(opening) - 1)[~opening]
    index = numbers[at[~opening] - 1]
    falls = (np.diff(index) <= 0) & (np.diff(row) == 0)
    if (index >= 2**31).any() or falls.any():
        return None
    return numbers[at[opening]], row, index.astype(np.int64), numbers[at[~opening]]


def _among(text: np.ndarray, which: bytes) -> np.ndarray:
    return np.isin(text, np.frombuffer(which, np.uint8))


def _numbers(block: bytes) -> np.ndarray | None:
    """The numbers between blanks and colons, each rounded as `float` rounds it; None where something is no number."""
    try:
        arrow: Any = importlib.import_module("pyarrow")
        csv: Any = importlib.import_module("pyarrow.csv")
    except ImportError:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # what is no number ends the numbers, with a warning
            try:
                return np.fromstring(block.translate(_SPACES), sep=" ")
            except (DeprecationWarning, ValueError):
                return None
    try:
        lines = block.translate(_LINES, b"+")
        column = csv.read_csv(
            arrow.BufferReader(lines),
            csv.ReadOptions(column_names=["number"], use_threads=False, block_size=len(lines) + 1),
            csv.ParseOptions(delimiter=",", quote_char=False),
            csv.ConvertOptions(column_types={"number": arrow.float64()}, null_values=[]),
        )
        return column.column(0).to_numpy()
    except arrow.ArrowInvalid:
        return None


_SPACES = bytes.maketrans(b":", b" ")
_LINES = bytes.maketrans(b": \t\r", b"\n\n\n\n")


def scan_svmlight(source: Source) -> tuple[int, bool]:
    """How many features svmlight files have, and whether their indices count from 0, from one look at all lines."""
    largest, least = 0, 1
    for path in source.paths:
        if source.kind(path) != "svmlight":
            continue
        with _opened(path) as file:
            while block := file.read(TEXT):
                block += file.readline()
                found = svmlight_entries(block)
                index = _indices(block) if found is None else found[2]
                if len(index):
                    largest, least = max(largest, int(index.max())), min(least, int(index.min()))
    return largest + (1 if least == 0 else 0), least == 0


def _indices(block: bytes) -> np.ndarray:
    """What looks like an index, in lines of any kind."""
    tokens = (token for line in block.splitlines() for token in line.split(b"#", 1)[0].split()[1:])
    heads = (token.split(b":", 1)[0] for token in tokens)
    return np.array([int(head) for head in heads if head.isdigit() and len(head) < 10 and int(head) < 2**31], np.int64)


def _opened(path: str) -> Any:
    try:
        if path.lower().endswith(".gz"):
            return gzip.open(path, "rb")
        return bz2.open(path, "rb") if path.lower().endswith(".bz2") else open(path, "rb")
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}.") from error
