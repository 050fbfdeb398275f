"""Compiled programs are let go before they crowd a process out of memory maps.

A fit of another n compiles all of its programs anew: some 400 memory maps and 37 MiB that JAX keeps for good. Linux
grants a process 65,530 maps, and XLA crashes without a word where one more is refused. Host drivers are therefore
inside `running()`: where the outermost one ends, and maps are many, this library's own programs are cleared (those of
the user stay). Shapes in use are then compiled once more, which tens of new shapes must come before: whoever has few
never sees it.

A driver that meets shapes for the first time has its programs compiled beside each other: XLA compiles on one core,
and lets go of Python meanwhile. Those that are a `Program` are compiled for a CPU in half of the time.

What is counted here, and which shapes were met, is the only state of this library outside its values.
"""

import contextlib
import ctypes
import functools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxsvm.errors import is_concrete

MOST_MAPS = 15_000
"""Memory maps above those that are left by clearing (they are the user's, and single operations') that are too many."""
LAST_MAPS = 50_000
"""Maps of the process that are too many in any case."""
MOST_PROGRAMS = 400
"""The same where maps cannot be counted: programs of this library."""
LOOK = 20
"""New programs between two looks at the maps: reading them takes milliseconds."""

QUICK = {"xla_cpu_use_fusion_emitters": False}
"""XLA's newer emitters make a module of each fused loop, and compile each by itself."""
BRIEF = {**QUICK, "xla_backend_optimization_level": 0}
"""And without LLVM's optimisations a third of the time is left."""

_MAPS = Path("/proc/self/maps")


class _Book:
    """Drivers that run, in all threads, programs there were at the last look, and where they are kept."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.drivers = 0
        self.programs = 0
        self.left = 0  # maps that clearing did not take
        self.quick = True  # until a version of XLA says that it does not know the option
        self.modules = 0
        self.functions: list[Any] = []
        self.met: set[Any] = set()


_book = _Book()


@contextlib.contextmanager
def running() -> Iterator[None]:
    """Inside, no program is cleared; where the outermost ends, all are if there are too many."""
    with _book.lock:
        _book.drivers += 1
    try:
        yield
    finally:
        with _book.lock:
            _book.drivers -= 1
            if _book.drivers == 0:
                _tidy()


def _tidy() -> None:
    """Clear where there are too many programs; no driver runs, and none can begin meanwhile."""
    functions = compiled_functions()
    programs = sum(function._cache_size() for function in functions)  # noqa: SLF001 (JAX has no other name for it)
    if programs < _book.programs + LOOK:
        _book.programs = min(programs, _book.programs)
        return
    _book.programs = programs
    known = _MAPS.exists()
    if maps() > min(_book.left + MOST_MAPS, LAST_MAPS) if known else programs > MOST_PROGRAMS:
        for function in functions:
            function.clear_cache()
        _book.met.clear()
        _forget_traces()
        _give_back()
        _book.programs, _book.left = 0, maps() if known else 0


def _forget_traces() -> None:
    """JAX keeps what it traced of its own functions for every shape, without a limit: 10 MiB a size.

    Programs that are compiled, the user's too, do not need it. There is no public name for that alone.
    """
    with contextlib.suppress(ImportError, AttributeError):
        from jax._src.interpreters.partial_eval import trace_to_jaxpr

        trace_to_jaxpr.cache_clear()


def _give_back() -> None:
    """Memory that is free goes back to the system, where its C library can be asked to (glibc)."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def compiled_ahead(calls: Callable[[], Iterable[tuple[Any, ...]]], *arguments: Any) -> Callable[[], None]:
    """Compile, beside what the caller does meanwhile, programs that are about to be called.

    Args:
        calls: What they are: a jitted function and its arguments, or their shapes, one after the other, the longest
            first: it is compiled while the next is traced. Asked for only where `arguments` are met for the first time,
            so that a call with known ones costs microseconds.
        *arguments: What decides the programs' shapes.

    Returns:
        What to call before the first of them is: it waits until they are there.
    """
    leaves, tree = jax.tree.flatten(arguments)
    shapes = (calls.__qualname__, tree, tuple((np.shape(leaf), getattr(leaf, "dtype", type(leaf))) for leaf in leaves))
    with _book.lock:
        known = shapes in _book.met
        _book.met.add(shapes)
    if known:
        return lambda: None
    threads = []

    def compile_it(one: Any) -> None:
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # whoever calls it meets the same error
            one.compile()

    # Traced here: other threads do not have this one's settings of JAX, and Python runs one at a time anyway.
    # A configuration that looks at its fields, of which JAX makes one of descriptions here, may raise: its programs are
    # compiled where they are called.
    with contextlib.suppress(TypeError):
        for function, *rest in calls():
            threads.append(threading.Thread(target=compile_it, args=(function.lower(*rest),), daemon=True))
            threads[-1].start()

    def wait() -> None:
        for thread in threads:
            thread.join()

    return wait


class Program:
    """A jitted part of a host driver, which XLA compiles for a CPU by its older way of making kernels.

    That takes half of the time, and the kernels are as fast but for long fused sums in float64 (twice as slow). JAX
    takes options of the compiler at the top level alone: where something is traced, `function` is called instead (by
    the caller, but for brief ones).

    Args:
        function: What is jitted, for `jax.eval_shape` and other programs.
        brief: Whether it runs once, a few operations a sample: then it is compiled without optimisations.
        **options: Of `jax.jit`.
    """

    def __init__(self, function: Callable[..., Any], *, brief: bool = False, **options: Any) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.brief = brief
        self._plain: Any = jax.jit(function, **options)
        self._quick: Any = jax.jit(function, compiler_options=BRIEF if brief else QUICK, **options)

    def _jitted(self) -> Any:
        return self._quick if _book.quick and jax.default_backend() == "cpu" else self._plain

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """The function's value."""
        if self.brief and not is_concrete(arguments):
            return self.function(*arguments, **named)
        if self._jitted() is self._plain:
            return self._plain(*arguments, **named)
        try:
            return self._quick(*arguments, **named)
        except jax.errors.JaxRuntimeError as error:
            if "No such compile option" not in str(error):
                raise
        _book.quick = False
        return self._plain(*arguments, **named)

    def shapes(self, *arguments: Any, **named: Any) -> Any:
        """Of what it returns; it is traced once for this and for a call."""
        return self._jitted().trace(*arguments, **named).out_info

    def lower(self, *arguments: Any, **named: Any) -> Any:
        """As of a jitted function."""
        return self._jitted().lower(*arguments, **named)

    def clear_cache(self) -> None:
        """As of a jitted function."""
        self._plain.clear_cache()
        self._quick.clear_cache()

    def _cache_size(self) -> int:
        return self._plain._cache_size() + self._quick._cache_size()  # noqa: SLF001 (as above)


def compiled_functions() -> list[Any]:
    """The jitted functions of this library's modules; looked for again only where Python has imported something."""
    if len(sys.modules) != _book.modules:
        _book.modules = len(sys.modules)
        modules = [module for name, module in list(sys.modules.items()) if name.split(".")[0] == "jaxsvm"]
        found = [
            f for module in modules for f in vars(module).values() if hasattr(f, "clear_cache") and f is not Program
        ]
        _book.functions = list({id(f): f for f in found}.values())
    return _book.functions


def maps() -> int:
    """Memory maps of this process."""
    return _MAPS.read_bytes().count(b"\n")
