"""Pegasos: stochastic subgradient descent on `lam/2 |w|^2 + mean hinge`, step `1 / (lam t)`; linear, sparse, kernel.

Source: Shalev-Shwartz, Singer, Srebro, Cotter, "Pegasos: primal estimated sub-gradient solver for SVM" (Mathematical
Programming 2011); where it is printed inexactly: docs/mathematics.md, Sources. Per step t

    w <- (1 - 1/t) w + 1 / (lam t k) sum_{j in batch of k, y_j <w, x_j> < 1} y_j x_j,
    w <- w min(1, 1 / (sqrt(lam) |w|)),

with the projection optional. Cost of a step: O(k d) for linear kernels and low-rank Grams, whatever n; O(entries of the
batch) for CSR points; n kernel values for each violated sample otherwise, none where nothing is violated. Rate:
`E P(w_mean) - P* <= c (1 + ln T) / (2 lam T)`, `c = (sqrt(lam) + r)^2` with projection, `4 r^2` without.

Where we depart: steps are smaller than the paper's `1 / (lam t)`, which are useless for the first 1 / lam samples (see
`gentle`; `offset=0.0` is the paper's schedule); samples come in a fresh order each pass (with replacement:
`order="random"`); the default average weighs iterates by t; a dual point made of how often each sample was violated
certifies the answer (`running_sums.py`), which the paper has none for. On dense linear problems the update
is an optax chain of the pieces below, which any optax loop can use by themselves (sparse and kernel problems take the
same steps in a scaled form, `subgradient.py`):

    transform = optax.chain(pegasos_transform(lam), project_onto_ball(lam**-0.5), average_iterates("linear"))
    gradient = jax.grad(lambda w: optax.losses.hinge_loss(x_batch @ w, y_batch).mean())

What made it fast on a CPU: batches of 64 (a step costs 5 us in dense data, of which most is gathering rows; single
samples cost 1 us each), orders by stride instead of sorting, one scatter for all that is counted, no average of
vectors, and no certificate but every five passes.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, Float, Int

from jaxsvm.errors import InputError
from jaxsvm.points.rows import CSR
from jaxsvm.problems.forms import BoxForm
from jaxsvm.solvers.features import Primal
from jaxsvm.solvers.stochastic import subgradient
from jaxsvm.solvers.stochastic.running_sums import weight_of
from jaxsvm.solvers.stochastic.subgradient import Rule, State

# --- optax transformations -------------------------------------------------------------------------------------------


def inverse_time(lam: Any, offset: Any = 0.0) -> Callable[[Any], Any]:
    """The schedule `eta_t = 1 / (lam (t + offset))` with `t = count + 1`.

    Args:
        lam: The strength of the regulariser, > 0.
        offset: Postpones the first, huge steps, >= 0.

    Returns:
        An optax schedule, a function of the number of steps taken.
    """
    lam = jnp.asarray(lam)

    def schedule(count: Any) -> Any:
        t = jnp.asarray(count + 1, lam.dtype)
        return 1 / (lam * (t + jnp.asarray(offset, lam.dtype)))

    return schedule


def gentle(lam: Any, first: Any, after: Any = jnp.inf) -> Callable[[Any], Any]:
    """The schedule `first / max(1 + lam first t, sqrt(1 + t / after))`: never above `1 / (lam t)`.

    For lam of about 1 / n the first n / batch steps of `1 / (lam t)` are so large that w must be found anew after them.
    On covtype (n = 4,858, C = 1, batch 64; the optimum is 2,802) they are at 130,989 after 20 passes, these at 2,805;
    without the root 2,807, and after 60 passes 2,806 where these are at 2,804.

    Args:
        lam: The strength of the regulariser, > 0.
        first: The first step, > 0: about `batch / (8 mean_i |x_i|^2)` (best of those measured on covtype and a9a for
            batches of 4 to 64, within a factor of 2; separable texts bear four times that, and are three times nearer
            after ten passes then, where a9a would be twenty times farther).
        after: Steps after which it falls, > 0: ten passes; infinity leaves the root out.

    Returns:
        An optax schedule, a function of the number of steps taken.
    """
    lam = jnp.asarray(lam)

    def schedule(count: Any) -> Any:
        t = jnp.asarray(count, lam.dtype)
        return first / jnp.maximum(1 + lam * first * t, jnp.sqrt(1 + t / jnp.asarray(after, lam.dtype)))

    return schedule


def pegasos_transform(lam: Any, schedule: Callable[[Any], Any] | None = None) -> optax.GradientTransformation:
    """`w <- (1 - eta_t lam) w - eta_t g` for the subgradient g of the mean loss.

    Args:
        lam: The strength of the regulariser `lam/2 |w|^2`, > 0.
        schedule: An optax schedule of step sizes; None: `1 / (lam t)`.

    Returns:
        A transformation of subgradients of the loss alone; it needs `params`.
    """
    steps = inverse_time(lam) if schedule is None else schedule
    return optax.chain(optax.add_decayed_weights(lam), optax.scale_by_learning_rate(steps))


class BallState(NamedTuple):
    """Of `project_onto_ball`: what it last multiplied the parameters by, `()`."""

    factor: Float[Array, ""]


def project_onto_ball(radius: Any) -> optax.GradientTransformation:
    """Updates such that the parameters they lead to, all leaves together, have a norm of at most `radius`.

    Args:
        radius: Of the ball around 0, > 0. `1 / sqrt(lam)` holds the optimum of an SVM.

    Returns:
        A transformation for the end of a chain; it needs `params`.
    """

    def init(params: Any) -> BallState:
        return BallState(jnp.ones((), jax.tree.leaves(params)[0].dtype))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, BallState]:
        if params is None:
            raise InputError("params is None: a projection needs the parameters; call update(updates, state, params).")
        there = optax.apply_updates(params, updates)
        length = jnp.asarray(optax.tree.norm(there))
        factor = jnp.minimum(1, radius / jnp.where(length > 0, length, 1)).astype(state.factor.dtype)
        return jax.tree.map(lambda new, old: factor * new - old, there, params), BallState(factor)

    return optax.GradientTransformation(init, update)


class AverageState(NamedTuple):
    """Of `average_iterates`: parameters averaged so far, and how many steps were taken, int32 `()`."""

    average: Any
    taken: Int[Array, ""]


def average_iterates(average: str = "linear", burn_in: Any = 0) -> optax.GradientTransformation:
    """The running average of the parameters that gradients were taken at, `w_1 ... w_T`; updates pass unchanged.

    Args:
        average: "linear" (weights proportional to t), "uniform", or "last" (no average: `w_(T+1)`).
        burn_in: Steps before the average begins: half of all make it the "suffix" average.

    Returns:
        A transformation for the end of a chain; read the result with `average_of`.
    """
    if average not in ("linear", "uniform", "suffix", "last"):
        raise InputError(f"average is {average!r}: linear, uniform or last is needed.")

    def init(params: Any) -> AverageState:
        return AverageState(params, jnp.zeros((), jnp.int32))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, AverageState]:
        if params is None:
            raise InputError("params is None: an average needs the parameters; call update(updates, state, params).")
        since = state.taken + 1 - burn_in

        def mixed(old: Array, here: Array, change: Array) -> Array:
            if average == "last":
                return here + change
            return jnp.where(since < 1, here, old + weight_of(since, average, old.dtype) * (here - old))

        new = jax.tree.map(mixed, state.average, params, updates)
        return updates, AverageState(new, jnp.asarray(optax.safe_increment(state.taken)))

    return optax.GradientTransformation(init, update)


def average_of(state: Any) -> Any:
    """The averaged parameters in the state of a chain with `average_iterates`."""
    return optax.tree_utils.tree_get(state, "average")


def first_step(mean_square: Any, batch: Any) -> Float[Array, ""]:
    """The first of `gentle` steps, for a mean of `|x_i|^2`."""
    return batch / (8 * jnp.where(mean_square > 0, mean_square, 1))


# --- the solver ------------------------------------------------------------------------------------------------------


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Pegasos(subgradient.Stochastic):
    """Configuration of Pegasos.

    Attributes:
        steps: The step cap, >= 0; n / batch are a pass over the data.
        batch: Samples a step, 1 <= batch <= n; static.
        tol: The relative gap that ends it sooner, > 0.
        projection: Whether w is kept in the ball of radius `1 / sqrt(lam)`; static.
        average: The answer: "linear" (the average weighted by t), "uniform" (the paper's), "suffix" (of the second half
            of `steps`) or "last"; static.
        order: "permuted" (each sample once a pass, in a fresh order) or "random" (with replacement); static.
        schedule: An optax schedule of step sizes, by the number of steps taken; None: as `offset` says. Static: keep
            the same function, or programs are compiled anew.
        offset: For steps `1 / (lam (t + offset))`, >= 0; 0 is the paper's. None: `gentle` steps, the first
            `batch / (8 mean_i K_ii)`, falling after ten passes.
        check_every: Steps a chunk of the driver; static.
        refresh_every: Steps between certificates; None: about five passes, later a fifth of the steps taken. Static.
    """

    bit = 9
    solves = ("box",)
    rows = 2

    steps: Any = 10_000
    batch: int = dataclasses.field(default=16, metadata={"static": True})
    tol: Any = 1e-3
    projection: bool = dataclasses.field(default=True, metadata={"static": True})
    average: str = dataclasses.field(default="linear", metadata={"static": True})
    order: str = dataclasses.field(default="permuted", metadata={"static": True})
    schedule: Callable[[Any], Any] | None = dataclasses.field(default=None, metadata={"static": True})
    offset: Any = None
    check_every: int = dataclasses.field(default=100, metadata={"static": True})
    refresh_every: int | None = dataclasses.field(default=None, metadata={"static": True})

    resumes = True
    patience = 2**30  # a noisy gap that does not shrink for a while is no floor

    def __post_init__(self) -> None:
        subgradient.require_options(self)
        if self.offset is not None:
            subgradient.require_positive("offset", self.offset, zero=True)

    @property
    def max_steps(self) -> Any:
        """The step cap."""
        return self.steps

    def rule(self, problem: BoxForm) -> Rule:
        """`lam = 1 / sum_i U_i` (`1 / (n C)` without weights), the schedule, and the ball that holds the optimum."""
        total = problem.upper.sum()
        lam = 1 / jnp.where(total > 0, total, 1)
        first = first_step(lam * (problem.upper @ problem.diagonal), self.batch)
        # Of any box problem: |w*|^2 <= q'a* <= U'max(q, 0); for an SVM that is 1 / lam.
        radius = jnp.sqrt(problem.upper @ jnp.maximum(problem.q, 0)) if self.projection else None
        return self._rule(lam, radius, first, 10 * problem.n / self.batch)

    def _rule(self, lam: Any, radius: Any, first: Any, after: Any) -> Rule:
        schedule = self.schedule
        if schedule is None:
            schedule = gentle(lam, first, after) if self.offset is None else inverse_time(lam, self.offset)
        parts = [pegasos_transform(lam, schedule)]
        parts += [] if radius is None else [project_onto_ball(radius)]
        return Rule(lam, schedule, radius, optax.chain(*parts))

    def worth(self, problem: BoxForm, gap: Any) -> Float[Array, ""]:
        """Steps after which the bound of the rate, `(sqrt(lam) + r)^2 / (2 lam T)`, is the gap of the mean loss."""
        lam = 1 / problem.upper.sum()
        r = jnp.sqrt(jnp.where(problem.present, problem.diagonal, 0).max())
        return (jnp.sqrt(lam) + r) ** 2 / (2 * lam * gap)

    def stores(self, problem: BoxForm) -> bool:
        """Where there are no features to step in."""
        return subgradient.features_of(problem) is None

    def init(self, problem: BoxForm, key: Array | None = None, init: Any = None) -> State:
        """The state at w = 0, or at the coefficients `init`, `(n,)`, or at a fit."""
        return subgradient.start(problem, self, key, init)

    def step(self, problem: BoxForm, state: State) -> State:
        """One batch."""
        return subgradient.step(problem, self, state)

    def refresh(self, problem: BoxForm, state: State) -> State:
        """The answer's w, a dual point and `Q` times both from scratch."""
        return subgradient.refresh(problem, self, state)

    def dual_point(self, problem: BoxForm, state: State) -> tuple[Float[Array, "two n"], Float[Array, "two n"]]:
        """The last certified point: coefficients of w and a feasible dual point, with `Q` times both."""
        del problem
        return state.point, state.products

    def running_excess(self, problem: BoxForm, state: State) -> Float[Array, ""]:
        """At most 1 where a certificate is due."""
        return subgradient.running_excess(problem, self, state)

    # --- streaming ---

    def start(self, d: int, lam: Any, *, bias: str = "regularized", dtype: Any = None) -> "StreamState":
        """A stream of batches from here on, as scikit-learn's `partial_fit`; nothing is kept of samples.

            solver = Pegasos()
            state = solver.start(d=x.shape[1], lam=1e-4)
            for x_batch, y_batch in batches:
                state = solver.update(state, x_batch, y_batch)
            scores = x_new @ solver.coef(state) + solver.intercept(state)

        Args:
            d: Features.
            lam: The strength of the regulariser, > 0: `1 / (n C)` where n is known.
            bias: "regularized" (a constant feature) or "none".
            dtype: Of w; None: JAX's default float.

        Raises:
            InputError: On a bad d, lam or bias.
        """
        if d < 1:
            raise InputError(f"d is {d}: at least one feature is needed.")
        if bias not in ("regularized", "none"):
            raise InputError(f'bias is {bias!r}: a stream has "regularized" or "none".')
        subgradient.require_positive("lam", lam)
        dtype = jax.dtypes.canonicalize_dtype(float if dtype is None else dtype)
        w, lam = jnp.zeros((d + (bias == "regularized"),), dtype), jnp.asarray(lam, dtype)
        zero = jnp.zeros((), dtype)
        return StreamState(w, self._stream(lam, zero).init(w), lam, zero, zero, d)

    def update(self, state: "StreamState", x: Any, y: Any, sample_weight: Any = None) -> "StreamState":
        """One step on a batch; works under jit and scan.

        Args:
            state: From `start` or `update`.
            x: The batch, `(k, d)`, dense or `CSR`; any k, but each shape compiles anew under jit.
            y: Signs in {-1, +1}, `(k,)`.
            sample_weight: Weights of the losses, `(k,)`; their mean is over k: weights of mean 1 keep lam's scale.

        Raises:
            InputError: On shapes that do not fit.
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
        loss = weight @ jnp.maximum(slack, 0) / k
        t = jnp.asarray(chain[-1].taken, loss.dtype)
        w = jnp.asarray(optax.apply_updates(state.w, updates))
        return StreamState(w, chain, state.lam, first, state.loss + (loss - state.loss) / t, state.d)

    def coef(self, state: "StreamState") -> Float[Array, " d"]:
        """The answer's weights: averaged as `average` says."""
        return average_of(state.chain)[: state.d]

    def intercept(self, state: "StreamState") -> Float[Array, ""]:
        """The answer's bias; 0 without one."""
        return average_of(state.chain)[state.d :].sum()

    def _stream(self, lam: Any, first: Any) -> optax.GradientTransformation:
        radius = lax.rsqrt(lam) if self.projection else None
        average = average_iterates(self.average, subgradient.burn_in(self))
        return optax.chain(self._rule(lam, radius, first, jnp.inf).transform, average)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StreamState:
    """Where a stream stands; a pytree.

    Attributes:
        w: The iterate, the constant last, `(d,)` or `(d + 1,)`.
        chain: The state of the optax chain: counts, projection, average.
        lam: The strength of the regulariser, `()`.
        first: The first step of `gentle` steps, from the first batch, `()`.
        loss: The mean of the batches' hinge losses, each before its step, `()`: progressive validation.
        d: Features; static.
    """

    w: Float[Array, " size"]
    chain: Any
    lam: Float[Array, ""]
    first: Float[Array, ""]
    loss: Float[Array, ""]
    d: int = dataclasses.field(metadata={"static": True})
