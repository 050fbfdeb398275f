"""The primal in the space of features, `w (d,)`: products with X, and the Hessian `I + X' D X` from tiles of rows.

What Newton, the interior point method and stochastic subgradients have in common where a kernel has features.
"""

import dataclasses
from math import gcd
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxsvm.points.rows import Rows, product, transposed_product
from jaxsvm.problems.contract import Problem
from jaxsvm.runtime.loops import while_loop

TILE = 2048
"""Rows of a Hessian tile: 2,048 x 50 in float64 stay in a core's cache."""


def feature_matrix(problem: Problem) -> Any:
    """`X (n, d)` with `K = X X'`, dense or CSR, where there is one with d < n; else None."""
    x = problem.gram.design
    return x if x is not None and x.shape[1] < problem.n else None


@dataclasses.dataclass(frozen=True)
class Primal:
    """The primal problem in w.

    Attributes:
        x: The features, `(n, d)`, dense or CSR.
        y: Signs, `(n,)`.
        C: Costs, `(n,)`; 0 for absent samples.
        constant: Whether w has a last entry for the constant.
        free: Whether that entry is unregularised.
    """

    x: Any
    y: Float[Array, " n"]
    C: Float[Array, " n"]
    constant: bool
    free: bool

    @property
    def size(self) -> int:
        """Entries of w."""
        return self.x.shape[1] + self.constant

    @property
    def penalty(self) -> Float[Array, " size"]:
        """Curvature of the regulariser: 1, or 0 for a free constant."""
        ones = jnp.ones((self.size,), self.y.dtype)
        return ones.at[-1].set(0) if self.free else ones

    def product(self, w: Float[Array, " size"]) -> Float[Array, " n"]:
        """`X w`, the constant included."""
        values = product(self.x, w[: self.x.shape[1]])
        return values + w[-1] if self.constant else values

    def transposed(self, v: Float[Array, " n"]) -> Float[Array, " size"]:
        """`X' v`, the constant included."""
        sums = transposed_product(self.x, v)
        return jnp.append(sums, v.sum()) if self.constant else sums

    @property
    def tiles(self) -> int:
        """Tiles of rows."""
        return -(-len(self.y) // min(TILE, len(self.y)))

    def hessian(self, D: Float[Array, " n"], tiles: Any) -> Float[Array, "size size"]:
        """`diag(penalty) + X' D X`, estimated from `tiles` (traced) tiles, which are spread over the rows."""
        constant = jnp.ones((len(self.y), int(self.constant)), D.dtype)
        total = weighted_squares(self.x, constant, D, tiles, _coprime(self.tiles))
        share = jnp.asarray(tiles, D.dtype) / self.tiles
        return total / share + jnp.diag(self.penalty)

    def squares(self, D: Float[Array, " n"]) -> Float[Array, " size"]:
        """The diagonal of the Hessian."""
        x = self.x
        squared = x.squared() if isinstance(x, Rows) else x**2
        return self.penalty + dataclasses.replace(self, x=squared).transposed(D)

    def curve(self, D: Float[Array, " n"], v: Float[Array, " size"]) -> Float[Array, " size"]:
        """The Hessian times v."""
        return self.penalty * v + self.transposed(D * self.product(v))


def weighted_squares(
    x: Any, more: Float[Array, "n p"], weight: Float[Array, " n"], tiles: Any, stride: int = 1
) -> Float[Array, "dp dp"]:
    """`H' diag(weight) H` for `H = (X, more)`, of `tiles` (traced) tiles of rows, `stride` apart in a circle."""
    n, tile = weight.shape[0], min(TILE, weight.shape[0])

    def add(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        turn, total = carry
        k = (turn * stride) % -(-n // tile)
        start = jnp.minimum(k * tile, n - tile)
        index = start + jnp.arange(tile, dtype=jnp.int32)
        rows = x.rows(index) if isinstance(x, Rows) else lax.dynamic_slice_in_dim(x, start, tile)
        rows = jnp.concatenate([rows.astype(weight.dtype), lax.dynamic_slice_in_dim(more, start, tile)], axis=1)
        # The last tile overlaps its neighbour: a row counts once.
        here = jnp.where(index >= k * tile, lax.dynamic_slice_in_dim(weight, start, tile), 0)
        return turn + 1, total + jnp.matmul((rows * here[:, None]).T, rows, precision=lax.Precision.HIGHEST)

    size = x.shape[1] + more.shape[1]
    start = (jnp.zeros((), jnp.int32), jnp.zeros((size, size), weight.dtype))
    return while_loop(lambda carry: carry[0] < tiles, add, start)[1]


def _coprime(count: int) -> int:
    """A step through `count` tiles that visits each once, and the first few far from each other."""
    step = max(1, round(0.618 * count))
    while gcd(step, count) != 1:
        step += 1
    return step
