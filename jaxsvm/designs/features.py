"""Features of a design's columns, a chunk at a time: scaled columns, and Nystroem and Fourier features of a kernel.

They are computed in float64 wherever the rows are, so that a fit does not depend on the place.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxsvm.datasets import Layout, Scaling
from jaxsvm.designs.contract import Chunk, Design, OfChunk, require_design
from jaxsvm.designs.losses import Describe, Spread
from jaxsvm.errors import InputError
from jaxsvm.gram.basis import NystroemBasis
from jaxsvm.gram.build import low_rank_gram
from jaxsvm.gram.measured import MEASURED as SIZES
from jaxsvm.kernels import Kernel, Precomputed
from jaxsvm.numerics.precision import cast, double, matmul
from jaxsvm.points.rows import Rows
from jaxsvm.runtime.arrays import in_a_line, require_whole, transfers, zero_filled
from jaxsvm.runtime.programs import Program


@dataclasses.dataclass(frozen=True, eq=False)
class FeatureDesign:
    """A design whose features are functions of another one's."""

    __repr__ = in_a_line

    base: Design  # the rows
    map: Any  # the function of points `(k, base.d)` to features `(k, d)`, a pytree of NumPy arrays
    d: int  # number of features
    layout: Layout | None = None  # the columns of the rows

    @property
    def n(self) -> int:
        """Return the number of rows."""
        return self.base.n

    @property
    def classes(self) -> tuple[Any, ...] | None:
        """Return the labels in sorted order; None in regression."""
        return self.base.classes

    @property
    def together(self) -> bool:
        """Return whether several processes compute each sum together."""
        return self.base.together

    @property
    def features(self) -> tuple[Any, ...]:
        """Return the maps that turn columns of new points into features, in order."""
        return (*self.base.features, self.map)

    def total(self, function: OfChunk, *arguments: Any) -> Any:
        """Return the sum of `function(chunk, *arguments)` over all chunks of features."""
        return self.base.total(Mapped(function), self.map, *arguments)

    def chosen(self, function: OfChunk, *arguments: Any) -> Chunk:
        """Return the rows for which `function(chunk, *arguments)` is true of their features, and these features."""
        rows = self.base.chosen(Mapped(function), self.map, *arguments)
        return rows._replace(x=applied((self.map,), rows.x))


@dataclasses.dataclass(frozen=True)
class Mapped:
    """A function of the features of a chunk: a function of a chunk, the map and arguments."""

    function: OfChunk  # the function of features

    makes_dense = True  # sparse rows come in tiles of dense ones

    def __call__(self, chunk: Chunk, map: Any, *arguments: Any) -> Any:
        """Return the function's value."""
        wide = double(chunk.x.dtype)
        map = cast(jax.tree.map(jnp.asarray, map), wide)
        x = chunk.x.dense() if isinstance(chunk.x, Factored) else chunk.x.astype(wide)
        x = Factored(map.values(x), map.whitening) if isinstance(map, NystroemBasis) else map(x)
        return self.function(chunk._replace(x=x), *arguments)


@dataclasses.dataclass(frozen=True)
class Factored(Rows):
    """Hold Nystroem features as kernel values and the whitening, which multiplies sums instead of each row.

    A pass over features of rank r takes O(r) operations a row, where multiplied out they take O(r^2).
    """

    values: Float[Array, "n q"]  # kernel values of the rows at the landmarks, `(n, q)`
    whitening: Float[Array, "q d"]  # `(q, d)`

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape[0], self.whitening.shape[1]

    @property
    def dtype(self) -> np.dtype:
        return self.values.dtype

    def dot(self, w: Float[Array, "d *k"]) -> Float[Array, "n *k"]:
        return matmul(self.values, matmul(self.whitening, w))

    def transposed_dot(self, v: Float[Array, "n *k"]) -> Float[Array, "d *k"]:
        return matmul(self.whitening.T, matmul(self.values.T, v))

    def rows(self, index: Int[Array, " t"]) -> Float[Array, "t d"]:
        return matmul(self.values[index], self.whitening)

    def dense(self) -> Float[Array, "n d"]:
        """Return all rows, dense."""
        return matmul(self.values, self.whitening)

    def squared(self) -> Any:
        return self.dense() ** 2


