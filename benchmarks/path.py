"""A regularisation path beside loops of scikit-learn's SVC and AOCL's: same data, same run, judged in float64.

Usage: python benchmarks/path.py [--n 10000] [--values 64] [--rounds 3] [--tol 1e-4] [--peers aocl svc] [--json FILE]
       python benchmarks/path.py --growth      (cost against the number of values; writes results/path_growth.png)
       python benchmarks/path.py --data adult  (a9a from ../shared/data)
       python benchmarks/path.py --data usps --loss hinge --bias free   (sets and widths as in working_sets.py)

Time is wall time of one path from the points to certified fits: Gram included, compilation apart (the first call).
A loop of peers is timed on `--sample` of the values, evenly spread, and scaled up; `--sample 0` times all. Rounds take
turns, so that a slow spell of the machine falls on everybody. aoclda (pip install aoclda) wants labels 0 and 1.
"""

import argparse
import json
import pathlib
import statistics
import time

import jax
import numpy as np
from objective import judge
from peers import hinge_gap
from single_fit import data

import jaxsvm
from jaxsvm.kernels import RBF

SHARED = pathlib.Path(__file__).resolve().parents[2] / "shared" / "data"


def adult():
    """a9a: 32,561 x 123, dense float32, and the kernel width of `measured.md`."""
    with np.load(SHARED / "adult.npz") as file:
        from scipy.sparse import csr_matrix

        x = csr_matrix((file["X_data"], file["X_indices"], file["X_indptr"]), shape=tuple(file["X_shape"]))
        return x.toarray().astype(np.float32), file["y"].astype(int), 0.05


def peer_loop(name, x, y, gamma, Cs):
    """Seconds for fits at the values, one by one, with the peer's default tolerance."""
    start = time.perf_counter()
    for C in Cs:
        if name == "svc":
            from sklearn.svm import SVC

            SVC(C=C, gamma=gamma, cache_size=max(200, x.shape[0] ** 2 * 8 / 2**20)).fit(x, y)
        else:
            from aoclda.svm import SVC

            dtype = np.float64 if name == "aocl64" else np.float32
            SVC(C=C, kernel="rbf", gamma=gamma).fit(np.asfortranarray(x, dtype=dtype), (y > 0).astype(dtype))
    return time.perf_counter() - start


def spread(Cs, count):
    """`count` of the values, evenly spread with both ends; all for 0."""
    return Cs if not 0 < count < len(Cs) else Cs[np.linspace(0, len(Cs) - 1, count).round().astype(int)]


def ours(x, y, gamma, Cs, options):
    start = time.perf_counter()
    gram = jaxsvm.gram(RBF(gamma=gamma), x)
    make = jaxsvm.svm_problem if options.loss == "squared" else jaxsvm.hinge_problem
    path = jax.block_until_ready(jaxsvm.solve_path(make(gram, y, bias=options.bias), Cs, tol=options.tol))
    return time.perf_counter() - start, path


def judged_gap(x, y, path, place, C, gamma, options):
    """The relative gap of one value in float64, from the points: the primal of the decision function that is returned.

    Of a hinge its coefficients are the dual point too: a w beside it
    (`jaxsvm.problems.certificates.corrections`) is not far.
    """
    if options.loss == "squared":
        return judge(x, y, path.alphas[place], C, gamma)["gap"]
    coefficients = np.asarray(path.fits.dual_coef[place], np.float64)
    support = np.flatnonzero(coefficients)
    return hinge_gap(x, y, C, support, coefficients[support], gamma)


