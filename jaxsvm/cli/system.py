"""The command and the system: atomic writes, memory, Ctrl-C and the compilation cache."""

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxsvm.errors import InputError, require
from jaxsvm.gram import measured as gram
from jaxsvm.loop.interruption import Interruption
from jaxsvm.points.checks import is_sparse
from jaxsvm.runtime.arrays import memory
from jaxsvm.runtime.files import require_writable, write_whole
from jaxsvm.runtime.startup import leave


def check_writable(out: str | None, *inputs: str, option: str = "--out") -> None:
    """Refuse, before any work, a path that could not be written, or that would overwrite an input."""
    if out is None:
        return
    require(out != "-", f"{option} is '-': name a file; /dev/stdout is standard output.")
    lost = any(os.path.exists(name) and os.path.exists(out) and os.path.samefile(out, name) for name in inputs)
    require(not lost, f"{option} is {out!r}: this is an input file, which would be lost; choose another name.")
    require_writable(option, out)


def save(out: str | None, content: str | Callable[[str], Any], option: str = "--out") -> None:
    """Write a text, or call what writes a file of this name; None: write nothing."""
    if out is None:
        return
    try:
        if isinstance(content, str):
            write_whole(lambda file: file.write(content.encode()), out)
        else:
            content(out)
    except OSError as error:
        raise InputError(f"{option} is {out!r}: cannot be written: {error.strerror or error}.") from error


def require_memory(name: str, x: Any) -> None:
    """Refuse sparse points whose blocks of dense rows would take more than half of this machine's memory.

    Raises:
        InputError: With the bytes needed, and what to do.
    """
    if not is_sparse(x):
        return
    n, d = x.shape
    # Four vectors beside the rows: shift, spread, and the two of the scaling.
    needed, available = (2 * min(n, gram.MEASURED.rows_per_tile) + 4) * d * x.dtype.itemsize, memory()
    if available is not None and needed > available / 2:
        used = len(np.unique(x.indices))
        raise InputError(
            f"{name}: has {n} samples and {d} columns, of which {used} occur: blocks of dense rows would take "
            f"{needed / 2**30:.3g} GiB, and this machine has {available / 2**30:.3g}. Number the columns that occur "
            "from 1 without gaps (indices must be the columns' numbers, not hashes or identifiers), or hash them to "
            "fewer."
        )


class Interrupts(Interruption):
    """The Ctrl-C handler of a whole command: it leaves until something was computed, then it sets a flag.

    A second one raises while `armed`; else what was computed is saved before the command ends.
    """

    armed = True

    def __enter__(self) -> "Interrupts":
        self.before = None
        if threading.current_thread() is threading.main_thread():
            self.before = signal.signal(signal.SIGINT, self.arrived)
        return self

    def __exit__(self, *exception: object) -> None:
        if self.before not in (None, leave):  # a command that has its result only prints it
            signal.signal(signal.SIGINT, self.before)

    def arrived(self, number: int = signal.SIGINT, frame: Any = None) -> None:
        """Handle the signal."""
        if not self.begun and self.before is leave:
            leave()
        if self.armed and (self.drivers or self.came or not self.begun):
            super().arrived(number, frame)
        self.came = True
