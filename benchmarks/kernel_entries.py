"""What kernel entries are worth, and what they cost: RBF and Laplacian against long double, at many scales and offsets.

    python benchmarks/kernel_entries.py            # both tables
    python benchmarks/kernel_entries.py --skip-time --n 60

The error of an entry is given in units of what is possible: `eps K (1 + gamma distance)`, since the exponent itself
must be rounded. Beside it stands the worst plain error of an entry. Points are those that the float type holds: what
rounding them lost is not the kernel's fault (`gram` warns of it).
"""

import argparse
import time
import warnings

import jax
import numpy as np
import scipy.sparse

import jaxsvm
from jaxsvm.kernels import RBF, Laplacian

PLACES = (1e-6, 1e-3, 1.0, 1e3, 1e6)


def truth(x, z, gamma, power):
    """Exponents in long double, feature by feature."""
    total = np.zeros((len(x), len(z)), np.longdouble)
    for x_k, z_k in zip(np.asarray(x, np.longdouble).T, np.asarray(z, np.longdouble).T, strict=True):
        total += np.abs(x_k[:, None] - z_k) ** power
    return np.longdouble(gamma) * total


def errors(K, exponent, dtype):
    """Worst error in units of what is possible, and as it is; entries that underflow count as they are."""
    exact = np.exp(-exponent)
    plain = np.abs(np.asarray(K, np.longdouble) - exact)
    floats = np.finfo(dtype)
    shown = exact > float(floats.tiny) * 1e3
    units = plain / (floats.eps * exact * (1 + exponent))
    return float(units[shown].max()), float(plain.max())


def values(kernel, x, storage):
    n = len(x)
    if storage == "tiled":
        return jaxsvm.gram(kernel, x, tile=16).rows(np.arange(n))
    if storage == "CSR":
        return jaxsvm.gram(kernel, scipy.sparse.csr_matrix(x), store=True).K
    operator = jaxsvm.gram(kernel, x, store=True)
    if storage == "prediction":
        return operator.expansion(np.zeros(n, x.dtype))[0](x)
    return operator.K


def accuracy(n, d):
    """A data set of n points, half of which have a neighbour at a distance of about a kernel's width."""
    random = np.random.default_rng(0)
    shape = random.normal(size=(n, d))
    steps = random.normal(size=(n // 2, d)) / np.sqrt(d)
    print(f"Worst error of an entry of {n} x {n}, d = {d}: units of eps K (1 + exponent), and as it is")
    print(f"{'kernel':10} {'dtype':8} {'scale':>6} {'offset':>7} {'width':>6}", end="")
    print("".join(f" {storage:>19}" for storage in ("dense", "tiled", "prediction", "CSR")))
    for kernel, power in (("RBF", 2), ("Laplacian", 1)):
        for dtype in (np.float32, np.float64):
            for scale in PLACES:
                for offset in (0.0, *PLACES):
                    for width in {scale, min(scale, 1.0)}:
                        x = offset + scale * shape
                        x[: n // 2] = x[n // 2 : 2 * (n // 2)] + width * steps
                        x = x.astype(dtype)
                        gamma = float(dtype(1 / (d * width**power)))
                        exponent = truth(x, x, gamma, power)
                        made = RBF(gamma) if power == 2 else Laplacian(gamma)
                        cells = []
                        for storage in ("dense", "tiled", "prediction", "CSR"):
                            units, plain = errors(values(made, x, storage), exponent, dtype)
                            cells.append(f"{units:9.2g} ({plain:7.1e})")
                        name = np.dtype(dtype).name
                        print(f"{kernel:10} {name:8} {scale:6.0e} {offset:7.0e} {width:6.0e} {' '.join(cells)}")


def clock(n, d, repeats):
    """The first Gram in a process compiles; the others do not."""
    random = np.random.default_rng(1)
    well = random.normal(size=(n, d)).astype(np.float32)
    heavy = well * (random.random(size=(n, d)) < 0.02) * 7  # standardised columns that are nearly always 0
    wide = 1e3 * well
    wide[1::2] = wide[::2] + 0.1 * well[1::2]
    cases = {
        "RBF, standardised": (RBF(1 / d), well),
        "RBF, offset 1e4": (RBF(1 / d), well + np.float32(1e4)),
        "RBF, rare features": (RBF(1.0), heavy),
        "RBF, scale 1e3": (RBF(1 / d), wide),
        "RBF, length scales": (RBF(np.full(d, 1 / d, np.float32)), well),
        "Laplacian": (Laplacian(1 / d), well),
    }
    print(f"\nSeconds of a Gram, n = {n}, d = {d}, float32: first call, then the least and the median of {repeats}")
    for name, (kernel, x) in cases.items():
        first, *rest = (seconds(kernel, x) for _ in range(repeats + 1))
        print(f"{name:22} {first:7.3f} {min(rest):7.3f} {np.median(rest):7.3f}", flush=True)


def seconds(kernel, x):
    start = time.perf_counter()
    jax.block_until_ready(jaxsvm.gram(kernel, x, store=True).K)
    return time.perf_counter() - start


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--n", type=int, default=60)
    parser.add_argument("--d", type=int, default=5)
    parser.add_argument("--skip-accuracy", action="store_true")
    parser.add_argument("--skip-time", action="store_true")
    parser.add_argument("--repeats", type=int, default=7)
    given = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    warnings.simplefilter("ignore")  # points that float32 cannot hold are among these
    if not given.skip_accuracy:
        accuracy(given.n, given.d)
    if not given.skip_time:
        clock(10_000, 50, given.repeats)
