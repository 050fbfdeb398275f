"""How many float32 fits end CONVERGED: five standardised real sets, x64 off, linear and RBF, C = 1, 100, 1e4.

    python benchmarks/float32_fits.py                 # 60 fits a solver: 5 sets x 2 kernels x 3 C x tol 1e-3, 1e-5
    python benchmarks/float32_fits.py SMO Newton      # some of them
    python benchmarks/float32_fits.py --verbose       # and every fit that does not

The real sets lie in `../shared/data` (`--data` for another folder); without them nothing is printed but that.
"""

import argparse
import time
import warnings
from collections import Counter
from pathlib import Path

import jax
import numpy as np

import jaxsvm
from jaxsvm.kernels import RBF, Linear

SETS = ("heart", "sonar", "breast_w", "ionosphere", "australian")
PENALTIES = (1.0, 100.0, 1e4)
TOLERANCES = (1e-3, 1e-5)
HINGE = ("free", "regularized")
SOLVERS = {
    "SMO": (jaxsvm.hinge_problem, lambda tol: jaxsvm.SMO(tol=tol), HINGE),
    "InteriorPoint": (jaxsvm.hinge_problem, lambda tol: jaxsvm.InteriorPoint(tol=tol), HINGE),
    "FrankWolfe": (jaxsvm.svm_problem, lambda tol: jaxsvm.FrankWolfe(tol=tol), ("regularized",)),
    "Newton": (jaxsvm.svm_problem, lambda tol: jaxsvm.Newton(tol=tol), HINGE),
}


def standardised(path):
    with np.load(path, allow_pickle=True) as file:
        x, y = np.asarray(file["X"], float), file["y"]
    spread = x.std(axis=0)
    return ((x - x.mean(axis=0)) / np.where(spread > 0, spread, 1)).astype(np.float32), np.where(
        y == y.max(), 1.0, -1.0
    )


def fits(data, solver, bias):
    """Status, relative gap and name of each of the 60 fits, and the seconds of all."""
    build, make, _ = SOLVERS[solver]
    ends, started = [], time.perf_counter()
    for name, (x, y) in data.items():
        for kernel in (RBF(1 / x.shape[1]), Linear()):
            gram = jaxsvm.gram(kernel, x)
            for C in PENALTIES:
                for tol in TOLERANCES:
                    fit = jaxsvm.fit(build(gram, y, C, bias=bias), make(tol))
                    title = f"{name}, {type(kernel).__name__}, C = {C:g}, tol = {tol:g}"
                    ends.append((fit.status.name, float(fit.certificate.relative_gap), title))
    return ends, time.perf_counter() - started


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("solvers", nargs="*", choices=[[], *SOLVERS], help="all of them by default")
    parser.add_argument("--data", default="../shared/data")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    paths = {name: Path(options.data) / f"{name}.npz" for name in SETS}
    missing = [str(path) for path in paths.values() if not path.exists()]
    if missing:
        print(f"skipped: {', '.join(missing)} not found")
        return
    warnings.simplefilter("ignore", jaxsvm.ConvergenceWarning)
    assert not jax.config.jax_enable_x64, "these are fits with JAX's default of 32 bits: unset JAX_ENABLE_X64"
    data = {name: standardised(path) for name, path in paths.items()}
    print(f"{'solver':<15}{'bias':<13}{'converged':>10}{'seconds, compilation included':>32}   other ends")
    for solver in options.solvers or SOLVERS:
        for bias in SOLVERS[solver][2]:
            ends, seconds = fits(data, solver, bias)
            counts = Counter(status for status, _, _ in ends)
            converged = counts.pop("CONVERGED", 0)
            print(
                f"{solver:<15}{bias:<13}{converged:>4} of {len(ends)}{seconds:>32.0f}   {dict(counts) or ''}",
                flush=True,
            )
            if options.verbose:
                for status, gap, title in ends:
                    if status != "CONVERGED":
                        print(f"    {status} at {gap:.1e}: {title}")


if __name__ == "__main__":
    main()
