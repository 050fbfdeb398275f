"""Turn Ctrl-C into a flag that drivers check, so that no result that was certified is lost.

Python raises KeyboardInterrupt between any two instructions of the main thread: in the middle of JAX, in a destructor
(where it is swallowed), or just after the fit that it was meant for. While a driver runs, the first Ctrl-C therefore
sets a flag, which drivers check between bursts and before they begin another fit. The second Ctrl-C raises. So does a
first one within two seconds of the last in an earlier call: two of them end a loop of fits. `interrupt="raise"` raises
at the first, once the call's drivers have ended. A handler of the user's own is left in place; a KeyboardInterrupt that
it or a callback raises sets the same flag.

What a call then returns follows one rule: what is certified, as INTERRUPTED and with a warning. What was not reached
has an infinite gap, of one fit too. An estimator or a command, whose predictions would hide that, raises
KeyboardInterrupt if one of its machines has nothing yet, and so does what only serves a choice (`C_grid`, `tune`, folds
of `SVCPath`, which keep their scores). A search, folds, a pipeline or an ensemble of scikit-learn's would go on with
its next fit: if one called an estimator's `fit` (`estimating`), the estimator keeps what is certified, and raises.
"""

import contextvars
import functools
import math
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import jax

from jaxsvm.errors import InputError
from jaxsvm.runtime.arrays import transfers
from jaxsvm.runtime.programs import running

SWALLOWING = ("_xla_gc_callback", "__del__")
"""Functions, of JAX's at the start of a garbage collection above all, that Python calls and whose errors it prints."""
_handed: contextvars.ContextVar[Any] = contextvars.ContextVar("interruption", default=None)
"""The flag of the call that runs in this thread, or that started it."""
_in_thread: contextvars.ContextVar[bool] = contextvars.ContextVar("in_thread", default=False)
_counting = threading.Lock()
_T = TypeVar("_T")
_F = TypeVar("_F", bound=Callable[..., Any])


class Interruption:
    """Whether Ctrl-C came: one flag for all drivers of a call and for their threads, which receive no signals."""

    seconds_to_repeat = 2.0  # time within which a second Ctrl-C raises, whichever call it meets
    last = -math.inf  # time of the last signal that a driver received, in any call of this process

    def __init__(self) -> None:
        self.came = self.begun = False  # whether Ctrl-C came, and whether a driver has computed something
        self.drivers = 0  # how many drivers check the flag; if none does, the first Ctrl-C raises
        self.deadline = math.inf  # time from which the flag counts as set

    @property
    def seen(self) -> bool:
        """Return whether Ctrl-C came or the time is up; callers then start nothing new."""
        return self.came or time.monotonic() > self.deadline

    def check(self) -> None:
        """Raise KeyboardInterrupt if the flag is set: for callers to whom a part of the work is of no use."""
        if self.seen:
            raise KeyboardInterrupt

    @contextmanager
    def within(self, seconds: float | None) -> Iterator[None]:
        """Set the flag after so many seconds, for code inside; None leaves the time limit as it is."""
        before = self.deadline
        if seconds is not None:
            self.deadline = min(before, time.monotonic() + seconds)
        try:
            yield
        finally:
            self.deadline = before

    def arrived(self, number: int = signal.SIGINT, frame: Any = None) -> None:
        """Handle the signal."""
        again = self.came or time.monotonic() - Interruption.last < self.seconds_to_repeat
        self.came, Interruption.last = True, time.monotonic()
        if not (again or not self.drivers):
            return
        if frame is not None and frame.f_code.co_name in SWALLOWING:
            threading.Timer(0.02, os.kill, (os.getpid(), number)).start()  # once more, a little later
            return
        raise KeyboardInterrupt

    def note(self) -> None:
        """Set the flag for a KeyboardInterrupt that was caught; raise a second one."""
        if self.came:
            raise KeyboardInterrupt
        self.came = True


class Halt(KeyboardInterrupt):
    """The flag of the running call was set within a long turn, which ends without a result."""


def until_halt(parts: Iterable[_T]) -> Iterator[_T]:
    """Yield the parts of a long turn; raise `Halt` between them once the flag of the running call is set."""
    stop = _handed.get()
    for part in parts:
        if stop is not None and stop.seen:
            raise Halt
        yield part


