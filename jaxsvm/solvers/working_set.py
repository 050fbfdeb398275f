"""The working-set solver: decomposition with large sets, a cache of kernel rows, and sums in twice the precision."""

import dataclasses
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, UInt32

from jaxsvm.errors import InputError
from jaxsvm.gram.operators import DenseGram
from jaxsvm.numerics.precision import bits_of, double, in_double, matmul, of_bits, rounded, weighted_rows, widened
from jaxsvm.problems.box import BoxProblem
from jaxsvm.problems.contract import Restrictable
from jaxsvm.problems.squared_hinge import SquaredHingeProblem
from jaxsvm.results.fit import Counters
from jaxsvm.runtime.arrays import Count, Number
from jaxsvm.solvers.contract import Solver, Traits
from jaxsvm.solvers.measured import MEASURED
from jaxsvm.solvers.start import Origin, StartLike, onto_simplex, starting_point, weights_of
from jaxsvm.solvers.working_set_block import (
    RowCache,
    among,
    block_steps,
    box_sums,
    candidates,
    empty_cache,
    ends,
    enlarged_cache,
    fetched,
    is_negative_along,
    moved_in_box,
    refreshed_box,
    with_new_members,
)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class WorkingSet(Solver[Restrictable]):
    """Working sets: `max t'a - 1/2 a'Qa`, `0 <= a <= U`, optionally `c'a = e`, from few rows of Q.

    A step picks the samples that violate the optimality conditions most, keeps those of the last set that may still
    move, computes the kernel rows of the new ones in one product, solves the problem of the set with all others fixed,
    and updates `s = Qa` by one product with the rows. No kernel row is computed for samples that never violate.

    Problems: hinge and box problems; squared hinge without a free bias. For the squared hinge, where nearly all samples
    inside the margin are support, stored pair steps are faster on wide margins.
    Cost of a step: at most `fresh n` kernel evaluations, `q n` multiplications, and the steps on the block, O(q) each.
    Rate: the sources state no bound; for pairs it is linear in the end (`SMO`).
    Sources: Joachims 1999 (SVMlight: decomposition); Wen, Shi, Li, He and Chen 2018 (ThunderSVM: large sets, of which a
    part is kept). Departures (docs/mathematics.md, Working sets): sums are carried in twice the precision, so that a
    certificate of a box costs no product, and sets of the squared hinge end at large C; the scales of the classes'
    other weights are then variables of the block.

    Attributes:
        tol: Relative duality gap at which to stop, > 0.
        size: Samples of a set, >= 4; 2 fewer for the squared hinge. Few sets are needed if all support between its
            bounds fits in: 1,024 if there is much of it, else 512. Static.
        fresh: Maximum number of new samples in a step, 2 to `size`; static. The others are kept.
        cache: Kernel rows to keep, with those of the set, at least `size`: 4 n bytes each in float32. Rows whose
            samples left longest ago are replaced. None: `size`. Static.
        store: Whether to store all kernel values first, if the Gram operator permits; static.
        max_steps: Maximum number of steps (sets), >= 0.
        check_every: Steps in a chunk; static.
        refresh_every: Maximum number of steps between recomputations of `s`; None: 4,000, or n if larger. Static.

    Raises:
        InputError: On sizes out of range; when a squared hinge with a free bias is solved.
    """

    bit = 3
    solves = ("box", "squared hinge")

    tol: Number = 1e-4
    size: int = dataclasses.field(default=512, metadata={"static": True})
    fresh: int = dataclasses.field(default=256, metadata={"static": True})
    cache: int | None = dataclasses.field(default=None, metadata={"static": True})
    store: bool = dataclasses.field(default=False, metadata={"static": True})
    max_steps: Count = 100_000
    check_every: int = dataclasses.field(default=1, metadata={"static": True})
    refresh_every: int | None = dataclasses.field(default=None, metadata={"static": True})

    unroll = 1
    patience = 10
    traits = Traits(pads=True, carries_sums=True, large_state=True, knows_origin=True)

    def stores(self, problem: Restrictable) -> bool:
        return self.store

    def __post_init__(self) -> None:
        if self.size < 4:
            raise InputError(f"size is {self.size}: at least 4 samples make a working set.")
        if not 2 <= self.fresh <= self.size:
            raise InputError(f"fresh is {self.fresh}: from 2 to size = {self.size} is needed.")
        if self.cache is not None and self.cache < self.size:
            raise InputError(f"cache is {self.cache}: the rows of a set need at least size = {self.size}.")

    def init(self, problem: Restrictable, key: Array | None = None, init: "StartLike | None" = None) -> "State":
        """Return a state with an empty set, at a = 0 (or the feasible point nearest to it) or at `init`.

        From the `State` of a smaller set, continue with its members, rows and sums, and with empty places.
        """
        if isinstance(init, State):
            return self._enlarged(problem, init)
        if problem.bounded:
            box = cast(BoxProblem, problem)
            a = starting_point(box, init)
            return self.begun(problem, {"a": a, **box_sums(box, None if isinstance(init, Origin) else a)})
        if problem.free_bias:
            raise InputError("the problem has a free bias, which sets without upper bounds cannot keep: use `Newton`.")
        svm = cast(SquaredHingeProblem, problem)
        if init is None:
            return self.begun(problem, pair_of_classes(svm))
        weights, margins = weights_of(svm, init)
        weights = onto_simplex(svm, weights)
        s = svm.matvec(weights) if margins is None else svm.gradient(weights, margins)
        return self.begun(problem, sums_of(svm, scaled(weights, s)))

    def begun(self, problem: Restrictable, parts: dict[str, Any]) -> "State":
        """Return a state with an empty set at a known point: its `a`, `s` and `exact`."""
        q = self._places(problem)
        return State(
            **{**parts, "R": problem.objective(parts["a"], parts["s"])},
            members=jnp.full((q,), problem.n, jnp.int32),
            entered=jnp.full((q,), -1, jnp.int32),
            K=jnp.zeros((0, 0) if problem.gram.stored else (q, q), problem.gram.dtype),
            cache=empty_cache(problem.gram, problem.n, self._capacity(problem)),
            indefinite=jnp.asarray(False),
            counters=Counters.zero(),
        )

    def _places(self, problem: Restrictable) -> int:
        return min(self.size if problem.bounded else self.size - 2, problem.n)  # two places scale the classes

    def _capacity(self, problem: Restrictable) -> int:
        return min(self.size if self.cache is None else self.cache, problem.n)

    def _enlarged(self, problem: Restrictable, state: "State") -> "State":
        """Return the state of a smaller set with more places; the ages of its members are forgotten."""
        n, more = problem.n, self._places(problem) - len(state.members)
        return state._replace(
            members=jnp.pad(state.members, (0, more), constant_values=n),
            entered=jnp.pad(jnp.minimum(state.entered, 0), (0, more), constant_values=-1),
            K=state.K if problem.gram.stored else jnp.pad(state.K, (0, more)),
            cache=enlarged_cache(state.cache, self._capacity(problem)),
            counters=Counters.zero(),
        )

    def step(self, problem: Restrictable, state: "State") -> "State":
        """Pick a set, compute its rows, solve its problem, and update `s`."""
        a, s, counters = state.a, state.s, state.counters
        fresh = candidates(problem, a, s, state.members, min(self.fresh, len(state.members)))
        members, entered, places = with_new_members(problem, a, s, state.members, state.entered, counters.steps, fresh)
        cache, slots, count = fetched(problem.gram, state.cache, members, counters.steps, len(fresh))
        count = (fresh < problem.n).sum(dtype=jnp.int32) if problem.gram.stored else count  # counted although stored
        moved: Any = moved_in_box if problem.bounded else moved_with_scales
        rows = cast(DenseGram, problem.gram).K if problem.gram.stored else cache.rows
        K = state.K if problem.gram.stored else among(state.K, rows, slots, members, places)
        between = rows[slots[:, None], slots] if problem.gram.stored else K
        changes, inner, curved = moved(problem, state, between, rows, slots, members)
        return state._replace(
            **changes,
            members=members,
            entered=entered,
            K=K,
            cache=cache,
            indefinite=state.indefinite | curved,
            counters=counters.stepped(count * problem.n, inner),
        )

    def refresh(self, problem: Restrictable, state: "State") -> "State":
        refreshed: Any = refreshed_box if problem.bounded else refreshed_sums
        return state._replace(**refreshed(problem, state))

    def running_excess(self, problem: Restrictable, state: "State") -> Float[Array, ""]:
        """Return the relative gap over `tol`; with an equality at the violating pair's bias, which needs no sorting."""
        if not problem.free_bias:
            return problem.certificate(state.a, state.s).relative_gap / self.tol
        bias = sum(ends(problem, state.a, state.s)) / 2
        return cast(BoxProblem, problem).certificate(state.a, state.s, bias).relative_gap / self.tol


