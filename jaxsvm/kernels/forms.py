"""The kernels of the inner product, and of the difference, of two points."""

import dataclasses
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array

from jaxsvm.errors import InputError, is_concrete
from jaxsvm.kernels.contract import Kernel, Known, floats, parameter, pytree, require_number, require_positive
from jaxsvm.kernels.distances import by_differences, squared_distances
from jaxsvm.numerics.precision import matmul
from jaxsvm.points.rows import Points, entrywise, product
from jaxsvm.runtime.arrays import Number, floating, is_tracing, transfers


class _OfInnerProducts(Kernel):
    """A function of `x . z`."""

    @transfers
    def matrix(self, x: Array, z: Array, **how: Unpack[Known]) -> Array:
        del how
        return self._of(matmul(floats(x), floats(z).T))

    @transfers
    def diag(self, x: Array) -> Array:
        return self._of(jnp.square(floats(x)).sum(axis=1))

    def _of(self, products: Array) -> Array:
        raise NotImplementedError


@pytree
@dataclasses.dataclass(frozen=True)
class Linear(_OfInnerProducts):
    """`x . z`."""

    definite = True
    linear = True

    def _of(self, products: Array) -> Array:
        return products


@pytree
@dataclasses.dataclass(frozen=True)
class Polynomial(_OfInnerProducts):
    """`(gamma x . z + coef0) ** degree`; homogeneous if `coef0` is 0.

    Attributes:
        degree: A positive integer; static.
        gamma: Scale of the inner product, `()`.
        coef0: Constant, >= 0, `()`.
    """

    degree: int = dataclasses.field(default=3, metadata={"static": True})
    gamma: Number = 1.0
    coef0: Number = 1.0

    definite = True

    def __post_init__(self) -> None:
        if not isinstance(self.degree, int | np.integer) or self.degree < 1:
            raise InputError(f"degree is {self.degree!r}: a positive integer is needed.")
        require_number("gamma", self.gamma)
        require_positive("gamma", self.gamma)
        require_number("coef0", self.coef0, least=0.0)

    def _of(self, products: Array) -> Array:
        return (parameter(self.gamma, products) * products + parameter(self.coef0, products)) ** self.degree


@pytree
@dataclasses.dataclass(frozen=True)
class Sigmoid(_OfInnerProducts):
    """`tanh(gamma x . z + coef0)`, positive semidefinite for few parameters only: a fit may end as NOT_PSD.

    Attributes:
        gamma: Scale of the inner product, `()`.
        coef0: Constant, `()`.
    """

    gamma: Number = 1.0
    coef0: Number = 0.0

    def __post_init__(self) -> None:
        require_number("gamma", self.gamma)
        require_number("coef0", self.coef0)

    def _of(self, products: Array) -> Array:
        return jnp.tanh(parameter(self.gamma, products) * products + parameter(self.coef0, products))


@dataclasses.dataclass(frozen=True)
class _Stationary(Kernel):
    """A function of `gamma_k |x_k - z_k|` that is 1 at 0, with a non-negative spectrum."""

    gamma: Number | np.ndarray

    stationary = True
    definite = True

    def __post_init__(self) -> None:
        require_positive("gamma", self.gamma)

    @transfers
    def diag(self, x: Array) -> Array:
        ones = np.ones if is_concrete(x) and not is_tracing() else jnp.ones  # NumPy's compile nothing
        return jnp.asarray(ones(x.shape[0], floating(x.dtype)))


@pytree
@dataclasses.dataclass(frozen=True)
class RBF(_Stationary):
    """`exp(-sum_k gamma_k (x_k - z_k)^2)`.

    Attributes:
        gamma: Positive, `()`, or one a feature, `(d,)` (automatic relevance determination).
    """

    @transfers
    def matrix(self, x: Array, z: Array, **how: Unpack[Known]) -> Array:
        """Compute the kernel of every pair, `(n, m)`; `jaxsvm.kernels.distances` states the accuracy."""
        return jnp.exp(-squared_distances(floats(x), floats(z), _weights(self.gamma, x), **how))

    def reach(self, x: Points) -> Array:
        """Compute `sqrt(sum_k gamma_k x_k^2)`, `(n,)`."""
        return jnp.sqrt(product(entrywise(jnp.square, x), _per_feature(self.gamma, x)))

    def frequencies(self, key: Array, d: int, rank: int, dtype: DTypeLike) -> Array:
        """Draw from a normal distribution, `(d, rank)`."""
        scale = jnp.sqrt(2 * jnp.broadcast_to(jnp.asarray(self.gamma, dtype), (d,)))
        return scale[:, None] * jax.random.normal(key, (d, rank), dtype)


@pytree
@dataclasses.dataclass(frozen=True)
class Laplacian(_Stationary):
    """`exp(-sum_k gamma_k |x_k - z_k|)`.

    Attributes:
        gamma: Positive, `()` or `(d,)`.
    """

    @transfers
    def matrix(self, x: Array, z: Array, **how: Unpack[Known]) -> Array:
        del how
        return jnp.exp(-by_differences(floats(x), floats(z), _weights(self.gamma, x), jnp.abs))

    def reach(self, x: Points) -> Array:
        """Compute `sum_k gamma_k |x_k|`, `(n,)`."""
        return product(entrywise(jnp.abs, x), _per_feature(self.gamma, x))

    def frequencies(self, key: Array, d: int, rank: int, dtype: DTypeLike) -> Array:
        """Draw from a Cauchy distribution, `(d, rank)`."""
        scale = jnp.broadcast_to(jnp.asarray(self.gamma, dtype), (d,))
        return scale[:, None] * jax.random.cauchy(key, (d, rank), dtype)


def _per_feature(gamma: Any, x: Points) -> Array:
    values, d = parameter(gamma, x), x.shape[1]
    if values.shape not in ((), (1,), (d,)):
        raise InputError(f"gamma has shape {values.shape}: one number, or one a feature ({d},), is needed.")
    return jnp.broadcast_to(values, (d,))


def _weights(gamma: Any, x: Array) -> Array:
    return _per_feature(gamma, x) if jnp.ndim(gamma) else parameter(gamma, x)
