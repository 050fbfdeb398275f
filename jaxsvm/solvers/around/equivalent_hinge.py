"""The solver of slack problems by their hinge form: a search for the C whose hinge problem has the same solution."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxsvm.numerics import selection
from jaxsvm.numerics.line_search import bisected
from jaxsvm.numerics.precision import like, matmul, rounded
from jaxsvm.problems.box import BoxProblem
from jaxsvm.problems.slack import SlackProblem
from jaxsvm.runtime.arrays import Count, Number
from jaxsvm.runtime.loops import fori_loop, once
from jaxsvm.solvers.around.wrapper import HoldingWrapper
from jaxsvm.solvers.box.interior_point import barrier_system, few_features
from jaxsvm.solvers.contract import Finisher, HandOver, Solver, Traits, require_solves
from jaxsvm.solvers.start import Origin, StartLike, resumed

OUTWARD, CLOSE = 16.0, 0.01  # factor of C until it lies between two ends; close ends are so many `sqrt(tol)` apart
FIRST_SHARE, LEAST_SHARE = 0.25, 1 / 256  # of `tol`, for hinge problems: the latter once ends were close
REACH = {"float32": 1e8, "float64": 1e13}  # the largest C, in units of the C that gives a single sample a margin of 1


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class EquivalentHinge(HoldingWrapper[SlackProblem]):
    """The default solver of slack problems: a search for the C whose hinge problem has the same solution.

    The hinge problem at C has, up to scale, the w of the slack problem at `nu(C) = (mean loss) / |w|`, and its dual
    variable over its sum is p. `nu(C)` falls with C, so the C of a given nu is the root of a monotone function, which
    any hinge solver evaluates. While only one end of a bracket is known, C changes by a factor of 16. Between two ends
    the solution is interpolated linearly (exact while the same samples are at the same bounds), and C moves to where
    it has the wanted nu; every third time to the middle in log C.

    An error of C enters the gap by its square. The certificate is the slack problem's gap, of the best w and p.

    A nu below that of the least loss L of any w belongs to no C. The level is then `n nu / L`, reached by the shortest
    w of that loss, inside the unit ball; `max_i p_i = 1 / L` at a p with `sum_i p_i y_i phi_i = 0`, the dual solution
    of the linear program in the limit of C. Both follow from a C so large that it shows which samples are at their
    bounds: w is the hinge solution; p, for a kernel with few features, is its dual variable, moved within the bounds
    until it satisfies the equation.

    Problems: slack problems.
    Cost of a step: that of the hinge solver.
    Rate: that of the hinge solver for each C; bisection at worst for C.
    Sources: Cotter, Shalev-Shwartz, Srebro 2012, section 5; docs/mathematics.md, The slack budget.

    Attributes:
        solver: A solver of hinge problems, such as `SMO()`; its `tol` and `max_steps` are ignored.
        tol: Relative duality gap of the slack problem at which to stop, > 0.
        max_steps: Maximum number of the solver's steps, for all values of C together, >= 0.
    """

    bit = 15
    solves = ("slack",)
    layer = 4
    made_by = "EquivalentHinge"

    tol: Number = 1e-4
    max_steps: Count = 10_000_000

    rows = 2
    patience = 30  # not every C is nearer to the wanted value
    carries_weights = Solver.carries_weights

    @property
    def traits(self) -> Traits:
        """Return the inner solver's, as far as they hold for a search."""
        return dataclasses.replace(super().traits, takes_start=True, resumes=True, knows_origin=False)

    def problem_inside(self, problem: SlackProblem, state: "State") -> BoxProblem:
        """Return the hinge problem at C."""
        return problem.hinge(state.search.C)

    def stores(self, problem: SlackProblem) -> bool:
        """Return whether the hinge solver is faster with all kernel values stored."""
        require_solves(self, problem)
        return self.solver.stores(problem.hinge(1.0))

    def init(self, problem: SlackProblem, key: Array | None = None, init: "StartLike | None" = None) -> "State":
        """Start at w = 0 and a C of the data's scale; or at the p of another fit and the C that belongs to it."""
        zeros, unit = jnp.zeros((problem.n,), problem.dtype), jnp.ones((), problem.dtype)
        C, a = 1 / _unit(problem), Origin() if self.solver.traits.knows_origin else None
        point = jnp.stack([zeros, problem.feasible_point(zeros)])
        products = jnp.zeros_like(point)  # without a product: p then bounds the levels as if it proved w = 0
        if init is not None:
            given = resumed(problem, init)
            point = jnp.stack([jnp.where(problem.present, given.w, 0), problem.feasible_point(given.point)])
            products, p = problem.matvec(point), point[1]
            length = _length(point[0], products[0])
            size = jnp.stack([jnp.where(length > 0, length, 1), unit])[:, None]
            point, products = point / size, products / size
            level, length = problem.level(products[0]).level, problem.length_of(p, products[1])
            known, highest = (level > 0) & (length > 0), problem.highest(p)
            total = jnp.where(known, 1 / jnp.where(known, level * length, 1), C / highest)
            C = _within_reach(problem, total * highest)
            a = p * (C / highest)
        low, high = End(0 * unit, zeros, zeros), End(jnp.inf * unit, zeros, zeros)
        search = Search(C, low, high, jnp.zeros((), jnp.int32), FIRST_SHARE * unit, jnp.inf * unit)
        return State(self.solver.init(problem.hinge(C), key, a), search, point, products)

    def refresh(self, problem: SlackProblem, state: "State") -> "State":
        """Recompute the state; move to the next C once the hinge problem is certified, or its steps end in rounding."""
        solver, hinge, search = self.solver_at(state), problem.hinge(state.search.C), state.search
        inner = solver.refresh(hinge, state.inner)
        a, s = solver.dual_point(hinge, inner)
        solved = End(hinge.C, a, hinge.margins(a, s))
        rounding = 4 * jnp.finfo(search.C.dtype).eps * jnp.abs(inner.R)
        primal = matmul(a, s) / 2 + matmul(hinge.upper, jnp.maximum(0, 1 - solved.margins))
        ended = (primal + inner.R <= solver.tol * jnp.abs(inner.R)) | (search.before - rounding <= inner.R)
        following, expected = self._following(problem, search, solved)
        point = rounded(_best(problem, state, solved, expected), search.C.dtype)
        reached = point, problem.matvec(point)
        stays = State(inner, search._replace(before=inner.R), *reached)

        def moved(state: State) -> State:
            begun = solver.init(problem.hinge(following.C), None, expected.a)
            return like(State(solver.counted(begun, inner.counters), following, *reached), state)

        return once(ended, moved, stays)

    def _following(self, problem: SlackProblem, search: "Search", solved: "End") -> tuple["Search", "End"]:
        """Return the search at the next C, with this C among its ends, and the solution that is expected at it."""
        loss = matmul(problem.weights, jnp.maximum(0, 1 - solved.margins))
        small = loss > problem.volume * _length(solved.a, solved.margins)
        low: End = jax.tree.map(lambda new, old: jnp.where(small, new, old), solved, search.low)
        high: End = jax.tree.map(lambda new, old: jnp.where(small, old, new), solved, search.high)
        known = (low.C > 0) & jnp.isfinite(high.C)
        between = low.C + _crossing(problem, low, high) * (high.C - low.C)
        between = jnp.where(search.moves % 3 == 2, jnp.sqrt(low.C) * jnp.sqrt(high.C), between)  # in case it creeps
        outward = jnp.where(small, solved.C * OUTWARD, solved.C / OUTWARD)
        C = _within_reach(problem, jnp.where(known, between, outward))

        t = jnp.where(known, (C - low.C) / jnp.where(known, high.C - low.C, 1), 0)
        first, last = (jax.tree.map(lambda a, b: jnp.where(known, a, b), end, solved) for end in (low, high))
        a, margins = (u + t * (v - u) for u, v in zip(first[1:], last[1:], strict=True))
        # With a single end the point is scaled: its p stays. Samples at their bounds stay at them exactly.
        grown = jnp.where(known, 1, C / solved.C)
        full = (first.a >= first.C * problem.weights) & (last.a >= last.C * problem.weights)
        expected = End(C, jnp.where(full, C * problem.weights, grown * a), grown * margins)
        least = jnp.maximum(CLOSE * jnp.sqrt(self.tol), 64 * jnp.finfo(search.C.dtype).eps)
        # Ends this close leave the gap of the hinge problem only; solved more exactly, another C may be better.
        near = known & (low.C * (1 + least) > high.C)
        following = Search(
            C=C,
            low=low._replace(C=jnp.where(near, 0, low.C)),
            high=high._replace(C=jnp.where(near, jnp.inf, high.C)),
            moves=search.moves + 1,
            share=jnp.where(near, jnp.maximum(search.share / 4, LEAST_SHARE), search.share),
            before=jnp.full_like(search.before, jnp.inf),
        )
        return following, expected

    def dual_point(self, problem: SlackProblem, state: "State") -> tuple[Float[Array, "two n"], Float[Array, "two n"]]:
        return state.point, state.products

    def solver_at(self, state: "State") -> Solver:
        """Return the hinge solver with the tolerance that the search needs now."""
        return dataclasses.replace(self.solver, tol=self.tol * state.search.share)

    def finisher(self, problem: SlackProblem) -> Finisher | None:
        """Return the finisher of the hinge problems; the search goes on with it."""
        return self.solver.finisher(problem.hinge(1.0))

    def hands_over(self, problem: SlackProblem, state: "State", steps: float) -> HandOver | None:
        """Return the search with the solver that goes on with the hinge problem."""
        inner = self.solver.hands_over(*self._given(problem, state), steps)
        return inner and HandOver(dataclasses.replace(self, solver=inner.solver))


