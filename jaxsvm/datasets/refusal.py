"""How a file is refused: the file, the line, what was found, what to do."""

import importlib
import shlex
from typing import Any, NoReturn

from jaxsvm.errors import DataError, InputError

AGAIN = "; it may have been cut short: fetch or write it again."
SHOWN = 40  # characters of a bad token that a message repeats


def need(module: str, package: str, purpose: str) -> Any:
    """Import an optional dependency, or say how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError(
            f"reading {purpose} files needs {package}, which is not installed: pip install 'jaxsvm[cli]'"
        ) from error


def decoded(name: str, number: int, line: bytes, expected: str) -> str:
    """The text of a line; a byte that is none is refused."""
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        refuse_line(name, number, f"byte {line[error.start]:#04x} is no UTF-8 text", f"{expected} is needed")


def shown(token: str) -> str:
    """A piece of a file as a message repeats it."""
    return repr(token if len(token) <= SHOWN else token[:SHOWN] + "...")


class BadRow(DataError):
    """One row that is no sample: what was found there, and what to do.

    Attributes:
        lacks: Whether a value is missing.
    """

    def __init__(self, where: str, found: str, expected: str, *, cut: bool = False, lacks: bool = False):
        hint = " It is the last line and does not end in a newline: the file may have been cut short." if cut else ""
        super().__init__(f"{where}: {found}; {expected}.{hint}")
        self.parts, self.cut, self.lacks = (where, found, expected), cut, lacks

    def __reduce__(self) -> Any:
        return _bad_row, (self.parts, self.cut, self.lacks)

    def with_more(self, more: int) -> "BadRow":
        """The same where so many other rows lack a value too."""
        where, found, expected = self.parts
        others = f", and {more} more line(s) lack a value" if more else ""
        return BadRow(where, found + others, expected, cut=self.cut, lacks=self.lacks)


def _bad_row(parts: tuple[str, str, str], cut: bool, lacks: bool) -> BadRow:
    return BadRow(*parts, cut=cut, lacks=lacks)


def refuse_line(name: str, line: int, found: str, expected: str, *, cut: bool = False, lacks: bool = False) -> NoReturn:
    """Raise for one line; `cut` where it is the last one and has no end."""
    raise BadRow(f"{name}, line {line}", found, expected, cut=cut, lacks=lacks)


def label_hint(column: str | int, last: str | int) -> str:
    """What to say of a column of text where nobody said which one holds the labels: it may be that one.

    Args:
        column: Its name or index.
        last: That of the last column, which was taken for the labels.
    """
    asked = f"label={column!r}, --label {shlex.quote(str(column))}"
    return f"; if it holds the labels, say so ({asked}): they were looked for in the last column, {last!r}"


def label_column(name: str, names: list[str] | None, width: int, label: str | int | None) -> int | None:
    """The label's column as an index from 0; None where `label` is False: there is none."""
    if label is False:
        if width < 1:
            raise DataError(f"{name}: there is no column: it has no samples.")
        return None
    if width < 2:
        raise DataError(
            f"{name}: there is one column only; features and a label are needed (in CSV with , ; or tab between)."
        )
    if isinstance(label, str):
        if names is None:
            raise InputError(f"label is {label!r}, and {name} has no header: give the column's index.")
        if names.count(label) != 1:
            found = "no column" if label not in names else f"{names.count(label)} columns"
            shown = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
            raise InputError(f"label is {label!r}: {name} has {found} of that name; it has {shown}.")
        return names.index(label)
    column = width - 1 if label is None else label
    if not -width <= column < width:
        raise InputError(f"label is {label}: {name} has {width} columns, so an index from 0 to {width - 1} is needed.")
    return column % width
