"""CSV: lines of numbers and one label, with commas, semicolons or tabs between."""

import csv
import importlib
import re
from typing import Any

import numpy as np

from jaxsvm.datasets.labels import Texts, fault_of_label
from jaxsvm.datasets.layout import Layout, Wanted
from jaxsvm.datasets.numbers import EXACT, as_number, has_decimal_comma, is_missing, rounds
from jaxsvm.datasets.refusal import decoded, label_column, label_hint, refuse_line, shown
from jaxsvm.datasets.text import BOM, TextReader, opened
from jaxsvm.errors import DataError

SAMPLE = 16
"""Lines that tell what is between the fields."""
NAMES = {",": "commas", ";": "semicolons", "\t": "tabs"}


class Delimited(TextReader):
    """A CSV file: its head tells what is between the fields, where the labels are and what columns are called.

    Attributes:
        width: Feature columns.
    """

    expected = "a text file of numbers and separators"

    def __init__(self, name: str, wanted: Wanted, header: bool | None):
        super().__init__(name)
        at, line, first, more = self._head()
        self.delimiter = _delimiter(name, line, [first, *more])
        _refuse_stray_quotes(name, line, first, self.delimiter)
        fields = self._fields(first, line) or []
        named = _has_header(name, line, fields, wanted.place(len(fields))) if header is None else header
        self.first, self.lines = (at, line) if named else (0, 0)
        self.titles, self.fields = fields if named else None, len(fields)
        place = wanted.label_in(name, self.titles, self.fields)
        self.unsaid = place is None
        self.column = label_column(name, self.titles, self.fields, place)
        if named and "" in fields:
            expected = "name it, or leave it out if it is the index that pandas writes (to_csv(index=False))"
            refuse_line(name, line, f"column {fields.index('')} of the header has no name", expected)
        names = tuple(field for i, field in enumerate(fields) if i != self.column) if named else None
        self.order = wanted.order(name, names)
        self.width = self.fields - (self.column is not None)
        key = None if self.column is None else fields[self.column] if named else self.column
        self.layout = Layout(names if self.order is None else wanted.like.columns, key)
        self.notes = wanted.notes(key, self.column == self.fields - 1, self.order is not None)

    def _head(self) -> tuple[int, int, str, list[str]]:
        """Where the first line that is not blank ends, its number, its text, and some lines below it."""
        number, found = 0, []
        at, first = 0, 0
        with opened(self.name) as file:
            while len(found) < SAMPLE:
                line = file.readline(1 << 24)
                if not line:
                    break
                number += 1
                text = line.removeprefix(BOM) if number == 1 else line
                if text.strip():
                    if not found:
                        at, first = file.tell(), number
                    if text.count(b"\r") > text.count(b"\r\n") and not found:  # the ends of lines of old
                        return self._old(text)
                    # What is no text is refused with its line when that is read.
                    found.append(
                        decoded(self.name, number, text, self.expected)
                        if not found
                        else text.decode("utf-8", "replace")
                    )
        if not found:
            raise DataError(f"{self.name}: the file is empty: it has no samples.")
        return at, first, found[0].strip("\r\n"), [text.strip("\r\n") for text in found[1:]]

    def _old(self, text: bytes) -> tuple[int, int, str, list[str]]:
        lines = text.splitlines(keepends=True)[: SAMPLE + 1]
        place = next(i for i, line in enumerate(lines) if line.strip())
        at = sum(map(len, lines[: place + 1]))
        plain = [decoded(self.name, 1, line, self.expected).strip("\r\n") for line in lines[place:]]
        return at, place + 1, plain[0], plain[1:]

    def _fields(self, text: str, number: int) -> list[str] | None:
        """Stripped fields; None of a line without any."""
        if '"' in text:
            try:
                fields = [field.strip() for field in next(csv.reader([text], delimiter=self.delimiter), [])]
            except csv.Error as error:
                refuse_line(self.name, number, f"{error}", "is a quotation mark left open?")
        else:
            fields = [field.strip() for field in text.split(self.delimiter)]
        return fields if any(fields) or len(fields) > 1 else None

    def fast(self, block: bytes) -> tuple[Any, Any] | None:
        """Points and labels of plain lines, by pyarrow."""
        try:
            arrow: Any = importlib.import_module("pyarrow")
            pa_csv: Any = importlib.import_module("pyarrow.csv")
        except ImportError:
            return None
        if block.count(b"\r") != block.count(b"\r\n") or not block.strip():
            return None
        quoted = b'"' in block
        if quoted and not self._sound(block):
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
            x[:, j] = table.column(i).to_numpy()
        if not np.abs(x).max(initial=0) < EXACT:  # also where it is NaN
            return None
        label = None if self.column is None else _different(table.column(self.column))
        if label is not None and any(fault_of_label(text) for text in label.values):
            return None
        return self._ordered(x), label

    def _sound(self, block: bytes) -> bool:
        """Whether quotation marks of a block open and close whole fields in one line."""
        try:
            for line in block.decode("utf-8").splitlines():
                _refuse_stray_quotes(self.name, 0, line, self.delimiter)
        except (DataError, UnicodeDecodeError):
            return False
        return True

    def line(self, number: int, text: str, cut: bool) -> Any:
        """The label, or None where there is none, and the numbers."""
        _refuse_stray_quotes(self.name, number, text, self.delimiter)
        fields = self._fields(text, number)
        if fields is None:
            return None
        if len(fields) != self.fields:
            expected = f"{self.fields} are needed, as in the first line"
            refuse_line(self.name, number, f"found {len(fields)} fields", expected, cut=cut)
        label = None if self.column is None else fields.pop(self.column)
        fault = None if label is None else fault_of_label(label)
        if fault is not None:
            found = f"the label (column {self.column}) {fault}"
            refuse_line(self.name, number, found, "remove the line or fill it in", cut=cut)
        return label, [self._number(number, j, field, fields, cut) for j, field in enumerate(fields)]

    def _number(self, line: int, j: int, field: str, fields: list[str], cut: bool) -> float:
        number = as_number(field)
        if number is not None and np.isfinite(number) and not rounds(field, number):
            return number
        at = j + (self.column is not None and j >= self.column)
        where = f"column {at}" + (f" ({self.titles[at]})" if self.titles is not None else "")
        if is_missing(field):
            found, expected = f"{where} is missing ({shown(field)})", "remove or impute it first"
            refuse_line(self.name, line, found, expected, cut=cut, lacks=True)
        if number is not None and np.isfinite(number):
            found = f"{where} is {shown(field)}, a whole number that float64 does not hold"
            refuse_line(self.name, line, found, "an identifier is no feature: leave the column out", cut=cut)
        hint = "; write decimal points, not commas" if has_decimal_comma(field) else ""
        if self.unsaid and number is None and self.column is not None and not hint:
            names = self.titles
            hint = label_hint(*((at, self.column) if names is None else (names[at], names[self.column])))
        refuse_line(self.name, line, f"{where} is {shown(field)}", f"a finite number is needed{hint}", cut=cut)

    def stacked(self, rows: list[Any]) -> tuple[Any, Any]:
        """Points and labels."""
        x = np.asarray([numbers for _, numbers in rows], float).reshape(len(rows), self.width)
        if self.column is None:
            return self._ordered(x), None
        places: dict[str, int] = {}
        codes = np.asarray([places.setdefault(label, len(places)) for label, _ in rows], int)
        return self._ordered(x), Texts(list(places), codes)

    def _ordered(self, x: np.ndarray) -> np.ndarray:
        return x if self.order is None or not len(x) else x[:, self.order]


