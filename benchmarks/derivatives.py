"""Derivatives of default fits against central differences of exact ones, on random problems with degenerate supports.

Usage: python benchmarks/derivatives.py [--count 500] [--seed 0] [--kernel linear] [--bias free] [--json FILE]

A problem is 40 points in 3 dimensions: normal ones, ones with twins, ones on a grid of whole numbers; C is log-uniform
from 0.01 to 100. Kernels, biases and dtypes take turns. What moves are the points and C, along a random direction; what
is looked at are bias, optimal value and decision values of a fit at default settings. Differences are of fits to a gap
of 1e-13, in float64. A derivative is right where it is within 1e-3 of their size (float32: 1e-2); that of the optimal
value, which is computed at the fit itself, within 1e-2, the root of its gap of 1e-4. A problem is marked where
`implicit.one_sided` names samples at a kink within `KINK`.
"""

import argparse
import collections
import json
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

import jaxsvm
from jaxsvm import implicit
from jaxsvm.kernels import RBF, Linear

N, D, STEP, KINK = 40, 3, 1e-6, 1e-4
KERNELS = {"linear": Linear(), "rbf": RBF(0.5)}
BIASES = ("regularized", "free", "none")
DTYPES = ("float64", "float32")
CLOSE = {"float64": 1e-3, "float32": 1e-2}


def drawn(rng, shape):
    """Points, labels, C, and the direction that they move in."""
    x = rng.normal(size=(N, D))
    if shape == "twins":
        x[N // 2 :] = x[: N - N // 2]
    if shape == "grid":
        x = np.round(1.5 * x)
    y = np.where(x @ rng.normal(size=D) + rng.normal(size=N) * rng.choice([0.1, 1.0]) > 0, 1.0, -1.0)
    y[:2] = 1.0, -1.0
    return x, y, np.exp(rng.uniform(np.log(0.01), np.log(100))), rng.normal(size=(N, D)), rng.normal()


@cache
def programs(kernel, bias):
    """The derivative of a default fit, with its status; and an exact fit with what is marked of it."""

    def problem(x, y, C):
        return jaxsvm.hinge_problem(jaxsvm.gram(KERNELS[kernel], x), y, C, bias=bias)

    def seen(fit):
        return jnp.concatenate([jnp.stack([fit.bias, fit.certificate.dual]), fit.margins])

    @jax.jit
    def derivative(x, y, C, dx, dC):
        def values(x, C):
            fit = jaxsvm.fit(problem(x, y, C))
            return seen(fit), fit.status.code

        (_, code), (moved, _) = jax.jvp(values, (x, C), (dx, dC))
        return moved, code

    @jax.jit
    def exact(x, y, C):
        here = problem(x, y, C)
        fit = jaxsvm.fit(here, jaxsvm.InteriorPoint(tol=1e-13))
        return seen(fit), implicit.one_sided(here, fit, KINK).any()

    return derivative, exact


def judged(rng, kernel, bias, dtype, shape):
    """ "right", "marked", "wrong" or "NaN"; of a fit that converged."""
    derivative, exact = programs(kernel, bias)
    x, y, C, dx, dC = drawn(rng, shape)
    x, C, dx, dC = (np.asarray(part, dtype).astype(np.float64) for part in (x, C, dx, dC))
    moved, code = derivative(*(np.asarray(part, dtype) for part in (x, y, C, dx, dC)))
    if int(code) != jaxsvm.Status.CONVERGED:
        return "not converged"
    if np.isnan(moved).any():
        return "NaN"
    (ahead, _), (behind, _) = (exact(x + t * dx, y, C + t * dC) for t in (STEP, -STEP))
    expected = (np.asarray(ahead) - np.asarray(behind)) / (2 * STEP)
    off = np.abs(np.asarray(moved, np.float64) - expected)
    close = np.where(np.arange(len(off)) == 1, 1e-2, CLOSE[dtype])
    if (off <= close * (1 + np.abs(expected).max())).all():
        return "right"
    return "marked" if bool(exact(x, y, C)[1]) else "wrong"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kernel", choices=list(KERNELS))
    parser.add_argument("--bias", choices=BIASES)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    found = collections.Counter()
    for number in range(arguments.count):
        turn = np.unravel_index(number % 36, (2, 3, 2, 3))
        what = (
            list(KERNELS)[turn[0]],
            BIASES[turn[1]],
            DTYPES[turn[2]],
            ("normal", "twins", "grid")[turn[3]],
        )
        if arguments.kernel not in (None, what[0]) or arguments.bias not in (None, what[1]):
            continue
        verdict = judged(np.random.default_rng([arguments.seed, number]), *what)
        found[*what, verdict] += 1
        if verdict in ("NaN", "wrong"):
            print(f"problem {number} of seed {arguments.seed}: {verdict} ({', '.join(what)})", flush=True)
    for verdict in ("right", "marked", "wrong", "NaN", "not converged"):
        print(f"{verdict}: {sum(count for key, count in found.items() if key[-1] == verdict)}", flush=True)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump([[*key, count] for key, count in sorted(found.items())], file, indent=1)


if __name__ == "__main__":
    main()
