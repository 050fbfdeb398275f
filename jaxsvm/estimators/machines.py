"""Train the machines of two classes of a classifier on parts of its samples, which lie sorted by class.

Machines of similar sizes share one compiled program, and as many threads as there are cores call it. Coefficients of
several classes are in LIBSVM's layout.
"""

import functools
import time
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import jax
import numpy as np
from sklearn.utils import check_random_state
from threadpoolctl import ThreadpoolController

from jaxsvm.errors import require
from jaxsvm.estimators.kernel_values import Samples, samples
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
)
from jaxsvm.loop.small import solve_many
from jaxsvm.numerics.sizes import LARGEST_PADDED, padded_size
from jaxsvm.problems.box import hinge_problem
from jaxsvm.problems.squared_hinge import svm_problem
from jaxsvm.results.fit import Fit, Status
from jaxsvm.results.judge import judged

MOST_VARIABLES = 2 * LARGEST_PADDED
"""Largest number of dual variables whose kernel values are stored: 2 GiB in float64."""


class Machine(NamedTuple):
    """A problem of two classes."""

    parts: tuple[slice, ...]  # its samples: the first slice is its positive class, the others are its negative one
    upper: np.ndarray  # their costs `C_i`, `(q,)`

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


def require_storable(n: int, most: int, instead: str) -> None:
    """Refuse n samples if kernel values of at most `most` are stored; `instead` names the estimator to use."""
    require(n <= most, f"X has {n} samples: kernel values of up to {most} are stored; use {instead}.")


def first_at_bounds(budget: float, upper: np.ndarray) -> np.ndarray:
    """Return LIBSVM's start: the first samples at their bounds `(n,)`, until their sum is `budget`."""
    return np.clip(budget - np.append(0, np.cumsum(upper)[:-1]), 0, upper)


def train(estimator: Any, data: Samples, machines: Sequence[Machine], progress: "Progress") -> list[Solved]:
    """Train an estimator's machines of two classes.

    The squared hinge costs `C_i max(0, 1 - y f)^2`, as in scikit-learn's `LinearSVC`. A named solver has its own
    tolerance. KeyboardInterrupt is raised if Ctrl-C came, or time was up, before the last began.
    """
    loss, bias, tol, solver = estimator.loss, estimator.bias, estimator.tol, estimator.solver
    seed = None if solver is None or estimator.random_state is None else check_random_state(estimator.random_state)
    key = None if seed is None else jax.random.key(seed.randint(2**31 - 1))
    by_one_program = loss == "hinge" and solver is None

    def solve_one(machine: Machine) -> Solved:
        stop.check()
        y, upper, callback = machine.signs, machine.upper, progress.callback
        if by_one_program and machine.n <= LARGEST_PADDED:
            problem = hinge_data(y, upper, bias)
            most = getattr(estimator, "max_iter", -1)
            return progress.ended(solve(data, machine.parts, problem, tol, most, callback))
        problem = weighted_problem(data.driven(machine.parts), y, upper, 1.0, loss, bias)
        solved = solve_by_driver(problem, tol if solver is None else solver, None, 0, callback, key)
        solved = solved._replace(dual_coef=solved.dual_coef[: machine.n])
        if data.exact is not None:
            problem = hinge_data(y, upper, bias)
            solved = _certified_in_double(data, machine.parts, problem, solved, tol, -1)
        return progress.ended(solved)

    with jax.enable_x64(True), watching() as stop:
        if by_one_program:
            return solve_many(solve_one, machines)
        return [solve_one(machine) for machine in machines]


