"""SGD on the hinge over a ball: `min sum_i U_i max(0, 1 - y_i <w, phi_i>)` over `|w| <= B`, linear, sparse or kernel.

Source: the row "SGD" of table 1 in Cotter, Shalev-Shwartz, Srebro 2012. Per step t

    w <- w + B / (r sqrt(t) k) sum_{j in batch of k, y_j <w, phi_j> < 1} y_j phi_j,     w <- w min(1, B / |w|),

`r^2 = max_i K_ii`; the answer is the mean of the iterates, whose mean hinge loss is within `O(r B / sqrt(T))` of the
best in the ball. Costs as Pegasos has them.

The ball stands for the regulariser: where `B = |w*|` of the problem's C, its optimum is the SVM's. The certificate is
that of the SVM at the answer, so that for any other B its gap ends above 0 (one fit's `|w|^2` is `dual_coef' K
dual_coef`).
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from jaxsvm.problems.forms import BoxForm
from jaxsvm.solvers.stochastic import subgradient
from jaxsvm.solvers.stochastic.pegasos import project_onto_ball
from jaxsvm.solvers.stochastic.subgradient import Rule, State


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class BallSGD(subgradient.Stochastic):
    """Configuration of SGD over a ball.

    Attributes:
        radius: B, > 0.
        steps: The step cap, >= 0; n / batch are a pass over the data.
        batch: Samples a step, 1 <= batch <= n; static.
        tol: The relative gap of the SVM that ends it sooner, > 0.
        average: The answer: "uniform" (the mean of the iterates), "linear", "suffix" or "last"; static.
        order: "permuted" (each sample once a pass, in a fresh order) or "random" (with replacement); static.
        schedule: An optax schedule of step sizes, by the number of steps taken; None: `B / (r sqrt(t))`. Static.
        check_every: Steps a chunk of the driver; static.
        refresh_every: Steps between certificates; None: about five passes, later a fifth of the steps taken. Static.
    """

    bit = 8
    solves = ("box",)
    rows = 2

    radius: Any
    steps: Any = 10_000
    batch: int = dataclasses.field(default=16, metadata={"static": True})
    tol: Any = 1e-3
    average: str = dataclasses.field(default="uniform", metadata={"static": True})
    order: str = dataclasses.field(default="permuted", metadata={"static": True})
    schedule: Callable[[Any], Any] | None = dataclasses.field(default=None, metadata={"static": True})
    check_every: int = dataclasses.field(default=100, metadata={"static": True})
    refresh_every: int | None = dataclasses.field(default=None, metadata={"static": True})

    resumes = True
    patience = 2**30  # a noisy gap that does not shrink for a while is no floor

    def __post_init__(self) -> None:
        subgradient.require_options(self)
        subgradient.require_positive("radius", self.radius)

    @property
    def max_steps(self) -> Any:
        """The step cap."""
        return self.steps

    def rule(self, problem: BoxForm) -> Rule:
        """No shrinking; steps `B / (r sqrt(t))`; the ball."""
        radius = jnp.asarray(self.radius, problem.dtype)
        r = jnp.sqrt(jnp.where(problem.present, problem.diagonal, 0).max())

        def inverse_root(count: Any) -> Any:
            return radius / (jnp.where(r > 0, r, 1) * jnp.sqrt(jnp.asarray(count + 1, problem.dtype)))

        schedule = inverse_root if self.schedule is None else self.schedule
        transform = optax.chain(optax.scale_by_learning_rate(schedule), project_onto_ball(radius))
        return Rule(jnp.zeros((), problem.dtype), schedule, radius, transform)

    def worth(self, problem: BoxForm, gap: Any) -> Float[Array, ""]:
        """Steps after which the bound of the rate, `r B / sqrt(T)`, is the gap of the mean loss."""
        r = jnp.sqrt(jnp.where(problem.present, problem.diagonal, 0).max())
        return (r * self.radius / gap) ** 2

    def stores(self, problem: BoxForm) -> bool:
        """Where there are no features to step in."""
        return subgradient.features_of(problem) is None

    def init(self, problem: BoxForm, key: Array | None = None, init: Any = None) -> State:
        """The state at w = 0, or at the coefficients `init`, `(n,)`."""
        return subgradient.start(problem, self, key, init)

    def step(self, problem: BoxForm, state: State) -> State:
        """One batch."""
        return subgradient.step(problem, self, state)

    def refresh(self, problem: BoxForm, state: State) -> State:
        """The answer's w, a dual point and `Q` times both from scratch."""
        return subgradient.refresh(problem, self, state)

    def dual_point(self, problem: BoxForm, state: State) -> tuple[Float[Array, "two n"], Float[Array, "two n"]]:
        """The last certified point: coefficients of w and a feasible dual point, with `Q` times both."""
        del problem
        return state.point, state.products

    def running_excess(self, problem: BoxForm, state: State) -> Float[Array, ""]:
        """At most 1 where a certificate is due."""
        return subgradient.running_excess(problem, self, state)
