"""The values of C of one problem, their points and order, and the candidates: samples that may be support."""

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxsvm.gram.contract import Gram
from jaxsvm.gram.dense import part_of, values_between
from jaxsvm.gram.measured import MEASURED as GRAM
from jaxsvm.path.measured import MEASURED
from jaxsvm.problems.squared_hinge import SquaredHingeProblem
from jaxsvm.results.fit import counted_by_name
from jaxsvm.runtime.arrays import on_device
from jaxsvm.runtime.programs import Program


@counted_by_name
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CoarseToFine:
    """Configuration of the solver of whole grids.

    Attributes:
        tol: The certified relative gap, > 0.
        width: Points that one product certifies, >= 1; static.
    """

    bit = 14
    inside = None
    tol: Any = 1e-4
    width: int = dataclasses.field(default=16, metadata={"static": True})

    @property
    def inner_tol(self) -> Any:
        """Return the gap asked of combinations and working sets: below `tol`, since rounding adds to it."""
        return 0.95 * self.tol


class GridPoint(NamedTuple):
    """A dual point in primal scale, and the work that it took.

    Attributes:
        x: Coefficients, not negative, `(n,)`.
        f: Margins, `(n,)`.
        steps: Pair steps or Newton rounds.
        evaluations: Kernel evaluations.
        carried: Steps for which f was carried along since it was computed from scratch; None if it is not known for all
            samples.
        far: Whether steps ended far from `tol`.
    """

    x: Float[Array, " n"]
    f: Float[Array, " n"]
    steps: int
    evaluations: int
    carried: int | None = None
    far: bool = False


class Grid:
    """One problem at increasing values of C, and the points of those that are solved.

    Below, c is `C mean(K_ii)`.

    Attributes:
        problems: The problems, all on one Gram operator.
        logs: Logarithms of C, `(k,)`.
        uniform: How many may start with equal weights (c <= 0.3): half of the steps from 0.
        steep: How many, from the top, need so many pair steps that working sets are faster (c > 30): their number
            hardly grows with C.
        points: Dual points of solved values, by place.
    """

    def __init__(self, problems: list[SquaredHingeProblem], Cs: np.ndarray) -> None:
        self.problems = problems
        self.logs = np.log(Cs)
        self.points: dict[int, GridPoint] = {}
        first = problems[0]
        ridge = np.asarray(first.ridge)
        kernel = float(np.asarray(first.squares).mean()) - first.offset
        penalty = float((1 / ridge[ridge > 0]).mean() / Cs[0])
        scaled = Cs * penalty * max(kernel, 1e-30)
        self.uniform = int((scaled <= 0.3).sum())
        self.steep = int((scaled > 30.0).sum())


def anchors(logs: np.ndarray) -> list[int]:
    """Return the places of anchors in increasing logarithms: both ends, and others with a bounded ratio of C."""
    places = [0] if len(logs) else []
    while places and places[-1] < len(logs) - 1:
        furthest = logs[places[-1]] + np.log(MEASURED.factor_between_anchors) + 1e-9
        places.append(max(int(np.searchsorted(logs, furthest, side="right")) - 1, places[-1] + 1))
    return places


