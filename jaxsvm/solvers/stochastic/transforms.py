"""The parts of Pegasos as optax transformations, for any optax loop.

transform = optax.chain(pegasos_transform(lam), project_onto_ball(lam**-0.5), average_iterates("linear"))
gradient = jax.grad(lambda w: optax.losses.hinge_loss(x_batch @ w, y_batch).mean())
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from jaxsvm.errors import InputError
from jaxsvm.solvers.stochastic.iterates import weight_of


def inverse_time(lam: Any, offset: Any = 0.0) -> Callable[[Any], Any]:
    """Make the optax schedule `eta_t = 1 / (lam (t + offset))` with `t = count + 1`.

    Args:
        lam: Strength of the regulariser, > 0.
        offset: Number >= 0 that shortens the first, very long steps.
    """
    lam = jnp.asarray(lam)

    def schedule(count: Any) -> Any:
        t = jnp.asarray(count + 1, lam.dtype)
        return 1 / (lam * (t + jnp.asarray(offset, lam.dtype)))

    return schedule


def gentle(lam: Any, first: Any, after: Any = jnp.inf) -> Callable[[Any], Any]:
    """Make the optax schedule `first / max(1 + lam first t, sqrt(1 + t / after))`, which never exceeds `1 / (lam t)`.

    For lam of about 1 / n the first n / batch steps of `1 / (lam t)` are so long that they erase all that w has
    learned (docs/measured_constants.md, Solvers).

    Args:
        lam: Strength of the regulariser, > 0.
        first: First step, > 0: about `batch / (8 mean_i |x_i|^2)`: the best measured on covtype and a9a for batches of
            4 to 64, within a factor of 2. With four times that, separable texts are three times nearer to the optimum
            after ten passes, and a9a is twenty times farther.
        after: Number of steps after which the steps fall, > 0, such as ten passes; infinity omits the root.
    """
    lam = jnp.asarray(lam)

    def schedule(count: Any) -> Any:
        t = jnp.asarray(count, lam.dtype)
        return first / jnp.maximum(1 + lam * first * t, jnp.sqrt(1 + t / jnp.asarray(after, lam.dtype)))

    return schedule


def pegasos_transform(lam: Any, schedule: Callable[[Any], Any] | None = None) -> optax.GradientTransformation:
    """Make the transformation `w <- (1 - eta_t lam) w - eta_t g` for subgradients g of the mean loss.

    It needs `params`.

    Args:
        lam: Strength of the regulariser `lam/2 |w|^2`, > 0.
        schedule: Optax schedule of step sizes; None: `1 / (lam t)`.
    """
    steps = inverse_time(lam) if schedule is None else schedule
    return optax.chain(optax.add_decayed_weights(lam), optax.scale_by_learning_rate(steps))


class BallState(NamedTuple):
    """State of `project_onto_ball`: its last factor of the parameters, `()`."""

    factor: Float[Array, ""]


def project_onto_ball(radius: Any) -> optax.GradientTransformation:
    """Scale updates so that the updated parameters, all leaves together, have a norm of at most `radius`.

    For the end of a chain; it needs `params`.

    Args:
        radius: Radius of the ball around 0, > 0. The optimum of an SVM is within `1 / sqrt(lam)`.
    """

    def init(params: Any) -> BallState:
        return BallState(jnp.ones((), jax.tree.leaves(params)[0].dtype))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, BallState]:
        if params is None:
            raise InputError("params is None: a projection needs the parameters; call update(updates, state, params).")
        moved = optax.apply_updates(params, updates)
        length = jnp.asarray(optax.tree.norm(moved))
        factor = jnp.minimum(1, radius / jnp.where(length > 0, length, 1)).astype(state.factor.dtype)
        return jax.tree.map(lambda new, old: factor * new - old, moved, params), BallState(factor)

    return optax.GradientTransformation(init, update)


class AverageState(NamedTuple):
    """State of `average_iterates`: the averaged parameters, and the number of steps, int32 `()`."""

    average: Any
    taken: Int[Array, ""]


def average_iterates(average: str = "linear", burn_in: Any = 0) -> optax.GradientTransformation:
    """Average the parameters at which gradients were taken, `w_1 ... w_T`; updates pass unchanged.

    For the end of a chain; `average_of` reads its result.

    Args:
        average: "linear" (weights proportional to t), "uniform", or "last" (no average: `w_(T+1)`).
        burn_in: Steps before the average begins; with half of all steps it is the "suffix" average.
    """
    if average not in ("linear", "uniform", "suffix", "last"):
        raise InputError(f"average is {average!r}: linear, uniform or last is needed.")

    def init(params: Any) -> AverageState:
        return AverageState(params, jnp.zeros((), jnp.int32))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, AverageState]:
        if params is None:
            raise InputError("params is None: an average needs the parameters; call update(updates, state, params).")
        since = state.taken + 1 - burn_in

        def mixed(old: Array, current: Array, change: Array) -> Array:
            if average == "last":
                return current + change
            return jnp.where(since < 1, current, old + weight_of(since, average, old.dtype) * (current - old))

        new = jax.tree.map(mixed, state.average, params, updates)
        return updates, AverageState(new, jnp.asarray(optax.safe_increment(state.taken)))

    return optax.GradientTransformation(init, update)


def average_of(state: Any) -> Any:
    """Return the averaged parameters from the state of a chain with `average_iterates`."""
    return optax.tree_utils.tree_get(state, "average")


def first_step(mean_square: Any, batch: Any) -> Float[Array, ""]:
    """Return the first of `gentle` steps, for a mean of `|x_i|^2`."""
    return batch / (8 * jnp.where(mean_square > 0, mean_square, 1))
