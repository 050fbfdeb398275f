"""The slack problem by its hinge form: a search for the C whose hinge problem has the same solution.

Source: Cotter, Shalev-Shwartz, Srebro 2012, section 5; docs/mathematics.md, The slack budget. The hinge problem at C,
solved exactly, has the w of the slack problem at `nu(C) = (mean loss) / |w|`, scaled; p is its dual variable over its
sum. `nu(C)` falls with C, so that the C of a given nu is the root of a monotone function. Any solver of hinge problems
finds a value of it; where it has ended, C moves: by a factor while an end is missing; between two ends to where the
solution that is linear between them has the wanted nu (while the same samples are at the same bounds it is linear in C,
and the point between is the answer), and every third time to the middle of both in log C.

An error of C enters the gap by its square. What is certified is the slack problem's own gap, of the best w and p.

No C has a nu below that of the least loss L, that of any w at all: there the level is `n nu / L`, of the shortest w of
that loss, inside the unit ball, and `max_i p_i = 1 / L` at a p with `sum_i p_i y_i phi_i = 0`, the dual solution of the
linear program that C -> infinity leaves. Both are known from a C that tells which samples are at their bounds: w is the
hinge solution, and of a kernel with few features p is its dual variable, moved onto the equation between its bounds.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxsvm.numerics.precision import like, rounded
from jaxsvm.problems.box import BoxProblem
from jaxsvm.problems.slack import SlackProblem
from jaxsvm.runtime.loops import fori_loop
from jaxsvm.runtime.once import once
from jaxsvm.solvers.around.wrapper import Wrapper
from jaxsvm.solvers.box.barrier_systems import barrier_system, few_features
from jaxsvm.solvers.contract import Solver
from jaxsvm.solvers.start import Origin, resumed
from jaxsvm.solvers.validation import require_solves

SHARE = 0.25
"""The gap of a hinge problem, in units of the slack problem's `tol`, at which C moves."""
LEAST_SHARE = 1 / 256
STRIDE = 16.0
"""The factor of C while an end is missing."""
HALVINGS = 50
REACH = {"float32": 1e8, "float64": 1e13}
"""The largest C, in units of what gives a sample alone a margin of 1."""
LEAST_CHANGE = 0.01
"""Ends this near to each other, in units of `sqrt(tol)`, leave no gap: what is left is that of the hinge problem."""
CORRECTIONS = 3
"""Of p onto its equation: each leaves what rounding and the bounds took of the one before."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class EquivalentHinge(Wrapper[SlackProblem]):
    """Configuration of the search for the equivalent hinge problem: the solver of slack problems where none is named.

    Attributes:
        solver: What solves hinge problems, such as `SMO()`; its `tol` and `max_steps` are not looked at.
        tol: The relative duality gap of the slack problem that ends it, > 0.
        max_steps: The cap on the solver's steps, for all values of C together, >= 0.
    """

    bit = 15
    solves = ("slack",)
    layer = 4
    made_by = "EquivalentHinge"

    tol: Any = 1e-4
    max_steps: Any = 10_000_000

    takes_start = True
    resumes = True
    knows_origin = False
    rows = 2
    patience = 30  # not every C is nearer to the one that is looked for
    carries_weights = Solver.carries_weights

    def problem_inside(self, problem: SlackProblem, state: "State") -> BoxProblem:
        """Return the hinge problem at C."""
        return problem.hinge(state.search.C)

    def state_inside(self, state: "State") -> Any:
        """Return the solver's state on it."""
        return state.inner

    def with_inside(self, state: "State", inner: Any) -> "State":
        """Return the state with another one of the solver."""
        return state._replace(inner=inner)

    def stores(self, problem: SlackProblem) -> bool:
        """Say whether the solver is faster with all kernel values stored."""
        require_solves(self, problem)
        return self.solver.stores(problem.hinge(1.0))

    def init(self, problem: SlackProblem, key: Array | None = None, init: Any = None) -> "State":
        """Start at w = 0 and a C of the data's scale; or at the p of another fit and the C that it tells."""
        nothing, one = jnp.zeros((problem.n,), problem.dtype), jnp.ones((), problem.dtype)
        C, p, a = 1 / _unit(problem), problem.feasible_point(nothing), Origin() if self.solver.knows_origin else None
        reached = Reached(nothing, nothing, p, nothing, jnp.inf * one)
        if init is not None:
            given = resumed(problem, init)
            w = jnp.where(problem.present, given.w, 0)
            length = _length(w, problem.matvec(w[None])[0])
            reached = _reached(problem, w / jnp.where(length > 0, length, 1), problem.feasible_point(given.point))
            level, length = problem.level(reached.w_row).level, problem.length_of(reached.p, reached.row)
            known, highest = (level > 0) & (length > 0), problem.highest(reached.p)
            total = jnp.where(known, 1 / jnp.where(known, level * length, 1), C / highest)
            C = _within_reach(problem, total * highest)
            a = reached.p * (C / highest)
        low, high = End(0 * one, nothing, nothing), End(jnp.inf * one, nothing, nothing)
        search = Search(C, low, high, jnp.zeros((), jnp.int32), SHARE * one, jnp.inf * one)
        return State(self.solver.init(problem.hinge(C), key, a), search, reached)

    def refresh(self, problem: SlackProblem, state: "State") -> "State":
        """Recompute from scratch; where the hinge problem is solved, or nothing moves any more, go to the next C."""
        solver, hinge, search = self._at(state.search), problem.hinge(state.search.C), state.search
        inner = solver.refresh(hinge, state.inner)
        a, s = solver.dual_point(hinge, inner)
        here = End(hinge.C, a, hinge.margins(a, s))
        rounding = 4 * jnp.finfo(search.C.dtype).eps * jnp.abs(inner.R)
        ended = (solver.running_excess(hinge, inner) <= 1) | (search.before - rounding <= inner.R)
        following, expected = self._following(problem, search, here)
        w, p = _best(problem, state.reached, here, expected)
        reached = _reached(problem, *(rounded(row, search.C.dtype) for row in (w, problem.feasible_point(p))))
        stays = State(inner, search._replace(before=inner.R), reached)

        def moved(state: State) -> State:
            begun = solver.init(problem.hinge(following.C), None, expected.a)
            return like(State(solver.counted(begun, inner.counters), following, reached), state)

        return once(ended, moved, stays)

    def _following(self, problem: SlackProblem, search: "Search", here: "End") -> tuple["Search", "End"]:
        """The search at the next C, with this one among its ends, and the solution that is expected there."""
        loss = problem.weight @ jnp.maximum(0, 1 - here.margins)
        small = loss > problem.volume * _length(here.a, here.margins)
        low: End = jax.tree.map(lambda new, old: jnp.where(small, new, old), here, search.low)
        high: End = jax.tree.map(lambda new, old: jnp.where(small, old, new), here, search.high)
        known = (low.C > 0) & jnp.isfinite(high.C)
        between = low.C + _crossing(problem, low, high) * (high.C - low.C)
        between = jnp.where(search.moves % 3 == 2, jnp.sqrt(low.C) * jnp.sqrt(high.C), between)
        outward = jnp.where(small, here.C * STRIDE, here.C / STRIDE)
        C = _within_reach(problem, jnp.where(known, between, outward))

        t = jnp.where(known, (C - low.C) / jnp.where(known, high.C - low.C, 1), 0)
        first, last = (jax.tree.map(lambda a, b: jnp.where(known, a, b), end, here) for end in (low, high))
        a, margins = (u + t * (v - u) for u, v in zip(first[1:], last[1:], strict=True))
        # With one end the point alone is scaled: its p stays. Samples that are at their bounds stay there, exactly.
        grown = jnp.where(known, 1, C / here.C)
        full = (first.a >= first.C * problem.weight) & (last.a >= last.C * problem.weight)
        expected = End(C, jnp.where(full, C * problem.weight, grown * a), grown * margins)
        least = jnp.maximum(LEAST_CHANGE * jnp.sqrt(self.tol), 64 * jnp.finfo(search.C.dtype).eps)
        near = known & (low.C * (1 + least) > high.C)  # solved more exactly, it may be another C
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
        """Return the best w and the best p so far, and `Q` times both."""
        del problem
        best = state.reached
        return jnp.stack([best.w, best.p]), jnp.stack([best.w_row, best.row])

    def _at(self, search: "Search") -> Solver:
        """The solver, to be as exact as the search needs it."""
        return dataclasses.replace(self.solver, tol=self.tol * search.share)

    def running_excess(self, problem: SlackProblem, state: "State") -> Float[Array, ""]:
        """Return the solver's, of the hinge problem: when it has ended, C moves."""
        return self._at(state.search).running_excess(*self._given(problem, state))

    def polish_interval(self, problem: SlackProblem) -> int | None:
        """Return the steps that earn the solver's polish; None where it has none."""
        return self.solver.polish_interval(problem.hinge(1.0))

    def polish(self, problem: SlackProblem, state: "State") -> "State":
        """Polish the solver's state, of the hinge problem."""
        return state._replace(inner=self._at(state.search).polish(*self._given(problem, state)))

    def polish_begin(self, problem: SlackProblem, state: "State") -> "Polishing":
        """Begin a polish in pieces, for the host driver."""
        return Polishing(self._at(state.search).polish_begin(*self._given(problem, state)), state.search)

    def polish_step(self, problem: SlackProblem, carry: "Polishing") -> "Polishing":
        """Take one piece more."""
        solver = self._at(carry.search)
        return carry._replace(carry=solver.polish_step(problem.hinge(carry.search.C), carry.carry))

    def polish_end(self, problem: SlackProblem, state: "State", carry: "Polishing") -> "State":
        """Return the state where the polish ended, which began at `state`."""
        return super().polish_end(problem, state, carry.carry)


