"""The contract between drivers and solvers.

Write a solver as a frozen dataclass that derives from `Solver`, register it as a pytree, and mark the fields that are
not traced as static. Add a line to `SOLVERS` in `tests/test_contract.py` to have it tested.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, cast

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxsvm.errors import InputError, is_concrete
from jaxsvm.numerics.precision import sums
from jaxsvm.problems.contract import CURVATURE_ROUNDINGS, PROBLEMS, Problem, SimplexForm
from jaxsvm.results.fit import Certificate, Counters, counted_by_name
from jaxsvm.runtime.arrays import Count, Number, require_one_of, require_positive, require_whole
from jaxsvm.solvers.start import StartLike, start

SIMPLEX = ("squared hinge", "ball")  # kinds whose dual points lie on the simplex
NEVER = 2**30  # a number of steps, or of certificates, that no fit reaches

CERTIFIED_GAP = "certified_gap"
STOP_RULES = (CERTIFIED_GAP, "relative_fw", "paper")
"""The certified relative gap of the problem (the default); `G <= tol R`; `G <= (2 tol + tol^2)(Delta^2 - R)`."""


def _of_steps(self: Any) -> Count:
    return self.steps


STEPS = property(_of_steps)
"""The `max_steps` of a solver that has a field `steps` instead."""

P = TypeVar("P", bound=Problem)
"""The form of problem that a solver takes, such as `BoxForm`. `solves` says the same to drivers, by kind."""


def is_negative(curvature: Array, scale: Any) -> Bool[Array, ""]:
    """Return whether a curvature is negative beyond the rounding of terms of this scale."""
    return curvature < -CURVATURE_ROUNDINGS * jnp.finfo(curvature.dtype).eps * scale


@dataclasses.dataclass(frozen=True)
class Traits:
    """What drivers and wrappers may do with a solver."""

    # whether drivers may pad concrete problems with absent samples (`jaxsvm.problems.padding`); set it where absent
    # samples cost little and random draws do not depend on n
    pads: bool = False
    long_steps: bool = True  # whether a step passes over all samples, so that on a CPU lanes gain nothing side by side
    # whether the state is large (kernel rows, say): the host driver then passes it on without a copy; `init` must then
    # create every array of the state: none may be an argument as it came
    large_state: bool = False
    # whether `init` uses the start that it is given; paths leave out what a rule proves even if not
    takes_start: bool = True
    # whether `init` takes a `Resumed`, all that is known of a fit, instead of weights; set it where step sizes or their
    # order depend on the number of steps so far, or where w is not made of the dual point
    resumes: bool = False
    carries_sums: bool = False  # whether every step keeps the products of its `dual_point` as exact as rounding permits
    knows_origin: bool = False  # whether `init` also takes an `Origin`, and compiles faster with it
    # whether w and dual variables are found apart: then the best of each are kept, and starts have both
    finds_both: bool = False


class HandOver(NamedTuple):
    """How a fit goes on from the point at which its solver leaves it; host drivers only."""

    solver: "Solver[Any]"  # the solver that goes on
    back: "Solver[Any] | None" = None  # the solver that follows if that one ends without a proof; None for none
    takes_state: bool = False  # whether the solver takes over the state too
    draws_anew: bool = False  # whether the solver needs a new random key


class Finisher(NamedTuple):
    """A solver that ends fits whose steps crawl, and the number of such steps that cost as much as it does."""

    solver: "Solver[Any]"
    after: int


class Solver(Generic[P]):
    """A solver's configuration. Implement `init`, `step`, `refresh` and `dual_point`; all else has a default.

    A state is a pytree with at least these fields:

    * `R`, `()`: it shows the driver whether anything moves and whether numbers are finite. Carry `problem.objective`
      in it, or a count, or a mean loss.
    * `indefinite`, `()`: whether a step met negative curvature.
    * `counters`, `jaxsvm.results.fit.Counters`: a step adds 1 to `steps`, and by `evaluated` the kernel evaluations
      that it asked for.

    Attributes:
        solves: Kinds of problems it takes, by their `kind`.
        tol: Threshold of the stop rule, > 0.
        max_steps: Maximum number of steps, >= 0; exact.
        check_every: Steps between tests of the running excess; static. 1 if a step costs as much as a certificate.
        refresh_every: Maximum number of steps between certificates; None for 4,000, or n where that is more; static.
        stop: The stop rule, one of `STOP_RULES`.
        unroll: Steps per turn of the inner loop. 2 saves a twentieth of a light step, 5 saves no more than that, and
            each copy of the step takes 0.1 s to compile; use 1 for heavy steps.
        patience: Certificates in a row without progress after which a fit is STALLED.
        traits: What drivers may do with it (`Traits`).
        final_check: "full", or "none" if the running excess may end a fit that no certificate confirms.
        rows: Rows of a dual point: 2 where w is not made of the dual variables.
        inside: The inner solver of a wrapper; None if there is none.
        bit: Its place in `Counters.solvers`, by which `Fit.solvers` names it, if given: unique, below `BIT_OF_OTHERS`.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]
    solves: ClassVar[tuple[str, ...]]
    tol: Number
    max_steps: Any  # `Count`, which may be a property
    check_every: int
    refresh_every: int | None
    stop: str = CERTIFIED_GAP
    unroll: int = 2
    patience: int = 3
    traits: Traits = Traits()
    final_check: str = "full"
    rows: int = 1
    bit: ClassVar[int]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "bit" in vars(cls):
            counted_by_name(cls)

    # What every solver implements.

    def init(self, problem: P, key: Array | None = None, init: "StartLike | None" = None) -> Any:
        """Return a state to start from.

        A solver that cannot keep `problem.equality` must refuse a problem that has a `free_bias`: `solves` does not
        distinguish these.

        Args:
            problem: The problem.
            key: A random key; None takes key 0.
            init: None for a fresh start; weights `(n,)`; or a `Start`, whose problem is known too
                (`jaxsvm.solvers.start` reads them: `weights_of`, and `starting_point` of a box problem).
        """
        raise NotImplementedError

    def step(self, problem: P, state: Any) -> Any:
        """Return the state after a step, without stop rule or output."""
        raise NotImplementedError

    def refresh(self, problem: P, state: Any) -> Any:
        """Recompute the parts of the state that accumulate rounding, in the precision of the given problem."""
        raise NotImplementedError

    def dual_point(self, problem: P, state: Any) -> tuple[Array, Array]:
        """Return a point for `problem.certified`, in numbers of the caller's dtype, and its products.

        By default these are `state.a` and `state.s`.
        """
        return state.a, state.s

    # What every solver may override.

    @property
    def inside(self) -> "Solver | None":
        """Return the inner solver of a wrapper; None if there is none."""
        return None

    def stores(self, problem: P) -> bool:
        """Return whether drivers should store all kernel values first, if the Gram operator permits."""
        return True

    def running_excess(self, problem: P, state: Any) -> Float[Array, ""]:
        """Return the stop rule's value over its threshold, from the running values of the state: it holds up to 1."""
        point, s = self.dual_point(problem, state)
        return stop_excess(problem, self, point, s, problem.certificate(point, s))

    def counted(self, state: Any, counters: Counters) -> Any:
        """Return the state with other counters, for a start that continues other steps."""
        return state._replace(counters=counters)

    def full(self, problem: P, state: Any) -> Any:
        """Return whether the state has no room for another sample, `()`: a fit without progress then ends as FULL."""
        return False

    def finisher(self, problem: P) -> Finisher | None:
        """Return the solver that ends fits on which steps crawl, such as Newton, and when it pays; None for none."""

    def hands_over(self, problem: P, state: Any, steps: float) -> HandOver | None:
        """Return how a fit goes on without further steps of this solver, or None; called by host drivers only.

        Args:
            problem: The problem.
            state: A concrete state.
            steps: The solver's steps so far, with those of the fits that this one continues, since a finisher came
                back; halved for each time that one did.
        """
        finisher = self.finisher(problem)
        return None if finisher is None or steps < finisher.after else HandOver(finisher.solver, back=self)

    # What comes in pairs: the first method says whether the solver has the others.

    def carries_weights(self, problem: P) -> bool:
        """Return whether states carry the primal's w in feature space, without the rounding of dual variables.

        Certificates use it where the dual point's own w is not good enough. The solver then has `feature_weights`.
        """
        return False

    def feature_weights(self, problem: P, state: Any) -> Float[Array, " d"]:
        """Return w in the space of the features, `(d,)`, the constant's weight last."""
        raise NotImplementedError


