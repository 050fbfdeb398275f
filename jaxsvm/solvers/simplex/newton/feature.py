"""Newton in the space of the features, `w (d,)`: no kernel matrix, O(n d) a product.

With `slack_i = 1 - y_i h(x_i)` and `beta_i = C_i max(0, slack_i)` the gradient is `g = w - X' (y beta)` and, where the
active set `slack > 0` is constant, the Hessian is `I + X_S' C_S X_S`. The constant is one more entry of w, regularised
or not. Of g comes the duality gap for nothing: `P(w) - D(beta) = |g|^2 / 2`.

The Hessian is by far the dearest part of a step (n d^2 against n d). Where n is much larger than d, a part of the
samples knows it well enough: the steps take as many tiles of rows as they need to go on shrinking the gap (subsampled
Newton: Byrd, Chin, Neveitt, Nocedal 2011), and gradients always take all; what the part does not know of the Hessian
the steps learn, by the secant pairs of L-BFGS with it as their metric. For large d conjugate gradients need products
only; L-BFGS (Liu and Nocedal 1989) is there to compare.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxsvm.numerics.line_search import SLOPE_LEFT, best_bias, hinge_minimum
from jaxsvm.numerics.linear.conjugate_gradients import conjugate_gradients
from jaxsvm.numerics.linear.elimination import factored
from jaxsvm.numerics.masks import every, some
from jaxsvm.points.rows import dense_rows
from jaxsvm.problems.squared_hinge import SquaredHingeProblem
from jaxsvm.results.fit import Counters
from jaxsvm.runtime.loops import while_loop
from jaxsvm.solvers.features import TILE, Primal, feature_matrix
from jaxsvm.solvers.simplex.newton.state import State, counted, pair_of_classes
from jaxsvm.solvers.simplex.newton.system import solve_small_support
from jaxsvm.solvers.start import weights_of

START_ROWS = 16
"""A start is solved on every 16th row."""
START_STEPS = 10
HISTORY = 10
"""Pairs that L-BFGS keeps."""
CG_STEPS = 500
LARGE_D = 2000
"""From this d on a Hessian of d x d is not formed."""


class Iterate(NamedTuple):
    """A point of the primal, and what was found there.

    Attributes:
        w: The weight vector, the constant last, `(size,)`.
        slack: `1 - y_i h(x_i)`, `(n,)`.
        gradient: Of the primal at w, `(size,)`.
        value: The primal, `()`.
        gap: What the certificate of its dual point would say, about, `()`.
    """

    w: Float[Array, " size"]
    slack: Float[Array, " n"]
    gradient: Float[Array, " size"]
    value: Float[Array, ""]
    gap: Float[Array, ""]


class History(NamedTuple):
    """Of L-BFGS: steps and changes of the gradient, oldest first, `(HISTORY, size)`; zeros where there are none yet."""

    steps: Float[Array, "h size"]
    changes: Float[Array, "h size"]


def primal_of(problem: SquaredHingeProblem) -> Primal | None:
    """The primal in the space of the features, where they are fewer than the samples."""
    x = feature_matrix(problem)
    constant = problem.offset > 0 or problem.free_bias
    return None if x is None else Primal(x, problem.y, problem.costs, constant, problem.free_bias)


def start(problem: SquaredHingeProblem, primal: Primal, init: Any) -> State:
    """A state at the solution on a part of the rows, or at `init`."""
    if init is None:
        w = subsample_start(primal)
        slack = jnp.where(primal.C > 0, 1 - primal.y * primal.product(w), 0)
        point = iterate_at(primal, w, slack)
        alpha = pair_of_classes(problem)
        s = product(problem, primal, alpha)[1]
    else:
        alpha = problem.feasible_point(weights_of(problem, init)[0])
        w, s = product(problem, primal, alpha)
        R = alpha @ s
        slack = jnp.where(primal.C > 0, 1 - problem.margins(alpha, s) / R, 0)
        point = iterate_at(primal, w / R, slack)
    tiles = max(1, primal.tiles // START_ROWS) if primal.tiles * TILE >= 256 * primal.size else None
    return State(
        point=point,
        alpha=alpha,
        s=s,
        R=point.value,
        gap=jnp.asarray(jnp.inf, problem.dtype),
        indefinite=jnp.asarray(False),
        counters=Counters.zero().evaluated(4 * problem.n),
        effort=jnp.asarray(primal.tiles if tiles is None else tiles, jnp.int32),
        memory=no_history(primal),
        rest=jax.tree.map(jnp.zeros_like, point),
    )


def product(
    problem: SquaredHingeProblem, primal: Primal, alpha: Float[Array, " n"]
) -> tuple[Float[Array, " size"], Float[Array, " n"]]:
    """`w = X' (y alpha)` with the bias, and `s = Kt alpha`, O(n d)."""
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
    """The dual point of a slack, and its `s`, from scratch.

    Where C is large and the slack tiny, `C slack` keeps few digits: a small support has its own system.
    """
    active = slack > 0
    beta = solve_small_support(problem, active, primal.C * jnp.maximum(slack, 0))
    alpha = problem.feasible_point(beta)
    return alpha, product(problem, primal, alpha)[1]


def refreshed(problem: SquaredHingeProblem, primal: Primal, point: Iterate) -> tuple[Iterate, Array, Array]:
    """A point with its slack from scratch, and its dual point on the simplex with its `s`."""
    slack = jnp.where(primal.C > 0, 1 - primal.y * primal.product(point.w), 0)
    return point._replace(slack=slack), *dual_of(problem, primal, slack)


def step(problem: SquaredHingeProblem, primal: Primal, state: State, method: str) -> State:
    """One step, by the method that is named or the better one of two."""
    if method == "auto":
        method = "cholesky" if primal.size <= LARGE_D else "cg"
    here, memory, effort = state.point, state.memory, state.effort
    finite = jnp.asarray(True)
    if method == "lbfgs":
        there, memory, finite = lbfgs_move(primal, here, memory)
    elif method == "cg":
        there, finite = cg_move(primal, here)
    else:
        there, memory, finite = newton_move(primal, here, effort, memory)
        # Where a part of the Hessian no longer shrinks the gap tenfold, take more of it.
        slow = ~(there.gap <= 0.1 * state.gap) & jnp.isfinite(state.gap)
        effort = jnp.where(slow, jnp.minimum(4 * effort, primal.tiles), effort)
    return state._replace(
        point=there,
        R=jnp.where(finite, there.value, jnp.nan),
        gap=there.gap,
        counters=counted(state.counters, problem.n, jnp.asarray(3, jnp.int32)),
        effort=effort,
        memory=memory,
    )


def iterate_at(primal: Primal, w: Float[Array, " size"], slack: Float[Array, " n"]) -> Iterate:
    """Value and gradient at w, with its slack."""
    beta = primal.C * jnp.maximum(slack, 0)
    gradient = primal.penalty * w - primal.transposed(primal.y * beta)
    value = (w @ (primal.penalty * w) + beta @ jnp.maximum(slack, 0)) / 2
    return Iterate(w, slack, gradient, value, jnp.asarray(jnp.inf, w.dtype))


def move(primal: Primal, here: Iterate, direction: Float[Array, " size"], reach: float) -> Iterate:
    """The lowest point along a direction, up to `reach` times its length; `here` where nothing is lower."""
    change = -primal.y * primal.product(direction)
    regular = primal.penalty * direction
    enough = SLOPE_LEFT * jnp.abs(here.gradient @ direction)
    t = hinge_minimum(here.slack, change, primal.C, here.w @ regular, direction @ regular, (0.0, reach), 1.0, enough)
    there = iterate_at(primal, here.w + t * direction, here.slack + t * change)
    # Where steps end in rounding, the gradient still tells a better point.
    rounding = 8 * jnp.finfo(t.dtype).eps * here.value
    nearer = (there.value <= here.value + rounding) & (there.gradient @ there.gradient < here.gradient @ here.gradient)
    lower = (there.value < here.value) | nearer
    return jax.tree.map(lambda new, old: jnp.where(lower, new, old), there, here)


def newton_move(
    primal: Primal, here: Iterate, tiles: Any, history: History
) -> tuple[Iterate, History, Bool[Array, ""]]:
    """One Newton step with a Hessian of so many tiles and, where those are not all, secant pairs.

    Returns:
        The next point, the pairs, and whether the direction was finite.
    """
    H = primal.hessian(jnp.where(here.slack > 0, primal.C, 0), tiles)
    # Unit diagonal: features of different scales cost no digits.
    diagonal = jnp.diagonal(H)
    scale = 1 / jnp.sqrt(jnp.where(diagonal > 0, diagonal, 1))
    jitter = 4 * primal.size * jnp.finfo(H.dtype).eps
    scaled = H * jnp.outer(scale, scale) + jitter * jnp.eye(primal.size, dtype=H.dtype)
    factor = factored(scaled)

    def solve(q: Array) -> Array:
        return scale * factor.solve(scale * q)

    known = jax.tree.map(lambda pairs: jnp.where(tiles < primal.tiles, pairs, 0), history)
    direction = _two_loop(here.gradient, known, solve)
    finite = every(jnp.isfinite(direction))
    there = move(primal, here, jnp.where(finite, direction, 0), 4.0)
    there = there._replace(gap=_gap(there, H @ there.gradient))
    return there, _push(known, here, there), finite


def cg_move(primal: Primal, here: Iterate) -> tuple[Iterate, Bool[Array, ""]]:
    """One Newton step by conjugate gradients with a diagonal preconditioner."""
    D = jnp.where(here.slack > 0, primal.C, 0)
    diagonal = primal.squares(D)
    inverse = 1 / jnp.where(diagonal > 0, diagonal, 1)
    # Steps are solved the better the nearer they are (Dembo, Eisenstat, Steihaug 1982).
    forcing = jnp.clip(jnp.sqrt(here.gap), 1e-10, 0.1) ** 2
    v = conjugate_gradients(
        lambda p: primal.curve(D, p),
        lambda r: inverse * r,
        jnp.zeros_like(here.w),
        -here.gradient,
        CG_STEPS,
        lambda at: at.energy > forcing * at.first,
    ).x
    finite = every(jnp.isfinite(v))
    there = move(primal, here, jnp.where(finite, v, 0), 4.0)
    return there._replace(gap=_gap(there, primal.curve(D, there.gradient))), finite


def lbfgs_move(primal: Primal, here: Iterate, history: History) -> tuple[Iterate, History, Bool[Array, ""]]:
    """One step along the two-loop direction, to the exact minimum along it; and whether that was finite."""
    step, change = history.steps[-1], history.changes[-1]
    product = step @ change
    curvature = jnp.where(product > 0, change @ change / jnp.where(product > 0, product, 1), 1 + primal.C.sum())
    direction = _two_loop(here.gradient, history, lambda q: q / curvature)
    finite = every(jnp.isfinite(direction))
    there = move(primal, here, jnp.where(finite, direction, 0), 1e4)
    return there._replace(gap=_gap(there, curvature * there.gradient)), _push(history, here, there), finite


def _two_loop(gradient: Float[Array, " size"], history: History, solve: Any) -> Float[Array, " size"]:
    """The L-BFGS direction, with `solve` for the inverse of the metric that it starts from."""
    steps, changes = history
    products = (steps * changes).sum(axis=1)
    rho = jnp.where(products > 0, 1 / jnp.where(products > 0, products, 1), 0)
    q, shares = gradient, []
    for k in reversed(range(HISTORY)):
        shares.append(rho[k] * (steps[k] @ q))
        q = q - shares[-1] * changes[k]
    r = solve(q)
    for k, share in zip(range(HISTORY), reversed(shares), strict=True):
        r = r + (share - rho[k] * (changes[k] @ r)) * steps[k]
    return -r


def _push(history: History, here: Iterate, there: Iterate) -> History:
    """The history with one pair more; empty where the step found nothing lower, to start afresh."""
    pushed = History(
        jnp.concatenate([history.steps[1:], (there.w - here.w)[None]]),
        jnp.concatenate([history.changes[1:], (there.gradient - here.gradient)[None]]),
    )
    moved = some(there.w != here.w)
    return jax.tree.map(lambda pairs: jnp.where(moved, pairs, 0), pushed)


def no_history(primal: Primal) -> History:
    """No pairs."""
    pairs = jnp.zeros((HISTORY, primal.size), primal.y.dtype)
    return History(pairs, pairs)


def subsample_start(primal: Primal) -> Float[Array, " size"]:
    """The solution on every 16th row, where those are many for so few features; else 0."""
    n = len(primal.y)
    w = jnp.zeros((primal.size,), primal.y.dtype)
    if n < START_ROWS * 16 * primal.size:
        return w
    index = jnp.arange(0, n, START_ROWS, dtype=jnp.int32)
    C = primal.C[index]
    scale = primal.C.sum() / jnp.where(C.sum() > 0, C.sum(), 1)
    part = Primal(dense_rows(primal.x, index), primal.y[index], scale * C, primal.constant, primal.free)

    def step(carry: tuple[Array, Iterate, Array]) -> tuple[Array, Iterate, Array]:
        k, here, _ = carry
        there, _, _ = newton_move(part, here, part.tiles, no_history(part))
        return k + 1, there, here.value - there.value <= 1e-3 * there.value

    first = iterate_at(part, w, jnp.where(part.C > 0, 1.0, 0.0).astype(w.dtype))
    start = (jnp.zeros((), jnp.int32), first, jnp.asarray(False))
    return while_loop(lambda carry: ~carry[2] & (carry[0] < START_STEPS), step, start)[1].w


def _gap(there: Iterate, curved: Float[Array, " size"]) -> Float[Array, ""]:
    """The relative gap between `P(w - g)` and the dual value of its beta, to second order: `g' H g / 2 P`."""
    return there.gradient @ curved / (2 * jnp.maximum(there.value, jnp.finfo(curved.dtype).tiny))
