"""Refuse a file with the file's name, the line, what was found there, and what to do.

A number is written in ASCII digits, with a decimal point if any: Python's `1_000`, decimal commas and digits of other
scripts are refused. Whole numbers that float64 does not hold (identifiers, as a rule) are refused, never rounded.
"""

import decimal
import re
import shlex
from functools import partial
from typing import Any, NoReturn

import numpy as np

from jaxsvm.errors import DataError, InputError

AGAIN = "; it may have been cut short: fetch or write it again."


PACKED = {
    b"\x1f\x8b": "gzip (whose name would end in .gz)",
    b"BZh": "bzip2 (whose name would end in .bz2)",
    b"\xfd7zXZ": "xz",
    b"PK\x03\x04": "a zip archive or a spreadsheet",
    b"PAR1": "Parquet (.parquet)",
}
"""How files that are no text begin."""


def decoded(name: str, number: int, line: bytes, expected: str) -> str:
    """Decode a line, or refuse its first byte that is no UTF-8."""
    packed = next((what for start, what in PACKED.items() if number == 1 and line.startswith(start)), None)
    if packed is not None:
        refuse_line(name, number, f"this is {packed}, not text", f"unpack it first; {expected} is needed")
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        likely = "UTF-16" if line[:2] in (b"\xff\xfe", b"\xfe\xff") else "LATIN1"
        cure = f" (iconv -f {likely} -t UTF-8, if it is {likely})" if "UTF-8" in expected else ""
        refuse_line(name, number, f"byte {line[error.start]:#04x} is no UTF-8 text", f"{expected} is needed{cure}")


def shown(token: str) -> str:
    """Quote a piece of a file for a message, at most 40 characters of it."""
    return repr(token if len(token) <= 40 else token[:40] + "...")


class BadRow(DataError):
    """A row that is no sample: what was found there, and what to do; `lacks` if a value is missing."""

    def __init__(self, where: str, issue: str, expected: str, *, cut: bool = False, lacks: bool = False):
        hint = " It is the last line and does not end in a newline: the file may have been cut short." if cut else ""
        super().__init__(f"{where}: {issue}; {expected}.{hint}")
        self.parts, self.cut, self.lacks = (where, issue, expected), cut, lacks

    def __reduce__(self) -> Any:
        return partial(BadRow, cut=self.cut, lacks=self.lacks), self.parts

    def with_more(self, more: int) -> "BadRow":
        """Return the same error with the number of other rows that lack a value too."""
        where, issue, expected = self.parts
        others = f", and {more} more line(s) lack a value" if more else ""
        return BadRow(where, issue + others, expected, cut=self.cut, lacks=self.lacks)


def refuse_line(name: str, line: int, issue: str, expected: str, *, cut: bool = False, lacks: bool = False) -> NoReturn:
    """Raise for one line; `cut` if it is the last one and does not end in a newline."""
    raise BadRow(f"{name}, line {line}", issue, expected, cut=cut, lacks=lacks)


def label_hint(column: str | int, last: str | int) -> str:
    """Suggest that a column of text holds the labels, if the last column was taken for them by default."""
    asked = f"label={column!r}, --label {shlex.quote(str(column))}"
    return f"; if it holds the labels, say so ({asked}): they were looked for in the last column, {last!r}"


def label_column(name: str, names: list[str] | None, width: int, label: str | int | None) -> int | None:
    """Return the label's column as an index from 0; None if `label` is False: there is none."""
    if label is False:
        if width < 1:
            raise DataError(f"{name}: there is no column: it has no samples.")
        return None
    if width < 2:
        raise DataError(f"{name}: one column only; features and a label are needed (in CSV with , ; or tab between).")
    if isinstance(label, str) and (label in (names or ()) or not PLACE.fullmatch(label)):
        if names is None:
            raise InputError(f"label is {label!r}, and {name} has no header: give the column's index.")
        if names.count(label) != 1:
            count = "no column" if label not in names else f"{names.count(label)} columns"
            listed = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
            numbers = all(as_number(title) is not None for title in names)
            hint = "; its first line holds no names: give the column's place, from 0" if numbers else ""
            raise InputError(f"label is {label!r}: {name} has {count} of that name; it has {listed}{hint}.")
        return names.index(label)
    column = width - 1 if label is None else int(label)
    if not -width <= column < width:
        raise InputError(f"label is {label}: {name} has {width} columns, so an index from 0 to {width - 1} is needed.")
    return column % width


