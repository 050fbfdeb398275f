"""Text files a block of lines at a time, whole blocks fast and line by line where something is not plain."""

import bz2
import contextlib
import gzip
import os
import zlib
from collections.abc import Iterator
from typing import Any

from jaxsvm.datasets.layout import Piece, Place
from jaxsvm.datasets.refusal import AGAIN, BadRow, decoded
from jaxsvm.errors import DataError

TEXT = 1 << 22
"""Bytes of text a piece."""
BOM = b"\xef\xbb\xbf"
"""What some editors write first."""


class TextReader:
    """What readers of lines share; they say what a block and what a line holds.

    Attributes:
        name: The file.
        expected: What its lines are, in words.
        first: The byte where samples begin.
        lines: The lines before it.
    """

    expected = "text"

    def __init__(self, name: str):
        self.name, self.first, self.lines = name, 0, 0

    def fast(self, block: bytes) -> tuple[Any, Any] | None:
        """Points and labels of a block of plain lines; None: look at its lines."""
        raise NotImplementedError

    def line(self, number: int, text: str, cut: bool) -> Any:
        """What one line holds; None where it is blank.

        Raises:
            BadRow: Where it is no sample.
        """
        raise NotImplementedError

    def stacked(self, rows: list[Any]) -> tuple[Any, Any]:
        """Points and labels of what `line` returned."""
        raise NotImplementedError

    def pieces(self, at: Place, step: int | None = None) -> Iterator[Piece]:
        """All rows from a place on."""
        del step  # pieces of text are so many bytes
        with opened(self.name) as file:
            file.seek(max(at.offset, self.first))
            line = max(at.line, self.lines)
            while block := file.read(TEXT):
                block += file.readline()
                if not line:
                    block = block.removeprefix(BOM)
                fast = self.fast(block)
                damaged: list[BadRow] = []
                if fast is None:
                    rows, count = self._rows(block, line, damaged)
                    fast, line = self.stacked(rows), line + count
                else:
                    line += block.count(b"\n") + (not block.endswith(b"\n"))
                yield Piece(*fast, Place(at.file, file.tell(), line), damaged)

    def _rows(self, block: bytes, before: int, damaged: list[BadRow]) -> tuple[list[Any], int]:
        lines, rows = block.splitlines(), []
        for i, line in enumerate(lines):
            number = before + i + 1
            cut = i == len(lines) - 1 and not block.endswith((b"\n", b"\r"))
            try:
                row = self.line(number, decoded(self.name, number, line, self.expected), cut)
            except BadRow as error:
                damaged.append(error)
            else:
                if row is not None:
                    rows.append(row)
        return rows, len(lines)


def compression_of(name: str) -> str:
    """How a file is compressed, by its name: "", ".gz" or ".bz2"."""
    return next((end for end in (".gz", ".bz2") if name.lower().endswith(end)), "")


@contextlib.contextmanager
def opened(name: str) -> Iterator[Any]:
    """A file's bytes, decompressed.

    Raises:
        DataError: Where it cannot be read, or was cut short.
    """
    compression = compression_of(name)
    try:
        empty = not os.path.getsize(name)
        how = {".gz": gzip.open, ".bz2": bz2.open}.get("" if empty else compression, open)
        with how(name, "rb") as file:
            yield file
    except (OSError, EOFError, zlib.error) as error:
        if compression and not isinstance(error, PermissionError | FileNotFoundError):
            raise DataError(f"{name}: not a whole {compression} file ({error}){AGAIN}") from error
        raise DataError(f"{name}: cannot be read: {getattr(error, 'strerror', None) or error}.") from error
