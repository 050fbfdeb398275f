"""`NuSVC`: classification with a share nu of margin errors in place of C."""

from numbers import Real
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from sklearn.utils._param_validation import Interval

from jaxsvm.errors import InputError
from jaxsvm.estimators.classifier import SVC
from jaxsvm.estimators.training.box import BoxData, Solved, on_definite
from jaxsvm.estimators.training.machines import Machine, Samples, size_class, undecided
from jaxsvm.estimators.training.probability import DEFAULT_PROBABILITY
from jaxsvm.estimators.training.within_classes import minimized
from jaxsvm.problems.box import BoxProblem
from jaxsvm.results.fit import Status

LARGEST = 16384
"""Samples of a machine, whose kernel values are all stored."""
MOST_STEPS = 10_000_000
TIGHTER = np.array([1.0, 0.1, 0.01, 1e-3])
"""Violations, in units of `tol`, until the gap is below `tol` too."""


class NuSVC(SVC):
    """Support vector classification with a kernel, nu in place of C.

    `min a'Qa / 2` over `0 <= a <= 1`, each class of a sum `nu n / 2` (Schoelkopf et al. 2000; LIBSVM's scale). Its
    solution divided by its margin r is that of `SVC(C=1 / r)`, and this is how it is certified: `certificate_` is that
    of the hinge problem at that C. Parameters and attributes are those of `sklearn.svm.NuSVC`.

    Args:
        nu: At most this share of the samples has margin errors, at least it is support; in (0, 1], up to twice the
            share of the smaller class.
        kernel: As for `SVC`.
        degree: As for `SVC`.
        gamma: As for `SVC`.
        coef0: As for `SVC`.
        shrinking: As for `SVC`.
        probability: As for `SVC`.
        tol: LIBSVM's largest violation, and the relative duality gap of the answer, > 0.
        cache_size: As for `SVC`.
        class_weight: As for `SVC`: weights of samples, in whose sums nu is a share.
        verbose: As for `SVC`.
        max_iter: As for `SVC`.
        decision_function_shape: As for `SVC`.
        break_ties: As for `SVC`.
        random_state: As for `SVC`.

    Attributes:
        C_: What C each machine has the same solution at, a number a machine.

    All others are those of `SVC`.
    """

    loss = "hinge"
    bias = "free"
    multi_class = "ovo"

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **{
            name: value
            for name, value in SVC._parameter_constraints.items()
            if name not in ("C", "loss", "bias", "multi_class")
        },
        "nu": [Interval(Real, 0.0, 1.0, closed="right")],
    }

    scikit_learn_class = "NuSVC"

    def __init__(
        self,
        *,
        nu: float = 0.5,
        kernel: Any = "rbf",
        degree: int = 3,
        gamma: Any = "scale",
        coef0: float = 0.0,
        shrinking: bool = True,
        probability: Any = DEFAULT_PROBABILITY,
        tol: float = 1e-3,
        cache_size: float = 200,
        class_weight: Any = None,
        verbose: bool = False,
        max_iter: int = -1,
        decision_function_shape: str = "ovr",
        break_ties: bool = False,
        random_state: Any = None,
    ) -> None:
        self.nu = nu
        self.kernel = kernel
        self.degree = degree
        self.gamma = gamma
        self.coef0 = coef0
        self.shrinking = shrinking
        self.probability = probability
        self.tol = tol
        self.cache_size = cache_size
        self.class_weight = class_weight
        self.verbose = verbose
        self.max_iter = max_iter
        self.decision_function_shape = decision_function_shape
        self.break_ties = break_ties
        self.random_state = random_state

    @property
    def _may_round(self) -> bool:
        return False

    @property
    def _cost(self) -> float:
        return 1.0

    def _trained(self, data: Samples, machines: list[Machine]) -> list[Solved]:
        data = data.looked_at()
        nothing = np.nan  # of a machine that lacks a class
        found = [
            self._one(data, machine, self.nu) if _largest(machine) > 0 else (undecided(machine), nothing)
            for machine in machines
        ]
        self.C_ = np.array([C for _, C in found])
        return [solved for solved, _ in found]

    def _left_out(self, data: Samples, machines: list[Machine]) -> list[Solved]:
        """With the largest nu there is, where a part of the samples is too uneven for the one that was asked for."""
        found = []
        for machine in machines:
            nu = min(self.nu, _largest(machine) * (1 - 1e-12))
            found.append(self._one(data, machine, nu)[0] if nu > 0 else undecided(machine))
        return found

    def _require_classes(self, codes: np.ndarray, weight: np.ndarray) -> None:
        try:
            super()._require_classes(codes, weight)
        except ValueError as error:
            raise ValueError(f"specified nu is infeasible: {error}") from None  # as LIBSVM says it

    def _one(self, data: Samples, machine: Machine, nu: float) -> tuple[Solved, float]:
        """A machine's answer, and its C."""
        n, size = machine.n, size_class(machine.n)
        if n > LARGEST:
            raise InputError(
                f"X has {n} samples in two classes: NuSVC stores kernel values of up to {LARGEST}; use SVC with a C."
            )
        y, upper = machine.signs, machine.upper
        budget = nu * upper.sum() / 2
        if not all(0 < budget <= upper[y == sign].sum() for sign in (-1, 1)):
            raise ValueError(
                f"specified nu is infeasible: nu is {nu}, and at most twice the smaller class's share of the "
                f"weights, {_largest(machine):.6g}, is possible."
            )
        start = np.zeros(n)
        for sign in (-1, 1):  # LIBSVM's: the first samples of each class, at their bounds
            mine = y == sign
            before = np.append(0, np.cumsum(upper[mine])[:-1])
            start[mine] = np.clip(budget - before, 0, upper[mine])
        y, upper, start = (np.append(v, np.full(size - n, fill)) for v, fill in ((y, 1), (upper, 0), (start, 0)))
        with jax.enable_x64(True):
            if data.K is None:
                x = data.points(machine.parts)
                operator = data.values.stored(_square(data.values.between(x, x), size))
            else:
                operator = data.operator(machine.parts, size)
            limit = MOST_STEPS if self.max_iter < 0 else self.max_iter
            found: Any = None
            steps, certified = 0, False
            for violation in self.tol * TIGHTER:
                found = _solved(operator.K, y, upper, start, np.float64(violation), np.int32(limit - steps))
                found = jax.tree.map(np.asarray, found)
                start, steps = found[0], steps + int(found[-1])
                certified = bool(found[-2].relative_gap <= self.tol)
                if certified or steps >= limit:
                    break
            _, coef, bias, C, certificate, _ = found
            status = Status.CONVERGED if certified else Status.MAX_STEPS
            solved = Solved(coef[:n], float(bias), certificate, steps, status)
            return on_definite(operator, BoxData(y, np.ones(size), upper, y), solved), float(C)


