"""Sequential minimal optimisation: steps of one or two dual variables of a box problem."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxsvm.errors import InputError
from jaxsvm.numerics import selection
from jaxsvm.numerics.precision import rounded
from jaxsvm.numerics.selection import entry
from jaxsvm.problems.contract import BoxForm
from jaxsvm.results.fit import Counters
from jaxsvm.runtime.arrays import Count, Number
from jaxsvm.solvers.box.interior_point import InteriorPoint, steps_worth
from jaxsvm.solvers.contract import Finisher, Solver, Traits, is_negative
from jaxsvm.solvers.start import StartLike, box_start
from jaxsvm.solvers.working_set_block import Quadratic, double_step, ends, ends_of_groups, pair_step


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
        """Take a step in the variables `v = c a`, in which a pair moves along (1, -1)."""
        a, c, groups = state.a, jnp.ones_like(state.a) if problem.c is None else problem.c, problem.groups
        full, v, pull = c * problem.upper, c * a, (problem.q - state.s) / c
        low, high = jnp.minimum(0, full), jnp.maximum(0, full)
        row = lambda i: problem.column(i) / (entry(c, i) * c)  # noqa: E731
        of = Quadratic(row, problem.diagonal / c**2, low, high, lambda values: selection.argmax(values)[1])
        if problem.free_bias:
            middle = 0 if groups is None else ends_of_groups(groups, pull, v < high, v > low)[0]
            step = pair_step(of, v, pull, middle, groups)
        else:
            step = double_step(of, v, pull, alone=self.variables == 1)

        def value(k: Array, new: Array) -> Array:
            old, c_k, U, at_bound = (entry(values, k) for values in (a, c, problem.upper, full))
            moved = jnp.where(new == at_bound, U, jnp.clip(new / c_k, 0, U))
            return jnp.where(new == c_k * old, old, moved)

        return state._replace(
            a=step._replace(values=tuple(map(value, step.places, step.values))).taken(a),
            s=state.s + c * step.change,
            R=state.R - step.gain,
            indefinite=state.indefinite | is_negative(step.curvature, problem.diagonal.max()),
            counters=state.counters.stepped(self.variables * problem.n),
        )

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
