"""Regularisation paths: many values of C, from one call.

`solve.py` chooses how. `coarse_to_fine` is for squared-hinge problems without a free bias. The others are chains:
`chains.py` goes from one C to the next when the fit before has ended, whatever its status, and `carried_chain.py` is
how hinge problems do it with few kernel rows. Coarse to fine tries no larger C once a gap stays far above `tol`.
"""

from jaxsvm.path.solve import Path, solve_path

__all__ = ["Path", "solve_path"]
