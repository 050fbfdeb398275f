"""Semismooth Newton: `Newton` in features (`solver.py`) or by kernel values (`kernel.py`), and `FeatureNewton`."""

from jaxsvm.solvers.simplex.newton.solver import Newton

__all__ = ["Newton"]
