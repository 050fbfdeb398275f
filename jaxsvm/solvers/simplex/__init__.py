"""Solvers of squared-hinge problems and enclosing balls, on the simplex."""
