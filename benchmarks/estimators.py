"""Our SVC against scikit-learn's on data of many classes, and SVCPath against GridSearchCV(SVC), in one run.

    python benchmarks/estimators.py [--data DIR] [--samples N] [--repeats R] [NAME ...]

Names: digits, pendigits, letter, mnist, and for SVCPath breast_cancer, usps, dna, adult too (from `NAME.npz` in DIR;
digits and breast_cancer come with scikit-learn). Wall and CPU seconds,
the best of the repeats; the first call, with compilation, apart.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn import svm
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.preprocessing import StandardScaler

from jaxsvm import estimators

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
NAMES = ("digits", "pendigits", "letter", "mnist", "breast_cancer", "usps", "dna", "adult")
OWN = {"digits": load_digits, "breast_cancer": load_breast_cancer}


def load(name: str, folder: Path, samples: int) -> tuple[np.ndarray, ...]:
    """Training points, test points, training labels, test labels; standardised."""
    if name in OWN:
        x, y = OWN[name](return_X_y=True)
        x, x_test, y, y_test = train_test_split(x, y, test_size=0.3, random_state=0, stratify=y)
    else:
        with np.load(folder / f"{name}.npz") as stored:
            x, x_test = (points(stored, key) for key in ("X", "Xt"))
            y, y_test = stored["y"], stored["yt"]
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
