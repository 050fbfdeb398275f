"""What one step costs on a stored Gram, as a multiple of `v * (1 - lam) + lam * K[i]` alone in the same kind of loop.

Usage: python benchmarks/step_cost.py [--sizes 5000 10000] [--rounds 7] [--json FILE]

The yardstick reads one pseudo-random row of K a turn, as a solver does. Rounds go through all bodies in turn, and the
ratio of a body is taken within its round, so that a slow spell of the machine falls on both; the median is printed,
with the extremes. The refresh, a whole matrix-vector product, is measured too and counted in at the driver's
interval.
"""

import argparse
import json
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jaxsvm
from jaxsvm.kernels import RBF
from jaxsvm.loop.round import refresh_interval, run_steps
from jaxsvm.solvers.contract import Solver

STEPS = 5000


def seconds(function, *arguments):
    start = time.perf_counter()
    jax.block_until_ready(function(*arguments))
    return time.perf_counter() - start


@jax.jit
def yardstick(v, i, K):
    n = v.shape[0]

    def body(_, carry):
        v, i = carry
        i = i * 1103515245 + 12345  # a new row a turn, at no cost
        return v * (1 - 0.01) + 0.01 * lax.dynamic_slice(K, ((i >> 8) % n, 0), (1, n))[0], i

    return lax.fori_loop(0, STEPS, body, (v, i), unroll=Solver.unroll)


@jax.jit
def stepping(problem, solver, state):
    return run_steps(problem, solver, state, STEPS, solver.unroll)


def measure(n, rounds, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, 50)).astype(np.float32)
    y = np.sign(x[:, 0] + 0.5 * rng.standard_normal(n))
    gram = jaxsvm.gram(RBF(gamma=1 / 50), x, store=True)
    problem = jaxsvm.svm_problem(gram, y, 10.0)
    bodies = {"yardstick": lambda: yardstick(problem.y, jnp.int32(1), gram.K)}
    for variant in ("classic", "away", "pairwise", "smo"):
        solver = jaxsvm.FrankWolfe(variant=variant, start="uniform")
        state = solver.init(problem)
        bodies[variant] = lambda solver=solver, state=state: stepping(problem, solver, state)
    refresh = jax.jit(lambda problem, state: jaxsvm.FrankWolfe().refresh(problem, state))
    bodies["refresh"] = lambda: refresh(problem, state)
    for body in bodies.values():
        jax.block_until_ready(body())
    times = {name: [] for name in bodies}
    for _ in range(rounds):
        for name, body in bodies.items():
            times[name].append(seconds(body))
    interval = refresh_interval(jaxsvm.FrankWolfe(), n)
    rows = []
    for name, measured in times.items():
        turns = 1 if name == "refresh" else STEPS
        ratios = [t / turns / (base / STEPS) for t, base in zip(measured, times["yardstick"], strict=True)]
        row = {"n": n, "body": name, "us": 1e6 * statistics.median(measured) / turns}
        row |= {"ratio": statistics.median(ratios), "low": min(ratios), "high": max(ratios)}
        if name not in ("yardstick", "refresh"):
            row["with_refresh"] = row["ratio"] + statistics.median(times["refresh"]) / interval / (
                statistics.median(times["yardstick"]) / STEPS
            )
        rows.append(row)
    return rows, interval


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[5000, 10000])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json")
    options = parser.parse_args()
    rows = []
    for n in options.sizes:
        found, interval = measure(n, options.rounds)
        print(f"n = {n}, float32, refresh every {interval} steps at the latest")
        for row in found:
            extra = f"   with refresh x{row['with_refresh']:.2f}" if "with_refresh" in row else ""
            spread = f"x{row['ratio']:8.2f}  ({row['low']:.2f} to {row['high']:.2f})"
            print(f"  {row['body']:10s} {row['us']:10.2f} us  {spread}{extra}")
        rows += found
    if options.json:
        with open(options.json, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
