"""Loops that a user's `jax.shard_map` may hold: it asks of every carry whether it varies from device to device.

A carry that begins as a constant and goes on as what varies has two types there (`check_vma=True`, the default). Inside
a `shard_map` these loops let all they carry vary along the axes that are mapped over; elsewhere they are JAX's own.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
from jax import lax
from jaxtyping import Array, Bool

_T = TypeVar("_T")


def while_loop(goes_on: Callable[[_T], Any], turn: Callable[[_T], _T], start: _T) -> _T:
    """Take turns while a condition holds, as `lax.while_loop` does.

    Args:
        goes_on: Whether another turn is taken, of the carry.
        turn: The carry after another turn.
        start: The carry before the first.
    """
    if not _mapped_axes():
        return lax.while_loop(goes_on, turn, start)
    return lax.while_loop(goes_on, lambda carry: varying(turn(carry)), varying(start))


def fori_loop(lower: Any, upper: Any, turn: Callable[[Any, _T], _T], start: _T, unroll: int | None = None) -> _T:
    """Take a turn for each integer from `lower` to `upper - 1`, as `lax.fori_loop` does."""
    if not _mapped_axes():
        return lax.fori_loop(lower, upper, turn, start, unroll=unroll)
    return lax.fori_loop(lower, upper, lambda i, carry: varying(turn(i, carry)), varying(start), unroll=unroll)


def scan(
    turn: Callable[[Any, Any], tuple[Any, Any]], start: Any, xs: Any, length: int | None = None
) -> tuple[Any, Any]:
    """Take a turn for each row of `xs` and stack what it gives, as `lax.scan` does."""
    if not _mapped_axes():
        return lax.scan(turn, start, xs, length)

    def moved(carry: Any, x: Any) -> tuple[Any, Any]:
        new, out = turn(carry, x)
        return varying(new), out

    return lax.scan(moved, varying(start), xs)


def cond(condition: Bool[Array, ""], if_true: Callable[..., _T], if_false: Callable[..., _T], *operands: Any) -> _T:
    """Compute one of two branches, as `lax.cond` does."""
    if not _mapped_axes():
        return lax.cond(condition, if_true, if_false, *operands)
    branches = [lambda *here, of=of: varying(of(*here)) for of in (if_true, if_false)]
    return lax.cond(condition, *branches, *operands)


def varying(tree: _T) -> _T:
    """Let every array of a tree vary along all axes that a `shard_map` around it maps over; it may already."""
    for axis in _mapped_axes():
        tree = jax.tree.map(lambda leaf, axis=axis: _varying(leaf, axis), tree)
    return tree


def _mapped_axes() -> tuple[str, ...]:
    return jax.sharding.get_abstract_mesh().manual_axes


def _varying(leaf: Any, axis: str) -> Any:
    try:
        return lax.pcast(leaf, axis, to="varying")
    except ValueError:  # it varies already
        return leaf
