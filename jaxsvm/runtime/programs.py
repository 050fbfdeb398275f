"""Compile programs ahead and in parallel, and clear them before the process runs out of memory maps.

Linux grants a process 65,530 memory maps, and XLA crashes without a message when one more is refused. A compiled
program holds about 80 of them, and JAX keeps programs for good. Host drivers therefore run inside `running()`: when the
outermost driver ends and this library has more than `PROGRAMS_KEPT` programs, all of them are cleared (the user's own
stay), and shapes still in use are compiled or loaded once more. Most processes never get there.

When a driver meets shapes for the first time, its programs are compiled in parallel: XLA compiles on one core and
releases Python's lock meanwhile. A `Program` is compiled for a CPU in half of the time.
"""

import contextlib
import ctypes
import functools
import inspect
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
from jax.core import ShapedArray, Tracer

from jaxsvm.errors import is_concrete
from jaxsvm.runtime.arrays import is_tracing
from jaxsvm.runtime.executables import store

PROGRAMS_KEPT = 160
"""Compiled programs of this library beyond which all are cleared: each holds about 80 memory maps and 4 MiB."""

QUICK = {"xla_cpu_use_fusion_emitters": False}
"""Switch off XLA's newer emitters, which compile each fused loop as a module of its own (JAX 0.12 has no others). It
takes half of the time, and kernels are as fast, except for long fused sums in float64 (twice as slow)."""
BRIEF = {**QUICK, "xla_backend_optimization_level": 0}  # LLVM's optimisations too: a third of the compile time is left
SETTINGS = ("enable_x64", "default_matmul_precision", "default_prng_impl", "threefry_partitionable")
"""Settings of JAX that results depend on, and that scopes change: all of them would be 21 microseconds a call."""


