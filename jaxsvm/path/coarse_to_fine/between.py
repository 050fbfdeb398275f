"""Start a fit between two solved values of a path."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxsvm.errors import InputError, is_concrete
from jaxsvm.loop.driver import fit as solve
from jaxsvm.path.coarse_to_fine.grid import combination
from jaxsvm.problems.contract import require_problem
from jaxsvm.results.fit import Fit


def fit_between(problem: Any, Cs: Float[Array, " k"], fits: Fit, C: Any, tol: Any) -> Fit:
    """Return the certified fit at a value C, from the two solved values around it, or the one that is nearest.

    Args:
        problem: The problem of the path.
        Cs: Its values, `(k,)`, in any order.
        fits: Their fits, an axis of k first.
        C: The value, positive, `()`.
        tol: The relative duality gap to certify.

    Raises:
        InputError: On a problem or value that cannot be used.
    """
    require_problem(problem)
    n, k = fits.alpha.shape[-1], fits.alpha.shape[0]
    if fits.alpha.ndim != 2 or problem.n != n or problem.parameter is None:
        raise InputError(f"problem is a {type(problem).__name__} of {problem.n} samples: that of the path is needed.")
    if np.ndim(C) or (is_concrete(C) and not 0 < float(C) < np.inf):
        raise InputError(f"C is {C}: a positive number is needed.")
    here: Any = problem.at(C)
    order = jnp.argsort(Cs)
    above = jnp.clip(jnp.searchsorted(Cs[order], C), 1, max(k - 1, 1))
    low, high = order[above - 1], order[jnp.minimum(above, k - 1)]
    width = Cs[high] - Cs[low]
    w = jnp.clip(jnp.where(width > 0, (C - Cs[low]) / jnp.where(width > 0, width, 1), 0), 0, 1)
    if here.kind == "squared hinge":
        ends = [(problem.y * fits.dual_coef[end], fits.margins[end]) for end in (low, high)]
        start, _ = combination.function(here.ridge, *ends, 1.0)
    else:  # dual variables of a hinge are linear in C while no sample changes sides
        start = (1 - w) * fits.alpha[low] + w * fits.alpha[high]
    return solve(here, init=start, tol=tol)  # weights are certified before any step is taken
