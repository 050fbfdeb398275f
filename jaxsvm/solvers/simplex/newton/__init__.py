"""Semismooth Newton: the configuration in `solver.py`, the steps in `kernel.py` and `feature.py`."""

from jaxsvm.solvers.simplex.newton.solver import Newton

__all__ = ["Newton"]
