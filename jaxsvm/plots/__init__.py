"""Pictures of results, each drawn on matplotlib axes without pyplot and without global state.

A function makes a figure of its own if it is given no axes: `path_scores(validated).figure.savefig("scores.png")`.
"""

from jaxsvm.plots.decision import decision_boundary, enclosing_ball
from jaxsvm.plots.path import convergence, path_figure, path_margin, path_scores, path_support, width_scores

__all__ = [
    "convergence",
    "decision_boundary",
    "enclosing_ball",
    "path_figure",
    "path_margin",
    "path_scores",
    "path_support",
    "width_scores",
]
