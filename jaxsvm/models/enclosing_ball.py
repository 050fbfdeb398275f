"""Read centre, radius and coreset of a minimum enclosing ball from a fit (Badoiu and Clarkson 2003)."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import ArrayLike

from jaxsvm.errors import require, require_part
from jaxsvm.loop.driver import fit as solve
from jaxsvm.loop.interruption import watching
from jaxsvm.problems.ball import BallProblem
from jaxsvm.problems.contract import furthest
from jaxsvm.problems.squared_hinge import SquaredHingeProblem
from jaxsvm.results.fit import Fit, require_fit
from jaxsvm.runtime.arrays import in_a_line, require_positive, transfers
from jaxsvm.solvers.simplex.frank_wolfe import FrankWolfe

BALLS = "one of `meb_problem` or `svm_problem` is needed"


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Ball:
    """A ball in feature space around the points of a problem.

    Attributes:
        weights: Weights of the centre `sum_i weights_i phi(x_i)`, `(n,)`.
        radius: Radius of a ball around that centre that covers every point, `()`.
        lower_radius: Lower bound on the radius of any ball that covers every point, `()`.
        squared_norm: Squared norm of the centre, `()`.
    """

    __repr__ = in_a_line

    weights: Float[Array, " n"]
    radius: Float[Array, ""]
    lower_radius: Float[Array, ""]
    squared_norm: Float[Array, ""]

    @property
    def coreset(self) -> Int[np.ndarray, " q"]:
        """Return the indices of the points of positive weight, on the host, `(q,)`."""
        return np.flatnonzero(np.asarray(self.weights) > 0)

    def centre(self, x: Float[Array, "n d"]) -> Float[Array, " d"]:
        """Return the centre in input space, `(d,)`; for the linear kernel only, whose feature space it is."""
        x = jnp.asarray(x)
        mean = x.mean(axis=0)  # a far mean would move by the rounding of the weights' sum
        return mean + ((self.weights / self.weights.sum())[:, None] * (x - mean)).sum(axis=0)


@transfers
def ball(fit: Fit, problem: BallProblem | SquaredHingeProblem) -> Ball:
    """Return the ball of a fit, with its radius bounded from above and from below.

    Args:
        fit: A fit of `problem`.
        problem: From `meb_problem`, or from `svm_problem` if the diagonal of `Kt` is constant (RBF without weights,
            say): then the SVM is the ball of the points `(y_i phi(x_i), y_i, e_i / sqrt(C))`.

    Raises:
        InputError: For an SVM whose diagonal varies: its solution is no ball.
    """
    require_fit(fit)
    require_part("problem", problem, "enclosing", BALLS)
    upper, lower, squared_norm = problem.enclosing(fit)
    return Ball(fit.alpha, jnp.sqrt(upper), jnp.sqrt(lower), squared_norm)


@transfers
def is_coreset(problem: BallProblem | SquaredHingeProblem, subset: ArrayLike, eps: float, *, tol: float = 1e-6) -> bool:
    """Return whether the ball of a subset, inflated to `(1 + eps)` times its radius, covers every point.

    Args:
        problem: From `meb_problem`, or from `svm_problem` if the diagonal of `Kt` is constant.
        subset: Indices of the subset, `(q,)`, from 0 to n - 1; or which samples it has, booleans `(n,)`.
        eps: The inflation, > 0.
        tol: Relative gap to which the subset's ball is computed.

    Returns:
        True only if it is certain: the covering radius is taken from above, the subset's from below.
    """
    require_part("problem", problem, "enclosing", BALLS)
    problem.require_ball()
    require_positive("eps", eps)
    kept = _members(subset, np.asarray(problem.present))
    if isinstance(problem, BallProblem):
        inside: Any = problem.weighted(kept.astype(float))
    else:  # a ball needs no second class
        inside = dataclasses.replace(problem, weight=jnp.where(kept, problem.weights, 0))
    with watching() as stop:
        fitted = solve(inside, FrankWolfe(tol=tol))
    stop.check()  # neither True nor False is known
    reach = furthest(problem, fitted.alpha, inside.matvec(fitted.alpha))
    _, lower, _ = inside.enclosing(fitted)
    certain = np.isfinite(np.asarray(fitted.certificate.relative_gap))
    return bool(certain & (jnp.sqrt(reach) <= (1 + eps) * jnp.sqrt(jnp.maximum(lower, 0))))


def _members(subset: ArrayLike, present: Bool[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
    """Return which samples a subset has, of those present; refuse what is neither indices nor booleans."""
    n, given = len(present), np.asarray(subset)
    places = np.flatnonzero(given) if given.dtype == bool and given.shape == (n,) else given
    sound = places.ndim == 1 and places.size > 0 and places.dtype.kind in "iu" and 0 <= places.min() <= places.max() < n
    need = f"indices from 0 to {n - 1}, or {n} booleans, are needed, with a sample of positive weight."
    whole = bool(sound and present[places].any())
    require(whole, f"subset is {given.dtype} {np.array2string(given, threshold=5)}: {need}")
    return present & np.isin(np.arange(n), places)