class End(NamedTuple):
    """A hinge problem that was solved.

    Attributes:
        C: Its C, `()`; 0 or infinity where there is none yet.
        a: Its dual variables, `(n,)`.
        margins: Their margins, the bias included, `(n,)`.
    """

    C: Float[Array, ""]
    a: Float[Array, " n"]
    margins: Float[Array, " n"]


class Search(NamedTuple):
    """Where the search for C stands.

    Attributes:
        C: The C that the solver is at, `()`.
        low: The solution at the largest C that is known to be too small.
        high: That at the smallest C that is not.
        moves: How many times C has moved, int32 `()`.
        share: The gap that hinge problems are solved to, in units of `tol`, `()`.
        before: The solver's R when it was last looked at, at this C, `()`.
    """

    C: Float[Array, ""]
    low: End
    high: End
    moves: Int[Array, ""]
    share: Float[Array, ""]
    before: Float[Array, ""]


class Reached(NamedTuple):
    """The best w and the best p so far: they need not be of one C.

    Attributes:
        w: Coefficients of w, `|w| <= 1`, `(n,)`.
        w_row: `Q` times that, `(n,)`.
        p: The distribution, `(n,)`.
        row: `Qp`, `(n,)`.
        bound: The bound on all levels that p is, `()`.
    """

    w: Float[Array, " n"]
    w_row: Float[Array, " n"]
    p: Float[Array, " n"]
    row: Float[Array, " n"]
    bound: Float[Array, ""]


