"""Measure a coreset: its relative error at queries chosen to be hard for it, and the error of the machine it trains.

Random directions alone say little. The largest errors are at multiples of the optimum, at biases alone, at machines
trained on a few points or for another C, and at the end of some steps that climb the error itself.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array
from numpy.typing import ArrayLike

from jaxsvm.coresets.measured import MEASURED
from jaxsvm.coresets.pilot import solve
from jaxsvm.coresets.sampling import hinges, objectives
from jaxsvm.coresets.summary import Coreset, as_data, as_key, padded, require_linear
from jaxsvm.errors import InputError
from jaxsvm.points.rows import PointsLike
from jaxsvm.runtime.arrays import in_a_line, require_positive, transfers
from jaxsvm.runtime.programs import Program


class Evaluation(NamedTuple):
    """Measured errors of a coreset.

    Attributes:
        worst: The largest relative error of the objective over the queries: others may have a larger one.
        mean: Their mean.
        excess: `F(w_S) / F(w*) - 1` of the machine that is trained on the coreset; 0 if both are 0 (one class).
        optimum: `F(w*)` on the data.
        queries: `(w, b)` as rows, `(q, d + 1)`: the data's optimum first, the coreset's second.
        errors: `F_S / F - 1` at each, `(q,)`.
    """

    __repr__ = in_a_line

    worst: float
    mean: float
    excess: float
    optimum: float
    queries: np.ndarray
    errors: np.ndarray


@transfers
def evaluate(
    coreset: Coreset,
    data: tuple[PointsLike, ArrayLike] | tuple[PointsLike, ArrayLike, ArrayLike],
    C: float | None = None,
    key: Array | int = 0,
) -> Evaluation:
    """Measure a coreset against the data that it stands for.

    Args:
        coreset: From `jaxsvm.coresets`.
        data: `(x, y)` or `(x, y, sample_weight)`.
        C: Another C than the coreset's, positive, in the data's terms.
        key: A random key of the queries, or a seed.

    Returns:
        The errors: `worst`, `mean` and `excess` sum them up.

    Raises:
        InputError: If an argument cannot be used, or the coreset is of a kernel machine.
    """
    if not isinstance(data, tuple | list) or len(data) not in (2, 3):
        raise InputError("data: a tuple (x, y) or (x, y, sample_weight) is needed.")
    x, y, u = as_data(*data)
    if coreset.x.shape[1] != x.shape[1]:
        raise InputError(f"data has {x.shape[1]} features and the coreset {coreset.x.shape[1]}: they must agree.")
    require_linear(coreset, "evaluate")
    cost: Any = coreset.info["C_data"] if C is None else C
    require_positive("C", cost)
    x_s, y_s, v = as_data(coreset.x, coreset.y, coreset.weight)
    share = v.sum() / u.sum() if coreset.info["regulariser"] == "scaled" else 1.0
    with jax.enable_x64(True):
        measured = _evaluate(as_key(key), *padded(x, y, u, x_s, y_s, v), len(y), float(cost), float(share))
        queries, errors, F = (np.asarray(part) for part in measured)
    size = np.abs(errors)
    # Both are 0 on data of one class.
    excess = float(F[1] / F[0] - 1) if F[0] > 0 else 0.0 if F[1] == 0 else np.inf
    return Evaluation(float(size.max()), float(size.mean()), excess, float(F[0]), queries, errors)


def _evaluated(
    key: Array, x: Array, y: Array, u: Array, x_s: Array, y_s: Array, v: Array, n: Any, C: Any, share: Any
) -> Any:
    """Return queries, the errors there, and F at the first two; the first n points are the data's."""
    keys = jax.random.split(key, 4)
    middle = (u @ x) / u.sum()
    x, x_s = x - middle, x_s - middle
    best, own = solve(x, y, C * u), solve(x_s, y_s, C * v / share)
    d, row = x.shape[1], lambda at: jnp.append(at.w, at.b)
    size = min(max(2 * d, 8), len(y))
    count, climbers = 24, 8

    def of_subset(lane: tuple[Array, Array]) -> Array:
        index, factor = lane
        return row(solve(x[index], y[index], factor * C * u[index] * n / size, tol=MEASURED.rough_gap))

    index = jax.random.randint(keys[0], (count, size), 0, n)
    factors = jnp.asarray([0.1, 1.0, 10.0, 1000.0])[jnp.arange(count) % 4]
    subsets = lax.map(of_subset, (index, factors))
    norms = 10 ** jax.random.uniform(keys[1], (count, 1), x.dtype, -2, 1.5)
    gaussians = jax.random.normal(keys[2], (count, d + 1), x.dtype) * norms
    multiples = jnp.asarray([0.0, 0.25, 0.5, 0.8, 1.25, 2.0, 5.0, 20.0])[:, None] * row(best)
    biases = jnp.zeros((6, d + 1), x.dtype).at[:, -1].set(jnp.asarray([0.5, -0.5, 1.0, -1.0, 5.0, -5.0]))
    pool = jnp.concatenate([row(best)[None], row(own)[None], multiples, biases, subsets, gaussians])
    pool = jnp.where(jnp.isfinite(pool), pool, 0)

    def error(queries: Array) -> Array:
        whole = objectives(queries, hinges(x, y, queries), u, C)
        part = objectives(queries, hinges(x_s, y_s, queries), v, C, share)
        # Both are 0 on data of one class if that class is on its side.
        return jnp.where(whole > 0, part / jnp.where(whole > 0, whole, 1) - 1, jnp.where(part > 0, jnp.inf, 0))

    def climb(i: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        at, step = carry
        gradient = jax.grad(lambda q: jnp.abs(error(q)).sum())(at)
        size = jnp.linalg.norm(gradient, axis=1, keepdims=True)
        new = at + step * gradient / jnp.where(size > 0, size, 1) * jnp.linalg.norm(at, axis=1, keepdims=True)
        better = (jnp.abs(error(new)) > jnp.abs(error(at)))[:, None]
        return jnp.where(better, new, at), jnp.where(better, step * 1.2, step / 2)

    _, hardest = lax.top_k(jnp.abs(error(pool)), climbers)
    climbed, _ = lax.fori_loop(0, 20, climb, (pool[hardest], jnp.full((climbers, 1), 0.1, x.dtype)))
    queries = jnp.concatenate([pool, climbed])
    F = objectives(queries[:2], hinges(x, y, queries[:2]), u, C)
    # Back to the data's own origin.
    return queries.at[:, -1].add(-queries[:, :-1] @ middle), error(queries), F


_evaluate = Program(_evaluated)
