"""Build Gram operators of one kernel at several widths; where they fit, distances are computed once."""

import dataclasses
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxsvm.errors import InputError, is_concrete
from jaxsvm.gram.operators import DenseGram, Gram, dense_values
from jaxsvm.gram.spread import SpreadGram, of_whole
from jaxsvm.kernels import RBF, Kernel
from jaxsvm.kernels.contract import pytree
from jaxsvm.kernels.distances import is_near, squared_distances
from jaxsvm.runtime.programs import Program


def require_width(gram: Gram) -> Any:
    """Return an operator of a kernel with one width, a number `gamma`.

    Raises:
        InputError: On an operator of another kernel, or of the features of a low-rank one.
    """
    kernel = getattr(gram, "kernel", None)
    if np.ndim(getattr(kernel, "gamma", [])):
        raise InputError(f"gammas: the problem's kernel is {kernel!r}: one with a number `gamma`, as `RBF`, is needed.")
    if gram.rank is not None:
        raise InputError("gammas: landmarks of a low-rank Gram are for one width: build the Gram without `rank`.")
    return gram


def at_width(gram: Gram, gamma: Any) -> Gram:
    """Return the operator at another width, traced or not; stored values are computed again."""
    held = require_width(gram)
    if isinstance(held, SpreadGram):
        return of_whole(partial(at_width, gamma=gamma), held)
    kernel = dataclasses.replace(held.kernel, gamma=gamma)
    near = is_concrete(kernel, held.x) and is_near(kernel, held.x)
    if not gram.stored:
        return dataclasses.replace(held, kernel=kernel, near=near)
    K = dense_values(kernel, held.x, gram.dtype, near, held.spread)
    return dataclasses.replace(held, kernel=kernel, K=K, near=near)


def at_widths(gram: Gram, gammas: Sequence[float], store: bool) -> Iterator[Any]:
    """Yield the operator at each width, one after another.

    Distances are computed once if the values will be stored, and they fit too.
    """
    held, largest = require_width(gram), max(gammas)
    if isinstance(held, SpreadGram):
        yield from (SpreadGram(each, held.n) for each in at_widths(held.whole, gammas, store))
        return
    twice = 2 * gram.n**2 * jnp.dtype(gram.dtype).itemsize
    fits = gram.stored or (gram.may_store and twice <= held.memory)
    if not (store and fits and isinstance(held.kernel, RBF) and len(gammas) > 1):
        yield from (at_width(gram, gamma) for gamma in gammas)
        return
    near = is_near(RBF(largest), held.x)
    distances = dense_values(_Exponent(largest), held.x, gram.dtype, near, held.spread)
    for gamma in gammas:
        K = _values(distances, gamma / largest)
        yield DenseGram(RBF(gamma), held.x, held.shift, K, near, spread=held.spread)


@pytree
@dataclasses.dataclass(frozen=True)
class _Exponent(Kernel):
    """`gamma |x - z|^2`, the exponent of an RBF kernel."""

    gamma: Any

    def matrix(self, x: Array, z: Array, **how: Any) -> Array:
        return squared_distances(x, z, jnp.asarray(self.gamma, x.dtype), **how)

    def diag(self, x: Array) -> Array:
        return jnp.zeros(x.shape[0], x.dtype)


@Program
def _values(distances: Float[Array, "n n"], share: Any) -> Float[Array, "n n"]:
    return jnp.exp(-share * distances)
