"""Newton in the span of the samples: a linear system on the support, and a product with the kernel matrix."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxsvm.numerics import masks, selection
from jaxsvm.numerics.line_search import SLOPE_LEFT, hinge_minimum
from jaxsvm.numerics.masks import every
from jaxsvm.problems.squared_hinge import SquaredHingeProblem
from jaxsvm.results.fit import Counters
from jaxsvm.solvers.measured import MEASURED
from jaxsvm.solvers.simplex.newton.system import solve_support
from jaxsvm.solvers.start import weights_of


class State(NamedTuple):
    """State of Newton.

    Attributes:
        point: Primal point: `kernel.KernelPoint`, or `feature.Iterate`.
        alpha: Dual point on the simplex, `(n,)`.
        s: `Kt alpha`, `(n,)`.
        R: Primal value of the samples that take part so far, `()`, which decreases.
        gap: Relative duality gap of the dual point, or an estimate of it, `()`.
        indefinite: Whether a system was not positive definite, `()`.
        counters: Steps and kernel evaluations.
        effort: Kernel space: samples that take part; feature space: Hessian tiles; int32 `()`.
        rest: Rounding error of the point in the data's dtype: together they have twice its precision.
        memory: Kernel space: rank of each sample in the order of taking part, `(n,)`, or None if all do at once;
            feature space: secant pairs of L-BFGS.
    """

    point: Any
    alpha: Float[Array, " n"]
    s: Float[Array, " n"]
    R: Float[Array, ""]
    gap: Float[Array, ""]
    indefinite: Bool[Array, ""]
    counters: Counters
    effort: Int[Array, ""]
    memory: Any
    rest: Any


def pair_of_classes(problem: SquaredHingeProblem) -> Float[Array, " n"]:
    """Return half on a sample of each class: a dual point whose product is cheap."""
    present = problem.ridge > 0
    ends = jnp.stack([selection.argmax(jnp.where(present, sign * problem.y, -jnp.inf))[1] for sign in (1, -1)])
    return jnp.zeros((problem.n,), problem.dtype).at[ends].add(0.5)


class KernelPoint(NamedTuple):
    """A primal point in the span of the samples, `w = sum_i c_i y_i phi(x_i)`.

    Attributes:
        c: Coefficients, `(n,)`; `y . c = 0` with a free bias.
        slack: `1 - y_i h(x_i)`, with the bias, `(n,)`; on a solved support exactly `c_i / C_i`.
    """

    c: Float[Array, " n"]
    slack: Float[Array, " n"]


class Move(NamedTuple):
    """A step to the lowest point between a point and the Newton point of its active set.

    Attributes:
        point: Its end.
        t: Its length, `()`: 1 at the Newton point.
        settled: Whether it ends at the Newton point with an unchanged active set, `()`.
        healthy: Whether the system was positive definite, `()`.
        finite: Whether its entries were finite, `()`.
        size: Samples in the active set, int32 `()`.
    """

    point: KernelPoint
    t: Float[Array, ""]
    settled: Bool[Array, ""]
    healthy: Bool[Array, ""]
    finite: Bool[Array, ""]
    size: Int[Array, ""]


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
    settled = (t == 1) & every(((target > 0) & taking_part) == active)
    return Move(following, t, settled, healthy, finite, masks.count(active))


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
