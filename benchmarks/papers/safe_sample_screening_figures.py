"""The pictures of docs/papers/safe_sample_screening.md, from what `safe_sample_screening.py` keeps.

python benchmarks/papers/safe_sample_screening_figures.py
"""

import json

import matplotlib.pyplot as plt
import numpy as np
from protocol import RESULTS, ROOT
from safe_sample_screening import KERNELS, RATIOS, clouds

import jaxsvm
from jaxsvm import screening
from jaxsvm.kernels import Linear

COLOURS = {"BT1": "tab:blue", "BT2": "tab:green", "IT": "tab:orange"}
plt.rcParams |= {"font.size": 8}


def saved(figure, name):
    figure.savefig(ROOT / "docs" / "papers" / f"safe_sample_screening_{name}.png", dpi=80, bbox_inches="tight")


def plane():
    """Figure 1: the bounds of the Intersection Test at the points of a grid, as samples of weight 0."""
    (x, y), axis = clouds(0), np.linspace(-6, 6, 121)
    grid = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
    gram = jaxsvm.gram(Linear(), np.r_[x, grid, grid].astype(np.float32), store=False)
    labels, weight = np.r_[y, np.repeat([1, -1], len(grid))], np.r_[np.ones(len(x)), np.zeros(2 * len(grid))]
    problem = jaxsvm.hinge_problem(gram, labels, 10.0, bias="none", sample_weight=weight)
    known = screening.intersection_test(problem, jaxsvm.fit(problem.at(5.0), tol=1e-6), 5.0)
    fit = jaxsvm.fit(problem)
    figure, both = plt.subplots(1, 2, figsize=(7.5, 3.6), sharey=True)
    for axes, label in zip(both, (1, -1), strict=True):
        at = slice(len(x), len(x) + len(grid)) if label == 1 else slice(len(x) + len(grid), None)
        low, high = (np.asarray(part[at]).reshape(121, 121) for part in known[:2])
        axes.contourf(axis, axis, low > 1, [0.5, 1.5], colors=["tab:blue"], alpha=0.25)
        axes.contourf(axis, axis, high < 1, [0.5, 1.5], colors=["tab:orange"], alpha=0.25)
        margins = np.asarray(fit.margins[at]).reshape(121, 121)
        axes.contour(axis, axis, margins, [0, 1], colors="black", linewidths=0.8, linestyles=["solid", "dashed"])
        axes.plot(*x[y == label].T, "k.", markersize=2)
        axes.set(aspect="equal", title=f"class {label:+d}", xlabel="first coordinate")
    saved(figure, "plane")


def panels(found, rows, name, label, draw):
    figure, grid = plt.subplots(len(rows), 4, figsize=(9, 1.8 * len(rows)), sharey=True, layout="constrained")
    for line, key in zip(grid, rows, strict=True):
        for axes, kernel in zip(line, KERNELS, strict=True):
            draw(axes, f"{key} {kernel}", found)
            axes.set_title(f"{key}, {kernel if kernel == 'linear' else 'RBF ' + kernel}", fontsize=8)
            axes.set_ylim(-0.03, 1.03)
    grid[0, 0].legend(fontsize=7)
    figure.supxlabel(label)
    figure.supylabel("rate")
    saved(figure, name)


def of_rule(axes, key, found):
    for rule, colour in COLOURS.items():
        axes.plot(RATIOS, found[f"{key} {rule}"], ".-", color=colour, label=rule)


def along(axes, key, found):
    for rule in ("BT1", "IT"):
        axes.semilogx(found[key]["C"][1:], found[key][rule], color=COLOURS[rule], label=rule, linewidth=1, subs=())


def domes(found):
    figure, axes = plt.subplots(figsize=(9, 2.4), layout="constrained")
    keys, rules = list(found), ("BT1 (DVI)", "IT", "IT from above", "two-sided", "dome")
    for k, rule in enumerate(rules):
        axes.bar(np.arange(len(keys)) + 0.16 * (k - 2), [found[key][k] for key in keys], 0.15, label=rule)
    axes.set_xticks(range(len(keys)), [key.replace(" raw", "").replace(" ", "\n") for key in keys])
    axes.set(ylabel="rate", xlabel="set, C_ref / C")
    axes.legend(fontsize=7, ncols=5, loc="upper left", bbox_to_anchor=(0, 1.2))
    saved(figure, "dome")


if __name__ == "__main__":
    kept = json.loads((RESULTS / "safe_sample_screening.json").read_text())
    plane()
    panels(kept["rates"]["figures"], ("bcd", "dna", "usps", "pendigits"), "rates", "C_ref / C (C = 10)", of_rule)
    panels(kept["paths"]["figures"], ("bcd", "dna", "mushrooms", "shuttle"), "along", "C", along)
    domes(kept["two_sided"]["figures"])
