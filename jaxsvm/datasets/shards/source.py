"""Read files of one kind of rows one after another, a piece at a time, from any place on.

The columns of the other files are put in the order of the first by name, or refused.
"""

import dataclasses
import glob
import os
from collections.abc import Iterable, Iterator

from jaxsvm.datasets.layout import Layout, Piece, Place, Wanted
from jaxsvm.datasets.reading import kind_of, reader_of
from jaxsvm.datasets.svmlight import scan_svmlight
from jaxsvm.errors import DataError, InputError
from jaxsvm.gram.measured import MEASURED
from jaxsvm.runtime.checks import MAX_INT32


def files_of(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> tuple[str, ...]:
    """Return the files that one or more names stand for, in order; a name that is no file may have `*` as in a shell.

    Raises:
        InputError: If there is no name.
    """
    names = [os.fspath(name) for name in ((paths,) if isinstance(paths, str | os.PathLike) else paths)]
    if not names:
        raise InputError("paths is empty: one file at least is needed.")
    found = ([name] if os.path.exists(name) else sorted(glob.glob(name)) or [name] for name in names)
    return tuple(file for files in found for file in files)


@dataclasses.dataclass(frozen=True)
class Source:
    """Files of one kind of rows."""

    paths: tuple[str, ...]
    features: int | None = None  # d; None: as many as the first file has, of svmlight by `found_out`
    label: str | int | None = None  # column (CSV, Parquet: a name or an index; the last by default) or key (npz)
    zero_based: bool | None = None  # whether svmlight indices count from 0; None: `found_out` decides, or else from 1
    header: bool | None = None  # whether CSV files have one; None: a first line without a number is one
    format: str | None = None  # of files whose names do not tell

    def kind(self, path: str) -> str:
        """Return the format of a file: svmlight, csv, npz or parquet; refuse one that does not exist."""
        if not os.path.exists(path):
            raise DataError(f"{path}: there is no such file{', and none that fits' if '*' in path else ''}.")
        return kind_of(path, self.format)

    def found_out(self) -> "Source":
        """Return the source with d and the first index known, for which svmlight files are read once."""
        paths = [path for path in self.paths if self.kind(path) == "svmlight"]
        if not paths or (self.features is not None and self.zero_based is not None):
            return self
        largest, least = scan_svmlight(paths)
        zero_based = least == 0 if self.zero_based is None else self.zero_based
        d = largest + (1 if zero_based else 0)
        if self.features is None and not 0 < d <= MAX_INT32:
            raise DataError(f"{', '.join(paths)}: no line has a feature; svmlight lines look like '+1 3:0.5 7:1'.")
        return dataclasses.replace(self, features=self.features or d, zero_based=zero_based)

    def stamps(self) -> list[list[int]]:
        """Return the size and the time of change of each file, which tell whether it has changed."""
        for path in self.paths:
            self.kind(path)
        return [[(of := os.stat(path)).st_size, of.st_mtime_ns] for path in self.paths]

    def pieces(self, start: Place | None = None) -> Iterator[Piece]:
        """Yield all rows from a place on; refuse a file that holds something else, or other columns than the first."""
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
                yield from reader.pieces(at, max(1, MEASURED.bytes_per_block // (8 * max(d or 1, 1))))
