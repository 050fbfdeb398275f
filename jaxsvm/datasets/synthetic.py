"""Synthetic points for examples and tests."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from numpy.typing import DTypeLike

from jaxsvm.errors import InputError
from jaxsvm.runtime.arrays import transfers


@transfers
def two_gaussians(
    key: Array, n: int, d: int, *, separation: float = 3.0, dtype: DTypeLike = float
) -> tuple[Float[Array, "n d"], Float[Array, " n"]]:
    """Draw two round Gaussian clouds, in random order: the smallest problem with a known solution.

    Args:
        key: A JAX random key.
        n: Number of points, at least 2; `n // 2` of them are negative.
        d: Number of columns.
        separation: Distance between the means, in standard deviations; they lie on the diagonal, opposite each other
            about the origin. The best possible error is `Phi(-separation / 2)`: 6.7 % at 3.
        dtype: Floating dtype; by default JAX's own.

    Returns:
        Points `(n, d)` and signs `(n,)`.

    Raises:
        InputError: If `n < 2` or `d < 1`.
    """
    if n < 2 or d < 1:
        raise InputError(f"n is {n} and d is {d}: n >= 2 and d >= 1 are needed.")
    dtype = jax.dtypes.canonicalize_dtype(dtype)
    order, noise = jax.random.split(key)
    y = jax.random.permutation(order, jnp.where(jnp.arange(n) < n // 2, -1, 1)).astype(dtype)
    centre = jnp.asarray(separation, dtype) / (2 * math.sqrt(d))
    return y[:, None] * centre + jax.random.normal(noise, (n, d), dtype), y
