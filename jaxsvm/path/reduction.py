"""Reductions: leave samples out of the next problem of a path, by a heuristic or a safe rule.

A reduction sees a solved problem, its fit (and so its gap), and the problem to be solved next. Samples that it leaves
out keep the values that it gives them. The problem of the others (`problem.restrict`) is solved first, and the whole
one from there: results are right whether the reduction is or not, which only decides how much time it saves.
"""

import dataclasses
from typing import Any, NamedTuple, Protocol

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxsvm.numerics.sizes import class_of, filled
from jaxsvm.problems.contract import Restrictable
from jaxsvm.results.fit import Fit


class Kept(NamedTuple):
    """The samples that a reduction keeps.

    Attributes:
        kept: Samples to solve for, `(n,)`.
        fixed: Values of the others in the next problem, `(n,)`: 0, or anything within the bounds if it is `bounded`.
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
    """Keep the samples between their bounds; leave the others at the same bound of the next problem.

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
    """Keep the samples within a distance of the margin; leave the others at their bounds.

    A heuristic: solving the whole problem corrects its mistakes.

    Attributes:
        distance: Largest distance of a margin `y_i f(x_i)` from its target (1; of a box `q_i`), >= 0.
    """

    distance: float = 0.5

    def __call__(self, old: Restrictable, fit: Fit, new: Restrictable) -> Kept:
        """Return the samples near the margin: far beyond it alpha is 0, far inside at its bound, if any."""
        margins, targets = np.asarray(fit.margins), np.asarray(old.targets)
        near = np.abs(margins - targets) <= self.distance
        if not old.bounded:
            near |= margins < targets
        least = at_bounds(old, fit, new)
        return least._replace(kept=least.kept | near)


def samples_of(kept: Kept, n: int, present: Any) -> np.ndarray | None:
    """Return the indices of the kept samples, filled up to one of few sizes; None if that is all of them."""
    chosen = np.asarray(kept.kept) & np.asarray(present)
    size = class_of(chosen.sum(), n)
    return None if size == n else filled(chosen, np.asarray(present), size)
