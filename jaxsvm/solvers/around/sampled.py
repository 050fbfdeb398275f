"""The next vertex among random ones: the "probabilistic speedup" of Frandi et al., around any search for vertices.

The active samples live in a buffer of q places, so that no step does work of order n. The paper's has no such limit: on
the host the buffer grows where it is full. Where it cannot (a `capacity` that was named, or tracing, whose shapes are
fixed) steps choose among the samples in it, full passes that find it full again free the lightest eighth of its places,
and a fit that gains nothing more by that ends as FULL.
"""

import dataclasses
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxsvm.errors import InputError
from jaxsvm.numerics import selection
from jaxsvm.numerics.masks import every, some
from jaxsvm.problems.forms import Restricted, SimplexForm
from jaxsvm.problems.squared_hinge import SquaredHingeProblem
from jaxsvm.results.fit import Counters
from jaxsvm.runtime.checks import require_whole
from jaxsvm.runtime.loops import cond, while_loop
from jaxsvm.solvers.around.wrapper import Wrapper, described, require_inner
from jaxsvm.solvers.simplex.frank_wolfe import simplex_point

BUFFER_TILE = 256
"""Places of the buffer that a sample is evaluated against at a time."""
PLACES, GROWTH = 4096, 4
"""Places that a buffer begins with, and the factor by which it grows: each size is compiled anew."""
FREED = 8
"""One place in so many of a full buffer is freed."""


