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
from jaxsvm.result import Fit


class Kept(NamedTuple):
    """What a reduction says.

    Attributes:
        kept: Samples whose values are still to be found, `(n,)`.
        fixed: A dual point of the next problem, `(n,)`: the values that the others keep.
    """

    kept: Bool[Array, " n"]
    fixed: Float[Array, " n"]


class Reduction(Protocol):
    """`reduction(old, fit, new) -> Kept`, for problems with concrete values."""

    def __call__(self, old: Any, fit: Fit, new: Any) -> Kept:
        """What of `new` can be left out, knowing `fit` of `old`.

        `fit.alpha` is the problem's own dual point (on a simplex it sums to 1), `fit.margins` in primal scale:
        `fit.R * fit.margins` are `old.margins` of that point.
        """
        ...


@dataclasses.dataclass(frozen=True)
class NearMargin:
    """Samples within a distance of the margin are kept; the others stay at the bound at which they are.

    A heuristic: what turns out to be wrong is mended on the whole problem.

    Attributes:
        distance: How far from 1 (of a box from `q_i`) a margin `y_i f(x_i)` may be, >= 0.
    """

    distance: float = 0.5

    def __call__(self, old: Any, fit: Fit, new: Any) -> Kept:
        """Far beyond the margin alpha is 0; far inside it is at its bound, where there is one."""
        margins, alpha = np.asarray(fit.margins), np.asarray(fit.alpha)
        kink = np.asarray(old.q) if old.kind == "box" else 1.0
        near = (np.abs(margins - kink) <= self.distance) | ((margins < kink) & (old.kind != "box"))
        if old.kind == "box":
            upper = np.asarray(old.upper)
            at_bound = (alpha >= upper) & (upper > 0)
            inside = (alpha > 0) & ~at_bound
            fixed = np.where(at_bound, np.asarray(new.upper), 0)
            return Kept(jnp.asarray(near | inside), jnp.asarray(fixed))
        return Kept(jnp.asarray(near | (alpha > 0)), jnp.asarray(np.zeros_like(alpha)))


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
