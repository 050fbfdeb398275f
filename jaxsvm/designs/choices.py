"""Functions of a chunk beside the losses: which rows to fetch, sums that describe the rows, and errors of folds."""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxsvm.designs.contract import Chunk
from jaxsvm.designs.losses import Evaluate, Lanes, fold_of
from jaxsvm.numerics.precision import double
from jaxsvm.points.rows import Rows, transposed_product


@dataclasses.dataclass(frozen=True)
class Near:
    """Choose the rows that are within reach of the margin of any lane: a function of a chunk, lanes and reaches.

    Attributes:
        of: The evaluation whose rows they are.
    """

    of: Evaluate

    def __call__(self, chunk: Chunk, lanes: Lanes, reach: Float[Array, " l"]) -> Bool[Array, " k"]:
        """Return the flags of a chunk, `(k,)`."""
        scores, _ = self.of.scores(chunk, lanes)
        return self.of.near(chunk, lanes, scores, reach).any(axis=1)


@dataclasses.dataclass(frozen=True)
class Missed:
    """Sum the weights of held-out rows with a wrong label, or squared errors of targets: a function of a chunk, lanes.

    Lanes are ordered by folds, values of C and classes.

    Attributes:
        of: The evaluation whose folds they are.
        values: Number of values of C.
    """

    of: Evaluate
    values: int

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
    """Sum weights, features and targets of each fold and class: a function of a chunk.

    Attributes:
        folds: Number of folds.
        classes: Number of classes; 0 for regression.
    """

    folds: int
    classes: int

    def __call__(self, chunk: Chunk) -> tuple[Array, Array, Array]:
        """Return weights `(folds, k)`, sums of features `(folds, k, d)`, and of targets and squares `(folds, 2)`."""
        wide, many = double(chunk.x.dtype), max(self.classes, 1)
        weight, y = chunk.weight.astype(wide), chunk.y.astype(wide)
        place = fold_of(chunk, self.folds) * many + (y.astype(jnp.int32) if self.classes else 0)
        shares = jnp.where(place[:, None] == jnp.arange(self.folds * many), weight[:, None], 0)
        points = chunk.x if isinstance(chunk.x, Rows) else jnp.asarray(chunk.x)
        x = transposed_product(points, shares).T.reshape(self.folds, many, -1)
        moments = transposed_product(jnp.stack([y, y**2], axis=1), shares).T.reshape(self.folds, many, 2).sum(axis=1)
        return shares.sum(axis=0).reshape(self.folds, many), x, moments


@dataclasses.dataclass(frozen=True)
class Moments:
    """Sum weights, features and their squares: a function of a chunk."""

    def __call__(self, chunk: Chunk) -> tuple[Array, Array, Array]:
        """Return the weight `()`, and sums `(d,)`."""
        weight = chunk.weight.astype(double(chunk.x.dtype))[:, None]
        squared = chunk.x.squared() if isinstance(chunk.x, Rows) else chunk.x.astype(weight.dtype) ** 2
        return weight.sum(), transposed_product(chunk.x, weight)[:, 0], transposed_product(squared, weight)[:, 0]


@dataclasses.dataclass(frozen=True)
class Spread:
    """Choose some of the rows, evenly spread over their numbers: a function of a chunk.

    Attributes:
        n: Number of rows.
        size: How many are chosen.
    """

    n: int
    size: int

    def __call__(self, chunk: Chunk) -> Bool[Array, " k"]:
        """Return the flags of a chunk, `(k,)`."""
        number = chunk.first + jnp.arange(len(chunk.weight), dtype=jnp.int64)
        return (number + 1) * self.size // self.n > number * self.size // self.n
