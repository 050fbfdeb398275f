"""The result of a solver: its solution, the certificate of its quality, and how the solver ended."""

import dataclasses
import enum
import time
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxsvm.errors import ConvergenceError, InputError, is_concrete, require_part
from jaxsvm.runtime.arrays import has_values, in_a_line


class Status(enum.IntEnum):
    """How a fit ended. In arrays, and printed, it is an integer: `Status(3).name` or `Fit.status.name` is its name."""

    RUNNING = 0
    """Not ended; only callbacks see it."""
    CONVERGED = 1
    """The certified relative gap, of values recomputed from scratch, is at most `tol`: always, and for every stop
    rule."""
    STALLED = 2
    """Steps no longer change anything and the rule does not hold: the precision of the dtype is reached. The
    certificate holds the gap that was reached."""
    MAX_STEPS = 3
    """The maximal number of steps was reached first, or would be at the rate of the last steps."""
    NOT_FINITE = 4
    """NaN or infinity appeared; the last finite certified point is returned."""
    NOT_PSD = 5
    """A direction of negative curvature appeared: the kernel is not positive semidefinite."""
    INFEASIBLE = 6
    """The problem has no solution: C <= 0, only one class, or no positive weight (under tracing only; concrete values
    raise `InputError`)."""
    INTERRUPTED = 7
    """Ctrl-C, a callback or `max_seconds` ended it; the last certified point is returned and can be resumed."""
    UNCERTIFIED = 8
    """The requested stop rule proves nothing (`stop="paper"`, `stop="relative_fw"`, a sampled stop without a final
    check) and ended the fit with a certified relative gap above `tol`. The certificate holds that gap."""
    FULL = 9
    """The buffer of a `sampled` solver is too small for the samples that have to be active."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class StatusCode:
    """The status of a fit, or of each lane: an integer array that prints and compares as `Status` on the host.

    Attributes:
        code: int32, `()`, or `(k,)` for k lanes.
    """

    code: Int[Array, "..."]

    @property
    def name(self) -> Any:
        """Return the name, on the host: a string, or an array of strings for lanes."""
        names = np.vectorize(lambda code: Status(code).name, otypes=[object])(np.asarray(self.code))
        return str(names) if names.ndim == 0 else names

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the lanes."""
        return jnp.shape(self.code)

    def __getitem__(self, lane: Any) -> "StatusCode":
        return StatusCode(self.code[lane])

    def __len__(self) -> int:
        return len(self.code)

    def __eq__(self, other: object) -> Any:
        return self._comparable() == (other._comparable() if isinstance(other, StatusCode) else other)

    def __ne__(self, other: object) -> Any:
        return self._comparable() != (other._comparable() if isinstance(other, StatusCode) else other)

    def _comparable(self) -> Any:
        """Return the code, as a NumPy array if it is concrete: JAX would compile the comparison."""
        return np.asarray(self.code) if is_concrete(self.code) else self.code

    __hash__ = None  # pyright: ignore[reportAssignmentType]  # an array by nature

    def __index__(self) -> int:
        return int(self.code)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.code, dtype=dtype, copy=copy)

    def __jax_array__(self) -> Array:
        return self.code

    def __repr__(self) -> str:
        """Name the status; of lanes, count each status; while there are no values, show the array."""
        if not has_values(self.code):
            return in_a_line(self)
        return f"Status.{self.name}" if np.ndim(self.code) == 0 else f"Status({self.tally()})"

    def tally(self) -> str:
        """Count the lanes of each status, such as "9 CONVERGED, 1 STALLED", on the host."""
        names = np.ravel(self.name).tolist()
        return ", ".join(f"{names.count(name)} {name}" for name in dict.fromkeys(names))


def _with_more_steps(names: Any) -> list[str]:
    """Return configurations with more steps: of each solver, within the wrappers around it."""
    texts: list[str] = []
    for solver in sorted(_SOLVERS.values(), key=lambda solver: getattr(solver, "layer", 0)):
        if solver.__name__ in names and hasattr(solver, "max_steps"):
            if getattr(solver, "layer", 0) == 0:
                field = "steps" if isinstance(solver.max_steps, property) else "max_steps"
                texts.append(f"{solver.__name__}({field}=...)")
            elif "max_steps" in vars(solver):  # its own
                texts = [f"{solver.made_by}({inner.partition('(')[0]}(), max_steps=...)" for inner in texts]
            else:
                texts = [f"{solver.made_by}({inner})" for inner in texts]
    return texts


