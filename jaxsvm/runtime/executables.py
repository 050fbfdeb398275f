"""Executables on disk: what one process has compiled, the next one loads in milliseconds, without tracing it.

JAX's own cache of compiled programs holds for a whole process, the user's programs too, and finds a program only after
it was traced and lowered, which takes as long as the rest of a small fit. This one holds for the programs of this
library alone. A file's name is a digest of all that the code in it depends on: the library's source, the versions of
JAX and its compiler, the processor, the settings of JAX, the function, and the tree, shapes and dtypes of its
arguments. A call with a class or a function of the user's has no file: its code may change.

A file is written under another name first, so that no process reads half of one. What cannot be read or written costs
time and nothing else. Files are pickles: whoever can write to the directory can run code, so it is the user's alone.
"""

import contextlib
import dataclasses
import enum
import functools
import hashlib
import importlib
import os
import pickle
import platform
import sys
import zlib
from importlib.metadata import version
from pathlib import Path
from types import FunctionType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import serialize_executable
from jax.tree_util import PyTreeDef

from jaxsvm.runtime.arrays import checked
from jaxsvm.runtime.files import write_whole

ON, OFF = ("1", "on", "yes"), ("", "0", "off", "no", "none")
"""What `JAXSVM_CACHE` may say instead of a directory."""
SIZE = 512 * 2**20
"""Bytes of programs beyond which those unused for the longest time are deleted; 512 MiB are some ten thousand."""


class UnknownCodeError(Exception):
    """A value holds a class or a function of a user's, whose code may change."""


def described(value: Any) -> str:
    """Return text that every process gives for equal values, and for no others.

    Raises:
        UnknownCodeError: If the value holds a class or a function that neither this library nor JAX or NumPy defines.
    """
    match value:
        case None | bool() | int() | float() | complex() | str() | bytes() | np.dtype():
            return repr(value)
        case PyTreeDef():
            node = value.node_data()
            return f"[{node and described(node)}{value.num_leaves}{''.join(map(described, value.children()))}]"
        case type() | FunctionType() if value is not type(None):
            of: Any = sys.modules.get(value.__module__)
            for name in value.__qualname__.split("."):
                of = getattr(of, name, None)
            known = value.__module__.split(".")[0] in ("jaxsvm", "jax", "jaxlib", "numpy", "builtins")
            if not known or value not in (of, getattr(of, "function", None)):  # of a closure, or of a user's
                raise UnknownCodeError
            return f"{value.__module__}.{value.__qualname__}"
        case type():
            return "NoneType"
        case enum.Enum() | jax.Device():
            return f"{described(type(value))}{value}"
        case functools.partial():
            return f"partial{described((value.func, value.args, sorted(value.keywords.items())))}"
        case tuple() | list():
            return f"{described(type(value))}({','.join(map(described, value))})"
        case dict():
            return f"dict{described(list(value.items()))}"
    if dataclasses.is_dataclass(value):
        return f"{described(type(value))}{described([getattr(value, f.name) for f in dataclasses.fields(value)])}"
    raise UnknownCodeError


class Store:
    """A directory of executables; without one (None) nothing is read or written."""

    def __init__(self, directory: Path | None, size: int = SIZE) -> None:
        self.directory, self.size = directory, size
        self.writable = self.crowded = True

    def file(self, *call: Any) -> Path | None:
        """Return the file of a call's executable; None if it has none."""
        if self.directory is None:
            return None
        with contextlib.suppress(UnknownCodeError):
            name = hashlib.sha256(described(call).encode()).hexdigest()
            return self.directory / _circumstances() / f"{name}.program"
        return None

    def load(self, file: Path | None) -> Any:
        """Return the executable of a file; None if there is none that this process can use."""
        if file is None:
            return None
        try:
            stored = pickle.loads(zlib.decompress(file.read_bytes()))
            if b"lapack_" in stored[0] or b"blas_" in stored[0]:
                _find_lapack()
            loaded = serialize_executable.deserialize_and_load(*stored, execution_devices=jax.local_devices()[:1])
        except Exception:  # there is none, or whatever a damaged file makes zlib, pickle or XLA raise
            return None
        with contextlib.suppress(OSError):  # of another user's
            os.utime(file)
        return loaded

    def save(self, file: Path | None, compiled: Any) -> None:
        """Write an executable; after a failure, as on a full disk, no other one."""
        if file is None or not self.writable or _users_cache():
            return  # XLA cannot store again what it has loaded from JAX's own cache
        try:
            stored = zlib.compress(pickle.dumps(serialize_executable.serialize(compiled)), level=1)
        except Exception:  # it calls the host, or holds data
            return
        try:
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            if self.crowded:
                _delete_unused(file.parents[1], self.size)
            write_whole(lambda target: target.write(stored), file)
        except OSError:
            self.writable = False
        self.crowded = False


