"""Size classes: a compiled program has one shape, and one for each power of two wastes half of it at the most."""

from collections.abc import Callable
from functools import partial
from typing import Any

from jaxtyping import Array, Int

from jaxsvm.numerics.once import once

SMALLEST = 256
"""Below, a system costs what it costs to start it."""


def size_classes(limit: int) -> tuple[int, ...]:
    """Powers of two from `SMALLEST` on that are below a limit, and the limit."""
    sizes, size = [], SMALLEST
    while size < limit:
        sizes.append(size)
        size *= 2
    return (*sizes, limit)


def in_smallest(
    sizes: tuple[int, ...], count: Int[Array, ""], compute: Callable[[int, Any], Any], value: Any, allowed: Any = True
) -> Any:
    """`compute(size, value)` with the smallest of some sizes that holds a count; the value where none does.

    Args:
        sizes: Increasing; static.
        count: How many there are to hold.
        compute: Of a static size and the value, to another value.
        value: A pytree of arrays.
        allowed: False leaves the value as it is, `()`.
    """
    below = -1
    for size in sizes:
        value = once((count > below) & (count <= size) & allowed, partial(compute, size), value)
        below = size
    return value
