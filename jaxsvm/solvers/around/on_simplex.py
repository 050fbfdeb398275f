"""Around solvers on the simplex: a vertex search among random samples, and a polish at every certificate."""

import dataclasses
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxsvm.errors import InputError
from jaxsvm.gram.measured import MEASURED
from jaxsvm.numerics import selection
from jaxsvm.numerics.precision import like, matmul, over_support
from jaxsvm.numerics.sampling import Present
from jaxsvm.problems.contract import Restricted, SimplexForm
from jaxsvm.problems.squared_hinge import SquaredHingeProblem
from jaxsvm.results.fit import Counters
from jaxsvm.runtime.arrays import checked, require_whole
from jaxsvm.runtime.loops import cond, while_loop
from jaxsvm.solvers.around.wrapper import HoldingWrapper, Wrapper, described, require_inner
from jaxsvm.solvers.contract import NEVER, Finisher, HandOver, SimplexSolver, Solver, Traits, simplex_point
from jaxsvm.solvers.simplex.conjugate_gradients import finisher_of
from jaxsvm.solvers.start import StartLike


@checked
def sampled(
    solver: Solver, r: int = 59, tries: int = 7, final_check: str = "full", capacity: int | None = None
) -> "Sampled":
    """Search the next vertex among `r` random samples: the "probabilistic speedup" of Frandi et al.

    A step costs at most `r q + q` kernel evaluations for q active samples, and no work of order n. The search stops
    when `tries` draws in a row have no violator of the stop rule. **That can be far too early** (with 10 % of violators
    left; docs/mathematics.md, Steps on the simplex). So a full check follows by default; with "none" the fit ends, as
    published, with the certificate of its point, and with status CONVERGED only if that certificate confirms it.

    Args:
        solver: A Frank-Wolfe or Core Vector Machine configuration.
        r: Samples of a draw: 59 include one of the best 5 % with probability 0.95, 77 with 0.98, 90 with 0.99.
        tries: Draws in a row without a violator after which the search ends.
        final_check: "full" or "none".
        capacity: Maximum number of active samples, >= 2. None: as many as become active; under tracing, where shapes
            are fixed, 4,096. A fit whose support does not fit ends as FULL.

    Returns:
        The sampled solver, for `jaxsvm.fit` like any other.
    """
    if final_check not in ("full", "none"):
        raise InputError(f'final_check is {final_check!r}: "full" or "none" is needed.')
    require_inner(Sampled, solver)
    if not isinstance(solver, SimplexSolver):
        raise InputError(
            f"solver is {described(solver)}: sampled() goes around a solver that searches vertices, FrankWolfe or "
            "CoreVectorMachine."
        )
    require_whole("r", r, 1)
    require_whole("tries", tries, 1)
    if capacity is not None:
        require_whole("capacity", capacity, 2)
    return Sampled(solver, r, tries, final_check, capacity)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Sampled(HoldingWrapper[SimplexForm]):
    """A solver that searches its next vertex among random samples; made by `sampled`.

    The active samples are stored in a buffer of q places, so that no step does work of order n. On the host a full
    buffer grows. If it cannot (a given `capacity`, or tracing), steps choose among its samples. A full pass that finds
    it full again frees the eighth of its places with the smallest weights; a fit that gains nothing by that ends as
    FULL.

    A full check costs q n kernel evaluations. No rate is known. In the source (Frandi, Nanculef, Gasparo, Lodi,
    Sartori) the buffer has no limit.
    """

    bit = 12
    solver: SimplexSolver
    r: int = dataclasses.field(metadata={"static": True})
    tries: int = dataclasses.field(metadata={"static": True})
    final_check: str = dataclasses.field(metadata={"static": True})
    capacity: int | None = dataclasses.field(metadata={"static": True})
    places: int = dataclasses.field(default=16 * MEASURED.rows_per_wide_tile, metadata={"static": True})

    layer = 1
    made_by = "sampled"
    refresh_every = NEVER  # sampling avoids full products

    @property
    def traits(self) -> Traits:
        """Return the inner solver's, but for padding, since draws depend on n."""
        return dataclasses.replace(super().traits, pads=False)

    def stores(self, problem: SimplexForm) -> bool:
        return False

    def init(self, problem: SimplexForm, key: Array | None = None, init: "StartLike | None" = None) -> "SampledState":
        start_key, run_key = jax.random.split(jax.random.key(0) if key is None else key)
        whole = self.solver.init(problem, start_key, init)
        return self._fill(problem, whole.alpha, whole.s, whole.counters, run_key)

    def step(self, problem: SimplexForm, state: "SampledState") -> "SampledState":
        """Draw samples; if they have a violator, take the solver's step on buffer and draw."""
        size, inner = self._size(problem), state.inner
        key, draw_key = jax.random.split(state.key)
        drawn = state.present.drawn(draw_key, self.r)
        drawn = drawn.at[0].set(jnp.where(state.first >= 0, state.first, drawn[0]))
        indices = jnp.concatenate([state.indices, drawn])
        weights = inner.alpha[:size]

        wanted = self.solver.wants_vertex(problem, inner)
        s_drawn = cond(
            wanted,
            lambda: _drawn_gradient(problem, drawn, state.indices, weights),
            lambda: jnp.full((self.r,), jnp.inf, weights.dtype),
        )
        active, full = weights > 0, self.full(problem, state)
        excess = self._excess(problem, state, drawn, s_drawn)
        failed = wanted & (excess <= state.threshold) & ~full
        failures = jnp.where(failed, state.failures + 1, jnp.where(wanted, 0, state.failures))
        frozen = failed | (state.failures >= self.tries)

        view: Any = Restricted(problem, indices, jnp.append(active & full, jnp.full((self.r,), ~full)))
        before = inner._replace(s=jnp.concatenate([inner.s[:size], s_drawn]))
        stepped, indices = self._settle(self.solver.step(view, before), view, size)
        counters = jax.tree.map(lambda a, b: jnp.where(frozen, a, b), inner.counters, stepped.counters)
        spent = jnp.where(wanted & (state.failures < self.tries), self.r * active.sum(), 0)
        counters = counters._replace(steps=inner.counters.steps + 1).evaluated(spent)
        kept = jax.tree.map(lambda a, b: jnp.where(frozen, a, b), inner, stepped)
        return state._replace(
            inner=kept._replace(counters=counters),
            indices=jnp.where(frozen, state.indices, indices),
            failures=jnp.where(state.failures >= self.tries, state.failures, failures),
            first=jnp.where(wanted, -1, state.first),
            key=key,
        )

    def refresh(self, problem: SimplexForm, state: "SampledState") -> "SampledState":
        """Recompute alpha and `s` of all samples; the best vertex becomes the first of the next draw.

        A buffer that was full at the last refresh and is full again loses its lightest places.
        """
        was_full = self.full(problem, state)
        point = simplex_point(problem, self._spread(problem, state), state.R)
        s = point["s"]
        buffer = self._fill(problem, point["alpha"], s, state.counters, state.key)
        buffer = buffer._replace(inner=buffer.inner._replace(scale=point["scale"]))
        _, best = selection.argmin(s if problem.mask is None else jnp.where(problem.mask, s, jnp.inf))
        inner = buffer.inner._replace(gap=state.inner.gap, indefinite=state.inner.indefinite)
        # The draws caused this refresh: if it ends nothing, demand more of them next time.
        threshold = jnp.where(state.failures >= self.tries, state.threshold / 2, state.threshold)
        return buffer._replace(inner=inner, first=best, threshold=threshold, was_full=was_full)

    def place(self, problem: SimplexForm, state: "SampledState", alpha: Array, s: Array) -> "SampledState":
        """Return the state moved to a point `alpha` with `s = Kt alpha`."""
        buffer = self._fill(problem, alpha, s, state.counters, state.key)
        return buffer._replace(first=state.first, threshold=state.threshold, was_full=state.was_full)

    def dual_point(self, problem: SimplexForm, state: "SampledState") -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        return state.inner.scale * state.alpha, state.inner.scale * state.s

    def running_excess(self, problem: SimplexForm, state: "SampledState") -> Float[Array, ""]:
        """Return 0 once `tries` draws in a row had no violator, or the buffer is full; else infinity."""
        ended = (state.failures >= self.tries) | self.full(problem, state)
        return jnp.where(ended, 0.0, jnp.inf).astype(state.s.dtype)

    def full(self, problem: SimplexForm, state: "SampledState") -> Bool[Array, ""]:
        """Return whether no place of the buffer is free, `()`; never if it has a place for each sample."""
        size = self._size(problem)
        return (state.inner.alpha[:size] > 0).all() if size < problem.n else jnp.asarray(False)

    def hands_over(self, problem: SimplexForm, state: "SampledState", steps: float) -> HandOver | None:
        """Return this solver with a larger buffer if it is full."""
        if self.capacity is not None or not bool(state.was_full):
            return None
        return HandOver(dataclasses.replace(self, places=4 * self.places), draws_anew=True)  # each size is compiled

    def _size(self, problem: SimplexForm) -> int:
        return min(problem.n, self.places if self.capacity is None else self.capacity)

    def _spread(self, problem: SimplexForm, state: "SampledState") -> Float[Array, " n"]:
        """Return the weights of all samples, without the lightest places (an eighth) of a buffer that stays full."""
        size = state.indices.shape[0]
        weights = jnp.maximum(state.inner.alpha[:size], 0)
        _, lightest = lax.top_k(-weights, max(size // 8, 1))
        freed = state.was_full & self.full(problem, state)
        weights = weights.at[lightest].multiply(jnp.where(freed, 0, 1).astype(weights.dtype))
        return jnp.zeros((problem.n,), weights.dtype).at[state.indices].add(weights / weights.sum())

    def _fill(self, problem: SimplexForm, alpha: Array, s: Array, counters: Counters, key: Array) -> "SampledState":
        """Return a state whose buffer has the largest weights of alpha."""
        size = self._size(problem)
        weights, indices = lax.top_k(alpha, size)
        weights = weights / weights.sum()
        held = jnp.zeros_like(alpha).at[indices].set(weights)
        lost = ((alpha > 0) & (held == 0)).any()  # more active samples than places: s must follow
        s = cond(lost, lambda: problem.matvec(held), lambda: s)
        empty = jnp.zeros((self.r,), alpha.dtype)
        inner = self.solver.at(jnp.append(weights, empty), jnp.append(s[indices], empty), counters)
        inner, indices, none = inner._replace(R=held @ s), indices.astype(jnp.int32), jnp.zeros((), jnp.int32)
        first, threshold, was_full = jnp.asarray(-1, jnp.int32), jnp.ones((), alpha.dtype), jnp.asarray(False)
        present = Present.of(problem.mask, problem.n)
        return SampledState(inner, indices, none, first, threshold, key, was_full, held, s, present)

    def _excess(self, problem: SimplexForm, state: "SampledState", drawn: Array, s_drawn: Array) -> Array:
        """Estimate the stop rule's value over its threshold from the drawn samples."""
        inner, indices, R, tol = state.inner, state.indices, state.R, self.solver.tol
        G = 2 * (R - s_drawn.min())
        if self.solver.stop == "paper":
            return G / ((2 * tol + tol**2) * (problem.diameter_squared - R))
        if self.solver.stop == "relative_fw" or not isinstance(problem, SquaredHingeProblem):
            return G / (tol * jnp.abs(R))
        # The certificate's sum, exact on the buffer and estimated by the draw for the inactive rest.
        weights, s = inner.alpha[: indices.shape[0]], inner.s[: indices.shape[0]]
        ridge = (ridges := problem.ridge)[indices]
        u, v = R - s, weights * ridge
        C = jnp.where(ridge > 0, 1 / jnp.where(ridge > 0, ridge, 1), 0)
        on_buffer = jnp.where(weights > 0, C * jnp.where(u + v > 0, u * (u + 2 * v), -v * v), 0).sum()
        active = jnp.any((drawn[:, None] == indices[None, :]) & (weights > 0)[None, :], axis=1)
        ridge = ridges[drawn]
        C = jnp.where((ridge > 0) & ~active, 1 / jnp.where(ridge > 0, ridge, 1), 0)
        outside = jnp.where(jnp.isfinite(s_drawn), C * jnp.maximum(R - s_drawn, 0) ** 2, 0)
        return (on_buffer + state.present.number * outside.mean()) / R / tol

    def _settle(self, inner: Any, view: Restricted, size: int) -> tuple[Any, Int[Array, " q"]]:
        """Move the mass that a step put on a drawn sample into the buffer: to its place, or to a free place."""
        weights, sample = inner.alpha[:size], inner.alpha[size:]
        amount, place = selection.argmax(sample)
        place = place + size
        vertex = view.indices[place]
        _, known = selection.argmax(((view.indices[:size] == vertex) & (weights > 0)).astype(weights.dtype))
        _, free = selection.argmax((weights == 0).astype(weights.dtype))
        is_known = (view.indices[known] == vertex) & (weights[known] > 0)
        target = jnp.where(amount > 0, jnp.where(is_known, known, free), size)  # size: nowhere

        def settle(leaf: Any) -> Any:
            if jnp.shape(leaf) != jnp.shape(inner.alpha):
                return leaf
            moved = leaf.at[jnp.where(amount > 0, target, place)].set(leaf[place])
            return moved.at[size:].set(jnp.zeros((), leaf.dtype))

        settled = jax.tree.map(settle, inner)
        old = jnp.where(is_known, weights[known], 0)
        total = weights.at[target].set(old + amount, mode="drop")
        settled = settled._replace(alpha=settled.alpha.at[:size].set(total))
        return settled, view.indices[:size].at[target].set(vertex, mode="drop")


def _drawn_gradient(
    problem: SimplexForm, drawn: Int[Array, " r"], indices: Int[Array, " q"], weights: Float[Array, " q"]
) -> Float[Array, " r"]:
    """Return `s` of the drawn samples, `Kt[drawn, indices] @ weights`, at the cost of the used places."""
    tile = min(MEASURED.rows_per_wide_tile, weights.shape[0])

    def add(total: Array, index: Array, some: Array) -> Array:
        return total + matmul(problem.block(drawn, indices[index]), some)

    return over_support(weights, tile, add, jnp.zeros(drawn.shape, weights.dtype))


class SampledState(NamedTuple):
    """State of a sampled solver."""

    # the inner solver's state on q places of the buffer and r drawn places; the latter are empty between steps
    inner: Any
    indices: Int[Array, " q"]  # vertex of each place of the buffer; a place of weight 0 is free
    failures: Int[Array, ""]  # draws in a row without a violator
    first: Int[Array, ""]  # vertex that the next draw must include, or -1
    # a draw has no violator if its estimate of the stop rule's excess is at most this: 1, halved after each full check
    # that ended nothing
    threshold: Float[Array, ""]
    key: Array  # the random key
    was_full: Bool[Array, ""]  # whether the buffer was full at the last refresh
    alpha: Float[Array, " n"]  # weights of all samples at the last refresh; no step changes it
    s: Float[Array, " n"]  # `Kt alpha`
    present: Present  # the samples that are drawn

    R = property(lambda self: self.inner.R)
    gap = property(lambda self: self.inner.gap)
    indefinite = property(lambda self: self.inner.indefinite)
    counters = property(lambda self: self.inner.counters)


@checked
def polished(solver: Solver, products: int = 40) -> "Polished":
    """Polish a solver's point at every certificate, by at most 30 steps of Newton, or by conjugate gradients.

    Args:
        solver: Any simplex solver, also a `sampled` one.
        products: Largest number of matrix-vector products of a polish, >= 1; static.

    Returns:
        The polished solver, for `jaxsvm.fit` like any other.

    Raises:
        InputError: On another kind of solver, or products < 1.
    """
    require_inner(Polished, solver)
    if not isinstance(solver, SimplexSolver | Sampled):
        raise InputError(
            f"solver is {described(solver)}: polished() goes around a solver of points on the simplex, such as "
            "FrankWolfe or CoreVectorMachine."
        )
    if products < 1:
        raise InputError(f"products is {products}: at least 1 is needed.")
    return Polished(solver, products)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Polished(Wrapper[SimplexForm]):
    """A solver that is polished at every certificate; made by `polished`. Its state is the inner solver's."""

    bit = 11
    solver: SimplexSolver | Sampled
    products: int = dataclasses.field(metadata={"static": True})

    layer = 2
    made_by = "polished"

    def finisher(self, problem: SimplexForm) -> None:
        """Return None: it comes with every certificate."""

    def hands_over(self, problem: SimplexForm, state: Any, steps: float) -> HandOver | None:
        """Return how the inner solver goes on, but not to a finisher."""
        return super().hands_over(problem, state, 0)

    def refresh(self, problem: SimplexForm, state: Any) -> Any:
        """Recompute the state, and move it to where the finisher ends, if R is lower there."""
        fresh = self.solver.refresh(problem, state)
        point, s = self.solver.dual_point(problem, fresh)
        alpha, s = point / point.sum(), s / point.sum()
        finisher = cast(Finisher, finisher_of(problem, self.products, self.tol, self.stop)).solver
        ended = finisher.refresh(problem, _steps(problem, finisher, finisher.init(problem, None, alpha)))
        end, s_end = finisher.dual_point(problem, ended)
        end, s_end = end / end.sum(), s_end / end.sum()
        lower = end @ s_end < alpha @ s
        moved = self.solver.place(problem, fresh, jnp.where(lower, end, alpha), jnp.where(lower, s_end, s))
        return self.solver.refresh(problem, like(moved, state))


def _steps(problem: SimplexForm, solver: Solver, state: Any) -> Any:
    """Take steps until the gap is small, nothing changes, or the cap is reached."""

    def turn(carry: tuple[Any, Array]) -> tuple[Any, Array]:
        before, excess = carry[0], solver.running_excess(problem, carry[0])
        after = solver.step(problem, before)
        found = solver.running_excess(problem, after)
        goes_on = (found > 1) & ((found != excess) | (after.R != before.R))
        return after, goes_on & (after.counters.steps < solver.max_steps)

    return while_loop(lambda carry: carry[1], turn, (state, jnp.asarray(solver.max_steps) > 0))[0]
