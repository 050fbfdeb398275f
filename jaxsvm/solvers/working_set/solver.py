"""Working sets on the box: `max q'a - 1/2 a'Qa`, `0 <= a <= U`, optionally `c'a = e`, touching few rows of Q.

Sources: Joachims 1999 (SVMlight: decomposition); Wen, Shi, Li, He and Chen 2018 (ThunderSVM: large sets, of which a
part is kept). A step picks the samples that violate the optimality conditions most, keeps of its last set what still
moves, gets the kernel rows of the new ones in one product, solves the problem of the set with all others fixed
(`block`), and updates `s = Qa` by one product with the rows. Nothing is computed for samples that never violate: where
a tenth of the samples is support, a tenth of the kernel matrix is.

Cost of a step: `fresh n` kernel evaluations at the most, `q n` multiplications, and the block's own steps, each O(q).
Each step solves the block to a share of the violation that is left, so that s is never far behind.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, UInt32

from jaxsvm.errors import InputError
from jaxsvm.numerics.once import once
from jaxsvm.numerics.precision import double, in_double, rounded, widened
from jaxsvm.numerics.products import weighted_rows
from jaxsvm.problems.box import BoxProblem
from jaxsvm.result import Counters
from jaxsvm.solvers.contract import Solver
from jaxsvm.solvers.start import starting_point
from jaxsvm.solvers.working_set.block import pair_steps, single_steps

ROW_TILE = 32
"""Kernel rows at a time: a tile stays in cache between product and exponential."""
SHARE = 0.05
"""Of the violation that a block is given it leaves this much: less costs steps whose effect other samples undo."""
STEPS_PER_SAMPLE = 16
"""The cap of a block's own steps: beyond, other samples matter more."""
EXACT_STEPS = 2000
"""Steps after which s is computed anew: each leaves a rounding of float64 in what is carried."""
GOLDEN = 0.6180339887


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class WorkingSet(Solver):
    """Configuration of working sets.

    Attributes:
        tol: The relative duality gap that ends it, > 0.
        size: Samples of a set, >= 4; static.
        fresh: New ones a step at the most, 2 to `size`; static. The others are kept.
        max_steps: The step cap (of sets), >= 0.
        check_every: Steps a chunk; static.
        refresh_every: Steps after which `s` is recomputed at the latest; None: 4,000, or n where that is more. Static.
    """

    solves = ("box",)

    tol: Any = 1e-4
    size: int = dataclasses.field(default=512, metadata={"static": True})
    fresh: int = dataclasses.field(default=256, metadata={"static": True})
    max_steps: Any = 100_000
    check_every: int = dataclasses.field(default=1, metadata={"static": True})
    refresh_every: int | None = dataclasses.field(default=None, metadata={"static": True})

    unroll = 1
    patience = 10

    def __post_init__(self) -> None:
        if self.size < 4:
            raise InputError(f"size is {self.size}: at least 4 samples make a working set.")
        if not 2 <= self.fresh <= self.size:
            raise InputError(f"fresh is {self.fresh}: from 2 to size = {self.size} is needed.")

    def init(self, problem: BoxProblem, key: Array | None = None, init: Any = None) -> "State":
        """The state at a = 0 (or the feasible point nearest to it), or at `init`, with an empty set."""
        del key
        a = starting_point(problem, init)
        s, exact = _from_scratch(problem, a)
        q = min(self.size, problem.n)
        return State(
            a=a,
            s=s,
            exact=exact,
            R=problem.objective(a, s),
            members=jnp.full((q,), problem.n, jnp.int32),
            entered=jnp.full((q,), -1, jnp.int32),
            rows=jnp.zeros((0 if problem.gram.stored else q, problem.n), problem.gram.dtype),
            indefinite=jnp.asarray(False),
            counters=Counters.zero(),
        )

    def step(self, problem: BoxProblem, state: "State") -> "State":
        """Pick a set, get its rows, solve its problem, and move all of `s`."""
        n = problem.n
        fresh = _candidates(problem, state, min(self.fresh, len(state.members)))
        members, entered, seats, newcomers, count = _seated(problem, state, fresh)
        rows = _fetched(problem.gram, state.rows, seats, newcomers, count)

        place = jnp.minimum(members, n - 1)
        old, new, gain, steps = _solved(problem, state, rows, members, place)
        a, s, exact = _moved(problem, state, rows, members, place, old, new)
        counters = state.counters._replace(steps=state.counters.steps + 1, toward=state.counters.toward + steps)
        return State(
            a=a,
            s=s,
            exact=exact,
            R=state.R - gain,
            members=members,
            entered=entered,
            rows=rows,
            indefinite=state.indefinite,
            counters=counters.evaluated(count * n),
        )

    def refresh(self, problem: BoxProblem, state: "State") -> "State":
        """`s` and `R` of the state's `a`: of the sums that were carried in twice the precision, while those are young.

        After `EXACT_STEPS`, or where `a` has left its constraints by more than rounding, from scratch.
        """
        a = state.a.astype(problem.dtype)
        off = 0 if problem.c is None else jnp.abs(problem.c @ a - problem.e)
        size = 0 if problem.c is None else jnp.abs(problem.c) @ a + jnp.abs(problem.e)
        eps = jnp.finfo(state.a.dtype).eps
        stale = (state.counters.steps >= EXACT_STEPS) | (off > 4 * eps * size)
        carried = state.exact is not None and problem.dtype != state.s.dtype

        def again(_: Any) -> tuple[Array, Array]:
            a_again = problem.on_equality(jnp.clip(a, 0, problem.upper))
            a_again = rounded(a_again, state.a.dtype)
            return a_again, problem.matvec(a_again)

        s = _value(state.exact) if carried else state.s
        a, s = once(stale, again, (a, s))
        return state._replace(a=a, s=s, R=problem.objective(a, s))

    def dual_point(self, problem: BoxProblem, state: "State") -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """`a` and its `s = Qa`."""
        del problem
        return state.a, state.s

    def running_excess(self, problem: BoxProblem, state: "State") -> Float[Array, ""]:
        """The relative gap over `tol`, for the bias in the middle of the violating pair's: no sorting."""
        bias = None
        if problem.free_bias:
            top, bottom = _ends(problem, state)
            bias = (top + bottom) / 2
        return problem.certificate(state.a, state.s, bias).relative_gap / self.tol


