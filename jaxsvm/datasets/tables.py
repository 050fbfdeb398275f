"""Read files by pyarrow (CSV, Parquet, Feather, data frames), scikit-learn (svmlight) and NumPy (npz, npy).

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
import itertools
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from jaxsvm.datasets.labels import (
    EXACT,
    MISSING,
    NUMBER,
    Columns,
    Layout,
    Piece,
    Reader,
    Texts,
    Wanted,
    as_number,
    choose,
    is_missing,
    refuse,
    refuse_labels,
    rounded,
    rounds,
    shown,
)
from jaxsvm.errors import DataError, InputError, require_package

FILL = 'fill it in (impute="mean", --impute mean) in training, or leave the row or the column (drop=, --drop) out'
ENCODE = (
    "a number is needed: encode text (one_hot=True, --one-hot; names and quantities are no categories), leave the "
    "column out (drop=, --drop), or say where the labels are (label=, --label)"
)


BYTES_PER_PIECE = 1 << 22  # in which text is read, so that memory does not depend on its length; not measured


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


@dataclasses.dataclass(frozen=True)
class Table:
    """The rows of a table, and which columns are features and labels."""

    name: str
    keys: list[Any]  # the names of all columns, or their places in a file without a header
    chosen: Columns
    decimal: str | None  # the decimal mark of numbers that are written as text; None: text is no number
    batches: Callable[[int | None], Iterator[Sequence[Any]]]  # Arrow's columns, of so many rows
    where: Callable[[int], str]  # says where the row of a number is, from 0
    columns: tuple[Column, ...] | None = None  # what is done to the features; None: nothing

    def pieces(self, step: int | None = None) -> Iterator[Piece]:
        """Yield all rows."""
        first = 0
        for columns in self.batches(step):
            yield self._piece(columns, lambda row, first=first: self.where(first + row))
            first += len(columns[0])

    def _piece(self, columns: Sequence[Any], where: Callable[[int], str]) -> Piece:
        """Make points of rows: numbers, missing ones filled in, and indicators of texts; refuse other types."""
        if self.decimal is not None:
            _refuse_ends_of_lines(columns, where)
        parts, faults, unseen = [np.zeros((len(columns[0]), 0), np.float32)], [], Counter[Any]()
        label = None if self.chosen.label is None else self._labels(columns[self.chosen.label], where)
        plain = [Column(self.keys[place]) for place in self.chosen.features]
        for place, how in zip(self.chosen.features, plain if self.columns is None else self.columns, strict=False):
            column, kind = columns[place], str(columns[place].type)
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
            if wrong.any():
                row = int(wrong.argmax())
                faults.append((row, self._fault(column[row].as_py(), how.key)))
            parts.append(x)
        if faults:
            row, said = min(faults, key=lambda fault: fault[0])
            raise DataError(f"{where(row)}: {said}.")
        return Piece(np.concatenate(parts, axis=1), label, unseen)

    def _fault(self, value: Any, key: str | int) -> str:
        """Describe what is wrong with a value of a feature, and what to do."""
        where, text = f"column {key!r} is", str("" if value is None else value).strip()
        if is_missing(text):
            return f"{where} missing; {FILL}"
        number = None if isinstance(value, str) and self.decimal is None else as_number(text, self.decimal or ".")
        if number is not None:
            advice = "an identifier is no feature: leave it out (drop=, --drop)"
            return f"{where} {text[:40]}, a number that float64 does not hold; {advice}"
        other = "," if self.decimal == "." else "."
        if self.decimal is not None and as_number(text, other) is not None:
            return f"{where} {shown(text)}; its decimal mark is {other!r}: say decimal={other!r} (--decimal {other})"
        return f"{where} {shown(text)}; {ENCODE}"

    def _labels(self, column: Any, where: Callable[[int], str]) -> Any:
        """Return labels as they are: an array, or `Texts` of what may be numbers; refuse missing ones."""
        kind, title = str(column.type), f"the label (column {self.chosen.layout.label!r})"
        digits = self.decimal is not None or kind.startswith("decimal")
        if is_numeric(kind) and not digits:
            refuse(lacks(column), lambda row: f"{where(row)}: {title} is missing; remove the row or fill it in")
            refuse_labels(numbers := flat(column), title, where)
            return numbers
        if not (digits or is_text(kind)):
            raise DataError(f"{self.name}: {title} is of type {kind}; numbers, booleans or text are needed.")
        label = texts_of([column])
        if self.decimal == ",":
            swapped = [text.replace(",", ".") if as_number(text, ",") is not None else text for text in label.values]
            label = label._replace(values=swapped)
        refuse_labels(label, title, where)
        return label if digits else np.asarray(label.values, dtype=str)[label.codes]


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

    def batches(step: int | None) -> Iterator[Sequence[Any]]:
        with told(name):
            for batch in rows.to_batches(**{} if step is None else {"batch_size": step, "batch_readahead": 1}):
                if len(batch):
                    yield [a.dictionary_decode() if str(a.type).startswith("dictionary") else a for a in batch.columns]

    chosen = choose(name, names, dataclasses.replace(wanted, absent=(*wanted.absent, *index)), notes)
    return Table(name, names, chosen, None, batches, lambda row: f"{name}, row {row} (from 0)")


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
    named = header if header is not None else of_rows or names_columns(first, below, wanted.named)
    if named is None:
        advice = "say header=True (--header) if they are, header=False (--no-header) if not"
        raise DataError(f"{name}, line {lines[0][0]}: {shown(', '.join(first))} may be names of columns: {advice}.")
    keys, notes = [""] * of_rows + first if named else list(range(len(first))), ()
    if keys[0] == "" and len(keys) > 2:
        notes = ("the first column has no name: it is left out as the names of the rows",)
        wanted = dataclasses.replace(wanted, absent=(*wanted.absent, 0))
    if any("\ufffd" in str(key) for key in keys):
        raise DataError(f"{name}, line {lines[0][0]}: no UTF-8 text; save the file as UTF-8 (iconv -t UTF-8).")
    chosen = choose(name, keys, wanted, notes)
    kept = {*chosen.features, chosen.label}
    used = [place in kept for place in range(len(keys))]
    skip, longest = lines[0][0] - (not named), max(map(len, head))

    def where(row: int) -> str:
        with opened(name) as file:
            text = io.TextIOWrapper(file, errors="replace")
            written = (at for at, line in enumerate(text, 1) if at > skip and not _is_blank(line))
            return f"{name}, line {next(itertools.islice(written, row, None))}"

    fields = functools.partial(_fields, name, separator, skip, used, longest, where)
    return Table(name, keys, chosen, wanted.decimal, fields, where)


def _is_blank(line: str) -> bool:
    return not line.strip(" \r\n")


def _fields(
    name: str, separator: str, skip: int, used: list[bool], longest: int, where: Callable[[int], str], _: int | None
) -> Iterator[Sequence[Any]]:
    """Yield the fields of a CSV file's lines behind the first `skip`, by column; of those not used any bytes."""
    arrow, reader = (require_package(f"pyarrow{end}", "reading CSV files") for end in ("", ".csv"))
    blank: list[Any] = []  # lines of blanks, which are passed over
    bad: list[Any] = []  # the first line with another number of fields

    def unlike(row: Any) -> str:
        (blank if _is_blank(row.text) else bad).append(row)
        return "error" if bad else "skip"

    types = {str(place): arrow.string() if of_use else arrow.binary() for place, of_use in enumerate(used)}
    try:
        with told(name):
            batches = reader.open_csv(
                arrow.input_stream(name, {".gz": "gzip", ".bz2": "bz2"}.get(os.path.splitext(name)[1].lower())),
                reader.ReadOptions(
                    column_names=list(types), use_threads=False, skip_rows=skip,
                    block_size=max(BYTES_PER_PIECE, 8 * longest),  # a block holds a line at least
                ),
                reader.ParseOptions(delimiter=separator, invalid_row_handler=unlike),
                reader.ConvertOptions(column_types=types),
            )  # fmt: skip
            yield from (batch.columns for batch in batches)
            arrow.default_memory_pool().release_unused()  # blocks read ahead, 32 at most
    except DataError:
        if not bad:
            raise
        place = where(bad[0].number - skip - 1 - len(blank))
        widths = f"Expected {bad[0].expected_columns} columns, got {bad[0].actual_columns}"
        raise DataError(f"{place}: {widths}.") from None


