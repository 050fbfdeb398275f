"""`SBPClassifier` and `PegasosClassifier`: stochastic solvers, for a good classifier long before the optimum."""

from numbers import Integral, Real
from typing import Any, ClassVar

import jax
import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator, _fit_context
from sklearn.linear_model._base import LinearClassifierMixin, SparseCoefMixin
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.multiclass import _check_partial_fit_first_call, check_classification_targets
from sklearn.utils.validation import _check_sample_weight

from jaxsvm.estimators.base import Versioned
from jaxsvm.estimators.classifier import SVC
from jaxsvm.estimators.training.box import Solved
from jaxsvm.estimators.training.machines import Machine, Samples, size_class
from jaxsvm.estimators.training.probability import DEFAULT_PROBABILITY
from jaxsvm.estimators.validation import FiniteDecisions, checked, class_factors, require_classes
from jaxsvm.gram.build import gram as gram_of
from jaxsvm.loop.driver import drive
from jaxsvm.numerics.sizes import LARGEST_PADDED
from jaxsvm.problems.slack import slack_problem
from jaxsvm.results.fit import Status
from jaxsvm.solvers.stochastic.pegasos import Pegasos
from jaxsvm.solvers.stochastic.stochastic_batch_perceptron import StochasticBatchPerceptron

PASSES, STEPS = 20, 1000
"""Of `PegasosClassifier(passes="auto")`: passes, and steps of few samples, which 20 passes leave far from an answer."""


class SBPClassifier(SVC):
    """The slack-constrained kernel SVM by the Stochastic Batch Perceptron (Cotter, Shalev-Shwartz and Srebro 2012).

    The best worst margin of a unit vector that has a mean slack of nu; more than two classes are each class against
    the rest. It ends with its steps, or sooner where its gap is below `tol`: not to reach it is no failure here.

    Args:
        nu: Mean slack of a unit vector, >= 0, in units of the largest `sqrt(k(x_i, x_i))`.
        kernel: As for `SVC`.
        degree: As for `SVC`.
        gamma: As for `SVC`.
        coef0: As for `SVC`.
        bias: "regularized", "none" or "free".
        steps: The step cap, >= 1.
        batch: Rows a step, >= 1.
        tol: The relative gap that ends it sooner, > 0.
        class_weight: As for `SVC`.
        decision_function_shape: As for `SVC`.
        random_state: Of the draws.

    Attributes:
        certificate_: The level reached and its bound, a number a class each, and their relative gap.

    All others are those of `SVC`.
    """

    multi_class = "ovr"
    loss = "hinge"
    probability = DEFAULT_PROBABILITY
    break_ties = False
    _steps_suffice = True
    """`steps` is what was asked for: to end with them is no failure."""

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **{
            name: SVC._parameter_constraints[name]
            for name in ("kernel", "degree", "gamma", "coef0", "bias", "tol", "class_weight", "random_state")
        },
        "decision_function_shape": SVC._parameter_constraints["decision_function_shape"],
        "nu": [Interval(Real, 0.0, None, closed="left")],
        "steps": [Interval(Integral, 1, None, closed="left")],
        "batch": [Interval(Integral, 1, None, closed="left")],
    }

    scikit_learn_class = ""

    def __init__(
        self,
        *,
        nu: float = 0.01,
        kernel: Any = "rbf",
        degree: int = 3,
        gamma: Any = "scale",
        coef0: float = 0.0,
        bias: str = "regularized",
        steps: int = 2000,
        batch: int = 32,
        tol: float = 1e-2,
        class_weight: Any = None,
        decision_function_shape: str = "ovr",
        random_state: Any = None,
    ) -> None:
        self.nu = nu
        self.kernel = kernel
        self.degree = degree
        self.gamma = gamma
        self.coef0 = coef0
        self.bias = bias
        self.steps = steps
        self.batch = batch
        self.tol = tol
        self.class_weight = class_weight
        self.decision_function_shape = decision_function_shape
        self.random_state = random_state

    @property
    def _may_round(self) -> bool:
        return False

    @property
    def _cost(self) -> float:
        return 1.0

    def _trained(self, data: Samples, machines: list[Machine]) -> list[Solved]:
        key = jax.random.key(check_random_state(self.random_state).randint(2**31 - 1))
        solver = StochasticBatchPerceptron(
            steps=int(self.steps), batch=int(self.batch), fill=True, tol=float(self.tol), average="linear"
        )
        with jax.enable_x64(True):
            return [self._one(data, machine, solver, key) for machine in machines]

    def _one(self, data: Samples, machine: Machine, solver: StochasticBatchPerceptron, key: Any) -> Solved:
        n = machine.n
        size = size_class(n) if n <= LARGEST_PADDED else n
        if data.K is None:
            operator = gram_of(data.values.kernel, data.points(machine.parts))
        else:
            operator = data.operator(machine.parts, size)
        size = operator.n
        y, weight = np.ones(size), np.zeros(size)
        y[:n], weight[:n] = machine.signs, machine.upper / machine.upper.mean()
        radius = float(np.sqrt(np.asarray(operator.diag())[:n].max() + (self.bias == "regularized")))
        problem = slack_problem(operator, y, self.nu * radius, bias=self.bias, sample_weight=weight)
        found = drive(problem, solver, key, warn=False)
        certificate: Any = jax.tree.map(np.asarray, found.certificate)
        coef = np.asarray(found.dual_coef, np.float64)[:n]
        return Solved(coef, float(found.bias), certificate, int(found.steps), Status(int(found.status)))


