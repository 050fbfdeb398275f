"""Adversarial problems: whether anything that ends CONVERGED is not. The judge is `judge.py`, which knows no jaxsvm.

Problem `number` of a seed depends on these two alone. What decides which programs are compiled (solver, size, kernel,
dtype, bias, how the Gram is held) is its *form*, of which there are a few hundred; all else (data, labels, weights, C,
tolerance) is drawn anew for each number. Problems of one form are run one after another.

    python tests/adversarial.py --count 10000 --seed 0 --jobs 1        a table, and every lie with its number
    python tests/adversarial.py --only 17 --seed 0                     one problem, in words
    python tests/adversarial.py --no-x64 ...                           float32 alone, with JAX's default of 32 bits
    python tests/adversarial.py --dtype float64 ...                    the others alone: what --no-x64 leaves out
    python tests/adversarial.py --large                                a few problems of 1e5 and 1e6 samples
    python tests/adversarial.py --paths --count 300 --seed 35          paths alone, of both losses, C from 1e-4 to 1e6
    python tests/adversarial.py --hostile --count 300                  numbers at the ends of their types: fits, paths,
                                                                       estimators and designs; slow ones are named
"""

import argparse
import collections
import dataclasses
import functools
import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import judge
import numpy as np
import scipy.sparse
from judge import LONG, Facts, Ground, Statement, Verdict

SIZES = (2, 3, 4, 5, 8, 13, 21, 34, 64, 130, 257, 400)
DIMENSIONS = (1, 2, 5, 20)
TOLERANCES = (1e-2, 1e-3, 1e-4, 1e-5)
FORMS = 387
PATH_FORMS = 24
PATH_SIZES = (34, 130, 501)
TILE = 16
RANK = 4
FOLDS = 3
RARE = 5000
"""One sample in that many, at most, is of the rarer class."""
MOST_MAPS = 25_000
"""Memory maps of this process after which compiled programs are dropped: Linux grants 65,530."""


# --- Solvers: which problems they take, and how they are made ---

REGULARIZED, ANY = ("regularized", "none"), ("regularized", "none", "free")


class Solver(NamedTuple):
    """A way to a fit.

    `make` takes the module and a trial; `how` is "fit", "path" (several values of C), "folds" (cross-validation), or
    "traced": lanes of a compiled program, inside of which nothing is known.
    """

    kinds: tuple[str, ...]
    biases: tuple[str, ...]
    make: Callable[[Any, "Trial"], Any]
    how: str = "fit"
    least: int = 2
    largest: int = 400