class State(NamedTuple):
    """Where working sets stand.

    Attributes:
        a: Dual variables, `(n,)`, within the box and on the equality up to rounding; bounds are met exactly.
        s: `Qa`, `(n,)`, carried along.
        exact: The same in twice the precision, as bits, uint32 `(n, 2)`; None where `s` is float64.
        R: `-D(a)`, `()`, carried along.
        members: The set, `(q,)`; n in an empty place.
        entered: Step at which each entered, `(q,)`; -1 in an empty place.
        rows: Their kernel rows, `(q, n)`; `(0, n)` where the Gram operator stores all.
        indefinite: Whether a negative curvature showed, `()`.
        counters: Steps (sets), the blocks' own steps as `toward`, and kernel evaluations.
    """

    a: Float[Array, " n"]
    s: Float[Array, " n"]
    exact: UInt32[Array, "n 2"] | None
    R: Float[Array, ""]
    members: Int[Array, " q"]
    entered: Int[Array, " q"]
    rows: Float[Array, "m n"]
    indefinite: Bool[Array, ""]
    counters: Counters


def _sides(problem: BoxProblem, state: State) -> tuple[Array, Array, Array]:
    """`(q_i - s_i) / c_i`, and who may move along `1 / c_i` and against it."""
    a, c = state.a, jnp.ones_like(state.a) if problem.c is None else problem.c
    not_full, not_empty = a < problem.upper, a > 0
    up, low = jnp.where(c > 0, not_full, not_empty), jnp.where(c > 0, not_empty, not_full)
    return (problem.q - state.s) / c, up & problem.present, low & problem.present


def _ends(problem: BoxProblem, state: State) -> tuple[Array, Array]:
    """The violating pair's pulls: the largest upward, the smallest downward."""
    pull, up, low = _sides(problem, state)
    return jnp.where(up, pull, -jnp.inf).max(), jnp.where(low, pull, jnp.inf).min()