def solve(
    data: Samples,
    parts: Sequence[slice],
    problem: BoxData,
    tol: float,
    max_iter: int,
    callback: Callable[[Fit], Any] | None = None,
    floor: float | None = None,
) -> Solved:
    """Solve a box problem of the samples in these slices by one compiled program, with absent ones up to its size."""
    n, of_nu = len(problem.y), problem.equality in ("nu", "tube")
    size = padded_size(n, MOST_VARIABLES if of_nu else LARGEST_PADDED)
    start = None if problem.start is None else np.pad(problem.start, (0, size - n))
    y, q, upper = np.append(problem.y, np.ones(size - n)), *(np.pad(v, (0, size - n)) for v in problem[1:3])
    problem = problem._replace(y=y, q=q, upper=upper, start=start)

    def by_pairs(most: int) -> Solved:
        operator = data.operator(parts, size, stored=of_nu)
        result = solve_box(operator, problem, tol, most, None, floor, callback)
        if data.exact is None or result.status == Status.MAX_STEPS and max_iter >= 0:
            return result
        return _certified_in_double(data, parts, problem, result, tol, most)

    with jax.enable_x64(True):
        x = data.features(parts, size) if max_iter < 0 and start is None else None
        result = by_pairs(max_iter) if x is None else solve_in_features(x, problem, tol, by_pairs)
    return result._replace(dual_coef=result.dual_coef[:n])


def _certified_in_double(
    data: Samples, parts: Sequence[slice], problem: BoxData, solved: Solved, tol: float, max_iter: int
) -> Solved:
    """Certify a solution from float32 kernel values for those in float64; continue from it if its gap is too large.

    The kernel is positive semidefinite, or its values would be in float64 (`samples`). Rounding adds at most
    `float32_error |a|_1^2 / 2` to `a'Qa / 2` of either value, and as much to a loss times its cost as it adds to `f`.
    If the gap stays below `tol` with that, or Ctrl-C came, nothing is computed.
    """
    size, allowed = len(problem.y), _with_rounding(data, solved, tol)
    if solved.status == allowed.status == Status.CONVERGED or solved.status == Status.INTERRUPTED:
        return allowed
    x = np.concatenate([data.exact[part] for part in parts]).astype(np.float64)  # as passed
    coef, large = solved.dual_coef, size > LARGEST_PADDED
    whole, support = (slice(0, len(x)),), np.flatnonzero(coef)
    gram, product = samples(data.values, x, 0.0, alone=True).operator(whole, size) if large else None, np.zeros(size)
    for rows, K in () if large else data.values.blocks(x, x[support]):
        product[rows] = K @ coef[support]
    found = recertified(gram, problem.arrays, coef, product, problem.form)
    coef, product, bias, certificate = jax.tree.map(np.asarray, found)
    again = solved._replace(dual_coef=coef, bias=float(bias), certificate=certificate).judged(tol, definite=True)
    if float(certificate.relative_gap) <= tol:
        return again
    double, a = samples(data.values, x, 0.0, alone=large), np.clip(problem.y * coef, 0, problem.upper)
    again = solve_box(double.operator(whole, size), problem._replace(start=a), tol, max_iter, product)
    return again._replace(steps=again.steps + solved.steps)


def _with_rounding(data: Samples, solved: Solved, tol: float) -> Solved:
    primal, dual, _ = solved.certificate
    off = data.float32_error * float(np.abs(solved.dual_coef).sum()) ** 2
    primal, dual = primal + 1.5 * off, dual - off / 2
    certificate = judged(primal, dual, primal - dual, np.abs(dual), rounding=0.0)
    return solved._replace(certificate=certificate).judged(tol, definite=True)


def weighted_problem(operator: Any, y: np.ndarray, weight: np.ndarray, C: float, loss: str, bias: str) -> Any:  # noqa: N803
    """Return the problem of signs and costs `C weight`, `(n,)`, with absent samples up to the size of the operator."""
    n, top = len(y), float(weight.max())
    signs, shares = np.ones(operator.n), np.zeros(operator.n)
    signs[:n], shares[:n] = y, weight / top
    make, cost = (hinge_problem, C * top) if loss == "hinge" else (svm_problem, 2 * C * top)
    return make(operator, signs, cost, bias=bias, sample_weight=shares)


def class_slices(counts: np.ndarray) -> list[slice]:
    """Return the slice of each class, of samples that are sorted by class, so many of each."""
    return [slice(int(end - count), int(end)) for count, end in zip(counts, np.cumsum(counts), strict=True)]


def pairs(classes: Sequence[slice], upper: np.ndarray) -> list[Machine]:
    """Return the machines of all pairs of classes in LIBSVM's order: (0, 1), (0, 2), ..., (1, 2), ..."""
    return [Machine((i, j), np.concatenate([upper[i], upper[j]])) for i, j in combinations(classes, 2)]


