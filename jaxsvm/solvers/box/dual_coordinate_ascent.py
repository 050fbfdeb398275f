"""Stochastic dual coordinate ascent: exact steps of single dual variables, in random order."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxsvm.errors import InputError
from jaxsvm.numerics import selection
from jaxsvm.numerics.sampling import Present
from jaxsvm.problems.contract import BoxForm
from jaxsvm.results.fit import Counters
from jaxsvm.runtime.arrays import Count, Number
from jaxsvm.runtime.checks import require_one_of
from jaxsvm.runtime.loops import cond, once
from jaxsvm.solvers.contract import NEVER, Solver, Traits, is_negative
from jaxsvm.solvers.measured import MEASURED
from jaxsvm.solvers.start import StartLike, box_start, key_after

ORDERS = ("random", "permuted")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SDCA(Solver[BoxForm]):
    """Stochastic dual coordinate ascent: exact steps of single dual variables, in random order.

        a_i <- clip(a_i + (q_i - s_i) / Q_ii, 0, U_i),      s <- s + (its change) Q[:, i]

    Problems: hinge and box problems without an equality (a regularised bias, or none).
    Cost of a step: n kernel evaluations if the variable moves, none if it stays at a bound.
    Rate: `O~(n + 1 / (lambda eps))` steps to a gap of eps.
    Sources: Hsieh, Chang, Lin, Keerthi, Sundararajan 2008, Algorithm 1 (a permutation an epoch); Shalev-Shwartz, Zhang
    2013 (uniform draws, and the rate).

    Attributes:
        order: "permuted" (a fresh permutation an epoch) or "random" (uniform, with replacement); static.
        tol: Relative duality gap at which to stop, > 0.
        max_steps: Maximum number of steps, >= 0; as many as there are samples of positive weight are an epoch.
        check_every: Steps in a chunk, between tests of the running gap; static.
        refresh_every: Maximum number of steps between recomputations of `s`; None: 4,000, or n if larger. Static.

    Raises:
        InputError: On another order; when a problem with a free bias is solved.
    """

    bit = 6
    solves = ("box",)

    order: str = dataclasses.field(default="permuted", metadata={"static": True})
    tol: Number = 1e-3
    max_steps: Count = 10_000_000
    check_every: int = dataclasses.field(default=250, metadata={"static": True})
    refresh_every: int | None = dataclasses.field(default=None, metadata={"static": True})

    traits = Traits(resumes=True, knows_origin=True)
    patience = NEVER  # chunks gain unevenly: a gap may rest for a while and shrink again

    def __post_init__(self) -> None:
        require_one_of("order", self.order, ORDERS)

    def stores(self, problem: BoxForm) -> bool:
        """Return whether the Gram has no features; with features a row is a product."""
        return problem.gram.design is None

    def init(self, problem: BoxForm, key: Array | None = None, init: "StartLike | None" = None) -> "State":
        if problem.free_bias:
            raise InputError(
                "the problem has a free bias, an equality that single variables cannot keep: use `SMO`, or bias="
                '"regularized".'
            )
        a, s = box_start(problem, init)
        visits = Visits(key_after(key, init), Present.of(problem.mask, problem.n))
        return State(visits, a, s, problem.objective(a, s), jnp.asarray(False), Counters.zero())

    def step(self, problem: BoxForm, state: "State") -> "State":
        visits, i = state.visits.following(state.counters.steps, self.order)
        a_i, s_i, D_i = (selection.entry(v, i) for v in (state.a, state.s, problem.diagonal))
        rest = selection.entry(problem.q, i) - s_i
        target = jnp.clip(a_i + rest / jnp.maximum(D_i, MEASURED.curvature_floor), 0, selection.entry(problem.upper, i))
        delta = target - a_i
        moves = delta != 0
        return State(
            visits=visits,
            a=state.a.at[i].set(target),
            s=cond(moves, lambda: state.s + delta * problem.column(i), lambda: state.s),
            R=state.R - delta * (rest - D_i * delta / 2),
            indefinite=state.indefinite | is_negative(D_i, problem.diagonal.max()),
            counters=state.counters.stepped(jnp.where(moves, problem.n, 0), moves),
        )

    def refresh(self, problem: BoxForm, state: "State") -> "State":
        a = state.a.astype(problem.dtype)
        s = problem.matvec(a)
        return state._replace(a=a, s=s, R=problem.objective(a, s))


class Visits(NamedTuple):
    """Order in which samples are visited."""

    key: Array  # the random key
    present: Present  # the samples, in the order of this epoch

    def following(self, t: Int[Array, ""], order: str) -> tuple["Visits", Int[Array, ""]]:
        """Return the sample of step t (from 0), "random" or "permuted"."""
        if order == "random":
            key, draw_key = jax.random.split(self.key)
            return self._replace(key=key), self.present.drawn(draw_key, 1)[0]

        def shuffled(visits: Visits) -> Visits:
            key, draw_key = jax.random.split(visits.key)
            return Visits(key, visits.present.shuffled(draw_key))

        place = t % jnp.maximum(self.present.number, 1)
        visits = once(place == 0, shuffled, self)
        return visits, selection.entry(visits.present.order, place)


class State(NamedTuple):
    """State of dual coordinate ascent."""

    visits: Visits  # the order of the samples
    a: Float[Array, " n"]  # dual variables, within the box
    s: Float[Array, " n"]  # `Qa`, updated by each step
    R: Float[Array, ""]  # `-D(a)`, updated by each step
    indefinite: Bool[Array, ""]  # whether a negative curvature occurred
    counters: Counters  # steps (those that moved a variable are `toward`) and kernel evaluations
