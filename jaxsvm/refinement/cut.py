"""What can still be support, cut out of a problem: its samples, and their kernel matrix, stored."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxsvm.gram import MEMORY, DenseGram, part_of
from jaxsvm.problem import SquaredHingeProblem
from jaxsvm.refinement.ladder import Ladder, Point

MARGIN = 0.1
"""A sample whose margin exceeds 1 by more is left out of the cut-out problem (and checked at the end)."""

SHARE = 0.6
"""Each size of a cut-out problem is this share of the next larger one: a few sizes for all values, gammas and folds, so
that few programs are compiled."""
SMALLEST = 1024
"""No cut is smaller: below, a step costs what it costs to start its kernels."""


class Cut(NamedTuple):
    """Samples that can be support, and their Gram operator."""

    samples: np.ndarray
    gram: Any


def leaves(whole: SquaredHingeProblem, point: Point, cut: Cut) -> bool:
    """Whether samples outside the cut are support of this point. Absent ones never are."""
    support = (np.asarray(point.f) < 1) & (np.asarray(whole.ridge) > 0)
    support[cut.samples] = False
    return bool(support.any())


def sizes(n: int) -> list[int]:
    """Sizes of cut-out problems of n samples, decreasing; n itself first."""
    found = [n]
    while (smaller := int(np.ceil(SHARE * found[-1] / 128)) * 128) >= SMALLEST and smaller < found[-1]:
        found.append(smaller)
    return found


def smaller(ladder: Ladder, place: int, cut: Cut) -> Cut:
    """A smaller cut around a solved value, where what can be support fits one."""
    whole, point = ladder.problems[place], ladder.points[place]
    kept = _kept(whole, point, MARGIN)
    size = min(size for size in sizes(whole.n) if size >= kept)
    if size >= len(cut.samples) or size**2 * jnp.dtype(whole.gram.dtype).itemsize > MEMORY:
        return cut
    return _cut_around(whole, point, size)


def exchanged(ladder: Ladder, point: Point, cut: Cut) -> Cut:
    """A cut of the same size around a point that showed support outside; a larger one where all of it is support."""
    whole = ladder.problems[0]
    kept = _kept(whole, point, 0.0)
    size = max(len(cut.samples), min(size for size in sizes(whole.n) if size >= kept))
    return Cut(np.arange(whole.n), whole.gram) if size == whole.n else _cut_around(whole, point, size)


def _kept(whole: SquaredHingeProblem, point: Point, margin: float) -> int:
    """How many samples are support, or within a margin of it."""
    near = (np.asarray(point.f) < 1 + margin) | (np.asarray(point.x) > 0)
    return int((near & (np.asarray(whole.ridge) > 0)).sum())


def _cut_around(whole: SquaredHingeProblem, point: Point, size: int) -> Cut:
    """Support first, then by margin, absent samples last: the cut is filled up to its size."""
    margins = np.where(np.asarray(point.x) > 0, -np.inf, np.asarray(point.f))
    order = np.argsort(np.where(np.asarray(whole.ridge) > 0, margins, np.inf), kind="stable")
    samples = np.sort(order[:size])
    K = _cut_values(whole.gram, jnp.asarray(samples, jnp.int32))
    return Cut(samples, part_of(whole.gram, K))


@jax.jit
def _cut_values(gram: Any, samples: Int[Array, " m"]) -> Float[Array, "m m"]:
    """Kernel values between some samples; whole rows of a stored matrix first, since they lie in one piece."""
    return gram.rows(samples)[:, samples] if isinstance(gram, DenseGram) else gram.block(samples, samples)
