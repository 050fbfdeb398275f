"""The same rows in five places: seconds, peak memory and objective of designs.fit, beside scikit-learn.

    python benchmarks/anywhere.py [--rows 3000000] [--rank 256] [--places memory mesh dask files join] [--peers]
    python benchmarks/anywhere.py --large 20000000 --features 50        # files alone, larger than memory

The rows are those of susy (30,000 x 18), repeated with noise, as one table joined with one of labels for the join. Each
place runs in a process of its own. Objectives are judged in float64 over all rows. `--large` writes files of random
rows, fits the hinge to a certified 1e-4, and prints seconds a pass beside those of reading alone.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

DATA = Path(__file__).resolve().parent.parent.parent / "shared" / "data"
PLACES = ("memory", "mesh", "dask", "files", "join")
PER_FILE = 500_000


def rows_of(many):
    """Rows of susy, repeated with noise: x (n, 18) float32 and signs."""
    stored = np.load(DATA / "susy_30k.npz")
    x, y = stored["X"].astype(np.float32), np.where(stored["y"] > 0, 1, -1).astype(np.int8)
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    rng = np.random.default_rng(0)
    times = -(-many // len(x))
    parts = [x + 0.05 * rng.standard_normal(x.shape, np.float32) for _ in range(times)]
    return np.concatenate(parts)[:many], np.tile(y, times)[:many]


def written(x, y, folder, first=0):
    """Write rows as Parquet files."""
    import pyarrow as pa
    from pyarrow import parquet

    for start in range(0, len(y), PER_FILE):
        part = slice(start, start + PER_FILE)
        columns = {f"c{j}": x[part, j] for j in range(x.shape[1])} | {"label": y[part]}
        parquet.write_table(pa.table(columns), folder / f"part-{first + start // PER_FILE:04}.parquet")


def design_in(place, folder, many):
    """The rows in a place."""
    import jax

    from jaxsvm import designs, relational

    if place == "files":
        return designs.from_files(sorted(folder.glob("*.parquet")), label="label")
    x, y = rows_of(many)
    if place == "memory":
        return designs.from_arrays(x, y)
    if place == "mesh":
        return designs.from_arrays(x, y, mesh=jax.make_mesh((len(jax.devices()),), ("rows",)))
    if place == "dask":
        import dask.array as da

        return designs.from_dask((da.from_array(x, chunks=(300_000, 18)), da.from_array(y, chunks=300_000)))
    import pyarrow as pa

    key = np.arange(len(y))
    facts = pa.table({f"c{j}": x[:, j] for j in range(9)} | {"key": key, "label": y})
    more = pa.table({f"c{j}": x[:, j] for j in range(9, 18)} | {"key": key})
    return relational.design(relational.Join({"facts": facts, "more": more}, ("facts", "label")))


def child(options):
    """Fit in one place; print what was measured as JSON."""
    from jaxsvm import designs
    from jaxsvm.kernels import RBF

    folder, place = Path(options.folder), options.child
    started = time.perf_counter()
    rows = design_in(place, folder, options.rows)
    ready = time.perf_counter() - started
    found = {"place": place, "ready": ready}
    for name in ("linear", "nystroem") if options.rank else ("linear",):
        used = designs.nystroem(rows, RBF(0.05), options.rank) if name == "nystroem" else rows
        started = time.perf_counter()
        fit = designs.fit(used, 1.0, bias="free", tol=1e-4)
        seconds = time.perf_counter() - started
        P, _, gap = (float(part) for part in fit.certificate)
        found[name] = {"seconds": seconds, "passes": fit.passes, "P": P, "gap": gap, "coef": fit.coef.tolist()}
    found["GiB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps(found))


def peer(options):
    """Fit by scikit-learn's linear SVMs; print seconds and the objective, judged here."""
    from sklearn.linear_model import SGDClassifier
    from sklearn.svm import LinearSVC

    x, y = rows_of(options.rows)
    n = len(y)
    models = {
        "LinearSVC(hinge)": LinearSVC(loss="hinge", C=1.0, max_iter=20, intercept_scaling=1.0),
        "SGDClassifier": SGDClassifier(alpha=1 / n, max_iter=10, tol=None),
    }
    for name, model in models.items():
        started = time.perf_counter()
        model.fit(x, y)
        seconds = time.perf_counter() - started
        w, b = model.coef_[0].astype(float), float(model.intercept_[0])
        P = w @ w / 2 + np.maximum(1 - y * (x @ w + b), 0).sum()
        print(f"{name:18} {seconds:7.1f} s, objective {P:.8g}", flush=True)


