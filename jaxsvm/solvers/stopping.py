"""Stop rules: a value over its threshold, at most 1 if the rule holds."""

from typing import TYPE_CHECKING, cast

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxsvm.results.fit import Certificate

if TYPE_CHECKING:
    from jaxsvm.problems.contract import Problem
    from jaxsvm.problems.forms import SimplexForm
    from jaxsvm.solvers.contract import Solver

CERTIFIED_GAP = "certified_gap"
STOP_RULES = (CERTIFIED_GAP, "relative_fw", "paper")
"""The certified relative gap of the problem (the default); `G <= tol R`; `G <= (2 tol + tol^2)(Delta^2 - R)`."""


def stop_excess(
    problem: "Problem", solver: "Solver", point: Array, s: Array, certificate: Certificate
) -> Float[Array, ""]:
    """Return the stop rule's value over its threshold: at most 1 if the rule holds.

    Args:
        problem: The problem.
        solver: The solver, for its `tol` and `stop`.
        point: A dual point; of a simplex problem in any scale.
        s: Its products.
        certificate: The certificate of the point.
    """
    tol = solver.tol
    rule = solver.stop
    if rule == CERTIFIED_GAP:
        return certificate.relative_gap / tol
    total = point.sum()
    alpha, s = point / total, s / total
    R = alpha @ s
    lowest = s.min() if problem.mask is None else jnp.where(problem.mask, s, jnp.inf).min()
    G = 2 * (R - lowest)
    if rule == "relative_fw":
        return G / (tol * jnp.abs(R))
    # Not a ratio of radii: in float32 that is a single ulp wide (docs/mathematics.md, Steps on the simplex).
    return G / ((2 * tol + tol**2) * (cast("SimplexForm", problem).diameter_squared - R))
