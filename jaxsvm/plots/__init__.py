"""Pictures of results, without pyplot: drawn into `ax=`, else `path_scores(validated).figure.savefig("scores.png")`.

In a notebook a picture shows as the last expression of a cell or by `display(figure)`; `plt.show()` shows none.
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
