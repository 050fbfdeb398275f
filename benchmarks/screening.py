"""Screening on published sets: rates, paths with and without it, a cold solve, and paths that choose their values.

    python benchmarks/screening.py rates      the share of samples that each rule knows (Figure 4)
    python benchmarks/screening.py toy        two Gaussian classes, C = 10 from C_ref = 5 (Figure 1)
    python benchmarks/screening.py paths      kernel entries and CPU seconds of whole paths, in pairs (Table IV)
    python benchmarks/screening.py cold       inside one fit: the share that is known against steps, and the time
    python benchmarks/screening.py epsilon    how many values of C a path within epsilon needs, and whether it holds

Sets: breast cancer diagnostic (scikit-learn), and of ../shared/data dna (class 3), usps (0), mushrooms, shuttle (1,
the first 10,000), where these are there. Linear kernel and RBF with gamma 0.1 / d, 1 / d and 10 / d; no bias.
"""

import argparse
import dataclasses
import time
import warnings
from pathlib import Path

import jax
import numpy as np

import jaxsvm
from jaxsvm import SMO, WorkingSet, screening
from jaxsvm.kernels import RBF, Linear

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
RESULTS = Path(__file__).parent / "results"
RULES = {
    "BT1": screening.ball_test_1,
    "BT2": screening.ball_test_2,
    "IT": screening.intersection_test,
}
KERNELS = ("linear", "0.1", "1", "10")
POSITIVE = {"dna": 3, "usps": 0, "shuttle": 1}
ROWS = {"shuttle": 10_000}
LARGEST = 1e4
EVERY = 500
TOL = 1e-3


def load(name):
    """`x (n, d)` in float32, standardised where features are measured, and labels; None where the set is absent."""
    if name == "bcd":
        from sklearn.datasets import load_breast_cancer

        found = load_breast_cancer()
        x, y = found.data, np.where(found.target == 1, 1.0, -1.0)
        return ((x - x.mean(0)) / x.std(0)).astype(np.float32), y
    path = DATA / f"{name}.npz"
    if not path.exists():
        print(f"{name}: skipped, {path} is absent")
        return None
    stored = np.load(path)
    if "X" in stored:
        x = stored["X"].astype(np.float32)
    else:
        from scipy.sparse import csr_matrix

        parts = (stored["X_data"], stored["X_indices"], stored["X_indptr"])
        x = csr_matrix(parts, shape=tuple(stored["X_shape"])).toarray().astype(np.float32)
    y = stored["y"]
    y = np.where(y == POSITIVE[name], 1.0, -1.0) if name in POSITIVE else np.where(y > 0, 1.0, -1.0)
    keep = slice(ROWS.get(name))
    x = x[keep]
    if name == "shuttle":
        x = (x - x.mean(0)) / x.std(0)
    return x, y[keep]


def problem_of(x, y, kernel, loss="hinge"):
    """The problem without a bias, its kernel values stored, and `C_min`: below, all samples are at their bounds."""
    d = x.shape[1]
    gram = jaxsvm.gram(Linear() if kernel == "linear" else RBF(float(kernel) / d), x, store=True)
    build = jaxsvm.hinge_problem if loss == "hinge" else jaxsvm.svm_problem
    problem = build(gram, y, 1.0, bias="none")
    return problem, 1 / float(np.asarray(problem.signed.matvec(jax.numpy.ones_like(problem.y))).max())


def rates(sets):
    """Figure 4: the share of all samples that each rule knows at C = 10, against C_ref / C."""
    ratios = np.asarray([0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.97, 0.99])
    table = {}
    for name in sets:
        if (data := load(name)) is None:
            continue
        for kernel in KERNELS:
            problem, _ = problem_of(*data, kernel)
            at = problem.at(10.0)
            path = jaxsvm.solve_path(problem, 10 * ratios, tol=1e-6)
            for rule, test in RULES.items():
                shares = [float(test(at, path[i], 10 * r).screened.mean()) for i, r in enumerate(ratios)]
                table[name, kernel, rule] = shares
                print(f"{name:10} {kernel:7} {rule:4}", " ".join(f"{share:.3f}" for share in shares), flush=True)
    if table:
        screening_figure(table, ratios).savefig(RESULTS / "screening_rates.png", dpi=110)
        print("written:", RESULTS / "screening_rates.png")


def screening_figure(table, ratios):
    """A panel a set and kernel, a curve a rule."""
    from matplotlib.figure import Figure

    names = sorted({name for name, _, _ in table})
    figure = Figure(figsize=(3 * len(KERNELS), 2.3 * len(names)), layout="constrained")
    axes = figure.subplots(len(names), len(KERNELS), sharex=True, sharey=True, squeeze=False)
    for row, name in zip(axes, names, strict=True):
        for ax, kernel in zip(row, KERNELS, strict=True):
            for rule in RULES:
                ax.plot(ratios, table[name, kernel, rule], marker=".", label=rule)
            ax.set_title(f"{name}, {kernel if kernel == 'linear' else 'RBF ' + kernel + '/d'}", fontsize=9)
            ax.set_ylim(-0.03, 1.03)
    axes[0, 0].legend(fontsize=8)
    figure.supxlabel("C_ref / C (C = 10)")
    figure.supylabel("share of samples that the rule knows")
    return figure


