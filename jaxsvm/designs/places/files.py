"""Rows of files that are larger than memory: read again in each pass, ahead of the arithmetic."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from jaxsvm.datasets.labels import Layout, Wanted, joined, targets
from jaxsvm.datasets.reading import Source, different, files_of, scan
from jaxsvm.designs.contract import Chunk
from jaxsvm.designs.measured import MEASURED
from jaxsvm.designs.places.arrays import OfChunks
from jaxsvm.errors import DataError, InputError
from jaxsvm.runtime.arrays import in_a_line, require_one_of, transfers


@dataclasses.dataclass(frozen=True, eq=False)
class FileDesign(OfChunks):
    """Rows of files."""

    __repr__ = in_a_line

    source: Source  # the files
    stamps: list[list[int]] = dataclasses.field(repr=False)  # sizes and times of change of the files: they must stay so
    n: int  # number of rows
    d: int  # number of features
    classes: tuple[Any, ...] | None  # labels; None for regression
    codes: dict[Any, int] = dataclasses.field(repr=False)  # the class that a label in a file means, by its number
    dtype: Any  # dtype of the features while they are computed with
    layout: Layout  # the columns of the files

    def chunks(self) -> Iterator[Chunk]:
        """Yield all rows, in chunks of one size; the last one is filled up with rows of weight 0.

        Raises:
            DataError: If a file has changed since the first pass, or a line is damaged.
        """
        if self.source.stamps() != self.stamps:
            raise DataError(f"{self.source.name}: changed since they were read first.")
        size, first = min(max(1, MEASURED.bytes_per_chunk // (8 * self.d)), self.n), 0
        x, y = np.zeros((0, self.d), self.dtype), np.zeros(0)
        for piece in _ahead(self._arrays()):
            x, y = (np.concatenate(parts) for parts in zip((x, y), piece, strict=True))
            while len(y) >= size:
                yield Chunk(x[:size], y[:size], np.ones(size), np.int64(first))
                x, y, first = x[size:], y[size:], first + size
        if len(y):
            fill = (0, size - len(y))
            yield Chunk(np.pad(x, (fill, (0, 0))), np.pad(y, fill), np.pad(np.ones(len(y)), fill), np.int64(first))
        if first + len(y) != self.n:
            raise DataError(f"{self.source.name}: have {first + len(y)} rows, and had {self.n} in the first pass.")

    def _arrays(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for piece in self.source.pieces():
            if not piece.x.shape[0]:
                continue
            with np.errstate(over="ignore"):
                x = np.asarray(piece.x.toarray() if hasattr(piece.x, "toarray") else piece.x, self.dtype)
            if x.dtype != piece.x.dtype and not np.isfinite(x).all():
                raise DataError(f"{self.source.name}: have numbers that {x.dtype} does not hold: pass dtype=.")
            if self.classes is None:
                yield x, targets(joined([piece.label]))
            else:
                values, places = different(piece.label)
                if new := [value for value in values if value not in self.codes]:
                    raise DataError(f"{self.source.name}: have the label {new[0]}, which the first pass did not find.")
                yield x, np.asarray([self.codes[value] for value in values], float)[places]


@transfers
def from_files(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], *, label: str | int | None = None,
    regression: bool = False, features: int | None = None, zero_based: bool | None = None, header: bool | None = None,
    separator: str | None = None, decimal: str = ".", format: str | None = None, dtype: DTypeLike = np.float32,
) -> FileDesign:  # fmt: skip
    """Return the rows of svmlight, CSV, npz or Parquet files as a design, after one pass that counts and checks them.

    Each later pass reads the files again, in memory that does not depend on their length.

    Args:
        paths: One file, or several of one kind of rows, in this order. A name may have `*` as in a shell. Text may be
            compressed.
        label: Column (CSV, Parquet; the last one by default) or key (npz) of the labels or targets.
        regression: Whether these are targets.
        features: d of svmlight files, if it is known.
        zero_based: Whether svmlight indices count from 0; None: from 0 if the index 0 occurs, else 1.
        header: Whether CSV files have a header; None: as in `datasets.load`.
        separator: What stands between the fields of CSV files; None: the tab, semicolon or comma of the first line.
        decimal: The decimal mark of CSV files, "." or ",".
        format: "svmlight", "csv", "npz" or "parquet", for files whose names do not tell.
        dtype: Dtype of the features in memory. Sums are of float64 anyway.

    Raises:
        DataError: If a line is no sample, which the message names, or files hold something else.
    """
    require_one_of("decimal", decimal, (".", ","))
    wanted = Wanted(label, False, features, zero_based, header, separator, decimal)
    source = Source(files_of(paths), wanted, format)
    found = scan(source, not regression)
    labels, d = sorted(set(found.labels.values())), found.source.wanted.features or 0
    if not regression and not 2 <= len(labels) <= MOST_CLASSES:
        many = f"{len(labels)} labels ({', '.join(map(repr, labels[:3]))}, ...)"
        raise InputError(f"{source.name}: have {many}: name the column of classes (label=), or say regression=True.")
    codes = {value: labels.index(label) for value, label in found.labels.items()}
    classes, layout = None if regression else tuple(labels), next(found.source.readers()).chosen.layout
    return FileDesign(found.source, source.stamps(), found.rows, d, classes, codes, np.dtype(dtype), layout)


MOST_CLASSES = 1000
"""Number of different labels above which a file's labels are taken for numbers."""


def _ahead(items: Iterator[Any]) -> Iterator[Any]:
    """Yield the items; a thread computes the next one meanwhile."""
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(next, items, None)
        while (item := waiting.result()) is not None:
            waiting = thread.submit(next, items, None)
            yield item
