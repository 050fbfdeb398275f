"""Compute the loss of held-out decision values, and its gradient in C and the kernel's parameters, by one program.

The data are arguments of the program: parameters, data and tolerances of the same shapes never compile it again. (Data
must not be closed over on the CPU: XLA's fusion gave wrong products of constants, jaxlib 0.10.2, float32.)
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from jaxsvm.errors import InputError
from jaxsvm.gram.build import gram
from jaxsvm.gram.dense import with_values
from jaxsvm.kernels import Kernel
from jaxsvm.loop.differentiation import differentiable
from jaxsvm.loop.driver import QUIET, drive
from jaxsvm.loop.interruption import Interruption, watching
from jaxsvm.model_selection.folds import fold_masks
from jaxsvm.models.model import decision_function, is_right
from jaxsvm.path.placeholders import on_host_stacked
from jaxsvm.problems.squared_hinge import svm_problem
from jaxsvm.results.fit import Fit
from jaxsvm.solvers.contract import Solver


def smoothed_hinge(margins: Float[Array, " m"]) -> Float[Array, " m"]:
    """Return 0 from margin 1 on, `(1 - m)^2 / 2` down to margin 0, and a line below (Rennie and Srebro 2005)."""
    slack = jnp.maximum(1 - margins, 0)
    return jnp.where(slack < 1, slack**2 / 2, slack - 0.5)


def logistic(margins: Float[Array, " m"]) -> Float[Array, " m"]:
    """Return `log(1 + exp(-m))`."""
    return jax.nn.softplus(-margins)


LOSSES = {"smoothed_hinge": smoothed_hinge, "logistic": logistic}


class HeldOut(NamedTuple):
    """The constant part of a search: points, labels, held-out samples, the initial kernel leaves, the solver."""

    x: Any
    y: Array
    held_out: Any  # (x, y) of other points, or None
    folds: Any  # (k, n) weights of training samples, and of held-out samples, or None
    leaves: tuple[Any, ...]
    solver: Solver


class Objective(NamedTuple):
    """The static part of an evaluation: the kernel's structure, which leaves are tuned, and the loss."""

    treedef: Any
    tuned: tuple[bool, ...]
    loss: Callable[[Array], Array]

    def kernel(self, logs: tuple[Array, ...], leaves: tuple[Any, ...]) -> Kernel:
        """Return the kernel of these logs; leaves that are not tuned do not change."""
        rest = iter(logs)
        filled = [jnp.exp(next(rest)) if tuned else leaf for tuned, leaf in zip(self.tuned, leaves, strict=True)]
        return jax.tree.unflatten(self.treedef, filled)


class Outcome(NamedTuple):
    """The results of an evaluation besides the loss.

    Attributes:
        fit: The fit; with folds a leading axis, `(k, ...)`.
        error: The fraction of held-out samples on the wrong side, `()`.
    """

    fit: Fit
    error: Float[Array, ""]


def evaluate(
    parameters: Any, alpha: Array, data: HeldOut, objective: Objective, stop: Interruption | None = None
) -> Any:
    """Return `((loss, outcome), gradient)` at `parameters = (log C, logs of the kernel's)`; None after Ctrl-C.

    The host driver computes the fits, and reacts to Ctrl-C; the rest is one compiled function of them.
    """
    log_C, logs = parameters
    K, C = with_values(gram(objective.kernel(logs, data.leaves), data.x)), jnp.exp(log_C)
    fits = []
    with watching(stop) as stop:
        weights = [None] if data.folds is None else [np.asarray(train) for train in data.folds[0]]
        starts = [alpha] if data.folds is None else np.asarray(alpha)
        for weight, start in zip(weights, starts, strict=True):
            problem = svm_problem(K, data.y, C, sample_weight=weight)
            fits.append(drive(problem, data.solver, jax.random.key(0), start, stop=stop, options=QUIET))
            if stop.seen:
                return None
    return measured(parameters, fits[0] if data.folds is None else on_host_stacked(fits), data, objective)


@partial(jax.jit, static_argnames="objective")
def measured(parameters: Any, fits: Fit, data: HeldOut, objective: Objective) -> Any:
    """Return the results of `evaluate` from its fits; with folds they have a leading axis."""
    return jax.value_and_grad(_loss, has_aux=True)(parameters, fits, data, objective)


def _loss(parameters: Any, fits: Fit, data: HeldOut, objective: Objective) -> tuple[Array, Outcome]:
    log_C, logs = parameters
    K, C = with_values(gram(objective.kernel(logs, data.leaves), data.x)), jnp.exp(log_C)
    if data.folds is None:
        problem = svm_problem(K, data.y, C)
        fitted = differentiable(problem, fits)
        x_new, y_new = data.held_out
        margins = y_new * decision_function(fitted, problem, x_new)
        return objective.loss(margins).mean(), Outcome(fitted, (~is_right(margins, y_new)).mean())
    count = data.folds[1].sum()

    def one_fold(fold: tuple[Array, Array, Fit]) -> tuple[Array, Outcome]:
        train, test, fit = fold
        fitted = differentiable(svm_problem(K, data.y, C, sample_weight=train), fit)
        margins = fitted.margins  # those of absent samples too
        error = jnp.where(test > 0, ~is_right(margins, data.y), False).sum(dtype=count.dtype) / count
        values = jnp.where(test > 0, objective.loss(margins), 0).sum() / count
        return values, Outcome(fitted, error)

    # In sequence: in parallel all folds would hold the matrices of their derivatives.
    values, outcome = lax.map(one_fold, (*data.folds, fits))
    return values.sum(), outcome._replace(error=outcome.error.sum())


def fold_weights(y: np.ndarray, folds: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return 1 for samples that train, and 1 for those held out, `(k, n)` each; `folds` as for `fold_masks`."""
    train, test = (np.stack(masks) for masks in zip(*fold_masks(y, folds), strict=True))
    for sign in (-1, 1):
        if not train[:, y == sign].any(axis=1).all():
            raise InputError(f"folds: one of them leaves no sample of class {sign:+d} to train on; take fewer folds.")
    if not test.any(axis=1).all():
        raise InputError("folds: one of them holds no sample out.")
    return train.astype(float), test.astype(float)
