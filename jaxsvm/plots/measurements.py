"""Measurements of screening rules, coresets, fits over joins, and training sets of several sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxsvm.errors import InputError, require_part
from jaxsvm.plots.axes import BLUE, GREY, ORANGE, against_C, axes_of, labelled
from jaxsvm.runtime.checks import checked, require_one_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike

    from jaxsvm.path.screening_report import Report
    from jaxsvm.relational.descent.fit import RelationalFit
    from jaxsvm.results.fit import History


@checked
def screening_rates(report: Report, *, ax: Axes | None = None) -> Axes:
    """Draw the share of samples that each screening rule decides, and any could, against C; return the axes.

    Args:
        report: The report of `jaxsvm.screening.screening_report`.
        ax: Axes of matplotlib; None makes a figure.
    """
    require_part("report", report, "possible", "the result of `jaxsvm.screening.screening_report` is needed")
    ax = axes_of(ax)
    for name, inactive, at_bound in zip(report.names, report.inactive, report.at_bound, strict=True):
        ax.plot(report.Cs, inactive + at_bound, "o-", markersize=3, label=name)
    ax.plot(report.Cs, report.possible, color=GREY, linestyle="--", label="at most: off the margin")
    ax.set_ylim(-0.03, 1.03)
    against_C(ax, "share of the samples")
    ax.legend(fontsize=8, loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False)  # lines may be anywhere
    return ax


@checked
def coreset_error(sizes: ArrayLike, errors: Mapping[str, Any], *, ax: Axes | None = None) -> Axes:
    """Draw errors of coresets against their size: the median of draws and their middle half; return the axes.

    Args:
        sizes: Numbers of points, `(k,)`.
        errors: Errors of each method by name, `(draws, k)` or `(k,)`: `evaluate(...).worst` or `.excess`.
        ax: Axes of matplotlib; None makes a figure.

    Raises:
        InputError: If the number of errors is not the number of sizes.
    """
    ax = axes_of(ax)
    sizes = np.asarray(sizes, float)
    if sizes.ndim != 1:
        raise InputError(f"sizes has shape {sizes.shape}: numbers of points, (k,), are needed.")
    for name, values in errors.items():
        draws = np.atleast_2d(np.asarray(values, float))
        if draws.shape[-1] != len(sizes):
            raise InputError(f"errors[{name!r}] has shape {np.shape(values)}: (draws, {len(sizes)}) is needed.")
        low, middle, high = np.nanquantile(draws, [0.25, 0.5, 0.75], axis=0)
        (line,) = ax.plot(sizes, middle, "o-", markersize=4, label=name)
        ax.fill_between(sizes, low, high, color=line.get_color(), alpha=0.18, linewidth=0)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xticks(sizes, [f"{size:g}" for size in sizes])
    ax.set_xticks([], minor=True)
    return labelled(ax, "points of the coreset", "relative error")


@checked
def relational_certificate(fitted: RelationalFit, *, ax: Axes | None = None) -> Axes:
    """Draw the bounds on the optimum of a fit over a join, step by step; return the axes.

    Args:
        fitted: The fit of `jaxsvm.relational.fit`.
        ax: Axes of matplotlib; None makes a figure.
    """
    require_part("fitted", fitted, "history", "a fit of `jaxsvm.relational.fit` is needed")
    ax = axes_of(ax)
    dual, primal = np.asarray(fitted.history, float)[:, :2].T
    steps = np.arange(1, len(dual) + 1)
    shown = np.isfinite(primal)
    ax.fill_between(steps[shown], dual[shown], primal[shown], color=BLUE, alpha=0.15, linewidth=0)
    ax.plot(steps[shown], primal[shown], "o-", markersize=3, color=ORANGE, label="upper bound: the best F reached")
    ax.plot(steps, dual, "o-", markersize=3, color=BLUE, label="lower bound: what planes prove")
    gap = float(fitted.certificate.relative_gap)
    ax.set_title(f"relative gap {gap:.1e} after {int(fitted.steps)} evaluations", fontsize=9)
    return labelled(ax, "step", "objective F")


@checked
def learning_curve(
    sizes: ArrayLike, training: ArrayLike, held_out: ArrayLike, *, score: str = "accuracy", ax: Axes | None = None
) -> Axes:
    """Draw scores against the number of training samples, within one standard deviation; return the axes.

    Args:
        sizes: Numbers of training samples, `(k,)`.
        training: Scores on the training samples, `(k, folds)` or `(k,)`, as `sklearn.model_selection.learning_curve`
            returns them.
        held_out: Scores on other samples, of the same shape.
        score: Name of the scores.
        ax: Axes of matplotlib; None makes a figure.
    """
    ax = axes_of(ax)
    sizes = np.asarray(sizes, float)
    if sizes.ndim != 1:
        raise InputError(f"sizes has shape {sizes.shape}: numbers of points, (k,), are needed.")
    for name, values, colour in (("training samples", training, ORANGE), ("held-out samples", held_out, BLUE)):
        scores = np.asarray(values, float).reshape(len(sizes), -1)
        mean, spread = scores.mean(axis=1), scores.std(axis=1)
        ax.plot(sizes, mean, "o-", markersize=4, color=colour, label=name)
        ax.fill_between(sizes, mean - spread, mean + spread, color=colour, alpha=0.15, linewidth=0)
    return labelled(ax, "training samples", score)


AGAINST = {"seconds": "seconds", "steps": "steps", "kernel_evaluations": "kernel evaluations"}


@checked
def convergence(
    histories: History | Mapping[str, History],
    *,
    against: str = "seconds",
    tol: float | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw certified relative gaps against time, steps or kernel evaluations; return the axes.

    Args:
        histories: A `jaxsvm.History`, or several by name. Lines from before the first certificate are left out.
        against: "seconds", "steps" or "kernel_evaluations".
        tol: Gap to mark by a line, or None.
        ax: Axes of matplotlib; None makes a figure.

    Raises:
        InputError: If `against` is none of these.
    """
    require_one_of("against", against, AGAINST)
    ax = axes_of(ax)
    named = histories if isinstance(histories, Mapping) else {"": histories}
    for name, history in named.items():
        require_part("histories", history, against, "a `jaxsvm.History`, or a mapping of several, is needed")
        x, gap = np.asarray(getattr(history, against), float), np.asarray(history.relative_gap, float)
        shown = np.isfinite(gap) & (gap > 0) & (x > 0)
        ax.plot(x[shown], gap[shown], "o-", markersize=3, label=name or None)
    if tol is not None:
        ax.axhline(tol, color=GREY, linewidth=1, linestyle=":", label=f"tol = {tol:.3g}")
    ax.set_yscale("log")
    if against != "seconds":
        ax.set_xscale("log")
    return labelled(ax, AGAINST[against], "relative gap")
