"""Kernel values for estimators: between NumPy or SciPy points, however the kernel was named.

Few values, and those of sparse points, are scikit-learn's (`sklearn.metrics.pairwise`): compiling a program would take
longer. Many are computed by a compiled program on blocks of one shape, so that no number of points compiles anew.
"""

import dataclasses
from typing import Any

import jax
import numpy as np
import scipy.sparse as sp
from scipy.spatial.distance import cdist
from sklearn.metrics.pairwise import pairwise_kernels, rbf_kernel

from jaxsvm.errors import InputError
from jaxsvm.gram.build import require_symmetric
from jaxsvm.gram.dense import DenseGram
from jaxsvm.gram.tiled import BUILD_TILE, TiledGram
from jaxsvm.kernels import RBF, Kernel, Laplacian, Linear, Polynomial, Precomputed, Sigmoid
from jaxsvm.numerics.sizes import size_class
from jaxsvm.runtime.forking import require_own_process

FEW = 2**20
"""Values that NumPy computes sooner than a program is compiled."""
BLOCK = 2**22
"""Values of a block: 32 MiB in float64."""
FAR = 1e5
"""Squares of distances to the origin, times gamma, up to which an expanded square costs 1e-10 of a kernel value."""
MOST_ROWS = 1024
"""Rows of a block."""
ROUNDED = 2.0**-21
"""What float32 may add to a kernel value, in units of the largest one of a point with itself (measured: half of it)."""
TINY = 1e-300
"""What stands for a gamma of 0, which scikit-learn takes: the kernel is constant."""


