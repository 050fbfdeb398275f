"""Rows of files that are larger than memory: read again in each pass, ahead of the arithmetic."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from jaxsvm.datasets.labels import Texts, joined, targets, value_of
from jaxsvm.datasets.layout import Wanted
from jaxsvm.datasets.source import Scan, Source, counted, different, files_of, scan
from jaxsvm.designs.contract import Chunk
from jaxsvm.designs.places.arrays import OfChunks
from jaxsvm.errors import DataError, InputError
from jaxsvm.gram.measured import MEASURED as SIZES
from jaxsvm.runtime.arrays import in_a_line, require_one_of, transfers


@dataclasses.dataclass(frozen=True, eq=False)
class FileDesign(OfChunks):
    """Rows of files."""

    __repr__ = in_a_line

    source: Source  # the files
    stamps: list[list[int]] = dataclasses.field(repr=False)  # sizes and times of change of the files: they must stay so
    found: Scan = dataclasses.field(repr=False)  # by the first pass: number of rows, damaged lines
    classes: tuple[Any, ...] | None  # labels; None for regression
    damaged: str  # what to do with lines that are no samples: "stop" or "skip"
    dtype: Any  # dtype of the features while they are computed with

    @property
    def n(self) -> int:
        """Return the number of rows."""
        return self.found.rows

    @property
    def d(self) -> int:
        """Return the number of features."""
        return self.source.wanted.features or 0

    def chunks(self) -> Iterator[Chunk]:
        """Yield all rows, in chunks of one size; the last one is filled up with rows of weight 0.

        Raises:
            DataError: If a file has changed since the first pass, or a line is damaged.
        """
        if self.source.stamps() != self.stamps:
            raise DataError(f"{self.source.name}: changed since they were read first.")
        size, first = min(max(1, SIZES.bytes_per_block // (8 * self.d)), self.n), 0
        x, y, held = np.zeros((size, self.d), self.dtype), np.zeros(size), 0
        for piece in _ahead(self._arrays()):
            begin = 0
            while begin < len(piece[1]):
                many = min(size - held, len(piece[1]) - begin)
                x[held : held + many], y[held : held + many] = (part[begin : begin + many] for part in piece)
                held, begin = held + many, begin + many
                if held == size:
                    yield Chunk(x, y, np.ones(size), np.int64(first))
                    x, y = np.zeros_like(x), np.zeros(size)  # the arithmetic may still use the others
                    first, held = first + size, 0
        if held:
            yield Chunk(x, y, (np.arange(size) < held).astype(float), np.int64(first))
            first += held
        if first != self.n:
            raise DataError(f"{self.source.name}: have {first} rows, and had {self.n} in the first pass.")

    def _arrays(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        places = None if self.classes is None else {label: k for k, label in enumerate(self.classes)}
        where = self.source.name
        for piece in self.source.pieces():
            counted(piece, self.damaged, 0, [])
            if not piece.x.shape[0]:
                continue
            with np.errstate(over="ignore"):
                x = np.asarray(piece.x.toarray() if hasattr(piece.x, "toarray") else piece.x, self.dtype)
            if x.dtype != piece.x.dtype and not np.isfinite(x).all():
                raise DataError(f"{where}: have numbers that {x.dtype} does not hold: pass dtype=.")
            label = piece.label
            yield x, targets(joined(where, [label])) if places is None else _codes(label, places, where)


@transfers
def from_files(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], *, label: str | int | None = None,
    regression: bool = False, damaged: str = "stop", features: int | None = None, zero_based: bool | None = None,
    header: bool | None = None, separator: str | None = None, decimal: str = ".", format: str | None = None,
    dtype: DTypeLike = np.float32,
) -> FileDesign:  # fmt: skip
    """Return the rows of svmlight, CSV, npz or Parquet files as a design, after one pass that counts and checks them.

    Each later pass reads the files again, in memory that does not depend on their length.

    Args:
        paths: One file, or several of one kind of rows, in this order. A name may have `*` as in a shell. Text may be
            compressed.
        label: Column (CSV, Parquet; the last one by default) or key (npz) of the labels or targets.
        regression: Whether these are targets.
        damaged: What to do with a line that is no sample: "stop" raises with its number, "skip" counts it.
        features: d of svmlight files, if it is known.
        zero_based: Whether svmlight indices count from 0; None: from 0 if the index 0 occurs, else 1.
        header: Whether CSV files have a header; None: if no field of the first line is a number.
        separator: What stands between the fields of CSV files; None: the tab, semicolon or comma of the first line.
        decimal: The decimal mark of CSV files, "." or ",".
        format: "svmlight", "csv", "npz" or "parquet", for files whose names do not tell.
        dtype: Dtype of the features in memory. Sums are of float64 anyway.

    Raises:
        DataError: If a line is damaged and `damaged` is "stop", or files hold something else.
        InputError: If an argument cannot be used, or there is one class only.
    """
    require_one_of("damaged", damaged, ("stop", "skip"))
    require_one_of("decimal", decimal, (".", ","))
    wanted = Wanted(label, False, features, zero_based, header, separator, decimal)
    source = Source(files_of(paths), wanted, format)
    found = scan(source, damaged, not regression)
    if not regression and not 2 <= len(found.labels) <= MOST_CLASSES:
        many = f"{len(found.labels)} labels ({', '.join(map(repr, found.labels[:3]))}, ...)"
        raise InputError(f"{source.name}: have {many}: name the column of classes (label=), or say regression=True.")
    classes = None if regression else tuple(found.labels)
    return FileDesign(found.source, source.stamps(), found, classes, damaged, np.dtype(dtype))


MOST_CLASSES = 1000
"""Number of different labels above which a file's labels are taken for numbers."""


def _codes(label: Any, places: dict[Any, int], where: str) -> np.ndarray:
    """Return the number of each row's class, `(k,)`; written labels are compared as numbers if the classes are."""
    values, codes = different(label)
    text = any(isinstance(known, str) for known in places)
    known = values if text or not isinstance(label, Texts) else [value_of(value) for value in values]
    new = [value for value in known if value not in places]
    if new:
        raise DataError(f"{where}: has the label {new[0]!r}, which it did not have in the first pass.")
    return np.asarray([places[value] for value in known], float)[codes]


def _ahead(items: Iterator[Any]) -> Iterator[Any]:
    """Yield the items; a thread computes the next one meanwhile."""
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(next, items, None)
        while (item := waiting.result()) is not None:
            waiting = thread.submit(next, items, None)
            yield item
