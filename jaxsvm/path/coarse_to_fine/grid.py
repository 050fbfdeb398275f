"""Order the values of C of one problem: anchors first, then the values between them."""

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxsvm.gram.signed import SignedGram
from jaxsvm.path.coarse_to_fine.block_newton import BlockNewton
from jaxsvm.path.measured import MEASURED
from jaxsvm.problems.squared_hinge import SquaredHingeProblem, reciprocals
from jaxsvm.runtime.programs import Program


class Point(NamedTuple):
    """A dual point in primal scale, and the work that it took.

    Attributes:
        x: Coefficients, not negative, `(n,)`.
        f: Margins, `(n,)`.
        steps: Pair steps or Newton rounds.
        evaluations: Kernel evaluations.
        carried: Steps for which f was carried along since it was computed from scratch; None if it is not known for all
            samples.
    """

    x: Float[Array, " n"]
    f: Float[Array, " n"]
    steps: int
    evaluations: int
    carried: int | None = None


class Grid:
    """One problem at increasing values of C, and the points of those that are solved.

    Below, c is `C mean(K_ii)`. A solution moves with 1/C if c exceeds 10, with log C if it is smaller: the path is
    nearly straight in `log(c / (c + 10))`, which takes up to two decades off the error of a mean in log C for C > 30.

    Attributes:
        problems: The problems, all on one Gram operator.
        logs: Logarithms of C, `(k,)`.
        times: Their positions `log(c / (c + 10))` on the path, `(k,)`.
        easy: How many values may be lanes of the block Newton method, which is reliable for them.
        uniform: How many may start with equal weights (c <= 0.3): half of the steps from 0.
        free: How many, from the top, are solved by the mean of two solved anchors without steps (c > 3).
        steep: How many, from the top, need so many pair steps that working sets are faster (c > 30): their number
            hardly grows with C.
        points: Dual points of solved values, by place.
    """

    def __init__(self, problems: list[SquaredHingeProblem], Cs: np.ndarray) -> None:
        self.problems = problems
        self.logs = np.log(Cs)
        self.points: dict[int, Point] = {}
        first = problems[0]
        ridge = np.asarray(first.ridge)
        kernel = float(np.asarray(first.squares).mean()) - first.offset
        penalty = float((1 / ridge[ridge > 0]).mean() / Cs[0])
        scaled = Cs * penalty * max(kernel, 1e-30)
        self.times = np.log(scaled / (scaled + 10.0))
        exact = first.gram.rank is not None and first.gram.rank <= 2 * BlockNewton().rank
        self.easy = len(Cs) if exact else int((scaled <= MEASURED.easy_scaled_C).sum())
        self.free = int((scaled > 3.0).sum())
        self.uniform = int((scaled <= 0.3).sum())
        self.steep = int((scaled > 30.0).sum())

    def between(self, a: int, b: int, place: int) -> float:
        """Return the position of a place between two others on the path: 0 at a, 1 at b, above 1 beyond b."""
        length = self.times[b] - self.times[a]  # 0 for values so large that the path no longer moves
        return float((self.times[place] - self.times[a]) / length) if length > 0 else 0.5


def anchors(logs: np.ndarray) -> list[int]:
    """Return places at most a factor 5 in C apart, if the grid allows it, with both ends; logarithms must increase."""
    places = [0] if len(logs) else []
    while places and places[-1] < len(logs) - 1:
        reach = int(np.searchsorted(logs, logs[places[-1]] + np.log(5.0) + 1e-9, side="right")) - 1
        places.append(max(reach, places[-1] + 1))
    return places


def middles(places: list[int]) -> Iterator[list[tuple[int, int, int]]]:
    """Yield the places between anchors as levels of (middle, left, right); each level needs only earlier ones."""
    gaps = list(zip(places, places[1:], strict=False))
    while gaps := [(a, b) for a, b in gaps if b - a > 1]:
        yield [((a + b) // 2, a, b) for a, b in gaps]
        gaps = [half for a, b in gaps for half in ((a, (a + b) // 2), ((a + b) // 2, b))]


@Program
def mean_point(x_a: Array, f_a: Array, x_b: Array, f_b: Array, weight: Any) -> tuple[Array, Array]:
    """Return the point between two (beyond them for a weight outside [0, 1]) and its margins."""
    return x_a + weight * (x_b - x_a), f_a + weight * (f_b - f_a)


class Lanes(NamedTuple):
    """The problems in the lanes and their points: signs, ridge, coefficients and margins, `(n, L)` each."""

    y: Array
    ridge: Array
    c: Array
    f: Array


@Program
def assess(template: SquaredHingeProblem, lanes: Lanes) -> tuple[Array, Array, Float[Array, " L"]]:
    """Return the dual point `max(c, 0)` of each lane, its margins from scratch, and its relative gap."""
    x = jnp.where(lanes.ridge > 0, jnp.maximum(lanes.c, 0), 0)
    f = SignedGram(template.gram, lanes.y, template.offset).matvec(x)

    def gap(y: Array, ridge: Array, x: Array, f: Array) -> Array:
        total = jnp.where(x.sum() > 0, x.sum(), 1)
        alpha, margins = x / total, f / total
        return in_lane(template, y, reciprocals(ridge)).certificate(alpha, margins + ridge * alpha).relative_gap

    return x, f, jax.vmap(gap, in_axes=1)(lanes.y, lanes.ridge, x, f)


def in_lane(template: SquaredHingeProblem, y: Array, costs: Array) -> SquaredHingeProblem:
    """Return the problem of one lane, for its certificate."""
    return dataclasses.replace(template, y=y, C=jnp.ones_like(template.C), weight=costs)