class State(NamedTuple):
    """State of a working-set solver."""

    a: Float[Array, " n"]  # dual variables, within their bounds, which are met exactly; of a box on its equality
    s: Float[Array, " n"]  # `Qa`, updated by each step
    # sums in twice the precision, as bits in uint32: for a box `s`, or None if `s` is float64; for the squared hinge
    # the classes' parts of `s`, without the ridge, `(2, n, 2)`
    exact: UInt32[Array, "n 2"] | UInt32[Array, "2 n 2"] | None
    R: Float[Array, ""]  # objective, updated by each step
    members: Int[Array, " q"]  # the set; n in an empty place
    entered: Int[Array, " q"]  # step at which each member entered; -1 in an empty place
    # kernel values between the members, arbitrary in empty places; `(0, 0)` if the Gram operator stores all
    K: Float[Array, "q q"]
    cache: RowCache  # kernel rows, with those of the members
    indefinite: Bool[Array, ""]  # whether a negative curvature occurred
    counters: Counters  # steps (sets), the steps on blocks as `toward`, and kernel evaluations


SIGNS = (1, -1)


# --- without upper bounds (the squared hinge): blocks also scale the weights of each class
#
# Nearly all samples inside the margin have a positive weight, and blocks of them alone push the constant back and forth
# (hundreds of sets at n = 10,000). So a block has two more variables: a factor for each class, by which the weights
# outside the set are multiplied. Their rows are the classes' parts of the product, which are carried. These nearly
# cancel (at C = 100 they are 1e5, their sum is about 1), so they are carried in twice the precision: in float32, sets
# at large C did not end.


