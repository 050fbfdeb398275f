"""End the command `jaxsvm` at Ctrl-C from its first moment: this file is imported before JAX, which takes seconds.

An exception between two instructions of an import may be printed and lost, or shown with a traceback. And no handler
runs while the main thread imports or compiles outside Python, so that a thread waits for the signal as well.
"""

import os
import signal
import sys
import threading
from typing import Any

_leaving = threading.RLock()
"""Taken by the first of the handler and the thread that leave."""


def leave(number: int = signal.SIGINT, frame: Any = None) -> None:
    """Leave the process at once, as interrupted before there was a result, whatever threads still compute."""
    del number, frame
    with _leaving:
        os.write(2, b"jaxsvm: error: interrupted before there was a result.\n")
        os._exit(130)  # 128 and SIGINT, as shells have it


def leave_at_interrupts() -> None:
    """Handle Ctrl-C by `leave`, until a handler with results (`begun`) takes over; a user's own handler stays."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return
    signal.signal(signal.SIGINT, leave)
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)

    def wait() -> None:
        while signals := os.read(read, 64):
            owner = getattr(signal.getsignal(signal.SIGINT), "__self__", None)
            if signal.SIGINT in signals and not getattr(owner, "begun", False):
                leave()

    threading.Thread(target=wait, daemon=True).start()


def _is_the_command() -> bool:
    name, given = (getattr(sys, "argv", None) or [""])[0], sys.orig_argv
    if name == "-m":
        return "jaxsvm" in given[given.index("-m") + 1 :][:1] if "-m" in given else "-mjaxsvm" in given
    return os.path.basename(name).split(".")[0] == "jaxsvm"


if _is_the_command():
    leave_at_interrupts()
