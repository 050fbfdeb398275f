"""Distances between points, in units of a kernel's width, good to a few units of rounding of the distance itself.

Two forms of `sum_k w_k (x_k - z_k)^2`:

- the expansion `|x|^2 + |z|^2 - 2 x.z`, one matrix product. Its error is a rounding of `|x|^2 + |z|^2`, so it is worth
  something where these are not much larger than the distance, which is a matter of the origin and of the pair;
- differences, feature by feature, whose error is a rounding of the distance wherever the points lie: twice to four
  times as long on a CPU (n = 10,000, 50 and 784 features), and a transposed copy of the points.

`near` points (all within `NEAR` widths of the origin) take the expansion without another look. Others take it as well,
but what it returns is judged pair by pair, and a block in which one pair has lost its digits is computed again by
differences. A shift of the origin costs no digits where it is exact: see `place`.

Only differences of points as they were given count: rounding `x - mean`, or `x * sqrt(w)`, moves a point by a rounding
of its *place*, which is a large part of a small distance.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Bool, Float

from jaxsvm.errors import is_concrete
from jaxsvm.numerics.masks import some
from jaxsvm.numerics.products import matmul
from jaxsvm.numerics.sizes import LARGEST, size_class
from jaxsvm.points.rows import CSR, transposed_product
from jaxsvm.runtime.arrays import lengthened, may_be_padded, on_device
from jaxsvm.runtime.loops import cond, scan

KEPT = 16.0
"""An expansion keeps its digits where `|x|^2 + |z|^2 <= KEPT (1 + distance)`: its error, about eps / 4 of
the left side, is a few units of rounding of a kernel value near 1, or of the exponent."""
NEAR = (KEPT / 2) ** 0.5
"""Points within so many widths of the origin keep them in every pair."""
FEATURES = 16
"""Features in one pass over a block of distances: more overflow the registers, fewer read and write the block more
often (n = 6,000, d = 50 on a CPU: 0.12 s for 16 or 32, 0.6 s for 64)."""
FEW = 4
"""Up to so many features, differences are as fast as a product."""
ROWS = 8
"""Up to so many rows are one reduction each, which needs no transposed copy of the other side."""


@jax.jit(static_argnames="near")  # a program of its own where the caller is not traced
def squared_distances(
    x: Float[Array, "n d"],
    z: Float[Array, "m d"],
    weights: Float[Array, "*d"],
    *,
    near: bool = False,
    same: Bool[Array, "n m"] | None = None,
    squares: tuple[Float[Array, " n"], Float[Array, " m"]] | None = None,
) -> Float[Array, "n m"]:
    """`sum_k w_k (x_k - z_k)^2` of every pair.

    Args:
        x: Points.
        z: Other points.
        weights: `w`, `()` or one a feature `(d,)`.
        near: Whether the caller knows that all points lie within `NEAR` widths of the origin; static.
        same: Pairs whose distance the caller does not need, since both are one point.
        squares: `|x_i|^2` and `|z_j|^2`, where they are at hand.

    Returns:
        The distances; both derivatives are those of the formula, at coinciding points too.
    """

    def differences() -> Array:
        return by_differences(x, z, weights, jnp.square)

    if not near and (x.shape[1] <= FEW or min(x.shape[0], z.shape[0]) == 1):
        return differences()
    expanded, sizes = _expansion(x, z, weights, squares)
    if near:
        return expanded
    lost = _lost(*lax.stop_gradient((expanded, sizes)))
    any_lost = some(lost if same is None else lost & ~same)
    return cond(_of_all_lanes(any_lost), differences, lambda: expanded)


@jax.jit(static_argnames="size")
def by_differences(
    x: Float[Array, "n d"], z: Float[Array, "m d"], weights: Float[Array, "*d"], size: Callable[[Array], Array]
) -> Float[Array, "n m"]:
    """`sum_k w_k size(x_k - z_k)` of every pair, without an array `(n, m, d)`."""
    n, m = x.shape[0], z.shape[0]
    if min(n, m) <= ROWS and x.shape[1] > FEW:
        if m < n:
            return by_differences(z, x, weights, size).T
        return lax.map(lambda point: (weights * size(point - z)).sum(axis=1), x)
    return _by_blocks(x, z, weights, size)


@functools.partial(jax.custom_jvp, nondiff_argnums=(3,))
def _by_blocks(x: Array, z: Array, weights: Array, size: Callable[[Array], Array]) -> Array:
    """`FEATURES` of them in one pass over the distances."""
    one_weight = not jnp.ndim(weights)
    width = min(FEATURES, x.shape[1])

    def blocks(values: Array) -> Array:
        padded = jnp.pad(values, ((0, 0), (0, -values.shape[1] % width)))
        return padded.T.reshape(-1, width, values.shape[0])

    def add(total: Array, features: tuple[Array, Array, Array | None]) -> tuple[Array, None]:
        x_k, z_k, w_k = features
        terms = [size(x_k[k][:, None] - z_k[k][None, :]) for k in range(width)]
        if w_k is not None:
            terms = [w_k[k] * term for k, term in enumerate(terms)]
        while len(terms) > 1:  # in pairs: fewer roundings than one after another
            terms = [a + b for a, b in zip(terms[::2], terms[1::2], strict=False)] + terms[len(terms) & ~1 :]
        return total + terms[0], None

    weight_blocks = None if one_weight else blocks(weights[None])[..., 0]
    zero = jnp.zeros((x.shape[0], z.shape[0]), x.dtype)
    total, _ = scan(add, zero, (blocks(x), blocks(z), weight_blocks))
    return weights * total if one_weight else total


def _one_by_one(x: Array, z: Array, weights: Array, size: Callable[[Array], Array]) -> Array:
    """One feature after another: as a derivative's form, which holds no more than a few blocks of distances."""

    @jax.checkpoint  # the differences are computed again, not held
    def add(total: Array, feature: tuple[Array, Array, Array]) -> tuple[Array, None]:
        x_k, z_k, w_k = feature
        return total + w_k * size(x_k[:, None] - z_k[None, :]), None

    zero = jnp.zeros((x.shape[0], z.shape[0]), x.dtype)
    return scan(add, zero, (x.T, z.T, jnp.broadcast_to(weights, x.shape[1:])))[0]