def _refuse_ends_of_lines(columns: Sequence[Any], where: Callable[[int], str]) -> None:
    """Refuse fields that hold a line's end: a stray quotation mark swallows the lines up to the next one."""
    advice = "a quotation mark opens a field and closes it in the same line"
    for column in columns:
        if any(end in memoryview(column.buffers()[2] or b"").tobytes() for end in (b"\n", b"\r")):
            over = flat(_arrow()[1].match_substring_regex(column, "[\r\n]"))
            refuse(over, lambda row: f"{where(row)}: a field holds a line's end; {advice}")


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
    return Texts(texts.dictionary.to_pylist(), flat(texts.indices))


def indicators(column: Any, how: Column) -> tuple[np.ndarray, np.ndarray, dict[Any, int]]:
    """Return an indicator of each category of texts, which rows lack one, and how often texts without one occur."""
    texts, places = texts_of([column]), {text: place for place, text in enumerate(how.categories or ())}
    lacking = [is_missing(text) for text in texts.values]
    found = [how.fill if lacks else text for text, lacks in zip(texts.values, lacking, strict=True)]
    codes, count = np.asarray([places.get(str(text), -1) for text in found], int), np.bincount(texts.codes).tolist()
    strange = {(how.key, texts.values[at]): count[at] for at in np.flatnonzero(codes < 0) if not lacking[at]}
    wrong = np.asarray(lacking, bool)[texts.codes] & (how.fill is None)
    return (codes[texts.codes][:, None] == np.arange(len(places))).astype(float), wrong, strange


