"""Numerical algorithms that know nothing of support vector machines."""
