"""Many values of C at once, coarse to fine: the schedule behind `solve_path` and `cross_validate`.

A *ladder* is one problem (a fold, a class) at increasing values of C. Its *anchors*, a factor `ANCHOR_RATIO` apart, are
solved first; between two solved values the one in the middle starts from their mean in primal scale, weighted so that
the path is nearly straight (`TURN`). A mean of dual points is one, and its error is of second order: for larger C it
is mostly within a gap of 1e-4 as it stands, so that most of a grid of 64 values costs one product each.

Values with `C mean(K_ii) <= EASY` of all ladders run as lanes of the block Newton method: a lane that ends loads the
next value whose parents are solved. Larger ones run as chains of pair steps on what can still be support: the kernel
matrix of those samples, cut out and stored. Every answer is certified on the whole problem, from scratch, many values
to one product with the kernel matrix.
"""

from jaxsvm.refinement.ladder import Ladder
from jaxsvm.refinement.solve import solve_ladders

__all__ = ["Ladder", "solve_ladders"]
