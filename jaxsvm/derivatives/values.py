"""The parts of a solution that have derivatives: the values of a fit, and the sets of samples that they depend on."""

from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

if TYPE_CHECKING:
    from jaxsvm.problems.contract import Problem


class Values(NamedTuple):
    """The fields of a `Fit` that have derivatives."""

    alpha: Float[Array, " n"]
    dual_coef: Float[Array, " n"]
    bias: Float[Array, ""]
    R: Float[Array, ""]
    margins: Float[Array, " n"]


class Active(NamedTuple):
    """Samples whose coefficients solve the linear system, and those that stay at their upper bound: `(n,)` each.

    `present` holds coefficients, `(n,)`: free samples that depend linearly on others keep theirs. None if no system can
    be singular.
    """

    free: Bool[Array, " n"]
    bound: Bool[Array, " n"]
    present: Any = None


def values_of(fit: Any) -> Values:
    """Return the values of a fit."""
    return Values(*(getattr(fit, name) for name in Values._fields))


def negligible(problem: "Problem", point: Float[Array, " n"]) -> tuple[Any, Float[Array, " n"]]:
    """Return the errors of coefficients (relative to bounds) and of products that change no active set.

    Both exceed rounding: else samples at a kink would change sets again and again.
    """
    eps, size = jnp.finfo(problem.dtype).eps, jnp.sqrt(jnp.maximum(problem.diagonal, 0))
    return eps**0.6, 64 * eps * size * (jnp.abs(point) @ size)
