"""What Pegasos and ball-SGD share: stochastic subgradient steps on the hinge, and what is needed to certify them.

    w <- (1 - eta_t lam) w + eta_t sum_{j in batch, y_j <w, phi_j> < q_j} g_j y_j phi_j,     w <- w min(1, B / |w|)

where the batch's `sum_j g_j ...` is minus a subgradient of `Lhat(w) = sum_i U_i max(0, q_i - y_i <w, phi_i>) / sum U`,
in expectation. Three spaces hold the iterate: dense features w itself, moved by an optax chain; CSR features
`w = s v`, so that shrinking costs O(1) and a step O(entries of the batch); kernels its coefficients and all responses.

The sums (`running_sums.py`) counts what each sample contributed, from which come the coefficients of the
answer and a dual point that certifies it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxsvm.errors import InputError, is_concrete
from jaxsvm.numerics.masks import some
from jaxsvm.numerics.precision import rounded
from jaxsvm.points.rows import CSR
from jaxsvm.problems.forms import BoxForm
from jaxsvm.results.fit import Counters
from jaxsvm.runtime.loops import cond
from jaxsvm.runtime.once import once
from jaxsvm.solvers.contract import Solver
from jaxsvm.solvers.features import Primal
from jaxsvm.solvers.start import key_after, resumed, steps_of
from jaxsvm.solvers.stochastic.batches import Draws, next_batch, sparse_add, sparse_margins
from jaxsvm.solvers.stochastic.running_sums import RunningSums
from jaxsvm.solvers.stochastic.stochastic_batch_perceptron import rows_computed

ORDERS = ("permuted", "random")
AVERAGES = ("linear", "uniform", "suffix", "last")
PASSES = 5
"""Passes over the data that earn a certificate, which costs as much."""
TINY = 1e-12
"""A scale this small is multiplied out."""
CANCELS = 64
"""Digits of the average that may be lost, as a factor: it is 2 for linear averages, ln T for uniform ones."""


class Rule(NamedTuple):
    """The recursion's scalars.

    Attributes:
        lam: What shrinks w, `()`.
        schedule: Step sizes by number of steps taken, from 0: an optax schedule.
        radius: B, `()`; None: no projection.
        transform: The same as an optax transformation of w; the last of its states has the `factor` of the projection.
    """

    lam: Any
    schedule: Callable[[Any], Any]
    radius: Any
    transform: optax.GradientTransformation


# --- where the iterate lives -----------------------------------------------------------------------------------------


class Dense(NamedTuple):
    """Dense features: `w`, the constant last, `(size,)`, and the state of the optax chain that moves it."""

    w: Float[Array, " size"]
    chain: Any


class Scaled(NamedTuple):
    """CSR features or a kernel: `w = s v` with the sums's s.

    Attributes:
        v: v itself, `(size,)`, of features; the responses `Q h`, `(n,)`, of a kernel.
        r2: `|v|^2`, `()`; carried along where there is a projection.
    """

    v: Float[Array, " size"]
    r2: Float[Array, ""]


def features_of(problem: BoxForm) -> Primal | None:
    """The features X with `K = X X'`, where the Gram has them."""
    x = problem.gram.design
    return None if x is None else Primal(x, problem.y, problem.upper, problem.offset == 1, False)


def place(problem: BoxForm, rule: Rule, h: Float[Array, " n"], before: Int[Array, ""]) -> Dense | Scaled:
    """The iterate of coefficients h, from scratch, after so many steps."""
    features = features_of(problem)
    if features is None:
        v = problem.matvec(h)
        return Scaled(v, jnp.maximum(h @ v, 0))
    w = features.transposed(problem.y * h)
    if isinstance(features.x, CSR):
        return Scaled(w, w @ w)
    return Dense(w, optax.tree_utils.tree_set(rule.transform.init(w), count=before))


def products(problem: BoxForm, points: Float[Array, "k n"]) -> Float[Array, "k n"]:
    """`Q` times each row: through the features where there are some, O(n d)."""
    features = features_of(problem)
    if features is None:
        return problem.matvec(points)
    return jnp.stack([problem.y * features.product(features.transposed(problem.y * point)) for point in points])


class Move(NamedTuple):
    """A step on one batch, ready to be taken.

    Attributes:
        batch: The samples, `(b,)`.
        violated: Which of its margins are too small, `(b,)`.
        g: Minus the coefficients of the subgradient, `(b,)`: 0 where nothing is violated.
        taken: Steps before it, int32 `()`.
    """

    batch: Int[Array, " b"]
    violated: Bool[Array, " b"]
    g: Float[Array, " b"]
    taken: Int[Array, ""]


def _margins(problem: BoxForm, at: Dense | Scaled, index: Int[Array, " b"]) -> tuple[Float[Array, " b"], Any]:
    """`y_j <v, phi_j>` (of w itself for dense features), and the dense rows."""
    features: Any = features_of(problem)
    if isinstance(at, Scaled):
        if features is None:
            return at.v[index], None
        inner, rows, weights = sparse_margins(features.x, index, at.v), None, at.v
    else:
        rows, weights = features.x.at[index].get(mode="promise_in_bounds").astype(at.w.dtype), at.w
        inner = jnp.matmul(rows, at.w[: rows.shape[1]], precision=lax.Precision.HIGHEST)
    inner = inner + weights[-1] if features.constant else inner
    return problem.y[index] * inner, rows


def _move_dense(
    problem: BoxForm, rule: Rule, at: Dense, sums: RunningSums, move: Move, rows: Float[Array, "b d"]
) -> tuple[Dense, Any, Any]:
    """The optax chain's step on w; the scale and gain that do the same to the sums."""
    signed = problem.y[move.batch] * move.g
    descent = jnp.matmul(signed, rows, precision=lax.Precision.HIGHEST)
    gradient = -jnp.append(descent, signed.sum()) if problem.offset == 1 else -descent
    moved: Any = rule.transform.update(gradient, at.chain, at.w)
    updates, chain = moved
    w = jnp.asarray(optax.apply_updates(at.w, updates))
    s, gain = _scale(rule, sums, move.taken)
    factor = 1 if rule.radius is None else chain[-1].factor
    return Dense(w, chain), s * factor, gain


