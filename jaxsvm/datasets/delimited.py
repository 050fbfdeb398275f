"""Read CSV: lines of numbers and one label, with commas, semicolons or tabs between."""

import csv
import importlib
import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from jaxsvm.datasets.labels import Texts, coded, fault_of_label
from jaxsvm.datasets.layout import Layout, Wanted
from jaxsvm.datasets.refusal import (
    EXACT,
    WHOLE,
    advice_on,
    as_number,
    decoded,
    has_decimal_comma,
    is_missing,
    label_column,
    label_hint,
    rounds,
    shown,
    unnamed,
)
from jaxsvm.datasets.text import BOM, TextReader, opened
from jaxsvm.errors import DataError

NAMES = {",": "commas", ";": "semicolons", "\t": "tabs"}


class Delimited(TextReader):
    """A CSV file; its first lines determine the separator, the column of the labels and the names."""

    expected = "a text file saved as UTF-8"

    def __init__(self, name: str, wanted: Wanted, header: bool | None):
        super().__init__(name)
        end, line, head = self._head()
        self.delimiter = self._delimiter(line, head)
        self._check_quotes(line, head[0])
        rows = self._cells(line, head)
        fields, numbered = rows[0], ()
        named = self._has_header(line, rows, wanted) if header is None else header
        if header is None and named:
            numbered = numbered_titles(fields, wanted)
        self.first, self.lines = (end, line) if named else (0, 0)
        self.titles, self.fields = fields if named else None, len(fields)
        self._require_fields(line, head)
        place = wanted.label_in(name, self.titles, self.fields)
        self.label_guessed = place is None
        self.column = label_column(name, self.titles, self.fields, place)
        if named and "" in fields:
            self.refuse(line, f"column {fields.index('')} of the header has no name", unnamed(fields.index("")))
        names = tuple(field for i, field in enumerate(fields) if i != self.column) if named else None
        self.order = wanted.order(name, names)
        self.width = self.fields - (self.column is not None)  # feature columns
        key = None if self.column is None else fields[self.column] if named else self.column
        self.layout = Layout(names if self.order is None else wanted.like.columns, key)
        self.notes = numbered + wanted.notes(key, self.column == self.fields - 1, self.order is not None)

    def _require_fields(self, line: int, head: list[str]) -> None:
        """Refuse what stands above the header (a title, a remark, Excel's `sep=;`), and fields divided by blanks."""
        below = max((text.count(mark) for text in head[1:2] for mark in NAMES), default=0)
        expected = None
        if self.fields == 1 and min(len(text.split()) for text in head[:2]) > 1:
            expected = "divide fields by commas, semicolons or tabs, not by blanks (tr -s ' ' , makes commas of them)"
        if self.fields == 1 and below or head[0].startswith("sep="):
            expected = "remove what stands above the header"
        if expected is not None:
            self.refuse(line, f"found a single field, {shown(head[0])}", expected)

    def _head(self) -> tuple[int, int, list[str]]:
        """Return the byte after the first line that is not blank, its number, and it with up to 15 lines below."""
        lines: list[str] = []
        end = first = 0
        with opened(self.name) as file:
            for number, (offset, line) in enumerate(_lines(file), 1):
                text = line.removeprefix(BOM) if number == 1 else line
                if text.strip() and not lines:
                    end, first = offset, number
                    lines.append(decoded(self.name, number, text, self.expected))
                elif text.strip():
                    lines.append(text.decode("utf-8", "replace"))  # refused with its own number later
                if len(lines) == 16:
                    break
        if not lines:
            raise DataError(f"{self.name}: the file is empty: it has no samples.")
        return end, first, [text.strip("\r\n") for text in lines]

    def _fields(self, text: str, number: int) -> list[str] | None:
        """Return stripped fields; None for a line without any."""
        if '"' in text:
            try:
                fields = [field.strip() for field in next(csv.reader([text], delimiter=self.delimiter), [])]
            except csv.Error as error:
                self.refuse(number, f"{error}", "is a quotation mark left open?")
        else:
            fields = [field.strip() for field in text.split(self.delimiter)]
        return fields if any(fields) or len(fields) > 1 else None

    def fast(self, block: bytes) -> tuple[Any, Any] | None:
        """Return points and labels of plain lines, read by pyarrow; None if a line is not plain."""
        try:
            arrow: Any = importlib.import_module("pyarrow")
            pa_csv: Any = importlib.import_module("pyarrow.csv")
        except ImportError:
            return None
        if block.count(b"\r") != block.count(b"\r\n") or not block.strip():
            return None
        quoted = b'"' in block
        if quoted and not self._well_quoted(block):
            return None
        names = [str(j) for j in range(self.fields)]  # our own: a file may name two columns alike
        types = {name: arrow.string() if j == self.column else arrow.float64() for j, name in enumerate(names)}
        try:
            table = pa_csv.read_csv(
                arrow.BufferReader(block),
                pa_csv.ReadOptions(column_names=names, use_threads=False, block_size=len(block) + 1),
                pa_csv.ParseOptions(delimiter=self.delimiter, quote_char='"' if quoted else False),
                pa_csv.ConvertOptions(column_types=types, null_values=[], strings_can_be_null=False),
            )
        except arrow.ArrowInvalid:
            return None
        x = np.empty((table.num_rows, self.width))
        for j, i in enumerate(i for i in range(self.fields) if i != self.column):
            x[:, j] = np.from_dlpack(table.column(i).combine_chunks())  # `to_numpy` imports pandas: 0.3 s
        if not np.abs(x).max(initial=0) < EXACT:  # true for NaN too
            return None
        label = None if self.column is None else _texts_of(table.column(self.column))
        if label is not None and any(fault_of_label(text) for text in label.values):
            return None
        return self._ordered(x), label

    def _well_quoted(self, block: bytes) -> bool:
        """Return whether quotation marks of a block open and close whole fields in one line."""
        try:
            for line in block.decode("utf-8").splitlines():
                self._check_quotes(0, line)
        except (DataError, UnicodeDecodeError):
            return False
        return True

    def line(self, number: int, text: str, cut: bool) -> Any:
        """Return the label, or None if there is none, and the numbers; None for a blank line."""
        self._check_quotes(number, text)
        fields = self._fields(text, number)
        if fields is None:
            return None
        if len(fields) != self.fields:
            expected = f"{self.fields} are needed, as in the first line"
            self.refuse(number, f"found {len(fields)} fields", expected, cut=cut)
        label = None if self.column is None else fields.pop(self.column)
        fault = None if label is None else fault_of_label(label)
        if fault is not None:
            issue = f"the label (column {self.column}) {fault}"
            self.refuse(number, issue, "remove the line or fill it in", cut=cut)
        return label, [self._number(number, j, fields, cut) for j in range(len(fields))]

    def _number(self, line: int, j: int, fields: list[str], cut: bool) -> float:
        field = fields[j]
        number = as_number(field)
        finite = number is not None and np.isfinite(number)
        if number is not None and finite and not rounds(field, number):
            return number
        names, places = self.titles, [at for at in range(self.fields) if at != self.column]
        at = places[j]
        where = f"column {at}" + (f" ({names[at]})" if names is not None else "")
        if is_missing(field):
            self.refuse(
                line,
                f"{where} is missing ({shown(field)})",
                "remove it, or fill it in first (--impute mean)",
                cut=cut,
                lacks=True,
            )
        if finite:
            issue = f"{where} is {shown(field)}, a whole number that float64 does not hold"
            self.refuse(line, issue, "an identifier is no feature: leave the column out (--drop)", cut=cut)
        hint = ""
        if has_decimal_comma(field):
            hint = "; write decimal points, not commas, or say --decimal ,"
        elif number is None:
            hint = f"; {advice_on(field) or 'text has to be encoded (--one-hot), or left out (--drop)'}"
            texts = [
                k for k, other in enumerate(fields) if k > j and as_number(other) is None and not is_missing(other)
            ]
            also = ", ".join(str(places[k] if names is None else names[places[k]]) for k in texts[:6])
            hint += f" (no numbers either: {also})" if also else ""
            hint += "; decimal commas need --decimal ," if any(map(has_decimal_comma, fields)) else ""
        if self.label_guessed and number is None and self.column is not None and not has_decimal_comma(field):
            hint += label_hint(*((at, self.column) if names is None else (names[at], names[self.column])))
        self.refuse(line, f"{where} is {shown(field)}", f"a finite number is needed{hint}", cut=cut)

    def stacked(self, rows: list[Any]) -> tuple[Any, Any]:
        """Return points and labels."""
        x = np.asarray([numbers for _, numbers in rows], float).reshape(len(rows), self.width)
        return self._ordered(x), None if self.column is None else coded(label for label, _ in rows)

    def _ordered(self, x: np.ndarray) -> np.ndarray:
        return x if self.order is None or not len(x) else x[:, self.order]

    def _delimiter(self, number: int, lines: list[str]) -> str:
        """Return the separator: among several candidates the one that makes numbers of the fields; refuse two such."""
        bare = [re.sub(r'"[^"]*"', '""', line) for line in lines if line.strip()]
        candidates = [mark for mark in NAMES if mark in bare[0]]
        if len(candidates) < 2:
            return candidates[0] if candidates else ","
        even = [mark for mark in candidates if len({line.count(mark) for line in bare}) == 1] or candidates
        readable = [mark for mark in even if all(_is_row(line.split(mark)) for line in bare[1:] or bare)]
        if len(readable) > 1:
            issue = f"its fields may be divided by {' or by '.join(NAMES[mark] for mark in readable)}"
            self.refuse(number, issue, "write decimal points, and quote fields that hold a separator")
        return (readable or [max(even, key=bare[0].count)])[0]

    def _check_quotes(self, number: int, line: str) -> None:
        """Refuse a line unless fields are quoted whole or not at all: an open mark swallows the next lines."""
        if '"' not in line:
            return
        field = f'(?:"[^"]*(?:""[^"]*)*" *|[^"{self.delimiter}]*)'
        if not re.fullmatch(f"{field}(?:{self.delimiter}{field})*", line):
            stray = line[max(0, line.index('"') - 10) :]
            expected = 'a quotation mark opens a field and closes it in the same line, as in "small, cat"'
            self.refuse(number, f"a stray quotation mark in {shown(stray)}", expected)

    def _cells(self, number: int, head: list[str]) -> list[list[str]]:
        first = self._fields(head[0], number) or []
        below = [[field.strip('"') for field in map(str.strip, text.split(self.delimiter))] for text in head[1:]]
        return [first, *(row for row in below if len(row) == len(first))]

    def _has_header(self, line: int, rows: list[list[str]], wanted: Wanted, words: Iterable[Any] = ()) -> bool:
        """Return whether the first line names the columns; refuse one that may or may not."""
        named = names_columns(rows, wanted, words)
        if named is None:
            word = next(field for field in rows[0] if not _is_number(field) and not is_missing(field))
            expected = "if the line names the columns, say so (header=True, --label NAME)"
            self.refuse(line, f"the field {shown(word)} is no number, and others are", expected)
        return named


