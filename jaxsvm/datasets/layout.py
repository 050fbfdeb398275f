"""How a file holds its points: remembered with a model, so that files of new points are held to it."""

import dataclasses
from typing import Any, NamedTuple

from jaxsvm.datasets.refusal import BadRow
from jaxsvm.errors import DataError


@dataclasses.dataclass(frozen=True)
class Layout:
    """The columns of a file.

    Attributes:
        columns: The names of the feature columns, or None where the file has none.
        label: Where the labels were: a column's name, its index where columns have no names, or a key of npz that was
            asked for; None where the format itself says it.
        index_base: What the indices of a svmlight file count from, 0 or 1; None for other formats.
    """

    columns: tuple[str, ...] | None = None
    label: str | int | None = None
    index_base: int | None = None


class Place(NamedTuple):
    """Where a run stands: the file, the byte of its text (as it is before compression) or the row, the lines before."""

    file: int = 0
    offset: int = 0
    line: int = 0


class Piece(NamedTuple):
    """Rows of one file, and where the next piece begins, which depends on nothing but the file.

    Attributes:
        x: Points, `(k, d)`: floats, a NumPy array or a SciPy CSR array.
        label: Their labels: an array `(k,)`, `Texts` of text, or None where there are none.
        after: Where the next piece begins.
        damaged: Why rows are no samples: these are left out.
    """

    x: Any
    label: Any
    after: Place
    damaged: list[BadRow]


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What a reader is asked for.

    Attributes:
        label: Where the labels are; False: there are none; None: find out.
        optional: Whether there may be none, where `label` is None.
        features: How many feature columns there must be, or None.
        like: The layout of the training file, or None.
        whose: What has that layout, in words.
    """

    label: Any = None
    optional: bool = False
    features: int | None = None
    like: Layout = Layout()
    whose: str = "the training file"

    def place(self, width: int) -> Any:
        """The label's place before names are known: what tells a header from numbers has to leave it out."""
        bare = self.optional and width == self.features
        return self.like.label if self.label is None and isinstance(self.like.label, int) and not bare else self.label

    def label_in(self, name: str, names: list[str] | None, width: int) -> Any:
        """Where the labels of a table are: a name, an index, False for "there are none" or None for "the last column".

        Raises:
            DataError: Where it cannot be told.
        """
        if self.label is not None:
            return self.label
        known, columns = self.like.label, self.like.columns
        if names is not None and isinstance(known, str) and names.count(known) == 1 and known not in (columns or ()):
            return known
        if names is not None and columns is not None:
            strangers = [column for column in names if column not in columns]
            if not strangers and self.optional:
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
        """What there is to say of a table whose labels are in the column `label`, the `last` one or not."""
        known = self.label is None and label is not None and not last
        labels = (f"labels are in column {label!r}, as in {self.whose}",) if known else ()
        return labels + ((f"columns are put in the order of {self.whose}",) if moved else ())

    def order(self, name: str, names: tuple[str, ...] | None) -> list[int] | None:
        """The places of the training file's feature columns among those of this file; None: as they are.

        Raises:
            DataError: Where columns are missing, or others are there.
        """
        columns = self.like.columns
        if columns is None or names is None or names == columns:
            return None
        if sorted(names) != sorted(columns):
            raise DataError(f"{name}: {_difference(names, columns, self.whose)}.")
        if len(set(columns)) < len(columns):
            raise DataError(f"{name}: has its columns in another order than {self.whose}, and some share a name.")
        return [names.index(column) for column in columns]


def _difference(names: Any, columns: Any, whose: str) -> str:
    """What sets the columns of two files apart, in words."""
    missing = [column for column in columns if column not in names]
    strangers = [column for column in names if column not in columns]
    parts = [f"lacks {_listed(missing)}, which {whose} had"] if missing else []
    parts += [f"has {_listed(strangers)}, which {whose} had not"] if strangers else []
    twice = sorted({column for column in names if list(names).count(column) > 1})
    parts += [f"has {_listed(twice)} more than once"] if twice and not parts else []
    return "; ".join(parts) or f"has the features of {whose} and no other column"


def _listed(columns: list[str]) -> str:
    word = "column" if len(columns) == 1 else "columns"
    return f"the {word} {', '.join(map(repr, columns[:6]))}{', ...' if len(columns) > 6 else ''}"
