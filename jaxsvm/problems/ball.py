"""The minimum enclosing ball of points in a kernel's feature space.

`BallProblem` is the minimum enclosing ball of the feature points themselves: `max sum_i alpha_i K_ii -
alpha' K alpha`. On the simplex that is the same as `min alpha' Q alpha` with `Q_ij = K_ij - (K_ii + K_jj) / 2
= -|z_i - z_j|^2 / 2`, so the same steps solve it, with `R = -radius^2`. (Where the diagonal of `Kt` is constant the
SVM is a ball as well: docs/mathematics.md, The dual; else the two differ, and only `s` may select vertices.)

The origin does not change a ball, but it changes rounding: `K_ij - (K_ii + K_jj) / 2` cancels what the points have in
common. So the points are first moved to their mean if that changes no distance in the feature space: under a linear
kernel, one added to a stationary one, or in features.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Self, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import ArrayLike

from jaxsvm.errors import is_concrete
from jaxsvm.gram.operators import Gram, LowRankGram, dense_values
from jaxsvm.kernels.distances import less, middle
from jaxsvm.points.rows import CSR, by_row_tiles, dense_rows, entrywise, product
from jaxsvm.problems.arguments import checked_weights, positive_scalar, vector_dtype
from jaxsvm.problems.contract import CURVATURE_ROUNDINGS, SimplexForm
from jaxsvm.problems.measured import MEASURED
from jaxsvm.results.fit import Answer, Certificate, Fit
from jaxsvm.results.judge import balances, is_weights, judged
from jaxsvm.runtime.arrays import computed, in_a_line, transfers
from jaxsvm.runtime.programs import Program


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class BallProblem(SimplexForm):
    """The minimum enclosing ball of the feature points. Build it with `meb_problem`."""

    __repr__ = in_a_line

    kind = "ball"
    solved_by = "FrankWolfe"
    parameter = None
    offset = 0.0
    free_bias = False

    @property
    def operator(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Return the name of the field that holds `points`."""
        return "gram" if self.moved is None else "moved"

    gram: Gram
    moved: Gram | None  # the operator of the points less their mean, if that is better
    squares: Float[Array, " n"]  # `Kt_ii` of the points that the problem computes with
    ridge: Float[Array, ""]  # `1 / C` of a soft ball, which `Kt` has on its diagonal; else 0
    mask: Bool[Array, " n"] | None  # points of positive weight; None if all count
    coincide: Bool[Array, ""]  # whether all points that count are equal: the radius is 0 whatever the rounding
    feasible: Bool[Array, ""]

    @property
    def points(self) -> Gram:
        """Return the Gram operator that distances are computed from."""
        return self.gram if self.moved is None else self.moved

    @property
    def n(self) -> int:
        return self.squares.shape[-1]

    @property
    def dtype(self) -> np.dtype:
        return self.squares.dtype

    @property
    def y(self) -> Float[Array, " n"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Return ones, `(n,)`: a ball has no labels."""
        return jnp.ones_like(self.squares)

    @property
    def present(self) -> Bool[Array, " n"]:
        return jnp.ones((self.n,), bool) if self.mask is None else self.mask

    @property
    def equality(self) -> Float[Array, " n"]:
        """Return ones, `(n,)`: the matrix is definite only on vectors that sum to 0, such as differences of weights."""
        return self.y

    @property
    def diagonal(self) -> Float[Array, " n"]:
        """Return `Q_ii = 0`, `(n,)`."""
        return jnp.zeros_like(self.squares)

    @property
    def diameter_squared(self) -> Float[Array, ""]:
        """Return 0: then `Delta^2 - R` is the squared radius, as in the published stop rule."""
        return jnp.zeros((), self.dtype)

    def weighted(self, sample_weight: ArrayLike) -> Self:
        weight, feasible = checked_weights(sample_weight, self.n, self.dtype)
        mask = self.present if weight is None else self.present & _positive(weight)
        coincide = _coincide(self.gram, self.points, self.squares, mask, self.ridge)
        return dataclasses.replace(self, mask=mask, coincide=coincide, feasible=self.feasible & feasible & mask.any())

    def on(self, gram: Gram) -> Self:
        return cast(Self, _ball_of(gram, self.mask, self.feasible, self.ridge))

    def column(self, i: Int[Array, ""]) -> Float[Array, " n"]:
        return (self.points.row(i) - (self.squares + self.squares[i]) / 2).at[i].add(self.ridge)

    def columns(self, indices: Int[Array, " t"]) -> Float[Array, "t n"]:
        columns = self.points.rows(indices) - (self.squares[None, :] + self.squares[indices][:, None]) / 2
        return columns.at[jnp.arange(len(indices)), indices].add(self.ridge)

    def block(self, rows: Int[Array, " t"], columns: Int[Array, " u"]) -> Float[Array, "t u"]:
        same = rows[:, None] == columns[None, :]
        middle = (self.squares[rows][:, None] + self.squares[columns][None, :]) / 2
        return self.points.block(rows, columns) - middle + jnp.where(same, self.ridge, 0)

    def matvec(self, alpha: Float[Array, " n"]) -> Float[Array, " n"]:
        """Return `s = Q alpha` from scratch, for alpha on the simplex."""
        total = alpha.sum()
        product = self.points.support_matvec(alpha) + self.ridge * alpha
        return product - (self.squares * total + (self.squares * alpha).sum()) / 2

    def feasible_point(self, alpha: Float[Array, " n"]) -> Float[Array, " n"]:
        """Return `alpha` clipped at 0 and scaled onto the simplex; equal weights if nothing is left."""
        alpha = jnp.where(self.present, jnp.maximum(alpha, 0), 0)
        alpha = jnp.where(alpha.sum() > 0, alpha, self.present.astype(alpha.dtype))
        return alpha / alpha.sum()

    def margins(self, alpha: Float[Array, " n"], s: Float[Array, " n"]) -> Float[Array, " n"]:
        """Return `s`: a ball has no ridge."""
        del alpha
        return s

    def gradient(self, alpha: Float[Array, " n"], margins: Float[Array, " n"]) -> Float[Array, " n"]:
        del alpha
        return margins

    def squared_distances(self, alpha: Float[Array, " n"], s: Float[Array, " n"]) -> Float[Array, " n"]:
        return jnp.maximum(alpha @ s - 2 * s, 0)

    def certificate(self, alpha: Float[Array, " n"], s: Float[Array, " n"]) -> Certificate:
        """Return the squared radius of a ball around all points (primal), and a lower bound of the optimum (dual)."""
        total = alpha.sum()
        return self._bounds(alpha / total, s / total, s.dtype)

    def _bounds(self, alpha: Float[Array, " n"], s: Float[Array, " n"], dtype: Any) -> Certificate:
        """Return the certificate, with an allowance for kernel values and alpha that are numbers of a dtype."""
        eps = jnp.finfo(dtype).eps
        rounding = (
            MEASURED.roundings_of_a_squared_distance
            * eps
            * _present(jnp.abs(self.squares), self.mask).max().astype(s.dtype)
        )
        upper = _present(self.squared_distances(alpha, s), self.mask).max() + rounding
        lower = -(alpha @ s) - rounding
        feasible = is_weights(alpha, self.present) & balances(alpha.sum() - 1, jnp.ones_like(lower), dtype)
        gap = upper - lower + 4 * eps * jnp.maximum(lower, 0)
        # Nothing is known of points closer than rounding, unless they are equal.
        radii = judged(upper, jnp.maximum(lower, 0), gap, lower, rounding=4 * rounding, feasible=feasible)
        return jax.tree.map(lambda value: jnp.where(self.coincide & feasible, 0, value), radii)

    def returned(self, alpha: Float[Array, " n"], R: Float[Array, ""]) -> Float[Array, " n"]:
        """Return the centre's coefficients: alpha."""
        del R
        return alpha / alpha.sum()

    def certified(self, alpha: Float[Array, " n"], s: Float[Array, " n"], dtype: np.dtype) -> Answer:
        """Certify the centre that the caller gets; `K_ii` are numbers of `dtype` too."""
        bounds = self._bounds(alpha, s, dtype)
        return Answer(alpha, alpha, jnp.zeros((), alpha.dtype), self.objective(alpha, s), s, bounds)

    def require_ball(self) -> None:
        """Accept the problem: it is a ball."""

    def enclosing(self, fit: Fit) -> tuple[Array, Array, Array]:
        """Return squared radii of a fit's ball, from above and below, and the squared norm of its centre."""
        upper, lower, _ = self.certificate(fit.alpha, fit.margins)
        if self.moved is None:
            return upper, lower, fit.R + self.squares @ fit.alpha
        from_origin = self.gram.support_matvec(fit.alpha) + self.ridge * fit.alpha  # the user's
        return upper, lower, fit.alpha @ from_origin

    def objective(self, alpha: Float[Array, " n"], s: Float[Array, " n"]) -> Float[Array, ""]:
        return alpha @ s

    def indefinite(self, R: Float[Array, ""], /) -> Bool[Array, ""]:
        """Return whether the squared radius `-R` is negative by more than rounding."""
        rounded = jnp.abs(self.points.diag() + self.ridge - self.squares)  # of a soft ball, in a narrower dtype than R
        off = CURVATURE_ROUNDINGS * jnp.finfo(R.dtype).eps * jnp.abs(self.squares) + rounded
        return _present(off, self.mask).max() < R


@transfers
def meb_problem(gram: Gram, *, sample_weight: ArrayLike | None = None, C: ArrayLike | None = None) -> BallProblem:
    """Build the minimum enclosing ball of points in the kernel's feature space.

    Args:
        gram: The Gram operator of the n points, from `jaxsvm.gram`.
        sample_weight: Non-negative, `(n,)`: points of weight 0 are left out; other weights change nothing.
        C: None, or positive, `()`: a soft ball, the ball of the points `(phi(x_i), e_i / sqrt(C))`. Its squared radius
            is `1 / C` plus the least `R^2 + C / 4 sum xi_i^2` with `|phi(x_i) - c|^2 <= R^2 + xi_i`.

    Returns:
        The problem. In its fits, `certificate.primal` and `.dual` are squared radii from above and below, and
        `dual_coef` are the centre's coefficients; of a soft ball `xi_i` is `2 alpha_i / C`. `jaxsvm.ball` makes the
        ball of a fit.

    Raises:
        InputError: On concrete weights that are negative, not finite or all zero, and a C that is not positive.
    """
    dtype = vector_dtype(gram)
    weight, feasible = checked_weights(sample_weight, gram.n, dtype)
    ridge = jnp.zeros((), dtype) if C is None else 1 / positive_scalar("C", C, dtype)
    feasible = feasible & jnp.isfinite(ridge) & (ridge >= 0)
    return _ball_of(gram, None if weight is None else _positive(weight), feasible, ridge)


def _ball_of(gram: Gram, mask: Bool[Array, " n"] | None, feasible: Bool[Array, ""], ridge: Any) -> BallProblem:
    moved = _moved(gram, mask)
    points = gram if moved is None else moved
    squares = points.diag().astype(ridge.dtype) + ridge
    coincide = _coincide(gram, points, squares, mask, ridge)
    return BallProblem(gram, moved, squares, ridge, mask, coincide, feasible)


def _positive(weight: Array) -> Bool[Array, " n"]:
    return computed(lambda _, weight: weight > 0, weight)


def _moved(gram: Gram, mask: Bool[Array, " n"] | None) -> Gram | None:
    """Return the Gram operator of the points less the mean of those that count; None if that is not better."""
    if isinstance(gram, LowRankGram):
        return dataclasses.replace(gram, Z=gram.Z - middle(gram.Z, mask))
    if gram.kernel.stationary or not gram.kernel.moves_freely:
        return None
    if isinstance(gram.x, CSR) and not is_concrete(gram.x):
        return None
    shift = middle(gram.x, mask)
    points = less(gram.x, shift)
    if is_concrete(points, mask):
        before, after = (float(_largest(x, mask)) for x in (gram.x, points))
        if before < 2 * after:  # the gain is not worth another operator
            return None
    # Points near the origin need not be near the mean.
    centred: Gram = dataclasses.replace(gram, x=points, shift=gram.shift + shift, near=False)
    if gram.stored:
        return dataclasses.replace(centred, K=dense_values(gram.kernel, points, gram.dtype, False))
    return centred


def _largest(x: Any, mask: Bool[Array, " n"] | None) -> Float[Array, ""]:
    return _present(product(entrywise(jnp.square, x), jnp.ones((x.shape[1],), x.dtype)), mask).max()


@Program.full()
def _coincide(
    gram: Gram, points: Gram, squares: Float[Array, " n"], mask: Bool[Array, " n"] | None, ridge: Float[Array, ""]
) -> Bool[Array, ""]:
    """Return whether all points that count equal the first of them, by features; of a given matrix by its values.

    Kernel values cannot tell: those of an RBF kernel are rounded to 1 for points that differ a little, and those of
    equal points may differ by rounding.
    """
    first = jnp.zeros((), jnp.int32) if mask is None else jnp.argmax(mask).astype(jnp.int32)
    same = _one_point(gram, first)
    if jnp.ndim(gram.x) == 1:  # precomputed
        row = points.row(first).astype(squares.dtype)
        same = (row == squares) & (squares == squares[first]) & (row[first] == squares[first])
    same = same & (ridge == 0) | (jnp.arange(gram.n) == first)  # no two points of a soft ball are equal
    return (same if mask is None else same | ~mask).all()


def _one_point(gram: Gram, first: Int[Array, ""]) -> Bool[Array, " n"]:
    """Return which points have the features of the first; all with a precomputed kernel, which has no features."""
    x = gram.x if gram.design is None else gram.design
    if x.ndim == 1:
        return jnp.ones(x.shape, bool)
    point = dense_rows(x, first[None])
    return by_row_tiles(gram.n, 1024, lambda index: jnp.all(dense_rows(x, index) == point, axis=1))


def _present(values: Float[Array, " n"], mask: Bool[Array, " n"] | None) -> Float[Array, " n"]:
    return values if mask is None else jnp.where(mask, values, 0)