def names_columns(rows: list[list[str]], wanted: Wanted, words: Iterable[Any] = ()) -> bool | None:
    """Return whether the first of some lines names the columns; None if it may or may not.

    A line without numbers does, unless all its texts come again below, and one with names that are known. One with
    numbers does if they count up by ones, as those of pandas and years do, and its texts are not in the lines below:
    there are numbers or other texts.

    Args:
        rows: The fields of some lines.
        wanted: The place of the labels, and the training file's columns.
        words: Columns that a caller names, or gives by place.
    """
    first, below = rows[0], rows[1:]
    numbers = [field for field in first if _is_number(field)]
    known = {word for word in words if isinstance(word, str) and as_number(word) is None} & set(first)
    columns = wanted.like.columns
    if wanted.named or known or (columns and set(columns) <= set(first)):
        return True
    counted = all(WHOLE.fullmatch(field) for field in numbers)
    counted = counted and [int(field) - int(numbers[0]) for field in numbers] == list(range(len(numbers)))
    texts = [at for at, field in enumerate(first) if not _is_number(field) and not is_missing(field)]
    beneath = [[row[at] for row in below if not is_missing(row[at])] for at in texts]
    fresh = [first[at] not in fields for at, fields in zip(texts, beneath, strict=True)]
    if not numbers:
        return any(fresh) or not texts
    above = [at for at, fields in zip(texts, beneath, strict=True) if fields and all(map(_is_number, fields))]
    if above:
        place = wanted.place(len(first))
        label = len(first) - 1 if place is None else place % len(first) if place is not False else None
        many = len(texts) > len(numbers) or (counted and (label in above or len(numbers) > 2))
        return True if many else None
    if not counted or len(below) < 3:
        return False
    if texts:
        return len(numbers) > 1 and all(fresh)
    return numbers[0] == "0" and len(numbers) > (1 if first[0] == "" else 2)


