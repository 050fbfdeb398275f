"""Our SVC beside scikit-learn's, SVCPath and `cross_validate` beside GridSearchCV(SVC), all beside AOCL, in one run.

    PYTHONPATH=.:/path/of/peers python benchmarks/estimators.py [--data DIR] [--samples N] [--repeats R] [NAME ...]

Names: digits, pendigits, letter, mnist, breast_cancer, usps, dna, adult, or any other `NAME.npz` in DIR (digits and
breast_cancer come with scikit-learn; of a set without test points 30 % are held out). AOCL, in float32, and
`cross_validate` of the hinge for two classes only. Wall and CPU seconds, the best of the repeats; the first call, with
compilation, apart.
"""

import argparse
import importlib.util
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from cross_validation import aocl
from peers import peer
from sklearn import svm
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.model_selection import GridSearchCV, StratifiedKFold, train_test_split
from sklearn.preprocessing import StandardScaler

import jaxsvm
from jaxsvm import estimators
from jaxsvm.kernels import RBF

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
NAMES = ("digits", "pendigits", "letter", "mnist", "breast_cancer", "usps", "dna", "adult")
AOCL = importlib.util.find_spec("aoclda") is not None
OWN = {"digits": load_digits, "breast_cancer": load_breast_cancer}


def load(name: str, folder: Path, samples: int) -> tuple[np.ndarray, ...]:
    """Training points, test points, training labels, test labels; standardised."""
    if name in OWN:
        parts = OWN[name](return_X_y=True)
    else:
        with np.load(folder / f"{name}.npz") as stored:
            parts = [points(stored, "X"), stored["y"]]
            parts += [points(stored, "Xt"), stored["yt"]] if "yt" in stored else []
    if len(parts) == 2:
        x, x_test, y, y_test = train_test_split(*parts, test_size=0.3, random_state=0, stratify=parts[1])
    else:
        x, y, x_test, y_test = parts
    rows = np.random.default_rng(0).permutation(len(y))[:samples]
    scaler = StandardScaler().fit(x[rows].astype(float))
    return scaler.transform(x[rows].astype(float)), scaler.transform(x_test.astype(float)), y[rows], y_test


def points(stored: Any, key: str) -> np.ndarray:
    """Dense points of a stored set."""
    if key in stored:
        return stored[key]
    parts = tuple(stored[f"{key}_{part}"] for part in ("data", "indices", "indptr"))
    return sp.csr_array(parts, shape=tuple(stored[f"{key}_shape"])).toarray()


