"""A Gram operator of r features, `K ~ Z Z'`: Nystroem landmarks, or random Fourier features.

Sources: Williams and Seeger 2001 and Fine and Scheinberg 2001 (pivoted Cholesky) for Nystroem; Rahimi and Recht 2007
for Fourier features. The operator is exactly the kernel `phi(x) . phi(z)` of its features: fits on it are certified
for that kernel.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxsvm.errors import InputError, is_concrete
from jaxsvm.gram.basis import FourierBasis, NystroemBasis
from jaxsvm.gram.measured import MEASURED
from jaxsvm.gram.operators import Gram
from jaxsvm.kernels import Kernel
from jaxsvm.kernels.distances import place
from jaxsvm.numerics.linear import inverse_root, pivots
from jaxsvm.numerics.precision import matmul, precisely
from jaxsvm.numerics.selection import entry
from jaxsvm.points.rows import CSR, by_row_tiles, dense_rows, transposed_product
from jaxsvm.runtime.arrays import in_a_line, lengthened
from jaxsvm.runtime.loops import Spread


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LowRankGram(Gram):
    """`K = Z Z'` for features `Z = phi(x)`; rows and products cost O(n r)."""

    __repr__ = in_a_line

    kernel: Kernel  # the kernel that is approximated
    x: Any  # dense points less `shift`, or CSR, as they came
    features: Any  # the feature map, a basis
    Z: Float[Array, "n r"]  # the features of the points, `(n, r)`
    # how landmarks were chosen among the points, "pivoted" or "random"; None: there are none; static
    landmarks: str | None = dataclasses.field(default=None, metadata={"static": True})
    # dtype of the kernel values, if wider than that of the features; static
    values: Any = dataclasses.field(default=None, metadata={"static": True})
    spread: Spread | None = dataclasses.field(default=None, metadata={"static": True})

    @property
    def n(self) -> int:
        return self.Z.shape[0]

    @property
    def rank(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Return the number of features."""
        return self.Z.shape[1]

    @property
    def dtype(self) -> np.dtype:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Return the dtype of the kernel values."""
        return self.Z.dtype if self.values is None else self.values

    @property
    def shift(self) -> Float[Array, " d"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Return what was subtracted from dense points, `(d,)`; 0 for sparse ones, which the feature map shifts."""
        return jnp.zeros_like(self.features.shift) if isinstance(self.x, CSR) else self.features.shift

    def row(self, i: Int[Array, ""]) -> Float[Array, " n"]:
        return matmul(self.Z, entry(self.Z, jnp.asarray(i)).astype(self.dtype))

    def rows(self, index: Int[Array, " t"]) -> Float[Array, "t n"]:
        return matmul(self.Z[index].astype(self.dtype), self.Z.T)

    def block(self, rows: Int[Array, " t"], columns: Int[Array, " u"]) -> Float[Array, "t u"]:
        return matmul(self.Z[rows].astype(self.dtype), self.Z[columns].T)

    def diag(self) -> Float[Array, " n"]:
        Z = self.Z.astype(self.dtype)
        return (Z * Z).sum(axis=1)

    def matvec(self, v: Float[Array, "n *k"]) -> Float[Array, "n *k"]:
        return matmul(self.Z, matmul(self.Z.T, v))

    @property
    def definite(self) -> bool:
        return True

    def widened(self, dtype: Any) -> "LowRankGram":
        """Return the operator whose entries have a wider dtype.

        Entries rounded to the narrower dtype need not be positive semidefinite, which harms linear systems.
        """
        return dataclasses.replace(self, values=jnp.dtype(dtype))

    @property
    def design(self) -> Float[Array, "n r"]:
        return self.Z

    def expansion(self, coef: Float[Array, " n"], support: Any = None) -> tuple[Any, Float[Array, " r"]]:
        del support  # the weight vector includes it
        return self.features, precisely(lambda coef, Z: matmul(Z.T, coef))(coef, self.Z)


