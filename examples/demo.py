"""The main job on real data: a certified regularisation path of an RBF SVM, for two sets that ship with scikit-learn.

    python examples/demo.py [--out demo-output]

For breast cancer, and for digits "8 against the rest": split off a test set, standardise, solve for 16 values of C from
one kernel matrix, check every certificate, choose C, and write a picture and a report.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.model_selection import train_test_split

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # a checkout that is not installed

import jaxsvm
from jaxsvm.datasets import Scaling, two_classes
from jaxsvm.kernels import RBF
from jaxsvm.kernels.width import resolve_gamma
from jaxsvm.plots import path_figure


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("demo-output"), help="directory of what is written")
    parser.add_argument("--figures", type=Path, help="directory of the pictures, if another one")
    parser.add_argument("--report", type=Path, help="the report's file, if another one")
    parser.add_argument("--n-c", type=int, default=16, help="how many values of C, from 1e-2 to 1e3")
    parser.add_argument("--tol", type=float, default=1e-4, help="relative duality gap to be certified")
    parser.add_argument("--seed", type=int, default=0, help="of the split")
    options = parser.parse_args(arguments)
    figures, report_file = options.figures or options.out, options.report or options.out / "report.json"
    try:  # before any work
        for directory in (figures, report_file.parent):
            directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--out, --figures or --report cannot be written: {error}")

    started = time.perf_counter()
    console = Console()
    Cs = np.geomspace(1e-2, 1e3, options.n_c)
    sets = {
        "breast-cancer": (*load_breast_cancer(return_X_y=True), None),
        "digits-8": (*load_digits(return_X_y=True), 8),
    }
    reports = {}
    with jax.enable_x64(True):
        for name, (x, y, positive) in sets.items():
            reports[name] = solve(name, x, y, positive, Cs, options.tol, options.seed, figures, console)
    total = time.perf_counter() - started
    compiling = sum(report["seconds"]["compile"] for report in reports.values())
    running = sum(report["seconds"]["run"] for report in reports.values())
    console.print(f"all: compile {compiling:.2f} s, run {running:.2f} s; with data and pictures {total:.1f} s")
    seconds = {"compile": compiling, "run": running, "total": total}
    content = {"jaxsvm": jaxsvm.__version__, "jax": jax.__version__, "device": str(jax.devices()[0])}
    content |= {"tol": options.tol, "seed": options.seed, "seconds": seconds, "sets": reports}
    report_file.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")
    console.print(
        f"written: {report_file} and {', '.join(report['figure'] for report in reports.values())}", soft_wrap=True
    )
    return 0


def solve(
    name: str, x: Any, y: Any, positive: Any, Cs: Any, tol: float, seed: int, figures: Path, console: Console
) -> dict[str, Any]:
    """One set: split, scale, solve, check, score, draw; the report's part."""
    signs, classes = two_classes(y, positive)
    x_train, x_test, y_train, y_test = train_test_split(x, signs, test_size=0.25, stratify=signs, random_state=seed)
    scaling = Scaling.standardise(x_train)
    x_train = scaling(x_train)
    gram = jaxsvm.gram(RBF(resolve_gamma("scale", x_train)), x_train)

    # The first walk compiles; the second repeats the same steps from the same start with everything compiled.
    first, including = walk(gram, y_train, Cs, tol)
    path, excluding = walk(gram, y_train, Cs, tol)
    jaxsvm.check(first.fits)
    jaxsvm.check(path.fits)  # raises unless every value of C is certified

    x_test = scaling(x_test)
    scores = []
    for C, fitted in zip(Cs, path, strict=True):
        predicted = jaxsvm.predict(fitted, jaxsvm.svm_problem(gram, y_train, C), x_test)
        scores.append(float(np.mean(np.asarray(predicted) == y_test)))
    best = int(np.argmax(scores))  # of equal scores the first: the smallest C, the smoothest function

    rows = [
        {
            "C": float(C),
            "status": fitted.status.name,
            "relative_gap": float(fitted.certificate.relative_gap),
            "primal": float(fitted.certificate.primal),
            "dual": float(fitted.certificate.dual),
            "steps": int(fitted.steps),
            "support": len(fitted.support),
            "test_accuracy": score,
            "seconds_with_compile": including[i],
            "seconds": excluding[i],
        }
        for i, (C, fitted, score) in enumerate(zip(Cs, path, scores, strict=True))
    ]
    run, compiling = sum(excluding), max(sum(including) - sum(excluding), 0.0)
    show(console, f"{name}: {len(x_train)} training and {len(x_test)} test samples, {x.shape[1]} features", rows, best)
    console.print(
        f"chosen C = {Cs[best]:.4g}, test accuracy {scores[best]:.4f} (best on the test set: a tour, not a study)"
    )
    console.print(f"compile {compiling:.2f} s, run {run:.3f} s\n")
    file = figures / f"path-{name}.png"
    path_figure(path, scores=scores).savefig(file, dpi=120)
    return {
        "n_train": len(x_train),
        "n_test": len(x_test),
        "d": x.shape[1],
        "classes": [str(label) for label in classes],
        "chosen_C": float(Cs[best]),
        "test_accuracy": scores[best],
        "seconds": {"compile": compiling, "run": run},
        "path": rows,
        "figure": str(file),
    }


def walk(gram: Any, y: Any, Cs: Any, tol: float) -> tuple[jaxsvm.Path, list[float]]:
    """Return the path, and the seconds that each value of C took."""
    seconds = [0.0] * len(Cs)
    last = time.perf_counter()

    def took(place: int, fitted: jaxsvm.Fit) -> None:
        nonlocal last
        jax.block_until_ready(fitted)
        now = time.perf_counter()
        seconds[place], last = now - last, now

    path = jaxsvm.solve_path(jaxsvm.svm_problem(gram, y), Cs, tol=tol, callback=took)
    return path, seconds


def show(console: Console, title: str, rows: list[dict[str, Any]], best: int) -> None:
    """Print a table with a row for each value of C: seconds with compilation and without."""
    table = Table(title=title, title_justify="left", box=None)
    for heading in ("C", "status", "rel. gap", "steps", "support", "accuracy", "s incl.", "s excl."):
        table.add_column(heading, justify="right", no_wrap=True)
    for i, row in enumerate(rows):
        table.add_row(
            f"{row['C']:.4g}",
            row["status"],
            f"{row['relative_gap']:.1e}",
            str(row["steps"]),
            str(row["support"]),
            f"{row['test_accuracy']:.4f}",
            f"{row['seconds_with_compile']:.3f}",
            f"{row['seconds']:.4f}",
            style="bold green" if i == best else None,
        )
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
