"""Frank-Wolfe and its relatives on the simplex: `min R(alpha) = alpha' Kt alpha`."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxsvm.numerics import precision, selection
from jaxsvm.problems.contract import SimplexForm, SimplexPart
from jaxsvm.results.fit import Counters
from jaxsvm.runtime.arrays import Count, Number, require_one_of
from jaxsvm.solvers.contract import Finisher, SimplexSolver, Traits, is_negative
from jaxsvm.solvers.simplex.conjugate_gradients import finisher_of

VARIANTS = ("classic", "away", "pairwise", "smo")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FrankWolfe(SimplexSolver):
    """Frank-Wolfe and its relatives on the simplex: `min R(alpha) = alpha' Kt alpha`.

    The solver carries `alpha`, `s = Kt alpha`, and `R = alpha . s`.

    Problems: squared hinge without a free bias, and enclosing balls.
    Cost of a step: a column of `Kt` (n kernel evaluations) toward or away from a vertex, two for a pair, and a few
    passes over vectors of length n.
    Rate: O(1/k) for "classic"; linear for the others, since R is strongly convex with modulus 2/C.
    Sources: Frandi, Nanculef, Gasparo, Lodi, Sartori, "Training Support Vector Machines Using Frank-Wolfe Optimization
    Methods" ("classic": FW; "away": MFW); Lacoste-Julien and Jaggi 2015 ("pairwise"); Fan, Chen and Lin 2005 (the
    second-order choice of a pair, "smo"). Departures (docs/mathematics.md, Steps on the simplex): the step formulas
    hold for any kernel; the radius after an away step, printed with a wrong sign, is never formed, since R is carried;
    the driver tests the stop rule (`jaxsvm.loop.driver`) on recomputed values.

    Attributes:
        variant: "smo" (second-order pairs, the default exact solver), "pairwise", "away" (MFW) or "classic" (FW);
            static.
        tol: Threshold of the stop rule, > 0; by default a relative duality gap.
        max_steps: Maximum number of steps, >= 0.
        stop: "certified_gap" (the certified relative gap of the problem), "relative_fw" (`G <= tol R`) or "paper"
            (`G <= (2 tol + tol^2)(Delta^2 - R)`); static.
        start: "random" (the ball of a balanced random draw), "two-point" or "uniform"; static.
        draw: Size of the random draw, >= 2; static.
        check_every: Steps in a chunk, between tests of the running stop rule; static.
        refresh_every: Maximum number of steps between recomputations of `s`; None: 4,000, or n if larger. (In float32
            the running gap of steps that rescale drifts sooner; nothing is decided by it.) Static.
        polish_products: "smo" only: matrix-vector products of a polish (`conjugate_gradients.py`), by which `fit`
            goes on outside `jit` once the pair steps have taken as long. 0: none; static.

    Raises:
        InputError: On an unknown variant or start; when a problem with a free bias is solved.
    """

    bit = 0
    traits = Traits(pads=True, carries_sums=True)

    variant: str = dataclasses.field(default="smo", metadata={"static": True})
    tol: Number = 1e-4
    max_steps: Count = 1_000_000
    stop: str = dataclasses.field(default="certified_gap", metadata={"static": True})
    start: str = dataclasses.field(default="random", metadata={"static": True})
    draw: int = dataclasses.field(default=20, metadata={"static": True})
    check_every: int = dataclasses.field(default=250, metadata={"static": True})
    refresh_every: int | None = dataclasses.field(default=None, metadata={"static": True})
    polish_products: int = dataclasses.field(default=40, metadata={"static": True})

    def __post_init__(self) -> None:
        require_one_of("variant", self.variant, VARIANTS)

    def at(self, alpha: Float[Array, " n"], s: Float[Array, " n"], counters: Counters) -> "State":
        R, infinite = precision.matmul(alpha, s), jnp.asarray(jnp.inf, s.dtype)
        return State(alpha, s, R, infinite, jnp.asarray(False), counters, 1 / jnp.where(R > 0, R, 1))

    def step(self, problem: SimplexPart, state: "State") -> "State":
        if self.variant in ("pairwise", "smo"):
            return pair_step(problem, state, problem.mask, second_order=self.variant == "smo")
        return _vertex_step(problem, state, may_go_away=self.variant == "away")

    def finisher(self, problem: SimplexForm) -> Finisher | None:
        return finisher_of(problem, self.polish_products, self.tol, self.stop) if self.variant == "smo" else None


class State(NamedTuple):
    """State of a Frank-Wolfe solver."""

    alpha: Float[Array, " n"]  # weights on the simplex; exact zeros outside the active set
    s: Float[Array, " n"]  # `Kt alpha`, updated by each step
    R: Float[Array, ""]  # `alpha . s`, updated by each step
    gap: Float[Array, ""]  # `G = 2 (R - min_i s_i)` before the last step; infinite at the start
    indefinite: Bool[Array, ""]  # whether a negative curvature occurred: the kernel is not positive semidefinite
    counters: Counters  # steps by kind and kernel evaluations
    scale: Float[Array, ""]  # ratio of the coefficients to alpha at the last refresh


def _vertex_step(problem: SimplexPart, state: State, may_go_away: bool) -> State:
    """Move toward the best vertex, or (MFW) away from the worst active one if that gap is larger.

    `G_plus = 2 (R - min s)` and `G_minus = 2 (max_active s - R)`: the larger is the largest `|s - R|` among
    samples that lie below R or are active, so a single search gives vertex and direction.
    """
    alpha, s, R = state.alpha, state.s, state.R
    candidates = s < R if problem.mask is None else problem.mask & (s < R)
    if may_go_away:
        candidates = candidates | (alpha > 0)
    distance, p = selection.argmax(jnp.where(candidates, jnp.abs(s - R), -jnp.inf))
    exists = distance >= 0  # without a candidate the index is arbitrary, and the point stays
    s_p, alpha_p = selection.entry(s, p), selection.entry(alpha, p)
    toward = s_p <= R
    sign = jnp.where(toward, 1, -1).astype(s.dtype)

    gap = 2 * sign * (R - s_p)
    D_p = selection.entry(problem.diagonal, p)
    q = D_p - 2 * s_p + R
    bound = jnp.where(toward, 1, alpha_p / jnp.where(alpha_p < 1, 1 - alpha_p, 1))
    usable = exists & (q > 0) & (gap > 0)
    lam = jnp.where(usable, jnp.minimum(gap / jnp.where(usable, 2 * q, 1), bound), 0)
    dropped = ~toward & usable & (lam >= bound)

    scale = 1 - sign * lam
    new_alpha_p = jnp.where(dropped, 0, jnp.maximum(scale * alpha_p + sign * lam, 0))
    return state._replace(
        alpha=(scale * alpha).at[p].set(new_alpha_p),
        s=scale * s + (sign * lam) * problem.column(p),
        R=R - lam * gap + lam**2 * q,
        gap=jnp.where(exists, jnp.where(toward, gap, state.gap), 0),
        indefinite=state.indefinite | exists & is_negative(q, D_p + jnp.abs(R)),
        counters=_count(state.counters, toward, dropped, s.shape[0]),
    )


def pair_step(problem: SimplexPart, state: Any, candidates: Bool[Array, " n"] | None, second_order: bool) -> Any:
    """Move mass from an active vertex j to the best vertex i (docs/mathematics.md, Steps on the simplex).

    The best of `candidates`, `(n,)`; None for all. With `second_order` j is the vertex of the largest decrease, else
    that of the largest s.
    """
    alpha, s, R, D = state.alpha, state.s, state.R, problem.diagonal
    s_i, i = selection.argmin(s if candidates is None else jnp.where(candidates, s, jnp.inf))
    column_i, D_i = problem.column(i), selection.entry(D, i)
    above = s - s_i
    if second_order:
        tiny = jnp.finfo(s.dtype).tiny
        curvature = jnp.maximum(D_i + D - 2 * column_i, tiny)
        score = jnp.where((alpha > 0) & (above > 0), above * above / curvature, -jnp.inf)
    else:
        score = jnp.where(alpha > 0, above, -jnp.inf)
    _, j = selection.argmax(score)
    alpha_j, descent = selection.entry(alpha, j), selection.entry(above, j)

    D_j = selection.entry(D, j)
    q = D_i + D_j - 2 * selection.entry(column_i, j)
    usable = (descent > 0) & (alpha_j > 0) & (i != j)
    lam = jnp.where(usable, jnp.minimum(descent / jnp.maximum(q, jnp.finfo(s.dtype).tiny), alpha_j), 0)
    dropped = usable & (lam >= alpha_j)

    # A single pass over alpha, not two writes: XLA copies a carried vector before each write.
    places = jnp.arange(s.shape[0], dtype=jnp.int32)
    left = jnp.where(dropped, 0, jnp.maximum(alpha_j - lam, 0))
    return state._replace(
        alpha=jnp.where(places == i, alpha + lam, jnp.where(places == j, left, alpha)),
        s=s + lam * (column_i - problem.column(j)),
        R=R - 2 * lam * descent + lam**2 * q,
        gap=2 * (R - s_i),
        indefinite=state.indefinite | usable & is_negative(q, D_i + D_j),
        counters=_count(state.counters, jnp.asarray(True), dropped, 2 * s.shape[0]),
    )


def _count(counters: Counters, toward: Array, dropped: Array, evaluations: int) -> Counters:
    away, drops = counters.away + (~toward).astype(jnp.int32), counters.drops + dropped.astype(jnp.int32)
    return counters.stepped(evaluations, toward)._replace(away=away, drops=drops)
