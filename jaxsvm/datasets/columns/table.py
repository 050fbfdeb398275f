"""Read a CSV or Parquet table by its columns, as they are written; `preparation.py` makes points of them.

Columns may hold text or lack values, and columns that are no features are left out by name or place. Labels are found
as by `jaxsvm.datasets.load`, and numbers follow the same rules, but for the decimal comma, which may be asked for.
"""

import shlex
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import numpy as np

from jaxsvm.datasets.delimited import NAMES, Delimited, numbered_titles
from jaxsvm.datasets.labels import Texts, fault_of_label, fault_of_text, joined
from jaxsvm.datasets.layout import Layout, Wanted
from jaxsvm.datasets.refusal import (
    EXACT,
    MISSING,
    PLACE,
    BadRow,
    as_number,
    decoded,
    has_decimal_comma,
    is_missing,
    label_column,
    rounded,
    rounds,
    shown,
    unnamed,
)
from jaxsvm.datasets.tables import parquet_file
from jaxsvm.datasets.text import BOM, TextReader, opened
from jaxsvm.errors import DataError, InputError, require_package


class Table:
    """The feature columns and the labels of a table.

    Attributes:
        name: The file.
        keys: Names of the feature columns, or their places in a file without a header.
        layout: The names of the feature columns and the place of the labels.
        dropped: The columns that were left out, by name or place.
        y: Labels `(n,)`, or None.
        n: The number of samples.
        notes: What was decided about the columns.
    """

    def __init__(
        self, name: str, kind: str, wanted: Wanted, drop: Sequence[str | int] = (), decimal: str = ".",
        forgiving: bool = False, frame: Any = None,
    ) -> None:  # fmt: skip
        """Read the table.

        Args:
            name: The file.
            kind: "csv", "parquet" or "frame".
            wanted: The place of the labels, and the training file's columns.
            drop: Columns to leave out, by name or place.
            decimal: "." or ",", the mark in numbers that are written as text.
            forgiving: Whether columns of `drop` may be absent.
            frame: The frame, in place of a file: of pandas, polars or whatever Arrow takes.
        """
        self.name, self._decimal = name, decimal
        self._reader = _Lines(name, drop, decimal, wanted) if kind == "csv" else None
        titles, columns, notes = (
            _arrow(name, frame, (*wanted.asked, *drop)) if self._reader is None else self._reader.columns()
        )
        bare = titles is None and len(columns) == wanted.features  # the features alone
        left_out = set() if bare else places(name, titles, len(columns), drop, forgiving)
        kept = [place for place in range(len(columns)) if place not in left_out]
        self.dropped = tuple(place if titles is None else titles[place] for place in sorted(left_out))
        nameless = [place for place in kept if titles is not None and titles[place] == ""]
        if nameless:
            raise DataError(f"{name}: column {nameless[0]} has no name: {unnamed(nameless[0])}.")
        label = self._label(titles, kept, wanted)
        features = [place for place in kept if place != label]
        names = None if titles is None else tuple(titles[place] for place in features)
        if names is not None:
            self._require_names(names)
        order = wanted.order(name, names)
        features = features if order is None else [features[place] for place in order]
        if wanted.features not in (None, len(features)):
            raise DataError(f"{name}: has {len(features)} feature columns; the training file had {wanted.features}.")
        self.keys = tuple(place if titles is None else titles[place] for place in features)
        key = label if titles is None or label is None else titles[label]
        self.layout = Layout(None if titles is None else tuple(map(str, self.keys)), key)
        self.notes = notes + wanted.notes(key, label == kept[-1], order is not None)
        self._columns, self.n = [columns[place] for place in features], len(columns[0])
        self.y = None if label is None else self._labels(columns[label], f"the label (column {key})")

    def _label(self, titles: list[str] | None, kept: list[int], wanted: Wanted) -> int | None:
        """Return the place of the labels; None if there are none."""
        width = len(kept) if titles is None else len(titles)
        place = wanted.label_in(self.name, None if titles is None else [titles[at] for at in kept], len(kept))
        if place is None:
            label_column(self.name, None, len(kept), None)  # refuses a lone column
            return kept[-1]
        column = label_column(self.name, titles, width if titles is not None else kept[-1] + 1, place)
        if column is not None and column not in kept:
            raise InputError(f"label is {place!r}: this column is left out (--drop, --index-col); drop another one.")
        return column

    def _require_names(self, names: tuple[str, ...]) -> None:
        twice = sorted({title for title in names if names.count(title) > 1 or title in self.dropped})
        if twice:
            advice = f"name them apart, or leave them all out (--drop {shlex.quote(twice[0])})"
            raise DataError(f"{self.name}: has several columns {twice[0]!r}; {advice}.")

    def numbers(self, place: int, refuse: bool = False) -> np.ndarray | None:
        """Return a column as float64, NaN where a value is missing; None if it holds text.

        Args:
            place: The feature column.
            refuse: Whether text is an error.
        """
        column = self._columns[place]
        if not _is_text(column.type):
            values = _floats_of(column, f"{self.name}: {self.title(place)}")
            self._require_finite(place, values)
            whole = column.to_numpy(zero_copy_only=False) if str(column.type).lstrip("u").startswith("int") else values
            for row in np.flatnonzero(rounded(whole) if whole.dtype.kind in "iu" else np.zeros(len(whole), bool)):
                self._refuse_identifier(place, int(row), whole[row])
            return values
        values = _cast(column, self._decimal)
        if values is not None:
            return values
        texts = self.texts(place)
        values = self._parsed(texts)
        missing = np.asarray([is_missing(text) for text in texts.values], bool)
        wrong = (np.isnan(values) & ~missing)[texts.codes]
        if wrong.any():
            if not refuse:
                return None
            row = int(wrong.argmax())
            found = shown(texts.values[texts.codes[row]])
            self.refuse(place, row, f"is {found}", f"a number is needed{self._comma_hint(found)}")
        self._require_finite(place, values[texts.codes])
        for code in np.flatnonzero(np.abs(values) >= EXACT).tolist():
            if rounds(texts.values[code].replace(",", "."), values[code]):
                self._refuse_identifier(place, int((texts.codes == code).argmax()), texts.values[code])
        return values[texts.codes]

    def _parsed(self, texts: Texts) -> np.ndarray:
        comma = self._decimal == ","
        wrong = [comma and "." in text for text in texts.values]
        values = [as_number(text.replace(",", ".") if comma else text) for text in texts.values]
        return np.asarray([np.nan if no or value is None else value for no, value in zip(wrong, values, strict=True)])

    def _comma_hint(self, found: str) -> str:
        if self._decimal == "," and as_number(found.strip("'")) is not None:
            return ", with a decimal comma (--decimal .)"
        return "; write --decimal , for decimal commas" if has_decimal_comma(found.strip("'")) else ""

    def _require_finite(self, place: int, numbers: np.ndarray) -> None:
        bad = np.isinf(numbers)
        if bad.any():
            self.refuse(place, int(bad.argmax()), f"is {numbers[bad.argmax()]}", "a finite number is needed")

    def _refuse_identifier(self, place: int, row: int, value: Any) -> NoReturn:
        issue = f"is {value}, a whole number that float64 does not hold"
        self.refuse(place, row, issue, "an identifier is no feature: leave it out (--drop)")

    def texts(self, place: int) -> Texts:
        """Return a column as it is written; missing values are texts of `is_missing`."""
        return _texts_of(self._columns[place])

    def _labels(self, column: Any, where: str) -> np.ndarray:
        """Return the labels of a column."""
        if not _is_text(column.type):
            values = _floats_of(column, f"{self.name}: {where}")
            if not np.isfinite(values).all():
                self._refuse_row(int((~np.isfinite(values)).argmax()), f"{where} is missing", "leave the row out")
            return joined(self.name, [column.to_numpy(zero_copy_only=False)])
        texts = _texts_of(column)
        if self._decimal == ",":
            written = [text.replace(",", ".") if has_decimal_comma(text) else text for text in texts.values]
            texts = Texts(written, texts.codes)
        kept_as_text = self._reader is None  # numbers are no text in such a table
        faults = [(fault_of_text if kept_as_text else fault_of_label)(text) for text in texts.values]
        wrong = np.asarray([fault is not None for fault in faults], bool)[texts.codes]
        if wrong.any():
            row = int(wrong.argmax())
            self._refuse_row(row, f"{where} {faults[texts.codes[row]]}", "leave the row out, or fill it in")
        return np.asarray(texts.values)[texts.codes] if kept_as_text else joined(self.name, [texts])

    def title(self, place: int) -> str:
        """Return a feature column's name for messages."""
        key = self.keys[place]
        return f"column {key}" if isinstance(key, int) else f"column {key!r}"

    def refuse(self, place: int, row: int, issue: str, advice: str) -> NoReturn:
        """Raise for one value."""
        self._refuse_row(row, f"{self.title(place)} {issue}", advice)

    def _refuse_row(self, row: int, issue: str, advice: str) -> NoReturn:
        where = f"row {row} (from 0)" if self._reader is None else f"line {self._reader.line_of(row)}"
        raise BadRow(f"{self.name}, {where}", issue, advice)


