"""Semismooth Newton on the squared-hinge primal: a finite method, exact to the floor of the dtype.

With `f_i = y_i h(x_i)` and `slack = 1 - f` the primal is quadratic wherever the active set `S = {slack > 0}` does not
change, and its minimum there solves `(B_SS + diag(1 / C_S)) beta_S = 1` (Mangasarian 2002; Keerthi and DeCoste 2005;
Chapelle 2007). A step goes toward that point, to the exact minimum on the way: the primal falls with every step, no set
comes back, and so it ends. With a free bias the system is bordered: `y_S . beta_S = 0`.

A step costs a product with the kernel matrix, and the system on the support: a Cholesky factor up to `factor_limit`
samples (buckets of powers of two: a small support is cheap), beyond it conjugate gradients with a Nystroem
preconditioner. Where n is large, Newton first solves on a random part of the samples, which doubles: the first active
set would be all of them. Where the Gram has features and d < n, w takes the place of beta (`jaxsvm.solvers.features`).

Where we depart from Chapelle: the line search is exact; what is carried is the slack, not f, since on the support it
is `beta / C`, which at large C is far below the rounding of f.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxsvm.errors import InputError
from jaxsvm.numerics import selection
from jaxsvm.numerics.line_search import best_bias, hinge_minimum
from jaxsvm.numerics.precision import in_double, like, remainder, rounded, whole, widened
from jaxsvm.problems.squared_hinge import SquaredHingeProblem
from jaxsvm.result import Counters
from jaxsvm.solvers import features
from jaxsvm.solvers.contract import Solver
from jaxsvm.solvers.start import weights_of
from jaxsvm.solvers.support_system import solve_small_support, solve_support

METHODS = ("auto", "cholesky", "cg", "lbfgs")
WHOLE = 1024
"""Up to this n the first step takes all samples."""
LARGE_D = 2000
"""From this d on a Hessian of d x d is not formed."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Newton(Solver):
    """Configuration of semismooth Newton. For squared-hinge problems of any bias.

    Attributes:
        tol: The certified relative duality gap that is asked for, > 0.
        max_steps: The step cap, >= 0. Newton takes 5 to 30, L-BFGS a few hundred.
        method: "cholesky", "cg", "lbfgs" (feature space only), or "auto": a factor up to `factor_limit` samples, or in
            feature space up to 2,000 dense features, conjugate gradients beyond; static.
        factor_limit: The largest support whose system is factored: it holds `factor_limit^2` numbers (128 MiB at 4,096
            in float64), a lane; static.
        stop: As for `FrankWolfe`; static.
        check_every: Steps a chunk; static.
        refresh_every: As for `FrankWolfe`; static.
    """

    solves = ("squared hinge",)

    tol: Any = 1e-8
    max_steps: Any = 1000
    method: str = dataclasses.field(default="auto", metadata={"static": True})
    factor_limit: int = dataclasses.field(default=4096, metadata={"static": True})
    stop: str = dataclasses.field(default="certified_gap", metadata={"static": True})
    check_every: int = dataclasses.field(default=1, metadata={"static": True})
    refresh_every: int | None = dataclasses.field(default=None, metadata={"static": True})

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise InputError(f"method is {self.method!r}: one of {', '.join(METHODS)} is needed.")
        if self.factor_limit < 1:
            raise InputError(f"factor_limit is {self.factor_limit}: at least 1 is needed.")

    def init(self, problem: Any, key: Array | None = None, init: Any = None) -> "State":
        """A state at `beta = 0`, or at `init`: weights `(n,)`, or weights and their margins."""
        primal = self._primal(problem)
        if primal is not None:
            return _feature_start(problem, primal, init)
        if self.method == "lbfgs":
            raise InputError('method is "lbfgs": it needs features (a linear kernel or a low-rank Gram) with d < n.')
        return _kernel_start(problem, key, init)

    def step(self, problem: Any, state: "State") -> "State":
        """One Newton (or L-BFGS) step, in twice the precision: a system in that of float32 data loses its digits."""
        return _step_in_double(self, problem, state)

    def refresh(self, problem: Any, state: "State") -> "State":
        """The dual point of the slack as it is now, and its `s` from scratch."""
        primal = self._primal(problem)
        if primal is None:
            alpha, product = state.alpha.astype(problem.dtype), problem.matvec
            alpha, s = alpha / alpha.sum(), state.s.astype(problem.dtype) / alpha.sum()
        else:
            here = _whole(state, problem.dtype).point
            slack = jnp.where(primal.C > 0, 1 - primal.y * primal.product(here.w), 0)
            alpha, s = _feature_dual(problem, primal, slack)
            counters = state.counters.evaluated(3 * problem.n)
            here = here._replace(slack=slack)
            state = state._replace(point=here, counters=counters, rest=remainder(here, state.point))

            def product(alpha: Array) -> Array:
                return _feature_product(problem, primal, alpha)[1]

        # The coefficients that a caller gets, numbers of the data's dtype.
        beta = rounded(problem.returned(alpha, alpha @ s), state.alpha.dtype)
        total = beta.sum()
        return state._replace(alpha=beta, s=total * product(beta / total))

    def running_excess(self, problem: Any, state: "State") -> Float[Array, ""]:
        """What the certificate would say about the state, over `tol`."""
        del problem
        return state.gap / jnp.asarray(self.tol, state.gap.dtype)

    def dual_point(self, problem: Any, state: "State") -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """The dual point in some scale and its `s = Kt alpha`, as of the last refresh."""
        del problem
        return state.alpha, state.s

    def _primal(self, problem: SquaredHingeProblem) -> features.Primal | None:
        x = features.feature_matrix(problem)
        constant = problem.offset > 0 or problem.free_bias
        return None if x is None else features.Primal(x, problem.y, problem.costs, constant, problem.free_bias)

    def _feature_method(self, primal: features.Primal) -> str:
        if self.method != "auto":
            return self.method
        return "cholesky" if primal.size <= LARGE_D else "cg"


