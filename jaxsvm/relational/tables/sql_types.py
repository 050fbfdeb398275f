"""Columns of a database by the names of their types: the same kinds as `columns.py`, and how unlike ones are compared.

Where the columns of a key are declared alike, the database compares them as it always does. Where they are not, each is
cast to one type that holds all their values exactly: then equality and order are those of one type. An ENUM is ordered
by its definition and equal by its text, so two orders of one key would number it differently.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from jaxsvm.errors import InputError
from jaxsvm.relational.tables.columns import common, inexact, largest, refused


class Declared(NamedTuple):
    """What a type's name says.

    Attributes:
        name: As the database has it.
        kind: One of `columns.py`.
        digits: Of a number, before the point; 0 where there is no limit.
        scale: Of a number, behind the point.
        integer: Whether it is an integer.
        narrow: Whether it is a float of fewer than 64 bits.
    """

    name: str
    kind: str
    digits: int = 0
    scale: int = 0
    integer: bool = False
    narrow: bool = False


INTEGERS = {
    "TINYINT": 3, "SMALLINT": 5, "INT2": 5, "INT16": 5, "INTEGER": 10, "INT": 10, "INT4": 10, "INT32": 10, "SERIAL": 10,
    "BIGINT": 19, "INT8": 19, "INT64": 19, "UTINYINT": 3, "UINT8": 3, "USMALLINT": 5, "UINT16": 5, "UINTEGER": 10,
    "UINT32": 10, "UBIGINT": 20, "UINT64": 20, "HUGEINT": 39,
}  # fmt: skip
"""Digits of integers that are known; one of more than 128 bits, or UHUGEINT, compares with its like only."""
OTHERS = [
    (r"(ENUM|VARCHAR|TEXT|STRING|LARGE_STRING|STRING_VIEW|CHAR|BPCHAR|NAME|CITEXT|CHARACTER|DICTIONARY<VALUES=STRING)\b",
     "text"),
    (r"(BOOLEAN|BOOL)$", "boolean"), (r"UUID$", "uuid"), (r"(BLOB|BYTEA|BINARY|LARGE_BINARY)$", "bytes"),
    (r"(DATE|DATE32\[DAY\])$", "date"), (r"(TIMESTAMPTZ|TIMESTAMP.*(WITH TIME ZONE|TZ=).*)$", "zoned"),
    (r"TIMESTAMP(_S|_MS|_NS|\[\w+\]|\(\d+\))?( WITHOUT TIME ZONE)?$", "timestamp"),
    (r"(TIME|TIME64\[US\])$", "time"), (r"\"?NULL\"?$", "null"),
]  # fmt: skip
FLOATS = {"FLOAT": True, "REAL": True, "FLOAT4": True, "HALFFLOAT": True, "DOUBLE": False, "FLOAT8": False,
          "DOUBLE PRECISION": False}  # fmt: skip


def declared(name: str) -> Declared:
    """What the name of a type says, in DuckDB, PostgreSQL or Arrow."""
    upper = name.upper().strip()
    if upper in INTEGERS:
        return Declared(name, "number", INTEGERS[upper], 0, integer=True)
    if upper in FLOATS:
        return Declared(name, "float", narrow=FLOATS[upper])
    exact = re.match(r"(?:DECIMAL|NUMERIC)\d*(?:\((\d+)(?:, ?(-?\d+))?\))?$", upper)
    if exact:
        width, scale = int(exact[1] or 0), int(exact[2] or 0)
        return Declared(name, "number", max(width - scale, 0), max(scale, 0))
    if " COLLATE " in upper:  # whose equality is not that of its texts
        return Declared(name, "other")
    if upper == "UHUGEINT":
        return Declared(name, "number")
    return Declared(name, next((kind for shape, kind in OTHERS if re.match(shape, upper)), "other"))


def comparison_type(types: Sequence[Declared], shown: str) -> str | None:
    """The type to which columns are cast to be compared; None where they are declared alike.

    Args:
        types: Of the columns.
        shown: The columns, for the error.

    Raises:
        InputError: Where no type holds the values of all exactly.
    """
    if len({one.name for one in types}) == 1:
        return None
    kind = common([one.kind for one in types])
    numbers = [one for one in types if one.kind == "number"]
    if kind is None or any(one.name.upper() == "UHUGEINT" for one in types):
        raise refused(shown)
    if kind == "float":
        if not all(one.integer for one in numbers):
            raise inexact(shown, largest(False))
        return "DOUBLE PRECISION"
    if kind == "number":
        digits, scale = (max(getattr(one, name) for one in numbers) for name in ("digits", "scale"))
        if not all(one.digits or one.scale for one in numbers):
            return "NUMERIC"  # PostgreSQL's without a limit
        if digits <= 19 and all(one.integer for one in numbers):
            return "BIGINT"
        if digits + scale <= 38:
            return f"DECIMAL(38, {scale})"
        if not scale:
            return "HUGEINT"
        raise InputError(f"keys join {shown}: no type holds the values of all exactly; cast one of them.")
    if kind == "timestamp" and any(re.search(r"_NS|\[NS\]", one.name.upper()) for one in types):
        return "TIMESTAMP_NS"
    plain = {"text": "VARCHAR", "timestamp": "TIMESTAMP", "date": "DATE", "boolean": "BOOLEAN", "null": "INTEGER"}
    if kind not in plain:
        raise refused(shown)
    return plain[kind]
