"""Compute distances between points, in a kernel's widths, to a few units of rounding of the distance itself.

There are two forms of `sum_k w_k (x_k - z_k)^2`:

- the expansion `|x|^2 + |z|^2 - 2 x.z`, one matrix product. Its error is a rounding of `|x|^2 + |z|^2`, so it is
  accurate only if these are not much larger than the distance. That depends on the origin and on the pair;
- differences, feature by feature. Their error is a rounding of the distance for any points. They take two to four times
  as long on a CPU (n = 10,000, 50 and 784 features), and a transposed copy of the points.

`near` points (all within `NEAR` widths of the origin) use the expansion without a check. Other points use it too, but
every pair is checked, and a block in which a pair has lost its digits is computed again by differences. A shift of the
origin costs no digits if it is exact: see `place`.

The points themselves must not be rounded: rounding `x - mean`, or `x * sqrt(w)`, moves a point by a rounding of its
coordinates, which is a large part of a small distance.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Bool, Float

from jaxsvm.errors import is_concrete
from jaxsvm.numerics.measured import MEASURED as SIZES
from jaxsvm.numerics.precision import matmul
from jaxsvm.numerics.sizes import LARGEST_PADDED, size_class
from jaxsvm.points.rows import CSR, transposed_product
from jaxsvm.runtime.arrays import is_tracing, lengthened, may_be_padded, on_device, promoting, tangent_of
from jaxsvm.runtime.loops import cond, scan
from jaxsvm.runtime.programs import Program

CANCELLED_SHARE = 16.0
"""An expansion keeps its digits if `|x|^2 + |z|^2 <= CANCELLED_SHARE (1 + distance)`: its error, about eps / 4 of the
left side, is then a few units of rounding of a kernel value near 1, or of the exponent."""
LARGEST_EXPANDED_SQUARE = 1e5  # squared distance to the mean, in the kernel's units, that float64 expands: 1e-10 lost
FEW_FEATURES = 4  # with so few features, differences take no longer than a matrix product
FEW_ROWS = 8  # so few rows are one reduction each, without a transposed copy of the other points
COARSE = 1 / 16  # spacing of the points' dtype, in widths of the kernel, above which its values say little
ENTRIES_OF_A_BLOCK = 1 << 18  # of points that are read at a time: 1 MiB of float32, which stays in the cache
NEAR = math.sqrt(CANCELLED_SHARE / 2)
"""If all points lie within so many widths of the origin, the expansion keeps its digits in every pair."""


@Program.full(static=("near",))  # a separate program unless the caller is traced
def squared_distances(
    x: Float[Array, "n d"],
    z: Float[Array, "m d"],
    weights: Float[Array, "*d"],
    *,
    near: bool = False,
    same: Bool[Array, "n m"] | None = None,
    squares: tuple[Float[Array, " n"], Float[Array, " m"]] | None = None,
) -> Float[Array, "n m"]:
    """Compute `sum_k w_k (x_k - z_k)^2` of every pair, for one weight or one a feature.

    `near`: all points are known to lie within `NEAR` widths of the origin. `same`: pairs of identical points, whose
    distances the caller does not need. `squares`: `|x_i|^2` and `|z_j|^2`, if known. First and second derivatives are
    those of the formula, at coinciding points too.
    """

    def differences() -> Array:
        return by_differences(x, z, weights, jnp.square)

    if not near and (x.shape[1] <= FEW_FEATURES or min(x.shape[0], z.shape[0]) == 1):
        return differences()
    expanded, sizes = _expansion(x, z, weights, squares)
    if near:
        return expanded
    lost = _lost(*lax.stop_gradient((expanded, sizes)))
    any_lost = (lost if same is None else lost & ~same).any()
    return cond(_of_all_lanes(any_lost), differences, lambda: expanded)


@Program.full(static=("size",))
def by_differences(
    x: Float[Array, "n d"], z: Float[Array, "m d"], weights: Float[Array, "*d"], size: Callable[[Array], Array]
) -> Float[Array, "n m"]:
    """Compute `sum_k w_k size(x_k - z_k)` of every pair, without an array `(n, m, d)`."""
    (n, d), m = x.shape, z.shape[0]
    few_rows = min(n, m) <= FEW_ROWS
    if few_rows and d > FEW_FEATURES:
        if m < n:
            return by_differences(z, x, weights, size).T
        return lax.map(lambda point: (weights * size(point - z)).sum(axis=1), x)
    return _by_blocks(x, z, weights, size)


@functools.partial(jax.custom_jvp, nondiff_argnums=(3,))
def _by_blocks(x: Array, z: Array, weights: Array, size: Callable[[Array], Array]) -> Array:
    """Sum several features in each pass over the distances."""
    equal_weights = not jnp.ndim(weights)
    width = min(SIZES.terms_per_turn, x.shape[1])

    def blocks(values: Array) -> Array:
        padded = jnp.pad(values, ((0, 0), (0, -values.shape[1] % width)))
        return padded.T.reshape(-1, width, values.shape[0])

    def add(total: Array, features: tuple[Array, Array, Array | None]) -> tuple[Array, None]:
        x_k, z_k, w_k = features
        spread = functools.partial(lax.broadcast_in_dim, shape=total.shape, broadcast_dimensions=(0, 1))
        terms = [size(spread(x_k[:, k : k + 1]) - spread(z_k[k : k + 1])) for k in range(width)]
        if w_k is not None:
            terms = [w_k[k] * term for k, term in enumerate(terms)]
        while len(terms) > 1:  # in pairs: fewer roundings than a sequential sum
            terms = [a + b for a, b in zip(terms[::2], terms[1::2], strict=False)] + terms[len(terms) & ~1 :]
        return total + terms[0], None

    weight_blocks = None if equal_weights else blocks(weights[None])[..., 0]
    zero = jnp.zeros((x.shape[0], z.shape[0]), x.dtype)
    total, _ = scan(add, zero, (blocks(x).swapaxes(1, 2), blocks(z), weight_blocks))
    return weights * total if equal_weights else total


def _one_by_one(x: Array, z: Array, weights: Array, size: Callable[[Array], Array]) -> Array:
    """Sum one feature after another: the form for derivatives, which stores only a few blocks of distances."""

    @jax.checkpoint  # recompute the differences rather than store them
    def add(total: Array, feature: tuple[Array, Array, Array]) -> tuple[Array, None]:
        x_k, z_k, w_k = feature
        return total + w_k * size(x_k[:, None] - z_k[None, :]), None

    zero = jnp.zeros((x.shape[0], z.shape[0]), x.dtype)
    return scan(add, zero, (x.T, z.T, jnp.broadcast_to(weights, x.shape[1:])))[0]


@promoting()
def _derivative_by_features(size: Any, primals: tuple[Array, ...], tangents: tuple[Any, ...]) -> tuple[Array, Array]:
    slope = tangent_of(functools.partial(_one_by_one, size=size), primals, tangents)
    return _by_blocks(*primals, size), slope


_by_blocks.defjvp(_derivative_by_features, symbolic_zeros=True)


def _expansion(x: Array, z: Array, weights: Array, squares: tuple[Array, Array] | None) -> tuple[Array, Array]:
    """Return `|x|^2 + |z|^2 - 2 x.z`, clipped at 0, and the cancelled part `|x|^2 + |z|^2`, in the kernel's units."""
    if jnp.ndim(weights):  # scale the points, so that a matrix product is left
        root = jnp.sqrt(weights)
        # The barrier prevents a fusion of XLA on a CPU (jaxlib 0.10.2) that returns wrong numbers for float32 points
        # that a jitted function closes over.
        x, z = lax.optimization_barrier((x * root, z * root))
        weights, squares = jnp.ones((), x.dtype), None
    of_x, of_z = ((x * x).sum(axis=1), (z * z).sum(axis=1)) if squares is None else squares
    sizes = of_x[:, None] + of_z[None, :]
    # In this order the lanes of `vmap` are one wide product, which is twice as fast.
    expanded = sizes - 2 * matmul(x, z.T)
    # Clip the value only: the derivatives stay those of the expansion, which has no kink.
    expanded = expanded + lax.stop_gradient(jnp.maximum(-expanded, 0))
    return weights * expanded, weights * sizes


