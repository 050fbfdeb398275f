"""Size classes: a compiled program has one shape, and one for each power of two wastes half of it at the most."""

from collections.abc import Callable
from functools import partial
from typing import Any

from jaxtyping import Array, Int

from jaxsvm.runtime.once import once

SMALLEST = 256
"""Below, a system costs what it costs to start it."""
LEAST = 64
"""Sizes of padded data sets are multiples of it."""
SHARES = ((1024, 4), (8192, 32))
"""Up to so many samples there are so many sizes between two powers of two: a small fit takes less time than its
programs, a large one is not to take longer. More samples are not padded: at n = 10,000 a pair step took 4 to 9 % longer
for a mask and one percent of samples."""
LARGEST = SHARES[-1][0]


def size_class(n: int) -> int:
    """How many samples n of them are padded to (`jaxsvm.problems.padding`): up to 127 more, a quarter of a small n."""
    if n < 1:
        return n
    for limit, share in SHARES:
        if n <= limit:
            step = max(LEAST if n <= 1024 else LEAST // 2, 2 ** ((n - 1).bit_length() - 1) // share)
            return -(-n // step) * step
    return n


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
