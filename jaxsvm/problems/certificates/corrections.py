"""Where the coefficients' dtype is what is left of a hinge fit's gap: a w beside the dual point that it does not touch.

Rounding the coefficients of a solution moves every margin at the kink, to both sides; a slack there costs U, a margin
too large only a. Two ways to a better w, certified beside the same dual point:

* A w that is longer by as much as the margins are off pays for none of them (any kernel).
* Where the kernel has d < n features, d samples that are no support take back what rounding did: their coefficients
  are as small as the errors, and hence exact enough (a linear kernel, a low-rank Gram).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxsvm.numerics import selection
from jaxsvm.numerics.linear.elimination import factored
from jaxsvm.numerics.precision import rounded
from jaxsvm.points.rows import Rows, dense_rows, product, transposed_product
from jaxsvm.problems.forms import BoxForm
from jaxsvm.runtime.loops import fori_loop, scan

LONGEST = 0.01
"""By how much w may be lengthened."""
LENGTHS = (0.0, 1.0, 1.5, 2.0, 3.0)
"""What is tried, in units of the best length before coefficients are rounded again."""
LONGER = (0.0, 1.0, 4.0)
"""What is tried of a w that is known, in units of what rounding a bias takes off a margin."""
MOST_FEATURES = 512
"""Features whose systems are solved for a correction."""
LAST = 1e-4
"""Weight of a sample that is support: it takes a share where a direction is in no other one."""
BISECTIONS = 64
"""More than a float64 bracket has bits to lose."""
REFINEMENTS = 3


def beside(
    problem: BoxForm, a: Float[Array, " n"], s: Float[Array, " n"], dtype: Any, w: Float[Array, " p"] | None = None
) -> tuple[Array, Array]:
    """A point whose w is near that of a dual point, of a smaller primal, and its products.

    Args:
        problem: A `BoxProblem` in twice the precision.
        a: A dual point of it, numbers of `dtype`, `(n,)`.
        s: Its `Qa`, `(n,)`.
        dtype: Of the numbers that are returned.
        w: The solution's w in the space of the features (`Solver.feature_weights`), where somebody knows it.

    Returns:
        The two rows of a point (see `BoxProblem`), coefficients of w and the dual point, `(2, n)`; and `Q` times each.
    """
    candidates = _lengthened(problem, a, s, dtype)
    x = problem.gram.feature_rows if w is None else problem.gram.design
    if x is not None and x.shape[1] < min(problem.n, MOST_FEATURES):
        whole = corrected(problem, x, a, s, dtype, w)
        more = _lengthened(problem, whole[0], problem.matvec(whole[0]), dtype) if w is None else whole
        candidates = jnp.concatenate([candidates, more])
    products = problem.matvec(candidates)
    shifts = rounded(jax.vmap(problem.best_bias)(products), dtype)

    def primal(w: Array, w_s: Array, b: Array) -> Array:
        r = problem.q - w_s - (0 if problem.c is None else b * problem.c)
        return w @ w_s / 2 + b * problem.e + problem.upper @ jnp.maximum(0, r)

    best = selection.lowest(jax.vmap(primal)(candidates, products, shifts))
    return jnp.stack([candidates[best], a]), jnp.stack([products[best], s])


def _lengthened(problem: BoxForm, w: Float[Array, " n"], s: Float[Array, " n"], dtype: Any) -> Float[Array, "k n"]:
    """`(1 + t) w` for a few t around the one that makes the primal smallest: rounding moves them anew."""
    f = s if problem.c is None else s + problem.best_bias(s) * problem.c
    squared_norm = w @ s

    def slope(t: Array) -> Array:
        return (1 + t) * squared_norm - jnp.where(problem.q - (1 + t) * f > 0, problem.upper * f, 0).sum()

    def halve(_: Any, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = (low + high) / 2
        falls = slope(middle) < 0
        return jnp.where(falls, middle, low), jnp.where(falls, high, middle)

    nothing = jnp.zeros_like(squared_norm)
    _, t = fori_loop(0, BISECTIONS, halve, (nothing, nothing + LONGEST))
    return rounded((1 + t * jnp.asarray(LENGTHS, w.dtype)[:, None]) * w[None, :], dtype)


class Signed(NamedTuple):
    """`H (n, d + 1)`: rows `y_i (x_i, offset)`, the w of one sample each; as products, whatever holds the points."""

    x: Any
    y: Float[Array, " n"]
    offset: float

    @staticmethod
    def of(problem: BoxForm, x: Any, dtype: Any) -> "Signed":
        """Of dense or sparse points; absent samples are 0."""
        return Signed(
            x if isinstance(x, Rows) else x.astype(dtype),
            jnp.where(problem.present, problem.y, 0).astype(dtype),
            problem.offset,
        )

    def rows(self, index: Int[Array, " t"]) -> Float[Array, "t p"]:
        """Some rows."""
        ends = jnp.full((len(index), 1), self.offset, self.y.dtype)
        return self.y[index, None] * jnp.concatenate([dense_rows(self.x, index).astype(self.y.dtype), ends], axis=1)

    def times(self, w: Float[Array, " p"]) -> Float[Array, " n"]:
        """`H w`."""
        return self.y * (product(self.x, w[:-1]) + self.offset * w[-1])

    def sum_of(self, a: Float[Array, " n"]) -> Float[Array, " p"]:
        """`H' a`."""
        signed = self.y * a
        return jnp.append(transposed_product(self.x, signed), self.offset * signed.sum())

    def squared_norms(self) -> Float[Array, " n"]:
        """Of each row."""
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
    """Coefficients of the solution's w, and of longer ones; where it is not known, of one with its margins in the box.

    The change of w to it (the least one that makes these margins, and of a free bias), in the space of the features, is
    a combination of d samples chosen by pivots, of the set `a = 0` as far as that reaches.

    Args:
        problem: The problem.
        x: `X (n, d)` with `K = X X'`, dense; or sparse, where w is known.
        a: A dual point, `(n,)`.
        s: Its `Qa`, `(n,)`.
        dtype: Of the numbers that are returned.
        w: As for `beside`.
    """
    H = Signed.of(problem, x, s.dtype)
    if w is None:
        changes = _to_margins(problem, H.rows(jnp.arange(problem.n)), a, s)[None]
    else:
        w = jnp.zeros((x.shape[1] + 1,), w.dtype).at[: len(w)].set(w)  # without a constant its column is 0
        unit = jnp.finfo(dtype).eps * (1 + jnp.abs(problem.best_bias(s)))  # a bias is rounded to as much
        changes = (1 + unit * jnp.asarray(LONGER, w.dtype)[:, None]) * w - H.sum_of(a)
    index, usable = _pivots(H, jnp.where(a == 0, 1, LAST))
    columns = jnp.where(usable[:, None], H.rows(index), 0).T
    share = jax.vmap(lambda change: _least_squares(columns, change))(changes)
    return rounded(a + jnp.zeros_like(a, shape=(len(share), len(a))).at[:, index].add(share * usable), dtype)


def _to_margins(
    problem: BoxForm, H: Float[Array, "n p"], a: Float[Array, " n"], s: Float[Array, " n"]
) -> Float[Array, " p"]:
    """The least change of w with which samples inside their box have the margin 1."""
    shift = 0 if problem.c is None else problem.best_bias(s) * problem.c
    wanted = problem.q - s - shift
    inside = (a > 0) & (a < problem.upper)
    columns = H if problem.c is None else jnp.concatenate([H, problem.c[:, None]], axis=1)
    return _least_squares(jnp.where(inside[:, None], columns, 0), jnp.where(inside, wanted, 0))[: H.shape[1]]


def _least_squares(A: Float[Array, "n p"], b: Float[Array, " n"]) -> Float[Array, " p"]:
    """The least x of those that make `|A x - b|` smallest, about: normal equations of scaled columns, refined."""
    sizes = jnp.linalg.norm(A, axis=0)
    scale = jnp.where(sizes > 0, 1 / jnp.where(sizes > 0, sizes, 1), 0)
    scaled = A * scale
    ridge = 8 * A.shape[1] * jnp.finfo(A.dtype).eps
    normal = jnp.matmul(scaled.T, scaled, precision=lax.Precision.HIGHEST)
    factor = factored(normal + ridge * jnp.eye(A.shape[1], dtype=A.dtype))

    def refine(_: Any, x: Array) -> Array:
        return x + factor.solve(scaled.T @ (b - scaled @ x))

    return scale * fori_loop(0, REFINEMENTS, refine, jnp.zeros_like(scale))


def _pivots(H: Signed, weight: Float[Array, " n"]) -> tuple[Int[Array, " p"], Any]:
    """As many weighted rows as there are columns, each what those before it explain worst; and which of them count."""
    squares = weight**2 * H.squared_norms()
    p = H.x.shape[1] + 1
    floor = jnp.finfo(squares.dtype).eps * p * squares.max()

    def choose(carry: tuple[Array, Array], k: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        rest, directions = carry
        left, i = selection.argmax(rest)
        row = H.rows(i[None])[0]
        row = row - directions.T @ (directions @ row)
        row = row - directions.T @ (directions @ row)  # twice is enough
        size = jnp.linalg.norm(row)
        counts = left > floor
        direction = jnp.where(counts, row / jnp.where(size > 0, size, 1), 0)
        rest = jnp.maximum(rest - (weight * H.times(direction)) ** 2, 0).at[i].set(-1)
        return (rest, directions.at[k].set(direction)), (i, counts)

    start = (squares, jnp.zeros((p, p), squares.dtype))
    return scan(choose, start, jnp.arange(p, dtype=jnp.int32))[1]