def sampled(
    solver: Any, r: int = 59, tries: int = 7, final_check: str = "full", capacity: int | None = None
) -> "Sampled":
    """Search the next vertex among `r` random ones: the "probabilistic speedup" of Frandi et al.

    A step costs at most `r q + q` kernel evaluations for q active samples, and no work of order n. It stops where
    `tries` samples in a row hold no violator of the stop rule. **That can be far too early** (with 10 % of
    violators left; docs/mathematics.md, Steps on the simplex): hence the full check, which is the default; with "none"
    the fit ends there, as published, with the certificate of the point it returns, and with status CONVERGED only where
    that certificate bears it out.

    Args:
        solver: A Frank-Wolfe or Core Vector Machine configuration.
        r: Size of a sample: 59 finds one of the best 5 % with probability 0.95, 77 with 0.98, 90 with 0.99.
        tries: Samples in a row without a violator before the search gives up.
        final_check: "full" or "none".
        capacity: The most samples that can be active at once, >= 2. None: as many as become active; under tracing,
            where shapes are fixed, 4,096. A fit whose support does not fit ends as FULL.

    Raises:
        InputError: On values out of range.
    """
    if final_check not in ("full", "none"):
        raise InputError(f'final_check is {final_check!r}: "full" or "none" is needed.')
    require_inner(Sampled, solver)
    if not solver.searches_vertices:
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
class Sampled(Wrapper[SimplexForm]):
    """Configuration of the sampled vertex search; build it with `sampled`."""

    bit = 12
    r: int = dataclasses.field(metadata={"static": True})
    tries: int = dataclasses.field(metadata={"static": True})
    final_check: str = dataclasses.field(metadata={"static": True})
    capacity: int | None = dataclasses.field(metadata={"static": True})
    places: int = dataclasses.field(default=PLACES, metadata={"static": True})

    layer = 1
    made_by = "sampled"
    has_place = True
    refresh_every = 2**30  # a full product is what sampling avoids
    pads = False  # draws depend on n

    def state_inside(self, state: "SampledState") -> Any:
        """Return the solver's state on the buffer and the sample."""
        return state.inner

    def with_inside(self, state: "SampledState", inner: Any) -> "SampledState":
        """Return the state with another one on the buffer."""
        return state._replace(inner=inner)

    def polish_interval(self, problem: SimplexForm) -> None:
        """Have no polish: the solver's own would work on the buffer as if it were the problem."""
        del problem

    def init(self, problem: SimplexForm, key: Array | None = None, init: Any = None) -> "SampledState":
        """The solver's start, in a buffer."""
        start_key, run_key = jax.random.split(jax.random.key(0) if key is None else key)
        whole = self.solver.init(problem, start_key, init)
        return self._fill(problem, whole.alpha, whole.s, whole.counters, run_key)

    def step(self, problem: SimplexForm, state: "SampledState") -> "SampledState":
        """Draw a sample; where it holds a violator, let the solver step on buffer and sample."""
        size, inner = self._size(problem), state.inner
        key, draw_key = jax.random.split(state.key)
        drawn = jax.random.randint(draw_key, (self.r,), 0, problem.n, jnp.int32)
        drawn = drawn.at[0].set(jnp.where(state.hint >= 0, state.hint, drawn[0]))
        indices = jnp.concatenate([state.indices, drawn])
        weights = inner.alpha[:size]

        wanted = self.solver.wants_vertex(problem, inner)
        s_drawn = cond(
            wanted,
            lambda: _drawn_gradient(problem, drawn, state.indices, weights),
            lambda: jnp.full((self.r,), jnp.inf, weights.dtype),
        )
        active, full = weights > 0, self.full(problem, state)
        eligible = jnp.ones((self.r,), bool) if problem.mask is None else problem.mask[drawn]
        excess = self._excess(problem, inner, drawn, jnp.where(eligible, s_drawn, jnp.inf), state.indices)
        missed = wanted & (excess <= state.claim) & ~full
        misses = jnp.where(missed, state.misses + 1, jnp.where(wanted, 0, state.misses))
        frozen = missed | (state.misses >= self.tries)

        view = Restricted(problem, indices, jnp.concatenate([active & full, eligible & ~full]))
        before = inner._replace(s=jnp.concatenate([inner.s[:size], s_drawn]))
        after = self._settle(self.solver.step(view, before), view, size)
        stepped, indices = after
        counters = jax.tree.map(lambda a, b: jnp.where(frozen, a, b), inner.counters, stepped.counters)
        spent = jnp.where(wanted & (state.misses < self.tries), self.r * active.sum(), 0)
        counters = counters._replace(steps=inner.counters.steps + 1).evaluated(spent)
        kept = jax.tree.map(lambda a, b: jnp.where(frozen, a, b), inner, stepped)
        return SampledState(
            inner=kept._replace(counters=counters),
            indices=jnp.where(frozen, state.indices, indices),
            misses=jnp.where(state.misses >= self.tries, state.misses, misses),
            hint=jnp.where(wanted, -1, state.hint),
            claim=state.claim,
            key=key,
            crowded=state.crowded,
            alpha=state.alpha,
            s=state.s,
        )

    def refresh(self, problem: SimplexForm, state: "SampledState") -> "SampledState":
        """Take the full pass: alpha and `s` of all samples; its best vertex is the first of the next sample.

        A buffer that was full at the last pass and is full again loses its lightest places.
        """
        crowded = self.full(problem, state)
        point = simplex_point(problem, self._spread(problem, state), state.R)
        s = point["s"]
        buffer = self._fill(problem, point["alpha"], s, state.counters, state.key)
        buffer = buffer._replace(inner=buffer.inner._replace(scale=point["scale"]))
        _, best = selection.argmin(s if problem.mask is None else jnp.where(problem.mask, s, jnp.inf))
        inner = buffer.inner._replace(gap=state.inner.gap, indefinite=state.inner.indefinite)
        # A refresh that the samples asked for and that ends nothing: they must see more next time.
        claim = jnp.where(state.misses >= self.tries, state.claim / 2, state.claim)
        return buffer._replace(inner=inner, hint=best, claim=claim, crowded=crowded)

    def place(self, problem: SimplexForm, state: "SampledState", alpha: Array, s: Array) -> "SampledState":
        """The state moved to another point `alpha` with `s = Kt alpha`."""
        buffer = self._fill(problem, alpha, s, state.counters, state.key)
        return buffer._replace(hint=state.hint, claim=state.claim, crowded=state.crowded)

    def dual_point(self, problem: SimplexForm, state: "SampledState") -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """What a caller would get: `alpha` times the scale of the last refresh, of all samples, and its `s`."""
        del problem
        return state.inner.scale * state.alpha, state.inner.scale * state.s

    def running_excess(self, problem: SimplexForm, state: "SampledState") -> Float[Array, ""]:
        """Return 0 once `tries` samples in a row held no violator, or the buffer is full; else infinity."""
        ended = (state.misses >= self.tries) | self.full(problem, state)
        return jnp.where(ended, 0.0, jnp.inf).astype(state.s.dtype)

    def full(self, problem: SimplexForm, state: "SampledState") -> Bool[Array, ""]:
        """Say whether no place of the buffer is free, `()`; never where it has one for each sample."""
        size = self._size(problem)
        return every(state.inner.alpha[:size] > 0) if size < problem.n else jnp.asarray(False)

    def grown(self, problem: SimplexForm, state: "SampledState") -> "Sampled | None":
        """Return this configuration with a larger buffer where it is full, and the steps that are left; on the host."""
        if self.capacity is not None or not bool(state.crowded):
            return None
        steps = int(self.solver.max_steps) - int(state.counters.steps)
        inner = dataclasses.replace(self.solver, max_steps=max(steps, 0))
        return dataclasses.replace(self, solver=inner, places=GROWTH * self.places)

    def _size(self, problem: SimplexForm) -> int:
        return min(problem.n, self.places if self.capacity is None else self.capacity)

    def _spread(self, problem: SimplexForm, state: "SampledState") -> Float[Array, " n"]:
        """Return the weights of all samples, without the lightest places of a buffer that stays full."""
        size = state.indices.shape[0]
        weights = jnp.maximum(state.inner.alpha[:size], 0)
        _, lightest = lax.top_k(-weights, max(size // FREED, 1))
        freed = state.crowded & self.full(problem, state)
        weights = weights.at[lightest].multiply(jnp.where(freed, 0, 1).astype(weights.dtype))
        return jnp.zeros((problem.n,), weights.dtype).at[state.indices].add(weights / weights.sum())

    def _fill(self, problem: SimplexForm, alpha: Array, s: Array, counters: Counters, key: Array) -> "SampledState":
        """A buffer that holds the largest weights of alpha."""
        size = self._size(problem)
        weights, indices = lax.top_k(alpha, size)
        weights = weights / weights.sum()
        held = jnp.zeros_like(alpha).at[indices].set(weights)
        lost = some((alpha > 0) & (held == 0))  # more active samples than places: s must follow
        s = cond(lost, lambda: problem.matvec(held), lambda: s)
        empty = jnp.zeros((self.r,), alpha.dtype)
        inner = self.solver.at(jnp.append(weights, empty), jnp.append(s[indices], empty), counters)
        return SampledState(
            inner=inner._replace(R=held @ s),
            indices=indices.astype(jnp.int32),
            misses=jnp.zeros((), jnp.int32),
            hint=jnp.asarray(-1, jnp.int32),
            claim=jnp.ones((), alpha.dtype),
            key=key,
            crowded=jnp.asarray(False),
            alpha=held,
            s=s,
        )

    def _excess(
        self,
        problem: SimplexForm,
        inner: Any,
        drawn: Int[Array, " r"],
        s_drawn: Float[Array, " r"],
        indices: Int[Array, " q"],
    ) -> Float[Array, ""]:
        """What the sample says of the stop rule: its value over its threshold."""
        R, tol = inner.R, self.solver.tol
        G = 2 * (R - s_drawn.min())
        if self.solver.stop == "paper":
            return G / ((2 * tol + tol**2) * (problem.diameter_squared - R))
        if self.solver.stop == "relative_fw" or problem.kind == "ball":
            return G / (tol * jnp.abs(R))
        # The certificate's sum, exact on the buffer and estimated by the sample for the inactive rest.
        weights, s = inner.alpha[: indices.shape[0]], inner.s[: indices.shape[0]]
        ridges = cast(SquaredHingeProblem, problem).ridge
        ridge = ridges[indices]
        u, v = R - s, weights * ridge
        C = jnp.where(ridge > 0, 1 / jnp.where(ridge > 0, ridge, 1), 0)
        on_buffer = jnp.where(weights > 0, C * jnp.where(u + v > 0, u * (u + 2 * v), -v * v), 0).sum()
        active = jnp.any((drawn[:, None] == indices[None, :]) & (weights > 0)[None, :], axis=1)
        ridge = ridges[drawn]
        C = jnp.where((ridge > 0) & ~active, 1 / jnp.where(ridge > 0, ridge, 1), 0)
        outside = jnp.where(jnp.isfinite(s_drawn), C * jnp.maximum(R - s_drawn, 0) ** 2, 0)
        return (on_buffer + problem.n * outside.mean()) / R / tol

    def _settle(self, inner: Any, view: Restricted, size: int) -> tuple[Any, Int[Array, " q"]]:
        """Move the mass that a step put on a sampled place into the buffer: to its vertex, or to a free place."""
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
    """`s` of the drawn samples: `Kt[drawn, indices] @ weights`, at the price of the places in use, not of all.

    New vertices take the first free place, so what is in use lies at the front: tiles of it, as many as that needs.
    """
    size = weights.shape[0]
    tile, places = min(BUFFER_TILE, size), jnp.arange(size, dtype=jnp.int32)
    used = jnp.where(weights > 0, places + 1, 0).max()

    def add(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        k, total = carry
        start = jnp.minimum(k * tile, size - tile)  # the last tile overlaps its neighbour, whose part counts once
        fresh = start + jnp.arange(tile, dtype=jnp.int32) >= k * tile
        part = jnp.where(fresh, lax.dynamic_slice(weights, (start,), (tile,)), 0)
        return k + 1, total + problem.block(drawn, lax.dynamic_slice(indices, (start,), (tile,))) @ part

    start = (jnp.zeros((), jnp.int32), jnp.zeros(drawn.shape, weights.dtype))
    return while_loop(lambda carry: carry[0] * tile < used, add, start)[1]


class SampledState(NamedTuple):
    """Where a sampled solver stands.

    Attributes:
        inner: The solver's state on q buffer places and r sample places; the latter are empty between steps.
        indices: Which vertex a buffer place holds, `(q,)`; a place of weight 0 is free.
        misses: Samples in a row without a violator, int32 `()`.
        hint: The vertex that the next sample must hold, or -1, int32 `()`.
        claim: A sample holds no violator where its value of the stop rule over the threshold is at most this, `()`: 1,
            and half as much after each full check that found otherwise.
        key: The random key.
        crowded: Whether the buffer was full when it was last refreshed, `()`.
        alpha: Weights of all samples as of the last refresh, `(n,)`; no step touches it.
        s: Their `Kt alpha`, `(n,)`.
    """

    inner: Any
    indices: Int[Array, " q"]
    misses: Int[Array, ""]
    hint: Int[Array, ""]
    claim: Float[Array, ""]
    key: Array
    crowded: Bool[Array, ""]
    alpha: Float[Array, " n"]
    s: Float[Array, " n"]

    @property
    def R(self) -> Float[Array, ""]:
        """The solver's."""
        return self.inner.R

    @property
    def gap(self) -> Float[Array, ""]:
        """The solver's, as far as its samples saw."""
        return self.inner.gap

    @property
    def indefinite(self) -> Bool[Array, ""]:
        """The solver's."""
        return self.inner.indefinite

    @property
    def counters(self) -> Counters:
        """The solver's."""
        return self.inner.counters
