"""Safe sample screening: samples whose dual variables are known before a problem is solved, or while it is."""

from jaxsvm.path.epsilon import EpsilonPath, epsilon_path
from jaxsvm.path.screening_report import Report, screening_report
from jaxsvm.screening.dome import dome_test
from jaxsvm.screening.dynamic import gap_safe
from jaxsvm.screening.reduction import Safe
from jaxsvm.screening.rules import Screening, ball_test_1, ball_test_2, dvi, intersection_test

__all__ = [
    "EpsilonPath",
    "Report",
    "Safe",
    "Screening",
    "ball_test_1",
    "ball_test_2",
    "dome_test",
    "dvi",
    "epsilon_path",
    "gap_safe",
    "intersection_test",
    "screening_report",
]
