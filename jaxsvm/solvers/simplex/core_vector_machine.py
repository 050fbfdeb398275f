"""The Core Vector Machine: solve on a core set, add the sample furthest outside, repeat."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxsvm.numerics import selection
from jaxsvm.problems.contract import SimplexForm
from jaxsvm.results.fit import Counters
from jaxsvm.runtime.arrays import Count, Number
from jaxsvm.solvers.contract import SimplexSolver
from jaxsvm.solvers.simplex.frank_wolfe import pair_step


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CoreVectorMachine(SimplexSolver):
    """The Core Vector Machine: solve on a core set, add the sample furthest outside, repeat.

    The loop is valid for any kernel, since the sample to add is chosen by `s = Kt alpha` and not by a distance: it is a
    fully corrective Frank-Wolfe method. Inner and outer iterations are the same step, which moves mass toward the best
    vertex of the core; once the core is solved (its own gap is small), toward the best vertex of all, which thereby
    joins the core. So `s` stays exact for all samples, and the driver's stop rules and counters apply. The inner
    tolerance halves if it was too loose to find a new vertex, as in LIBCVM.

    Problems: squared hinge without a free bias, and enclosing balls.
    Cost of a step: two columns of n kernel evaluations, instead of the q evaluations of a published inner step; on a
    stored Gram about the cost of recomputing `s` after each inner solve.
    Rate: a core set of O(1 / eps) samples suffices (Badoiu and Clarkson).
    Sources: Tsang, Kwok, Cheung 2005, with the outer loop of Badoiu and Clarkson 2003; the pair selection of LIBCVM. It
    is the baseline of the Frank-Wolfe paper.

    Attributes:
        tol: Threshold of the stop rule, > 0.
        max_steps: Maximum number of steps, inner and outer together, >= 0.
        inner_tol: The core is solved once its Frank-Wolfe gap is at most `inner_tol (Delta^2 - R)`, > 0; it is halved
            as needed (1e-3 as in LIBCVM).
        stop: "certified_gap", "relative_fw" or "paper" (the published rule), see `FrankWolfe`; static.
        start: "random", "two-point" or "uniform", see `FrankWolfe`; static.
        draw: Size of the random draw, >= 2; static.
        check_every: Steps in a chunk; static.
        refresh_every: Maximum number of steps between recomputations of `s`; None: 4,000, or n if larger. Static.

    Raises:
        InputError: When a problem with a free bias is solved, or on an unknown `start`.
    """

    bit = 1

    tol: Number = 1e-4
    max_steps: Count = 1_000_000
    inner_tol: Number = 1e-3
    stop: str = dataclasses.field(default="certified_gap", metadata={"static": True})
    start: str = dataclasses.field(default="random", metadata={"static": True})
    draw: int = dataclasses.field(default=20, metadata={"static": True})
    check_every: int = dataclasses.field(default=250, metadata={"static": True})
    refresh_every: int | None = dataclasses.field(default=None, metadata={"static": True})

    def at(self, alpha: Float[Array, " n"], s: Float[Array, " n"], counters: Counters) -> "State":
        infinite, R = jnp.asarray(jnp.inf, s.dtype), alpha @ s
        inner_tol = jnp.asarray(self.inner_tol, s.dtype)
        return State(
            alpha, s, R, infinite, jnp.asarray(False), counters, 1 / jnp.where(R > 0, R, 1), alpha > 0, inner_tol
        )

    def wants_vertex(self, problem: SimplexForm, state: "State") -> Bool[Array, ""]:
        return state.gap <= state.inner_tol * (problem.diameter_squared - state.R)

    def step(self, problem: SimplexForm, state: "State") -> "State":
        """Take a pair step inside the core, or toward the vertex that joins it."""
        outside = self.wants_vertex(problem, state)
        everywhere = jnp.ones_like(state.core) if problem.mask is None else problem.mask
        candidates = jnp.where(outside, everywhere, state.core)
        _, i = selection.argmin(jnp.where(candidates, state.s, jnp.inf))
        known = outside & selection.entry(state.core, i)

        moved = pair_step(problem, state, candidates, second_order=True)
        return moved._replace(
            core=state.core.at[i].set(True), inner_tol=jnp.where(known, state.inner_tol / 2, state.inner_tol)
        )


class State(NamedTuple):
    """State of a Core Vector Machine: that of Frank-Wolfe, and the core."""

    alpha: Float[Array, " n"]  # weights on the simplex, positive in the core only
    s: Float[Array, " n"]  # `Kt alpha`
    R: Float[Array, ""]  # `alpha . s`
    gap: Float[Array, ""]  # Frank-Wolfe gap among the candidates of the last step
    indefinite: Bool[Array, ""]  # whether a negative curvature occurred
    counters: Counters  # steps by kind and kernel evaluations
    scale: Float[Array, ""]  # ratio of the coefficients to alpha at the last refresh
    core: Bool[Array, " n"]  # members of the core set; it only grows
    inner_tol: Float[Array, ""]  # current inner tolerance
