"""Write files whole or not at all: the only place of the library that writes files."""

import collections
import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxsvm.errors import InputError, require


def require_writable(name: str, path: str | os.PathLike[str] | None) -> None:
    """Refuse, before any work, a file that could not be written; None passes.

    Args:
        name: Name of the argument, for the message.
        path: The file.
    """
    if path is None:
        return
    file = os.fspath(path)
    require(not os.path.isdir(file), f"{name} is {file!r}: this is a directory; name a file in it.")
    if os.path.exists(file):
        require(os.access(file, os.W_OK), f"{name} is {file!r}: the file cannot be written.")
        if not os.path.isfile(file):
            return  # a device or a pipe
    try:
        with tempfile.TemporaryFile(dir=os.path.dirname(os.path.realpath(file))):
            pass
    except OSError as error:
        raise InputError(
            f"{name} is {file!r}: its directory cannot be written to: {error.strerror or error}."
        ) from None


def write_whole(write: Callable[..., Any], *paths: str | os.PathLike[str]) -> None:
    """Write files under temporary names beside them; once all are on the disk, they replace the files of these names.

    The older files remain as they are until then, whatever ends the process: a full disk, a signal, another writer. A
    pipe or a device has no other name, and is written to directly.

    Args:
        write: Called with the files, open for bytes.
        *paths: Their names.

    Raises:
        OSError: If one cannot be written.
    """
    neighbours, targets = [], []
    try:
        with contextlib.ExitStack() as opened:
            files = []
            for path in paths:
                if older := os.path.exists(path):
                    file = opened.enter_context(open(path, "ab"))  # an ordinary one stays as it is: may it be written?
                    if not os.path.isfile(path):
                        files.append(file)
                        continue
                targets.append(os.path.realpath(os.fsdecode(path)))
                neighbours.append(os.path.join(os.path.dirname(targets[-1]), f".jaxsvm-{secrets.token_hex(8)}"))
                files.append(opened.enter_context(open(neighbours[-1], "xb")))
                if older:
                    shutil.copymode(path, neighbours[-1])
            write(*files)
            for file in files:
                file.flush()
                if os.path.isfile(file.name):
                    os.fsync(file.fileno())
        collections.deque(map(os.replace, neighbours, targets), 0)  # one call: no signal is handled within it
    except BaseException as error:
        for neighbour in neighbours:
            with contextlib.suppress(OSError):
                os.unlink(neighbour)
        if isinstance(error, OSError) and error.filename in neighbours:
            error.filename = targets[neighbours.index(error.filename)]
        raise


def write_arrays(path: str | os.PathLike[str], arrays: dict[str, Any]) -> None:
    """Write an npz file without pickled objects, whole or not at all."""
    write_whole(lambda file: np.savez(file, allow_pickle=False, **arrays), path)
