"""Solvers around others: sampled and polished on the simplex, and the hinge form of slack problems."""