def numbered_titles(titles: list[str], wanted: Wanted) -> tuple[str, ...]:
    """Return a note on names that are numbers, which a first line of numbers may be instead."""
    numbers = [title for title in titles if _is_number(title)]
    if not numbers or wanted.named or wanted.like.columns is not None:
        return ()
    listed = ", ".join(numbers[:3]) + (" and more" if len(numbers) > 3 else "")
    return (f"the first line is taken for the names of the columns, though it has numbers, {listed}",)


def _is_number(field: str) -> bool:
    return as_number(field) is not None or has_decimal_comma(field)


def _lines(file: Any) -> Iterator[tuple[int, bytes]]:
    """Yield the byte after each line and the line; lines may end in a carriage return alone."""
    while line := file.readline(1 << 24):
        end = file.tell() - len(line)
        for part in line.splitlines(keepends=True) if line.count(b"\r") > line.count(b"\r\n") else (line,):
            end += len(part)
            yield end, part


def _texts_of(column: Any) -> Texts:
    coded_column = column.combine_chunks().dictionary_encode()
    coded_column = coded_column.chunk(0) if hasattr(coded_column, "num_chunks") else coded_column
    values, codes = coded(text.strip() for text in coded_column.dictionary.to_pylist())
    indices: Any = np.from_dlpack(coded_column.indices)
    return Texts(values, codes[indices])


def _is_row(fields: list[str]) -> bool:
    words = [f for f in map(str.strip, fields) if as_number(f) is None and not has_decimal_comma(f) and f not in '""']
    return sum(not is_missing(field) for field in words) <= 1
