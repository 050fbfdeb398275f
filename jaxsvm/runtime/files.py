"""Write files whole or not at all: nothing else writes files, but JAX, which may keep compiled programs on disk."""

import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxsvm.errors import InputError, require
from jaxsvm.runtime.arrays import checked


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


@checked
def keep_programs(directory: str | os.PathLike[str] | None = None, *, size: int = 512 * 2**20) -> Path | None:
    """Store the programs that JAX compiles in a directory, for this process and later ones.

    The library does this by itself only if `JAXSVM_CACHE` is set ("on", or a directory) when it is imported. A second
    process that meets the same shapes reads its programs, in milliseconds each. The setting is JAX's own
    (`jax_compilation_cache_dir`) and holds for all programs of this process.

    Args:
        directory: Where to store them; None: `jaxsvm/xla` in `$XDG_CACHE_HOME`, else in `~/.cache`.
        size: Bytes that the directory may hold, >= 0; 512 MiB are some thousand programs. If a call finds more, it
            deletes the programs that have gone unused for the longest time.

    Returns:
        The directory; None if it cannot be created, which costs time and nothing else.
    """
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    place = Path(home, "jaxsvm", "xla") if directory is None else Path(directory)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    _delete_unused(place, size)
    jax.config.update("jax_compilation_cache_dir", str(place))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return place


def keep_programs_as_set(unset: str) -> None:
    """Keep programs as the environment variable `JAXSVM_CACHE` says: "on", "off" or a directory.

    `unset` holds if the variable is not set and JAX has no cache of its own.
    """
    wanted = os.environ.get("JAXSVM_CACHE")
    if wanted is None:
        wanted = "off" if getattr(jax.config, "jax_compilation_cache_dir", None) else unset
    if wanted.lower() not in ("", "0", "off", "no", "none"):
        keep_programs(None if wanted.lower() in ("1", "on", "yes") else wanted)


def _delete_unused(place: Path, size: int) -> None:
    """Delete the longest unused programs if the directory exceeds `size` bytes. Other processes may delete too."""
    programs = []
    for path in place.glob("*-cache"):  # JAX's names; nothing else is touched
        with contextlib.suppress(OSError):
            entry = path.stat()
            programs.append((max(entry.st_atime, entry.st_mtime), entry.st_size, path))
    total = sum(entry_size for _, entry_size, _ in programs)
    if total <= size:
        return
    for _, entry_size, path in sorted(programs):
        if total <= 0.75 * size:  # leave room, so that not every process deletes something
            return
        with contextlib.suppress(OSError):
            path.unlink()
        total -= entry_size
