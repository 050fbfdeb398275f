"""Candidates: the samples that may be support of a problem, and their stored kernel matrix."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from jaxsvm.gram import measured as gram
from jaxsvm.gram.contract import Gram
from jaxsvm.gram.dense import part_of, values_between
from jaxsvm.path.coarse_to_fine.grid import Grid, Point
from jaxsvm.path.measured import MEASURED
from jaxsvm.problems.squared_hinge import SquaredHingeProblem
from jaxsvm.runtime.arrays import on_device


class Candidates(NamedTuple):
    """Samples that may be support, on the host and on the device, and their Gram operator."""

    samples: np.ndarray
    places: Int[Array, " m"]
    gram: Gram | None

    @staticmethod
    def of(samples: np.ndarray, gram: Gram | None) -> "Candidates":
        """Return the candidates of these indices, with their Gram operator."""
        return Candidates(samples, on_device(np.asarray(samples, np.int32)), gram)


def support_outside(whole: SquaredHingeProblem, point: Point, working_set: Candidates) -> bool:
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
    if (
        size >= len(working_set.samples)
        or size**2 * jnp.dtype(whole.gram.dtype).itemsize > gram.MEASURED.bytes_to_store
    ):
        return working_set
    return _working_set_around(whole, point, size)


def exchanged(grid: Grid, point: Point, working_set: Candidates) -> Candidates:
    """Return a working set of the same size around a point with support outside; a larger one if all is support."""
    whole = grid.problems[0]
    kept = _kept(whole, point, 0.0)
    size = max(len(working_set.samples), min(size for size in sizes(whole.n) if size >= kept))
    return Candidates.of(np.arange(whole.n), whole.gram) if size == whole.n else _working_set_around(whole, point, size)


def _kept(whole: SquaredHingeProblem, point: Point, margin: float) -> int:
    """Return how many samples are support, or within a margin of it."""
    near = (np.asarray(point.f) < 1 + margin) | (np.asarray(point.x) > 0)
    return int((near & (np.asarray(whole.weights) > 0)).sum())


def _working_set_around(whole: SquaredHingeProblem, point: Point, size: int) -> Candidates:
    """Fill a working set up to a size: support first, then by margin, absent samples last."""
    margins = np.where(np.asarray(point.x) > 0, -np.inf, np.asarray(point.f))
    order = np.argsort(np.where(np.asarray(whole.weights) > 0, margins, np.inf), kind="stable")
    samples = np.sort(order[:size])
    result = Candidates.of(samples, None)
    return result._replace(gram=part_of(whole.gram, values_between(whole.gram, result.places)))
