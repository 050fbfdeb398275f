"""A screening rule as a reduction of a path: what it leaves out is certain, where a heuristic's is likely."""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array

from jaxsvm.problems.contract import Restrictable
from jaxsvm.results.fit import Fit
from jaxsvm.screening.rules import Rule


@dataclasses.dataclass(frozen=True)
class Safe:
    """`solve_path(reduction=Safe(rule))`, for any solver: what the rule knows keeps its value.

    Attributes:
        rule: As `jaxsvm.screening.intersection_test`.
    """

    rule: Rule

    def __call__(self, old: Restrictable, fit: Fit, new: Restrictable) -> tuple[Array, Array]:
        """What is not known, and the values of the others, each `(n,)` (`jaxsvm.path.reduction.Kept`)."""
        found = self.rule(new, fit, old.C)
        return ~found.screened, jnp.where(found.at_bound, new.upper, 0)
