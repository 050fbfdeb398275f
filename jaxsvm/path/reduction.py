"""What leaves samples out of the next problem of a path: the interface of heuristics and of safe rules alike.

A reduction sees a solved problem, its fit (and so its gap), and the problem to be solved next. What it leaves out keeps
the value that it is given; the problem of the others (`problem.restrict`) is solved first, and the whole one from
there, so that no answer rests on the reduction being right: it saves time, or does not.
"""

import dataclasses
from typing import Any, NamedTuple, Protocol

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxsvm.numerics.sizes import size_classes
from jaxsvm.problems.contract import Restrictable
from jaxsvm.results.fit import Fit


class Kept(NamedTuple):
    """What a reduction says.

    Attributes:
        kept: Samples whose values are still to be found, `(n,)`.
        fixed: The values that the others keep in the next problem, `(n,)`: 0, or where it is `bounded` anything within
            its bounds.
    """

    kept: Bool[Array, " n"]
    fixed: Float[Array, " n"]


class Reduction(Protocol):
    """A callable `reduction(old, fit, new) -> Kept`, for `Restrictable` problems with concrete values."""

    def __call__(self, old: Restrictable, fit: Fit, new: Restrictable) -> tuple[Array, Array]:
        """Return the samples of `new` to keep and the values of the others (`Kept`), from the fit of `old`.

        Args:
            old: The problem that was solved.
            fit: Its fit. `fit.alpha` is the problem's own dual point (on a simplex it sums to 1), `fit.margins` are in
                primal scale: `fit.R * fit.margins` are `old.margins` of that point.
            new: The problem to solve next.
        """
        ...


def at_bounds(old: Restrictable, fit: Fit, new: Restrictable) -> Kept:
    """Whatever is at a bound stays there, at the bound of the next problem; what is inside is kept.

    Most reductions keep these and some more: `least._replace(kept=least.kept | more)`.
    """
    alpha = np.asarray(fit.alpha)
    if not old.bounded:
        return Kept(jnp.asarray(alpha > 0), jnp.zeros_like(fit.alpha))
    upper = np.asarray(old.upper)
    full = (alpha >= upper) & (upper > 0)
    return Kept(jnp.asarray((alpha > 0) & ~full), jnp.asarray(np.where(full, np.asarray(new.upper), 0)))


@dataclasses.dataclass(frozen=True)
class NearMargin:
    """Samples within a distance of the margin are kept; the others stay at the bound at which they are.

    A heuristic: what turns out to be wrong is mended on the whole problem.

    Attributes:
        distance: How far from its target (1; of a box `q_i`) a margin `y_i f(x_i)` may be, >= 0.
    """

    distance: float = 0.5

    def __call__(self, old: Restrictable, fit: Fit, new: Restrictable) -> Kept:
        """Far beyond the margin alpha is 0; far inside it is at its bound, where there is one."""
        margins, targets = np.asarray(fit.margins), np.asarray(old.targets)
        near = np.abs(margins - targets) <= self.distance
        if not old.bounded:
            near |= margins < targets
        least = at_bounds(old, fit, new)
        return least._replace(kept=least.kept | near)


def samples_of(kept: Kept, n: int, present: Any) -> np.ndarray | None:
    """Indices of what is kept, filled up to one of few sizes, so that few programs are compiled; None: all of them."""
    chosen, present = np.asarray(kept.kept), np.asarray(present)
    count = int((chosen & present).sum())
    size = min(size for size in size_classes(n) if size >= count)
    if size == n:
        return None
    # Those kept first, absent ones last.
    order = np.argsort(np.where(chosen & present, 0, np.where(present, 1, 2)), kind="stable")
    return np.sort(order[:size])
