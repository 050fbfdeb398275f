"""Read text in blocks of lines: whole blocks by a library, halves of one that it refuses until the line is found."""

import bz2
import contextlib
import gzip
import os
import zlib
from collections.abc import Iterator
from typing import Any

from jaxsvm.datasets.labels import joined_texts
from jaxsvm.datasets.layout import Piece, Place, stacked
from jaxsvm.errors import DataError, InputError

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

    def pieces(self, at: Place, step: int | None = None) -> Iterator[Piece]:
        """Yield all rows from a place on."""
        del step  # the size of pieces of text is in bytes
        with opened(self.name) as file:
            line = file.read(at.offset).count(b"\n") + 1
            while block := file.read(BYTES_PER_PIECE):
                block += file.readline()
                lines = block.count(b"\n")
                if line == 1:
                    block = block.removeprefix(b"\xef\xbb\xbf")
                    block = b"".join(block.splitlines(keepends=True)[self.skip :]) if self.skip else block
                    line, lines = line + self.skip, lines - self.skip
                parts = [part for part in self._read(block, line) if part.x.shape[0] or part.damaged]
                line += lines
                if parts:
                    label = None if parts[0].label is None else joined_texts([part.label for part in parts])
                    damaged = [fault for part in parts for fault in part.damaged]
                    yield Piece(stacked([part.x for part in parts]), label, Place(at.file, file.tell()), damaged)

    def _read(self, block: bytes, line: int) -> list[Piece]:
        if not block.strip():
            return []
        try:
            return [self.parse(block, line)]
        except (ValueError, OverflowError) as error:
            lines = block.splitlines(keepends=True)
            if len(lines) == 1:
                nothing = self.parse(b"", line)
                said = str(error).strip().replace("Row #1: ", "")  # of the block
                return [nothing._replace(damaged=[f"{self.name}, line {line}: {said}{self.expected}"])]
        half = len(lines) // 2
        first, rest = b"".join(lines[:half]), b"".join(lines[half:])
        return self._read(first, line) + self._read(rest, line + half)


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
