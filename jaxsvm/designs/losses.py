"""What a pass computes for linear SVMs: losses, planes below them, and curvatures, for many SVMs at once.

All losses are sums of hinges `c max(0, z)` or of squared hinges `c max(0, z)^2 / 2` of `z = q - sigma (w, b).(x, 1)`:

    hinge, squared hinge      sigma = y, q = 1
    epsilon-insensitive       sigma = 1, q = t - epsilon, and sigma = -1, q = -t - epsilon

A hinge has a ramp of width mu: its dual variable `a = c clip(z / mu + 1/2, 0, 1)` is the derivative of a smooth loss
that differs from the hinge by at most `c mu / 8`. Any a in the box gives a plane below the loss, `s - pull.(w, b)` with
`s = q.a` and `pull = sum sigma a (x, 1)`.
"""

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxsvm.designs.contract import Chunk
from jaxsvm.gram.measured import MEASURED as SIZES
from jaxsvm.numerics.precision import double, matmul, over_support
from jaxsvm.points.rows import Points, Rows, dense_rows, product, transposed_product

LOSSES = ("hinge", "squared_hinge", "epsilon_insensitive")
REACHES = (0.0, *(2.0**k for k in range(-1, 15)), float("inf"))
"""Distances to the margin for which a pass counts rows, in widths of the ramp."""


class Lanes(NamedTuple):
    """One linear SVM a lane. A pytree."""

    w: Float[Array | np.ndarray, "l p"]  # where to evaluate, the constant last, `(l, d + 1)`
    C: Float[Array | np.ndarray, " l"]  # factor of the loss, `(l,)`
    positive: Int[Array | np.ndarray, " l"]  # the number of the class that is +1, `(l,)`
    fold: Int[Array | np.ndarray, " l"]  # the fold that is left out of training, `(l,)`; -1: none
    mu: Float[Array | np.ndarray, " l"]  # width of the ramp of a hinge, > 0, `(l,)`
    epsilon: Float[Array | np.ndarray, " l"]  # half-width of the tube of the epsilon-insensitive loss, `(l,)`
    centre: Float[Array | np.ndarray, " l"]  # what is subtracted from targets, `(l,)`


class Sums(NamedTuple):
    """Sums over the rows, for each lane."""

    loss: Float[Array, " l"]  # the loss, without a ramp, `(l,)`
    s: Float[Array, " l"]  # constant of the plane, `(l,)`
    pull: Float[Array, "l p"]  # slopes of the plane, with a minus sign, `(l, d + 1)`
    curvature: Float[Array, "l p p"]  # Hessian of the smooth loss, `(l, d + 1, d + 1)`
    # numbers of rows within reach of the margin, `|z| <= reach` (of squared hinges `z >= -reach`), for the reaches `0,
    # mu / 2, mu, 2 mu, ...` and infinity, `(l, REACHES)`
    near: Float[Array, "l r"]


