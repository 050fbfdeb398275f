"""Columns of files, and labels: which columns are features, what is a number, and labels as signs, codes or numbers.

Whole numbers stay whole, up to 64 bits; two labels are equal only if they agree to the last digit: written labels that
numbers would change or make equal stay text. Texts of missing values ("", "NA", "nan", ...) and infinite numbers are no
labels. A number is written in ASCII digits, with a decimal point if any; whole numbers that float64 does not hold
(identifiers, as a rule) are refused as features, never rounded.
"""

from __future__ import annotations

import dataclasses
import decimal
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from jaxsvm.errors import DataError, InputError, is_concrete
from jaxsvm.runtime.arrays import checked

MISSING = ("", "?", "na", "n/a", "nan", "null", "none", "nat", "<na>", "#n/a", "#na", "-nan", "+nan")
"""Texts of missing values, in lower case."""
WHOLE = re.compile(r"[+-]?[0-9]+")
NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
EXACT = 2.0**53  # every whole number up to here is a float64
SAMPLES_PER_CLASS = 3  # fewer, on average, are of numbers to predict
UNSEEN = "which training has not seen"  # what notes say of texts and features of new rows


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
    """Return which numbers of an array of at most 64 bits change as float64, `(n, ...)` bool."""
    changed = np.zeros(values.shape, bool)
    if values.dtype.kind in "iu" and values.dtype.itemsize == 8:
        large = np.abs(values.astype(np.float64)) >= EXACT
        changed[large] = [int(float(value)) != value for value in values[large].tolist()]
    return changed


class Texts(NamedTuple):
    """Labels as they are written."""

    values: list[str]  # the different ones
    codes: np.ndarray  # the index of each sample's, `(n,)`


def fault_of_text(text: str) -> str | None:
    """Describe the fault of a text as a label; None if it has none."""
    if is_missing(text):
        return f"is missing ({shown(text)})" if text else "is missing"
    if "\0" in text:
        return f"is {shown(text)}, whose end NumPy cuts off"
    number = as_number(text)
    return None if number is None or np.isfinite(number) else f"is {shown(text)}, which is not finite"


def of_texts(texts: list[str]) -> np.ndarray:
    """Return written labels, `(n,)`, as integers or floats; as texts if one is no number, or numbers are not the same.

    Codes such as 01 beside 1 are one number, and whole numbers may need more digits than 64 bits or float64 hold.
    """
    values = [value_of(text) for text in texts]
    if any(isinstance(value, str) for value in values):
        return np.asarray(texts)
    if all(isinstance(value, int) for value in values):
        labels = array_of(values)
        same = labels.dtype != object and len(set(values)) == len({text.lstrip("+") for text in texts})
    else:
        labels = np.asarray(values, np.float64)
        same = not any(map(rounds, texts, labels.tolist()))
    return labels if same else np.asarray(texts)


def joined(parts: list[Any]) -> np.ndarray:
    """Join the labels of the pieces of files, arrays or `Texts`, `(n,)`."""
    unlike = "the labels have other types in some files than in others: store all as one type."
    if len({isinstance(part, Texts) for part in parts}) > 1:
        raise DataError(unlike)
    if not isinstance(parts[0], Texts):
        y = np.concatenate(parts)
        if not all(np.array_equal(part.astype(y.dtype).astype(part.dtype), part) for part in parts):
            raise DataError(unlike)
        wide = y.dtype == np.uint64 and y.max(initial=0) >= 2**63
        return y.astype(np.int64) if y.dtype.kind in "iu" and not wide else y  # so that arithmetic cannot overflow
    places: dict[str, int] = {}
    codes = [np.asarray([places.setdefault(text, len(places)) for text in part.values], int) for part in parts]
    rows = [code[part.codes] for code, part in zip(codes, parts, strict=True)]
    return of_texts(list(places))[np.concatenate(rows)]


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
    if len(present) > max(2, len(codes) / SAMPLES_PER_CLASS):
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
    numeric = all(isinstance(label, int | float) and not isinstance(label, bool) for label in present)
    number = value_of(positive) if isinstance(positive, str) and numeric else positive
    texts: list[Any] = list(map(str, present))
    for wanted, among in ((positive, present), (str(positive), texts), (number, present)):
        if wanted in among:
            return among.index(wanted)
    return None