def sums_of(problem: SquaredHingeProblem, beta: Array) -> dict[str, Any]:
    """Compute the classes' parts of the product of weights, and their sum with the ridge."""

    def compute(problem: SquaredHingeProblem, beta: Array) -> dict[str, Array]:
        wide = widened(problem)
        return _sums(wide, beta, _products(wide, beta.astype(wide.dtype), None))

    return in_double(compute)(problem, beta)


def pair_of_classes(problem: SquaredHingeProblem) -> dict[str, Any]:
    """Start with equal weights on a sample of each class, in the scale that maximizes the dual objective.

    The products cost two kernel rows, and compile in a fraction of the time of any other start.
    """

    def compute(problem: SquaredHingeProblem, rows: Array, pair: Array, exists: Array) -> dict[str, Array]:
        wide = widened(problem)
        signs = jnp.where(exists, jnp.asarray(SIGNS, wide.dtype), 0)
        products = jnp.outer(signs, wide.y) * (rows.astype(wide.dtype) + wide.offset)
        curvature = (
            jnp.where(exists[None, :], products[:, pair], 0).sum() + jnp.where(exists, wide.ridge[pair], 0).sum()
        )
        total = exists.sum(dtype=wide.dtype)
        scale = jnp.where(curvature > 0, total / jnp.where(curvature > 0, curvature, 1), 1)
        weight = rounded(scale, problem.dtype)
        beta = jnp.zeros_like(wide.y).at[pair].set(jnp.where(exists, weight, 0))
        return _sums(wide, beta.astype(problem.dtype), weight * products)

    pairs = [lax.top_k((problem.present & (problem.y == sign)).astype(jnp.float32), 1) for sign in SIGNS]
    exists = jnp.concatenate([value for value, _ in pairs]) > 0
    pair = jnp.concatenate([place for _, place in pairs]).astype(jnp.int32)
    return in_double(compute)(problem, problem.gram.rows(pair), pair, exists)


