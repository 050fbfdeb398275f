"""Warn where the rounding of stored kernel values matters more than the certified gap."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxsvm.errors import PrecisionWarning, warn
from jaxsvm.gram.build import gram as gram_of
from jaxsvm.kernels import Linear, Precomputed
from jaxsvm.numerics.precision import cast, double, widened
from jaxsvm.numerics.sizes import LARGEST_PADDED
from jaxsvm.problems.box import BoxProblem
from jaxsvm.problems.squared_hinge import SquaredHingeProblem
from jaxsvm.results.fit import Fit, Status, Values, values_of
from jaxsvm.runtime.programs import Program


def warn_of_rounded_values(problem: Any, fits: Fit, tol: Any, Cs: Any = None) -> None:
    """Warn if the rounding of kernel values moves an optimum by more than the gap that is certified.

    A certificate holds for the values as they are stored. Rounding values up to K by a relative u moves the optimum by
    about `u K |dual_coef|^2 / 2`, and each decision value by about `s = u K |dual_coef| / sqrt(3)`, which costs each
    sample on the margin `0.4 s` with the hinge and `s^2 / 2` with its square. Of 38 random fits this estimate was over
    30 times too high in four, and never too low by more than 5 times. So where it is above a fifth of what is asked
    for, the fit of the largest estimate is certified once more, with exact values: what is said is that gap, and how
    far the stated bounds are from it (of more than 8,192 samples the estimate). A linear kernel is evaluated from its
    points, and a precomputed matrix or features are the problem itself: these pass. Of a fit that stalled twice its
    own gap is asked for. Fits of a path lie along the first axis, and `Cs` has their values of C.
    """
    if problem.kind == "nu":  # a fit is certified as that of a hinge, in whose scale its coefficients are
        problem, fits = problem.hinge_of(fits)
    gram = problem.gram
    given = isinstance(gram.kernel, Linear | Precomputed) or getattr(gram, "design", None) is not None
    wide = jnp.dtype(gram.dtype) == double(gram.dtype)
    if given or wide or not isinstance(problem, SquaredHingeProblem | BoxProblem):
        return
    coef, primal = np.asarray(fits.dual_coef, float), np.abs(np.asarray(fits.certificate.primal, float))
    square = isinstance(problem, SquaredHingeProblem)
    costs = np.asarray(problem.costs if square else problem.upper, float)
    if Cs is not None:
        costs = costs / float(problem.C) * np.asarray(Cs, float)[:, None]
    unit = float(jnp.finfo(gram.dtype).eps) / 2 * float(np.asarray(problem.squares).max())
    with np.errstate(all="ignore"):
        length = np.sqrt(np.sum(coef**2, axis=-1))
        off = unit * length / np.sqrt(3)
        on_margin = (coef != 0) if square else (coef != 0) & (np.abs(coef) < costs * (1 - 1e-6))
        each = off**2 / 2 if square else 0.4 * off
        moved = (unit * length**2 / 2 + each * np.sum(np.where(on_margin, costs, 0), axis=-1)) / primal
    code, gaps = np.asarray(fits.status.code), np.asarray(fits.certificate.relative_gap, float)
    stalled = (code == Status.STALLED) & (gaps < 1)
    asked = np.where(stalled, np.maximum(2 * gaps, tol), tol)
    moved = np.where((primal > 0) & (stalled | (code == Status.CONVERGED)), moved, 0)
    if not np.any(moved > asked / 5):
        return
    place = int(np.argmax(moved / asked))
    one = fits if moved.ndim == 0 else jax.tree.map(lambda leaf: np.asarray(leaf)[place], fits)
    near = problem if Cs is None else problem.at(np.asarray(Cs)[place])
    gap = _exact_gap(near, one) if problem.n <= LARGEST_PADDED else float(moved.flat[place])
    if not gap <= asked.flat[place]:
        where = "" if Cs is None else f" at C = {float(np.asarray(Cs)[place]):.3g}"
        warn(
            f"The optimum{where} is that of kernel values rounded to {jnp.dtype(gram.dtype)}: with exact ones the "
            f"relative gap is about {gap:.2g}, or these bounds are off by it, and {asked.flat[place]:.1g} is asked for "
            "or stated. Take float64 points (with x64 turned on), a smaller C, or a larger tol.",
            PrecisionWarning,
        )


def _exact_gap(problem: Any, fit: Fit) -> float:
    """Return a fit's relative gap for kernel values in twice the precision, never stored, or to bounds that miss it."""
    known, values = jax.tree.map(np.asarray, (problem, values_of(fit)))  # NumPy converts without programs
    with jax.enable_x64(True):
        wide = widened(known)
        on = wide.on(gram_of(known.gram.kernel, cast(known.gram.x, wide.dtype), store=False))
        exact = np.asarray(_certificate_of(on, cast(values, wide.dtype), problem.dtype), float)
    (primal, dual, gap), (high, low, _) = exact, np.asarray(fit.certificate, float)
    missed = low > primal or dual > high
    return float((max(primal, high) - min(dual, low)) / abs(dual)) if missed else float(gap)


@partial(Program, static=("dtype",))
def _certificate_of(problem: SquaredHingeProblem | BoxProblem, fit: Values, dtype: Any) -> Float[Array, " 3"]:
    if not isinstance(problem, BoxProblem):  # of a fit's R the dual value would be that of the rounded ones
        beta = jnp.maximum(fit.alpha, 0) / fit.R
        return jnp.stack(problem.certified(beta, problem.matvec(beta), dtype).certificate)
    # A corrected w is not that of alpha.
    point = jnp.stack([problem.y * fit.dual_coef, jnp.clip(fit.alpha, 0, problem.upper)])
    sums, bias = jnp.stack([problem.matvec(each) for each in point]), fit.bias if problem.free_bias else None
    return jnp.stack(problem.certified(point, sums, dtype, bias).certificate)
