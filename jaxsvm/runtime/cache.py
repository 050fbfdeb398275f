"""Keep compiled programs on disk between processes: JAX's persistent cache, set up in one call, with a size limit."""

import contextlib
import os
import sys
from pathlib import Path

import jax

from jaxsvm.runtime.checks import checked


@checked
def keep_programs(directory: str | os.PathLike[str] | None = None, *, size: int = 512 * 2**20) -> Path | None:
    """Store the programs that JAX compiles in a directory, for this process and later ones.

    The library does this by itself only if `JAXSVM_CACHE` is set ("on", or a directory) when it is imported. A second
    process that meets the same shapes reads its programs, in milliseconds each. The setting is JAX's own
    (`jax_compilation_cache_dir`) and holds for all programs of this process.

    Args:
        directory: Where to store them; None: `jaxsvm/xla` in the user's cache folder (`$XDG_CACHE_HOME`, else
            `~/.cache` or the system's equivalent).
        size: Bytes that the directory may hold, >= 0; 512 MiB are some thousand programs. If a call finds more, it
            deletes the programs that have gone unused for the longest time.

    Returns:
        The directory; None if it cannot be created, which costs time and nothing else.
    """
    place = _cache_home() / "jaxsvm" / "xla" if directory is None else Path(directory)
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

    Args:
        unset: What holds if the variable is not set and JAX has no cache of its own.
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


def _cache_home() -> Path:
    if os.environ.get("XDG_CACHE_HOME"):
        return Path(os.environ["XDG_CACHE_HOME"])
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", str(Path.home() / "AppData" / "Local")))
    return Path.home() / ".cache"
