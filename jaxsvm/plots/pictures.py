"""Pictures of paths against C, of scores of folds, of convergence, of water levels, and of points of two features."""

from __future__ import annotations

import functools
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxsvm.errors import InputError, require_package, require_part
from jaxsvm.models.model import Model, decision_function, predict
from jaxsvm.problems.contract import require_problem
from jaxsvm.results.fit import Status
from jaxsvm.runtime.arrays import checked, require_one_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike

    from jaxsvm.model_selection.cross_validation import Scores, WidthValidation
    from jaxsvm.path.solve import Path
    from jaxsvm.problems.contract import Parametric
    from jaxsvm.problems.water_level import WaterLevel
    from jaxsvm.results.fit import History


BLUE, ORANGE, GREEN, RED, PURPLE, GREY = "tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple", "0.45"


def panels_of(rows: int, width: float, height: float) -> tuple[Any, Any]:
    """Return a new figure of that size in inches, and its axes below each other.

    As the last line of a notebook's cell each of them shows the picture: without pyplot nobody else tells IPython how.
    """
    figure = require_package("matplotlib.figure", "drawing").Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, 1, sharex=True)
    for shown in (figure, *figure.axes):
        shown._repr_png_ = functools.partial(_png, figure)
    return figure, axes


def _png(figure: Any) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()


def axes_of(ax: Axes | None, width: float = 6.0, height: float = 3.8) -> Axes:
    """Return the given axes, or those of a new figure of that size in inches."""
    return panels_of(1, width, height)[1] if ax is None else ax


def labelled(ax: Axes, x: str, y: str) -> Axes:
    """Label the axes, show the legend if there are names and a light grid behind; return the axes."""
    ax.set(xlabel=x, ylabel=y)
    if ax.get_legend_handles_labels()[1]:
        ax.legend(fontsize=8)
    ax.grid(True, which="major", alpha=0.3)
    ax.set_axisbelow(True)
    return ax


def against_C(ax: Axes, y: str) -> Axes:
    """Label the axes with a logarithmic C below, once the values are drawn; return the axes."""
    ax.set_xscale("log")
    return labelled(ax, "C", y)


@checked
def path_figure(
    path: Path, *, scores: ArrayLike | None = None, ax: Sequence[Axes] | np.ndarray | None = None
) -> Figure:
    """Draw relative gap, primal value, support size and, where given, test accuracy of a path, one panel each.

    Values of C whose status is not CONVERGED are marked with a red cross and the status's name.

    Args:
        path: The path of `jaxsvm.solve_path`, with concrete values.
        scores: Test accuracy of each value, `(k,)` in [0, 1], or None.
        ax: One axes of matplotlib for each panel (3, or 4 with `scores`), from top to bottom; None makes a figure.

    Returns:
        The `matplotlib.figure.Figure`; `figure.savefig(...)` writes it.
    """
    Cs, _ = _sorted_values(path)
    panels = {
        "relative gap": path.certificate.relative_gap,
        "primal value": path.certificate.primal,
        "support vectors": (np.asarray(path.alphas) > 0).sum(axis=1),
    }
    if scores is not None:
        if np.shape(scores) != Cs.shape:
            raise InputError(f"scores has shape {np.shape(scores)}: one a value of C is needed, shape {Cs.shape}.")
        panels["test accuracy"] = scores
    return drawn(np.asarray(path.Cs), np.atleast_1d(np.asarray(path.status.code)), panels, ax)


def drawn(Cs: np.ndarray, codes: np.ndarray, panels: Mapping[str, Any], ax: Any = None) -> Figure:
    """Draw values by name against C, one panel each; what is not CONVERGED is crossed out and named."""
    if ax is None:
        figure, axes = panels_of(len(panels), 7, 2.1 * len(panels) + 0.6)
    else:
        axes = np.atleast_1d(np.asarray(ax, dtype=object)).ravel()
        if len(axes) != len(panels):
            raise InputError(f"ax holds {len(axes)} axes: {len(panels)} are needed, one a panel.")
        figure = axes[0].get_figure(root=True)
    order = np.argsort(Cs, kind="stable")
    for axis, (title, values), colour in zip(axes, panels.items(), (BLUE, ORANGE, GREEN, PURPLE), strict=False):
        _draw(axis, Cs[order], np.asarray(values, float)[order], codes[order], colour in (BLUE, ORANGE), colour)
        axis.set_ylabel(title)
        axis.grid(True, which="major", alpha=0.3)
    for axis in axes[-1:] if ax is None else axes:  # axes of the caller's may stand side by side
        axis.set_xlabel("C")
    return figure


