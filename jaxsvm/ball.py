"""The minimum enclosing ball of any data set: its problem, and centre, radius and coreset from a fit.

`BallProblem` is the minimum enclosing ball of the feature points themselves: `max sum_i alpha_i K_ii -
alpha' K alpha`. On the simplex that is the same as `min alpha' Q alpha` with `Q_ij = K_ij - (K_ii + K_jj) / 2
= -|z_i - z_j|^2 / 2`, so the same steps solve it, with `R = -radius^2`. (Where the diagonal of `Kt` is constant the
SVM is a ball as well, spec 1.6; where it is not, the two differ, and only `s` may select vertices.)
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxsvm.errors import InputError, is_concrete
from jaxsvm.interruption import watching
from jaxsvm.loop import fit as solve
from jaxsvm.problem import checked_weights, vector_dtype
from jaxsvm.result import Certificate, Fit
from jaxsvm.solvers.frank_wolfe import FrankWolfe


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class BallProblem:
    """The minimum enclosing ball of the feature points. Build it with `meb_problem`.

    Attributes:
        gram: The kernel matrix of the points, as an operator.
        squares: `K_ii`, `(n,)`.
        mask: Points of positive weight, `(n,)`; None where all count.
        feasible: Whether the values make a problem, `()`.
    """

    gram: Any
    squares: Float[Array, " n"]
    mask: Bool[Array, " n"] | None
    feasible: Bool[Array, ""]

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
    def diagonal(self) -> Float[Array, " n"]:
        """`Q_ii = 0`."""
        return jnp.zeros_like(self.squares)

    @property
    def diameter_squared(self) -> Float[Array, ""]:
        """0: `Delta^2 - R` is the squared radius, as the published stop rule wants it."""
        return jnp.zeros((), self.dtype)

    def column(self, i: Int[Array, ""]) -> Float[Array, " n"]:
        """`Q[:, i] = K[:, i] - (K_ii + K_ll) / 2`."""
        return self.gram.row(i) - (self.squares + self.squares[i]) / 2

    def columns(self, indices: Int[Array, " t"]) -> Float[Array, "t n"]:
        """`Q[indices, :]`."""
        return self.gram.rows(indices) - (self.squares + self.squares[indices][:, None]) / 2

    def block(self, rows: Int[Array, " t"], columns: Int[Array, " u"]) -> Float[Array, "t u"]:
        """`Q[rows, columns]`."""
        return self.gram.block(rows, columns) - (self.squares[rows][:, None] + self.squares[columns]) / 2

    def matvec(self, alpha: Float[Array, " n"]) -> Float[Array, " n"]:
        """`s = Q alpha` from scratch, for alpha on the simplex."""
        return self.gram.support_matvec(alpha) - (self.squares * alpha.sum() + self.squares @ alpha) / 2

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
        distances = self.squared_distances(alpha, s)
        if self.mask is not None:
            distances = jnp.where(self.mask, distances, 0)
        rounding = 4 * jnp.finfo(s.dtype).eps * self.squares.max()
        primal, dual = distances.max() + rounding, -(alpha @ s)
        points_differ = primal > 4 * rounding
        gap = jnp.maximum(primal - dual, 0) / jnp.where(dual > 0, dual, 1)
        gap = jnp.where(dual > 0, gap, jnp.inf)
        return Certificate(primal, dual, jnp.where(points_differ, gap, 0).astype(s.dtype))

    def objective(self, alpha: Float[Array, " n"], s: Float[Array, " n"]) -> Float[Array, ""]:
        """`R = alpha . s`, which solvers make smaller."""
        return alpha @ s

    def answer(
        self, alpha: Float[Array, " n"], margins: Float[Array, " n"], R: Float[Array, ""]
    ) -> tuple[Array, Array, Array, Array]:
        """What a `Fit` holds: dual variables, coefficients and bias of the decision function, and its scale."""
        del margins
        return alpha, *self.primal_point(alpha, R), R

    def indefinite(self, R: Float[Array, ""]) -> Bool[Array, ""]:
        """Whether the squared radius `-R` is negative by more than rounding."""
        return 32 * jnp.finfo(R.dtype).eps * jnp.abs(self.squares).max() < R

    def primal_point(
        self, alpha: Float[Array, " n"], R: Float[Array, ""]
    ) -> tuple[Float[Array, " n"], Float[Array, ""]]:
        """The centre's coefficients, `c = sum_i alpha_i phi(x_i)`; no bias."""
        del R
        return alpha, jnp.zeros((), self.dtype)


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
    return BallProblem(gram=gram, squares=gram.diag().astype(dtype), mask=mask, feasible=feasible)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Ball:
    """A ball in feature space around the points of a problem.

    Attributes:
        weights: The centre is `sum_i weights_i phi(x_i)`, `(n,)`.
        radius: Of a ball around that centre that covers every point, `()`.
        lower_radius: No ball that covers every point has a smaller radius, `()`.
        squared_norm: Of the centre, `()`.
    """

    weights: Float[Array, " n"]
    radius: Float[Array, ""]
    lower_radius: Float[Array, ""]
    squared_norm: Float[Array, ""]

    @property
    def coreset(self) -> Int[np.ndarray, " q"]:
        """Indices of the points that the centre is made of, on the host."""
        return np.flatnonzero(np.asarray(self.weights) > 0)

    def centre(self, x: Float[Array, "n d"]) -> Float[Array, " d"]:
        """The centre in input space, `(d,)`: for the linear kernel, whose feature space that is."""
        return self.weights @ x


