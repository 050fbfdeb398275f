"""The minimum enclosing ball of any data set: its problem, and centre, radius and coreset from a fit.

`BallProblem` is the minimum enclosing ball of the feature points themselves: `max sum_i alpha_i K_ii -
alpha' K alpha`. On the simplex that is the same as `min alpha' Q alpha` with `Q_ij = K_ij - (K_ii + K_jj) / 2
= -|z_i - z_j|^2 / 2`, so the same steps solve it, with `R = -radius^2`. (Where the diagonal of `Kt` is constant the
SVM is a ball as well: docs/mathematics.md, The dual; else the two differ, and only `s` may select vertices.)

A ball does not care where the origin is, but its rounding does: `K_ij - (K_ii + K_jj) / 2` cancels whatever the points
have in common. So the points are moved to their mean first, where that moves no point of the feature space against
another: under a linear kernel, one added to a stationary one, or in features.
"""

import dataclasses
from typing import Any, ClassVar, Self, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxsvm.errors import is_concrete
from jaxsvm.gram.contract import Gram
from jaxsvm.gram.dense import dense_values
from jaxsvm.gram.low_rank import LowRankGram
from jaxsvm.kernels.distances import less, middle
from jaxsvm.numerics.masks import every, some
from jaxsvm.points.rows import CSR, by_row_tiles, dense_rows, entrywise, product
from jaxsvm.problems.arguments import checked_weights, vector_dtype
from jaxsvm.results.fit import Answer, Certificate, Fit
from jaxsvm.results.judge import balances, is_weights, judged
from jaxsvm.runtime.transfers import transfers

