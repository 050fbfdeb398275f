"""Read text in blocks of lines.

svmlight, lines `label index:value ...`, is read by scikit-learn: whole blocks, and halves of one that it refuses until
the line is found.
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


def blocks(name: str, skip: int = 0) -> Iterator[tuple[bytes, int]]:
    """Yield the lines of a file behind the first `skip`, some at a time, with the number of the first of them."""
    with opened(name) as file:
        line = 1
        while block := file.read(BYTES_PER_PIECE):
            block += file.readline()
            lines = block.count(b"\n")
            if line == 1:
                block = block.removeprefix(b"\xef\xbb\xbf")
                block = b"".join(block.splitlines(keepends=True)[skip:]) if skip else block
                line, lines = line + skip, lines - skip
            if block.strip():
                yield block, line
            line += lines


def line_numbers(block: bytes, first: int) -> list[int]:
    """Return the numbers of the lines of a block that are not empty."""
    return [number for number, text in enumerate(block.splitlines(), first) if text]


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


class Svmlight:
    """A svmlight file; points are read as CSR, with indices as they are written; whole labels as whole numbers."""

    notes, features = (), ()

    def __init__(self, name: str, labelled: bool, base: int) -> None:
        self.name, self.labelled, self.layout = name, labelled, Layout(index_base=base)
        self._load = require_package("sklearn.datasets", "reading svmlight files").load_svmlight_file
        self._csr = require_package("scipy.sparse", "reading svmlight files").csr_array

    def pieces(self, step: int | None = None) -> Iterator[Piece]:
        """Yield all rows; what follows a damaged line is read only when it is asked for."""
        del step  # the size of pieces of text is in bytes
        for block, line in blocks(self.name):
            yield from self._read(block, line)

    def _read(self, block: bytes, line: int) -> Iterator[Piece]:
        try:
            pieces, lines = [self.parse(block)], []
        except (ValueError, OverflowError) as error:
            pieces, lines = [], block.splitlines(keepends=True)
            if len(lines) == 1:
                expected = "a line such as '+1 3:0.5 7:1' is needed (name a table .csv)"
                message = f"{self.name}, line {line}: {str(error).strip()}; {expected}"
                pieces, lines = [self.parse(b"")._replace(damaged=1, messages=(message,))], []
        yield from (piece for piece in pieces if piece.x.shape[0] or piece.damaged)
        if half := len(lines) // 2:
            yield from self._read(b"".join(lines[:half]), line)
            yield from self._read(b"".join(lines[half:]), line + half)

    def parse(self, block: bytes) -> Piece:
        """Return the rows of some lines; raise ValueError if one cannot be read."""
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
        return Piece(self._csr(x), self._labels(block, y) if self.labelled else None)

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
