"""Solvers around other solvers: sampled, polished, screened, and the hinge form of slack problems."""
