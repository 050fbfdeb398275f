"""The pictures of docs/papers/stochastic_batch_perceptron.md, from what `stochastic_batch_perceptron.py` keeps."""

import json

import matplotlib.pyplot as plt
import numpy as np
from protocol import RESULTS, ROOT

import jaxsvm
from jaxsvm import plots


def errors(of):
    """Figure 2: error against kernel values, nominal above, computed below; Pegasos by its last iterate."""
    figure, axes = plt.subplots(2, 3, figsize=(10.5, 6.2))
    for column, (name, lines) in zip(axes.T, of.items(), strict=True):
        best = lines.pop("optimum")["2"][0]
        for axis, count in zip(column, ("nominal", "computed"), strict=True):
            for key, rows in lines.items():
                x = [row[1] if count == "computed" else float(place) for place, row in rows.items()]
                axis.semilogx(x, [row[3 if key == "Pegasos" else 0] for row in rows.values()], ".-", label=key, lw=1)
            axis.axhline(best, color="k", lw=0.7, ls=":")
            axis.set(ylim=(0.9 * best, (2.2 if name == "Adult" else 5) * best), xlabel=f"{count} kernel values / n²")
            axis.set(title=name, ylabel="test error, %")
    axes[0, 0].legend(fontsize=7)
    return figure


def fourier(of):
    """Figure 3: error against inner products a sample."""
    figure, axes = plt.subplots(1, 3, figsize=(10.5, 3.2))
    for axis, (name, rows) in zip(axes, of.items(), strict=True):
        for k, label in enumerate(("SBP", "cos and sin", "one phase")):
            axis.semilogy(list(rows), [row[k] for row in rows.values()], "o-", label=label)
        axis.set(title=name, xlabel="inner products / n", ylabel="test error, %")
    axes[0].legend(fontsize=7)
    return figure


def water(front):
    """Figures 1 and 4: water in one and in two basins; and the front of norm and loss."""
    c, y = np.sort(np.random.default_rng(0).normal(size=24)), np.where(np.arange(24) % 3 == 0, 1.0, -1.0)
    figure, axes = plt.subplots(1, 3, figsize=(10.5, 3.2))
    one, two = jaxsvm.water_level(c, 6.0), jaxsvm.water_level_with_bias(c, y, 6.0)
    plots.water_level(one, c, ax=axes[0]).set_title("no bias")
    plots.water_level(two, c, y, ax=axes[1]).set_title(f"b = {float(two.bias):.2f}")
    for k, (label, mark) in enumerate((("by nu", "o"), ("by C (SVC)", "x"))):
        axes[2].loglog(*zip(*(row[2 + k] for row in front), strict=True), mark, mfc="none", label=label)
    axes[2].set(title="one front", xlabel="|w|", ylabel="mean hinge loss")
    axes[2].legend(fontsize=7)
    return figure


if __name__ == "__main__":
    kept = json.loads((RESULTS / "stochastic_batch_perceptron.json").read_text())
    for draw, part in ((errors, "curves"), (fourier, "fourier"), (water, "front")):
        if part in kept:
            figure = draw(kept[part]["figures"])
            figure.tight_layout()
            figure.savefig(ROOT / "docs" / "papers" / f"stochastic_batch_perceptron_{draw.__name__}.png", dpi=60)
