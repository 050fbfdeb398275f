"""Compiled programs kept on disk between processes: JAX's persistent cache, in one call, bounded."""

import contextlib
import os
import sys
from pathlib import Path

import jax

SIZE = 512 * 2**20
"""Default bound of the directory in bytes: some thousand programs."""
LEFT = 0.75
"""Share of the bound that is left where it is exceeded, so that not every process deletes something."""


def keep_programs(directory: str | os.PathLike[str] | None = None, *, size: int = SIZE) -> Path | None:
    """Keep what JAX compiles in a directory, for this process and those after it; the library never does it by itself.

    A second process that meets the same shapes reads its programs, in milliseconds each. The setting is JAX's own
    (`jax_compilation_cache_dir`) and holds for all of its programs in this process.

    Args:
        directory: Where; None: `jaxsvm/xla` in the user's cache folder (`$XDG_CACHE_HOME`, else `~/.cache` or what the
            system has for it).
        size: Bytes that the directory may hold, >= 0: where a call finds more, the programs that were not used for the
            longest time are deleted.

    Returns:
        The directory; None where it cannot be made or written to, which costs time and nothing else.
    """
    place = _cache_home() / "jaxsvm" / "xla" if directory is None else Path(directory)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    _bound(place, size)
    jax.config.update("jax_compilation_cache_dir", str(place))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return place


def _bound(place: Path, size: int) -> None:
    """Delete what was not used for the longest time, where there is more than `size`. Others may delete as well."""
    found = []
    for path in place.glob("*-cache"):  # JAX's names; nothing else is touched
        with contextlib.suppress(OSError):
            entry = path.stat()
            found.append((max(entry.st_atime, entry.st_mtime), entry.st_size, path))
    total = sum(bytes_ for _, bytes_, _ in found)
    if total <= size:
        return
    for _, bytes_, path in sorted(found):
        if total <= LEFT * size:
            return
        with contextlib.suppress(OSError):
            path.unlink()
        total -= bytes_


def _cache_home() -> Path:
    if os.environ.get("XDG_CACHE_HOME"):
        return Path(os.environ["XDG_CACHE_HOME"])
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", str(Path.home() / "AppData" / "Local")))
    return Path.home() / ".cache"
