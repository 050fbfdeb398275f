"""Compute Cholesky factors and solve with them by elimination in JAX: for systems in lanes, and for all small ones.

LAPACK is avoided inside compiled programs. Independent batched calls run at the same time, and each waits for threads
that the others hold: three of 1,024 lanes never return (jax 0.10). A single call waits at barriers if another process
keeps a core busy: 100 ms at 256 variables, 2 ms here. LAPACK therefore only factors a single matrix of `LAPACK_SIZE`
or more; in lanes, elimination does that too.

Elimination takes a panel of columns at a time, in a loop, so that programs of all sizes are equally small. For a panel
it subtracts the contributions of the columns before, factors and inverts the diagonal block, a row at a time, and
multiplies by this inverse (Du Croz and Higham 1992). One correction removes the rounding of the inverse.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Bool, Float, Int

from jaxsvm.numerics.measured import MEASURED
from jaxsvm.numerics.precision import count, diagonal, matmul, plus_diagonal
from jaxsvm.numerics.selection import argmax, entry
from jaxsvm.runtime.arrays import promoting
from jaxsvm.runtime.loops import fori_loop, while_loop

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


def factored(A: Float[Array, "q q"], floor: Any = None) -> Factor:
    """Compute the Cholesky factor of a symmetric matrix from its lower triangle.

    Without a floor the matrix is positive definite: after a pivot that is not positive everything is NaN or infinite.
    With one, `(q,)` or `()`, it is semidefinite: a variable whose pivot does not exceed the floor, since it depends
    linearly on those before, is left out. Its column of L is 0, and so is its entry of solutions.
    """
    return _factored_by_size(A) if floor is None and len(A) >= LAPACK_SIZE else _eliminated(A, floor)


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
    return q if q <= PANEL * 3 // 2 else PANEL


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


BLOCK = 64  # features that `features_in_blocks` adds at a time
INSIDE = 0.995  # part of the way to the boundary that a step of interior points takes at most
POWERS = 8  # of an inverse: `deflation` needs the smallest eigenvalue to a tenth only


def evenly_among(members: Bool[Array, " n"], most: int) -> Int[Array, " landmarks"]:
    """Return `most` (or n) indices of members, evenly spaced; some repeat if there are fewer members."""
    n, number = members.shape[0], count(members)
    landmarks = min(most, n)
    ranks = (jnp.arange(landmarks, dtype=jnp.int32) * number) // landmarks + 1
    return jnp.clip(jnp.searchsorted(jnp.cumsum(members, dtype=jnp.int32), ranks), 0, n - 1)


def pivots(row: Callable[[Array], Float[Array, " n"]], diagonal: Float[Array, " n"], rank: int) -> Int[Array, " rank"]:
    """Choose landmarks by pivoted Cholesky: each is the point with the largest residual `K_ii - |F_i|^2`.

    `diagonal` is minus infinity where i may not be chosen; at least `rank` may. `rank` is static.
    """

    def choose(k: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        rest, factor, index = carry
        _, i = argmax(rest)
        column = row(i) - matmul(factor[:, i], factor)
        pivot = rest[i]
        column = jnp.where(pivot > 0, column / jnp.sqrt(jnp.where(pivot > 0, pivot, 1)), 0)
        rest = jnp.where(rest >= 0, jnp.maximum(rest - column**2, 0), -jnp.inf).at[i].set(-jnp.inf)  # never again
        return rest, factor.at[k].set(column), index.at[k].set(i)

    start = (diagonal, jnp.zeros((rank, len(diagonal)), diagonal.dtype), jnp.zeros((rank,), jnp.int32))
    return fori_loop(0, rank, choose, start)[2]


def landmark_features(
    rows: Callable[[Array], Float[Array, "q n"]], members: Bool[Array, " n"], most: int
) -> Float[Array, "n q"]:
    """Compute the Nystroem features of `most` landmarks among the members; `rows(index)` are rows of K."""
    landmarks = evenly_among(members, most)
    return nystroem_features(rows(landmarks), landmarks)


def nystroem_features(rows: Float[Array, "q n"], landmarks: Int[Array, " q"]) -> Float[Array, "n q"]:
    """Compute `F` with `F F' ~ K` from rows of K by a Cholesky factor, for preconditioners.

    Landmarks that depend linearly on others, such as repeated ones, have columns of 0.
    """
    inner = rows[:, landmarks]
    floor = 8 * len(landmarks) * jnp.finfo(inner.dtype).eps * diagonal(inner).sum()
    return factored(inner, floor).lower_solve(rows).T


def features_in_blocks(
    rows: Callable[[Array], Array],
    diagonal: Float[Array, " n"],
    most: int,
    ends: tuple[Any, Any],
    floor: Any,
    key: Array,
) -> tuple[Float[Array, "n most"], Int[Array, ""], Float[Array, ""]]:
    """Compute `Z` with a positive semidefinite `K - Z Z'` of a small trace, by pivoted Cholesky in blocks.

    A block's candidates are drawn in proportion to what is left of their diagonal (Chen, Epperly, Tropp and Webber
    2023); of them pivots are taken greedily. So nearly all of the `n most^2` operations are products of matrices.

    `rows` is a function from `2 BLOCK` indices to these rows of K; `most`, a multiple of `BLOCK`, is static. No
    features are added once the trace of `K - Z Z'` is at most the first of the `ends`, or falls so slowly that `most`
    features would leave more than the second. Diagonal entries up to the `floor` are taken for rounding.

    Returns the features `(n, most)`, 0 beyond those taken; the number taken; the trace that they leave.
    """
    n, (enough, at_most) = len(diagonal), ends
    keys = jax.random.split(key, most // BLOCK)

    def goes_on(carry: tuple[Array, ...]) -> Array:
        k, _, _, trace, before = carry
        at_end = trace * (trace / before) ** (most // BLOCK - k).astype(trace.dtype)  # or more
        return (k < most // BLOCK) & (trace > enough) & ((k == 0) | (at_end <= at_most))

    def block(carry: tuple[Array, ...]) -> tuple[Array, ...]:
        k, Z, rest, trace, _ = carry
        times = jax.random.exponential(keys[k], (n,), jnp.float32).astype(rest.dtype)
        _, drawn = lax.top_k(rest / jnp.maximum(times, 1e-30), min(2 * BLOCK, n))  # times may be 0
        drawn = drawn.astype(jnp.int32)

        def less(i: Array, left: Array) -> Array:
            return left - matmul(Z[i][drawn], Z[i].T)

        left = fori_loop(0, k, less, rows(drawn).astype(rest.dtype))
        inner = left[:, drawn]
        chosen = pivots(lambda i: inner[i], inner.diagonal(), BLOCK)
        new = factored(inner[chosen][:, chosen], floor).lower_solve(left[chosen])
        rest = jnp.maximum(rest - (new * new).sum(axis=0), 0).at[drawn[chosen]].set(0)
        rest = jnp.where(rest > floor, rest, 0)
        return k + 1, Z.at[k].set(new.T), rest, rest.sum(), trace

    Z = jnp.zeros((most // BLOCK, n, BLOCK), diagonal.dtype)
    trace = diagonal.sum()
    k, Z, _, trace, _ = while_loop(goes_on, block, (jnp.zeros((), jnp.int32), Z, diagonal, trace, trace))
    return jnp.moveaxis(Z, 0, 1).reshape(n, most), k * BLOCK, trace


@jax.custom_jvp
def inverse_root(inner: Float[Array, "q q"], share: Any) -> Float[Array, "q q"]:
    """Compute `W` with `W W' = inner^-1` on the landmarks that do not depend linearly on those before them.

    One whose pivot is at most this share of the largest diagonal entry counts as dependent: its column of W is 0.
    """
    factor = factored(inner, share * diagonal(inner).max())
    return factor.lower_solve(jnp.eye(len(inner), dtype=inner.dtype)).T


@inverse_root.defjvp
@promoting()
def _(primals: Any, tangents: Any) -> tuple[Array, Array]:
    W = inverse_root(*primals)
    moved = jnp.tril(matmul(matmul(W.T, (tangents[0] + tangents[0].T) / 2), W))
    moved = plus_diagonal(moved, -diagonal(moved) / 2)
    return W, -matmul(W, moved.T)


def woodbury(F: Float[Array, "n r"], D: Any) -> Callable[[Float[Array, " n"]], Float[Array, " n"]]:
    """Return `r -> (diag(D) + F F')^-1 r` for a positive D, `(n,)`, as a pytree of arrays."""
    scaled = F / D[:, None]
    inner = jnp.eye(F.shape[1], dtype=F.dtype) + matmul(F.T, scaled)
    return jax.tree_util.Partial(_by_woodbury, factored(inner), scaled, D)


def _by_woodbury(factor: Factor, scaled: Float[Array, "n r"], D: Any, r: Float[Array, " n"]) -> Float[Array, " n"]:
    return r / D - matmul(scaled, factor.solve(matmul(scaled.T, r)))


def deflation(F: Float[Array, "n r"]) -> Callable[[Float[Array, " n"]], Float[Array, " n"]]:
    """Return `r -> P^-1 r` for `P ~ I + K` with `K ~ F F'`, up to a factor (Frangella, Tropp, Udell 2023).

    The part of K outside F is taken to be as large in all directions as the smallest eigenvalue of F F'. On Newton's
    systems this takes up to 40 % fewer iterations than `woodbury` with a diagonal rest (radial kernels in 2 to 4
    dimensions), and up to 25 % more (in 20 dimensions).
    """
    squares = matmul(F.T, F)
    own = diagonal(squares)
    size = own.sum()
    counts = own >= jnp.finfo(F.dtype).eps * F.shape[1] * size  # not for those that depend on others, if not all are 0
    one = jnp.eye(F.shape[1], dtype=F.dtype)
    inverse = factored(plus_diagonal(squares, jnp.where(counts, 1, 1 + size)))

    def toward_least(_: Any, v: Array) -> Array:
        v = inverse.solve(v)
        return v / jnp.linalg.norm(v)

    v = fori_loop(0, POWERS, toward_least, jnp.where(counts, 1, 0) / jnp.sqrt(jnp.maximum(counts.sum(), 1)))
    level = 1 + v @ matmul(squares, v)
    factor = factored(squares + level * one)
    return lambda r: r - matmul(F, factor.solve(matmul(r, F)))


Apply = Callable[[Float[Array, " n"]], Float[Array, " n"]]


class Iterate(NamedTuple):
    """An iterate of conjugate gradients."""

    steps: Int[Array, ""]  # products computed, int32 `()`
    x: Float[Array, " n"]  # current solution, `(n,)`
    r: Float[Array, " n"]  # its residual, updated recursively, `(n,)`
    p: Float[Array, " n"]  # next direction, `(n,)`
    energy: Float[Array, ""]  # `r' P^-1 r` with the preconditioner P, `()`
    first: Float[Array, ""]  # energy of the first iterate, `()`
    definite: Bool[Array, ""]  # whether no direction of negative curvature was met, `()`


def conjugate_gradients(
    product: Apply,
    precondition: Apply,
    x: Float[Array, " n"],
    r: Float[Array, " n"],
    most: int,
    unfinished: Callable[[Iterate], Array],
) -> Iterate:
    """Solve `A x = b`, A symmetric positive definite, from a first guess (Hestenes and Stiefel 1952).

    The first guess x has the residual `r = b - A x`; `precondition` is `r -> P^-1 r`; `most` is static. A NaN in a
    product shows in the residual of the last iterate.
    """

    def step(at: Iterate) -> Iterate:
        Ap = product(at.p)
        curvature = at.p @ Ap
        none = curvature <= 0  # False for NaN, which must show
        t = jnp.where(none, 0, at.energy / jnp.where(none, 1, curvature))
        x, r = at.x + t * at.p, at.r - t * Ap
        q = precondition(r)
        energy = r @ q
        p = q + energy / jnp.where(at.energy > 0, at.energy, 1) * at.p
        return Iterate(at.steps + 1, x, r, p, energy, at.first, at.definite & ~(curvature < 0))

    q = precondition(r)
    energy = r @ q
    start = Iterate(jnp.zeros((), jnp.int32), x, r, q, energy, energy, jnp.asarray(True))
    return while_loop(lambda at: (at.steps < most) & unfinished(at), step, start)
