"""What a descent sees of a join at a point, from its rows one by one (`Formed`) or from counts (`Counted`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array  # jax depends on SciPy
from scipy.sparse.linalg import LinearOperator, cg

from jaxsvm.designs.descent import Hinges
from jaxsvm.designs.losses import REACHES
from jaxsvm.relational.counting.sampling import Sampler
from jaxsvm.relational.gradient.engine import PseudoGradient, far_counts, from_counts, gradient_interval, scores
from jaxsvm.relational.gradient.far import Engine
from jaxsvm.relational.measured import MEASURED
from jaxsvm.runtime.arrays import memory

MANY_FEATURES = 200
"""Number of coefficients from which on rows are not fetched: of the hinge, interior points see all of them."""
LARGEST_SYSTEM = 1000
"""Order of a dense system, from which on conjugate gradients take over."""


class Sums(NamedTuple):
    """What `designs.descent.Lane` takes of a point, in its units; see `designs.losses.Sums`."""

    loss: float
    s: float
    pull: np.ndarray  # `(d + 1,)`
    curvature: Callable[[np.ndarray], np.ndarray]  # the function that solves Newton's system, `(d + 1,)`
    near: np.ndarray = np.full(len(REACHES), np.inf)  # noqa: RUF009 (never written): no rows are fetched
    wide: np.ndarray | None = None  # by how much slopes may be off, if counts are bounds, `(d + 1,)`


class Formed:
    """Rows of a join with their features: all of them, or drawn ones."""

    name = "formed"

    def __init__(self, X: Any, y: np.ndarray, weight: np.ndarray) -> None:
        """Take features, `(n, d)`, dense or sparse, signs, `(n,)`, and weights, `(n,)`."""
        self.X, self.y, self.share = X, y, weight / weight.sum()
        self.d = X.shape[1]

    def part(self, size: int) -> Formed:
        """Return some of the rows, evenly spread."""
        index = np.arange(size) * len(self.y) // size
        return Formed(self.X[index], self.y[index], self.share[index])

    def _pieces(self, beta: np.ndarray, C: float, mu: float, squared: bool) -> tuple[np.ndarray, ...]:
        """Return slacks, factors of the losses and dual variables, `(n,)` each."""
        z, c = 1 - self.y * (self.X @ beta), C * self.share
        return z, c, c * (np.maximum(z, 0) if squared else np.clip(z / mu + 0.5, 0, 1))

    def sums(self, beta: np.ndarray, C: float, mu: float, squared: bool) -> Sums:
        """Return the sums at a point, `(d,)`, whose constant is one of the features."""
        z, c, a = self._pieces(beta, C, mu, squared)
        loss = a @ z / 2 if squared else c @ np.maximum(z, 0)
        constant, pull = a.sum() - (loss if squared else 0), np.append(self.X.T @ (self.y * a), 0.0)
        curvature = np.where(z > 0, c, 0) if squared else np.where(np.abs(z) < mu / 2, c / mu, 0)
        sums = Sums(float(loss), constant, pull, partial(self.solved, curvature))
        if self.d > MANY_FEATURES:
            return sums
        place = np.searchsorted(np.multiply(REACHES, mu), -z if squared else np.abs(z))
        return sums._replace(near=np.bincount(place, minlength=len(REACHES)).cumsum()[: len(REACHES)])

    def hinges(self, beta: np.ndarray, C: float, mu: float, squared: bool, reach: float) -> Hinges:
        """Return the hinges of the rows within reach of the margin."""
        z, c, a = self._pieces(beta, C, mu, squared)
        index = np.flatnonzero((-z if squared else np.abs(z)) <= reach)
        X = self.X[index] if isinstance(self.X, np.ndarray) else self.X[index].toarray()
        X = np.append(self.y[index, None] * X, np.zeros((len(index), 1)), axis=1)
        return Hinges(X, np.ones(len(index)), c[index], a[index])

    def solved(self, D: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Solve `(I + X' diag(D) X) v = b`, `(d + 1,)`, whose last entry is 0."""
        few, chunk, d = np.flatnonzero(D), 1 << 16, self.d  # rows that are copied at a time
        parts = [few[begin : begin + chunk] for begin in range(0, len(few), chunk)]
        if d <= LARGEST_SYSTEM:
            H: Any = np.eye(d)
            for part in parts:
                X = self.X[part]
                square = X.T @ (X * D[part, None])
                H += square if isinstance(square, np.ndarray) else square.toarray()
            scale, ridge = 1 / np.sqrt(np.diagonal(H)), 1e-14 * d * np.eye(d)  # I may be lost in what is added to it
            return np.append(scale * np.linalg.solve(H * scale * scale[:, None] + ridge, scale * b[:-1]), 0.0)
        X = self.X if isinstance(self.X, csr_array) else csr_array(self.X)
        scale = 1 / np.sqrt(1 + (X * X).T @ D)
        right = X[few] * np.sqrt(D[few])[:, None] * scale
        left, operator = right.T.tocsr(), LinearOperator
        named: Any = operator  # whose stub lacks its arguments
        system = named((d, d), matvec=lambda v: scale**2 * v + left @ (right @ v), dtype=float)
        return np.append(scale * cg(system, scale * b[:-1], rtol=1e-10, maxiter=4000)[0], 0.0)


