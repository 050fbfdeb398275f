"""Seconds, CPU seconds and memory of calls that once were slow or large for no reason, each in its own process.

    python benchmarks/slow_or_large.py [NAME ...]

First call (with compilation, unless programs are kept on disk), second call, largest memory of the process.
"""

import resource
import subprocess
import sys
import time

import numpy as np

RNG = np.random.default_rng(0)


def text(n, d, per_row, classes):
    """Sparse rows of words drawn by Zipf's law, and labels that depend on rare words."""
    import scipy.sparse as sp

    columns = np.minimum((d ** RNG.uniform(size=n * per_row)).astype(int), d - 1)
    x = sp.csr_matrix((RNG.uniform(0.1, 0.3, n * per_row), (np.repeat(np.arange(n), per_row), columns)), (n, d))
    return x, np.asarray((x @ RNG.normal(size=(d, classes))).argmax(axis=1))


def two_classes(n, d):
    x = RNG.normal(size=(n, d)).astype(np.float32)
    return x, np.where(x[:, 0] + x[:, 1] ** 2 / 2 + 0.4 * RNG.normal(size=n) > 0.7, 1, -1)


def linear_text():
    from sklearn.svm import LinearSVC as Theirs

    from jaxsvm.estimators import LinearSVC

    for sizes in ((3_000, 60_000, 36, 2), (11_314, 130_000, 100, 20)):
        x, y = text(*sizes)
        for machine in (Theirs(), LinearSVC(), LinearSVC(loss="hinge")):
            name = f"{type(machine).__module__[:7]} {machine.loss} {sizes}"
            yield name, lambda m=machine, x=x, y=y: m.fit(x, y) and ""


def linear_wide():
    from jaxsvm.estimators import LinearSVC

    x, y = two_classes(1_500, 3_000)
    yield "dense 1,500 x 3,000", lambda: LinearSVC().fit(x, y) and ""


def decisions():
    import jaxsvm

    x, y = two_classes(50_000, 118)
    y = np.where(x[:, 0] > 2.6, 1, -1)
    problem = jaxsvm.svm_problem(jaxsvm.gram(jaxsvm.kernels.RBF(0.002), x, store=False), y, 1.0)
    fit = jaxsvm.fit(problem, tol=1e-1)
    few = f"{np.count_nonzero(np.asarray(fit.alpha))} support vectors"
    yield "decision_function of 5,000", lambda: jaxsvm.decision_function(fit, problem, x[:5_000]) is None or few
    yield "predict of 5,000", lambda: jaxsvm.predict(fit, problem, x[:5_000]) is None or few


def sampled():
    import jaxsvm

    x, y = two_classes(24_692, 300)
    y = np.where(x[:, 0] > 1.5, 1, -1)
    solver = jaxsvm.sampled(jaxsvm.FrankWolfe("classic", stop="paper", tol=1e-6), tries=1, final_check="none")
    problem = jaxsvm.svm_problem(jaxsvm.gram(jaxsvm.kernels.RBF(0.003), x), y, 16.0)
    yield "sampled, n = 24,692", lambda: f"{jaxsvm.fit(problem, solver).steps} steps"


def rules():
    import jaxsvm

    def path(problem):
        solver, rule = jaxsvm.WorkingSet(tol=1e-2), jaxsvm.screening.intersection_test
        return said(jaxsvm.solve_path(problem, [1e-3, 1.1e-3], solver=solver, screen=rule))

    for n in (30_000, 100_000):
        x, y = two_classes(n, 20)
        problem = jaxsvm.hinge_problem(jaxsvm.gram(jaxsvm.kernels.Linear(), x, store=False), y)
        yield f"rule, working sets, n = {n}", lambda p=problem: path(p)


def rule_on_a_linear_path():
    import jaxsvm

    x, y = two_classes(59_535, 8)
    for make in (jaxsvm.hinge_problem, jaxsvm.svm_problem):
        problem = make(jaxsvm.gram(jaxsvm.kernels.Linear(), x), y)
        for name, screen in (("none", None), ("intersection", jaxsvm.screening.intersection_test)):
            what = f"linear path, {problem.kind}, rule {name}"
            yield what, lambda p=problem, s=screen: said(jaxsvm.solve_path(p, np.geomspace(1e-4, 1e-3, 25), screen=s))


def said(fits):
    gap = np.max(np.asarray(fits.certificate.relative_gap))
    return f"codes {np.unique(np.asarray(fits.status.code))}, gap {gap:.0e}"