def _steps(trial: "Trial", steps: int) -> int:
    return min(steps, max(300, 40_000_000 // trial.form.n))


def _frank_wolfe(variant: str, steps: int = 3000) -> Callable[[Any, "Trial"], Any]:
    return lambda svm, trial: svm.FrankWolfe(variant=variant, tol=trial.tol, max_steps=_steps(trial, steps))


def _core(svm: Any, trial: "Trial") -> Any:
    return svm.CoreVectorMachine(tol=trial.tol, max_steps=3000)


def _around(outer: str, inner: Callable[[Any, "Trial"], Any]) -> Callable[[Any, "Trial"], Any]:
    return lambda svm, trial: getattr(svm, outer)(inner(svm, trial))


def _newton(method: str) -> Callable[[Any, "Trial"], Any]:
    return lambda svm, trial: svm.Newton(tol=trial.tol, method=method, max_steps=60)


def _smo(**options: Any) -> Callable[[Any, "Trial"], Any]:
    return lambda svm, trial: svm.SMO(tol=trial.tol, max_steps=_steps(trial, 20_000), **options)


def _working_set(svm: Any, trial: "Trial") -> Any:
    return svm.WorkingSet(tol=trial.tol, size=16, fresh=8, max_steps=_steps(trial, 2000))


def _interior_point(svm: Any, trial: "Trial") -> Any:
    return svm.InteriorPoint(tol=trial.tol, max_steps=60)


def _batch_perceptron(batch: int | None, **options: Any) -> Callable[[Any, "Trial"], Any]:
    return lambda svm, trial: svm.StochasticBatchPerceptron(steps=600, batch=batch, tol=trial.tol, **options)


def _none(svm: Any, trial: "Trial") -> None:
    del svm, trial


SIMPLEX, BOX = ("squared", "ball"), ("hinge", "box")
SOLVERS = {
    "fw classic": Solver(SIMPLEX, REGULARIZED, _frank_wolfe("classic")),
    "fw away": Solver(SIMPLEX, REGULARIZED, _frank_wolfe("away")),
    "fw pairwise": Solver(SIMPLEX, REGULARIZED, _frank_wolfe("pairwise")),
    "fw smo": Solver(SIMPLEX, REGULARIZED, _frank_wolfe("smo", 20_000)),
    "core vectors": Solver(SIMPLEX, REGULARIZED, _core),
    "sampled fw away": Solver(SIMPLEX, REGULARIZED, _around("sampled", _frank_wolfe("away", 1000))),
    "sampled fw smo": Solver(("squared",), REGULARIZED, _around("sampled", _frank_wolfe("smo", 1000))),
    "sampled fw smo, unchecked": Solver(
        ("squared",), REGULARIZED, lambda svm, t: svm.sampled(_frank_wolfe("smo", 1000)(svm, t), final_check="none")
    ),
    "sampled core vectors": Solver(("squared",), REGULARIZED, _around("sampled", _core), largest=130),
    "polished fw classic": Solver(("squared",), REGULARIZED, _around("polished", _frank_wolfe("classic"))),
    "polished fw smo": Solver(SIMPLEX, REGULARIZED, _around("polished", _frank_wolfe("smo"))),
    "polished sampled fw away": Solver(
        ("squared",), REGULARIZED, _around("polished", _around("sampled", _frank_wolfe("away", 1000))), largest=130
    ),
    "newton": Solver(("squared",), ANY, _newton("auto")),
    "newton cholesky": Solver(("squared",), ANY, _newton("cholesky")),
    "newton cg": Solver(("squared",), ANY, _newton("cg")),
    "smo": Solver(BOX, ANY, _smo()),
    "smo of one": Solver(BOX, REGULARIZED, _smo(variables=1)),
    "smo seldom afresh": Solver(("hinge",), ANY, _smo(refresh_every=50_000)),
    "sdca": Solver(BOX, REGULARIZED, lambda svm, t: svm.SDCA(tol=t.tol, max_steps=_steps(t, 20_000))),
    "interior point": Solver(BOX, ANY, _interior_point),
    "pegasos": Solver(
        ("hinge",), REGULARIZED, lambda svm, t: svm.Pegasos(steps=600, batch=min(4, t.form.n), tol=t.tol)
    ),
    "ball sgd": Solver(
        ("hinge",), REGULARIZED, lambda svm, t: svm.BallSGD(t.radius, steps=600, batch=min(4, t.form.n), tol=t.tol)
    ),
    "perceptron": Solver(
        ("hinge",), REGULARIZED, lambda svm, t: svm.Perceptron(5 * t.form.n, output="average", tol=t.tol)
    ),
    "sbp": Solver(("slack",), ANY, _batch_perceptron(1)),
    "sbp in batches": Solver(("slack",), ANY, _batch_perceptron(8)),
    "sbp exact": Solver(("slack",), ANY, _batch_perceptron(None, average="linear"), largest=130),
    "working set": Solver(BOX, ANY, _working_set),
    "working set, squared": Solver(("squared",), REGULARIZED, _working_set),
    "chosen": Solver(("squared", "hinge", "box"), ANY, _none),
    "path": Solver(("squared",), ANY, _none, "path", largest=130),
    "path, hinge": Solver(("hinge",), ANY, _none, "path", largest=64),
    "path, lanes": Solver(("squared",), REGULARIZED, _frank_wolfe("smo"), "path", largest=64),
    "fw smo, traced": Solver(("squared",), REGULARIZED, _frank_wolfe("smo"), "traced", largest=64),
    "newton, traced": Solver(("squared",), ANY, _newton("auto"), "traced", largest=64),
    "working set, traced": Solver(("hinge",), ANY, _working_set, "traced", largest=64),
    "smo, traced": Solver(("hinge",), ANY, _smo(), "traced", largest=64),
    "interior point, traced": Solver(("hinge",), ANY, _interior_point, "traced", largest=64),
    "folds": Solver(("squared",), ANY, _none, "folds", least=8, largest=64),
    "folds, hinge": Solver(("hinge",), ANY, _none, "folds", least=8, largest=64),
}
HARDEST = (
    ("smo", {"kind": "hinge", "bias": "free", "kernel": "precomputed"}),
    ("fw smo", {"kind": "ball", "bias": "none", "kernel": "linear"}),
    ("interior point", {"kind": "hinge", "bias": "free", "kernel": "linear"}),
)
"""Where certificates were seen to lie: these take part once more, small, in float32 and without weights."""
NAMES = (*SOLVERS, *(name for name, _ in HARDEST))


# --- Forms: what is compiled ---

KERNELS = (
    "linear", "linear", "linear", "rbf", "rbf", "laplacian", "poly2", "poly3", "sigmoid", "rbf+linear", "rbf*poly2",
    "scaled laplacian", "precomputed", "precomputed", "indefinite",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Form:
    """What decides which programs are compiled."""

    solver: str  # A key of `SOLVERS`
    kind: str  # "squared", "hinge", "box", "slack" or "ball"
    n: int  # samples
    d: int  # features
    kernel: str  # one of `KERNELS`; "precomputed" and "indefinite" are matrices
    held: str  # "dense", "tiled" or "rank"
    sparse: bool  # whether points are CSR
    dtype: str  # of the data
    values: str  # of the kernel values
    bias: str  # "regularized", "none" or "free" (for box problems: whether there is an equality)
    weighted: bool  # whether there are sample weights


def form_of(index: int, seed: int = 0) -> Form:
    """Form number `index`: solvers take turns, everything else is drawn."""
    rng = np.random.default_rng([seed, 1, index])
    name = NAMES[index % len(NAMES)]
    solver = SOLVERS[name]
    n = int(rng.choice([size for size in SIZES if solver.least <= size <= solver.largest]))
    d = int(rng.choice(DIMENSIONS))
    kernel, held = str(rng.choice(KERNELS)), str(rng.choice(["dense", "dense", "tiled", "rank"]))
    if kernel in ("precomputed", "indefinite"):
        held = "dense"
    elif held == "rank" and kernel not in ("rbf", "laplacian", "poly2"):
        held = "tiled"
    sparse = kernel in ("linear", "rbf", "poly2") and held != "rank" and bool(rng.random() < 0.4)
    dtype = "float32" if rng.random() < 0.65 else "float64"
    values = "float32" if rng.random() < 0.1 and kernel not in ("precomputed", "indefinite") else dtype
    kind = str(rng.choice(solver.kinds))
    bias = "none" if kind == "ball" else str(rng.choice(solver.biases))
    weighted = bool(rng.random() < 0.35)
    form = Form(name, kind, n, d, kernel, held, sparse, dtype, values, bias, weighted)
    place = index % len(NAMES) - len(SOLVERS)
    if place < 0:
        return form
    small = {"n": min(n, 21), "d": min(d, 2), "dtype": "float32", "values": "float32", "weighted": False}
    return dataclasses.replace(form, **small, **HARDEST[place][1], held="dense", sparse=False)


# --- Trials: what is drawn ---


@dataclasses.dataclass(frozen=True)
class Trial:
    """One problem and its solver."""

    name: str  # what it is called: its number and seed, or a row of a table
    form: Form  # what is compiled
    x: np.ndarray  # points, `(n, d)` of the form's dtype, or the kernel matrix
    spec: tuple | None  # the kernel as `judge.kernel_entries` reads it; None for a matrix
    y: np.ndarray  # signs, `(n,)`
    weight: np.ndarray | None  # sample weights, `(n,)`, or None
    values: tuple[float, ...]  # C, or nu; several for a path or folds
    tol: float  # the tolerance
    radius: float = 1.0  # for `BallSGD`
    box: tuple | None = None  # for "box" problems: q, c (or None) and e
    solver: Callable[[Any], Any] | None = None  # replaces the form's, for named cases: a function of the module
    kept: np.ndarray | None = None  # of sparse points the entries that are stored, `(n, width)` columns
    notes: str = ""  # what was drawn, in words

    def __str__(self) -> str:
        form = self.form
        held = f"{form.held}{' CSR' if form.sparse else ''}"
        values = ", ".join(f"{value:.3g}" for value in self.values)
        return (
            f"{self.name}: {form.solver}, {form.kind} bias={form.bias}, {form.kernel} {held}, {form.dtype}"
            f"{'' if form.values == form.dtype else f' ({form.values} values)'}, n={form.n} d={form.d}, "
            f"C={values}, tol={self.tol:.0e}{', weights' if form.weighted else ''}; {self.notes}"
        )


def trial_of(number: int, seed: int = 0) -> Trial:
    return _drawn(form_of(number % FORMS, seed), np.random.default_rng([seed, 2, number]), f"{number}/{seed}")


def _drawn(form: Form, rng: np.random.Generator, name: str) -> Trial:
    x, y, notes = _samples(rng, form)
    kept = None
    if form.sparse:  # as many entries in every row: their number is a shape
        width = max(1, (form.d + 1) // 2)
        kept = np.argsort(rng.random((form.n, form.d)), axis=1)[:, :width]
        x = np.where(_mask(kept, form.d), x, 0)
    if form.kernel == "indefinite":
        x, spec, notes = _indefinite(rng, form), None, "a matrix"
    else:
        spec = _kernel(rng, form, x)
        if form.kernel == "precomputed":
            with np.errstate(all="ignore"):
                x = np.asarray(judge.kernel_entries(spec, x, form.dtype).K, form.dtype)
                x, spec = (x + x.T) / 2, None
    weight, weights = _weights(rng, form, y)
    scale = _scale(spec, x, form)
    count = 1 if SOLVERS[form.solver].how == "fit" else 4
    values = tuple(_value(rng, form, scale) for _ in range(count))
    tol = float(rng.choice(TOLERANCES))
    radius = float(10 ** rng.uniform(-2, 2) / np.sqrt(scale))
    box = _box(rng, form, y, values[0], weight) if form.kind == "box" else None
    return Trial(name, form, x, spec, y, weight, values, tol, radius, box, None, kept, f"{notes}{weights}")


def _mask(kept: np.ndarray, d: int) -> np.ndarray:
    mask = np.zeros((len(kept), d), bool)
    np.put_along_axis(mask, kept, True, axis=1)
    return mask


def _samples(rng: np.random.Generator, form: Form) -> tuple[np.ndarray, np.ndarray, str]:
    """Points and labels, and what they are like."""
    n, d = form.n, form.d
    shape = str(rng.choice(["normal"] * 4 + ["positive", "uniform", "lattice", "near duplicates", "opposite"]))
    x = rng.normal(size=(n, d))
    if shape == "positive":
        x = abs(x)
    elif shape == "uniform":
        x = rng.random((n, d))
    elif shape == "lattice":
        x = np.round(x, 1)
    elif shape == "near duplicates":
        x = x[np.arange(n) % max(1, n // 4)] + 10 ** rng.uniform(-7, -1) * rng.normal(size=(n, d))
    elif shape == "opposite":
        x = x[np.arange(n) // 2]
    y, labels = _labels(rng, x, shape)
    plain = rng.random() < 0.4  # then it is C alone that makes it hard
    scale = 10 ** rng.uniform(-6, 6) if rng.random() < 0.5 and not plain else 1.0
    offset = 10 ** rng.uniform(-6, 6) * rng.choice([-1, 1]) if rng.random() < 0.5 and not plain else 0.0
    if rng.random() < 0.1:
        x = x * 10 ** rng.uniform(-3, 3, size=d)
    x = (scale * x + offset).astype(form.dtype)
    order, rows = (np.argsort(y, kind="stable"), "sorted") if rng.random() < 0.35 else (rng.permutation(n), "shuffled")
    return x[order], y[order], f"{shape} x {scale:.2g} + {offset:.2g}, {labels}, {rows}"


def _labels(rng: np.random.Generator, x: np.ndarray, shape: str) -> tuple[np.ndarray, str]:
    n, d = x.shape
    kind = str(rng.choice(["noisy", "noisy", "separable", "random", "rare"]))
    score = x @ rng.normal(size=d) + rng.normal(size=n) * (0.5 if kind == "noisy" else 0.0)
    y = np.where(score > np.median(score), 1.0, -1.0)
    if kind == "random":
        y = rng.choice([-1.0, 1.0], size=n)
    elif kind == "rare":
        y = np.where(np.isin(np.arange(n), rng.choice(n, max(1, n // RARE), replace=False)), 1.0, -1.0)
    if shape == "opposite":
        y, kind = np.where(np.arange(n) % 2 == 0, 1.0, -1.0), "opposite labels"
    if abs(y.sum()) == n:
        y[rng.integers(n)] *= -1
    return y, kind


def _kernel(rng: np.random.Generator, form: Form, x: np.ndarray) -> tuple:
    """A kernel whose parameters fit the data more often than not."""
    wide = x.astype(np.float64)
    # Python's floats throughout: NumPy's would be another type to the compiler.
    spread, size = float(2 * wide.var(axis=0).sum()), max(float((wide**2).sum(axis=1).mean()), 1e-30)
    if rng.random() < 0.3:
        spread = _nearest(wide)
    spread, fits = max(spread, 1e-30), rng.random() < 0.8
    width = float(10 ** rng.uniform(-1.5, 1.5))
    rbf = ("rbf", width / spread if fits else width)
    laplacian = ("laplacian", width / (spread * x.shape[1]) ** 0.5 if fits else width)
    slope, constant = (1 / size if fits else 1.0), float(rng.choice([0.0, 1.0]))
    family = form.kernel
    if family == "precomputed":
        family = str(rng.choice(["linear", "rbf", "laplacian", "poly2"]))
    return {
        "linear": ("linear",),
        "rbf": rbf,
        "laplacian": laplacian,
        "poly2": ("poly", 2, slope, constant),
        "poly3": ("poly", 3, slope, constant),
        "sigmoid": ("sigmoid", 2 * slope, float(rng.uniform(-1, 1))),
        "rbf+linear": ("sum", rbf, ("linear",)),
        "rbf*poly2": ("product", rbf, ("poly", 2, slope, constant)),
        "scaled laplacian": ("scaled", float(10 ** rng.uniform(-3, 3)), laplacian),
    }[family]


def _nearest(x: np.ndarray) -> float:
    some = x[:50]
    squared = judge.distances(some, squared=True)
    nearest = np.where(squared > 0, squared, np.inf).min(axis=1)
    return float(np.median(nearest[np.isfinite(nearest)])) if np.isfinite(nearest).any() else 1.0


def _indefinite(rng: np.random.Generator, form: Form) -> np.ndarray:
    n = form.n
    A = rng.normal(size=(n, n))
    K = (A + A.T) / 2 if rng.random() < 0.5 else A @ A.T / n - rng.uniform(0.02, 0.5) * np.eye(n)
    np.fill_diagonal(K, abs(np.diagonal(K)) + rng.choice([0.0, 1.0]))
    return (K * (10 ** rng.uniform(-3, 3))).astype(form.dtype)


def _scale(spec: tuple | None, x: np.ndarray, form: Form) -> float:
    """A usual `K_ii`."""
    if spec is None:
        diagonal = abs(np.diagonal(x).astype(np.float64))
    else:
        some = x[:: max(1, form.n // 8)]
        with np.errstate(all="ignore"):
            diagonal = np.diagonal(judge.kernel_entries(spec, some, form.dtype).K).astype(np.float64)
    return float(np.clip(np.nan_to_num(abs(diagonal).mean(), posinf=1e30), 1e-30, 1e30))


def _weights(rng: np.random.Generator, form: Form, y: np.ndarray) -> tuple[np.ndarray | None, str]:
    """None, small integers, or numbers over 16 decades; some are 0, but never a whole class."""
    if not form.weighted:
        return None, ""
    wide = bool(rng.random() < 0.5)
    weight = 10 ** rng.uniform(-8, 8, form.n) if wide else rng.integers(1, 4, form.n).astype(float)
    weight[rng.random(form.n) < 0.2] = 0.0
    for sign in (-1, 1):
        first = np.flatnonzero(y == sign)[0]
        weight[first] = weight[first] or 1.0
    return weight.astype(form.dtype), ", weights of 16 decades" if wide else ", small weights"


def _value(rng: np.random.Generator, form: Form, scale: float) -> float:
    if rng.random() < 0.3:
        return float(10 ** rng.uniform(-8, 8))
    if form.kind == "slack":
        return float(np.clip(10 ** rng.uniform(-3, 0.5) * np.sqrt(scale), 1e-8, 1e8))
    exponent = rng.uniform(-2, 6) if form.n <= max(SIZES) else rng.uniform(-5, 2)
    return float(np.clip(10**exponent / scale, 1e-8, 1e8))


def _box(rng: np.random.Generator, form: Form, y: np.ndarray, C: float, weight: np.ndarray | None) -> tuple:
    """q, c and e of a box problem: a hinge machine, one of one class, a regression's, or anything."""
    n = form.n
    q = [np.ones(n), np.zeros(n), rng.normal(size=n)][int(rng.integers(3))].astype(form.dtype)
    if form.bias != "free":
        return q, None, 0.0
    c = [y, np.ones(n), rng.choice([-1, 1], n) * 10 ** rng.uniform(-1, 1, n)][int(rng.integers(3))].astype(form.dtype)
    U = np.asarray(C, form.dtype) * (np.ones(n, form.dtype) if weight is None else weight)
    ends = np.minimum(c * U, 0).sum(dtype=np.float64), np.maximum(c * U, 0).sum(dtype=np.float64)
    e = 0.0 if ends[0] < 0 < ends[1] and rng.random() < 0.5 else ends[0] + rng.uniform(0.05, 0.95) * (ends[1] - ends[0])
    return q, c, float(np.asarray(e, form.dtype))


LARGE = tuple(
    Form(solver, kind, n, d, kernel, held, sparse, dtype, dtype, bias, weighted=False)
    for solver, kind, n, d, kernel, held, sparse, dtype, bias in (
        ("interior point", "hinge", 100_000, 2, "linear", "tiled", True, "float32", "regularized"),
        ("interior point", "hinge", 100_000, 5, "linear", "tiled", True, "float32", "free"),
        ("interior point", "hinge", 100_000, 5, "linear", "tiled", False, "float32", "free"),
        ("interior point", "hinge", 100_000, 2, "linear", "tiled", True, "float64", "regularized"),
        ("interior point", "hinge", 100_000, 2, "rbf", "rank", False, "float32", "none"),
        ("interior point", "box", 100_000, 2, "linear", "tiled", True, "float32", "free"),
        ("interior point", "hinge", 1_000_000, 2, "linear", "tiled", True, "float32", "regularized"),
        ("newton", "squared", 100_000, 5, "linear", "tiled", True, "float32", "regularized"),
        ("newton", "squared", 100_000, 5, "linear", "tiled", False, "float32", "free"),
        ("newton", "squared", 100_000, 2, "rbf", "rank", False, "float32", "free"),
        ("newton", "squared", 1_000_000, 2, "linear", "tiled", True, "float32", "free"),
        ("newton", "squared", 1_000_000, 2, "linear", "tiled", False, "float64", "regularized"),
        ("fw smo", "squared", 100_000, 2, "linear", "tiled", True, "float32", "regularized"),
        ("fw smo", "ball", 100_000, 2, "linear", "tiled", False, "float32", "none"),
        ("sampled fw away", "squared", 100_000, 2, "linear", "tiled", False, "float32", "none"),
        ("smo seldom afresh", "hinge", 100_000, 2, "linear", "tiled", False, "float32", "free"),
        ("sdca", "hinge", 100_000, 2, "linear", "tiled", False, "float32", "regularized"),
        ("pegasos", "hinge", 100_000, 5, "linear", "tiled", True, "float32", "regularized"),
        ("sbp in batches", "slack", 100_000, 2, "linear", "tiled", False, "float32", "free"),
    )
)
"""A few problems of 1e5 and 1e6 samples."""


def large_trial(number: int, seed: int = 0) -> Trial:
    return _drawn(LARGE[number % len(LARGE)], np.random.default_rng([seed, 3, number]), f"large {number}/{seed}")


def path_trial(number: int, seed: int = 0) -> Trial:
    loss, index = ("path", "path, hinge")[number % 2], number // 2 % PATH_FORMS
    form = form_of(NAMES.index(loss) + len(NAMES) * index, seed)
    rng = np.random.default_rng([seed, 4, number])
    trial = _drawn(dataclasses.replace(form, n=PATH_SIZES[index % len(PATH_SIZES)]), rng, f"path {number}/{seed}")
    return dataclasses.replace(trial, values=tuple((10 ** rng.uniform(-4, 6, size=8)).tolist()))


HOSTILE = ("chosen", "path", "path, hinge", "estimator", "design")
HOSTILE_FORMS = 40


def hostile_trial(number: int, seed: int = 0) -> Trial:
    """Hostile problem `number`: an ordinary small one in which something is at the end of its type, or beyond."""
    way, index = HOSTILE[number % len(HOSTILE)], number // len(HOSTILE) % (HOSTILE_FORMS // len(HOSTILE))
    rng = np.random.default_rng([seed, 5, index])
    kind = {"path": "squared", "path, hinge": "hinge"}.get(way, ("squared", "hinge")[index % 2])
    own, dtype = way in ("estimator", "design"), "float32" if index % 4 < 2 else "float64"
    kernel = "linear" if way == "design" else ("linear", "rbf")[index // 2 % 2]
    bias = ("regularized", "free")[index % 2] if way != "estimator" else "free"
    form = Form(
        way, "hinge" if way == "estimator" else kind, int(rng.choice([8, 21, 40])), 3, kernel,
        "tiled", False, "float64" if own else dtype, "float64" if own else dtype, bias, bool(index % 3 == 0),
    )  # fmt: skip
    rng = np.random.default_rng([seed, 6, number])
    x, y = rng.normal(size=(form.n, form.d)), np.where(np.arange(form.n) % 2 == 0, 1.0, -1.0)
    y = np.where(x[:, 0] > np.median(x[:, 0]), 1.0, -1.0) if rng.random() < 0.6 else y
    top, size = (38, 1e-44) if form.dtype == "float32" else (308, 5e-324)
    what = str(rng.choice(["huge", "int64", "tiny", "subnormal", "column", "all", "C", "weights", "plain"]))
    huge = float(10 ** rng.uniform(5, top)) * rng.choice([-1, 1])
    if what == "huge":
        x[rng.integers(form.n), rng.integers(form.d)] = huge
    elif what == "int64":
        x[rng.integers(form.n), 0] = np.iinfo(np.int64).min if rng.random() < 0.5 else np.iinfo(np.int64).max
    elif what in ("tiny", "subnormal"):
        x *= size if what == "subnormal" else 10 ** rng.uniform(-top, -5)
    elif what == "column":
        x[:, 1] *= huge
    elif what == "all":
        x *= huge
    weight = rng.uniform(0.5, 2, form.n) if form.weighted else None
    if what == "weights":
        weight = 10 ** rng.uniform(-top, top, form.n) if rng.random() < 0.5 else np.full(form.n, abs(huge))
        weight = weight ** float(rng.choice([-1, 1]))
    many = 1 if SOLVERS.get(way, SOLVERS["chosen"]).how == "fit" else 3
    spread = top if what == "C" else 3
    values = tuple(sorted(float(10 ** rng.uniform(-spread, spread)) for _ in range(many)))
    with np.errstate(all="ignore"):
        x, weight = x.astype(form.dtype), None if weight is None else weight.astype(form.dtype)
    form = dataclasses.replace(form, weighted=weight is not None)
    spec = ("linear",) if kernel == "linear" else ("rbf", 0.5)
    return Trial(f"hostile {number}/{seed}", form, x, spec, y, weight, values, 1e-3, notes=f"hostile: {what}")


# --- Running one, and handing it to the judge ---


def kernel_of(spec: tuple, kernels: Any) -> Any:
    """The library's kernel of a description."""
    name, *rest = spec
    if name in ("sum", "product"):
        a, b = (kernel_of(part, kernels) for part in rest)
        return a + b if name == "sum" else a * b
    if name == "scaled":
        return rest[0] * kernel_of(rest[1], kernels)
    return {
        "linear": kernels.Linear,
        "rbf": kernels.RBF,
        "laplacian": kernels.Laplacian,
        "poly": kernels.Polynomial,
        "sigmoid": kernels.Sigmoid,
    }[name](*rest)


def gram_of(trial: Trial, svm: Any) -> Any:
    """The library's Gram operator."""
    form = trial.form
    dtype = form.values if form.values != form.dtype else None
    if trial.spec is None:
        return svm.gram(svm.kernels.Precomputed(), trial.x)
    points = trial.x
    if form.sparse:
        points = sparse_points(trial)
    options = {"dense": {"store": True}, "tiled": {"tile": TILE}, "rank": {"rank": min(RANK, form.n)}}.get(
        form.held, {}
    )
    return svm.gram(kernel_of(trial.spec, svm.kernels), points, dtype=dtype, **options)


def sparse_points(trial: Trial) -> Any:
    columns = np.broadcast_to(np.arange(trial.x.shape[1]), trial.x.shape) if trial.kept is None else trial.kept
    n, width = columns.shape
    columns = np.sort(columns, axis=1)
    entries = np.take_along_axis(trial.x, columns, axis=1)
    return scipy.sparse.csr_matrix((entries.ravel(), columns.ravel(), np.arange(n + 1) * width), shape=trial.x.shape)


def grounds_of(trial: Trial, gram: Any) -> tuple[list[Ground], list[Ground]]:
    """What a fit may be judged on: grounds one of which must bear it out, and of others again one."""
    form = trial.form
    if form.held == "rank":
        return [judge.feature_ground(np.asarray(gram.Z))], []
    stored = [judge.stored_ground(np.asarray(gram.K))] if form.held == "dense" else []
    if trial.spec is None:
        return stored, []
    if trial.spec == ("linear",):
        features = judge.feature_ground(trial.x)
        return [features] if form.kind == "ball" else [*stored, features], []  # a ball is one of centred points
    points = [judge.points_ground(trial.spec, trial.x, form.values)]
    if np.any(np.asarray(getattr(gram, "shift", 0.0))):  # centred points are rounded, too
        moved = gram.x.rows(np.arange(form.n)) if form.sparse else gram.x
        points.append(judge.points_ground(trial.spec, np.asarray(moved), form.values))
    if not stored:
        return points, []
    return [*stored, *(dataclasses.replace(ground, moves=False) for ground in points)], points


def problem_of(trial: Trial, gram: Any, svm: Any) -> Any:
    """The library's problem of a single fit."""
    form, value, y = trial.form, trial.values[0], trial.y
    if form.kind == "ball":
        return svm.meb_problem(gram, sample_weight=trial.weight)
    if form.kind == "box":
        q, c, e = trial.box
        upper = np.asarray(value, form.dtype) * (np.ones(form.n, form.dtype) if trial.weight is None else trial.weight)
        return svm.box_problem(gram, q, upper, y=y, c=c, e=e)
    return _maker(form, svm)(gram, y, value, bias=form.bias, sample_weight=trial.weight)


def _maker(form: Form, svm: Any) -> Any:
    return {"squared": svm.svm_problem, "hinge": svm.hinge_problem, "slack": svm.slack_problem}[form.kind]


def facts_of(trial: Trial, grounds: tuple[list[Ground], list[Ground]], value: float, weight: Any) -> Facts:
    """What the judge is told: numbers as they are stored in the problem's dtype."""
    form = trial.form
    y = trial.y.astype(LONG)
    weight = np.ones(form.n) if weight is None else weight
    costs = np.asarray(weight, form.dtype).astype(LONG)
    if form.kind not in ("slack", "ball"):
        costs = costs * LONG(np.asarray(value, form.dtype))
    accept, require = grounds
    facts = Facts("box" if form.kind == "hinge" else form.kind, accept, require, np.dtype(form.dtype), y, costs)
    if form.kind == "ball":
        return facts
    if form.kind == "box":
        q, c, e = trial.box
        c = None if c is None else c.astype(LONG)
        return dataclasses.replace(facts, q=q.astype(LONG), c=c, e=e)
    return dataclasses.replace(
        facts,
        offset=1.0 if form.bias == "regularized" else 0.0,
        c=y if form.bias == "free" else None,
        q=np.ones(form.n, LONG),
        nu=float(np.asarray(value, form.dtype)),
    )


def statements_of(fits: Any, tol: float, svm: Any) -> list[Statement]:
    """One statement a lane, from a fit with any leading axes."""
    codes = np.ravel(np.asarray(fits.status.code))
    scalars = [np.ravel(np.asarray(value, np.float64)) for value in (*fits.certificate, fits.bias)]
    vectors = [np.asarray(value).reshape(len(codes), -1) for value in (fits.alpha, fits.dual_coef)]
    return [
        Statement(
            status=svm.Status(code).name,
            tol=tol,
            gap=scalars[2][lane],
            primal=scalars[0][lane],
            dual=scalars[1][lane],
            alpha=vectors[0][lane],
            dual_coef=vectors[1][lane],
            bias=float(scalars[3][lane]),
        )
        for lane, code in enumerate(codes.tolist())
    ]


def fits_of(trial: Trial, svm: Any) -> tuple[Any, list[tuple[Facts, Statement]]]:
    """Run the trial: the fits, and for each what the judge hears."""
    if trial.form.solver in ("estimator", "design"):
        return _by_estimator(trial) if trial.form.solver == "estimator" else _by_design(trial, svm)
    form, way = trial.form, SOLVERS[trial.form.solver]
    gram = gram_of(trial, svm)
    solver = way.make(svm, trial) if trial.solver is None else trial.solver(svm)
    grounds = grounds_of(trial, gram)
    if way.how == "fit":
        problem = problem_of(trial, gram, svm)
        fit = svm.fit(problem, tol=trial.tol) if solver is None else svm.fit(problem, solver)
        said = statements_of(fit, trial.tol, svm)
        if form.kind == "ball":
            ball = svm.ball(fit, problem)
            said = [said[0]._replace(radius=float(ball.radius), lower_radius=float(ball.lower_radius))]
        return fit, [(facts_of(trial, grounds, trial.values[0], trial.weight), said[0])]

    Cs = np.asarray(trial.values)
    problem = _maker(form, svm)(gram, trial.y, Cs[0], bias=form.bias, sample_weight=trial.weight)
    if way.how == "path":
        lanes = None if solver is None else 2
        fits = svm.solve_path(problem, Cs, solver=solver, lanes=lanes, tol=trial.tol).fits
        weights = [trial.weight] * len(Cs)
    elif way.how == "traced":
        fits = _compiled(form)(gram, trial.y, trial.weight, solver, Cs)
        weights = [trial.weight] * len(Cs)
    else:
        folds = _deal(trial.y)
        fits = svm.cross_validate(problem, Cs, folds, tol=trial.tol).fits
        whole = np.ones(form.n) if trial.weight is None else trial.weight
        weights = [np.where(folds == fold, 0, whole) for fold in np.unique(folds) for _ in Cs]
        places, Cs = len(Cs), np.tile(Cs, len(np.unique(folds)))
        if form.held == "rank":
            grounds = [ground for ground in grounds_of_folds(gram, weights[::places]) for _ in range(places)]
            told = [facts_of(trial, *of_fit) for of_fit in zip(grounds, Cs, weights, strict=True)]
            return fits, list(zip(told, statements_of(fits, trial.tol, svm), strict=True))
    told = [facts_of(trial, grounds, C, weight) for C, weight in zip(Cs, weights, strict=True)]
    return fits, list(zip(told, statements_of(fits, trial.tol, svm), strict=True))


def _by_estimator(trial: Trial) -> tuple[Any, list[tuple[Facts, Statement]]]:
    """An `SVC` of the trial's kernel, on kernel values in float64."""
    from jaxsvm.estimators import SVC

    fitted = SVC(C=trial.values[0], kernel=trial.spec[0], gamma=0.5, tol=trial.tol).fit(trial.x, trial.y, trial.weight)
    coef = np.zeros(trial.form.n)
    coef[fitted.support_] = fitted.dual_coef_[0]
    primal, dual, gap = (float(np.ravel(part)[0]) for part in fitted.certificate_)
    status = fitted._statuses[0].name
    said = Statement(status, trial.tol, gap, primal, dual, trial.y * coef, coef, float(fitted.intercept_[0]))
    grounds = [judge.points_ground(trial.spec, trial.x.astype(float), "float64")], []
    return fitted, [(facts_of(trial, grounds, trial.values[0], trial.weight), said)]


def _by_design(trial: Trial, svm: Any) -> tuple[Any, list[tuple[Facts, Statement]]]:
    """A linear fit in passes over the rows, which keeps no dual point: its values are compared with the objective's.

    Its statement is that of a point of the judge's own, which is never false: what is false raises here.
    """
    form, C = trial.form, trial.values[0]
    loss = {"squared": "squared_hinge", "hinge": "hinge"}[form.kind]
    rows = svm.designs.from_arrays(trial.x, trial.y, trial.weight)
    fitted = svm.designs.fit(rows, C, loss=loss, bias=form.bias, tol=trial.tol)
    primal, dual, gap = (float(part) for part in fitted.certificate)
    x, w, b = trial.x.astype(LONG), fitted.coef.astype(LONG), LONG(float(fitted.intercept))
    costs = LONG(C) * (np.ones(form.n, LONG) if trial.weight is None else trial.weight.astype(LONG))
    z = np.maximum(1 - trial.y * (x @ w + b), 0)
    true = (
        w @ w / 2
        + (b * b / 2 if form.bias == "regularized" else 0)
        + costs @ (z * z / 2 if form.kind == "squared" else z)
    )
    false = np.isfinite(primal) and not true <= LONG(primal) * (1 + LONG(1e-9))
    false = false or (np.isfinite(dual) and not dual <= min(true, costs.sum()) * (1 + LONG(1e-9)))
    converged = fitted.status.name == "CONVERGED"
    assert not (false or (converged and not true <= dual * (1 + LONG(trial.tol) + LONG(1e-9)))), f"a lie: {true}"
    assert not np.isnan([primal, dual, gap, *np.ravel(fitted.coef), float(fitted.intercept)]).any(), "NaN"
    return fitted, []


def grounds_of_folds(gram: Any, weights: list[np.ndarray]) -> list[tuple[list[Ground], list[Ground]]]:
    """What the fits of each fold may be judged on: landmarks are chosen anew, among the samples that train in it."""
    import jax

    from jaxsvm.gram.build import landmarks_among

    keys = jax.random.split(jax.random.key(0), len(weights))
    chosen = (landmarks_among(gram, weight > 0, key) for weight, key in zip(weights, keys, strict=True))
    return [([judge.feature_ground(np.asarray(fold.Z))], []) for fold in chosen]


@functools.cache
def _compiled(form: Form) -> Any:
    """Fits at several values of C as lanes of one program."""
    import jax

    import jaxsvm

    def one(gram: Any, y: Any, weight: Any, solver: Any, C: Any) -> Any:
        problem = _maker(form, jaxsvm)(gram, y, C, bias=form.bias, sample_weight=weight)
        return jaxsvm.fit(problem, solver)

    return jax.jit(jax.vmap(one, in_axes=(None, None, None, None, 0)))


def _deal(y: np.ndarray) -> np.ndarray:
    folds = np.zeros(len(y), int)
    for sign in (-1, 1):
        folds[y == sign] = np.arange((y == sign).sum()) % FOLDS
    return folds


class Outcome(NamedTuple):
    """What came of a trial: a line of the table, one a fit."""

    name: str
    words: str
    solver: str
    kind: str
    dtype: str
    status: str
    verdict: Verdict
    seconds: float


def run(trial: Trial) -> list[Outcome]:
    """Run a trial and judge every fit of it. What the library refuses, or fails to do, is an outcome as well."""
    import jaxsvm

    started, form = time.monotonic(), trial.form

    def outcome(status: str, verdict: Verdict) -> Outcome:
        seconds = time.monotonic() - started
        return Outcome(trial.name, str(trial), form.solver, form.kind, form.dtype, status, verdict, seconds)

    with warnings.catch_warnings(action="ignore"):
        try:
            _, told = fits_of(trial, jaxsvm)
        except (jaxsvm.InputError, jaxsvm.DataError):
            return [outcome("REFUSED", Verdict("", "", np.nan, np.nan))]
        except Exception:  # anything else is a defect, and one trial must not end ten thousand
            last = traceback.format_exc().strip().splitlines()
            return [outcome("CRASHED", Verdict("", f"raised: {last[-1]}", np.nan, np.nan))]
    nothing = Verdict("", "", np.nan, np.nan)
    return [outcome(said.status, judged_or_nan(facts, said)) for facts, said in told] or [outcome("JUDGED", nothing)]


def judged_or_nan(facts: Facts, said: Statement) -> Verdict:
    numbers = [said.gap, said.primal, said.dual, said.bias, *np.ravel(said.alpha), *np.ravel(said.dual_coef)]
    if np.isnan(np.asarray(numbers, float)).any():
        return Verdict("", f"NaN beside {said.status}", np.nan, np.nan)
    return judge.judge(facts, said)


def run_numbers(
    numbers: Iterable[int], seed: int, x64: bool, log: Path | None = None, dtype: str = "", draws: str = "all"
) -> list[Outcome]:
    """Run problems by number, form by form: float64 ones only where that is on, and those of a dtype where one is said.

    What stands in the log is not run again; what is run is written to it at once.
    """
    outcomes, known = [], {} if log is None else read_log(log)
    forms, drawn = DRAWS[draws]
    for number in sorted(numbers, key=lambda number: (number % forms, number)):
        trial = drawn(number, seed)
        wide = "float64" in (trial.form.dtype, trial.form.values)
        if (wide and not x64 and trial.form.solver in SOLVERS) or dtype == ("float32" if wide else "float64"):
            continue
        found = known.get(trial.name)
        if found is None:
            found = run(trial)
            if log is not None:
                write_log(log, found)
            drop_programs()
        outcomes += found
    return outcomes


DRAWS = {"all": (FORMS, trial_of), "paths": (2 * PATH_FORMS, path_trial), "hostile": (HOSTILE_FORMS, hostile_trial)}
"""How many forms there are of a choice of problems, and how one is drawn."""


def write_log(log: Path, outcomes: list[Outcome]) -> None:
    with log.open("a") as lines:
        lines.write(json.dumps(outcomes) + "\n")


def read_log(log: Path) -> dict[str, list[Outcome]]:
    known = {}
    for line in log.read_text().splitlines() if log.exists() else []:
        outcomes = [Outcome(*fields)._replace(verdict=Verdict(*fields[6])) for fields in json.loads(line)]
        known[outcomes[0].name] = outcomes
    return known


def drop_programs() -> None:
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > MOST_MAPS:
        import jax

        jax.clear_caches()


# --- What is printed ---

STATUSES = (
    "CONVERGED", "STALLED", "MAX_STEPS", "NOT_FINITE", "NOT_PSD", "INFEASIBLE", "INTERRUPTED", "UNCERTIFIED", "FULL",
    "REFUSED", "CRASHED", "JUDGED",
)  # fmt: skip


def table(outcomes: list[Outcome]) -> str:
    """Counts by solver, by dtype and by kind of problem."""
    shown = [status for status in STATUSES if any(outcome.status == status for outcome in outcomes)]
    lines = [f"{'':28}" + "".join(f"{status:>12}" for status in (*shown, "lies", "understated"))]
    for part in ("solver", "dtype", "kind"):
        for name in sorted({getattr(outcome, part) for outcome in outcomes}):
            lines.append(_line(name, [outcome for outcome in outcomes if getattr(outcome, part) == name], shown))
        lines.append("")
    return "\n".join([*lines, _line("all", outcomes, shown)])


def _line(name: str, outcomes: list[Outcome], shown: list[str]) -> str:
    counts = collections.Counter(outcome.status for outcome in outcomes)
    wrong = [sum(bool(outcome.verdict.lie) for outcome in outcomes)]
    wrong.append(sum(bool(outcome.verdict.understated) for outcome in outcomes))
    return f"{name:28}" + "".join(f"{count:12}" for count in (*(counts[status] for status in shown), *wrong))


def lies_of(outcomes: list[Outcome]) -> list[str]:
    return [f"{outcome.words}\n    LIE: {outcome.verdict.lie}" for outcome in outcomes if outcome.verdict.lie]


def understated_of(outcomes: list[Outcome]) -> list[str]:
    return [
        f"{outcome.words}\n    {outcome.status}: {outcome.verdict.understated}"
        for outcome in outcomes
        if outcome.verdict.understated and not outcome.verdict.lie
    ]


def prepare(x64: bool) -> None:
    """JAX as the suite has it: programs are kept on disk; 64 bits only where they are asked for."""
    root = Path(__file__).resolve().parent.parent
    sys.path.insert(0, str(root))  # this checkout's library, not one that is installed
    import jax

    jax.config.update("jax_enable_x64", x64)
    jax.config.update("jax_compilation_cache_dir", os.environ.get("JAXSVM_TEST_CACHE", str(root / ".jax-cache")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def run_many(
    count: int, seed: int, x64: bool, jobs: int, log: Path | None = None, dtype: str = "", draws: str = "all"
) -> list[Outcome]:
    if jobs == 1:
        return run_numbers(range(count), seed, x64, log, dtype, draws)
    shares = [[number for number in range(count) if number % FORMS % jobs == job] for job in range(jobs)]
    with ProcessPoolExecutor(jobs, get_context("spawn"), prepare, (x64,)) as pool:
        parts = [pool.submit(run_numbers, share, seed, x64, log, dtype, draws) for share in shares]
        return [outcome for part in parts for outcome in part.result()]


def main() -> int:
    """The command line; returns how many lies there were, 255 at the most."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", type=int, nargs="+", help="numbers of single problems")
    parser.add_argument("--large", action="store_true", help="a few problems of 1e5 and 1e6 samples instead")
    parser.add_argument("--paths", action="store_true", help="paths of both losses alone, C from 1e-4 to 1e6")
    parser.add_argument("--hostile", action="store_true", help="numbers at the ends of their types")
    parser.add_argument("--no-x64", action="store_true", help="float32 problems with JAX's 64 bits off")
    parser.add_argument("--dtype", default="", choices=("float32", "float64"), help="only problems of that dtype")
    parser.add_argument("--log", type=Path, help="a file of outcomes, one line a problem: a run goes on where it ended")
    options = parser.parse_args()
    x64, draws = not options.no_x64, "hostile" if options.hostile else "paths" if options.paths else "all"
    prepare(x64)
    started = time.monotonic()
    if options.large:
        count = len(LARGE) if options.count == 10_000 else options.count
        outcomes = [
            outcome for number in options.only or range(count) for outcome in run(large_trial(number, options.seed))
        ]
    elif options.only:
        outcomes = run_numbers(options.only, options.seed, x64, draws=draws)
    else:
        shared = (x64, options.jobs, options.log, options.dtype, draws)
        outcomes = run_many(options.count, options.seed, *shared)
    if options.only or options.large:
        for outcome in outcomes:
            print(f"{outcome.words}\n    {outcome.status} after {outcome.seconds:.1f} s: {outcome.verdict}")
    else:
        print("\n".join(["Understated, and crashes:", *understated_of(outcomes), "", "Lies:", *lies_of(outcomes), ""]))
        print(table(outcomes))
    slowest = max(outcomes, key=lambda outcome: outcome.seconds)
    print(f"slowest: {slowest.seconds:.1f} s, {slowest.words}")
    print(f"{len(outcomes)} fits in {time.monotonic() - started:.0f} s, {len(lies_of(outcomes))} lies")
    return min(len(lies_of(outcomes)), 255)


if __name__ == "__main__":
    sys.exit(main())
