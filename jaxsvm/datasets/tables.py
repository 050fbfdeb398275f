"""Read tables by pyarrow: CSV, Parquet and Feather files, and data frames.

pyarrow divides CSV into fields, which stay text here: numbers are converted as they are written, labels keep their
digits. What it says of a broken file is passed on with the file's name.
"""

import csv
import dataclasses
import io
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
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
from jaxsvm.datasets.layout import NAMED, Faults, Piece, Wanted, choose
from jaxsvm.datasets.text import blocks, line_numbers, opened, told
from jaxsvm.errors import DataError, require_package

FILL = 'fill it in (impute="mean", --impute mean), or leave the row or the column (drop=, --drop) out'
ENCODE = (
    "a number is needed: encode text (one_hot=True, --one-hot; names and quantities are no categories), leave the "
    "column out (drop=, --drop), or say where the labels are (label=, --label)"
)


@dataclasses.dataclass(frozen=True)
class Column:
    """What is done to one column."""

    key: str | int  # its name, or its place among the features of a file without a header
    fill: float | str | None = None  # the value that stands in for a missing one; None: a missing value is refused
    categories: tuple[str, ...] | None = None  # its texts, an indicator each; None for a column of numbers


class Batch(NamedTuple):
    """Rows of a table as they are written."""

    columns: list[Any]  # of Arrow
    where: Callable[[int], str]  # names the place of a row
    damaged: int = 0  # number of lines that have another number of fields, and were left out
    messages: tuple[str, ...] = ()  # about the first of them


class Table:
    """The rows of a table, and which columns are features and labels."""

    decimal: str | None = None  # the decimal mark of numbers that are written as text; None: text is no number

    def __init__(self, name: str, keys: list[Any], wanted: Wanted, notes: tuple[str, ...]) -> None:
        """Find the columns; refuse others than in training."""
        self.name, self._keys = name, keys
        self.features, self.label, self.dropped, self.layout, found = choose(name, keys, wanted)
        self.notes = (*notes, *found)
        self.keys = tuple(keys[place] for place in self.features)  # names, or places in a file without a header
        nameless = [place for place in (*self.features, self.label) if place is not None and keys[place] == ""]
        if nameless:
            advice = f"name it, or leave it out (--drop {nameless[0]}) if lines end in a separator too many"
            raise DataError(f"{name}: column {nameless[0]} of the header has no name: {advice}.")

    def batches(self, step: int | None = None) -> Iterator[Batch]:
        """Yield all rows as they are written, `step` a batch where the format has rows of one size."""
        raise NotImplementedError

    def pieces(self, step: int | None = None) -> Iterator[Piece]:
        """Yield all rows."""
        for batch in self.batches(step):
            yield self.piece(batch, [Column(key) for key in self.keys], {})

    def piece(self, batch: Batch, columns: Sequence[Column], unseen: dict[Any, Counter[str]]) -> Piece:
        """Make points of rows: numbers, missing ones filled in, and indicators of texts.

        Args:
            batch: The rows.
            columns: What to do with each feature column; none for labels alone.
            unseen: Takes the texts that have no indicator, and how often each occurs, by column.

        Raises:
            DataError: If the type of a column is no number's.
        """
        faults, parts = Faults(), [np.zeros((len(batch.columns[0]), 0), np.float32)]
        label = None if self.label is None else self.labels(batch.columns[self.label], faults)
        for place, how in zip(self.features, columns, strict=False):
            column = batch.columns[place]
            plain = how.fill is None and how.categories is None
            lacking = np.zeros(len(column), bool) if plain else lacks(column)

            def fault(row: int, column: Any = column, place: int = place) -> str:
                return self.fault(column[row].as_py(), place)

            if how.categories is None:
                self.require_numbers(column, place)
                values = floats_of(column, self.decimal)
                values[lacking] = np.nan if how.fill is None else how.fill
                faults.note(~np.isfinite(values), fault)
                parts.append(values[:, None])
                continue
            texts, known = texts_of([column]), {text: code for code, text in enumerate(how.categories)}
            codes = np.asarray([known.get(text, -1) for text in texts.values], int)[texts.codes]
            broken = np.asarray(["\ufffd" in text for text in texts.values], bool)[texts.codes]
            faults.note(broken | (lacking & (how.fill is None)), fault)
            codes[lacking] = known.get(str(how.fill), -1)
            parts.append((codes[:, None] == np.arange(len(known))).astype(float))
            strange, count = np.unique(texts.codes[(codes < 0) & ~lacking], return_counts=True)
            for code, many in zip(strange.tolist(), count.tolist(), strict=True):
                unseen.setdefault(how.key, Counter())[texts.values[code]] += many
        piece = faults.piece(np.concatenate(parts, axis=1), label, batch.where)
        messages = (batch.messages + piece.messages)[:NAMED]
        return piece._replace(damaged=piece.damaged + batch.damaged, messages=messages)

    def require_numbers(self, column: Any, place: int) -> None:
        """Refuse a column whose type is neither a number's nor a truth value's."""
        kind, said = str(column.type), f"column {self._keys[place]!r} is of type {column.type}"
        if is_text(kind) and self.decimal is None:
            texts = [text for text in texts_of([column]).values if not is_missing(text)]
            raise DataError(f"{self.name}: {self.fault(texts[0] if texts else None, place)}.")
        if not (is_numeric(kind) or is_text(kind)):
            raise DataError(f"{self.name}: {said}; numbers are needed: leave the column out (drop=, --drop).")

    def fault(self, value: Any, place: int) -> str:
        """Describe what is wrong with a value of a feature, and what to do."""
        where, text = f"column {self._keys[place]!r} is", str("" if value is None else value).strip()
        if is_missing(text):
            return f"{where} missing; {FILL}"
        if "\ufffd" in text:
            return f"{where} no UTF-8 text; save the file as UTF-8 (iconv -t UTF-8)"
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

    def labels(self, column: Any, faults: Faults) -> Any:
        """Return labels as they are: an array, or `Texts` of what may be numbers."""
        kind, where = str(column.type), f"the label (column {self.layout.label!r})"
        digits = self.decimal is not None or kind.startswith("decimal")
        if is_numeric(kind) and not digits:
            array = np.zeros(len(column)) if kind == "null" else flat(column)
            faults.note(lacks(column), lambda _: f"{where} is missing; remove the row or fill it in")
            return faults.of_labels(array, where)
        if not (digits or is_text(kind)):
            raise DataError(f"{self.name}: {where} is of type {kind}; numbers, booleans or text are needed.")
        label = texts_of([column])
        if self.decimal == ",":
            swapped = [text.replace(",", ".") if as_number(text, ",") is not None else text for text in label.values]
            label = label._replace(values=swapped)
        faults.of_labels(label, where, fault_of_label if digits else fault_of_text)
        return label if digits else np.asarray(label.values, dtype=str)[label.codes]