def ball(fit: Fit, problem: Any) -> Ball:
    """The ball of a fit.

    Args:
        fit: A fit of `problem`.
        problem: From `meb_problem`; or from `svm_problem` where the diagonal of `Kt` is constant (RBF without weights,
            say): then the SVM is the ball of the points `(y_i phi(x_i), y_i, e_i / sqrt(C))` (spec 1.6).

    Returns:
        The ball, with its radius from above and from below.

    Raises:
        InputError: For an SVM with a diagonal that varies: its solution is no ball.
    """
    if isinstance(problem, BallProblem):
        squared_norm = fit.R + problem.squares @ fit.alpha
    else:
        _require_constant_diagonal(problem)
        squared_norm = fit.R
    upper = _furthest(problem, fit.alpha, problem.gradient(fit.alpha, fit.margins))
    lower = jnp.maximum(problem.diameter_squared - fit.R, 0)
    return Ball(fit.alpha, jnp.sqrt(upper), jnp.sqrt(lower), squared_norm)


def is_coreset(problem: Any, subset: Any, eps: float, *, tol: float = 1e-6, solver: Any = None) -> bool:
    """Whether the ball of a subset, inflated to `(1 + eps)` times its radius, covers every point (spec 1.6).

    Args:
        problem: As for `ball`.
        subset: Indices of the subset, `(q,)`.
        eps: The inflation, > 0.
        tol: To which relative gap the subset's ball is computed.
        solver: For the subset's ball; None takes second-order pairs.

    Returns:
        True only where it is certain: the covering radius is taken from above, the subset's from below.

    Raises:
        InputError: On an empty subset, or eps <= 0.
    """
    indices = np.unique(np.asarray(subset, dtype=int))
    if indices.size == 0 or not eps > 0:
        raise InputError(f"subset has {indices.size} indices and eps is {eps}: at least one, and eps > 0, are needed.")
    if not isinstance(problem, BallProblem):
        _require_constant_diagonal(problem)
    mask = jnp.zeros((problem.n,), bool).at[indices].set(True)
    inside = dataclasses.replace(problem, mask=mask)
    if not isinstance(problem, BallProblem):  # an SVM's certificate counts whoever has a penalty
        inside = dataclasses.replace(inside, ridge=jnp.where(mask, problem.ridge, 0))
    with watching() as stop:
        found = solve(inside, FrankWolfe(tol=tol) if solver is None else solver)
    if stop.seen:  # there is no answer, and False would be one
        raise KeyboardInterrupt
    reach = _furthest(problem, found.alpha, inside.gradient(found.alpha, found.margins))
    lower = jnp.maximum(inside.diameter_squared - found.R, 0)
    return bool(jnp.sqrt(reach) <= (1 + eps) * jnp.sqrt(lower))


def _furthest(problem: Any, alpha: Float[Array, " n"], s: Float[Array, " n"]) -> Float[Array, ""]:
    """The largest squared distance of a point that takes part from the centre."""
    distances = problem.squared_distances(alpha, s)
    return (distances if problem.mask is None else jnp.where(problem.mask, distances, 0)).max()


def _require_constant_diagonal(problem: Any) -> None:
    if not is_concrete(problem):
        return
    diagonal = problem.diagonal if problem.mask is None else problem.diagonal[jnp.flatnonzero(problem.mask)]
    spread = float(diagonal.max() - diagonal.min())
    if spread > 1e2 * float(jnp.finfo(diagonal.dtype).eps * diagonal.max()):
        raise InputError(
            f"problem has diagonal entries that differ by {spread:.3g}: an SVM is a ball only where k(x, x) + 1 / C_i "
            "is constant (spec 1.6), as for the RBF kernel without weights."
        )
