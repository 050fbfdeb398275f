"""Joins that are never formed: against a solver on the materialised join, at scale, in N, table size and eps.

    python benchmarks/relational.py flights        # must show 2: nycflights13, our interval and LIBLINEAR's objective
    python benchmarks/relational.py scale          # must show 3: N = 2e10 and over 1e12: seconds a pseudo-gradient
    python benchmarks/relational.py cost           # must show 4: against N, table size and eps
    python benchmarks/relational.py breakeven      # must show 5: DuckDB materialises, scikit-learn trains, and we
    python benchmarks/relational.py knapsack       # must show 6: the counting-knapsack gadget

Seconds are wall and CPU of this process; memory is the peak of the resident set. Figures and pictures go to
benchmarks/results/relational_*.
"""

import argparse
import json
import os
import resource
import time
from functools import partial
from pathlib import Path

import jax
import numpy as np

from jaxsvm import relational
from jaxsvm.relational.gradient.engine import MergeEngine, pseudo_gradient
from jaxsvm.relational.gradient.score_grid import GridEngine
from jaxsvm.relational.gradient.sketch import SketchEngine
from jaxsvm.relational.schema.join import prepared

RESULTS = Path(__file__).resolve().parent / "results"
FLIGHTS = Path(__file__).resolve().parent.parent.parent / "shared" / "data" / "relational" / "nycflights13"
KEYS = {
    ("flights", "planes"): "tailnum",
    ("flights", "weather"): ["origin", "time_hour"],
    ("flights", "airports"): {"dest": "faa"},
    ("flights", "airlines"): "carrier",
}
FEATURES = {
    "flights": ["dep_delay", "distance", "hour", "month", "origin"],
    "planes": ["year", "seats", "engines", "engine"],
    "weather": ["temp", "humid", "wind_speed", "precip", "visib", "pressure"],
    "airports": ["lat", "lon", "alt"],
    "airlines": ["carrier"],
}