class State(NamedTuple):
    """The solver's state, on the hinge problem at C, how C is looked for, and what was found so far."""

    inner: Any
    search: Search
    reached: Reached

    R = property(lambda self: self.inner.R)
    indefinite = property(lambda self: self.inner.indefinite)
    counters = property(lambda self: self.inner.counters)


class Polishing(NamedTuple):
    """A polish under way: the solver's own carry, and the search that it belongs to."""

    carry: Any
    search: Search

    going = property(lambda self: self.carry.going)


def _crossing(problem: SlackProblem, low: End, high: End) -> Float[Array, ""]:
    """The share t of the way from one end to the other at which the point between has the wanted nu, by bisection."""
    dots = [[a.a @ b.margins for b in (low, high)] for a in (low, high)]

    def halve(_: Any, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        left, right = ends
        t = (left + right) / 2
        loss = problem.weight @ jnp.maximum(0, 1 - low.margins - t * (high.margins - low.margins))
        square = (1 - t) ** 2 * dots[0][0] + t * (1 - t) * (dots[0][1] + dots[1][0]) + t**2 * dots[1][1]
        small = loss > problem.volume * jnp.sqrt(jnp.maximum(square, 0))
        return jnp.where(small, t, left), jnp.where(small, right, t)

    zero = jnp.zeros((), problem.dtype)
    left, right = fori_loop(0, HALVINGS, halve, (zero, zero + 1))
    return (left + right) / 2


def _best(problem: SlackProblem, reached: Reached, here: End, expected: End) -> tuple[Array, Array]:
    """The best w and p: of what was reached, the solution at C, the point that is expected, and the limits of C."""
    sizes = jnp.stack([_length(end.a, end.margins) for end in (here, expected)])
    usable = (sizes > 0) & (jnp.stack([here.a.sum(), expected.a.sum()]) > 0)
    size = jnp.where(usable, sizes, 1)
    loss = problem.weight @ jnp.maximum(0, 1 - here.margins)
    inside = jnp.minimum(problem.volume * size[0] / jnp.where(loss > 0, loss, jnp.inf), 1)
    scales = jnp.stack([jnp.ones_like(inside), 1 / size[0], inside / size[0], 1 / size[1]])
    usable_w = jnp.stack([_length(reached.w, reached.w_row) > 0, usable[0], usable[0] & (inside > 0), usable[1]])
    ws = jnp.stack([reached.w, here.a, here.a, expected.a])
    rows = jnp.stack([reached.w_row, here.margins, here.margins, expected.margins])
    levels = lax.map(lambda c: problem.level(c).level, scales[:, None] * rows)
    of_w = jnp.argmax(jnp.where(usable_w, levels, -jnp.inf))

    ps, bounds = [reached.p, here.a, expected.a], [reached.bound]
    bounds += [jnp.where(usable[k], _bound(problem, ws[2 + k], sizes[k]), jnp.inf) for k in range(2)]
    if few_features(problem.hinge(here.C)) is not None:
        ps.append(_of_no_w(problem, here))
        bounds.append(_bound(problem, ps[-1], problem.length_of(ps[-1], ps[-1])))
    bounds = jnp.stack(bounds)
    return (scales[:, None] * ws)[of_w], jnp.stack(ps)[jnp.argmin(jnp.where(bounds > 0, bounds, jnp.inf))]


def _of_no_w(problem: SlackProblem, here: End) -> Float[Array, " n"]:
    """The dual variables, moved so that they make no w: those between their bounds alone, for features."""
    hinge = problem.hinge(here.C)
    system: Any = barrier_system(hinge)
    system = dataclasses.replace(system, penalty=jnp.zeros_like(system.penalty))

    def correct(_: Any, a: Array) -> Array:
        room = jnp.where(problem.present, a * (hinge.upper - a), 0)
        stiffness = jnp.where(room > 0, 1 / jnp.where(room > 0, room, 1), jnp.inf)
        change, _, _ = system.factored(stiffness, a, system.penalty)(jnp.zeros_like(a))
        return jnp.clip(a + change, 0, hinge.upper)

    return fori_loop(0, CORRECTIONS, correct, jnp.clip(here.a, 0, hinge.upper))


def _reached(problem: SlackProblem, w: Float[Array, " n"], p: Float[Array, " n"]) -> Reached:
    """Both points, and what bound p is, from one product."""
    w_row, row = problem.matvec(jnp.stack([w, p]))
    return Reached(w, w_row, p, row, _bound(problem, p, problem.length_of(p, row)))


def _bound(problem: SlackProblem, p: Float[Array, " n"], length: Float[Array, ""]) -> Float[Array, ""]:
    total = p.sum()
    return (length + problem.volume * problem.highest(p)) / jnp.where(total > 0, total, 1)


def _length(a: Float[Array, " n"], row: Float[Array, " n"]) -> Float[Array, ""]:
    return jnp.sqrt(jnp.maximum(a @ row, 0))


def _unit(problem: SlackProblem) -> Float[Array, ""]:
    """The mean of `weight_i Q_ii` over the samples present."""
    present = problem.weight > 0
    mean = jnp.where(present, problem.weight * problem.diagonal, 0).sum() / jnp.maximum(present.sum(), 1)
    return jnp.where(mean > 0, mean, 1)


def _within_reach(problem: SlackProblem, C: Any) -> Float[Array, ""]:
    reach, unit = REACH[jnp.dtype(problem.dtype).name], _unit(problem)
    return jnp.clip(C, 1 / (reach * unit), reach / unit)
