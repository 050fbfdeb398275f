"""Read numbers and labels as files write them, and turn labels into signs, codes or numbers.

Whole numbers stay whole, up to 64 bits; two labels are equal only if they agree to the last digit. Texts of missing
values ("", "NA", "nan", ...) and infinite numbers are no labels. A number is written in ASCII digits, with a decimal
point if any; whole numbers that float64 does not hold (identifiers, as a rule) are refused as features, never rounded.
"""

from __future__ import annotations

import decimal
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from jaxsvm.errors import DataError, InputError, is_concrete
from jaxsvm.runtime.arrays import checked

MISSING = ("", "?", "na", "n/a", "nan", "null", "none", "nat", "<na>", "#n/a", "#na", "-nan", "+nan")
"""Texts of missing values, in lower case."""
WHOLE = re.compile(r"[+-]?[0-9]+")
NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
EXACT = 2.0**53
"""Every whole number up to here is a float64."""


def as_number(text: str, mark: str = ".") -> float | None:
    """Return the number that a text with a decimal mark spells, which may be infinite or NaN, or None."""
    text = text if mark == "." else text.translate({ord("."): "x", ord(mark): "."})
    spelled = re.match(NUMBER, text) or re.fullmatch(r"[+-]?(inf|infinity|nan)", text, re.IGNORECASE)
    return float(text) if spelled else None


def is_missing(text: str) -> bool:
    """Return whether a text stands for a missing value."""
    return text.strip().lower() in MISSING


def shown(text: str) -> str:
    """Quote a piece of a file for a message, at most 40 characters of it."""
    return repr(text if len(text) <= 40 else text[:40] + "...")


def rounds(text: str, number: float) -> bool:
    """Return whether a whole number changes as float64: the float neither equals it nor prints as it."""
    if abs(number) < EXACT or not np.isfinite(number):
        return False
    written = decimal.Decimal(text)
    whole = written == written.to_integral_value()
    return whole and written not in (decimal.Decimal(number), decimal.Decimal(repr(number)))


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


class Texts(NamedTuple):
    """Labels as they are written."""

    values: list[str]  # the different ones
    codes: np.ndarray  # the index of each sample's, `(n,)`


def coded(texts: Iterable[str]) -> Texts:
    """Code the labels of samples in the order of their first occurrence."""
    places: dict[str, int] = {}
    codes = np.asarray([places.setdefault(text, len(places)) for text in texts], int)
    return Texts(list(places), codes)


def fault_of_text(text: str) -> str | None:
    """Describe the fault of a text as a label; None if it has none."""
    if is_missing(text):
        return f"is missing ({shown(text)})" if text else "is missing"
    if "\0" in text:
        return f"is {shown(text)}, whose end NumPy cuts off"
    number = as_number(text)
    return None if number is None or np.isfinite(number) else f"is {shown(text)}, which is not finite"


def fault_of_label(text: str) -> str | None:
    """Describe the fault of a label that may be a number, which must be kept to the last digit; None if it has none."""
    value = value_of(text)
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return f"is {shown(text)}, which 64 bits do not hold: write it as text"
    if isinstance(value, float) and rounds(text, value):
        return f"is {shown(text)}, which float64 does not hold: write it as a whole number"
    return fault_of_text(text)


def of_texts(name: str, texts: list[str]) -> np.ndarray:
    """Convert written labels, `(n,)`, to integers, floats or texts; refuse numbers that become equal or change."""
    for text in texts:
        if fault := fault_of_label(text):
            raise DataError(f"{name}: a label {fault}.")
    values = [value_of(text) for text in texts]
    if any(isinstance(value, str) for value in values):
        return np.asarray(texts)
    if not all(isinstance(value, int) for value in values):
        for text, value in zip(texts, values, strict=True):
            if rounds(text, float(value)):
                raise DataError(f"{name}: a label is {shown(text)}, and others have a point: float64 does not hold it.")
        return np.asarray(values, np.float64)
    seen: dict[Any, str] = {}
    for text, value in zip(texts, values, strict=True):  # codes such as 01 together with 1 are one label as numbers
        digits = text.lstrip("+")
        if seen.setdefault(value, digits) != digits:
            raise DataError(f"{name}: the labels {shown(seen[value])} and {shown(digits)} are one number: write text.")
    labels = array_of(values)
    if labels.dtype == object:
        raise DataError(f"{name}: its labels go from {min(seen)} to {max(seen)}, which no 64 bits hold.")
    return labels


def joined(name: str, parts: list[Any]) -> np.ndarray:
    """Join the labels of the pieces of files, arrays or `Texts`, `(n,)`."""
    if not isinstance(parts[0], Texts):
        y = np.concatenate(parts)
        if y.dtype.kind in "iu":  # widened, so that arithmetic on labels cannot overflow
            return y if y.dtype == np.uint64 and y.max(initial=0) >= 2**63 else y.astype(np.int64)
        return y.astype(np.float64) if y.dtype.kind == "f" and y.dtype.itemsize > 8 else y
    values, codes = coded(text for part in parts for text in part.values)
    begins = np.cumsum([0, *(len(part.values) for part in parts)])
    places = np.concatenate([codes[at:][part.codes] for at, part in zip(begins, parts, strict=False)])
    return of_texts(name, values)[places]


def array_of(classes: Iterable[Any]) -> np.ndarray:
    """Return labels as an array that holds each as it is, `(k,)`; NumPy rounds 3 and 2**63 + 5, and makes text of 1."""
    labels, known = np.zeros(0), list(classes)
    for dtype in (None, np.uint64, object):
        try:
            labels = np.asarray(known, dtype)
        except (TypeError, ValueError, OverflowError):
            continue
        if labels.tolist() == known:
            break
    return labels