def names_columns(first: list[str], below: list[list[str]], known: set[str]) -> bool | None:
    """Return whether the first line names the columns: it has a name that is known, or no number; None if it may.

    It may if the texts of a line without numbers all come again in the next lines, if one stands above numbers, or if
    the numbers count up (0, 1, ..., as those of pandas; years), and the texts do not come again.
    """
    numbers = [field for field in first if _is_number(field)]
    texts = [at for at, field in enumerate(first) if not (_is_number(field) or is_missing(field))]
    beneath = [[row[at] for row in below if not is_missing(row[at])] for at in texts]
    fresh = [first[at] not in fields for at, fields in zip(texts, beneath, strict=True)]
    if known & set(first) or not numbers:
        return True if known & set(first) or any(fresh) or not texts else None
    counted = len(below) > 2 and len(numbers) > 1 and _count_up(numbers, bool(texts))
    over_numbers = any(fields and all(map(_is_number, fields)) for fields in beneath)
    return None if over_numbers or (counted and all(fresh)) else False


def _count_up(numbers: list[str], beside_texts: bool) -> bool:
    """Return whether numbers are 0, 1, ...; or enough whole ones, each as far above the one before."""
    apart = {int(b) - int(a) for a, b in itertools.pairwise(numbers)} if all(map(str.isdigit, numbers)) else set()
    enough = len(numbers) > 3 or apart == {1} and len(numbers) > 2 - beside_texts
    return numbers == list(map(str, range(len(numbers)))) or enough and len(apart) == 1 and min(apart) > 0


def _is_number(field: str) -> bool:
    return as_number(field) is not None or as_number(field, ",") is not None


def svmlight(name: str, labelled: bool, step: int | None = None) -> Iterator[Piece]:
    """Yield all rows, CSR, with indices as they are written; whole labels as whole numbers."""
    del step  # the size of pieces of text is in bytes
    line = 1
    with opened(name) as file:
        while block := file.read(BYTES_PER_PIECE) + file.readline():
            lines = block.count(b"\n")
            yield _rows(name, block.removeprefix(b"\xef\xbb\xbf") if line == 1 else block, line, labelled)
            line += lines


def _rows(name: str, block: bytes, line: int, labelled: bool) -> Piece:
    """Return the rows of a block; name the first line that is none, which is found by halving."""
    try:
        return parsed(block, labelled)
    except (ValueError, OverflowError) as error:
        lines = block.splitlines(keepends=True)
        if half := len(lines) // 2:
            _rows(name, b"".join(lines[:half]), line, labelled)
            _rows(name, b"".join(lines[half:]), line + half, labelled)
        expected = "files of other formats are named so (.csv, .npz, .parquet, .feather), or format= says which"
        raise DataError(
            f"{name}, line {line}: {str(error).strip()}; svmlight is '+1 3:0.5 7:1' ({expected})."
        ) from error


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


