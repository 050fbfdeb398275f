"""The one judge of certificates: what a primal and a dual value prove.

Every place that calls a point certified asks here: problems, estimators, paths and joins. A pair of values proves
nothing where the dual point is not feasible, where a number is NaN, or where the dual exceeds the primal by more than
rounding can make it: by weak duality a product, a sum or a point is wrong then, and no gap can be told. Whether the
matrix is positive semidefinite is asked of `jaxsvm.problems.definiteness`, and `refused` is what follows from it.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from jaxsvm.numerics.masks import every
from jaxsvm.results.fit import Certificate

EQUALITY = 32
"""Units of the dtype that a dual point may be off its equality, relative to the sum of the sizes of its terms."""
MANY_STEPS = 1e-12
"""What millions of pair steps in float64 may add to that: each rounds twice."""


def judged(primal: Any, dual: Any, gap: Any, scale: Any, *, rounding: Any, feasible: Any = True) -> Certificate:
    """Return the certificate of a primal and a dual value; infinite where they prove nothing.

    Args:
        primal: The value above the optimum, `(...)`, NumPy's or JAX's, as all arguments are.
        dual: The value below it.
        gap: The primal less the dual, with an allowance for rounding, best a sum of terms that are not negative.
        scale: What the gap is relative to, in the same units; where it is not positive only a gap of 0 is known.
        rounding: By how much rounding may have made the gap too small, >= 0: a gap below `-rounding` is refused.
        feasible: Whether the dual point is feasible.
    """
    xp: Any = (
        np if all(isinstance(part, (float, np.generic, np.ndarray)) for part in (primal, dual, gap, scale)) else jnp
    )
    sound = feasible & (gap >= -rounding) & ~xp.isnan(dual)  # NaN is not >= anything
    known = sound & ((scale > 0) | (gap == 0)) & (scale < xp.inf)
    relative = xp.maximum(gap, 0) / xp.where(scale > 0, scale, 1)
    return Certificate(
        primal=xp.where(sound, primal, xp.inf),
        dual=xp.where(sound, dual, -xp.inf),
        relative_gap=xp.where(known, relative, xp.inf),
    )


def relative_to(certificate: Certificate, floor: Any) -> Certificate:
    """Return a certificate whose gap is relative to no less than `floor`: for problems whose optimum may be 0."""
    primal, dual, _ = certificate
    gap, scale = primal - dual, jnp.maximum(jnp.abs(dual), floor)
    return certificate._replace(relative_gap=jnp.where((scale > 0) & (gap < jnp.inf), gap / scale, jnp.inf))


def refused(certificate: Certificate, wrong: Any) -> Certificate:
    """Return a certificate that proves nothing where something is `wrong`: a matrix that is not semidefinite, say."""
    infinite = certificate._replace(
        primal=jnp.full_like(certificate.primal, jnp.inf),
        dual=jnp.full_like(certificate.dual, -jnp.inf),
        relative_gap=jnp.full_like(certificate.relative_gap, jnp.inf),
    )
    return jax.tree.map(lambda none, given: jnp.where(wrong, none, given), infinite, certificate)


def narrowed(certificate: Certificate, dtype: Any) -> Certificate:
    """Return a certificate as numbers of a dtype: what is out of its range stays on its side of the optimum."""
    largest = float(jnp.finfo(dtype).max)
    primal, dual, relative_gap = certificate
    bounded = Certificate(jnp.maximum(primal, -largest), jnp.minimum(dual, largest), relative_gap)
    return jax.tree.map(lambda value: value.astype(dtype), bounded)


def is_weights(alpha: Array, present: Array) -> Bool[Array, ""]:
    """Whether dual variables are not negative, and 0 for samples that are absent."""
    return every((alpha == 0) | (present & (alpha > 0)))


def balances(off: Array, size: Array, dtype: Any) -> Bool[Array, ""]:
    """Whether an equality is missed by rounding alone.

    Args:
        off: `c'a - e`, `()`.
        size: `|c|'|a| + |e|`, `()`.
        dtype: Of the numbers of a.
    """
    return jnp.abs(off) <= (EQUALITY * float(jnp.finfo(dtype).eps) + MANY_STEPS) * size
