"""SGD on the hinge over a ball: `min sum_i U_i max(0, 1 - y_i <w, phi_i>)` over `|w| <= B`; linear, sparse, kernel."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from jaxsvm.problems.contract import BoxForm
from jaxsvm.runtime.arrays import Count, Number
from jaxsvm.solvers.stochastic.iterates import Rule
from jaxsvm.solvers.stochastic.pegasos import Stochastic, require_options
from jaxsvm.solvers.stochastic.transforms import project_onto_ball


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class BallSGD(Stochastic):
    """SGD on the hinge over a ball: `min sum_i U_i max(0, 1 - y_i <w, phi_i>)` over `|w| <= B`.

    Step t is

        w <- w + B / (r sqrt(t) k) sum_{j in batch of k, y_j <w, phi_j> < 1} y_j phi_j
        w <- w min(1, B / |w|)

    with `r^2 = max_i K_ii`. The ball replaces the regulariser: if `B = |w*|` of the problem's C, its optimum is the
    SVM's. The certificate is that of the SVM, so for any other B its gap ends above 0 (the `|w|^2` of a fit is
    `dual_coef' K dual_coef`).

    Problems: hinge and box problems without an equality (a regularised bias, or none).
    Cost of a step: that of `Pegasos`.
    Rate: the mean hinge loss of the mean of the iterates is within `O(r B / sqrt(T))` of the best in the ball.
    Source: the row "SGD" of table 1 in Cotter, Shalev-Shwartz, Srebro 2012.

    Attributes:
        radius: B, > 0.
        steps: Maximum number of steps, >= 0; n / batch are a pass over the data.
        batch: Samples of a step, 1 <= batch <= n; static.
        tol: Relative gap of the SVM at which to stop earlier, > 0.
        average: The returned w: "uniform" (mean of the iterates), "linear", "suffix" or "last"; static.
        order: "permuted" (each sample once a pass, in a fresh order) or "random" (with replacement); static.
        schedule: Optax schedule of step sizes, by the number of steps taken; None: `B / (r sqrt(t))`. Static.
        check_every: Steps in a chunk of the driver; static.
        refresh_every: Steps between certificates; None: about five passes, later a fifth of the steps taken. Static.

    Raises:
        InputError: On options out of range; when a problem with a free bias, or of fewer samples than `batch`, is
            solved.
    """

    bit = 8

    radius: Number
    steps: Count = 10_000
    batch: int = dataclasses.field(default=16, metadata={"static": True})
    tol: Number = 1e-3
    average: str = dataclasses.field(default="uniform", metadata={"static": True})
    order: str = dataclasses.field(default="permuted", metadata={"static": True})
    schedule: optax.Schedule | None = dataclasses.field(default=None, metadata={"static": True})
    check_every: int = dataclasses.field(default=100, metadata={"static": True})
    refresh_every: int | None = dataclasses.field(default=None, metadata={"static": True})

    def __post_init__(self) -> None:
        require_options(self)

    def rule(self, problem: BoxForm) -> Rule:
        """Return steps `B / (r sqrt(t))` without shrinking, and the ball."""
        radius = jnp.asarray(self.radius, problem.dtype)
        r = jnp.sqrt(jnp.where(problem.present, problem.diagonal, 0).max())

        def inverse_root(count: Any) -> Any:
            return radius / (jnp.where(r > 0, r, 1) * jnp.sqrt(jnp.asarray(count + 1, problem.dtype)))

        schedule = inverse_root if self.schedule is None else self.schedule
        transform = optax.chain(optax.scale_by_learning_rate(schedule), project_onto_ball(radius))
        return Rule(jnp.zeros((), problem.dtype), schedule, radius, transform)

    def worth(self, problem: BoxForm, gap: Number) -> Float[Array, ""]:
        """Return the steps after which the bound `r B / sqrt(T)` is the gap of the mean loss."""
        r = jnp.sqrt(jnp.where(problem.present, problem.diagonal, 0).max())
        return (r * self.radius / gap) ** 2
