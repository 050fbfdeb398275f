"""What can still be support, cut out of a problem: its samples, and their kernel matrix, stored."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxsvm.gram import MEMORY, DenseGram
from jaxsvm.kernels import Precomputed
from jaxsvm.problem import SquaredHingeProblem
from jaxsvm.refinement.ladder import Ladder, Point

MARGIN = 0.1
"""A sample whose margin exceeds 1 by more is left out of the cut-out problem (and checked at the end)."""

CUT = 512
"""Sizes of cut-out problems are multiples of this, so that few are compiled."""

WORTH = 0.6
"""A cut-out problem must be smaller than this share of the one before it."""


class Cut(NamedTuple):
    """Samples that can be support, and their Gram operator."""

    samples: np.ndarray
    gram: Any


def leaves(point: Point, cut: Cut) -> bool:
    """Whether samples outside the cut are support of this point."""
    support = np.array(point.f < 1)
    support[cut.samples] = False
    return bool(support.any())


def _size(point: Point, cut: Cut) -> int:
    """How many samples a cut at this point keeps."""
    kept = int(((point.f < 1 + MARGIN) | (point.x > 0)).sum())
    return min(-(-kept // CUT) * CUT, len(cut.samples))


def smaller(ladder: Ladder, place: int, cut: Cut) -> Cut:
    """A smaller cut around a solved value, where that is worth the copy."""
    whole, point = ladder.problems[place], ladder.points[place]
    size = _size(point, cut)
    if size > WORTH * len(cut.samples) or size**2 * jnp.dtype(whole.gram.dtype).itemsize > MEMORY:
        return cut
    return _cut_around(whole, point, size)


def exchanged(ladder: Ladder, point: Point, cut: Cut) -> Cut:
    """A cut of the same size around a point that showed support outside (or a larger one, where all are support)."""
    kept = int(((point.f < 1) | (point.x > 0)).sum())
    return _cut_around(ladder.problems[0], point, max(len(cut.samples), min(-(-kept // CUT) * CUT, len(point.f))))


def _cut_around(whole: SquaredHingeProblem, point: Point, size: int) -> Cut:
    """Support first, then by margin, absent samples last: the cut is filled up to its size."""
    margins = np.where(np.asarray(point.x) > 0, -np.inf, np.asarray(point.f))
    order = np.argsort(np.where(np.asarray(whole.ridge) > 0, margins, np.inf), kind="stable")
    samples = np.sort(order[:size])
    K = _cut_values(whole.gram, jnp.asarray(samples, jnp.int32))
    return Cut(samples, DenseGram(Precomputed(), jnp.arange(size, dtype=jnp.int32), jnp.zeros((0,), K.dtype), K))


@jax.jit
def _cut_values(gram: Any, samples: Int[Array, " m"]) -> Float[Array, "m m"]:
    """Kernel values between some samples; whole rows of a stored matrix first, since they lie in one piece."""
    return gram.rows(samples)[:, samples] if isinstance(gram, DenseGram) else gram.block(samples, samples)
