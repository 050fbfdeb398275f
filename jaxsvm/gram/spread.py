"""The Gram operator of samples that are spread over the devices of a mesh.

To its user it is the operator of n points. Drivers work on `whole`, the operator of as many points as the devices share
evenly: copies of the first one fill them up, and count as absent samples (`jaxsvm.problems.padding`). Points lie on the
devices by rows. Stored kernel values lie by columns, so that a kernel row is computed where the points are, and moves
to no other device.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxsvm.errors import InputError, is_concrete
from jaxsvm.gram.measured import MEASURED
from jaxsvm.gram.operators import DenseGram, Gram, LowRankGram, TiledGram, dense_values
from jaxsvm.kernels import Precomputed
from jaxsvm.numerics.sizes import size_class
from jaxsvm.points.rows import Rows
from jaxsvm.runtime.arrays import in_a_line, lengthened
from jaxsvm.runtime.loops import Spread

ROWS_OF_A_DEVICE = 128
"""Larger shares of a device are multiples of this: searches then cut every share into whole blocks."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SpreadGram:
    """The operator of n points on a mesh. What is not defined here (flags, `kernel`, `design`) is that of `whole`."""

    __repr__ = in_a_line

    whole: Gram  # the operator that drivers work on, of n points and copies of the first one
    n: int = dataclasses.field(metadata={"static": True})  # number of points; static

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "whole":  # asked for while a copy is being made
            raise AttributeError(name)
        return getattr(self.whole, name)

    @property
    def x(self) -> Any:
        """Return the points less `shift`, `(n, d)`."""
        return self.whole.x[: self.n]

    def row(self, i: Int[Array, ""]) -> Float[Array, " n"]:
        """Return `K[i]`."""
        return self.whole.row(i)[: self.n]

    def rows(self, index: Int[Array, " t"]) -> Float[Array, "t n"]:
        """Return `K[index]`."""
        return self.whole.rows(index)[:, : self.n]

    def diag(self) -> Float[Array, " n"]:
        """Return `K_ii`."""
        return self.whole.diag()[: self.n]

    def matvec(self, v: Float[Array, "n *k"]) -> Float[Array, "n *k"]:
        """Return `K @ v`."""
        return self.whole.matvec(lengthened(v, self.whole.n, 0))[: self.n]

    def support_matvec(self, v: Float[Array, " n"]) -> Float[Array, " n"]:
        """Return `K @ v` at the cost of the rows where v is not 0."""
        return self.whole.support_matvec(lengthened(v, self.whole.n, 0))[: self.n]

    def expansion(self, coef: Float[Array, " n"], support: Any = None) -> tuple[Any, Float[Array, " q"]]:
        """Return basis functions and coefficients of `sum_j coef_j k(x_j, .)`."""
        return self.whole.expansion(lengthened(coef, self.whole.n, 0), support)

    def with_squares(self) -> "SpreadGram":
        """Return the operator with whatever it precomputes to make `rows` faster."""
        return dataclasses.replace(self, whole=self.whole.with_squares())

    def lengthened(self, size: int) -> Any:
        """Return None: its length is that of the caller's data."""
        del size

    def widened(self, dtype: Any) -> "SpreadGram":
        """Return the operator for certificates in a wider dtype."""
        return dataclasses.replace(self, whole=self.whole.widened(dtype))


def of_whole(function: Callable[[Any], Any], gram: Any) -> Any:
    """Apply a function to an operator; on a mesh to `whole`."""
    return dataclasses.replace(gram, whole=function(gram.whole)) if isinstance(gram, SpreadGram) else function(gram)


def spread_over(gram: Any, spread: Spread) -> SpreadGram:
    """Lay out the points of an operator, and its stored values if any, over the devices of a mesh.

    Raises:
        InputError: On sparse points, an operator that is on a mesh already, or one of a user's own.
    """
    if isinstance(gram, SpreadGram):
        raise InputError("problem is on a mesh already: lay out the problem that you built.")
    if not isinstance(gram, (TiledGram, DenseGram, LowRankGram)):
        raise InputError(f"problem has a {type(gram).__name__}: only operators of `jaxsvm.gram` go onto a mesh.")
    if isinstance(gram.x, Rows):
        raise InputError("x is sparse: rows on a mesh are dense, or features (`jaxsvm.gram(kernel, x, rank=...)`).")
    n = gram.n
    share = -(-n // spread.parts)
    share = size_class(share) if share <= ROWS_OF_A_DEVICE else -(-share // ROWS_OF_A_DEVICE) * ROWS_OF_A_DEVICE
    here = not is_concrete(gram.x) or not isinstance(gram.x, jax.Array) or gram.x.is_fully_addressable
    size = share * spread.parts if here or n % spread.parts else n

    def rows(values: Any) -> Any:
        return spread.along(lengthened(values, size), 0)

    of_rows = [name for name in ("x", "K", "Z", "squares") if hasattr(gram, name)]
    x, rest = rows(gram.x), spread.placed(dataclasses.replace(gram, **dict.fromkeys(of_rows)))
    if isinstance(gram, LowRankGram):
        return SpreadGram(dataclasses.replace(rest, x=x, Z=rows(gram.Z), spread=spread), n)
    if isinstance(gram, TiledGram):
        tile = min(MEASURED.rows_per_tile if gram.tile == n else gram.tile, size)
        return SpreadGram(dataclasses.replace(rest, x=x, tile=tile, spread=spread), n)
    if isinstance(gram.kernel, Precomputed):
        K = spread.along(jnp.swapaxes(lengthened(jnp.swapaxes(lengthened(gram.K, size), 0, 1), size), 0, 1), 1)
    else:  # computed where the points are
        K = dense_values(cast(Any, rest).kernel, x, gram.dtype, gram.near, spread)
    return SpreadGram(dataclasses.replace(rest, x=x, K=K, spread=spread), n)
