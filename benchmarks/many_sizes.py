"""Fits and paths of many sizes in one process: memory and memory maps, which every compiled program takes some of.

    python benchmarks/many_sizes.py [--fits 500] [--paths 50] [--least 200] [--most 5000] [--every 50]

Each fit has another n, spread over the range in a shuffled order, and is cut down with `compact` to a model that
predicts; every tenth is a path of 8 values of C as well. Before programs were let go (`jaxsvm.runtime.programs`) this
ended in a segmentation fault between the 120th and the 150th n; before sizes were shared (`jaxsvm.problems.padding`)
each n compiled anew.
"""

import argparse
import os
import time
from pathlib import Path

import numpy as np
from jax import monitoring

import jaxsvm
from jaxsvm.kernels import RBF


def maps() -> int:
    """Memory maps of this process, of which Linux grants 65,530."""
    return Path("/proc/self/maps").read_bytes().count(b"\n")


def resident() -> float:
    """Resident memory in MiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def main() -> None:
    """Fit, and print every so often."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fits", type=int, default=500)
    parser.add_argument("--paths", type=int, default=50)
    parser.add_argument("--least", type=int, default=200)
    parser.add_argument("--most", type=int, default=5000)
    parser.add_argument("--every", type=int, default=50)
    options = parser.parse_args()
    compiled = []
    monitoring.register_event_time_span_listener(
        lambda event, *_, **__: compiled.append(1) if event.endswith("backend_compile_duration") else None
    )
    rng = np.random.default_rng(0)
    x = rng.normal(size=(options.most, 4)).astype(np.float32)
    y = np.where(x[:, 0] + x[:, 1] ** 2 > 0.7, 1.0, -1.0)
    sizes = rng.permutation(np.linspace(options.least, options.most, options.fits).round().astype(int))
    between = max(options.fits // max(options.paths, 1), 1)
    started = time.monotonic()
    print(f"{'fits':>6} {'programs':>9} {'maps':>8} {'most':>8} {'MiB':>8} {'most':>8} {'seconds':>8}")
    most_maps, most_memory = maps(), resident()
    for count, n in enumerate(sizes.tolist(), 1):
        problem = jaxsvm.svm_problem(jaxsvm.gram(RBF(0.5), x[:n]), y[:n], 1.0)
        fit = jaxsvm.check(jaxsvm.fit(problem, jaxsvm.FrankWolfe(tol=1e-3)))
        model = jaxsvm.compact(fit, problem)
        jaxsvm.decision_function(model, x[:20])
        if options.paths and count % between == 0:
            jaxsvm.check(jaxsvm.solve_path(problem, np.geomspace(1e-2, 1e2, 8), tol=1e-3))
        most_maps, most_memory = max(most_maps, maps()), max(most_memory, resident())
        if count % options.every == 0:
            print(
                f"{count:>6} {len(compiled):>9} {maps():>8} {most_maps:>8} {resident():>8.0f} {most_memory:>8.0f} "
                f"{time.monotonic() - started:>8.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
