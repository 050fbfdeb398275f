"""Coresets in parts: what a stream costs and loses, what the number of cells does, how processes of a cluster scale.

    python benchmarks/coreset_parts.py streaming [--sets htru2,codrna,skin] [--sizes 200,400,1000] [--trials 5]
    python benchmarks/coreset_parts.py cells     [--sets htru2,pathological] [--trials 30]
    python benchmarks/coreset_parts.py processes [--rows 4000000] [--workers 1,2]

Data are standardised, C = 1; errors are F(w_S) / F* - 1 on the whole data. `streaming` passes the data once in
their stored order, shuffled by a seed, and compares a stream's coreset with a reservoir of as many points, and both
with training on everything; seconds are of second runs, in which nothing is compiled. `processes` builds one coreset
of partitions that each process makes for itself, over a `dask.distributed.LocalCluster` with one thread a worker.
"""

import argparse
import json
import os
import time
from pathlib import Path

import jax
import numpy as np
from coresets import load

from jaxsvm import coresets, designs
from jaxsvm.coresets.summary import solution

jax.config.update("jax_compilation_cache_dir", "/tmp/cache_cs")
RESULTS = Path(__file__).parent / "results" / "coreset_parts.json"
PARTITION = 125_000


def excess(x, y, best, w, b):
    return (0.5 * w @ w + np.maximum(0, 1 - y * (x @ w + b)).sum()) / best - 1


def streaming(name, sizes, trials):
    x, y = load(name)
    n = len(y)
    began = time.perf_counter()
    best = excess(x, y, 1.0, *solution(x, y, 1.0, tol=1e-8)) + 1
    print(f"{name} {x.shape}: training on everything {time.perf_counter() - began:.1f} s, F* {best:.6g}", flush=True)
    for m in sizes:
        errors, reservoirs, seconds = [], [], []
        for trial in range(trials + 1):
            order = np.random.default_rng(trial).permutation(n)
            stream = coresets.Stream(C=1.0, size=m, total_weight=float(n))
            began, state = time.perf_counter(), stream.init(trial)
            for first in range(0, n, 10_000):
                rows = order[first : first + 10_000]
                state = stream.update(state, x[rows], y[rows])
            small = stream.finalize(state)
            built = time.perf_counter() - began
            at = small.solution()
            seconds.append((built, time.perf_counter() - began - built))
            if not trial:  # compiles
                continue
            kept = order[: len(small)]  # a reservoir of a shuffled stream
            uniform = solution(x[kept], y[kept], 1.0, np.full(len(kept), n / len(kept)))
            errors.append(excess(x, y, best, *at))
            reservoirs.append(excess(x, y, best, *uniform))
        built, trained = np.median(seconds[1:], axis=0)
        row = {"data": name, "n": n, "size": m, "points": len(small), "seconds": built, "training": trained}
        row |= {"error": np.mean(errors), "reservoir": np.mean(reservoirs), "first_call": sum(seconds[0])}
        at_all = f"{m:>6}: {len(small)} points, stream {built:.2f} s + training {trained:.2f} s"
        gain = row["reservoir"] / row["error"]
        print(
            f"{at_all} (first {row['first_call']:.1f} s), error {row['error']:.3g}, reservoir {row['reservoir']:.3g}, "
            f"ratio {gain:.1f}",
            flush=True,
        )
        yield row


def cells(name, trials, m=400):
    x, y = load(name)
    best = excess(x, y, 1.0, *solution(x, y, 1.0, tol=1e-8)) + 1
    for k in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        if k > (y > 0).sum() // 4:
            break
        made = [coresets.coreset(x, y, 1.0, m, trial, clusters=k) for trial in range(trials)]
        errors = [excess(x, y, best, *small.solution()) for small in made]
        total = float(np.mean([small.info["total"] for small in made]))
        print(f"{name} {k:>4} cells: total {total:8.1f}, error {np.mean(errors):.3g}", flush=True)
        yield {"data": name, "size": m, "cells": k, "total": total, "error": float(np.mean(errors))}


def partition(number):
    """Overlapping classes, a few features that tell."""
    rng = np.random.default_rng([11, number])
    y = np.where(rng.random(PARTITION) < 0.2, 1.0, -1.0)
    x = rng.normal(size=(PARTITION, 20)) * (1 + (np.arange(20) % 3))
    x[:, :4] += y[:, None]
    return x, y


def processes(rows, counts):
    import dask
    import distributed

    count, alone = rows // PARTITION, None
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"  # a core a worker
    os.environ["JAX_COMPILATION_CACHE_DIR"] = "/tmp/cache_cs_workers"
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    for workers in counts:
        with (
            distributed.LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None) as cluster,
            distributed.Client(cluster, timeout="300s"),
        ):
            seconds = []
            for _ in range(3):
                parts = [dask.delayed(partition)(i) for i in range(count)]
                began = time.perf_counter()
                small = coresets.of_rows(designs.from_dask(parts), 1e-3, 1000, 5)
                seconds.append(time.perf_counter() - began)
            best = min(seconds[1:])
            alone = alone or best
            row = {"workers": workers, "rows": rows, "points": len(small), "seconds": best}
            row |= {"first": seconds[0], "gain": alone / best}
            print(
                f"{workers} processes: {best:.1f} s (first {seconds[0]:.1f}), {rows / best:.0f} points/s, "
                f"{row['gain']:.2f} times {counts[0]}",
                flush=True,
            )
            yield row


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["streaming", "cells", "processes"])
    parser.add_argument("--sets", default="")
    parser.add_argument("--sizes", default="200,400,1000")
    parser.add_argument("--trials", type=int, default=0)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--workers", default="1,2")
    given = parser.parse_args()
    if given.what == "processes":
        rows = list(processes(given.rows, [int(count) for count in given.workers.split(",")]))
    elif given.what == "cells":
        names = (given.sets or "htru2,pathological").split(",")
        rows = [row for name in names for row in cells(name, given.trials or 30)]
    else:
        names, sizes = (given.sets or "htru2,codrna,skin").split(","), [int(m) for m in given.sizes.split(",")]
        rows = [row for name in names for row in streaming(name, sizes, given.trials or 5)]
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    RESULTS.write_text(json.dumps(kept | {given.what: rows}, indent=1, default=float) + "\n")


if __name__ == "__main__":
    main()
