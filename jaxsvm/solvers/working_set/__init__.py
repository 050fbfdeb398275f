"""Working sets: blocks of samples, each solved with all others fixed, and a cache of kernel rows."""

from jaxsvm.solvers.working_set.solver import State, WorkingSet

__all__ = ["State", "WorkingSet"]
