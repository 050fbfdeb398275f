"""Read text files in blocks of lines: whole blocks fast, and line by line if a line is not plain."""

import bz2
import contextlib
import gzip
import os
import zlib
from collections.abc import Iterator
from typing import Any, NoReturn

from jaxsvm.datasets.layout import Piece, Place
from jaxsvm.datasets.measured import MEASURED
from jaxsvm.datasets.refusal import AGAIN, BadRow, decoded, refuse_line
from jaxsvm.errors import DataError

BOM = b"\xef\xbb\xbf"  # the byte order mark that some editors write first


class TextReader:
    """The common part of readers of lines; subclasses read a block and a line."""

    expected = "text"  # a description of the lines, for messages

    def __init__(self, name: str):
        self.name = name
        self.first, self.lines = 0, 0  # the byte at which samples begin, and the lines before it

    def fast(self, block: bytes) -> tuple[Any, Any] | None:
        """Return points and labels of a block of plain lines; None if its lines have to be read one by one."""
        raise NotImplementedError

    def line(self, number: int, text: str, cut: bool) -> Any:
        """Read one line; return None if it is blank, raise BadRow if it is no sample."""
        raise NotImplementedError

    def stacked(self, rows: list[Any]) -> tuple[Any, Any]:
        """Return points and labels of the results of `line`."""
        raise NotImplementedError

    def refuse(self, line: int, issue: str, expected: str, **more: bool) -> NoReturn:
        """Raise for one line."""
        refuse_line(self.name, line, issue, expected, **more)

    def pieces(self, at: Place, step: int | None = None) -> Iterator[Piece]:
        """Yield all rows from a place on."""
        del step  # the size of pieces of text is in bytes
        with opened(self.name) as file:
            file.seek(max(at.offset, self.first))
            line = max(at.line, self.lines)
            while block := file.read(MEASURED.bytes_per_text_piece):
                block += file.readline()
                if not line:
                    block = block.removeprefix(BOM)
                data = self.fast(block)
                damaged: list[BadRow] = []
                if data is None:
                    rows, count = self._rows(block, line, damaged)
                    data, line = self.stacked(rows), line + count
                else:
                    line += block.count(b"\n") + (not block.endswith(b"\n"))
                yield Piece(*data, Place(at.file, file.tell(), line), damaged)

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
    """Return the compression that a file's name ends in: "", ".gz" or ".bz2"."""
    return next((end for end in (".gz", ".bz2") if name.lower().endswith(end)), "")


@contextlib.contextmanager
def opened(name: str) -> Iterator[Any]:
    """Open a file for its decompressed bytes; raise DataError if it cannot be read or was cut short."""
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
