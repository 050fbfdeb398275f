"""Write files whole or not at all: nothing else writes files."""

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
    """Refuse, before any work, a file that could not be written; None passes."""
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
        raise InputError(f"{name} is {file!r}: its directory cannot be written to: {error.strerror or error}") from None


def write_whole(write: Callable[..., Any], path: str | os.PathLike[str]) -> None:
    """Write a file under a temporary name beside it; once it is on the disk, it replaces the file of that name.

    The older file remains as it is until then, whatever ends the process: a full disk, a signal, another writer. A pipe
    or a device has no other name, and is written to directly. `write` is called with the file, open for bytes.

    Raises:
        OSError: If it cannot be written.
    """
    if older := os.path.exists(path):
        with open(path, "ab") as file:  # an ordinary one stays as it is: may it be written?
            if not os.path.isfile(path):
                write(file)
                return
    target = os.path.realpath(os.fsdecode(path))
    neighbour = os.path.join(os.path.dirname(target), f".jaxsvm-{secrets.token_hex(8)}")
    try:
        with open(neighbour, "xb") as file:
            if older:
                shutil.copymode(path, neighbour)
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(neighbour, target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(neighbour)
        if isinstance(error, OSError) and error.filename == neighbour:
            error.filename = target
        raise


def write_arrays(path: str | os.PathLike[str], arrays: dict[str, Any]) -> None:
    """Write an npz file without pickled objects, whole or not at all."""
    write_whole(lambda file: np.savez(file, allow_pickle=False, **arrays), path)
