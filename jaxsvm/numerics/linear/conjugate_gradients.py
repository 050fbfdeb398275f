"""Preconditioned conjugate gradients (Hestenes and Stiefel 1952) for a symmetric positive definite system."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxsvm.runtime.loops import while_loop

Apply = Callable[[Float[Array, " n"]], Float[Array, " n"]]


class Iterate(NamedTuple):
    """An iterate of conjugate gradients.

    Attributes:
        steps: Products computed, int32 `()`.
        x: Current solution, `(n,)`.
        r: Its residual, updated recursively, `(n,)`.
        p: Next direction, `(n,)`.
        energy: `r' P^-1 r` with the preconditioner P, `()`.
        first: Energy of the first iterate, `()`.
        definite: Whether no direction of negative curvature was met, `()`.
    """

    steps: Int[Array, ""]
    x: Float[Array, " n"]
    r: Float[Array, " n"]
    p: Float[Array, " n"]
    energy: Float[Array, ""]
    first: Float[Array, ""]
    definite: Bool[Array, ""]


def conjugate_gradients(
    product: Apply,
    precondition: Apply,
    x: Float[Array, " n"],
    r: Float[Array, " n"],
    most: int,
    unfinished: Callable[[Iterate], Array],
) -> Iterate:
    """Solve `A x = b` from a first guess.

    Args:
        product: `v -> A v`.
        precondition: `r -> P^-1 r`.
        x: First guess, `(n,)`.
        r: Its residual `b - A x`, `(n,)`.
        most: Largest number of steps; static.
        unfinished: Whether to continue after an iterate.

    Returns:
        The last iterate; a NaN in a product shows in its residual.
    """

    def step(at: Iterate) -> Iterate:
        Ap = product(at.p)
        curvature = at.p @ Ap
        none = curvature <= 0  # False for NaN, which must show
        t = jnp.where(none, 0, at.energy / jnp.where(none, 1, curvature))
        x, r = at.x + t * at.p, at.r - t * Ap
        q = precondition(r)
        energy = r @ q
        p = q + energy / jnp.where(at.energy > 0, at.energy, 1) * at.p
        return Iterate(at.steps + 1, x, r, p, energy, at.first, at.definite & ~(curvature < 0))

    q = precondition(r)
    energy = r @ q
    start = Iterate(jnp.zeros((), jnp.int32), x, r, q, energy, energy, jnp.asarray(True))
    return while_loop(lambda at: (at.steps < most) & unfinished(at), step, start)
