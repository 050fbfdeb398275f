"""Kernels of the difference of two points."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxsvm.errors import InputError
from jaxsvm.kernels.contract import Kernel
from jaxsvm.kernels.parameters import parameter, pytree, require_positive
from jaxsvm.numerics.distances import by_differences, squared_distances
from jaxsvm.points import CSR, floating, product


@pytree
@dataclasses.dataclass(frozen=True)
class RBF(Kernel):
    """`exp(-sum_k gamma_k (x_k - z_k)^2)`.

    Attributes:
        gamma: Positive, `()`, or one a feature `(d,)` (automatic relevance determination).
    """

    gamma: Any
    stationary = True

    definite = True

    def __post_init__(self) -> None:
        require_positive("gamma", self.gamma)

    def matrix(self, x: Array, z: Array, **how: Any) -> Array:
        """`(n, m)`; see `jaxsvm.numerics.distances` for what the entries are worth."""
        return jnp.exp(-squared_distances(_floats(x), _floats(z), _weights(self.gamma, x), **how))

    def reach(self, x: Any) -> Array:
        """`sqrt(sum_k gamma_k x_k^2)`, `(n,)`."""
        return jnp.sqrt(_feature_sums(x, jnp.square, _per_feature(self.gamma, x)))

    def diag(self, x: Array) -> Array:
        """Ones, `(n,)`."""
        return jnp.ones(x.shape[0], floating(x.dtype))


@pytree
@dataclasses.dataclass(frozen=True)
class Laplacian(Kernel):
    """`exp(-sum_k gamma_k |x_k - z_k|)`.

    Attributes:
        gamma: Positive, `()` or `(d,)`.
    """

    gamma: Any
    stationary = True

    definite = True

    def __post_init__(self) -> None:
        require_positive("gamma", self.gamma)

    def matrix(self, x: Array, z: Array, **how: Any) -> Array:
        """`(n, m)`, by differences."""
        del how
        return jnp.exp(-by_differences(_floats(x), _floats(z), _weights(self.gamma, x), jnp.abs))

    def reach(self, x: Any) -> Array:
        """`sum_k gamma_k |x_k|`, `(n,)`."""
        return _feature_sums(x, jnp.abs, _per_feature(self.gamma, x))

    def diag(self, x: Array) -> Array:
        """Ones, `(n,)`."""
        return jnp.ones(x.shape[0], floating(x.dtype))


def _per_feature(gamma: Any, x: Array) -> Array:
    values, d = parameter(gamma, x), x.shape[1]
    if values.shape not in ((), (1,), (d,)):
        raise InputError(f"gamma has shape {values.shape}: one number, or one a feature ({d},), is needed.")
    return jnp.broadcast_to(values, (d,))


def _weights(gamma: Any, x: Array) -> Array:
    """One number, or one a feature."""
    return _per_feature(gamma, x) if jnp.ndim(gamma) else parameter(gamma, x)


def _floats(x: Array) -> Array:
    return x.astype(floating(x.dtype))


def _feature_sums(x: Any, size: Any, weights: Float[Array, " d"]) -> Float[Array, " n"]:
    """`sum_k weights_k size(x_k)` of each row."""
    sizes = dataclasses.replace(x, data=size(x.data)) if isinstance(x, CSR) else size(x)
    return product(sizes, weights)
