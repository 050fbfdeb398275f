"""The primal in the space of features, `w (d,)`: products with X, and the Hessian `I + X' D X`.

Newton, the interior point method and stochastic subgradients use it for kernels with features.
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxsvm.numerics.measured import MEASURED as SIZES
from jaxsvm.numerics.precision import matmul, plus_diagonal
from jaxsvm.points.rows import Rows, product, transposed_product
from jaxsvm.problems.contract import Problem
from jaxsvm.runtime.loops import Spread, fori_loop


def feature_matrix(problem: Problem) -> Any:
    """Return `X (n, d)` with `K = X X'` and d < n, dense or CSR, if the Gram has it; else None."""
    x = problem.gram.design
    return x if x is not None and x.shape[1] < problem.n else None


@dataclasses.dataclass(frozen=True)
class Primal:
    """The primal problem in w."""

    x: Any  # the features, `(n, d)`, dense or CSR
    y: Float[Array, " n"]  # signs
    C: Float[Array, " n"]  # costs of the samples; 0 for absent ones
    constant: bool  # whether w has a last entry for the constant
    free: bool  # whether that entry is unregularised
    spread: Spread | None = None  # how the samples are spread over a mesh

    @property
    def size(self) -> int:
        """Return the number of entries of w."""
        return self.x.shape[1] + self.constant

    @property
    def penalty(self) -> Float[Array, " size"]:
        """Return the curvature of the regulariser, `(size,)`: 1, or 0 for a free constant."""
        ones = jnp.ones((self.size,), self.y.dtype)
        return ones.at[-1].set(0) if self.free else ones

    def product(self, w: Float[Array, " size"]) -> Float[Array, " n"]:
        """Return `X w`, with the constant."""
        values = product(self.x, w[: self.x.shape[1]], self.spread)
        return values + w[-1] if self.constant else values

    def transposed(self, v: Float[Array, " n"]) -> Float[Array, " size"]:
        """Return `X' v`, with the constant."""
        sums = transposed_product(self.x, v)
        return jnp.append(sums, v.sum()) if self.constant else sums

    def hessian(self, D: Float[Array, " n"]) -> Float[Array, "size size"]:
        """Return `diag(penalty) + X' D X`."""
        constant = jnp.ones((len(self.y), int(self.constant)), D.dtype)
        return plus_diagonal(weighted_squares(self.x, constant, D, self.spread), self.penalty)

    def squares(self, D: Float[Array, " n"]) -> Float[Array, " size"]:
        """Return the diagonal of the Hessian."""
        x = self.x
        squared = x.squared() if isinstance(x, Rows) else x**2
        return self.penalty + dataclasses.replace(self, x=squared).transposed(D)

    def curve(self, D: Float[Array, " n"], v: Float[Array, " size"]) -> Float[Array, " size"]:
        """Return the Hessian times v."""
        return self.penalty * v + self.transposed(D * self.product(v))


def weighted_squares(
    x: Any, more: Float[Array, "n p"], weight: Float[Array, " n"], spread: Spread | None = None
) -> Float[Array, "dp dp"]:
    """Return `H' diag(weight) H`, `H = (X, more)`, tile by tile of rows; on a mesh of each device's, summed on all."""
    if spread is not None:
        x, more, weight = (values.reshape(spread.parts, -1, *values.shape[1:]) for values in (x, more, weight))
        return spread.placed(jax.vmap(partial(weighted_squares, spread=None))(x, more, weight).sum(axis=0))
    n, tile = weight.shape[0], min(SIZES.largest_direct_system, weight.shape[0])

    def add(k: Any, total: Array) -> Array:
        start = jnp.minimum(k * tile, n - tile)
        index = start + jnp.arange(tile, dtype=jnp.int32)
        rows = x.rows(index) if isinstance(x, Rows) else lax.dynamic_slice_in_dim(x, start, tile)
        rows = jnp.concatenate([rows.astype(weight.dtype), lax.dynamic_slice_in_dim(more, start, tile)], axis=1)
        # The last tile overlaps the one before it: each row counts once.
        tile_weight = jnp.where(index >= k * tile, lax.dynamic_slice_in_dim(weight, start, tile), 0)
        return total + matmul((rows * tile_weight[:, None]).T, rows)

    size = x.shape[1] + more.shape[1]
    return fori_loop(0, -(-n // tile), add, jnp.zeros((size, size), weight.dtype))
