"""Open files; read svmlight, lines `label index:value ...`, by scikit-learn, and halves of what it refuses."""

import bz2
import contextlib
import gzip
import io
import os
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from jaxsvm.datasets.labels import EXACT, Texts
from jaxsvm.datasets.layout import Piece
from jaxsvm.errors import DataError, InputError, require_package

BYTES_PER_PIECE = 1 << 22
"""Pieces in which text is read, so that memory does not depend on its length; not measured."""


@contextlib.contextmanager
def told(name: str) -> Iterator[None]:
    """Raise what a library says of a broken file as DataError: damage shows as errors of many types."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise DataError(f"{name}: cannot be read: {' '.join(str(error).split())}.") from error


@contextlib.contextmanager
def opened(name: str) -> Iterator[Any]:
    """Open a file for its bytes, unpacked if its name ends in .gz or .bz2."""
    unpack = {".gz": gzip.open, ".bz2": bz2.open}.get(os.path.splitext(name)[1].lower(), open)
    with told(name), unpack(name, "rb") as file:
        yield file


def svmlight(name: str, labelled: bool, step: int | None = None) -> Iterator[Piece]:
    """Yield all rows, CSR, with indices as they are written; whole labels as whole numbers."""
    del step  # the size of pieces of text is in bytes
    line = 1
    with opened(name) as file:
        while block := file.read(BYTES_PER_PIECE) + file.readline():
            lines = block.count(b"\n")
            yield from _rows(name, block.removeprefix(b"\xef\xbb\xbf") if line == 1 else block, line, labelled)
            line += lines


def _rows(name: str, block: bytes, line: int, labelled: bool) -> Iterator[Piece]:
    """Yield the rows of a block; what follows a damaged line is read only when it is asked for."""
    try:
        piece = parsed(block, labelled)
    except (ValueError, OverflowError) as error:
        lines = block.splitlines(keepends=True)
        if half := len(lines) // 2:
            yield from _rows(name, b"".join(lines[:half]), line, labelled)
            yield from _rows(name, b"".join(lines[half:]), line + half, labelled)
            return
        expected = "files of other formats are named so (.csv, .npz, .parquet, .feather), or format= says which"
        message = f"{name}, line {line}: {str(error).strip()}; svmlight is '+1 3:0.5 7:1' ({expected})"
        piece = parsed(b"", labelled)._replace(damaged=1, messages=lambda: [message])
    if piece.x.shape[0] or piece.damaged:
        yield piece


def parsed(block: bytes, labelled: bool) -> Piece:
    """Return the rows of some lines; raise ValueError if one cannot be read."""
    load = require_package("sklearn.datasets", "reading svmlight files").load_svmlight_file
    block = re.sub(rb"#[^\n]*", b"", block) if b"#" in block else block
    if b"_" in block:
        raise ValueError("an underscore is no part of a number")
    block = re.sub(rb":[ \t]+", b":", block)  # LIBSVM's own data set "protein" has blanks there
    x, y = load(io.BytesIO(block), zero_based=True)
    if not (np.isfinite(x.data).all() and np.isfinite(y).all()):
        raise ValueError("a number is not finite, remove or impute it first")
    for match in re.finditer(rb":([+-]?[0-9]{16,})(?=\s|$)", block):
        if int(float(match[1])) != int(match[1]):
            raise ValueError(f"{match[1].decode()} is a whole number that float64 does not hold")
    if np.abs(y).max(initial=0) >= EXACT:
        raise ValueError("a label is above 2**53, where float64 does not hold all whole numbers: write a table")
    different, codes = np.unique(y, return_inverse=True)  # the format does not distinguish 1 from 1.0
    label = Texts([str(int(y)) if y == np.rint(y) else repr(y) for y in different.tolist()], codes)
    return Piece(require_package("scipy.sparse", "svmlight files").csr_array(x), label if labelled else None)
