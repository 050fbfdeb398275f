"""Working sets: blocks of samples, each solved by itself, with their kernel rows at hand."""

from jaxsvm.solvers.working_set.solver import State, WorkingSet

__all__ = ["State", "WorkingSet"]