@dataclasses.dataclass(frozen=True)
class KernelValues:
    """A kernel with its parameters resolved.

    Attributes:
        name: scikit-learn's name of it; "precomputed"; "callable" (scikit-learn's convention: two sets of points make a
            matrix); or "object" (a kernel of `jaxsvm.kernels`).
        parameters: Of scikit-learn's function of that name.
        kernel: The same as a kernel of `jaxsvm.kernels`; a function of two sets for "callable"; None for "precomputed".
    """

    name: str
    parameters: dict[str, Any]
    kernel: Any

    @property
    def by_values(self) -> bool:
        """Whether values are all that is known of it: no points to compute others from."""
        return self.name in ("precomputed", "callable")

    @property
    def definite(self) -> bool:
        """Whether every matrix of the kernel is positive semidefinite, by what kind of function it is."""
        return not self.by_values and self.kernel.definite

    def between(self, x: Any, z: Any) -> np.ndarray:
        """Values `k(x_i, z_j)`, `(m, n)`, of points `(m, d)` and `(n, d)`; x itself where it is precomputed."""
        if self.name == "precomputed":
            return np.asarray(x)
        if self.name == "callable":
            values = self.kernel(x, z)
            values = np.asarray(values.toarray() if sp.issparse(values) else values)
            if x is z and values.ndim == 2 and values.shape[0] == values.shape[1]:
                require_symmetric("kernel(X, X)", values)
            return values.astype(np.float64)
        m, n = x.shape[0], z.shape[0]
        sparse = sp.issparse(x) or sp.issparse(z)
        if self.name == "rbf" and not sparse and m * n <= FEW:
            return self._few_rbf(x, z)
        if self.name != "object" and (sparse or m * n <= FEW):
            values = pairwise_kernels(x, z, metric=self.name, **self.parameters)
            return np.asarray(values.toarray() if sp.issparse(values) else values)
        out = np.empty((m, n), np.result_type(x.dtype, np.float32))
        for rows, values in self.blocks(x, z):
            out[rows] = values
        return out

    def _few_rbf(self, x: np.ndarray, z: np.ndarray) -> np.ndarray:
        """The same, with the origin among the points, and by differences where they are still far from it.

        A square of a distance is the difference of three numbers, which swallow it where they are large.
        """
        gamma = self.parameters["gamma"]
        shift = z.mean(axis=0, dtype=np.float64)
        x, z = x - shift, z - shift
        if gamma * max(np.einsum("ij,ij->i", x, x).max(), np.einsum("ij,ij->i", z, z).max()) <= FAR:
            return rbf_kernel(x, z, gamma=gamma)
        return np.exp(-gamma * cdist(x, z, "sqeuclidean"))

    def blocks(self, x: Any, z: Any) -> Any:
        """Pairs of a slice of the rows of x and their values against all of z, `(rows, n)`."""
        m, n = x.shape[0], z.shape[0]
        sparse = sp.issparse(x) or sp.issparse(z)
        if self.by_values or (self.name != "object" and (sparse or m * n <= FEW)):
            step = max(BLOCK // max(n, 1), 64)
            for start in range(0, m, step):
                rows = slice(start, min(start + step, m))
                yield rows, self.between(x[rows], z)
            return
        require_own_process()
        x, z = (points if sp.issparse(points) else np.asarray(points) for points in (x, z))
        dtype = np.result_type(x.dtype, z.dtype)
        z = z.toarray() if sp.issparse(z) else z
        # In float64 and before anything is rounded: points far from the origin lie near their mean.
        shift = z.mean(axis=0, dtype=np.float64) if self.kernel.stationary else 0.0
        columns = padded_rows((z - shift).astype(dtype), size_class(n))
        step = min(MOST_ROWS, max(64, 2 ** (BLOCK // len(columns)).bit_length() // 2), size_class(m))
        with jax.enable_x64(True):
            columns = jax.device_put(columns)
            for start in range(0, m, step):
                rows = slice(start, min(start + step, m))
                block = x[rows].toarray() if sp.issparse(x) else x[rows]
                values = np.asarray(_values(self.kernel, padded_rows((block - shift).astype(dtype), step), columns))
                yield rows, values[: rows.stop - rows.start, :n]

    def stored(self, values: np.ndarray, vouched: bool | None = None) -> DenseGram:
        """An operator of values at hand, `(n, n)`; inside x64.

        Args:
            values: Kernel values between points.
            vouched: Whether their matrix is known to be positive semidefinite; None: where the kernel says so.
        """
        places, nothing = np.arange(len(values), dtype=np.int32), np.zeros((0,), values.dtype)
        vouched = self.definite if vouched is None else vouched
        return DenseGram(Precomputed(), *jax.device_put((places, nothing, values)), vouched=vouched)

    def on_demand(self, x: np.ndarray, near: bool) -> TiledGram:
        """An operator that computes rows of points, `(n, d)`, moved by whoever called; inside x64."""
        squares = np.einsum("ij,ij->i", x, x) if self.kernel.stationary else None
        x, shift, squares = jax.device_put((x, np.zeros(x.shape[1], x.dtype), squares))
        return TiledGram(self.kernel, x, shift, min(BUILD_TILE, x.shape[0]), np.dtype(x.dtype), squares, near)


@jax.jit
def _values(kernel: Any, x: Any, z: Any) -> Any:
    return kernel.matrix(x, z)


def padded_rows(x: np.ndarray, size: int) -> np.ndarray:
    """Points with the first one again and again, up to `size`."""
    return x if len(x) == size else np.concatenate([x, np.repeat(x[:1], size - len(x), axis=0)])


def kernel_values(kernel: Any, gamma: Any, coef0: float, degree: float, X: Any) -> KernelValues:  # noqa: N803
    """The kernel that an estimator's parameters name, for training points X.

    Args:
        kernel: A name, a function of two sets of points, or a kernel of `jaxsvm.kernels`.
        gamma: "scale", "auto" or a number, >= 0.
        coef0: Of "poly" and "sigmoid".
        degree: Of "poly", >= 1.
        X: Training points, `(n, d)`.

    Raises:
        InputError: On parameters that make no kernel.
    """
    if isinstance(kernel, Kernel):
        return KernelValues("object", {}, kernel)
    if callable(kernel):
        return KernelValues("callable", {}, kernel)
    if kernel == "precomputed":
        return KernelValues("precomputed", {}, None)
    if kernel == "linear":
        return KernelValues("linear", {}, Linear())
    width = resolved_gamma(gamma, X)
    width_or_tiny = np.float64(max(width, TINY))
    if kernel == "rbf":
        return KernelValues("rbf", {"gamma": width}, RBF(width_or_tiny))
    if kernel == "laplacian":
        return KernelValues("laplacian", {"gamma": width}, Laplacian(width_or_tiny))
    parameters = {"gamma": width, "coef0": float(coef0)}
    if kernel == "sigmoid":
        return KernelValues("sigmoid", parameters, Sigmoid(np.float64(width), np.float64(coef0)))
    if degree < 1 or coef0 < 0:
        raise InputError(
            f"degree is {degree} and coef0 {coef0}: degree >= 1 and coef0 >= 0 are needed, or it is no kernel."
        )
    polynomial = Polynomial(int(degree), width_or_tiny, np.float64(coef0))
    return KernelValues("poly", {**parameters, "degree": int(degree)}, polynomial)


def resolved_gamma(gamma: Any, X: Any) -> float:  # noqa: N803
    """scikit-learn's "scale" (`1 / (d var(X))`) and "auto" (`1 / d`) as a number."""
    if gamma == "auto":
        return 1.0 / X.shape[1]
    if gamma != "scale":
        return float(gamma)
    variance = X.multiply(X).mean() - X.mean() ** 2 if sp.issparse(X) else X.var(dtype=np.float64)
    return float(1.0 / (X.shape[1] * variance)) if variance > 0 else 1.0
