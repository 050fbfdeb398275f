"""Newton in the space of features that reproduce the kernel matrix nearly exactly: few systems at any C.

Smooth and wide kernels, and radial ones of few features, have a numerical rank of some hundred. With `K = Z Z' + R`
and a small rest R, margins near a point x are `f(x) + Y Z (u - Z' Y x)`, if the rest acts as it does at x. In the r
variables u this is a problem of the linear squared hinge, which Newton (Mangasarian 2002) solves exactly in a few
systems: its Hessian `I + C Z_S' Z_S` changes by the samples that enter or leave the support S. One product with K
itself then shows the margins, the gap and the rest of the new point. A product reduces the gap by a factor of about
`(C |R|)^2`: whether R is small enough for a value of C is measured, and where it is not, other steps go on.

Systems are solved in float64: the Hessian's condition is n C.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxsvm.numerics.line_search import hinge_minimum
from jaxsvm.numerics.linear import BLOCK, factored, features_in_blocks
from jaxsvm.numerics.precision import count, double, in_double, matmul, places_first, plus_diagonal, rounded, widened
from jaxsvm.problems.squared_hinge import SquaredHingeProblem
from jaxsvm.results.fit import Counters
from jaxsvm.runtime.arrays import Count, Number
from jaxsvm.runtime.loops import fori_loop, once, while_loop
from jaxsvm.runtime.programs import Program
from jaxsvm.solvers.contract import Solver, Traits
from jaxsvm.solvers.measured import MEASURED
from jaxsvm.solvers.start import StartLike, weights_of

ROWS = 256  # samples that enter or leave a support in one product


def features(problem: SquaredHingeProblem, largest_C: float, key: Array) -> Float[Array, "n r"] | None:
    """Return features of the kernel matrix and of the constant, exact for linear kernels; None if too many are needed.

    A grid may go on to values that no features serve: those below are still worth features.
    """
    most = min(MEASURED.most_features, problem.n // MEASURED.samples_of_a_feature) // BLOCK * BLOCK
    if not problem.gram.definite or not most:
        return None
    if (X := problem.gram.feature_rows) is not None and X.shape[1] <= most:
        return _with_constant(problem, X)
    kernel = max(float(np.asarray(problem.squares).mean()) - problem.offset, 1e-30)  # not 0
    served = min(largest_C, MEASURED.scaled_C_of_features / kernel)
    ends = problem.n * MEASURED.rest_of_features / largest_C, problem.n * MEASURED.largest_rest / served
    Z, taken, trace = _features(problem, most, ends, key)
    return Z[:, : 1 + int(taken)] if float(trace) <= ends[1] else None


def _features(problem: SquaredHingeProblem, most: int, ends: Any, key: Array) -> tuple[Array, Array, Array]:
    def wide(problem: SquaredHingeProblem, key: Array) -> tuple[Array, Array, Array]:
        gram, diagonal = problem.gram, widened(problem).gram.diag()
        floor = 16 * jnp.finfo(gram.dtype).eps * diagonal.max()
        Z, taken, trace = features_in_blocks(gram.rows, diagonal, most, ends, floor, key)
        return _with_constant(problem, Z).astype(gram.dtype), taken, trace.astype(gram.dtype)

    return in_double(wide)(problem, key)


_features = Program(_features, static=("most",))


def _with_constant(problem: SquaredHingeProblem, Z: Array) -> Array:
    return jnp.concatenate([jnp.full((problem.n, 1), problem.offset**0.5, Z.dtype), Z], axis=1)


class Known(NamedTuple):
    """What is known of a support: its samples, and `Z_S' diag(weights) Z_S` in float64."""

    support: Bool[Array, " n"]
    matrix: Float[Array, "r r"]


class State(NamedTuple):
    """State of Newton in features: a dual point in primal scale, its margins, objective and relative gap, and more."""

    x: Float[Array, " n"]
    f: Float[Array, " n"]
    R: Float[Array, ""]
    gap: Float[Array, ""]
    known: Known  # what is known of the last support
    slow: Bool[Array, ""]  # whether the last step left most of the gap: the rest of K is too large for C
    indefinite: Bool[Array, ""]
    counters: Counters  # steps, and systems as `toward`


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FeatureNewton(Solver[SquaredHingeProblem]):
    """Newton in features that reproduce the kernel matrix; drivers choose it where `features` finds some.

    Problems: squared hinge without a free bias, of a definite kernel.
    Cost of a step: a product with the kernel matrix, and a few systems of r features.
    Rate: linear, by about `(C |R|)^2` for a rest R of the kernel matrix.
    """

    bit = 17
    solves = ("squared hinge",)
    unroll = 1
    traits = Traits(pads=True)

    Z: Float[Array, "n r"]  # the features of this problem, `(n, r)`
    tol: Number = 1e-4  # certified relative duality gap at which to stop, > 0
    max_steps: Count = MEASURED.most_products  # maximum number of steps, >= 0
    check_every: int = dataclasses.field(default=1, metadata={"static": True})  # steps in a chunk; static
    # maximum number of steps between certificates; static
    refresh_every: int | None = dataclasses.field(default=None, metadata={"static": True})

    def init(self, problem: SquaredHingeProblem, key: Array | None = None, init: "StartLike | None" = None) -> State:
        x = f = jnp.zeros_like(problem.y)
        if init is not None:
            weights, margins = weights_of(problem, init)
            alpha = problem.feasible_point(weights)
            s = problem.matvec(alpha) if margins is None else problem.gradient(alpha, margins)
            x, f = alpha / (alpha @ s), problem.margins(alpha, s) / (alpha @ s)
        return state_at.function(self.Z, x, f)

    def step(self, problem: SquaredHingeProblem, state: State) -> State:
        return stepped.function(problem, self, state, True)

    def refresh(self, problem: SquaredHingeProblem, state: State) -> State:
        return state._replace(f=problem.signed.matvec(state.x.astype(problem.dtype)))

    def dual_point(self, problem: SquaredHingeProblem, state: State) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        return state.x, state.f + problem.ridge * state.x

    def running_excess(self, problem: SquaredHingeProblem, state: State) -> Float[Array, ""]:
        return state.gap / jnp.asarray(self.tol, state.gap.dtype)


@Program
def state_at(Z: Array, x: Array, f: Array) -> State:
    """Return the state at a point of any signs with its margins, of whose support nothing is known."""
    (n, r), no = Z.shape, jnp.asarray(False)
    known = Known(jnp.zeros((n,), bool), in_double(lambda Z: jnp.zeros((r, r), double(Z.dtype)))(Z))
    return State(x, f, jnp.zeros((), x.dtype), jnp.full((), jnp.inf, x.dtype), known, no, no, Counters.zero())


@Program
def stepped(problem: SquaredHingeProblem, solver: FeatureNewton, state: State, exactly: Any) -> State:
    """Take a step; margins are computed with K if `exactly`, else from the features and the unchanged rest."""
    first = state.counters.steps == 0
    x, f, gap, systems, known = _moved(problem, solver.Z, state.known, state.x, state.f, first, exactly)
    better = gap < state.gap
    x, f, left = (jnp.where(better, *pair) for pair in ((x, state.x), (f, state.f), (gap, state.gap)))
    slow = ~(gap <= MEASURED.gap_of_a_product * state.gap)
    counters = state.counters.stepped(problem.n, systems, problem.n)
    R = problem.objective(x, f + problem.ridge * x)
    return State(x, f, R, left, known, slow, state.indefinite, counters)


def _moved(problem: SquaredHingeProblem, Z: Array, known: Known, x: Array, f: Array, freely: Any, exactly: Any) -> Any:
    """Return a dual point with its margins and gap, the systems that it took, and what is known of its support.

    From a point that is not dual feasible (`freely`) the step has length 1; else the best length. Margins are computed
    with K if `exactly`, else from the features and the unchanged rest.
    """

    def wide(narrow: SquaredHingeProblem, Z: Array, known: Known, x: Array, f: Array, freely: Any, exactly: Any) -> Any:
        problem = widened(narrow)
        C = jnp.where(problem.present, problem.C * problem.weights, 0)
        Z, x, f = (v.astype(C.dtype) for v in (Z, x, f))
        u = matmul(problem.y * x, Z)
        target, known, systems = _minimised(problem, C, Z, f - problem.y * matmul(Z, u), u, known)
        dx = rounded(C * jnp.maximum(1 - target, 0), narrow.dtype) - x
        df = once(exactly, lambda _: problem.signed.matvec(x + dx), target) - f
        t = hinge_minimum(1 - f, -df, C, x @ df, dx @ df, (0.0, MEASURED.longest_step), 1.0)
        t = jnp.where(freely, 1, t)
        x, f = x + t * dx, f + t * df
        total = x.sum()
        margins = (f + problem.ridge * x) / total
        gap = problem.certificate(x / total, margins).relative_gap
        dtype = narrow.dtype
        return x.astype(dtype), f.astype(dtype), gap.astype(dtype), systems, known

    return in_double(wide)(problem, Z, known, x, f, jnp.asarray(freely), jnp.asarray(exactly))


def _minimised(
    problem: SquaredHingeProblem, C: Array, Z: Array, rest: Array, u: Array, known: Known
) -> tuple[Array, Known, Array]:
    """Solve for margins `rest + y (Z u)` by Newton; return them, what is known of the support, and the systems."""
    y = problem.y

    def unsettled(carry: tuple[Any, ...]) -> Array:
        return ~carry[-1] & (carry[-2] < MEASURED.most_systems)

    def system(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        u, f, before, matrix, systems, _ = carry
        room = jnp.maximum(1 - f, 0)
        support = (room > 0) & (C > 0)
        matrix = _brought_up(matrix, before, support, problem.weights, Z)
        step = factored(plus_diagonal(problem.C * matrix, jnp.ones_like(u))).solve(matmul(y * C * room, Z) - u)
        df = y * matmul(Z, step)
        settled = (support == ((f + df < 1) & (C > 0))).all()  # then it is the exact solution
        t = hinge_minimum(1 - f, -df, C, u @ step, step @ step, (0.0, MEASURED.longest_step), 1.0)
        t = jnp.where(settled, 1, t)
        return u + t * step, f + t * df, support, matrix, systems + 1, settled

    none = jnp.zeros((), jnp.int32)
    start = (u, rest + y * matmul(Z, u), known.support, known.matrix, none, none > 0)
    _, f, support, matrix, systems, _ = while_loop(unsettled, system, start)
    return f, Known(support, matrix), systems


def _brought_up(matrix: Array, before: Array, support: Array, weight: Array, Z: Array) -> Array:
    """Return `Z_S' diag(weight) Z_S` of a support, from that of another one or from 0, whichever is nearer."""
    afresh = 2 * count(before ^ support) > count(support)
    before = before & ~afresh
    changed = before ^ support
    order = places_first(changed)
    order = jnp.concatenate([order, jnp.zeros((ROWS,), order.dtype)])
    weight = jnp.where(changed, jnp.where(support, weight, -weight), 0)

    def added(k: Any, matrix: Array) -> Array:
        rows = jax.lax.dynamic_slice(order, (k * ROWS,), (ROWS,))
        kept = jnp.where(k * ROWS + jnp.arange(ROWS) < count(changed), weight[rows], 0)
        some = Z[rows]
        return matrix + matmul(some.T, kept[:, None] * some)

    return fori_loop(0, (count(changed) + ROWS - 1) // ROWS, added, jnp.where(afresh, 0, matrix))
