"""Fits of many sizes in one process: memory and memory maps, which every compiled program takes some of.

    python benchmarks/many_sizes.py [--fits 400] [--every 50]

Each fit has another n, and is cut down with `compact` to a model that predicts. Before programs were let go
(`jaxsvm.programs`) this ended in a segmentation fault between the 120th and the 150th n.
"""

import argparse
import os
import time
from pathlib import Path

import numpy as np

import jaxsvm
from jaxsvm.kernels import RBF
from jaxsvm.programs import maps


def resident() -> float:
    """Resident memory in MiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def main() -> None:
    """Fit, and print every so often."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fits", type=int, default=400)
    parser.add_argument("--every", type=int, default=50)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50 + options.fits, 4))
    y = np.where(x[:, 0] + x[:, 1] ** 2 > 0.7, 1.0, -1.0)
    started = time.monotonic()
    print(f"{'fits':>6} {'n':>6} {'maps':>8} {'most':>8} {'MiB':>8} {'most':>8} {'seconds':>8}")
    most_maps, most_memory = maps(), resident()
    for count in range(1, options.fits + 1):
        n = 49 + count
        problem = jaxsvm.svm_problem(jaxsvm.gram(RBF(0.5), x[:n]), y[:n], 1.0)
        fit = jaxsvm.check(jaxsvm.fit(problem, jaxsvm.FrankWolfe(tol=1e-4)))
        model = jaxsvm.compact(fit, problem)
        jaxsvm.decision_function(model, x[:20])
        most_maps, most_memory = max(most_maps, maps()), max(most_memory, resident())
        if count % options.every == 0:
            seconds = time.monotonic() - started
            print(
                f"{count:>6} {n:>6} {maps():>8} {most_maps:>8} {resident():>8.0f} {most_memory:>8.0f} {seconds:>8.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
