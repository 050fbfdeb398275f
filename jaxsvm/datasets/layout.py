"""Choose the columns of a table for features and labels; a model keeps the choice, for files of new points."""

import dataclasses
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from jaxsvm.datasets.labels import Texts, fault_of_text, rounded
from jaxsvm.errors import DataError, InputError

NAMED = 20
"""Number of damaged rows of a piece that have a message."""
UNSEEN = "which training has not seen"
"""What notes say of texts and features of new rows."""


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
    damaged: int = 0  # number of rows that are no samples and were left out
    messages: Callable[[], list[str]] = list  # say what is wrong with the first of them
    unseen: Counter[Any] = Counter()  # how often texts without an indicator occur, by column and text


def undamaged(piece: Piece) -> Piece:
    """Return a piece; refuse it if a row is no sample."""
    if piece.damaged:
        more = f" ({piece.damaged - 1} more rows near it are no samples either.)" if piece.damaged > 1 else ""
        raise DataError(f"{piece.messages()[0]}.{more}")
    return piece


Fault = tuple[np.ndarray, Callable[[int], str]]
"""Which rows of a piece have it, `(k,)` bool, and what says what is wrong with one of them."""


def of_labels(label: Any, where: str, fault: Callable[[str], str | None] = fault_of_text) -> Fault:
    """Return which labels, an array of numbers or `Texts`, are missing, not finite, or change as numbers."""
    if isinstance(label, Texts):
        found = [fault(text) for text in label.values]
        wrong = np.asarray([said is not None for said in found], bool)[label.codes]
        return wrong, lambda row: f"{where} {found[label.codes[row]]}; remove the row or fill it in"
    wrong = ~np.isfinite(label) | rounded(label) if label.dtype.kind == "f" else np.zeros(len(label), bool)
    return wrong, lambda row: f"{where} is {label[row]}; remove the row or fill it in"


def without(faults: list[Fault], x: Any, label: Any, where: Callable[[list[int]], list[str]]) -> Piece:
    """Return the rows without a fault; `where` names the places of rows."""
    faults = [fault for fault in faults if fault[0].any()]
    if not faults:
        return Piece(x, label)
    wrong = np.any([fault[0] for fault in faults], axis=0)
    first = np.flatnonzero(wrong)[:NAMED].tolist()

    def messages() -> list[str]:
        said = [next(say(row) for of, say in faults if of[row]) for row in first]
        return [f"{place}: {fault}" for place, fault in zip(where(first), said, strict=True)]

    if isinstance(label, Texts):
        used, codes = np.unique(label.codes[~wrong], return_inverse=True)
        label = Texts([label.values[i] for i in used.tolist()], codes)
    elif label is not None:
        label = label[~wrong]
    return Piece(x[~wrong], label, int(wrong.sum()), messages)


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
    part: str = "train"  # of npz files
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


@dataclasses.dataclass(frozen=True)
class Reader:
    """An open file that is no table."""

    name: str
    chosen: Columns
    pieces: Callable[[int | None], Iterator[Piece]]  # all rows, so many a piece if the format has rows of one size


def choose(name: str, keys: list[Any], wanted: Wanted, notes: tuple[str, ...] = ()) -> Columns:
    """Choose the columns of a table, by their names or their places; refuse others than the training file had."""
    width, named, left = len(keys), any(isinstance(key, str) for key in keys), set[int]()
    if named or width != wanted.features:
        left = {place for place, key in enumerate(keys) if key in (*wanted.drop, *wanted.absent)}
        left |= {place_of("drop", name, keys, key) for key in wanted.drop if key not in keys}
        left |= {key for key in wanted.absent if isinstance(key, int) and key < width}
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
            raise DataError(
                f"{name}: {_difference(names, columns, wanted.whose)}; name the column of the labels (label=, "
                "--label), or say that there is none (label=False, --unlabelled)."
            )
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
    hint = f" (leave it out: --drop {shlex.quote(','.join(unknown[:6]))})" if whose == Wanted.whose else ""
    found = (("lacks", missing, f"{whose} had"), ("has", unknown, f"{whose} had not{hint}"))
    parts = [
        f"{verb} the column{'s' * (len(listed) > 1)} {', '.join(map(repr, listed[:6]))}, which {training}"
        for verb, listed, training in found
        if listed
    ]
    return "; ".join(parts) or f"has the features of {whose} and no other column"