@dataclasses.dataclass(frozen=True)
class Evaluate:
    """Evaluate linear SVMs at points: a function of a chunk and lanes."""

    loss: str  # one of `LOSSES`
    folds: int = 1  # number of folds; row i is of fold `i % folds`

    def __call__(self, chunk: Chunk, lanes: Lanes) -> Sums:
        """Return the sums over a chunk."""
        wide = double(chunk.x.dtype)
        scores, x = self.scores(chunk, lanes)
        trained = self._weights(chunk, lanes)
        sides = [(sigma, q, self._piece(q - sigma * scores, trained, lanes)) for sigma, q in self._sides(chunk, lanes)]
        pulls = sum((sigma * piece.a for sigma, _, piece in sides), jnp.zeros_like(scores))
        D = sum((piece.curvature for _, _, piece in sides), jnp.zeros_like(scores))
        reaches = jnp.asarray(REACHES, wide)[:, None] * lanes.mu
        return Sums(
            loss=_sum(piece.loss for _, _, piece in sides),
            s=_sum(q * piece.a - piece.square for _, q, piece in sides),
            pull=jnp.concatenate([transposed_product(x, pulls), pulls.sum(axis=0)[None]]).T,
            curvature=jax.lax.map(lambda D: weighted_squares_of_few(x, D), D.T),
            near=jax.lax.map(lambda reach: self.near(chunk, lanes, scores, reach).sum(axis=0, dtype=wide), reaches).T,
        )

    def scores(self, chunk: Chunk, lanes: Lanes) -> tuple[Float[Array, "k l"], Any]:
        """Return `w.x + b` of each row and lane, and the points, in float64 if they are dense."""
        x, d = chunk.x, chunk.x.shape[1]
        x = x if isinstance(x, Rows) else jnp.asarray(x, lanes.w.dtype)
        return product(x, jnp.asarray(lanes.w[:, :d]).T) + lanes.w[None, :, d], x

    def _weights(self, chunk: Chunk, lanes: Lanes) -> Float[Array, "k l"]:
        out = fold_of(chunk, self.folds)[:, None] == lanes.fold[None, :]
        return jnp.where(out, 0, chunk.weight.astype(lanes.C.dtype)[:, None] * lanes.C[None, :])

    def _sides(self, chunk: Chunk, lanes: Lanes) -> list[tuple[Any, Any]]:
        """Return sigma and q of each hinge of a row, `(k, l)`."""
        y = chunk.y.astype(lanes.C.dtype)[:, None]
        if self.loss == "epsilon_insensitive":
            y = y - lanes.centre[None, :]
            return [(1.0, y - lanes.epsilon), (-1.0, -y - lanes.epsilon)]
        return [(jnp.where(y == lanes.positive[None, :], 1.0, -1.0), 1.0)]

    def _piece(self, z: Float[Array, "k l"], c: Float[Array, "k l"], lanes: Lanes) -> "Piece":
        """Return the loss of `z`, its dual variable and its curvature."""
        above = jnp.maximum(z, 0)
        if self.loss == "squared_hinge":
            a = c * above
            return Piece(a * above / 2, a, a * above / 2, jnp.where(z > 0, c, 0))
        t = z / lanes.mu + 0.5
        return Piece(c * above, c * jnp.clip(t, 0, 1), jnp.zeros_like(z), jnp.where((t > 0) & (t < 1), c / lanes.mu, 0))

    def near(self, chunk: Chunk, lanes: Lanes, scores: Float[Array, "k l"], reach: Array) -> Bool[Array, "k l"]:
        """Return which rows of a lane have a hinge that begins within reach of their score."""
        zs = [q - sigma * scores for sigma, q in self._sides(chunk, lanes)]
        inside = [-z <= reach if self.loss == "squared_hinge" else jnp.abs(z) <= reach for z in zs]
        return (self._weights(chunk, lanes) > 0) & functools.reduce(jnp.logical_or, inside)

    def hinges(self, chunk: Chunk, lanes: Lanes) -> tuple[Array, Array, Array, Array]:
        """Return sigma, q, c and the dual variable of each hinge, `(sides, k, l)`; c is 0 for rows left out."""
        scores, _ = self.scores(chunk, lanes)
        c = self._weights(chunk, lanes)
        sides = [(sigma, q, c, self._piece(q - sigma * scores, c, lanes).a) for sigma, q in self._sides(chunk, lanes)]
        sigma, q, c, a = (
            jnp.stack([jnp.broadcast_to(part, c.shape) for part in parts]) for parts in zip(*sides, strict=True)
        )
        return sigma, q, c, a


class Piece(NamedTuple):
    """One hinge of each row and lane, `(k, l)`."""

    loss: Float[Array, "k l"]  # the loss, without a ramp
    a: Float[Array, "k l"]  # the dual variable
    square: Float[Array, "k l"]  # `a^2 / 2c` of a squared hinge, else 0
    curvature: Float[Array, "k l"]  # second derivative of the smooth loss


def fold_of(chunk: Chunk, folds: int) -> Int[Array, " k"]:
    """Return the fold of each row: row i is of fold `i % folds`."""
    return ((chunk.first + jnp.arange(len(chunk.weight), dtype=jnp.int32)) % folds).astype(jnp.int32)


