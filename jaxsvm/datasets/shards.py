"""Files of one kind of rows, read one after another, a piece at a time, from any place on.

The first file says what columns there are: those of the others are put in its order by name, or refused.
"""

import dataclasses
import os
from collections.abc import Iterator

from jaxsvm.datasets.layout import Layout, Piece, Place, Wanted
from jaxsvm.datasets.reading import kind_of, reader_of
from jaxsvm.datasets.svmlight import MAX_INDEX, scan_svmlight
from jaxsvm.datasets.tables import ROWS
from jaxsvm.errors import DataError, InputError

DENSE = 1 << 28
"""Bytes that the rows of a piece may take as dense ones."""


@dataclasses.dataclass(frozen=True)
class Source:
    """Files of one kind of rows.

    Attributes:
        paths: The files, in their order.
        features: d; None: as many as the first file has, of svmlight by `found_out`.
        label: The column of the labels (CSV, Parquet: a name or an index; the last one by default), or the key (npz).
        zero_based: Whether svmlight indices count from 0; None: to be found out, or else from 1.
        header: Whether CSV files have one; None: a first line without a number is one.
        format: Of files whose names do not tell.
    """

    paths: tuple[str, ...]
    features: int | None = None
    label: str | int | None = None
    zero_based: bool | None = None
    header: bool | None = None
    format: str | None = None

    def kind(self, path: str) -> str:
        """svmlight, csv, npz or parquet.

        Raises:
            DataError: Where it cannot be told, or there is no such file.
        """
        if not os.path.exists(path):
            raise DataError(f"{path}: there is no such file.")
        return kind_of(path, self.format)

    def found_out(self) -> "Source":
        """The same with d and what indices count from, for which svmlight files are read once."""
        paths = [path for path in self.paths if self.kind(path) == "svmlight"]
        if not paths or (self.features is not None and self.zero_based is not None):
            return self
        largest, least = scan_svmlight(paths)
        zero_based = least == 0 if self.zero_based is None else self.zero_based
        d = largest + (1 if zero_based else 0)
        if self.features is None and not 0 < d <= MAX_INDEX:
            raise DataError(f"{', '.join(paths)}: no line has a feature; svmlight lines look like '+1 3:0.5 7:1'.")
        return dataclasses.replace(self, features=self.features or d, zero_based=zero_based)

    def stamps(self) -> list[list[int]]:
        """Size and time of change of each file, by which it is known again."""
        for path in self.paths:
            self.kind(path)
        return [[(of := os.stat(path)).st_size, of.st_mtime_ns] for path in self.paths]

    def pieces(self, start: Place | None = None) -> Iterator[Piece]:
        """All rows from a place on; points `(k, d)`, arrays or CSR.

        Raises:
            DataError: On a file that holds something else, or other columns than the first.
        """
        start, like, d = Place() if start is None else start, Layout(), self.features
        first = self.paths[0]
        for number, path in enumerate(self.paths):
            if 0 < number < start.file:
                continue
            kind = self.kind(path)
            if isinstance(self.label, int) and kind == "npz":
                raise InputError(f"label is {self.label}: in an npz file it is a key, such as 'y'.")
            wanted = Wanted(self.label, features=d, like=like, whose=first)
            reader = reader_of(path, kind, wanted, self.header, 0 if self.zero_based else 1, self.features)
            like = reader.layout if number == 0 else like
            width = reader.width if kind != "svmlight" else self.features
            if d is not None and width != d:
                wants = f"features={d} was given" if self.features is not None else f"{first} has {d}"
                raise DataError(f"{path}: has {width} feature columns; {wants}.")
            d = width
            if number >= start.file:
                at = start if number == start.file else Place(number)
                yield from reader.pieces(at, max(1, min(ROWS, DENSE // (8 * max(d or 1, 1)))))
