"""Write files whole or not at all."""

import os
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np


def write_whole(path: str | os.PathLike[str], write: Callable[[str], Any]) -> None:
    """Write a file under a temporary name beside it, which then replaces it.

    Args:
        path: The file.
        write: Called with the temporary name.
    """
    target = os.path.realpath(os.fspath(path))
    handle, neighbour = tempfile.mkstemp(dir=os.path.dirname(target), prefix=f".{os.path.basename(target)}.")
    os.close(handle)
    try:
        write(neighbour)
        with open(neighbour, "rb+") as file:
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(neighbour, 0o666 & ~mask)  # mkstemp makes files for the owner alone
        os.replace(neighbour, target)
    except BaseException:
        os.unlink(neighbour)
        raise


def write_arrays(path: str | os.PathLike[str], arrays: dict[str, Any]) -> None:
    """Write an npz file without pickled objects, whole or not at all."""

    def write(name: str) -> None:
        with open(name, "wb") as file:
            np.savez(file, allow_pickle=False, **arrays)

    write_whole(path, write)
