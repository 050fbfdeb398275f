"""The slack problem by its hinge form: a search for the C whose hinge problem has the same solution.

Source: Cotter, Shalev-Shwartz, Srebro 2012, section 5; docs/mathematics.md, The slack budget. The hinge problem at C,
solved exactly, has the w of the slack problem at `nu(C) = (mean loss) / |w|`, scaled; p is its dual variable over its
sum. `nu(C)` falls with C, so that the C of a given nu is the root of a monotone function. Any solver of hinge problems
finds a value of it; where it has ended, C moves:

- Between two ends that are known, to where the solution that is linear between them has the wanted nu: while the same
  samples are at the same bounds it is linear in C, and the point between is the answer. After the same end has moved
  twice, to the middle of both in log C instead.
- With one end, by a factor that grows.

An error of C enters the gap of the slack problem by its square. What is certified is the slack problem's own gap, of w
along p, so that an inexact hinge solution or C is no harm but to the gap. At nu = 0, and where nu is less than any C
can tell (the hinge loss cannot be less, however long w), C grows until the gap is small.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxsvm.numerics.loops import fori_loop
from jaxsvm.numerics.once import once
from jaxsvm.numerics.precision import like, rounded
from jaxsvm.problems.slack import SlackProblem
from jaxsvm.result import Counters
from jaxsvm.solvers.contract import Solver
from jaxsvm.solvers.start import resumed
from jaxsvm.validation import require_solves

SHARE = 0.25
"""The gap of a hinge problem, in units of the slack problem's `tol`, at which C moves."""
LEAST_SHARE = 1 / 256
STRIDE, LONGEST = 4.0, 256.0
"""The first factor of C, and the largest."""
HALVINGS = 50
REACH = {"float32": 1e8, "float64": 1e13}
"""The largest C, in units of what gives a sample alone a margin of 1."""
LEAST_CHANGE = 0.01
"""Ends this near to each other, in units of `sqrt(tol)`, leave no gap: what is left is that of the hinge problem."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class EquivalentHinge(Solver):
    """Configuration of the search for the equivalent hinge problem: the solver of slack problems where none is named.

    Attributes:
        solver: What solves hinge problems, such as `SMO()`; its `tol` and `max_steps` are not looked at.
        tol: The relative duality gap of the slack problem that ends it, > 0.
        max_steps: The cap on the solver's steps, for all values of C together, >= 0.
    """

    solves = ("slack",)

    solver: Any
    tol: Any = 1e-4
    max_steps: Any = 10_000_000

    @property
    def check_every(self) -> int:
        """The solver's."""
        return self.solver.check_every

    @property
    def refresh_every(self) -> int | None:
        """The solver's."""
        return self.solver.refresh_every

    @property
    def pads(self) -> bool:
        """The solver's."""
        return self.solver.pads

    @property
    def large_state(self) -> bool:
        """The solver's."""
        return self.solver.large_state

    resumes = True
    rows = 2
    unroll = 1  # each copy of a step holds a start
    patience = 30  # the gap goes up and down while C is looked for

    def stores(self, problem: SlackProblem) -> bool:
        """The solver's."""
        require_solves(self, problem)
        return self.solver.stores(problem.hinge(1.0))

    def init(self, problem: SlackProblem, key: Array | None = None, init: Any = None) -> "State":
        """The state at w = 0 and a C of the data's scale; or at the p of another fit and the C that it tells."""
        nothing, one = jnp.zeros((problem.n,), problem.dtype), jnp.ones((), problem.dtype)
        C, p, a = 1 / _unit(problem), problem.feasible_point(nothing), None
        reached = Reached(nothing, nothing, -jnp.inf * one, p, nothing, jnp.inf * one)
        if init is not None:
            given = resumed(problem, init)
            w = jnp.where(problem.present, given.w, 0)
            length = _length(w, problem.matvec(w[None])[0])
            reached = _reached(problem, w / jnp.where(length > 0, length, 1), problem.feasible_point(given.point))
            length, highest = jnp.sqrt(jnp.maximum(reached.p @ reached.row, 0)), _highest(problem, reached.p)
            known = (reached.level > 0) & (length > 0)
            total = jnp.where(known, 1 / jnp.where(known, reached.level * length, 1), C / highest)
            C = _within_reach(problem, total * highest)
            a = reached.p * (C / highest)
        inner = self.solver.init(problem.hinge(C), key, a)
        search = Search(
            C=C,
            low=End(0 * one, nothing, nothing),
            high=End(jnp.inf * one, nothing, nothing),
            stride=STRIDE * one,
            run=jnp.zeros((), jnp.int32),
            share=SHARE * one,
            before=jnp.inf * one,
        )
        nowhere = Ahead(jnp.asarray(False), C, nothing)
        return State(inner, search, nowhere, reached)

    def counted(self, state: "State", counters: Counters) -> "State":
        """The solver's, with other counters."""
        return state._replace(inner=self.solver.counted(state.inner, counters))

    def step(self, problem: SlackProblem, state: "State") -> "State":
        """A step of the solver, which begins anew where C has moved."""
        state = once(state.ahead.due, lambda state: self._moved(problem, state), state)
        return state._replace(inner=self._at(state.search).step(problem.hinge(state.search.C), state.inner))

    def _moved(self, problem: SlackProblem, state: "State") -> "State":
        ahead = state.ahead
        inner = self.solver.init(problem.hinge(ahead.C), None, ahead.a)
        inner = like(self.solver.counted(inner, state.counters), state.inner)
        return state._replace(
            inner=inner,
            search=state.search._replace(C=ahead.C, before=jnp.full_like(ahead.C, jnp.inf)),
            ahead=ahead._replace(due=jnp.zeros_like(ahead.due)),
        )

    def refresh(self, problem: SlackProblem, state: "State") -> "State":
        """From scratch; where the hinge problem is solved, or nothing moves any more, C moves with the next step."""
        solver, hinge, dtype = self._at(state.search), problem.hinge(state.search.C), state.search.C.dtype
        inner = solver.refresh(hinge, state.inner)
        a, s = solver.dual_point(hinge, inner)
        here, before = End(hinge.C, a, hinge.margins(a, s)), state.search.before
        rounding = 4 * jnp.finfo(dtype).eps * jnp.abs(inner.R)
        ended = (solver.running_excess(hinge, inner) <= 1) | (before - rounding <= inner.R)
        following, expected = self._following(problem, state.search, here)
        w, p = _best(problem, state.reached, here, expected)

        stays = state.search._replace(before=inner.R)
        search = jax.tree.map(lambda new, old: jnp.where(ended, new, old), *like((following, stays), (stays, stays)))
        ahead = Ahead(ended, expected.C, jnp.where(ended, expected.a, 0))
        return State(
            inner, search, ahead, _reached(problem, rounded(w, dtype), rounded(problem.feasible_point(p), dtype))
        )

    def _following(self, problem: SlackProblem, search: "Search", here: "End") -> tuple["Search", "End"]:
        """The search with this C among its ends, and the next one with the point that is expected there."""
        low, high, run = _bracket(problem, search, here)
        known = (low.C > 0) & jnp.isfinite(high.C)
        least = jnp.maximum(LEAST_CHANGE * jnp.sqrt(self.tol), 64 * jnp.finfo(search.C.dtype).eps)
        near = known & (low.C * (1 + least) > high.C)
        t = _crossing(problem, low, high)
        between = jnp.where(jnp.abs(run) > 2, jnp.sqrt(low.C) * jnp.sqrt(high.C), low.C + t * (high.C - low.C))
        outward = jnp.where(run > 0, here.C * search.stride, here.C / search.stride)
        C = _within_reach(problem, jnp.where(known, between, outward))
        t = jnp.where(known, (C - low.C) / jnp.where(known, high.C - low.C, 1), 0)
        first, last = (jax.tree.map(lambda a, b: jnp.where(known, a, b), end, here) for end in (low, high))
        a, margins = (u + t * (v - u) for u, v in zip(first[1:], last[1:], strict=True))
        # With one end the point alone is scaled: its p stays. Samples that are at their bounds stay there, exactly.
        grown = jnp.where(known, 1, C / here.C)
        full = (first.a >= first.C * problem.weight) & (last.a >= last.C * problem.weight)
        expected = End(C, jnp.where(full, C * problem.weight, grown * a), grown * margins)
        following = Search(
            C=here.C,
            low=low._replace(C=jnp.where(near, 0, low.C)),
            high=high._replace(C=jnp.where(near, jnp.inf, high.C)),
            stride=jnp.where(known, STRIDE, jnp.minimum(search.stride * STRIDE, LONGEST)),
            run=jnp.where(near | (known & (jnp.abs(run) > 2)), 0, run),
            share=jnp.where(near, jnp.maximum(search.share / 4, LEAST_SHARE), search.share),
            before=search.before,
        )
        return following, expected

    def dual_point(self, problem: SlackProblem, state: "State") -> tuple[Float[Array, "two n"], Float[Array, "two n"]]:
        """The best w and the best p so far, and `Q` times both."""
        del problem
        best = state.reached
        return jnp.stack([best.w, best.p]), jnp.stack([best.w_row, best.row])

    def running_excess(self, problem: SlackProblem, state: "State") -> Float[Array, ""]:
        """The solver's, of the hinge problem: when it has ended, C moves."""
        return self._at(state.search).running_excess(problem.hinge(state.search.C), state.inner)

    def _at(self, search: "Search") -> Any:
        """The solver, to be as exact as the search needs it."""
        return dataclasses.replace(self.solver, tol=self.tol * search.share)

    def polish_interval(self, problem: SlackProblem) -> int | None:
        """The solver's."""
        return self.solver.polish_interval(problem.hinge(1.0))

    def polish(self, problem: SlackProblem, state: "State") -> "State":
        """The solver's, of the hinge problem."""
        return state._replace(inner=self._at(state.search).polish(problem.hinge(state.search.C), state.inner))

    def polish_begin(self, problem: SlackProblem, state: "State") -> "Polishing":
        """The same in pieces, for the host driver: before the first."""
        return Polishing(self._at(state.search).polish_begin(problem.hinge(state.search.C), state.inner), state.search)

    def polish_step(self, problem: SlackProblem, carry: "Polishing") -> "Polishing":
        """One piece further."""
        solver = self._at(carry.search)
        return carry._replace(carry=solver.polish_step(problem.hinge(carry.search.C), carry.carry))

    def polish_end(self, problem: SlackProblem, state: "State", carry: "Polishing") -> "State":
        """The state where the polish ended."""
        inner = self._at(state.search).polish_end(problem.hinge(state.search.C), state.inner, carry.carry)
        return state._replace(inner=inner)


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
        stride: The factor by which C moves next while an end is missing, `()`.
        run: How many times in a row the same end has moved, positive for the low one, int32 `()`.
        share: The gap that hinge problems are solved to, in units of `tol`, `()`.
        before: The solver's R when it was last looked at, at this C, `()`.
    """

    C: Float[Array, ""]
    low: End
    high: End
    stride: Float[Array, ""]
    run: Int[Array, ""]
    share: Float[Array, ""]
    before: Float[Array, ""]


class Ahead(NamedTuple):
    """Where the next step goes.

    Attributes:
        due: Whether C moves, `()`.
        C: The next one, `()`.
        a: Where the solver starts there, `(n,)`.
    """

    due: Bool[Array, ""]
    C: Float[Array, ""]
    a: Float[Array, " n"]


class Reached(NamedTuple):
    """The best w and the best p so far: they need not be of one C.

    Attributes:
        w: Coefficients of w, `|w| <= 1`, `(n,)`.
        w_row: `Q` times that, `(n,)`.
        level: The level of w, `()`.
        p: The distribution, `(n,)`.
        row: `Qp`, `(n,)`.
        bound: The bound on all levels that p is, `()`.
    """

    w: Float[Array, " n"]
    w_row: Float[Array, " n"]
    level: Float[Array, ""]
    p: Float[Array, " n"]
    row: Float[Array, " n"]
    bound: Float[Array, ""]


class State(NamedTuple):
    """Where it stands.

    Attributes:
        inner: The solver's state, on the hinge problem at C.
        search: How C is looked for.
        ahead: Where C goes with the next step.
        reached: What was found so far.
    """

    inner: Any
    search: Search
    ahead: Ahead
    reached: Reached

    @property
    def R(self) -> Float[Array, ""]:
        """The solver's."""
        return self.inner.R

    @property
    def indefinite(self) -> Bool[Array, ""]:
        """The solver's."""
        return self.inner.indefinite

    @property
    def counters(self) -> Counters:
        """The solver's, of all values of C."""
        return self.inner.counters


