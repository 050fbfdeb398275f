"""Kernels of the inner product of two points."""

import dataclasses
from typing import Unpack

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxsvm.errors import InputError, is_concrete
from jaxsvm.kernels.contract import Kernel, Known
from jaxsvm.kernels.parameters import floats, parameter, pytree, require_number, require_positive
from jaxsvm.numerics.products import matmul
from jaxsvm.runtime.arrays import Number, transfers


class _OfInnerProducts(Kernel):
    """A function of `x . z`."""

    @transfers
    def matrix(self, x: Array, z: Array, **how: Unpack[Known]) -> Array:
        """Compute the function of every inner product, `(n, m)`."""
        del how
        return self._of(matmul(floats(x), floats(z).T))

    @transfers
    def diag(self, x: Array) -> Array:
        """Compute the function of every squared norm, `(n,)`."""
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
        require_number("coef0", self.coef0)
        if is_concrete(self.coef0) and np.any(np.asarray(self.coef0) < 0):
            raise InputError(f"coef0 is {self.coef0}: >= 0 is needed.")

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
