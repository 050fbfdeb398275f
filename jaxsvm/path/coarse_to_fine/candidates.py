"""What can still be support of a problem: its samples, and their kernel matrix, stored."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from jaxsvm.gram.build import MEMORY
from jaxsvm.gram.contract import Gram
from jaxsvm.gram.dense import part_of, values_between
from jaxsvm.path.coarse_to_fine.grid import Grid, Point
from jaxsvm.problems.squared_hinge import SquaredHingeProblem
from jaxsvm.runtime.arrays import on_device

MARGIN = 0.1
"""A sample whose margin exceeds 1 by more is left out of the working set (and checked at the end)."""

SHARE = 0.6
"""Each size of a working set is this share of the next larger one: a few sizes for all values, gammas and folds, so
that few programs are compiled."""
SMALLEST = 1024
"""No working set is smaller: below, a step costs what it costs to start its kernels."""


class Candidates(NamedTuple):
    """Samples that can be support, on the host and where JAX has them, and their Gram operator."""

    samples: np.ndarray
    places: Int[Array, " m"]
    gram: Gram | None

    @staticmethod
    def of(samples: np.ndarray, gram: Gram | None) -> "Candidates":
        """The working set of some samples, their Gram operator at hand."""
        return Candidates(samples, on_device(np.asarray(samples, np.int32)), gram)


def support_outside(whole: SquaredHingeProblem, point: Point, working_set: Candidates) -> bool:
    """Whether samples outside the working set are support of this point. Absent ones never are."""
    support = (np.asarray(point.f) < 1) & (np.asarray(whole.ridge) > 0)
    support[working_set.samples] = False
    return bool(support.any())


def sizes(n: int) -> list[int]:
    """Sizes of working sets of n samples, decreasing; n itself first."""
    found = [n]
    while (smaller := int(np.ceil(SHARE * found[-1] / 128)) * 128) >= SMALLEST and smaller < found[-1]:
        found.append(smaller)
    return found


def smaller(grid: Grid, place: int, working_set: Candidates) -> Candidates:
    """A smaller working set around a solved value, where what can be support fits one."""
    whole, point = grid.problems[place], grid.points[place]
    kept = _kept(whole, point, MARGIN)
    size = min(size for size in sizes(whole.n) if size >= kept)
    if size >= len(working_set.samples) or size**2 * jnp.dtype(whole.gram.dtype).itemsize > MEMORY:
        return working_set
    return _working_set_around(whole, point, size)


def exchanged(grid: Grid, point: Point, working_set: Candidates) -> Candidates:
    """One of the same size around a point that showed support outside; a larger one where all of it is support."""
    whole = grid.problems[0]
    kept = _kept(whole, point, 0.0)
    size = max(len(working_set.samples), min(size for size in sizes(whole.n) if size >= kept))
    return Candidates.of(np.arange(whole.n), whole.gram) if size == whole.n else _working_set_around(whole, point, size)


def _kept(whole: SquaredHingeProblem, point: Point, margin: float) -> int:
    """How many samples are support, or within a margin of it."""
    near = (np.asarray(point.f) < 1 + margin) | (np.asarray(point.x) > 0)
    return int((near & (np.asarray(whole.ridge) > 0)).sum())


def _working_set_around(whole: SquaredHingeProblem, point: Point, size: int) -> Candidates:
    """Support first, then by margin, absent samples last: the working set is filled up to its size."""
    margins = np.where(np.asarray(point.x) > 0, -np.inf, np.asarray(point.f))
    order = np.argsort(np.where(np.asarray(whole.ridge) > 0, margins, np.inf), kind="stable")
    samples = np.sort(order[:size])
    found = Candidates.of(samples, None)
    return found._replace(gram=part_of(whole.gram, values_between(whole.gram, found.places)))