@checked
def two_classes(y: ArrayLike, positive: str | float | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Turn labels of two classes into signs.

    Args:
        y: Labels `(n,)`: integers, floats, booleans or strings.
        positive: The label that becomes +1, against all others; None for two classes in sorted order. A string that
            spells a number means that number if the labels are numbers (a command line has strings only).

    Returns:
        Signs `(n,)`, float64 in {-1, +1} (problems take them in the dtype of the points), and the classes `(2,)`:
        `classes[0]` is -1 and `classes[1]` is +1. With several other labels than `positive`, the classes are the
        strings `"not 8"` and `"8"`.

    Raises:
        InputError: If labels are missing, there is one class only, there are more than two without `positive`, or y is
            traced.
    """
    if not is_concrete(y):
        raise InputError("y is being traced: which classes there are is not known yet; call `two_classes` outside jit.")
    present, codes, shown = _present(y)
    if positive is None:
        if len(present) > 2:
            raise InputError(
                f"y holds {len(present)} classes ({shown}): two are needed; choose one against the rest, "
                f"positive={present[-1].item() if isinstance(present[-1], np.generic) else present[-1]!r} for example."
            )
        return np.where(codes == 1, 1.0, -1.0), present
    index = index_of(positive, present.tolist())
    if index is None:
        raise InputError(f"positive is {positive!r}: y has no such label; it has {shown}.")
    signs = np.where(codes == index, 1.0, -1.0)
    if len(present) == 2:
        return signs, present[[1 - index, index]]
    return signs, np.asarray([f"not {present[index]}", f"{present[index]}"])


def several_classes(y: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return codes of the labels y `(n,)`, int64 from 0 on, and the classes `(k,)` in sorted order."""
    present, codes, shown = _present(y)
    if len(present) > max(2, len(codes) / 3):
        raise InputError(
            f"y holds {len(present)} different labels ({shown}) for {len(codes)} samples: too many to be classes. To "
            "predict numbers, use regression (--loss epsilon_insensitive); if other values are the labels, name them "
            "(label=, --label): of a table it is the last column by default."
        )
    return codes.astype(np.int64), present


def targets(y: Any) -> np.ndarray:
    """Return the numbers y `(n,)`, labels of regression, as float64; refuse text, missing and infinite ones."""
    values = np.asarray(y)
    if values.ndim != 1 or not len(values):
        raise InputError(f"y has shape {values.shape}: one number a sample is needed, shape (n,) with n >= 1.")
    if values.dtype.kind not in "biuf":
        raise InputError(f"y holds {values[0]!s:.40}: regression needs numbers; classes need a hinge (--loss hinge).")
    _refuse_missing_labels(values)
    return values.astype(np.float64)


def _present(y: Any) -> tuple[np.ndarray, np.ndarray, str]:
    """Return the classes, the class of each sample, and a list of the first classes for messages."""
    labels = np.asarray(y)
    if labels.ndim != 1 or not len(labels):
        raise InputError(f"y has shape {labels.shape}: one label a sample is needed, shape (n,) with n >= 1.")
    as_object = labels.dtype.kind in "US" and not hasattr(y, "dtype")  # NumPy turns a NaN among strings into "nan"
    _refuse_missing_labels(np.asarray(y, dtype=object) if as_object else labels)
    try:
        present, codes = np.unique(labels, return_inverse=True)
    except TypeError as error:
        raise InputError(f"y mixes labels that have no order ({error}): use one type, such as strings.") from error
    shown = ", ".join(map(str, present[:6].tolist())) + (", ..." if len(present) > 6 else "")
    if len(present) < 2:
        raise InputError(f"y holds one class only, {shown}: two are needed to separate them.")
    return present, codes, shown


def _refuse_missing_labels(labels: np.ndarray) -> None:
    if labels.dtype.kind not in "biufOUS":
        raise InputError(f"y is of type {labels.dtype}: numbers, booleans or strings are needed.")
    if labels.dtype.kind in "biuf":
        missing = ~np.isfinite(labels)
    else:
        missing = np.asarray([is_nothing(label) for label in labels.tolist()])
    if missing.any():
        where = f"y has {missing.sum()} label(s) that are missing or not finite, the first at index {missing.argmax()}"
        raise InputError(f"{where}: remove those samples.")


def is_nothing(label: Any) -> bool:
    """Return whether an object is no label: None, NaN, NaT, pandas' NA, infinity, or a text of a missing value."""
    if isinstance(label, str | bytes):
        return is_missing(str(label, "utf-8") if isinstance(label, bytes) else label)
    if isinstance(label, float | np.floating):
        return not np.isfinite(label)
    try:
        return label is None or bool(label != label)  # NaN and NaT differ from themselves
    except TypeError:  # NA has no truth value
        return True


def index_of(positive: Any, present: list[Any]) -> int | None:
    """Return the index of the label that equals `positive`, is written like it, or is the number that it spells."""
    if positive in present:
        return present.index(positive)
    texts = [str(label) for label in present]
    if str(positive) in texts:
        return texts.index(str(positive))
    numeric = all(isinstance(label, int | float) and not isinstance(label, bool) for label in present)
    number = value_of(positive) if isinstance(positive, str) and numeric else None
    return present.index(number) if number in present else None


def value_of(text: str) -> int | float | str:
    """Return the number that a text spells, as an integer if it is whole, or else the text."""
    if WHOLE.fullmatch(text):
        return int(text)
    number = as_number(text)
    return text if number is None else number