def stop_excess(
    problem: Problem, solver: Solver[Any], point: Array, s: Array, certificate: Certificate
) -> Float[Array, ""]:
    """Return the stop rule's value over its threshold: at most 1 if the rule holds.

    The dual point of a simplex problem may have any scale; s are its products.
    """
    tol = solver.tol
    rule = solver.stop
    if rule == CERTIFIED_GAP:
        return certificate.relative_gap / tol
    total = point.sum()
    alpha, s = point / total, s / total
    R = alpha @ s
    lowest = s.min() if problem.mask is None else jnp.where(problem.mask, s, jnp.inf).min()
    G = 2 * (R - lowest)
    if rule == "relative_fw":
        return G / (tol * jnp.abs(R))
    # Not a ratio of radii: in float32 that is a single ulp wide (docs/mathematics.md, Steps on the simplex).
    return G / ((2 * tol + tol**2) * (cast(SimplexForm, problem).diameter_squared - R))


def with_max_steps(solver: Solver[Any], most: int) -> Solver[Any]:
    """Return the solver with another cap on its steps; of a wrapper, with that of the solver inside."""
    if solver.inside is None or any(field.name == "max_steps" for field in dataclasses.fields(solver)):
        return dataclasses.replace(solver, max_steps=most)
    return dataclasses.replace(solver, solver=with_max_steps(solver.inside, most))


