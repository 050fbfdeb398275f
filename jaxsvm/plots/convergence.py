"""The gap on its way down."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxsvm.errors import InputError
from jaxsvm.plots.axes import GREY, axes_of, light_grid

AGAINST = {"seconds": "seconds", "steps": "steps", "kernel_evaluations": "kernel evaluations"}


def convergence(histories: Any, *, against: str = "seconds", tol: float | None = None, ax: Any = None) -> Any:
    """Certified relative gaps against time, steps or kernel evaluations.

    Looks that came before a certificate are left out.

    Args:
        histories: A `jaxsvm.History`, or several by name.
        against: "seconds", "steps" or "kernel_evaluations".
        tol: The gap that was asked for: a line; None: none.
        ax: Axes of matplotlib; None makes a figure.

    Returns:
        The axes.

    Raises:
        InputError: On another `against`.
    """
    if against not in AGAINST:
        raise InputError(f"against is {against!r}: one of {', '.join(AGAINST)} is needed.")
    ax = axes_of(ax)
    named = histories if isinstance(histories, Mapping) else {"": histories}
    for name, history in named.items():
        x, gap = np.asarray(getattr(history, against), float), np.asarray(history.relative_gap, float)
        shown = np.isfinite(gap) & (gap > 0) & (x > 0)
        ax.plot(x[shown], gap[shown], "o-", markersize=3, label=name or None)
    if tol is not None:
        ax.axhline(tol, color=GREY, linewidth=1, linestyle=":", label=f"tol = {tol:.3g}")
    ax.set_yscale("log")
    if against != "seconds":
        ax.set_xscale("log")
    ax.set_xlabel(AGAINST[against])
    ax.set_ylabel("relative gap")
    if ax.get_legend_handles_labels()[1]:
        ax.legend(fontsize=8)
    light_grid(ax)
    return ax
