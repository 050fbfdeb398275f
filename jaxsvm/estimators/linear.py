"""Classify linearly: `LinearSVC`, and `CoresetSVC` (by few weighted samples)."""

from __future__ import annotations

import dataclasses
from numbers import Integral
from typing import Any, ClassVar, Literal

import jax
import numpy as np
import scipy.sparse as sp
from sklearn.linear_model._base import SparseCoefMixin
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions

from jaxsvm.coresets import certify, coreset
from jaxsvm.estimators.base import LinearEstimator
from jaxsvm.estimators.kernel_values import padded_rows
from jaxsvm.estimators.machines import Progress, one_thread, weighted_problem
from jaxsvm.estimators.validation import POSITIVE, ClassWeight, Seed, signs_against_rest
from jaxsvm.gram.build import gram as gram_of
from jaxsvm.kernels import Linear
from jaxsvm.loop.interruption import until_halt
from jaxsvm.loop.many import Solved, solve_by_driver
from jaxsvm.numerics.hinge_program import ROUNDED, minimum_by_products
from jaxsvm.numerics.measured import MEASURED as SIZES
from jaxsvm.numerics.precision import rounding
from jaxsvm.numerics.sizes import size_class
from jaxsvm.results.fit import Status
from jaxsvm.results.judge import judged
from jaxsvm.solvers.contract import Solver

COLUMNS_MADE_DENSE, ENTRIES_MADE_DENSE = 2000, 5e7  # of sparse points, at most: the feature solvers take dense ones


@dataclasses.dataclass(eq=False, repr=False)
class LinearSVC(SparseCoefMixin, LinearEstimator):
    """Linear support vector classification, each class against the rest, with a regularised bias.

    `min (|w|^2 + b^2 / s^2) / 2 + C sum_i loss_i`, `loss = max(0, 1 - y f)^2` or `max(0, 1 - y f)`, where s is
    `intercept_scaling`: the problem, parameters and attributes of `sklearn.svm.LinearSVC`, and `certificate_`. Solved
    by Newton (squared hinge) or interior point steps in feature space, O(n d^2) each; C does not change their number.
    Sparse rows, and dense ones of more features than samples or 2,000, take products alone, O(entries) each.

    Args:
        penalty: "l2".
        loss: "squared_hinge" or "hinge".
        dual: Accepted for compatibility with scikit-learn; no effect.
        tol: The relative duality gap to certify for each class, > 0.
        C: The cost of a loss of 1, > 0; times class and sample weights.
        multi_class: "ovr".
        fit_intercept: Whether there is a bias.
        intercept_scaling: The value s of the feature whose weight is the bias, > 0.
        class_weight: Factors of C by class, "balanced", or None.
        verbose: Whether to print once a second, and at the end, the gap, the steps and the time left.
        random_state: Accepted for compatibility with scikit-learn; no effect.
        max_iter: Accepted for compatibility with scikit-learn; no effect.
        solver: A solver's configuration, such as `jaxsvm.SDCA(tol=1e-3)`, for a problem of this loss without a bias
            (which is a feature here); its own tolerance takes the place of `tol`. None chooses.

    Attributes:
        classes_: Labels, sorted, `(k,)`.
        coef_: Weights, `(1, d)` for two classes, else `(k, d)`.
        intercept_: Biases, `(1,)` or `(k,)`.
        n_iter_: The largest number of steps of a class.
        fit_status_: 0, or 1 if a class is not certified to `tol` (`fit` gave a ConvergenceWarning).
        certificate_: Primal value, dual value and relative gap of each class.
    """

    penalty: str = "l2"
    loss: str = "squared_hinge"
    _: dataclasses.KW_ONLY
    dual: bool | Literal["auto"] = "auto"
    tol: float = 1e-4
    C: float = 1.0
    multi_class: str = "ovr"
    fit_intercept: bool = True
    intercept_scaling: float = 1.0
    class_weight: ClassWeight | None = None
    verbose: int = 0
    random_state: Seed | None = None
    max_iter: int = 1000
    solver: Solver | None = None
    _limits: ClassVar[dict[str, Any]] = {
        "C": POSITIVE,
        "multi_class": [StrOptions({"ovr"})],
        "max_iter": [Interval(Integral, 0, None, closed="left")],
    }

    def _trained(self, X: Any, codes: np.ndarray, weight: np.ndarray) -> tuple[list[Solved], np.ndarray, np.ndarray]:
        """Return the solutions, weights and biases of each class against the rest."""
        n, d = X.shape
        if self.fit_intercept:
            constant = np.full((n, 1), self.intercept_scaling)
            X = sp.hstack([X, constant], format="csr") if sp.issparse(X) else np.hstack([X, constant])
        if sp.issparse(X) and X.shape[1] <= COLUMNS_MADE_DENSE and n * X.shape[1] <= ENTRIES_MADE_DENSE:
            X = X.toarray()
        wide, operator = sp.issparse(X) or X.shape[1] > min(n, SIZES.largest_direct_system), None
        solved, w, signs = [], [], list(signs_against_rest(codes, len(self.classes_)))
        progress = Progress(self, len(signs))
        with jax.enable_x64(True):
            for y in until_halt(signs):
                found, coef = self._by_products(X, y, weight) if wide and self.solver is None else (None, None)
                if found is None:
                    if operator is None:
                        points = X if sp.issparse(X) else padded_rows(padded_columns(X), size_class(n))
                        operator = gram_of(Linear(), points)
                    problem = weighted_problem(operator, y, weight, self.C, self.loss, "none")
                    found = solve_by_driver(problem, self.solver or self.tol, callback=progress.callback)
                    coef = np.asarray(X.T @ found.dual_coef[:n]).ravel()
                solved.append(progress.ended(found))
                w.append(coef)
        w = np.stack(w)
        return solved, w[:, :d], w[:, d] * self.intercept_scaling if self.fit_intercept else np.zeros(len(w))

    def _by_products(self, X: Any, y: np.ndarray, weight: np.ndarray) -> tuple[Solved | None, np.ndarray]:
        """Return the solution from products with X, and its weights `(d,)`; None if it is not certified to `tol`."""
        w, coef, here = np.zeros(X.shape[1]), np.zeros(len(y)), weight > 0
        used = np.bincount(X.indices, minlength=len(w)) > 0 if sp.issparse(X) else np.ones(len(w), bool)
        rows = X if here.all() else X[here]
        rows = rows if used.all() else rows[:, np.flatnonzero(used)]
        square = self.loss == "squared_hinge"
        c = (2 if square else 1) * self.C * weight[here]
        with one_thread():
            found = minimum_by_products(rows, y[here], c, square, 0.9 * self.tol)  # less than `tol`: rounding is added
        w[used], coef[here] = found.w, y[here] * found.a
        sizes = np.sqrt(rows.multiply(rows).sum(axis=1) if sp.issparse(X) else np.einsum("ij,ij->i", rows, rows))
        reach = found.a @ np.ravel(sizes) * np.linalg.norm(found.w)
        off = 4 * rounding(len(c), np.float64) * found.value + 4 * np.finfo(float).eps * reach
        P, D = np.float64(found.value), np.float64(found.value - found.gap)
        certificate = judged(P, D, P - D + off, D, rounding=ROUNDED * abs(D))
        solved = Solved(coef, 0.0, certificate, found.steps, Status.STALLED).judged(self.tol, definite=True)
        return solved if solved.status == Status.CONVERGED else None, w


