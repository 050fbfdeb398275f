"""Build the Gram operator of a data set; all are differentiable with respect to kernel parameters and data.

By default `gram(kernel, x)` computes no values: `TiledGram` computes rows on demand in O(n d) memory, and has the
budget that a solver may use to store all n x n values as a `DenseGram`. `LowRankGram` works on features.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float
from numpy.typing import DTypeLike

from jaxsvm.errors import InputError, PrecisionWarning, is_concrete, require, require_finite, warn
from jaxsvm.gram.basis import FourierBasis, NystroemBasis
from jaxsvm.gram.measured import MEASURED
from jaxsvm.gram.operators import DenseGram, Gram, LowRankGram, TiledGram, dense_values
from jaxsvm.gram.spread import SpreadGram, of_whole
from jaxsvm.kernels import RBF, Kernel, Precomputed, as_kernel
from jaxsvm.kernels.contract import KernelLike, pytree
from jaxsvm.kernels.distances import COARSE, is_near, place, squared_distances
from jaxsvm.numerics.linear import inverse_root, pivots
from jaxsvm.points.rows import CSR, PointsLike, as_points, by_row_tiles, dense_rows, transposed_product
from jaxsvm.runtime.arrays import device_memory, floating, given_key, lengthened, require_memory, transfers
from jaxsvm.runtime.programs import Program


@transfers
def gram(
    kernel: KernelLike,
    x: PointsLike,
    tile: int | None = None,
    rank: int | None = None,
    *,
    store: bool | None = None,
    dtype: DTypeLike | None = None,
    memory: int = MEASURED.bytes_to_store,
    method: str = "nystroem",
    landmarks: str = "pivoted",
    key: Array | None = None,
) -> Gram:
    """Build the Gram operator of a data set.

    Args:
        kernel: A kernel of `jaxsvm.kernels`, or a function of two points.
        x: The points, `(n, d)`: NumPy or JAX array, SciPy CSR; for `Precomputed()` the kernel matrix `(n, n)`.
        tile: Rows at a time; makes a `TiledGram` whose values are never stored.
        rank: Number of features; makes a `LowRankGram`.
        store: True: store all kernel values now, whatever their size; pays if several calls use one operator. False:
            never store them. None: a fit, a path or a cross-validation stores them while it runs, if its solver is
            faster with them and they fit `memory`.
        dtype: Dtype of the kernel values; None: that of the data. With float32 values of float64 data, dual variables
            stay in float64.
        memory: Budget in bytes for stored kernel values if `store` is None.
        method: With `rank` "nystroem", "fourier" (random phases) or "pairs" (cos and sin of `rank / 2` frequencies).
        landmarks: "pivoted" (greedy, by pivoted Cholesky) or "random", with "nystroem".
        key: A random key for landmarks or frequencies; None takes key 0.

    Returns:
        `DenseGram`, `TiledGram` or `LowRankGram`.

    Raises:
        InputError: On bad points, an asymmetric precomputed matrix, or values out of range.

    Warns:
        PrecisionWarning: If points lie so far from 0 that their dtype cannot resolve the width of the kernel.
    """
    kernel = as_kernel(kernel)
    require(not store or tile is rank is None, "store is True: leave `tile` and `rank` None, which store no values.")
    if isinstance(kernel, Precomputed):
        return _precomputed(kernel, x, dtype)
    for name, value in (("tile", tile), ("rank", rank)):
        if value is not None and (not isinstance(value, int | np.integer) or value < 1):
            raise InputError(f"{name} is {value!r}: a positive integer is needed.")
    points = as_points(x)
    dtype = points.dtype if dtype is None else _value_dtype(dtype)
    if rank is not None:
        rank = min(rank, points.shape[0]) if method == "nystroem" else rank
        return low_rank_gram(kernel, points, rank, method, landmarks, dtype, key)
    points, shift, near, far = place(kernel, points)
    near = bool(near) if is_concrete(near) else False
    if is_concrete(far):
        _warn_of_collapse(float(far), points.dtype)
    n = points.shape[0]
    if store:
        needed, what = n * n * jnp.dtype(dtype).itemsize, f"store is True, and the kernel values of {n:,} points"
        require_memory(needed, what, "leave it None to compute them on demand, or give `rank`", device_memory())
        return DenseGram(kernel, points, shift, dense_values(kernel, points, dtype, near), near)
    budget = memory if tile is None and store is None else 0
    return TiledGram(kernel, points, shift, min(tile or MEASURED.rows_per_tile, n), dtype, None, near, budget)


def _warn_of_collapse(far: float, dtype: Any) -> None:
    """Warn if the spacing of the points' dtype exceeds a sixteenth of the kernel's width."""
    apart = far * float(jnp.finfo(dtype).eps)
    if apart > COARSE:
        warn(
            f"x lies up to {far:.2g} widths of the kernel away from 0, where {jnp.dtype(dtype)} numbers are "
            f"{apart:.2g} widths apart: points were rounded that much before the kernel saw them, and its values say "
            "little. Standardise before rounding (`jaxsvm.datasets.Scaling.standardise(x)(x)` of float64 NumPy), give "
            "float64 points with x64 turned on, or take a wider kernel (a smaller gamma).",
            PrecisionWarning,
        )


def _value_dtype(dtype: Any) -> Any:
    fits = jnp.dtype(dtype).itemsize <= 4 or jax.config.read("jax_enable_x64")
    usable = fits and jnp.issubdtype(dtype, jnp.floating)
    require(usable, f"dtype is {jnp.dtype(dtype)}: a floating one is needed, and x64 turned on for 64 bits.")
    return floating(dtype)


def _precomputed(kernel: Precomputed, x: Any, dtype: Any) -> DenseGram:
    K = as_points(x, None if dtype is None else _value_dtype(dtype))
    if isinstance(K, CSR) or K.shape[0] != K.shape[1]:
        raise InputError(f"x has shape {K.shape}: a precomputed kernel needs a dense square matrix (n, n).")
    if is_concrete(K):
        require_symmetric("x", np.asarray(K))
    return DenseGram(kernel, jnp.arange(K.shape[0], dtype=jnp.int32), jnp.zeros((0,), K.dtype), K)


def require_symmetric(name: str, K: np.ndarray) -> None:
    """Refuse kernel values `(n, n)`, of NumPy, that are not finite, or not symmetric up to the rounding of their dtype.

    (Inside a user's jit JAX traces operations on concrete values too.)
    """
    require_finite(name, K)
    worst, largest = float(np.abs(K - K.T).max(initial=0)), float(np.abs(K).max(initial=0))
    eps = float(np.finfo(K.dtype if np.issubdtype(K.dtype, np.floating) else float).eps)
    if not worst <= 1e3 * eps * largest:  # sums in another order
        raise InputError(f"{name} is a kernel matrix with |K - K'| up to {worst:.3g}: it must be symmetric.")


# --- low rank
#
# Sources: Williams and Seeger 2001 and Fine and Scheinberg 2001 (pivoted Cholesky) for Nystroem; Rahimi and Recht 2007
# for Fourier features.


def low_rank_gram(
    kernel: Kernel, x: Any, rank: int, method: str, landmarks: str, dtype: Any, key: Array | None
) -> LowRankGram:
    """Build a low-rank operator; the arguments are those of `jaxsvm.gram`.

    Raises:
        InputError: On an unknown method, or one that the kernel has no features for.
    """
    key = given_key(key)
    if method == "nystroem":
        require(landmarks in ("pivoted", "random"), f"landmarks is {landmarks!r}: pivoted or random is needed.")
        _, shift, near, _ = place(kernel, x)
        near = bool(near) if is_concrete(near) else False
        features = _nystroem(kernel, x, shift, near, rank, landmarks, dtype, key)
    else:
        require(method in ("fourier", "pairs"), f'method is {method!r}: "nystroem", "fourier" or "pairs" is needed.')
        noise_key, phase_key = jax.random.split(key)
        frequencies = kernel.frequencies(noise_key, x.shape[1], rank, dtype)
        phases = jax.random.uniform(phase_key, (rank,), dtype, 0, 2 * jnp.pi)
        if method == "pairs":  # cos and sin of half as many
            phases = jnp.tile(jnp.asarray([0, -np.pi / 2], dtype), rank)[:rank]
            frequencies = frequencies[:, jnp.arange(rank) // 2]
        mean = transposed_product(x, jnp.full((x.shape[0],), 1 / x.shape[0], x.dtype))
        features = FourierBasis(frequencies, phases, mean)
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


@Program.full(static=("rank",))
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


# --- one kernel at several widths; where they fit, distances are computed once


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
        K = _at_share(distances, gamma / largest)
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
def _at_share(distances: Float[Array, "n n"], share: Any) -> Float[Array, "n n"]:
    return jnp.exp(-share * distances)
