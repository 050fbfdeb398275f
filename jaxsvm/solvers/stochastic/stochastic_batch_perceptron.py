"""The Stochastic Batch Perceptron: supergradient ascent on the water level of a unit vector's responses."""

import dataclasses
import math
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import ArrayLike

from jaxsvm.errors import require
from jaxsvm.numerics.precision import rounded
from jaxsvm.numerics.sampling import systematic_draw
from jaxsvm.problems.slack import SlackProblem
from jaxsvm.results.fit import Counters, Fit
from jaxsvm.runtime.arrays import Count, Number, require_one_of, require_whole
from jaxsvm.solvers.contract import NEVER, STEPS, Solver, Traits
from jaxsvm.solvers.start import Resumed, StartLike, key_after, resumed, steps_of


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StochasticBatchPerceptron(Solver[SlackProblem]):
    """The Stochastic Batch Perceptron: stochastic supergradient ascent on the water level of a unit vector's responses.

    All responses are carried, so a step knows the worst margins exactly and learns from one of them, drawn from the
    minimax distribution p.

    Problems: slack problems, with any bias.
    Cost of a step: n kernel evaluations for each drawn row.
    Rate: the mean of the iterates is within `3 r / sqrt(steps)` of the optimum in expectation; `within` has the other.
    Source: Cotter, Shalev-Shwartz, Srebro, "The Kernelized Stochastic Batch Perceptron" (ICML 2012), Algorithm 1, with
    the errata of docs/papers/stochastic_batch_perceptron.md. Departures: samples are drawn from the rank set, never
    empty; mini-batches (a block of rows) and exact supergradients (all rows of p: one product of a stored matrix) as
    well as single draws; the mean of the p of all steps bounds the optimum from above, which gives a gap and a stopping
    rule that the paper lacks.

    Attributes:
        steps: Maximum number of steps, >= 0: the paper's T.
        batch: Rows of a step, >= 1 (even if the bias is free: half of each class); None: the exact, deterministic
            supergradient. Static.
        tol: Relative gap at which to stop earlier, > 0.
        average: The returned w: "uniform" (mean of the iterates, the paper's), "linear" (later iterates have larger
            weights) or "last"; static.
        burn_in: Steps to leave out of the mean: the paper's `T_0`, >= 0.
        check_every: Steps in a chunk, between tests of the running gap; static.
    """

    bit = 10
    solves = ("slack",)
    traits = Traits(carries_sums=True, long_steps=False, finds_both=True, resumes=True)  # the sums are those of w
    rows = 2

    steps: Count = 10_000
    batch: int | None = dataclasses.field(default=1, metadata={"static": True})
    tol: Number = 1e-3
    average: str = dataclasses.field(default="uniform", metadata={"static": True})
    burn_in: Count = 0
    check_every: int = dataclasses.field(default=100, metadata={"static": True})

    max_steps = STEPS
    refresh_every = NEVER  # a product costs as much as the whole run: only certificates compute it
    patience = NEVER  # a noisy gap may rest for a while and shrink again
    unroll = 1  # the rows of a step outweigh a turn, and each copy of the step takes 0.3 s to compile

    def __post_init__(self) -> None:
        if self.batch is not None:
            require_whole("batch", self.batch, 1)
        require_one_of("average", self.average, ("uniform", "linear", "last"))

    def within(self, problem: SlackProblem, gap: float, delta: float = 0.05) -> Self:
        """Return the solver whose mean ends within `gap` of the optimum with probability `1 - delta`, by its steps.

        The mean of T steps is within `r (3 + sqrt(8 log(1 / delta))) / sqrt(T)` (Lemma 3.2, docs/mathematics.md).
        """
        of_all = self.average == "uniform" and int(self.burn_in) == 0
        require(of_all, f'average is {self.average!r}, burn_in {self.burn_in}: the bound needs "uniform" and 0.')
        usable = 0 < gap < np.inf and 0 < delta < 1
        require(usable, f"gap is {gap}, delta {delta}: a number > 0 and one between 0 and 1 are needed.")
        root = float(problem.radius) * (3 + math.sqrt(8 * math.log(1 / delta))) / gap
        return dataclasses.replace(self, steps=math.ceil(root**2))

    def init(self, problem: SlackProblem, key: Array | None = None, init: "StartLike | None" = None) -> "State":
        """Return a state at w = 0, at w and p of a fit, or at a p, `(n,)`, and the unit vector along `Qp`.

        From a fit or a p, continue with the steps after those that led to it, at most as many as reach the start's gap
        by the bound of the rate, `r^2 / gap^2`.
        """
        zeros, unit = jnp.zeros((problem.n,), problem.dtype), jnp.ones((), problem.dtype)
        p, a, c, r2 = problem.feasible_point(zeros), zeros, zeros, 0 * unit
        row = jnp.full_like(c, problem.radius**2)  # a bound of p'Qp, until it is computed
        before = jnp.zeros((), jnp.int32)
        if init is not None:
            given = resumed(problem, init)
            p = problem.feasible_point(given.point)
            a = jnp.where(problem.present, jnp.maximum(given.w, 0), 0) if isinstance(init, Resumed) else p
            c, row = problem.matvec(jnp.stack([a, p]))
            length = jnp.sqrt(jnp.maximum(a @ c, jnp.finfo(row.dtype).tiny))
            a, c, r2 = a / length, c / length, a @ (c / length) / length
            bounds = problem.certificate(jnp.stack([a, p]), jnp.stack([c, row]))
            gap = jnp.maximum(bounds.primal - bounds.dual, jnp.finfo(row.dtype).tiny ** 0.5 * problem.radius)
            before = steps_of(given, (problem.radius / gap) ** 2)
        key, mean, no = key_after(key, init), Mean(a, c, p, row), jnp.asarray(False)
        return State(key, a, c, r2, mean, -problem.nu, unit, before, no, Counters.zero())

    def step(self, problem: SlackProblem, state: "State") -> "State":
        """Compute the water level, draw rows, move along them, project onto the unit ball, average."""
        t = state.before + state.counters.steps + 1
        eta = 1 / (problem.radius * jnp.sqrt(t.astype(problem.dtype)))
        water = problem.level(state.c)
        key, draw_key = jax.random.split(state.key)
        if self.batch is None:
            g, row, rows = water.p, problem.matvec(water.p[None])[0], (water.p > 0).sum(dtype=jnp.int32)
        else:
            index = systematic_draw(draw_key, water.p, self.batch, problem.y if problem.free_bias else None)
            g = jnp.zeros_like(state.a).at[index].add(1 / self.batch)
            row = problem.combination(index, jnp.full((self.batch,), 1 / self.batch, problem.dtype))
            rows = 1 + (jnp.diff(jnp.sort(index)) != 0).sum(dtype=jnp.int32)
        r2 = state.r2 + 2 * eta * (g @ state.c) + eta**2 * (g @ row)
        scale = jnp.where(r2 > 1, lax.rsqrt(jnp.where(r2 > 1, r2, 1)), 1)
        a, c = scale * (state.a + eta * g), scale * (state.c + eta * row)
        mean = self._averaged(state.mean, t, Mean(a, c, water.p, row))
        indefinite = state.indefinite | (r2 < -64 * jnp.finfo(r2.dtype).eps)
        counters = state.counters.stepped(rows, times=problem.n)
        r2 = jnp.minimum(r2, 1)
        return State(key, a, c, r2, mean, -water.level, state.strictness, state.before, indefinite, counters)

    def refresh(self, problem: SlackProblem, state: "State") -> "State":
        """Recompute responses of iterate, mean and p; after a certificate that ended nothing, demand a smaller gap."""
        a, p = jnp.maximum(state.mean.a, 0), problem.feasible_point(state.mean.p.astype(problem.dtype))
        a, p = a.astype(problem.dtype), rounded(p, state.mean.p.dtype)
        c, mean_c, row = problem.matvec(jnp.stack([state.a, a, p]))
        strictness = jnp.where(state.counters.steps > 0, 2 * state.strictness, state.strictness)
        return state._replace(c=c, r2=jnp.maximum(state.a @ c, 0), mean=Mean(a, mean_c, p, row), strictness=strictness)

    def dual_point(self, problem: SlackProblem, state: "State") -> tuple[Float[Array, "two n"], Float[Array, "two n"]]:
        a, c, p, row = state.mean
        return jnp.stack([a, p]), jnp.stack([c, row])

    def running_excess(self, problem: SlackProblem, state: "State") -> Float[Array, ""]:
        """Return the relative gap over `tol`, with `p'Qp` estimated from the drawn rows."""
        return problem.certificate(*self.dual_point(problem, state)).relative_gap / self.tol * state.strictness

    def _averaged(self, mean: "Mean", t: Array, new: "Mean") -> "Mean":
        """Update running means (long sums would lose digits in float32); up to `burn_in` keep the newest point."""
        since = jnp.maximum(t - self.burn_in, 1).astype(new.c.dtype)
        rho = 2 / (since + 1) if self.average == "linear" else 1 / since
        of_w = jnp.ones_like(rho) if self.average == "last" else rho
        share = Mean(of_w, of_w, rho, rho)
        return Mean(*(old + part * (fresh - old) for old, fresh, part in zip(mean, new, share, strict=True)))