@checked
def path_scores(validated: Scores, *, label: str = "cross-validated", ax: Axes | None = None) -> Axes:
    """Draw mean scores of folds against C, within one standard error, and both choices of C; return the axes.

    Args:
        validated: The result of `jaxsvm.cross_validate`, or any object with its `Cs`, `mean`, `standard_error`, `C` and
            `C_one_standard_error`.
        label: Name of the scores.
        ax: Axes of matplotlib; None makes a figure.
    """
    Cs, order = _sorted_values(validated, "standard_error", "cross_validate(problem, Cs)")
    ax = axes_of(ax)
    mean, error = (np.asarray(part, float)[order] for part in (validated.mean, validated.standard_error))
    ax.fill_between(Cs, mean - error, mean + error, color=BLUE, alpha=0.18, linewidth=0, label="one standard error")
    ax.plot(Cs, mean, "o-", color=BLUE, markersize=4, label=label)
    if np.isfinite(mean).any():
        best = int(np.nanargmax(mean))
        ax.axhline(mean[best] - error[best], color=GREY, linewidth=1, linestyle=":", label="best less one error")
        ax.axvline(validated.C, color=ORANGE, linewidth=1.5, label=f"best: C = {validated.C:.3g}")
        cautious = validated.C_one_standard_error
        ax.axvline(cautious, color=GREEN, linewidth=1.5, linestyle="--", label=f"within one error: C = {cautious:.3g}")
    return against_C(ax, "score")


@checked
def path_support(path: Path, *, ax: Axes | None = None) -> Axes:
    """Draw the number of samples with a coefficient against C, of a path of one problem; return the axes."""
    ax = axes_of(ax)
    Cs, order = _sorted_values(path)
    coef = np.asarray(path.fits.dual_coef)
    n = coef.shape[1]
    ax.plot(Cs, (coef != 0).sum(axis=1)[order], "o-", color=GREEN, markersize=4)
    ax.set_ylim(0, n * 1.04)
    ax.axhline(n, color=GREY, linewidth=1, linestyle=":")
    ax.annotate("all samples", (Cs[-1], n), xytext=(0, -11), textcoords="offset points", ha="right", fontsize=8)
    return against_C(ax, "support vectors")


@checked
def path_margin(path: Path, problem: Parametric, *, ax: Axes | None = None) -> Axes:
    """Draw the geometric margin `1 / |w|`, a distance in feature space, of a path of a problem; return the axes."""
    ax = axes_of(ax)
    Cs, order = _sorted_values(path)
    require_problem(problem)
    coef, margins, bias = (np.asarray(part, float) for part in (path.fits.dual_coef, path.fits.margins, path.fits.bias))
    values = margins * np.asarray(problem.y, float) - bias[:, None]  # <w, phi(x_i)>
    squares = np.einsum("kn,kn->k", coef, values)  # |w|^2
    ax.plot(Cs, 1 / np.sqrt(np.maximum(squares, np.finfo(float).tiny))[order], "o-", color=PURPLE, markersize=4)
    ax.set_yscale("log")
    return against_C(ax, "margin 1 / |w|")


