"""The pictures of docs/papers/frank_wolfe.md, from what `frank_wolfe.py` keeps; the paper's points are hollow.

python benchmarks/papers/frank_wolfe_figures.py
"""

import json

import matplotlib.pyplot as plt
import numpy as np
from frank_wolfe import PRINTED
from matplotlib.ticker import NullFormatter
from protocol import RESULTS, ROOT

import jaxsvm
from jaxsvm.kernels import Linear

COLOURS = {"FW": "tab:orange", "MFW": "tab:green", "CVM": "tab:blue", "smo": "tab:red"}
plt.rcParams |= {"font.size": 9}


def saved(figure, name):
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis) if axis.get_scale() == "log"):
        axis.set_minor_formatter(NullFormatter())
    figure.savefig(ROOT / "docs" / "papers" / f"frank_wolfe_{name}.png", dpi=80, bbox_inches="tight")


def ball(x):
    """Centre and radius of the exact ball."""
    problem = jaxsvm.meb_problem(jaxsvm.gram(Linear(), x))
    found = jaxsvm.ball(jaxsvm.fit(problem, jaxsvm.FrankWolfe(tol=1e-5)), problem)
    return np.asarray(found.centre(x)), float(found.radius)


def balls():
    """Figure 1: the ball of a core, and what Badoiu-Clarkson and FW make of it."""
    x = np.random.default_rng(3).normal(size=(12, 2))
    centre, r = ball(x[:3])
    far = ((x - centre) ** 2).sum(1).argmax()
    excess = ((x[far] - centre) ** 2).sum() / r**2
    lam, r_fw = (1 - 1 / excess) / 2, r * np.sqrt(1 + (excess - 1) ** 2 / (4 * excess))
    figure, axes = plt.subplots(figsize=(4.5, 4.5))
    axes.plot(*x.T, "k.")
    axes.plot(*x[:3].T, "ks", label="core")
    axes.plot(*x[far], "k^", label="furthest point")
    moved = ((1 - lam) * centre + lam * x[far], r_fw)
    three = {"ball of the core": ("0.5", (centre, r)), "next, FW's r": (COLOURS["FW"], moved)}
    three["next, Badoiu-Clarkson"] = (COLOURS["CVM"], ball(x[[0, 1, 2, far]]))
    for label, (colour, (middle, radius)) in three.items():
        axes.add_patch(plt.Circle(middle, radius, fill=False, color=colour, label=label))
        axes.plot(*middle, "+", color=colour)
    axes.set(aspect="equal", xlabel="first coordinate", ylabel="second coordinate")
    axes.autoscale_view()
    axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    saved(figure, "balls")


def step_counts(found):
    figure, axes = plt.subplots(figsize=(5, 3.6))
    for key, taken in found["steps"].items():
        name, m, d = key.split()
        alone = (m, d) == ("5000", "20")
        axes.loglog(found["eps"], taken, "o-" if alone else ".-", color=COLOURS[name], alpha=1 if alone else 0.35,
                    label=name if alone else None)  # fmt: skip
    axes.loglog(found["eps"], 1 / np.array(found["eps"]), "k:", label="1 / eps")
    axes.set(xlabel="eps of the stop rule", ylabel="steps to the paper's rule")
    axes.legend()
    saved(figure, "steps")


def web(rows):
    """Figures 3 and 4: accuracy and speed-up against m, ours filled (with each key), the paper's hollow."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.4))
    m = [row["m"] for row in rows.values()]
    theirs = [2477, 24692, 49749]
    middle = {name: [sorted(row[name], key=lambda one: one[2])[len(row[name]) // 2] for row in rows.values()]
              for name in ("CVM", "FW", "MFW")}  # fmt: skip
    for k, (name, runs) in enumerate(middle.items()):
        left.semilogx(m, [100 * one[0] for one in runs], "o-", color=COLOURS[name], label=f"{name}, one try")
        left.semilogx(theirs, [PRINTED[label][k] for label in rows], "o--", mfc="none", color=COLOURS[name])
        if name != "CVM":
            ours = [cvm[2] / one[2] for cvm, one in zip(middle["CVM"], runs, strict=True)]
            paper = [PRINTED[label][3] / PRINTED[label][3 + k] for label in rows]
            right.loglog(m, ours, "o-", color=COLOURS[name], label=f"{name}: kernel values")
            right.loglog(theirs, paper, "o--", mfc="none", color=COLOURS[name], label=f"{name}: the paper's seconds")
    left.semilogx(m, [100 * row["to 0.01"][0] for row in rows.values()], "k^-", label="default, gap .01")
    left.semilogx(m, [100 * row["majority"] for row in rows.values()], "k:", label="one label for all")
    left.set(xlabel="training points m (Web)", ylabel="test accuracy, %")
    right.set(xlabel="training points m (Web)", ylabel="CVM's work over the method's")
    for axes in (left, right):
        axes.set_xticks([2_500, 10_000, 25_000, 50_000], ["2,500", "10,000", "25,000", "50,000"])
    right.set(ylim=(0.3, 200))
    left.legend(fontsize=7)
    right.legend(fontsize=7, loc="lower left")
    figure.tight_layout()
    saved(figure, "web")


def penalties(found):
    """Figures 7 and 8: work against C, with the sampled stop and to a certified gap."""
    figure, axes = plt.subplots(1, 3, figsize=(9, 3.2))
    for name in ("FW", "MFW", "CVM"):
        axes[0].loglog(found["C"], found["values"][name], "o-", color=COLOURS[name], label=name)
        axes[1].loglog(found["C"], found["gaps"][name], "o-", color=COLOURS[name])
    for name, taken in found["full"].items():
        reached = np.where(np.array(taken) == 10**6, np.nan, taken)
        axes[2].loglog(found["C"], reached, "o-", color=COLOURS[name], label=name)
    labels = ("kernel values of one try", "gap where it stopped", "steps to a gap of .01")
    for axis, label in zip(axes, labels, strict=True):
        axis.set(xlabel="C", ylabel=label)
    axes[2].set_yticks([2_000, 10_000, 50_000], ["2,000", "10,000", "50,000"])
    axes[0].legend(fontsize=7)
    axes[2].legend(fontsize=7)
    figure.tight_layout()
    saved(figure, "penalties")


def quality(tables):
    """The one picture: accuracy against seconds on w7a."""
    figure, axes = plt.subplots(figsize=(5, 3.4))
    row = tables["w7a"]
    for name in ("FW", "MFW", "CVM"):
        axes.semilogx([run[1] for run in row[name]], [100 * run[0] for run in row[name]], "o", color=COLOURS[name],
                      label=f"{name}, one try")  # fmt: skip
    to = [row[key] for key in ("to 1", "to 0.1", "to 0.01")]
    axes.semilogx([run[1] for run in to], [100 * run[0] for run in to], "k^-", label="default: gaps 1, .1, .01")
    axes.axhline(100 * row["majority"], color="k", ls=":", label="one label for all")
    axes.set(xlabel="CPU seconds (w7a)", ylabel="test accuracy, %")
    axes.set_xticks([0.2, 0.5, 1, 2, 5], ["0.2", "0.5", "1", "2", "5"])
    axes.legend(fontsize=7)
    saved(figure, "quality")


if __name__ == "__main__":
    kept = {part: of["figures"] for part, of in json.loads((RESULTS / "frank_wolfe.json").read_text()).items()}
    balls()
    step_counts(kept["steps"])
    web(kept["web"])
    penalties(kept["penalties"])
    quality(kept["web"])
