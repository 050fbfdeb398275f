"""Classify by stochastic solvers, which are good long before the optimum: `SBPClassifier`, `PegasosClassifier`."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Literal

import jax
import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike
from sklearn.base import _fit_context
from sklearn.linear_model._base import SparseCoefMixin
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import _check_partial_fit_first_call

from jaxsvm.estimators.base import LinearEstimator
from jaxsvm.estimators.classifier import KernelClassifier
from jaxsvm.estimators.kernel_values import Samples
from jaxsvm.estimators.machines import Machine, Progress
from jaxsvm.estimators.validation import (
    NOT_NEGATIVE,
    ClassWeight,
    Seed,
    checked,
    labelled,
    signs_against_rest,
    weights_of,
)
from jaxsvm.loop.interruption import estimating, until_halt
from jaxsvm.loop.many import Solved, solve_by_driver
from jaxsvm.points.rows import SparseRows
from jaxsvm.problems.slack import slack_problem
from jaxsvm.solvers.stochastic.pegasos import Pegasos
from jaxsvm.solvers.stochastic.stochastic_batch_perceptron import HeldOut, StochasticBatchPerceptron


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class SBPClassifier(KernelClassifier):
    """The slack-constrained kernel SVM by the Stochastic Batch Perceptron (Cotter, Shalev-Shwartz and Srebro 2012).

    It maximises the smallest margin of a unit vector with a mean slack of nu. More than two classes are each class
    against the rest. It stops after its steps, or earlier if its gap is below `tol`; a larger gap is no failure.

    Args:
        nu: The mean slack of a unit vector, >= 0, in units of the largest `sqrt(k(x_i, x_i))`.
        bias: "regularized", "none" or "free".
        steps: The number of steps, >= 1.
        batch: The number of samples a step, >= 1.
        tol: The relative gap at which it stops earlier, > 0.
        decision_function_shape: "ovr" or "ovo": no effect, each class is against the rest.
        early_stopping: Whether to end once the error of held-out samples rests (`jaxsvm.HeldOut`), at its best machine.
        validation_fraction: The share of the samples to hold out, in (0, 1).
        random_state: The seed of the draws and of what is held out.

    Attributes:
        certificate_: The level reached, its upper bound, and their relative gap, one number per class each.

    All other parameters and attributes are those of `SVC`.
    """

    nu: float = 0.01
    bias: str = "regularized"
    steps: int = 2000
    batch: int = 32
    tol: float = 1e-2
    early_stopping: bool = False
    validation_fraction: float = 0.1
    random_state: Seed | None = None
    multi_class = "ovr"
    _steps_suffice = True
    _may_round = False  # kernel values are float64 throughout
    _limits: ClassVar[dict[str, Any]] = {"nu": NOT_NEGATIVE}

    def _trained(self, data: Samples, machines: list[Machine]) -> list[Solved]:
        key = jax.random.key(seed := check_random_state(self.random_state).randint(2**31 - 1))
        solver = StochasticBatchPerceptron(int(self.steps), int(self.batch), float(self.tol), average="linear")
        progress = Progress(self, len(machines))
        with jax.enable_x64(True):
            return [self._solve(data, machine, solver, key, progress, seed) for machine in until_halt(machines)]

    def _solve(self, data: Samples, machine: Machine, solver: Any, key: Any, progress: Progress, seed: int) -> Solved:
        n, operator = machine.n, data.driven(machine.parts)
        y, weight = np.ones(operator.n), np.zeros(operator.n)
        y[:n], weight[:n] = machine.signs, machine.upper / machine.upper.mean()
        radius, stop = float(np.sqrt(np.asarray(operator.diag())[:n].max() + (self.bias == "regularized"))), None
        if self.early_stopping:
            how = {"test_size": self.validation_fraction, "stratify": machine.signs, "random_state": seed}
            stop = HeldOut(np.isin(np.arange(operator.n), train_test_split(np.arange(n), **how)[1]), least=200)
            weight[stop.mask] = 0
        problem = slack_problem(operator, y, self.nu * radius, bias=self.bias, sample_weight=weight)
        both = [call for call in (progress.callback, stop) if call is not None]
        callback = (lambda fit: any([call(fit) for call in both])) if both else None  # noqa: C419 (each is called)
        solved = solve_by_driver(problem, solver, callback=callback, key=key)
        if stop is not None and stop.ended:  # no further step certifies its best machine
            solved = solve_by_driver(problem, dataclasses.replace(solver, steps=0), stop.best, solved.steps)
        return progress.ended(solved._replace(dual_coef=solved.dual_coef[:n]))


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class PegasosClassifier(SparseCoefMixin, LinearEstimator):
    """A linear SVM by stochastic subgradient descent, over passes or as a stream (`partial_fit`).

    `min alpha / 2 |w|^2 + mean_i max(0, 1 - y_i f(x_i))`, each class against the rest (Shalev-Shwartz et al. 2011;
    steps and averages: `jaxsvm.Pegasos`). Scale the features first.

    Args:
        alpha: The strength of the regulariser, > 0; `1 / (n C)` of an SVM.
        batch: The number of samples a step, >= 1.
        passes: Passes of `fit` over the samples, >= 1; "auto": 20, or more until there are 1,000 steps.
        average: "linear", "uniform" or "last": the average of the iterates that is returned.
        fit_intercept: Whether there is a bias (regularised).
        class_weight: Factors of the loss by class, "balanced" (only in `fit`), or None.
        verbose: Whether `fit` prints passes, the mean loss and the time left, once a second and at the end.
        random_state: The seed of the order of samples in `fit`.

    Attributes:
        loss_: Mean hinge loss of each batch before its step, `(1,)` or `(k,)`: progressive validation.
        n_iter_: Passes of the last `fit`, 1 after `partial_fit`.
        t_: The number of steps taken.

    `classes_`, `coef_` and `intercept_` are those of `LinearSVC`.
    """

    alpha: float = 1e-4
    batch: int = 64
    passes: int | Literal["auto"] = "auto"
    average: str = "linear"
    fit_intercept: bool = True
    class_weight: ClassWeight | None = None
    verbose: bool = False
    random_state: Seed | None = None

    @_fit_context(prefer_skip_nested_validation=True)
    @estimating
    def fit(
        self, X: ArrayLike | SparseRows, y: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> "PegasosClassifier":
        """Train from the start, in several passes over the samples in random order; return the estimator.

        The arguments are those of `LinearSVC.fit`; the mean of the loss is over samples, whatever their weights.
        """
        points, codes, weight = labelled(self, X, y, sample_weight)
        random = check_random_state(self.random_state)
        self._states, self.t_ = None, 0
        steps = -(-points.shape[0] // self.batch)
        self.n_iter_ = max(20, -(-1000 // steps)) if self.passes == "auto" else int(self.passes)
        progress = Progress(self, self.n_iter_)
        for ended in range(1, self.n_iter_ + 1):
            self._pass(points, codes, weight, random.permutation(points.shape[0]))
            progress.say(f"passes: mean loss {self.loss_.mean():.3g}", ended)
        return self

    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(
        self,
        X: ArrayLike | SparseRows,
        y: ArrayLike,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> "PegasosClassifier":
        """Continue with one pass over more samples; they are not stored; return the estimator.

        Args:
            X: Points, `(n, d)`.
            y: Labels, `(n,)`.
            classes: All labels of the stream, at the first call.
            sample_weight: Factors of the loss, `(n,)`.
        """
        first = not hasattr(self, "classes_")
        points, labels = checked(self, X, y, reset=first)
        if _check_partial_fit_first_call(self, classes):
            self._states, self.t_ = None, 0
        unknown = np.setdiff1d(labels, self.classes_)
        if len(unknown):
            raise ValueError(f"`classes={self.classes_}` lacks {unknown} of y: name all labels at the first call.")
        if isinstance(self.class_weight, str):
            raise ValueError('class_weight "balanced" needs all labels at once: give factors a class in a dictionary.')
        weight = weights_of(self, points, labels, sample_weight)
        self._pass(points, np.searchsorted(self.classes_, labels), weight, np.arange(points.shape[0]))
        self.n_iter_ = 1
        return self

    def _pass(self, X: Any, codes: np.ndarray, weight: np.ndarray, order: np.ndarray) -> None:
        """Make one pass in batches of one shape; samples of weight 0 fill the last one."""
        d, b = X.shape[1], self.batch
        targets = np.stack(signs_against_rest(codes, len(self.classes_)))
        solver = Pegasos(batch=b, average=self.average)
        bias = "regularized" if self.fit_intercept else "none"
        with jax.enable_x64(True):
            states: Any = self._states
            if states is None:
                state = solver.start(d, float(self.alpha), bias=bias, dtype=np.float64)
                states = jax.tree.map(lambda leaf: np.stack([np.asarray(leaf)] * len(targets)), state)
            for start in range(0, len(order), b):
                rows = order[start : start + b]
                left = b - len(rows)
                rows = np.append(rows, np.repeat(rows[:1], left))
                points = X[rows].toarray() if sp.issparse(X) else X[rows]
                factors = weight[rows] * b / (b - left)
                factors[b - left :] = 0
                states = _updated(solver, states, points, targets[:, rows], factors)
                self.t_ += 1
            self._states = jax.tree.map(np.asarray, states)
            coef, intercept = _decision(solver, states)
        self.coef_, self.intercept_ = np.array(coef), np.array(intercept)
        self.loss_ = np.array(self._states.loss)


_updated = jax.jit(jax.vmap(Pegasos.update, (None, 0, None, 0, None)))  # one state a class
_decision = jax.jit(jax.vmap(lambda solver, state: (solver.coef(state), solver.intercept(state)), (None, 0)))