class PegasosClassifier(FiniteDecisions, LinearClassifierMixin, SparseCoefMixin, Versioned, BaseEstimator):
    """A linear SVM by stochastic subgradient descent, over passes or as a stream (`partial_fit`).

    `min alpha / 2 |w|^2 + mean_i max(0, 1 - y_i f(x_i))`, each class against the rest (Shalev-Shwartz et al. 2011;
    steps and averages: `jaxsvm.Pegasos`). Features had better be scaled.

    Args:
        alpha: The strength of the regulariser, > 0: `1 / (n C)` of an SVM.
        batch: Samples a step, >= 1.
        passes: Passes of `fit` over the samples, >= 1; "auto": 20, or as many as make 1,000 steps of few samples.
        average: "linear", "uniform" or "last": what the answer is of the iterates.
        fit_intercept: Whether there is a bias (regularised).
        class_weight: Factors of the loss a class, "balanced" (of `fit` alone), or None.
        random_state: Of the order of samples in `fit`.

    Attributes:
        classes_: Labels, sorted, `(k,)`.
        coef_: Weights, `(1, d)` for two classes, else `(k, d)`.
        intercept_: Biases, `(1,)` or `(k,)`.
        loss_: Mean hinge loss of each batch before its step, `(1,)` or `(k,)`: progressive validation.
        n_iter_: Passes of the last `fit`, 1 after `partial_fit`.
        t_: Steps taken.
        n_features_in_: d.
        feature_names_in_: Names of the columns, where they have any.
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "alpha": [Interval(Real, 0.0, None, closed="neither")],
        "batch": [Interval(Integral, 1, None, closed="left")],
        "passes": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "average": [StrOptions({"linear", "uniform", "last"})],
        "fit_intercept": ["boolean"],
        "class_weight": [None, dict, StrOptions({"balanced"})],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        *,
        alpha: float = 1e-4,
        batch: int = 64,
        passes: Any = "auto",
        average: str = "linear",
        fit_intercept: bool = True,
        class_weight: Any = None,
        random_state: Any = None,
    ) -> None:
        self.alpha = alpha
        self.batch = batch
        self.passes = passes
        self.average = average
        self.fit_intercept = fit_intercept
        self.class_weight = class_weight
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "PegasosClassifier":
        """Train anew, several times over samples in random order.

        Args:
            X: Points, `(n, d)`, dense, a frame, or sparse (made dense a batch at a time).
            y: Labels, `(n,)`.
            sample_weight: Factors of the loss, `(n,)`; its mean is over samples, whatever their weights.

        Returns:
            The estimator.
        """
        X, y = checked(self, X, y)
        check_classification_targets(y)
        self.classes_ = np.unique(y)
        if len(self.classes_) < 2:
            raise ValueError("The number of classes has to be greater than one; got 1 class: two are needed.")
        weight = self._weights(sample_weight, X, y)
        require_classes(np.searchsorted(self.classes_, y), weight, self.classes_, every=True)
        random = check_random_state(self.random_state)
        self._states, self.t_ = None, 0
        steps = -(-X.shape[0] // self.batch)
        self.n_iter_ = max(PASSES, -(-STEPS // steps)) if self.passes == "auto" else int(self.passes)
        for _ in range(self.n_iter_):
            self._walk(X, y, weight, random.permutation(X.shape[0]))
        return self

    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> "PegasosClassifier":
        """Go on with some more samples, once over them; nothing is kept of them.

        Args:
            X: Points, `(n, d)`.
            y: Labels, `(n,)`.
            classes: All labels there will be, at the first call.
            sample_weight: Factors of the loss, `(n,)`.

        Returns:
            The estimator.
        """
        first = not hasattr(self, "classes_")
        X, y = checked(self, X, y, reset=first)
        if _check_partial_fit_first_call(self, classes):
            self._states, self.t_ = None, 0
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            raise ValueError(f"`classes={self.classes_}` lacks {unknown} of y: name all labels at the first call.")
        if isinstance(self.class_weight, str):
            raise ValueError('class_weight "balanced" needs all labels at once: give factors a class in a dictionary.')
        self._walk(X, y, self._weights(sample_weight, X, y), np.arange(X.shape[0]))
        self.n_iter_ = 1
        return self

    def _weights(self, sample_weight: Any, X: Any, y: np.ndarray) -> np.ndarray:
        weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        factors = class_factors(self.class_weight, self.classes_, y)
        return weight * factors[np.searchsorted(self.classes_, y)]

    def _walk(self, X: Any, y: np.ndarray, weight: np.ndarray, order: np.ndarray) -> None:
        """One pass in batches of one shape: the last one has samples of weight 0 in the places that are left."""
        d, b = X.shape[1], self.batch
        signs = [1] if len(self.classes_) == 2 else range(len(self.classes_))
        targets = np.stack([np.where(y == self.classes_[place], 1.0, -1.0) for place in signs])
        solver = Pegasos(batch=b, average=self.average)
        bias = "regularized" if self.fit_intercept else "none"
        with jax.enable_x64(True):
            if self._states is None:
                state = solver.start(d, float(self.alpha), bias=bias, dtype=np.float64)
                states: Any = jax.tree.map(lambda leaf: np.stack([np.asarray(leaf)] * len(targets)), state)
            else:
                states = self._states
            for start in range(0, len(order), b):
                rows = order[start : start + b]
                left = b - len(rows)
                rows = np.append(rows, np.repeat(rows[:1], left))
                points = X[rows].toarray() if sp.issparse(X) else X[rows]
                here = weight[rows] * b / (b - left)
                here[b - left :] = 0
                states = _updated(solver, states, points, targets[:, rows], here)
                self.t_ += 1
            self._states = jax.tree.map(np.asarray, states)
            coef, intercept = _answer(solver, states)
        self.coef_, self.intercept_ = np.array(coef), np.array(intercept)
        self.loss_ = np.array(self._states.loss)


@jax.jit
def _updated(solver: Pegasos, states: Any, x: Any, y: Any, weight: Any) -> Any:
    return jax.vmap(lambda state, signs: solver.update(state, x, signs, weight))(states, y)


@jax.jit
def _answer(solver: Pegasos, states: Any) -> Any:
    return jax.vmap(lambda state: (solver.coef(state), solver.intercept(state)))(states)
