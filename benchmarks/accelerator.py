"""On a GPU (or, small, on a CPU): a path, one fit on demand, many classes, a layer, and shares of the device's peak.

    python benchmarks/accelerator.py [--small] [kernels path fit classes layer]

Without `--small`: n = 50,000 and 64 values of C; one fit of 200,000 rows whose kernel values are computed on demand;
MNIST one against one; 1,024 layers of 64 x 25. Each line has the seconds of the first call, of the second, and the
certified gap. The kernels that these spend their time in are timed alone: a product of the Gram matrix with 64 columns,
rows of the Gram matrix, squared distances; their share is of the peak that a large product and a large copy reach in
the same run. The card's name comes first.
"""

import argparse
import time
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import jaxsvm
from jaxsvm.kernels import RBF, Linear
from jaxsvm.numerics.precision import matmul

DATA = Path(__file__).resolve().parent.parent.parent / "shared" / "data"


def points(n, d, seed=0):
    rng = np.random.default_rng(seed)
    y = np.where(rng.random(n) < 0.5, -1, 1)
    return (rng.standard_normal((n, d)) + 0.4 * y[:, None] / np.sqrt(d) * 3).astype(np.float32), y


def timed(name, call):
    """Print the seconds of two calls and the largest gap."""
    seconds = []
    for _ in range(2):
        started = time.perf_counter()
        fit = jax.block_until_ready(call())
        seconds.append(time.perf_counter() - started)
    gap = float(np.max(np.asarray(fit.certificate.relative_gap)))
    print(f"{name:48} first {seconds[0]:8.2f} s, then {seconds[1]:8.2f} s, gap up to {gap:.1e}", flush=True)


def least(call, *arguments):
    jax.block_until_ready(call(*arguments))
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        jax.block_until_ready(call(*arguments))
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def path(small):
    """A path of the squared hinge."""
    n, d = (2_000, 20) if small else (50_000, 64)
    x, y = points(n, d)
    problem = jaxsvm.svm_problem(jaxsvm.gram(RBF(1 / d), x), y)
    Cs = np.geomspace(1e-2, 1e3, 8 if small else 64)
    timed(f"path of {len(Cs)} C, n = {n:,}", lambda: jaxsvm.solve_path(problem, Cs, tol=1e-3).fits)


def fit(small):
    """One fit whose kernel values are computed on demand."""
    n, d = (5_000, 20) if small else (200_000, 64)
    x, y = points(n, d, 1)
    hinge = jaxsvm.hinge_problem(jaxsvm.gram(RBF(1 / d), x, memory=1 << 28), y, 1.0, bias="free")
    timed(f"one fit on demand, n = {n:,}", lambda: jaxsvm.fit(hinge, jaxsvm.WorkingSet(tol=1e-3)))


def classes(small):
    """MNIST, a machine for each pair of classes."""
    file = DATA / "mnist.npz"
    if file.exists():
        stored = np.load(file)
        rows = 2_000 if small else len(stored["y"])
        x, labels = stored["X"][:rows].astype(np.float32) / 255, stored["y"][:rows]
        make = partial(jaxsvm.hinge_problem, jaxsvm.gram(RBF(0.02), x), C=1.0, bias="free")
        machines = jaxsvm.one_versus_one(make, labels)
        timed(f"mnist one against one, n = {rows:,}", lambda: jaxsvm.fit_many(machines))
    else:
        print("mnist: skipped, its file is absent")


def layer(small):
    """A layer of many small machines, and its gradient."""
    lanes, m, d = (64, 25, 16) if small else (1024, 25, 64)
    rng = np.random.default_rng(0)
    xs, ys = rng.standard_normal((lanes, m, d), np.float32), np.sign(rng.standard_normal((lanes, m), np.float32))

    def machine(x, y):
        return jaxsvm.fit(jaxsvm.hinge_problem(jaxsvm.gram(Linear(), x), y, 1.0))

    compiled = jax.jit(jax.vmap(machine))
    timed(f"a layer of {lanes} x {m} x {d}", lambda: compiled(xs, ys))
    slope = jax.jit(jax.grad(lambda x: (jax.vmap(machine)(x, jnp.asarray(ys)).margins ** 2).mean()))
    print(f"{'its gradient':48} {1e3 * least(slope, xs):8.2f} ms", flush=True)


def kernels(small):
    """Shares of peak of the kernels that fits consist of."""
    n, d = (2_048, 64) if small else (32_768, 64)
    x = jnp.asarray(points(n, d)[0])
    V, square = jnp.ones((n, 64), jnp.float32), jnp.ones((min(n, 8192), min(n, 8192)), jnp.float32)
    flops = 2 * len(square) ** 3 / least(jax.jit(matmul), square, square)
    K = jax.jit(lambda x: RBF(1 / d).matrix(x, x))(x)
    bandwidth = 2 * K.size * 4 / least(jax.jit(lambda K: K + 1), K)
    print(f"peak as measured: {flops / 1e12:.2f} TFLOP/s in full float32, {bandwidth / 1e9:.0f} GB/s")

    def share(name, seconds, of_flops, of_bytes):
        print(
            f"{name}: {of_flops / seconds / flops:.0%} of the flops, {of_bytes / seconds / bandwidth:.0%} of the bytes"
        )

    share("K V, 64 columns", least(jax.jit(matmul), K, V), 2 * K.size * 64, K.size * 4)
    rows = least(jax.jit(lambda x: RBF(1 / d).matrix(x[:1024], x)), x)
    share("1,024 rows of the Gram matrix", rows, 2 * 1024 * n * d, 1024 * n * 4)
    gather = least(jax.jit(lambda K, index: K[index]), K, jnp.arange(0, 1024) * (n // 1024))
    share("1,024 stored rows", gather, 0, 2 * 1024 * n * 4)


TASKS = {"kernels": kernels, "path": path, "fit": fit, "classes": classes, "layer": layer}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("tasks", nargs="*", default=list(TASKS))
    options = parser.parse_args()
    print(f"{jax.devices()[0].device_kind} ({jax.default_backend()}), jax {jax.__version__}")
    for task in options.tasks:
        TASKS[task](options.small)


if __name__ == "__main__":
    main()
