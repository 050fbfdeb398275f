"""Semismooth Newton on the squared-hinge primal: a finite method, exact to the rounding of the dtype."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxsvm.errors import InputError
from jaxsvm.numerics.line_search import SLOPE_LEFT, best_bias, hinge_minimum
from jaxsvm.numerics.linear import conjugate_gradients, factored
from jaxsvm.numerics.measured import MEASURED as SIZES
from jaxsvm.numerics.precision import diagonal, in_double, like, remainder, rounded, whole, widened
from jaxsvm.problems.squared_hinge import SquaredHingeProblem
from jaxsvm.results.fit import Counters
from jaxsvm.runtime.arrays import Count, Number, require_one_of
from jaxsvm.solvers.contract import Solver
from jaxsvm.solvers.features import Primal, feature_matrix
from jaxsvm.solvers.measured import MEASURED
from jaxsvm.solvers.simplex import newton_kernel as kernel
from jaxsvm.solvers.simplex.newton_kernel import State, pair_of_classes, solve_small_support
from jaxsvm.solvers.start import StartLike, weights_of

METHODS = ("auto", "cholesky", "cg")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Newton(Solver[SquaredHingeProblem]):
    """Semismooth Newton on the squared-hinge primal: a finite method, exact to the rounding of the dtype.

    With `f_i = y_i h(x_i)` and `slack = 1 - f` the primal is quadratic while the active set `S = {slack > 0}` does not
    change, and its minimum solves `(B_SS + diag(1 / C_S)) beta_S = 1`; with a free bias the system is bordered by
    `y_S . beta_S = 0`. A step goes toward that point, to the exact minimum on the way: the primal falls with every
    step, no set returns, and so the method ends. For large n, Newton first solves on a random part of the samples,
    which doubles: the first active set would be all of them. If the Gram has d < n features, w takes the place of beta.

    Problems: squared hinge, with any bias.
    Cost of a step: a product with the kernel matrix, and the system on the support: a Cholesky factor up to
    `factor_limit` samples (in sizes of powers of two, so a small support is cheap), beyond it conjugate gradients with
    a Nystroem preconditioner.
    Rate: finite: 5 to 30 steps are usual.
    Sources: Mangasarian 2002; Keerthi and DeCoste 2005; Chapelle 2007. Departures from Chapelle: the line search is
    exact; the slack is carried, not f, since on the support it is `beta / C`, at large C far below the rounding of f.

    Attributes:
        tol: Certified relative duality gap at which to stop, > 0.
        max_steps: Maximum number of steps, >= 0; 5 to 30 are usual.
        method: "cholesky", "cg", or "auto": a factor up to `factor_limit` samples, or in
            feature space up to 2,000 dense features, conjugate gradients beyond; static.
        factor_limit: Largest support whose system is factored: `factor_limit^2` numbers (128 MiB at 4,096 in float64)
            in each lane; static.
        stop: "certified_gap", "relative_fw" or "paper", see `FrankWolfe`; static.
        check_every: Steps in a chunk; static.
        refresh_every: Maximum number of steps between certificates; None: 4,000, or n if larger. Static.

    Raises:
        InputError: On an unknown method or `factor_limit` < 1.
    """

    bit = 2
    solves = ("squared hinge",)

    tol: Number = 1e-8
    max_steps: Count = 1000
    method: str = dataclasses.field(default="auto", metadata={"static": True})
    factor_limit: int = dataclasses.field(default=4096, metadata={"static": True})
    stop: str = dataclasses.field(default="certified_gap", metadata={"static": True})
    check_every: int = dataclasses.field(default=1, metadata={"static": True})
    refresh_every: int | None = dataclasses.field(default=None, metadata={"static": True})

    def __post_init__(self) -> None:
        require_one_of("method", self.method, METHODS)
        if self.factor_limit < 1:
            raise InputError(f"factor_limit is {self.factor_limit}: at least 1 is needed.")

    def stores(self, problem: SquaredHingeProblem) -> bool:
        return primal_of(problem) is None

    def init(self, problem: SquaredHingeProblem, key: Array | None = None, init: "StartLike | None" = None) -> State:
        primal = primal_of(problem)
        if primal is not None:
            return start_in_features(problem, primal, init)
        return kernel.start(problem, key, init)

    def step(self, problem: SquaredHingeProblem, state: State) -> State:
        """Take a Newton step, in twice the precision: in float32 a system loses its digits."""
        return _step_in_double(self, problem, state)

    def refresh(self, problem: SquaredHingeProblem, state: State) -> State:
        primal = primal_of(problem)
        if primal is None:
            alpha, s = state.alpha.astype(problem.dtype), state.s.astype(problem.dtype)
            alpha, s = alpha / alpha.sum(), s / alpha.sum()
        else:
            current, alpha, s = refreshed_in_features(problem, primal, _whole(state, problem.dtype).point)
            counters = state.counters.evaluated(3 * problem.n)
            state = state._replace(point=current, counters=counters, rest=remainder(current, state.point))
        # The coefficients of a fit, numbers of the data's dtype.
        beta = rounded(problem.returned(alpha, alpha @ s), state.alpha.dtype)
        total = beta.sum()
        alpha = beta / total
        s = problem.matvec(alpha) if primal is None else product(problem, primal, alpha)[1]
        return state._replace(alpha=beta, s=total * s)

    def running_excess(self, problem: SquaredHingeProblem, state: State) -> Float[Array, ""]:
        return state.gap / jnp.asarray(self.tol, state.gap.dtype)

    def dual_point(self, problem: SquaredHingeProblem, state: State) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        return state.alpha, state.s


@in_double
def _step_in_double(solver: Newton, problem: SquaredHingeProblem, state: State) -> State:
    wide = widened(problem)
    current = _whole(state, wide.dtype)
    primal = primal_of(wide)
    if primal is not None:
        following = step_in_features(wide, primal, current, solver.method)
    else:
        following = kernel.step(wide, current, solver.method, solver.factor_limit)
    return like(following._replace(rest=remainder(following.point, state.point)), state)


def _whole(state: State, dtype: Any) -> State:
    wide = jax.tree.map(lambda leaf: leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, state)
    return wide._replace(point=whole(state.point, state.rest, dtype))


# --- in the space of the features, `w (d,)`: no kernel matrix, O(n d) for a product
#
# With `slack_i = 1 - y_i h(x_i)` and `beta_i = C_i max(0, slack_i)` the gradient is `g = w - X' (y beta)` and, while
# the active set `slack > 0` is constant, the Hessian is `I + X_S' C_S X_S`. The constant is another entry of w,
# regularised or not. The gradient also gives the duality gap: `P(w) - D(beta) = |g|^2 / 2`.
#
# For large d conjugate gradients need products only.


class Iterate(NamedTuple):
    """A point of the primal, with its slack, gradient, value and gap."""

    w: Float[Array, " size"]  # weight vector, the constant last
    slack: Float[Array, " n"]  # `1 - y_i h(x_i)`
    gradient: Float[Array, " size"]  # gradient of the primal at w
    value: Float[Array, ""]  # primal value
    gap: Float[Array, ""]  # estimate of the relative gap of its dual point


def primal_of(problem: SquaredHingeProblem) -> Primal | None:
    """Return the primal in the space of the features, if they are fewer than the samples."""
    x = feature_matrix(problem)
    constant = problem.offset > 0 or problem.free_bias
    return None if x is None else Primal(x, problem.y, problem.costs, constant, problem.free_bias, problem.gram.spread)


def start_in_features(problem: SquaredHingeProblem, primal: Primal, init: Any) -> State:
    """Return a state at w = 0, or at `init`."""
    if init is None:
        w, slack = jnp.zeros((primal.size,), primal.y.dtype), jnp.where(primal.C > 0, 1.0, 0.0).astype(primal.y.dtype)
        point = iterate_at(primal, w, slack)
        alpha = pair_of_classes(problem)
        s = product(problem, primal, alpha)[1]
    else:
        alpha = problem.feasible_point(weights_of(problem, init)[0])
        w, s = product(problem, primal, alpha)
        R = alpha @ s
        slack = jnp.where(primal.C > 0, 1 - problem.margins(alpha, s) / R, 0)
        point = iterate_at(primal, w / R, slack)
    infinite, counters = jnp.asarray(jnp.inf, problem.dtype), Counters.zero().evaluated(4 * problem.n)
    rest, all_at_once = jax.tree.map(jnp.zeros_like, point), jnp.asarray(problem.n, jnp.int32)
    return State(point, alpha, s, point.value, infinite, jnp.asarray(False), counters, all_at_once, None, rest)


def product(
    problem: SquaredHingeProblem, primal: Primal, alpha: Float[Array, " n"]
) -> tuple[Float[Array, " size"], Float[Array, " n"]]:
    """Return `w = X' (y alpha)` with the bias, and `s = Kt alpha`, O(n d)."""
    w = primal.transposed(primal.y * alpha)
    if problem.free_bias:
        w = w.at[-1].set(0)
    margins = primal.y * primal.product(w)
    if problem.free_bias:
        bias = best_bias(margins, problem.y, primal.C, alpha @ (margins + problem.ridge * alpha))
        w, margins = w.at[-1].set(bias), margins + problem.y * bias
    return w, margins + problem.ridge * alpha


def dual_of(
    problem: SquaredHingeProblem, primal: Primal, slack: Float[Array, " n"]
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """Return the dual point of a slack, and its `s`.

    For large C and a tiny slack, `C slack` keeps few digits: a small support is then solved by its own system.
    """
    active = slack > 0
    beta = solve_small_support(problem, active, primal.C * jnp.maximum(slack, 0))
    alpha = problem.feasible_point(beta)
    return alpha, product(problem, primal, alpha)[1]


def refreshed_in_features(problem: SquaredHingeProblem, primal: Primal, point: Iterate) -> tuple[Iterate, Array, Array]:
    """Recompute a point from its w, its value too: a step must go below it; return also its dual point with its `s`."""
    slack = jnp.where(primal.C > 0, 1 - primal.y * primal.product(point.w), 0)
    return iterate_at(primal, point.w, slack)._replace(gap=point.gap), *dual_of(problem, primal, slack)


def step_in_features(problem: SquaredHingeProblem, primal: Primal, state: State, method: str) -> State:
    """Take a step by a method; "auto" factors the Hessian for few features, else uses conjugate gradients."""
    factors = method == "cholesky" or (method == "auto" and primal.size <= SIZES.largest_direct_system)
    following, finite = (newton_move if factors else cg_move)(primal, state.point)
    return state._replace(
        point=following,
        R=jnp.where(finite, following.value, jnp.nan),
        gap=following.gap,
        counters=state.counters.stepped(3 * problem.n),
    )


def iterate_at(primal: Primal, w: Float[Array, " size"], slack: Float[Array, " n"]) -> Iterate:
    """Compute value and gradient at w, from its slack."""
    beta = primal.C * jnp.maximum(slack, 0)
    gradient = primal.penalty * w - primal.transposed(primal.y * beta)
    value = (w @ (primal.penalty * w) + beta @ jnp.maximum(slack, 0)) / 2
    return Iterate(w, slack, gradient, value, jnp.asarray(jnp.inf, w.dtype))


def move(primal: Primal, current: Iterate, direction: Float[Array, " size"]) -> Iterate:
    """Return the lowest point along a direction, up to 4 times its length; `current` if none is lower."""
    change = -primal.y * primal.product(direction)
    regular = primal.penalty * direction
    enough = SLOPE_LEFT * jnp.abs(current.gradient @ direction)
    slopes = current.w @ regular, direction @ regular
    t = hinge_minimum(current.slack, change, primal.C, *slopes, (0.0, 4.0), 1.0, enough)
    following = iterate_at(primal, current.w + t * direction, current.slack + t * change)
    # When values differ by rounding only, a smaller gradient tells the better point.
    rounding = 8 * jnp.finfo(t.dtype).eps * current.value
    nearer = (following.value <= current.value + rounding) & (
        following.gradient @ following.gradient < current.gradient @ current.gradient
    )
    lower = (following.value < current.value) | nearer
    return jax.tree.map(lambda new, old: jnp.where(lower, new, old), following, current)


def newton_move(primal: Primal, current: Iterate) -> tuple[Iterate, Bool[Array, ""]]:
    """Take a Newton step by a factor of the Hessian; also return whether its direction was finite."""
    H = primal.hessian(jnp.where(current.slack > 0, primal.C, 0))
    # Scale to a unit diagonal, so that features of different scales cost no digits.
    squares = diagonal(H)
    scale = 1 / jnp.sqrt(jnp.where(squares > 0, squares, 1))
    jitter = 4 * primal.size * jnp.finfo(H.dtype).eps
    factor = factored(H * jnp.outer(scale, scale) + jitter * jnp.eye(primal.size, dtype=H.dtype))
    direction = -scale * factor.solve(scale * current.gradient)
    finite = jnp.isfinite(direction).all()
    following = move(primal, current, jnp.where(finite, direction, 0))
    return following._replace(gap=_gap(following, H @ following.gradient)), finite


def cg_move(primal: Primal, current: Iterate) -> tuple[Iterate, Bool[Array, ""]]:
    """Take a Newton step by conjugate gradients with a diagonal preconditioner; also return if it was finite."""
    D = jnp.where(current.slack > 0, primal.C, 0)
    squares = primal.squares(D)
    inverse = 1 / jnp.where(squares > 0, squares, 1)
    # Solve more exactly as the gap shrinks (Dembo, Eisenstat, Steihaug 1982).
    forcing = jnp.clip(jnp.sqrt(current.gap), 1e-10, 0.1) ** 2
    v = conjugate_gradients(
        lambda p: primal.curve(D, p),
        lambda r: inverse * r,
        jnp.zeros_like(current.w),
        -current.gradient,
        MEASURED.conjugate_gradient_steps,
        lambda at: at.energy > forcing * at.first,
    ).x
    finite = jnp.isfinite(v).all()
    following = move(primal, current, jnp.where(finite, v, 0))
    return following._replace(gap=_gap(following, primal.curve(D, following.gradient))), finite


def _gap(following: Iterate, curved: Float[Array, " size"]) -> Float[Array, ""]:
    """Estimate the relative gap between `P(w - g)` and the dual value of beta, to second order: `g' H g / 2 P`."""
    return following.gradient @ curved / (2 * jnp.maximum(following.value, jnp.finfo(curved.dtype).tiny))
