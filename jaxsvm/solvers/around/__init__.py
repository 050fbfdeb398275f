"""Solvers around others: sampled and polished on the simplex, screened, and the hinge form of slack problems."""
