"""Ten seeds of the Stochastic Batch Perceptron as lanes of one computation, over ten runs and over one.

Usage: python benchmarks/sbp_seeds.py [--n 5000] [--batch 32] [--steps 300] [--rounds 3] [--json FILE]

Rows computed on demand (a tiled Gram operator) and rows of a stored matrix. Ratios are of medians over rounds that take
turns; compilation apart.
"""

import argparse
import json
import pathlib
import statistics
import time
from functools import partial

import jax
import jax.numpy as jnp
from single_fit import data

import jaxsvm
from jaxsvm.kernels import RBF
from jaxsvm.loop.driver import fit_compiled


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=5000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    x, y = data(options.n)[:2]
    solver = jaxsvm.StochasticBatchPerceptron(steps=options.steps, batch=options.batch, tol=1e-9)
    keys = jax.random.split(jax.random.key(0), options.seeds)
    rows = []
    for name, tile in (("computed", 128), ("stored", None)):
        problem = jaxsvm.slack_problem(jaxsvm.gram(RBF(1 / x.shape[1]), jnp.asarray(x), tile=tile), y, 1e-2)
        one = jax.jit(lambda problem, key: fit_compiled(problem, solver, key))
        lanes = jax.jit(jax.vmap(lambda problem, key: fit_compiled(problem, solver, key), in_axes=(None, 0)))
        start = time.perf_counter()
        jax.block_until_ready((one(problem, keys[0]), lanes(problem, keys)))
        first_call = time.perf_counter() - start
        runs = {
            "one": partial(one, problem, keys[0]),
            "lanes": partial(lanes, problem, keys),
            "separate": partial(lambda one, problem: [one(problem, key) for key in keys], one, problem),
        }
        times = {label: [] for label in runs}
        for _ in range(options.rounds):
            for label, run in runs.items():
                start = time.perf_counter()
                jax.block_until_ready(run())
                times[label].append(time.perf_counter() - start)
        median = {label: statistics.median(values) for label, values in times.items()}
        rows.append({"rows": name, "first_call": first_call, **median})
        of_one, of_all = (median["lanes"] / median[label] for label in ("one", "separate"))
        print(
            f"n = {options.n}, batch {options.batch}, {options.steps} steps, rows {name}: "
            f"one seed {median['one']:.2f} s, {options.seeds} as lanes {median['lanes']:.2f} s "
            f"(x{of_one:.2f} of one, x{of_all:.2f} of {options.seeds} runs); first calls {first_call:.1f} s"
        )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
