"""The gap of a fit in the course of its steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from jaxsvm.errors import require_part
from jaxsvm.plots.axes import GREY, axes_of, labelled
from jaxsvm.runtime.checks import require_one_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from jaxsvm.results.history import History

AGAINST = {"seconds": "seconds", "steps": "steps", "kernel_evaluations": "kernel evaluations"}


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
