"""Size classes: programs are compiled for a few sizes only, and smaller data or systems are padded up to one."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Array, Int

from jaxsvm.numerics.measured import MEASURED
from jaxsvm.runtime.loops import once

LARGEST_PADDED = max(limit for limit, _, _ in MEASURED.padded_sizes)  # samples; more are not padded


def size_class(n: int) -> int:
    """Return the padded number of samples, so that similar problems share a compiled program.

    Adds at most 127 samples, or a quarter of a small n (`MEASURED.padded_sizes`).
    """
    if n < 1:
        return n
    for limit, sizes, multiple in MEASURED.padded_sizes:
        if n <= limit:
            step = max(multiple, 2 ** ((n - 1).bit_length() - 1) // sizes)
            return -(-n // step) * step
    return n


def padded_size(n: int, up_to: int = LARGEST_PADDED) -> int:
    """Return the size that n samples, up to a number, are padded to: 64, 96, 128, 192, 256, ..., two a power of two."""
    wide = max(64, 2 ** (n - 1).bit_length())
    return n if n > up_to else wide * 3 // 4 if n <= wide * 3 // 4 and wide > 64 else wide


def size_classes(limit: int) -> tuple[int, ...]:
    """Return the powers of two below a limit, from the smallest system on, and the limit itself."""
    sizes, size = [], MEASURED.smallest_system
    while size < limit:
        sizes.append(size)
        size *= 2
    return (*sizes, limit)


def class_of(count: int, limit: int) -> int:
    """Return the smallest of `size_classes(limit)` that holds a count."""
    return next(size for size in size_classes(limit) if size >= count)


def filled(kept: np.ndarray, present: np.ndarray, size: int) -> np.ndarray:
    """Return the indices of the kept samples, filled up to a size with other samples, absent ones last; on the host."""
    order = np.argsort(np.where(kept, 0, np.where(present, 1, 2)), kind="stable")
    return np.sort(order[:size]).astype(np.int32)


def sizes_of_factors(limit: int) -> tuple[int, ...]:
    """Return the sizes of factors of at most `limit` variables: up to two smallest systems there is only one."""
    return (limit,) if limit <= 2 * MEASURED.smallest_system else size_classes(limit)


def in_smallest(
    sizes: tuple[int, ...], count: Int[Array, ""], compute: Callable[[int, Any], Any], value: Any, allowed: Any = True
) -> Any:
    """Return `compute(size, value)` for the smallest size that holds a count; `value` if none does.

    Sizes increase, and are static. If `allowed` is False, `value` is returned as it is.
    """
    below = -1
    for size in sizes:
        value = once((count > below) & (count <= size) & allowed, partial(compute, size), value)
        below = size
    return value
