"""How a fit ended, and what a user can do about it."""

import dataclasses
import enum
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from jaxsvm.errors import is_concrete
from jaxsvm.runtime.arrays import in_a_line


class Status(enum.IntEnum):
    """How a fit ended. Compiled code carries the integer, one a lane; `Fit.status.name` is for the host."""

    RUNNING = 0
    """Not ended; only callbacks see it."""
    CONVERGED = 1
    """The certified relative gap, of values recomputed from scratch, is at most `tol`: always, and for every stop
    rule."""
    STALLED = 2
    """Steps no longer change anything and the rule does not hold: the precision of the dtype is reached. The
    certificate holds the gap that was reached."""
    MAX_STEPS = 3
    """The maximal number of steps was reached first."""
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

    def __int__(self) -> int:
        return int(self.code)

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


def has_values(tree: Any) -> bool:
    """Return whether every leaf is an array with concrete values: none is traced, a shape or a placeholder."""
    leaves = jax.tree.leaves(tree)
    arrays = (jax.Array, np.ndarray, np.generic, int)
    return bool(leaves) and is_concrete(leaves) and all(isinstance(leaf, arrays) for leaf in leaves)


LIMITS: dict[str, tuple[int, str]] = {}
"""Of each solver class its layer, and how to name a limit of its steps; of a wrapper around `solver` by `name`."""


def limited(solver: Any) -> None:
    """Register how a solver's class takes a larger number of steps: for `advice`, which sees names alone."""
    if not hasattr(solver, "max_steps"):
        return
    made_by, own = getattr(solver, "made_by", None), vars(solver).get("max_steps")
    field = "steps" if isinstance(getattr(solver, "max_steps", None), property) else "max_steps"
    text = f"{solver.__name__}({field}=...)"
    if made_by is not None:
        text = f"{made_by}({{solver}})" if own is None else f"{made_by}({{name}}(), max_steps=...)"
    LIMITS[solver.__name__] = getattr(solver, "layer", 0), text


def _with_more_steps(names: list[str]) -> list[str]:
    """Return configurations with more steps: of each solver, within the wrappers around it."""
    texts: list[str] = []
    for layer, text in sorted(LIMITS[name] for name in names if name in LIMITS):
        around = [text.format(solver=inner, name=inner.partition("(")[0]) for inner in texts]
        texts = around if layer else [*texts, text]
    return texts


def advice(status: Status, fit: Any = None) -> str:
    """Advise in a sentence what a user can do about a status; with a fit, or those of several values, in its terms."""
    fit = getattr(fit, "fits", fit)  # those of a path
    x64 = jax.config.read("jax_enable_x64")  # without it NumPy's float64 becomes float32
    single = fit.margins.dtype != np.float64 if hasattr(fit, "margins") else not x64
    double = "" if x64 else ' (after jax.config.update("jax_enable_x64", True))'
    names = [name for name in getattr(fit, "solvers", ()) if name in LIMITS] or ["InteriorPoint"]
    larger = " or ".join(f"`fit(problem, {text})`" for text in _with_more_steps(names))
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
        Status.STALLED: "Rounding permits no smaller gap: scale features where columns differ much, take a smaller C, "
        f"{wide}or a larger tol; a large C may need both scaling and float64. "
        "For a linear SVM `jaxsvm.designs.fit` gets further.",
        Status.MAX_STEPS: f"Allow more steps ({larger}), pass this fit as `init` to go on, loosen tol, or scale the "
        "features.",
        Status.NOT_FINITE: "Look for overflow in the kernel (unscaled features, a high degree) and scale the data.",
        Status.NOT_PSD: "Choose a positive semidefinite kernel: the sigmoid is one for few parameters only.",
        Status.INFEASIBLE: "C must be positive, weights non-negative and both classes present.",
        Status.INTERRUPTED: "Pass this fit as `init` to go on.",
        Status.FULL: "More samples have to be active than the buffer of `sampled` holds: name a larger `capacity`.",
        Status.UNCERTIFIED: 'The rule asked for holds and proves no gap: take stop="certified_gap" and a full check.',
    }.get(status, "")
