"""Whether any certificate lies: random fits over all solvers and problems, and estimators on random kernels.

Usage: python benchmarks/certificates.py [--count N] [--estimators N] [--seed S] [--no-x64] [--only SOLVER ...]
           [--log FILE] [--fit K ...] [--estimator K ...]

Each fit is judged in NumPy's long double (`tests/judge.py`, which knows no jaxsvm) on the kernel matrix as it is
stored: CONVERGED is false where the true relative gap of the returned numbers is above `tol`, where a sample that is
absent carries weight, or where the matrix is indefinite along the directions that points can move; and a stated gap,
primal or dual value is false on the wrong side of the truth, whatever the status. Sizes are one, so that programs are
few: 16 samples, of which the weights leave some out.

Weights: 1; 0 or 1; 1 or 1e-20; 1 or 1e20; all of these mixed. Kernel matrices: RBF, linear, polynomial, duplicates; one
in eight is indefinite. Estimators (precomputed, callable and sigmoid kernels): 24 samples of two classes or of three,
kernels that are definite, indefinite, semidefinite along `y . a = 0` alone, or asymmetric. What raises is counted as
CRASHED and is false, and the run goes on. Exit code: 1 where anything was false.

`--log` appends every false one to a file as soon as it is found, a line of JSON with the arguments that repeat it
(`--fit K` or `--estimator K`), and the counts after each way and at the end: a run that is cut off loses nothing.
"""

import argparse
import collections
import json
import pathlib
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import adversarial
from adversarial import Form, Trial
from estimator_certificates import KERNELS, NAMES, estimator_case, verdict

N = 16
"""Samples of a fit."""
TOLS = (1e-2, 1e-3, 1e-4, 1e-6)
STEPS = 2000
SIMPLEX, REGULARIZED, ANY = ("squared", "ball"), ("regularized", "none"), ("regularized", "none", "free")


def fw(variant, **options):
    """A Frank-Wolfe solver, of the module and a tolerance."""
    return lambda svm, tol: svm.FrankWolfe(variant=variant, tol=tol, max_steps=STEPS, check_every=50, **options)


def core(svm, tol):
    """A Core Vector Machine."""
    return svm.CoreVectorMachine(tol=tol, max_steps=STEPS, check_every=50)


def around(outer, inner, **options):
    """A wrapper around a solver."""
    return lambda svm, tol: getattr(svm, outer)(inner(svm, tol), **options)


def plain(name, **options):
    """A solver by name."""
    return lambda svm, tol: getattr(svm, name)(tol=tol, **options)


def screened(inner):
    """A solver whose known samples leave."""
    return lambda svm, tol: svm.screened(inner(svm, tol))


SMO = plain("SMO", max_steps=STEPS)
SOLVERS = {
    "fw classic": (SIMPLEX, REGULARIZED, fw("classic")),
    "fw away": (SIMPLEX, REGULARIZED, fw("away")),
    "fw pairwise": (SIMPLEX, REGULARIZED, fw("pairwise")),
    "fw smo": (SIMPLEX, REGULARIZED, fw("smo")),
    "fw classic, paper's rule": (SIMPLEX, REGULARIZED, fw("classic", stop="paper", start="two-point")),
    "fw away, relative rule": (("squared",), REGULARIZED, fw("away", stop="relative_fw", start="uniform")),
    "core vectors": (SIMPLEX, REGULARIZED, core),
    "sampled classic": (SIMPLEX, REGULARIZED, around("sampled", fw("classic"), r=5)),
    "sampled away, unchecked": (("squared",), REGULARIZED, around("sampled", fw("away"), r=5, final_check="none")),
    "sampled core vectors": (("squared",), REGULARIZED, around("sampled", core, r=5)),
    "polished classic": (SIMPLEX, REGULARIZED, around("polished", fw("classic"))),
    "polished sampled away": (("squared",), REGULARIZED, around("polished", around("sampled", fw("away"), r=5))),
    "screened classic": (("squared",), REGULARIZED, screened(fw("classic"))),
    "screened smo": (("hinge",), REGULARIZED, screened(SMO)),
    "polished screened": (("squared",), REGULARIZED, around("polished", screened(fw("smo")))),
    "newton": (("squared",), ANY, plain("Newton", max_steps=60)),
    "working set, squared": (("squared",), REGULARIZED, plain("WorkingSet", size=8, fresh=4, max_steps=200)),
    "working set": (("hinge", "box"), ANY, plain("WorkingSet", size=8, fresh=4, max_steps=200)),
    "smo": (("hinge", "box"), ANY, SMO),
    "smo of one": (("hinge", "box"), REGULARIZED, plain("SMO", variables=1, max_steps=STEPS)),
    "sdca": (("hinge", "box"), REGULARIZED, plain("SDCA", max_steps=STEPS)),
    "interior point": (("hinge", "box"), ANY, plain("InteriorPoint", max_steps=60)),
    "pegasos": (("hinge",), REGULARIZED, plain("Pegasos", steps=500, batch=4)),
    "ball sgd": (("hinge",), REGULARIZED, lambda svm, tol: svm.BallSGD(1.0, steps=500, batch=4, tol=tol)),
    "perceptron": (("hinge",), REGULARIZED, lambda svm, tol: svm.Perceptron(500, output="average", tol=tol)),
    "sbp": (("slack",), ANY, plain("StochasticBatchPerceptron", steps=500, batch=4)),
    "sbp exact": (("slack",), ANY, plain("StochasticBatchPerceptron", steps=500, batch=None, average="linear")),
    "chosen": (("squared", "hinge", "box", "ball"), ANY, None),
    "path": (("squared", "hinge"), ANY, None),
    "folds": (("squared", "hinge"), ANY, None),
}
WAYS = [
    (name, kind, bias)
    for name, (kinds, biases, _) in SOLVERS.items()
    for kind in kinds
    for bias in (("none",) if kind == "ball" else biases)
]


