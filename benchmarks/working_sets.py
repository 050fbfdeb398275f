"""One fit on real sets of many kinds beside the fastest CPU fits that install, judged in float64 at an equal gap.

Usage: python benchmarks/working_sets.py [--sets usps letter ...] [--C 1 10 100] [--gap 1e-3] [--loss hinge squared]
    [--peers aocl32 SVC] [--rounds 3] [--json FILE]

Points are scaled to [0, 1] a column, gamma is 1 / (d var(x)), at most 30,000 rows (letter 10,000, MNIST 12,000). The
hinge has a free bias; a peer's tolerance is the loosest of 1e-3, 3e-4 and 1e-4 whose judged gap is within `--gap` (its
last one where none is: the gap is printed). For the squared hinge the peer is what `FrankWolfe(variant="smo")` does on
stored kernel values, and `--peers libsvm_squared`, with a free bias. Seconds from arrays, Gram included, compilation
apart (a first fit that is not counted); rounds are interleaved, and the least of each is taken. Peers that are not
installed, and sets that are not there, are skipped with a line that says so.
"""

import argparse
import json
import math
import time
import warnings
from pathlib import Path

import jax
import numpy as np
import scipy.sparse
from peers import at_gap, hinge_gap, peer
from single_fit import data, judge

import jaxsvm
from jaxsvm.kernels import RBF

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
FILES = {"a9a": "adult", "w8a": "web"}
POSITIVE = {"usps": 0, "mnist": 8, "shuttle": 1}
ROWS = {"letter": 10_000, "mnist": 12_000}
SETS = ("usps", "letter", "mnist", "shuttle", "a9a", "w8a", "ijcnn1", "codrna", "synthetic")
TOLERANCES = (1e-3, 3e-4, 1e-4)
LIBSVM = "libsvm_squared"
"""scikit-learn's `SVC` on the precomputed `K + 1 + I / C`, whose hard margin is the squared hinge."""
IDLE = 0.3
"""Seconds before each fit: OpenMP's threads of a peer spin for 0.2 s after their work, on the cores of the next one."""


def load(name, rows=30_000, seed=0):
    """Points `(n, d)`, float32, signs and gamma of a set, in random order; None where its file is not there."""
    if name == "synthetic":
        x, y, *_ = data(10_000)
        return x, y, 1 / x.shape[1]
    path = DATA / f"{FILES.get(name, name)}.npz"
    if not path.exists():
        return None
    with np.load(path) as Z:
        y = Z["y"].astype(int)
        x = Z["X"] if "X" in Z else scipy.sparse.csr_matrix((Z["X_data"], Z["X_indices"], Z["X_indptr"]), Z["X_shape"])
    x = np.asarray(x.toarray() if hasattr(x, "toarray") else x, np.float32)
    y = np.where(y <= 13 if name == "letter" else y == POSITIVE.get(name, y.max()), 1, -1)
    chosen = np.random.default_rng(seed).permutation(len(y))[: ROWS.get(name, rows)]
    x, y = x[chosen], y[chosen]
    low, high = x.min(0), x.max(0)
    x = np.ascontiguousarray(((x - low) / np.where(high > low, high - low, 1))[:, high > low])
    return x, y, 1 / (x.shape[1] * float(x.var()))


def ours(x, y, C, gamma, loss, solver, tol):
    """Seconds of a fit, and the fit."""
    start = time.perf_counter()
    gram = jaxsvm.gram(RBF(gamma=gamma), x)
    problem = jaxsvm.svm_problem(gram, y, C) if loss == "squared" else jaxsvm.hinge_problem(gram, y, C, bias="free")
    fit = jaxsvm.fit(problem, tol=tol) if solver is None else jaxsvm.fit(problem, solver)
    jax.block_until_ready(fit.alpha)
    return time.perf_counter() - start, fit


def gap_of(fit, x, y, C, gamma, loss):
    """The gap judged in float64, from the points."""
    if loss == "squared":
        return judge(x, y, C, fit.alpha, gamma)
    return hinge_gap(x, y, C, fit.support, np.asarray(fit.dual_coef)[fit.support], gamma)


def line(x, y, C, gamma, loss, others, options):
    """Seconds and judged gaps of all on one problem."""
    takers = {"ours": lambda: ours(x, y, C, gamma, loss, None, options.gap)}
    if loss == "squared":
        before = jaxsvm.FrankWolfe(tol=options.gap)
        takers["stored pairs"] = lambda: ours(x, y, C, gamma, loss, before, options.gap)
    first, fit = takers["ours"]()
    found = {"first": first, "status": fit.status.name, "support": len(fit.support) / len(y)}
    found["evaluations"] = fit.kernel_evaluations / len(y) ** 2
    found["gap ours"] = gap_of(fit, x, y, C, gamma, loss)
    if loss == "squared":
        takers["stored pairs"]()
        if LIBSVM in options.peers:  # once: it is slow, and its fit is told by its gap
            found[LIBSVM], _, found[f"gap {LIBSVM}"] = at_gap(LIBSVM, x, y, C, gamma, options.gap, 1)
    for name in others if loss == "hinge" else ():
        for tol in TOLERANCES:
            took, support, coefficients = peer(name, x, y, C, gamma, tol)
            found[f"gap {name}"] = hinge_gap(x, y, C, support, coefficients, gamma)
            if found[f"gap {name}"] <= options.gap or took > options.patience:
                break
        takers[name] = lambda name=name, tol=tol: peer(name, x, y, C, gamma, tol)
        found[name] = took
    for _ in range(options.rounds):
        for name, take in takers.items():
            if found.get(name, 0) <= options.patience:
                time.sleep(IDLE)
                found[name] = min(found.get(name, math.inf), take()[0])
    return found


def installed(names):
    """Those of the peers that can be run."""
    few = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
    signs, able = np.where(few[:, 0] > 0, 1, -1), []
    for name in names:
        try:
            peer(name, few, signs, 1.0, 0.5, 1e-3)
            able.append(name)
        except ImportError as error:
            print(f"{name} is not installed ({error}): skipped", flush=True)
    return able


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--C", type=float, nargs="+", default=[1.0, 10.0, 100.0])
    parser.add_argument("--gap", type=float, default=1e-3)
    parser.add_argument("--loss", nargs="+", default=["hinge", "squared"])
    parser.add_argument("--peers", nargs="*", default=["aocl32", "aocl64", "sklearnex", "SVC"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=30_000)
    parser.add_argument("--patience", type=float, default=60.0, help="seconds after which a peer is not run again")
    parser.add_argument("--json")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    names = [name for name in options.peers if name != LIBSVM]
    others, rows = installed(names) if "hinge" in options.loss else [], []
    for loss in options.loss:
        for name in options.sets:
            loaded = load(name, options.rows)
            if loaded is None:
                print(f"{name} is not in {DATA}: skipped", flush=True)
                continue
            x, y, gamma = loaded
            for C in options.C:
                found = line(x, y, C, gamma, loss, others, options)
                rows.append({"loss": loss, "set": name, "n": len(y), "d": x.shape[1], "C": C, **found})
                print(" ".join(f"{k}={v:.3g}" if isinstance(v, float) else f"{k}={v}" for k, v in rows[-1].items()))
                if options.json:
                    Path(options.json).write_text(json.dumps(rows, indent=1))
        for name in ["stored pairs", LIBSVM] if loss == "squared" else others:
            ratios = [row["ours"] / row[name] for row in rows if row["loss"] == loss and name in row]
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan
            print(f"{loss}: ours / {name}: geometric mean {mean:.2f}, worst {max(ratios, default=math.nan):.2f}")


if __name__ == "__main__":
    main()
