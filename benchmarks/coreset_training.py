"""Make a coreset and train on it, against training on everything, in one run: where it pays and where not.

    python benchmarks/coreset_training.py [--kernel 6000] [--cases kernel]

Seconds are of processor and of second calls (compiled programs), the first calls' beside them; the excess is
F(w_S) / F(w*) - 1 on all the data.
"""

import argparse
import json
import time
from pathlib import Path

import jax
import numpy as np
from coresets import load

import jaxsvm
from jaxsvm import coresets
from jaxsvm.kernels import RBF, Linear

jax.config.update("jax_enable_x64", True)
RESULTS = Path(__file__).parent / "results" / "coreset_training.json"


def timed(run):
    """What it gives, seconds of the first call and of the second."""
    seconds = []
    for _ in range(2):
        began = time.process_time()
        found = run()
        seconds.append(time.process_time() - began)
    return found, seconds


def objective(x, y, C, w, b):
    return 0.5 * w @ w + C * np.maximum(0, 1 - y * (x @ w + b)).sum()


def linear(name, m, Cs):
    """One fit or a path of them: all data each time, against one coreset at the largest C."""
    x, y = load(name)
    whole = [jaxsvm.hinge_problem(jaxsvm.gram(Linear(), x), y, C, bias="free") for C in Cs]

    def all_of_it():
        fits = [jaxsvm.fit(problem, jaxsvm.InteriorPoint(tol=1e-6)) for problem in whole]
        return [(np.asarray(fit.dual_coef) @ x, float(fit.bias)) for fit in fits]

    def small():
        made = coresets.coreset(x, y, max(Cs), m, 0)
        return [made.solution(C) for C in Cs]

    best, full = timed(all_of_it)
    found, ours = timed(small)
    excess = [
        objective(x, y, C, *at) / objective(x, y, C, *top) - 1 for C, at, top in zip(Cs, found, best, strict=True)
    ]
    return {"data": name, "n": len(y), "m": m, "Cs": len(Cs), "full": full, "coreset": ours, "excess": max(excess)}


def kernel(name, n, m, C):
    """One fit of an RBF machine, and its predictions on what was left out."""
    x, y = load(name)
    order = np.random.default_rng(0).permutation(len(y))
    test, order = order[n : n + 4000], order[:n]
    shape = RBF(0.1)

    def fitted(problem):
        return jaxsvm.fit(problem, tol=1e-3)

    def values(at, points, beta):
        return np.concatenate([np.asarray(shape.matrix(part, points)) @ beta for part in np.array_split(at, 20)])

    def judged(points, fit):
        beta, b = np.asarray(fit.dual_coef), float(fit.bias)
        points, beta = points[beta != 0], beta[beta != 0]
        norm = beta @ values(points, points, beta)
        F = 0.5 * norm + C * np.maximum(0, 1 - y[order] * (values(x[order], points, beta) + b)).sum()
        return F, float((np.sign(values(x[test], points, beta) + b) == y[test]).mean())

    best, full = timed(lambda: fitted(jaxsvm.hinge_problem(jaxsvm.gram(shape, x[order]), y[order], C, bias="free")))

    def small():
        low = jaxsvm.gram(shape, x[order], rank=128, landmarks="random", key=jax.random.key(0))
        made = coresets.coreset(np.asarray(low.design), y[order], C, m, 0)
        kept = x[order][made.info["index"]]
        part = jaxsvm.hinge_problem(jaxsvm.gram(shape, kept), made.y, made.C, bias="free", sample_weight=made.weight)
        return kept, fitted(part)

    (kept, fit), ours = timed(small)
    top, at = judged(x[order], best), judged(kept, fit)
    accuracy = {"accuracy": top[1], "accuracy_coreset": at[1]}
    return {"data": name, "n": n, "m": m, "full": full, "coreset": ours, "excess": at[0] / top[0] - 1} | accuracy


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kernel", type=int, default=6000)
    parser.add_argument("--cases", default="", help="some of them, by the beginnings of their names")
    given = parser.parse_args()
    path = [float(C) for C in np.logspace(-2, 0, 12)]
    cases = {
        "linear, in memory": lambda: linear("htru2", 400, [1.0]),
        "linear, in memory, large": lambda: linear("skin", 400, [1.0]),
        "path over C": lambda: linear("skin", 400, path),
        "kernel": lambda: kernel("magic", given.kernel, 600, 10.0),
        "kernel, large": lambda: kernel("codrna", 5 * given.kernel, 1000, 10.0),
    }
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name, run in cases.items():
        if not name.startswith(tuple(given.cases.split(","))):
            continue
        found[name] = run()
        print(name, json.dumps(found[name]), flush=True)
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
