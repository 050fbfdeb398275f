"""Read centre, radius and coreset of a minimum enclosing ball from a fit (Badoiu and Clarkson 2003)."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxsvm.errors import InputError
from jaxsvm.loop.driver import fit as solve
from jaxsvm.loop.interruption import watching
from jaxsvm.problems.forms import furthest
from jaxsvm.results.fit import Fit
from jaxsvm.runtime.transfers import transfers
from jaxsvm.solvers.simplex.frank_wolfe import FrankWolfe


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Ball:
    """A ball in feature space around the points of a problem.

    Attributes:
        weights: The centre is `sum_i weights_i phi(x_i)`, `(n,)`.
        radius: Of a ball around that centre that covers every point, `()`.
        lower_radius: No ball that covers every point has a smaller radius, `()`.
        squared_norm: Of the centre, `()`.
    """

    weights: Float[Array, " n"]
    radius: Float[Array, ""]
    lower_radius: Float[Array, ""]
    squared_norm: Float[Array, ""]

    @property
    def coreset(self) -> Int[np.ndarray, " q"]:
        """Indices of the points that the centre is made of, on the host."""
        return np.flatnonzero(np.asarray(self.weights) > 0)

    def centre(self, x: Float[Array, "n d"]) -> Float[Array, " d"]:
        """The centre in input space, `(d,)`: for the linear kernel, whose feature space that is."""
        x = jnp.asarray(x)
        mean = x.mean(axis=0)  # weights that sum to 1 but for rounding would move a far mean by a rounding of its place
        return mean + (self.weights / self.weights.sum()) @ (x - mean)


@transfers
def ball(fit: Fit, problem: Any) -> Ball:
    """The ball of a fit.

    Args:
        fit: A fit of `problem`.
        problem: From `meb_problem`; or from `svm_problem` where the diagonal of `Kt` is constant (RBF without weights,
            say): then the SVM is the ball of the points `(y_i phi(x_i), y_i, e_i / sqrt(C))`.

    Returns:
        The ball, with its radius from above and from below.

    Raises:
        InputError: For an SVM with a diagonal that varies: its solution is no ball.
    """
    upper, lower, squared_norm = problem.enclosing(fit)
    return Ball(fit.alpha, jnp.sqrt(upper), jnp.sqrt(lower), squared_norm)


@transfers
def is_coreset(problem: Any, subset: Any, eps: float, *, tol: float = 1e-6, solver: Any = None) -> bool:
    """Whether the ball of a subset, inflated to `(1 + eps)` times its radius, covers every point.

    Args:
        problem: As for `ball`.
        subset: Indices of the subset, `(q,)`.
        eps: The inflation, > 0.
        tol: To which relative gap the subset's ball is computed.
        solver: For the subset's ball; None takes second-order pairs.

    Returns:
        True only where it is certain: the covering radius is taken from above, the subset's from below.

    Raises:
        InputError: On an empty subset, or eps <= 0.
    """
    indices = np.unique(np.asarray(subset, dtype=int))
    if indices.size == 0 or not eps > 0:
        raise InputError(f"subset has {indices.size} indices and eps is {eps}: at least one, and eps > 0, are needed.")
    problem.require_ball()
    inside = problem.weighted(np.isin(np.arange(problem.n), indices).astype(float))
    with watching() as stop:
        found = solve(inside, FrankWolfe(tol=tol) if solver is None else solver)
    if stop.seen:  # there is no answer, and False would be one
        raise KeyboardInterrupt
    reach = furthest(problem, found.alpha, inside.matvec(found.alpha))
    _, lower, _ = inside.enclosing(found)
    certain = np.isfinite(np.asarray(found.certificate.relative_gap))  # of a point that is none, no radius is known
    return bool(certain & (jnp.sqrt(reach) <= (1 + eps) * jnp.sqrt(jnp.maximum(lower, 0))))