class Typed(Table):
    """A Parquet or Feather file, or a frame; the index that pandas writes as a column is left out."""

    def __init__(self, name: str, kind: str, wanted: Wanted, frame: Any = None) -> None:
        """Read the schema."""
        with told(name):
            sets = require_package("pyarrow.dataset", "reading tables")
            source, of_file = name if frame is None else require_package("pyarrow", "reading tables").table(frame), None
            if kind == "parquet":  # else a file of 200 MB takes 600 MiB
                options = sets.ParquetFragmentScanOptions(pre_buffer=False, use_buffered_stream=True)
                of_file = sets.ParquetFileFormat(default_fragment_scan_options=options)
            self._source = sets.dataset(source, format=of_file or (kind if frame is None else None))
            schema = self._source.schema
            written = (schema.pandas_metadata or {}).get("index_columns", [])
        index = tuple(key for key in written if key in schema.names and key not in wanted.named)
        named = ", ".join(repr(key) for key in index if not key.startswith("__index_level_"))
        notes = (f"the index that pandas wrote as a column is left out{named and f' ({named})'}",) if index else ()
        wanted = dataclasses.replace(wanted, absent=(*wanted.absent, *index))
        super().__init__(name, list(map(str, schema.names)), wanted, notes)

    def batches(self, step: int | None = None) -> Iterator[Batch]:
        first = 0
        with told(self.name):
            for batch in self._source.to_batches(**{} if step is None else {"batch_size": step, "batch_readahead": 1}):
                columns = [a.dictionary_decode() if str(a.type).startswith("dictionary") else a for a in batch.columns]
                if len(batch):
                    yield Batch(columns, lambda row, first=first: f"{self.name}, row {first + row} (from 0)")
                first += len(batch)


