"""Stochastic dual coordinate ascent: exact steps of single dual variables, in random order, all responses carried.

Sources: Hsieh, Chang, Lin, Keerthi, Sundararajan 2008, Algorithm 1 (a permutation an epoch); Shalev-Shwartz, Zhang 2013
(uniform draws; `O~(n + 1 / (lambda eps))` steps to a gap of eps). A step sets

    a_i <- clip(a_i + (q_i - s_i) / Q_ii, 0, U_i),      s <- s + (its change) Q[:, i],

and costs n kernel evaluations where the variable moves, none where it stays at a bound.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxsvm.errors import InputError
from jaxsvm.numerics import selection
from jaxsvm.problems.forms import BoxForm
from jaxsvm.results.fit import Counters
from jaxsvm.runtime.loops import cond
from jaxsvm.runtime.once import once
from jaxsvm.solvers.contract import Solver
from jaxsvm.solvers.start import box_start, key_after

ORDERS = ("random", "permuted")
CURVATURE_FLOOR = 1e-12


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SDCA(Solver[BoxForm]):
    """Configuration of stochastic dual coordinate ascent.

    Attributes:
        order: "permuted" (a fresh permutation an epoch) or "random" (uniform, with replacement); static.
        tol: The relative duality gap that ends it, > 0.
        max_steps: The step cap, >= 0; n steps are an epoch.
        check_every: Steps a chunk, between looks at the running gap; static.
        refresh_every: Steps after which `s` is recomputed at the latest; None: 4,000, or n where that is more. Static.
    """

    bit = 6
    solves = ("box",)

    order: str = dataclasses.field(default="permuted", metadata={"static": True})
    tol: Any = 1e-3
    max_steps: Any = 10_000_000
    check_every: int = dataclasses.field(default=250, metadata={"static": True})
    refresh_every: int | None = dataclasses.field(default=None, metadata={"static": True})

    resumes = True
    knows_origin = True
    patience = 2**30  # chunks differ in what they gain: a gap that rests for a while is no floor

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise InputError(f"order is {self.order!r}: one of {', '.join(ORDERS)} is needed.")

    def stores(self, problem: BoxForm) -> bool:
        """Where there are no features, of which a row is a product."""
        return problem.gram.design is None

    def init(self, problem: BoxForm, key: Array | None = None, init: Any = None) -> "State":
        """The state at a = 0, or at `init`: weights `(n,)`, or weights and margins."""
        if problem.free_bias:
            raise InputError(
                "the problem has a free bias, an equality that single variables cannot keep: use `SMO`, or bias="
                '"regularized".'
            )
        a, s = box_start(problem, init)
        visits = Visits.start(key_after(key, init), problem.n)
        return State(visits, a, s, problem.objective(a, s), jnp.asarray(False), Counters.zero())

    def step(self, problem: BoxForm, state: "State") -> "State":
        """One variable, exactly."""
        visits, i = state.visits.following(state.counters.steps, self.order)
        a_i, s_i, D_i = (selection.entry(v, i) for v in (state.a, state.s, problem.diagonal))
        rest = selection.entry(problem.q, i) - s_i
        target = jnp.clip(a_i + rest / jnp.maximum(D_i, CURVATURE_FLOOR), 0, selection.entry(problem.upper, i))
        delta = target - a_i
        moves = delta != 0
        return State(
            visits=visits,
            a=state.a.at[i].set(target),
            s=cond(moves, lambda: state.s + delta * problem.column(i), lambda: state.s),
            R=state.R - delta * (rest - D_i * delta / 2),
            indefinite=state.indefinite | (-32 * jnp.finfo(D_i.dtype).eps * problem.diagonal.max() > D_i),
            counters=visited(state.counters, moves, problem.n),
        )

    def refresh(self, problem: BoxForm, state: "State") -> "State":
        """Recompute `s` and `R` from scratch."""
        a = state.a.astype(problem.dtype)
        s = problem.matvec(a)
        return state._replace(a=a, s=s, R=problem.objective(a, s))

    def dual_point(self, problem: BoxForm, state: "State") -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """`a` and its `s = Qa`."""
        del problem
        return state.a, state.s


class Visits(NamedTuple):
    """In which order samples are visited.

    Attributes:
        key: The random key.
        permutation: That of this epoch, `(n,)` int32.
    """

    key: Array
    permutation: Int[Array, " n"]

    @staticmethod
    def start(key: Array, n: int) -> "Visits":
        """Before the first step."""
        return Visits(key, jnp.arange(n, dtype=jnp.int32))

    def following(self, t: Int[Array, ""], order: str) -> tuple["Visits", Int[Array, ""]]:
        """The sample of step t (from 0), "random" or "permuted"."""
        n = self.permutation.shape[0]
        if order == "random":
            key, draw_key = jax.random.split(self.key)
            return self._replace(key=key), jax.random.randint(draw_key, (), 0, n, jnp.int32)

        def shuffled(visits: Visits) -> Visits:
            key, draw_key = jax.random.split(visits.key)
            return Visits(key, jax.random.permutation(draw_key, visits.permutation))

        visits = once(t % n == 0, shuffled, self)
        return visits, lax.dynamic_index_in_dim(visits.permutation, t % n, keepdims=False)


class State(NamedTuple):
    """Where dual coordinate ascent stands.

    Attributes:
        visits: The order of the samples.
        a: Dual variables, `(n,)`, within the box.
        s: `Qa`, `(n,)`, carried along.
        R: `-D(a)`, `()`, carried along: what the driver watches.
        indefinite: Whether a negative curvature showed, `()`.
        counters: Steps (those that moved a variable are `toward`) and kernel evaluations.
    """

    visits: Visits
    a: Float[Array, " n"]
    s: Float[Array, " n"]
    R: Float[Array, ""]
    indefinite: Bool[Array, ""]
    counters: Counters


def visited(counters: Counters, moved: Bool[Array, ""], n: int) -> Counters:
    """Counters after a visit: n kernel evaluations where a variable moved, else none."""
    moved_once = moved.astype(jnp.int32)
    counters = counters._replace(steps=counters.steps + 1, toward=counters.toward + moved_once)
    return counters.evaluated(moved_once * n)
