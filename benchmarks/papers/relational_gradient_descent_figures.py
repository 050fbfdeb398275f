"""The pictures of docs/papers/relational_gradient_descent.md, from what `relational_gradient_descent.py` keeps.

python benchmarks/papers/relational_gradient_descent_figures.py
"""

import json

import matplotlib.pyplot as plt
import numpy as np
from protocol import RESULTS, ROOT

plt.rcParams |= {"font.size": 9, "figure.constrained_layout.use": True}
kept = json.loads((RESULTS / "relational_gradient_descent.json").read_text())
(names, *ends), found, cost = (kept[part]["figures"] for part in ("intervals", "rates", "cost"))
lines = {"average": ("k-", "Theorem 1: exact, averaged"), "0 1": ("k--", "exact, Theorem 1's step"),
         "0 8": ("C0-", "exact, paper's step"), "0.1 8": ("C1-", "paper, eps .1"), "0.3 8": ("C3-", "paper, eps .3"),
         "0.1 1": ("C1--", "eps .1, Theorem 1's step"), "no guard": ("C2-", "no guard, 1 / (2 lam t)")}  # fmt: skip
pictures = [plt.subplots(figsize=(6, height)) for height in (3.4, 4)]
pictures += [plt.subplots(1, 4, figsize=(12, 3), sharey=True)]

axes, (g, low, high) = pictures[0][1], map(np.array, ends)
for known, colour in ((True, "C0"), (False, "C3")):
    at, label = np.flatnonzero((low * high > 0) == known), f"sign {'un' * (not known)}known"
    axes.errorbar(at, g[at], [(g - low)[at], (high - g)[at]], fmt="_", color=colour, label=label)
axes.axhline(0, color="0.7")
axes.set(ylabel="gradient of the mean hinge")
axes.set_yscale("symlog", linthresh=0.01)
axes.set_xticks(range(len(g)), names, rotation=45)
axes.legend()

axes = pictures[1][1]
for key, (style, label) in lines.items():
    axes.loglog(found["T"], found["rows"][f"0.01 {key}"], style, marker=".", label=label)
axes.loglog(found["T"], found["bound"], "0.5", ls=":", label="bound of Theorem 15")
axes.set(xlabel="steps T", ylabel="F / F* - 1")
axes.set_xticks(found["T"], found["T"], minor=False)
axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
axes.minorticks_off()

words = {"N": "rows of the join N", "n": "rows of a table n", "m": "tables m", "eps": "accuracy eps"}
for axes, (key, label) in zip(pictures[2][1], words.items(), strict=True):
    for name in ("grid", "sketch")[key == "eps" :]:
        axes.loglog(*zip(*cost[f"{name} {key}"], strict=True), "o-", color={"grid": "C0"}.get(name, "C1"), label=name)
    axes.set(xlabel=label)
    at = [row[0] for row in cost[f"sketch {key}"]]
    axes.set_xticks(at, [f"{place:.2g}" if key == "N" else f"{place:g}" for place in at])
    axes.minorticks_off()
pictures[2][1][0].set(ylabel="s a pseudo-gradient")
pictures[2][1][0].legend()

for (figure, _), name in zip(pictures, ("intervals", "rates", "cost"), strict=True):
    figure.savefig(ROOT / "docs" / "papers" / f"relational_gradient_descent_{name}.png", dpi=80)
