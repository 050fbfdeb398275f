"""Basis functions of a decision function: kernels at the training points, or the features of a low-rank Gram."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxsvm.errors import InputError, is_concrete
from jaxsvm.gram.measured import MEASURED
from jaxsvm.kernels import Kernel, Precomputed
from jaxsvm.numerics.precision import matmul, precisely
from jaxsvm.numerics.sizes import size_class
from jaxsvm.points.rows import CSR, Rows, as_points, by_row_tiles, dense_rows, product, transposed_product
from jaxsvm.runtime.arrays import computed, in_a_line, lengthened, may_be_padded
from jaxsvm.runtime.programs import Program


def apply_in_blocks(
    basis: Any, x_new: Any, coef: Float[Array, "q *k"], block: int | None = None
) -> Float[Array, "m *k"]:
    """Return `basis(x_new) @ coef`, computed in blocks of rows: a million rows never need m x q memory.

    New points are dense or sparse. A `block` of None is as many rows as make 32 MiB of values, or of points if they are
    wider.

    Raises:
        InputError: On points of another width, or bad values.
    """
    points = as_points(x_new, None, "x_new")
    if basis.columns not in (None, points.shape[1]):
        raise InputError(f"x_new has {points.shape[1]} features: {basis.columns} are needed, as in training.")
    m = points.shape[0]
    basis, coef = _in_size_class(basis, coef)
    if is_concrete(basis, points, coef) and not isinstance(points, Rows) and may_be_padded(points):
        points = lengthened(points, size_class(m))
    width = max(basis.size, points.shape[1])  # dense rows, or their values
    size = max(1, min(points.shape[0], MEASURED.bytes_per_block // (8 * width) if block is None else block))
    values = _values(basis, points, coef, size)
    return values if points.shape[0] == m else computed(lambda _, rows: rows[:m], values)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class KernelBasis:
    """`x_new -> k(x_new, x_j)` for q points."""

    __repr__ = in_a_line

    kernel: Kernel
    x: Any  # the points, less `shift`, `(q, d)` dense or CSR; for `Precomputed` indices of training samples, `(q,)`
    shift: Float[Array, " d"]  # what to subtract from new points, `(d,)`
    # whether the points are near the origin (`jaxsvm.kernels.distances.place`); new ones need not be: one that is far
    # from it is far from all of them, and its distance keeps its digits; static
    near: bool = dataclasses.field(default=False, metadata={"static": True})

    @property
    def size(self) -> int:
        """Return the number of points, q."""
        return self.x.shape[0]

    @property
    def columns(self) -> int | None:
        """Return the number of columns of a point; None for `Precomputed`, which takes any row that is long enough."""
        return None if isinstance(self.kernel, Precomputed) else self.x.shape[1]

    def __call__(self, x_new: Float[Array, "m d"]) -> Float[Array, "m q"]:
        """Return all values, `(m, q)`, of dense new points."""
        if self.columns is None:
            return self.kernel.matrix(x_new, self.x)
        if isinstance(self.x, CSR):
            x, x_new = self.x, x_new - self.shift[None, :]
            tile = max(1, min(1024, MEASURED.bytes_per_block // (8 * x.d)))  # points made dense at a time
            return by_row_tiles(self.size, tile, lambda index: self._values(x_new, x.rows(index)).T).T
        return self._values(x_new - self.shift[None, :], self.x)

    def _values(self, x_new: Array, x: Array) -> Array:
        return self.kernel.matrix(x_new, x, near=self.near)

    def apply(self, x_new: Any, coef: Float[Array, "q *k"], block: int | None = None) -> Float[Array, "m *k"]:
        """Return `basis(x_new) @ coef`, `(m,)` or `(m, k)`, in blocks of rows."""
        if self.columns is not None or not is_concrete(self.x) or not self.size:
            return apply_in_blocks(self, x_new, coef, block)
        points, last = as_points(x_new, None, "x_new"), int(np.max(self.x))
        if points.shape[1] <= last:  # a gather would take the last column for each missing one
            raise InputError(
                f"x_new has {points.shape[1]} columns of kernel values, and training sample {last} is needed: "
                "one column for every training sample."
            )
        return apply_in_blocks(self, points, coef, block)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class NystroemBasis:
    """Nystroem features `k(x_new, landmarks) @ whitening`."""

    __repr__ = in_a_line

    kernel: Kernel  # the kernel
    x: Float[Array, "q d"]  # the landmarks, less `shift`, `(q, d)`
    shift: Float[Array, " d"]  # what to subtract from new points, `(d,)`
    whitening: Float[Array, "q r"]  # `(q, r)`
    # whether the landmarks are known to be near the origin; static
    near: bool = dataclasses.field(default=False, metadata={"static": True})

    @property
    def size(self) -> int:
        """Return the number of features, r."""
        return self.whitening.shape[1]

    @property
    def columns(self) -> int:
        """Return the number of columns of a point."""
        return self.x.shape[1]

    def __call__(self, x_new: Float[Array, "m d"]) -> Float[Array, "m r"]:
        """Return the features of dense points, `(m, r)`."""
        return matmul(self.values(x_new).astype(self.whitening.dtype), self.whitening)

    def values(self, x_new: Float[Array, "m d"]) -> Float[Array, "m q"]:
        """Return the kernel values of dense points at the landmarks, `(m, q)`."""
        return self.kernel.matrix(x_new - self.shift[None, :], self.x, near=self.near)

    apply = apply_in_blocks


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FourierBasis:
    """Random Fourier features `sqrt(2 / r) cos(x_new @ frequencies + phases)`."""

    __repr__ = in_a_line

    frequencies: Float[Array, "d r"]  # `(d, r)`
    phases: Float[Array, " r"]  # `(r,)`
    shift: Float[Array, " d"]  # what to subtract from new points, `(d,)`

    kernel = None  # the Gram operator has the kernel that the features approximate

    @property
    def size(self) -> int:
        """Return the number of features, r."""
        return self.phases.shape[0]

    @property
    def columns(self) -> int:
        """Return the number of columns of a point."""
        return self.frequencies.shape[0]

    def __call__(self, x_new: Float[Array, "m d"]) -> Float[Array, "m r"]:
        """Return the features of dense points, `(m, r)`."""
        angles = matmul(x_new - self.shift[None, :], self.frequencies) + self.phases[None, :]
        return jnp.sqrt(jnp.asarray(2 / self.size, angles.dtype)) * jnp.cos(angles)

    apply = apply_in_blocks


Basis = KernelBasis | NystroemBasis | FourierBasis


def _in_size_class(basis: Any, coef: Any) -> tuple[Any, Any]:
    padable = isinstance(basis, KernelBasis) and basis.size and not isinstance(basis.x, Rows)
    if not padable or not is_concrete(basis, coef) or not may_be_padded(basis.x):
        return basis, coef
    size = size_class(basis.size)
    return dataclasses.replace(basis, x=lengthened(basis.x, size)), lengthened(coef, size, 0)


@Program.full(static=("size",))
def _values(basis: Any, points: Any, coef: Array, size: int) -> Array:
    """Compute in twice the precision of the coefficients, as certificates do: large coefficients cancel."""
    if isinstance(basis, KernelBasis) and basis.kernel.linear:
        w = precisely(lambda coef, x: transposed_product(x, coef))(coef, basis.x)
        return product(points, w.astype(jnp.result_type(w.dtype, points.dtype)))
    return precisely(partial(_blocks, size=size))(coef, basis, points)


def _blocks(coef: Array, basis: Any, points: Any, size: int) -> Array:
    def value(index: Array) -> Array:
        return matmul(basis(dense_rows(points, index)), coef)

    return by_row_tiles(points.shape[0], size, jax.checkpoint(value))