def advice(status: Status, fit: Any = None) -> str:
    """Advise in a sentence what a user can do about a status; with a fit, or those of several values, in its terms."""
    fit = getattr(fit, "fits", fit)  # those of a path
    x64 = jax.config.read("jax_enable_x64")  # without it NumPy's float64 becomes float32
    single = fit.margins.dtype != np.float64 if hasattr(fit, "margins") else not x64
    double = "" if x64 else ' (after jax.config.update("jax_enable_x64", True))'
    longer = _with_more_steps(getattr(fit, "solvers", ())) or ["InteriorPoint(max_steps=...)"]
    larger = " or ".join(f"`fit(problem, {text})`" for text in longer)
    larger = f"{larger}; `max_passes=` of `designs.fit`" if not hasattr(fit, "solvers") else larger
    several = np.ndim(getattr(getattr(fit, "status", None), "code", 0)) > 0
    wide = f"float64 data{double} " if single else ""
    if several and status in (Status.MAX_STEPS, Status.INTERRUPTED):
        more = "Allow more time, or pass one of the fits as `init` to `jaxsvm.fit`, to go on."
        smaller = (
            f"Take smaller values of C, scaled features, {wide}or a larger tol; a `solver` that you name, more steps."
        )
        return more if status == Status.INTERRUPTED else smaller
    return {
        Status.STALLED: "Rounding of dual variables permits no smaller gap: scale features where columns differ much "
        f"(a linear SVM: `jaxsvm.designs.fit` gets further), take a smaller C, {wide}or a larger tol; a large C may "
        "need both scaling and float64.",
        Status.MAX_STEPS: f"Allow more steps than asked for ({larger}; a fit ends early if its rate would meet the cap "
        "first), pass this fit as `init` to go on, loosen tol, or scale the features.",
        Status.NOT_FINITE: "Look for overflow in the kernel (unscaled features, a high degree) and scale the data.",
        Status.NOT_PSD: "Choose a positive semidefinite kernel: the sigmoid is one for few parameters only.",
        Status.INFEASIBLE: "C must be positive, weights non-negative and both classes present.",
        Status.INTERRUPTED: "Pass this fit as `init` to go on.",
        Status.FULL: "More samples have to be active than the buffer of `sampled` holds: name a larger `capacity`.",
        Status.UNCERTIFIED: 'The rule asked for holds and proves no gap: take stop="certified_gap" and a full check.',
    }.get(status, "")


class Values(NamedTuple):
    """The fields of a `Fit` that have derivatives."""

    alpha: Float[Array, " n"]
    dual_coef: Float[Array, " n"]
    bias: Float[Array, ""]
    R: Float[Array, ""]
    margins: Float[Array, " n"]


class Active(NamedTuple):
    """Samples whose coefficients solve the linear system, and those that stay at their upper bound: `(n,)` each.

    `present` holds coefficients, `(n,)`: free samples that depend linearly on others keep theirs. None if no system can
    be singular.
    """

    free: Bool[Array, " n"]
    bound: Bool[Array, " n"]
    present: Any = None


def values_of(fit: Any) -> Values:
    """Return the values of a fit."""
    return Values(*(getattr(fit, name) for name in Values._fields))


class Point(NamedTuple):
    """A solution: coefficients `(n,)`, the multiplier b of the equality `()`, and products `Q a + b c`, `(n,)`."""

    a: Float[Array, " n"]
    b: Float[Array, ""]
    products: Float[Array, " n"]


class Certificate(NamedTuple):
    """A proof of quality: `dual <= optimum <= primal`.

    Attributes:
        primal: Objective at the primal point, `()`.
        dual: Objective at the dual point, `()`.
        relative_gap: `primal / dual - 1`, `()`, computed without that cancellation and with an allowance for the
            rounding of the dtype; infinite if `dual <= 0`.
    """

    primal: Float[Array, "..."]
    dual: Float[Array, "..."]
    relative_gap: Float[Array, "..."]


