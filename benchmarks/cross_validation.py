"""5 folds x 20 values of C beside a loop of AOCL's SVC and GridSearchCV(SVC): same data, same folds, same run.

Usage: python benchmarks/cross_validation.py [--n 5000] [--values 20] [--rounds 3] [--tol 1e-4] [--json FILE]
       python benchmarks/cross_validation.py --values 16 --widths 8 --rounds 1        a grid of C and gamma

Gram included, compilation apart (the first call). GridSearchCV has n_jobs=2; AOCL two threads, labels 0 and 1.
"""

import argparse
import json
import statistics
import time

import numpy as np
from single_fit import data, judge
from sklearn.model_selection import GridSearchCV, PredefinedSplit, StratifiedKFold
from sklearn.svm import SVC

import jaxsvm
from jaxsvm.kernels import RBF


def ours(x, y, gamma, Cs, folds, tol):
    start = time.perf_counter()
    gram = jaxsvm.gram(RBF(gamma=gamma), x)
    result = jaxsvm.cross_validate(jaxsvm.svm_problem(gram, y), Cs, folds, tol=tol)
    return time.perf_counter() - start, result


def aocl(x, y, gamma, Cs, folds, dtype):
    from aoclda.svm import SVC as Peer

    start = time.perf_counter()
    scores = np.zeros((folds.max() + 1, len(Cs)))
    labels = (y > 0).astype(dtype)
    for fold in range(folds.max() + 1):
        train = folds != fold
        x_train, x_test = (np.asfortranarray(part, dtype=dtype) for part in (x[train], x[~train]))
        for place, C in enumerate(Cs):
            peer = Peer(C=C, kernel="rbf", gamma=gamma).fit(x_train, labels[train])
            scores[fold, place] = (np.asarray(peer.predict(x_test)) == labels[~train]).mean()
    return time.perf_counter() - start, scores


def grid_search(x, y, gamma, Cs, folds):
    start = time.perf_counter()
    search = GridSearchCV(
        SVC(gamma=gamma, cache_size=500), {"C": Cs}, cv=PredefinedSplit(folds), n_jobs=2, refit=False
    ).fit(x, y)
    return time.perf_counter() - start, search.cv_results_["mean_test_score"]


def grid(options):
    """Time a grid of C and gamma once, beside GridSearchCV and AOCL's loop in float32."""
    x, y, *_ = data(options.n)
    gammas, Cs = np.geomspace(0.1, 10, options.widths) / x.shape[1], np.logspace(-2, 3, options.values)
    folds = np.zeros(options.n, int)
    for number, (_, test) in enumerate(StratifiedKFold(5, shuffle=True, random_state=0).split(x, y)):
        folds[test] = number
    problem = jaxsvm.svm_problem(jaxsvm.gram(RBF(gamma=gammas[0]), x), y)
    for name in ("first call", "warm"):
        start = time.perf_counter()
        result = jaxsvm.cross_validate(problem, Cs, folds, gammas=gammas, tol=options.tol)
        took = time.perf_counter() - start
        gap = max(np.max(each.certificate.relative_gap) for each in result.results)
        print(
            f"5 folds x {len(Cs)} C x {len(gammas)} gammas, {name}: {took:.1f} s, gap {gap:.1e}, {result!r}", flush=True
        )
    start = time.perf_counter()
    search = GridSearchCV(
        SVC(cache_size=500), {"C": Cs, "gamma": gammas}, cv=PredefinedSplit(folds), n_jobs=2, refit=False
    ).fit(x, y)
    theirs = time.perf_counter() - start
    print(
        f"  grid_search: {theirs:.0f} s, x{theirs / took:.1f}, {search.best_params_} {search.best_score_:.4f}",
        flush=True,
    )
    found = [aocl(x, y, gamma, Cs, folds, np.float32) for gamma in gammas]
    theirs, best = sum(seconds for seconds, _ in found), max(scores.mean(axis=0).max() for _, scores in found)
    print(f"  aocl32: {theirs:.0f} s, x{theirs / took:.1f}, {best:.4f}; our best {result.mean.max():.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=5000)
    parser.add_argument("--values", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tol", type=float, default=1e-4)
    parser.add_argument("--widths", type=int, default=0, help="values of gamma; 0: one, and no grid")
    parser.add_argument("--json")
    options = parser.parse_args()
    if options.widths:
        grid(options)
        return
    x, y, *_ = data(options.n)
    gamma, Cs = 1 / x.shape[1], np.logspace(-2, 3, options.values)
    folds = np.zeros(options.n, int)
    for number, (_, test) in enumerate(StratifiedKFold(5, shuffle=True, random_state=0).split(x, y)):
        folds[test] = number
    first, _ = ours(x, y, gamma, Cs, folds, options.tol)
    times = {"ours": [], "aocl64": [], "aocl32": [], "grid_search": []}
    for _ in range(options.rounds):
        took, result = ours(x, y, gamma, Cs, folds, options.tol)
        times["ours"].append(took)
        for name, dtype in (("aocl64", np.float64), ("aocl32", np.float32)):
            took, scores = aocl(x, y, gamma, Cs, folds, dtype)
            times[name].append(took)
        took, sk_scores = grid_search(x, y, gamma, Cs, folds)
        times["grid_search"].append(took)
    gaps = np.asarray(result.certificate.relative_gap)
    judged = []
    for fold, place in ((0, 0), (1, len(Cs) // 2), (4, len(Cs) - 1)):
        train = folds != fold
        alpha = np.asarray(result.fits.alpha[fold, place])
        judged.append(judge(x[train], y[train], Cs[place], alpha[train], gamma))
    print(
        f"n = {options.n}, 5 folds x {len(Cs)} values: {statistics.median(times['ours']):.2f} s (first call "
        f"{first:.1f} s); largest gap {gaps.max():.2e} certified, {max(judged):.2e} in float64 (three of them); "
        f"best C {result.C:.3g}, accuracy {result.mean.max():.4f}"
    )
    row = {"first_call": first, "gap": float(gaps.max()), "float64": judged, "times": times}
    for name, best in (("aocl64", scores), ("aocl32", scores), ("grid_search", sk_scores)):
        ratios = [theirs / mine for theirs, mine in zip(times[name], times["ours"], strict=True)]
        top = best.mean(axis=0).max() if best.ndim == 2 else best.max()
        print(
            f"  {name}: {statistics.median(times[name]):.1f} s, x{statistics.median(ratios):.1f} ({min(ratios):.1f} to "
            f"{max(ratios):.1f}), best accuracy {top:.4f}"
        )
    if options.json:
        with open(options.json, "w") as file:
            json.dump(row, file, indent=1)


if __name__ == "__main__":
    main()
