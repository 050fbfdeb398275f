"""What the drivers ask of a solver: the required members as a protocol, the optional ones with their defaults.

A solver is a frozen dataclass, registered as a pytree, that derives from `Solver`; what is not traced of its fields is
marked static. It joins the suite by a line of `SOLVERS` in `tests/test_contract.py`.
"""

from typing import Any, ClassVar, Protocol

from jaxtyping import Array, Float

from jaxsvm.results.fit import counted_by_name
from jaxsvm.solvers.stopping import CERTIFIED_GAP, stop_excess

SIMPLEX = ("squared hinge", "ball")
"""Kinds whose dual points lie on the simplex."""


class Steps(Protocol):
    """What every solver has.

    Attributes:
        tol: What the stop rule is held to, > 0.
        max_steps: The step cap, >= 0; exact.
        check_every: Steps a chunk, between looks at the running excess; static. 1: a step costs a certificate.
        refresh_every: Steps between certificates at the most; None: 4,000, or n where that is more; static.
    """

    tol: Any
    max_steps: Any
    check_every: int
    refresh_every: int | None

    def init(self, problem: Any, key: Array | None = None, init: Any = None) -> Any:
        """A state to start from: fresh, or at weights `(n,)`, or at a `Start`, whose problem is known too.

        `jaxsvm.solvers.start` reads them: `weights_of`, and `starting_point` of a box problem. A solver that cannot
        keep `problem.equality` refuses a problem that has a `free_bias` here: `solves` does not tell these apart.

        Every state has `R` (`()`: by it the driver sees whether anything moves, and that numbers are finite; what
        descends, `problem.objective` carried along, or a count, or a mean loss), `indefinite` (whether a negative
        curvature showed, `()`) and `counters` (`jaxsvm.results.fit.Counters`: a step adds 1 to `steps`, and to
        the kernel evaluations, by `evaluated`, those that it asked for).
        """
        ...

    def step(self, problem: Any, state: Any) -> Any:
        """One step further: no stopping, no printing."""
        ...

    def refresh(self, problem: Any, state: Any) -> Any:
        """The state with what drifts recomputed from scratch, in the precision of the problem that is given."""
        ...

    def dual_point(self, problem: Any, state: Any) -> tuple[Array, Array]:
        """A point that `problem.certified` takes, of numbers that a caller can be given, and its products."""
        ...


class Solver:
    """What a solver may have besides `Steps`, with the defaults.

    Transformations ask for more: `polished` for `place(problem, state, alpha, s)`, the state at a point on the simplex;
    `sampled` for `wants_vertex(problem, state)`, whether the next step searches all samples for a vertex, and
    `at(alpha, s, counters)`, a state at a point.

    Attributes:
        solves: Kinds of problems it is for: their `kind`.
        stop: Its stop rule (`jaxsvm.solvers.stopping`).
        unroll: Steps a turn of the inner loop: 2 take a twentieth off a light step, 5 no more than that, and each
            copy of the step 0.1 s to compile; 1 for heavy ones.
        patience: Certificates in a row without progress before a fit is STALLED.
        pads: Whether drivers may pad concrete problems with absent samples (`jaxsvm.problems.padding`): where these
            cost little, and draws do not depend on n.
        large_state: Whether its state is large, kernel rows above all: the host driver hands it on without a copy. Then
            `init` makes every array of it: none may be an argument as it came.
        takes_start: Whether `init` moves where it begins. Chains leave nothing out for one that does not: what is left
            over would be solved for a start.
        resumes: Whether `init` takes a `Resumed`, all that a fit knows, where a fit is given: how far steps go, or in
            which order, depends on how many there were, or w is not made of the dual point.
        carries_sums: Whether every step carries the products of its `dual_point` along, as good as rounding permits.
        knows_origin: Whether `init` takes an `Origin` too, and is compiled sooner for one.
        final_check: "none" where the running excess may end a fit that no certificate bears out.
        rows: Rows of its dual points: 2 where its w is not made of its dual variables.
        bit: Its place in `Counters.solvers`, by which `Fit.solvers` names it: its own, below `BIT_OF_OTHERS`, if any.
    """

    solves: ClassVar[tuple[str, ...]]
    stop = CERTIFIED_GAP
    unroll = 2
    patience = 3
    pads = False
    large_state = False
    takes_start = True
    resumes = False
    carries_sums = False
    knows_origin = False
    final_check = "full"
    rows = 1
    bit: ClassVar[int]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "bit" in vars(cls):
            counted_by_name(cls)

    def stores(self, problem: Any) -> bool:
        """Whether it is faster with all kernel values stored: drivers do so first, where the Gram operator permits."""
        del problem
        return True

    def running_excess(self: Any, problem: Any, state: Any) -> Float[Array, ""]:
        """What the stop rule would say of the state as it is, over its threshold: at most 1 claims that it holds."""
        point, s = self.dual_point(problem, state)
        return stop_excess(problem, self, point, s, problem.certificate(point, s))

    def carries_weights(self, problem: Any) -> bool:
        """Whether its states have w of the primal in the space of the features, which no rounded variable spoils.

        With it comes `feature_weights(problem, state)`, `(d,)`, that of the constant last. Certificates put it beside
        the dual point where that falls short.
        """
        del problem
        return False

    def counted(self, state: Any, counters: Any) -> Any:
        """The state with other counters: of a start that goes on from somewhere."""
        return state._replace(counters=counters)

    def full(self, problem: Any, state: Any) -> Any:
        """Whether it has no room for another sample, `()`: what stands still then ends as FULL. False: never."""
        del problem, state
        return False

    def grown(self, problem: Any, state: Any) -> Any:
        """A configuration with more room, to go on at the certified point; None: as it is. For host drivers."""
        del problem, state

    def left(self, problem: Any, state: Any) -> tuple[Any, Any] | None:
        """Samples to go on with, and the values that the others keep, `(n,)`; None: all of them. For host drivers."""
        del problem, state

    @property
    def whole(self) -> Any:
        """The solver that goes on where one of fewer samples has ended."""
        return self

    def polish_interval(self, problem: Any) -> int | None:
        """Steps that earn a polish; None: the solver has none.

        With one come `polish(problem, state)`, and in pieces for the host driver `polish_begin(problem, state)`, a
        carry with `going`, `polish_step(problem, carry)` and `polish_end(problem, state, carry)`, a state.
        """
        del problem
        return None
