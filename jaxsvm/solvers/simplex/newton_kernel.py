"""Newton in the span of the samples: a linear system on the support, and a product with the kernel matrix."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxsvm.numerics import selection
from jaxsvm.numerics.line_search import SLOPE_LEFT, hinge_minimum
from jaxsvm.numerics.linear import Apply, Iterate, conjugate_gradients, deflation, landmark_features, padded_factor
from jaxsvm.numerics.measured import MEASURED as SIZES
from jaxsvm.numerics.precision import count, matmul, places_first
from jaxsvm.numerics.sizes import in_smallest, sizes_of_factors
from jaxsvm.problems.squared_hinge import SquaredHingeProblem
from jaxsvm.results.fit import Counters
from jaxsvm.runtime.loops import fori_loop, once
from jaxsvm.solvers.measured import MEASURED
from jaxsvm.solvers.start import weights_of


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
    whole = jnp.zeros((problem.n,), beta.dtype).at[index].add(jnp.where(valid, beta, 0))
    return whole, bias, healthy, jnp.isfinite(block).all()


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

    precondition = _preconditioner(problem, active, root)
    # The dual point is off by C times the residual, relative to z and not to the right-hand side; and the gap is about
    # the condition number times the square of that.
    tol = jnp.clip(1e-5 * jnp.sqrt(gap), max(1e-12, 4 * float(jnp.finfo(root.dtype).eps)), 1e-7)
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


def _preconditioner(problem: SquaredHingeProblem, active: Bool[Array, " n"], root: Float[Array, " n"]) -> Apply:
    """Approximate the inverse of `I + C^1/2 B_SS C^1/2`, from evenly spaced samples of the support."""
    rows = lambda at: problem.gram.rows(at).astype(root.dtype) + problem.offset  # noqa: E731
    return deflation((root * problem.y)[:, None] * landmark_features(rows, active, SIZES.landmarks))


class State(NamedTuple):
    """State of Newton."""

    point: Any  # primal point: `KernelPoint`, or `Iterate` of `solver.py`
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


class Move(NamedTuple):
    """A step to the lowest point between a point and the Newton point of its active set."""

    point: KernelPoint  # its end
    t: Float[Array, ""]  # its length: 1 at the Newton point
    settled: Bool[Array, ""]  # whether it ends at the Newton point with an unchanged active set
    healthy: Bool[Array, ""]  # whether the system was positive definite
    finite: Bool[Array, ""]  # whether its entries were finite
    size: Int[Array, ""]  # samples in the active set


def start(problem: SquaredHingeProblem, key: Array | None, init: Any) -> State:
    """Return a state at 0, or at `init`."""
    n, infinite = problem.n, jnp.asarray(jnp.inf, problem.dtype)
    if init is not None:
        point, margins = weights_of(problem, init)
        alpha = problem.feasible_point(point)
        s = problem.matvec(alpha) if margins is None else problem.gradient(alpha, margins)
        point = point_of(problem, alpha, s)
    else:
        alpha = pair_of_classes(problem)
        s = problem.matvec(alpha)
        point = KernelPoint(jnp.zeros_like(alpha), problem.present.astype(alpha.dtype))
    memory, effort = None, n
    if init is None and n > MEASURED.samples_at_once:
        order = jax.random.permutation(jax.random.key(0) if key is None else key, n)
        memory, effort = (
            jnp.zeros((n,), jnp.int32).at[order].set(jnp.arange(n, dtype=jnp.int32)),
            MEASURED.samples_at_once // 2,
        )
    R = _value(problem.costs, point)
    counters = Counters.zero().evaluated(2 * n)
    effort, rest = jnp.asarray(effort, jnp.int32), jax.tree.map(jnp.zeros_like, point)
    return State(point, alpha, s, R, infinite, jnp.asarray(False), counters, effort, memory, rest)


def point_of(problem: SquaredHingeProblem, alpha: Float[Array, " n"], s: Float[Array, " n"]) -> KernelPoint:
    """Return the primal point of a dual point with its `s = Kt alpha`."""
    R = alpha @ s
    return KernelPoint(alpha / R, jnp.where(problem.present, 1 - problem.margins(alpha, s) / R, 0))


def dual_of(problem: SquaredHingeProblem, point: KernelPoint) -> Float[Array, " n"]:
    """Return the dual point of a primal one, in its scale: `C max(0, slack)`."""
    return problem.costs * jnp.maximum(point.slack, 0)


def move(
    problem: SquaredHingeProblem, current: KernelPoint, taking_part: Array, gap: Array, method: str, factor_limit: int
) -> Move:
    """Take a Newton step among the samples that take part; see `solve_support` for the last three arguments."""
    C = jnp.where(taking_part, problem.costs, 0)
    active = taking_part & (current.slack > 0)
    beta, bias, healthy, finite = solve_support(problem, active, current.c, gap, method, factor_limit)
    f = problem.signed.support_matvec(beta) + problem.y * bias
    target = _slack(problem, active, beta, 1 - f)
    dc, change = beta - current.c, target - current.slack
    linear = -(current.c @ change)
    falls = linear + C * jnp.maximum(current.slack, 0) @ change
    enough = SLOPE_LEFT * jnp.abs(falls)
    t = hinge_minimum(current.slack, change, C, linear, -(dc @ change), (0.0, 1.0), 1.0, enough)
    following = KernelPoint(current.c + t * dc, current.slack + t * change)
    following = jax.tree.map(lambda new, end: jnp.where(t == 1, end, new), following, KernelPoint(beta, target))
    settled = (t == 1) & (((target > 0) & taking_part) == active).all()
    return Move(following, t, settled, healthy, finite, count(active))


def step(problem: SquaredHingeProblem, state: State, method: str, factor_limit: int) -> State:
    """Take a step, with the dual point of its end; keep the old point if the new one is not better."""
    current, taking_part = state.point, problem.present
    if state.memory is not None:
        taking_part = taking_part & (state.memory < state.effort)
    following, _, settled, healthy, finite, size = move(problem, current, taking_part, state.gap, method, factor_limit)
    C = jnp.where(taking_part, problem.costs, 0)
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
        counters=state.counters.stepped(jnp.minimum(size, (2**30 - 1) // problem.n) * problem.n),
        effort=effort,
    )


def _value(C: Float[Array, " n"], point: KernelPoint) -> Float[Array, ""]:
    """Return the primal `c' B c / 2 + sum_i C_i max(0, slack_i)^2 / 2`; a free bias drops out since `y . c = 0`."""
    hinge = jnp.maximum(point.slack, 0)
    return (point.c @ (1 - point.slack) + (C * hinge) @ hinge) / 2


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