def _different(column: Any) -> Texts:
    """A column of text as its different values, without the blanks around them, and codes."""
    coded = column.combine_chunks().dictionary_encode()
    coded = coded.chunk(0) if hasattr(coded, "num_chunks") else coded
    places: dict[str, int] = {}
    to = [places.setdefault(text.strip(), len(places)) for text in coded.dictionary.to_pylist()]
    return Texts(list(places), np.asarray(to, int)[coded.indices.to_numpy()])


def _delimiter(name: str, number: int, lines: list[str]) -> str:
    """What is between the fields: of several that could be, the one that makes numbers of them.

    Raises:
        DataError: Where two do.
    """
    bare = [re.sub(r'"[^"]*"', '""', line) for line in lines if line.strip()]
    there = [mark for mark in NAMES if mark in bare[0]]
    if len(there) < 2:
        return there[0] if there else ","
    even = [mark for mark in there if len({line.count(mark) for line in bare}) == 1]
    even = even if even else there
    readable = [mark for mark in even if all(_is_row(line.split(mark)) for line in bare[1:] or bare)]
    if len(readable) > 1:
        found = f"its fields may be divided by {' or by '.join(NAMES[mark] for mark in readable)}"
        refuse_line(name, number, found, "write decimal points, and quote fields that hold a separator")
    return (readable or [max(even, key=bare[0].count)])[0]


def _is_row(fields: list[str]) -> bool:
    """Whether all fields but one are numbers, with a point or a comma, or say that they are missing."""
    strange = [f for f in map(str.strip, fields) if as_number(f) is None and not has_decimal_comma(f) and f not in '""']
    return sum(not is_missing(field) for field in strange) <= 1


def _refuse_stray_quotes(name: str, number: int, line: str, delimiter: str) -> None:
    """A mark left open swallows the lines up to the next one: fields are quoted whole, in one line, or not at all."""
    if '"' not in line:
        return
    field = f'(?:"[^"]*(?:""[^"]*)*" *|[^"{delimiter}]*)'
    if not re.fullmatch(f"{field}(?:{delimiter}{field})*", line):
        stray = line[max(0, line.index('"') - 10) :]
        expected = 'a quotation mark opens a field and closes it in the same line, as in "small, cat"'
        refuse_line(name, number, f"a stray quotation mark in {shown(stray)}", expected)


def _has_header(name: str, line: int, first: list[str], label: str | int | None) -> bool:
    if isinstance(label, str):
        return True
    column = None if label is False else (len(first) - 1 if label is None else int(label)) % max(len(first), 1)
    if all(as_number(field) is None and not has_decimal_comma(field) for field in first):
        return True
    features = [field for i, field in enumerate(first) if i != column]
    words = [field for field in features if as_number(field) is None and not is_missing(field)]
    words = [field for field in words if not has_decimal_comma(field)]
    if words:
        expected = "say header=True if the line names the columns"
        refuse_line(name, line, f"the field {shown(words[0])} is no number, and others are", expected)
    return False
