"""The first call in a fresh process: every compiled program with its time to trace, lower and compile; running apart.

    python benchmarks/first_call.py [--what fit hinge path cli iris ...] [--n 2000] [--list 12] [--json FILE]

Each case runs in a process of its own: cold, with an empty store of programs, and "next", with what that process has
stored; "none" stores nothing (`JAXSVM_CACHE=off`). Import is what `import jaxsvm` takes, jax included, and jax alone
beside it; the first call comes after it. `again` is a second call with the same shapes: the difference is the price of
being first. CPU seconds are beside wall: the machine may be busy. Programs are compiled beside each other: their
seconds add up to more than the wall's.

The cases: one fit (by the default solver) and a path of 64 values of C, of the squared hinge and of the hinge with a
free bias, on `--n` samples of `single_fit`'s data; `jaxsvm fit` on 280 x 30, everything included, interpreter too;
16 values of C by five folds on breast cancer, `designs.fit` of a CSV file of 20,000 x 20, `relational.fit` of two
tables of 20,000 and 500 rows; estimators, scikit-learn's equal call beside them.
"""

import argparse
import collections
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from time import process_time as cpu

ESTIMATED = ("iris", "cancer", "diabetes", "digits", "LinearSVC", "3000 x 20", "10000 x 50")
CASES = ("fit", "hinge", "path", "hinge path", "cli", "folds", "file", "join", *ESTIMATED)
STAGES = {
    "jaxpr_trace_duration": "trace",
    "jaxpr_to_mlir_module_duration": "lower",
    "backend_compile_duration": "compile",
}


class Programs:
    """What JAX says of its programs while this listens: seconds by stage and name, without what is nested in them."""

    def __init__(self):
        self.seconds = collections.defaultdict(lambda: dict.fromkeys(("count", *STAGES.values()), 0))
        self.spans = collections.defaultdict(list)

    def listen(self):
        from jax import monitoring

        monitoring.register_event_time_span_listener(self.took)

    def took(self, event, start, end, **what):
        stage = STAGES.get(event.rsplit("/", 1)[-1])
        if stage is None:
            return
        spans = self.spans[threading.get_ident()]
        inside = sum(until - begin for begin, until in spans if begin >= start and until <= end)
        spans[:] = [span for span in spans if not (span[0] >= start and span[1] <= end)] + [(start, end)]
        row = self.seconds[what.get("fun_name", "?").removeprefix("jit_").removeprefix("jit(").removesuffix(")")]
        row[stage] += end - start - inside
        row["count"] += stage == "compile"

    def rows(self):
        rows = [{"name": name, **row} for name, row in self.seconds.items()]
        return sorted(rows, key=lambda row: -sum(row[stage] for stage in STAGES.values()))


def timed(call):
    wall, used = time.perf_counter(), cpu()
    call()
    return {"wall": time.perf_counter() - wall, "cpu": cpu() - used}