def matrix(rng, dtype):
    """A kernel matrix, and what it is."""
    x = rng.normal(size=(N, 2))
    family = str(rng.choice(["rbf", "rbf", "linear", "poly", "duplicates", "far", "indefinite", "nearly"]))
    if family == "duplicates":
        x = x[np.arange(N) // 2]
    distances = ((x[:, None] - x) ** 2).sum(axis=2)
    K = np.exp(-(10 ** rng.uniform(-1, 1)) * distances)
    if family == "linear":
        K = x @ x.T
    elif family == "poly":
        K = (x @ x.T / 2 + 1) ** 3
    elif family == "far":
        K = (x + 30) @ (x + 30).T
    elif family == "indefinite":
        K = rng.normal(size=(N, N))
        np.fill_diagonal(K, abs(np.diagonal(K)) + 1)
    elif family == "nearly":
        K[0, 0] -= 10 ** rng.uniform(-2, 0.5)
    return ((K + K.T) / 2 * 10 ** rng.uniform(-2, 2)).astype(dtype), family


def weights(rng, y, dtype):
    """Sample weights, both classes among the present, and what they are."""
    kind = str(rng.choice(["1", "0", "1e-20", "1e20", "mixed"]))
    values = {"1": [1.0], "0": [0.0, 1.0], "1e-20": [1e-20, 1.0], "1e20": [1.0, 1e20]}.get(kind, [0, 1e-20, 1, 1e20])
    share = rng.uniform(0.1, 0.9)
    weight = np.where(rng.random(N) < share, values[0], rng.choice(values, N))
    for sign in (-1, 1):
        if not weight[y == sign].any():
            weight[rng.choice(np.flatnonzero(y == sign))] = values[-1]
    return weight.astype(dtype), kind


def trial(number, seed, x64, ways):
    """Random fit `number`: ways take turns, each in the dtype that its place and the seed have; all else is drawn."""
    rng = np.random.default_rng([seed, number])
    place = number % len(ways)
    name, kind, bias = ways[place]
    dtype = "float64" if x64 and (place + seed) % 2 else "float32"
    K, family = matrix(rng, dtype)
    y = rng.permutation(np.where(np.arange(N) < rng.integers(1, N), 1.0, -1.0))
    weight, weighted = weights(rng, y, dtype)
    scale, tol = float(np.abs(np.diagonal(K)).mean()), float(rng.choice(TOLS))
    how = {"path": "path", "folds": "folds"}.get(name, "fw smo")
    form = Form(how, kind, N, 2, "precomputed", "dense", False, dtype, dtype, bias, True)
    values = tuple(float(10 ** rng.uniform(-2, 4) / scale) for _ in range(1 if how == "fw smo" else 3))
    if kind == "slack":
        values = (float(rng.choice([0.0, 10 ** rng.uniform(-3, 0)])) * scale**0.5,)
    box = adversarial._box(rng, form, y, values[0], weight) if kind == "box" else None
    make = SOLVERS[name][2]
    solver = (lambda svm: None) if make is None else (lambda svm: make(svm, tol))
    words = f"{number}/{seed} {name}: {kind}, bias {bias}, {dtype}, {family}, weights {weighted}, tol {tol:g}"
    return name, Trial(words, form, K, None, y, weight, values, tol, 1.0, box, solver, None, family)


# ----------------------------------------------------------------------------------------------------------------------
# Counts
# ----------------------------------------------------------------------------------------------------------------------


class Counts:
    """How many fits ended how, and which were false: kept, and written to a log at once."""

    def __init__(self, log: pathlib.Path | None, options: list[str]):
        self.log, self.options, self.started = log, options, time.monotonic()
        self.rows, self.false = collections.Counter(), []

    def add(self, groups: tuple[str, str], repeat: str, words: str, status: str, wrong: str) -> None:
        """Count one in a solver's row and in that of all."""
        for group in groups:
            self.rows[group, status] += 1
            self.rows[group, "false"] += bool(wrong)
        if wrong:
            self.false.append(f"{words}\n    {status}: {wrong}")
            arguments = " ".join([repeat, *self.options])
            self.write({"arguments": arguments, "words": words, "status": status, "false": wrong})

    def of(self, group: str) -> dict[str, int]:
        """The counts of one row."""
        return {status: count for (name, status), count in self.rows.items() if name == group}

    def write(self, entry: dict[str, Any]) -> None:
        """Append a line to the log, where there is one."""
        if self.log is not None:
            with self.log.open("a") as lines:
                lines.write(json.dumps(entry) + "\n")

    def told(self) -> str:
        """The table, every false one, and the totals; these go to the log as well."""
        statuses = [*dict.fromkeys(status for _, status in self.rows if status != "false"), "false"]
        lines = [f"{'':28}" + "".join(f"{status:>13}" for status in statuses)]
        for name in dict.fromkeys(name for name, _ in self.rows):
            lines.append(f"{name:28}" + "".join(f"{self.rows[name, status]:13}" for status in statuses))
            if name.startswith("all "):
                self.write({"arguments": " ".join(self.options), "counts of": name, **self.of(name)})
        seconds = time.monotonic() - self.started
        return "\n".join([*lines, *self.false, f"{' '.join(self.options)}: {len(self.false)} false, {seconds:.0f} s"])


def guarded(judged: Callable[..., list], *arguments: Any) -> list[tuple[str, str]]:
    """What came of one: (status, what is false) each; whatever it raises must not end the run."""
    try:
        return judged(*arguments)
    except Exception:
        return [("CRASHED", f"raised: {traceback.format_exc().strip().splitlines()[-1]}")]


def judged_trial(one: Trial) -> list[tuple[str, str]]:
    """The fits of a trial."""
    return [(outcome.status, outcome.verdict.lie or outcome.verdict.understated) for outcome in adversarial.run(one)]


def judged_estimator(number: int, seed: int) -> list[tuple[str, str]]:
    """An estimator, of all its machines the first that is false."""
    status, told, wrong = estimator_case(number, seed)
    with np.errstate(all="ignore"):
        return [(status, wrong or next((found for found in (verdict(*one) for one in told) if found), ""))]


def run(options: argparse.Namespace, counts: Counts) -> None:
    """Run what the options name: one way after another, so that programs are used while they are there."""
    ways = [way for way in WAYS if not options.only or way[0] in options.only]
    single = options.fit or options.estimator
    begun, numbers = set(), options.fit or ([] if single else range(options.count))
    for number in sorted(numbers, key=lambda number: (number % len(ways), number)):
        name, one = trial(number, options.seed, not options.no_x64, ways)
        if number % len(ways) not in begun:
            begun.add(number % len(ways))
            seconds, false = time.monotonic() - counts.started, len(counts.false)
            print(f"{seconds:6.0f} s, {false} false; {one.name}", file=sys.stderr, flush=True)
            counts.write({"before": one.name, **counts.of("all fits")})
            adversarial.drop_programs()
        for status, wrong in guarded(judged_trial, one):
            counts.add((name, "all fits"), f"--fit {number}", one.name, status, wrong)
    for number in options.estimator or ([] if single else range(options.estimators)):
        name, kind = NAMES[number % len(NAMES)], KERNELS[number // len(NAMES) % len(KERNELS)]
        for status, wrong in guarded(judged_estimator, number, options.seed):
            words = f"{number}/{options.seed} {name} on a kernel that is {kind}"
            counts.add((name, "all estimators"), f"--estimator {number}", words, status, wrong)


def main():
    """Run, count and print; 1 where anything was false."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=3000, help="random fits")
    parser.add_argument("--estimators", type=int, default=300, help="estimators on random kernels")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-x64", action="store_true", help="float32 alone, with JAX's default of 32 bits")
    parser.add_argument("--only", nargs="+", default=[], choices=SOLVERS, help="solvers, by the names in the table")
    parser.add_argument("--log", type=pathlib.Path, help="a file that every false one is appended to at once")
    parser.add_argument("--fit", type=int, nargs="+", default=[], help="fits of these numbers alone")
    parser.add_argument("--estimator", type=int, nargs="+", default=[], help="estimators of these numbers alone")
    options = parser.parse_args()
    adversarial.prepare(not options.no_x64)
    import jax

    jax.config.update("jax_disable_most_optimizations", True)  # half of the time would be theirs
    said = [f"--seed {options.seed}", *["--no-x64"] * options.no_x64]
    said += [" ".join(["--only", *(f"'{name}'" for name in options.only)])] * bool(options.only)
    counts = Counts(options.log, said)
    try:
        run(options, counts)
    finally:
        print(counts.told())
    return int(bool(counts.false))


if __name__ == "__main__":
    sys.exit(main())