def padded_columns(x: np.ndarray) -> np.ndarray:
    """Return points `(n, d)` with zero columns up to a multiple of 8, up to 1e9 operations `n d^2`.

    The columns change no product. A program for another d compiles for seconds; larger data takes longer than that.
    """
    n, d = x.shape
    return np.pad(x, ((0, 0), (0, -d % 8 if n * d * d <= 10**9 else 0)))


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class CoresetSVC(LinearEstimator):
    """A linear hinge SVM with a free bias, trained on a coreset: a few weighted samples.

    `min |w|^2 / 2 + C sum_i max(0, 1 - y_i f(x_i))`, each class against the rest, each on its own coreset
    (`jaxsvm.coresets.coreset`), and certified on all samples (`jaxsvm.coresets.certify`).

    Args:
        C: The cost of a unit of slack, > 0.
        m: The number of points of a coreset, >= 2; ten times d is a good size.
        tol: The relative duality gap of the fit to the coreset, > 0, which `fit_status_` is about.
        random_state: The seed of the draws.

    Attributes:
        coreset_sizes_: The number of points of each coreset.
        certificate_: Primal value, lower bound of the optimum and relative gap of each class, on all samples.

    All other parameters and attributes are those of `LinearSVC`.
    """

    C: float = 1.0
    m: int = 1000
    tol: float = 1e-3
    verbose: bool = False
    class_weight: ClassWeight | None = None
    random_state: Seed | None = None
    _limits: ClassVar[dict[str, Any]] = {"C": POSITIVE}

    def _trained(self, X: Any, codes: np.ndarray, weight: np.ndarray) -> tuple[list[Solved], np.ndarray, np.ndarray]:
        """Draw a coreset for each class against the rest, and train on it."""
        present = weight > 0
        x, weight = (X.toarray() if sp.issparse(X) else X)[present], weight[present]
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        signs = signs_against_rest(codes[present], len(self.classes_))
        progress = Progress(self, len(signs))
        results = [self._fit_one(x, y, weight, seed, progress) for y in until_halt(signs)]
        solved, coef, self.coreset_sizes_ = map(list, zip(*results, strict=True))
        return solved, np.stack(coef), np.array([solution.bias for solution in solved])

    def _fit_one(
        self, x: np.ndarray, y: np.ndarray, weight: np.ndarray, seed: int, progress: Progress
    ) -> tuple[Solved, np.ndarray, int]:
        """Return the solution on a coreset, its weights, and the size of the coreset: all samples if they are few."""
        C, rows, lower = float(self.C), (x, y, weight), None
        if self.m < len(y):
            small = coreset(x, y, C, int(self.m), seed, sample_weight=weight)
            x, y, weight, lower = small.x, small.y, small.weight, small.info["lower"]
        n = len(y)
        with jax.enable_x64(True):
            problem = weighted_problem(gram_of(Linear(), padded_rows(x, size_class(n))), y, weight, C, "hinge", "free")
            solution = progress.ended(solve_by_driver(problem, self.tol, callback=progress.callback))
        w = x.T @ solution.dual_coef[:n]
        known = {} if lower is None else {"certificate": certify((w, solution.bias), rows, lower, C=C)}
        return solution._replace(**known), w, n
