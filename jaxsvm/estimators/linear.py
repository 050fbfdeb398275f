"""`LinearSVC`: linear classification of many samples, in feature space."""

from numbers import Integral, Real
from typing import Any, ClassVar

import jax
import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator, _fit_context
from sklearn.linear_model._base import LinearClassifierMixin, SparseCoefMixin
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight

from jaxsvm.estimators.base import Versioned, report
from jaxsvm.estimators.training.box import Solved, solve_further
from jaxsvm.estimators.training.kernel_values import padded_rows
from jaxsvm.estimators.validation import FiniteDecisions, checked, class_factors, require_classes
from jaxsvm.gram.build import gram as gram_of
from jaxsvm.kernels import Linear
from jaxsvm.numerics.sizes import size_class
from jaxsvm.problems.box import hinge_problem
from jaxsvm.problems.squared_hinge import svm_problem

DENSE = 5e7
"""Entries up to which sparse points of few columns are made dense, where solvers in feature space are at hand."""
FEW_COLUMNS = 2000
COLUMNS = 8
"""Columns of small data are padded to a multiple of it: programs for another d compile for seconds."""
SMALL = 10**9
"""Operations `n d^2` up to which columns are padded: more take longer than a program."""


class LinearSVC(FiniteDecisions, LinearClassifierMixin, SparseCoefMixin, Versioned, BaseEstimator):
    """Linear support vector classification, each class against the rest, with a regularised bias.

    `min (|w|^2 + b^2 / s^2) / 2 + C sum_i loss_i`, `loss = max(0, 1 - y f)^2` or `max(0, 1 - y f)`, s being
    `intercept_scaling`: the problem, parameters and attributes of `sklearn.svm.LinearSVC`, and `certificate_`. Newton
    (squared hinge) and interior point steps in feature space, O(n d^2) each, whatever C.

    Args:
        penalty: "l2".
        loss: "squared_hinge" or "hinge".
        dual: Taken for scikit-learn's sake; without effect, as `verbose`, `random_state` and `max_iter` are.
        tol: The relative duality gap that each class is certified to, > 0.
        C: The cost of a loss of 1, > 0; times class and sample weights.
        multi_class: "ovr".
        fit_intercept: Whether there is a bias.
        intercept_scaling: The value of the feature whose weight the bias is, > 0.
        class_weight: Factors of C a class, "balanced", or None.
        verbose: See `dual`.
        random_state: See `dual`.
        max_iter: See `dual`.

    Attributes:
        classes_: Labels, sorted, `(k,)`.
        coef_: Weights, `(1, d)` for two classes, else `(k, d)`.
        intercept_: Biases, `(1,)` or `(k,)`.
        n_iter_: The most steps of a class.
        fit_status_: 0, or 1 where a class is not certified to `tol` (then there was a ConvergenceWarning).
        certificate_: Primal value, dual value and relative gap a class.
        n_features_in_: d.
        feature_names_in_: Names of the columns, where they have any.
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "penalty": [StrOptions({"l2"})],
        "loss": [StrOptions({"hinge", "squared_hinge"})],
        "dual": ["boolean", StrOptions({"auto"})],
        "tol": [Interval(Real, 0.0, None, closed="neither")],
        "C": [Interval(Real, 0.0, None, closed="neither")],
        "multi_class": [StrOptions({"ovr"})],
        "fit_intercept": ["boolean"],
        "intercept_scaling": [Interval(Real, 0, None, closed="neither")],
        "class_weight": [None, dict, StrOptions({"balanced"})],
        "verbose": ["verbose"],
        "random_state": ["random_state"],
        "max_iter": [Interval(Integral, 0, None, closed="left")],
    }

    def __init__(
        self,
        penalty: str = "l2",
        loss: str = "squared_hinge",
        *,
        dual: Any = "auto",
        tol: float = 1e-4,
        C: float = 1.0,  # noqa: N803
        multi_class: str = "ovr",
        fit_intercept: bool = True,
        intercept_scaling: float = 1.0,
        class_weight: Any = None,
        verbose: int = 0,
        random_state: Any = None,
        max_iter: int = 1000,
    ) -> None:
        self.penalty = penalty
        self.loss = loss
        self.dual = dual
        self.tol = tol
        self.C = C
        self.multi_class = multi_class
        self.fit_intercept = fit_intercept
        self.intercept_scaling = intercept_scaling
        self.class_weight = class_weight
        self.verbose = verbose
        self.random_state = random_state
        self.max_iter = max_iter

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "LinearSVC":
        """Train on labelled samples.

        Args:
            X: Points, `(n, d)`, dense, a frame, or sparse.
            y: Labels, `(n,)`, of two classes or more.
            sample_weight: Factors of C, `(n,)`, not negative; 0 is absence.

        Returns:
            The estimator.
        """
        X, y = checked(self, X, y)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        k = len(self.classes_)
        if k < 2:
            raise ValueError(f"The number of classes has to be greater than one; got {k} class: two are needed.")
        weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        weight = weight * class_factors(self.class_weight, self.classes_, y)[codes]
        require_classes(codes, weight, self.classes_, every=True)
        with jax.enable_x64(True):
            solved, w = self._trained(X, codes, weight, [1] if k == 2 else list(range(k)))
        d = X.shape[1]
        self.coef_ = w[:, :d]
        self.intercept_ = w[:, d] * self.intercept_scaling if self.fit_intercept else np.zeros(len(w))
        self.n_iter_ = int(max(one.steps for one in solved))
        report(self, [one.certificate for one in solved], [one.status for one in solved])
        return self

    def _trained(
        self, X: Any, codes: np.ndarray, weight: np.ndarray, positive: list[int]
    ) -> tuple[list[Solved], np.ndarray]:
        """A fit, and weights, for each class against the rest."""
        n = X.shape[0]
        if self.fit_intercept:
            constant = np.full((n, 1), self.intercept_scaling)
            X = sp.hstack([X, constant], format="csr") if sp.issparse(X) else np.hstack([X, constant])
        if sp.issparse(X) and X.shape[1] <= FEW_COLUMNS and n * X.shape[1] <= DENSE:
            X = X.toarray()
        size = n if sp.issparse(X) else size_class(n)
        operator = gram_of(Linear(), X if sp.issparse(X) else padded_rows(padded_columns(X), size))
        absent = np.zeros(size - n)
        top = float(weight.max())
        make, C = (hinge_problem, self.C * top) if self.loss == "hinge" else (svm_problem, 2 * self.C * top)
        solved, w = [], []
        for one in positive:
            y = np.concatenate([np.where(codes == one, 1.0, -1.0), absent + 1])
            problem = make(operator, y, C, bias="none", sample_weight=np.append(weight / top, absent))
            solved.append(solve_further(problem, self.tol))
            w.append(np.asarray(X.T @ solved[-1].dual_coef[:n]).ravel())
        return solved, np.stack(w)


def padded_columns(x: np.ndarray) -> np.ndarray:
    """Points `(n, d)` with columns of zeros, which change no product, where a program costs more than they do."""
    n, d = x.shape
    return np.pad(x, ((0, 0), (0, -d % COLUMNS if n * d * d <= SMALL else 0)))