def scaled(alpha: Array, s: Array) -> Array:
    """Return weights in the scale that maximizes the dual objective `1'b - 1/2 b'Kt b`, from their products `s`."""
    curvature = alpha @ s
    return alpha * jnp.where(curvature > 0, alpha.sum() / jnp.where(curvature > 0, curvature, 1), 1)


def moved_with_scales(
    problem: SquaredHingeProblem, state: Any, K: Array, rows: Array, slots: Array, members: Array
) -> tuple[dict[str, Any], Array, Array]:
    """Solve for set and scales; arguments and results are those of `moved_in_box`."""
    H, gradient, low, high, units = in_double(_block)(problem, state.a, state.exact, K, members)
    violation = jnp.where((low < 0) | (gradient > 0), jnp.abs(gradient), 0).max()
    limit = MEASURED.steps_per_member * len(low)
    tol = MEASURED.gradient_left * violation
    move, _, steps = block_steps(H, low, high, jnp.zeros_like(low), gradient, tol, limit, equality=False)
    placed = in_double(_with_moves)(problem, state.a, state.exact, move, low, units, (rows, slots, members))
    return placed, steps, is_negative_along(H, move)


def _block(problem: SquaredHingeProblem, a: Array, exact: Array, K: Array, members: Array) -> tuple[Array, ...]:
    """Form the problem of the moves of set and scales: its matrix, gradient and bounds, and the scales' units.

    Everything is computed in twice the precision, and the block solves for differences. A scale is measured in units in
    which its own curvature is 1.
    """
    wide, parts = widened(problem), of_bits(exact)
    place, valid, beta, y = jnp.minimum(members, problem.n - 1), members < problem.n, a.astype(parts.dtype), wide.y
    old, ridge, y_set = jnp.where(valid, beta[place], 0), wide.ridge[place], y[place]
    B = jnp.outer(y_set, y_set) * (K.astype(parts.dtype) + wide.offset)
    rest = beta.at[members].set(0, mode="drop")
    inside = [jnp.where(y_set == sign, old, 0) for sign in SIGNS]
    outside = [jnp.where(y == sign, rest, 0) for sign in SIGNS]
    g = [parts[k][place] - matmul(B, inside[k]) for k in range(2)]

    def between(a: int, b: int) -> Array:
        """Return `rest_a' B rest_b`, without rows of the rest."""
        return outside[a] @ parts[b] - inside[b] @ g[a]

    across = (between(0, 1) + between(1, 0)) / 2
    own = jnp.stack([between(k, k) + matmul(wide.ridge, outside[k] ** 2) for k in range(2)])
    # Stored weights are rounded, each by itself, so no move may rely on a smaller curvature (16 roundings).
    eps = jnp.finfo(a.dtype).eps
    doubt = jnp.stack([jnp.linalg.norm(outside[k] * parts[k]) for k in range(2)])
    totals = jnp.stack([outside[k].sum() for k in range(2)])
    pull = jnp.concatenate([
        wide.targets[place] - parts.sum(axis=0)[place] - ridge * old,
        totals - jnp.stack([outside[k] @ parts.sum(axis=0) + matmul(wide.ridge, outside[k] ** 2) for k in range(2)]),
    ])  # fmt: skip
    units = jnp.sqrt(jnp.maximum(own, 0) + 16 * eps * doubt)
    exists = jnp.concatenate([valid, (totals > 0) & (units > 0)])
    units = jnp.where(exists[-2:], units, 1)
    sides = jnp.stack(g, axis=1) / units[None, :]
    corner = jnp.stack([jnp.stack([units[0] ** 2, across]), jnp.stack([across, units[1] ** 2])])
    H = jnp.block([[B + jnp.diag(ridge), sides], [sides.T, corner / units[:, None] / units[None, :]]])
    H = jnp.where(exists[:, None] & exists[None, :], H, jnp.eye(len(exists), dtype=H.dtype))
    pull = jnp.where(exists, pull / jnp.concatenate([jnp.ones_like(old), units]), 0)
    low = jnp.where(exists, -jnp.concatenate([old, units]), 0)
    high = jnp.where(exists, jnp.inf, 0)
    return tuple(value.astype(a.dtype) for value in (H, pull, low, high, units))


