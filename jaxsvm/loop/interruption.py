"""Ctrl-C as a flag that drivers look at: nothing is torn in the middle, and nothing that was certified is lost.

Python raises KeyboardInterrupt between any two instructions of the main thread: in the middle of JAX, in a destructor
(where it is swallowed), just after the fit it was meant for. While a driver runs, the first Ctrl-C is therefore a flag,
which it looks at between bursts, and which is still there for whoever would begin the next fit; the second one raises,
as ever, and so does one that comes within `TWICE` seconds of the last, though it is the next call's first: a loop of
fits ends by two. `interrupt="raise"` raises at the first, when the call's drivers have ended. A handler of the user's
own is left in place: a KeyboardInterrupt that it raises, or a callback, counts alike.
"""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax

from jaxsvm.errors import InputError
from jaxsvm.runtime.programs import running
from jaxsvm.runtime.transfers import transfers

TWICE = 2.0
"""Seconds within which a second Ctrl-C is for the program, whatever call it meets."""


LONG = 4096
"""Samples from which a product may take longer than a look: it is computed where nobody has to wait for it."""
A_LOOK = 0.01
"""Seconds between two looks, at the most."""


class Interruption:
    """Whether Ctrl-C came. One for all drivers of a call, and for their threads, which get no signals themselves.

    Attributes:
        drivers: How many drivers look at it; where none does, the first Ctrl-C raises.
        last: When the last signal came that a driver was told of, in any call of this process.
    """

    last = -math.inf

    def __init__(self) -> None:
        self.came = False
        self.drivers = 0
        self.deadline = math.inf

    @property
    def seen(self) -> bool:
        """Whether it came, or the time is up: whoever sees it begins nothing new."""
        return self.came or time.monotonic() > self.deadline

    @contextmanager
    def within(self, seconds: float | None) -> Iterator[None]:
        """A time limit for whatever runs inside, as if Ctrl-C came then; None: no other than there was."""
        before = self.deadline
        if seconds is not None:
            self.deadline = min(before, time.monotonic() + seconds)
        try:
            yield
        finally:
            self.deadline = before

    def arrived(self, *signal_and_frame: Any) -> None:
        """The signal's handler."""
        del signal_and_frame
        again = self.came or time.monotonic() - Interruption.last < TWICE
        self.came, Interruption.last = True, time.monotonic()
        if again or not self.drivers:
            raise KeyboardInterrupt

    def note(self) -> None:
        """Keep a KeyboardInterrupt that was caught as the flag; a second one goes on to the user."""
        if self.came:
            raise KeyboardInterrupt
        self.came = True


@contextmanager
def watching(stop: Interruption | None = None) -> Iterator[Interruption]:
    """The `Interruption` of whoever is inside already, or a new one, which Python's own handler makes way for.

    Every host driver is inside one; programs are not let go meanwhile.

    Args:
        stop: What the caller looks at; None: the one in place, on the main thread, or a new one.
    """
    on_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT) if on_main else None
    owner = getattr(before, "__self__", None)
    stop = stop if stop is not None else owner if isinstance(owner, Interruption) else Interruption()
    installed = before is signal.default_int_handler
    stop.drivers += 1
    try:
        if installed:
            signal.signal(signal.SIGINT, stop.arrived)
        with running():
            yield stop
    finally:
        stop.drivers -= 1
        if installed:
            signal.signal(signal.SIGINT, before)


@contextmanager
def answering(interrupt: str) -> Iterator[Interruption]:
    """`watching` for a public call, whose user said what Ctrl-C is to do.

    Args:
        interrupt: "return": what is certified by then is returned; "raise": KeyboardInterrupt once drivers have ended.

    Raises:
        InputError: On any other `interrupt`.
    """
    if interrupt not in ("return", "raise"):
        raise InputError(f'interrupt is {interrupt!r}: "return" (what is certified) or "raise" is needed.')
    with watching() as stop:
        yield stop
    if interrupt == "raise" and stop.came:
        raise KeyboardInterrupt


def unless(until: Callable[[], bool], call: Callable[..., Any], *arguments: Any) -> Any:
    """What a call of a compiled program returns; None once `until` holds: then nobody waits for it any more.

    It is begun by a thread of its own: on a CPU what one thread asks for is computed in order, and what comes after
    this would wait for it. A computation cannot be ended; one that is left goes on beside what follows.

    Args:
        until: Looked at some hundred times a second.
        call: A function of arrays to a pytree of arrays, not None.
        *arguments: Its arguments.
    """
    outcome: list[Any] = []

    def begin() -> None:
        try:
            outcome.append((call(*arguments), None))
        except BaseException as error:  # noqa: BLE001 - whoever waits raises it
            outcome.append((None, error))

    begun = time.monotonic()
    thread = threading.Thread(target=with_settings(begin))
    thread.start()
    while not until():
        pause = min((time.monotonic() - begun) / 50, A_LOOK)
        if thread.is_alive():
            thread.join(pause)
            continue
        value, error = outcome[0]
        if error is not None:
            raise error
        if all(leaf.is_ready() for leaf in jax.tree.leaves(value) if hasattr(leaf, "is_ready")):
            return value
        time.sleep(pause)
    return None


def with_settings(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with this thread's settings of JAX, which other threads do not see; what it transfers is meant."""
    config: Any = jax.config
    x64, device, precision = config.jax_enable_x64, config.jax_default_device, config.jax_default_matmul_precision

    def call(*arguments: Any) -> Any:
        with jax.enable_x64(x64), jax.default_device(device), jax.default_matmul_precision(precision):
            return transfers(function)(*arguments)

    return call
