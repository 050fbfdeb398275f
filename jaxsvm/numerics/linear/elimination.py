"""Compute Cholesky factors and solve with them by elimination in JAX: for systems in lanes, and for all small ones.

LAPACK is avoided inside compiled programs. Independent batched calls run at the same time, and each waits for threads
that the others hold: three of 1,024 lanes never return (jax 0.10). A single call waits at barriers if another process
keeps a core busy: 100 ms at 256 variables, 2 ms here. LAPACK therefore only factors a single matrix of `LAPACK_SIZE`
or more; in lanes, elimination does that too.

Elimination takes a panel of columns at a time, in a loop, so that programs of all sizes are equally small. For a panel
it subtracts the contributions of the columns before, factors and inverts the diagonal block, a row at a time, and
multiplies by this inverse (Du Croz and Higham 1992). One correction removes the rounding of the inverse.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Bool, Float

from jaxsvm.numerics.measured import MEASURED
from jaxsvm.numerics.precision import diagonal, matmul, plus_diagonal
from jaxsvm.numerics.selection import entry
from jaxsvm.runtime.arrays import promoting
from jaxsvm.runtime.loops import fori_loop

PANEL = MEASURED.columns_per_panel
LAPACK_SIZE = MEASURED.lapack_size


class Factor(NamedTuple):
    """A Cholesky factor, `A = L L'`; NaN or infinity if A is not positive definite."""

    L: Float[Array, "s s"]  # lower factor, padded by an identity up to whole panels, `(panels b, panels b)`
    inverses: Float[Array, "k b b"]  # inverses of its diagonal blocks, `(panels, b, b)`

    def solve(self, B: Float[Array, "q *m"]) -> Float[Array, "q *m"]:
        """Compute `A^-1 B`."""
        return self._substituted(self.lower_solve(B), transposed=True)

    def lower_solve(self, B: Float[Array, "q *m"]) -> Float[Array, "q *m"]:
        """Compute `L^-1 B`."""
        return self._substituted(B, transposed=False)

    def within(self, larger: "Factor") -> "Factor":
        """Write the factor into the first places of a factor of more variables, both padded to whole panels."""
        parts = [lax.dynamic_update_slice(old, new, (0,) * new.ndim) for new, old in zip(self, larger, strict=True)]
        return Factor(*parts)

    def _substituted(self, B: Array, transposed: bool) -> Array:
        count, b, _ = self.inverses.shape
        q, size = len(B), len(self.L)
        if count == 1:
            corner, inverse = self.L, self.inverses[0]
            return _corrected(corner.T, inverse.T, B) if transposed else _corrected(corner, inverse, B)
        B, shape = jnp.pad(B.reshape(q, -1), ((0, size - q), (0, 0))), B.shape

        def block(k: Any, X: Array) -> Array:
            k = count - 1 - k if transposed else k
            at, inverse = k * b, entry(self.inverses, k)
            strip = _columns(self.L, at, b).T if transposed else _rows(self.L, at, b)
            corner = _rows(_columns(self.L, at, b), at, b)
            if transposed:
                corner, inverse = corner.T, inverse.T
            # Places that are not solved for are still 0 in X.
            return _with_rows(X, _corrected(corner, inverse, _rows(B, at, b) - matmul(strip, X)), at)

        return fori_loop(0, count, block, jnp.zeros_like(B))[:q].reshape(shape)


def factored(A: Float[Array, "q q"]) -> Factor:
    """Compute the Cholesky factor of a symmetric positive definite matrix from its lower triangle.

    After a pivot that is not positive everything is NaN or infinite.
    """
    return _factored_by_size(A) if len(A) >= LAPACK_SIZE else _eliminated(A)


def semifactored(A: Float[Array, "q q"], floor: Any) -> Factor:
    """Factor a positive semidefinite matrix on the variables that do not depend linearly on those before them.

    A variable whose pivot does not exceed `floor`, `(q,)` or `()`, is left out: its column of L is 0, and so is its
    entry of solutions.
    """
    return _eliminated(A, floor)


def padded_factor(values: Float[Array, "q q"], valid: Bool[Array, " q"]) -> Factor:
    """Factor a matrix on its valid places, and the identity on the others.

    The diagonal is shifted by as much as rounding may take from the smallest eigenvalue: without the shift the factor
    of a positive definite matrix can fail. Solutions must be refined, which removes the effect of the shift.
    """
    values = jnp.where(valid[:, None] & valid[None, :], values, 0)
    size = jnp.asarray(len(valid), values.dtype)
    shift = 2 * jnp.finfo(values.dtype).eps * jnp.sqrt(size) * diagonal(values)
    return factored(plus_diagonal(values, jnp.where(valid, shift, 1)))


def identity(q: int, dtype: Any) -> Factor:
    """Return the factor of an identity."""
    b = _panel(q)
    size = -(-q // b) * b
    return Factor(jnp.eye(size, dtype=dtype), jnp.tile(jnp.eye(b, dtype=dtype), (size // b, 1, 1)))


@custom_vmap
def _factored_by_size(A: Array) -> Factor:
    # `jnp.linalg.cholesky` first symmetrises its argument: a third of its time at q = 2,000.
    L = _padded(lax.linalg.cholesky(A, symmetrize_input=False), PANEL)
    starts = jnp.arange(0, len(L), PANEL, dtype=jnp.int32)

    def inverse(at: Array) -> Array:
        return _row_by_row(jnp.eye(PANEL, dtype=L.dtype), _rows(_columns(L, at, PANEL), at, PANEL))

    return Factor(L, jax.vmap(inverse)(starts))


@_factored_by_size.def_vmap
@promoting()
def _(axis_size: int, in_batched: list[bool], A: Array) -> tuple[Factor, Any]:
    del axis_size, in_batched
    return jax.vmap(_eliminated)(A), Factor(True, True)  # pyright: ignore[reportArgumentType]


def _eliminated(A: Array, floor: Any = None) -> Factor:
    q, b = len(A), _panel(len(A))
    A = _padded(A, b)
    size = len(A)
    places = jnp.arange(size, dtype=jnp.int32)
    floor = None if floor is None else jnp.pad(jnp.broadcast_to(floor, (q,)), (0, size - q))
    if size == b:
        L, inverse = _corner(A, floor)
        return Factor(L, inverse[None])

    def panel(k: Any, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        L, inverses = carry
        at = k * b
        rest = _columns(A, at, b) - matmul(L, _rows(L, at, b).T)
        corner, inverse = _corner(_rows(rest, at, b), None if floor is None else _rows(floor, at, b))
        below = jnp.where((places >= at + b)[:, None], _corrected(corner, inverse, rest.T).T, 0)
        below = _with_rows(below, corner, at)
        L = lax.dynamic_update_slice_in_dim(L, below, at, 1, allow_negative_indices=False)
        return L, _with_rows(inverses, inverse[None], k)

    start = (jnp.zeros_like(A), jnp.zeros((size // b, b, b), A.dtype))
    return Factor(*fori_loop(0, size // b, panel, start))


def _panel(q: int) -> int:
    return q if q <= MEASURED.size_of_a_single_panel else PANEL


def _corner(A: Float[Array, "b b"], floor: Any) -> tuple[Float[Array, "b b"], Float[Array, "b b"]]:
    """Return the lower factor of a block and its inverse: elimination turns `(A, I)` into `(L', L^-1)`, row by row."""
    b = len(A)
    places = jnp.arange(2 * b, dtype=jnp.int32)
    symmetric = jnp.where(places[:b, None] >= places[None, :b], A, A.T)
    A = jnp.concatenate([symmetric, jnp.eye(b, dtype=A.dtype)], axis=1)

    def row(j: Any, both: Array) -> Array:
        before = _columns(both, j, 1)
        rest = _rows(A, j, 1) - (before * both).sum(axis=0, keepdims=True)
        pivot = jnp.where(places == j, rest[0], 0).sum()
        usable = True if floor is None else pivot > entry(floor, j)
        scaled = rest / jnp.sqrt(jnp.where(usable, pivot, 1))
        return _with_rows(both, jnp.where(((places >= j) & usable)[None, :], scaled, 0), j)

    both = fori_loop(0, b, row, jnp.zeros_like(A))
    return both[:, :b].T, both[:, b:]


def _row_by_row(B: Float[Array, "b m"], L: Float[Array, "b b"]) -> Float[Array, "b m"]:
    """Compute `L^-1 B` row by row."""
    places = jnp.arange(len(L), dtype=jnp.int32)

    def row(j: Any, X: Array) -> Array:
        share = _rows(L, j, 1)[0]
        rest = _rows(B, j, 1) - (jnp.where(places < j, share, 0)[:, None] * X).sum(axis=0, keepdims=True)
        return _with_rows(X, rest / jnp.where(places == j, share, 0).sum(), j)

    return fori_loop(0, len(L), row, jnp.zeros_like(B))


def _corrected(L: Array, inverse: Array, right: Array) -> Array:
    """Compute `L^-1 right` by the inverse, and correct the result once by its residual."""
    x = matmul(inverse, right)
    return x + matmul(inverse, right - matmul(L, x))


def _padded(A: Float[Array, "q q"], b: int) -> Float[Array, "s s"]:
    more = -len(A) % b
    if not more:
        return A
    return plus_diagonal(jnp.pad(A, ((0, more), (0, more))), (jnp.arange(len(A) + more) >= len(A)).astype(A.dtype))


# Indices are never negative, which JAX would test for at run time.


def _rows(A: Array, at: Any, b: int) -> Array:
    return lax.dynamic_slice_in_dim(A, at, b, allow_negative_indices=False)


def _columns(A: Array, at: Any, b: int) -> Array:
    return lax.dynamic_slice_in_dim(A, at, b, 1, allow_negative_indices=False)


def _with_rows(A: Array, new: Array, at: Any) -> Array:
    return lax.dynamic_update_slice_in_dim(A, new, at, 0, allow_negative_indices=False)