def compare(options):
    if options.data == "adult":
        if not (SHARED / "adult.npz").exists():
            print(f"skipped: {SHARED / 'adult.npz'} is absent")
            return None
        x, y, gamma = adult()
    elif options.data == "synthetic":
        x, y, *_ = data(options.n)
        gamma = 1 / x.shape[1]
    else:
        from working_sets import load

        loaded = load(options.data, 12_000)
        if loaded is None:
            print(f"skipped: {options.data} is absent from {SHARED}")
            return None
        x, y, gamma = loaded
    Cs = np.logspace(*np.log10(options.range), options.values)
    sample = spread(Cs, options.sample)
    first, _ = ours(x, y, gamma, Cs, options)
    seconds, peers = [], {name: [] for name in options.peers}
    for _ in range(options.rounds):
        took, path = ours(x, y, gamma, Cs, options)
        seconds.append(took)
        for name in options.peers:
            peers[name].append(peer_loop(name, x, y, gamma, sample) * len(Cs) / len(sample))
    certified = np.asarray(path.certificate.relative_gap)
    judged = [judged_gap(x, y, path, i, C, gamma, options) for i, C in enumerate(Cs)] if options.judge else []
    took = statistics.median(seconds)
    row = {
        "data": options.data, "n": x.shape[0], "values": len(Cs), "tol": options.tol, "seconds": took,
        "fastest": min(seconds), "first_call": first, "certified": float(certified.max()),
        "float64": max(judged, default=None), "status": sorted(set(np.atleast_1d(path.status.name).tolist())),
    }  # fmt: skip
    print(
        f"{options.data} n = {x.shape[0]}, {len(Cs)} values of C: {took:.2f} s (fastest {min(seconds):.2f}; first call "
        f"{first:.1f} s), {', '.join(row['status'])}, largest gap {certified.max():.2e} certified, "
        f"{row['float64'] and format(row['float64'], '.2e')} in float64"
    )
    for name, times in peers.items():
        ratios = [theirs / mine for theirs, mine in zip(times, seconds, strict=True)]
        row[name] = {"seconds": statistics.median(times), "ratio": statistics.median(ratios), "ratios": ratios}
        print(
            f"  {name}: {statistics.median(times):.1f} s ({len(sample)} of {len(Cs)} timed, scaled): "
            f"x{statistics.median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f})"
        )
    return row


def growth(options):
    """Cost against the number of values, Gram apart: it is the same for all."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    x, y, *_ = data(options.n)
    gram = jax.block_until_ready(jaxsvm.gram(RBF(gamma=1 / x.shape[1]), x, store=True))
    counts, rows = [1, 4, 16, 64, 256], []
    times = {count: [] for count in counts}
    for attempt in range(options.rounds + 1):  # the first round compiles
        for count in counts:
            Cs = np.logspace(-2, 3, count) if count > 1 else np.array([1.0])
            start = time.perf_counter()
            path = jax.block_until_ready(jaxsvm.solve_path(jaxsvm.svm_problem(gram, y), Cs, tol=options.tol))
            if attempt:
                times[count].append(time.perf_counter() - start)
            assert float(path.certificate.relative_gap.max()) <= options.tol
    for count in counts:
        rows.append({"values": count, "seconds": statistics.median(times[count])})
        print(f"{count:4d} values: {rows[-1]['seconds']:.2f} s")
    ratios = [many / few for many, few in zip(times[256], times[64], strict=True)]
    print(f"256 over 64, same round: x{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    figure, axis = plt.subplots(figsize=(5, 3.5))
    axis.loglog(counts, [row["seconds"] for row in rows], "o-", label="jaxsvm.solve_path")
    axis.loglog(counts, [rows[0]["seconds"] * count for count in counts], "--", label="one fit after the other")
    axis.set(xlabel="values of C from 1e-2 to 1e3", ylabel="seconds", title=f"n = {options.n}, gap <= {options.tol:g}")
    axis.legend()
    figure.tight_layout()
    figure.savefig(pathlib.Path(__file__).parent / "results" / "path_growth.png", dpi=120)
    return {"n": options.n, "rows": rows, "ratio_256_64": ratios}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=10_000)
    parser.add_argument("--values", type=int, default=64)
    parser.add_argument("--range", type=float, nargs=2, default=[1e-2, 1e3])
    parser.add_argument("--tol", type=float, default=1e-4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sample", type=int, default=8)
    parser.add_argument("--peers", nargs="*", default=["aocl", "svc"], choices=["aocl", "aocl64", "svc"])
    parser.add_argument("--judge", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--data", default="synthetic", help="synthetic, adult, or a set of working_sets.py")
    parser.add_argument("--loss", default="squared", choices=["squared", "hinge"])
    parser.add_argument("--bias", default="regularized", choices=["regularized", "free"])
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--json")
    options = parser.parse_args()
    if options.judge and options.loss == "hinge" and options.bias != "free":
        parser.error("hinge paths are judged with a free bias only: --bias free, or --no-judge")
    row = growth(options) if options.growth else compare(options)
    if options.json and row:
        with open(options.json, "w") as file:
            json.dump(row, file, indent=1)


if __name__ == "__main__":
    main()
