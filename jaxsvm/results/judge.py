"""The only judge of certificates: what a primal and a dual value prove, and whether a solve has converged.

Problems, estimators, paths and joins all certify their points here. A pair of values proves nothing if the dual point
is infeasible, if a number is NaN, or if the dual exceeds the primal by more than rounding explains: by weak duality
some product, sum or point is then wrong, and no gap is known. Whether the matrix is positive semidefinite is decided
in `jaxsvm.problems.certificates.definiteness`; `refused` applies the result, and `verdict` asks for it.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from jaxsvm.results.fit import Answer, Certificate, Counters, Fit, Status


def judged(primal: Any, dual: Any, gap: Any, scale: Any, *, rounding: Any, feasible: Any = True) -> Certificate:
    """Return the certificate of a primal and a dual value, of NumPy or JAX; infinite if they prove nothing.

    Args:
        primal: Upper bound of the optimum.
        dual: Lower bound of the optimum.
        gap: Primal minus dual with an allowance for rounding, best computed as a sum of non-negative terms.
        scale: What the gap is relative to, in the same units; if it is not positive, only a gap of 0 is known.
        rounding: By how much rounding may have made the gap too small, >= 0: a gap below `-rounding` is refused.
        feasible: Whether the dual point is feasible.
    """
    xp = _library_of(primal, dual, gap, scale)
    sound = feasible & (gap >= -rounding) & ~xp.isnan(dual)  # no comparison holds for a gap of NaN
    known = sound & ((scale > 0) | (gap == 0)) & (scale < xp.inf)
    relative = xp.maximum(gap, 0) / xp.where(scale > 0, scale, 1)
    return Certificate(
        primal=xp.where(sound, primal, xp.inf),
        dual=xp.where(sound, dual, -xp.inf),
        relative_gap=xp.where(known, relative, xp.inf),
    )


def verdict(certificate: Certificate, tol: Any, *, finite: Any, definite: Any, otherwise: Any = Status.STALLED) -> Any:
    """Return how a solve ended, as a code: the only function that concludes CONVERGED.

    An infeasible dual point has no gap (`judged`).

    Args:
        certificate: What is known of the point.
        tol: The relative gap up to which it has converged.
        finite: Whether all numbers of the point are finite.
        definite: Whether the kernel or a test says that the matrix is positive semidefinite: else a gap proves nothing.
        otherwise: The code of a larger gap.
    """
    xp = _library_of(*certificate, tol, finite, definite, otherwise)
    proven = xp.isfinite(certificate.primal - certificate.dual) & (certificate.relative_gap <= tol)
    otherwise = xp.where(otherwise == Status.CONVERGED, Status.STALLED, otherwise)  # by a verdict on other values
    code = xp.where(definite, xp.where(proven, Status.CONVERGED, otherwise), Status.NOT_PSD)
    return xp.where(finite, code, Status.NOT_FINITE).astype(np.int32)


def concluded(answer: Answer, tol: Any, counters: Counters, *, definite: Any, otherwise: Any = Status.STALLED) -> Fit:
    """Return the fit of a certified point, with its verdict; 0 in place of a point that is not finite."""
    finite = jnp.isfinite(answer.margins).all() & jnp.isfinite(answer.alpha).all() & jnp.isfinite(answer.bias)
    code = verdict(answer.certificate, tol, finite=finite, definite=definite, otherwise=otherwise)
    point, wrong = jax.tree.map(lambda part: jnp.where(finite, part, 0), answer), jnp.logical_not(finite & definite)
    return point._replace(certificate=refused(answer.certificate, wrong)).fit(code, counters)


def _library_of(*parts: Any) -> Any:
    """Return NumPy if all numbers are of the host, else JAX's."""
    return np if all(isinstance(part, (bool, int, float, np.generic, np.ndarray)) for part in parts) else jnp


def better_answer(new: Answer, old: Answer, better: Any, level: bool) -> Answer:
    """Return the better w of two answers with the better dual variables; one of them whole if a gap is infinite.

    The w of the new one is not made of its dual variables; `better`: it is better as a whole; `level`: w has the lower
    value (of a slack problem: its level), not the upper one.
    """
    (upper, lower, gap), (primal, dual, before) = new.certificate, old.certificate
    apart = (gap < jnp.inf) & (before < jnp.inf)
    falls, rises = (jnp.where(apart, part, better) for part in (upper < primal, lower > dual))
    of_w, of_dual = (rises, falls) if level else (falls, rises)
    best: Answer = jax.tree.map(lambda a, b: jnp.where(of_w, a, b), new, old)
    primal, dual = jnp.where(falls, upper, primal), jnp.where(rises, lower, dual)
    rounding = 4 * jnp.finfo(dual.dtype).eps * (jnp.abs(primal) + jnp.abs(dual))
    mixed = judged(primal, dual, primal - dual + rounding, jnp.abs(dual), rounding=0).relative_gap
    gap = jnp.where(falls == rises, jnp.where(falls, gap, before), jnp.minimum(mixed, jnp.minimum(gap, before)))
    return best._replace(alpha=jnp.where(of_dual, new.alpha, old.alpha), certificate=Certificate(primal, dual, gap))


def relative_to(certificate: Certificate, floor: Any) -> Certificate:
    """Return a certificate whose gap is relative to at least `floor` where the optimum may be 0 beside it."""
    primal, dual, _ = certificate
    gap, scale = primal - dual, jnp.maximum(jnp.abs(dual), jnp.where(primal <= 1.1 * floor, floor, 0))
    return certificate._replace(relative_gap=jnp.where((scale > 0) & (gap < jnp.inf), gap / scale, jnp.inf))


def refused(certificate: Certificate, wrong: Any) -> Certificate:
    """Return a certificate that proves nothing wherever `wrong` holds, say because the matrix is not semidefinite."""
    nothing = Certificate(jnp.inf, -jnp.inf, jnp.inf)  # pyright: ignore[reportArgumentType]
    return jax.tree.map(lambda none, given: jnp.where(wrong, none, given), nothing, certificate)


def narrowed(certificate: Certificate, dtype: Any) -> Certificate:
    """Convert a certificate to a dtype; values out of its range are clipped to bounds that are valid, without a gap."""
    largest = float(jnp.finfo(dtype).max)
    primal, dual, relative_gap = certificate
    gap = jnp.where(jnp.maximum(primal, -dual) > largest, jnp.inf, relative_gap)
    bounded = Certificate(jnp.maximum(primal, -largest), jnp.minimum(dual, largest), gap)
    return jax.tree.map(lambda value: value.astype(dtype), bounded)


def in_dtype(answer: Answer, dtype: Any) -> Answer:
    """Convert a certified point to a dtype, its certificate by `narrowed`."""
    narrow = jax.tree.map(lambda leaf: leaf.astype(dtype), answer)
    return narrow._replace(certificate=narrowed(answer.certificate, dtype))


def is_weights(alpha: Array, present: Array) -> Bool[Array, ""]:
    """Return whether dual variables are non-negative, and 0 for absent samples."""
    return ((alpha == 0) | (present & (alpha > 0))).all()


def balances(off: Array, size: Array, dtype: Any) -> Bool[Array, ""]:
    """Return whether an equality is missed, `off = c'a - e`, up to rounding; `size` is `|c|'|a| + |e|`."""
    # 32 units of rounding of the dtype, and 1e-12 for millions of pair steps in float64, each of which rounds twice.
    return jnp.abs(off) <= (32 * float(jnp.finfo(dtype).eps) + 1e-12) * size
