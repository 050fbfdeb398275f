"""The common part of Pegasos and ball-SGD: stochastic subgradient steps on the hinge, and their certificates.

    w <- (1 - eta_t lam) w + eta_t sum_{j in batch, y_j <w, phi_j> < q_j} g_j y_j phi_j,     w <- w min(1, B / |w|)

where the batch's `sum_j g_j ...` is minus a subgradient of `Lhat(w) = sum_i U_i max(0, q_i - y_i <w, phi_i>) / sum U`,
in expectation. `iterates.py` has the iterate; `running_sums.py` the contribution of each sample, from which come the
coefficients of w and a dual point that certifies it.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxsvm.errors import InputError
from jaxsvm.numerics.masks import some
from jaxsvm.numerics.precision import rounded
from jaxsvm.problems.forms import BoxForm
from jaxsvm.results.fit import Counters
from jaxsvm.runtime.arrays import Count, Number
from jaxsvm.runtime.checks import require_one_of, require_whole
from jaxsvm.solvers.contract import NEVER, Solver
from jaxsvm.solvers.measured import MEASURED
from jaxsvm.solvers.start import StartLike, key_after, resumed, steps_of
from jaxsvm.solvers.stochastic import iterates
from jaxsvm.solvers.stochastic.batches import Draws, next_batch
from jaxsvm.solvers.stochastic.iterates import Rule
from jaxsvm.solvers.stochastic.running_sums import RunningSums
from jaxsvm.solvers.stochastic.stochastic_batch_perceptron import rows_computed

ORDERS = ("permuted", "random")
AVERAGES = ("linear", "uniform", "suffix", "last")


class State(NamedTuple):
    """State of the recursion.

    Attributes:
        draws: The order of the samples.
        at: The iterate.
        sums: Coefficients of iterate and average, violated visits.
        point: Coefficients of w, and a feasible dual point, at the last certificate, `(2, n)`.
        products: `Q` times both, `(2, n)`.
        certified: Steps at the last certificate, int32 `()`.
        before: Steps that led to the start, int32 `()`.
        R: Mean of the batches' losses, each before its step, `()`.
        indefinite: Never known.
        counters: Steps (those on a violated sample are `toward`) and kernel evaluations: n for each violated sample;
            with features inner products, one for each draw.
    """

    draws: Draws
    at: Any
    sums: RunningSums
    point: Float[Array, "two n"]
    products: Float[Array, "two n"]
    certified: Int[Array, ""]
    before: Int[Array, ""]
    R: Float[Array, ""]
    indefinite: Bool[Array, ""]
    counters: Counters


class Stochastic(Solver[BoxForm]):
    """A solver by stochastic subgradients. A subclass has the fields, `rule` and `worth`."""

    solves = ("box",)
    long_steps = False
    rows = 2
    finds_both = True
    resumes = True
    patience = NEVER  # a noisy gap may rest for a while and shrink again

    steps: Count
    batch: int
    average: str
    order: str
    schedule: Any

    def rule(self, problem: BoxForm) -> Rule:
        """Return the step sizes."""
        raise NotImplementedError

    def worth(self, problem: BoxForm, gap: Number) -> Float[Array, ""]:
        """Return the steps after which the bound of the rate is a gap of the mean loss, `()`."""
        raise NotImplementedError

    @property
    def max_steps(self) -> Any:
        """Return the largest number of steps."""
        return self.steps

    @property
    def steps_before_average(self) -> Any:
        """Return the number of steps before the average begins."""
        return self.steps // 2 if self.average == "suffix" else 0

    def stores(self, problem: BoxForm) -> bool:
        """Return whether the Gram has no features to step in."""
        return iterates.features_of(problem) is None

    def init(self, problem: BoxForm, key: Array | None = None, init: "StartLike | None" = None) -> State:
        """Return a state at w = 0, at the coefficients `init`, or at w and dual point of a fit.

        From a fit, continue with the steps after those that led to it, at most as many as reach the start's gap by the
        bound of the rate.
        """
        if problem.free_bias:
            raise InputError(
                f"the problem has a free bias, which {type(self).__name__} does not learn: take bias="
                '"regularized" (a constant feature), or the solver SMO.'
            )
        if self.batch > problem.n:
            raise InputError(f"batch is {self.batch}: at most the {problem.n} samples can be in one.")
        h, rule, before = jnp.zeros((problem.n,), problem.dtype), self.rule(problem), jnp.zeros((), jnp.int32)
        sums = RunningSums.begin(h)
        if init is not None:
            given = resumed(problem, init)
            h, point = given.w, jnp.stack([given.w, problem.feasible_point(given.point)])
            bounds = problem.certificate(point, iterates.products(problem, point))
            gap = (bounds.primal - bounds.dual) / problem.upper.sum()
            before = steps_of(given, self.worth(problem, jnp.maximum(gap, jnp.finfo(h.dtype).tiny ** 0.5)))
            sums = RunningSums.begin(h).seeded(point[1], problem.upper, before, self.batch)
        zeros, zero = jnp.zeros((2, problem.n), problem.dtype), jnp.zeros((), problem.dtype)
        draws, at = Draws.begin(key_after(key, init)), iterates.place(problem, rule, h, before)
        none = jnp.zeros((), jnp.int32)
        return State(draws, at, sums, zeros, zeros, none, before, zero, jnp.asarray(False), Counters.zero())

    def step(self, problem: BoxForm, state: State) -> State:
        """Draw a batch, average, shrink, move along its violated samples, project."""
        rule, count = self.rule(problem), state.before + state.counters.steps
        at, sums = iterates.in_range(state.at, state.sums)
        draws, index, share = next_batch(problem, state.draws, self.batch, self.order)
        inner, rows = iterates.margins_of(problem, at, index)
        margins = inner if isinstance(at, iterates.Dense) else sums.s * inner
        slack = problem.q[index] - margins
        violated = slack > 0
        move = iterates.Move(index, violated, jnp.where(violated, share, 0), count)
        sums = sums.averaged(self._averaged_steps(state) + 1, self.average)
        if isinstance(at, iterates.Dense):
            at, s, gain = iterates.move_dense(problem, rule, at, sums, move, rows)
        else:
            at, s, gain = iterates.move_scaled(problem, rule, at, sums, move, inner)
        loss = share @ jnp.maximum(slack, 0)
        with_features = iterates.features_of(problem) is not None
        rows_taken = jnp.asarray(self.batch, jnp.int32) if with_features else violated.sum(dtype=jnp.int32)
        counters = rows_computed(state.counters, rows_taken, 1 if with_features else problem.n)
        return state._replace(
            draws=draws,
            at=at,
            sums=sums.moved(index, move.g, gain, violated, count + 1)._replace(s=s),
            R=state.R + (loss - state.R) / (state.counters.steps + 1).astype(loss.dtype),
            counters=counters._replace(toward=state.counters.toward + some(violated).astype(jnp.int32)),
        )

    def refresh(self, problem: BoxForm, state: State) -> State:
        """Compute the point of a certificate; multiply scales out, recompute responses and `|v|^2`."""
        dtype = state.sums.columns.dtype
        sums = state.sums.multiplied_out()
        h, mean, violated, visits = sums.columns.T
        since = self._averaged_steps(state)
        w = h if self.average == "last" else jnp.where(since < 1, h, mean)
        # Samples that were never visited count as violated if they are so at w.
        if iterates.features_of(problem) is None:
            s, responses = iterates.products(problem, jnp.stack([w, h]))
            at = iterates.Scaled(responses, jnp.maximum(h @ responses, 0))
        else:
            (s,), at = iterates.products(problem, w[None]), state.at
            if isinstance(at, iterates.Scaled):
                v = state.sums.s * at.v
                at = iterates.Scaled(v, v @ v)
        share = jnp.where(visits > 0, violated / jnp.where(visits > 0, visits, 1), (s < problem.q).astype(visits.dtype))
        a = jnp.clip(share, 0, 1) * problem.upper
        (a_s,) = iterates.products(problem, a[None])
        curvature = a @ a_s
        times = jnp.clip(problem.q @ a / jnp.where(curvature > 0, curvature, 1), 0, 1)
        a = rounded(times * a, dtype)  # within the box, whose bounds are numbers of that dtype
        return state._replace(
            at=at,
            sums=sums,
            point=jnp.stack([w, a]),
            products=jnp.stack([s, iterates.products(problem, a[None])[0]]),
            certified=state.counters.steps,
        )

    def running_excess(self, problem: BoxForm, state: State) -> Float[Array, ""]:
        """Return 0 if a certificate is due, else infinity: margins of all samples are not known.

        With `refresh_every` None it is due after five passes, later after a fifth of the steps.
        """
        taken, infinite = state.counters.steps, jnp.asarray(jnp.inf, problem.dtype)
        if self.refresh_every is not None:
            return infinite
        interval = jnp.maximum(-(-MEASURED.passes_per_certificate * problem.n // self.batch), taken // 5)
        return jnp.where(taken - state.certified >= interval, 0, infinite)

    def dual_point(self, problem: BoxForm, state: State) -> tuple[Float[Array, "two n"], Float[Array, "two n"]]:
        """Return the last certified point, coefficients of w and a feasible dual point, and `Q` times both."""
        return state.point, state.products

    def _averaged_steps(self, state: State) -> Int[Array, ""]:
        """Return the number of steps in the average: for "suffix" those of the second half of this run."""
        suffix = self.average == "suffix"
        return state.counters.steps - self.steps_before_average if suffix else state.before + state.counters.steps


def require_options(solver: Stochastic) -> None:
    """Refuse options that cannot be used.

    Raises:
        InputError: The message names the option, its value and what is needed.
    """
    require_whole("batch", solver.batch, 1)
    require_one_of("average", solver.average, AVERAGES)
    require_one_of("order", solver.order, ORDERS)
    if solver.schedule is not None and not callable(solver.schedule):
        raise InputError(
            f"schedule is {solver.schedule!r}: a function of the step is needed, such as optax.constant_schedule(0.1)."
        )