def formed(join: Any, rows: list[np.ndarray], weight: np.ndarray) -> Formed:
    """Return rows of a join, given by the row of each table, with their features: sparse if there are categories."""
    y, columns, values, first = join.tree.y[rows[join.tree.label]], [], [], 0
    if not any(block.categories for block in join.blocks):
        X = np.concatenate([block.X[at] for block, at in zip(join.blocks, rows, strict=True)], axis=1)
        return Formed(X, y, weight)
    for block, at in zip(join.blocks, rows, strict=True):
        values += list(block.X[at].T)
        columns += [np.full(len(y), first + k) for k in range(len(block.names))]
        first += len(block.names)
        for _, codes, levels in block.categories:
            values.append(np.ones(len(y)))
            columns.append(first + codes[at])
            first += len(levels)
    x, places, many = np.stack(values, axis=1), np.stack(columns, axis=1), len(values)
    X = csr_array((x.ravel(), places.ravel(), np.arange(0, len(y) * many + 1, many)), shape=(len(y), first))
    return Formed(X, y, weight)


def formed_if_small(join: Any, wanted: bool) -> Formed | None:
    """Return all rows of a join with their features if they fit in memory and are few, or are wanted; else None."""
    tables = sum(len(block.X) for block in join.blocks)
    few = max(MEASURED.formed_rows, MEASURED.formed_ratio * tables)
    most = MEASURED.auto_rows if wanted else min(MEASURED.auto_rows, few)
    entries = sum(len(block.names) + len(block.categories) for block in join.blocks)
    room = (memory() or np.inf) / 4 / (16 * max(entries, 1))
    tree = join.tree.within(1, min(most, room)) if join.tree.m == 1 or float(join.size) <= most * 64 else None
    if tree is None or len(tree.weight[0]) > min(most, room):
        return None
    return formed(join, [tree.members[0][t] for t in range(len(join.blocks))], tree.weight[0])


class Plane(NamedTuple):
    """A plane below the mean loss at a point, and the loss there: `loss >= s - pull.beta`, with bounds of counts."""

    loss: float  # an upper bound of the mean loss; infinite if it was not sought
    estimate: float  # an estimate of it
    s: float  # the constant; NaN if it proves nothing
    pull: np.ndarray  # the slopes, with a minus sign, `(d,)`
    wide: np.ndarray | None  # by how much they may be off, `(d,)`; None: they are exact


class Counted:
    """A join of which an engine counts the far rows, with drawn rows for what has few digits: Hessians."""

    def __init__(self, join: Any, engine: Engine) -> None:
        """Take a scaled join."""
        self.join, self.engine, self.name = join, engine, engine.name

    @cached_property
    def drawn(self) -> Formed:
        """Return drawn rows of the join."""
        many = max(1 << 15, min(MEASURED.hessian_rows_per_coefficient * self.join.d, MEASURED.formed_rows))
        return formed(self.join, Sampler(self.join).draw(many, np.random.default_rng(0)), np.ones(many))

    def counts(self, beta: np.ndarray, mode: str, guard: float = 0.0, squared: bool = False, ramp: float = 0.0,
               lam: float = 0.0) -> PseudoGradient:  # fmt: skip
        """Count in one pass, and compute the pseudo-gradient."""
        join, engine = self.join, self.engine
        far = far_counts(join, beta, guard=guard, mode=mode, engine=engine, squared=squared, ramp=ramp)
        return from_counts(join, beta, lam, far, squared)

    def plane(self, beta: np.ndarray, squared: bool, ramp: float = 0.0, proof: bool = True) -> Plane:
        """Return the plane at a point. If counts are bounds, one that shall prove something takes two passes."""
        if not self.engine.bounds or not proof:
            counted = self.counts(beta, "mid", squared=squared, ramp=ramp)
            loss, proven = counted.objective, not self.engine.bounds
            return Plane(loss if proven else np.inf, loss, counted.far if proven else np.nan, -counted.gradient, None)
        low, high = (self.counts(beta, mode, squared=squared) for mode in ("lower", "upper"))
        least, most = gradient_interval(low, high)
        # The constant of the squared hinge is 2 s - s^2, whose second part is at most the upper one.
        s = low.far - (high.objective - low.objective if squared else 0)
        return Plane(high.objective, (low.objective + high.objective) / 2, s, -(least + most) / 2, (most - least) / 2)

    def sums(self, beta: np.ndarray, C: float, mu: float, squared: bool) -> Sums:
        """Return the sums at a point, `(d,)`; curvatures are those of drawn rows."""
        unit, drawn = C / (1 + squared), self.drawn
        ramp = 0.0 if squared else max(mu / 2, self.engine.least_ramp(scores(self.join, beta)[0]))
        loss, _, s, pull, wide = self.plane(beta, squared, ramp)
        z = np.sort(np.abs(1 - drawn.y * (drawn.X @ beta)))
        seen = float(z[min(MEASURED.rows_of_a_ramp * drawn.d, len(z) - 1)])  # within it enough of them have curvature
        curvature = drawn.sums(beta, C, 2 * max(ramp, seen), squared).curvature
        wide = None if wide is None else np.append(unit * wide, 0.0)
        return Sums(unit * loss, unit * s, np.append(unit * pull, 0.0), curvature, wide=wide)
