"""Regularisation paths: many values of C, from one call."""

from jaxsvm.path.solve import Path, solve_path

__all__ = ["Path", "solve_path"]