class Mean(NamedTuple):
    """Running means over the steps."""

    a: Float[Array, " n"]  # mean of the coefficients
    c: Float[Array, " n"]  # mean of the responses, `Qa`
    p: Float[Array, " n"]  # mean of the minimax distributions
    # mean of the drawn rows: `Qp` up to the noise of the draws; exact after a refresh, and with exact supergradients
    row: Float[Array, " n"]


class State(NamedTuple):
    """State of the Stochastic Batch Perceptron."""

    key: Array  # the random key
    a: Float[Array, " n"]  # coefficients of the iterate, not negative: `w = sum_i a_i y_i phi_i`
    c: Float[Array, " n"]  # responses `Qa`, updated by each step
    r2: Float[Array, ""]  # `|w|^2 <= 1`, updated by each step
    mean: Mean  # running means
    R: Float[Array, ""]  # minus the water level before the last step
    strictness: Float[Array, ""]  # factor by which a running gap must be below `tol` to cause a certificate
    before: Int[Array, ""]  # steps that led to the start
    indefinite: Bool[Array, ""]  # whether a computed `|w|^2` was negative
    counters: Counters  # steps and kernel evaluations (of distinct rows within a batch)


class HeldOut:
    """A callback that ends a fit once the error of held-out samples has rested: the stop rule of the paper.

        problem = jaxsvm.slack_problem(gram, y, nu, sample_weight=~mask)
        fit = jaxsvm.fit(problem, jaxsvm.StochasticBatchPerceptron(), callback=jaxsvm.HeldOut(mask))

    Steps carry the margins of absent samples along: the error costs no kernel value. A fit that it ends is INTERRUPTED.

    Args:
        mask: The samples held out, `(n,)`, bool; those of weight 0 in the problem.
        patience: It ends a fit after so many times the steps at which the error was lowest, > 1.
        least: Steps that a fit may take in any case, >= 0.

    Attributes:
        errors: At each number of steps the share of held-out samples without a positive margin, a dictionary.
        best: The fit of the lowest error, the first of equals, certified if it was; None before a call.
        ended: Whether it has ended a fit.
    """

    def __init__(self, mask: ArrayLike, patience: float = 2.0, least: int = 1000) -> None:
        self.mask, self.patience, self.least, self.ended = np.asarray(mask), patience, least, False
        usable = self.mask.dtype == bool and bool(self.mask.any()) and patience > 1
        require(usable, f"mask is {self.mask}, patience {patience}: booleans, one True, and a number > 1 are needed.")
        self.errors: dict[int, float] = {}
        self.best: Fit | None = None

    def __call__(self, fit: Fit) -> bool:
        """Note the error; return whether to stop. `fit` calls this."""
        held = len(self.mask) == len(margins := np.asarray(fit.margins))
        require(held, f"mask has {len(self.mask)} entries: one a sample of the problem is needed, {len(margins)}.")
        self.errors[int(fit.steps)] = float((margins[self.mask] <= 0).mean())
        best = min(self.errors, key=self.errors.__getitem__)
        self.best = fit if best == int(fit.steps) else self.best
        self.ended = max(self.errors) >= max(self.least, self.patience * best)
        return self.ended