def run_passes(
    descent: Any, over: Callable[[], bool], stop: Interruption, after: Callable[[], Any] = lambda: None
) -> None:
    """Run a descent in long turns, of one pass over rows or one product for many fits, until `over()` holds.

    It takes a turn by `advance()`, while another can change anything (`going`); `after` is called after each. A
    KeyboardInterrupt of a reader, a cluster's client or a callback sets the flag `stop` too.
    """
    while descent.going and not over():
        try:
            descent.advance()
            stop.begun = True
            after()
        except Halt:
            return
        except KeyboardInterrupt:
            stop.note()


@contextmanager
def watching(stop: Interruption | None = None) -> Iterator[Interruption]:
    """Reuse the active interruption flag, or install one in place of Python's handler of SIGINT.

    Every host driver runs inside; programs are not cleared meanwhile. Without the caller's flag it is the installed
    one, on the main thread, that of the call which started this thread (`with_settings`), or a new one.
    """
    before, owner = _handler()
    flag: Interruption = owner if stop is None else stop
    installed = before is signal.default_int_handler
    earlier = _handed.set(flag)
    with _counting:
        flag.drivers += 1
    try:
        if installed:
            signal.signal(signal.SIGINT, flag.arrived)
        with running():
            yield flag
    finally:
        with _counting:
            flag.drivers, flag.begun = flag.drivers - 1, True
        _handed.reset(earlier)
        if installed:
            signal.signal(signal.SIGINT, before)


def _handler() -> tuple[Any, Interruption]:
    """Return the handler of SIGINT, None beside the main thread, and the flag of this call, new if there is none."""
    on_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT) if on_main else None
    owner: Any = getattr(before, "__self__", None)
    return before, owner if isinstance(owner, Interruption) else _handed.get() or Interruption()


def estimating(fit: _F) -> _F:
    """Wrap an estimator's `fit`: its drivers share a flag; if scikit-learn called it, Ctrl-C raises after it."""

    @functools.wraps(fit)
    def call(*arguments: Any, **named: Any) -> Any:
        flag = _handler()[1]
        earlier = _handed.set(flag)
        try:
            result = transfers(functools.partial(fit))(*arguments, **named)  # scikit-learn's words refuse these
        except Halt:
            raise KeyboardInterrupt from None
        finally:
            _handed.reset(earlier)
        names = (frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_stack(None))
        if flag.came and any(
            name.startswith("sklearn.") and name != "sklearn.base" for name in names
        ):  # wraps each fit
            raise KeyboardInterrupt
        return result

    return cast(_F, call)


@contextmanager
def answering(interrupt: str) -> Iterator[Interruption]:
    """Run a public call inside `watching`, with the user's choice of what Ctrl-C does.

    "return" returns what is certified; "raise" raises KeyboardInterrupt once drivers have ended.
    """
    if interrupt not in ("return", "raise"):
        raise InputError(f'interrupt is {interrupt!r}: "return" (what is certified) or "raise" is needed.')
    with watching() as stop:
        yield stop
    if interrupt == "raise" and stop.came:
        raise KeyboardInterrupt


def unless(until: Callable[[], bool], call: Callable[..., Any], *arguments: Any) -> Any:
    """Call a compiled program and return its result, or None as soon as `until` holds.

    A thread of its own computes: on a CPU the calls of one thread are computed in order, and later ones would wait for
    it. A computation cannot be ended; an abandoned one runs on beside whatever follows. `until` is checked a hundred
    times a second. The result is a pytree of arrays.
    """
    pool = ThreadPoolExecutor(1)
    job = pool.submit(with_settings(lambda *arguments: jax.block_until_ready(call(*arguments))), *arguments)
    pool.shutdown(wait=False)
    while not until():
        if wait([job], 0.01).done:
            return job.result()
    return None


def result_of(job: Future[Any]) -> Any:
    """Return what a thread returns; a signal just before a wait without a limit would be seen at its end only."""
    while not job.done():
        wait([job], 0.1)
    return job.result()


def workers() -> int:
    """Return how many threads of fits pay: a CPU's cores; one on an accelerator, and inside one of these threads."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores if jax.default_backend() == "cpu" and not _in_thread.get() else 1


def with_settings(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that other threads call it with this thread's flag of Ctrl-C and settings of JAX."""
    config, stop = cast(Any, jax.config), _handed.get()
    x64, device, precision = config.jax_enable_x64, config.jax_default_device, config.jax_default_matmul_precision

    def call(*arguments: Any) -> Any:
        _handed.set(stop)
        _in_thread.set(True)
        with jax.enable_x64(x64), jax.default_device(device), jax.default_matmul_precision(precision):
            return transfers(function)(*arguments)

    return call
