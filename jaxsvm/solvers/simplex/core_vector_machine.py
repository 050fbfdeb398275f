"""The Core Vector Machine: solve on a core set exactly, add the sample furthest outside, repeat.

Source: Tsang, Kwok, Cheung 2005 with the outer loop of Badoiu and Clarkson 2003, the baseline of the
Frank-Wolfe paper; the inner solver is the second-order pair selection of LIBCVM. The loop is valid for any kernel,
since the sample to add is chosen by `s = Kt alpha` and not by a distance: it is a fully corrective Frank-Wolfe
method.

Where we depart: inner and outer iterations are the same step. A step moves mass toward the best vertex of the core;
where the core is solved (its own gap is small), the best vertex of all, which thereby joins the core. So nothing
nests, `s` stays exact for all samples, and the driver's stop rules and counters apply. An inner step costs two
columns of n instead of q kernel evaluations: on a stored Gram about what recomputing `s` after each inner solve
costs. The inner tolerance halves where it was too loose to find a new vertex, as in LIBCVM.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxsvm.numerics import selection
from jaxsvm.problems.forms import SimplexForm
from jaxsvm.results.fit import Counters
from jaxsvm.solvers.contract import SIMPLEX, Solver
from jaxsvm.solvers.simplex.frank_wolfe import pair_step, simplex_point
from jaxsvm.solvers.start import start


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CoreVectorMachine(Solver[SimplexForm]):
    """Configuration of the Core Vector Machine.

    Attributes:
        tol: What the stop rule is held against, > 0.
        max_steps: Cap on steps, inner and outer together, >= 0.
        inner_tol: The core counts as solved where its Frank-Wolfe gap is at most `inner_tol (Delta^2 - R)`, > 0; it
            halves on demand (LIBCVM's 1e-3).
        stop: As for `FrankWolfe`; "paper" is the published rule; static.
        start: As for `FrankWolfe`; static.
        draw: Size of the random draw; static.
        check_every: Steps a chunk; static.
        refresh_every: As for `FrankWolfe`; static.
    """

    bit = 1
    solves = SIMPLEX
    has_place = True
    searches_vertices = True

    tol: Any = 1e-4
    max_steps: Any = 1_000_000
    inner_tol: Any = 1e-3
    stop: str = dataclasses.field(default="certified_gap", metadata={"static": True})
    start: str = dataclasses.field(default="random", metadata={"static": True})
    draw: int = dataclasses.field(default=20, metadata={"static": True})
    check_every: int = dataclasses.field(default=250, metadata={"static": True})
    refresh_every: int | None = dataclasses.field(default=None, metadata={"static": True})

    def init(self, problem: SimplexForm, key: Array | None = None, init: Any = None) -> "State":
        """A state whose core is the support of the start point."""
        return self.at(*start(problem, key, self.start, self.draw, init))

    def at(self, alpha: Float[Array, " n"], s: Float[Array, " n"], counters: Counters) -> "State":
        """The state at a given point `alpha` with `s = Kt alpha`."""
        infinite, R = jnp.asarray(jnp.inf, s.dtype), alpha @ s
        inner_tol = jnp.asarray(self.inner_tol, s.dtype)
        return State(
            alpha, s, R, infinite, jnp.asarray(False), counters, 1 / jnp.where(R > 0, R, 1), alpha > 0, inner_tol
        )

    def wants_vertex(self, problem: SimplexForm, state: "State") -> Bool[Array, ""]:
        """Whether the core is solved, so that the next step looks outside it."""
        return state.gap <= state.inner_tol * (problem.diameter_squared - state.R)

    def step(self, problem: SimplexForm, state: "State") -> "State":
        """A pair step inside the core, or toward the vertex that joins it."""
        outside = self.wants_vertex(problem, state)
        everywhere = jnp.ones_like(state.core) if problem.mask is None else problem.mask
        candidates = jnp.where(outside, everywhere, state.core)
        _, i = selection.argmin(jnp.where(candidates, state.s, jnp.inf))
        known = outside & jax.lax.dynamic_slice(state.core, (i,), (1,))[0]

        moved = pair_step(dataclasses.replace(problem, mask=candidates), state, second_order=True)
        return moved._replace(
            core=state.core.at[i].set(True),
            inner_tol=jnp.where(known, state.inner_tol / 2, state.inner_tol),
        )

    def refresh(self, problem: SimplexForm, state: "State") -> "State":
        """Put alpha back on the simplex and recompute `s` and `R`."""
        return state._replace(**simplex_point(problem, state.alpha, state.R))

    def place(self, problem: SimplexForm, state: "State", alpha: Float[Array, " n"], s: Float[Array, " n"]) -> "State":
        """The state moved to another point `alpha` with `s = Kt alpha`."""
        del problem
        return state._replace(alpha=alpha, s=s, R=alpha @ s)

    def dual_point(self, problem: SimplexForm, state: "State") -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """What a caller would get, `alpha` times the scale of the last refresh, and its `s`."""
        del problem
        return state.scale * state.alpha, state.scale * state.s


class State(NamedTuple):
    """Where a Core Vector Machine stands: a Frank-Wolfe state, and the core.

    Attributes:
        alpha: Weights on the simplex, `(n,)`, positive in the core only.
        s: `Kt alpha`, `(n,)`.
        R: `alpha . s`, `()`.
        gap: The Frank-Wolfe gap among the candidates of the last step, `()`.
        indefinite: Whether a negative curvature showed, `()`.
        counters: Steps by kind and kernel evaluations.
        scale: Coefficients over alpha at the last refresh, `()`.
        core: Members of the core set, `(n,)`; it only grows.
        inner_tol: The inner tolerance now, `()`.
    """

    alpha: Float[Array, " n"]
    s: Float[Array, " n"]
    R: Float[Array, ""]
    gap: Float[Array, ""]
    indefinite: Bool[Array, ""]
    counters: Counters
    scale: Float[Array, ""]
    core: Bool[Array, " n"]
    inner_tol: Float[Array, ""]