class State(NamedTuple):
    """Where Newton stands.

    Attributes:
        point: The primal point: `KernelPoint`, or `features.Iterate`.
        alpha: The dual point on the simplex, `(n,)`.
        s: Its `Kt alpha`, `(n,)`.
        R: The primal value among the samples that take part so far, `()`: what descends. (The loop asks only whether it
            moves.)
        gap: The relative duality gap of the dual point, or an estimate of it, `()`.
        indefinite: Whether a system was not positive definite, `()`.
        counters: Steps and kernel evaluations.
        effort: Kernel space: samples that take part; feature space: Hessian tiles; int32 `()`.
        rest: What the data's dtype could not hold of the point, which is known to twice its precision.
        memory: Kernel space: the rank of each sample in the order of taking part, `(n,)`, or None where all do at once;
            feature space: the pairs of L-BFGS.
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


class KernelPoint(NamedTuple):
    """A primal point in the span of the samples, `w = sum_i c_i y_i phi(x_i)`.

    Attributes:
        c: Its coefficients, `(n,)`; `y . c = 0` with a free bias.
        slack: `1 - y_i h(x_i)`, the bias included, `(n,)`; on a solved support `c_i / C_i` to the last digit.
    """

    c: Float[Array, " n"]
    slack: Float[Array, " n"]


def _kernel_start(problem: SquaredHingeProblem, key: Array | None, init: Any) -> State:
    n, infinite = problem.n, jnp.asarray(jnp.inf, problem.dtype)
    present = problem.ridge > 0
    if init is not None:
        alpha, s, R = _given(problem, init)
        point = KernelPoint(alpha / R, jnp.where(present, 1 - problem.margins(alpha, s) / R, 0))
    else:
        alpha = _pair(problem)
        s = problem.matvec(alpha)
        point = KernelPoint(jnp.zeros_like(alpha), present.astype(alpha.dtype))
    memory, effort = None, n
    if init is None and n > WHOLE:
        order = jax.random.permutation(jax.random.key(0) if key is None else key, n)
        memory, effort = jnp.zeros((n,), jnp.int32).at[order].set(jnp.arange(n, dtype=jnp.int32)), WHOLE // 2
    R = _kernel_value(problem.costs, point)
    counters = Counters.zero().evaluated(2 * n)
    effort, rest = jnp.asarray(effort, jnp.int32), jax.tree.map(jnp.zeros_like, point)
    return State(point, alpha, s, R, infinite, jnp.asarray(False), counters, effort, memory, rest)


def _given(problem: SquaredHingeProblem, init: Any) -> tuple[Array, Array, Array]:
    """A point to start from: feasible, with its `s` and R."""
    point, margins = weights_of(problem, init)
    alpha = problem.feasible_point(point)
    s = problem.matvec(alpha) if margins is None else problem.gradient(alpha, margins)
    return alpha, s, alpha @ s


def _pair(problem: SquaredHingeProblem) -> Float[Array, " n"]:
    """Half on a sample of each class: a dual point whose product is cheap."""
    present = problem.ridge > 0
    ends = jnp.stack([selection.argmax(jnp.where(present, sign * problem.y, -jnp.inf))[1] for sign in (1, -1)])
    return jnp.zeros((problem.n,), problem.dtype).at[ends].add(0.5)


def _kernel_value(C: Float[Array, " n"], point: KernelPoint) -> Float[Array, ""]:
    """The primal, `c' B c / 2 + sum_i C_i max(0, slack_i)^2 / 2`; a free bias takes no part since `y . c = 0`."""
    hinge = jnp.maximum(point.slack, 0)
    return (point.c @ (1 - point.slack) + (C * hinge) @ hinge) / 2


def _kernel_step(problem: SquaredHingeProblem, state: State, method: str, factor_limit: int) -> State:
    here = state.point
    taking_part = problem.ridge > 0 if state.memory is None else (problem.ridge > 0) & (state.memory < state.effort)
    C = jnp.where(taking_part, problem.costs, 0)
    active = taking_part & (here.slack > 0)
    beta, bias, healthy, finite = solve_support(problem, active, here.c, state.gap, method, factor_limit)
    solved = finite & healthy

    f = problem.y * (problem.gram.support_matvec(problem.y * beta) + problem.offset * (problem.y @ beta) + bias)
    target = _slack(problem, active, beta, 1 - f)
    dc, change = beta - here.c, target - here.slack
    linear = -(here.c @ change)
    falls = linear + C * jnp.maximum(here.slack, 0) @ change
    t = hinge_minimum(
        here.slack, change, C, linear, -(dc @ change), (0.0, 1.0), 1.0, features.SLOPE_LEFT * jnp.abs(falls)
    )
    there = KernelPoint(here.c + t * dc, here.slack + t * change)
    there = jax.tree.map(lambda new, end: jnp.where(t == 1, end, new), there, KernelPoint(beta, target))
    before, after = _kernel_value(C, here), _kernel_value(C, there)
    settled = (t == 1) & jnp.all(((target > 0) & taking_part) == active)
    alpha = problem.feasible_point(C * jnp.maximum(there.slack, 0))
    s = jnp.where(finite, problem.matvec(alpha), jnp.nan)  # a NaN in the kernel has a status of its own
    gap = problem.certificate(alpha, s).relative_gap
    # Where the primal ends in rounding, the gap still tells a better point: at large C it is far more sensitive.
    nearer = (gap < state.gap) & (after <= before * (1 + jnp.sqrt(jnp.finfo(s.dtype).eps)))
    lower = solved & ((after < before) | settled | nearer)
    there = jax.tree.map(lambda new, old: jnp.where(lower, new, old), there, here)
    effort = state.effort
    if state.memory is not None:  # a part is solved well enough where the primal stops falling fast
        effort = jnp.where(settled | ~(after < 0.9 * before), jnp.minimum(2 * effort, problem.n), effort)
    return state._replace(
        point=there,
        alpha=jnp.where(lower | ~finite, alpha, state.alpha),
        s=jnp.where(lower | ~finite, s, state.s),
        R=jnp.where(lower, after, before),
        gap=jnp.where(lower, gap, state.gap),
        indefinite=state.indefinite | finite & ~healthy,
        counters=_count(state.counters, problem.n, active.sum(dtype=jnp.int32)),
        effort=effort,
    )


def _slack(
    problem: SquaredHingeProblem, active: Bool[Array, " n"], beta: Float[Array, " n"], product: Float[Array, " n"]
) -> Float[Array, " n"]:
    """The slack at a Newton point: `beta / C` on its support.

    Except where that differs from the product by more than rounding: the system was not solved as well as that.
    """
    size = jnp.sqrt(jnp.maximum(problem.diagonal, 0))
    rounding = 32 * jnp.finfo(beta.dtype).eps * (1 + size * (jnp.abs(beta) @ size))
    exact = problem.ridge * beta
    return jnp.where(active & (jnp.abs(exact - product) <= rounding), exact, product)


def _feature_start(problem: SquaredHingeProblem, primal: features.Primal, init: Any) -> State:
    if init is None:
        w = features.subsample_start(primal)
        slack = jnp.where(primal.C > 0, 1 - primal.y * primal.product(w), 0)
        point = features.iterate_at(primal, w, slack)
        alpha = _pair(problem)
        s = _feature_product(problem, primal, alpha)[1]
    else:
        alpha = problem.feasible_point(weights_of(problem, init)[0])
        w, s = _feature_product(problem, primal, alpha)
        R = alpha @ s
        slack = jnp.where(primal.C > 0, 1 - problem.margins(alpha, s) / R, 0)
        point = features.iterate_at(primal, w / R, slack)
    tiles = max(1, primal.tiles // features.START_ROWS) if primal.tiles * features.TILE >= 256 * primal.size else None
    return State(
        point=point,
        alpha=alpha,
        s=s,
        R=point.value,
        gap=jnp.asarray(jnp.inf, problem.dtype),
        indefinite=jnp.asarray(False),
        counters=Counters.zero().evaluated(4 * problem.n),
        effort=jnp.asarray(primal.tiles if tiles is None else tiles, jnp.int32),
        memory=features.no_history(primal),
        rest=jax.tree.map(jnp.zeros_like, point),
    )


def _feature_product(
    problem: SquaredHingeProblem, primal: features.Primal, alpha: Float[Array, " n"]
) -> tuple[Float[Array, " size"], Float[Array, " n"]]:
    """`w = X' (y alpha)` with the bias, and `s`."""
    w = primal.transposed(primal.y * alpha)
    if problem.free_bias:
        w = w.at[-1].set(0)
    margins = primal.y * primal.product(w)
    if problem.free_bias:
        bias = best_bias(margins, problem.y, primal.C, alpha @ (margins + problem.ridge * alpha))
        w, margins = w.at[-1].set(bias), margins + problem.y * bias
    return w, margins + problem.ridge * alpha


def _feature_dual(
    problem: SquaredHingeProblem, primal: features.Primal, slack: Float[Array, " n"]
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """The dual point of a slack, and its `s`, from scratch.

    Where C is large and the slack tiny, `C slack` keeps few digits: a small support has its own system.
    """
    active = slack > 0
    beta = solve_small_support(problem, active, primal.C * jnp.maximum(slack, 0))
    alpha = problem.feasible_point(beta)
    return alpha, _feature_product(problem, primal, alpha)[1]


def _feature_step(problem: SquaredHingeProblem, primal: features.Primal, state: State, method: str) -> State:
    here, memory, effort = state.point, state.memory, state.effort
    finite = jnp.asarray(True)
    if method == "lbfgs":
        there, memory, finite = features.lbfgs_move(primal, here, memory)
    elif method == "cg":
        there, finite = features.cg_move(primal, here)
    else:
        there, memory, finite = features.newton_move(primal, here, effort, memory)
        # Where a part of the Hessian no longer shrinks the gap tenfold, take more of it.
        slow = ~(there.gap <= 0.1 * state.gap) & jnp.isfinite(state.gap)
        effort = jnp.where(slow, jnp.minimum(4 * effort, primal.tiles), effort)
    return state._replace(
        point=there,
        R=jnp.where(finite, there.value, jnp.nan),
        gap=there.gap,
        counters=_count(state.counters, problem.n, jnp.asarray(3, jnp.int32)),
        effort=effort,
        memory=memory,
    )


@in_double
def _step_in_double(solver: Newton, problem: SquaredHingeProblem, state: State) -> State:
    wide = widened(problem)
    here = _whole(state, wide.dtype)
    primal = solver._primal(wide)
    if primal is not None:
        there = _feature_step(wide, primal, here, solver._feature_method(primal))
    else:
        there = _kernel_step(wide, here, solver.method, solver.factor_limit)
    return like(there._replace(rest=remainder(there.point, state.point)), state)


def _whole(state: State, dtype: Any) -> State:
    """The state in a wider dtype, its point with what rounding took from it."""
    wide = jax.tree.map(lambda leaf: leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, state)
    return wide._replace(point=whole(state.point, state.rest, dtype))


def _count(counters: Counters, n: int, columns: Int[Array, ""]) -> Counters:
    one = jnp.asarray(1, jnp.int32)
    evaluations = jnp.minimum(columns, (2**30 - 1) // n) * n
    return counters._replace(steps=counters.steps + one, toward=counters.toward + one).evaluated(evaluations)
