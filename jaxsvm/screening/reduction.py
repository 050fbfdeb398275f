"""Use a screening rule as the reduction of a path; unlike a heuristic it leaves out only certain samples."""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array

from jaxsvm.problems.contract import Restrictable
from jaxsvm.results.fit import Fit
from jaxsvm.screening.rules import Rule


@dataclasses.dataclass(frozen=True)
class Safe:
    """The reduction of `solve_path(reduction=Safe(rule))`, for any solver: screened samples keep their proven values.

    Attributes:
        rule: A rule, such as `jaxsvm.screening.intersection_test`.
    """

    rule: Rule

    def __call__(self, old: Restrictable, fit: Fit, new: Restrictable) -> tuple[Array, Array]:
        """Return the samples that are not screened, and the values of the others, each `(n,)`."""
        screening = self.rule(new, fit, old.C)
        return ~screening.screened, jnp.where(screening.at_bound, new.upper, 0)