def _violation(problem: BoxProblem, state: State) -> Array:
    """Of the optimality conditions: 0 at a solution."""
    pull, up, low = _sides(problem, state)
    if problem.free_bias:
        return jnp.where(up, pull, -jnp.inf).max() - jnp.where(low, pull, jnp.inf).min()
    return jnp.maximum(jnp.where(up, pull, 0).max(), -jnp.where(low, pull, 0).min())


def _candidates(problem: BoxProblem, state: State, count: int) -> Int[Array, " f"]:
    """Samples outside the set that violate most, n in the places of those that do not; of an equality both sides."""
    n = problem.n
    pull, up, low = _sides(problem, state)
    outside = jnp.ones((n,), bool).at[state.members].set(False, mode="drop")
    # Ties are many (all samples at a = 0) and neighbours alike: they are broken by a sequence that spreads.
    spread = 1 + 1e-4 * jnp.mod(jnp.arange(n, dtype=problem.dtype) * GOLDEN, 1)

    def worst(score: Array, count: int) -> Array:
        values, index = lax.top_k(score * spread, min(count, n))
        return jnp.where(values > 0, index, n)

    if not problem.free_bias:
        D = jnp.maximum(problem.diagonal, jnp.finfo(problem.dtype).tiny)
        move = jnp.clip(state.a + pull / D, 0, problem.upper) - state.a
        return worst(jnp.where(outside, move * (pull - D * move / 2), 0), count)
    top, bottom = jnp.where(up, pull, -jnp.inf).max(), jnp.where(low, pull, jnp.inf).min()
    upward = worst(jnp.where(up & outside, pull - bottom, 0), count // 2)
    low = low.at[upward].set(False, mode="drop")
    downward = worst(jnp.where(low & outside, top - pull, 0), count // 2)
    return jnp.concatenate([upward, downward])


def _seated(problem: BoxProblem, state: State, fresh: Array) -> tuple[Array, Array, Array, Array, Array]:
    """The set with new members in the places of those that matter least.

    Returns:
        Members and when they entered; the newcomers' places and themselves, in front of the list; how many they are.
    """
    n, q = problem.n, len(state.members)
    place = jnp.minimum(state.members, n - 1)
    a, U = state.a[place], problem.upper[place]
    pull, up, low = (values[place] for values in _sides(problem, state))
    free = (a > 0) & (a < U)
    if problem.free_bias:
        top, bottom = _ends(problem, state)
        violates = (up & (pull > bottom)) & (low | (pull > (top + bottom) / 2)) | (low & (pull < (top + bottom) / 2))
    else:
        violates = (up & (pull > 0)) | (low & (pull < 0))
    worth = state.entered + jnp.where(free, 1 << 29, 0) + jnp.where(violates, 1 << 28, 0)
    order = jnp.argsort(jnp.where(state.members < n, worth, -1)).astype(jnp.int32)
    is_new = fresh < n
    count = is_new.sum(dtype=jnp.int32)
    front = jnp.argsort(~is_new, stable=True)
    newcomers = fresh[front]
    slots = jnp.where(jnp.arange(len(fresh)) < count, order[: len(fresh)], q)
    members = state.members.at[slots].set(newcomers, mode="drop")
    entered = state.entered.at[slots].set(state.counters.steps, mode="drop")
    return members, entered, slots, newcomers, count


def _fetched(gram: Any, rows: Array, slots: Array, newcomers: Array, count: Array) -> Array:
    """The set's kernel rows with those of the newcomers, a tile at a time."""
    if not rows.shape[0]:
        return rows
    tile = min(ROW_TILE, len(slots))
    padding = -len(slots) % tile
    slots = jnp.pad(slots, (0, padding), constant_values=rows.shape[0])
    newcomers = jnp.minimum(jnp.pad(newcomers, (0, padding)), rows.shape[1] - 1)

    def fetch(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        k, rows = carry
        index = lax.dynamic_slice(newcomers, (k * tile,), (tile,))
        seats = lax.dynamic_slice(slots, (k * tile,), (tile,))
        return k + 1, rows.at[seats].set(gram.rows(index), mode="drop")

    return lax.while_loop(lambda carry: carry[0] * tile < count, fetch, (jnp.zeros((), jnp.int32), rows))[1]


def _solved(
    problem: BoxProblem, state: State, rows: Array, members: Array, place: Array
) -> tuple[Array, Array, Array, Array]:
    """The problem of the set with all others fixed.

    Returns:
        Its variables before and after, what the dual objective gains, and the steps that it took.
    """
    valid = members < problem.n
    Q = _block(problem, rows, place)
    old, U = jnp.where(valid, state.a[place], 0), jnp.where(valid, problem.upper[place], 0)
    gradient = (problem.q - state.s)[place]
    c = jnp.ones_like(old) if problem.c is None else problem.c[place]
    end = c * U
    low, high = jnp.minimum(0, end), jnp.maximum(0, end)
    solve = pair_steps if problem.free_bias else single_steps
    tol = SHARE * _violation(problem, state)
    v, steps = solve(Q / (c[:, None] * c), low, high, c * old, gradient / c, tol, STEPS_PER_SAMPLE * len(place))
    # Bounds are met exactly, so that a sample is at one or is not.
    new = jnp.where(v == end, U, jnp.clip(v / c, 0, U))
    moved = new - old
    return old, new, moved @ (gradient - Q @ moved / 2), steps


def _block(problem: BoxProblem, rows: Array, place: Array) -> Float[Array, "q q"]:
    """Q between members."""
    if not rows.shape[0]:
        return problem.block(place, place)
    K = rows[:, place].astype(problem.dtype) + problem.offset
    y = problem.y[place]
    return y[:, None] * y * K


def _moved(
    problem: BoxProblem, state: State, rows: Array, members: Array, place: Array, old: Array, new: Array
) -> tuple[Array, Array, Any]:
    """`a` with the set's new values, `s = Qa` rounded, and in twice the precision.

    The member with the most room takes what rounding has left of the equality: `a` stays on it, all of it.
    """
    y, c, e = problem.y[place], problem.c, problem.e
    U = problem.upper[place]

    def move(a: Array, s: Array, exact: Any, new: Array, rows: Array) -> tuple[Array, Array, Any]:
        wide = double(a.dtype)
        moved_a = a.at[members].set(new, mode="drop")
        if c is not None:
            off = (c.astype(wide) @ moved_a.astype(wide) - e).astype(a.dtype)
            room = jnp.where(members < problem.n, jnp.minimum(new, U - new), 0)
            k = jnp.where(room == room.max(), jnp.arange(len(room), dtype=jnp.int32), 0).max()
            corrected = new[k] - off / c[place[k]]
            new = new.at[k].set(jnp.where(room[k] > jnp.abs(new[k] - corrected), corrected, new[k]))
            moved_a = a.at[members].set(new, mode="drop")
        signed = y.astype(wide) * jnp.where(members < problem.n, new.astype(wide) - old.astype(wide), 0)
        if state.rows.shape[0]:
            product = weighted_rows(signed, rows)
        else:
            product = weighted_rows(signed, rows, place)
        product = problem.y.astype(wide) * (product + problem.offset * signed.sum())
        total = (s if exact is None else _value(exact)) + product
        return moved_a, total.astype(s.dtype), None if exact is None else _bits(total)

    stored = problem.gram.K if problem.gram.stored else rows
    return in_double(move)(state.a, state.s, state.exact, new, stored)


def _from_scratch(problem: BoxProblem, a: Array) -> tuple[Array, Any]:
    """`s = Qa`, and where the vectors are narrower than float64 its bits in twice the precision."""
    if jnp.finfo(problem.dtype).bits >= 64:
        return problem.matvec(a), None

    def compute(problem: BoxProblem, a: Array) -> tuple[Array, Array]:
        s = widened(problem).matvec(a.astype(double(a.dtype)))
        return s.astype(a.dtype), _bits(s)

    return in_double(compute)(problem, a)


def _bits(values: Array) -> Array:
    """Numbers as integers of 32 bits, which pass where x64 is off."""
    return lax.bitcast_convert_type(values, jnp.uint32)


def _value(bits: Array) -> Array:
    """Numbers of their bits; inside `in_double`."""
    return lax.bitcast_convert_type(bits, jnp.float64 if bits.ndim == 2 else jnp.float32)
