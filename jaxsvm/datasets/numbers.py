"""Read numbers: one rule for every reader.

A number is written in ASCII digits, with a decimal point if any: Python's `1_000`, decimal commas and digits of other
scripts are refused. Whole numbers that float64 does not hold (identifiers, as a rule) are refused, never rounded.
"""

import decimal
import re
from typing import Any

import numpy as np

MISSING = ("", "?", "na", "n/a", "nan", "null", "none", "nat", "<na>", "#n/a", "#na", "-nan", "+nan")  # in lower case
WHOLE = re.compile(r"[+-]?[0-9]+")
EXACT = 2.0**53
"""Every whole number up to here is a float64."""

_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_INFINITE = re.compile(r"[+-]?(inf|infinity|nan)", re.IGNORECASE)
_WITH_COMMA = re.compile(r"[+-]?[0-9]+,[0-9]+([eE][+-]?[0-9]+)?")


def as_number(token: str) -> float | None:
    """Return the number that a token spells, which may be infinite or NaN, or None."""
    return float(token) if _NUMBER.fullmatch(token) or _INFINITE.fullmatch(token) else None


def has_decimal_comma(token: str) -> bool:
    """Return whether a token would be a number if its comma were a point."""
    return _WITH_COMMA.fullmatch(token) is not None


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