def places(
    name: str, titles: list[str] | None, width: int, drop: Sequence[str | int], forgiving: bool = False
) -> set[int]:
    """Return the places of columns that are named, or given by place; refuse those that are not there."""
    found: set[int] = set()
    for key in drop:
        number = int(key) if PLACE.fullmatch(str(key)) else None
        if titles is not None and key in titles:
            found |= {at for at, title in enumerate(titles) if title == key}
        elif number is not None and -width <= number < width and (titles is None or not forgiving):
            found.add(number % width)
        elif not forgiving:
            listed = f"places from 0 to {width - 1}" if titles is None else ", ".join(map(repr, titles[:10]))
            raise InputError(f"--drop is {key!r}: {name} has no such column; it has {listed}.")
    return found


class _Lines(Delimited):
    """The lines of a CSV file."""

    def __init__(self, name: str, drop: Sequence[str | int], decimal: str, wanted: Wanted) -> None:
        TextReader.__init__(self, name)
        end, line, head = self._head()
        marks = [mark for mark in NAMES if mark in head[0] and mark != ","]
        if decimal == "," and not marks and "," in head[0]:
            expected = "files with decimal commas have semicolons or tabs; say --decimal . if its numbers have points"
            self.refuse(line, "its fields are divided by commas", expected)
        self.delimiter = (marks or [";"])[0] if decimal == "," else self._delimiter(line, head)
        self._check_quotes(line, head[0])
        rows = self._cells(line, head)
        self.fields = len(rows[0])
        self._require_fields(line, head)
        named = self._has_header(line, rows, wanted, drop)
        self.titles, self.notes = (rows[0], numbered_titles(rows[0], wanted)) if named else (None, ())
        self.first, self.lines = (end, line) if named else (0, 0)

    def columns(self) -> tuple[list[str] | None, list[Any], tuple[str, ...]]:
        """Return the titles, all columns as texts of Arrow, and notes on the titles."""
        arrow: Any = require_package("pyarrow", "reading such files")
        csv: Any = require_package("pyarrow.csv", "reading such files")
        with opened(self.name) as file:
            file.seek(self.first)
            block = file.read()
        block = block.removeprefix(BOM) if not self.first else block
        if not block.strip():
            raise DataError(f"{self.name}: there is no line below the header: it has no samples.")
        names = [str(place) for place in range(self.fields)]
        try:
            table = csv.read_csv(
                arrow.BufferReader(block),
                csv.ReadOptions(column_names=names, block_size=len(block) + 1),
                csv.ParseOptions(delimiter=self.delimiter, quote_char='"' if b'"' in block else False),
                csv.ConvertOptions(column_types=dict.fromkeys(names, arrow.string()), null_values=[]),
            )
        except arrow.ArrowInvalid as error:
            self._refuse_lines(block)
            raise DataError(f"{self.name}: cannot be read as CSV: {error}.") from None
        return self.titles, [column.combine_chunks() for column in table.columns], self.notes

    def _refuse_lines(self, block: bytes) -> None:
        for number, line in enumerate(block.splitlines(), self.lines + 1):
            fields = self._fields(decoded(self.name, number, line, "a file saved as UTF-8"), number)
            if fields is not None and len(fields) != self.fields:
                self.refuse(number, f"found {len(fields)} fields", f"{self.fields} are needed, as in the first line")

    def line_of(self, row: int) -> int:
        """Return the number of the line of a sample."""
        with opened(self.name) as file:
            file.seek(self.first)
            filled = (number for number, line in enumerate(file.read().splitlines(), self.lines + 1) if line.strip())
            return next(number for at, number in enumerate(filled) if at == row)


