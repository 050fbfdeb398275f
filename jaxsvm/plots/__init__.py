"""Pictures of results, each drawn on matplotlib axes without pyplot and without global state.

A function makes a figure of its own if it is given no axes: `path_scores(validated).figure.savefig("scores.png")`.
"""

from jaxsvm.plots.decision import decision_boundary, enclosing_ball
from jaxsvm.plots.measurements import (
    convergence,
    coreset_error,
    learning_curve,
    relational_certificate,
    screening_rates,
)
from jaxsvm.plots.path import path_figure, path_margin, path_scores, path_support, width_scores

__all__ = [
    "convergence",
    "coreset_error",
    "decision_boundary",
    "enclosing_ball",
    "learning_curve",
    "path_figure",
    "path_margin",
    "path_scores",
    "path_support",
    "relational_certificate",
    "screening_rates",
    "width_scores",
]
