"""Semismooth Newton on the squared-hinge primal: a finite method, exact to the rounding of the dtype."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxsvm.errors import InputError
from jaxsvm.numerics import selection
from jaxsvm.numerics.line_search import best_bias, hinge_minimum
from jaxsvm.numerics.linear import Iterate, conjugate_gradients, deflation, factored, landmark_features, padded_factor
from jaxsvm.numerics.measured import MEASURED as SIZES
from jaxsvm.numerics.precision import (
    count,
    diagonal,
    in_double,
    like,
    matmul,
    places_first,
    remainder,
    rounded,
    whole,
    widened,
)
from jaxsvm.numerics.sizes import in_smallest, sizes_of_factors
from jaxsvm.problems.squared_hinge import SquaredHingeProblem
from jaxsvm.results.fit import Counters
from jaxsvm.runtime.arrays import Count, Number, require_one_of
from jaxsvm.runtime.loops import fori_loop, once
from jaxsvm.solvers.contract import Solver
from jaxsvm.solvers.features import Primal, feature_matrix
from jaxsvm.solvers.measured import MEASURED
from jaxsvm.solvers.start import StartLike, weights_of

FORCING = (1e-10, 0.1)  # share of a gradient that conjugate gradients in feature space leave, least and largest
SYSTEM_TOL, LEAST_TOL, LARGEST_TOL = 1e-5, 1e-12, 1e-7  # of systems on a support: the first times `sqrt(gap)`
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

    def init(self, problem: SquaredHingeProblem, key: Array | None = None, init: "StartLike | None" = None) -> "State":
        primal = primal_of(problem)
        if primal is not None:
            return start_in_features(problem, primal, init)
        return start_at_samples(problem, key, init)

    def step(self, problem: SquaredHingeProblem, state: "State") -> "State":
        """Take a Newton step, in twice the precision: in float32 a system loses its digits."""
        return _step_in_double(self, problem, state)

    def refresh(self, problem: SquaredHingeProblem, state: "State") -> "State":
        primal = primal_of(problem)
        if primal is None:
            alpha, s = state.alpha.astype(problem.dtype), state.s.astype(problem.dtype)
            alpha, s = alpha / alpha.sum(), s / alpha.sum()
        else:
            current = _whole(state, problem.dtype).point
            slack = jnp.where(primal.C > 0, 1 - primal.y * primal.product(current.w), 0)
            # The value too: a step must go below it.
            current = iterate_at(primal, current.w, slack)._replace(gap=current.gap)
            # For large C and a tiny slack, `C slack` keeps few digits: a small support is solved by its own system.
            beta = solve_small_support(problem, slack > 0, primal.C * jnp.maximum(slack, 0))
            alpha = problem.feasible_point(beta)
            s = product(problem, primal, alpha)[1]
            counters = state.counters.evaluated(3 * problem.n)
            state = state._replace(point=current, counters=counters, rest=remainder(current, state.point))
        # The coefficients of a fit, numbers of the data's dtype.
        beta = rounded(problem.returned(alpha, alpha @ s), state.alpha.dtype)
        total = beta.sum()
        alpha = beta / total
        s = problem.matvec(alpha) if primal is None else product(problem, primal, alpha)[1]
        return state._replace(alpha=beta, s=total * s)

    def running_excess(self, problem: SquaredHingeProblem, state: "State") -> Float[Array, ""]:
        return state.gap / jnp.asarray(self.tol, state.gap.dtype)

    def dual_point(self, problem: SquaredHingeProblem, state: "State") -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        return state.alpha, state.s


@in_double
def _step_in_double(solver: Newton, problem: SquaredHingeProblem, state: "State") -> "State":
    wide = widened(problem)
    current = _whole(state, wide.dtype)
    primal = primal_of(wide)
    if primal is not None:
        few = primal.size <= SIZES.largest_direct_system
        factors = solver.method == "cholesky" or (solver.method == "auto" and few)
        point, finite = (newton_move if factors else cg_move)(primal, current.point)
        R, counters = jnp.where(finite, point.value, jnp.nan), current.counters.stepped(3 * wide.n)
        following = current._replace(point=point, R=R, gap=point.gap, counters=counters)
    else:
        following = step_at_samples(wide, current, solver.method, solver.factor_limit)
    return like(following._replace(rest=remainder(following.point, state.point)), state)


def _whole(state: "State", dtype: Any) -> "State":
    wide = jax.tree.map(lambda leaf: leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, state)
    return wide._replace(point=whole(state.point, state.rest, dtype))


# --- in the space of the features, `w (d,)`: no kernel matrix, O(n d) for a product
#
# With `slack_i = 1 - y_i h(x_i)` and `beta_i = C_i max(0, slack_i)` the gradient is `g = w - X' (y beta)` and, while
# the active set `slack > 0` is constant, the Hessian is `I + X_S' C_S X_S`. The constant is another entry of w,
# regularised or not. The gradient also gives the duality gap: `P(w) - D(beta) = |g|^2 / 2`.
#
# For large d conjugate gradients need products only.


class FeaturePoint(NamedTuple):
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


def start_in_features(problem: SquaredHingeProblem, primal: Primal, init: Any) -> "State":
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


def iterate_at(primal: Primal, w: Float[Array, " size"], slack: Float[Array, " n"]) -> FeaturePoint:
    """Compute value and gradient at w, from its slack."""
    beta = primal.C * jnp.maximum(slack, 0)
    gradient = primal.penalty * w - primal.transposed(primal.y * beta)
    value = (w @ (primal.penalty * w) + beta @ jnp.maximum(slack, 0)) / 2
    return FeaturePoint(w, slack, gradient, value, jnp.asarray(jnp.inf, w.dtype))


def move(primal: Primal, current: FeaturePoint, direction: Float[Array, " size"]) -> FeaturePoint:
    """Return the lowest point along a direction; `current` if none is lower."""
    change = -primal.y * primal.product(direction)
    regular = primal.penalty * direction
    enough = SIZES.slope_left * jnp.abs(current.gradient @ direction)
    slopes = current.w @ regular, direction @ regular
    t = hinge_minimum(current.slack, change, primal.C, *slopes, (0.0, MEASURED.longest_step), 1.0, enough)
    following = iterate_at(primal, current.w + t * direction, current.slack + t * change)
    # When values differ by rounding only, a smaller gradient tells the better point.
    rounding = 8 * jnp.finfo(t.dtype).eps * current.value
    nearer = (following.value <= current.value + rounding) & (
        following.gradient @ following.gradient < current.gradient @ current.gradient
    )
    lower = (following.value < current.value) | nearer
    return jax.tree.map(lambda new, old: jnp.where(lower, new, old), following, current)


def newton_move(primal: Primal, current: FeaturePoint) -> tuple[FeaturePoint, Bool[Array, ""]]:
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
    return following._replace(gap=_gap(following, matmul(H, following.gradient))), finite


def cg_move(primal: Primal, current: FeaturePoint) -> tuple[FeaturePoint, Bool[Array, ""]]:
    """Take a Newton step by conjugate gradients with a diagonal preconditioner; also return if it was finite."""
    D = jnp.where(current.slack > 0, primal.C, 0)
    squares = primal.squares(D)
    inverse = 1 / jnp.where(squares > 0, squares, 1)
    # Solve more exactly as the gap shrinks (Dembo, Eisenstat, Steihaug 1982).
    forcing = jnp.clip(jnp.sqrt(current.gap), *FORCING) ** 2
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


def _gap(following: FeaturePoint, curved: Float[Array, " size"]) -> Float[Array, ""]:
    """Estimate the relative gap between `P(w - g)` and the dual value of beta, to second order: `g' H g / 2 P`."""
    return following.gradient @ curved / (2 * jnp.maximum(following.value, jnp.finfo(curved.dtype).tiny))


# --- in the span of the samples: a linear system on the support, and a product with the kernel matrix


def solve_support(
    problem: SquaredHingeProblem, active: Array, guess: Array, gap: Array, method: str, factor_limit: int
) -> tuple[Array, Array, Array, Array]:
    """Solve for the Newton point of an active set; conjugate gradients from `guess`, as exactly as the gap asks.

    Return `beta (n,)`, zero off the set; the free bias (0 without); whether the matrix was positive definite; whether
    its entries were finite.
    """
    n, number = problem.n, count(active)
    yes = jnp.asarray(True)
    solution = (jnp.zeros((n,), problem.dtype), jnp.zeros((), problem.dtype), yes, yes)
    if method == "cg":
        return _conjugate_gradients(problem, active, guess, gap)
    sizes = sizes_of_factors(n if method == "cholesky" else min(n, factor_limit))
    iterate = number > sizes[-1]
    if method == "auto" and n > factor_limit:  # a smaller system is always factored
        # Steps to about ten digits without a preconditioner, by a bound of the condition number.
        steps = 12 * jnp.sqrt(1 + problem.costs.max() * problem.diagonal.max() * number)
        iterate = iterate | (steps * MEASURED.columns_per_product < number)
    solution = in_smallest(sizes, number, lambda size, _: _factor(problem, active, size), solution, ~iterate)
    if sizes[-1] < n:
        solution = once(iterate, lambda _: _conjugate_gradients(problem, active, guess, gap), solution)
    return solution


def solve_small_support(
    problem: SquaredHingeProblem, active: Bool[Array, " n"], beta: Float[Array, " n"]
) -> Float[Array, " n"]:
    """Return the Newton point of an active set of the smallest size, if it is feasible; else `beta`."""
    size = sizes_of_factors(problem.n)[0]
    otherwise = (beta, jnp.zeros((), beta.dtype), jnp.asarray(True), jnp.asarray(True))
    fits = count(active) <= size
    solution, _, healthy, _ = once(fits, lambda _: _factor(problem, active, size), otherwise)
    return jnp.where(healthy & (solution >= 0).all(), solution, beta)


def _factor(problem: SquaredHingeProblem, active: Bool[Array, " n"], size: int) -> tuple[Array, Array, Array, Array]:
    """Solve by Cholesky in `size` (static) places, with a step of refinement."""
    index = places_first(active)[:size]
    valid = jnp.arange(size, dtype=jnp.int32) < count(active)
    block = jnp.where(valid[:, None] & valid[None, :], problem.block(index, index), 0)
    factor = padded_factor(block, valid)
    rhs = valid.astype(block.dtype)[:, None]
    if problem.free_bias:
        rhs = jnp.concatenate([rhs, jnp.where(valid, problem.y[index], 0)[:, None]], axis=1)

    def refine(_: Any, solution: Array) -> Array:
        return solution + factor.solve(rhs - matmul(block, solution))

    solution = fori_loop(0, 2, refine, jnp.zeros_like(rhs))
    beta, bias = _border(problem, solution, rhs)
    healthy = jnp.isfinite(solution).all()
    everywhere = jnp.zeros((problem.n,), beta.dtype).at[index].add(jnp.where(valid, beta, 0))
    return everywhere, bias, healthy, jnp.isfinite(block).all()


def _border(problem: SquaredHingeProblem, solution: Array, rhs: Array) -> tuple[Array, Array]:
    """Return `beta` and bias of the bordered system, from solutions for 1 and for y."""
    if not problem.free_bias:
        return solution[:, 0], jnp.zeros((), solution.dtype)
    signs = rhs[:, 1]
    below = signs @ solution[:, 1]
    bias = jnp.where(below > 0, (signs @ solution[:, 0]) / jnp.where(below > 0, below, 1), 0)
    return solution[:, 0] - bias * solution[:, 1], bias


def _conjugate_gradients(
    problem: SquaredHingeProblem, active: Bool[Array, " n"], guess: Float[Array, " n"], gap: Float[Array, ""]
) -> tuple[Array, Array, Array, Array]:
    """Solve the Newton system by preconditioned conjugate gradients on `z = C^-1/2 beta`, from `guess`."""
    root = jnp.where(active, jnp.sqrt(problem.costs), 0)
    signs = root * problem.y

    def apply(z: Array) -> Array:
        return z + root * problem.signed.support_matvec(root * z)

    rows = lambda at: problem.gram.rows(at).astype(root.dtype) + problem.offset  # noqa: E731
    # Approximate the inverse of `I + C^1/2 B_SS C^1/2`, from evenly spaced samples of the support.
    precondition = deflation(signs[:, None] * landmark_features(rows, active, SIZES.landmarks))
    # The dual point is off by C times the residual, relative to z and not to the right-hand side; and the gap is about
    # the condition number times the square of that.
    tol = jnp.clip(SYSTEM_TOL * jnp.sqrt(gap), max(LEAST_TOL, 4 * float(jnp.finfo(root.dtype).eps)), LARGEST_TOL)
    start = jnp.where(active, guess, 0) / jnp.where(root > 0, root, 1)

    def unfinished(at: Iterate) -> Array:
        return (at.r @ at.r > tol**2 * (at.x @ at.x)) & at.definite

    def solve(rhs: Array, z: Array) -> tuple[Array, Array]:
        solution = conjugate_gradients(
            apply, precondition, z, rhs - apply(z), MEASURED.conjugate_gradient_steps, unfinished
        )
        return solution.x, solution.definite

    ones, definite = solve(root, start)
    solution, rhs = ones[:, None], root[:, None]
    if problem.free_bias:
        constant, also = solve(signs, jnp.zeros_like(root))
        solution, rhs = jnp.stack([ones, constant], axis=1), jnp.stack([root, signs], axis=1)
        definite = definite & also
    z, bias = _border(problem, solution, rhs)
    beta = root * z
    return beta, bias, definite, jnp.isfinite(beta).all()


class State(NamedTuple):
    """State of Newton."""

    point: Any  # primal point: `KernelPoint` or `FeaturePoint`
    alpha: Float[Array, " n"]  # dual point on the simplex
    s: Float[Array, " n"]  # `Kt alpha`
    R: Float[Array, ""]  # primal value of the samples that take part so far, which decreases
    gap: Float[Array, ""]  # relative duality gap of the dual point, or an estimate of it
    indefinite: Bool[Array, ""]  # whether a system was not positive definite
    counters: Counters  # steps and kernel evaluations
    effort: Int[Array, ""]  # samples that take part
    memory: Int[Array, " n"] | None  # rank of each sample in the order of taking part; None if all do at once
    rest: Any  # rounding error of the point in the data's dtype: together they have twice its precision


def pair_of_classes(problem: SquaredHingeProblem) -> Float[Array, " n"]:
    """Return half on a sample of each class: a dual point whose product is cheap."""
    present = problem.ridge > 0
    ends = jnp.stack([selection.argmax(jnp.where(present, sign * problem.y, -jnp.inf))[1] for sign in (1, -1)])
    return jnp.zeros((problem.n,), problem.dtype).at[ends].add(0.5)


class KernelPoint(NamedTuple):
    """A primal point in the span of the samples, `w = sum_i c_i y_i phi(x_i)`."""

    c: Float[Array, " n"]  # coefficients; `y . c = 0` with a free bias
    slack: Float[Array, " n"]  # `1 - y_i h(x_i)`, with the bias; on a solved support exactly `c_i / C_i`


def start_at_samples(problem: SquaredHingeProblem, key: Array | None, init: Any) -> State:
    """Return a state at 0, or at `init`."""
    n, infinite = problem.n, jnp.asarray(jnp.inf, problem.dtype)
    if init is not None:
        point, margins = weights_of(problem, init)
        alpha = problem.feasible_point(point)
        s = problem.matvec(alpha) if margins is None else problem.gradient(alpha, margins)
        R = alpha @ s
        point = KernelPoint(alpha / R, jnp.where(problem.present, 1 - problem.margins(alpha, s) / R, 0))
    else:
        alpha = pair_of_classes(problem)
        s = problem.matvec(alpha)
        point = KernelPoint(jnp.zeros_like(alpha), problem.present.astype(alpha.dtype))
    memory, effort = None, n
    if init is None and n > MEASURED.samples_at_once:
        order = jax.random.permutation(jax.random.key(0) if key is None else key, n)
        memory = jnp.zeros((n,), jnp.int32).at[order].set(jnp.arange(n, dtype=jnp.int32))
        effort = MEASURED.samples_at_once // 2
    R = _value(problem.costs, point)
    counters = Counters.zero().evaluated(2 * n)
    effort, rest = jnp.asarray(effort, jnp.int32), jax.tree.map(jnp.zeros_like, point)
    return State(point, alpha, s, R, infinite, jnp.asarray(False), counters, effort, memory, rest)


def step_at_samples(problem: SquaredHingeProblem, state: State, method: str, factor_limit: int) -> State:
    """Take a Newton step among the samples that take part, to the lowest point on the way to that of the active set.

    The point is kept if the end of the step, whose dual point is certified, is not better.
    """
    current, taking_part = state.point, problem.present
    if state.memory is not None:
        taking_part = taking_part & (state.memory < state.effort)
    C = jnp.where(taking_part, problem.costs, 0)
    active = taking_part & (current.slack > 0)
    beta, bias, healthy, finite = solve_support(problem, active, current.c, state.gap, method, factor_limit)
    target = _slack(problem, active, beta, 1 - problem.signed.support_matvec(beta) - problem.y * bias)
    dc, change = beta - current.c, target - current.slack
    linear = -matmul(current.c, change)
    enough = SIZES.slope_left * jnp.abs(linear + C * jnp.maximum(current.slack, 0) @ change)
    t = hinge_minimum(current.slack, change, C, linear, -(dc @ change), (0.0, 1.0), 1.0, enough)
    following = KernelPoint(current.c + t * dc, current.slack + t * change)
    following = jax.tree.map(lambda new, end: jnp.where(t == 1, end, new), following, KernelPoint(beta, target))
    settled = (t == 1) & (((target > 0) & taking_part) == active).all()  # at the Newton point of an unchanged set
    before, after = _value(C, current), _value(C, following)
    alpha = problem.feasible_point(C * jnp.maximum(following.slack, 0))
    s = jnp.where(finite, problem.matvec(alpha), jnp.nan)  # a NaN in the kernel has its own status
    gap = problem.certificate(alpha, s).relative_gap
    # When primals differ by rounding only, the gap tells the better point: at large C it is far more sensitive.
    nearer = (gap < state.gap) & (after <= before * (1 + jnp.sqrt(jnp.finfo(s.dtype).eps)))
    lower = finite & healthy & ((after < before) | settled | nearer)
    effort = state.effort
    if state.memory is not None:  # a part is solved well enough once the primal stops falling fast
        effort = jnp.where(settled | ~(after < 0.9 * before), jnp.minimum(2 * effort, problem.n), effort)
    return state._replace(
        point=jax.tree.map(lambda new, old: jnp.where(lower, new, old), following, current),
        alpha=jnp.where(lower | ~finite, alpha, state.alpha),
        s=jnp.where(lower | ~finite, s, state.s),
        R=jnp.where(lower, after, before),
        gap=jnp.where(lower, gap, state.gap),
        indefinite=state.indefinite | finite & ~healthy,
        counters=state.counters.stepped(count(active), times=problem.n),
        effort=effort,
    )


def _value(C: Float[Array, " n"], point: KernelPoint) -> Float[Array, ""]:
    """Return the primal `c' B c / 2 + sum_i C_i max(0, slack_i)^2 / 2`; a free bias drops out since `y . c = 0`."""
    hinge = jnp.maximum(point.slack, 0)
    return (matmul(point.c, 1 - point.slack) + matmul(C * hinge, hinge)) / 2


def _slack(
    problem: SquaredHingeProblem, active: Bool[Array, " n"], beta: Float[Array, " n"], product: Float[Array, " n"]
) -> Float[Array, " n"]:
    """Return the slack at a Newton point: `beta / C` on its support, if the product agrees up to rounding.

    Otherwise the system was solved less exactly, and the slack from the product is returned.
    """
    size = jnp.sqrt(jnp.maximum(problem.diagonal, 0))
    rounding = 32 * jnp.finfo(beta.dtype).eps * (1 + size * (jnp.abs(beta) @ size))
    exact = problem.ridge * beta
    return jnp.where(active & (jnp.abs(exact - product) <= rounding), exact, product)
