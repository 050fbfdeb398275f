"""Pictures of points of two features: decision boundaries and enclosing balls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from jaxsvm.errors import InputError
from jaxsvm.models.enclosing_ball import ball
from jaxsvm.models.model import Model, decision_function, predict
from jaxsvm.plots.axes import GREY, RED, axes_of
from jaxsvm.runtime.checks import checked

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike

    from jaxsvm.problems.ball import BallProblem
    from jaxsvm.results.fit import Fit


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

    Raises:
        InputError: If the points do not have two features.
    """
    x, labels = _plane(x), np.asarray(labels)
    if labels.shape != (len(x),):
        raise InputError(f"labels has shape {labels.shape}: one for each of the {len(x)} points is needed.")
    ax = axes_of(ax, 5.2, 4.4)
    u, v, grid = _grid_around(x, 0.08, np.asarray(model.coef).dtype)
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
        _ring(ax, x, support, "0.1", "support")
    return _framed(ax, u, v)


@checked
def enclosing_ball(fit: Fit, problem: BallProblem, x: ArrayLike, *, ax: Axes | None = None) -> Axes:
    """Draw the section of a minimum enclosing ball by the plane of its points; return the axes.

    It is a circle for the linear kernel.

    Args:
        fit: A fit of `problem`.
        problem: A problem of `jaxsvm.meb_problem`.
        x: Its points, `(n, 2)`.
        ax: Axes of matplotlib; None makes a figure.
    """
    x = _plane(x)
    ax = axes_of(ax, 5.2, 4.4)
    enclosing = ball(fit, problem)
    weights, radius = np.asarray(enclosing.weights), float(enclosing.radius)
    u, v, grid = _grid_around(x, 0.35, weights.dtype)
    basis, coef = problem.gram.expansion(enclosing.weights)
    centre = float(weights @ np.asarray(basis.apply(x.astype(grid.dtype), coef)))  # its square
    squares = np.asarray(basis.kernel.diag(grid - np.asarray(basis.shift))) - 2 * np.asarray(basis.apply(grid, coef))
    distance = np.sqrt(np.maximum(squares + centre, 0)).reshape(u.shape)
    ax.contourf(u, v, distance, levels=np.linspace(distance.min(), radius, 9), cmap="Blues_r", alpha=0.5)
    ax.contour(u, v, distance, levels=[radius], colors="0.15", linewidths=1.6)
    ax.scatter(*x.T, s=14, color=GREY, zorder=2)
    _ring(ax, x, enclosing.coreset, RED)
    ax.set_aspect("equal")
    ax.set_title(f"radius {radius:.4g}, of {len(enclosing.coreset)} of {len(x)} points (ringed)", fontsize=9)
    return _framed(ax, u, v)


def _plane(x: Any) -> np.ndarray:
    """Return dense points; refuse those that do not have two features."""
    x = np.asarray(x.toarray() if hasattr(x, "toarray") else x)
    if x.ndim != 2 or x.shape[1] != 2 or not len(x):
        raise InputError(f"x has shape {x.shape}: points of two features, (n, 2), can be drawn; choose two columns.")
    return x


def _grid_around(x: np.ndarray, border: float, dtype: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the coordinates `(160, 160)` of a grid and its points `(160^2, 2)`; `border` is in units of the range."""
    low, high = x.min(axis=0), x.max(axis=0)
    edge = np.where(high > low, high - low, 1.0) * border
    u, v = np.meshgrid(*(np.linspace(low[j] - edge[j], high[j] + edge[j], 160) for j in range(2)))
    return u, v, np.stack([u.ravel(), v.ravel()], axis=1).astype(dtype)


def _scatter(ax: Any, x: np.ndarray, labels: np.ndarray, colours: dict[Any, str]) -> None:
    for label, colour in colours.items():
        mine = x[np.asarray([str(other) == str(label) for other in labels.tolist()])]
        ax.scatter(*mine.T, s=16, color=colour, edgecolors="white", linewidths=0.4, label=str(label), zorder=2)


def _ring(ax: Any, x: np.ndarray, indices: Any, colour: str, label: str | None = None) -> None:
    ringed = x[np.asarray(indices)].T
    ax.scatter(*ringed, s=52, facecolors="none", edgecolors=colour, linewidths=1, label=label, zorder=3)


def _framed(ax: Any, u: np.ndarray, v: np.ndarray) -> Any:
    """Cut the axes to the grid and show the legend if there are names; return the axes."""
    ax.set_xlim(u.min(), u.max())
    ax.set_ylim(v.min(), v.max())
    if ax.get_legend_handles_labels()[1]:
        ax.legend(fontsize=8, framealpha=0.9)
    return ax
