"""Relational Pegasos: subgradient steps on rows drawn from the join, unbiased.

Shalev-Shwartz, Singer, Srebro, Cotter, "Pegasos" (Mathematical Programming 2011), on draws of `sampling.py`. For modest
accuracy it is the simplest way, and its cost does not depend on the join's size; what it lacks is a proof.
"""

import time
from typing import Any

import numpy as np

from jaxsvm.relational.counting.sampling import Sampler, generator
from jaxsvm.relational.descent.fit import RelationalFit, answer
from jaxsvm.relational.descent.run import Run
from jaxsvm.relational.gradient.bundle import Bundle
from jaxsvm.relational.gradient.engine import engine_for
from jaxsvm.relational.schema.join import prepared
from jaxsvm.runtime.checks import require_positive, require_whole

ROWS = 1 << 18
"""Rows that are drawn at a time."""


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
        tol: The relative gap for which the status says CONVERGED. One point proves little from below: the certificate
            is honest, and wide; `fit` proves more.
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
    run = Run(join, lam, 0.1, engine, Bundle.empty(join.d, lam), started, None, None)
    run.noted(run.evaluate(mean))
    run.D = max(run.D, run.planes.bound()[0])
    run.taken = steps
    return answer(run, tol, f"pegasos on drawn rows, certified by {why}")
