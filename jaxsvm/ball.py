"""The minimum enclosing ball of any data set: centre, radius and coreset, from a fit of `meb_problem`."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxsvm.errors import InputError
from jaxsvm.problem import BallProblem
from jaxsvm.result import Fit


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Ball:
    """A ball in feature space around the points of a `BallProblem`.

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
        return self.weights @ x


def ball(fit: Fit, problem: BallProblem) -> Ball:
    """The ball of a fit.

    Args:
        fit: A fit of `problem`.
        problem: From `meb_problem`.

    Returns:
        The ball, with its radius from above and from below.

    Raises:
        InputError: Where the problem is another one.
    """
    if not isinstance(problem, BallProblem):
        raise InputError(f"problem is a {type(problem).__name__}: `ball` reads a fit of `meb_problem`.")
    squared_norm = fit.R + problem.squares @ fit.alpha
    certificate = fit.certificate
    lower = jnp.sqrt(jnp.maximum(certificate.dual, 0))
    return Ball(fit.alpha, jnp.sqrt(jnp.maximum(certificate.primal, 0)), lower, squared_norm)


def is_coreset(problem: BallProblem, subset: Any, eps: float, *, tol: float = 1e-6, solver: Any = None) -> bool:
    """Whether the ball of a subset, inflated to `(1 + eps)` times its radius, covers every point (spec 1.6).

    Args:
        problem: From `meb_problem`.
        subset: Indices of the subset, `(q,)`.
        eps: The inflation, > 0.
        tol: To which relative gap the subset's ball is computed.
        solver: For the subset's ball; None takes second-order pairs.

    Returns:
        True only where it is certain: the covering radius is taken from above, the subset's from below.

    Raises:
        InputError: On an empty subset, or eps <= 0.
    """
    from jaxsvm.loop import fit
    from jaxsvm.solvers.frank_wolfe import FrankWolfe

    indices = np.unique(np.asarray(subset, dtype=int))
    if indices.size == 0 or not eps > 0:
        raise InputError(f"subset has {indices.size} indices and eps is {eps}: at least one, and eps > 0, are needed.")
    mask = jnp.zeros((problem.n,), bool).at[indices].set(True)
    inside = dataclasses.replace(problem, mask=mask)
    found = fit(inside, FrankWolfe(tol=tol) if solver is None else solver)
    distances = problem.squared_distances(found.alpha, found.margins)
    if problem.mask is not None:
        distances = jnp.where(problem.mask, distances, 0)
    return bool(jnp.sqrt(distances.max()) <= (1 + eps) * jnp.sqrt(jnp.maximum(found.certificate.dual, 0)))
