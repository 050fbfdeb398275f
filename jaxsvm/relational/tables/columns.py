"""Decide by its type whether a column is a number or a category, and compare keys; for tables and databases.

A kind is a set of values with one equality. Values are compared exactly by one shared dictionary: integers of any
width and decimals as integers with a decimal scale, times as integers of their unit, texts as they are. They are never
compared as float64, nor by a sorting order.

    kind       values                                      as a feature
    number     integers, decimals: `values / 10^scale`     a number
    float      float16, float32, float64                   a number
    boolean    True, False                                 a category
    text       texts, enumerations                         a category
    uuid       in canonical form                           a category, if named in `categorical`
    date, timestamp  seconds / 10^-scale since 1970        a category, if named in `categorical`
    zoned      an instant (with time zone), same unit      none
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
CATEGORIES_BY_REQUEST = ("text", "boolean", "number", "float", "uuid", "date", "timestamp")
"""Kinds whose columns may be named in `categorical`."""
SCALED = ("number", "date", "timestamp", "zoned", "time")
SECONDS_PER_DAY = 86_400
TIME_SCALES = {"s": 0, "ms": 3, "us": 6, "ns": 9}


@dataclasses.dataclass(frozen=True, eq=False)
class Column:
    """A column of a table."""

    kind: str  # a kind of the module's table; "null" if all values are missing and the kind is unknown
    # Values of the kind, `(n,)`: int64 or Python integers, floats, bool, or objects; arbitrary where `missing`:
    values: np.ndarray
    missing: np.ndarray  # which values are missing, bool `(n,)`
    scale: int = 0  # decimal scale of integers: `10^scale` of them are 1 (a second, for times)
    type: str = ""  # name of the type in its table, for messages

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.missing)

    def changed(self, **fields: Any) -> "Column":
        """Return a copy with some fields replaced."""
        return dataclasses.replace(self, **fields)

    def take(self, rows: np.ndarray) -> "Column":
        """Select rows."""
        return self.changed(values=self.values[rows], missing=self.missing[rows])


def integers(values: Any) -> np.ndarray:
    """Convert integers to int64 if all fit, else to Python integers."""
    values = values if isinstance(values, np.ndarray) else np.array(list(values), object)
    if values.dtype == np.uint64 and values.size and values.max() > np.iinfo(np.int64).max:
        return values.astype(object)
    if values.dtype == object and any(not -(2**63) <= value < 2**63 for value in values):
        return values
    return values.astype(np.int64)


def common_kind(kinds: Sequence[str]) -> str | None:
    """Return the kind in which values of all these kinds are compared; None if they are never equal."""
    present = frozenset(kinds) - {"null"}
    if len(present) <= 1:
        return None if "other" in present else next(iter(present), "null")
    return {frozenset(("number", "float")): "float", frozenset(("date", "timestamp")): "timestamp"}.get(present)


def unequal_kinds(columns: str) -> InputError:
    """Return the error for keys that join columns without a common kind."""
    return InputError(f"keys join {columns}: values of different kinds are never equal; cast one of them.")


def largest_integer(narrow: bool) -> int:
    """Return the limit up to which floats tell all integers apart, for float32 (`narrow`) or float64."""
    return 2**24 if narrow else 2**53


def inexact_keys(columns: str, limit: int) -> InputError:
    """Return the error for keys that join integers with floats that cannot tell them apart."""
    return InputError(
        f"keys join {columns}: floats do not tell integers beyond {limit} apart, nor fractions from decimals; cast the "
        "floats to integers or decimals."
    )


def comparable(columns: Sequence[Column], names: Sequence[str]) -> list[np.ndarray]:
    """Return the values of each column that are not missing, as arrays whose `==` is that of the columns.

    Kinds that are never equal, and integers and floats that cannot be told apart exactly, are refused.
    """
    described = ", ".join(f"{name} ({c.type or c.kind})" for name, c in zip(names, columns, strict=True))
    kind = common_kind([c.kind for c in columns])
    if kind is None:
        raise unequal_kinds(described)
    parts = [c.values[~c.missing] for c in columns]
    if kind == "float":
        if any(c.kind == "number" for c in columns):
            limit = largest_integer(any(c.kind == "float" and c.values.dtype.itemsize < 8 for c in columns))
            for c, part in zip(columns, parts, strict=True):
                beyond = len(part) and (np.nanmax(part) > limit or np.nanmin(part) < -limit)
                if c.kind == "number" and c.scale or (beyond and not np.isnan(part.astype(float)).all()):
                    raise inexact_keys(described, limit)
        return [part.astype(np.float64) for part in parts]
    if kind in SCALED:
        scale = max(c.scale for c in columns)
        parts = [_multiplied(part, 10 ** (scale - c.scale)) for c, part in zip(columns, parts, strict=True)]
    if len({part.dtype for part in parts if len(part)}) > 1:
        parts = [part.astype(object) for part in parts]
    return parts


def _multiplied(values: np.ndarray, factor: int) -> np.ndarray:
    if factor == 1 or not len(values):
        return values
    if values.dtype != object and _within(values, (2**63 - 1) // factor):
        return values * factor
    return integers(values.astype(object) * factor)


def _within(values: np.ndarray, limit: int) -> bool:
    """Return whether all values lie in `[-limit, limit]`."""
    return not len(values) or (int(values.max()) <= limit and int(values.min()) >= -limit)


def shared_codes(columns: Sequence[Column], names: Sequence[str]) -> tuple[list[np.ndarray], np.ndarray]:
    """Assign numbers to the values of some columns: equal values, and only they, have equal numbers.

    Return for each column the number of each row's value, -1 where missing; and the values of the numbers.
    """
    parts = comparable(columns, names)
    together = np.concatenate([part for part in parts if len(part)] or [np.zeros(0)])
    if together.dtype == object:
        known: dict[Any, int] = {}
        ids = np.fromiter((known.setdefault(v, len(known)) for v in together.tolist()), np.int64, len(together))
        values = object_array(list(known))
    else:
        values, ids = np.unique(together, return_inverse=True)
    codes, first = [], 0
    for c, part in zip(columns, parts, strict=True):
        code = np.full(len(c), -1, np.int64)
        code[~c.missing] = ids[first : first + len(part)]
        codes.append(code)
        first += len(part)
    return codes, values


def distinct(column: Column, name: str) -> tuple[Column, np.ndarray]:
    """Return the different values of a column in order, as a column; and the number of each row's, -1 if missing."""
    if column.kind == "other":
        raise InputError(f"column {name} holds values of type {column.type}, which are not compared: leave it out.")
    (code,), values = shared_codes([column], [name])
    order = np.array(sorted(range(len(values)), key=values.__getitem__), np.int64)
    place = np.empty(len(order) + 1, np.int64)
    place[order], place[-1] = np.arange(len(order)), -1
    return column.changed(values=values[order], missing=np.zeros(len(order), bool)), place[code]


