"""`NuSVR`: regression with a share nu of errors in place of the width of the tube."""

from numbers import Real
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.base import RegressorMixin, _fit_context
from sklearn.utils._param_validation import Interval

from jaxsvm.errors import InputError
from jaxsvm.estimators.base import KernelEstimator
from jaxsvm.estimators.regression import OneMachine
from jaxsvm.estimators.training.box import NOTHING, BoxData, Solved, on_definite
from jaxsvm.estimators.training.machines import Samples, size_class
from jaxsvm.estimators.training.within_classes import minimized
from jaxsvm.problems.box import BoxProblem
from jaxsvm.results.fit import Status
from jaxsvm.results.judge import relative_to

LARGEST = 8192
"""Samples of a `NuSVR`, whose kernel values are stored twice over."""
MOST_STEPS = 10_000_000
TIGHTER = np.array([1.0, 0.1, 0.01, 1e-3])
"""Violations, in units of `tol`, until the gap is below `tol` too."""


class NuSVR(RegressorMixin, OneMachine):
    """Support vector regression with a kernel, a share nu of errors in place of the width of the tube.

    `min |w|^2 / 2 + sum_i C_i (nu epsilon + max(0, |y_i - f(x_i)| - epsilon))` over w, b and `epsilon >= 0`. Parameters
    and attributes are those of `sklearn.svm.NuSVR`. Its solution is that of `SVR` at the epsilon that it finds
    (`epsilon_`), and this is how it is certified.

    Args:
        nu: At most this share of the samples is outside the tube, at least it is support, in (0, 1].
        C: As for `SVR`.
        kernel: As for `SVC`.
        degree: As for `SVC`.
        gamma: As for `SVC`.
        coef0: As for `SVC`.
        shrinking: As for `SVR`.
        tol: As for `SVR`.
        cache_size: As for `SVR`.
        verbose: As for `SVR`.
        max_iter: As for `SVC`.

    Attributes:
        epsilon_: Half the width of the tube, in units of y.

    All others are those of `SVR`.
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **KernelEstimator._parameter_constraints,
        "C": [Interval(Real, 0.0, None, closed="neither")],
        "nu": [Interval(Real, 0.0, 1.0, closed="right")],
    }

    scikit_learn_class = "NuSVR"

    def __init__(
        self,
        *,
        nu: float = 0.5,
        C: float = 1.0,  # noqa: N803
        kernel: Any = "rbf",
        degree: int = 3,
        gamma: Any = "scale",
        coef0: float = 0.0,
        shrinking: bool = True,
        tol: float = 1e-3,
        cache_size: float = 200,
        verbose: bool = False,
        max_iter: int = -1,
    ) -> None:
        self.nu = nu
        self.C = C
        self.kernel = kernel
        self.degree = degree
        self.gamma = gamma
        self.coef0 = coef0
        self.shrinking = shrinking
        self.tol = tol
        self.cache_size = cache_size
        self.verbose = verbose
        self.max_iter = max_iter

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "NuSVR":
        """Train on samples with targets; arguments as for `SVR.fit`."""
        X, rows, data, target, weight = self._regression(X, y, sample_weight)
        solved, self.epsilon_ = _with_share(data, target, self.C * weight, self.nu, self.tol, self.max_iter)
        n = len(rows)
        self._keep(X, rows, solved.dual_coef[:n] + solved.dual_coef[n:], solved)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Predicted targets, `(m,)`; arguments as for `SVR.predict`."""
        return self._decisions(X)


def _with_share(
    data: Samples, target: np.ndarray, upper: np.ndarray, nu: float, tol: float, max_iter: int
) -> tuple[Solved, float]:
    """The solution of 2 n variables, those above the tube first, and the half width of the tube."""
    n, data = len(target), data.looked_at()
    if n > LARGEST:
        raise InputError(f"X has {n} samples: NuSVR stores kernel values of up to {LARGEST}; use SVR with an epsilon.")
    size = size_class(2 * n)
    before = np.append(0, np.cumsum(upper)[:-1])
    half = np.clip(nu * upper.sum() / 2 - before, 0, upper)  # LIBSVM's: the first samples, at their bounds
    y, t, U, a = np.ones(size), np.zeros(size), np.zeros(size), np.zeros(size)
    y[n : 2 * n], t[: 2 * n] = -1, np.concatenate([target, -target])
    U[: 2 * n], a[: 2 * n] = np.tile(upper, 2), np.tile(half, 2)
    limit = MOST_STEPS if max_iter < 0 else max_iter
    with jax.enable_x64(True):
        if data.K is None:
            data = data._replace(K=data.values.between(data.x, data.x))
        operator = data.operator((slice(0, n), slice(0, n)), size)
        K = operator.K
        found: Any = None
        steps, certified = 0, False
        for violation in tol * TIGHTER:
            found = jax.tree.map(np.asarray, _tube(K, y, t, U, a, np.float64(violation), np.int32(limit - steps)))
            a, steps = found[0], steps + int(found[-1])
            certified = float(found[-2].relative_gap) <= tol
            if certified or steps >= limit:
                break
        _, coef, bias, epsilon, certificate, _ = found
        status = Status.CONVERGED if certified else Status.MAX_STEPS
        solved = Solved(coef[: 2 * n], float(bias), certificate, steps, status)
        return on_definite(operator, BoxData(y, t, U, y), solved), float(epsilon)


@jax.jit
def _tube(K: Any, y: Any, t: Any, upper: Any, a: Any, tol: Any, limit: Any) -> Any:
    """The point, coefficients, bias, epsilon, certificate, steps."""
    found = minimized(K, y, t, upper, a, tol, limit)
    epsilon = jnp.maximum(-(found.levels[0] + found.levels[1]) / 2, 0)
    one = jnp.ones((), a.dtype)
    problem = BoxProblem(
        gram=None,
        y=y,
        q=t - epsilon,
        upper=upper,
        c=y,
        e=0 * one,
        C=one,
        constant=0 * one,
        diagonal=jnp.diagonal(K).astype(a.dtype),
        mask=None,
        feasible=one > 0,
        offset=0.0,
    )
    answer = problem.certified(found.a, found.s, a.dtype)
    certificate = relative_to(answer.certificate, NOTHING * jnp.minimum(1, upper @ jnp.abs(t)))
    return found.a, answer.dual_coef, answer.bias, epsilon, certificate, found.steps