def _move_scaled(
    problem: BoxForm, rule: Rule, at: Scaled, sums: RunningSums, move: Move, before: Float[Array, " b"]
) -> tuple[Scaled, Any, Any]:
    """The same step in the scaled form: `s <- (1 - eta lam) s`, `v += (eta / s) sum_j g_j y_j phi_j`."""
    features, (s, gain) = features_of(problem), _scale(rule, sums, move.taken)
    dh = gain * move.g
    if features is None:
        # Rows are computed where a sample of the batch is violated; a rejected draw costs nothing.
        v = cond(
            some(move.violated),
            lambda: at.v + jnp.matmul(dh, problem.columns(move.batch), precision=lax.Precision.HIGHEST),
            lambda: at.v,
        )
    else:
        signed = problem.y[move.batch] * dh
        v = sparse_add(features.x, move.batch, signed, at.v)
        v = v.at[-1].add(signed.sum()) if features.constant else v
    if rule.radius is None:
        return Scaled(v, at.r2), s, gain
    after, _ = _margins(problem, Scaled(v, at.r2), move.batch)
    r2 = jnp.maximum(at.r2 + dh @ (before + after), 0)  # |v + g|^2 = |v|^2 + <v, g> + <v + g, g>
    length = jnp.abs(s) * jnp.sqrt(r2)
    return Scaled(v, r2), s * jnp.minimum(1, rule.radius / jnp.where(length > 0, length, 1)), gain


def _scale(rule: Rule, sums: RunningSums, count: Int[Array, ""]) -> tuple[Array, Array]:
    """The scale before the projection, and the gain that makes `eta g` of it."""
    dtype = sums.s.dtype
    eta = jnp.asarray(rule.schedule(count), dtype)
    shrink = 1 - eta * rule.lam
    # Step 1 of Pegasos erases w_1, which is 0 (`start` sees to it): any scale will do. Later none may vanish.
    erases = jnp.abs(shrink) <= 8 * jnp.finfo(dtype).eps
    s = jnp.where(erases, jnp.where(count == 0, 1, jnp.finfo(dtype).eps), shrink) * sums.s
    return s, eta / s


# --- the solver's parts ----------------------------------------------------------------------------------------------


