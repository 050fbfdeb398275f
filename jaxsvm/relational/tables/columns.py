"""What the type of a column makes of it: a key, a number, a category. The one definition, for tables and for databases.

A kind is a set of values with one equality. Values are compared exactly, by one shared dictionary: integers of any
width and decimals as whole numbers with a decimal scale, times as whole numbers of their unit, texts as they are;
never by float64, and never by the order in which somebody sorts them.

    kind       values                                      as a feature
    number     integers, decimals: `values / 10^scale`     a number
    float      float16, float32, float64                   a number
    boolean    True, False                                 a category
    text       texts, enumerations                         a category
    uuid       in canonical form                           a category, where asked for
    date, timestamp  seconds / 10^-scale since 1970        a category, where asked for
    zoned      the same of an instant (with time zone)     none
    time, bytes, other                                     none
"""

import dataclasses
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np

from jaxsvm.errors import InputError

NUMBERS = ("number", "float", "null")
CATEGORIES = ("text", "boolean")
ASKED = ("text", "boolean", "number", "float", "uuid", "date", "timestamp")
"""Kinds whose columns may be named in `categorical`."""
SCALED = ("number", "date", "timestamp", "zoned", "time")
DAY = 86_400
UNITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
"""Scales of the units of times."""


@dataclasses.dataclass(frozen=True, eq=False)
class Column:
    """One column.

    Attributes:
        kind: See the module; "null" where nothing is known but that all is missing.
        values: Of the kind, `(n,)`: int64 or Python integers, floats, bool, or objects; anything where `missing`.
        missing: Which are missing, bool `(n,)`.
        scale: Of whole numbers, `10^scale` of which are 1 (a second, for times).
        type: What its table calls the type, for messages.
    """

    kind: str
    values: np.ndarray
    missing: np.ndarray
    scale: int = 0
    type: str = ""

    def __len__(self) -> int:
        """How many rows."""
        return len(self.missing)

    def changed(self, **fields: Any) -> "Column":
        """The same but for some fields."""
        return dataclasses.replace(self, **fields)

    def take(self, rows: np.ndarray) -> "Column":
        """Some rows."""
        return self.changed(values=self.values[rows], missing=self.missing[rows])


def whole(values: Any) -> np.ndarray:
    """Integers as int64 where all fit, else as Python's."""
    values = np.asarray(values) if isinstance(values, np.ndarray) else np.array(list(values), object)
    if values.dtype == np.uint64 and values.size and values.max() > np.iinfo(np.int64).max:
        return values.astype(object)
    if values.dtype == object and any(not -(2**63) <= value < 2**63 for value in values):
        return values
    return values.astype(np.int64)


def common(kinds: Sequence[str]) -> str | None:
    """The kind in which values of all these are compared; None where there is none."""
    present = set(kinds) - {"null"}
    if len(present) <= 1:
        return None if "other" in present else next(iter(present), "null")
    return {frozenset(("number", "float")): "float", frozenset(("date", "timestamp")): "timestamp"}.get(
        frozenset(present)
    )


def refused(shown: str, of: str = "keys") -> InputError:
    """What joins columns that have no common kind."""
    return InputError(f"{of} join {shown}: values of different kinds are never equal; cast one of them.")


def largest(narrow: bool) -> int:
    """Up to where every integer is a float of its own, in float32 (`narrow`) or float64."""
    return 2**24 if narrow else 2**53


def inexact(shown: str, most: int) -> InputError:
    """What joins integers with floats that cannot tell them apart."""
    return InputError(
        f"keys join {shown}: floats do not tell integers beyond {most} apart, nor fractions from decimals; cast the "
        "floats to integers or decimals."
    )


def comparable(columns: Sequence[Column], names: Sequence[str]) -> list[np.ndarray]:
    """The values that are not missing of each column, as arrays whose `==` is that of the columns.

    Raises:
        InputError: On kinds that are never equal, and integers and floats that cannot be told apart exactly.
    """
    shown = ", ".join(f"{name} ({c.type or c.kind})" for name, c in zip(names, columns, strict=True))
    kind = common([c.kind for c in columns])
    if kind is None:
        raise refused(shown)
    parts = [c.values[~c.missing] for c in columns]
    if kind == "float":
        if any(c.kind == "number" for c in columns):
            most = largest(any(c.kind == "float" and c.values.dtype.itemsize < 8 for c in columns))
            for c, part in zip(columns, parts, strict=True):
                beyond = len(part) and (np.nanmax(part) > most or np.nanmin(part) < -most)
                if c.kind == "number" and c.scale or (beyond and not np.isnan(part.astype(float)).all()):
                    raise inexact(shown, most)
        return [part.astype(np.float64) for part in parts]
    if kind in SCALED:
        scale = max(c.scale for c in columns)
        parts = [_times(part, 10 ** (scale - c.scale)) for c, part in zip(columns, parts, strict=True)]
    if len({part.dtype for part in parts if len(part)}) > 1:
        parts = [part.astype(object) for part in parts]
    return parts