class Delimited(Table):
    """A CSV file; its first lines determine the separator, the names and the column of the labels."""

    def __init__(self, name: str, wanted: Wanted) -> None:
        """Read the first lines."""
        self.decimal = wanted.decimal
        with opened(name) as file:
            text = io.TextIOWrapper(file, "utf-8-sig", errors="replace")
            lines = [(number, line) for number, line in zip(range(1, 1000), text, strict=False) if line.strip()][:16]
        head = [line for _, line in lines]
        bare = "".join(head[0].split('"')[::2])
        self._separator = wanted.separator or next((mark for mark in "\t;," if mark in bare), ",")
        with told(name):
            rows = [list(map(str.strip, row)) for row in csv.reader(head, delimiter=self._separator)]
        first, below = rows[0], [row for row in rows[1:] if len(row) == len(rows[0])]
        of_rows = wanted.header is not False and not any(map(_is_number, first)) and len(rows) > 1
        of_rows = of_rows and all(len(row) == len(first) + 1 and row[-1] for row in rows[1:])  # R's write.table
        header = wanted.header
        named = header if header is not None else of_rows or names_columns([first, *below], wanted.named)
        if named is None:
            word = shown(next(field for field in first if not _is_number(field)))
            advice = "if the line names the columns, say so (header=True, --label NAME), if not, header=False"
            raise DataError(f"{name}, line {lines[0][0]}: {word} is no number, and other fields are; {advice}.")
        self._skip = lines[0][0] - (not named)
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
        super().__init__(name, keys, wanted, notes)

    def batches(self, step: int | None = None) -> Iterator[Batch]:
        del step  # the size of blocks of text is in bytes
        arrow, reader = (require_package(f"pyarrow{end}", "reading CSV files") for end in ("", ".csv"))
        names = list(map(str, range(len(self._keys))))  # a file may name two columns alike
        convert = reader.ConvertOptions(column_types=dict.fromkeys(names, arrow.string()))
        for block, line in blocks(self.name, self._skip):
            block, bad = _as_utf8(block), []  # noqa: PLW2901
            with told(self.name):
                table = reader.read_csv(
                    arrow.BufferReader(block),
                    reader.ReadOptions(column_names=names, use_threads=False, block_size=len(block) + 1),
                    reader.ParseOptions(
                        delimiter=self._separator, invalid_row_handler=lambda row, bad=bad: bad.append(row) or "skip"
                    ),
                    convert,
                )
            columns = [column.combine_chunks() for column in table.columns]
            self._require_lines(columns, bad, block, line)

            def where(row: int, block: bytes = block, line: int = line, bad: list[Any] = bad) -> str:
                numbers = np.delete(line_numbers(block, line), [row.number - 1 for row in bad])
                return f"{self.name}, line {numbers[row]}"

            numbers, bad = line_numbers(block, line) if bad else [], [row for row in bad if row.text.strip()]
            messages = tuple(
                f"{self.name}, line {numbers[row.number - 1]}: Expected {row.expected_columns} columns, got "
                f"{row.actual_columns}"
                for row in bad[:NAMED]
            )
            yield Batch(columns, where, len(bad), messages)

    def _require_lines(self, columns: list[Any], bad: list[Any], block: bytes, line: int) -> None:
        """Refuse a quotation mark that swallows the ends of lines."""
        rows = len(columns[0]) + len(bad)
        if rows == block.count(b"\n") + (not block.endswith(b"\n")) or rows == len(line_numbers(block, line)):
            return
        compute = require_package("pyarrow.compute", "reading CSV files")
        over = np.zeros(rows, bool)
        good = np.delete(np.arange(rows), [row.number - 1 for row in bad])
        for column in columns:
            over[good] |= flat(compute.match_substring_regex(column, "[\r\n]"))
        over[[row.number - 1 for row in bad]] = [len(row.text.splitlines()) > 1 for row in bad]
        advice = "a quotation mark opens a field and closes it in the same line"
        number = line_numbers(block, line)[int(over.argmax())]
        raise DataError(f"{self.name}, line {number}: a field holds a line's end; {advice}.")


def _as_utf8(block: bytes) -> bytes:
    """Return text with U+FFFD, which is refused by its place, for what is no UTF-8."""
    try:
        block.decode()
    except UnicodeDecodeError:
        return block.decode(errors="replace").encode()
    return block


def is_text(kind: str) -> bool:
    """Return whether a type of Arrow is text."""
    return kind in ("string", "large_string", "string_view")


def is_numeric(kind: str) -> bool:
    """Return whether a type of Arrow is one of numbers or truth values, or of nothing."""
    return kind.startswith(("int", "uint", "halffloat", "float", "double", "bool", "decimal", "null"))


def flat(column: Any) -> np.ndarray:
    """Return an Arrow column of numbers or truth values as a NumPy array, 0 where a value is missing."""
    arrow, kind = require_package("pyarrow", "reading tables"), str(column.type)
    column = column.cast({"bool": arrow.uint8(), "halffloat": arrow.float32()}.get(kind, column.type))
    column = column.fill_null(0) if column.null_count else column
    values: Any = np.from_dlpack(column)  # `to_numpy` imports pandas: 0.3 s
    return values.astype(bool) if kind == "bool" else values


def lacks(column: Any) -> np.ndarray:
    """Return where a column lacks a value, bool `(n,)`."""
    arrow, compute = (require_package(f"pyarrow{end}", "reading tables") for end in ("", ".compute"))
    if not is_text(str(column.type)):
        return flat(compute.is_null(column, nan_is_null=True))
    texts = compute.utf8_lower(compute.utf8_trim_whitespace(column.cast(arrow.string())))
    return flat(compute.is_in(texts, value_set=arrow.array([*MISSING, None])))


def floats_of(column: Any, mark: str | None) -> np.ndarray:
    """Return a column as floats, NaN where a value is missing, no number, infinite, or changes as float64.

    Args:
        column: Numbers, or text that spells them.
        mark: The decimal mark of text.
    """
    arrow, compute = (require_package(f"pyarrow{end}", "reading tables") for end in ("", ".compute"))
    kind = str(column.type)
    if kind == "null":
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
    arrow, compute = (require_package(f"pyarrow{end}", "reading tables") for end in ("", ".compute"))
    written = [
        compute.if_else(a, "True", "False") if str(a.type) == "bool" else a.cast(arrow.string()) for a in columns
    ]
    texts = compute.utf8_trim_whitespace(compute.fill_null(arrow.concat_arrays(written), "")).dictionary_encode()
    values, codes = coded(texts.dictionary.to_pylist())
    return Texts(values, codes[flat(texts.indices)])


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