class End(NamedTuple):
    """The solution of a hinge problem."""

    C: Float[Array, ""]  # C of the problem; 0 or infinity as long as no solution is known
    a: Float[Array, " n"]  # dual variables
    margins: Float[Array, " n"]  # margins with the bias


class Search(NamedTuple):
    """State of the search for C."""

    C: Float[Array, ""]  # current C
    low: End  # solution at the largest C that is known to be too small
    high: End  # solution at the smallest C that is not too small
    moves: Int[Array, ""]  # number of changes of C
    share: Float[Array, ""]  # gap at which hinge problems end, in units of `tol`: a quarter at first
    before: Float[Array, ""]  # the solver's R at the last refresh with this C


class State(NamedTuple):
    """State: the solver's on the hinge problem at C, the search for C, and the best points so far."""

    inner: Any
    search: Search
    point: Float[Array, "two n"]  # the best w, `|w| <= 1`, and the best distribution p so far, perhaps of different C
    products: Float[Array, "two n"]  # `Q` times both

    R = property(lambda self: self.inner.R)
    indefinite = property(lambda self: self.inner.indefinite)
    counters = property(lambda self: self.inner.counters)


def _crossing(problem: SlackProblem, low: End, high: End) -> Float[Array, ""]:
    """Find the share t of the way from `low` to `high` at which the point has the wanted nu, by 50 bisections."""
    dots = [[a.a @ b.margins for b in (low, high)] for a in (low, high)]

    def is_before(t: Array) -> Array:
        loss = matmul(problem.weights, jnp.maximum(0, 1 - low.margins - t * (high.margins - low.margins)))
        square = (1 - t) ** 2 * dots[0][0] + t * (1 - t) * (dots[0][1] + dots[1][0]) + t**2 * dots[1][1]
        return loss > problem.volume * jnp.sqrt(jnp.maximum(square, 0))

    zero = jnp.zeros((), problem.dtype)
    left, right = bisected(is_before, zero, zero + 1, 50)
    return (left + right) / 2