class _Registry:
    """State of the process, besides the store: drivers of all threads, shapes compiled, and the library's functions."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.drivers = 0
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
        _release_freed()


def _release_freed() -> None:
    with contextlib.suppress(AttributeError, OSError, TypeError):  # glibc alone keeps half a GiB of what is freed
        ctypes.CDLL(None).malloc_trim(0)


@functools.cache
def _is_known(option: str, value: Any) -> bool:
    """Return whether this version of XLA knows an option, by compiling a program of nothing with it."""
    with contextlib.suppress(jax.errors.JaxRuntimeError):
        return jax.jit(lambda: None).lower().compile(compiler_options={option: value}) is not None
    return False


def compiled_ahead(calls: Callable[[], Iterable[tuple[Any, ...]]], *arguments: Any) -> Callable[[], None]:
    """Start to compile programs that are about to be called, in parallel with what the caller does next.

    `calls` returns the calls: a `Program` and its arguments (or their shapes) each, the longest compilation first. It
    is called only if the shapes of `arguments` are new: known ones cost microseconds. The result waits until all
    programs are compiled; call it before the first of them.
    """
    leaves, tree = jax.tree.flatten(arguments)
    shapes = (calls.__qualname__, tree, tuple((np.shape(leaf), getattr(leaf, "dtype", type(leaf))) for leaf in leaves))
    with _registry.lock:
        if shapes in _registry.shapes:
            return lambda: None
        _registry.shapes.add(shapes)
    threads = []

    def compiled(compiles: Callable[[], Any]) -> None:
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # the call itself raises the same error
            compiles()

    # Trace in this thread, which has its settings of JAX. A solver that checks its fields may raise here, where JAX
    # rebuilds it from shapes: its programs are then compiled when they are called.
    with contextlib.suppress(TypeError):
        for function, *rest in calls():
            if (compiles := function.ahead(*rest)) is not None:
                threads.append(threading.Thread(target=compiled, args=(compiles,), daemon=True))
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
    """A jitted part of a host driver, whose executables are stored on disk for later processes.

    Only what lies on the first device is: on a mesh, on another device, or in a context of JAX that JAX alone knows of
    (`jax.set_mesh`, `jax.debug_nans`), it is an ordinary jitted function. Inside a trace it is a part of the user's
    program.

    Args:
        function: The function to jit; also for `jax.eval_shape` and for use inside other programs.
        options: Options of XLA on a CPU; `BRIEF` for what runs once with a few operations a sample, None (`full`) for
            what sums long rows.
        static: Names of arguments that are part of the program.
        donated: The name of an argument whose memory the program may use.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        options: dict[str, Any] | None = QUICK,
        static: tuple[str, ...] = (),
        donated: str | None = None,
    ) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        parameters = inspect.signature(function).parameters
        self._names = list(parameters)
        self._defaults = {name: parameters[name].default for name in static}
        self._jit = functools.partial(jax.jit, function, static_argnames=static, donate_argnames=donated)
        self._jits: list[Any] = [self._jit()]  # then, on CPUs, with those of the options that this version knows
        self._options, self._donated = options, donated
        self._executables: dict[Any, Any] = {}
        self._locks: dict[Any, threading.Lock] = {}

    @classmethod
    def full(cls, **options: Any) -> Callable[[Callable[..., Any]], "Program"]:
        """Return the decorator of a program that is compiled with all optimisations."""
        return functools.partial(cls, options=None, **options)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the executable for arguments of these shapes; load or compile it if there is none."""
        named, static, key = self._split(arguments, named)
        if key is None and (is_tracing() or not is_concrete(named)):
            inlined = self._options is BRIEF and not is_concrete(named)
            return (self.function if inlined else self._jits[0])(**named, **static)
        if (executable := self._executables.get(key)) is not None:
            return executable(**named)
        with _interrupted_afterwards():
            if key is None:
                return self._jitted()(**named, **static)
            return self._kept(key, self._file(key), lambda: self._jitted().lower(**named, **static))(**named)

    def _split(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], Any]:
        """Return the arguments by name, static ones apart, and all that the executable depends on.

        The last is None where JAX has to decide: of what is traced or inside a trace, elsewhere, or for a debugger.
        """
        named |= zip(self._names[: len(arguments)], arguments, strict=True)
        static = {name: named.pop(name, default) for name, default in self._defaults.items()}
        leaves, tree = jax.tree.flatten(named)
        config: Any = jax.config
        by_jax = (config.jax_disable_jit, config.jax_debug_nans, config.jax_debug_infs, config.jax_default_device)
        if is_tracing() or any(by_jax) or jax.process_count() > 1 or not jax.sharding.get_abstract_mesh().empty:
            return named, static, None
        here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        if any(isinstance(leaf, jax.Array) and (isinstance(leaf, Tracer) or leaf.sharding != here) for leaf in leaves):
            return named, static, None
        settings = [getattr(config, f"jax_{name}") for name in SETTINGS]
        return named, static, (tree, *static.values(), *map(_type_of, leaves), *settings)

    def _jitted(self) -> Any:
        if self._options and len(self._jits) == 1 and jax.default_backend() == "cpu":
            known = {name: value for name, value in self._options.items() if _is_known(name, value)}
            self._jits.append(self._jit(compiler_options=known))
        return self._jits[-1]

    def _file(self, key: Any) -> Path | None:
        settings = cast(Any, jax.config).values.values()  # all, of this thread: another process may have set others
        return key and store().file(self.function, self._options, self._donated, *key, *settings)

    def _found(self, key: Any, file: Path | None) -> Any:
        if key is not None and key not in self._executables and (loaded := store().load(file)) is not None:
            self._executables[key] = loaded
        return self._executables.get(key)

    def _kept(self, key: Any, file: Path | None, lower: Callable[[], Any]) -> Any:
        with self._locks.setdefault(key, threading.Lock()):  # of several threads one compiles
            if (found := self._found(key, file)) is None:
                self._executables[key] = found = lower().compile()
                _release_freed()
                store().save(file, found)
            return found

    def ahead(self, *arguments: Any, **named: Any) -> Callable[[], Any] | None:
        """Lower for these arguments and return what compiles it, in another thread; None if there is nothing to do."""
        named, static, key = self._split(arguments, named)
        if self._found(key, file := self._file(key)):
            return None
        lowered = self._jitted().lower(**named, **static)
        return lowered.compile if key is None else lambda: self._kept(key, file, lambda: lowered)

    def shapes(self, *arguments: Any, **named: Any) -> Any:
        """Return the shapes of the results, float64 too; the trace is shared with a later call."""
        named, static, key = self._split(arguments, named)
        found = (self._found(key, self._file(key)) or self._jitted().trace(**named, **static)).out_info
        return jax.tree.map(lambda it: ShapedArray(it.shape, it.dtype) if it.dtype == "float64" else it, found)

    def clear_cache(self) -> None:
        """Clear the compiled programs, as of a jitted function."""
        for jitted in self._jits:
            jitted.clear_cache()
        self._executables.clear()

    def _cache_size(self) -> int:
        return len(self._executables) + sum(jitted._cache_size() for jitted in self._jits)  # noqa: SLF001


def _type_of(leaf: Any) -> Any:
    leaf = getattr(leaf, "aval", leaf)  # of an array of JAX, whose own attributes take three times as long
    dtype = getattr(leaf, "dtype", None)
    dtype = dtype if isinstance(dtype, np.dtype) else str(dtype)  # of a random key
    return getattr(leaf, "shape", type(leaf)), dtype, getattr(leaf, "weak_type", False)


def compiled_functions() -> list[Any]:
    """Return the jitted functions of all modules of this library; collected anew only after an import."""
    if len(sys.modules) != _registry.modules:
        _registry.modules = len(sys.modules)
        ours = [module for name, module in list(sys.modules.items()) if name.split(".")[0] == "jaxsvm"]
        jitted = [f for module in ours for f in vars(module).values() if hasattr(f, "clear_cache") and f is not Program]
        _registry.functions = list({id(f): f for f in jitted}.values())
    return _registry.functions
