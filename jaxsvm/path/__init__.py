"""Regularisation paths: many values of C, from one call.

`solve.py` chooses how. `coarse_to_fine` is for squared-hinge problems without a free bias. The others are chains:
`chains.py` goes from one C to the next when the fit before has ended, `next_problem.py` prepares and solves the next
problem of a `ScreenedChain`, and `reduction.py` holds the reductions.
"""

from jaxsvm.path.solve import Path, solve_path

__all__ = ["Path", "solve_path"]