def joins():
    from jaxsvm import relational

    join = relational.Join
    keys = RNG.integers(0, 12, 3_000), RNG.integers(0, 12, 1_000), RNG.integers(0, 12, 900)
    keys = [np.minimum(k, 11) for k in keys]
    a, b, c = ({"k": k, f"x{i}": RNG.normal(size=len(k)), f"z{i}": RNG.normal(size=len(k))} for i, k in enumerate(keys))
    a["y"] = np.where(a["x0"] + 0.5 * RNG.normal(size=3_000) > 0, 1, -1)
    big = join({"a": a, "b": b, "c": c}, ("a", "y"))
    yield f"join of {float(big.size):.3g} rows, C = 1", lambda: ended(relational.fit(big, C=1.0, scale="standard"))
    n = 2_000
    rare = {"k": np.zeros(n, int), "x": RNG.normal(size=n), "y": np.r_[np.ones(20, int), -np.ones(n - 20, int)]}
    rare = join({"f": rare, "d": {"k": np.zeros(1_000, int), "z": RNG.normal(size=1_000)}}, ("f", "y"))
    yield "D6, rare label, 2 million rows", lambda: ended(relational.fit(rare, 1e-4))
    n, k, x, z = 60, RNG.integers(0, 5, 60), RNG.normal(size=60), RNG.normal(size=5)
    easy = join(
        {"f": {"k": k, "x": x, "y": np.where(x + z[k] > 0, 1, -1)}, "d": {"k": np.arange(5), "z": z}}, ("f", "y")
    )
    yield "D8, separable, C = 1e6", lambda: ended(relational.fit(easy, C=1e6, loss="squared_hinge", max_steps=60))
    rows = {"k": RNG.integers(0, 5, 200), "x": RNG.normal(size=200)}
    rows["y"] = np.where(rows["x"] + RNG.normal(size=200) > 0, 1, -1)
    small = join({"f": rows, "d": {"k": np.arange(5), "z": z}}, ("f", "y"))
    yield (
        "D9, method paper, 150 steps",
        lambda: ended(relational.fit(small, 1e-2, scale="max", method="paper", max_steps=150)),
    )
    n, levels = 20_000, 3_300
    a, b, k = (RNG.integers(0, m, n) for m in (levels, levels, 50))
    x, w = RNG.normal(size=n), RNG.normal(size=levels)
    f = {
        "k": k,
        "a": a.astype(str),
        "b": b.astype(str),
        "x": x,
        "y": np.where(w[a] + x + 0.3 * RNG.normal(size=n) > 0, 1, -1),
    }
    two = join({"f": f, "d": {"k": np.arange(50), "z": RNG.normal(size=50)}}, ("f", "y"))
    yield "D5, 3,300 + 3,300 levels", lambda: ended(relational.fit(two, 1 / (2 * n), scale="standard", max_seconds=60))


def ended(fit):
    return f"{fit.status.name}, gap {float(fit.certificate.relative_gap):.0e}"


def coreset_sizes():
    from jaxsvm import coresets

    for n, m in ((1_000, 100), (1_001, 100), (1_000, 101)):
        x, y = two_classes(n, 6)
        yield f"coreset n = {n}, m = {m}", lambda x=x, y=y, m=m: str(len(coresets.coreset(x, y, C=1.0, m=m)))


def hopeless():
    from sklearn.datasets import load_breast_cancer

    import jaxsvm

    x, y = load_breast_cancer(return_X_y=True)
    for loss in ("hinge", "squared_hinge"):
        make = {"hinge": jaxsvm.hinge_problem, "squared_hinge": jaxsvm.svm_problem}[loss]
        problem = make(jaxsvm.gram(jaxsvm.kernels.Polynomial(3), x), 2 * y - 1)
        yield f"unscaled cubic, {loss}", lambda p=problem: one(jaxsvm.fit(p))
    x = RNG.normal(size=(60, 4)) * [1, 10, 100, 400]
    problem = jaxsvm.hinge_problem(jaxsvm.gram(jaxsvm.kernels.Polynomial(5), x), np.where(x[:, 0] > 0, 1, -1))
    yield "degree 5, columns to 400", lambda: one(jaxsvm.fit(problem))


def one(fit):
    return f"{fit.status.name}, {int(fit.steps)} steps, gap {float(fit.certificate.relative_gap):.0e}"


TASKS = (linear_text, linear_wide, decisions, sampled, rules, rule_on_a_linear_path, joins, coreset_sizes, hopeless)


def main(names):
    for task in TASKS:
        if names and task.__name__ not in names:
            continue
        if len(names) != 1:
            subprocess.run([sys.executable, "-W", "ignore", __file__, task.__name__], check=False)
            continue
        for name, call in task():
            times = []
            for _ in range(2):
                wall, cpu = time.perf_counter(), time.process_time()
                try:
                    what = call()
                except Exception as error:  # noqa: BLE001 - a line of the table
                    what = f"{type(error).__name__}: {error}"[:150]
                times.append((round(time.perf_counter() - wall, 2), round(time.process_time() - cpu, 2)))
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            print(f"{name:45} first {times[0]}, then {times[1]} s (CPU), {memory} MiB  {what}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