class Polishing(NamedTuple):
    """A polish under way: the solver's own carry, and the search that it belongs to."""

    carry: Any
    search: Search

    @property
    def going(self) -> Bool[Array, ""]:
        """Whether it is at work."""
        return self.carry.going


def _bracket(problem: SlackProblem, search: Search, here: End) -> tuple[End, End, Int[Array, ""]]:
    """Both ends with the one that was solved in its place, and how many times in a row it was that one."""
    loss = problem.weight @ jnp.maximum(0, 1 - here.margins)
    small = loss > problem.volume * jnp.sqrt(jnp.maximum(here.a @ here.margins, 0))
    low: End = jax.tree.map(lambda new, old: jnp.where(small, new, old), here, search.low)
    high: End = jax.tree.map(lambda new, old: jnp.where(small, old, new), here, search.high)
    run = jnp.where(small, jnp.maximum(search.run, 0) + 1, jnp.minimum(search.run, 0) - 1)
    return low, high, run


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
    """The best w and the best p, each of what was reached, the solution at C and the point that is expected.

    The solution's w may stand inside the ball too: where its loss over its length is more than nu at any C.
    """
    loss, size = problem.weight @ jnp.maximum(0, 1 - here.margins), _length(here.a, here.margins)
    inside = jnp.where(loss > 0, problem.volume * size / jnp.where(loss > 0, loss, 1), 1)
    lengths = jnp.stack([jnp.ones_like(inside), jnp.minimum(inside, 1), jnp.ones_like(inside)])
    points, margins = (jnp.stack([u, u, v]) for u, v in zip(here[1:], expected[1:], strict=True))
    sizes, totals = jnp.stack([_length(*of) for of in zip(points, margins, strict=True)]), points.sum(axis=1)
    usable = (sizes > 0) & (totals > 0)
    units = lengths / jnp.where(usable, sizes, 1)
    levels = jax.vmap(lambda c: problem.level(c).level)(units[:, None] * margins)
    highest = jnp.stack([_highest(problem, point) for point in points])
    bounds = (sizes + problem.volume * highest) / jnp.where(usable, totals, 1)
    levels, bounds = jnp.where(usable, levels, -jnp.inf), jnp.where(usable, bounds, jnp.inf)
    of_w, of_p = jnp.argmax(levels), jnp.argmin(bounds)
    higher, lower = levels[of_w] > reached.level, bounds[of_p] < reached.bound
    return jnp.where(higher, units[of_w] * points[of_w], reached.w), jnp.where(lower, points[of_p], reached.p)


def _reached(problem: SlackProblem, w: Float[Array, " n"], p: Float[Array, " n"]) -> Reached:
    """Both points, and what they are worth, from one product."""
    w_row, row = problem.matvec(jnp.stack([w, p]))
    level = problem.level(w_row / jnp.maximum(_length(w, w_row), 1)).level
    return Reached(w, w_row, level, p, row, _length(p, row) + problem.volume * _highest(problem, p))


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


def _highest(problem: SlackProblem, p: Float[Array, " n"]) -> Float[Array, ""]:
    """`max_i p_i / weight_i`."""
    return jnp.where(problem.weight > 0, p / jnp.where(problem.weight > 0, problem.weight, 1), 0).max()