def weighted_squares_of_few(x: Points, D: Float[Array, " k"]) -> Float[Array, "p p"]:
    """Return `sum_i D_i (x_i, 1) (x_i, 1)'`; rows of weight 0 cost nothing."""
    zero = jnp.zeros((x.shape[1] + 1, x.shape[1] + 1), D.dtype)

    def add(total: Array, index: Array, weight: Array) -> Array:
        rows = dense_rows(x, index).astype(D.dtype)
        rows = jnp.concatenate([rows, jnp.ones((len(index), 1), D.dtype)], axis=1)
        return total + matmul((rows * weight[:, None]).T, rows)

    return over_support(D, min(SIZES.rows_per_wide_tile, len(D)), add, zero)


def _sum(parts: Iterable[Float[Array, "k l"]]) -> Float[Array, " l"]:
    return functools.reduce(jnp.add, parts).sum(axis=0)


@dataclasses.dataclass(frozen=True)
class Near:
    """Choose the rows that are within reach of the margin of any lane: a function of a chunk, lanes and reaches."""

    of: Evaluate  # the evaluation whose rows they are

    def __call__(self, chunk: Chunk, lanes: Lanes, reach: Float[Array, " l"]) -> Bool[Array, " k"]:
        """Return the flags of a chunk, `(k,)`."""
        scores, _ = self.of.scores(chunk, lanes)
        return self.of.near(chunk, lanes, scores, reach).any(axis=1)


@dataclasses.dataclass(frozen=True)
class Missed:
    """Sum the weights of held-out rows with a wrong label, or squared errors of targets: a function of a chunk, lanes.

    Lanes are ordered by folds, values of C and classes.
    """

    of: Evaluate  # the evaluation whose folds they are
    values: int  # number of values of C

    def __call__(self, chunk: Chunk, lanes: Lanes) -> tuple[Array, Array]:
        """Return the sums `(folds, values)`, and the weights of the folds `(folds,)`."""
        folds = self.of.folds
        scores = self.of.scores(chunk, lanes)[0].reshape(-1, folds, self.values, len(lanes.w) // (folds * self.values))
        own = fold_of(chunk, folds)[:, None] == jnp.arange(folds)
        y = chunk.y.astype(scores.dtype)[:, None, None]
        if self.of.loss == "epsilon_insensitive":
            missed = (y - lanes.centre[0] - scores[..., 0]) ** 2
        elif scores.shape[-1] == 1:
            missed = (scores[..., 0] >= 0) != (y == 1)
        else:
            missed = scores.argmax(axis=-1) != y
        weight = jnp.where(own, chunk.weight.astype(scores.dtype)[:, None], 0)
        return (weight[..., None] * missed).sum(axis=0), weight.sum(axis=0)


@dataclasses.dataclass(frozen=True)
class Describe:
    """Sum weights, features and targets of each fold and class, and squares of features: a function of a chunk."""

    folds: int  # number of folds
    classes: int  # number of classes; 0 for regression

    def __call__(self, chunk: Chunk) -> tuple[Array, Array, Array, Array]:
        """Return weights `(folds, k)`, sums of features `(folds, k, d)`, targets `(folds, 2)` and squares `(d,)`."""
        wide, many = double(chunk.x.dtype), max(self.classes, 1)
        weight, y = chunk.weight.astype(wide), chunk.y.astype(wide)
        place = fold_of(chunk, self.folds) * many + (y.astype(jnp.int32) if self.classes else 0)
        shares = jnp.where(place[:, None] == jnp.arange(self.folds * many), weight[:, None], 0)
        points = chunk.x if isinstance(chunk.x, Rows) else jnp.asarray(chunk.x)
        x = transposed_product(points, shares).T.reshape(self.folds, many, -1)
        moments = transposed_product(jnp.stack([y, y**2], axis=1), shares).T.reshape(self.folds, many, 2).sum(axis=1)
        squared = points.squared() if isinstance(points, Rows) else points.astype(wide) ** 2
        squares = transposed_product(squared, weight[:, None])[:, 0]
        return shares.sum(axis=0).reshape(self.folds, many), x, moments, squares


@dataclasses.dataclass(frozen=True)
class Spread:
    """Choose some of the rows, evenly spread over their numbers: a function of a chunk."""

    n: int  # number of rows
    size: int  # how many are chosen

    def __call__(self, chunk: Chunk) -> Bool[Array, " k"]:
        """Return the flags of a chunk, `(k,)`."""
        number = chunk.first + jnp.arange(len(chunk.weight), dtype=jnp.int64)
        return (number + 1) * self.size // self.n > number * self.size // self.n