PLACE = re.compile(r"-?[0-9]+")
"""The place of a column, written as text; where a column has it for a name, that is meant."""


MISSING = ("", "?", "na", "n/a", "nan", "null", "none", "nat", "<na>", "#n/a", "#na", "-nan", "+nan")  # in lower case


WHOLE = re.compile(r"[+-]?[0-9]+")


EXACT = 2.0**53
"""Every whole number up to here is a float64."""


_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


_DATE = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}([ T].*)?")


_MARKED = re.compile(r"[$€£]? ?[-+]?\d[\d., ']*( ?[%€$£])?")


_INFINITE = re.compile(r"[+-]?(inf|infinity|nan)", re.IGNORECASE)


_WITH_COMMA = re.compile(r"[+-]?[0-9]+,[0-9]+([eE][+-]?[0-9]+)?")


def as_number(token: str) -> float | None:
    """Return the number that a token spells, which may be infinite or NaN, or None."""
    return float(token) if _NUMBER.fullmatch(token) or _INFINITE.fullmatch(token) else None


def has_decimal_comma(token: str) -> bool:
    """Return whether a token would be a number if its comma were a point."""
    return _WITH_COMMA.fullmatch(token) is not None


def advice_on(text: str, counted: bool = True) -> str | None:
    """Return what to do about a date, or a number with other marks than a point; None for other text.

    Args:
        text: What stands in place of a number.
        counted: Whether text that may be a number is one; else it may be a category.
    """
    if has_decimal_comma(text):
        return "a number with a decimal comma needs --decimal ,"
    if _DATE.fullmatch(text):
        return "a date is neither number nor category: leave it out (--drop), or write it as a number of days"
    if counted and _MARKED.fullmatch(text):
        return "write it as a plain number, such as 1234.5, or leave the column out (--drop)"
    return None


def unnamed(place: int) -> str:
    """Return what to do about a column without a name in the header."""
    if place == 0:
        return "name it, or leave it out if it is the index that pandas writes (--index-col 0, to_csv(index=False))"
    return f"name it, or leave it out (--drop {place}) if lines end in a separator too many"


def is_missing(token: str) -> bool:
    """Return whether a token stands for a missing value."""
    return token.strip().lower() in MISSING


def rounds(token: str, number: float) -> bool:
    """Return whether a whole number changes as float64: the float neither equals it nor prints as it."""
    if abs(number) < EXACT or not np.isfinite(number):
        return False
    written = decimal.Decimal(token)
    if written != written.to_integral_value():
        return False
    return written not in (decimal.Decimal(number), decimal.Decimal(repr(number)))


def rounded(values: np.ndarray) -> np.ndarray:
    """Return which numbers of an array change as float64, `(n, ...)` bool."""
    changed = np.zeros(values.shape, bool)
    if values.dtype.kind in "iu" and values.dtype.itemsize == 8:
        large = np.abs(values.astype(np.float64)) >= EXACT
        changed[large] = [int(float(value)) != value for value in values[large].tolist()]
    elif values.dtype.kind == "f" and values.dtype.itemsize > 8:
        with np.errstate(over="ignore"):
            changed = (values.astype(np.float64) != values) & ~np.isnan(values)
    return changed


def fault_of(value: Any) -> str:
    """Describe a number of a table or an array that cannot be used."""
    if value is None:
        return "missing"
    if isinstance(value, float | np.floating) and not np.isfinite(value):
        return "nan" if np.isnan(value) else f"{value}"
    return f"{value}, which float64 does not hold"