def against_rest(classes: Sequence[slice], upper: np.ndarray) -> list[Machine]:
    """Return the machines of each class against all others."""
    parts = [(classes[k], *classes[:k], *classes[k + 1 :]) for k in range(len(classes))]
    return [Machine(part, np.concatenate([upper[piece] for piece in part])) for part in parts]


def coefficients(classes: Sequence[slice], machines: Any, solved: Sequence[Solved], by_pairs: bool) -> np.ndarray:
    """Return coefficients, positive for the first class.

    Of pairs in LIBSVM's layout, `(k - 1, n)`: a sample of class i has row j - 1 for class j > i, row j for j < i. Else
    one row per class, `(k, n)`.
    """
    coef = np.zeros((len(classes) - by_pairs, classes[-1].stop))
    rows = combinations(range(len(classes)), 2) if by_pairs else ((row, row) for row in range(len(classes)))
    for places, machine, solution in zip(rows, machines, solved, strict=True):
        start = 0
        for number, part in enumerate(machine.parts):
            row = places[0] if not by_pairs or number else places[1] - 1
            coef[row, part] = solution.dual_coef[start : start + part.stop - part.start]
            start += part.stop - part.start
    return coef


def decisions(K: Any, coef: np.ndarray, counts: np.ndarray, bias: np.ndarray, by_pairs: bool) -> np.ndarray:
    """Return the decision values of all machines, `(m, machines)`, positive for the first class.

    K are kernel values of new points against the support, which is sorted by class, `(m, support)`; `coef` are its
    coefficients as `coefficients` lays them out, and `counts` the support vectors of each class, `(k,)`.
    """
    if len(bias) == 1 or not by_pairs:
        return K @ coef.T + bias
    parts = class_slices(counts)
    with one_thread():
        of_class = [K[:, part] @ coef[:, part].T for part in parts]
    pairs = combinations(range(len(parts)), 2)
    return np.stack([of_class[i][:, j - 1] + of_class[j][:, i] for i, j in pairs], axis=1) + bias


def one_thread() -> Any:
    """Return a context for thin matrix products, where threads of a BLAS wait 20 times as long as they work."""
    return _blas().limit(limits=1, user_api="blas")


_blas = functools.cache(ThreadpoolController)  # finding the libraries takes milliseconds


class Progress:
    """Print how many parts of an estimator's work have ended, once a second and after the last, if it is verbose.

    Parts are problems, with their largest gap and their steps, or what a caller of `say` names.
    """

    def __init__(self, estimator: Any, parts: int) -> None:
        self.estimator, self.parts = estimator, parts
        self.verbose = bool(getattr(estimator, "verbose", False))
        self.solved: list[Solved] = []
        self.began = self.shown = time.monotonic()
        self.callback = self._at if self.verbose else None  # of a long solve: one without is faster

    def ended(self, solved: Solved) -> Solved:
        """Note a problem that has ended; return it."""
        if self.verbose:
            self.solved.append(solved)
            self._print(np.max([one.certificate.relative_gap for one in self.solved]), 0)
        return solved

    def _at(self, fit: Fit) -> None:
        self._print(fit.certificate.relative_gap, int(fit.steps))

    def _print(self, gap: Any, steps: int) -> None:
        statuses = "/".join(sorted({one.status.name for one in self.solved})) or "RUNNING"
        what = f"problems: {statuses}, relative gap {float(gap):.2g} (tol {self.estimator.tol:.2g})"
        self.say(f"{what}, {steps + sum(one.steps for one in self.solved)} steps", len(self.solved))

    def say(self, what: str, ended: int) -> None:
        """Print that so many parts have ended, and what they are."""
        now = time.monotonic()
        if not self.verbose or ended < self.parts and now - self.shown < 1:
            return
        self.shown, seconds = now, now - self.began
        left = seconds * (self.parts - ended) / ended if ended else 0
        more = f", about {left:.0f} s left" if left else ""
        print(f"[{type(self.estimator).__name__}] {ended} of {self.parts} {what}, {seconds:.1f} s{more}", flush=True)