def _best(problem: SlackProblem, state: State, solved: End, expected: End) -> Float[Array, "two n"]:
    """Return the best w and p among those reached, the solution at C, the expected point, and the limit of large C."""
    (w, p), (w_row, row) = state.point, state.products
    sizes = jnp.stack([_length(end.a, end.margins) for end in (solved, expected)])
    usable = (sizes > 0) & (jnp.stack([solved.a.sum(), expected.a.sum()]) > 0)
    size = jnp.where(usable, sizes, 1)
    loss = matmul(problem.weights, jnp.maximum(0, 1 - solved.margins))
    inside = jnp.minimum(problem.volume * size[0] / jnp.where(loss > 0, loss, jnp.inf), 1)
    scales = jnp.stack([jnp.ones_like(inside), 1 / size[0], inside / size[0], 1 / size[1]])
    usable_w = jnp.stack([_length(w, w_row) > 0, usable[0], usable[0] & (inside > 0), usable[1]])
    rows = jnp.stack([w_row, solved.margins, solved.margins, expected.margins])
    levels = lax.map(lambda c: problem.level(c).level, scales[:, None] * rows)
    of_w = selection.lowest(jnp.where(usable_w, -levels, jnp.inf))
    w = (scales[:, None] * jnp.stack([w, solved.a, solved.a, expected.a]))[of_w]

    ps, lengths = [p, solved.a, expected.a], [problem.length_of(p, row), *jnp.where(usable, sizes, jnp.inf)]
    if few_features(problem.hinge(solved.C)) is not None:
        ps.append(_of_no_w(problem, solved))
        lengths.append(problem.length_of(ps[-1], ps[-1]))
    highest, totals = jnp.stack([problem.highest(p) for p in ps]), jnp.stack([p.sum() for p in ps])
    bounds = (jnp.stack(lengths) + problem.volume * highest) / jnp.where(totals > 0, totals, 1)
    p = jnp.stack(ps)[selection.lowest(jnp.where(bounds > 0, bounds, jnp.inf))]
    return jnp.stack([w, problem.feasible_point(p)])


