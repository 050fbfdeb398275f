"""Give columns their kind, by the names of their types; choose how unlike columns are compared.

    kind       values                                      as a feature
    number     integers, decimals                          a number
    float      float16, float32, float64                   a number
    null       all missing                                 a number
    boolean    True, False                                 a category
    text       texts, enumerations                         a category
    uuid       in canonical form                           a category, if named in `categorical`
    date, timestamp                                        a category, if named in `categorical`
    zoned      an instant (with time zone)                 none
    time, bytes, other                                     none

The database compares the columns of a key in its own way if they are declared alike. Otherwise each is cast to one type
that holds all their values exactly, so that equality and order are those of one type. An ENUM is ordered by its
definition and equal by its text, so two orders of one key would number it differently.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from jaxsvm.errors import InputError

NUMBERS = ("number", "float", "null")
CATEGORIES = ("text", "boolean")
CATEGORIES_BY_REQUEST = ("text", "boolean", "number", "float", "uuid", "date", "timestamp")
"""Kinds whose columns may be named in `categorical`."""
DOUBLE = "DOUBLE PRECISION"


class Declared(NamedTuple):
    """A declared type."""

    name: str  # its name in the database
    kind: str  # one of the kinds above
    digits: int = 0  # digits of a number before the point; 0 if there is no limit
    scale: int = 0  # digits of a number after the point
    integer: bool = False  # whether it is an integer
    narrow: bool = False  # whether it is a float of fewer than 64 bits
    sql: str = ""  # the column in a query


INTEGERS = {
    "TINYINT": 3, "SMALLINT": 5, "INT2": 5, "INT16": 5, "INTEGER": 10, "INT": 10, "INT4": 10, "INT32": 10, "SERIAL": 10,
    "BIGINT": 19, "INT8": 19, "INT64": 19, "UTINYINT": 3, "UINT8": 3, "USMALLINT": 5, "UINT16": 5, "UINTEGER": 10,
    "UINT32": 10, "UBIGINT": 20, "UINT64": 20, "HUGEINT": 39,
}  # fmt: skip
"""Digits of integer types; one of more than 128 bits, or UHUGEINT, can only be compared with its own type."""
OTHERS = [
    (r"(ENUM|VARCHAR|TEXT|STRING|LARGE_STRING|STRING_VIEW|CHAR|BPCHAR|NAME|CITEXT|CHARACTER|DICTIONARY<VALUES=STRING)\b",
     "text"),
    (r"(BOOLEAN|BOOL)$", "boolean"), (r"(UUID|EXTENSION<ARROW.UUID>)$", "uuid"),
    (r"(BLOB|BYTEA|BINARY|LARGE_BINARY)$", "bytes"),
    (r"(DATE|DATE32\[DAY\])$", "date"), (r"(TIMESTAMPTZ|TIMESTAMP.*(WITH TIME ZONE|TZ=).*)$", "zoned"),
    (r"TIMESTAMP(_S|_MS|_NS|\[\w+\]|\(\d+\))?( WITHOUT TIME ZONE)?$", "timestamp"),
    (r"(TIME|TIME64\[US\])$", "time"), (r"\"?NULL\"?$", "null"),
]  # fmt: skip
FLOATS = {"FLOAT": True, "REAL": True, "FLOAT4": True, "HALFFLOAT": True, "DOUBLE": False, "FLOAT8": False,
          DOUBLE: False}  # fmt: skip
"""Float types: whether they have fewer than 64 bits."""


def declared(name: str, sql: str = "") -> Declared:
    """Parse the name of a type of DuckDB, PostgreSQL or Arrow; `sql` is the column in a query."""
    return _parsed(name)._replace(sql=sql)


def _parsed(name: str) -> Declared:
    upper = name.upper().strip()
    if upper in INTEGERS:
        return Declared(name, "number", INTEGERS[upper], 0, integer=True)
    if upper in FLOATS:
        return Declared(name, "float", narrow=FLOATS[upper])
    exact = re.match(r"(?:DECIMAL|NUMERIC)\d*(?:\((\d+)(?:, ?(-?\d+))?\))?$", upper)
    if exact:
        width, scale = int(exact[1] or 0), int(exact[2] or 0)
        return Declared(name, "number", max(width - scale, 0), max(scale, 0))
    if " COLLATE " in upper:  # its equality is not that of its texts
        return Declared(name, "other")
    if upper == "UHUGEINT":
        return Declared(name, "number")
    return Declared(name, next((kind for shape, kind in OTHERS if re.match(shape, upper)), "other"))


def require_role(kind: Declared, where: str, categorical: bool) -> None:
    """Refuse a feature that is neither a number nor a category; `where` is its name, for the error."""
    if kind.kind in (*NUMBERS, *CATEGORIES) or (categorical and kind.kind in CATEGORIES_BY_REQUEST):
        return
    described = {"date": "dates", "timestamp": "timestamps", "uuid": "UUIDs"}
    values = described.get(kind.kind, f"values of type {kind.name}")
    also = ", or name it in categorical" if kind.kind in CATEGORIES_BY_REQUEST else ""
    raise InputError(
        f"feature {where} holds {values}, which are neither numbers nor categories: give numbers (a year, an hour, "
        f"days since a day) instead, leave it out (`features={{table: [columns]}}` names all that count){also}."
    )


def common_kind(kinds: Sequence[str]) -> str | None:
    """Return the kind in which values of all these kinds are compared; None if they are never equal."""
    present = frozenset(kinds) - {"null"}
    if len(present) <= 1:
        return None if "other" in present else next(iter(present), "null")
    return {frozenset(("number", "float")): "float", frozenset(("date", "timestamp")): "timestamp"}.get(present)


def inexact_keys(columns: str, limit: int) -> InputError:
    """Return the error for keys that join integers with floats that cannot tell them apart."""
    return InputError(
        f"keys join {columns}: floats do not tell integers beyond {limit} apart, nor fractions from decimals; cast the "
        "floats to integers or decimals."
    )


def largest_integer(types: Sequence[Declared]) -> int:
    """Return the limit up to which floats of these types tell all integers apart."""
    return 2 ** (24 if any(t.narrow for t in types) else 53)


def comparison_type(types: Sequence[Declared], columns: str) -> str | None:
    """Return the type to which columns are cast to be compared exactly; None if they are declared alike."""
    foreign = types[0].kind == "other" and types[0].name.startswith("extension<")  # of Arrow: DuckDB has its bits only
    if len({t.name for t in types}) == 1 and not foreign:
        return None
    kind = common_kind([t.kind for t in types])
    numbers = [t for t in types if t.kind == "number"]
    unequal = InputError(f"keys join {columns}: values of different kinds are never equal; cast one of them.")
    if kind is None or any(t.name.upper() == "UHUGEINT" for t in types):
        raise unequal
    if kind == "float":
        if not all(t.integer for t in numbers):
            raise inexact_keys(columns, largest_integer(types))
        return DOUBLE
    if kind == "number":
        digits, scale = max(t.digits for t in numbers), max(t.scale for t in numbers)
        if not all(t.digits or t.scale for t in numbers):
            return "NUMERIC"  # PostgreSQL's, without a limit
        if digits <= 19 and all(t.integer for t in numbers):
            return "BIGINT"
        if digits + scale <= 38:
            return f"DECIMAL(38, {scale})"
        if not scale:
            return "HUGEINT"
        raise InputError(f"keys join {columns}: no type holds the values of all exactly; cast one of them.")
    if kind == "timestamp" and any(re.search(r"_NS|\[NS\]", t.name.upper()) for t in types):
        return "TIMESTAMP_NS"
    plain = {"text": "VARCHAR", "timestamp": "TIMESTAMP", "date": "DATE", "boolean": "BOOLEAN", "null": "INTEGER"}
    if kind not in plain:
        raise unequal
    return plain[kind]