def _derivative_by_features(size: Any, primals: tuple[Array, ...], tangents: tuple[Any, ...]) -> tuple[Array, Array]:
    moving = [k for k, tangent in enumerate(tangents) if not isinstance(tangent, SymbolicZero)]

    def of_moving(*values: Array) -> Array:
        x, z, weights = (dict(zip(moving, values, strict=True)).get(k, primal) for k, primal in enumerate(primals))
        return _one_by_one(x, z, weights, size)

    _, slope = jax.jvp(of_moving, tuple(primals[k] for k in moving), tuple(tangents[k] for k in moving))
    return _by_blocks(*primals, size), slope


_by_blocks.defjvp(_derivative_by_features, symbolic_zeros=True)


def _expansion(x: Array, z: Array, weights: Array, squares: tuple[Array, Array] | None) -> tuple[Array, Array]:
    """`|x|^2 + |z|^2 - 2 x.z`, clipped at 0, and what was cancelled: `|x|^2 + |z|^2`; both in the kernel's units."""
    if jnp.ndim(weights):  # weights go into the points, so that a matrix product is left
        root = jnp.sqrt(weights)
        # The barrier keeps XLA on a CPU (jaxlib 0.10.2) from a fusion that returns wrong numbers for float32
        # points that a jitted function closes over.
        x, z = lax.optimization_barrier((x * root, z * root))
        weights, squares = jnp.ones((), x.dtype), None
    of_x, of_z = ((x * x).sum(axis=1), (z * z).sum(axis=1)) if squares is None else squares
    sizes = of_x[:, None] + of_z[None, :]
    # In this order lanes of `vmap` are one wide product, which is twice as fast.
    expanded = sizes - 2 * matmul(x, z.T)
    # Clipped in value only: both derivatives stay those of the expansion, which has no kink to clip.
    expanded = expanded + lax.stop_gradient(jnp.maximum(-expanded, 0))
    return weights * expanded, weights * sizes


def _lost(expanded: Array, sizes: Array) -> Array:
    """Pairs whose expansion lost digits that the kernel shows; NaN from an overflow is lost too."""
    floats = jnp.finfo(expanded.dtype)
    # exp(-x) is 0 from here on, whatever the rounding of x.
    zero = float(floats.nmant * np.log(2) - np.log(floats.tiny))
    hopeless = expanded - 8 * float(floats.eps) * sizes > zero
    return ~((sizes <= KEPT * (1 + expanded)) | hopeless)


@custom_vmap
def _of_all_lanes(value: Array) -> Array:
    """A flag that is shared by all lanes of `vmap`, so that a `cond` stays one: a batched one runs both its sides."""
    return value


@_of_all_lanes.def_vmap
def _shared(axis_size: int, batched: list[bool], value: Array) -> tuple[Array, bool]:
    del axis_size
    return (value.any(axis=0) if batched[0] else value), False


# --- where the origin is ----------------------------------------------------------------------------------------------


