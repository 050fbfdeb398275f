"""Sequential minimal optimisation: steps of one or two dual variables of a box problem."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxsvm.errors import InputError
from jaxsvm.numerics import selection
from jaxsvm.numerics.line_search import best_in_rectangle
from jaxsvm.numerics.precision import rounded
from jaxsvm.problems.contract import BoxForm
from jaxsvm.results.fit import Counters
from jaxsvm.runtime.arrays import Count, Number
from jaxsvm.solvers.box.interior_point import InteriorPoint, steps_worth
from jaxsvm.solvers.contract import Finisher, Solver, Traits, is_negative
from jaxsvm.solvers.measured import MEASURED
from jaxsvm.solvers.start import StartLike, box_start
from jaxsvm.solvers.working_set_block import ends, ends_of_groups, sides


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SMO(Solver[BoxForm]):
    """Sequential minimal optimisation: `max q'a - 1/2 a'Qa`, `0 <= a <= U`, optionally `c'a = e`.

    Without an equality a step takes the variable whose own step gains most, `delta r_i - Q_ii delta^2 / 2`, `r = q -
    Qa`; with two variables it adds the one that gains most after it, and solves for both. Under an equality a pair
    moves along `(1 / c_i, -1 / c_j)` (docs/mathematics.md, The hinge: a box). The certificate is the duality gap with
    the best bias, not LIBSVM's violation of the optimality conditions.

    Problems: hinge, box and nu problems.
    Cost of a step: a column of Q, n kernel evaluations, for each variable.
    Rate: linear in the end.
    Sources: Platt 1999; Fan, Chen and Lin 2005 (second-order choice of a pair under an equality, WSS 2); Steinwart,
    Hush and Scovel 2011 (one and two variables without an equality).

    Attributes:
        tol: Relative duality gap at which to stop, > 0.
        variables: Variables of a step: 2, or 1 (without an equality constraint); static.
        max_steps: Maximum number of steps, >= 0.
        check_every: Steps in a chunk, between tests of the running gap; static.
        refresh_every: Maximum number of steps between recomputations of `s`; None: 4,000, or n if larger. Static.

    Raises:
        InputError: On other `variables`; when a problem with a free bias is solved by single variables.
    """

    bit = 4
    solves = ("box", "nu")
    traits = Traits(pads=True, carries_sums=True, knows_origin=True)

    tol: Number = 1e-4
    variables: int = dataclasses.field(default=2, metadata={"static": True})
    max_steps: Count = 10_000_000
    check_every: int = dataclasses.field(default=250, metadata={"static": True})
    refresh_every: int | None = dataclasses.field(default=None, metadata={"static": True})

    patience = 20  # the gap of pair steps goes up and down: in float32 it may rest for three certificates

    def __post_init__(self) -> None:
        if self.variables not in (1, 2):
            raise InputError(f"variables is {self.variables}: 1 or 2 is needed.")

    def init(self, problem: BoxForm, key: Array | None = None, init: "StartLike | None" = None) -> "State":
        if problem.free_bias and self.variables == 1:
            raise InputError("variables is 1: a free bias is an equality constraint, which needs pairs; leave it at 2.")
        a, s = box_start(problem, init)
        return State(a, s, problem.objective(a, s), jnp.asarray(False), Counters.zero())

    def step(self, problem: BoxForm, state: "State") -> "State":
        if problem.free_bias:
            return _pair_step(problem, state)
        return _single_step(problem, state) if self.variables == 1 else _double_step(problem, state)

    def refresh(self, problem: BoxForm, state: "State") -> "State":
        a = problem.on_equality(jnp.clip(state.a.astype(problem.dtype), 0, problem.upper))
        a = rounded(a, state.a.dtype)
        s = problem.matvec(a)
        return state._replace(a=a, s=s, R=problem.objective(a, s))

    def finisher(self, problem: BoxForm) -> Finisher | None:
        after = steps_worth(problem) if problem.groups is None else None
        return None if after is None else Finisher(InteriorPoint(tol=self.tol), after)

    def running_excess(self, problem: BoxForm, state: "State") -> Float[Array, ""]:
        """Return the relative gap over `tol`, at the bias of the violating pair, which needs no sorting."""
        a, r = state.a, problem.q - state.s
        if problem.groups is not None:
            return problem.certificate(a, state.s).relative_gap / self.tol
        if problem.c is not None:
            top, bottom = ends(problem, a, state.s)
            r = r - (top + bottom) / 2 * problem.c
        gap = ((problem.upper - a) * jnp.maximum(r, 0) - a * jnp.minimum(r, 0)).sum()
        return jnp.where(state.R < 0, -gap / state.R, jnp.inf) / self.tol


class State(NamedTuple):
    """State of SMO."""

    a: Float[Array, " n"]  # dual variables, within the box and on the equality up to rounding; bounds are met exactly
    s: Float[Array, " n"]  # `Qa`, updated by each step
    R: Float[Array, ""]  # `-D(a)`, updated by each step
    indefinite: Bool[Array, ""]
    counters: Counters


def _single_step(problem: BoxForm, state: State) -> State:
    """Move the best single variable by `delta_i = clip(a_i + (q_i - s_i) / Q_ii, 0, U_i) - a_i`."""
    a, s = state.a, state.s
    delta, gain = _single_gains(problem, a, s)
    best, i = selection.argmax(gain)
    new = _moved(a, problem.upper, i, jnp.where(best > 0, selection.entry(delta, i), 0))
    return state._replace(
        a=a.at[i].set(new),
        s=s + (new - selection.entry(a, i)) * problem.column(i),
        R=state.R - jnp.maximum(best, 0),
        indefinite=state.indefinite | is_negative(selection.entry(problem.diagonal, i), problem.diagonal.max()),
        counters=state.counters.stepped(problem.n),
    )


def _double_step(problem: BoxForm, state: State) -> State:
    """Move the best single variable and the best variable after it, both at once within their box."""
    a, s = state.a, state.s
    delta, gain = _single_gains(problem, a, s)
    best, i = selection.argmax(gain)
    column_i, first = problem.column(i), selection.entry(delta, i)
    _, gain_j = _single_gains(problem, a.at[i].add(first), s + first * column_i)
    _, j = selection.argmax(jnp.where(jnp.arange(a.shape[0]) == i, -jnp.inf, gain_j))
    column_j = problem.column(j)

    def at(v: Array) -> tuple[Array, Array]:
        return selection.entry(v, i), selection.entry(v, j)

    (a_i, a_j), (U_i, U_j), (D_i, D_j) = at(a), at(problem.upper), at(problem.diagonal)
    (s_i, s_j), (q_i, q_j), Q_ij = at(s), at(problem.q), selection.entry(column_i, j)
    t_i, t_j, gain = best_in_rectangle((q_i - s_i, q_j - s_j), (D_i, D_j, Q_ij), (-a_i, U_i - a_i), (-a_j, U_j - a_j))
    usable = best > 0
    new_i = _moved(a, problem.upper, i, jnp.where(usable, t_i, 0))
    new_j = jnp.where(i == j, new_i, _moved(a, problem.upper, j, jnp.where(usable, t_j, 0)))
    return state._replace(
        a=a.at[i].set(new_i).at[j].set(new_j),
        s=s + ((new_i - a_i) * column_i + jnp.where(i == j, 0, new_j - a_j) * column_j),
        R=state.R - jnp.where(usable, gain, 0),
        indefinite=state.indefinite | is_negative(jnp.minimum(D_i, D_j), problem.diagonal.max()),
        counters=state.counters.stepped(2 * problem.n),
    )


def _pair_step(problem: BoxForm, state: State) -> State:
    """Move the pair of WSS 2 (Fan, Chen and Lin 2005): i violates most, j decreases most with it."""
    a, s, D = state.a, state.s, problem.diagonal
    c = jnp.ones_like(a) if problem.c is None else problem.c
    pull, up, low = sides(problem, state.a, state.s)
    groups = problem.groups
    _, i = selection.argmax(
        jnp.where(up, pull if groups is None else pull - ends_of_groups(groups, pull, up, low)[0], -jnp.inf)
    )
    m = selection.entry(pull, i)
    low = low if groups is None else low & (groups == selection.entry(groups, i))
    column_i, D_i, c_i = problem.column(i), selection.entry(D, i), selection.entry(c, i)
    descent = m - pull
    curvature = jnp.maximum(D_i / c_i**2 + D / c**2 - 2 * column_i / (c_i * c), MEASURED.curvature_floor)
    _, j = selection.argmax(jnp.where(low & (descent > 0), descent * descent / curvature, -jnp.inf))
    c_j, D_j, Q_ij = selection.entry(c, j), selection.entry(D, j), selection.entry(column_i, j)

    exact = D_i / c_i**2 + D_j / c_j**2 - 2 * Q_ij / (c_i * c_j)
    descent_j = selection.entry(descent, j)
    usable = (descent_j > 0) & selection.entry(low, j) & selection.entry(up, i)
    a_i, a_j = selection.entry(a, i), selection.entry(a, j)
    U_i, U_j = selection.entry(problem.upper, i), selection.entry(problem.upper, j)
    room_i = jnp.where(c_i > 0, U_i - a_i, a_i) * jnp.abs(c_i)
    room_j = jnp.where(c_j > 0, a_j, U_j - a_j) * jnp.abs(c_j)
    t = jnp.minimum(descent_j / jnp.maximum(exact, MEASURED.curvature_floor), jnp.minimum(room_i, room_j))
    t = jnp.where(usable, t, 0)
    # Bounds are met exactly, so that comparisons with them are exact.
    new_i = jnp.where(t >= room_i, jnp.where(c_i > 0, U_i, 0), a_i + t / c_i)
    new_j = jnp.where(t >= room_j, jnp.where(c_j > 0, 0, U_j), a_j - t / c_j)
    a = a.at[i].set(jnp.where(usable, jnp.clip(new_i, 0, U_i), a_i))
    return state._replace(
        a=a.at[j].set(jnp.where(usable, jnp.clip(new_j, 0, U_j), selection.entry(a, j))),
        s=s + t * (column_i / c_i - problem.column(j) / c_j),
        R=state.R - t * (descent_j - t * exact / 2),
        indefinite=state.indefinite | usable & is_negative(exact, D.max()),
        counters=state.counters.stepped(2 * problem.n),
    )


def _single_gains(problem: BoxForm, a: Array, s: Array) -> tuple[Array, Array]:
    rest, D = problem.q - s, problem.diagonal
    delta = jnp.clip(a + rest / jnp.maximum(D, MEASURED.curvature_floor), 0, problem.upper) - a
    return delta, delta * (rest - D * delta / 2)


def _moved(a: Array, upper: Array, i: Array, move: Array) -> Array:
    """Return `a_i + move`, or exactly 0 or U_i if within rounding of it."""
    old, U = selection.entry(a, i), selection.entry(upper, i)
    rounding = 4 * jnp.finfo(a.dtype).eps * U
    new = old + move
    return jnp.where(new <= rounding, 0, jnp.where(new >= U - rounding, U, new))