def peak():
    """The largest resident set so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def timed(work, times=1):
    """The result, and the least wall and CPU seconds."""
    best = (np.inf, np.inf)
    for _ in range(times):
        wall, cpu = time.monotonic(), time.process_time()
        out = work()
        best = min(best, (time.monotonic() - wall, time.process_time() - cpu))
    return out, *best


def path(m, n, keys, d=3, seed=0, labels_at=None):
    """A path of m tables of n rows with so many keys an edge: `N = n^m / keys^(m - 1)`, about."""
    rng = np.random.default_rng(seed)
    labels_at = m // 2 if labels_at is None else labels_at
    tables = {}
    for i in range(m):
        table = {f"k{e}": rng.integers(0, keys, n) for e in (i - 1, i) if 0 <= e < m - 1}
        table |= {f"x{i}{k}": rng.uniform(-1, 1, n) for k in range(d)}
        if i == labels_at:
            table["y"] = np.where(table[f"x{i}0"] + 0.5 * rng.normal(size=n) > 0, 1, -1)
        tables[f"t{i}"] = table
    return relational.Join(tables, (f"t{labels_at}", "y"))


def flights(lams):
    import duckdb
    from sklearn.svm import LinearSVC

    db = duckdb.connect()
    for name in ("flights", "weather", "planes", "airports", "airlines"):
        db.execute(f"CREATE VIEW {name} AS SELECT * FROM read_csv('{FLIGHTS}/{name}.csv.gz', nullstr=['NA', ''])")
    db.execute("CREATE TABLE late AS SELECT *, (arr_delay >= 15)::INT AS late FROM flights WHERE arr_delay IS NOT NULL")
    sources = {name: name for name in ("weather", "planes", "airports", "airlines")} | {"flights": "late"}
    join, wall, cpu = timed(lambda: relational.from_database(
        db, sources, ("flights", "late"), keys=KEYS, features=FEATURES, missing="impute"))  # fmt: skip
    print(f"{join}\n  read and reduced in {wall:.1f} s (CPU {cpu:.1f})", flush=True)
    for lam in lams:
        fit, wall, cpu = timed(lambda lam=lam: relational.fit(join, lam, scale="standard", tol=3e-4, max_steps=300))
        x, y, _ = fit.join.materialise()
        F = np.maximum(1 - y * (x @ fit.beta), 0).mean() + lam * fit.beta @ fit.beta
        peer = LinearSVC(loss="hinge", C=1 / (2 * lam * len(y)), fit_intercept=False, tol=1e-5, max_iter=400, dual=True)
        _, wall_peer, cpu_peer = timed(lambda x=x, y=y, peer=peer: peer.fit(x, y))
        w = peer.coef_[0]
        F_peer = np.maximum(1 - y * (x @ w), 0).mean() + lam * w @ w
        D, P = float(fit.certificate.dual), float(fit.certificate.primal)
        inside = D - 1e-12 <= F <= P + 1e-12
        print(f"lam {lam:g}: {fit}")
        print(f"  F ours {F:.7f} (in [D, P]: {inside}), LIBLINEAR's {F_peer:.7f} (>= D: {F_peer >= D}), ", end="")
        print(f"(ours - theirs) / theirs {F / F_peer - 1:+.1e}; seconds (CPU) ours {wall:.1f} ({cpu:.1f}), ", end="")
        print(f"LIBLINEAR {wall_peer:.1f} ({cpu_peer:.1f})", flush=True)


def scale(sketch=True):
    for m, n, keys in ((3, 20_000, 20), (5, 100_000, 1000)):
        join, wall, cpu = timed(lambda m=m, n=n, keys=keys: path(m, n, keys))
        scaled = prepared(join, "max", True)
        beta = np.random.default_rng(1).normal(size=scaled.d) * 0.6
        print(f"{m} tables of {n} rows, {keys} keys an edge: N = {join.size:.3g} (made in {wall:.1f} s)", flush=True)
        engines = [("grid", GridEngine(scaled.tree))]
        if m == 3:
            engines.append(("merge", MergeEngine(scaled.tree)))
        if sketch:
            engines.append(("sketch eps 0.1", SketchEngine(scaled.tree, 0.1)))
        for name, engine in engines:
            work = partial(pseudo_gradient, scaled, beta, 0.01, 0.1, engine=engine)
            found, wall, cpu = timed(work, 3)
            print(
                f"  {name:15} {wall:8.2f} s (CPU {cpu:.2f}), F {found.objective:.6f}, peak {peak():.0f} MiB", flush=True
            )
        fit, wall, cpu = timed(lambda join=join: relational.fit(join, 0.01, scale="max", tol=1e-9, max_steps=50))
        D, P = float(fit.certificate.dual), float(fit.certificate.primal)
        first = next((k for k, (low, high, _) in enumerate(fit.history) if high - low < 1e-3 * high), None)
        print(f"  fit, {fit.steps} steps: [{D:.6f}, {P:.6f}], width {P - D:.1e} ({(P - D) / P:.1e}), ", end="")
        print(f"{wall:.1f} s (CPU {cpu:.1f}); 1e-3 after {first} steps; {fit.engine}", flush=True)


def cost():
    def seconds(join, engine):
        beta = np.random.default_rng(1).normal(size=join.d)
        work = partial(pseudo_gradient, join, beta, 0.01, engine=engine)
        work()
        return timed(work, 5)[2]

    results = {}
    for name, make in (("grid", GridEngine), ("sketch", partial(SketchEngine, eps=0.1))):
        by_N = []
        for keys in (200, 63, 20):
            join = path(3, 10_000, keys)
            by_N.append((join.size, seconds(join, make(join.tree))))
        by_n = []
        for n in (2500, 5000, 10_000, 20_000, 40_000):
            join = path(3, n, max(n // 500, 2))
            by_n.append((n, seconds(join, make(join.tree))))
        slope = float(np.polyfit(*np.log(np.array(by_n)).T, 1)[0])
        results[name] = {"N": by_N, "n": by_n, "ratio": by_N[-1][1] / by_N[0][1], "slope": slope}
        print(f"{name}: N -> CPU s {[(f'{N:.1e}', round(t, 3)) for N, t in by_N]}, ratio {results[name]['ratio']:.2f}")
        print(f"{name}: n -> CPU s {[(n, round(t, 3)) for n, t in by_n]}, log-log slope {slope:.2f}", flush=True)
    join, by_eps = path(3, 10_000, 20), []
    for eps in (0.5, 0.3, 0.2, 0.1, 0.05, 0.02):
        by_eps.append((eps, seconds(join, SketchEngine(join.tree, eps))))
    results["sketch"]["eps"] = by_eps
    print(f"sketch: eps -> CPU s {[(eps, round(t, 3)) for eps, t in by_eps]}", flush=True)
    (RESULTS / "relational_cost.json").write_text(json.dumps(results, indent=1) + "\n")
    plot_cost()


def plot_cost():
    results, plt = json.loads((RESULTS / "relational_cost.json").read_text()), pyplot()
    by_eps = results["sketch"]["eps"]
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained", sharey=True)
    for name, parts in results.items():
        for axis, part, what in zip(axes, ("N", "n"), ("rows of the join, N", "rows of a table, n"), strict=False):
            axis.loglog(*zip(*parts[part], strict=True), "o-", label=name)
            axis.set_xlabel(what)
    n = np.array([point[0] for point in results["grid"]["n"]])
    axes[1].loglog(n, results["grid"]["n"][0][1] * (n / n[0]) ** 1.2, ":", color="gray", label="slope 1.2")
    axes[2].loglog(*zip(*by_eps, strict=True), "o-", color="C1", label="sketch")
    axes[2].set_xlabel("accuracy of counts, eps")
    axes[0].set_ylabel("CPU seconds a pseudo-gradient")
    for axis, title in zip(axes, ("three tables of 10,000 rows", "500 rows a key", "N = 2.5e9"), strict=True):
        axis.set_title(title, fontsize=10)
        axis.grid(alpha=0.3)
        axis.legend()
    for axis, at in ((axes[1], n), (axes[2], [eps for eps, _ in by_eps])):
        axis.minorticks_off()
        axis.set_xticks(at, [f"{value:g}" for value in at])
    figure.savefig(RESULTS / "relational_cost.png", dpi=110)


def pyplot():
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    return plt


BREAK_EVEN_ROWS = 50_000
PEERS = {"sgd": "DuckDB + SGDClassifier", "svc": "DuckDB + LinearSVC"}
LARGEST = {"sgd": 40e6, "svc": 6e6, "formed": 8e6, "merge": np.inf, "grid": np.inf, "sketch": np.inf,
           "auto": np.inf}  # fmt: skip
"""Rows of the join up to which each is run: what fits in 8 GiB, for LinearSVC what it does in minutes."""


def breakeven(only=None):
    """Each run in its own process, for its peak of memory; `only` some anew, beside the ones that are there."""
    import subprocess
    import sys

    file, rows = RESULTS / "relational_breakeven.json", []
    if only:
        rows = [row for row in json.loads(file.read_text()) if row["who"] not in only]
    for keys in (50_000, 5000, 1250, 250, 66, 8, 1):
        for who, most in LARGEST.items():
            if BREAK_EVEN_ROWS**2 / keys > most or (only and who not in only):
                continue
            command = [sys.executable, __file__, "one", "--who", who, "--keys", str(keys)]
            out = subprocess.run(command, capture_output=True, text=True, check=False)
            if out.returncode:
                print(f"{who}, {keys} keys: ended with {out.returncode}: {out.stderr.strip()[-200:]}", flush=True)
                continue
            found = json.loads(out.stdout.strip().splitlines()[-1])
            rows.append({"who": who, "keys": keys} | found)
            print(rows[-1], flush=True)
            rows.sort(key=lambda row: (row["N"], row["who"]))
            file.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
    plot_breakeven()


def plot_breakeven():
    rows, plt = json.loads((RESULTS / "relational_breakeven.json").read_text()), pyplot()
    figure, axes = plt.subplots(1, 3, figsize=(13, 3.8), layout="constrained")
    for who in LARGEST:
        points = [row for row in rows if row["who"] == who]
        style = "s--" if who in PEERS else "o-"
        for axis, what in zip(axes, ("seconds", "cpu", "MiB"), strict=True):
            axis.loglog([p["N"] for p in points], [p[what] for p in points], style, label=PEERS.get(who, who), ms=4)
    for axis, what in zip(axes, ("wall seconds, read to fit", "CPU seconds", "MiB above the start"), strict=True):
        axis.set_ylabel(what)
        axis.set_xlabel(f"rows of the join of two tables of {BREAK_EVEN_ROWS}")
        axis.grid(alpha=0.3)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    axes[0].set_title("sketch beyond 1e7 rows: 40 steps, to a gap of 4 %; others to 1e-3", fontsize=8)
    figure.savefig(RESULTS / "relational_breakeven.png", dpi=110)


def one(who, keys, n=BREAK_EVEN_ROWS, lam=1e-2):
    """Two tables that join many to many, `n^2 / keys` rows."""
    import duckdb
    import pyarrow as pa
    from sklearn.linear_model import SGDClassifier
    from sklearn.svm import LinearSVC

    rng = np.random.default_rng(0)
    a = {"k": rng.integers(0, keys, n), **{f"a{j}": rng.uniform(-1, 1, n) for j in range(5)}}
    b = {"k": rng.integers(0, keys, n), **{f"b{j}": rng.uniform(-1, 1, n) for j in range(5)}}
    a["y"] = np.where(a["a0"] + 0.5 * rng.normal(size=n) > 0, 1, -1)
    db = duckdb.connect()
    for name, table in (("a", a), ("b", b)):
        arrow = pa.table(table)
        db.register(f"{name}_", arrow)
        db.execute(f"CREATE TABLE {name} AS SELECT * FROM {name}_")
        db.unregister(f"{name}_")
    del a, b, table, arrow
    features = [f"{t}{j}" for t in "ab" for j in range(5)]
    small = {"k": np.arange(50) % 7, "y": np.arange(50) % 2, "x": np.arange(50.0)}
    relational.fit(relational.Join({"a": small, "b": {"k": small["k"], "z": small["x"]}}, ("a", "y")), lam, max_steps=2)
    before, started, cpu = peak(), time.monotonic(), time.process_time()
    steps = 0
    if who not in PEERS:
        most = 40 if who == "sketch" else 200  # whose interval cannot end below about eps^2
        fit = relational.fit(
            relational.from_database(db, ["a", "b"], ("a", "y")), lam, engine=who, tol=1e-3, max_steps=most
        )
        N, F, steps = fit.join.size, float(fit.certificate.primal), fit.steps
        gap = float(fit.certificate.relative_gap)
        wall, cpu = time.monotonic() - started, time.process_time() - cpu
        most = peak() - before
    else:
        gap, sql = None, f"SELECT {', '.join(features)}, y FROM a JOIN b USING (k)"
        got = db.sql(sql).fetchnumpy()
        y, x = got.pop("y"), np.empty((len(got["a0"]), len(features)))
        for place, c in enumerate(features):
            x[:, place] = got.pop(c)
        if who == "sgd":
            peer = SGDClassifier(alpha=2 * lam, max_iter=5, tol=None).fit(x, y)
        else:
            peer = LinearSVC(loss="hinge", C=1 / (2 * lam * len(y)), max_iter=100, tol=1e-3).fit(x, y)
        wall, cpu = time.monotonic() - started, time.process_time() - cpu
        most = peak() - before  # what follows judges it
        w = np.append(peer.coef_[0], peer.intercept_)
        hinge = sum(
            np.maximum(1 - y[k : k + 10**6] * (x[k : k + 10**6] @ w[:-1] + w[-1]), 0).sum()
            for k in range(0, len(y), 10**6)
        )
        N, F = len(y), float(hinge / len(y) + lam * w @ w)
    print(json.dumps({"N": float(N), "seconds": round(wall, 3), "cpu": round(cpu, 3), "MiB": round(max(most, 1.0), 1),
                      "F": F, "gap": gap, "steps": steps}))  # fmt: skip


def knapsack(m=30, eps=0.1):
    """The paper's hardness gadget: the sum of Value over active rows is the count of subsets up to a limit, less k."""
    weights = np.random.default_rng(3).integers(1, 1000, m)
    limit = weights.sum() // 3
    ways = np.zeros(limit + 1)  # subsets of each sum, by dynamic programming: exact below 2^53
    ways[0] = 1
    for w in weights:
        ways[w:] += ways[:-w].copy()
    C = int(ways.sum())
    tables = {f"T{i}": {"Key": [1, 1, 0], f"E{i}": [0.0, w / (limit + 0.5), 0.0]} for i, w in enumerate(weights)}
    for k in (C - 1, C, C + 1, C // 2, 2 * C):
        tables["V"] = {"Key": [1, 0, 1], "Value": [1.0, -float(k), 0.0], "y": [1, 1, -1]}
        join = relational.Join(tables, ("V", "y"))
        beta = np.array([0.0 if "Value" in name else 1.0 for name in join.feature_names])
        at = join.feature_names.index("V.Value")
        engine = SketchEngine(join.tree, eps)
        ask = partial(relational.pseudo_gradient, join, beta, 0.0, eps, engine=engine)
        (lower, upper), _, cpu = timed(lambda ask=ask: [ask(mode=mode) for mode in ("lower", "upper")])
        low, high = (-float(join.size) * end[at] for end in reversed(relational.gradient_interval(lower, upper)))
        claim = "no sign is claimed" if low <= 0 <= high else f"the sign is {'+' if low > 0 else '-'}"
        print(f"C - k = {C - k} ({C} of {2**m} subsets) in [{low:.1f}, {high:.1f}]: {claim}; CPU {cpu:.2f} s")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["flights", "scale", "cost", "breakeven", "plot", "knapsack", "one"])
    parser.add_argument("--who", help="of breakeven: some of sgd,svc,formed,rows,merge,grid,sketch,auto, to run anew")
    parser.add_argument("--keys", type=int, default=100)
    parser.add_argument("--lam", type=float, nargs="+", default=[1e-2, 1e-3, 1e-4, 1e-5], help="of flights")
    parser.add_argument("--no-sketch", action="store_true")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "2")
    work = {"flights": lambda: flights(options.lam), "scale": lambda: scale(not options.no_sketch), "cost": cost,
            "breakeven": lambda: breakeven(options.who and options.who.split(",")), "knapsack": knapsack,
            "plot": lambda: (plot_cost(), plot_breakeven()), "one": lambda: one(options.who, options.keys)}  # fmt: skip
    work[options.what]()


if __name__ == "__main__":
    main()
