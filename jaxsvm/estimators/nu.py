"""Classify and regress with a share nu of errors, in place of C and of the width of the tube: `NuSVC`, `NuSVR`."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import numpy as np
from sklearn.utils.validation import _num_samples

from jaxsvm.errors import InputError
from jaxsvm.estimators.base import LibsvmEstimator
from jaxsvm.estimators.classifier import KernelClassifier
from jaxsvm.estimators.kernel_values import Samples
from jaxsvm.estimators.machines import Machine, Progress, undecided
from jaxsvm.estimators.probability import DEFAULT_PROBABILITY
from jaxsvm.estimators.regression import MOST_VARIABLES, Regressor, both_sides, first_at_bounds
from jaxsvm.estimators.validation import POSITIVE, Seed, sample_weights
from jaxsvm.loop.interruption import until_halt
from jaxsvm.loop.many import BoxData, Solved, constant_solution, padded_size, solve_box


def _require_storable(n: int, most: int, instead: str) -> None:
    """Refuse n samples if kernel values of at most `most` are stored; `instead` names the estimator to use."""
    if n > most:
        raise InputError(f"X has {n} samples: kernel values of up to {most} are stored; use {instead}.")


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class NuSVC(KernelClassifier, LibsvmEstimator):
    """Support vector classification with a kernel, nu in place of C.

    `min a'Qa / 2` over `0 <= a <= 1`, where the sum of each class is `nu n / 2` (Schoelkopf et al. 2000; LIBSVM's
    scale). Its solution divided by its margin r is that of `SVC(C=1 / r)`, and is certified as such: `certificate_` is
    that of the hinge problem at that C. Parameters and attributes are those of `sklearn.svm.NuSVC`.

    Args:
        nu: At most this share of the samples has margin errors, at least this share is support; in (0, 1], up to twice
            the share of the smaller class.
        class_weight: Factors of sample weights by class, "balanced", or None; nu is a share of their sum.

    Attributes:
        C_: The C at which `SVC` has the same solution, one number per machine.

    All other parameters and attributes are those of `SVC`.
    """

    nu: float = 0.5
    probability: bool | str = DEFAULT_PROBABILITY
    break_ties: bool = False
    random_state: Seed | None = None
    _may_round = False  # kernel values are float64 throughout
    scikit_learn_class = "NuSVC"

    def _trained(self, data: Samples, machines: list[Machine]) -> list[Solved]:
        data = data.with_definiteness()
        progress = Progress(self, len(machines))
        solved = [progress.ended(self._solve(data, machine, self.nu)) for machine in until_halt(machines)]
        self.C_ = np.array([solution.parameter for solution in solved])
        return solved

    def _trained_on_part(self, data: Samples, machines: list[Machine]) -> list[Solved]:
        """Train with the largest feasible nu if a part of the samples is too uneven for the requested one."""
        nus = [min(self.nu, _largest_nu(machine) * (1 - 1e-12)) for machine in machines]
        pairs = until_halt(zip(machines, nus, strict=True))
        return [self._solve(data, machine, nu) for machine, nu in pairs]

    def _require_classes(self, codes: np.ndarray, weight: np.ndarray) -> None:
        try:
            super()._require_classes(codes, weight)
        except ValueError as error:
            raise ValueError(f"specified nu is infeasible: {error}") from None  # as LIBSVM says it
        weight = np.maximum(weight, 0)
        sums, counts = (np.bincount(codes, values, len(self.classes_)) for values in (weight, weight > 0))
        for i, j in self._places:
            largest = 2 * min(sums[i], sums[j]) / max(sums[i] + sums[j], np.finfo(float).tiny)
            if 0 < largest < self.nu:
                raise ValueError(
                    f"specified nu is infeasible: nu is {self.nu}, and at most twice the smaller class's share of the "
                    f"weights, {largest:.6g}, is possible."
                )
            _require_storable(int(counts[i] + counts[j]), MOST_VARIABLES, "SVC with a C")

    def _solve(self, data: Samples, machine: Machine, nu: float) -> Solved:
        if _largest_nu(machine) <= 0:
            return undecided(machine)
        n, size, parts = machine.n, padded_size(machine.n, up_to=MOST_VARIABLES), machine.parts
        signs, budget = machine.signs, nu * machine.upper.sum() / 2
        y, upper, start = np.ones(size), np.zeros(size), np.zeros(size)
        y[:n], upper[:n] = signs, machine.upper
        for sign in (-1, 1):
            mine = np.flatnonzero(signs == sign)
            start[mine] = first_at_bounds(budget, upper[mine])
        problem = BoxData(y, np.zeros(size), upper, "nu", start=start)
        with jax.enable_x64(True):
            if data.K is None:
                x = data.points(parts)
                data, parts = data._replace(K=data.values.between(x, x)), (slice(0, n),)
            operator = data.operator(parts, size)
            solved = solve_box(operator, problem, self.tol, self.max_iter)
        return solved._replace(dual_coef=solved.dual_coef[:n])


def _largest_nu(machine: Machine) -> float:
    y, upper = machine.signs, machine.upper
    return 2 * min(upper[y == 1].sum(), upper[y == -1].sum()) / upper.sum() if len(y) else 0.0


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class NuSVR(Regressor):
    """Support vector regression with a kernel, a share nu of errors in place of the width of the tube.

    `min |w|^2 / 2 + sum_i C_i (nu epsilon + max(0, |y_i - f(x_i)| - epsilon))` over w, b and `epsilon >= 0`. Parameters
    and attributes are those of `sklearn.svm.NuSVR`. Its solution is that of `SVR` at the epsilon that it finds
    (`epsilon_`), and is certified as such.

    Args:
        nu: At most this share of the samples is outside the tube, at least this share is support, in (0, 1].
        C: The cost of a unit of error outside the tube, > 0.

    Attributes:
        epsilon_: Half the width of the tube, in units of y.

    All other parameters and attributes are those of `SVR`.
    """

    nu: float = 0.5
    _limits: ClassVar[dict[str, Any]] = {"C": POSITIVE}
    scikit_learn_class = "NuSVR"

    def _learn(self, X: Any, y: Any, sample_weight: Any) -> Any:
        n = int(np.count_nonzero(sample_weights(sample_weight, _num_samples(X)) > 0))
        _require_storable(n, MOST_VARIABLES // 2, "SVR with an epsilon")
        return super()._learn(X, y, sample_weight)

    def _solve(self, data: Samples, target: np.ndarray, weight: np.ndarray, progress: Progress) -> Solved:
        del progress  # one program
        n, upper, data = len(target), self.C * weight, data.with_definiteness()
        if not np.ptp(target):  # the optimum is 0, and so is the tube
            self.epsilon_ = 0.0
            return constant_solution(2 * n, 0.0)
        problem = both_sides(target, upper, 0.0, padded_size(2 * n, up_to=MOST_VARIABLES))
        start = np.tile(first_at_bounds(self.nu * upper.sum() / 2, upper), 2)
        start = np.pad(start, (0, len(problem.y) - 2 * n))
        problem = problem._replace(equality="tube", start=start)
        with jax.enable_x64(True):
            if data.K is None:
                data = data._replace(K=data.values.between(data.x, data.x))
            operator = data.operator((slice(0, n), slice(0, n)), len(problem.y))
            solved = solve_box(operator, problem, self.tol, self.max_iter)
        self.epsilon_ = solved.parameter
        return solved
