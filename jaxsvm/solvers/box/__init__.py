"""Solvers of hinge problems, between bounds."""
