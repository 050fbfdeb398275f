"""Fifty length scales by gradients beside a grid of one, of scikit-learn's SVC: same split, same run, same judge.

Usage: python benchmarks/tune.py [--n 1500] [--steps 60] [--grid 20] [--seeds 1] [--json FILE]

Five of fifty features are informative. Both sides train on the same samples and choose by the same held-out ones
(the grid by their error, which is what a grid search does; ours by its smooth loss); a third split judges. Times
contain Gram matrices and predictions; ours is given with compilation (a first run) and without (a second one, other
start values, nothing compiled again).
"""

import argparse
import json
import time

import jax
import numpy as np
from sklearn.datasets import make_classification
from sklearn.svm import SVC

import jaxsvm
from jaxsvm.kernels import RBF

D, INFORMATIVE, FRESH = 50, 5, 4000


def data(n, seed):
    x, y = make_classification(
        2 * n + FRESH,
        D,
        n_informative=INFORMATIVE,
        n_redundant=0,
        n_clusters_per_class=4,
        flip_y=0.02,
        shuffle=False,
        random_state=seed,
    )
    order = np.random.default_rng(seed).permutation(len(y))  # of samples: the first five features stay informative
    x, y = x[order], 2 * y[order] - 1.0
    x = ((x - x[:n].mean(0)) / x[:n].std(0)).astype(np.float32)
    return (x[:n], y[:n]), (x[n : 2 * n], y[n : 2 * n]), (x[2 * n :], y[2 * n :])


def grid_search(train, held, fresh, size):
    """The grid point of the lowest held-out error, its test error, and the seconds of all fits and predictions."""
    start = time.perf_counter()
    best = (np.inf, None, None)
    for gamma in np.logspace(-3, 1, size) / D * 10:
        for C in np.logspace(-2, 3, size):
            model = SVC(C=C, gamma=gamma, cache_size=2000).fit(*train)
            error = (model.predict(held[0]) != held[1]).mean()
            if error < best[0]:
                best = (error, (C, gamma), model)
    seconds = time.perf_counter() - start
    return {
        "held_out": best[0],
        "test": (best[2].predict(fresh[0]) != fresh[1]).mean(),
        "C, gamma": best[1],
        "seconds": seconds,
    }


def by_gradients(train, held, fresh, steps, start=1.0):
    before = time.perf_counter()
    x, y = (np.concatenate(parts) for parts in zip(train, held, strict=True))
    apart = [np.split(np.arange(len(y)), [len(train[1])])]
    found = jaxsvm.tune(RBF(np.full(D, start / D, np.float32)), x, y, C=1.0, folds=apart, steps=steps, patience=steps)
    jax.block_until_ready(found.fit)
    seconds = time.perf_counter() - before
    problem = jaxsvm.svm_problem(
        jaxsvm.gram(found.kernel, train[0]), train[1], found.C
    )  # as the grid's, of these alone
    predicted = np.asarray(jaxsvm.predict(jaxsvm.fit(problem, tol=1e-4), problem, fresh[0]))
    gamma = np.asarray(found.kernel.gamma)
    return {
        "held_out": found.history[found.best].error,
        "test": (predicted != fresh[1]).mean(),
        "C": found.C,
        "loss": found.loss,
        "best step": found.best,
        "failed": sum(record.status.name != "CONVERGED" for record in found.history),
        "gap": float(found.fit.certificate.relative_gap),
        "informative gamma, smallest": float(gamma[:INFORMATIVE].min()),
        "other gamma, largest": float(gamma[INFORMATIVE:].max()),
        "seconds": seconds,
        "seconds a step": seconds / steps,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=1500)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--grid", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--json")
    options = parser.parse_args()
    runs = []
    for seed in range(options.seeds):
        train, held, fresh = data(options.n, seed)
        first = by_gradients(train, held, fresh, options.steps, start=0.9)
        ours = by_gradients(train, held, fresh, options.steps)
        grid = grid_search(train, held, fresh, options.grid)
        runs.append({"seed": seed, "n": options.n, "ours": ours, "with compilation": first["seconds"], "grid": grid})
        print(f"seed {seed}, n = {options.n}, {options.steps} steps, grid {options.grid} x {options.grid}")
        print(
            f"  grid of SVC: test error {grid['test']:.4f} (held out {grid['held_out']:.4f}), {grid['seconds']:.1f} s"
        )
        print(
            f"  tune:        test error {ours['test']:.4f} (held out {ours['held_out']:.4f}), {ours['seconds']:.1f} s "
            f"({ours['seconds a step']:.3f} s a step; first run, with compilation, {first['seconds']:.1f} s)"
        )
        print("  " + ", ".join(f"{key} {value}" for key, value in ours.items() if "second" not in key))
    if options.json:
        with open(options.json, "w") as file:
            json.dump(runs, file, indent=1)


if __name__ == "__main__":
    main()