def place(kernel: Any, x: Any) -> tuple[Any, Float[Array, " d"], Any, Any]:
    """Points moved to where expansions of their distances keep the most digits, and no distance loses any.

    A stationary kernel's points are moved by their mean; in a column whose differences from it are not exact only where
    all points are near the mean, since then the rounding is harmless. Of sparse points the columns are moved that every
    row has an entry in: others cannot lie far from 0 compared to their spread.

    Args:
        kernel: The kernel.
        x: The points, `(n, d)`, dense or CSR.

    Returns:
        The points less the shift, the shift, whether the points are `near` the origin now, and how many widths of the
        kernel the furthest of them was away from it before.
    """
    shared = is_concrete(kernel, x) and not isinstance(x, CSR) and may_be_padded(x)
    far = _furthest(kernel, lengthened(x, size_class(x.shape[0])) if shared else x)
    shared = shared and is_concrete(far)  # else a user's program closes over the points
    if not kernel.stationary:
        far = np.asarray(far) if shared else far
        return x, jnp.asarray(np.zeros((x.shape[1],), x.dtype)), far <= NEAR, far
    if shared and x.shape[0] <= LARGEST:
        return *_moved_on_host(kernel, x), far
    return *_moved(kernel, x), far


def _moved_on_host(kernel: Any, x: Any) -> tuple[Any, Any, Any]:
    """The same by NumPy but for what the kernel says: it compiles for the size class alone, in a fifth of the time."""
    size, values = size_class(x.shape[0]), np.asarray(x)

    def furthest(points: Any) -> Any:
        return np.asarray(_furthest(kernel, lengthened(points, size)))

    with np.errstate(over="ignore", invalid="ignore"):
        mean = values.mean(axis=0, dtype=np.float64).astype(values.dtype)
        shift = np.clip(mean, values.min(axis=0), values.max(axis=0))
        moved = values - shift
        near = furthest(moved) <= NEAR
        if not near:
            shift = np.where(_exact_columns(values, shift), shift, np.zeros_like(shift))
            moved = values - shift
            near = furthest(moved) <= NEAR
    return on_device(moved, x), on_device(shift, x), near


@jax.jit
def _moved(kernel: Any, x: Any) -> tuple[Any, Array, Array]:
    mean = lax.stop_gradient(middle(x))  # no distance depends on it
    near = _furthest(kernel, less(x, mean)) <= NEAR
    shift = jnp.where(near | _exact_columns(lax.stop_gradient(x), mean), mean, 0)
    moved = less(x, shift)
    return moved, shift, near | (_furthest(kernel, moved) <= NEAR)


def less(x: Any, shift: Float[Array, " d"]) -> Any:
    """The points less the shift; of CSR points the entries that are there."""
    if isinstance(x, CSR):
        return dataclasses.replace(x, data=x.data - shift[x.indices])
    return x - shift[None, :]


@jax.jit
def _furthest(kernel: Any, x: Any) -> Float[Array, ""]:
    return lax.stop_gradient(kernel.reach(x)).max()


def middle(x: Any, mask: Bool[Array, " n"] | None = None) -> Float[Array, " d"]:
    """The mean of each column, the value itself of a constant one; of CSR points 0 where an entry is absent.

    Args:
        x: Points, `(n, d)`, dense or CSR.
        mask: Which of them count, at least one; None: all.
    """
    n, d = x.shape
    counted = jnp.ones((n,), bool) if mask is None else mask
    weight = counted.astype(x.dtype) / counted.sum().astype(x.dtype)
    if not isinstance(x, CSR):
        low, high = (jnp.where(counted[:, None], x, end) for end in (jnp.inf, -jnp.inf))
        mean = x.mean(axis=0) if mask is None else transposed_product(x, weight)
        return jnp.clip(mean, low.min(axis=0), high.max(axis=0))
    empty, there = jnp.zeros((d,), x.dtype), counted[x.row_of_entry()]
    counts = jnp.zeros((d,), jnp.int32).at[x.indices].add(there.astype(jnp.int32))
    low = (empty + jnp.inf).at[x.indices].min(jnp.where(there, x.data, jnp.inf))
    high = (empty - jnp.inf).at[x.indices].max(jnp.where(there, x.data, -jnp.inf))
    mean = transposed_product(x, weight)
    return jnp.where(counts == counted.sum(), jnp.clip(mean, low, high), 0)


def _exact_columns(x: Any, shift: Float[Array, " d"]) -> Bool[Array, " d"]:
    """Columns whose entries less their shift need no rounding (Knuth's two-sum finds what it takes away)."""
    values, moves = (x.data, shift[x.indices]) if isinstance(x, CSR) else (x, shift[None, :])
    differences = values - moves
    moved = differences - values
    exact = (values - (differences - moved)) == (moves + moved)
    if not isinstance(x, CSR):
        return exact.all(axis=0)
    return jnp.ones((x.d,), bool).at[x.indices].min(exact)
