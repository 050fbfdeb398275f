"""Pictures, without pyplot and without global state: functions that take results, draw on matplotlib axes, return them.

Each makes a figure of its own where no axes are given: `path_scores(found).figure.savefig("scores.png")`.
"""

from jaxsvm.plots.convergence import convergence
from jaxsvm.plots.decision import decision_boundary, enclosing_ball
from jaxsvm.plots.measured import coreset_error, learning_curve, relational_certificate, screening_rates
from jaxsvm.plots.path import path_figure, path_margin, path_scores, path_support

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
]
