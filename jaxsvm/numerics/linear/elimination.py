"""Cholesky factors and the solves with them, by elimination in JAX: for systems in lanes, and for all small ones.

Batched LAPACK calls that do not depend on each other run at once inside a compiled program, where each waits for
threads that the others hold: three of 1,024 lanes never return (jax 0.10). A single one waits at barriers beside a busy
neighbour: at 256 variables for 100 ms, which are 2 here. So LAPACK is called in one place only, for the factor of a
single matrix of `LAPACK_SIZE` and more; in lanes that is elimination too.

A panel of columns at a time, in a loop, so that a program is as small for any size: what the columns before it leave, a
factor of its diagonal block with the inverse of that, a row at a time, and a product with this inverse (Du Croz and
Higham 1992), whose rounding one correction takes back.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Bool, Float

from jaxsvm.runtime.loops import fori_loop

PANEL = 32
"""Columns of a panel."""
ONE_PANEL = 48
"""Up to this size there is one panel."""
LAPACK_SIZE = 1024
"""From this size on LAPACK factors a single matrix sooner: it takes a sixth of the operations, on all cores."""


class Factor(NamedTuple):
    """`A = L L'`; NaN or infinity where A is not positive definite.

    Attributes:
        L: The lower factor, and an identity up to whole panels, `(panels b, panels b)`.
        inverses: Of its diagonal blocks, `(panels, b, b)`.
    """

    L: Float[Array, "s s"]
    inverses: Float[Array, "k b b"]

    def solve(self, B: Float[Array, "q *m"]) -> Float[Array, "q *m"]:
        """`A^-1 B`."""
        return self._substituted(self.lower_solve(B), transposed=True)

    def lower_solve(self, B: Float[Array, "q *m"]) -> Float[Array, "q *m"]:
        """`L^-1 B`."""
        return self._substituted(B, transposed=False)

    def within(self, larger: "Factor") -> "Factor":
        """The factor in the first places of one of more variables, where sizes beyond `ONE_PANEL` are padded up."""
        parts = [lax.dynamic_update_slice(old, new, (0,) * new.ndim) for new, old in zip(self, larger, strict=True)]
        return Factor(*parts)

    def _substituted(self, B: Array, transposed: bool) -> Array:
        count, b, _ = self.inverses.shape
        q, size = len(B), len(self.L)
        if count == 1:
            corner, inverse = self.L, self.inverses[0]
            return _corrected(corner.T, inverse.T, B) if transposed else _corrected(corner, inverse, B)
        places = jnp.arange(size, dtype=jnp.int32)

        def block(k: Any, X: Array) -> Array:
            at = (count - 1 - k if transposed else k) * b
            strip = lax.dynamic_slice_in_dim(self.L, at, b, 1).T if transposed else _rows(self.L, at, b)
            corner, inverse = _square(self.L, at, b), lax.dynamic_index_in_dim(self.inverses, at // b, keepdims=False)
            if transposed:
                corner, inverse = corner.T, inverse.T
            known = places >= at + b if transposed else places < at
            right = _rows(X, at, b) - _dot(jnp.where(known[None, :], strip, 0), X)
            return lax.dynamic_update_slice_in_dim(X, _corrected(corner, inverse, right), at, 0)

        X = jnp.pad(B.reshape(q, -1), ((0, size - q), (0, 0)))
        return fori_loop(0, count, block, X)[:q].reshape(B.shape)


def factored(A: Float[Array, "q q"]) -> Factor:
    """The Cholesky factor of a symmetric positive definite matrix, whose lower triangle is read.

    A pivot that is not positive makes all from there on NaN or infinite.
    """
    return _factored_by_size(A) if len(A) >= LAPACK_SIZE else _eliminated(A)


def semifactored(A: Float[Array, "q q"], floor: Any) -> Factor:
    """The factor of the variables of a positive semidefinite matrix that those before them do not explain.

    A variable whose pivot is not above `floor` is left out: its column of L is 0, and so is its place in each solution.
    """
    return _eliminated(A, floor)


def padded_factor(values: Float[Array, "q q"], valid: Bool[Array, " q"]) -> Factor:
    """The factor of a matrix on its valid places, and of the identity on the others.

    With a shift of what rounding may take from the smallest eigenvalue, without which a factor of a positive definite
    matrix can fail: whoever solves with it refines, which takes the shift out again.
    """
    values = jnp.where(valid[:, None] & valid[None, :], values, 0)
    size = jnp.asarray(len(valid), values.dtype)
    shift = 2 * jnp.finfo(values.dtype).eps * jnp.sqrt(size) * jnp.diagonal(values).max()
    return factored(values + jnp.diag(jnp.where(valid, shift, 1)))


def identity(q: int, dtype: Any) -> Factor:
    """The factor of an identity."""
    b = _panel(q)
    size = -(-q // b) * b
    return Factor(jnp.eye(size, dtype=dtype), jnp.tile(jnp.eye(b, dtype=dtype), (size // b, 1, 1)))


@custom_vmap
def _factored_by_size(A: Array) -> Factor:
    # `jnp.linalg.cholesky` takes the mean with the transpose first: a third of its time at q = 2,000.
    L = _padded(lax.linalg.cholesky(A, symmetrize_input=False), PANEL)
    starts = jnp.arange(0, len(L), PANEL, dtype=jnp.int32)
    return Factor(L, jax.vmap(lambda at: _row_by_row(jnp.eye(PANEL, dtype=L.dtype), _square(L, at, PANEL)))(starts))


@_factored_by_size.def_vmap
def _(axis_size: int, in_batched: list[bool], A: Array) -> tuple[Factor, Any]:
    del axis_size, in_batched
    return jax.vmap(_eliminated)(A), Factor(True, True)  # pyright: ignore[reportArgumentType]


def _eliminated(A: Array, floor: Any = None) -> Factor:
    b = _panel(len(A))
    A = _padded(A, b)
    size = len(A)
    places = jnp.arange(size, dtype=jnp.int32)
    corner_of = partial(_corner, floor=floor)
    if size == b:
        L, inverse = corner_of(A)
        return Factor(L, inverse[None])

    def panel(k: Any, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        L, inverses = carry
        at = k * b
        rest = lax.dynamic_slice_in_dim(A, at, b, 1) - _dot(L, _rows(L, at, b).T)
        corner, inverse = corner_of(_rows(rest, at, b))
        below = jnp.where((places >= at + b)[:, None], _corrected(corner, inverse, rest.T).T, 0)
        below = lax.dynamic_update_slice_in_dim(below, corner, at, 0)
        return lax.dynamic_update_slice_in_dim(L, below, at, 1), inverses.at[k].set(inverse)

    start = (jnp.zeros_like(A), jnp.zeros((size // b, b, b), A.dtype))
    return Factor(*fori_loop(0, size // b, panel, start))


def _panel(q: int) -> int:
    return q if q <= ONE_PANEL else PANEL


def _corner(A: Float[Array, "b b"], floor: Any) -> tuple[Float[Array, "b b"], Float[Array, "b b"]]:
    """The lower factor of a block and the inverse of that: rows of `(L', L^-1)` are what is left of `(A, I)`."""
    b = len(A)
    places = jnp.arange(2 * b, dtype=jnp.int32)
    symmetric = jnp.where(places[:b, None] >= places[None, :b], A, A.T)
    A = jnp.concatenate([symmetric, jnp.eye(b, dtype=A.dtype)], axis=1)

    def row(j: Any, both: Array) -> Array:
        before = lax.dynamic_slice_in_dim(both, j, 1, 1)
        rest = _rows(A, j, 1) - (before * both).sum(axis=0, keepdims=True)
        pivot = jnp.where(places == j, rest[0], 0).sum()
        usable = True if floor is None else pivot > floor
        found = rest / jnp.sqrt(jnp.where(usable, pivot, 1))
        return lax.dynamic_update_slice_in_dim(both, jnp.where(((places >= j) & usable)[None, :], found, 0), j, 0)

    both = fori_loop(0, b, row, jnp.zeros_like(A))
    return both[:, :b].T, both[:, b:]


def _row_by_row(B: Float[Array, "b m"], L: Float[Array, "b b"]) -> Float[Array, "b m"]:
    """`L^-1 B`."""
    places = jnp.arange(len(L), dtype=jnp.int32)

    def row(j: Any, X: Array) -> Array:
        share = _rows(L, j, 1)[0]
        rest = _rows(B, j, 1) - (jnp.where(places < j, share, 0)[:, None] * X).sum(axis=0, keepdims=True)
        return lax.dynamic_update_slice_in_dim(X, rest / jnp.where(places == j, share, 0).sum(), j, 0)

    return fori_loop(0, len(L), row, jnp.zeros_like(B))


def _corrected(L: Array, inverse: Array, right: Array) -> Array:
    """`L^-1 right` by the inverse, and once more of what that leaves."""
    x = _dot(inverse, right)
    return x + _dot(inverse, right - _dot(L, x))


def _padded(A: Float[Array, "q q"], b: int) -> Float[Array, "s s"]:
    """The matrix, and an identity up to a multiple of b."""
    more = -len(A) % b
    if not more:
        return A
    return jnp.pad(A, ((0, more), (0, more))) + jnp.diag((jnp.arange(len(A) + more) >= len(A)).astype(A.dtype))


def _rows(A: Array, at: Any, b: int) -> Array:
    return lax.dynamic_slice_in_dim(A, at, b)


def _square(A: Array, at: Any, b: int) -> Array:
    return lax.dynamic_slice_in_dim(_rows(A, at, b), at, b, 1)


def _dot(A: Array, B: Array) -> Array:
    return jnp.matmul(A, B, precision=lax.Precision.HIGHEST)