class Answer(NamedTuple):
    """A solution in the numbers that the caller gets, as in a `Fit`, with the certificate of exactly these numbers."""

    alpha: Float[Array, "... n"]
    dual_coef: Float[Array, "... n"]
    bias: Float[Array, "..."]
    R: Float[Array, "..."]
    margins: Float[Array, "... n"]
    certificate: Certificate  # primal of `dual_coef` and `bias`, dual of `alpha`, with an allowance for rounding

    def fit(self, code: Any, counters: "Counters") -> "Fit":
        """Build the fit with this solution; `code` says how it ended."""
        return Fit(**self._asdict(), status=StatusCode(code), counters=counters)


BIT_OF_OTHERS = 18
"""The bit in `Counters.solvers` of solver classes without a name there, such as a user's own."""
_SOLVERS: dict[int, Any] = {}


def counted_by_name(solver: type) -> type:
    """Register a solver class under its unique `bit`, so that `Fit.solvers` can name it; return the class."""
    known = _SOLVERS.setdefault(vars(solver)["bit"], solver)
    if known.__name__ != solver.__name__:
        raise TypeError(f"{solver.__name__}.bit is that of {known.__name__}.")
    return solver


def bit_of(solver: Any) -> np.ndarray:
    """Return the bit of a solver's class, int32 `()`; a wrapper adds the bit of the solver `inside`."""
    inside = solver.inside
    bit = np.asarray(1 << vars(type(solver)).get("bit", BIT_OF_OTHERS), np.int32)
    return bit if inside is None else bit | bit_of(inside)


def total_of(limbs: Any) -> int | Int[np.ndarray, "..."]:
    """Join two limbs `(..., 2)` of 2**20 into one number, on the host: an int, or an int64 array for lanes."""
    wide = np.asarray(limbs, dtype=np.int64)
    total = wide[..., 0] * 2**20 + wide[..., 1]
    return int(total) if total.ndim == 0 else total


def limbs_of(total: Any) -> np.ndarray:
    """Split numbers, on the host, into two limbs `(..., 2)` of 2**20, int32: 32 bits alone would not hold them."""
    return np.stack(np.divmod(total, 2**20), axis=-1).astype(np.int32)