ROWS = 1024
"""Rows that are compared at a time."""
ROUNDING = 8
"""The error of a squared distance from the centre, or of the squared radius, in units of `eps max_i K_ii`. Measured in
float32 for n = 1,000, d = 2, 30 and 300, three kernels, centres of 1 to 1,000 points: 1 to 3."""
WORTH_MOVING = 2.0
"""Points are moved where that makes the largest of their squares so many times smaller."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class BallProblem:
    """The minimum enclosing ball of the feature points. Build it with `meb_problem`.

    Attributes:
        gram: The kernel matrix of the points, as an operator.
        moved: The same of the points less their mean, where no distance depends on the origin; None where `gram` does.
        squares: `K_ii` of the points that the problem computes with, `(n,)`.
        mask: Points of positive weight, `(n,)`; None where all count.
        coincide: Whether all points that count are one, so that the radius is 0 whatever the rounding, `()`.
        feasible: Whether the values make a problem, `()`.
    """

    kind = "ball"
    solved_by = "FrankWolfe"
    corrects = False
    parameter = None
    restricts = False
    differentiable = False
    free_bias = False
    padding: ClassVar[Any] = None

    @property
    def operator(self) -> str:
        """The field of the operator that distances are computed from."""
        return "gram" if self.moved is None else "moved"

    gram: Gram
    moved: Gram | None
    squares: Float[Array, " n"]
    mask: Bool[Array, " n"] | None
    coincide: Bool[Array, ""]
    feasible: Bool[Array, ""]

    @property
    def points(self) -> Gram:
        """The Gram operator that distances are computed from."""
        return self.gram if self.moved is None else self.moved

    @property
    def n(self) -> int:
        """How many points."""
        return self.squares.shape[-1]

    @property
    def dtype(self) -> Any:
        """The dtype of the solver's vectors."""
        return self.squares.dtype

    @property
    def y(self) -> Float[Array, " n"]:
        """One class (a ball has none)."""
        return jnp.ones_like(self.squares)

    @property
    def present(self) -> Bool[Array, " n"]:
        """Points that count, `(n,)`."""
        return jnp.ones((self.n,), bool) if self.mask is None else self.mask

    @property
    def equality(self) -> Float[Array, " n"]:
        """Differences of points on the simplex sum to 0: a matrix may be negative otherwise, and no ball sees it."""
        return self.y

    @property
    def offset(self) -> float:
        """0: there is no bias."""
        return 0.0

    @property
    def diagonal(self) -> Float[Array, " n"]:
        """`Q_ii = 0`."""
        return jnp.zeros_like(self.squares)

    @property
    def diameter_squared(self) -> Float[Array, ""]:
        """0: `Delta^2 - R` is the squared radius, as the published stop rule wants it."""
        return jnp.zeros((), self.dtype)

    def weighted(self, sample_weight: Any) -> Self:
        """The ball of the points of positive weight, `(n,)`, among those that count."""
        _, mask, feasible = checked_weights(sample_weight, self.n, self.dtype)
        mask = self.present if mask is None else self.present & mask
        return dataclasses.replace(
            self,
            mask=mask,
            coincide=_coincide(self.gram, self.points, self.squares, mask),
            feasible=self.feasible & feasible & some(mask),
        )

    def on(self, gram: Gram) -> Self:
        """The ball of the same points under another Gram operator."""
        return cast(Self, meb_problem(gram, sample_weight=None if self.mask is None else self.mask.astype(self.dtype)))

    def column(self, i: Int[Array, ""]) -> Float[Array, " n"]:
        """`Q[:, i] = K[:, i] - (K_ii + K_ll) / 2`."""
        return self.points.row(i) - (self.squares + self.squares[i]) / 2

    def columns(self, indices: Int[Array, " t"]) -> Float[Array, "t n"]:
        """`Q[indices, :]`."""
        return self.points.rows(indices) - (self.squares[None, :] + self.squares[indices][:, None]) / 2

    def block(self, rows: Int[Array, " t"], columns: Int[Array, " u"]) -> Float[Array, "t u"]:
        """`Q[rows, columns]`."""
        return self.points.block(rows, columns) - (self.squares[rows][:, None] + self.squares[columns][None, :]) / 2

    def matvec(self, alpha: Float[Array, " n"]) -> Float[Array, " n"]:
        """`s = Q alpha` from scratch, for alpha on the simplex."""
        return self.points.support_matvec(alpha) - (self.squares * alpha.sum() + self.squares @ alpha) / 2

    def feasible_point(self, alpha: Float[Array, " n"]) -> Float[Array, " n"]:
        """`alpha` clipped at 0 and scaled onto the simplex of the points that count; equal weights if none is left."""
        alpha = jnp.where(self.present, jnp.maximum(alpha, 0), 0)
        alpha = jnp.where(alpha.sum() > 0, alpha, self.present.astype(alpha.dtype))
        return alpha / alpha.sum()

    def margins(self, alpha: Float[Array, " n"], s: Float[Array, " n"]) -> Float[Array, " n"]:
        """`s` itself: a ball has no ridge."""
        del alpha
        return s

    def gradient(self, alpha: Float[Array, " n"], margins: Float[Array, " n"]) -> Float[Array, " n"]:
        """`s` from what `margins` returned."""
        del alpha
        return margins

    def squared_distances(self, alpha: Float[Array, " n"], s: Float[Array, " n"]) -> Float[Array, " n"]:
        """`|z_i - c|^2` of the points from the centre `c = sum_i alpha_i z_i`."""
        return jnp.maximum(alpha @ s - 2 * s, 0)

    def certificate(self, alpha: Float[Array, " n"], s: Float[Array, " n"]) -> Certificate:
        """Squared radii: of a ball that covers all points (primal), and a lower bound for any such ball (dual)."""
        total = alpha.sum()
        return self._bounds(alpha / total, s / total, s.dtype)

    def _bounds(self, alpha: Float[Array, " n"], s: Float[Array, " n"], dtype: Any) -> Certificate:
        """The certificate of distances whose kernel values, and alpha, are numbers of a dtype."""
        eps = jnp.finfo(dtype).eps
        rounding = ROUNDING * eps * _present(jnp.abs(self.squares), self.mask).max().astype(s.dtype)
        upper = _present(self.squared_distances(alpha, s), self.mask).max() + rounding
        lower = -(alpha @ s) - rounding
        feasible = is_weights(alpha, self.present) & balances(alpha.sum() - 1, jnp.ones_like(lower), dtype)
        gap = upper - lower + 4 * eps * jnp.maximum(lower, 0)
        # Nothing is known of points closer than rounding, unless they are one.
        found = judged(upper, jnp.maximum(lower, 0), gap, lower, rounding=4 * rounding, feasible=feasible)
        return jax.tree.map(lambda value: jnp.where(self.coincide & feasible, 0, value), found)

    def returned(self, alpha: Float[Array, " n"], R: Float[Array, ""]) -> Float[Array, " n"]:
        """The centre's coefficients: alpha itself."""
        del R
        return alpha / alpha.sum()

    def certified(self, alpha: Float[Array, " n"], s: Float[Array, " n"], dtype: Any) -> Answer:
        """The centre as it is returned, certified.

        Args:
            alpha: Coefficients, numbers of `dtype`, `(n,)`.
            s: `Q alpha` from scratch, in twice the precision, `(n,)`.
            dtype: Of the numbers that are returned, and of `K_ii`.
        """
        return Answer(
            alpha=alpha,
            dual_coef=alpha,
            bias=jnp.zeros((), alpha.dtype),
            R=self.objective(alpha, s),
            margins=s,
            certificate=self._bounds(alpha, s, dtype),
        )

    def require_ball(self) -> None:
        """A ball is one."""

    def enclosing(self, fit: Fit) -> tuple[Array, Array, Array]:
        """Squared radii of a fit's ball, from above and below, and the squared norm of its centre."""
        upper, lower, _ = self.certificate(fit.alpha, fit.margins)
        if self.moved is None:
            return upper, lower, fit.R + self.squares @ fit.alpha
        return upper, lower, fit.alpha @ self.gram.support_matvec(fit.alpha)  # from the user's origin

    def objective(self, alpha: Float[Array, " n"], s: Float[Array, " n"]) -> Float[Array, ""]:
        """`R = alpha . s`, which solvers make smaller."""
        return alpha @ s

    def indefinite(self, R: Float[Array, ""]) -> Bool[Array, ""]:
        """Whether the squared radius `-R` is negative by more than rounding."""
        return 32 * jnp.finfo(R.dtype).eps * jnp.abs(self.squares).max() < R


