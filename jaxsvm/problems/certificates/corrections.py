"""Find a w of a smaller primal when the rounding of coefficients limits the gap of a hinge fit.

Rounding the coefficients of a solution moves the margins of samples at the kink. A unit below the kink costs U_i, one
above it only a_i. There are two ways to a better w, which is certified with the same dual point:

* Any kernel: lengthen w by the error of the margins, so that none lies below the kink.
* A kernel of d < n features (a linear kernel, a low-rank Gram): undo the rounding by coefficients of d samples outside
  the support. These are as small as the errors, and their own rounding is negligible.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxsvm.numerics.linear import factored
from jaxsvm.numerics.precision import matmul, rounded
from jaxsvm.numerics.selection import argmax, entries, entry, lowest
from jaxsvm.points.rows import Rows, dense_rows, product, transposed_product
from jaxsvm.problems.contract import BoxForm
from jaxsvm.problems.measured import MEASURED
from jaxsvm.runtime.loops import fori_loop, scan


def beside(
    problem: BoxForm,
    a: Float[Array, " n"],
    s: Float[Array, " n"],
    dtype: Any,
    tol: Any,
    anyway: Array,
    w: Float[Array, " p"] | None = None,
    by_features: bool = False,
) -> tuple[Array, Array, Array]:
    """Find a w with a smaller primal value near that of a dual point.

    The w of the dual point itself is returned if its relative gap is within `tol`, unless `anyway` holds, since a
    certificate's allowance for rounding adds to the gap.

    The problem is in twice the precision, and its point a in numbers of `dtype`, those that are returned; `s = Qa`. A w
    in the space of the features (`Solver.feature_weights`) is taken if it is known; `by_features` says whether to find
    it for a kernel of few features. Returns coefficients of w and the dual point, `(2, n)`; `Q` times each; and the
    best bias of w.
    """
    unit, factor = float(jnp.finfo(dtype).eps), MEASURED.stretch  # by how much w must grow is not known
    many = math.ceil(math.log(MEASURED.longest_stretch / unit, factor))
    longer = 1 + jnp.asarray([0.0] + [unit * factor**k for k in range(many)], a.dtype)
    candidates = rounded(longer[:, None] * a[None, :], dtype)
    x = problem.gram.feature_rows if w is None else problem.gram.design
    few = x is not None and x.shape[1] < min(problem.n, MEASURED.features_of_a_small_system)
    if few and (by_features or w is not None):
        found = corrected(problem, x, a, s, dtype, w)
        found = rounded(longer[:, None] * found, dtype) if w is None else found
        candidates = jnp.concatenate([candidates, found])
    products = problem.matvec(candidates)
    shifts = rounded(jax.vmap(problem.best_bias)(products), dtype)

    def primal(w: Array, w_s: Array, b: Array) -> Array:
        r = problem.q - w_s - (0 if problem.c is None else b * problem.c)
        return w @ w_s / 2 + b * problem.e + matmul(problem.upper, jnp.maximum(0, r))

    primals, dual = jax.vmap(primal)(candidates, products, shifts), a @ (problem.q - s / 2)
    good = ~anyway & (primals[0] - dual <= tol * jnp.abs(dual + problem.constant))
    best = jnp.where(good, 0, lowest(primals))
    w, w_s, b = (entry(rows, best) for rows in (candidates, products, shifts))
    return jnp.stack([w, a]), jnp.stack([w_s, s]), b


class Signed(NamedTuple):
    """The matrix `H (n, d + 1)` of rows `y_i (x_i, offset)`, the w of one sample each, for dense or sparse points."""

    x: Any
    y: Float[Array, " n"]
    offset: float

    @staticmethod
    def of(problem: BoxForm, x: Any, dtype: Any) -> "Signed":
        """Build H; rows of absent samples are 0."""
        return Signed(
            x if isinstance(x, Rows) else x.astype(dtype),
            jnp.where(problem.present, problem.y, 0).astype(dtype),
            problem.offset,
        )

    def rows(self, index: Int[Array, " t"]) -> Float[Array, "t p"]:
        """Return `H[index]`."""
        picked = dense_rows(self.x, index).astype(self.y.dtype)
        ends = jnp.full((len(index), 1), self.offset, self.y.dtype)
        return entries(self.y, index)[:, None] * jnp.concatenate([picked, ends], axis=1)

    def times(self, w: Float[Array, " p"]) -> Float[Array, " n"]:
        """Return `H w`."""
        return self.y * (product(self.x, w[:-1]) + self.offset * w[-1])

    def sum_of(self, a: Float[Array, " n"]) -> Float[Array, " p"]:
        """Return `H' a`."""
        signed = self.y * a
        return jnp.append(transposed_product(self.x, signed), self.offset * signed.sum())

    def squared_norms(self) -> Float[Array, " n"]:
        """Return the squared norm of each row, `(n,)`."""
        squares = self.x.squared() if isinstance(self.x, Rows) else self.x**2
        return self.y**2 * (product(squares, jnp.ones((squares.shape[1],), self.y.dtype)) + self.offset**2)


def corrected(
    problem: BoxForm,
    x: Any,
    a: Float[Array, " n"],
    s: Float[Array, " n"],
    dtype: Any,
    w: Float[Array, " p"] | None = None,
) -> Float[Array, "k n"]:
    """Return coefficients of candidates for w: the given w and two longer ones, or one with margins q on the support.

    The change of w is a combination of d samples that are chosen by pivots, preferably with `a = 0`. `K = X X'` of a
    dense x `(n, d)`, or a sparse one if w is known.
    """
    H = Signed.of(problem, x, s.dtype)
    if w is None:
        changes = _to_margins(problem, H.rows(jnp.arange(problem.n)), a, s)[None]
    else:
        w = jnp.concatenate([w, jnp.zeros((x.shape[1] + 1 - len(w),), w.dtype)])  # 0 for a constant that it lacks
        # The rounding of a bias moves margins by as much.
        unit = jnp.finfo(dtype).eps * (1 + jnp.abs(problem.best_bias(s)))
        changes = (1 + unit * jnp.asarray((0.0, 1.0, 4.0), w.dtype)[:, None]) * w - H.sum_of(a)
    index, usable = _pivots(H, jnp.where(a == 0, 1, 1e-4))  # support only for directions that no other sample has
    columns = jnp.where(usable[:, None], H.rows(index), 0).T
    share = jax.vmap(lambda change: _least_squares(columns, change))(changes)
    changes = jnp.zeros_like(a, shape=(len(share), len(a)))
    return rounded(a + changes.at[:, index].add(share * usable, wrap_negative_indices=False), dtype)


def _to_margins(
    problem: BoxForm, H: Float[Array, "n p"], a: Float[Array, " n"], s: Float[Array, " n"]
) -> Float[Array, " p"]:
    shift = 0 if problem.c is None else problem.best_bias(s) * problem.c
    wanted = problem.q - s - shift
    inside = (a > 0) & (a < problem.upper)
    columns = H if problem.c is None else jnp.concatenate([H, problem.c[:, None]], axis=1)
    return _least_squares(jnp.where(inside[:, None], columns, 0), jnp.where(inside, wanted, 0))[: H.shape[1]]


def _least_squares(A: Float[Array, "n p"], b: Float[Array, " n"]) -> Float[Array, " p"]:
    """Minimise `|A x - b|` by the normal equations of scaled columns and a small ridge, refined three times."""
    sizes = jnp.linalg.norm(A, axis=0)
    scale = jnp.where(sizes > 0, 1 / jnp.where(sizes > 0, sizes, 1), 0)
    scaled = A * scale
    ridge = 8 * A.shape[1] * jnp.finfo(A.dtype).eps
    normal = matmul(scaled.T, scaled)
    factor = factored(normal + ridge * jnp.eye(A.shape[1], dtype=A.dtype))

    def refine(_: Any, x: Array) -> Array:
        return x + factor.solve(matmul(scaled.T, b - matmul(scaled, x)))

    return scale * fori_loop(0, 3, refine, jnp.zeros_like(scale))


def _pivots(H: Signed, weight: Float[Array, " n"]) -> tuple[Int[Array, " p"], Any]:
    """Choose by pivoted Gram-Schmidt as many weighted rows as there are columns; return also which are independent."""
    squares = weight**2 * H.squared_norms()
    p = H.x.shape[1] + 1
    floor = jnp.finfo(squares.dtype).eps * p * squares.max()

    def choose(carry: tuple[Array, Array], k: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        rest, directions = carry
        left, i = argmax(rest)
        row = H.rows(i[None])[0]
        row = row - matmul(directions.T, matmul(directions, row))
        row = row - matmul(directions.T, matmul(directions, row))  # twice is enough
        size = jnp.linalg.norm(row)
        counts = left > floor
        direction = jnp.where(counts, row / jnp.where(size > 0, size, 1), 0)
        rest = jnp.maximum(rest - (weight * H.times(direction)) ** 2, 0).at[i].set(-1, wrap_negative_indices=False)
        return (rest, directions.at[k].set(direction, wrap_negative_indices=False)), (i, counts)

    start = (squares, jnp.zeros((p, p), squares.dtype))
    return scan(choose, start, jnp.arange(p, dtype=jnp.int32))[1]
