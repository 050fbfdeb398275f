"""The iterate of stochastic subgradients and its steps: `w = s v`, so that shrinking costs O(1); and mini-batches.

In the space of features v is a vector: a step costs O(entries of the batch). For kernels it is all responses, beside
the coefficients.

Batches are `start, start + stride, start + 2 stride, ...` modulo n, with a random start and a random stride coprime to
n: each sample comes with probability 1 / n, those of a batch are distinct and nearly pairwise independent, and
n / batch consecutive batches are a permutation. This takes two random numbers instead of a sort.

The parts of Pegasos are optax transformations too, for any optax loop:

    transform = optax.chain(pegasos_transform(lam), project_onto_ball(lam**-0.5), average_iterates("linear"))
    gradient = jax.grad(lambda w: optax.losses.hinge_loss(x_batch @ w, y_batch).mean())
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxsvm.errors import InputError
from jaxsvm.gram.measured import MEASURED
from jaxsvm.numerics.precision import matmul
from jaxsvm.numerics.sampling import systematic_draw
from jaxsvm.points.rows import CSR
from jaxsvm.problems.contract import BoxForm
from jaxsvm.runtime.arrays import MAX_INT32, Number
from jaxsvm.runtime.loops import cond, fori_loop, once, while_loop
from jaxsvm.solvers.features import Primal

CHUNK = MEASURED.rows_per_tile  # entries of a long sparse row at a time; shorter rows are padded to the longest


class Draws(NamedTuple):
    """Order of the samples."""

    key: Array  # the random key
    start: Int[Array, ""]  # next sample
    stride: Int[Array, ""]  # distance to the following sample, coprime to n
    left: Int[Array, ""]  # remaining samples of this pass

    @staticmethod
    def begin(key: Array) -> "Draws":
        """Return the order before the first batch."""
        zero = jnp.zeros((), jnp.int32)
        return Draws(key, zero, zero, zero)

    def fresh(self, n: int, batch: int) -> "Draws":
        """Draw a new start and stride."""
        key, draw_key = jax.random.split(self.key)
        table = jnp.asarray(strides(n, batch))
        start, which = jax.random.randint(draw_key, (2,), 0, np.array([n, len(table)]), jnp.int32)
        return Draws(key, start, table[which], jnp.asarray(n, jnp.int32))

    def following(self, n: int, batch: int, order: str) -> tuple["Draws", Int[Array, " batch"]]:
        """Return the next batch."""
        if order == "random":
            draws = self.fresh(n, batch)
        else:  # a loop of at most a turn: under vmap a cond would draw at every step
            _, draws = while_loop(
                lambda carry: carry[0],
                lambda carry: (jnp.asarray(False), carry[1].fresh(n, batch)),
                (self.left <= 0, self),
            )
        index = (draws.start + draws.stride * jnp.arange(batch, dtype=jnp.int32)) % n
        return draws._replace(start=(draws.start + draws.stride * batch) % n, left=draws.left - batch), index


@cache
def strides(n: int, batch: int) -> np.ndarray:
    """Return `most` strides or fewer that visit all n samples, int32, so small that `batch` of them stay in 32 bits."""
    top, most = max(2, min(n, (MAX_INT32 - n) // batch)), 1024
    tried = np.arange(1, top) if top <= most else np.random.default_rng(0).integers(1, top, 2 * most)
    coprime = [int(step) for step in tried if math.gcd(int(step), n) == 1]
    return np.array(coprime[:most], np.int32)


def next_batch(
    problem: BoxForm, draws: Draws, batch: int, order: str
) -> tuple[Draws, Int[Array, " batch"], Float[Array, " batch"]]:
    """Return the next batch, and the weights of its losses with which their sum is an unbiased mean loss."""
    if order == "random" and problem.mask is not None:  # draw in proportion to weights
        key, draw_key = jax.random.split(draws.key)
        drawn = systematic_draw(draw_key, problem.upper, batch)
        return draws._replace(key=key), drawn, jnp.full((batch,), 1 / batch, problem.dtype)
    draws, index = draws.following(problem.n, batch, order)
    return draws, index, problem.upper[index] * (problem.n / batch) / problem.upper.sum()


def sparse_margins(x: CSR, index: Int[Array, " b"], v: Float[Array, " size"]) -> Float[Array, " b"]:
    """Return `<v, x_j>` of the rows in `index`, O(their entries)."""
    if x.width <= CHUNK:
        values, columns = _padded(x, index, v.dtype)
        return (values * v.at[columns].get(mode="promise_in_bounds")).sum(axis=1)

    def of_row(i: Array) -> Array:
        def add(k: Array, total: Array) -> Array:
            values, columns = _chunk(x, i, k, v.dtype)
            return total + values @ v.at[columns].get(mode="promise_in_bounds")

        return fori_loop(0, _chunks(x, i), add, jnp.zeros((), v.dtype))

    return lax.map(of_row, index)


def sparse_add(
    x: CSR, index: Int[Array, " b"], coefficients: Float[Array, " b"], v: Float[Array, " size"]
) -> Float[Array, " size"]:
    """Return `v + sum_j coefficients_j x_j`, O(the entries of rows whose coefficient is not 0)."""
    if x.width <= CHUNK:
        values, columns = _padded(x, index, v.dtype)
        return v.at[columns].add(coefficients[:, None] * values, mode="promise_in_bounds")

    def of_row(j: Array, v: Array) -> Array:
        def add(k: Array, v: Array) -> Array:
            values, columns = _chunk(x, index[j], k, v.dtype)
            return v.at[columns].add(coefficients[j] * values, mode="promise_in_bounds")

        return fori_loop(0, jnp.where(coefficients[j] != 0, _chunks(x, index[j]), 0), add, v)

    return fori_loop(0, index.shape[0], of_row, v)


def _padded(x: CSR, index: Int[Array, " b"], dtype: Any) -> tuple[Array, Array]:
    """Return entries and columns of rows, `(b, width)`; 0 beyond the end of a row."""
    begin, end = x.indptr[index], x.indptr[index + 1]
    where = begin[:, None] + jnp.arange(x.width, dtype=begin.dtype)
    inside = where < end[:, None]
    where = jnp.where(inside, where, 0)
    values = x.data.at[where].get(mode="promise_in_bounds").astype(dtype)
    return jnp.where(inside, values, 0), x.indices.at[where].get(mode="promise_in_bounds")


def _chunk(x: CSR, i: Int[Array, ""], k: Int[Array, ""], dtype: Any) -> tuple[Array, Array]:
    """Return the k-th chunk of entries and columns of row i, which are slices of the stored ones."""
    first = x.indptr[i] + k * CHUNK
    begin = jnp.minimum(first, x.data.shape[0] - CHUNK)
    where = begin + jnp.arange(CHUNK, dtype=begin.dtype)
    inside = (where >= first) & (where < x.indptr[i + 1])
    values = lax.dynamic_slice(x.data, (begin,), (CHUNK,)).astype(dtype)
    return jnp.where(inside, values, 0), lax.dynamic_slice(x.indices, (begin,), (CHUNK,))


def _chunks(x: CSR, i: Int[Array, ""]) -> Int[Array, ""]:
    return -(-(x.indptr[i + 1] - x.indptr[i]) // CHUNK)


class RunningSums(NamedTuple):
    """Contributions of each sample to the iterate and to the average of all iterates, at O(batch) a step.

    Coefficients are stored as `s h`, so that shrinking costs O(1), and those of the average as `p h + q u` (the
    two-vector trick of Xu 2011). For each sample its visits are counted, and those at which it was violated, with
    larger weights for later ones: `a_i = U_i violated_i / visits_i` is the dual point, which is in the box. Clipping
    the counts of violations (`h_i` in units of U) instead was 3 to 35 times farther from the optimum after 100 passes,
    since at the first visits every sample is violated (n = 400, C = 0.1 and 10).
    """

    columns: Float[Array, "n 4"]  # h, u, violated visits, visits (later ones have larger weights)
    s: Float[Array, ""]  # the iterate has coefficients `s h`
    p: Float[Array, ""]  # the average has coefficients `p h + q u`
    q: Float[Array, ""]  # scale of u in the average

    @staticmethod
    def begin(h: Float[Array, " n"]) -> "RunningSums":
        """Return the sums at an iterate of coefficients h."""
        unit = jnp.ones((), h.dtype)
        columns = jnp.zeros((h.shape[0], 4), h.dtype).at[:, 0].set(h)
        return RunningSums(columns, unit, 0 * unit, unit)

    def seeded(self, a: Float[Array, " n"], upper: Float[Array, " n"], steps: Any, batch: int) -> "RunningSums":
        """Return the sums of a run continued after so many steps to a: visits give a dual point along a.

        The average is the iterate.
        """
        n, dtype = a.shape[0], a.dtype
        visits = jnp.full((n,), jnp.asarray(steps, dtype) ** 2 * batch / (2 * n), dtype)
        share = a / jnp.where(upper > 0, upper, 1)
        violated = visits * share / jnp.where(share.max() > 0, share.max(), 1)  # as counted: certificates scale it
        h = self.iterate
        return self._replace(columns=jnp.stack([h, h, violated, visits], axis=1))

    @property
    def iterate(self) -> Float[Array, " n"]:
        """Return the coefficients of w, `(n,)`."""
        return self.s * self.columns[:, 0]

    @property
    def mean(self) -> Float[Array, " n"]:
        """Return the coefficients of the average, `(n,)`."""
        return self.p * self.columns[:, 0] + self.q * self.columns[:, 1]

    def averaged(self, since: Int[Array, ""], average: str) -> "RunningSums":
        """Add this iterate to the average, as the `since`-th that counts."""
        if average == "last":
            return self
        rho = weight_of(since, average, self.s.dtype)
        first = since <= 1
        p = jnp.where(since < 1, 0, jnp.where(first, self.s, (1 - rho) * self.p + rho * self.s))
        return self._replace(p=p, q=jnp.where(first, 1, (1 - rho) * self.q))

    def moved(
        self, index: Int[Array, " b"], g: Float[Array, " b"], gain: Any, violated: Bool[Array, " b"], t: Any
    ) -> "RunningSums":
        """Return the sums after `h_j += gain g_j` on the batch, with the same average."""
        dh = gain * g
        t = jnp.asarray(t, g.dtype)
        change = jnp.stack(
            [dh, -(self.p / self.q) * dh, jnp.where(violated, t, 0), jnp.broadcast_to(t, g.shape)], axis=1
        )
        return self._replace(columns=self.columns.at[index].add(change, mode="promise_in_bounds"))

    def multiplied_out(self) -> "RunningSums":
        """Return the same iterate and average with scales 1, 0, 1."""
        columns = self.columns.at[:, 0].set(self.iterate).at[:, 1].set(self.mean)
        return RunningSums(columns, jnp.ones_like(self.s), jnp.zeros_like(self.p), jnp.ones_like(self.q))


def weight_of(since: Any, average: str, dtype: Any) -> Float[Array, ""]:
    """Return the share of the `since`-th iterate (from 1) in the running average."""
    since = jnp.maximum(since, 1).astype(dtype)
    return 2 / (since + 1) if average == "linear" else 1 / since


class Rule(NamedTuple):
    """Scalars of the recursion."""

    lam: Any  # strength of the regulariser, `()`
    schedule: Callable[[Any], Any]  # step sizes by number of steps taken, from 0: an optax schedule
    radius: Number | None  # B, `()`; None: no projection


class Iterate(NamedTuple):
    """The iterate `w = s v`, with s of the sums."""

    v: Float[Array, " size"]  # v, the constant last, of features; the responses `Q h`, `(n,)`, of a kernel
    r2: Float[Array, ""]  # `|v|^2`; updated only for a projection


def features_of(problem: BoxForm) -> Primal | None:
    """Return the features X with `K = X X'`, if the Gram has them."""
    x, spread = problem.gram.design, problem.gram.spread
    return None if x is None else Primal(x, problem.y, problem.upper, problem.offset == 1, False, spread)


def place(problem: BoxForm, h: Float[Array, " n"]) -> Iterate:
    """Return the iterate of coefficients h."""
    features = features_of(problem)
    if features is None:
        v = problem.matvec(h)
        return Iterate(v, jnp.maximum(h @ v, 0))
    w = features.transposed(problem.y * h)
    return Iterate(w, w @ w)


def products(problem: BoxForm, points: Float[Array, "k n"]) -> Float[Array, "k n"]:
    """Return `Q` times each row: through features if there are any, O(n d)."""
    features = features_of(problem)
    if features is None:
        return problem.matvec(points)
    return jnp.stack([problem.y * features.product(features.transposed(problem.y * point)) for point in points])


class Move(NamedTuple):
    """A step on a batch."""

    batch: Int[Array, " b"]  # the samples
    violated: Bool[Array, " b"]  # samples of too small margins
    g: Float[Array, " b"]  # minus the coefficients of the subgradient; 0 for samples that are not violated
    taken: Int[Array, ""]  # steps before it


def margins_of(problem: BoxForm, v: Float[Array, " size"], index: Int[Array, " b"]) -> Float[Array, " b"]:
    """Return `y_j <v, phi_j>`."""
    features = features_of(problem)
    if features is None:
        return v[index]
    if isinstance(features.x, CSR):
        inner = sparse_margins(features.x, index, v)
    else:
        inner = matmul(_rows(features, index, v.dtype), v[: features.x.shape[1]])
    return problem.y[index] * (inner + v[-1] if features.constant else inner)


def moved(
    problem: BoxForm, rule: Rule, at: Iterate, sums: RunningSums, move: Move, before: Float[Array, " b"]
) -> tuple[Iterate, Any, Any]:
    """Take a step: shrink, move along the violated samples, project.

    `s <- (1 - eta lam) s`, `v += (eta / s) sum_j g_j y_j phi_j`, `s <- s min(1, B / |w|)`.

    Returns:
        The iterate, its scale s, and the gain of the coefficients `eta / s`.
    """
    features, (s, gain) = features_of(problem), _scale(rule, sums, move.taken)
    dh = gain * move.g
    signed = problem.y[move.batch] * dh
    if features is None:
        # Rows are computed only if a sample of the batch is violated.
        v = cond(move.violated.any(), lambda: at.v + matmul(dh, problem.columns(move.batch)), lambda: at.v)
    elif isinstance(features.x, CSR):
        v = sparse_add(features.x, move.batch, signed, at.v)
        v = v.at[-1].add(signed.sum()) if features.constant else v
    else:
        ascent = matmul(signed, _rows(features, move.batch, signed.dtype))
        v = at.v + (jnp.append(ascent, signed.sum()) if features.constant else ascent)
    if rule.radius is None:
        return Iterate(v, at.r2), s, gain
    after = margins_of(problem, v, move.batch)
    r2 = jnp.maximum(at.r2 + dh @ (before + after), 0)  # |v + g|^2 = |v|^2 + <v, g> + <v + g, g>
    length = jnp.abs(s) * jnp.sqrt(r2)
    return Iterate(v, r2), s * jnp.minimum(1, rule.radius / jnp.where(length > 0, length, 1)), gain


def _rows(features: Primal, index: Int[Array, " b"], dtype: Any) -> Float[Array, "b d"]:
    return features.x.at[index].get(mode="promise_in_bounds").astype(dtype)


def _scale(rule: Rule, sums: RunningSums, count: Int[Array, ""]) -> tuple[Array, Array]:
    """Return the scale s before the projection, and the gain with `s gain g = eta g`."""
    dtype = sums.s.dtype
    eta = jnp.asarray(rule.schedule(count), dtype)
    shrink = 1 - eta * rule.lam
    # Step 1 of Pegasos erases w_1, which is 0 (see `init`): any scale will do. Later ones must not vanish.
    erases = jnp.abs(shrink) <= 8 * jnp.finfo(dtype).eps
    s = jnp.where(erases, jnp.where(count == 0, 1, jnp.finfo(dtype).eps), shrink) * sums.s
    return s, eta / s


def in_range(at: Iterate, sums: RunningSums) -> tuple[Iterate, RunningSums]:
    """Multiply out scales that are below 1e-12, or that shrank so fast that `p h + q u` cancels.

    Steps of `1 / (lam t)` never need it between two certificates; other schedules may. The average may lose a factor of
    64 in digits: the ratio is 2 for linear averages, ln T for uniform ones.
    """

    def multiply(carry: tuple[Iterate, RunningSums]) -> tuple[Iterate, RunningSums]:
        at, sums = carry
        return Iterate(sums.s * at.v, sums.s**2 * at.r2), sums.multiplied_out()

    size = jnp.abs(sums.s)
    small = (size < 1e-12) | (sums.q < 1e-12) | (jnp.abs(sums.p) > 64 * size)
    return once(small, multiply, (at, sums))


# --- the parts of Pegasos as optax transformations


def inverse_time(lam: Any, offset: Any = 0.0) -> Callable[[Any], Any]:
    """Make the optax schedule `eta_t = 1 / (lam (t + offset))` with `t = count + 1`.

    Args:
        lam: Strength of the regulariser, > 0.
        offset: Number >= 0 that shortens the first, very long steps.
    """
    lam = jnp.asarray(lam)

    def schedule(count: Any) -> Any:
        t = jnp.asarray(count + 1, lam.dtype)
        return 1 / (lam * (t + jnp.asarray(offset, lam.dtype)))

    return schedule


def gentle(lam: Any, first: Any, after: Any = jnp.inf) -> Callable[[Any], Any]:
    """Make the optax schedule `first / max(1 + lam first t, sqrt(1 + t / after))`, which never exceeds `1 / (lam t)`.

    For lam of about 1 / n the first n / batch steps of `1 / (lam t)` are so long that they erase all that w has
    learned (docs/measured_constants.md, Solvers).

    Args:
        lam: Strength of the regulariser, > 0.
        first: First step, > 0: about `batch / (8 mean_i |x_i|^2)`: the best measured on covtype and a9a for batches of
            4 to 64, within a factor of 2. With four times that, separable texts are three times nearer to the optimum
            after ten passes, and a9a is twenty times farther.
        after: Number of steps after which the steps fall, > 0, such as ten passes; infinity omits the root.
    """
    lam = jnp.asarray(lam)

    def schedule(count: Any) -> Any:
        t = jnp.asarray(count, lam.dtype)
        return first / jnp.maximum(1 + lam * first * t, jnp.sqrt(1 + t / jnp.asarray(after, lam.dtype)))

    return schedule


def pegasos_transform(lam: Any, schedule: Callable[[Any], Any] | None = None) -> optax.GradientTransformation:
    """Make the transformation `w <- (1 - eta_t lam) w - eta_t g` for subgradients g of the mean loss.

    It needs `params`.

    Args:
        lam: Strength of the regulariser `lam/2 |w|^2`, > 0.
        schedule: Optax schedule of step sizes; None: `1 / (lam t)`.
    """
    steps = inverse_time(lam) if schedule is None else schedule
    return optax.chain(optax.add_decayed_weights(lam), optax.scale_by_learning_rate(steps))


def project_onto_ball(radius: Any) -> optax.GradientTransformation:
    """Scale updates so that the updated parameters, all leaves together, have a norm of at most `radius`.

    For the end of a chain; it needs `params`.

    Args:
        radius: Radius of the ball around 0, > 0. The optimum of an SVM is within `1 / sqrt(lam)`.
    """

    def projected(updates: Any, params: Any) -> Any:
        if params is None:
            raise InputError("params is None: a projection needs the parameters; call update(updates, state, params).")
        inside = optax.projections.projection_l2_ball(optax.apply_updates(params, updates), radius)
        return jax.tree.map(lambda new, old: (new - old).astype(old.dtype), inside, params)

    return optax.stateless(projected)


class AverageState(NamedTuple):
    """State of `average_iterates`: the averaged parameters, and the number of steps, int32 `()`."""

    average: Any
    taken: Int[Array, ""]


def average_iterates(average: str = "linear", burn_in: Any = 0) -> optax.GradientTransformation:
    """Average the parameters at which gradients were taken, `w_1 ... w_T`; updates pass unchanged.

    For the end of a chain; `average_of` reads its result.

    Args:
        average: "linear" (weights proportional to t), "uniform", or "last" (no average: `w_(T+1)`).
        burn_in: Steps before the average begins; with half of all steps it is the "suffix" average.
    """
    if average not in ("linear", "uniform", "suffix", "last"):
        raise InputError(f"average is {average!r}: linear, uniform or last is needed.")

    def init(params: Any) -> AverageState:
        return AverageState(params, jnp.zeros((), jnp.int32))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, AverageState]:
        if params is None:
            raise InputError("params is None: an average needs the parameters; call update(updates, state, params).")
        since = state.taken + 1 - burn_in

        def mixed(old: Array, current: Array, change: Array) -> Array:
            if average == "last":
                return current + change
            return jnp.where(since < 1, current, old + weight_of(since, average, old.dtype) * (current - old))

        new = jax.tree.map(mixed, state.average, params, updates)
        return updates, AverageState(new, jnp.asarray(optax.safe_increment(state.taken)))

    return optax.GradientTransformation(init, update)


def average_of(state: Any) -> Any:
    """Return the averaged parameters from the state of a chain with `average_iterates`."""
    return optax.tree_utils.tree_get(state, "average")


def first_step(mean_square: Any, batch: Any) -> Float[Array, ""]:
    """Return the first of `gentle` steps, for a mean of `|x_i|^2`."""
    return batch / (8 * jnp.where(mean_square > 0, mean_square, 1))
