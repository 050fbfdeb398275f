"""Semismooth Newton: `solver.py` is the configuration, `kernel.py` and `feature.py` its steps in either space."""

from jaxsvm.solvers.simplex.newton.solver import Newton

__all__ = ["Newton"]
