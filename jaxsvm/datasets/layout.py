"""Choose the columns of a table for features and labels; a model keeps the choice, for files of new points."""

import dataclasses
import re
import shlex
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from jaxsvm.datasets.labels import kept
from jaxsvm.errors import DataError, InputError, require_package
from jaxsvm.points.rows import is_sparse


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
    damaged: list[str]  # messages about the rows that are no samples and were left out


class Faults(dict[int, str]):
    """What is wrong with rows of a piece: the first fault of each."""

    def note(self, wrong: np.ndarray, fault: Callable[[int], str]) -> None:
        """Note a fault of the rows for which `wrong`, `(k,)`, is true."""
        for row in np.flatnonzero(wrong).tolist():
            if row not in self:
                self[row] = fault(row)

    def piece(self, x: Any, label: Any, where: Callable[[int], str]) -> Piece:
        """Return the rows without a fault; `where` names the place of a row."""
        if not self:
            return Piece(x, label, [])
        good = np.ones(x.shape[0], bool)
        good[list(self)] = False
        return Piece(x[good], kept(label, good), [f"{where(row)}: {self[row]}" for row in sorted(self)])


@dataclasses.dataclass(frozen=True)
class Wanted:
    """The requirements of a caller on a file."""

    label: Any = None  # the place of the labels; False: there are none; None: find it
    optional: bool = False  # whether there may be none, if `label` is None
    features: int | None = None  # required number of feature columns, or None
    like: Layout = Layout()  # the layout of the training file
    whose: str = "the training file"  # the owner of that layout, for messages
    drop: tuple[str | int, ...] = ()  # columns to leave out
    absent: tuple[str | int, ...] = ()  # columns to leave out if they are there
    texts: tuple[str | int, ...] = ()  # columns that held text in training

    @property
    def named(self) -> set[Any]:
        """Return the columns that the caller or the training file names."""
        named = (self.label, self.like.label, *(self.like.columns or ()), *self.drop, *self.absent)
        return {name for name in named if isinstance(name, str) and not PLACE.fullmatch(name)}


def stacked(xs: list[Any]) -> Any:
    """Return the points of several pieces, one below the other; the widest of sparse ones gives the width."""
    if len(xs) == 1:
        return xs[0]
    if not is_sparse(xs[0]):
        return np.concatenate(xs)
    sparse = require_package("scipy.sparse", "sparse points")
    d = max(x.shape[1] for x in xs)
    for x in xs:
        x.resize((x.shape[0], d))
    return sparse.csr_array(sparse.vstack(xs, format="csr"))


PLACE = re.compile(r"-?[0-9]+")
"""The place of a column, written as text; where a column has it for a name, that is meant."""


class Columns(NamedTuple):
    """The columns of one table."""

    features: list[int]  # their places, in the order of the training file
    label: int | None  # the place of the labels, or None
    dropped: tuple[str | int, ...]  # what was left out, by name or place
    layout: Layout
    notes: tuple[str, ...]


def choose(name: str, titles: list[str] | None, width: int, wanted: Wanted) -> Columns:
    """Choose the columns of a table; refuse columns that the training file had not, and those that are missing."""
    left: set[int] = set()
    if titles is not None or width != wanted.features:
        left = {place for place, title in enumerate(titles or ()) if title in (*wanted.drop, *wanted.absent)}
        left |= {place_of("drop", name, titles, width, key) for key in wanted.drop if key not in (titles or ())}
        left |= {key % width for key in wanted.absent if isinstance(key, int) and key < width}
    there = [place for place in range(width) if place not in left]
    names = None if titles is None else [titles[place] for place in there]
    label = _label(name, titles, width, names, there, wanted)
    features = [place for place in there if place != label]
    columns, known = wanted.like.columns, None if titles is None else tuple(titles[place] for place in features)
    moved = False
    if columns is not None and known is not None and known != columns:
        moved = True
        if sorted(known) != sorted(columns):
            raise DataError(f"{name}: {_difference(known, columns, wanted.whose)}.")
        if len(set(columns)) < len(columns):
            raise DataError(f"{name}: has its columns in another order than {wanted.whose}, and some share a name.")
        features, known = [features[known.index(column)] for column in columns], columns
    key = label if titles is None or label is None else titles[label]
    notes = (f"labels are in column {key!r}, as in {wanted.whose}",)
    notes = notes if wanted.label is None and label is not None and label != there[-1] else ()
    notes += (f"columns are put in the order of {wanted.whose}",) if moved else ()
    dropped = tuple(place if titles is None else titles[place] for place in sorted(left))
    return Columns(features, label, dropped, Layout(known, key), notes)


def place_of(what: str, name: str, titles: list[str] | None, width: int, key: str | int) -> int:
    """Return the place of a column that `what` names, or gives by its place; a name goes before a place."""
    if titles is not None and titles.count(str(key)) == 1 and isinstance(key, str):
        return titles.index(key)
    if PLACE.fullmatch(str(key)) and -width <= int(key) < width and key not in (titles or ()):
        return int(key) % width
    count = 0 if titles is None or not isinstance(key, str) else titles.count(key)
    has = f"{count} columns" if count else "no column"
    listed = f"places from 0 to {width - 1}" if titles is None else ", ".join(titles[:10])
    header = "; it has no header: give the column's place" if titles is None and not isinstance(key, int) else ""
    raise InputError(f"{what} is {key!r}: {name} has {has} of that name or place; it has {listed}{header}.")


def _label(
    name: str, titles: list[str] | None, width: int, names: list[str] | None, there: list[int], wanted: Wanted
) -> int | None:
    """Return the place of the labels: where they are asked for, else where training had them, else the last column."""
    asked, known, columns = wanted.label, wanted.like.label, wanted.like.columns
    if asked is None and names is not None and columns is not None:
        if isinstance(known, str) and names.count(known) == 1 and known not in columns:
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
    elif asked is None and isinstance(known, int):
        asked = known
    elif asked is None and columns is not None and known is not None:
        raise DataError(
            f"{name}: has {len(there)} columns and no header, and {wanted.whose} had its labels in {known!r}: say "
            "which column holds them (label=, --label)."
        )
    if len(there) < (1 if asked is False else 2):
        advice = "features and a label are needed (in CSV a comma, a semicolon or a tab divides them)"
        raise DataError(f"{name}: has one column only, or none; {advice}.")
    if asked is False or asked is None:
        return None if asked is False else there[-1]
    place = place_of("label", name, titles, width, asked)
    if place not in there:
        raise InputError(f"label is {asked!r}: this column is left out (--drop, --index-col); drop another one.")
    return place


def _difference(names: Any, columns: Any, whose: str) -> str:
    """Describe the difference between the columns of two files."""
    missing = [column for column in columns if column not in names]
    unknown = [column for column in names if column not in columns]
    parts = [f"lacks {_listed(missing)}, which {whose} had"] if missing else []
    hint = f" (leave it out: --drop {shlex.quote(','.join(unknown[:6]))})" if whose == Wanted.whose else ""
    parts += [f"has {_listed(unknown)}, which {whose} had not{hint}"] if unknown else []
    twice = sorted({column for column in names if list(names).count(column) > 1})
    parts += [f"has {_listed(twice)} more than once"] if twice and not parts else []
    return "; ".join(parts) or f"has the features of {whose} and no other column"


def _listed(columns: list[str]) -> str:
    word = "column" if len(columns) == 1 else "columns"
    return f"the {word} {', '.join(map(repr, columns[:6]))}{', ...' if len(columns) > 6 else ''}"
