"""Hold the training samples of an estimator, sorted by class: all kernel values if there are few, else points.

Each machine takes its part of the values, or computes the rows that it needs.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.sparse as sp

from jaxsvm.estimators.measured import MEASURED
from jaxsvm.estimators.training.kernel_values import FAR, FLOAT32_ERROR, KernelValues, padded_rows, placed
from jaxsvm.gram.build import require_symmetric
from jaxsvm.kernels import RBF, Linear
from jaxsvm.kernels.distances import NEAR
from jaxsvm.loop.many import BoxData, is_indefinite, prefers_features
from jaxsvm.numerics.measured import MEASURED as SIZES
from jaxsvm.numerics.sizes import LARGEST_PADDED


class Samples(NamedTuple):
    """The training samples of an estimator: kernel values, or points to compute them from.

    Attributes:
        values: The kernel.
        x: Points, `(n, d)`, sparse, or dense and shifted to where distances keep their digits; None if only values are
            known.
        K: All kernel values, `(n, n)`, or None.
        reach: How far the points lie from the origin in widths of the kernel; 0 of a kernel without one.
        exact: The points as they were passed, `(n, d)`, if x or K were computed from them in float32; else None.
        definite: Whether the kernel matrix is known to be positive semidefinite.
    """

    values: KernelValues
    x: Any
    K: np.ndarray | None
    reach: float = 0.0
    exact: Any = None
    definite: bool = False

    @property
    def float32_error(self) -> float:
        """Return a bound of the float32 error of a kernel value, in units of the largest `k(x_i, x_i)`."""
        return FLOAT32_ERROR + 2.0**-24 * self.reach

    def operator(self, parts: Sequence[slice], size: int) -> Any:
        """Return the Gram operator of the samples in these slices, absent ones up to `size`; call it with x64 on."""
        if self.K is None:
            near = isinstance(self.values.kernel, RBF) and self.reach <= NEAR
            return self.values.on_demand(padded_rows(self.points(parts), size), near)
        K, low = np.zeros((size, size), self.K.dtype), 0
        for rows in parts:
            left = 0
            for columns in parts:
                block = self.K[rows, columns]
                K[low : low + block.shape[0], left : left + block.shape[1]] = block
                left += block.shape[1]
            low += rows.stop - rows.start
        return self.values.stored(K, self.definite)

    def with_definiteness(self) -> "Samples":
        """Return the samples, marked as definite if their stored kernel matrix is positive semidefinite.

        Then the matrix of every machine is. If it is not, that of some samples, or along an equality, may be: each
        machine is checked by itself.
        """
        if self.definite or self.K is None:
            return self
        n = len(self.K)
        size = padded_size(n, up_to=n)
        whole = BoxData(np.ones(size), np.ones(size), (np.arange(size) < n).astype(float), "")
        with jax.enable_x64(True):
            return self._replace(definite=not is_indefinite(self.operator((slice(0, n),), size), whole))

    def features(self, parts: Sequence[Any], size: int) -> np.ndarray | None:
        """Return the points in these slices, with absent ones up to `size`, if a machine is solved in their space."""
        x = self.x if self.exact is None else self.exact
        if x is None or sp.issparse(x) or not isinstance(self.values.kernel, Linear):
            return None
        chosen = np.concatenate([x[part] for part in parts])
        return padded_rows(chosen, size) if prefers_features(chosen, len(chosen)) else None

    def in_double(self, parts: Sequence[slice]) -> "Samples":
        """Return the samples in these slices alone, with kernel values in float64."""
        return samples(self.values, self.exact_points(parts), 0.0)

    def exact_points(self, parts: Sequence[slice]) -> np.ndarray:
        """Return the points in these slices as passed, in float64: solutions are certified for these."""
        return np.concatenate([self.exact[part] for part in parts]).astype(np.float64)

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


def samples(values: KernelValues, X: Any, tol: float) -> Samples:  # noqa: N803
    """Return the samples of an estimator that trains to `tol`.

    Args:
        values: The kernel.
        X: Points, `(n, d)`; kernel values `(n, n)` for a precomputed kernel or a function of two sets.
        tol: The relative gap; 0.0 requires kernel values in float64.
    """
    n, definite = X.shape[0], values.definite
    if values.by_values:
        if values.name == "precomputed":
            require_symmetric("X", np.asarray(X))
        return Samples(values, None, np.asarray(X))
    if sp.issparse(X) and n > LARGEST_PADDED:
        return Samples(values, X, None, definite=definite)
    if sp.issparse(X) or n * n <= MEASURED.values_by_numpy:
        X = X.astype(np.float64, copy=False)  # certificates and decisions are in float64: float32 values differ
        K = np.ascontiguousarray(values.between(X, X))
        return Samples(values, None if sp.issparse(X) else X, K, definite=definite)
    # From a tolerance of 1e-5 on values are held in float32, as LIBSVM holds them, if that rounds no point far away.
    # Of a kernel that may be indefinite they are not: the matrix that is tested must be the one that is certified.
    shift, reach = placed(values.kernel, X)
    narrow = tol >= 1e-5 and definite and reach <= FAR
    x = (X - shift).astype(np.float32 if narrow else np.float64)
    K = values.between(x, x) if 8 * n * n <= SIZES.bytes_held else None
    return Samples(values, x, K, reach, X if narrow else None, definite)


def padded_size(n: int, up_to: int | None = None) -> int:
    """Return the size that n samples of a machine are padded to: 64, 96, 128, 192, 256, ..., two a power of two.

    Args:
        n: The number of samples.
        up_to: More samples are not padded; None: those of one program.
    """
    if n > (LARGEST_PADDED if up_to is None else up_to):
        return n
    size = 64
    while size < n:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return size
