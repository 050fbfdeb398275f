"""Stochastic subgradients of the hinge: Pegasos, step `1 / (lam t)`, and SGD in a ball; linear, sparse, kernel."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import ArrayLike, DTypeLike

from jaxsvm.errors import InputError, is_concrete
from jaxsvm.numerics.precision import matmul, rounded
from jaxsvm.points.rows import CSR
from jaxsvm.problems.contract import BoxForm
from jaxsvm.results.fit import Counters
from jaxsvm.runtime.arrays import Count, Number, in_a_line, require_one_of, require_positive, require_whole, transfers
from jaxsvm.solvers.contract import NEVER, STEPS, Solver, Traits, require_usable
from jaxsvm.solvers.features import Primal
from jaxsvm.solvers.measured import MEASURED
from jaxsvm.solvers.start import StartLike, key_after, resumed, steps_of
from jaxsvm.solvers.stochastic import iterates
from jaxsvm.solvers.stochastic.iterates import (
    Draws,
    Iterate,
    Rule,
    RunningSums,
    average_iterates,
    average_of,
    first_step,
    gentle,
    inverse_time,
    next_batch,
    pegasos_transform,
    project_onto_ball,
)

ORDERS = ("permuted", "random")


class State(NamedTuple):
    """State of the recursion."""

    draws: Draws  # the order of the samples
    at: Iterate  # the iterate
    sums: RunningSums  # coefficients of iterate and average, violated visits
    point: Float[Array, "two n"]  # coefficients of w, and a feasible dual point, at the last certificate
    products: Float[Array, "two n"]  # `Q` times both
    certified: Int[Array, ""]  # steps at the last certificate
    before: Int[Array, ""]  # steps that led to the start
    R: Float[Array, ""]  # mean of the batches' losses, each before its step
    indefinite: Bool[Array, ""]  # never known
    # steps (those on a violated sample are `toward`) and kernel evaluations: n for each violated sample; with features
    # inner products, one for each draw
    counters: Counters


class Stochastic(Solver[BoxForm]):
    """A solver by stochastic subgradients of the hinge. A subclass has the fields, `rule` and `worth`.

        w <- (1 - eta_t lam) w + eta_t sum_{j in batch, y_j <w, phi_j> < q_j} g_j y_j phi_j,     w <- w min(1, B / |w|)

    where the batch's `sum_j g_j ...` is minus a subgradient of `Lhat(w) = sum_i U_i max(0, q_i - y_i <w, phi_i>) / sum
    U`, in expectation. `iterates.py` has the iterate, and the contribution of each sample, from which come the
    coefficients of w and a dual point that certifies it.
    """

    solves = ("box",)
    traits = Traits(long_steps=False, finds_both=True, resumes=True)
    rows = 2
    max_steps = STEPS
    patience = NEVER  # a noisy gap may rest for a while and shrink again

    steps: Count
    batch: int
    average: str
    order: str
    schedule: Any

    def __post_init__(self) -> None:
        require_whole("batch", self.batch, 1)
        require_one_of("average", self.average, ("linear", "uniform", "suffix", "last"))
        require_one_of("order", self.order, ORDERS)
        if self.schedule is not None and not callable(self.schedule):
            raise InputError(
                f"schedule is {self.schedule!r}: a function of the step is needed, such as optax.constant_schedule(.1)."
            )

    def rule(self, problem: BoxForm) -> Rule:
        """Return the step sizes."""
        raise NotImplementedError

    def worth(self, problem: BoxForm, gap: Number) -> Float[Array, ""]:
        """Return the steps after which the bound of the rate is a gap of the mean loss, `()`."""
        raise NotImplementedError

    @property
    def steps_before_average(self) -> Any:
        """Return the number of steps before the average begins."""
        return self.steps // 2 if self.average == "suffix" else 0

    def stores(self, problem: BoxForm) -> bool:
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
        h, before = jnp.zeros((problem.n,), problem.dtype), jnp.zeros((), jnp.int32)
        sums = RunningSums.begin(h)
        if init is not None:
            given = resumed(problem, init)
            h, point = given.w, jnp.stack([given.w, problem.feasible_point(given.point)])
            bounds = problem.certificate(point, iterates.products(problem, point))
            gap = (bounds.primal - bounds.dual) / problem.upper.sum()
            before = steps_of(given, self.worth(problem, jnp.maximum(gap, jnp.finfo(h.dtype).tiny ** 0.5)))
            sums = RunningSums.begin(h).seeded(point[1], problem.upper, before, self.batch)
        zeros, zero = jnp.zeros((2, problem.n), problem.dtype), jnp.zeros((), problem.dtype)
        draws, at = Draws.begin(key_after(key, init)), iterates.place(problem, h)
        none = jnp.zeros((), jnp.int32)
        return State(draws, at, sums, zeros, zeros, none, before, zero, jnp.asarray(False), Counters.zero())

    def step(self, problem: BoxForm, state: State) -> State:
        """Draw a batch, average, shrink, move along its violated samples, project."""
        rule, count = self.rule(problem), state.before + state.counters.steps
        at, sums = iterates.in_range(state.at, state.sums)
        draws, index, share = next_batch(problem, state.draws, self.batch, self.order)
        inner = iterates.margins_of(problem, at.v, index)
        slack = problem.q[index] - sums.s * inner
        violated = slack > 0
        move = iterates.Move(index, violated, jnp.where(violated, share, 0), count)
        sums = sums.averaged(self._averaged_steps(state) + 1, self.average)
        at, s, gain = iterates.moved(problem, rule, at, sums, move, inner)
        loss = matmul(share, jnp.maximum(slack, 0))
        with_features = iterates.features_of(problem) is not None
        rows_taken, of_row = (self.batch, 1) if with_features else (violated.sum(dtype=jnp.int32), problem.n)
        return state._replace(
            draws=draws,
            at=at,
            sums=sums.moved(index, move.g, gain, violated, count + 1)._replace(s=s),
            R=state.R + (loss - state.R) / (state.counters.steps + 1).astype(loss.dtype),
            counters=state.counters.stepped(rows_taken, violated.any(), of_row),
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
            at = Iterate(responses, jnp.maximum(h @ responses, 0))
        else:
            (s,), v = iterates.products(problem, w[None]), state.sums.s * state.at.v
            at = Iterate(v, v @ v)
        share = jnp.where(visits > 0, violated / jnp.where(visits > 0, visits, 1), (s < problem.q).astype(visits.dtype))
        a = jnp.clip(share, 0, 1) * problem.upper
        (a_s,) = iterates.products(problem, a[None])
        curvature = a @ a_s
        times = jnp.clip(matmul(problem.q, a) / jnp.where(curvature > 0, curvature, 1), 0, 1)
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
        return state.point, state.products

    def _averaged_steps(self, state: State) -> Int[Array, ""]:
        """Return the number of steps in the average: for "suffix" those of the second half of this run."""
        suffix = self.average == "suffix"
        return state.counters.steps - self.steps_before_average if suffix else state.before + state.counters.steps


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Pegasos(Stochastic):
    """Pegasos: stochastic subgradient descent on `lam/2 |w|^2 + mean hinge`.

    Step t is

        w <- (1 - 1/t) w + 1 / (lam t k) sum_{j in batch of k, y_j <w, x_j> < 1} y_j x_j,
        w <- w min(1, 1 / (sqrt(lam) |w|)),

    with an optional projection, in a scaled form (`iterates.py`). It also has the same steps as pieces of an
    optax chain, which streams take.

    Problems: hinge and box problems without an equality (a regularised bias, or none).
    Cost of a step: O(k d) for linear kernels and low-rank Grams, whatever n; O(entries of the batch) for CSR points;
    else n kernel values for each violated sample. It is fast on a CPU by batches of 64, orders by stride instead of
    sorting, a single scatter for all that is counted, no average of vectors, and rare certificates.
    Rate: `E P(w_mean) - P* <= c (1 + ln T) / (2 lam T)`, `c = (sqrt(lam) + r)^2` with projection, `4 r^2` without.
    Source: Shalev-Shwartz, Singer, Srebro, Cotter, "Pegasos: primal estimated sub-gradient solver for SVM",
    Mathematical Programming 2011; corrections in docs/mathematics.md, Sources. Departures: steps are shorter than the
    paper's `1 / (lam t)`, which are useless for the first 1 / lam samples (see `gentle`; `offset=0.0` is the paper's
    schedule); samples come in a fresh order each pass (`order="random"`: with replacement); the default average weighs
    iterates by t; a dual point made of how often each sample was violated certifies the result (`RunningSums`).

    Attributes:
        steps: Maximum number of steps, >= 0; n / batch are a pass over the data.
        batch: Samples of a step, 1 <= batch <= n; static.
        tol: Relative gap at which to stop earlier, > 0.
        projection: Whether to keep w in the ball of radius `1 / sqrt(lam)`; static.
        average: The returned w: "linear" (average weighted by t), "uniform" (the paper's), "suffix" (average of the
            second half of `steps`) or "last"; static.
        order: "permuted" (each sample once a pass, in a fresh order) or "random" (with replacement); static.
        schedule: Optax schedule of step sizes, by the number of steps taken; None: by `offset`. Static: pass the same
            function again, or programs are compiled anew.
        offset: For steps `1 / (lam (t + offset))`, >= 0; 0 is the paper's. None: `gentle` steps, the first
            `batch / (8 mean_i K_ii)`, falling after ten passes.
        check_every: Steps in a chunk of the driver; static.
        refresh_every: Steps between certificates; None: about five passes, later a fifth of the steps taken. Static.

    Raises:
        InputError: On options out of range; when a problem with a free bias, or of fewer samples than `batch`, is
            solved.
    """

    bit = 9

    steps: Count = 10_000
    batch: int = dataclasses.field(default=16, metadata={"static": True})
    tol: Number = 1e-3
    projection: bool = dataclasses.field(default=True, metadata={"static": True})
    average: str = dataclasses.field(default="linear", metadata={"static": True})
    order: str = dataclasses.field(default="permuted", metadata={"static": True})
    schedule: optax.Schedule | None = dataclasses.field(default=None, metadata={"static": True})
    offset: Number | None = None
    check_every: int = dataclasses.field(default=100, metadata={"static": True})
    refresh_every: int | None = dataclasses.field(default=None, metadata={"static": True})

    def rule(self, problem: BoxForm) -> Rule:
        """Return `lam = 1 / sum_i U_i` (`1 / (n C)` without weights), the schedule, and a ball with the optimum."""
        total = problem.upper.sum()
        lam = 1 / jnp.where(total > 0, total, 1)
        first = first_step(lam * matmul(problem.upper, problem.diagonal), self.batch)
        # For any box problem |w*|^2 <= q'a* <= U'max(q, 0); for an SVM that is 1 / lam.
        radius = jnp.sqrt(matmul(problem.upper, jnp.maximum(problem.q, 0))) if self.projection else None
        return self._rule(lam, radius, first, MEASURED.passes_of_long_steps * problem.n / self.batch)

    def _rule(self, lam: Any, radius: Any, first: Any, after: Any) -> Rule:
        schedule = self.schedule
        if schedule is None:
            schedule = gentle(lam, first, after) if self.offset is None else inverse_time(lam, self.offset)
        return Rule(lam, schedule, radius)

    def worth(self, problem: BoxForm, gap: Number) -> Float[Array, ""]:
        """Return the steps after which the bound `(sqrt(lam) + r)^2 / (2 lam T)` is the gap of the mean loss."""
        lam = 1 / problem.upper.sum()
        r = jnp.sqrt(jnp.where(problem.present, problem.diagonal, 0).max())
        return (jnp.sqrt(lam) + r) ** 2 / (2 * lam * gap)

    # --- streaming ---

    @transfers
    def start(
        self, d: int, lam: ArrayLike, *, bias: str = "regularized", dtype: DTypeLike | None = None
    ) -> StreamState:
        """Start a stream of batches, as scikit-learn's `partial_fit`; samples are not kept.

            solver = Pegasos()
            state = solver.start(d=x.shape[1], lam=1e-4)
            for x_batch, y_batch in batches:
                state = solver.update(state, x_batch, y_batch)
            scores = x_new @ solver.coef(state) + solver.intercept(state)

        Args:
            d: Number of features.
            lam: Strength of the regulariser, > 0: `1 / (n C)` if n is known.
            bias: "regularized" (a constant feature) or "none".
            dtype: Dtype of w; None: JAX's default float.
        """
        if d < 1:
            raise InputError(f"d is {d}: at least one feature is needed.")
        if bias not in ("regularized", "none"):
            raise InputError(f'bias is {bias!r}: a stream has "regularized" or "none".')
        require_usable(self)
        if is_concrete(lam):
            require_positive("lam", lam)
        dtype = jax.dtypes.canonicalize_dtype(float if dtype is None else dtype)
        w, lam = jnp.zeros((d + (bias == "regularized"),), dtype), jnp.asarray(lam, dtype)
        zero = jnp.zeros((), dtype)
        return StreamState(w, self._stream(lam, zero).init(w), lam, zero, zero, d)

    @transfers
    def update(
        self, state: StreamState, x: ArrayLike | CSR, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> StreamState:
        """Take a step on a batch; works under jit and scan.

        Args:
            state: State from `start` or `update`.
            x: The batch, `(k, d)`, dense or `CSR`; any k, but each shape compiles anew under jit.
            y: Signs in {-1, +1}, `(k,)`.
            sample_weight: Weights of the losses, `(k,)`; their mean is over k: weights of mean 1 keep lam's scale.
        """
        points = x if isinstance(x, CSR) else jnp.asarray(x, state.w.dtype)
        if points.ndim != 2 or points.shape[1] != state.d:
            raise InputError(f"x has shape {points.shape}: a batch (k, {state.d}) is needed.")
        k = points.shape[0]
        for name, given in (("y", y), ("sample_weight", sample_weight)):
            if given is not None and np.shape(given) != (k,):
                raise InputError(f"{name} has shape {np.shape(given)}: ({k},) is needed, one a sample.")
        y = jnp.asarray(y, state.w.dtype)
        weight = jnp.ones_like(y) if sample_weight is None else jnp.asarray(sample_weight, y.dtype)
        features = Primal(points, y, weight, state.w.shape[0] > state.d, False)
        slack = 1 - y * features.product(state.w)
        gradient = -features.transposed(jnp.where(slack > 0, y * weight / k, 0))
        entries = points.data if isinstance(points, CSR) else points
        mean_square = (entries**2).sum() / k + (state.w.shape[0] - state.d)
        first = jnp.where(state.first > 0, state.first, first_step(mean_square, k).astype(state.w.dtype))
        moved: Any = self._stream(state.lam, first).update(gradient, state.chain, state.w)
        updates, chain = moved
        loss = matmul(weight, jnp.maximum(slack, 0)) / k
        t = jnp.asarray(chain[-1].taken, loss.dtype)
        w = jnp.asarray(optax.apply_updates(state.w, updates))
        return StreamState(w, chain, state.lam, first, state.loss + (loss - state.loss) / t, state.d)

    def coef(self, state: StreamState) -> Float[Array, " d"]:
        """Return the weights, averaged by `average`."""
        return average_of(state.chain)[: state.d]

    def intercept(self, state: StreamState) -> Float[Array, ""]:
        """Return the bias; 0 if there is none."""
        return average_of(state.chain)[state.d :].sum()

    def _stream(self, lam: Any, first: Any) -> optax.GradientTransformation:
        parts = [pegasos_transform(lam, self._rule(lam, None, first, jnp.inf).schedule)]
        parts += [project_onto_ball(lax.rsqrt(lam))] if self.projection else []
        return optax.chain(*parts, average_iterates(self.average, self.steps_before_average))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StreamState:
    """State of a stream; a pytree.

    Attributes:
        w: The iterate, the constant last, `(d,)` or `(d + 1,)`.
        chain: The state of the optax chain: counts, projection, average.
        lam: Strength of the regulariser, `()`.
        first: First step of `gentle` steps, from the first batch, `()`.
        loss: Mean of the batches' hinge losses, each before its step, `()`: progressive validation.
        d: Number of features; static.
    """

    __repr__ = in_a_line

    w: Float[Array, " size"]
    chain: Any
    lam: Float[Array, ""]
    first: Float[Array, ""]
    loss: Float[Array, ""]
    d: int = dataclasses.field(metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class BallSGD(Stochastic):
    """SGD on the hinge over a ball: `min sum_i U_i max(0, 1 - y_i <w, phi_i>)` over `|w| <= B`.

    Step t is

        w <- w + B / (r sqrt(t) k) sum_{j in batch of k, y_j <w, phi_j> < 1} y_j phi_j
        w <- w min(1, B / |w|)

    with `r^2 = max_i K_ii`. The ball replaces the regulariser: if `B = |w*|` of the problem's C, its optimum is the
    SVM's. The certificate is that of the SVM, so for any other B its gap ends above 0 (the `|w|^2` of a fit is
    `dual_coef' K dual_coef`).

    Problems: hinge and box problems without an equality (a regularised bias, or none).
    Cost of a step: that of `Pegasos`.
    Rate: the mean hinge loss of the mean of the iterates is within `O(r B / sqrt(T))` of the best in the ball.
    Source: the row "SGD" of table 1 in Cotter, Shalev-Shwartz, Srebro 2012.

    Attributes:
        radius: B, > 0.
        steps: Maximum number of steps, >= 0; n / batch are a pass over the data.
        batch: Samples of a step, 1 <= batch <= n; static.
        tol: Relative gap of the SVM at which to stop earlier, > 0.
        average: The returned w: "uniform" (mean of the iterates), "linear", "suffix" or "last"; static.
        order: "permuted" (each sample once a pass, in a fresh order) or "random" (with replacement); static.
        schedule: Optax schedule of step sizes, by the number of steps taken; None: `B / (r sqrt(t))`. Static.
        check_every: Steps in a chunk of the driver; static.
        refresh_every: Steps between certificates; None: about five passes, later a fifth of the steps taken. Static.

    Raises:
        InputError: On options out of range; when a problem with a free bias, or of fewer samples than `batch`, is
            solved.
    """

    bit = 8

    radius: Number
    steps: Count = 10_000
    batch: int = dataclasses.field(default=16, metadata={"static": True})
    tol: Number = 1e-3
    average: str = dataclasses.field(default="uniform", metadata={"static": True})
    order: str = dataclasses.field(default="permuted", metadata={"static": True})
    schedule: optax.Schedule | None = dataclasses.field(default=None, metadata={"static": True})
    check_every: int = dataclasses.field(default=100, metadata={"static": True})
    refresh_every: int | None = dataclasses.field(default=None, metadata={"static": True})

    def rule(self, problem: BoxForm) -> Rule:
        """Return steps `B / (r sqrt(t))` without shrinking, and the ball."""
        radius = jnp.asarray(self.radius, problem.dtype)
        r = jnp.sqrt(jnp.where(problem.present, problem.diagonal, 0).max())

        def inverse_root(count: Any) -> Any:
            return radius / (jnp.where(r > 0, r, 1) * jnp.sqrt(jnp.asarray(count + 1, problem.dtype)))

        schedule = inverse_root if self.schedule is None else self.schedule
        return Rule(jnp.zeros((), problem.dtype), schedule, radius)

    def worth(self, problem: BoxForm, gap: Number) -> Float[Array, ""]:
        """Return the steps after which the bound `r B / sqrt(T)` is the gap of the mean loss."""
        r = jnp.sqrt(jnp.where(problem.present, problem.diagonal, 0).max())
        return (r * self.radius / gap) ** 2
