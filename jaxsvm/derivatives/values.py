"""What a solution is to its derivatives: the values of a fit that move, and the sets of samples that they move on."""

from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

if TYPE_CHECKING:
    from jaxsvm.problems.contract import Problem


class Values(NamedTuple):
    """What moves of a `Fit`, by its names."""

    alpha: Float[Array, " n"]
    dual_coef: Float[Array, " n"]
    bias: Float[Array, ""]
    R: Float[Array, ""]
    margins: Float[Array, " n"]


class Active(NamedTuple):
    """Samples whose coefficients solve the linear system, and those that stay at their upper bound: `(n,)` each.

    `present` is where the coefficients are, `(n,)`; None where no system can be singular. Free samples that others
    explain stay there.
    """

    free: Bool[Array, " n"]
    bound: Bool[Array, " n"]
    present: Any = None


def values_of(fit: Any) -> Values:
    """The values of a fit."""
    return Values(*(getattr(fit, name) for name in Values._fields))


def negligible(problem: "Problem", point: Float[Array, " n"]) -> tuple[Any, Float[Array, " n"]]:
    """What a coefficient (of its bound) and a product may be off by for a sample to stay where it stands.

    More than rounding: samples at a kink would go to and fro.
    """
    eps, size = jnp.finfo(problem.dtype).eps, jnp.sqrt(jnp.maximum(problem.diagonal, 0))
    return eps**0.6, 64 * eps * size * (jnp.abs(point) @ size)
