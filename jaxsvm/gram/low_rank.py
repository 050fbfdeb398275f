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
from jaxsvm.kernels import Kernel
from jaxsvm.kernels.distances import place
from jaxsvm.numerics.linear.nystroem import inverse_root, pivots
from jaxsvm.numerics.precision import precisely
from jaxsvm.numerics.products import matmul
from jaxsvm.points.rows import CSR, by_row_tiles, dense_rows, transposed_product

TILE = 256
"""Rows that become features, or dense, at a time."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LowRankGram:
    """`K = Z Z'` for features `Z = phi(x)`.

    Attributes:
        kernel: The kernel that is approximated.
        x: The points, `(n, d)` dense, less `shift`, or CSR, as they came.
        features: The feature map, a basis.
        Z: The features of the points, `(n, r)`.
        landmarks: How they were chosen among the points, "pivoted" or "random"; None: the features have none. Static.
        values: The dtype of kernel values, where it is wider than that of the features; static.
    """

    kernel: Kernel
    x: Any
    features: Any
    Z: Float[Array, "n r"]
    landmarks: str | None = dataclasses.field(default=None, metadata={"static": True})
    values: Any = dataclasses.field(default=None, metadata={"static": True})

    stored = False
    may_store = False
    memory = 0

    def lengthened(self, size: int) -> None:
        """None: landmarks and features are what compiles for every n."""
        del size

    def with_squares(self) -> "LowRankGram":
        """The operator as it is."""
        return self

    @property
    def n(self) -> int:
        """How many points."""
        return self.Z.shape[0]

    @property
    def rank(self) -> int:
        """How many features."""
        return self.Z.shape[1]

    @property
    def dtype(self) -> Any:
        """Of the kernel values."""
        return self.Z.dtype if self.values is None else self.values

    @property
    def shift(self) -> Float[Array, " d"]:
        """What was subtracted from the points; the feature map subtracts its own from sparse ones, once dense."""
        return jnp.zeros_like(self.features.shift) if isinstance(self.x, CSR) else self.features.shift

    def row(self, i: Int[Array, ""]) -> Float[Array, " n"]:
        """`K[i]`, O(n r)."""
        return matmul(self.Z, lax.dynamic_index_in_dim(self.Z, i, keepdims=False).astype(self.dtype))

    def rows(self, index: Int[Array, " t"]) -> Float[Array, "t n"]:
        """`K[index]`."""
        return matmul(self.Z[index].astype(self.dtype), self.Z.T)

    def block(self, rows: Int[Array, " t"], columns: Int[Array, " u"]) -> Float[Array, "t u"]:
        """`K[rows, columns]`."""
        return matmul(self.Z[rows].astype(self.dtype), self.Z[columns].T)

    def diag(self) -> Float[Array, " n"]:
        """`K_ii`."""
        Z = self.Z.astype(self.dtype)
        return (Z * Z).sum(axis=1)

    def matvec(self, v: Float[Array, "n *k"]) -> Float[Array, "n *k"]:
        """`K @ v`, O(n r)."""
        return matmul(self.Z, matmul(self.Z.T, v))

    @property
    def definite(self) -> bool:
        """`Z Z'` is positive semidefinite."""
        return True

    def widened(self, dtype: Any) -> "LowRankGram":
        """The operator for decisions in a wider dtype: products follow the vector, and entries are of that dtype.

        Entries in the narrower one are no longer quite positive semidefinite, which systems with them show.
        """
        return dataclasses.replace(self, values=jnp.dtype(dtype))

    @property
    def design(self) -> Float[Array, "n r"]:
        """`Z`, with `K = Z Z'`."""
        return self.Z

    feature_rows = design

    def support_matvec(self, v: Float[Array, " n"]) -> Float[Array, " n"]:
        """`K @ v`, O(n r) whatever the support."""
        return self.matvec(v)

    def expansion(self, coef: Float[Array, " n"], support: Any = None) -> tuple[Any, Float[Array, " r"]]:
        """The features and the weight vector `Z' coef`."""
        del support  # the weight vector holds it
        return self.features, precisely(lambda coef, Z: matmul(Z.T, coef))(coef, self.Z)


def low_rank_gram(
    kernel: Kernel, x: Any, rank: int, method: str, landmarks: str, dtype: Any, key: Array | None
) -> LowRankGram:
    """See `jaxsvm.gram`.

    Raises:
        InputError: On an unknown method, or one that the kernel has no features for.
    """
    key = jax.random.key(0) if key is None else key
    if method == "nystroem":
        if landmarks not in ("pivoted", "random"):
            raise InputError(f'landmarks is {landmarks!r}: "pivoted" or "random" is needed.')
        features = _nystroem(kernel, x, rank, landmarks == "pivoted", dtype, key)
    elif method == "fourier":
        features = _fourier(kernel, x, rank, dtype, key)
    else:
        raise InputError(f'method is {method!r}: "nystroem" or "fourier" is needed.')
    Z = by_row_tiles(x.shape[0], TILE, lambda index: features(dense_rows(x, index)).astype(dtype))
    points = x if isinstance(x, CSR) else x - features.shift[None, :]
    return LowRankGram(kernel, points, features, Z, landmarks if method == "nystroem" else None)


def landmarks_among(gram: LowRankGram, allowed: Bool[np.ndarray, " n"], key: Array) -> LowRankGram:
    """The same approximation with its landmarks chosen anew, among some of the points only.

    In cross-validation these are the training samples of a fold: what is held out chooses no features.

    Args:
        gram: A Nystroem Gram operator.
        allowed: Which points may be landmarks, `(n,)`; fewer than the rank lower it.
        key: A random key, for landmarks that are drawn.
    """
    rank = min(gram.features.x.shape[0], int(np.sum(allowed)))
    return _landmarks_among(gram, jnp.asarray(allowed), key, rank)


@jax.jit(static_argnames="rank")
def _landmarks_among(gram: LowRankGram, allowed: Array, key: Array, rank: int) -> LowRankGram:
    kernel, x, shift = gram.kernel, gram.x, gram.features.shift
    left = shift if isinstance(x, CSR) else jnp.zeros_like(shift)  # what the stored points still have
    if gram.landmarks == "pivoted":
        index = _pivots(kernel, x, left, rank, gram.features.near, allowed)
    else:
        draws = jax.random.uniform(key, allowed.shape)
        index = jnp.argsort(jnp.where(allowed, draws, 2))[:rank]
    features = _at_landmarks(kernel, dense_rows(x, index) - left, left, gram.dtype, gram.features.near)
    Z = by_row_tiles(gram.n, TILE, lambda index: features(dense_rows(x, index)).astype(gram.dtype))
    return dataclasses.replace(gram, features=dataclasses.replace(features, shift=shift), Z=Z)


def _middle(x: Any) -> Float[Array, " d"]:
    """The mean of the points; of sparse ones too, whose rows are dense by the time that they are shifted."""
    if not isinstance(x, CSR):
        return x.mean(axis=0)
    return transposed_product(x, jnp.full((x.shape[0],), 1 / x.shape[0], x.dtype))


def _nystroem(kernel: Kernel, x: Any, rank: int, pivoted: bool, dtype: Any, key: Array) -> NystroemBasis:
    _, shift, near, _ = place(kernel, x)
    near = bool(near) if is_concrete(near) else False
    index = _pivots(kernel, x, shift, rank, near) if pivoted else jax.random.permutation(key, x.shape[0])[:rank]
    return _at_landmarks(kernel, dense_rows(x, index) - shift[None, :], shift, dtype, near)


def _at_landmarks(
    kernel: Kernel, chosen: Float[Array, "q d"], shift: Float[Array, " d"], dtype: Any, near: bool
) -> NystroemBasis:
    values = kernel.matrix(chosen, chosen, near=near)
    root = inverse_root(values, len(chosen) * jnp.finfo(values.dtype).eps)
    return NystroemBasis(kernel, chosen, shift, root.astype(dtype), near)


def _pivots(kernel: Kernel, x: Any, shift: Array, rank: int, near: bool, allowed: Any = True) -> Int[Array, " rank"]:
    """Greedy landmarks: each is the point that the ones before it leave worst explained (pivoted Cholesky).

    Only points that are `allowed` may be one; there must be `rank` of them at least.
    """
    kernel, x, shift = lax.stop_gradient((kernel, x, shift))  # indices have no derivative
    n = x.shape[0]

    def row(i: Array) -> Array:
        point = dense_rows(x, i[None]) - shift[None, :]
        if not isinstance(x, CSR):
            return kernel.matrix(point, x - shift[None, :], near=near)[0]

        def tile(index: Array) -> Array:
            return kernel.matrix(x.rows(index) - shift[None, :], point, near=near)[:, 0]

        return by_row_tiles(n, TILE, tile)

    rest = by_row_tiles(n, TILE, lambda index: kernel.diag(dense_rows(x, index) - shift[None, :]))

    return pivots(row, jnp.where(allowed, rest, -jnp.inf), rank)


def _fourier(kernel: Kernel, x: Any, rank: int, dtype: Any, key: Array) -> FourierBasis:
    noise_key, phase_key = jax.random.split(key)
    phases = jax.random.uniform(phase_key, (rank,), dtype, 0, 2 * jnp.pi)
    return FourierBasis(kernel.frequencies(noise_key, x.shape[1], rank, dtype), phases, _middle(x))
