"""Axes to draw on, without pyplot and without global state, and the colours that all pictures share."""

from typing import Any

from jaxsvm.errors import InputError

BLUE, ORANGE, GREEN, RED, PURPLE, GREY = "tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple", "0.45"


def figure_class() -> Any:
    """Matplotlib's `Figure`.

    Raises:
        InputError: Where matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError("pictures need matplotlib, which is not installed: pip install 'jaxsvm[plot]'") from error
    return Figure


def axes_of(ax: Any, width: float = 6.0, height: float = 3.8) -> Any:
    """The axes that were given, or those of a new figure of that size in inches; `ax.figure.savefig(...)` writes it."""
    if ax is not None:
        return ax
    return figure_class()(figsize=(width, height), layout="constrained").subplots()


def logarithmic_C(ax: Any) -> None:
    """C along the lower edge, and a light grid; call it when the values are drawn."""
    ax.set_xscale("log")
    low, high = ax.get_xlim()
    if high < 10 * low:  # powers of ten alone would be one label, or none
        from matplotlib.ticker import MaxNLocator, NullLocator, ScalarFormatter

        ax.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        ax.xaxis.set_major_formatter(ScalarFormatter())
        ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel("C")
    light_grid(ax)


def light_grid(ax: Any) -> None:
    """Lines to read values by, behind what is drawn."""
    ax.grid(True, which="major", alpha=0.3)
    ax.set_axisbelow(True)