def _arrow(name: str, frame: Any, asked: Iterable[Any]) -> tuple[list[str], list[Any], tuple[str, ...]]:
    """Return names and columns of a frame, or of a Parquet table, and a note if an index was left out."""
    if frame is None:
        file, fields, note = parquet_file(name, asked)
        table = file.read(columns=[field.name for field in fields])
    else:
        arrow: Any = require_package("pyarrow", "reading columns of a frame")
        try:
            table, note = arrow.table(frame).select([str(key) for key in frame.columns]), ()
        except (TypeError, ValueError) as error:  # as those of Arrow are
            raise DataError(f"{name}: a column is of no type that Arrow knows: {error}.") from None
    columns = [column.combine_chunks() for column in table.columns]
    coded = [str(column.type).startswith("dictionary") for column in columns]
    decoded = [c.dictionary_decode() if is_coded else c for c, is_coded in zip(columns, coded, strict=True)]
    return table.column_names, decoded, note


def _is_text(kind: Any) -> bool:
    return str(kind) in ("string", "large_string", "string_view", "null")


def _floats_of(column: Any, where: str) -> np.ndarray:
    """Return an Arrow column of numbers as float64, NaN for NULL."""
    arrow: Any = require_package("pyarrow", "reading such files")
    kind = str(column.type)
    if not any(word in kind for word in ("int", "float", "double", "bool", "decimal")) or "<" in kind:
        raise DataError(f"{where} is of type {kind}: numbers or text are needed; leave it out (--drop).")
    column = column.cast(arrow.int8()) if kind == "bool" else column
    return column.cast(arrow.float64(), safe=False).to_numpy(zero_copy_only=False)