def arrays(name: str, kind: str, wanted: Wanted) -> Reader:
    """Open an npz file, for its arrays, or the rows of an npy file."""
    with told(name):
        x, y, chosen = (_of_rows if kind == "npy" else _of_archive)(name, wanted)
        y = np.char.decode(y, "utf-8") if y is not None and y.dtype.kind == "S" else y
    fit = x.ndim == 2 and x.shape[1] and x.dtype.kind in "biuf" and x.dtype.itemsize <= 8
    fit = fit and (y is None or y.shape == x.shape[:1] and y.dtype.kind in "biufU" and y.dtype != np.longdouble)
    if not fit:
        found = "" if y is None else f" and y is {y.dtype} of shape {y.shape}"
        needed = "numbers of up to 64 bits (n, d), d >= 1, and numbers or strings (n,) are needed"
        raise DataError(f"{name}: X is {x.dtype} of shape {x.shape}{found}; {needed}.")

    def pieces(step: int | None) -> Iterator[Piece]:
        n = x.shape[0]
        for first in range(0, n, step or max(n, 1)):
            last = min(first + (step or n), n)
            yield _piece(name, x[first:last], None if y is None else np.asarray(y[first:last]), first)

    return Reader(chosen, pieces)


def _of_rows(name: str, wanted: Wanted) -> tuple[Any, Any, Columns]:
    """Return features and labels of an array of rows, and which columns they are."""
    rows = np.load(name, mmap_mode="r", allow_pickle=False)
    if rows.ndim != 2:
        raise DataError(f"{name}: has shape {rows.shape}; rows of features and a label are needed.")
    chosen = choose(name, list(range(rows.shape[1])), wanted)
    x, y = (rows, None) if chosen.label is None else (rows[:, chosen.features], rows[:, chosen.label])
    return x, y, chosen


def _of_archive(name: str, wanted: Wanted) -> tuple[Any, Any, Columns]:
    """Return the arrays of an archive, and the key of the labels if it was asked for."""
    label, known, y, notes = wanted.label, wanted.like.label, None, ()
    with np.load(name, allow_pickle=False) as stored:
        keys = ", ".join(stored.files)
        if label is None and isinstance(known, str) and known in stored.files:
            label, notes = known, (f"labels are in column {known!r}, as in {wanted.whose}",)
        key = "y" if label is None or label is False else label
        if label is not False and (key in stored.files or not wanted.optional):
            if key not in stored.files:
                raise DataError(f"{name}: has no labels {key!r}; its keys are {keys}: name one (label=, --label).")
            y = stored[key]
        if "X" not in stored.files:
            advice = "X is needed, as in np.savez(file, X=x, y=y); scipy.sparse.load_npz reads sparse points"
            raise DataError(f"{name}: has no points, its keys are {keys}: {advice}, svmlight files hold them.")
        x = stored["X"]
    features = list(range(x.shape[-1])) if x.ndim == 2 else []
    return x, y, Columns(features, None, (), Layout(label=label or None), notes)


def _piece(name: str, raw: np.ndarray, y: np.ndarray | None, first: int) -> Piece:
    """Return some rows of arrays; refuse what is no number or label."""
    x = np.asarray(raw).astype(np.result_type(raw.dtype, np.float32))

    def where(row: int) -> str:
        return f"{name}, row {first + row} (from 0)"

    for row, column in np.argwhere(~np.isfinite(x) | rounded(raw))[:1].tolist():
        found = f"column {column} of X is {raw[row, column]}"
        raise DataError(f"{where(row)}: {found}; a finite number that float64 holds is needed.")
    if y is not None:
        texts, codes = np.unique(y, return_inverse=True) if y.dtype.kind == "U" else (y, None)
        label = y if codes is None else Texts(texts.tolist(), codes)
        refuse_labels(label, "the label (y)", where)
    return Piece(x, y)
