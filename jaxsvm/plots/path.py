"""Pictures of a regularisation path against C, of scores of folds, and of the convergence of fits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxsvm.errors import InputError, require_part
from jaxsvm.plots.axes import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, against_C, axes_of, labelled, panels_of
from jaxsvm.problems.contract import require_problem
from jaxsvm.results.status import Status
from jaxsvm.runtime.checks import checked, require_one_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike

    from jaxsvm.model_selection.cross_validation import Scores, WidthValidation
    from jaxsvm.path.solve import Path
    from jaxsvm.problems.contract import Parametric
    from jaxsvm.results.fit import History


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

    Raises:
        InputError: If the number of scores or axes is wrong, or matplotlib is not installed.
    """
    Cs, order = _sorted_values(path)
    panels = _panels(path, scores)
    if ax is None:
        figure, axes = panels_of(len(panels), 7, 2.1 * len(panels) + 0.6)
    else:
        axes = np.atleast_1d(np.asarray(ax, dtype=object)).ravel()
        if len(axes) != len(panels):
            raise InputError(f"ax holds {len(axes)} axes: {len(panels)} are needed, one a panel.")
        figure = axes[0].get_figure(root=True)
    codes = np.atleast_1d(np.asarray(path.status.code))
    for axis, (title, values, logarithmic, colour) in zip(axes, panels, strict=True):
        _draw(axis, Cs, values[order], codes[order], logarithmic, colour)
        axis.set_ylabel(title)
        axis.grid(True, which="major", alpha=0.3)
    axes[-1].set_xlabel("C")
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
    """Draw the number of samples with a coefficient against C; return the axes.

    Args:
        path: The path of `jaxsvm.solve_path`, of one problem.
        ax: Axes of matplotlib; None makes a figure.
    """
    ax = axes_of(ax)
    Cs, order = _sorted_values(path)
    coef = np.asarray(path.fits.dual_coef)
    n = coef.shape[1]
    ax.plot(Cs, (coef != 0).sum(axis=1)[order], "o-", color=GREEN, markersize=4)
    ax.set_ylim(0, n * 1.04)
    ax.axhline(n, color=GREY, linewidth=1, linestyle=":")
    ax.annotate("all samples", (Cs[0], n), xytext=(2, -11), textcoords="offset points", fontsize=8)
    return against_C(ax, "support vectors")


@checked
def path_margin(path: Path, problem: Parametric, *, ax: Axes | None = None) -> Axes:
    """Draw the geometric margin `1 / |w|`, a distance in feature space, against C; return the axes.

    Args:
        path: The path of `jaxsvm.solve_path`, of one problem.
        problem: That problem.
        ax: Axes of matplotlib; None makes a figure.
    """
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
    """Draw mean scores of folds against C and gamma as a map, with the best one marked; return the axes.

    Args:
        validated: The result of `jaxsvm.cross_validate` with `gammas`.
        ax: Axes of matplotlib; None makes a figure.
    """
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


def _panels(path: Any, scores: Any) -> list[tuple[str, np.ndarray, bool, str]]:
    """Return title, values `(k,)`, whether on a log scale, and colour of each panel."""
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
