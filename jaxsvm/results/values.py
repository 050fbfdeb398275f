"""The parts of a solution that have derivatives: the values of a fit, and the sets of samples that they depend on."""

from typing import Any, NamedTuple

from jaxtyping import Array, Bool, Float


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


class Point(NamedTuple):
    """A solution: coefficients `(n,)`, the multiplier b of the equality `()`, and products `Q a + b c`, `(n,)`."""

    a: Float[Array, " n"]
    b: Float[Array, ""]
    products: Float[Array, " n"]
