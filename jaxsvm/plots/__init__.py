"""Pictures of results, each drawn on matplotlib axes without pyplot and without global state.

A function makes a figure of its own if it is given no axes: `path_scores(validated).figure.savefig("scores.png")`.
"""

from jaxsvm.plots.pictures import (
    bracket,
    convergence,
    decision_boundary,
    path_figure,
    path_margin,
    path_scores,
    path_support,
    water_level,
    width_scores,
)

__all__ = [
    "bracket",
    "convergence",
    "decision_boundary",
    "path_figure",
    "path_margin",
    "path_scores",
    "path_support",
    "water_level",
    "width_scores",
]
