"""What shows in programs before they are compiled, on any machine, and goes wrong on GPUs and TPUs only."""

import contextlib
import sysconfig
import traceback
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax._src.interpreters import mlir
from jax.extend.core import ClosedJaxpr, Jaxpr

HOUSE = Path(__file__).resolve().parent.parent / "jaxsvm"
INSTALLED = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), sysconfig.get_path("stdlib")}
PRODUCTS = {"matmul", "dot", "vdot", "inner", "tensordot", "einsum", "_einsum"}
"""Functions of `jax.numpy`. Their jaxprs are kept, with the line of whoever called them first."""


@contextlib.contextmanager
def watched(look: Callable[[ClosedJaxpr], None]) -> Iterator[None]:
    """Call `look` with the jaxpr of each program that JAX lowers, also of single operations and host drivers."""
    lower = mlir.lower_jaxpr_to_module

    def seen(name: str, jaxpr: ClosedJaxpr, *rest: Any, **named: Any) -> Any:
        look(jaxpr)
        return lower(name, jaxpr, *rest, **named)

    mlir.lower_jaxpr_to_module = seen
    try:
        yield
    finally:
        mlir.lower_jaxpr_to_module = lower


def in_full_precision(jaxpr: ClosedJaxpr) -> None:
    """Refuse matrix products of the library with fewer digits than their dtype: the default of GPUs and TPUs."""
    found = sorted({place for place in narrow_products(jaxpr.jaxpr, None) if place.startswith(str(HOUSE))})
    assert found == [], f"multiply by `matmul` of numerics/precision.py at {', '.join(found)}"


def narrow_products(jaxpr: Jaxpr, around: str | None) -> Iterator[str]:
    """The lines of products below the highest precision. A sum over two vectors is none, but becomes one in a `vmap`
    that only one of them has lanes in, or as a derivative."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            contracted, batched = equation.params["dimension_numbers"]
            is_sum = all(
                variable.aval.ndim == len(inner) + len(lanes)
                for variable, inner, lanes in zip(equation.invars, contracted, batched, strict=True)
            )
            highest = equation.params["precision"] == (jax.lax.Precision.HIGHEST,) * 2
            if not (is_sum or highest) and jnp.issubdtype(equation.outvars[0].aval.dtype, jnp.inexact):
                here = reversed(traceback.extract_stack())  # an operation by itself has no line of its own
                yield around or written(equation) or line_of((frame.filename, frame.lineno) for frame in here) or ""
        for inner in inside(equation):
            is_product = equation.params.get("name") in PRODUCTS
            yield from narrow_products(inner.jaxpr, around or written(equation) if is_product else around)


def written(equation: Any) -> str | None:
    tracked = getattr(equation.source_info.traceback, "frames", ())
    return line_of((frame.file_name, frame.line_num) for frame in tracked)


def line_of(frames: Any) -> str | None:
    """The innermost line outside JAX, and outside other packages and these watchers."""
    for file, line in frames:
        others = any(file.startswith(f"{folder}/") for folder in INSTALLED) or file.startswith("<") or file == __file__
        if file.startswith(str(HOUSE)) or not others:
            return f"{file}:{line}"
    return None


def inside(equation: Any) -> Iterator[ClosedJaxpr]:
    for given in equation.params.values():
        for part in given if isinstance(given, tuple | list) else (given,):
            if isinstance(part, ClosedJaxpr):  # first: since JAX 0.12 each is both
                yield part
            elif isinstance(part, Jaxpr):
                yield ClosedJaxpr(part, [None] * len(part.constvars))


@contextlib.contextmanager
def without_reading_back() -> Iterator[None]:
    """Refuse programs with constants that JAX would copy from a device when it lowers them: a transfer guard
    forbids that. On a CPU it forbids nothing, since nothing is copied. JAX keeps what `jax.device_get` has read."""
    get, read = jax.device_get, {}

    def reading(tree: Any) -> Any:
        read.update({id(leaf): weakref.ref(leaf) for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array)})
        return get(tree)

    def look(jaxpr: ClosedJaxpr) -> None:
        if jax.config.jax_transfer_guard_device_to_host == "disallow":
            unread = [leaf for leaf in constants(jaxpr) if read.get(id(leaf), lambda: None)() is not leaf]
            assert unread == [], f"constants on a device: {[jax.typeof(leaf) for leaf in unread]}"

    with watched(look):
        jax.device_get = reading
        try:
            yield
        finally:
            jax.device_get = get


def constants(jaxpr: ClosedJaxpr) -> Iterator[jax.Array]:
    yield from (leaf for leaf in jaxpr.consts if isinstance(leaf, jax.Array))
    for equation in jaxpr.jaxpr.eqns:
        for inner in inside(equation):
            yield from constants(inner)
