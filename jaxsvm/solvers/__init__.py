"""Solvers: one file an algorithm, named after it."""