@checked
def width_scores(validated: WidthValidation, *, ax: Axes | None = None) -> Axes:
    """Draw mean scores of folds (`cross_validate(gammas=...)`) against C and gamma as a map, the best one marked."""
    Cs, order = _sorted_values(validated, "best", "cross_validate(problem, Cs, gammas=...)")
    ax = axes_of(ax)
    gammas, rows = np.sort(validated.gammas), np.argsort(validated.gammas, kind="stable")
    drawn = ax.pcolormesh(_edges(Cs), _edges(gammas), np.asarray(validated.mean, float)[rows][:, order])
    ax.figure.colorbar(drawn, ax=ax, label="mean score")
    best = f"best: C = {validated.C:.3g}, gamma = {validated.gamma:.3g}"
    ax.plot([validated.C], [validated.gamma], "x", color=RED, markersize=9, markeredgewidth=2, label=best)
    ax.set_yscale("log")
    return against_C(ax, "gamma")


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
    """
    ax = axes_of(ax)
    named = histories if isinstance(histories, Mapping) else {"": histories}
    for name, history in named.items():
        x, gap, *_ = _certified(history, against)
        ax.plot(x, gap, "o-", markersize=3, label=name or None)
    if tol is not None:
        ax.axhline(tol, color=GREY, linewidth=1, linestyle=":", label=f"tol = {tol:.3g}")
    ax.set_yscale("log")
    if against != "seconds":
        ax.set_xscale("log")
    return labelled(ax, AGAINST[against], "relative gap")


@checked
def bracket(history: History, *, against: str = "steps", ax: Axes | None = None) -> Axes:
    """Draw the interval that holds the optimum, from dual to primal value, as one fit closes it; return the axes.

    `against` is as in `convergence`.
    """
    ax = axes_of(ax)
    x, _, primal, dual = _certified(history, against)
    ax.plot(x, primal, "o-", color=ORANGE, markersize=4, label="objective reached (primal)")
    ax.plot(x, dual, "o-", color=BLUE, markersize=4, label="lower bound (dual)")
    ax.fill_between(x, dual, primal, color=GREY, alpha=0.18, linewidth=0, label="the optimum is in here")
    if (dual > 0).all():
        ax.set_yscale("log")
    return labelled(ax, AGAINST[against], "objective")


def _certified(history: Any, against: str) -> tuple[np.ndarray, ...]:
    """Return place on the axis, gap, primal and dual of each line of a history from its first certificate on."""
    require_one_of("against", against, AGAINST)
    require_part("what is drawn", history, "relative_gap", "a `jaxsvm.History`, or a mapping of several, is needed")
    names = (against, "relative_gap", "primal", "dual")
    x, gap, *bounds = (np.asarray(getattr(history, name), float) for name in names)
    shown = np.isfinite(gap) & (gap > 0) & (x > 0)
    return tuple(values[shown] for values in (x, gap, *bounds))


@checked
def water_level(found: WaterLevel, c: ArrayLike, y: ArrayLike | None = None, *, ax: Axes | None = None) -> Axes:
    """Draw how the slack budget fills the lowest responses, as water does a floor, with p in red; return the axes.

    Args:
        found: The level of `jaxsvm.water_level`, or, with `y`, of `water_level_with_bias`.
        c: Its responses, `(n,)`.
        y: Their signs, `(n,)`: responses of +1 rise from the left and those of -1 from the right, moved by the bias.
        ax: Axes of matplotlib; None makes a figure.
    """
    require_part("found", found, "p", "a level of `jaxsvm.water_level` is needed")
    ax, level, c = axes_of(ax), float(found.level), np.asarray(c, float)
    signs, place = np.zeros_like(c) if y is None else np.asarray(y, float), np.arange(len(c))
    heights = c + signs * float(found.bias)
    order = np.lexsort((np.where(signs < 0, -heights, heights), -signs))
    heights = heights[order]
    low = min(heights.min(), level) - 0.2 * (max(heights.max(), level) - heights.min())
    ax.bar(place, heights - low, 1, bottom=low, color=GREY, alpha=0.6, label="response")
    ax.bar(place, np.maximum(level - heights, 0), 1, bottom=heights, color=BLUE, alpha=0.4, label="slack")
    ax.axhline(level, color=BLUE, linewidth=1, label=f"level {level:.3g}")
    share = ax.twinx()
    share.plot(place, np.asarray(found.p)[order], color=RED, drawstyle="steps-mid")
    share.set(ylabel="p", ylim=(0, 4 * float(np.max(found.p))))
    return labelled(ax, "sample, by response" if y is None else "sample, by class and response", "response")


def _edges(values: np.ndarray) -> np.ndarray:
    """Return the edges of cells around increasing values, half way between them on a logarithmic axis, `(k + 1,)`."""
    logs = np.log(values)
    half = np.diff(logs) / 2 if len(logs) > 1 else np.ones(1)
    return np.exp(np.concatenate([logs[:1] - half[:1], logs[:-1] + half[: len(logs) - 1], logs[-1:] + half[-1:]]))


def _sorted_values(path: Any, part: str = "alphas", maker: str = "solve_path") -> tuple[np.ndarray, np.ndarray]:
    """Return the values of C in increasing order, and the indices that sort them; refuse what lacks `part`."""
    require_part("what is drawn", path, part, f"the result of `jaxsvm.{maker}` is needed")
    Cs = np.asarray(path.Cs, float)
    order = np.argsort(Cs, kind="stable")
    return Cs[order], order


def _draw(axis: Any, Cs: np.ndarray, values: np.ndarray, codes: np.ndarray, logarithmic: bool, colour: str) -> None:
    """Draw values against C, with a cross and the name of the status where that is not CONVERGED."""
    axis.set_xscale("log")
    positive = np.isfinite(values) & (values > 0)
    if logarithmic and positive.any():
        axis.set_yscale("log")
    drawable = positive if logarithmic and positive.any() else np.isfinite(values)
    axis.plot(Cs[drawable], values[drawable], "o-", color=colour, markersize=4)
    for place in np.flatnonzero(codes != Status.CONVERGED):
        visible, name = drawable[place], Status(int(codes[place])).name
        # A value that cannot be drawn (an infinite gap) is marked at the top edge instead of left out.
        coordinates = axis.transData if visible else axis.get_xaxis_transform()
        point = (Cs[place], values[place] if visible else 1.0)
        style = {"markersize": 9, "markeredgewidth": 2, "transform": coordinates, "clip_on": bool(visible)}
        axis.plot(*point, "x", color=RED, **style)
        text = {"xytext": (4, 4), "textcoords": "offset points", "color": RED, "fontsize": 7}
        axis.annotate(name, point, xycoords=coordinates, **text)


@checked
def decision_boundary(
    model: Model, x: ArrayLike, labels: ArrayLike, *, support: ArrayLike | None = None, ax: Axes | None = None
) -> Axes:
    """Draw the regions of a model's classes among points of two features; return the axes.

    Two classes have their boundary (solid) and margins (dashed), several the regions that they win, regression levels.

    Args:
        model: A model of `jaxsvm.compact` or `jaxsvm.load_model`.
        x: Points as they were before scaling, `(n, 2)`.
        labels: Their labels, `(n,)`; numbers in regression.
        support: Indices of samples to ring, such as `fit.support`, or None.
        ax: Axes of matplotlib; None makes a figure.
    """
    given: Any = x
    x, labels = np.asarray(given.toarray() if hasattr(given, "toarray") else given), np.asarray(labels)
    if x.ndim != 2 or x.shape[1] != 2 or not len(x):
        raise InputError(f"x has shape {x.shape}: points of two features, (n, 2), can be drawn; choose two columns.")
    if labels.shape != (len(x),):
        raise InputError(f"labels has shape {labels.shape}: one for each of the {len(x)} points is needed.")
    ax = axes_of(ax, 5.2, 4.4)
    u, v, grid = _grid_around(x, np.asarray(model.coef).dtype)
    if model.classes is None:
        levels: Any = ax.contourf(u, v, np.asarray(predict(model, grid)).reshape(u.shape), levels=12, alpha=0.6)
        ax.scatter(*x.T, c=labels, s=16, edgecolors="white", linewidths=0.4, cmap=levels.cmap, norm=levels.norm)
    elif len(model.classes) == 2:
        values = np.asarray(decision_function(model, grid)).reshape(u.shape)
        top = max(float(np.abs(values).max()), 1e-12)
        ax.contourf(u, v, values, levels=np.linspace(-top, top, 21), cmap="RdBu", alpha=0.45)
        ax.contour(u, v, values, levels=[-1, 0, 1], colors="0.15", linestyles=["--", "-", "--"], linewidths=[1, 1.6, 1])
        _scatter(ax, x, labels, dict(zip(model.classes, ("tab:red", "tab:blue"), strict=True)))
    else:
        codes = {label: code for code, label in enumerate(model.classes)}
        won = np.array([codes[label] for label in np.asarray(predict(model, grid)).tolist()]).reshape(u.shape)
        colours = [f"C{code % 10}" for code in range(len(codes))]
        ax.contourf(u, v, won, levels=np.arange(len(codes) + 1) - 0.5, colors=colours, alpha=0.22)
        _scatter(ax, x, labels, dict(zip(model.classes, colours, strict=True)))
    if support is not None:
        ringed = {"s": 52, "facecolors": "none", "edgecolors": "0.1", "linewidths": 1, "label": "support", "zorder": 3}
        ax.scatter(*x[np.asarray(support)].T, **ringed)
    ax.set(xlim=(u.min(), u.max()), ylim=(v.min(), v.max()))
    if ax.get_legend_handles_labels()[1]:
        ax.legend(fontsize=8, framealpha=0.9)
    return ax


def _grid_around(x: np.ndarray, dtype: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the coordinates `(160, 160)` of a grid, a twelfth wider than the points, and its points `(160^2, 2)`."""
    low, high = x.min(axis=0), x.max(axis=0)
    edge = np.where(high > low, high - low, 1.0) * 0.08
    u, v = np.meshgrid(*(np.linspace(low[j] - edge[j], high[j] + edge[j], 160) for j in range(2)))
    return u, v, np.stack([u.ravel(), v.ravel()], axis=1).astype(dtype)


def _scatter(ax: Any, x: np.ndarray, labels: np.ndarray, colours: dict[Any, str]) -> None:
    for label, colour in colours.items():
        mine = x[np.asarray([str(other) == str(label) for other in labels.tolist()])]
        ax.scatter(*mine.T, s=16, color=colour, edgecolors="white", linewidths=0.4, label=str(label), zorder=2)