def _lost(expanded: Array, sizes: Array) -> Array:
    """Return the pairs whose expansion lost digits that show in the kernel; NaN from an overflow counts too."""
    floats = jnp.finfo(expanded.dtype)
    # exp(-x) is 0 beyond this x, for any rounding of x.
    zero = float(floats.nmant * np.log(2) - np.log(floats.tiny))
    hopeless = expanded - 8 * float(floats.eps) * sizes > zero
    return ~((sizes <= CANCELLED_SHARE * (1 + expanded)) | hopeless)


@custom_vmap
def _of_all_lanes(value: Array) -> Array:
    """Return a flag shared by all lanes of `vmap`: a `cond` on a batched one would run both branches."""
    return value


@_of_all_lanes.def_vmap
def _shared(axis_size: int, batched: list[bool], value: Array) -> tuple[Array, bool]:
    del axis_size
    return (value.any(axis=0) if batched[0] else value), False


def place(kernel: Any, x: Any) -> tuple[Any, Float[Array, " d"], Any, Any]:
    """Move points so that expansions of their distances keep the most digits, and no distance loses any.

    The points of a stationary kernel are moved by their mean. A column whose differences from the mean are not exact is
    moved only if all points are near the mean, where the rounding is harmless. Of sparse points only the columns with
    an entry in every row are moved: the others cannot lie far from 0 compared to their spread.

    Returns:
        The moved points, the shift that was subtracted, whether all moved points are `near` the origin, and the largest
        distance of the original points from the origin in widths of the kernel, or a bound that is not `COARSE`.
    """
    shared = is_concrete(kernel, x) and not isinstance(x, CSR) and may_be_padded(x)
    if shared and kernel.stationary and x.shape[0] <= LARGEST_PADDED and not is_tracing():
        return _moved_on_host(kernel, x)
    far = _furthest(kernel, lengthened(x, size_class(x.shape[0])) if shared else x)
    if not kernel.stationary:
        far = np.asarray(far) if shared and is_concrete(far) else far  # else a user's program closes over the points
        return x, jnp.asarray(np.zeros((x.shape[1],), x.dtype)), far <= NEAR, far
    return *_moved(kernel, x), far


