"""Kernels of the inner product of two points."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxsvm.errors import InputError, is_concrete
from jaxsvm.kernels.contract import Kernel
from jaxsvm.kernels.parameters import parameter, pytree, require_number, require_positive
from jaxsvm.numerics.distances import PRECISION


@pytree
@dataclasses.dataclass(frozen=True)
class Linear(Kernel):
    """`x . z`."""

    definite = True

    def matrix(self, x: Array, z: Array, **how: Any) -> Array:
        """`(n, m)`."""
        del how
        return _inner(x, z)

    def diag(self, x: Array) -> Array:
        """`(n,)`."""
        return (x * x).sum(axis=1)


@pytree
@dataclasses.dataclass(frozen=True)
class Polynomial(Kernel):
    """`(gamma x . z + coef0) ** degree`; homogeneous where `coef0` is 0.

    Attributes:
        degree: A positive integer; static.
        gamma: Scale of the inner product, `()`.
        coef0: Constant, >= 0, `()`.
    """

    degree: int = dataclasses.field(default=3, metadata={"static": True})
    gamma: Any = 1.0
    coef0: Any = 1.0

    definite = True

    def __post_init__(self) -> None:
        if not isinstance(self.degree, int | np.integer) or self.degree < 1:
            raise InputError(f"degree is {self.degree!r}: a positive integer is needed.")
        require_number("gamma", self.gamma)
        require_positive("gamma", self.gamma)
        require_number("coef0", self.coef0)
        if is_concrete(self.coef0) and np.any(np.asarray(self.coef0) < 0):
            raise InputError(f"coef0 is {self.coef0}: >= 0 is needed.")

    def matrix(self, x: Array, z: Array, **how: Any) -> Array:
        """`(n, m)`."""
        del how
        return (parameter(self.gamma, x) * _inner(x, z) + parameter(self.coef0, x)) ** self.degree

    def diag(self, x: Array) -> Array:
        """`(n,)`."""
        squares = (x * x).sum(axis=1)
        return (parameter(self.gamma, x) * squares + parameter(self.coef0, x)) ** self.degree


@pytree
@dataclasses.dataclass(frozen=True)
class Sigmoid(Kernel):
    """`tanh(gamma x . z + coef0)`: positive semidefinite for few parameters only; a fit says NOT_PSD where it shows.

    Attributes:
        gamma: Scale of the inner product, `()`.
        coef0: Constant, `()`.
    """

    gamma: Any = 1.0
    coef0: Any = 0.0

    def __post_init__(self) -> None:
        require_number("gamma", self.gamma)
        require_number("coef0", self.coef0)

    def matrix(self, x: Array, z: Array, **how: Any) -> Array:
        """`(n, m)`."""
        del how
        return jnp.tanh(parameter(self.gamma, x) * _inner(x, z) + parameter(self.coef0, x))

    def diag(self, x: Array) -> Array:
        """`(n,)`."""
        squares = (x * x).sum(axis=1)
        return jnp.tanh(parameter(self.gamma, x) * squares + parameter(self.coef0, x))


def _inner(x: Array, z: Array) -> Array:
    return jnp.matmul(x, z.T, precision=PRECISION)