@transfers
def meb_problem(gram: Any, *, sample_weight: Any = None) -> BallProblem:
    """The minimum enclosing ball of points in the kernel's feature space.

    Args:
        gram: The Gram operator of the n points, from `jaxsvm.gram`.
        sample_weight: Non-negative, `(n,)`: points of weight 0 are absent; a ball knows no other weights.

    Returns:
        The problem; `fit.certificate.primal` and `.dual` of its fit are squared radii from above and below,
        `fit.dual_coef` the centre's coefficients. See `jaxsvm.ball` for the ball itself.

    Raises:
        InputError: On concrete weights that are negative, not finite or all zero.
    """
    dtype = vector_dtype(gram)
    _, mask, feasible = checked_weights(sample_weight, gram.n, dtype)
    moved = _moved(gram, mask)
    points = gram if moved is None else moved
    squares = points.diag().astype(dtype)
    return BallProblem(
        gram=gram,
        moved=moved,
        squares=squares,
        mask=mask,
        coincide=_coincide(gram, points, squares, mask),
        feasible=feasible,
    )


def _moved(gram: Gram, mask: Bool[Array, " n"] | None) -> Gram | None:
    """The Gram operator of the points less the mean of those that count.

    None where that changes distances, or would be no better.
    """
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
        if before < WORTH_MOVING * after:
            return None
    # What was near the origin need not be near the mean.
    here: Gram = dataclasses.replace(gram, x=points, shift=gram.shift + shift, near=False)
    if gram.stored:
        return dataclasses.replace(here, K=dense_values(gram.kernel, points, gram.dtype, False))
    return here


def _largest(x: Any, mask: Bool[Array, " n"] | None) -> Float[Array, ""]:
    """The largest `|x_i|^2` of those that count."""
    return _present(product(entrywise(jnp.square, x), jnp.ones((x.shape[1],), x.dtype)), mask).max()


@jax.jit
def _coincide(gram: Gram, points: Gram, squares: Float[Array, " n"], mask: Bool[Array, " n"] | None) -> Bool[Array, ""]:
    """Whether all points that count are the first of them: its features, or where none are known its kernel values.

    Kernel values do not tell: those of an RBF kernel round to 1 before points are one, and those of points that are one
    may differ by rounding, a product's from a sum of squares.
    """
    first = jnp.zeros((), jnp.int32) if mask is None else jnp.argmax(mask).astype(jnp.int32)
    same = _one_point(gram, first)
    if jnp.ndim(gram.x) == 1:  # precomputed
        row = points.row(first).astype(squares.dtype)
        same = (row == squares) & (squares == squares[first]) & (row[first] == squares[first])
    return every(same if mask is None else same | ~mask)


def _one_point(gram: Gram, first: Int[Array, ""]) -> Bool[Array, " n"]:
    """Which points have the features of the first; all of a precomputed kernel, which shows none."""
    x = gram.x if gram.design is None else gram.design
    if x.ndim == 1:
        return jnp.ones(x.shape, bool)
    point = dense_rows(x, first[None])
    return by_row_tiles(gram.n, ROWS, lambda index: jnp.all(dense_rows(x, index) == point, axis=1))


def _present(values: Float[Array, " n"], mask: Bool[Array, " n"] | None) -> Float[Array, " n"]:
    """0 for absent points."""
    return values if mask is None else jnp.where(mask, values, 0)