def estimated(what):
    """Return the fit of an estimator, and scikit-learn's equal one."""
    from sklearn import datasets, svm

    from jaxsvm import estimators

    given = {"iris": "load_iris", "cancer": "load_breast_cancer", "diabetes": "load_diabetes", "digits": "load_digits"}
    name = {"diabetes": "SVR", "LinearSVC": "LinearSVC"}.get(what, "SVC")
    if what in given:
        x, y = getattr(datasets, given[what])(return_X_y=True)
    else:
        n, d = (100_000, 20) if what == "LinearSVC" else map(int, what.split(" x "))
        x, y = datasets.make_classification(n, d, n_informative=d // 2, random_state=0)
    return (lambda: getattr(estimators, name)().fit(x, y)), (lambda: getattr(svm, name)().fit(x, y))


def rows_anywhere(what):
    """Return folds, the fit of a file, or that of a join, each from the beginning."""
    import numpy as np

    import jaxsvm

    rng = np.random.default_rng(0)
    if what == "folds":
        from sklearn import datasets

        from jaxsvm.kernels import RBF

        x, y = datasets.load_breast_cancer(return_X_y=True)
        x, y = (x - x.mean(0)) / x.std(0), 2 * y - 1
        Cs = np.logspace(-2, 3, 16)
        return lambda: jaxsvm.cross_validate(jaxsvm.svm_problem(jaxsvm.gram(RBF(1 / 30), x), y), Cs, folds=5)
    import pandas as pd

    x = rng.normal(size=(20_000, 20)).round(4)
    rows = pd.DataFrame(x, columns=[f"x{j}" for j in range(20)])
    rows["label"] = np.where(x[:, 0] + rng.normal(size=len(x)) > 0, 1, -1)
    if what == "file":
        file = os.path.join(os.environ["XDG_CACHE_HOME"] or tempfile.gettempdir(), "rows.csv")
        rows.to_csv(file, index=False)
        from jaxsvm import designs

        return lambda: designs.fit(designs.from_files(file, label="label"), C=1.0)
    import duckdb

    from jaxsvm import relational

    rows["place"], base = rng.integers(0, 500, len(x)), duckdb.connect()
    heights = pd.DataFrame({"place": np.arange(500), "height": rng.normal(size=500).round(4)})  # noqa: F841 (DuckDB reads it by its name)
    base.sql("CREATE TABLE visits AS SELECT * FROM rows")
    base.sql("CREATE TABLE places AS SELECT * FROM heights")
    join = relational.from_database(base, ["visits", "places"], label=("visits", "label"))
    return lambda: relational.fit(join, C=1.0)


def child(what, n):
    """In the fresh process: prints one JSON object."""
    began = time.perf_counter()
    import jax

    with_jax = time.perf_counter() - began
    import jaxsvm
    from jaxsvm.kernels import RBF

    imported = time.perf_counter() - began
    import numpy as np
    from single_fit import data

    x, y, *_ = data(n)
    jax.numpy.zeros(3).block_until_ready()  # the backend's own start
    programs = Programs()
    programs.listen()

    def call():
        problem = jaxsvm.svm_problem(jaxsvm.gram(RBF(1 / x.shape[1]), x), y, 1.0)
        if what.startswith("hinge"):
            problem = jaxsvm.hinge_problem(problem.gram, y, 1.0, bias="free")
        if what.endswith("path"):
            jax.block_until_ready(jaxsvm.solve_path(problem, np.logspace(-2, 3, 64), tol=1e-3))
        else:
            jax.block_until_ready(jaxsvm.fit(problem, tol=1e-3))

    if what in ("folds", "file", "join"):
        call = rows_anywhere(what)
    theirs = None
    if what in ESTIMATED:
        call, theirs = estimated(what)
    first = timed(call)
    rows = programs.rows()
    found = {"jax": with_jax, "import": imported, "first": first, "again": timed(call), "programs": rows}
    print(json.dumps(found | ({"theirs": timed(theirs)} if theirs else {})))


def command(table):
    """`jaxsvm fit` in this process, with the list of its programs."""
    programs = Programs()
    programs.listen()
    sys.argv = ["jaxsvm", "fit", table, "--json"]
    from jaxsvm.cli import main

    try:
        main()
    finally:
        print(json.dumps({"programs": programs.rows()}), file=sys.stderr)


def measured(what, n, cache):
    """One case, one process; without a cache nothing is stored."""
    environment = os.environ | {"XDG_CACHE_HOME": cache, "JAXSVM_CACHE": "on" if cache else "off"}
    here = [sys.executable, os.path.abspath(__file__)]
    if what != "cli":
        ran = subprocess.run(
            [*here, "--child", what, "--n", str(n)], env=environment, capture_output=True, text=True, check=True
        )
        return json.loads(ran.stdout)
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as table:
        import numpy as np

        rng = np.random.default_rng(0)
        x = rng.normal(size=(280, 30))
        y = np.where(x[:, 0] + x[:, 1] * x[:, 2] + rng.normal(size=280) / 2 > 0, 1, -1)
        np.savetxt(table, np.column_stack([x, y]), delimiter=",", fmt="%.6g")
        table.flush()
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        started = time.perf_counter()
        ran = subprocess.run(
            [*here, "--child", "cli", "--table", table.name],
            check=False,
            env=environment,
            capture_output=True,
            text=True,
        )
        wall = time.perf_counter() - started
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if ran.returncode:
        raise SystemExit(ran.stderr)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"first": {"wall": wall, "cpu": used}, **json.loads(ran.stderr.splitlines()[-1])}


def show(what, state, found, length):
    """One case, for people."""
    first, again = found["first"], found.get("again")
    line = f"{what:10} {state:5} first {first['wall']:6.2f} s (CPU {first['cpu']:6.2f})"
    if again:
        line += f", again {again['wall']:5.2f} s (CPU {again['cpu']:5.2f}); "
        line += f"import {found['import']:.2f} s, jax alone {found['jax']:.2f} s"
    if theirs := found.get("theirs"):
        line += f"; scikit-learn {theirs['wall']:.2f} s (CPU {theirs['cpu']:.2f})"
    count = sum(row["count"] for row in found["programs"])
    totals = {stage: sum(row[stage] for row in found["programs"]) for stage in STAGES.values()}
    print(
        line + f"; {count} programs: " + ", ".join(f"{stage} {total:.2f}" for stage, total in totals.items()),
        flush=True,
    )
    for row in found["programs"][:length]:
        print(
            f"    {row['name'][:44]:44} x{row['count']:<3}"
            + "".join(f"{stage:>9} {row[stage]:6.3f}" for stage in STAGES.values())
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", nargs="*", default=["fit", "path", "cli"], choices=CASES)
    parser.add_argument("--states", nargs="*", default=["cold", "next"], choices=["none", "cold", "next"])
    parser.add_argument("--n", type=int, default=2000)
    parser.add_argument("--list", type=int, default=12)
    parser.add_argument("--json")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--table", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child == "cli":
        return command(options.table)
    if options.child:
        return child(options.child, options.n)
    rows = []
    for what in options.what:
        with tempfile.TemporaryDirectory() as cache:
            for state in options.states:
                found = measured(what, options.n, "" if state == "none" else cache)
                show(what, state, found, options.list)
                rows.append({"what": what, "state": state, "n": options.n, **found})
    if options.json:
        with open(options.json, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