def low_rank_gram(
    kernel: Kernel, x: Any, rank: int, method: str, landmarks: str, dtype: Any, key: Array | None
) -> LowRankGram:
    """Build a low-rank operator; the arguments are those of `jaxsvm.gram`.

    Raises:
        InputError: On an unknown method, or one that the kernel has no features for.
    """
    key = jax.random.key(0) if key is None else key
    if method == "nystroem":
        if landmarks not in ("pivoted", "random"):
            raise InputError(f'landmarks is {landmarks!r}: "pivoted" or "random" is needed.')
        _, shift, near, _ = place(kernel, x)
        near = bool(near) if is_concrete(near) else False
        features = _nystroem(kernel, x, shift, near, rank, landmarks, dtype, key)
    elif method == "fourier":
        noise_key, phase_key = jax.random.split(key)
        phases = jax.random.uniform(phase_key, (rank,), dtype, 0, 2 * jnp.pi)
        mean = transposed_product(x, jnp.full((x.shape[0],), 1 / x.shape[0], x.dtype))
        features = FourierBasis(kernel.frequencies(noise_key, x.shape[1], rank, dtype), phases, mean)
    else:
        raise InputError(f'method is {method!r}: "nystroem" or "fourier" is needed.')
    points = x if isinstance(x, CSR) else x - features.shift[None, :]
    Z = _features_of(features, x, dtype)
    return LowRankGram(kernel, points, features, Z, landmarks if method == "nystroem" else None)


def _features_of(features: Any, x: Any, dtype: Any) -> Float[Array, "n r"]:
    tile = MEASURED.rows_per_wide_tile
    return by_row_tiles(x.shape[0], tile, lambda index: features(dense_rows(x, index)).astype(dtype))


def landmarks_among(gram: LowRankGram, allowed: Bool[Any, " n"], key: Array) -> LowRankGram:
    """Return the same approximation with new landmarks, chosen among some of the points only.

    In cross-validation these are the training samples of a fold, so that held-out samples choose no features. Fewer
    `allowed` points than the rank lower it. The key is for random landmarks.
    """
    rank = min(gram.features.x.shape[0], int(np.sum(allowed)))
    return _landmarks_among(gram, jnp.asarray(lengthened(np.asarray(allowed), gram.n, False)), key, rank)


@jax.jit(static_argnames="rank")
def _landmarks_among(gram: LowRankGram, allowed: Array, key: Array, rank: int) -> LowRankGram:
    x, shift, near = gram.x, gram.features.shift, gram.features.near
    left = shift if isinstance(x, CSR) else jnp.zeros_like(shift)  # the shift that the stored points still need
    features = _nystroem(gram.kernel, x, left, near, rank, gram.landmarks, gram.dtype, key, allowed)
    Z = _features_of(features, x, gram.dtype)
    Z = Z if gram.spread is None else gram.spread.along(Z, 0)
    return dataclasses.replace(gram, features=dataclasses.replace(features, shift=shift), Z=Z)


def _nystroem(
    kernel: Kernel,
    x: Any,
    shift: Array,
    near: bool,
    rank: int,
    landmarks: Any,
    dtype: Any,
    key: Array,
    allowed: Any = True,
) -> NystroemBasis:
    """Choose landmarks among the `allowed` points, of which there are as many, and return the features that they make.

    By pivoted Cholesky each is the point with the largest residual diagonal entry.
    """
    n = x.shape[0]
    fixed, points, origin = lax.stop_gradient((kernel, x, shift[None, :]))  # indices have no derivative

    def row(i: Array) -> Array:
        point = dense_rows(points, i[None]) - origin
        if not isinstance(x, CSR):
            return fixed.matrix(point, points - origin, near=near)[0]

        def tile(index: Array) -> Array:
            return fixed.matrix(points.rows(index) - origin, point, near=near)[:, 0]

        return by_row_tiles(n, MEASURED.rows_per_wide_tile, tile)

    if landmarks == "pivoted":
        tile = MEASURED.rows_per_wide_tile
        rest = by_row_tiles(n, tile, lambda index: fixed.diag(dense_rows(points, index) - origin))
        index = pivots(row, jnp.where(allowed, rest, -jnp.inf), rank)
    else:
        index = jnp.argsort(jnp.where(allowed, jax.random.uniform(key, (n,)), 2))[:rank]
    chosen = dense_rows(x, index) - shift[None, :]
    values = kernel.matrix(chosen, chosen, near=near)
    root = inverse_root(values, rank * jnp.finfo(values.dtype).eps)
    return NystroemBasis(kernel, chosen, shift, root.astype(dtype), near)