def _times(values: np.ndarray, factor: int) -> np.ndarray:
    if factor == 1 or not len(values):
        return values
    if values.dtype != object and _within(values, (2**63 - 1) // factor):
        return values * factor
    return whole(values.astype(object) * factor)


def _within(values: np.ndarray, most: int) -> bool:
    return not len(values) or (int(values.max()) <= most and int(values.min()) >= -most)


def shared_codes(columns: Sequence[Column], names: Sequence[str]) -> tuple[list[np.ndarray], np.ndarray]:
    """Numbers for the values of some columns by one dictionary: equal values, and only they, have equal numbers.

    Returns:
        A number a row of each column, -1 where missing; and the values that the numbers stand for.

    Raises:
        InputError: As `comparable`.
    """
    parts = comparable(columns, names)
    together = np.concatenate([part for part in parts if len(part)] or [np.zeros(0)])
    if together.dtype == object:
        known: dict[Any, int] = {}
        ids = np.fromiter((known.setdefault(v, len(known)) for v in together.tolist()), np.int64, len(together))
        values = objects(list(known))
    else:
        values, ids = np.unique(together, return_inverse=True)
    codes, first = [], 0
    for c, part in zip(columns, parts, strict=True):
        code = np.full(len(c.missing), -1, np.int64)
        code[~c.missing] = ids[first : first + len(part)]
        codes.append(code)
        first += len(part)
    return codes, values


def distinct(column: Column, name: str) -> tuple[Column, np.ndarray]:
    """The different values of a column in order, as a column; the number of each row's, -1 where missing."""
    if column.kind == "other":
        raise InputError(f"column {name} holds values of type {column.type}, which are not compared: leave it out.")
    (code,), values = shared_codes([column], [name])
    order = np.array(sorted(range(len(values)), key=values.__getitem__), np.int64)
    place = np.empty(len(order) + 1, np.int64)
    place[order], place[-1] = np.arange(len(order)), -1
    return column.changed(values=values[order], missing=np.zeros(len(order), bool)), place[code]


def shown(column: Column) -> np.ndarray:
    """Values as people and Python know them, `(n,)`; None where missing."""
    if column.kind == "number" and column.scale:
        out = [Decimal(f"{value}e{-column.scale}") for value in column.values.tolist()]
    elif column.kind in ("date", "timestamp"):
        out = [timestamp(int(value), column.kind, column.scale) for value in column.values.tolist()]
    else:
        out = column.values.tolist()
    if not column.missing.any() and column.kind in ("text", "boolean", "number", "float") and not column.scale:
        return np.array(out) if len(out) and column.values.dtype != object or column.kind == "text" else objects(out)
    return objects([None if gone else value for value, gone in zip(out, column.missing, strict=True)])


def objects(values: Any) -> np.ndarray:
    """An array of Python's values, `(n,)`, whatever they are."""
    out = np.empty(len(values), object)
    out[:] = values
    return out


def timestamp(value: int, kind: str, scale: int) -> str:
    """A date or timestamp as SQL writes it."""
    seconds, rest = divmod(value, 10**scale)
    text = str(np.datetime64(seconds, "s")).replace("T", " ")
    if kind == "date":
        return text[:10]
    return f"{text}.{rest:0{scale}d}".rstrip("0") if rest else text


def as_feature(column: Column) -> Column:
    """The column with NaN as missing too, which a key's is not where its table has nulls as well."""
    return column.changed(missing=column.missing | np.isnan(column.values)) if column.kind == "float" else column


def numbers(column: Column, where: str) -> np.ndarray:
    """float64 `(n,)`, each value rounded once; NaN where missing.

    Raises:
        InputError: On a column that holds no numbers, or one beyond float64.
    """
    if column.kind not in NUMBERS:
        raise InputError(f"column {where} holds {column.type or column.kind}: numbers are needed.")
    known, out = column.values[~column.missing], np.full(len(column.missing), np.nan)
    try:
        if column.kind == "null":
            return out
        if not column.scale:
            out[~column.missing] = known.astype(np.float64)
        elif known.dtype != object and column.scale <= 22 and _within(known, 2**53):
            out[~column.missing] = known / 10.0**column.scale  # both exact, so rounded once
        else:
            out[~column.missing] = [float(f"{value}e{-column.scale}") for value in known.tolist()]
    except OverflowError:
        raise InputError(f"column {where} has numbers beyond float64: scale them, or leave it out.") from None
    return out


def require_role(kind: str, where: str, called: str, asked: bool) -> None:
    """Refuse, as a feature, what is neither a number nor a category.

    Args:
        kind: Of the column.
        where: Its name.
        called: Its type.
        asked: Whether it is named in `categorical`.
    """
    if kind in NUMBERS or kind in CATEGORIES or (asked and kind in ASKED):
        return
    held = {"date": "dates", "timestamp": "timestamps", "uuid": "UUIDs"}.get(kind, f"values of type {called or kind}")
    also = ", or name it in categorical" if kind in ASKED else ""
    raise InputError(
        f"feature {where} holds {held}, which are neither numbers nor categories: give numbers (a year, an hour, days "
        f"since a day) instead, leave it out of features{also}."
    )
