"""Compute exact sensitivities, one convex programme for each point and level (Dinkelbach 1967).

For a level tau the concave function `u f(p) - tau F` has a positive maximum as long as tau is below the sensitivity.
Where the hinge of p is positive it is linear, so the maximum is a weighted SVM with a linear term,

    min  1/2 (tau - rho) |w|^2 + (1 - tau) C u_p y_p f(x_p) + tau C sum_{q != p} u_q h_q,    rho = u_p / U or 0,

and the ratio at its solution is the next tau: five or six programmes a point, quadratic convergence. An oracle for
tests and small data, O(n^2 d^2) for all points. The paper calls them intractable.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from jaxsvm.coresets.construction.queries import hinges, objectives
from jaxsvm.coresets.construction.sensitivity import require_choice
from jaxsvm.coresets.data import as_data, centred
from jaxsvm.coresets.pilot import solve
from jaxsvm.runtime.checks import require_positive


def exact_sensitivity(
    x: Any, y: Any, C: float, sample_weight: Any = None, *, regulariser: str = "pinned", index: Any = None
) -> np.ndarray:
    """Return the sensitivities of some points, `(k,)` float64: from below, with a relative error of 1e-6.

    Args:
        x: Points, `(n, d)`.
        y: Signs in {-1, +1}, `(n,)`.
        C: The factor of the loss, positive.
        sample_weight: Weights, `(n,)`, not negative.
        regulariser: "pinned" or "scaled": whether a point's cost has its share of `1/2 |w|^2`.
        index: Which points, `(k,)`; None: all.

    Raises:
        InputError: If an argument cannot be used.
    """
    require_choice("regulariser", regulariser, ("pinned", "scaled"))
    require_positive("C", C)
    x, y, u = as_data(x, y, sample_weight)
    points = np.arange(len(y)) if index is None else np.asarray(index)
    with jax.enable_x64(True):
        return np.asarray(_exact(x, y, u, float(C), points, regulariser == "scaled"))


@partial(jax.jit, static_argnames="scaled")
def _exact(x: Array, y: Array, u: Array, C: Any, points: Array, scaled: bool) -> Float[Array, " k"]:
    x = centred(x, u)
    at = solve(x, y, C * u, tol=1e-10)
    best = jnp.append(at.w, at.b)
    U = u.sum()

    def of_point(p: Array) -> Array:
        rho = u[p] / U if scaled else jnp.zeros_like(U)
        of_class = jnp.where(y == y[p], u, 0).sum()

        def ratio(v: Array) -> Array:
            h = hinges(x, y, v[None])
            own = rho * 0.5 * (v[:-1] @ v[:-1]) + C * u[p] * h[p, 0]
            F = objectives(v[None], h, u, C)[0]
            return jnp.where(jnp.isfinite(F) & (F > 0), own / F, 0)

        def next_level(tau: Array) -> Array:
            scale = jnp.maximum(tau - rho, 1e-12)
            costs = jnp.where(jnp.arange(len(u)) == p, 0, tau * C * u / scale)
            linear = (1 - tau) * C * u[p] * y[p] / scale * jnp.append(x[p], 1.0)
            maximum = solve(x, y, costs, linear=linear, tol=1e-9)
            return ratio(jnp.append(maximum.w, maximum.b))

        def rise(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            tau, _, step = carry
            new = next_level(tau)
            return jnp.maximum(new, tau), new <= tau * (1 + 1e-7), step + 1

        floor = jnp.maximum(u[p] / of_class, ratio(best))
        start = jnp.maximum(1.005 * u[p] / of_class, ratio(best))
        first = next_level(start)
        tau, _, _ = lax.while_loop(
            lambda carry: ~carry[1] & (carry[2] < 30) & (carry[0] < 1),
            rise,
            (jnp.maximum(floor, first), first <= floor, jnp.zeros((), jnp.int32)),
        )
        return jnp.where(u[p] > 0, jnp.where(start < 1, jnp.minimum(tau, 1), 1), 0)

    return lax.map(of_point, jnp.asarray(points))
