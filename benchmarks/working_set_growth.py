"""Kernel evaluations as a share of n^2, and seconds against n, of default fits: sets of many kinds, as a picture.

Usage: python benchmarks/working_set_growth.py [--sizes 1000 2000 4000 8000 16000 30000] [--C 1] [--loss hinge]
    [--rounds 2] [--json FILE]

Real sets are those of `working_sets.py`; `blobs` are two normal distributions in 20 dimensions whose distance is set so
that a given share of the samples is support, about the same for all n. Gap 1e-3; compilation apart (one fit more).
Writes `benchmarks/results/working_set_growth.png` beside the JSON. Sets that are not there are skipped with a line.
"""

import argparse
import json
from pathlib import Path

import matplotlib as mpl
import numpy as np
from working_sets import DATA, load, ours

mpl.use("Agg")
import matplotlib.pyplot as plt

RESULTS = Path(__file__).parent / "results" / "working_set_growth.json"
SETS = ("usps", "letter", "mnist", "shuttle", "a9a", "w8a", "ijcnn1", "codrna")
BLOBS = {"blobs 10 %": 4.5, "blobs 25 %": 2.9, "blobs 45 %": 1.9, "blobs 75 %": 0.9}
"""Distance of the two means, by about the share of support that it makes at n = 16,000."""


def points(name, most, seed=0):
    """Points, signs and gamma, at the most so many; None where a file is not there."""
    if name not in BLOBS:
        return load(name, most)
    rng = np.random.default_rng(seed)
    y = np.where(rng.uniform(size=most) < 0.5, 1, -1)
    x = rng.normal(size=(most, 20))
    x[:, 0] += y * BLOBS[name] / 2
    return x.astype(np.float32), y, 1 / 20


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 2000, 4000, 8000, 16000, 30000])
    parser.add_argument("--sets", nargs="+", default=[*SETS, *BLOBS])
    parser.add_argument("--C", type=float, default=1.0)
    parser.add_argument("--gap", type=float, default=1e-3)
    parser.add_argument("--loss", choices=["hinge", "squared"], default="hinge")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", type=Path, default=RESULTS)
    options = parser.parse_args()
    rows = []
    for name in options.sets:
        loaded = points(name, max(options.sizes))
        if loaded is None:
            print(f"{name} is not in {DATA}: skipped", flush=True)
            continue
        x, y, gamma = loaded
        for n in [n for n in options.sizes if n <= len(y)]:
            fits = [
                ours(x[:n], y[:n], options.C, gamma, options.loss, None, options.gap) for _ in range(options.rounds + 1)
            ]
            fit = fits[-1][1]
            rows.append({
                "set": name, "n": n, "C": options.C, "loss": options.loss, "status": fit.status.name,
                "seconds": min(took for took, _ in fits[1:]), "first": fits[0][0], "support": len(fit.support) / n,
                "evaluations": fit.kernel_evaluations / n**2, "solvers": fit.solvers,
            })  # fmt: skip
            print(json.dumps(rows[-1]), flush=True)
            options.json.write_text(json.dumps(rows, indent=1) + "\n")
    figure, axes = plt.subplots(1, 3, figsize=(15, 4.6), layout="constrained")
    for place, name in enumerate(dict.fromkeys(row["set"] for row in rows)):
        of = [row for row in rows if row["set"] == name]
        n = [row["n"] for row in of]
        look = {"color": f"C{place % 10}", "ls": "--" if name in BLOBS else "-", "marker": "o", "ms": 3}
        axes[0].semilogx(n, [row["evaluations"] for row in of], label=name, **look)
        axes[1].loglog(n, [row["seconds"] for row in of], **look)
        axes[2].plot([row["support"] for row in of], [row["evaluations"] for row in of], **look)
    axes[0].set(xlabel="n", ylabel="kernel evaluations / n^2")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", fontsize=8)
    least, most = axes[1].get_xlim()
    grid = np.geomspace(least, most, 9)
    axes[1].loglog(grid, 2e-9 * grid**2, "k:", lw=1, label="n^2")
    axes[1].legend(fontsize=7)
    axes[1].set(xlabel="n", ylabel="seconds to a gap of 1e-3")
    axes[2].set(xlabel="share of support", ylabel="kernel evaluations / n^2")
    figure.suptitle(f"default fits, {options.loss}, C = {options.C:g}")
    figure.savefig(options.json.with_suffix(".png"), dpi=110)


if __name__ == "__main__":
    main()