def timed(function: Callable[[], Any]) -> tuple[Any, float, float]:
    """A result, wall seconds and CPU seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = function()
    return result, time.perf_counter() - wall, time.process_time() - cpu


def best(function: Callable[[], Any], repeats: int) -> tuple[Any, float, float]:
    """The result of the fastest of several calls."""
    return min((timed(function) for _ in range(repeats)), key=lambda found: found[1])


def compare_fits(data: tuple[np.ndarray, ...], repeats: int, C: float = 10.0) -> None:
    x, x_test, y, y_test = data
    _, first, _ = timed(lambda: estimators.SVC(C=C).fit(x, y).predict(x_test))
    print(f"  first fit and predict, with compilation: {first:.2f} s")
    totals = []
    for label, make in (("scikit-learn", svm.SVC), ("jaxsvm", estimators.SVC)):
        model, fit_wall, fit_cpu = best(lambda make=make: make(C=C).fit(x, y), repeats)
        labels, predict_wall, predict_cpu = best(lambda model=model: model.predict(x_test), repeats)
        totals.append(fit_wall + predict_wall)
        gap = f", gaps up to {model.certificate_.relative_gap.max():.1e}" if label == "jaxsvm" else ""
        print(
            f"  {label:12} fit {fit_wall:7.3f} s (CPU {fit_cpu:7.3f})"
            f"  predict {predict_wall:7.3f} s (CPU {predict_cpu:7.3f})"
            f"  accuracy {np.mean(labels == y_test):.4f}  support {len(model.support_)}{gap}"
        )
    print(f"  fit and predict: {totals[0] / totals[1]:.2f} times as fast")
    if len(np.unique(y)) == 2 and AOCL:
        of = x.astype(np.float32), np.where(y == y.max(), 1, -1), C, 1 / (x.shape[1] * x.var())
        theirs = min(peer("aocl32", *of, 1e-3)[0] for _ in range(repeats + 1))
        print(f"  AOCL fit {theirs:7.3f} s: SVC takes {fit_wall / theirs:.2f} of it")


def compare_grids(data: tuple[np.ndarray, ...], repeats: int) -> None:
    x, x_test, y, y_test = (part[:2000] for part in data)
    Cs = np.geomspace(1e-2, 1e3, 20)
    _, first, _ = timed(lambda: estimators.SVCPath(Cs=Cs).fit(x, y))
    grid, grid_wall, grid_cpu = timed(lambda: GridSearchCV(svm.SVC(), {"C": Cs}, cv=5).fit(x, y))
    path, wall, cpu = best(lambda: estimators.SVCPath(Cs=Cs).fit(x, y), repeats)
    print(f"  20 values of C, 5 folds, {len(y)} samples; the first SVCPath, with compilation: {first:.2f} s")
    C = grid.best_params_["C"]
    print(f"  GridSearchCV {grid_wall:7.2f} s (CPU {grid_cpu:7.2f})  C {C:8.3g}  test {grid.score(x_test, y_test):.4f}")
    print(f"  SVCPath      {wall:7.2f} s (CPU {cpu:7.2f})  C {path.C_:8.3g}  test {path.score(x_test, y_test):.4f}")
    print(
        f"  SVCPath is {grid_wall / wall:.2f} times as fast (CPU {grid_cpu / cpu:.2f}); mean score "
        f"{path.mean_score_.max():.4f} against {grid.best_score_:.4f}; gaps up to {path.largest_gap_.max():.1e}"
    )
    if len(np.unique(y)) > 2:
        return
    signs, gamma, folds = np.where(y == y.max(), 1, -1), 1 / (x.shape[1] * x.var()), np.zeros(len(y), int)
    for number, (_, test) in enumerate(StratifiedKFold(5).split(x, y)):
        folds[test] = number
    times = {"SVCPath": wall}

    def scored() -> Any:
        gram = jaxsvm.gram(RBF(gamma), x.astype(np.float32))
        return jaxsvm.cross_validate(jaxsvm.hinge_problem(gram, signs, bias="free"), Cs, folds)

    found, first, _ = timed(scored)
    found, times["cross_validate"], cpu = best(scored, repeats)
    theirs = min(aocl(x, signs, gamma, Cs, folds, np.float32)[0] for _ in range(repeats)) if AOCL else np.nan
    for name, took in times.items():
        print(f"  {name} takes {took / grid_wall:.2f} of GridSearchCV, {took / theirs:.2f} of AOCL's {theirs:.2f} s")
    gap = np.max(found.certificate.relative_gap)
    print(f"  cross_validate {times['cross_validate']:.2f} s (CPU {cpu:.2f}; first {first:.2f}), gaps up to {gap:.1e}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(NAMES), metavar="NAME")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--no-grid", action="store_true", help="leave SVCPath and GridSearchCV out")
    arguments = parser.parse_args()
    for name in arguments.names:
        if name not in OWN and not (arguments.data / f"{name}.npz").exists():
            print(f"{name}: {arguments.data / name}.npz is absent")
            continue
        data = load(name, arguments.data, arguments.samples)
        print(f"{name}: {data[0].shape}, {len(data[1])} test points, {len(np.unique(data[2]))} classes", flush=True)
        compare_fits(data, arguments.repeats)
        if not arguments.no_grid:
            compare_grids(data, arguments.repeats)


if __name__ == "__main__":
    main()