def places(options):
    """Print a line for each place."""
    if not (DATA / "susy_30k.npz").exists():
        print("skipped: susy_30k.npz is absent")
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        written(*rows_of(options.rows), Path(folder))
        first = {}
        for place in options.places:
            flags = os.environ | ({"XLA_FLAGS": "--xla_force_host_platform_device_count=2"} if place == "mesh" else {})
            command = [sys.executable, __file__, "--child", place, "--folder", folder]
            command += ["--rows", str(options.rows), "--rank", str(options.rank)]
            done = subprocess.run(command, env=flags, capture_output=True, text=True, check=False)
            if done.returncode:
                print(f"{place}: failed\n{done.stderr[-2000:]}")
                continue
            found = json.loads(done.stdout.splitlines()[-1])
            said = f"{place:7} ready {found['ready']:6.1f} s, peak {found['GiB']:.1f} GiB"
            for name in ("linear", "nystroem"):
                if name in found:
                    of, coef = found[name], np.asarray(found[name]["coef"])
                    off = float(np.abs(coef - first.setdefault(name, coef)).max()) if place != "join" else np.nan
                    said += (
                        f"; {name} {of['seconds']:6.1f} s, {of['passes']} passes, P {of['P']:.8g}, gap {of['gap']:.1e}"
                    )
                    said += f", coef off by {off:.1e}"
            print(said, flush=True)
    if options.peers:
        peer(options)


def large(options):
    """Fit files larger than memory, and read them without any arithmetic."""
    from jaxsvm import designs

    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder, rng, d = Path(name), np.random.default_rng(0), options.features
        w = rng.standard_normal(d).astype(np.float32) / np.sqrt(d)
        for first in range(0, options.large, PER_FILE):
            x = rng.standard_normal((min(PER_FILE, options.large - first), d), np.float32)
            y = np.where(x @ w + 0.5 * rng.standard_normal(len(x), np.float32) > 0, 1, -1).astype(np.int8)
            written(x, y, folder, first // PER_FILE)
        del x, y
        paths = sorted(folder.glob("*.parquet"))
        print(f"{options.large} x {d}: {sum(path.stat().st_size for path in paths) / 2**30:.2f} GiB", flush=True)
        started = time.perf_counter()
        rows = designs.from_files(paths, label="label")
        print(f"first pass (counts, labels, moments) {time.perf_counter() - started:.1f} s", flush=True)
        started = time.perf_counter()
        for chunk in rows.chunks():
            del chunk
        reading = time.perf_counter() - started
        fit = designs.fit(rows, 1.0 / options.large * 1e3, bias="free", tol=1e-4)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(
            f"{fit}\n{fit.seconds:.1f} s, {fit.seconds / fit.passes:.1f} s a pass, reading alone {reading:.1f} s a pass"
        )
        print(f"peak memory {peak:.2f} GiB", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--rank", type=int, default=256, help="Nystroem features; 0 for none")
    parser.add_argument("--places", nargs="+", default=list(PLACES), choices=PLACES)
    parser.add_argument("--peers", action="store_true", help="scikit-learn too")
    parser.add_argument("--large", type=int, default=0, help="rows of files larger than memory")
    parser.add_argument("--features", type=int, default=50)
    parser.add_argument("--folder", default=None, help="where files are written")
    parser.add_argument("--child", default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options)
    elif options.large:
        large(options)
    else:
        places(options)


if __name__ == "__main__":
    main()
