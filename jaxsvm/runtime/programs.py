"""Compile programs ahead and in parallel, and clear them before the process runs out of memory maps.

Linux grants a process 65,530 memory maps, and XLA crashes without a message when one more is refused. A compiled
program holds about 80 of them, and JAX keeps programs for good. Host drivers therefore run inside `running()`: when the
outermost driver ends and this library has more than `PROGRAMS_KEPT` programs, all of them are cleared (the
user's own stay). Shapes still in use are compiled once more. Sizes are padded to a few classes, so most processes never
get there.

When a driver meets shapes for the first time, its programs are compiled in parallel: XLA compiles on one core and
releases Python's lock meanwhile. A `Program` is compiled for a CPU in half of the time.

The known shapes and the count of drivers are the only state of this library outside its values.
"""

import contextlib
import functools
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np
from jax.core import ShapedArray

from jaxsvm.errors import is_concrete

PROGRAMS_KEPT = 250
"""Compiled programs of this library beyond which all are cleared; each holds about 80 memory maps."""

QUICK = {"xla_cpu_use_fusion_emitters": False}
"""Switch off XLA's newer emitters, which compile each fused loop as a module of its own."""
BRIEF = {**QUICK, "xla_backend_optimization_level": 0}
"""Switch off LLVM's optimisations too: a third of the compile time is left."""


class _Registry:
    """State of the process: active drivers of all threads, shapes already compiled, and the library's functions."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.drivers = 0
        self.quick = True  # until a version of XLA refuses the option
        self.modules = 0  # imported when `functions` was collected
        self.functions: list[Any] = []
        self.shapes: set[Any] = set()


_registry = _Registry()


@contextlib.contextmanager
def running() -> Iterator[None]:
    """Keep all programs inside; once no driver of any thread runs, clear this library's if there are too many."""
    with _registry.lock:
        _registry.drivers += 1
    try:
        yield
    finally:
        with _registry.lock:
            _registry.drivers -= 1
            if _registry.drivers == 0:
                _clear_if_many()


def _clear_if_many() -> None:
    """Clear this library's programs if there are too many; the caller holds the lock and no driver runs."""
    functions = compiled_functions()
    if sum(function._cache_size() for function in functions) > PROGRAMS_KEPT:  # noqa: SLF001 (JAX has no other name)
        for function in functions:
            function.clear_cache()
        _registry.shapes.clear()


def compiled_ahead(calls: Callable[[], Iterable[tuple[Any, ...]]], *arguments: Any) -> Callable[[], None]:
    """Start to compile programs that are about to be called, in parallel with what the caller does next.

    `calls` returns the calls: a jitted function and its arguments (or their shapes) each, the longest compilation
    first, since it runs while the next one is traced. It is called only if the shapes of `arguments` are new, so that
    known ones cost microseconds. The result waits until all programs are compiled; call it before the first of them.
    """
    leaves, tree = jax.tree.flatten(arguments)
    shapes = (calls.__qualname__, tree, tuple((np.shape(leaf), getattr(leaf, "dtype", type(leaf))) for leaf in leaves))
    with _registry.lock:
        known = shapes in _registry.shapes
        _registry.shapes.add(shapes)
    if known:
        return lambda: None
    threads = []

    def compile_lowered(lowered: Any) -> None:
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # the call itself raises the same error
            lowered.compile()

    # Trace in this thread: others do not have its settings of JAX, and Python runs one thread at a time anyway.
    # A solver that checks its fields may raise here, where JAX rebuilds it from shapes: its programs are then compiled
    # when they are called.
    with contextlib.suppress(TypeError):
        for function, *rest in calls():
            threads.append(threading.Thread(target=compile_lowered, args=(function.lower(*rest),), daemon=True))
            threads[-1].start()

    def wait() -> None:
        for thread in threads:
            thread.join()

    return wait


@contextlib.contextmanager
def _interrupted_afterwards() -> Iterator[None]:
    """Raise the KeyboardInterrupt of a Ctrl-C after the code inside: raised within a compilation, it crashes the exit.

    Inside a driver the signal has a handler of its own, which raises nothing.
    """
    on_main = threading.current_thread() is threading.main_thread()
    if not on_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if came:
        raise KeyboardInterrupt


class Program:
    """A jitted part of a host driver, compiled for a CPU by XLA's older way of making kernels.

    That takes half of the compile time, and the kernels are as fast, except for long fused sums in float64 (twice as
    slow). JAX accepts compiler options at the top level only: inside a trace `function` must be called instead (the
    caller does so; brief programs do it themselves).

    Args:
        function: The function to jit; also for `jax.eval_shape` and for use inside other programs.
        brief: Whether it runs once with a few operations a sample; it is then compiled without optimisations.
        **options: Passed on to `jax.jit`.
    """

    def __init__(self, function: Callable[..., Any], *, brief: bool = False, **options: Any) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.brief = brief
        self._plain: Any = jax.jit(function, **options)
        self._quick: Any = jax.jit(function, compiler_options=BRIEF if brief else QUICK, **options)

    def _jitted(self) -> Any:
        return self._quick if _registry.quick and jax.default_backend() == "cpu" else self._plain

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the compiled function; compile it without the options if this version of XLA does not know them."""
        if self.brief and not is_concrete(arguments):
            return self.function(*arguments, **named)
        with _interrupted_afterwards():
            if self._jitted() is self._plain:
                return self._plain(*arguments, **named)
            try:
                return self._quick(*arguments, **named)
            except jax.errors.JaxRuntimeError as error:
                if "No such compile option" not in str(error):
                    raise
            _registry.quick = False
            return self._plain(*arguments, **named)

    def shapes(self, *arguments: Any, **named: Any) -> Any:
        """Return the shapes of the results, float64 too; the trace is shared with a later call."""
        found = self._jitted().trace(*arguments, **named).out_info
        return jax.tree.map(
            lambda leaf: ShapedArray(leaf.shape, leaf.dtype) if leaf.dtype == "float64" else leaf, found
        )

    def lower(self, *arguments: Any, **named: Any) -> Any:
        """Lower the function for these arguments, as a jitted function does."""
        return self._jitted().lower(*arguments, **named)

    def clear_cache(self) -> None:
        """Clear the compiled programs, as of a jitted function."""
        self._plain.clear_cache()
        self._quick.clear_cache()

    def _cache_size(self) -> int:
        return self._plain._cache_size() + self._quick._cache_size()  # noqa: SLF001 (as above)


def compiled_functions() -> list[Any]:
    """Return the jitted functions of all modules of this library; collected anew only after an import."""
    if len(sys.modules) != _registry.modules:
        _registry.modules = len(sys.modules)
        ours = [module for name, module in list(sys.modules.items()) if name.split(".")[0] == "jaxsvm"]
        jitted = [f for module in ours for f in vars(module).values() if hasattr(f, "clear_cache") and f is not Program]
        _registry.functions = list({id(f): f for f in jitted}.values())
    return _registry.functions
