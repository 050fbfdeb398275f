"""Twice the precision where something is decided: float64 for float32 data, whatever the caller's x64 flag says.

Steps run in the dtype of the data. What decides (products from scratch, certificates, polishes) runs in float64 inside
`in_double`, which turns x64 on for the operations of one function and for nothing else: what goes in and what comes out
has the caller's dtypes, so that no float64 array ever reaches a caller who has x64 off. It works inside `jit`, loops
and `vmap`; what is computed in it has no derivative (`jaxsvm.derivatives.rule` gives those of a solution).

A TPU has no float64: there everything stays in the data's dtype, and allowances grow with it.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jaxtyping import Array

_T = TypeVar("_T")


def in_double(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with float64 at hand; its arguments and results keep their dtypes.

    Args:
        function: Of pytrees of arrays to a pytree of arrays. What it returns must not be float64 where its arguments
            are not (`like` rounds).

    Returns:
        The function. Batching a loop traces its body again, with the caller's flag; an operation of the kind that
        `custom_vmap` makes is not looked into then, but batched as a whole, with x64 on.
    """

    def call(*arguments: Any) -> Any:
        if jax.config.jax_enable_x64:  # pyright: ignore[reportAttributeAccessIssue]
            return function(*arguments)
        leaves, tree = jax.tree.flatten(arguments)
        return _of_leaves(lambda *leaves: function(*jax.tree.unflatten(tree, leaves)))(*leaves)

    return call


def _of_leaves(function: Callable[..., Any]) -> Callable[..., Any]:
    @custom_vmap
    def call(*leaves: Any) -> Any:
        with jax.enable_x64(True):
            return function(*leaves)

    @call.def_vmap
    def batched(axis_size: int, in_batched: Any, *leaves: Any) -> tuple[Any, Any]:
        axes = tuple(0 if moves else None for moves in in_batched)
        out = _of_leaves(jax.vmap(function, in_axes=axes, axis_size=axis_size))(*leaves)
        return out, jax.tree.map(lambda _: True, out)

    return call


def precisely(function: Callable[..., Array]) -> Callable[..., Array]:
    """A function of a vector (and more) whose value is computed from the vector in twice the precision.

    Args:
        function: Whose result follows the dtype of its first argument, a vector.

    Returns:
        The function; its result is rounded to the dtype that it had, its derivatives are the plain function's.
    """

    @jax.custom_jvp
    def call(vector: Array, *rest: Any) -> Array:
        dtype = jax.eval_shape(function, vector, *rest).dtype
        if jnp.finfo(vector.dtype).bits >= 64:
            return function(vector, *rest)
        wide = in_double(lambda vector, *rest: function(vector.astype(double(vector.dtype)), *rest).astype(dtype))
        return wide(vector, *rest)

    @call.defjvp
    def _(primals: Any, tangents: Any) -> tuple[Array, Array]:
        return call(*primals), jax.jvp(function, primals, tangents)[1]

    return call


def double(dtype: Any) -> Any:
    """Twice the precision of a dtype, where the backend has it. To be asked inside `in_double`."""
    return jnp.dtype(dtype) if jax.default_backend() == "tpu" else jnp.dtype(jnp.float64)


def widened(problem: Any) -> Any:
    """A problem whose vectors are in float64; its Gram operator stays as it is stored, but for what costs nothing."""
    wide = double(problem.dtype)
    changed = {
        field.name: _wide_part(getattr(problem, field.name), wide)
        for field in dataclasses.fields(problem)
        if not field.metadata.get("static")
    }
    return dataclasses.replace(problem, **changed)


def like(tree: _T, old: Any) -> _T:
    """A tree whose leaves have the dtypes of another."""
    return jax.tree.map(_as, tree, old)


def rounded(x: Array, dtype: Any) -> Array:
    """The nearest numbers of a narrower dtype, in the dtype of x: what a caller gets is what was computed with."""
    return x.astype(dtype).astype(x.dtype)


def whole(kept: _T, rest: _T, dtype: Any) -> _T:
    """Numbers known to twice the precision of their dtype, in a wider one: what is kept, and its `remainder`."""
    return jax.tree.map(lambda a, b: _cast(a, dtype) + _cast(b, dtype), kept, rest)


def remainder(values: _T, kept: Any) -> _T:
    """What the dtypes of `kept` cannot hold of values (nothing of an infinite one)."""
    return jax.tree.map(lambda new, old: jnp.where(jnp.isfinite(new), new - rounded(new, old.dtype), 0), values, kept)


def rounding(n: int, dtype: Any) -> float:
    """What a product of n terms may be off by, in units of the sum of their sizes: a dot product's partial sums.

    Sums are taken in at least 64 parts (vector lanes and tiles), each a random walk of n / 64 roundings at most.
    """
    return float(jnp.finfo(dtype).eps) * (1 + n**0.5 / 64)


def _wide_part(part: Any, dtype: Any) -> Any:
    """A Gram operator knows what it is in a wider dtype; vectors are cast."""
    if hasattr(part, "widened"):
        return part.widened(dtype)
    return jax.tree.map(lambda leaf: _cast(leaf, dtype), part)


def _cast(leaf: Any, dtype: Any) -> Any:
    return leaf.astype(dtype) if jnp.issubdtype(jnp.result_type(leaf), jnp.floating) else leaf


def _as(new: Any, before: Any) -> Any:
    same = jnp.issubdtype(jnp.result_type(before), jax.dtypes.prng_key)
    return new if same else jnp.asarray(new).astype(jnp.result_type(before))
