"""A path against C: gaps, values, support, margins, scores and what they choose."""

from typing import Any

import numpy as np

from jaxsvm.errors import InputError
from jaxsvm.plots.axes import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, axes_of, figure_class, logarithmic_C
from jaxsvm.results.fit import Status


def path_figure(path: Any, *, scores: Any = None, ax: Any = None) -> Any:
    """A regularisation path against C: relative gap, primal value, support size and, where given, test accuracy.

    Values of C whose status is not CONVERGED are marked with a red cross and the status's name.

    Args:
        path: From `jaxsvm.solve_path`, with concrete values.
        scores: Test accuracy of each value, `(k,)` in [0, 1], or None.
        ax: One axes of matplotlib for each panel (3, or 4 with `scores`), from top to bottom; None makes a figure.

    Returns:
        The `matplotlib.figure.Figure`; `figure.savefig(...)` writes it.

    Raises:
        InputError: On scores or axes of another number, or where matplotlib is not installed.
    """
    Figure = figure_class()
    Cs = np.asarray(path.Cs, float)
    order = np.argsort(Cs, kind="stable")
    panels = _panels(path, scores)
    if ax is None:
        figure = Figure(figsize=(7, 2.1 * len(panels) + 0.6), layout="constrained")
        axes = np.atleast_1d(figure.subplots(len(panels), 1, sharex=True))
    else:
        axes = np.atleast_1d(np.asarray(ax, dtype=object)).ravel()
        if len(axes) != len(panels):
            raise InputError(f"ax holds {len(axes)} axes: {len(panels)} are needed, one a panel.")
        figure = axes[0].get_figure(root=True)
    codes = np.atleast_1d(np.asarray(path.status.code))
    for axis, (title, values, logarithmic, colour) in zip(axes, panels, strict=True):
        _draw(axis, Cs[order], values[order], codes[order], title, logarithmic, colour)
    axes[-1].set_xlabel("C")
    return figure


def path_scores(validated: Any, *, label: str = "cross-validated", ax: Any = None) -> Any:
    """Mean scores of folds against C with one standard error to each side, and both choices of C.

    Args:
        validated: From `jaxsvm.cross_validate`; or what has its `Cs`, `mean`, `standard_error`, `C` and
            `C_one_standard_error`.
        label: What the scores are called.
        ax: Axes of matplotlib; None makes a figure.

    Returns:
        The axes.
    """
    ax = axes_of(ax)
    Cs, mean, error = (np.asarray(part, float) for part in (validated.Cs, validated.mean, validated.standard_error))
    order = np.argsort(Cs, kind="stable")
    Cs, mean, error = Cs[order], mean[order], error[order]
    ax.fill_between(Cs, mean - error, mean + error, color=BLUE, alpha=0.18, linewidth=0, label="one standard error")
    ax.plot(Cs, mean, "o-", color=BLUE, markersize=4, label=label)
    if np.isfinite(mean).any():
        best = int(np.nanargmax(mean))
        ax.axhline(mean[best] - error[best], color=GREY, linewidth=1, linestyle=":", label="best less one error")
        ax.axvline(validated.C, color=ORANGE, linewidth=1.5, label=f"best: C = {validated.C:.3g}")
        cautious = validated.C_one_standard_error
        ax.axvline(cautious, color=GREEN, linewidth=1.5, linestyle="--", label=f"within one error: C = {cautious:.3g}")
    ax.set_ylabel("score")
    ax.legend(fontsize=8)
    logarithmic_C(ax)
    return ax


def path_support(path: Any, *, ax: Any = None) -> Any:
    """How many samples have a coefficient, against C.

    Args:
        path: From `jaxsvm.solve_path`, of one problem.
        ax: Axes of matplotlib; None makes a figure.

    Returns:
        The axes.
    """
    ax = axes_of(ax)
    Cs = np.asarray(path.Cs, float)
    order = np.argsort(Cs, kind="stable")
    coef = np.asarray(path.fits.dual_coef)
    ax.plot(Cs[order], (coef != 0).sum(axis=1)[order], "o-", color=GREEN, markersize=4)
    ax.set_ylim(0, coef.shape[1] * 1.04)
    ax.axhline(coef.shape[1], color=GREY, linewidth=1, linestyle=":")
    ax.annotate("all samples", (Cs.min(), coef.shape[1]), xytext=(2, -11), textcoords="offset points", fontsize=8)
    ax.set_ylabel("support vectors")
    logarithmic_C(ax)
    return ax


def path_margin(path: Any, problem: Any, *, ax: Any = None) -> Any:
    """The geometric margin `1 / |w|` in feature space against C: how far from the boundary the margin lies.

    Args:
        path: From `jaxsvm.solve_path`, of one problem.
        problem: That problem.
        ax: Axes of matplotlib; None makes a figure.

    Returns:
        The axes.
    """
    ax = axes_of(ax)
    Cs = np.asarray(path.Cs, float)
    order = np.argsort(Cs, kind="stable")
    coef, margins, bias = (np.asarray(part, float) for part in (path.fits.dual_coef, path.fits.margins, path.fits.bias))
    values = margins * np.asarray(problem.y, float) - bias[:, None]  # <w, phi(x_i)>
    squares = np.einsum("kn,kn->k", coef, values)  # |w|^2
    ax.plot(Cs[order], 1 / np.sqrt(np.maximum(squares, np.finfo(float).tiny))[order], "o-", color=PURPLE, markersize=4)
    ax.set_yscale("log")
    ax.set_ylabel("margin 1 / |w|")
    logarithmic_C(ax)
    return ax


def _panels(path: Any, scores: Any) -> list[tuple[str, np.ndarray, bool, str]]:
    """Title, values `(k,)`, whether on a log scale, and colour of each panel."""
    support = (np.asarray(path.alphas) > 0).sum(axis=1)
    panels = [
        ("relative gap", np.asarray(path.certificate.relative_gap, float), True, BLUE),
        ("primal value", np.asarray(path.certificate.primal, float), True, ORANGE),
        ("support vectors", support.astype(float), False, GREEN),
    ]
    if scores is not None:
        scores = np.asarray(scores, float)
        if scores.shape != (len(path),):
            raise InputError(f"scores has shape {scores.shape}: one a value of C is needed, shape ({len(path)},).")
        panels.append(("test accuracy", scores, False, PURPLE))
    return panels


def _draw(axis: Any, Cs: np.ndarray, values: np.ndarray, codes: np.ndarray, title: str, log: bool, colour: str) -> None:
    axis.set_xscale("log")
    positive = np.isfinite(values) & (values > 0)
    if log and positive.any():
        axis.set_yscale("log")
    drawable = positive if log and positive.any() else np.isfinite(values)
    axis.plot(Cs[drawable], values[drawable], "o-", color=colour, markersize=4)
    failed = codes != Status.CONVERGED
    # A value that cannot be drawn (an infinite gap) is marked at the top edge instead of left out.
    for C, value, code, visible in zip(Cs[failed], values[failed], codes[failed], drawable[failed], strict=True):
        where = {} if visible else {"transform": axis.get_xaxis_transform(), "clip_on": False}
        height = value if visible else 1.0
        axis.plot([C], [height], "x", color=RED, markersize=9, markeredgewidth=2, **where)
        axis.annotate(
            Status(int(code)).name,
            (C, height),
            xycoords="data" if visible else axis.get_xaxis_transform(),
            xytext=(4, 4),
            textcoords="offset points",
            color=RED,
            fontsize=7,
        )
    axis.set_ylabel(title)
    axis.grid(True, which="major", alpha=0.3)
