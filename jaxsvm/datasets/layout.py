"""The layout of a file's columns: stored with a model, so that files of new points are read in the same way."""

import dataclasses
import shlex
from typing import Any, NamedTuple

from jaxsvm.datasets.refusal import PLACE, BadRow
from jaxsvm.errors import DataError


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


class Place(NamedTuple):
    """A place in several files."""

    file: int = 0
    offset: int = 0  # bytes of (decompressed) text, or rows
    line: int = 0  # lines before it


class Piece(NamedTuple):
    """Some rows of one file; where the next piece begins depends on the file only."""

    x: Any  # points, `(k, d)`: floats, a NumPy array or a SciPy CSR array
    label: Any  # labels: an array `(k,)`, `Texts` of text, or None if there are none
    after: Place  # the beginning of the next piece
    damaged: list[BadRow]  # errors of the rows that are no samples and were left out


@dataclasses.dataclass(frozen=True)
class Wanted:
    """The requirements of a caller on a file."""

    label: Any = None  # the place of the labels; False: there are none; None: find it
    optional: bool = False  # whether there may be none, if `label` is None
    features: int | None = None  # required number of feature columns, or None
    like: Layout = Layout()  # the layout of the training file
    whose: str = "the training file"  # the owner of that layout, for messages

    def place(self, width: int) -> Any:
        """Return the label's place before names are known: the test for a header must leave the label out."""
        bare = self.optional and width == self.features
        if self.label is None and isinstance(self.like.label, int) and not bare:
            return self.like.label
        return int(self.label) if isinstance(self.label, str) and PLACE.fullmatch(self.label) else self.label

    @property
    def named(self) -> bool:
        """Return whether the label is given by a name; text that spells a whole number may be a place."""
        return isinstance(self.label, str) and PLACE.fullmatch(self.label) is None

    @property
    def asked(self) -> tuple[Any, ...]:
        """Return the columns that a caller or the training file names, or gives by place."""
        return (self.label, self.like.label, *(self.like.columns or ()))

    def label_in(self, name: str, names: list[str] | None, width: int) -> Any:
        """Return the place of the labels in a table: a name, an index, False (none) or None (the last column)."""
        if self.label is not None:
            return self.label
        known, columns = self.like.label, self.like.columns
        if names is not None and isinstance(known, str) and names.count(known) == 1 and known not in (columns or ()):
            return known
        if names is not None and columns is not None:
            if self.optional and all(column in columns for column in names):
                return False
            raise DataError(
                f"{name}: {_difference(names, columns, self.whose)}; name the column of the labels (label=, --label), "
                "or say that there is none (label=False, --unlabelled)."
            )
        if self.optional and width == self.features:
            return False
        if isinstance(known, int):
            return known
        if columns is not None and known is not None:
            raise DataError(
                f"{name}: has {width} columns and no header, and {self.whose} had its labels in {known!r}: say "
                "which column holds them (label=, --label)."
            )
        return None

    def notes(self, label: str | int | None, last: bool, moved: bool) -> tuple[str, ...]:
        """Describe what was decided about a table.

        Args:
            label: The column of its labels, by name or place.
            last: Whether that is the last column.
            moved: Whether its columns are put in another order.
        """
        known = self.label is None and label is not None and not last
        labels = (f"labels are in column {label!r}, as in {self.whose}",) if known else ()
        return labels + ((f"columns are put in the order of {self.whose}",) if moved else ())

    def order(self, name: str, names: tuple[str, ...] | None) -> list[int] | None:
        """Return the places of the training file's feature columns in this file; None: the same order."""
        columns = self.like.columns
        if columns is None or names is None or names == columns:
            return None
        if sorted(names) != sorted(columns):
            raise DataError(f"{name}: {_difference(names, columns, self.whose)}.")
        if len(set(columns)) < len(columns):
            raise DataError(f"{name}: has its columns in another order than {self.whose}, and some share a name.")
        return [names.index(column) for column in columns]


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