def _largest(machine: Machine) -> float:
    """The largest nu that a machine has a solution for."""
    y, upper = machine.signs, machine.upper
    return 2 * min(upper[y == 1].sum(), upper[y == -1].sum()) / upper.sum() if len(y) else 0.0


def _square(K: np.ndarray, size: int) -> np.ndarray:
    out = np.zeros((size, size), K.dtype)
    out[: len(K), : len(K)] = K
    return out


@jax.jit
def _solved(K: Array, y: Array, upper: Array, a: Array, tol: Array, limit: Array) -> Any:
    """The point, coefficients, bias, C, certificate, steps."""
    found = minimized(K, y, jnp.zeros_like(a), upper, a, tol, limit)
    r = (found.levels[0] + found.levels[1]) / 2
    one = jnp.ones((), a.dtype)
    problem = BoxProblem(
        gram=None,
        y=y,
        q=jnp.ones_like(a),
        upper=upper / r,
        c=y,
        e=0 * one,
        C=1 / r,
        constant=0 * one,
        diagonal=jnp.diagonal(K).astype(a.dtype),
        mask=None,
        feasible=one > 0,
        offset=0.0,
    )
    answer = problem.certified(found.a / r, found.s / r, a.dtype)
    return found.a, answer.dual_coef, answer.bias, 1 / r, answer.certificate, found.steps
