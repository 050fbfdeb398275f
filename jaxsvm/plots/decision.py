"""Points of two features: decision boundaries with their support, and enclosing balls."""

from typing import Any

import numpy as np

from jaxsvm.errors import InputError
from jaxsvm.loop.enclosing_ball import ball
from jaxsvm.models.model import Model, decision_function, predict
from jaxsvm.plots.axes import GREY, RED, axes_of

GRID = 160
"""Points of the grid along an edge."""
ROOM = 0.08
"""Of the points' range, around them."""


def decision_boundary(model: Model, x: Any, labels: Any, *, support: Any = None, ax: Any = None) -> Any:
    """The regions of a model's classes among points of two features.

    Two classes have their boundary (solid) and margins (dashed), several the regions that they win, regression levels.

    Args:
        model: From `jaxsvm.compact` or `jaxsvm.load_model`.
        x: Points as they were before scaling, `(n, 2)`.
        labels: Their labels, `(n,)`; numbers in regression.
        support: Indices of samples to ring: `fit.support`; or None.
        ax: Axes of matplotlib; None makes a figure.

    Returns:
        The axes.

    Raises:
        InputError: On points of another number of features.
    """
    x, labels = _plane(x), np.asarray(labels)
    ax = axes_of(ax, 5.2, 4.4)
    u, v, grid = _grid_around(x)
    grid = grid.astype(np.asarray(model.coef).dtype)
    if model.classes is None:
        levels = ax.contourf(u, v, np.asarray(predict(model, grid)).reshape(u.shape), levels=12, alpha=0.6)
        ax.scatter(*x.T, c=labels, s=16, edgecolors="white", linewidths=0.4, cmap=levels.cmap, norm=levels.norm)
    elif len(model.classes) == 2:
        values = np.asarray(decision_function(model, grid)).reshape(u.shape)
        top = max(float(np.abs(values).max()), 1e-12)
        ax.contourf(u, v, values, levels=np.linspace(-top, top, 21), cmap="RdBu", alpha=0.45)
        ax.contour(u, v, values, levels=[-1, 0, 1], colors="0.15", linestyles=["--", "-", "--"], linewidths=[1, 1.6, 1])
        _scatter(ax, x, labels, dict(zip(model.classes, ("tab:red", "tab:blue"), strict=True)))
    else:
        places = {label: place for place, label in enumerate(model.classes)}
        won = np.array([places[label] for label in np.asarray(predict(model, grid)).tolist()]).reshape(u.shape)
        colours = [f"C{place % 10}" for place in range(len(places))]
        edges = np.arange(len(places) + 1) - 0.5
        ax.contourf(u, v, won, levels=edges, colors=colours, alpha=0.22)
        _scatter(ax, x, labels, dict(zip(model.classes, colours, strict=True)))
    _ring(ax, x, support, "0.1", "support")
    _framed(ax, u, v)
    return ax


def enclosing_ball(fit: Any, problem: Any, x: Any, *, ax: Any = None) -> Any:
    """The minimum enclosing ball of points of two features, as it meets their plane: a circle for the linear kernel.

    Args:
        fit: A fit of `problem`.
        problem: From `jaxsvm.meb_problem`.
        x: Its points, `(n, 2)`.
        ax: Axes of matplotlib; None makes a figure.

    Returns:
        The axes.
    """
    x = _plane(x)
    ax = axes_of(ax, 5.2, 4.4)
    found = ball(fit, problem)
    u, v, grid = _grid_around(x, 0.35)
    grid = grid.astype(np.asarray(found.weights).dtype)
    basis, coef = problem.gram.expansion(found.weights)
    centre = float(np.asarray(found.weights) @ np.asarray(basis.apply(x.astype(grid.dtype), coef)))  # its square
    squares = np.asarray(basis.kernel.diag(grid - np.asarray(basis.shift))) - 2 * np.asarray(basis.apply(grid, coef))
    distance = np.sqrt(np.maximum(squares + centre, 0)).reshape(u.shape)
    inside = np.linspace(distance.min(), float(found.radius), 9)
    ax.contourf(u, v, distance, levels=inside, cmap="Blues_r", alpha=0.5)
    ax.contour(u, v, distance, levels=[float(found.radius)], colors="0.15", linewidths=1.6)
    ax.scatter(*x.T, s=14, color=GREY, zorder=2)
    _ring(ax, x, found.coreset, RED)
    _framed(ax, u, v)
    ax.set_aspect("equal")
    ax.set_title(f"radius {float(found.radius):.4g}, of {len(found.coreset)} of {len(x)} points (ringed)", fontsize=9)
    return ax


def _plane(x: Any) -> np.ndarray:
    x = np.asarray(x.toarray() if hasattr(x, "toarray") else x)
    if x.ndim != 2 or x.shape[1] != 2:
        raise InputError(f"x has shape {x.shape}: points of two features, (n, 2), can be drawn; choose two columns.")
    return x


def _grid_around(x: np.ndarray, room: float = ROOM) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Coordinates of a grid, `(GRID, GRID)` each, and its points `(GRID^2, 2)`."""
    low, high = x.min(axis=0), x.max(axis=0)
    edge = np.where(high > low, high - low, 1.0) * room
    u, v = np.meshgrid(*(np.linspace(low[j] - edge[j], high[j] + edge[j], GRID) for j in range(2)))
    return u, v, np.stack([u.ravel(), v.ravel()], axis=1)


def _scatter(ax: Any, x: np.ndarray, labels: np.ndarray, colours: dict[Any, str]) -> None:
    for label, colour in colours.items():
        mine = x[np.asarray([str(one) == str(label) for one in labels.tolist()])]
        ax.scatter(*mine.T, s=16, color=colour, edgecolors="white", linewidths=0.4, label=str(label), zorder=2)


def _ring(ax: Any, x: np.ndarray, indices: Any, colour: str, label: str | None = None) -> None:
    if indices is not None:
        ringed = x[np.asarray(indices)].T
        ax.scatter(*ringed, s=52, facecolors="none", edgecolors=colour, linewidths=1, label=label, zorder=3)


def _framed(ax: Any, u: np.ndarray, v: np.ndarray) -> None:
    ax.set_xlim(u.min(), u.max())
    ax.set_ylim(v.min(), v.max())
    if ax.get_legend_handles_labels()[1]:
        ax.legend(fontsize=8, framealpha=0.9)