class State(NamedTuple):
    """Where the recursion stands.

    Attributes:
        draws: The order of the samples.
        at: The iterate.
        sums: Coefficients of iterate and average, violated visits.
        point: Of the last certification: coefficients of the answer's w, and a feasible dual point, `(2, n)`.
        products: `Q` times both, from scratch, `(2, n)`.
        certified: Steps taken then, int32 `()`.
        before: Steps that led to where it started, int32 `()`.
        R: The mean of the batches' losses, each before its step, `()`: what the driver watches.
        indefinite: Never known.
        counters: Steps (those on a violated sample are `toward`) and kernel evaluations: n for each violated sample;
            with features inner products, one a draw.
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
    """A solver by stochastic subgradients: the settings that the functions below read of it."""

    steps: Any
    batch: int
    average: str
    order: str
    schedule: Any

    def rule(self, problem: BoxForm) -> Rule:
        """Return the step sizes."""
        raise NotImplementedError

    def worth(self, problem: BoxForm, gap: Any) -> Float[Array, ""]:
        """Return the steps after which the bound of the rate is a gap of the mean loss, `()`."""
        raise NotImplementedError


def require_options(solver: Stochastic) -> None:
    """Raise on options that cannot be used.

    Raises:
        InputError: Naming the option, what was found and what is needed.
    """
    if solver.batch < 1:
        raise InputError(f"batch is {solver.batch}: at least one sample a step is needed.")
    if solver.average not in AVERAGES:
        raise InputError(f"average is {solver.average!r}: one of {', '.join(AVERAGES)} is needed.")
    if solver.order not in ORDERS:
        raise InputError(f"order is {solver.order!r}: one of {', '.join(ORDERS)} is needed.")
    if solver.schedule is not None and not callable(solver.schedule):
        raise InputError(
            f"schedule is {solver.schedule!r}: a function of the step is needed, such as optax.constant_schedule(0.1)."
        )


def start(problem: BoxForm, solver: Stochastic, key: Array | None, init: Any) -> State:
    """The state at w = 0, or at the coefficients `init`, or at the w and the dual point of a fit.

    From these it takes the steps that come after those that led there: as many as the start's gap is worth by the bound
    of the solver's rate, at the most.
    """
    if problem.free_bias:
        raise InputError(
            f"the problem has a free bias, which {type(solver).__name__} does not learn: take bias="
            '"regularized" (a constant feature), or the solver SMO.'
        )
    if solver.batch > problem.n:
        raise InputError(f"batch is {solver.batch}: at most the {problem.n} samples can be in one.")
    h, rule, before = jnp.zeros((problem.n,), problem.dtype), solver.rule(problem), jnp.zeros((), jnp.int32)
    sums = RunningSums.begin(h)
    if init is not None:
        given = resumed(problem, init)
        h, point = given.w, jnp.stack([given.w, problem.feasible_point(given.point)])
        bounds = problem.certificate(point, products(problem, point))
        gap = (bounds.primal - bounds.dual) / problem.upper.sum()
        before = steps_of(given, solver.worth(problem, jnp.maximum(gap, jnp.finfo(h.dtype).tiny ** 0.5)))
        sums = RunningSums.begin(h).seeded(point[1], problem.upper, before, solver.batch)
    nothing, zero = jnp.zeros((2, problem.n), problem.dtype), jnp.zeros((), problem.dtype)
    return State(
        draws=Draws.begin(key_after(key, init)),
        at=place(problem, rule, h, before),
        sums=sums,
        point=nothing,
        products=nothing,
        certified=jnp.zeros((), jnp.int32),
        before=before,
        R=zero,
        indefinite=jnp.asarray(False),
        counters=Counters.zero(),
    )


def step(problem: BoxForm, solver: Stochastic, state: State) -> State:
    """Draw a batch, look at its margins, average, shrink, move along what is violated, project."""
    rule, count = solver.rule(problem), state.before + state.counters.steps
    at, sums = _in_range(state.at, state.sums)
    draws, index, share = next_batch(problem, state.draws, solver.batch, solver.order)
    inner, rows = _margins(problem, at, index)
    margins = inner if isinstance(at, Dense) else sums.s * inner
    slack = problem.q[index] - margins
    violated = slack > 0
    move = Move(index, violated, jnp.where(violated, share, 0), count)
    sums = sums.averaged(_averaged_steps(solver, state) + 1, solver.average)
    if isinstance(at, Dense):
        at, s, gain = _move_dense(problem, rule, at, sums, move, rows)
    else:
        at, s, gain = _move_scaled(problem, rule, at, sums, move, inner)
    loss = share @ jnp.maximum(slack, 0)
    with_features = features_of(problem) is not None
    rows_taken = jnp.asarray(solver.batch, jnp.int32) if with_features else violated.sum(dtype=jnp.int32)
    counters = rows_computed(state.counters, rows_taken, 1 if with_features else problem.n)
    return state._replace(
        draws=draws,
        at=at,
        sums=sums.moved(index, move.g, gain, violated, count + 1)._replace(s=s),
        R=state.R + (loss - state.R) / (state.counters.steps + 1).astype(loss.dtype),
        counters=counters._replace(toward=state.counters.toward + some(violated).astype(jnp.int32)),
    )


def refresh(problem: BoxForm, solver: Stochastic, state: State) -> State:
    """The point of the certificate from scratch; scales multiplied out, responses and `|v|^2` recomputed."""
    dtype = state.sums.columns.dtype
    sums = state.sums.multiplied_out()
    h, mean, violated, visits = sums.columns.T
    since = _averaged_steps(solver, state)
    w = h if solver.average == "last" else jnp.where(since < 1, h, mean)
    # Samples that were never visited: as the answer finds them.
    if features_of(problem) is None:
        s, responses = products(problem, jnp.stack([w, h]))
        at = Scaled(responses, jnp.maximum(h @ responses, 0))
    else:
        (s,), at = products(problem, w[None]), state.at
        if isinstance(at, Scaled):
            v = state.sums.s * at.v
            at = Scaled(v, v @ v)
    share = jnp.where(visits > 0, violated / jnp.where(visits > 0, visits, 1), (s < problem.q).astype(visits.dtype))
    a = jnp.clip(share, 0, 1) * problem.upper
    (a_s,) = products(problem, a[None])
    curvature = a @ a_s
    times = jnp.clip(problem.q @ a / jnp.where(curvature > 0, curvature, 1), 0, 1)
    a = rounded(times * a, dtype)  # within the box, whose bounds are numbers of that dtype
    return state._replace(
        at=at,
        sums=sums,
        point=jnp.stack([w, a]),
        products=jnp.stack([s, products(problem, a[None])[0]]),
        certified=state.counters.steps,
    )


def running_excess(problem: BoxForm, solver: Stochastic, state: State) -> Float[Array, ""]:
    """0 where the steps since the last certificate have earned another, else infinite: margins of all are not known."""
    taken, infinite = state.counters.steps, jnp.asarray(jnp.inf, problem.dtype)
    if solver.refresh_every is not None:
        return infinite
    interval = jnp.maximum(-(-PASSES * problem.n // solver.batch), taken // 5)
    return jnp.where(taken - state.certified >= interval, 0, infinite)


def _averaged_steps(solver: Stochastic, state: State) -> Int[Array, ""]:
    """Steps that the average holds: of "suffix" those of the second half of this run."""
    suffix = solver.average == "suffix"
    return state.counters.steps - burn_in(solver) if suffix else state.before + state.counters.steps


def burn_in(solver: Stochastic) -> Any:
    """Steps before the average begins."""
    return solver.steps // 2 if solver.average == "suffix" else 0


def require_positive(name: str, value: Any, zero: bool = False) -> None:
    """Refuse a number that is not positive (or, with `zero`, negative), where it is known.

    JAX makes configurations of things that are no numbers too: descriptions of arguments, where it lowers a program.
    """
    known = is_concrete(value) and isinstance(value, int | float | np.ndarray | np.number | jax.Array)
    if known and np.ndim(value) == 0 and not (float(value) > 0 or zero and float(value) == 0):
        raise InputError(f"{name} is {value}: a {'number not below 0' if zero else 'positive number'} is needed.")


def _in_range(at: Any, sums: RunningSums) -> tuple[Any, RunningSums]:
    """Scales that shrank to almost nothing, or so fast that `p h + q u` cancels, multiplied out.

    Steps of `1 / (lam t)` never come to that between two certificates; other schedules may.
    """

    def multiply(carry: tuple[Any, RunningSums]) -> tuple[Any, RunningSums]:
        at, sums = carry
        if isinstance(at, Scaled):
            at = Scaled(sums.s * at.v, sums.s**2 * at.r2)
        return at, sums.multiplied_out()

    size = jnp.abs(sums.s)
    small = (size < TINY) | (sums.q < TINY) | (jnp.abs(sums.p) > CANCELS * size)
    return once(small, multiply, (at, sums))
