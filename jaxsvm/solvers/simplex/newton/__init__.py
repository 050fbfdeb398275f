"""Semismooth Newton: `Newton`, by the steps of `kernel.py` and `feature.py`, and `FeatureNewton` (`reproduced.py`)."""

from jaxsvm.solvers.simplex.newton.solver import Newton

__all__ = ["Newton"]
