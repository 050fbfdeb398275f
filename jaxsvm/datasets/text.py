"""Read text in blocks of lines: whole blocks by a library, halves of one that it refuses until the line is found.

svmlight, lines `label index:value ...`, is read by scikit-learn.
"""

import bz2
import contextlib
import gzip
import io
import os
import re
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from jaxsvm.datasets.labels import EXACT, Texts, coded, fault_of_label
from jaxsvm.datasets.layout import Layout, Piece
from jaxsvm.errors import DataError, InputError, require_package

BYTES_PER_PIECE = 1 << 22
"""Pieces in which text is read, so that memory does not depend on its length; not measured."""


class Lines:
    """The common part of readers of text."""

    expected = ""  # what a line is, for messages
    skip = 0  # the lines before the first sample

    def __init__(self, name: str) -> None:
        self.name = name

    def parse(self, block: bytes, line: int) -> Piece:
        """Return the rows of a block that begins with some line; raise ValueError if a line cannot be read."""
        raise NotImplementedError

    def pieces(self, step: int | None = None) -> Iterator[Piece]:
        """Yield all rows; what follows a damaged line is read only when it is asked for."""
        del step  # the size of pieces of text is in bytes
        with opened(self.name) as file:
            line = 1
            while block := file.read(BYTES_PER_PIECE):
                block += file.readline()
                lines = block.count(b"\n")
                if line == 1:
                    block = block.removeprefix(b"\xef\xbb\xbf")
                    block = b"".join(block.splitlines(keepends=True)[self.skip :]) if self.skip else block
                    line, lines = line + self.skip, lines - self.skip
                yield from self._read(block, line)
                line += lines

    def _read(self, block: bytes, line: int) -> Iterator[Piece]:
        if not block.strip():
            return
        try:
            parts, lines = [self.parse(block, line)], []
        except (ValueError, OverflowError) as error:
            parts, lines = [], block.splitlines(keepends=True)
            if len(lines) == 1:
                said = str(error).strip().replace("Row #1: ", "")  # of the block
                message = f"{self.name}, line {line}: {said}{self.expected}"
                parts, lines = [self.parse(b"", line)._replace(damaged=[message])], []
        yield from (part for part in parts if part.x.shape[0] or part.damaged)
        if half := len(lines) // 2:
            yield from self._read(b"".join(lines[:half]), line)
            yield from self._read(b"".join(lines[half:]), line + half)


def compression_of(name: str) -> str:
    """Return the compression that a file's name ends in: "", ".gz" or ".bz2"."""
    return next((end for end in (".gz", ".bz2") if name.lower().endswith(end)), "")


@contextlib.contextmanager
def opened(name: str) -> Iterator[Any]:
    """Open a file for its decompressed bytes; raise DataError if it cannot be read or was cut short."""
    compression = compression_of(name) if os.path.exists(name) and os.path.getsize(name) else ""
    try:
        with {".gz": gzip.open, ".bz2": bz2.open}.get(compression, open)(name, "rb") as file:
            yield file
    except (OSError, EOFError, zlib.error) as error:
        if compression and not isinstance(error, PermissionError | FileNotFoundError):
            raise DataError(f"{name}: not a whole {compression} file ({error}); it may have been cut short.") from error
        raise DataError(f"{name}: cannot be read: {getattr(error, 'strerror', None) or error}.") from error


@contextlib.contextmanager
def told(name: str) -> Iterator[None]:
    """Raise what a library says of a broken file as DataError: damage shows as errors of many types."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise DataError(f"{name}: cannot be read: {' '.join(str(error).split())}.") from error


class Svmlight(Lines):
    """A svmlight file; points are read as CSR, whole labels as whole numbers."""

    expected = "; a line such as '+1 3:0.5 7:1' is needed (name a table .csv)"

    def __init__(self, name: str, base: int | None = None, d: int | None = None, labelled: bool = True) -> None:
        super().__init__(name)
        self.base = base  # the first index; None: not known yet, indices are left as they are written
        self.d, self.labelled = d, labelled  # features; None: as many as occur
        self.layout, self.notes = Layout(index_base=base), ()
        self._load = require_package("sklearn.datasets", "reading svmlight files").load_svmlight_file
        self._csr = require_package("scipy.sparse", "reading svmlight files").csr_array

    def parse(self, block: bytes, line: int) -> Piece:
        block = re.sub(rb"#[^\n]*", b"", block) if b"#" in block else block
        if b"_" in block:
            raise ValueError("an underscore is no part of a number")
        block = re.sub(rb":[ \t]+", b":", block)  # LIBSVM's own data set "protein" has blanks there
        x, y = self._load(io.BytesIO(block), zero_based=True)
        if not (np.isfinite(x.data).all() and np.isfinite(y).all()):
            raise ValueError("a number is not finite, remove or impute it first")
        for match in re.finditer(rb":([+-]?[0-9]{16,})(?=\s|$)", block):
            if int(float(match[1])) != int(match[1]):
                raise ValueError(f"{match[1].decode()} is a whole number that float64 does not hold")
        base, highest = self.base or 0, int(x.indices.max(initial=-1))
        if x.indices.min(initial=base) < base:
            raise ValueError("the feature index is 0, and indices count from 1: say zero_based=True (--index-base 0)")
        d = max(highest + 1 - base, 0) if self.d is None else self.d
        if highest - base >= d:
            counted = "" if base else ", and indices count from 0"
            raise ValueError(f"the feature index is {highest}{counted}, and features={d} was given")
        points = self._csr((x.data, x.indices - base, x.indptr), shape=(x.shape[0], d))
        return Piece(points, self._labels(block, y) if self.labelled else None, [])

    def _labels(self, block: bytes, y: np.ndarray) -> Texts:
        different, codes = np.unique(y, return_inverse=True)
        if np.abs(different).max(initial=0) < EXACT:
            # the format does not distinguish 1 from 1.0
            return Texts([str(int(y)) if y == np.rint(y) else repr(y) for y in different.tolist()], codes)
        label = coded(line.split(None, 1)[0].decode() for line in block.splitlines() if line.strip())
        for text in label.values:
            if fault := fault_of_label(text):
                raise ValueError(f"the label {fault}")
        return label
