"""The gap-safe rule: screen a problem by any of its points, on the way to the solution.

For the hinge it uses the ball of `jaxsvm.screening.ball` with `w = w_a`, whose radius is at most the root of the gap:
the published radius over the root of 2. (A multiple of the dual point may have a smaller one.) For the squared hinge it
combines that ball with two on the simplex (docs/mathematics.md, Safe screening).

Sources: Ndiaye, Fercoq, Gramfort and Salmon 2017 (gap-safe rules); Raj et al. 2016 (simplex). The balls are new here.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array
from numpy.typing import ArrayLike

from jaxsvm.problems.contract import Restrictable
from jaxsvm.results.fit import Fit
from jaxsvm.screening.ball import first_ball
from jaxsvm.screening.reference import Reference, best_scale, screenable
from jaxsvm.screening.rules import Screening, decided, screened_by


def gap_safe(problem: Restrictable, reference: Fit, C_ref: ArrayLike | None = None) -> Screening:
    """Screen a problem by a point of it; a smaller gap screens more samples.

    Args:
        problem: The problem to screen, with a regularised bias or none.
        reference: A fit of it, at any gap; or of the same samples at another C.
        C_ref: Not used; all rules take it.

    Returns:
        The screening, as `jaxsvm.screening.ball_test_1`; `C_until` is the problem's C.

    Raises:
        InputError: As `jaxsvm.screening.ball_test_1`.
    """
    del C_ref
    return screened_by(screenable(problem), reference, None, _of_a_point)


def _of_a_point(wide: Restrictable, reference: Reference, dtype: Any) -> Screening:
    """Screen a problem by a reference that is a point of it; inside `in_double`.

    Args:
        wide: The problem, in twice the precision.
        reference: A point of it; its `rho` is not used.
        dtype: Dtype of the bounds.
    """
    rho = best_scale(wide, reference.a, reference.p, reference.W)
    low, high = first_ball(wide, reference._replace(rho=rho)).bounds(reference.size)
    screening = decided(wide, low, high, wide.C, dtype)
    if wide.bounded or not wide.gram.definite:
        return screening
    inactive = screening.inactive | (wide.present & _outside_on_simplex(wide, reference))
    return screening._replace(inactive=inactive, C_until=jnp.where(inactive, wide.C.astype(dtype), jnp.nan))


def _outside_on_simplex(wide: Restrictable, reference: Reference) -> Array:
    """Return the samples that have no weight by the geometry of the enclosing ball.

    With `h = H alpha` of a point on the simplex, `V = alpha . h`, `m = min h` and `g = V - m`, the solution v* is
    within `sqrt(g)` of `v = sum_i alpha_i z_i` (points with a coordinate more each, for the ridge), and in the dome
    `|v* - v / 2| <= sqrt(V) / 2`, `v . v* >= m`; a sample has no weight where `z_i . v* > |v*|^2` for all v* there.
    """
    a, p, error, size, W, _, unit = reference
    total = a.sum()
    alpha = a / jnp.where(total > 0, total, 1)
    h = p / jnp.where(total > 0, total, 1) + wide.ridge * alpha
    off = error / jnp.where(total > 0, total, 1) + unit * jnp.abs(h)
    length = jnp.sqrt(size**2 + wide.ridge) * (1 + unit)
    present = wide.present
    V = alpha @ h
    doubt = unit * (V + W / jnp.where(total > 0, total, 1) ** 2) + alpha @ off
    m = jnp.where(present, h - off, jnp.inf).min()
    g = jnp.maximum(V + doubt - m, 0)
    clear = jnp.where(present, h + off, jnp.inf).min()  # not below the true minimum
    near = (h - off - jnp.sqrt(g) * length > clear) & (4 * g * (1 + 8 * unit) < length**2)
    # The smallest ball around the dome.
    V_high = jnp.maximum(V + doubt, 0)
    deep = m >= V_high / 2
    c = jnp.where(deep, m / jnp.where(V_high > 0, V_high, 1), 0.5)
    r = jnp.where(deep, jnp.sqrt(jnp.maximum(m * g / jnp.where(V_high > 0, V_high, 1), 0)), jnp.sqrt(V_high) / 2)
    r = r * (1 + 8 * unit)
    dome = (c * (h - off) - r * length > c**2 * V_high - r**2 + doubt) & (2 * r < length)
    return (total > 0) & (near | dome)
