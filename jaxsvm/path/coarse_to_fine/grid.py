"""A grid: one problem at increasing values of C, and the order in which they are solved."""

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxsvm.path.coarse_to_fine.block_newton import BlockNewton, dual_point
from jaxsvm.problems.squared_hinge import SquaredHingeProblem
from jaxsvm.runtime.programs import Program

ANCHOR_RATIO = 5.0
"""Between neighbouring anchors, at the most."""

EASY = 0.35
"""Up to this `C mean(K_ii)` values can be lanes of the block Newton method, which is sure there."""

UNIFORM = 0.3
"""Up to this `C mean(K_ii)` pair steps that start from nothing start with equal weights: half of the steps."""

TURN = 10.0
"""Where `C mean(K_ii)` exceeds this, a solution moves with 1/C, below with log C: the path is nearly straight in
`log(C / (C + TURN))`. For C > 30 that takes up to two decades off the error of a mean in log C."""

RESERVE = 0.95
"""Share of `tol` that lanes and problems on a working set are held to, so that the last certification confirms them."""
FREE = 3.0
"""Above this `C mean(K_ii)` the mean of two anchors is so good that it needs no steps of its own, if they are."""
STEEP = 30.0
"""Above this `C mean(K_ii)` pair steps are so many that working sets, whose number hardly grows with C, are sooner."""


class Point(NamedTuple):
    """A dual point in primal scale, and what it took.

    Attributes:
        x: Coefficients, not negative, `(n,)`.
        f: Margins, `(n,)`.
        steps: Pair steps or Newton rounds.
        evaluations: Kernel evaluations.
        carried: Steps that f was carried along since it was computed from scratch; None: it is not of all samples.
    """

    x: Float[Array, " n"]
    f: Float[Array, " n"]
    steps: int
    evaluations: int
    carried: int | None = None


class Grid:
    """One problem at increasing values of C, and what is known of each.

    Attributes:
        problems: The problems, all on one Gram operator.
        logs: Logarithms of C, `(k,)`.
        times: Where they lie on the path (`TURN`), `(k,)`.
        easy: How many of them go to the block method.
        free: How many, from the top, need steps at anchors alone.
        uniform: How many of them may start with equal weights.
        steep: How many, from the top, take very many pair steps.
        points: Dual points that were found, by place; those of hard values on the whole problem too.
    """

    def __init__(self, problems: list[SquaredHingeProblem], Cs: np.ndarray) -> None:
        self.problems = problems
        self.logs = np.log(Cs)
        self.points: dict[int, Point] = {}
        first = problems[0]
        ridge = np.asarray(first.ridge)
        kernel = float((np.asarray(first.diagonal) - ridge).mean()) - first.offset
        penalty = float((1 / ridge[ridge > 0]).mean() / Cs[0])
        scaled = Cs * penalty * max(kernel, 1e-30)
        self.times = np.log(scaled / (scaled + TURN))
        exact = first.gram.rank is not None and first.gram.rank <= 2 * BlockNewton().rank
        self.easy = len(Cs) if exact else int((scaled <= EASY).sum())
        self.free = int((scaled > FREE).sum())
        self.uniform = int((scaled <= UNIFORM).sum())
        self.steep = int((scaled > STEEP).sum())

    def between(self, a: int, b: int, place: int) -> float:
        """Where a place lies between two others on the path: 0 at a, 1 at b, beyond 1 above both."""
        length = self.times[b] - self.times[a]  # 0 for values so large that the path stands still
        return float((self.times[place] - self.times[a]) / length) if length > 0 else 0.5


def anchors(logs: np.ndarray) -> list[int]:
    """Places of increasing logarithms no further apart than `ANCHOR_RATIO`, where the grid allows it; both ends."""
    places = [0] if len(logs) else []
    while places and places[-1] < len(logs) - 1:
        reach = int(np.searchsorted(logs, logs[places[-1]] + np.log(ANCHOR_RATIO) + 1e-9, side="right")) - 1
        places.append(max(reach, places[-1] + 1))
    return places


def middles(places: list[int]) -> Iterator[list[tuple[int, int, int]]]:
    """The places between anchors as levels of (middle, left, right): those of a level need earlier levels alone."""
    gaps = list(zip(places, places[1:], strict=False))
    while gaps := [(a, b) for a, b in gaps if b - a > 1]:
        yield [((a + b) // 2, a, b) for a, b in gaps]
        gaps = [half for a, b in gaps for half in ((a, (a + b) // 2), ((a + b) // 2, b))]


@Program
def mean_point(x_a: Array, f_a: Array, x_b: Array, f_b: Array, weight: Any) -> tuple[Array, Array]:
    """The point between two (beyond them for a weight outside [0, 1]), and its margins."""
    return x_a + weight * (x_b - x_a), f_a + weight * (f_b - f_a)


class Lanes(NamedTuple):
    """What stands in the lanes: `(n, L)` each."""

    y: Array
    ridge: Array
    c: Array
    f: Array


@Program
def assess(template: SquaredHingeProblem, lanes: Lanes) -> tuple[Array, Array, Float[Array, " L"]]:
    """The dual point of each lane, its margins from scratch, and its relative gap."""
    found = dual_point(template.gram, template.offset, lanes.y, lanes.ridge, lanes.c)

    def gap(y: Array, ridge: Array, x: Array, f: Array) -> Array:
        total = jnp.where(x.sum() > 0, x.sum(), 1)
        alpha, margins = x / total, f / total
        return in_lane(template, y, ridge).certificate(alpha, margins + ridge * alpha).relative_gap

    return found.x, found.f, jax.vmap(gap, in_axes=1)(lanes.y, lanes.ridge, found.x, found.f)


def in_lane(template: SquaredHingeProblem, y: Array, ridge: Array) -> SquaredHingeProblem:
    """The problem of one lane, for its certificate."""
    return dataclasses.replace(
        template, y=y, ridge=ridge, diagonal=template.diagonal - template.ridge + ridge, mask=ridge > 0
    )


def backend() -> str:
    """The kind of device: cpu, or accelerator."""
    return "cpu" if jax.default_backend() == "cpu" else "accelerator"