def _with_moves(
    problem: SquaredHingeProblem, a: Array, exact: Array, move: Array, low: Array, units: Array, fetched: Any
) -> dict[str, Array]:
    """Return the sums after the moves of the block; weights that reach their bound are 0."""
    (rows, slots, members), wide, parts = fetched, widened(problem), of_bits(exact)
    place, valid = jnp.minimum(members, problem.n - 1), members < problem.n
    y_set = wide.y[place]
    old = jnp.where(valid, a[place], 0)
    new = jnp.where(move == low, 0, jnp.concatenate([old, units]) + move)
    factors = jnp.where(move[-2:] == low[-2:], 0, 1 + move[-2:].astype(parts.dtype) / units.astype(parts.dtype))
    new = jnp.maximum(new[:-2], 0)
    rest = a.at[members].set(0, mode="drop").astype(parts.dtype)
    after = (rest * jnp.where(wide.y > 0, factors[0], factors[1])).astype(a.dtype).at[members].set(new, mode="drop")
    from_class = jnp.where(y_set > 0, factors[0], factors[1])
    change = jnp.where(valid, new.astype(parts.dtype) - from_class * old.astype(parts.dtype), 0)
    of_class = jnp.stack([jnp.where(y_set == sign, change, 0) for sign in SIGNS])
    moved = lax.map(lambda v: _signed_rows(wide, v, rows, slots, place), of_class)
    return _sums(wide, after, factors[:, None] * parts + moved)


def refreshed_sums(problem: SquaredHingeProblem, state: Any) -> dict[str, Any]:
    """Recompute all sums, with the cached rows; in narrower dtypes keep the carried sums, which are more exact."""
    beta = rounded(jnp.maximum(state.a.astype(problem.dtype), 0), state.a.dtype)
    if problem.dtype != double(problem.dtype):
        return {"a": beta, "s": state.s, "R": problem.objective(beta, state.s)}
    return _sums(problem, beta, _products(problem, beta, state.cache))


def _sums(wide: SquaredHingeProblem, beta: Array, parts: Array) -> dict[str, Array]:
    """Return the state's fields from weights and their products, in the dtype of the weights; inside `in_double`."""
    s = parts.sum(axis=0) + wide.ridge * beta
    R = wide.objective(beta.astype(parts.dtype), s)
    return {"a": beta, "exact": bits_of(parts), "s": s.astype(beta.dtype), "R": R.astype(beta.dtype)}


def _products(problem: SquaredHingeProblem, beta: Array, cache: RowCache | None) -> Float[Array, "2 n"]:
    of_class = jnp.stack([jnp.where(problem.y == sign, beta, 0) for sign in SIGNS])
    return lax.map(lambda v: _product(problem, v, cache), of_class)  # compiled once for both


def _product(problem: SquaredHingeProblem, v: Array, cache: RowCache | None) -> Float[Array, " n"]:
    """Return `B v` from cached rows where they exist, and from computed rows for the other samples."""
    if cache is None or not len(cache.owner) or problem.gram.design is not None:
        return problem.signed.support_matvec(v)
    place = jnp.minimum(cache.owner, problem.n - 1)
    inside = jnp.where(cache.owner < problem.n, v[place], 0)
    rest = problem.signed.support_matvec(v.at[cache.owner].set(0, mode="drop"))
    return rest + _signed_rows(problem, inside, cache.rows, None, place)


def _signed_rows(problem: SquaredHingeProblem, v: Array, rows: Array, slots: Any, place: Array) -> Float[Array, " n"]:
    signed = problem.y[place] * v
    return problem.y * (weighted_rows(signed, rows, slots) + problem.offset * signed.sum())