class Counters(NamedTuple):
    """The work that a solver did.

    Attributes:
        steps: Steps taken, int32 `()`.
        toward: Steps toward a vertex (pair steps count here), int32 `()`.
        away: Steps away from a vertex, int32 `()`.
        drops: Steps that set a weight to exactly 0, int32 `()`.
        alone: Steps since another solver last finished for this one, with those of the fits that this one continued,
            int32 `()`. They count toward the next time in a fit that continues this one (`init=`).
        evaluations: Kernel evaluations requested, in two limbs `(high, low)` of 2**20, int32 `(2,)`; read them with
            `total` or `Fit.kernel_evaluations`.
        solvers: One bit for each solver that took steps, int32 `()`; read it with `Fit.solvers`.
    """

    steps: Int[Array, "..."]
    toward: Int[Array, "..."]
    away: Int[Array, "..."]
    drops: Int[Array, "..."]
    alone: Int[Array, "..."]
    evaluations: Int[Array, "... 2"]
    solvers: Int[Array, "..."]

    @property
    def total(self) -> int | Int[np.ndarray, "..."]:
        """Count the kernel evaluations requested, on the host: an int, or an int64 array for lanes."""
        return total_of(self.evaluations)

    @staticmethod
    def zero() -> "Counters":
        """Return counters that are all 0."""
        nothing = jnp.zeros((), jnp.int32)
        return Counters(nothing, nothing, nothing, nothing, nothing, jnp.zeros((2,), jnp.int32), nothing)

    def plus(self, later: "Counters") -> "Counters":
        """Add, on the host, the counters of later steps; `alone` is taken from them."""
        first, second = (jax.tree.map(np.asarray, counters) for counters in (self, later))
        return jax.tree.map(lambda a, b: jnp.asarray(a + b), first, second)._replace(
            evaluations=jnp.asarray(limbs_of(first.total + second.total)),
            alone=later.alone,
            solvers=jnp.asarray(first.solvers | second.solvers),
        )

    def stepped(self, evaluations: Any, toward: Any = True, times: int = 1) -> "Counters":
        """Count a step, `evaluations * times` kernel evaluations, and what it adds to `toward`."""
        toward = self.toward + jnp.asarray(toward, jnp.int32)
        return self._replace(steps=self.steps + 1, toward=toward).evaluated(evaluations, times)

    def evaluated(self, count: Any, times: int = 1) -> "Counters":
        """Add `count * times` kernel evaluations; each is below 2**20 if there are both, and count below 2**30."""
        coarse, fine = (count >> 10) * times, (count & 1023) * times  # their product may exceed 32 bits
        low = self.evaluations[1] + jnp.asarray(((coarse & 1023) << 10) + fine, jnp.int32)
        limbs = jnp.stack([self.evaluations[0] + jnp.asarray(coarse >> 10, jnp.int32) + (low >> 20), low & (2**20 - 1)])
        return self._replace(evaluations=limbs)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Fit:
    """A solved problem with its certificate. A pytree; under `vmap` every field has lanes first.

    Attributes:
        alpha: Dual variables of the problem, `(n,)`: on the simplex for `svm_problem`, in a box for hinge problems.
        dual_coef: Coefficients of the decision function in primal scale, `(n,)`: `K(x_new, x) @ dual_coef + bias` is
            calibrated (margin 1), with K of points as the Gram operator holds them (float32 without x64).
        bias: Constant of the decision function, primal scale, `()`.
        R: `alpha' Kt alpha`, `()`: the scale between the paper's `h` and the calibrated decision function; 1 for hinge
            problems.
        margins: `y_i f(x_i)` of the returned decision function, computed from scratch, `(n,)`; for a ball `Q alpha`.
        certificate: Primal, dual and relative gap.
        status: How the fit ended; prints as a name, or as counts of lanes. `.name`; `.code`: integers of `Status`.
        counters: Steps by kind and kernel evaluations.
    """

    alpha: Float[Array, "... n"]
    dual_coef: Float[Array, "... n"]
    bias: Float[Array, "..."]
    R: Float[Array, "..."]
    margins: Float[Array, "... n"]
    certificate: Certificate
    status: StatusCode
    counters: Counters

    @property
    def steps(self) -> Int[Array, "..."]:
        """Return the number of steps taken, `()` or one a lane."""
        return self.counters.steps

    @property
    def kernel_evaluations(self) -> int | Int[np.ndarray, "..."]:
        """Count the kernel evaluations requested, on the host: an int, or an int64 array for lanes."""
        return self.counters.total

    @property
    def solvers(self) -> tuple[str, ...]:
        """Return the class names of the solvers that took steps, on the host; `fit(problem)` may use several.

        `"another"` is a solver of the user's own. For lanes, the solvers of all of them; empty if no driver ran.
        """
        bits = int(np.bitwise_or.reduce(np.ravel(np.asarray(self.counters.solvers))))
        bits_set = (k for k in range(BIT_OF_OTHERS + 1) if bits >> k & 1)
        return tuple(_SOLVERS[k].__name__ if k in _SOLVERS else "another" for k in bits_set)

    @property
    def support(self) -> Int[np.ndarray, " s"]:
        """Return the indices of the samples in the decision function, on the host; for a single fit."""
        return np.flatnonzero(np.asarray(self.dual_coef))

    def __repr__(self) -> str:
        """Summarise the fit in a line; list its arrays while they have no values."""
        if not has_values(self):
            return in_a_line(self)
        if np.ndim(self.alpha) != 1:
            return f"Fit(lanes {np.shape(self.alpha)[:-1]}: {outcomes(self)})"
        primal, dual = (float(value) for value in self.certificate[:2])
        return (
            f"Fit({outcomes(self)}, optimum in [{dual:.6g}, {primal:.6g}], {len(self.support)} of "
            f"{np.shape(self.alpha)[0]} samples in the support, {int(self.steps)} steps)"
        )