def _cast(column: Any, decimal: str) -> np.ndarray | None:
    """Return the numbers of a column of text, fast; None if some are not plain, which `Table.numbers` looks at."""
    arrow: Any = require_package("pyarrow", "reading such files")
    compute: Any = require_package("pyarrow.compute", "reading such files")
    column = compute.utf8_trim_whitespace(column.cast("string"))
    missing = compute.is_in(compute.utf8_lower(column), value_set=arrow.array(MISSING))
    if decimal == ",":
        if compute.any(compute.match_substring(column, ".")).as_py():
            return None
        column = compute.replace_substring(column, ",", ".")
    try:
        numbers = compute.if_else(missing, None, column).cast("double")
    except arrow.ArrowInvalid:
        return None
    values = numbers.to_numpy(zero_copy_only=False)
    return values if np.nanmax(np.abs(values), initial=0.0) < EXACT else None


def _texts_of(column: Any) -> Texts:
    compute: Any = require_package("pyarrow.compute", "reading such files")
    written = compute.if_else(column, "True", "False") if str(column.type) == "bool" else column.cast("string")
    column = compute.utf8_trim_whitespace(compute.fill_null(written, ""))
    coded = column.dictionary_encode()
    return Texts(coded.dictionary.to_pylist(), coded.indices.to_numpy())
