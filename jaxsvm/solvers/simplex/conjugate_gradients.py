"""Solvers that end fits of ill-conditioned problems, on which pair steps crawl (linear or polynomial kernel, large C).

If a matrix of n x n is affordable, semismooth Newton on the primal is finite, and independent of the condition number.
Else conjugate gradients on the support of the point.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxsvm.numerics.measured import MEASURED as SIZES
from jaxsvm.numerics.precision import in_double, split, whole, widened
from jaxsvm.problems.contract import SimplexForm
from jaxsvm.results.fit import Counters
from jaxsvm.runtime.arrays import Count, Number
from jaxsvm.solvers.contract import NEVER, Finisher, SimplexSolver
from jaxsvm.solvers.measured import MEASURED
from jaxsvm.solvers.simplex.newton import Newton


def finisher_of(problem: SimplexForm, products: int, tol: Number, stop: str) -> Finisher | None:
    """Return the solver that ends a fit on the simplex, and the pair steps that take as long.

    `products` with the kernel matrix are to be spent on conjugate gradients; None for 0 of them.
    """
    if not products:
        return None
    n, most = problem.n, SIZES.largest_direct_system
    if problem.kind == "squared hinge" and n <= most:
        after = max(products * n // 2, n**2 // MEASURED.pairs_per_step_of_a_polish, 1)
        return Finisher(Newton(tol=tol, max_steps=30, stop=stop), after)
    return Finisher(ConjugateGradients(tol, products, stop), max(products * n // 2, 1))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ConjugateGradients(SimplexSolver):
    """Conjugate gradients in `sum p = 0` on the support of the start, where R is a quadratic.

    A step that would make a weight negative ends where the weight is 0, drops it, and restarts the directions.

    Problems: squared hinge, enclosing balls.
    Cost of a step: a product with the kernel matrix.
    Rate: on a fixed support that of conjugate gradients. No sample joins the support.
    Sources: Polyak 1969; Nocedal and Wright, section 16.7.
    """

    bit = 16
    tol: Number = 1e-4  # threshold of the stop rule, > 0
    max_steps: Count = 40  # maximum number of steps, >= 0
    # "certified_gap", "relative_fw" or "paper", see `FrankWolfe`; static
    stop: str = dataclasses.field(default="certified_gap", metadata={"static": True})

    check_every = 1
    refresh_every = NEVER
    unroll = 1

    def at(self, alpha: Float[Array, " n"], s: Float[Array, " n"], counters: Counters) -> "State":
        R, r = alpha @ s, _slope(alpha, s)
        rest = tuple(jnp.zeros_like(part) for part in (alpha, s, r, r))
        return State(alpha, s, r, r, R, jnp.asarray(False), counters, 1 / jnp.where(R > 0, R, 1), rest)

    def step(self, problem: SimplexForm, state: "State") -> "State":
        return _step_in_double(problem, state)

    def refresh(self, problem: SimplexForm, state: "State") -> "State":
        fresh = super().refresh(problem, state)
        return self.at(fresh.alpha, fresh.s, fresh.counters)._replace(indefinite=fresh.indefinite, scale=fresh.scale)


class State(NamedTuple):
    """State of conjugate gradients."""

    alpha: Float[Array, " n"]  # weights on the simplex
    s: Float[Array, " n"]  # `Kt alpha`
    r: Float[Array, " n"]  # residual: the negative gradient on the support, projected on `sum p = 0`
    p: Float[Array, " n"]  # direction
    R: Float[Array, ""]  # `alpha . s`
    indefinite: Bool[Array, ""]  # never set: a direction of negative curvature ends in no step
    counters: Counters  # steps and kernel evaluations
    scale: Float[Array, ""]  # ratio of the coefficients to alpha at the last refresh
    # rounding errors of the four vectors in the data's dtype: together they have twice its precision
    rest: tuple[Array, ...]


@in_double
def _step_in_double(problem: SimplexForm, state: State) -> State:
    wide, carried = widened(problem), state[:4]
    alpha, s, r, p = whole(carried, state.rest, wide.dtype)
    Qp = wide.matvec(p)
    rr, rp, curvature = r @ r, r @ p, p @ Qp
    usable = (curvature > 0) & (rr > 0) & (rp > 0)
    free = jnp.where(usable, rp / jnp.where(usable, curvature, 1), 0)
    reach = jnp.where((p < 0) & (alpha > 0), -alpha / jnp.where(p < 0, p, -1), jnp.inf)
    t = jnp.minimum(free, reach.min())
    alpha = jnp.where((reach <= t) & usable, 0, jnp.maximum(alpha + t * p, 0))
    s = s + t * Qp
    r_next = _slope(alpha, s)
    beta = jnp.where(usable & (t == free), (r_next @ r_next) / jnp.where(rr > 0, rr, 1), 0)
    kept, rest = split((alpha, s, r_next, r_next + beta * p), carried)
    counters = state.counters.stepped(problem.n, times=problem.n)
    return State(*kept, (alpha @ s).astype(state.R.dtype), state.indefinite, counters, state.scale, rest)


def _slope(alpha: Float[Array, " n"], s: Float[Array, " n"]) -> Float[Array, " n"]:
    active = alpha > 0
    mean = jnp.where(active, s, 0).sum() / active.sum()
    return jnp.where(active, mean - s, 0)