def outcomes(fit: Fit) -> str:
    """Describe how a fit or its lanes ended, with the largest relative gap."""
    gaps = np.ravel(np.asarray(fit.certificate.relative_gap))
    alone = len(gaps) == 1
    ends = np.ravel(fit.status.name)[0] if alone else fit.status.tally()
    return f"{ends}, relative gap {'' if alone else 'up to '}{gaps.max():.1e}"


Certified = TypeVar("Certified")
"""A fit, fits in lanes, or what holds them."""


def require_fit(fit: Any, name: str = "fit") -> None:
    """Refuse an argument that is no fit."""
    require_part(name, fit, "dual_coef", "a fit is needed, such as `jaxsvm.fit(problem)`, or path[0] of a path")


def check(fit: Certified) -> Certified:
    """Raise unless every lane of a fit, or of a path of fits, is certified; return it, so that calls chain.

    Raises:
        ConvergenceError: If a status is not CONVERGED; the message names the lanes, their status and their gap.
        InputError: Inside `jit` or `vmap`, where the status is not known yet.
    """
    found: Any = fit
    require_part("fit", fit, "status", "a fit, or a path of fits, is needed")
    if not is_concrete(found.status.code):
        raise InputError("fit is being traced: call `check` outside jit and vmap; inside, return `fit.status`.")
    codes, gaps = np.asarray(found.status.code), np.asarray(found.certificate.relative_gap)
    failed = [tuple(lane) for lane in np.argwhere(codes != Status.CONVERGED).tolist()]
    if not failed:
        return fit
    ends = []
    for lane in failed[:8]:
        name = f"lane {lane[0] if len(lane) == 1 else lane}: " if codes.size > 1 or codes.ndim > 1 else ""
        ends.append(f"{name}{Status(codes[lane]).name}, relative gap {gaps[lane]:.3g}")
    more = f" and {len(failed) - 8} more" if len(failed) > 8 else ""
    raise ConvergenceError(f"{'; '.join(ends)}{more}. {advice(Status(codes[failed[0]]), fit)}")


def _column(place: int, meaning: str) -> Any:
    def column(self: "History") -> np.ndarray:
        return np.array([line[place] for line in self.lines])

    return property(column, doc=f"{meaning}, `(calls,)`.")


class History:
    """A callback that keeps a line a call: `history = History(); jaxsvm.fit(problem, callback=history)`.

    It runs on the host between chunks of steps, and computes nothing.

    Attributes:
        lines: `(seconds, steps, kernel evaluations, primal, dual, relative gap, R, support size, steps toward, away,
            drops)` at each call: bounds, gap, R and support of the best certified point so far; seconds since this
            history was made: of a first fit compilation too, so fit twice.
    """

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.lines: list[tuple[Any, ...]] = []

    def __call__(self, fitted: Fit) -> None:
        """Keep a line; `fit` calls this."""
        primal, dual, gap = (float(part) for part in fitted.certificate)
        counted, spent = fitted.counters, time.perf_counter() - self.started
        kinds = (int(count) for count in (counted.toward, counted.away, counted.drops))
        work = int(fitted.steps), int(fitted.kernel_evaluations), primal, dual, gap
        self.lines.append((spent, *work, float(fitted.R), len(fitted.support), *kinds))

    def __len__(self) -> int:
        return len(self.lines)

    seconds: np.ndarray = _column(0, "Seconds since this history was made")
    steps: np.ndarray = _column(1, "Steps taken")
    kernel_evaluations: np.ndarray = _column(2, "Kernel values computed")
    primal: np.ndarray = _column(3, "Primal values")
    dual: np.ndarray = _column(4, "Dual values")
    relative_gap: np.ndarray = _column(5, "Certified relative gaps")
    R: np.ndarray = _column(6, "Values of `Fit.R`")
    support_size: np.ndarray = _column(7, "Samples with a positive dual variable")
    toward: np.ndarray = _column(8, "Steps toward a vertex, pair steps included, so far")
    away: np.ndarray = _column(9, "Steps away from a vertex so far")
    drops: np.ndarray = _column(10, "Steps so far that set a weight to 0")
