"""Rows of a join drawn uniformly and independently, without the join; and Pegasos on them.

Exact weights (Chaudhuri, Motwani, Narasayya, "On Random Sampling over Joins", SIGMOD 1999; Zhao et al. 2018): a row of the
root with probability proportional to how many joined rows go through it, then at each edge a row of the neighbour with
the same key, in proportion to the part of the join behind it. O(m log n) a draw.
"""

import time
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxsvm.errors import InputError
from jaxsvm.relational import counting
from jaxsvm.relational.descent import RelationalFit, _answer, _Run
from jaxsvm.relational.bundle import Bundle
from jaxsvm.relational.gradient import engine_for
from jaxsvm.relational.moments import prepared
from jaxsvm.validation import require_positive, require_whole

ROWS = 1 << 18
"""Rows that Pegasos draws at a time."""


class Sample(NamedTuple):
    """Rows of the join.

    Attributes:
        x: Features, `(n, d)`, a column for each level.
        y: Signs, `(n,)`.
        rows: The row of each table, as the join keeps them, `(n,)` each; `join.rows[i]` says which given rows these are.
    """

    x: np.ndarray
    y: np.ndarray
    rows: list[np.ndarray]


def sample(join: Any, n: int, key: Any) -> Sample:
    """Rows of the join, uniform and independent, with their features.

    Args:
        join: The join.
        n: How many.
        key: An integer, or a key of `jax.random`.
    """
    require_whole("n", n, 1)
    rows = Sampler(join).draw(n, generator(key))
    x = np.concatenate([block.dense(index) for block, index in zip(join.blocks, rows, strict=True)], axis=1)
    return Sample(x, join.tree.y[rows[join.tree.label]], rows)


def generator(key: Any) -> np.random.Generator:
    """NumPy's, from an integer or a key of JAX."""
    if isinstance(key, int | np.integer):
        return np.random.default_rng(int(key))
    try:
        return np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel())
    except TypeError:
        raise InputError(f"key is a {type(key).__name__}: an integer or a key of jax.random is needed.") from None


class Sampler:
    """What draws need: cumulative weights of the root, and of each key's rows at each other node."""

    def __init__(self, join: Any) -> None:
        """Two passes and a sort a node."""
        self.tree = tree = join.tree.simplified
        sent = counting.messages(tree, tree.weight)
        self.root = tree.label
        self.first = np.cumsum(counting.marginals(tree, tree.weight)[self.root])
        self.edges, reached = [], [self.root]
        for i in reached:
            for j in tree.neighbours(i):
                if j not in reached:
                    weight = tree.weight[j]
                    for k in tree.neighbours(j):
                        weight = weight if k == i else weight * sent[k, j][tree.kid[j, k]]
                    order, start = tree.groups[j, i]
                    # Shares within each key: sums of whole weights would lose the digits of small keys.
                    share = (weight / sent[j, i][tree.kid[j, i]])[order]
                    total = np.append(0.0, np.cumsum(share))
                    self.edges.append((i, j, order, start, total))
                    reached.append(j)

    def draw(self, n: int, rng: np.random.Generator) -> list[np.ndarray]:
        """The row of each table, `(n,)` each."""
        tree, at = self.tree, {}
        place = np.searchsorted(self.first, rng.random(n) * self.first[-1], side="right")
        at[self.root] = np.minimum(place, len(self.first) - 1)
        for i, j, order, start, total in self.edges:
            key = tree.kid[i, j][at[i]]
            low, high = start[key], start[key + 1]
            wanted = total[low] + rng.random(n) * (total[high] - total[low])
            place = np.searchsorted(total, wanted, side="right") - 1
            at[j] = order[np.clip(place, low, high - 1)]
        out: dict[int, np.ndarray] = {}
        for node, rows in at.items():
            out |= {t: index[rows] for t, index in tree.members[node].items()}
        return [out[t] for t in sorted(out)]


def pegasos(
    join: Any,
    lam: float,
    key: Any,
    *,
    steps: int = 4000,
    batch: int = 32,
    scale: str = "none",
    intercept: bool = True,
    tol: float = 1e-3,
) -> RelationalFit:
    """Pegasos on rows drawn from the join: unbiased, the error of the optimisation O(d log T / (lam T)), whatever N is.

    Args:
        join: The join.
        lam: As in `fit`.
        key: As in `sample`.
        steps: Steps; the answer is the average of the second half.
        batch: Rows a step.
        scale: As in `fit`.
        intercept: As in `fit`.
        tol: The relative gap for which the status says CONVERGED. One point proves little from below: the certificate is
            honest, and wide; `fit` proves more.
    """
    require_positive("lam", lam)
    for name, value in (("steps", steps), ("batch", batch)):
        require_whole(name, value, 1)
    started, rng = time.monotonic(), generator(key)
    join = prepared(join, scale, intercept)
    sampler, beta, mean = Sampler(join), np.zeros(join.d), np.zeros(join.d)
    most, half = max(ROWS // batch, 1), steps // 2
    for begin in range(0, steps, most):
        many = min(most, steps - begin)
        rows = sampler.draw(many * batch, rng)
        y = join.tree.y[rows[join.tree.label]]
        for k in range(many):
            t, part = begin + k + 1, slice(k * batch, (k + 1) * batch)
            x = np.concatenate([b.dense(index[part]) for b, index in zip(join.blocks, rows, strict=True)], axis=1)
            wrong = y[part] * (y[part] * (x @ beta) < 1)
            beta = (1 - 1 / t) * beta + x.T @ wrong / (2 * lam * t * batch)
            mean = mean + (beta - mean) / (t - half) if t > half else beta
    engine, why = engine_for(join)
    run = _Run(join, lam, 0.1, engine, Bundle.empty(join.d, lam), started, None, None)
    run.noted(run.evaluate(mean))
    run.D = max(run.D, run.planes.bound()[0])
    run.taken = steps
    return _answer(run, tol, f"pegasos on drawn rows, certified by {why}")
