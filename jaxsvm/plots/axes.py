"""Axes to draw on, and the colours and labels that all pictures share."""

from __future__ import annotations

import functools
import io
from typing import TYPE_CHECKING, Any

from jaxsvm.errors import require_package

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE, ORANGE, GREEN, RED, PURPLE, GREY = "tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple", "0.45"


def figure_class() -> Any:
    """Return matplotlib's `Figure`.

    Raises:
        MissingPackageError: If matplotlib is not installed.
    """
    return require_package("matplotlib.figure", "drawing").Figure


def panels_of(rows: int, width: float, height: float) -> tuple[Any, Any]:
    """Return a new figure of that size in inches, and its axes below each other.

    As the last line of a notebook's cell each of them shows the picture: without pyplot nobody else tells IPython how.
    """
    figure = figure_class()(figsize=(width, height), layout="constrained")
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
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    if ax.get_legend_handles_labels()[1]:
        ax.legend(fontsize=8)
    ax.grid(True, which="major", alpha=0.3)
    ax.set_axisbelow(True)
    return ax


def against_C(ax: Axes, y: str) -> Axes:
    """Label the axes with a logarithmic C below, once the values are drawn; return the axes."""
    ax.set_xscale("log")
    low, high = ax.get_xlim()
    if high < 10 * low:  # powers of ten alone would give one label at most
        from matplotlib.ticker import MaxNLocator, NullLocator, ScalarFormatter

        ax.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        ax.xaxis.set_major_formatter(ScalarFormatter())
        ax.xaxis.set_minor_locator(NullLocator())
    return labelled(ax, "C", y)
