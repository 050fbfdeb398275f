"""Working sets: `max t'a - 1/2 a'Qa`, `0 <= a <= U`, optionally `c'a = e`, touching few rows of Q.

Sources: Joachims 1999 (SVMlight: decomposition); Wen, Shi, Li, He and Chen 2018 (ThunderSVM: large sets, of which a
part is kept). A step picks the samples that violate the optimality conditions most, keeps of its last set what still
moves, gets the kernel rows of the new ones in one product, solves the problem of the set with all others fixed
(`block`), and updates `s = Qa` by one product with the rows. Nothing is computed for samples that never violate: where
a tenth of the samples is support, a tenth of the kernel matrix is.

Cost of a step: `fresh n` kernel evaluations at the most, `q n` multiplications, and the block's own steps, O(q) each.
For the squared hinge, where nearly all samples inside the margin are support, stored pair steps are faster on wide
ones.

Where we depart from the papers (docs/mathematics.md, Working sets): sums are carried in twice the precision, so that a
certificate of a box costs no product, and sets of the squared hinge end at large C; there the scales of the classes'
other weights are variables of the block.
"""

import dataclasses
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from jaxsvm.errors import InputError
from jaxsvm.problems.box import BoxProblem
from jaxsvm.problems.contract import Restrictable
from jaxsvm.problems.squared_hinge import SquaredHingeProblem
from jaxsvm.results.fit import Counters
from jaxsvm.solvers.contract import Solver
from jaxsvm.solvers.start import Origin, onto_simplex, starting_point, weights_of
from jaxsvm.solvers.working_set import bounded, row_cache, unbounded
from jaxsvm.solvers.working_set.members import among, candidates, ends, seated
from jaxsvm.solvers.working_set.row_cache import RowCache


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class WorkingSet(Solver[Restrictable]):
    """Configuration of working sets.

    Attributes:
        tol: The relative duality gap that ends it, > 0.
        size: Samples of a set, >= 4; of the squared hinge 2 fewer. Where all support between its bounds fits in, few
            sets are left to solve: 1,024 where there are many, 512 where not. Static.
        fresh: New ones a step at the most, 2 to `size`; static. The others are kept.
        cache: Kernel rows that are kept, those of the set included, at least `size`: 4 n bytes each in float32. Those
            whose samples left longest ago give way. None: `size`. Static.
        store: Whether all kernel values are stored first, where the Gram operator permits; static.
        max_steps: The step cap (of sets), >= 0.
        check_every: Steps a chunk; static.
        refresh_every: Steps after which `s` is recomputed at the latest; None: 4,000, or n where that is more. Static.
    """

    bit = 3
    solves = ("box", "squared hinge")

    tol: Any = 1e-4
    size: int = dataclasses.field(default=512, metadata={"static": True})
    fresh: int = dataclasses.field(default=256, metadata={"static": True})
    cache: int | None = dataclasses.field(default=None, metadata={"static": True})
    store: bool = dataclasses.field(default=False, metadata={"static": True})
    max_steps: Any = 100_000
    check_every: int = dataclasses.field(default=1, metadata={"static": True})
    refresh_every: int | None = dataclasses.field(default=None, metadata={"static": True})

    unroll = 1
    patience = 10
    pads = True
    carries_sums = True
    large_state = True
    knows_origin = True

    def stores(self, problem: Restrictable) -> bool:
        """Rows are computed for those that violate, where `store` does not say otherwise."""
        del problem
        return self.store

    def __post_init__(self) -> None:
        if self.size < 4:
            raise InputError(f"size is {self.size}: at least 4 samples make a working set.")
        if not 2 <= self.fresh <= self.size:
            raise InputError(f"fresh is {self.fresh}: from 2 to size = {self.size} is needed.")
        if self.cache is not None and self.cache < self.size:
            raise InputError(f"cache is {self.cache}: the rows of a set need at least size = {self.size}.")

    def init(self, problem: Restrictable, key: Array | None = None, init: Any = None) -> "State":
        """The state at a = 0 (or the feasible point nearest to it), or at `init`, with an empty set.

        From a `State` it goes on with its set, rows and sums, and seats left empty: what a smaller set has learned.
        """
        del key
        if isinstance(init, State):
            return self._enlarged(problem, init)
        if problem.bounded:
            box = cast(BoxProblem, problem)
            a = starting_point(box, init)
            return self.begun(problem, {"a": a, **bounded.begun(box, None if isinstance(init, Origin) else a)})
        if problem.free_bias:
            raise InputError("the problem has a free bias, which sets without a lid cannot keep: use `Newton`.")
        svm = cast(SquaredHingeProblem, problem)
        if init is None:
            return self.begun(problem, unbounded.one_of_each(svm))
        weights = onto_simplex(svm, weights_of(svm, init)[0])
        return self.begun(problem, unbounded.begun(svm, unbounded.scaled(svm, weights)))

    def begun(self, problem: Restrictable, parts: dict[str, Any]) -> "State":
        """The state at a point that is known, with an empty set: its `a`, `s` and `exact`."""
        q = min(self.size if problem.bounded else self.size - 2, problem.n)
        return State(
            **{**parts, "R": problem.objective(parts["a"], parts["s"])},
            members=jnp.full((q,), problem.n, jnp.int32),
            entered=jnp.full((q,), -1, jnp.int32),
            K=jnp.zeros((0, 0) if problem.gram.stored else (q, q), problem.gram.dtype),
            cache=row_cache.empty(problem.gram, problem.n, self._capacity(problem)),
            indefinite=jnp.asarray(False),
            counters=Counters.zero(),
        )

    def _capacity(self, problem: Restrictable) -> int:
        """Rows that are kept: no more than there are."""
        return min(self.size if self.cache is None else self.cache, problem.n)

    def _enlarged(self, problem: Restrictable, state: "State") -> "State":
        """The state of a smaller set with more seats; who has sat for how long is forgotten."""
        n, more = problem.n, min(self.size, problem.n) - len(state.members)
        return state._replace(
            members=jnp.pad(state.members, (0, more), constant_values=n),
            entered=jnp.pad(jnp.minimum(state.entered, 0), (0, more), constant_values=-1),
            K=state.K if problem.gram.stored else jnp.pad(state.K, (0, more)),
            cache=row_cache.enlarged(state.cache, self._capacity(problem)),
            counters=Counters.zero(),
        )

    def step(self, problem: Restrictable, state: "State") -> "State":
        """Pick a set, get its rows, solve its problem, and move all of `s`."""
        a, s, counters = state.a, state.s, state.counters
        fresh = candidates(problem, a, s, state.members, min(self.fresh, len(state.members)))
        members, entered, seats = seated(problem, a, s, state.members, state.entered, counters.steps, fresh)
        cache, slots, count = row_cache.fetched(problem.gram, state.cache, members, counters.steps, len(fresh))
        count = (fresh < problem.n).sum(dtype=jnp.int32) if problem.gram.stored else count  # asked for all the same
        kind, rows = _module(problem), row_cache.stored_rows(problem.gram, cache)
        K = state.K if problem.gram.stored else among(state.K, rows, slots, members, seats)
        between = rows[slots[:, None], slots] if problem.gram.stored else K
        changes, inner, curved = kind.moved(problem, state, between, rows, slots, members)
        counters = counters._replace(steps=counters.steps + 1, toward=counters.toward + inner)
        return state._replace(
            **changes,
            members=members,
            entered=entered,
            K=K,
            cache=cache,
            indefinite=state.indefinite | curved,
            counters=counters.evaluated(count * problem.n),
        )

    def refresh(self, problem: Restrictable, state: "State") -> "State":
        """`s` and `R` of the state's `a`, in the precision of the problem that is given."""
        return state._replace(**_module(problem).refreshed(problem, state))

    def dual_point(self, problem: Restrictable, state: "State") -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """`a` and its `s = Qa`."""
        del problem
        return state.a, state.s

    def running_excess(self, problem: Restrictable, state: "State") -> Float[Array, ""]:
        """The relative gap over `tol`; of an equality for a bias in the middle of the violating pair's: no sorting."""
        if not problem.free_bias:
            return problem.certificate(state.a, state.s).relative_gap / self.tol
        bias = sum(ends(problem, state.a, state.s)) / 2
        return cast(BoxProblem, problem).certificate(state.a, state.s, bias).relative_gap / self.tol


