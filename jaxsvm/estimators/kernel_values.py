"""Compute kernel values between NumPy or SciPy points, and hold those of an estimator's training samples.

The kernel is given by name, function or object. NumPy computes the values of kernels of products in blocks that stay in
the cache, and scikit-learn those of sparse points (`sklearn.metrics.pairwise`): compiling a program would take longer.
Others are computed by a compiled program on blocks of one shape, which serves any number of points.

Samples lie sorted by class: all kernel values if there are few, else points. Each machine takes its part of the values,
or computes the rows that it needs.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise, product
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.sparse as sp
from scipy.spatial.distance import cdist
from sklearn.metrics.pairwise import pairwise_kernels

from jaxsvm.errors import InputError, of_a_user
from jaxsvm.gram import build, measured
from jaxsvm.gram.operators import DenseGram, TiledGram
from jaxsvm.kernels import RBF, Kernel, Linear, Precomputed
from jaxsvm.kernels.distances import LARGEST_EXPANDED_SQUARE, NEAR, furthest
from jaxsvm.kernels.width import resolve_gamma
from jaxsvm.loop.many import BoxData, is_indefinite, prefers_features
from jaxsvm.loop.measured import MEASURED as LOOP
from jaxsvm.models.libsvm import named_kernel
from jaxsvm.numerics.measured import MEASURED as SIZES
from jaxsvm.numerics.sizes import LARGEST_PADDED, padded_size, size_class
from jaxsvm.runtime.arrays import TINY, require_own_process
from jaxsvm.runtime.programs import Program


@dataclasses.dataclass(frozen=True)
class Measured:
    """Sizes and limits from which another method is faster."""

    values_by_numpy: int = 2**20  # kernel values that NumPy computes in less time than a program is compiled in
    values_by_blocks_of_numpy: int = 2**28  # kernel values that it computes, some rows at a time, as fast as a program
    values_of_a_block_of_numpy: int = 2**18  # kernel values of such a block: they stay in the cache
    rows_of_a_block: tuple[int, int] = (64, 1024)  # least and largest number of rows of a block
    multiplications_of_one_thread: int = 2**18  # of a matrix product that OpenBLAS does in the calling thread
    side_of_a_tile: int = 16  # least number of rows and columns of such a product
    tol_of_float32: float = 1e-5  # relative gap from which kernel values may be held in float32


MEASURED = Measured()
VALUES_PER_BLOCK = measured.MEASURED.bytes_per_block // 8
FLOAT32_ERROR = 2.0**-21
"""Bound of the float32 error of a kernel value, in units of the largest `k(x_i, x_i)` (half of it was measured)."""
ERROR_A_WIDTH = 2.0**-24  # what rounding a point to float32 adds to it for each width that the point lies from the mean
OF_PRODUCTS = ("linear", "poly", "rbf", "sigmoid")  # kernels whose values NumPy computes from products of points
FAR = 64.0  # widths of a kernel from the points' mean up to which they may be rounded to float32
FAR_IN_DOUBLE = FAR * 2**29  # widths up to which subtracting the mean in float64 rounds no further than that


@dataclasses.dataclass(frozen=True)
class KernelValues:
    """A kernel with its parameters resolved.

    Its name is scikit-learn's, "precomputed", "callable" (a function of two sets of points that returns a matrix) or
    "object" (a kernel of `jaxsvm.kernels`).
    """

    name: str
    parameters: dict[str, Any]  # keyword arguments of scikit-learn's function of that name
    kernel: Any  # a kernel of `jaxsvm.kernels`; a function of two sets for "callable"; None for "precomputed"

    @property
    def by_values(self) -> bool:
        """Return whether only kernel values are known, and no points to compute others from."""
        return self.name in ("precomputed", "callable")

    @property
    def definite(self) -> bool:
        """Return whether the kernel guarantees that every matrix of its values is positive semidefinite."""
        return not self.by_values and self.kernel.definite

    def between(self, x: Any, z: Any) -> np.ndarray:
        """Return `k(x_i, z_j)`, `(m, n)`, of points `(m, d)` and `(n, d)`; for a precomputed kernel x itself."""
        if self.name == "precomputed":
            return np.asarray(x)
        if self.name == "callable":
            values = of_a_user(self.kernel, x, z)
            values = np.asarray(values.toarray() if sp.issparse(values) else values)
            if x is z and values.ndim == 2 and values.shape[0] == values.shape[1]:
                build.require_symmetric("kernel(X, X)", values)
            return values.astype(np.float64)
        out = None
        for rows, values in self.blocks(x, z):
            if len(values) == x.shape[0]:
                return values
            out = np.empty((x.shape[0], z.shape[0]), values.dtype) if out is None else out
            out[rows] = values
        return np.zeros((0, z.shape[0])) if out is None else out

    def _by_scikit_learn(self, x: Any, z: Any) -> np.ndarray:
        values = pairwise_kernels(x, z, metric=self.name, **self.parameters)
        return np.asarray(values.toarray() if sp.issparse(values) else values)

    def _few(self, x: np.ndarray, z: np.ndarray) -> np.ndarray:
        """Return values of a kernel that products of points determine."""
        if self.name == "rbf":
            return self._few_rbf(x, z)
        products = _in_one_thread(x, z)
        if self.name == "linear":
            return products
        products = self.parameters["gamma"] * products + self.parameters["coef0"]
        return np.tanh(products) if self.name == "sigmoid" else products ** self.parameters["degree"]

    def _few_rbf(self, x: np.ndarray, z: np.ndarray) -> np.ndarray:
        """Return RBF values of points shifted to their mean; from differences of the points if some are far from it.

        An expanded squared distance is a difference of large numbers, which loses its digits far from the origin. Up to
        `gamma |x|^2 = LARGEST_EXPANDED_SQUARE` this costs 1e-10 of a kernel value.
        """
        gamma, given = self.parameters["gamma"], (x, z)
        shift = z.mean(axis=0, dtype=np.float64)
        x, z = x - shift, z - shift
        squares = np.einsum("ij,ij->i", x, x), np.einsum("ij,ij->i", z, z)
        largest = max(squares[0].max(), squares[1].max())
        if not gamma * largest <= LARGEST_EXPANDED_SQUARE:  # the shift would round the points as well
            return np.exp(-gamma * cdist(*given, "sqeuclidean"))
        distances = _in_one_thread(-2 * x, z)
        distances += squares[0][:, None]
        distances += squares[1]
        np.maximum(distances, 0, out=distances)
        distances *= -gamma
        return np.exp(distances, out=distances)

    def blocks(self, x: Any, z: Any) -> Any:
        """Yield pairs of a slice of the rows of x and their values against all of z, `(rows, n)`."""
        (m, n), (least, most) = (x.shape[0], z.shape[0]), MEASURED.rows_of_a_block
        sparse, few = sp.issparse(x) or sp.issparse(z), m * n <= MEASURED.values_by_numpy
        doubles = x.dtype == z.dtype == np.float64  # a program is faster in float32
        by_numpy = few or doubles and m * n <= MEASURED.values_by_blocks_of_numpy
        products = self.name in OF_PRODUCTS and not sparse and by_numpy
        if products or (self.name != "object" and (sparse or few)):
            values = MEASURED.values_of_a_block_of_numpy if products else VALUES_PER_BLOCK
            step = max(m, 1) if few else max(values // max(n, 1), least)
            for start in range(0, m, step):
                rows = slice(start, min(start + step, m))
                yield rows, self._few(x[rows], z) if products else self._by_scikit_learn(x[rows], z)
            return
        require_own_process()
        x, z = (points if sp.issparse(points) else np.asarray(points) for points in (x, z))
        dtype = np.result_type(x.dtype, z.dtype)
        z = z.toarray() if sp.issparse(z) else z
        # Shift in float64, before anything is rounded: points far from the origin lie near their mean.
        shift, reach = placed(self.kernel, z)
        if dtype == np.float32 and reach > FAR:
            shift = 0.0  # these points are float32 numbers, and the shifted ones are not
        columns = padded_rows((z - shift).astype(dtype), size_class(n))
        step = min(most, max(least, 2 ** (VALUES_PER_BLOCK // len(columns)).bit_length() // 2), size_class(m))
        with jax.enable_x64(True):
            columns = jax.device_put(columns)
            for start in range(0, m, step):
                rows = slice(start, min(start + step, m))
                block = x[rows].toarray() if sp.issparse(x) else x[rows]
                values = np.asarray(_values(self.kernel, padded_rows((block - shift).astype(dtype), step), columns))
                yield rows, values[: rows.stop - rows.start, :n]

    def stored(self, values: np.ndarray, definite: bool | None = None) -> DenseGram:
        """Return an operator of values `(n, n)` that are known to be `definite` (None: by the kernel), with x64 on."""
        places, nothing = np.arange(len(values), dtype=np.int32), np.zeros((0,), values.dtype)
        vouched = self.definite if definite is None else definite
        return DenseGram(Precomputed(), *jax.device_put((places, nothing, values)), vouched=vouched)


def _in_one_thread(x: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Return `x z'` of points `(m, d)` and `(n, d)`, by tiles for which BLAS wakes no other thread."""
    out = np.empty((len(x), len(z)), np.result_type(x, z))
    side = max(math.isqrt(MEASURED.multiplications_of_one_thread // x.shape[1]), MEASURED.side_of_a_tile)
    for i in range(0, len(x), side):
        for j in range(0, len(z), side):
            np.matmul(x[i : i + side], z[j : j + side].T, out=out[i : i + side, j : j + side])
    return out


@Program.full()
def _values(kernel: Any, x: Any, z: Any) -> Any:
    return kernel.matrix(x, z)


def placed(kernel: Any, x: np.ndarray) -> tuple[Any, float]:
    """Return what to subtract from points `(n, d)`, and how far they then lie from the origin in a kernel's widths.

    It is the mean for a stationary kernel, unless a point lies so far from it that the others would be rounded: one
    entry of 1e19 among small ones is enough. Then it is 0, and distances are computed from differences.
    """
    if not kernel.stationary:
        return 0.0, 0.0
    shift = x.mean(axis=0, dtype=np.float64)
    reach = furthest(kernel, x - shift)
    return (shift, reach) if reach <= FAR_IN_DOUBLE else (0.0, furthest(kernel, x))


def padded_rows(x: np.ndarray, size: int) -> np.ndarray:
    """Return points with copies of the first one, up to `size` rows."""
    return x if len(x) == size else np.concatenate([x, np.repeat(x[:1], size - len(x), axis=0)])


def kernel_values(kernel: Any, gamma: Any, coef0: float, degree: float, X: Any) -> KernelValues:  # noqa: N803
    """Return the kernel that an estimator's parameters specify, for training points X `(n, d)`."""
    if isinstance(kernel, Kernel):
        return KernelValues("object", {}, kernel)
    if callable(kernel):
        return KernelValues("callable", {}, kernel)
    if kernel == "precomputed":
        return KernelValues("precomputed", {}, None)
    if kernel == "poly" and (degree < 1 or coef0 < 0):
        need = "degree >= 1 and coef0 >= 0 are needed, or it is no kernel."
        raise InputError(f"degree is {degree} and coef0 {coef0}: {need}")
    if kernel == "linear":
        gamma = 0.0
    width = 1.0 / X.shape[1] if gamma == "auto" else resolve_gamma(gamma, X) if isinstance(gamma, str) else gamma
    # scikit-learn takes a width of 0: a constant kernel.
    named: Any = named_kernel(kernel, np.float64(max(width, TINY)), np.float64(coef0), int(degree))
    return KernelValues(kernel, {field.name: getattr(named, field.name) for field in dataclasses.fields(named)}, named)


class Samples(NamedTuple):
    """The training samples of an estimator: kernel values, or points to compute them from."""

    values: KernelValues
    x: Any  # points, sparse, or dense and shifted to where distances keep their digits; None if only values are known
    K: np.ndarray | None  # all kernel values, `(n, n)`
    reach: float = 0.0  # how far the points lie from the origin in widths of the kernel; 0 of a kernel without one
    exact: Any = None  # the points as they were passed, if x or K were computed from them in float32
    definite: bool = False  # whether the kernel matrix is known to be positive semidefinite
    float32_error: float = 0.0  # a bound of the float32 error of a kernel value, if there are exact points

    @property
    def largest(self) -> float:
        """Return the largest `k(x_i, x_i)`; call it with x64 on."""
        return float(np.max(self.values.kernel.diag(self.x) if self.K is None else self.K.diagonal()))

    def operator(self, parts: Sequence[slice], size: int, stored: bool = False) -> Any:
        """Return the Gram operator of the samples in these slices, absent ones up to `size`; call it with x64 on."""
        if self.K is None and not stored:
            kernel, x = self.values.kernel, padded_rows(self.points(parts), size)
            squares = np.einsum("ij,ij->i", x, x) if kernel.stationary else None
            x, shift, squares = jax.device_put((x, np.zeros(x.shape[1], x.dtype), squares))
            near = isinstance(kernel, RBF) and self.reach <= NEAR
            return TiledGram(
                kernel, x, shift, min(measured.MEASURED.rows_per_tile, size), np.dtype(x.dtype), squares, near
            )
        if self.K is None:
            x = self.points(parts)
            return self._replace(K=self.values.between(x, x)).operator((slice(0, x.shape[0]),), size)
        K, ends = np.zeros((size, size), self.K.dtype), accumulate((p.stop - p.start for p in parts), initial=0)
        places = [slice(*pair) for pair in pairwise(ends)]
        for (i, rows), (j, columns) in product(zip(places, parts, strict=True), repeat=2):
            K[i, j] = self.K[rows, columns]
        return self.values.stored(K, self.definite)

    def driven(self, parts: Sequence[slice]) -> Any:
        """Return their operator for the driver of `jaxsvm.fit`; absent ones fill it up to one of few sizes."""
        size = padded_size(sum(part.stop - part.start for part in parts))
        if self.K is not None:
            return self.operator(parts, size)
        x = self.points(parts)
        return build.gram(self.values.kernel, x if sp.issparse(x) else padded_rows(x, size))

    def features(self, parts: Sequence[Any], size: int) -> np.ndarray | None:
        """Return the points in these slices, with absent ones up to `size`, if a machine is solved in their space."""
        x = self.x if self.exact is None else self.exact
        if x is None or sp.issparse(x) or not isinstance(self.values.kernel, Linear):
            return None
        chosen = np.concatenate([x[part] for part in parts])
        return padded_rows(chosen, size) if prefers_features(chosen, len(chosen)) else None

    def part(self, rows: np.ndarray) -> "Samples":
        """Return some of the samples, by index."""
        return self._replace(
            x=None if self.x is None else self.x[rows],
            K=None if self.K is None else self.K[np.ix_(rows, rows)],
            exact=None if self.exact is None else self.exact[rows],
        )

    def between(self, some: np.ndarray, others: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield blocks of kernel values `(rows, others)` between some samples and others, both by index."""
        if self.K is not None:
            yield slice(0, len(some)), self.K[np.ix_(some, others)]
        elif not len(others):
            yield slice(0, len(some)), np.zeros((len(some), 0))
        else:
            x = self.x if self.exact is None else self.exact
            yield from self.values.blocks(x[some], x[others])

    def points(self, parts: Sequence[slice]) -> Any:
        """Return the points in these slices."""
        return (sp.vstack if sp.issparse(self.x) else np.concatenate)([self.x[part] for part in parts])


def samples(values: KernelValues, X: Any, tol: float, alone: bool = False) -> Samples:  # noqa: N803
    """Return the samples of an estimator that trains to the relative gap `tol`; 0.0 asks for values in float64.

    X are points, `(n, d)`, or kernel values of a precomputed kernel or a function of two sets. A machine that is
    trained `alone` needs few rows of many. If the whole matrix is found to be positive semidefinite, that of every
    machine is. If it is not, that of some samples, or along an equality, may be: each machine is checked by itself.
    """
    data = _held(values, X, tol, alone)
    if data.definite or data.K is None:
        return data
    n = len(data.K)
    size = padded_size(n, up_to=n)
    whole = BoxData(np.ones(size), np.ones(size), (np.arange(size) < n).astype(float), "")
    with jax.enable_x64(True):
        return data._replace(definite=not is_indefinite(data.operator((slice(0, n),), size), whole))


def _held(values: KernelValues, X: Any, tol: float, alone: bool) -> Samples:  # noqa: N803
    n, definite = X.shape[0], values.definite
    if values.by_values:
        if values.name == "precomputed":
            build.require_symmetric("X", np.asarray(X))
        return Samples(values, None, np.asarray(X))
    if sp.issparse(X) and n > LARGEST_PADDED:
        return Samples(values, X, None, definite=definite)
    if sp.issparse(X) or n * n <= MEASURED.values_by_numpy:
        X = X.astype(np.float64, copy=False)  # certificates and decisions are in float64: float32 values differ
        K = np.ascontiguousarray(values.between(X, X))
        return Samples(values, None if sp.issparse(X) else X, K, definite=definite)
    # From a tolerance on values are held in float32, as LIBSVM holds them, if that rounds no point far away.
    # Of a kernel that may be indefinite they are not: the matrix that is tested must be the one that is certified.
    shift, reach = placed(values.kernel, X)
    narrow = tol >= MEASURED.tol_of_float32 and definite and reach <= FAR
    x = (X - shift).astype(np.float32 if narrow else np.float64)
    by_rows = alone and definite and n > LOOP.samples_at_once or 8 * n * n > SIZES.bytes_held
    K = None if by_rows else values.between(x, x)
    data = Samples(values, x, K, reach, X if narrow else None, definite)
    with jax.enable_x64(True):
        return data._replace(float32_error=narrow * (FLOAT32_ERROR + ERROR_A_WIDTH * reach) * data.largest)
