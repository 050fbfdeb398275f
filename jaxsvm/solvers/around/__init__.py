"""Solvers around another solver: sampled, polished, screened, and the hinge form of slack problems."""