def toy(_):
    """Figure 1: n = 1000, d = 2, N(+-(0.5, 0.5), 1.5^2 I), linear."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        y = np.repeat([1.0, -1.0], 500)
        x = (rng.normal(size=(1000, 2)) * 1.5 + 0.5 * y[:, None]).astype(np.float32)
        problem, _ = problem_of(x, y, "linear")
        path = jaxsvm.solve_path(problem, [5.0], tol=1e-7)
        shares = {rule: float(test(problem.at(10.0), path[0], 5.0).screened.mean()) for rule, test in RULES.items()}
        print(seed, {rule: round(share, 3) for rule, share in shares.items()})


ROUTES = {
    "no working set": {"solver": SMO(tol=TOL)},
    "working sets": {"solver": WorkingSet(tol=TOL)},
    "none": {"tol": TOL, "screen": None},
    "BT1": {"tol": TOL, "screen": screening.ball_test_1},
    "IT": {"tol": TOL, "screen": screening.intersection_test},
}


def paths(sets, kernels, count, pairs, routes, largest):
    """Whole paths from `C_min` to `largest`: the median of CPU seconds, kernel entries in n^2; first calls apart."""
    for name in sets:
        if (data := load(name)) is None:
            continue
        for kernel in kernels:
            problem, least = problem_of(*data, kernel)
            Cs = np.geomspace(least, largest, count)
            seconds = {route: [] for route in routes}
            said = {}
            for turn in range(pairs + 1):
                for route in routes:
                    before = time.process_time()
                    path = jaxsvm.solve_path(problem, Cs, **ROUTES[route])
                    took = time.process_time() - before
                    if turn:
                        seconds[route].append(took)
                    else:
                        entries = float(np.sum(path.fits.kernel_evaluations)) / problem.n**2
                        said[route] = (took, entries, int((np.asarray(path.status) == 1).sum()))
            for route in routes:
                first, entries, certified = said[route]
                print(
                    f"{name:10} {kernel:7} {route:15} CPU {np.median(seconds[route]):7.2f} s  first {first:6.2f} s  "
                    f"entries {entries:8.2f} n^2  certified {certified}/{count}",
                    flush=True,
                )


def cold(sets, kernels):
    """Inside one fit at C = 10: what a screened solver knows at its certificates, and CPU against none."""
    for name in sets:
        if (data := load(name)) is None:
            continue
        for kernel in kernels:
            for loss, solver in (("hinge", SMO(tol=1e-5)), ("squared hinge", jaxsvm.FrankWolfe(tol=1e-5))):
                problem = problem_of(*data, kernel, loss)[0].at(10.0)
                shares = []

                def look(fitted, problem=problem, shares=shares):
                    share = float(screening.gap_safe(problem, fitted).screened.mean())
                    shares.append((int(fitted.steps), round(share, 2)))

                jaxsvm.fit(problem, certified_every(solver, EVERY), callback=look)
                took = {}
                for label, one in (("none", solver), ("screened", jaxsvm.screened(solver, every=EVERY))):
                    jaxsvm.fit(problem, one)
                    before = time.process_time()
                    jaxsvm.fit(problem, one)
                    took[label] = time.process_time() - before
                marks = shares[:: max(len(shares) // 6, 1)]
                print(
                    f"{name:10} {kernel:7} {loss:13} none {took['none']:.2f} s, screened {took['screened']:.2f} s;",
                    marks,
                )


def certified_every(solver, steps):
    """The solver with a certificate every so many steps."""
    return dataclasses.replace(solver, refresh_every=steps, check_every=min(steps, solver.check_every))


def epsilon(sets, kernels, loss="hinge"):
    """How many values, and the worst error at 200 values of C between, beside dual values to 1e-4 of them."""
    for name in sets:
        if (data := load(name)) is None:
            continue
        for kernel in kernels:
            problem, least = problem_of(*data, kernel, loss)
            Cs = np.geomspace(least, LARGEST, 200)
            exact = jaxsvm.solve_path(problem, Cs, tol=1e-4)
            lower = np.asarray(exact.certificate.dual, float)
            for eps in (0.1, 0.01):
                before = time.process_time()
                path = screening.epsilon_path(problem, eps, least, LARGEST)
                took = time.process_time() - before
                worst = 0.0
                for C, dual in zip(Cs, lower, strict=True):
                    worst = max(worst, 1 - dual / primal_at(problem.at(C), path.at(C)))
                print(
                    f"{name:10} {kernel:7} eps {eps}: {len(path)} values, worst {worst:.4f}, CPU {took:.2f} s",
                    flush=True,
                )


def primal_at(problem, fitted):
    """P of a fit's w at a problem's C, in float64."""
    coef, margins = np.asarray(fitted.dual_coef, float), np.asarray(fitted.margins, float)
    loss = np.maximum(0, 1 - margins)
    square = float(coef @ (np.asarray(problem.y, float) * margins))
    cost = float(problem.C)
    return square / 2 + (cost * loss.sum() if problem.bounded else cost / 2 * (loss**2).sum())


def main():
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("rates", "toy", "paths", "cold", "epsilon"))
    parser.add_argument("--sets", default="bcd,dna,usps,mushrooms,shuttle")
    parser.add_argument("--kernels", default=",".join(KERNELS), help="of paths, cold and epsilon")
    parser.add_argument("--routes", default=",".join(ROUTES))
    parser.add_argument("--count", type=int, default=100, help="values of C of a path")
    parser.add_argument("--largest", type=float, default=LARGEST, help="the largest C of a path")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--loss", default="hinge", choices=("hinge", "squared hinge"))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    sets, kernels = options.sets.split(","), options.kernels.split(",")
    if options.what == "paths":
        paths(sets, kernels, options.count, options.pairs, options.routes.split(","), options.largest)
    elif options.what == "epsilon":
        epsilon(sets, kernels, options.loss)
    elif options.what == "cold":
        cold(sets, kernels)
    else:
        {"rates": rates, "toy": toy}[options.what](sets)


if __name__ == "__main__":
    main()
