"""n = 100,000 in little memory: rows on demand, to a certified relative gap; peak memory of the process is reported.

Usage: python benchmarks/large.py [--n 100000] [--d 50] [--C 1] [--tol 1e-2] [--max-seconds 1200] [--json FILE]
"""

import argparse
import json
import resource
import time

import jax
import numpy as np

import jaxsvm
from jaxsvm.kernels import RBF


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=100_000)
    parser.add_argument("--d", type=int, default=50)
    parser.add_argument("--C", type=float, default=1.0)
    parser.add_argument("--tol", type=float, default=1e-2)
    parser.add_argument("--max-seconds", type=float, default=1200)
    parser.add_argument("--json")
    options = parser.parse_args()
    from single_fit import data, judge  # the same data and the same judge

    x, y, x_test, y_test = data(options.n, options.d)
    gram = jaxsvm.gram(RBF(gamma=1 / options.d), x)
    problem = jaxsvm.svm_problem(gram, y, options.C)
    solver = jaxsvm.FrankWolfe(tol=options.tol)
    started = time.perf_counter()
    last = [0.0]

    def report(fit):
        if time.perf_counter() - last[0] > 15:
            last[0] = time.perf_counter()
            print(
                f"  {last[0] - started:6.0f} s  {int(fit.steps):8d} steps, certified gap so far "
                f"{float(fit.certificate.relative_gap):.3g}",
                flush=True,
            )

    fit = jaxsvm.fit(problem, solver, max_seconds=options.max_seconds, callback=report)
    jax.block_until_ready(fit)
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    accuracy = float((np.asarray(jaxsvm.predict(fit, problem, x_test)) == y_test).mean())
    row = {
        "n": options.n, "d": options.d, "C": options.C, "gram": type(gram).__name__, "status": fit.status.name,
        "steps": int(fit.steps), "seconds": seconds, "certified_gap": float(fit.certificate.relative_gap),
        "support": len(fit.support), "peak_GiB": peak, "accuracy": accuracy,
    }  # fmt: skip
    print(json.dumps(row))
    row["float64_gap"] = judge(x, y, options.C, fit.alpha, 1 / options.d)
    print(f"gap judged in float64 outside the solver: {row['float64_gap']:.3g}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump(row, file, indent=1)


if __name__ == "__main__":
    main()