def middles(places: list[int]) -> Iterator[list[tuple[int, int, int]]]:
    """Yield the places between anchors as levels of (middle, left, right); each level needs only earlier ones."""
    gaps = list(zip(places, places[1:], strict=False))
    while gaps := [(a, b) for a, b in gaps if b - a > 1]:
        yield [((a + b) // 2, a, b) for a, b in gaps]
        gaps = [half for a, b in gaps for half in ((a, (a + b) // 2), ((a + b) // 2, b))]


@Program
def combination(ridge: Array, a: tuple[Array, Array], b: tuple[Array, Array], most: Any) -> tuple[Array, Array]:
    """Return the best dual point of the span of two, `x = s (x_a + w (x_b - x_a))`, and its margins.

    The dual objective on the span is a quadratic, whose maximum needs no product with the kernel matrix.

    Args:
        ridge: `1 / C_i` of the problem to solve, `(n,)`.
        a: A point and its margins, `(n,)` each.
        b: Another point and its margins.
        most: The largest w, at least 1; the smallest is 0.
    """
    (x, f), dx, df = a, b[0] - a[0], b[1] - a[1]
    s, ds = f + ridge * x, df + ridge * dx
    xx, xd, dd = x @ s, dx @ s, dx @ ds
    # The maximum over s at w is `(t + w dt)^2 / (xx + 2 w xd + w^2 dd)`.
    t, dt = x.sum(), dx.sum()
    slope, curve = xx * dt - xd * t, dd * t - xd * dt
    w = jnp.clip(jnp.where(curve > 0, slope / jnp.where(curve > 0, curve, 1), 1), 0, most)
    size = (t + w * dt) / (xx + w * (2 * xd + w * dd))
    scale = jnp.where(jnp.isfinite(size) & (size > 0), size, 1)
    return scale * (x + w * dx), scale * (f + w * df)


# --- candidates


class Candidates(NamedTuple):
    """Samples that may be support, on the host and on the device, and their Gram operator."""

    samples: np.ndarray
    places: Int[Array, " m"]
    gram: Gram | None

    @staticmethod
    def of(samples: np.ndarray, gram: Gram | None) -> "Candidates":
        """Return the candidates of these indices, with their Gram operator."""
        return Candidates(samples, on_device(np.asarray(samples, np.int32)), gram)


def support_outside(whole: SquaredHingeProblem, point: GridPoint, working_set: Candidates) -> bool:
    """Return whether samples outside the working set are support of this point. Absent ones never are."""
    support = (np.asarray(point.f) < 1) & (np.asarray(whole.weights) > 0)
    support[working_set.samples] = False
    return bool(support.any())


def sizes(n: int) -> list[int]:
    """Return the sizes of working sets of n samples, decreasing from n.

    Each is a share of the one before: few sizes for all values, widths and folds share their programs. Below 1,024 a
    step costs what starting its kernels costs.
    """
    result, share = [n], MEASURED.share_of_a_smaller_set
    while (smaller := int(np.ceil(share * result[-1] / 128)) * 128) >= 1024 and smaller < result[-1]:
        result.append(smaller)
    return result


def smaller(grid: Grid, place: int, working_set: Candidates) -> Candidates:
    """Return a smaller working set around a solved value, if its candidates fit into one."""
    whole, point = grid.problems[place], grid.points[place]
    kept = _kept(whole, point, MEASURED.margin_of_candidates)
    size = min(size for size in sizes(whole.n) if size >= kept)
    if size >= len(working_set.samples) or size**2 * jnp.dtype(whole.gram.dtype).itemsize > GRAM.bytes_to_store:
        return working_set
    return _working_set_around(whole, point, size)


def exchanged(grid: Grid, point: GridPoint, working_set: Candidates) -> Candidates:
    """Return a working set of the same size around a point with support outside; a larger one if all is support."""
    whole = grid.problems[0]
    kept = _kept(whole, point, 0.0)
    size = max(len(working_set.samples), min(size for size in sizes(whole.n) if size >= kept))
    return Candidates.of(np.arange(whole.n), whole.gram) if size == whole.n else _working_set_around(whole, point, size)


def _kept(whole: SquaredHingeProblem, point: GridPoint, margin: float) -> int:
    """Return how many samples are support, or within a margin of it."""
    near = (np.asarray(point.f) < 1 + margin) | (np.asarray(point.x) > 0)
    return int((near & (np.asarray(whole.weights) > 0)).sum())


def _working_set_around(whole: SquaredHingeProblem, point: GridPoint, size: int) -> Candidates:
    """Fill a working set up to a size: support first, then by margin, absent samples last."""
    margins = np.where(np.asarray(point.x) > 0, -np.inf, np.asarray(point.f))
    order = np.argsort(np.where(np.asarray(whole.weights) > 0, margins, np.inf), kind="stable")
    samples = np.sort(order[:size])
    result = Candidates.of(samples, None)
    return result._replace(gram=part_of(whole.gram, values_between(whole.gram, result.places)))
