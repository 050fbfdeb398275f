"""Move arrays between NumPy and JAX, lengthen and shorten them, without compiling a program for each size."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxsvm.errors import is_concrete


def lengthened(values: Any, size: int, fill: Any = None) -> Any:
    """An array with more entries along its first axis; placed where it was.

    Args:
        values: Concrete, at least one entry.
        size: How many entries it is to have.
        fill: Those that are added; None: the first one.
    """
    there = np.asarray(values)
    if len(there) == size and isinstance(values, jax.Array):
        return values
    more = there[:1] if fill is None else np.full_like(there[:1], fill)
    return on_device(np.concatenate([there, np.repeat(more, size - len(there), axis=0)]), values)


def first_rows(values: Any, n: int) -> Any:
    """The first n entries of an array along its first axis."""
    if len(values) == n or not is_concrete(values):
        return values[:n]
    return on_device(np.asarray(values)[:n], values)


def shortened(tree: Any, n: int, size: int) -> Any:
    """A tree whose vectors of `size` entries, along the last axis, have n."""
    if n == size:
        return tree

    def cut(leaf: Any) -> Any:
        if np.shape(leaf)[-1:] != (size,):
            return leaf
        if not is_concrete(leaf):  # of values that a user's program closes over
            return leaf[..., :n]
        return on_device(np.ascontiguousarray(np.asarray(leaf)[..., :n]), leaf)

    return jax.tree.map(cut, tree)


def may_be_padded(values: Any) -> bool:
    """Whether an array lies on one device: what is spread over several stays as it is."""
    return not isinstance(values, jax.Array) or len(values.sharding.device_set) == 1


def on_device(values: np.ndarray, like: Any = None) -> Any:
    """A NumPy array that nobody will change, as JAX's, in the dtype that it has: `jnp.array` compiles for every size.

    Args:
        values: The array.
        like: Where another array was put, this one goes too.
    """
    with jax.enable_x64(True), jax.ensure_compile_time_eval():  # a value, in a user's program too
        return jax.device_put(values, like.sharding if getattr(like, "committed", False) else None)


def owned(values: Any, dtype: Any) -> Any:
    """What a caller hands over as JAX's, in a dtype: their NumPy memory, which they may change later, is copied."""
    if isinstance(values, jax.Array) or not is_concrete(values):
        return jnp.asarray(values, dtype)
    return on_device(np.array(values, dtype))


def floating(dtype: Any) -> Any:
    """What to compute in: float32 at least, float64 for float64 (where x64 is on); JAX's default float for integers.

    Shorter floats (float16, bfloat16, 8 bits) are promoted to float32, which holds each of their values: sums and
    certificates in 8 or 11 bits prove nothing. Longer ones become float64.
    """
    if not jnp.issubdtype(dtype, jnp.floating):
        return jax.dtypes.canonicalize_dtype(float)
    return jax.dtypes.canonicalize_dtype(np.float32 if jnp.dtype(dtype).itemsize <= 4 else np.float64)
