"""The working-set solver: decomposition with large sets, a cache of kernel rows, and sums in twice the precision."""

import dataclasses
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from jaxsvm.errors import InputError
from jaxsvm.gram.dense import DenseGram
from jaxsvm.problems.box import BoxProblem
from jaxsvm.problems.contract import Restrictable
from jaxsvm.problems.squared_hinge import SquaredHingeProblem
from jaxsvm.results.fit import Counters
from jaxsvm.runtime.arrays import Count, Number
from jaxsvm.solvers.contract import Solver, Traits
from jaxsvm.solvers.start import Origin, StartLike, onto_simplex, starting_point, weights_of
from jaxsvm.solvers.working_set import bounded, unbounded
from jaxsvm.solvers.working_set.block import double_steps, pair_steps
from jaxsvm.solvers.working_set.members import (
    RowCache,
    among,
    candidates,
    empty_cache,
    ends,
    enlarged_cache,
    fetched,
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
            return self.begun(problem, {"a": a, **bounded.begun(box, None if isinstance(init, Origin) else a)})
        if problem.free_bias:
            raise InputError("the problem has a free bias, which sets without upper bounds cannot keep: use `Newton`.")
        svm = cast(SquaredHingeProblem, problem)
        if init is None:
            return self.begun(problem, unbounded.pair_of_classes(svm))
        weights, margins = weights_of(svm, init)
        weights = onto_simplex(svm, weights)
        s = svm.matvec(weights) if margins is None else svm.gradient(weights, margins)
        return self.begun(problem, unbounded.begun(svm, unbounded.scaled(weights, s)))

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
        kind, rows = _module(problem), cast(DenseGram, problem.gram).K if problem.gram.stored else cache.rows
        K = state.K if problem.gram.stored else among(state.K, rows, slots, members, places)
        between = rows[slots[:, None], slots] if problem.gram.stored else K
        solve = pair_steps if problem.free_bias else double_steps
        changes, inner, curved = kind.moved(problem, state, between, rows, slots, members, solve)
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
        return state._replace(**_module(problem).refreshed(problem, state))

    def running_excess(self, problem: Restrictable, state: "State") -> Float[Array, ""]:
        """Return the relative gap over `tol`; with an equality at the violating pair's bias, which needs no sorting."""
        if not problem.free_bias:
            return problem.certificate(state.a, state.s).relative_gap / self.tol
        bias = sum(ends(problem, state.a, state.s)) / 2
        return cast(BoxProblem, problem).certificate(state.a, state.s, bias).relative_gap / self.tol


def _module(problem: Restrictable) -> Any:
    return bounded if problem.bounded else unbounded


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
