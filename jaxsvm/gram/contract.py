"""The contract of a Gram operator: what problems, solvers and drivers ask of the kernel matrix of a data set.

`DenseGram`, `TiledGram` and `LowRankGram` fulfil it. An operator is a frozen dataclass, registered as a pytree, whose
sizes and flags are static.
"""

from typing import Any, ClassVar, Protocol

import numpy as np
from jaxtyping import Array, Float, Int

from jaxsvm.kernels import Kernel
from jaxsvm.runtime.meshes import Spread

# pyright: reportReturnType=false
# (Docstrings are the bodies of members of a protocol.)


class Gram(Protocol):
    """The kernel matrix `K (n, n)` of n points, by rows, blocks and products."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def n(self) -> int:
        """Return the number of points."""

    @property
    def dtype(self) -> np.dtype:
        """Return the dtype of the kernel values."""

    @property
    def kernel(self) -> Kernel:
        """Return the kernel."""

    @property
    def x(self) -> Any:
        """Return the points less `shift`, `(n, d)`, dense or CSR; their indices, `(n,)`, if the matrix was given."""

    @property
    def shift(self) -> Float[Array, " d"]:
        """Return what was subtracted from the points, `(d,)`."""

    @property
    def stored(self) -> bool:
        """Return whether all values are in memory, so that reading a block costs nothing else."""

    @property
    def may_store(self) -> bool:
        """Return whether a driver may store all values: they are stored, or fit the `memory` budget."""

    @property
    def memory(self) -> int:
        """Return the bytes that stored values may take; 0 without a budget."""

    @property
    def rank(self) -> int | None:
        """Return the number of features that replace the kernel; None where the values are the kernel's own."""

    @property
    def definite(self) -> bool:
        """Return whether the matrix is known to be positive semidefinite."""

    @property
    def spread(self) -> Spread | None:
        """Return how the points are spread over a mesh; None where they lie on one device."""

    @property
    def design(self) -> Any:
        """Return a matrix `X (n, d)`, dense or CSR, with `K = X X'`; None if the operator has none."""

    @property
    def feature_rows(self) -> Any:
        """Return `design` where it is dense; else None."""

    def row(self, i: Int[Array, ""]) -> Float[Array, " n"]:
        """Return `K[i]`."""

    def rows(self, index: Int[Array, " t"]) -> Float[Array, "t n"]:
        """Return `K[index]`."""

    def block(self, rows: Int[Array, " t"], columns: Int[Array, " u"]) -> Float[Array, "t u"]:
        """Return `K[rows, columns]`."""

    def diag(self) -> Float[Array, " n"]:
        """Return the diagonal `K_ii`."""

    def matvec(self, v: Float[Array, "n *k"]) -> Float[Array, "n *k"]:
        """Return `K @ v`, in the wider of the two dtypes; differentiable."""

    def support_matvec(self, v: Float[Array, " n"]) -> Float[Array, " n"]:
        """Return `K @ v` at the cost of the rows where v is not 0. Solvers use it; it need not be differentiable."""

    def expansion(self, coef: Any, support: Any = None) -> tuple[Any, Float[Array, " q"]]:
        """Return basis functions and coefficients of the function `sum_j coef_j k(x_j, .)`.

        Args:
            coef: Coefficients, `(n,)`.
            support: Indices of the points to keep; None keeps all.
        """

    def with_squares(self) -> "Gram":
        """Return the operator with whatever it precomputes to make `rows` faster."""

    def lengthened(self, size: int) -> "Gram | None":
        """Return the operator filled up to `size` points by copies of the first; None where that is not cheap."""

    def widened(self, dtype: Any) -> "Gram":
        """Return the operator for certificates in a wider dtype."""
