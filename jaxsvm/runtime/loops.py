"""Loops that work inside a user's `jax.shard_map`, which checks whether each carry varies from device to device.

A carry that starts as a constant and becomes something that varies changes its type there (`check_vma=True`, the
default). Inside a `shard_map` these loops mark every carry as varying along the mapped axes; elsewhere they are JAX's
own loops.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Bool

from jaxsvm.errors import is_concrete
from jaxsvm.runtime.arrays import promoting

_T = TypeVar("_T")


def while_loop(goes_on: Callable[[_T], Any], turn: Callable[[_T], _T], start: _T) -> _T:
    """Repeat `turn` while `goes_on(carry)` holds, as `lax.while_loop` does."""
    return lax.while_loop(goes_on, _with_varying_results(turn), varying(start))


def fori_loop(lower: Any, upper: Any, turn: Callable[[Any, _T], _T], start: _T, unroll: int | None = None) -> _T:
    """Apply `turn(i, carry)` for each integer from `lower` to `upper - 1`, as `lax.fori_loop` does."""
    return lax.fori_loop(lower, upper, _with_varying_results(turn), varying(start), unroll=unroll)


def scan(turn: Callable[[Any, Any], tuple[Any, Any]], start: Any, xs: Any) -> tuple[Any, Any]:
    """Apply `turn(carry, x)` to each row of `xs` and stack the outputs, as `lax.scan` does."""
    return lax.scan(_with_varying_results(turn), varying(start), xs)


def cond(condition: Bool[Array, ""], if_true: Callable[..., _T], if_false: Callable[..., _T], *operands: Any) -> _T:
    """Compute one of two branches, as `lax.cond` does."""
    return lax.cond(condition, _with_varying_results(if_true), _with_varying_results(if_false), *operands)


def _with_varying_results(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments: varying(function(*arguments))


def in_groups(together: int, function: Callable[..., _T], *arguments: Any) -> _T:
    """Return `function(*arguments)`; lanes of `vmap` are computed in groups, one after another, as by `lax.map`.

    Side by side, every lane of a loop takes turns until the last one ends, and the memory of all lanes passes through
    the caches at each operation. An accelerator takes all lanes at once. The function must not be differentiated.
    `together` is the largest number of lanes side by side; 1: one by one.
    """
    if jax.default_backend() != "cpu":
        return function(*arguments)
    leaves, structure = jax.tree.flatten(arguments)
    flags = [not is_concrete(leaf) for leaf in leaves]

    def of_traced(*traced: Any) -> _T:
        own = iter(traced)
        pairs = zip(leaves, flags, strict=True)
        return function(*structure.unflatten([next(own) if flag else leaf for leaf, flag in pairs]))

    return _grouped(of_traced, together)(*[leaf for leaf, flag in zip(leaves, flags, strict=True) if flag])


def _grouped(function: Callable[..., _T], together: int) -> Callable[..., _T]:
    """Return a function of arrays that computes at most so many lanes side by side."""
    call = custom_vmap(function)

    @call.def_vmap
    @promoting()
    def _(axis_size: int, batched: list[bool], *traced: Any) -> tuple[_T, Any]:
        if axis_size == 1:  # a program without lanes is smaller
            lane = [leaf[0] if flag else leaf for leaf, flag in zip(traced, batched, strict=True)]
            results = jax.tree.map(lambda leaf: leaf[None], call(*lane))
            return results, jax.tree.map(lambda _: True, results)
        groups = -(-axis_size // together)
        size = -(-axis_size // groups)
        lanes = function if size == 1 else jax.vmap(function, in_axes=[0 if flag else None for flag in batched])
        of_group = _grouped(lanes, max(1, together // size))  # an outer vmap finds lanes of a whole group
        if groups == 1:
            results = of_group(*traced)
        else:
            places = jnp.minimum(jnp.arange(groups * size, dtype=jnp.int32), axis_size - 1)  # the last lane fills up
            cut = (groups,) if size == 1 else (groups, size)

            def split(leaf: Any) -> Any:
                leaf = leaf if len(places) == axis_size else leaf[places]
                return leaf.reshape(cut + leaf.shape[1:])

            def one(group: list[Any]) -> _T:
                own = iter(group)
                return of_group(*[next(own) if flag else leaf for leaf, flag in zip(traced, batched, strict=True)])

            results = lax.map(one, [split(leaf) for leaf, flag in zip(traced, batched, strict=True) if flag])
            merge = lambda leaf: leaf.reshape((-1, *leaf.shape[len(cut) :]))[:axis_size]  # noqa: E731
            results = jax.tree.map(merge, results)
        return results, jax.tree.map(lambda _: True, results)

    return call


def varying(tree: _T) -> _T:
    """Mark every array of a tree as varying along all axes that a surrounding `shard_map` maps over."""
    for axis in jax.sharding.get_abstract_mesh().manual_axes:
        tree = jax.tree.map(lambda leaf, axis=axis: _varying(leaf, axis), tree)
    return tree


def _varying(leaf: Any, axis: str) -> Any:
    try:
        return lax.pcast(leaf, axis, to="varying")
    except ValueError:  # it varies already
        return leaf


def once(condition: Bool[Array, ""], compute: Callable[[_T], _T], value: _T) -> _T:
    """Return `compute(value)` if the condition holds, else `value`.

    This is a loop of at most one turn. Under `vmap` a `lax.cond` computes both branches always; this loop computes only
    if the condition holds in at least one lane.
    """
    captured: list[Any] = []
    if (
        not jax.sharding.get_abstract_mesh().manual_axes
    ):  # in a `shard_map` the converted function would mark as varying what varies already
        compute, captured = jax.closure_convert(compute, value)

    def turn(carry: tuple[Bool[Array, ""], _T]) -> tuple[Bool[Array, ""], _T]:
        # What is captured is tied to the carry: XLA computes what a loop does not change before it, even if it takes no
        # turn, and in lanes that is most of a polish.
        value, tied = lax.optimization_barrier((carry[1], captured))
        return jnp.asarray(False), compute(value, *tied)

    return while_loop(lambda carry: carry[0], turn, (condition, value))[1]