def value_of(text: str) -> int | float | str:
    """Return the number that a text spells, as an integer if it is whole, or else the text."""
    if WHOLE.fullmatch(text):
        return int(text)
    number = as_number(text)
    return text if number is None else number


@dataclasses.dataclass(frozen=True)
class Layout:
    """The columns of a file.

    Attributes:
        columns: The names of the feature columns, or None if the file has none.
        label: The place of the labels: a column's name, its index if columns have no names, or a key of npz that was
            asked for; None if the format defines it.
        index_base: The first index of a svmlight file, 0 or 1; None for other formats.
    """

    columns: tuple[str, ...] | None = None
    label: str | int | None = None
    index_base: int | None = None


class Piece(NamedTuple):
    """Some rows of one file."""

    x: Any  # points, `(k, d)`: floats, a NumPy array or a SciPy CSR array
    label: Any  # labels: an array `(k,)`, `Texts` of text, or None if there are none
    unseen: Counter[Any] = Counter()  # how often texts without an indicator occur, by column and text


def refuse(wrong: np.ndarray, say: Callable[[int], str]) -> None:
    """Raise DataError if a row is wrong, `(k,)`; `say` tells where the first one is, what is wrong, and what to do."""
    if wrong.any():
        raise DataError(f"{say(int(wrong.argmax()))}.")


