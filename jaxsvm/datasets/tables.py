"""Read text by pyarrow and scikit-learn: tables (CSV, Parquet and Feather files, data frames) and svmlight.

pyarrow divides CSV into fields, which stay text here: numbers are converted as they are written, labels keep their
digits. What a library says of a broken file is passed on with the file's name.
"""

import bz2
import contextlib
import csv
import dataclasses
import functools
import gzip
import io
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxsvm.datasets.labels import (
    EXACT,
    MISSING,
    NUMBER,
    WHOLE,
    Texts,
    as_number,
    coded,
    fault_of_label,
    fault_of_text,
    is_missing,
    rounded,
    rounds,
    shown,
)
from jaxsvm.datasets.layout import NAMED, Columns, Fault, Piece, Wanted, choose, of_labels, without
from jaxsvm.errors import DataError, InputError, require_package

FILL = 'fill it in (impute="mean", --impute mean), or leave the row or the column (drop=, --drop) out'
ENCODE = (
    "a number is needed: encode text (one_hot=True, --one-hot; names and quantities are no categories), leave the "
    "column out (drop=, --drop), or say where the labels are (label=, --label)"
)


BYTES_PER_PIECE = 1 << 22
"""Pieces in which text is read, so that memory does not depend on its length; not measured."""


@contextlib.contextmanager
def told(name: str) -> Iterator[None]:
    """Raise what a library says of a broken file as DataError: damage shows as errors of many types."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise DataError(f"{name}: cannot be read: {' '.join(str(error).split())}.") from error


@contextlib.contextmanager
def opened(name: str) -> Iterator[Any]:
    """Open a file for its bytes, unpacked if its name ends in .gz or .bz2."""
    unpack = {".gz": gzip.open, ".bz2": bz2.open}.get(os.path.splitext(name)[1].lower(), open)
    with told(name), unpack(name, "rb") as file:
        yield file


@dataclasses.dataclass(frozen=True)
class Column:
    """What is done to one column."""

    key: str | int  # its name, or its place among the features of a file without a header
    fill: float | str | None = None  # the value that stands in for a missing one; None: a missing value is refused
    categories: tuple[str, ...] | None = None  # its texts, an indicator each; None for a column of numbers

    @property
    def names(self) -> list[str]:
        """Return the names of its columns of points."""
        return [str(self.key)] if self.categories is None else [f"{self.key}={text}" for text in self.categories]


class Batch(NamedTuple):
    """Rows of a table as they are written."""

    columns: Sequence[Any]  # of Arrow
    numbers: np.ndarray  # the number of each row in the file
    where: Callable[[list[int]], list[str]]  # says where rows of some numbers are
    bad: Sequence[Any] = ()  # what pyarrow says of lines of another number of fields, which were left out


@dataclasses.dataclass(frozen=True)
class Table:
    """The rows of a table, and which columns are features and labels."""

    name: str
    keys: list[Any]  # the names of all columns, or their places in a file without a header
    chosen: Columns
    decimal: str | None  # the decimal mark of numbers that are written as text; None: text is no number
    batches: Callable[[int | None], Iterable[Batch]]  # all rows, so many a batch where the format has rows of one size
    columns: tuple[Column, ...] | None = None  # what is done to the features; None: nothing

    def pieces(self, step: int | None = None) -> Iterator[Piece]:
        """Yield all rows, and after them the lines that are none."""
        for batch in self.batches(step):
            yield self.piece(batch)
            if batch.bad:
                label = None if self.chosen.label is None else Texts([], np.zeros(0, int))
                x = np.zeros((0, len(self.chosen.features)))
                yield Piece(x, label, len(batch.bad), functools.partial(_of_other_width, batch))

    def piece(self, batch: Batch) -> Piece:
        """Make points of rows: numbers, missing ones filled in, and indicators of texts; refuse other types."""
        parts, unseen = [np.zeros((len(batch.numbers), 0), np.float32)], Counter[Any]()
        label, faults = (None, []) if self.chosen.label is None else self._labels(batch.columns[self.chosen.label])
        plain = [Column(self.keys[place]) for place in self.chosen.features]
        for place, how in zip(self.chosen.features, plain if self.columns is None else self.columns, strict=False):
            column, kind = batch.columns[place], str(batch.columns[place].type)
            if how.categories is not None:
                x, wrong, strange = indicators(column, how)
                unseen.update(strange)
            elif is_numeric(kind) or is_text(kind):
                x = floats_of(column, self.decimal)[:, None]
                if how.fill is not None:
                    x[lacks(column)] = how.fill
                wrong = ~np.isfinite(x[:, 0])
            else:
                said = f"column {how.key!r} is of type {kind}; numbers are needed"
                raise DataError(f"{self.name}: {said}: leave the column out (drop=, --drop).")
            parts.append(x)
            faults.append((wrong, lambda row, column=column, key=how.key: self._fault(column[row].as_py(), key)))
        x = np.concatenate(parts, axis=1)
        piece = without(faults, x, label, lambda rows: batch.where(batch.numbers[rows].tolist()))
        return piece._replace(unseen=unseen)

    def _fault(self, value: Any, key: str | int) -> str:
        """Describe what is wrong with a value of a feature, and what to do."""
        where, text = f"column {key!r} is", str("" if value is None else value).strip()
        if is_missing(text):
            return f"{where} missing; {FILL}"
        number = None if isinstance(value, str) and self.decimal is None else as_number(text, self.decimal or ".")
        if number is not None and np.isinf(number):
            return f"{where} {number}; a finite number is needed"
        if number is not None:
            advice = "an identifier is no feature: leave it out (drop=, --drop)"
            return f"{where} {shown(text)}, a whole number that float64 does not hold; {advice}"
        other = "," if self.decimal == "." else "."
        if self.decimal is not None and as_number(text, other) is not None:
            return f"{where} {shown(text)}; its decimal mark is {other!r}: say decimal={other!r} (--decimal {other})"
        return f"{where} {shown(text)}; {ENCODE}"

    def _labels(self, column: Any) -> tuple[Any, list[Fault]]:
        """Return labels as they are, an array, or `Texts` of what may be numbers; and which are none."""
        kind, where = str(column.type), f"the label (column {self.chosen.layout.label!r})"
        digits = self.decimal is not None or kind.startswith("decimal")
        if is_numeric(kind) and not digits:
            numbers = np.zeros(len(column)) if kind == "null" else flat(column)
            missing = lacks(column), lambda _: f"{where} is missing; remove the row or fill it in"
            return numbers, [missing, of_labels(numbers, where)]
        if not (digits or is_text(kind)):
            raise DataError(f"{self.name}: {where} is of type {kind}; numbers, booleans or text are needed.")
        label = texts_of([column])
        if self.decimal == ",":
            swapped = [text.replace(",", ".") if as_number(text, ",") is not None else text for text in label.values]
            label = label._replace(values=swapped)
        faults = [of_labels(label, where, fault_of_label if digits else fault_of_text)]
        return (label if digits else np.asarray(label.values, dtype=str)[label.codes]), faults


def _of_other_width(batch: Batch) -> list[str]:
    """Say where lines have another number of fields."""
    places = batch.where([row.number for row in batch.bad[:NAMED]])
    widths = [f"Expected {row.expected_columns} columns, got {row.actual_columns}" for row in batch.bad]
    return [f"{place}: {said}" for place, said in zip(places, widths, strict=False)]


def typed(name: str, kind: str, wanted: Wanted, frame: Any = None) -> Table:
    """Open a Parquet or Feather file, or a frame; the index that pandas writes as a column is left out."""
    sets = require_package("pyarrow.dataset", "reading tables")
    with told(name):
        source, of_file = name if frame is None else require_package("pyarrow", "reading tables").table(frame), None
        if kind == "parquet":  # else a file of 200 MB takes 600 MiB
            options = sets.ParquetFragmentScanOptions(pre_buffer=False, use_buffered_stream=True)
            of_file = sets.ParquetFileFormat(default_fragment_scan_options=options)
        rows = sets.dataset(source, format=of_file or (kind if frame is None else None))
        names, written = list(map(str, rows.schema.names)), (rows.schema.pandas_metadata or {}).get("index_columns", [])
    index = tuple(key for key in written if key in names and key not in wanted.named)
    named = ", ".join(repr(key) for key in index if not key.startswith("__index_level_"))
    notes = (f"the index that pandas wrote as a column is left out{named and f' ({named})'}",) if index else ()

    def where(numbers: list[int]) -> list[str]:
        return [f"{name}, row {number} (from 0)" for number in numbers]

    def batches(step: int | None) -> Iterator[Batch]:
        first = 0
        with told(name):
            for batch in rows.to_batches(**{} if step is None else {"batch_size": step, "batch_readahead": 1}):
                columns = [a.dictionary_decode() if str(a.type).startswith("dictionary") else a for a in batch.columns]
                if len(batch):
                    yield Batch(columns, np.arange(first, first + len(batch)), where)
                first += len(batch)

    chosen = choose(name, names, dataclasses.replace(wanted, absent=(*wanted.absent, *index)), notes)
    return Table(name, names, chosen, None, batches)


def delimited(name: str, wanted: Wanted) -> Table:
    """Open a CSV file; its first lines determine the separator, the names and the column of the labels."""
    with opened(name) as file:
        text = io.TextIOWrapper(file, "utf-8-sig", errors="replace")
        lines = [(number, line) for number, line in zip(range(1, 1000), text, strict=False) if line.strip()][:16]
    head = [line for _, line in lines]
    bare = "".join(head[0].split('"')[::2])
    separator = wanted.separator or next((mark for mark in "\t;," if mark in bare), ",")
    with told(name):
        rows = [list(map(str.strip, row)) for row in csv.reader(head, delimiter=separator)]
    first, below = rows[0], [row for row in rows[1:] if len(row) == len(rows[0])]
    of_rows = wanted.header is not False and not any(map(_is_number, first)) and len(rows) > 1
    of_rows = of_rows and all(len(row) == len(first) + 1 and row[-1] for row in rows[1:])  # R's write.table
    header = wanted.header
    named = header if header is not None else of_rows or names_columns([first, *below], wanted.named)
    if named is None:
        word = shown(next(field for field in first if not _is_number(field)))
        advice = "if the line names the columns, say so (header=True, --label NAME), if not, header=False"
        raise DataError(f"{name}, line {lines[0][0]}: {word} is no number, and other fields are; {advice}.")
    keys, notes = [""] * of_rows + first if named else list(range(len(first))), ()
    numbers = [title for title in first if named and header is None and _is_number(title)]
    if numbers and not wanted.named & set(first):
        listed = ", ".join(numbers[:3]) + (" and more" if len(numbers) > 3 else "")
        notes = (f"the first line is taken for the names of the columns, though it has numbers, {listed}",)
    if keys[0] == "" and len(keys) > 2:
        notes += ("the first column has no name: it is left out as the names of the rows",)
        wanted = dataclasses.replace(wanted, absent=(*wanted.absent, 0))
    if any("\ufffd" in str(key) for key in keys):
        raise DataError(f"{name}, line {lines[0][0]}: no UTF-8 text; save the file as UTF-8 (iconv -t UTF-8).")
    chosen = choose(name, keys, wanted, notes)
    kept = {*chosen.features, chosen.label}
    used = [place in kept for place in range(len(keys))]
    skip, longest = lines[0][0] - (not named), max(map(len, head))
    return Table(name, keys, chosen, wanted.decimal, lambda _: _batches(name, separator, skip, used, longest))


def _batches(name: str, separator: str, skip: int, used: list[bool], longest: int) -> Iterator[Batch]:
    """Yield the lines of a CSV file behind the first `skip`; of columns that are not used any bytes."""
    arrow, reader = (require_package(f"pyarrow{end}", "reading CSV files") for end in ("", ".csv"))
    bad, line = [], skip + 1  # what pyarrow leaves out, and the number of the next line; empty ones are not counted

    def where(numbers: list[int]) -> list[str]:
        with opened(name) as file:
            text, last = io.TextIOWrapper(file, errors="replace"), max(numbers, default=0)
            written = (at for at, line in enumerate(text, 1) if at <= skip or line.strip("\n"))
            places = dict(zip(range(1, last + 1), written, strict=False))
        return [f"{name}, line {places[number]}" for number in numbers]

    types = {str(place): arrow.string() if of_use else arrow.binary() for place, of_use in enumerate(used)}
    with told(name):
        batches = reader.open_csv(
            arrow.input_stream(name, {".gz": "gzip", ".bz2": "bz2"}.get(os.path.splitext(name)[1].lower())),
            reader.ReadOptions(
                column_names=list(types), use_threads=False, skip_rows=skip,
                block_size=max(BYTES_PER_PIECE, 8 * longest),  # a block holds a line at least
            ),
            reader.ParseOptions(
                delimiter=separator, invalid_row_handler=lambda row: bad.append(row) or "skip"
            ),
            reader.ConvertOptions(column_types=types),
        )  # fmt: skip
        for batch in batches:
            size, found = len(batch), bad[:]
            numbers = np.setdiff1d(np.arange(line, line + size + len(found)), [row.number for row in found])[:size]
            line = int(numbers[-1]) + 1 if size else line
            bad[:] = [row for row in found if row.number >= line]
            bad_here = [row for row in found if row.number < line and row.text.strip()]
            yield _with_lines(Batch(batch.columns, numbers, where, bad_here))
        if bad := [row for row in bad if row.text.strip()]:
            yield _with_lines(Batch([arrow.array([], kind) for kind in types.values()], np.zeros(0, int), where, bad))


def _with_lines(batch: Batch) -> Batch:
    """Return rows of text; refuse a quotation mark that swallows the ends of lines."""
    over = [row.number for row in batch.bad if len(row.text.splitlines()) > 1]
    for column in batch.columns:
        if any(end in memoryview(column.buffers()[2] or b"").tobytes() for end in (b"\n", b"\r")):
            compute = _arrow()[1]
            over += batch.numbers[flat(compute.match_substring_regex(column, "[\r\n]"))].tolist()
    if over:
        advice = "a quotation mark opens a field and closes it in the same line"
        raise DataError(f"{batch.where([min(over)])[0]}: a field holds a line's end; {advice}.")
    return batch


def _arrow() -> tuple[Any, Any]:
    return require_package("pyarrow", "reading tables"), require_package("pyarrow.compute", "reading tables")


def is_text(kind: str) -> bool:
    """Return whether a type of Arrow is text."""
    return kind in ("string", "large_string", "string_view")


def is_numeric(kind: str) -> bool:
    """Return whether a type of Arrow is one of numbers or truth values, or of nothing."""
    return kind.startswith(("int", "uint", "halffloat", "float", "double", "bool", "decimal", "null"))


def flat(column: Any) -> np.ndarray:
    """Return an Arrow column of numbers or truth values as a NumPy array, 0 where a value is missing."""
    arrow, kind = _arrow()[0], str(column.type)
    column = column.cast({"bool": arrow.uint8(), "halffloat": arrow.float32()}.get(kind, column.type))
    column = column.fill_null(0) if column.null_count else column
    values: Any = np.from_dlpack(column)  # `to_numpy` imports pandas: 0.3 s
    return values.astype(bool) if kind == "bool" else values


def lacks(column: Any) -> np.ndarray:
    """Return where a column lacks a value, bool `(n,)`."""
    arrow, compute = _arrow()
    if not is_text(str(column.type)):
        return flat(compute.is_null(column, nan_is_null=True))
    texts = compute.utf8_lower(compute.utf8_trim_whitespace(column.cast(arrow.string())))
    return flat(compute.is_in(texts, value_set=arrow.array([*MISSING, None])))


def floats_of(column: Any, mark: str | None) -> np.ndarray:
    """Return a column, of text by its decimal mark, as floats: NaN for what is missing, infinite or no float64."""
    arrow, compute = _arrow()
    kind = str(column.type)
    if kind == "null" or (mark is None and is_text(kind)):
        return np.full(len(column), np.nan)
    numbers = column = column.cast(arrow.string()) if kind.startswith("decimal") else column
    if spelled := is_text(str(column.type)):
        column = compute.utf8_trim_whitespace(column)
        if mark == ",":
            column = compute.replace_substring(compute.replace_substring(column, ".", "x"), ",", ".")
        try:
            numbers = column.cast(arrow.float64())
        except arrow.ArrowInvalid:
            found = compute.match_substring_regex(column, NUMBER)
            numbers = compute.if_else(found, column, arrow.scalar(None, column.type)).cast(arrow.float64())
    raw = flat(numbers)
    changed = rounded(raw)
    for at in np.flatnonzero(np.abs(raw) >= EXACT).tolist() if spelled else ():
        changed[at] = rounds(column[at].as_py(), float(raw[at]))
    values = raw.astype(np.result_type(raw.dtype, np.float32))
    values[flat(numbers.is_null()) | changed | np.isinf(values)] = np.nan
    return values


def texts_of(columns: list[Any]) -> Texts:
    """Return a column as it is written, "" where a value is missing; truth values as pandas writes them."""
    arrow, compute = _arrow()
    written = [
        compute.if_else(a, "True", "False") if str(a.type) == "bool" else a.cast(arrow.string()) for a in columns
    ]
    texts = compute.utf8_trim_whitespace(compute.fill_null(arrow.concat_arrays(written), "")).dictionary_encode()
    values, codes = coded(texts.dictionary.to_pylist())
    return Texts(values, codes[flat(texts.indices)])


def indicators(column: Any, how: Column) -> tuple[np.ndarray, np.ndarray, dict[Any, int]]:
    """Return an indicator of each category of texts, which rows lack one, and how often texts without one occur."""
    texts, places = texts_of([column]), {text: place for place, text in enumerate(how.categories or ())}
    lacking = [is_missing(text) for text in texts.values]
    found = [how.fill if lacks else text for text, lacks in zip(texts.values, lacking, strict=True)]
    codes, count = np.asarray([places.get(str(text), -1) for text in found], int), np.bincount(texts.codes).tolist()
    strange = {(how.key, texts.values[at]): count[at] for at in np.flatnonzero(codes < 0) if not lacking[at]}
    wrong = np.asarray(lacking, bool)[texts.codes] & (how.fill is None)
    return (codes[texts.codes][:, None] == np.arange(len(places))).astype(float), wrong, strange


def names_columns(rows: list[list[str]], known: set[str]) -> bool | None:
    """Return whether the first of some lines names the columns; None if it may or may not.

    A line without numbers does, unless all its texts come again below, and one with a name that is known. One with
    numbers does if they count up by ones, as those of pandas and years do, and its texts are not in the lines below:
    there are numbers or other texts.
    """
    first, below = rows[0], rows[1:]
    numbers = [field for field in first if _is_number(field)]
    texts = [at for at, field in enumerate(first) if not _is_number(field) and not is_missing(field)]
    beneath = [[row[at] for row in below if not is_missing(row[at])] for at in texts]
    fresh = [first[at] not in fields for at, fields in zip(texts, beneath, strict=True)]
    if known & set(first) or not numbers:
        return bool(known & set(first)) or any(fresh) or not texts
    counted = all(map(WHOLE.fullmatch, numbers))
    counted = counted and [int(field) - int(numbers[0]) for field in numbers] == list(range(len(numbers)))
    if any(fields and all(map(_is_number, fields)) for fields in beneath):
        return True if (counted and len(numbers) > 1) or len(texts) > len(numbers) else None
    if not counted or len(below) < 3:
        return False
    return len(numbers) > 1 and all(fresh) if texts else numbers[0] == "0" and len(numbers) > 1 + (first[0] != "")


def _is_number(field: str) -> bool:
    return as_number(field) is not None or as_number(field, ",") is not None


def svmlight(name: str, labelled: bool, step: int | None = None) -> Iterator[Piece]:
    """Yield all rows, CSR, with indices as they are written; whole labels as whole numbers."""
    del step  # the size of pieces of text is in bytes
    line = 1
    with opened(name) as file:
        while block := file.read(BYTES_PER_PIECE) + file.readline():
            lines = block.count(b"\n")
            yield from _rows(name, block.removeprefix(b"\xef\xbb\xbf") if line == 1 else block, line, labelled)
            line += lines


def _rows(name: str, block: bytes, line: int, labelled: bool) -> Iterator[Piece]:
    """Yield the rows of a block; what follows a damaged line is read only when it is asked for."""
    try:
        piece = parsed(block, labelled)
    except (ValueError, OverflowError) as error:
        lines = block.splitlines(keepends=True)
        if half := len(lines) // 2:
            yield from _rows(name, b"".join(lines[:half]), line, labelled)
            yield from _rows(name, b"".join(lines[half:]), line + half, labelled)
            return
        expected = "files of other formats are named so (.csv, .npz, .parquet, .feather), or format= says which"
        message = f"{name}, line {line}: {str(error).strip()}; svmlight is '+1 3:0.5 7:1' ({expected})"
        piece = parsed(b"", labelled)._replace(damaged=1, messages=lambda: [message])
    if piece.x.shape[0] or piece.damaged:
        yield piece


def parsed(block: bytes, labelled: bool) -> Piece:
    """Return the rows of some lines; raise ValueError if one cannot be read."""
    load = require_package("sklearn.datasets", "reading svmlight files").load_svmlight_file
    block = re.sub(rb"#[^\n]*", b"", block) if b"#" in block else block
    if b"_" in block:
        raise ValueError("an underscore is no part of a number")
    block = re.sub(rb":[ \t]+", b":", block)  # LIBSVM's own data set "protein" has blanks there
    x, y = load(io.BytesIO(block), zero_based=True)
    if not (np.isfinite(x.data).all() and np.isfinite(y).all()):
        raise ValueError("a number is not finite, remove or impute it first")
    for match in re.finditer(rb":([+-]?[0-9]{16,})(?=\s|$)", block):
        if int(float(match[1])) != int(match[1]):
            raise ValueError(f"{match[1].decode()} is a whole number that float64 does not hold")
    if np.abs(y).max(initial=0) >= EXACT:
        raise ValueError("a label is above 2**53, where float64 does not hold all whole numbers: write a table")
    different, codes = np.unique(y, return_inverse=True)  # the format does not distinguish 1 from 1.0
    label = Texts([str(int(y)) if y == np.rint(y) else repr(y) for y in different.tolist()], codes)
    return Piece(require_package("scipy.sparse", "svmlight files").csr_array(x), label if labelled else None)
