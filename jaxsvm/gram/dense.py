"""The Gram operator that stores all kernel values."""

import dataclasses
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from jaxsvm.errors import is_concrete
from jaxsvm.gram.contract import Gram
from jaxsvm.gram.measured import MEASURED
from jaxsvm.gram.tiled import OfPoints, TiledGram
from jaxsvm.kernels import Kernel, Precomputed
from jaxsvm.numerics.precision import diagonal, matmul
from jaxsvm.points.rows import CSR, Rows, dense_rows, taken
from jaxsvm.runtime.arrays import in_a_line, on_device
from jaxsvm.runtime.loops import fori_loop
from jaxsvm.runtime.meshes import Spread

AT_ONCE = 8 * MEASURED.rows_per_tile
"""Samples up to which a matrix is computed, and multiplied in a wider dtype, in one piece: a loop saves nothing yet."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DenseGram(OfPoints):
    """All kernel values, stored."""

    __repr__ = in_a_line

    kernel: Kernel  # the kernel
    x: Any  # the points, `(n, d)` dense or CSR, less `shift`; for `Precomputed` their indices, `(n,)`
    # what was subtracted from the points, `(d,)`: their mean if the kernel is stationary and no digits are lost
    # (`jaxsvm.kernels.distances.place`); else 0
    shift: Float[Array, " d"]
    K: Float[Array, "n n"]  # `k(x_i, x_j)`, `(n, n)`
    # whether the points are known to be near the origin, so that distances may be expanded; static
    near: bool = dataclasses.field(default=False, metadata={"static": True})
    # whether the matrix is known to be positive semidefinite though its kernel is not: as a part of another
    # (`part_of`), or by a test (`jaxsvm.problems.certificates.definiteness`); static
    vouched: bool = dataclasses.field(default=False, metadata={"static": True})
    # how points and columns of values are spread over a mesh; None: they lie on one device; static
    spread: Spread | None = dataclasses.field(default=None, metadata={"static": True})

    stored = True

    @property
    def n(self) -> int:
        """Return the number of points."""
        return self.K.shape[-1]

    @property
    def dtype(self) -> np.dtype:
        """Return the dtype of the kernel values."""
        return self.K.dtype

    def row(self, i: Int[Array, ""]) -> Float[Array, " n"]:
        """Return `K[i]`."""
        return lax.dynamic_index_in_dim(self.K, i, keepdims=False)

    def rows(self, index: Int[Array, " t"]) -> Float[Array, "t n"]:
        """Return `K[index]`."""
        return self.K[index]

    def block(self, rows: Int[Array, " t"], columns: Int[Array, " u"]) -> Float[Array, "t u"]:
        """Return `K[rows, columns]`."""
        return self.K[rows[:, None], columns]

    def diag(self) -> Float[Array, " n"]:
        """Return `K_ii`."""
        return diagonal(self.K)

    def matvec(self, v: Float[Array, "n *k"]) -> Float[Array, "n *k"]:
        """Return `K @ v`, in the wider of the two dtypes."""
        if self.K.dtype == v.dtype:
            return matmul(self.K, v)
        return _wide_matvec(self.K, v)

    def support_matvec(self, v: Float[Array, " n"]) -> Float[Array, " n"]:
        """Return `K @ v` from all rows: gathering those of the support is slower if they are over a quarter."""
        return self.matvec(v)


def with_values(gram: Gram) -> Gram:
    """Return the operator with all values stored if its budget permits; else unchanged."""
    if gram.stored or not gram.may_store:
        return gram
    tiled = cast(TiledGram, gram)
    K = dense_values(tiled.kernel, tiled.x, tiled.dtype, tiled.near, tiled.spread)
    return DenseGram(tiled.kernel, tiled.x, tiled.shift, K, tiled.near, tiled.vouched, tiled.spread)


@jax.jit(static_argnames=("dtype", "near", "spread"))
def dense_values(
    kernel: Kernel, points: Any, dtype: Any, near: bool, spread: Spread | None = None
) -> Float[Array, "n n"]:
    """Compute all kernel values by tiles, which stay in the cache between product and exponential.

    On a CPU half of the matrix is computed where points have so many features that products are most of the work.
    """
    K = _dense_values(kernel, points, dtype, near, spread is None and jax.default_backend() == "cpu")
    return K if spread is None else spread.along(K, 1)


def _dense_values(kernel: Kernel, points: Any, dtype: Any, near: bool, in_halves: bool) -> Float[Array, "n n"]:
    n = points.shape[0]
    tile = min(MEASURED.rows_per_tile, n)
    squares = None if isinstance(points, CSR) else (points * points).sum(axis=1)
    tiled = TiledGram(kernel, points, jnp.zeros((points.shape[1],), points.dtype), tile, dtype, squares, near)

    @jax.checkpoint
    def rows(index: Array) -> Array:
        return tiled._off_diagonal(index, dense_rows(points, index))

    if n <= AT_ONCE:
        K = rows(jnp.arange(n, dtype=jnp.int32))
        return K.at[jnp.arange(n), jnp.arange(n)].set(tiled.diag())
    if in_halves and squares is not None and points.shape[1] >= MEASURED.features_of_half_a_matrix:
        return _both_halves(tiled)

    def fill(k: Array, K: Array) -> Array:
        start = jnp.minimum(k * tile, n - tile)  # the last tile overlaps its neighbour
        values = rows(start + jnp.arange(tile, dtype=jnp.int32))
        return lax.dynamic_update_slice(K, values, (start, jnp.zeros_like(start)))

    K = fori_loop(0, -(-n // tile), fill, jnp.zeros((n, n), dtype))
    return K.at[jnp.arange(n), jnp.arange(n)].set(tiled.diag())


def _both_halves(tiled: TiledGram) -> Float[Array, "n n"]:
    """Compute one half of the matrix by blocks, and write each block and its transpose."""
    n, size = tiled.n, MEASURED.rows_per_wide_tile
    starts = np.minimum(np.arange(0, n, size, dtype=np.int32), n - size)  # the last block overlaps its neighbour
    pairs = jnp.asarray([(a, b) for k, a in enumerate(starts) for b in starts[k:]], jnp.int32)
    block = jax.checkpoint(tiled.block)

    def fill(k: Array, K: Array) -> Array:
        a, b = pairs[k]
        places = jnp.arange(size, dtype=jnp.int32)
        values = block(a + places, b + places)
        return lax.dynamic_update_slice(lax.dynamic_update_slice(K, values, (a, b)), values.T, (b, a))

    return fori_loop(0, len(pairs), fill, jnp.zeros((n, n), tiled.dtype))


def part_of(gram: Gram, K: Float[Array, "m m"]) -> DenseGram:
    """Return the operator of kernel values `(m, m)` between some of the points of another operator."""
    places = np.arange(K.shape[0], dtype=np.int32)
    return DenseGram(Precomputed(), on_device(places), on_device(np.zeros((0,), K.dtype)), K, vouched=gram.definite)


def among(gram: Gram, samples: Int[Array, " m"]) -> Gram:
    """Return the operator of some of the points, with the features of all, if these have any.

    Values of an operator that stores none are stored by a solver that prefers it, if the budget or `bytes_of_a_part`
    permits.
    """
    whole: Any = gram
    if gram.spread is not None or (isinstance(gram.x, Rows) and not is_concrete(samples)):
        return part_of(gram, values_between(gram, samples))
    if gram.stored:
        K = values_between(gram, samples)
        return dataclasses.replace(whole, x=taken(gram.x, samples), K=K) if gram.kernel.linear else part_of(gram, K)
    x = taken(gram.x, samples)
    if gram.rank is not None:
        return dataclasses.replace(whole, x=x, Z=whole.Z[samples])
    memory, tile = max(gram.memory, MEASURED.bytes_of_a_part), min(whole.tile, len(samples))
    return dataclasses.replace(whole, x=x, squares=None, tile=tile, memory=memory)


@jax.jit
def values_between(gram: Gram, samples: Int[Array, " m"]) -> Float[Array, "m m"]:
    """Return the kernel values between samples; of a stored matrix gather whole rows first: they are contiguous."""
    return gram.rows(samples)[:, samples] if gram.stored else gram.block(samples, samples)


def _wide_matvec(K: Array, v: Array) -> Array:
    """Return `K @ v` for v of a wider dtype, some rows at a time, without a wide copy of K."""
    n, tile = K.shape[0], MEASURED.rows_per_wide_tile
    if n <= AT_ONCE:
        return matmul(K, v)
    whole = n // tile * tile

    def of_rows(start: Array) -> Array:
        return matmul(lax.dynamic_slice_in_dim(K, start, tile), v)

    # Indices of 32 bits: inside `in_double` Python's have 64, but a loop's body is traced with the caller's flag.
    head = lax.map(of_rows, jnp.arange(0, whole, tile, dtype=jnp.int32)).reshape(whole, *v.shape[1:])
    return head if whole == n else jnp.concatenate([head, matmul(K[whole:], v)])