def refuse_labels(label: Any, title: str, where: Callable[[int], str]) -> None:
    """Refuse labels, an array of numbers or `Texts`, that are missing or not finite."""
    advice = "remove the row or fill it in"
    if isinstance(label, Texts):
        faults = [fault_of_text(text) for text in label.values]
        wrong = np.asarray([fault is not None for fault in faults], bool)[label.codes]
        refuse(wrong, lambda row: f"{where(row)}: {title} {faults[label.codes[row]]}; {advice}")
    elif label.dtype.kind == "f":
        refuse(~np.isfinite(label), lambda row: f"{where(row)}: {title} is {label[row]}; {advice}")


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What a caller says of files, and asks of them."""

    label: Any = None  # column (a name or an index; the last by default) or key (npz); False: there are none
    optional: bool = False  # whether there may be none, if `label` is None
    features: int | None = None  # required number of feature columns; None: as many as the first file has
    zero_based: bool | None = None  # whether svmlight indices count from 0
    header: bool | None = None  # whether CSV files have one; None: see `tables.names_columns`
    separator: str | None = None  # of fields in CSV files; None: a tab, a semicolon or a comma
    decimal: str = "."  # the decimal mark of CSV files
    like: Layout = Layout()  # the layout of the training file
    whose: str = "the training file"  # the owner of that layout, for messages
    drop: tuple[str | int, ...] = ()  # columns to leave out
    absent: tuple[str | int, ...] = ()  # columns to leave out if they are there

    @property
    def named(self) -> set[Any]:
        """Return the columns that the caller or the training file names."""
        named = (self.label, self.like.label, *(self.like.columns or ()), *self.drop, *self.absent)
        return {name for name in named if isinstance(name, str) and not PLACE.fullmatch(name)}


PLACE = re.compile(r"-?[0-9]+")
"""The place of a column, written as text; where a column has it for a name, that is meant."""


class Columns(NamedTuple):
    """The columns of one table."""

    features: list[int]  # their places, in the order of the training file
    label: int | None  # the place of the labels, or None
    dropped: tuple[str | int, ...]  # what was left out, by name or place
    layout: Layout
    notes: tuple[str, ...]


class Reader(NamedTuple):
    """An open file that is no table."""

    chosen: Columns
    pieces: Callable[[int | None], Iterator[Piece]]  # all rows, so many a piece if the format has rows of one size


def choose(name: str, keys: list[Any], wanted: Wanted, notes: tuple[str, ...] = ()) -> Columns:
    """Choose the columns of a table, by their names or their places; refuse others than the training file had."""
    width, named, left = len(keys), any(isinstance(key, str) for key in keys), set[int]()
    if named or width != wanted.features:
        left = {place for place, key in enumerate(keys) if key in wanted.drop or {key, place} & {*wanted.absent}}
        left |= {place_of("drop", name, keys, key) for key in wanted.drop}
    there = [place for place in range(width) if place not in left]
    label = _label(name, keys, named, there, wanted)
    features = [place for place in there if place != label]
    columns, known = wanted.like.columns, tuple(keys[place] for place in features)
    many = Counter(keys[place] for place in there)
    if odd := [place for place in there if keys[place] == "" or many[keys[place]] > 1]:
        what = f"the name {keys[odd[-1]]!r} of another one" if keys[odd[-1]] else "no name"
        advice = f"name it, or leave it out by its place (drop=, --drop {odd[-1]})"
        raise DataError(f"{name}: column {odd[-1]} of the header has {what}: {advice}.")
    if wanted.label is None and label is not None and label != there[-1]:
        notes += (f"labels are in column {keys[label]!r}, as in {wanted.whose}",)
    if columns is not None and named and known != columns:
        if sorted(known) != sorted(columns):
            raise DataError(f"{name}: {_difference(known, columns, wanted.whose)}.")
        places = dict(zip(known, features, strict=True))
        features, known = [places[column] for column in columns], columns
        notes += (f"columns are put in the order of {wanted.whose}",)
    layout = Layout(known if named else None, None if label is None else keys[label])
    return Columns(features, label, tuple(keys[place] for place in sorted(left)), layout, notes)


def place_of(what: str, name: str, keys: list[Any], key: str | int) -> int:
    """Return the place of a column that `what` names, or gives by its place; a name goes before a place."""
    width = len(keys)
    if key in keys:
        return keys.index(key)
    if PLACE.fullmatch(str(key)) and -width <= int(key) < width:
        return int(key) % width
    named = any(isinstance(key, str) for key in keys)
    listed = ", ".join(keys[:10]) if named else f"places from 0 to {width - 1}, and no header"
    raise InputError(f"{what} is {key!r}: {name} has no column of that name or place; it has {listed}.")


def _label(name: str, keys: list[Any], named: bool, there: list[int], wanted: Wanted) -> int | None:
    """Return the place of the labels: where they are asked for, else where training had them, else the last column."""
    asked, known, columns, names = wanted.label, wanted.like.label, wanted.like.columns, [keys[at] for at in there]
    if asked is None and named and columns is not None:
        if isinstance(known, str) and known in names and known not in columns:
            asked = known
        elif wanted.optional and set(names) <= set(columns):
            asked = False
        else:
            need = "name the labels' column (label=, --label), or say that there is none (label=False, --unlabelled)"
            raise DataError(f"{name}: {_difference(names, columns, wanted.whose)}; {need}.")
    elif asked is None and wanted.optional and len(there) == wanted.features:
        asked = False
    elif asked is None and (isinstance(known, int) or columns is not None):
        asked = known
    if len(there) < (1 if asked is False else 2):
        advice = "features and a label are needed (in CSV a comma, a semicolon or a tab divides them)"
        raise DataError(f"{name}: has one column only, or none; {advice}.")
    if asked is False or asked is None:
        return None if asked is False else there[-1]
    place = place_of("label", name, keys, asked)
    if place not in there:
        raise InputError(f"label is {asked!r}: this column is left out (--drop); drop another one.")
    return place


def _difference(names: Any, columns: Any, whose: str) -> str:
    """Describe the difference between the columns of two files."""
    missing = [column for column in columns if column not in names]
    unknown = [column for column in names if column not in columns]
    cure = "or, if training encoded it, the model needs `preparation=train.preparation`, and load `like=` it or train"
    left = f"leave it out: drop=, --drop {shlex.quote(','.join(unknown[:6]))}"
    hint = f" ({left}; {cure})" if whose == Wanted.whose else ""
    found = (("lacks", missing, f"{whose} had"), ("has", unknown, f"{whose} had not{hint}"))
    parts = [
        f"{verb} the column{'s' * (len(listed) > 1)} {', '.join(map(repr, listed[:6]))}, which {training}"
        for verb, listed, training in found
        if listed
    ]
    return "; ".join(parts) or f"has the features of {whose} and no other column"
