"""Take subgradient steps on rows drawn from the join, which are unbiased.

Shalev-Shwartz, Singer, Srebro, Cotter, "Pegasos" (Mathematical Programming 2011), on draws of `sampling.py`. For modest
accuracy it is the simplest method, and its cost does not depend on the join's size; it proves nothing on its own.
"""

import time
from typing import Any

import numpy as np

from jaxsvm.relational.counting.sampling import Sampler, generator
from jaxsvm.relational.descent.fit import RelationalFit, result_of
from jaxsvm.relational.descent.run import Run
from jaxsvm.relational.gradient.bundle import Bundle
from jaxsvm.relational.gradient.engine import engine_for
from jaxsvm.relational.schema.join import prepared
from jaxsvm.runtime.checks import require_positive, require_whole


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
    """Train by Pegasos on rows drawn from the join; the error of the optimisation is O(d log T / (lam T)) for any N.

    Args:
        join: The join.
        lam: The strength of the regulariser in `mean hinge + lam |beta|^2`, > 0.
        key: An integer, or a key of `jax.random`.
        steps: Number of steps T; the result is the average of the second half.
        batch: Rows a step.
        scale: Scaling of numbers: "none", "max" or "standard"; `coef` is for unscaled numbers.
        intercept: Whether there is a constant feature 1, regularised like the others.
        tol: The relative gap up to which the status is CONVERGED. One point proves little from below, so the
            certificate is wide; `fit` proves more.

    Raises:
        InputError: On arguments that cannot be used.
    """
    require_positive("lam", lam)
    for name, value in (("steps", steps), ("batch", batch)):
        require_whole(name, value, 1)
    started, rng = time.monotonic(), generator(key)
    join = prepared(join, scale, intercept)
    sampler, beta, mean = Sampler(join), np.zeros(join.d), np.zeros(join.d)
    most, half = max((1 << 18) // batch, 1), steps // 2  # steps whose rows are drawn at a time
    for begin in range(0, steps, most):
        many = min(most, steps - begin)
        rows = sampler.draw(many * batch, rng)
        for k in range(many):
            t, part = begin + k + 1, slice(k * batch, (k + 1) * batch)
            x, y, _ = join.materialise([index[part] for index in rows])
            wrong = y * (y * (x @ beta) < 1)
            beta = (1 - 1 / t) * beta + x.T @ wrong / (2 * lam * t * batch)
            mean = mean + (beta - mean) / (t - half) if t > half else beta
    engine, why = engine_for(join)
    run = Run(join, lam, 0.1, engine, Bundle.empty(join.d, lam), started)
    run.record(run.evaluate(mean))
    run.improve_bound()
    run.taken = steps
    return result_of(run, tol, f"pegasos on drawn rows, certified by {why}")
