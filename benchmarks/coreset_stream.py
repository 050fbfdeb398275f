"""A stream of points made on the fly: peak memory, points per second, and the error against a reservoir's.

python benchmarks/coreset_stream.py [--points 20000000] [--reference 2000000] [--size 2000]
"""

import argparse
import resource
import time

import jax
import numpy as np

from jaxsvm.coresets import Stream
from jaxsvm.coresets.summary import solution

jax.config.update("jax_compilation_cache_dir", "/tmp/cache_cs")
D, BLOCK = 20, 100_000


def block(number):
    """Overlapping classes, 5 % positive, a few features that tell."""
    rng = np.random.default_rng([7, number])
    y = np.where(rng.random(BLOCK) < 0.05, 1.0, -1.0)
    x = rng.normal(size=(BLOCK, D)) * (1 + (np.arange(D) % 3))
    x[:, :4] += 1.5 * y[:, None]
    return x, y


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--points", type=int, default=20_000_000)
    parser.add_argument("--reference", type=int, default=2_000_000)
    parser.add_argument("--size", type=int, default=2000)
    parser.add_argument("--chunk", type=int, default=0)
    given = parser.parse_args()
    chunk = given.chunk or None
    blocks = given.points // BLOCK
    stream = Stream(C=1e-3, size=given.size, chunk=chunk, total_weight=float(blocks * BLOCK))
    state, own, cpu, began = stream.init(0), 0.0, 0.0, time.perf_counter()
    for i in range(blocks):
        x, y = block(i)
        at, used = time.perf_counter(), time.process_time()
        state = stream.update(state, x, y)
        own, cpu = own + time.perf_counter() - at, cpu + time.process_time() - used
        if i + 1 in {1, blocks} or (i + 1) % max(1, blocks // 8) == 0:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            with open("/proc/self/statm") as file:
                now = int(file.read().split()[1]) * 4096 / 2**20
            rate, per_cpu = state.rows / own, state.rows / cpu
            print(
                f"{state.rows:>11} points, peak {peak:.0f} MiB, now {now:.0f} MiB, {rate:.0f} points/s "
                f"({per_cpu:.0f} a second of processor), after {time.perf_counter() - began:.0f} s",
                flush=True,
            )
    small = stream.finalize(state)
    reservoir = np.sort(np.random.default_rng(0).choice(given.points, len(small), replace=False))
    parts = [(i, reservoir[reservoir // BLOCK == i] % BLOCK) for i in np.unique(reservoir // BLOCK)]
    drawn = [tuple(a[rows] for a in block(int(i))) for i, rows in parts]
    x_r, y_r = (np.concatenate(parts) for parts in zip(*drawn, strict=True))
    reference = [block(i) for i in range(given.reference // BLOCK)]  # of the same law; a prefix of the stream
    x, y = (np.concatenate(parts) for parts in zip(*reference, strict=True))
    scale = given.points / len(y)

    def F(w, b):
        return 0.5 * w @ w + 1e-3 * scale * np.maximum(0, 1 - y * (x @ w + b)).sum()

    best = F(*solution(x, y, 1e-3 * scale, tol=1e-7))
    ours = F(*small.solution()) / best - 1
    theirs = F(*solution(x_r, y_r, 1e-3, np.full(len(y_r), given.points / len(y_r)))) / best - 1
    print(f"{len(small)} points: excess {ours:.3g}, reservoir {theirs:.3g}, ratio {theirs / ours:.1f}", flush=True)


if __name__ == "__main__":
    main()
