"""Transformations of a solver into a solver."""