@transfers
def applied(features: tuple[Any, ...], x: Any) -> np.ndarray:
    """Return the features of dense points `(m, d)`, float64, computed in blocks."""
    x = np.asarray(x.toarray() if hasattr(x, "toarray") else x, np.float64)
    if not features:
        return x
    wanted = getattr(features[0], "columns", None)  # a Scaling looks by itself
    if x.ndim != 2 or wanted not in (None, x.shape[1]):
        raise InputError(f"x has shape {x.shape}: points of {wanted or 'all'} columns are needed, as in the rows.")
    size = min(max(1, SIZES.bytes_per_block // (8 * max(x.shape[1], 1))), 1 << max(len(x) - 1, 0).bit_length())
    parts = []
    with jax.enable_x64(True):
        for start in range(0, max(len(x), 1), size):  # no rows have features too
            block = x[start : start + size]
            filled = zero_filled(block, size)
            parts.append(np.asarray(_features(features, filled))[: len(block)])
    return np.concatenate(parts)


@Program.full()
def _features(features: tuple[Any, ...], x: Float[Array, "m d"]) -> Array:
    for map in features:
        x = cast(map, x.dtype)(x)
    return x


@transfers
def standardised(design: Design) -> FeatureDesign:
    """Return the design with columns of mean 0 and standard deviation 1, which takes a pass."""
    require_design(design)
    weight, mean, _, square = design.total(Describe(1, 0))
    if not np.isfinite(square).all():
        raise InputError("design has features above 1e154, whose squares float64 does not hold: scale them first.")
    mean, weight = mean[0, 0] / weight[0, 0], weight[0, 0]
    spread = np.sqrt(np.maximum(square / weight - mean**2, 0))
    usable = spread > 1e-7 * np.sqrt(square / weight)  # a smaller one is rounding
    factor: Any = np.where(usable, 1 / np.where(usable, spread, 1), 1.0)
    return FeatureDesign(design, Scaling(mean, factor), design.d, getattr(design, "layout", None))


@transfers
def nystroem(
    design: Design, kernel: Kernel, rank: int, *, landmarks: str = "pivoted", rows: int = 4096, key: Array | int = 0
) -> FeatureDesign:
    """Return the design with Nystroem features of a kernel, whose landmarks are chosen among some rows in a pass.

    Args:
        design: The rows.
        kernel: The kernel.
        rank: Number of features, at most.
        landmarks: "pivoted" (by pivoted Cholesky) or "random".
        rows: Number of candidates: rows at even distances among all.
        key: A random key or a seed, for random landmarks.
    """
    return _of_kernel(design, kernel, rank, "nystroem", rows, key, landmarks)


@transfers
def fourier(design: Design, kernel: Kernel, rank: int, *, rows: int = 4096, key: Array | int = 0) -> FeatureDesign:
    """Return the design with `rank` random Fourier features of a kernel, shifted by the mean of some rows.

    The arguments are those of `nystroem`; the mean is that of `rows` rows.
    """
    return _of_kernel(design, kernel, rank, "fourier", rows, key, "pivoted")


def _of_kernel(
    design: Design, kernel: Kernel, rank: int, method: str, rows: int, key: Any, landmarks: str
) -> FeatureDesign:
    require_design(design)
    require_whole("rank", rank, 1)
    require_whole("rows", rows, 1)
    if not isinstance(kernel, Kernel) or isinstance(kernel, Precomputed):
        raise InputError(f"kernel is a {type(kernel).__name__}: a kernel such as `jaxsvm.kernels.RBF(0.5)` is needed.")
    sample = design.chosen(Spread(design.n, min(rows, design.n)))
    if not len(sample.weight):
        raise InputError(f"rows is {rows}: none of the rows that were chosen has a positive weight; take more.")
    key = jax.random.key(key) if isinstance(key, int) else key
    with jax.enable_x64(True):
        x = jnp.asarray(np.asarray(sample.x, np.float64))
        rank = rank if method == "fourier" else min(rank, len(sample.weight))  # landmarks are rows
        low = low_rank_gram(kernel, x, rank, method, landmarks, x.dtype, key)
        return FeatureDesign(design, jax.tree.map(np.asarray, low.features), low.rank, getattr(design, "layout", None))