def _users_cache() -> str | None:
    config: Any = jax.config
    return config.jax_compilation_cache_dir


@functools.cache
def _find_lapack() -> None:
    """Make JAX look for LAPACK, as it does where it lowers a call of it: without it a loaded one crashes."""
    jax.jit(jnp.linalg.cholesky).lower(np.ones((1, 1), np.float32))


def _delete_unused(directory: Path, size: int) -> None:
    """Delete the longest unused programs if a directory holds more than `size` bytes. Other processes may do so too."""
    files = []
    for file in directory.glob("jaxlib-*/*"):  # also what a process that was killed has left; nothing of the user's
        with contextlib.suppress(OSError):
            files.append((file.stat().st_mtime, file.stat().st_size, file))
    total = sum(length for _, length, _ in files)
    for _, length, file in sorted(files) if total > size else ():
        if total <= 0.75 * size:  # leave room, so that not every process deletes something
            return
        with contextlib.suppress(OSError):
            file.unlink()
        total -= length


_stores: list[Store] = []  # that of this process, once it is known


def store() -> Store:
    """Return the store of this process, as the environment variable `JAXSVM_CACHE` says when it is first asked for.

    That is "off", "on" or a directory. If it is not set, programs are stored, unless JAX has a cache of the user's, or
    is older than 0.10.2.
    """
    if not _stores:
        loud = jax.__version_info__ < (0, 10, 2)  # the loader of these prints a page for each program
        unset = "off" if _users_cache() or loud else "on"
        if os.environ.get("JAXSVM_CACHE", unset).lower() in OFF:
            _stores.append(Store(None))
        else:
            keep_programs()
    return _stores[-1]


@checked
def keep_programs(directory: str | os.PathLike[str] | None = None, *, size: int = SIZE) -> Path | None:
    """Store the compiled programs of this library in a directory, for later processes.

    The library does this by itself, unless the environment variable `JAXSVM_CACHE` is "off" or JAX has a cache of the
    user's (`jax_compilation_cache_dir`). A process that meets the same shapes loads a program in some milliseconds and
    does not trace it. Programs of the user's own `jax.jit` are not stored, nor those with kernels of the user's, nor
    those on a mesh or on another device than the first.

    Args:
        directory: Where to store them; None: the directory that `JAXSVM_CACHE` names, or `jaxsvm` in
            `$XDG_CACHE_HOME`, else in `~/.cache`. Whoever can write to it can run code in later processes.
        size: Bytes that the directory may hold, >= 0; 512 MiB are some ten thousand programs. The first process that
            finds more deletes the programs that have gone unused for the longest time.

    Returns:
        The directory, None if there is no home. Where it cannot be written to, each process compiles its programs.
    """
    named = os.environ.get("JAXSVM_CACHE", "on") if directory is None else os.fspath(directory)
    place = None
    with contextlib.suppress(RuntimeError):  # a user without a home
        if directory is None and named.lower() in (*ON, *OFF):
            place = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "jaxsvm")
        else:
            place = Path(named).expanduser().absolute()
    _stores.append(Store(place, size))
    return place


@functools.cache
def _circumstances() -> str:
    """Return a digest of all but the call that code depends on: sources, versions, processor, flags of the compiler."""
    root = Path(__file__).parents[1]
    sources = [(str(file.relative_to(root)), file.read_bytes()) for file in sorted(root.rglob("*.py"))]
    devices = [(device.platform, device.device_kind, device.client.platform_version) for device in jax.local_devices()]
    flags = [os.environ.get("XLA_FLAGS"), os.environ.get("LIBTPU_INIT_ARGS")]
    with contextlib.suppress(ImportError, AttributeError):  # no public name
        options = importlib.import_module("jaxlib.xla_client").CompileOptions()
        _ = options.executable_build_options.debug_options  # fills in XLA_FLAGS as XLA has read them
        flags.append(options.SerializeAsString())
    jaxlib = version("jaxlib")
    versions = jax.__version__, jaxlib, sys.version_info[:3]
    digest = hashlib.sha256(repr((sources, devices, flags, versions, _processor())).encode()).hexdigest()
    return f"jaxlib-{jaxlib}-{platform.machine()}-{digest[:16]}"


def _processor() -> str:
    """Return what decides which instructions a program uses, and for how many cores it is made."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        kinds = {line for line in lines if line.split("\t")[0] in ("model name", "flags", "Features")}
        return repr((sorted(kinds), cores))
    return repr((platform.uname(), cores))