def _of_no_w(problem: SlackProblem, solved: End) -> Float[Array, " n"]:
    """Move the dual variables between their bounds until their w is 0, in three corrections; for features."""
    hinge = problem.hinge(solved.C)
    system: Any = barrier_system(hinge)
    system = dataclasses.replace(system, penalty=jnp.zeros_like(system.penalty))

    def correct(_: Any, a: Array) -> Array:
        room = jnp.where(problem.present, a * (hinge.upper - a), 0)
        stiffness = jnp.where(room > 0, 1 / jnp.where(room > 0, room, 1), jnp.inf)
        change, _, _ = system.factored(stiffness, a, system.penalty)(jnp.zeros_like(a))
        return jnp.clip(a + change, 0, hinge.upper)

    return fori_loop(0, 3, correct, jnp.clip(solved.a, 0, hinge.upper))


def _length(a: Float[Array, " n"], row: Float[Array, " n"]) -> Float[Array, ""]:
    return jnp.sqrt(jnp.maximum(a @ row, 0))


def _unit(problem: SlackProblem) -> Float[Array, ""]:
    """Return the mean of `weight_i Q_ii` over the samples present."""
    present = problem.weights > 0
    mean = jnp.where(present, problem.weights * problem.diagonal, 0).sum() / jnp.maximum(present.sum(), 1)
    return jnp.where(mean > 0, mean, 1)


def _within_reach(problem: SlackProblem, C: Any) -> Float[Array, ""]:
    reach, unit = REACH[jnp.dtype(problem.dtype).name], _unit(problem)
    return jnp.clip(C, 1 / (reach * unit), reach / unit)
