"""Safe sample screening: samples whose dual variables are known before a problem is solved, or while it is."""

from jaxsvm.screening.dynamic import gap_safe
from jaxsvm.screening.rules import Screening, ball_test_1, ball_test_2, dvi, intersection_test

__all__ = ["Screening", "ball_test_1", "ball_test_2", "dvi", "gap_safe", "intersection_test"]