_ABSENT = object()


# --- configurations and problems that are refused


def require_usable(solver: Any) -> None:
    """Refuse a configuration that no driver can run, by each field of the solver and of the solver inside it."""
    if isinstance(solver, type) or not hasattr(solver, "tol"):
        shown = solver.__name__ if isinstance(solver, type) else repr(solver)
        raise InputError(f"solver is {shown}: a solver's configuration is needed, such as `jaxsvm.SMO(tol=1e-4)`.")
    for name, require in RULES.items():
        value = getattr(solver, name, _ABSENT)
        if value is not _ABSENT and (isinstance(value, int | float | str) or is_concrete(value)):
            require(name, value)
    inner = getattr(solver, "solver", None)  # of a wrapper
    if inner is not None:
        require_usable(inner)


def require_solves(solver: Solver, problem: Problem) -> None:
    """Refuse a problem of a kind that the solver is not for."""
    if problem.kind in solver.solves:
        return
    meant = " and ".join(PROBLEMS.get(kind, f"{kind} problems") for kind in solver.solves)
    raise InputError(
        f"{type(solver).__name__} is for {meant}, not for a {type(problem).__name__}: use `{problem.solved_by}`."
    )


def _from(least: int) -> Callable[[str, Any], None]:
    return lambda name, value: require_whole(name, value, least)


RULES: dict[str, Callable[[str, Any], None]] = {
    "stop": lambda name, value: require_one_of(name, value, STOP_RULES),
    "tol": require_positive,
    "inner_tol": require_positive,
    "radius": require_positive,
    "offset": lambda name, value: None if value is None else require_positive(name, value, or_zero=True),
    "margin": lambda name, value: require_positive(name, value, or_zero=True),
    "steps": _from(0),
    "max_steps": _from(0),
    "burn_in": _from(0),
    "polish_products": _from(0),
    "check_every": _from(1),
    "refresh_every": lambda name, value: None if value is None else require_whole(name, value, 1),
    "draw": _from(2),
}
"""The check of each field, by name, for any solver."""


# --- solvers on the simplex


class SimplexSolver(Solver[SimplexForm]):
    """A solver whose state is a point `alpha` of the simplex, with `s = Kt alpha`, `R = alpha . s` and `scale`.

    It implements `at` and `step`; `sampled` and `polished` go around it.
    """

    solves = SIMPLEX
    start: str = "uniform"  # "random", "two-point" or "uniform"
    draw: int = 20  # size of the random draw

    def at(self, alpha: Float[Array, " n"], s: Float[Array, " n"], counters: Counters) -> Any:
        """Return the state at a point `alpha` with `s = Kt alpha`."""
        raise NotImplementedError

    def wants_vertex(self, problem: SimplexForm, state: Any) -> Bool[Array, ""]:
        """Return whether the next step searches all samples for a vertex."""
        return jnp.asarray(True)

    def init(self, problem: SimplexForm, key: Array | None = None, init: "StartLike | None" = None) -> Any:
        return self.at(*start(problem, key, self.start, self.draw, init))

    def refresh(self, problem: SimplexForm, state: Any) -> Any:
        """Put alpha back on the simplex, and recompute `s` and `R`, which drift by rounding."""
        return state._replace(**simplex_point(problem, state.alpha, state.R))

    def place(self, problem: SimplexForm, state: Any, alpha: Float[Array, " n"], s: Float[Array, " n"]) -> Any:
        """Return the state moved to a point `alpha` with `s = Kt alpha`."""
        return state._replace(alpha=alpha, s=s, R=alpha @ s)

    def dual_point(self, problem: SimplexForm, state: Any) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        return state.scale * state.alpha, state.scale * state.s


def simplex_point(problem: SimplexForm, alpha: Float[Array, " n"], R: Float[Array, ""]) -> dict[str, Array]:
    """Recompute alpha, s, R and scale of a state, with alpha such that `scale alpha` are numbers of its dtype.

    The numbers `scale alpha` are the coefficients of a fit (`problem.returned`).
    """
    given = problem.returned(jnp.maximum(alpha, 0), R)
    wide = given.astype(problem.dtype)
    (total,) = sums(wide)
    alpha = wide / total
    s = problem.matvec(alpha)
    return {"alpha": alpha, "s": s, "R": sums(alpha * s)[0], "scale": total}
