"""Tune C and every kernel parameter by gradients of the loss of held-out decision values.

The loss is a smooth function of the decision values, these of the solution, and the solution of the parameters
(`jaxsvm.loop.differentiation`): fifty length scales cost as much as one (Chapelle, Vapnik, Bousquet, Mukherjee 2002;
Keerthi, Sindhwani, Chapelle 2007). Parameters are positive and move on a log scale; a fit starts from the previous one.

The loss is one compiled function for all steps (`measured`), whose data are arguments: parameters, data and tolerances
of the same shapes never compile it again. (Data must not be closed over on the CPU: XLA's fusion gave wrong products of
constants, jaxlib 0.10.2, float32.)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from jaxsvm.errors import ConvergenceWarning, InputError, warn
from jaxsvm.gram.build import gram
from jaxsvm.gram.operators import with_values
from jaxsvm.kernels import Kernel, as_kernel
from jaxsvm.loop.differentiation import differentiable
from jaxsvm.loop.driver import QUIET, drive, fit
from jaxsvm.loop.interruption import Interruption, watching
from jaxsvm.model_selection.folds import Folds, fold_masks, require_classes
from jaxsvm.models.model import is_right
from jaxsvm.path.chains import nothing, stacked
from jaxsvm.points.rows import PointsLike, as_points
from jaxsvm.problems.arguments import checked_signs
from jaxsvm.problems.squared_hinge import SquaredHingeProblem, svm_problem
from jaxsvm.results.fit import Fit, Status
from jaxsvm.runtime.arrays import in_a_line, require_positive, require_whole, transfers
from jaxsvm.runtime.programs import Program
from jaxsvm.solvers.contract import Solver
from jaxsvm.solvers.simplex.frank_wolfe import FrankWolfe


def smoothed_hinge(margins: Float[Array, " m"]) -> Float[Array, " m"]:
    """Return 0 from margin 1 on, `(1 - m)^2 / 2` down to margin 0, and a line below (Rennie and Srebro 2005)."""
    slack = jnp.maximum(1 - margins, 0)
    return jnp.where(slack < 1, slack**2 / 2, slack - 0.5)


def logistic(margins: Float[Array, " m"]) -> Float[Array, " m"]:
    """Return `log(1 + exp(-m))`."""
    return jax.nn.softplus(-margins)


LOSSES = {"smoothed_hinge": smoothed_hinge, "logistic": logistic}


class HeldOut(NamedTuple):
    """The constant part of a search: points, labels, folds, the initial kernel leaves, the solver."""

    x: Any
    y: Array
    folds: Any  # (k, n) weights of training samples, and of held-out samples
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
    """The results of an evaluation besides the loss."""

    fit: Fit  # of each fold, a leading axis `(k, ...)`
    error: Float[Array, ""]  # the fraction of held-out samples on the wrong side


class Record(NamedTuple):
    """One evaluation, on the host."""

    loss: float  # the validation loss; NaN if there is none
    error: float  # the fraction of held-out samples on the wrong side
    C: float  # the penalty
    kernel: Kernel  # the kernel, its parameters as NumPy arrays
    relative_gap: float  # the largest certified gap of a fold
    status: Status  # how the fits ended: the first that is not CONVERGED; `.name` is its name
    gradient_norm: float  # the norm of the gradient with respect to the logs


@dataclasses.dataclass(frozen=True)
class Tuned:
    """The result of `tune`.

    Attributes:
        kernel: The kernel of the best certified evaluation.
        C: Its penalty.
        problem: The problem of all samples at these values, for `decision_function(fit, problem, x_new)`.
        fit: The fit of that problem.
        loss: The validation loss of the best evaluation.
        best: The place of that evaluation in `history`.
        history: Every evaluation, in order.
        stopped: The reason: "steps", "patience", "failed" (three evaluations in a row without a number), "interrupted".
    """

    __repr__ = in_a_line

    kernel: Kernel
    C: float
    problem: SquaredHingeProblem
    fit: Fit
    loss: float
    best: int
    history: tuple[Record, ...]
    stopped: str


@transfers
def tune(
    kernel: Kernel,
    x: PointsLike,
    y: ArrayLike,
    C: float = 1.0,
    *,
    folds: Folds,
    loss: str | Callable[[Array], Array] = "smoothed_hinge",
    optimizer: optax.GradientTransformation | None = None,
    steps: int = 100,
    patience: int = 20,
    bounds: tuple[float, float] = (1e-4, 1e4),
    solver: Solver | None = None,
    callback: Callable[[Record], Any] | None = None,
) -> Tuned:
    """Minimise a validation loss over log C and the logs of all positive kernel parameters.

    Examples:
        >>> tuned = jaxsvm.tune(RBF(np.full(d, 0.1)), x, y, folds=5)
        >>> tuned.C, tuned.kernel, jaxsvm.predict(tuned.fit, tuned.problem, x_new)

    Args:
        kernel: The initial kernel; `RBF(gamma)` with a gamma `(d,)` tunes one length scale per feature. Parameters
            that are 0 or negative do not change.
        x: Training points `(n, d)`, dense or CSR.
        y: Labels in {-1, +1}, `(n,)`.
        C: The initial C, > 0.
        folds: The number of stratified folds, or any other form that `cross_validate` takes; `[(train, test)]` of
            indices holds the same samples out throughout.
        loss: "smoothed_hinge", "logistic", or a function of the margins `y_i f(x_i)`, `(m,) -> (m,)`.
        optimizer: An optimiser of optax; None takes `optax.adam(0.1)`.
        steps: The largest number of evaluations, >= 1.
        patience: The number of evaluations without a better certified loss after which it stops.
        bounds: Factors of its initial value between which every parameter stays.
        solver: The inner solver; None takes second-order pairs to a relative gap of 1e-4. Tighter ones cost little:
            each fit starts from the previous one.
        callback: Called with each record; returning True stops.

    Returns:
        The best certified point, not the last. Evaluations that failed are in the history, with their status. Ctrl-C
        returns the best so far; its fit of all samples is then not computed (INTERRUPTED).

    Raises:
        InputError: If an argument cannot be used, or no evaluation was certified.
        KeyboardInterrupt: On Ctrl-C before any was.
    """
    _check(x, C, loss, steps, patience, bounds)
    kernel, points = as_kernel(kernel), as_points(x)
    data, objective, parameters = _prepare(kernel, points, y, C, folds, loss, solver)
    optimizer = optax.adam(0.1) if optimizer is None else optimizer
    search = _Search(objective, data, optimizer, parameters, bounds)
    stopped = ""
    with watching() as stop:
        try:
            while not stopped and len(search.history) < steps:
                record = search.step(stop)
                if record is None or (callback is not None and callback(record) is True) or stop.seen:
                    stopped = "interrupted"
                elif search.failures >= 3:  # one after another, each nearer to where there was a derivative
                    stopped = "failed"
                elif len(search.history) - 1 - max(search.best, 0) >= patience:
                    stopped = "patience"
        except KeyboardInterrupt:  # from a callback, or a handler of the user
            stop.note()
            stopped = "interrupted"
        return _finish(search, data, objective, stopped or "steps", stop)


def evaluate(
    parameters: Any, alpha: Array, data: HeldOut, objective: Objective, stop: Interruption | None = None
) -> Any:
    """Return `((loss, outcome), gradient)` at `parameters = (log C, logs of the kernel's)`; None after Ctrl-C.

    The host driver computes the fits, and reacts to Ctrl-C; the rest is one compiled function of them.
    """
    log_C, logs = parameters
    K, C = with_values(gram(objective.kernel(logs, data.leaves), data.x)), jnp.exp(log_C)
    problem, fits = svm_problem(K, data.y, C), []
    with watching(stop) as stop:
        for train, start in zip(data.folds[0], alpha, strict=True):
            part = problem.weighted(np.asarray(train))
            fits.append(drive(part, data.solver, jax.random.key(0), start, stop=stop, options=QUIET))
            if stop.seen:
                return None
    return measured(parameters, stacked(fits), data, objective)


@Program.full(static=("objective",))
def measured(parameters: Any, fits: Fit, data: HeldOut, objective: Objective) -> Any:
    """Return the results of `evaluate` from its fits, a leading axis."""
    return jax.value_and_grad(_loss, has_aux=True)(parameters, fits, data, objective)


def _loss(parameters: Any, fits: Fit, data: HeldOut, objective: Objective) -> tuple[Array, Outcome]:
    log_C, logs = parameters
    K, C = with_values(gram(objective.kernel(logs, data.leaves), data.x)), jnp.exp(log_C)
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


class _Search:
    """The iterations of the optimiser, on the host: parameters, history and the best fit."""

    def __init__(self, objective: Objective, data: HeldOut, optimizer: Any, parameters: Any, bounds: Any) -> None:
        self.objective, self.data = objective, data
        self.parameters, self.good = parameters, parameters
        self.low, self.high = (jax.tree.map(lambda p, b=b: p + float(np.log(b)), parameters) for b in bounds)
        self.opt_state = optimizer.init(parameters)
        self.update = jax.jit(partial(_moved, optimizer))
        self.alpha = data.folds[0] / data.folds[0].sum(axis=1, keepdims=True)
        self.history: list[Record] = []
        self.best, self.best_parameters, self.best_fit, self.failures = -1, parameters, None, 0

    def step(self, stop: Interruption) -> Record | None:
        """Evaluate, record and move; return None after Ctrl-C."""
        evaluation = evaluate(self.parameters, self.alpha, self.data, self.objective, stop)
        if evaluation is None:
            return None
        (value, outcome), gradient = evaluation
        record = _record(self.objective, self.data, self.parameters, value, outcome, gradient)
        self.history.append(record)
        if not (np.isfinite(record.loss) and np.isfinite(record.gradient_norm)):
            self.failures += 1  # go halfway back to the last point with a derivative
            self.parameters = jax.tree.map(lambda bad, good: (bad + good) / 2, self.parameters, self.good)
            return record
        self.failures, self.good, self.alpha = 0, self.parameters, outcome.fit.alpha
        certified = record.status == Status.CONVERGED
        if certified and (self.best < 0 or record.loss < self.history[self.best].loss):
            self.best, self.best_parameters, self.best_fit = len(self.history) - 1, self.parameters, outcome.fit
        arguments = (gradient, self.opt_state, self.parameters, self.low, self.high)
        self.parameters, self.opt_state = self.update(*arguments)
        return record


def _moved(optimizer: Any, gradient: Any, state: Any, parameters: Any, low: Any, high: Any) -> tuple[Any, Any]:
    with jax.numpy_dtype_promotion("standard"):  # optax counts its steps in integers
        updates, state = optimizer.update(gradient, state, parameters)
        return jax.tree.map(jnp.clip, optax.apply_updates(parameters, updates), low, high), state


def _record(objective: Objective, data: HeldOut, parameters: Any, value: Any, outcome: Any, gradient: Any) -> Record:
    kernel = jax.tree.map(np.asarray, objective.kernel(parameters[1], data.leaves))
    codes = np.asarray(outcome.fit.status.code)
    norm = np.sqrt(sum(float((np.asarray(leaf, np.float64) ** 2).sum()) for leaf in jax.tree.leaves(gradient)))
    loss, error, C = float(value), float(outcome.error), float(jnp.exp(parameters[0]))
    gap, status = float(np.max(outcome.fit.certificate.relative_gap)), codes[np.argmax(codes != Status.CONVERGED)]
    return Record(loss, error, C, kernel, gap, Status(status), float(norm))


def _finish(search: _Search, data: HeldOut, objective: Objective, stopped: str, stop: Interruption) -> Tuned:
    failed = [r for r in search.history if r.status != Status.CONVERGED or not np.isfinite(r.loss)]
    ended = f"the last as {failed[-1].status.name} with loss {failed[-1].loss:.3g}" if failed else ""
    if search.best < 0 and stop.seen:
        raise KeyboardInterrupt
    if search.best < 0:
        raise InputError(
            f"kernel and C: none of {len(search.history)} evaluations was certified{': ' if failed else ''}{ended}. "
            "Start from a smaller C, scale the features, or pass a solver with more steps or a larger tol."
        )
    if failed:
        warn(
            f"{len(failed)} of {len(search.history)} evaluations failed, {ended}: see `history`. The result is one of "
            "those that were certified.",
            ConvergenceWarning,
        )
    log_C, logs = search.best_parameters
    kernel, best = objective.kernel(logs, data.leaves), search.history[search.best]
    problem = svm_problem(gram(kernel, data.x), data.y, jnp.exp(log_C))
    best_fit: Any = search.best_fit
    mean = jnp.asarray(np.asarray(best_fit.alpha).mean(axis=0))
    if stop.seen:  # all samples together are not fitted yet
        fitted = jax.tree.map(jnp.asarray, dataclasses.replace(nothing(problem), alpha=mean))
    else:
        fitted = fit(problem, data.solver, init=mean)
    return Tuned(kernel, best.C, problem, fitted, best.loss, search.best, tuple(search.history), stopped)


def _check(x: Any, C: Any, loss: Any, steps: Any, patience: Any, bounds: Any) -> None:
    if hasattr(x, "total") and hasattr(x, "chosen"):
        raise InputError(
            "x is a design, and each step along a derivative would take passes over its rows: "
            "`jaxsvm.designs.cross_validate(x, Cs, folds)` scores several values of C in the same passes."
        )
    if not callable(loss) and loss not in LOSSES:
        raise InputError(f"loss is {loss!r}: one of {', '.join(LOSSES)}, or a function of margins, is needed.")
    for name, number in (("steps", steps), ("patience", patience)):
        require_whole(name, number, 1)
    require_positive("C", C)
    if not (len(bounds) == 2 and 0 < bounds[0] <= 1 <= bounds[1] and np.isfinite(bounds[1])):
        raise InputError(f"bounds are {bounds}: two factors of the start, 0 < low <= 1 <= high, are needed.")


def _prepare(
    kernel: Kernel, points: Any, y: Any, C: Any, folds: Any, loss: Any, solver: Solver | None
) -> tuple[HeldOut, Objective, Any]:
    leaves, treedef = jax.tree.flatten(kernel)
    dtype = points.dtype
    leaves = [jnp.asarray(leaf, dtype) if np.asarray(leaf).dtype.kind in "iuf" else leaf for leaf in leaves]
    tuned = tuple(bool(np.asarray(leaf).dtype.kind == "f" and (np.asarray(leaf) > 0).all()) for leaf in leaves)
    y = checked_signs(y, points.shape[0], dtype)
    parts = fold_masks(np.asarray(y), folds)
    require_classes(parts, np.asarray(y), np.ones(len(y)))
    masks = tuple(jnp.asarray(np.stack(part), dtype) for part in zip(*parts, strict=True))
    logs = tuple(jnp.log(leaf) for leaf, chosen in zip(leaves, tuned, strict=True) if chosen)
    solver = FrankWolfe(variant="smo", tol=1e-4) if solver is None else solver
    data = HeldOut(points, y, masks, tuple(leaves), solver)
    function: Any = loss if callable(loss) else LOSSES[loss]
    return data, Objective(treedef, tuned, function), (jnp.log(jnp.asarray(C, dtype)), logs)
