"""Train the machines of two classes of a classifier on parts of its samples, which lie sorted by class.

Machines of similar sizes share one compiled program, and as many threads as there are cores call it.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from sklearn.utils import check_random_state

from jaxsvm.estimators.training.kernel_values import padded_rows
from jaxsvm.estimators.training.samples import Samples, padded_size
from jaxsvm.gram.build import gram as gram_of
from jaxsvm.loop.interruption import watching
from jaxsvm.loop.many import (
    BoxData,
    Solved,
    constant_solution,
    hinge_data,
    recertified,
    solve_box,
    solve_by_driver,
    solve_in_features,
    solve_many,
)
from jaxsvm.numerics.sizes import LARGEST_PADDED
from jaxsvm.problems.box import hinge_problem
from jaxsvm.problems.squared_hinge import svm_problem
from jaxsvm.results.fit import Fit
from jaxsvm.results.judge import judged
from jaxsvm.results.status import Status
from jaxsvm.solvers.contract import Solver


class Machine(NamedTuple):
    """A problem of two classes.

    Attributes:
        parts: Its samples, as slices: the first is its positive class, the others are its negative one.
        upper: Their costs `C_i`, `(q,)`.
    """

    parts: tuple[slice, ...]
    upper: np.ndarray

    @property
    def n(self) -> int:
        """Return the number of samples."""
        return len(self.upper)

    @property
    def signs(self) -> np.ndarray:
        """Return the classes as +1 and -1, `(q,)`."""
        return np.repeat([1.0] + [-1.0] * (len(self.parts) - 1), [part.stop - part.start for part in self.parts])


def undecided(machine: Machine) -> Solved:
    """Return the solution of a pair that lacks a class: it decides for the other one everywhere."""
    bias = float(machine.signs.max(initial=-1) + machine.signs.min(initial=1)) / 2
    return constant_solution(machine.n, bias)


def hard_margin(solve: Callable[[float], Solved], upper: np.ndarray) -> Solved:
    """Solve at an infinite C: the solution at a finite C whose bounds no coefficient reaches is that of every larger C.

    The largest such C whose solution is certified is taken: at a very large C, slack of the size of a rounding error
    costs more than the rest of the objective.

    Args:
        solve: Solves at a finite C.
        upper: Bounds of the coefficients at C = 1, `(n,)`.

    Returns:
        The solution, with the certificate of the C at which it was computed; INFEASIBLE if a coefficient reaches the
        bound of the largest value, 1e10.
    """
    best: Any = None
    for C in (1e10, 1e8, 1e6, 1e4):
        result = solve(C)
        if result.status == Status.INTERRUPTED:
            return result if best is None else best._replace(status=result.status)
        if (np.abs(result.dual_coef) >= 0.999 * C * upper)[upper > 0].any():
            return result._replace(status=Status.INFEASIBLE) if best is None else best
        if best is None or result.certificate.relative_gap < best.certificate.relative_gap:
            best = result
        if result.status == Status.CONVERGED:
            break
    return best


def train(
    data: Samples,
    machines: Sequence[Machine],
    *,
    loss: str,
    bias: str,
    tol: float,
    max_iter: int,
    done: Callable[[Solved], Any],
    callback: Callable[[Fit], Any] | None = None,
    solver: Solver | None = None,
    seed: Any = None,
) -> list[Solved]:
    """Train machines of two classes.

    Args:
        data: Their samples.
        machines: The parts and costs of each.
        loss: "hinge" or "squared_hinge" (of costs `C_i max(0, 1 - y f)^2`, as in scikit-learn's `LinearSVC`).
        bias: "free", "regularized" or "none".
        tol: The relative duality gap of each, > 0.
        max_iter: Most steps of each; -1 sets no limit.
        done: Called with the solution of each.
        callback: Called on the way of solves by the driver of `jaxsvm.fit`, or None.
        solver: The solver of all, with its own tolerance; None chooses.
        seed: The seed of a solver that draws; None: 0.

    Raises:
        KeyboardInterrupt: If Ctrl-C came, or the time of the caller was up, before the last began.
    """
    data = data.with_definiteness()
    key = None if seed is None else jax.random.key(check_random_state(seed).randint(2**31 - 1))
    by_one_program = loss == "hinge" and solver is None

    def solve(machine: Machine) -> Solved:
        stop.check()
        if by_one_program and machine.n <= LARGEST_PADDED:
            solved = _solve_whole(data, machine, bias, tol, max_iter, callback)
        else:
            solved = _solve_by_driver(data, machine, loss, bias, tol if solver is None else solver, callback, key)
        done(solved)
        return solved

    with jax.enable_x64(True), watching() as stop:
        if by_one_program:
            return solve_many(solve, machines, lambda machine: padded_size(machine.n))
        return [solve(machine) for machine in machines]


def pairs_or_features(
    data: Samples, parts: Sequence[slice], problem: BoxData, tol: float, max_iter: int, by_pairs: Any
) -> Solved:
    """Solve by interior points if the machine is linear with few features and `max_iter` is -1; else by pair steps."""
    x = data.features(parts, len(problem.y)) if max_iter < 0 else None
    return by_pairs(max_iter) if x is None else solve_in_features(x, problem, tol, by_pairs)


def _solve_whole(
    data: Samples, machine: Machine, bias: str, tol: float, max_iter: int, callback: Callable[[Fit], Any] | None
) -> Solved:
    """Solve a hinge machine by one compiled program."""
    n, size = machine.n, padded_size(machine.n)
    upper, y = np.zeros(size), np.ones(size)
    upper[:n], y[:n] = machine.upper, machine.signs
    problem = hinge_data(y, upper, bias)

    def by_pairs(most: int) -> Solved:
        operator = data.operator(machine.parts, size)
        result = solve_box(operator, problem, tol, most, callback=callback)
        if data.exact is None or result.status == Status.MAX_STEPS and max_iter >= 0:
            return result
        largest = np.asarray(operator.diag())[:n].max() if data.K is None else data.K.diagonal().max()
        return _certified_in_double(data, machine, problem, result, float(largest), tol, most)

    result = pairs_or_features(data, machine.parts, problem, tol, max_iter, by_pairs)
    return result._replace(dual_coef=result.dual_coef[:n])


def _certified_in_double(
    data: Samples, machine: Machine, problem: BoxData, solved: Solved, diagonal: float, tol: float, max_iter: int
) -> Solved:
    """Certify a solution from float32 kernel values for those in float64; continue from it if its gap is too large.

    The kernel is positive semidefinite, or its values would be in float64 (`samples`). Rounding adds at most
    `float32_error |a|_1^2 / 2` to `a'Qa / 2` of either value, and as much to a loss times its cost as it adds to `f`.
    If the gap stays below `tol` with that, or Ctrl-C came, nothing is computed.
    """
    n, size, allowed = machine.n, len(problem.y), _with_rounding(data, solved, diagonal, tol)
    if solved.status == allowed.status == Status.CONVERGED or solved.status == Status.INTERRUPTED:
        return allowed
    x = data.exact_points(machine.parts)
    support, product = np.flatnonzero(solved.dual_coef[:n]), np.zeros(size)
    for rows, K in data.values.blocks(x, x[support]):
        product[rows] = K @ solved.dual_coef[support]
    bias, certificate = recertified(problem, solved.dual_coef, product)
    again = solved._replace(bias=bias, certificate=certificate).judged(tol, definite=True)
    if float(certificate.relative_gap) <= tol:
        return again
    double = data.in_double(machine.parts)
    a = np.clip(problem.y * solved.dual_coef, 0, problem.upper)
    again = solve_box(double.operator((slice(0, n),), size), problem._replace(start=a), tol, max_iter, product)
    return again._replace(steps=again.steps + solved.steps)


def _with_rounding(data: Samples, solved: Solved, diagonal: float, tol: float) -> Solved:
    primal, dual, _ = solved.certificate
    off = data.float32_error * diagonal * float(np.abs(solved.dual_coef).sum()) ** 2
    primal, dual = primal + 1.5 * off, dual - off / 2
    certificate = judged(primal, dual, primal - dual, np.abs(dual), rounding=0.0)
    return solved._replace(certificate=certificate).judged(tol, definite=True)


def _solve_by_driver(
    data: Samples, machine: Machine, loss: str, bias: str, how: Any, callback: Callable[[Fit], Any] | None, key: Any
) -> Solved:
    """Solve a machine of any loss and size as `jaxsvm.fit` does; in float64 at last."""
    n, y = machine.n, machine.signs
    if data.K is not None:
        operator = data.operator(machine.parts, padded_size(n))
    else:
        operator = gram_of(data.values.kernel, _filled(data.points(machine.parts)))
    result = solve_by_driver(weighted_problem(operator, y, machine.upper, 1.0, loss, bias), how, None, 0, callback, key)
    if data.exact is not None and result.status == Status.INTERRUPTED:
        result = _with_rounding(data, result, float(np.asarray(operator.diag())[:n].max()), how)
    elif data.exact is not None:
        double = data.in_double(machine.parts)
        exact = gram_of(double.values.kernel, _filled(double.x)) if double.K is None else double.values.stored(double.K)
        whole = weighted_problem(exact, y, machine.upper, 1.0, loss, bias)
        again = solve_by_driver(whole, how, np.abs(result.dual_coef[:n]), callback=callback)
        result = again._replace(steps=again.steps + result.steps)
    return result._replace(dual_coef=result.dual_coef[:n])


def _filled(x: Any) -> Any:
    """Return dense points with copies of the first, up to one of few sizes: programs of a size serve all its pairs."""
    return padded_rows(x, padded_size(len(x))) if isinstance(x, np.ndarray) else x


def weighted_problem(operator: Any, y: np.ndarray, weight: np.ndarray, C: float, loss: str, bias: str) -> Any:  # noqa: N803
    """Return the problem of costs `C weight`, with absent samples up to the size of the operator.

    Args:
        operator: The Gram operator of at least n points.
        y: Signs, `(n,)`.
        weight: Factors of C, `(n,)`.
        C: The cost of a loss of 1, > 0.
        loss: "hinge" or "squared_hinge".
        bias: "free", "regularized" or "none".
    """
    n, top = len(y), float(weight.max())
    signs, shares = np.ones(operator.n), np.zeros(operator.n)
    signs[:n], shares[:n] = y, weight / top
    make, cost = (hinge_problem, C * top) if loss == "hinge" else (svm_problem, 2 * C * top)
    return make(operator, signs, cost, bias=bias, sample_weight=shares)