def is_near(kernel: Any, x: Any) -> bool:
    """Return whether concrete points lie within `NEAR` widths of a kernel of the origin."""
    return bool(_furthest(kernel, x) <= NEAR)


def furthest(kernel: Any, x: np.ndarray) -> float:
    """Return how far the furthest of dense points of NumPy lies from the origin, in widths of a kernel."""
    with jax.enable_x64(True):
        return float(_furthest(kernel, lengthened(x, size_class(x.shape[0]))))


def _moved_on_host(kernel: Any, x: Any) -> tuple[Any, Any, Any, Any]:
    """Do what `place` does by NumPy, in one pass for the shift and one to move; only the kernel's part is compiled."""
    values, (n, d) = np.asarray(x), x.shape
    moved, rows = np.empty((size_class(n), d), values.dtype), max(ENTRIES_OF_A_BLOCK // d, 1)

    def reaches(shift: Any) -> Any:
        np.subtract(values, shift, out=moved[:n])
        moved[n:] = moved[0]
        return jax.device_get(_reaches(kernel, moved, shift))

    with np.errstate(over="ignore", invalid="ignore"):
        blocks = (values[first : first + rows] for first in range(0, n, rows))
        parts = [(x.min(axis=0), x.max(axis=0), np.ones(len(x), x.dtype) @ x) for x in blocks]
        low, high, sums = (np.stack(part) for part in zip(*parts, strict=True))
        mean = (sums.sum(axis=0, dtype=np.float64) / n).astype(values.dtype)
        shift = np.clip(mean, low.min(axis=0), high.max(axis=0))
        reach, of_shift = reaches(shift)
        if not reach <= NEAR:
            shift = np.where(_exact_columns(values, shift), shift, np.zeros_like(shift))
            reach, of_shift = reaches(shift)
    far = reach + of_shift  # at most: a reach is a norm
    far = furthest(kernel, values) if far * np.finfo(x.dtype).eps > COARSE else far
    return on_device(moved[:n], x), on_device(shift, x), reach <= NEAR, far


@Program.full()
def _reaches(kernel: Any, x: Any, shift: Any) -> tuple[Float[Array, ""], Float[Array, ""]]:
    return kernel.reach(x).max(), kernel.reach(shift[None])[0]


@Program.full()
def _moved(kernel: Any, x: Any) -> tuple[Any, Array, Array]:
    mean = lax.stop_gradient(middle(x))  # no distance depends on it
    near = _furthest(kernel, less(x, mean)) <= NEAR
    shift = jnp.where(near | _exact_columns(lax.stop_gradient(x), mean), mean, 0)
    moved = less(x, shift)
    return moved, shift, near | (_furthest(kernel, moved) <= NEAR)


def less(x: Any, shift: Float[Array, " d"]) -> Any:
    """Subtract a shift from points; from CSR points only where they have entries."""
    if isinstance(x, CSR):
        return dataclasses.replace(x, data=x.data - shift[x.indices])
    return x - shift[None, :]


@Program.full()
def _furthest(kernel: Any, x: Any) -> Float[Array, ""]:
    return lax.stop_gradient(kernel.reach(x)).max()


def middle(x: Any, mask: Bool[Array, " n"] | None = None) -> Float[Array, " d"]:
    """Return the mean of each column, exact for a constant one; 0 for a column of CSR points with an absent entry.

    Only points of the mask count, at least one; None: all.
    """
    n, d = x.shape
    counted = jnp.ones((n,), bool) if mask is None else mask
    weight = counted.astype(x.dtype) / counted.sum().astype(x.dtype)
    if not isinstance(x, CSR):
        low, high = (jnp.where(counted[:, None], x, end) for end in (jnp.inf, -jnp.inf))
        mean = x.mean(axis=0) if mask is None else transposed_product(x, weight)
        return jnp.clip(mean, low.min(axis=0), high.max(axis=0))
    empty, counts_entry = jnp.zeros((d,), x.dtype), counted[x.row_of_entry()]
    counts = jnp.zeros((d,), jnp.int32).at[x.indices].add(counts_entry.astype(jnp.int32))
    low = (empty + jnp.inf).at[x.indices].min(jnp.where(counts_entry, x.data, jnp.inf))
    high = (empty - jnp.inf).at[x.indices].max(jnp.where(counts_entry, x.data, -jnp.inf))
    mean = transposed_product(x, weight)
    return jnp.where(counts == counted.sum(), jnp.clip(mean, low, high), 0)


def _exact_columns(x: Any, shift: Float[Array, " d"]) -> Bool[Array, " d"]:
    """Return the columns in which subtracting the shift is exact, by Knuth's two-sum."""
    values, moves = (x.data, shift[x.indices]) if isinstance(x, CSR) else (x, shift[None, :])
    differences = values - moves
    moved = differences - values
    exact = (values - (differences - moved)) == (moves + moved)
    if not isinstance(x, CSR):
        return exact.all(axis=0)
    return jnp.ones((x.d,), bool).at[x.indices].min(exact)