def python_values(column: Column) -> np.ndarray:
    """Return the values as Python has them, `(n,)`; None where missing."""
    if column.kind == "number" and column.scale:
        out = [Decimal(f"{value}e{-column.scale}") for value in column.values.tolist()]
    elif column.kind in ("date", "timestamp"):
        out = [timestamp(int(value), column.kind, column.scale) for value in column.values.tolist()]
    else:
        out = column.values.tolist()
    if not column.missing.any() and column.kind in ("text", "boolean", "number", "float") and not column.scale:
        typed = len(out) and column.values.dtype != object or column.kind == "text"
        return np.array(out) if typed else object_array(out)
    return object_array([None if gone else value for value, gone in zip(out, column.missing, strict=True)])


def object_array(values: Any) -> np.ndarray:
    """Return an array of Python objects, `(n,)`, which NumPy does not convert."""
    out = np.empty(len(values), object)
    out[:] = values
    return out


def timestamp(value: int, kind: str, scale: int) -> str:
    """Write a date or timestamp as SQL does."""
    seconds, rest = divmod(value, 10**scale)
    text = str(np.datetime64(seconds, "s")).replace("T", " ")
    if kind == "date":
        return text[:10]
    return f"{text}.{rest:0{scale}d}".rstrip("0") if rest else text


def as_feature(column: Column) -> Column:
    """Mark NaN as missing. In a key NaN is a value, if its table has nulls too."""
    return column.changed(missing=column.missing | np.isnan(column.values)) if column.kind == "float" else column


def numbers(column: Column, where: str) -> np.ndarray:
    """Convert a column of numbers to float64 `(n,)`, each value rounded once; NaN where missing; refuse others."""
    if column.kind not in NUMBERS:
        raise InputError(f"column {where} holds {column.type or column.kind}: numbers are needed.")
    known, out = column.values[~column.missing], np.full(len(column), np.nan)
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


def require_role(kind: str, where: str, type_name: str, categorical: bool) -> None:
    """Refuse a feature that is neither a number nor a category; `where` is its name, for the error."""
    if kind in NUMBERS or kind in CATEGORIES or (categorical and kind in CATEGORIES_BY_REQUEST):
        return
    described = {"date": "dates", "timestamp": "timestamps", "uuid": "UUIDs"}
    values = described.get(kind, f"values of type {type_name or kind}")
    also = ", or name it in categorical" if kind in CATEGORIES_BY_REQUEST else ""
    raise InputError(
        f"feature {where} holds {values}, which are neither numbers nor categories: give numbers (a year, an hour, "
        f"days since a day) instead, leave it out (`features={{table: [columns]}}` names all that count){also}."
    )
