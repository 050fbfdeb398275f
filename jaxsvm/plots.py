"""Pictures, without pyplot and without global state: functions that take results and return a `Figure`."""

from typing import Any

import numpy as np

from jaxsvm.errors import InputError
from jaxsvm.result import Status

BLUE, ORANGE, GREEN, RED = "tab:blue", "tab:orange", "tab:green", "tab:red"


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
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError("pictures need matplotlib, which is not installed: pip install 'jaxsvm[plot]'") from error
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


def screening_figure(report: Any, *, ax: Any = None) -> Any:
    """What each screening rule knows along a path, against C, and what any rule could know.

    Args:
        report: From `jaxsvm.screening.screening_report`.
        ax: An axes of matplotlib; None makes a figure.

    Returns:
        The `matplotlib.figure.Figure`.

    Raises:
        InputError: Where matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError("pictures need matplotlib, which is not installed: pip install 'jaxsvm[plot]'") from error
    if ax is None:
        figure = Figure(figsize=(7, 4), layout="constrained")
        ax = figure.subplots()
    else:
        figure = ax.get_figure(root=True)
    for name, inactive, at_bound in zip(report.names, report.inactive, report.at_bound, strict=True):
        ax.plot(report.Cs, inactive + at_bound, "o-", markersize=3, label=name)
    ax.plot(report.Cs, report.possible, color="0.6", linestyle="--", label="off the margin")
    ax.set_xscale("log")
    ax.set_ylim(-0.03, 1.03)
    ax.set_xlabel("C")
    ax.set_ylabel("share of the samples")
    ax.grid(True, which="major", alpha=0.3)
    ax.legend()
    return figure


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
        panels.append(("test accuracy", scores, False, "tab:purple"))
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