def _module(problem: Restrictable) -> Any:
    """Return the module of steps with or without upper bounds."""
    return bounded if problem.bounded else unbounded


class State(NamedTuple):
    """Where working sets stand.

    Attributes:
        a: Dual variables, `(n,)`, within their bounds; of a box on its equality, bounds met exactly.
        s: `Qa`, `(n,)`, carried along.
        exact: In twice the precision, as bits in uint32: of a box `s`, `(n, 2)`, or None where that is float64 itself;
            of the squared hinge the classes' parts of it, without the ridge, `(2, n, 2)`.
        R: The objective, `()`, carried along.
        members: The set, `(q,)`; n in an empty seat.
        entered: Step at which each entered, `(q,)`; -1 in an empty seat.
        K: Kernel values between them, `(q, q)`, in the rows and columns of empty seats of no meaning; `(0, 0)` where
            the Gram operator stores all.
        cache: Kernel rows, theirs included.
        indefinite: Whether a negative curvature showed, `()`.
        counters: Steps (sets), the blocks' own steps as `toward`, and kernel evaluations.
    """

    a: Float[Array, " n"]
    s: Float[Array, " n"]
    exact: UInt32[Array, "n 2"] | UInt32[Array, "2 n 2"] | None
    R: Float[Array, ""]
    members: Int[Array, " q"]
    entered: Int[Array, " q"]
    K: Float[Array, "q q"]
    cache: RowCache
    indefinite: Bool[Array, ""]
    counters: Counters
