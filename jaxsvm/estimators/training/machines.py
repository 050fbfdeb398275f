"""Training samples of a classifier, and the machines of two classes that are trained on parts of them.

Samples lie sorted by class. Where there are few of them all their kernel values are computed once, and each machine
takes its part; else machines compute the rows they need. Machines of like sizes share one compiled program, and as many
threads as there are cores call it.
"""

import concurrent.futures
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.sparse as sp

from jaxsvm.estimators.training.box import (
    LARGEST,
    BoxData,
    Solved,
    few_features,
    is_indefinite,
    recertified,
    solve_box,
    solve_further,
    solve_in_features,
)
from jaxsvm.estimators.training.kernel_values import FEW, ROUNDED, KernelValues, padded_rows
from jaxsvm.gram.build import gram as gram_of
from jaxsvm.gram.build import require_symmetric
from jaxsvm.kernels import RBF, Linear, Precomputed
from jaxsvm.kernels.distances import NEAR
from jaxsvm.problems.box import hinge_problem
from jaxsvm.problems.squared_hinge import svm_problem
from jaxsvm.results.fit import Certificate, Status

WHOLE = 4096
"""Samples whose kernel values are all computed at once."""
HARD = (1e10, 1e8, 1e6, 1e4)
"""Values of C that stand for an infinite one."""
REACHED = 0.999
"""A share of a bound from which a coefficient counts as having reached it."""
SINGLE = 1e-5
"""Tolerances down to which kernel values are computed and held in float32, as LIBSVM holds them."""


class Samples(NamedTuple):
    """What machines are trained on: kernel values, or points to compute them from.

    Attributes:
        values: The kernel.
        x: Points, `(n, d)` dense and moved to where distances keep digits, or sparse; None where values are all.
        K: All kernel values, `(n, n)`, or None.
        near: Whether the points are near the origin, see `jaxsvm.kernels.distances.place`.
        exact: The points as they came, `(n, d)`, where x or K were computed from them in float32; else None.
        vouched: Whether the kernel matrix is known to be positive semidefinite.
    """

    values: KernelValues
    x: Any
    K: np.ndarray | None
    near: bool
    exact: Any = None
    vouched: bool = False

    def operator(self, parts: Sequence[slice], size: int) -> Any:
        """The Gram operator of the samples in these slices, and absent ones up to `size`; inside x64."""
        if self.K is None:
            return self.values.on_demand(padded_rows(self.points(parts), size), self.near)
        K, low = np.zeros((size, size), self.K.dtype), 0
        for rows in parts:
            left = 0
            for columns in parts:
                block = self.K[rows, columns]
                K[low : low + block.shape[0], left : left + block.shape[1]] = block
                left += block.shape[1]
            low += rows.stop - rows.start
        return self.values.stored(K, self.vouched)

    def looked_at(self) -> "Samples":
        """The samples, vouched for where their kernel matrix is found to be positive semidefinite.

        Then every machine's is. What is not may be on some samples, or along an equality: each machine is looked at by
        itself.
        """
        if self.vouched or self.K is None:
            return self
        n, size = len(self.K), size_class(len(self.K))
        whole = BoxData(np.ones(size), np.ones(size), (np.arange(size) < n).astype(float), None)
        with jax.enable_x64(True):
            return self._replace(vouched=not is_indefinite(self.operator((slice(0, n),), size), whole))

    def features(self, parts: Sequence[Any], size: int) -> np.ndarray | None:
        """The points in these slices, and absent ones up to `size`, where a machine is solved in their space."""
        x = self.x if self.exact is None else self.exact
        if x is None or sp.issparse(x) or not isinstance(self.values.kernel, Linear):
            return None
        chosen = np.concatenate([x[part] for part in parts])
        return padded_rows(chosen, size) if few_features(chosen, len(chosen)) else None

    def in_double(self, parts: Sequence[slice]) -> "Samples":
        """The samples in these slices alone, with kernel values in float64."""
        return samples(self.values, self.exact_points(parts), 0.0)

    def exact_points(self, parts: Sequence[slice]) -> np.ndarray:
        """The points in these slices as they came, in float64: answers are certified for these."""
        return np.concatenate([self.exact[part] for part in parts]).astype(np.float64)

    def part(self, rows: np.ndarray) -> "Samples":
        """Some of the samples, by index."""
        return self._replace(
            x=None if self.x is None else self.x[rows],
            K=None if self.K is None else self.K[np.ix_(rows, rows)],
            exact=None if self.exact is None else self.exact[rows],
        )

    def between(self, some: np.ndarray, others: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
        """Blocks of rows of kernel values between some samples and others, `(rows, others)`, both by index."""
        if self.K is not None:
            yield slice(0, len(some)), self.K[np.ix_(some, others)]
        elif not len(others):
            yield slice(0, len(some)), np.zeros((len(some), 0))
        else:
            x = self.x if self.exact is None else self.exact
            yield from self.values.blocks(x[some], x[others])

    def points(self, parts: Sequence[slice]) -> Any:
        """The points in these slices."""
        return (sp.vstack if sp.issparse(self.x) else np.concatenate)([self.x[part] for part in parts])


def samples(values: KernelValues, X: Any, tol: float) -> Samples:  # noqa: N803
    """Samples of an estimator that is to be trained to `tol`.

    Args:
        values: The kernel.
        X: Points, `(n, d)`; kernel values `(n, n)` where the kernel is precomputed or a function of two sets.
        tol: The relative gap; 0.0 where kernel values are to be in float64.
    """
    n, vouched = X.shape[0], values.definite
    if values.by_values:
        if values.name == "precomputed":
            require_symmetric("X", np.asarray(X))
        return Samples(values, None, np.asarray(X), False)
    if sp.issparse(X) and n > LARGEST:
        return Samples(values, X, None, False, vouched=vouched)
    if sp.issparse(X) or n * n <= FEW:
        X = X.astype(np.float64, copy=False)  # what is certified, and decided by: float32 values are another problem
        K = np.ascontiguousarray(values.between(X, X))
        return Samples(values, None if sp.issparse(X) else X, K, False, vouched=vouched)
    dtype = np.dtype(np.float32) if tol >= SINGLE else np.dtype(np.float64)
    mean = X.mean(axis=0, dtype=np.float64) if values.kernel.stationary else 0.0
    x = (X - mean).astype(dtype)
    near = isinstance(values.kernel, RBF) and float(values.kernel.gamma * np.einsum("ij,ij->i", x, x).max()) <= NEAR**2
    exact = X if dtype == np.float32 else None
    return Samples(values, x, values.between(x, x) if n <= WHOLE else None, near, exact, vouched)


class Machine(NamedTuple):
    """A problem of two classes.

    Attributes:
        parts: Its samples, as slices: the first is its positive class, the others are its negative one.
        upper: Their costs `C_i`, `(q,)`.
    """

    parts: tuple[slice, ...]
    upper: np.ndarray
    positive: int = 1

    @property
    def n(self) -> int:
        """How many samples."""
        return len(self.upper)

    @property
    def signs(self) -> np.ndarray:
        """+1 and -1, `(q,)`."""
        lengths = [part.stop - part.start for part in self.parts]
        return np.repeat([1.0] * self.positive + [-1.0] * (len(self.parts) - self.positive), lengths)


def undecided(machine: Machine) -> Solved:
    """What a machine of a pair decides that lacks a class: for the other one, wherever a point lies."""
    zero: Any = np.float64(0)
    bias = float(machine.signs.max(initial=-1) + machine.signs.min(initial=1)) / 2
    return Solved(np.zeros(machine.n), bias, Certificate(zero, zero, zero), 0, Status.CONVERGED)


def hard_margin(solve: Callable[[float], Solved], upper: np.ndarray) -> Solved:
    """The answer at an infinite C: that of a finite one which no coefficient reaches, and so of every larger C.

    Of the largest value whose answer is certified: slack of a rounding costs more than the rest at a very large one.

    Args:
        solve: From a finite C to an answer.
        upper: Bounds of the coefficients at C = 1, `(n,)`.

    Returns:
        The answer, with the certificate of the C that it was found at; INFEASIBLE where a coefficient reaches the
        largest value.
    """
    best: Any = None
    for C in HARD:
        found = solve(C)
        if (np.abs(found.dual_coef) >= REACHED * C * upper)[upper > 0].any():
            return found._replace(status=Status.INFEASIBLE) if best is None else best
        if best is None or found.certificate.relative_gap < best.certificate.relative_gap:
            best = found
        if found.status == Status.CONVERGED:
            break
    return best


def train(
    data: Samples, machines: Sequence[Machine], *, loss: str, bias: str, tol: float, max_iter: int
) -> list[Solved]:
    """Train machines of two classes.

    Args:
        data: Their samples.
        machines: What each is to tell apart.
        loss: "hinge" or "squared_hinge" (of costs `C_i max(0, 1 - y f)^2`, as scikit-learn's `LinearSVC` counts).
        bias: "free", "regularized" or "none".
        tol: The relative duality gap of each, > 0.
        max_iter: A cap on steps of each; -1: none.
    """
    data = data.looked_at()

    def solve(machine: Machine) -> Solved:
        with jax.enable_x64(True):
            if loss == "hinge" and machine.n <= LARGEST:
                return _small(data, machine, bias, tol, max_iter)
            return _any(data, machine, loss, bias, tol)

    if loss == "hinge":
        return in_threads(solve, machines, key=lambda machine: size_class(machine.n))
    return [solve(machine) for machine in machines]


def _small(data: Samples, machine: Machine, bias: str, tol: float, max_iter: int) -> Solved:
    n, size = machine.n, size_class(machine.n)
    upper, y = np.zeros(size), np.ones(size)
    upper[:n], y[:n] = machine.upper, machine.signs
    c = y if bias == "free" else None
    problem = BoxData(y, np.ones(size), upper, c, offset=float(bias == "regularized"))

    def by_pairs(most: int) -> Solved:
        operator = data.operator(machine.parts, size)
        found = solve_box(operator, problem, tol, most)
        if data.exact is None or (found.status == Status.MAX_STEPS and max_iter >= 0):
            return found
        diagonal = float(np.asarray(operator.diag())[:n].max())
        return _judged_in_double(data, machine, problem, found, diagonal, tol, most)

    x = data.features(machine.parts, size) if max_iter < 0 else None
    found = by_pairs(max_iter) if x is None else solve_in_features(x, problem, tol, by_pairs)
    return found._replace(dual_coef=found.dual_coef[:n])


def _judged_in_double(
    data: Samples, machine: Machine, problem: BoxData, found: Solved, diagonal: float, tol: float, max_iter: int
) -> Solved:
    """An answer from float32 kernel values, certified for those in float64, or the one that goes on from it with them.

    Rounding adds to `a'Qa / 2` of either value `ROUNDED |a|_1^2 / 2` at the most, and as much to a loss times its cost
    as it adds to `f`: where that leaves the gap below `tol`, nothing is computed.
    """
    n, size, certificate = machine.n, len(problem.y), found.certificate
    total = float(np.abs(found.dual_coef).sum())
    allowance = 2 * ROUNDED * diagonal * total**2
    gap, dual = float(certificate.primal - certificate.dual), abs(float(certificate.dual))
    if found.status == Status.CONVERGED and gap + allowance <= tol * dual:
        return found
    x = data.exact_points(machine.parts)
    support, product = np.flatnonzero(found.dual_coef[:n]), np.zeros(size)
    for rows, K in data.values.blocks(x, x[support]):
        product[rows] = K @ found.dual_coef[support]
    bias, certificate = recertified(problem, found.dual_coef, product)
    if float(certificate.relative_gap) <= tol:
        return found._replace(bias=bias, certificate=certificate, status=Status.CONVERGED)
    double = data.in_double(machine.parts)
    a = np.clip(problem.y * found.dual_coef, 0, problem.upper)
    again = solve_box(double.operator((slice(0, n),), size), problem._replace(start=a), tol, max_iter, product)
    return again._replace(steps=again.steps + found.steps)


def _any(data: Samples, machine: Machine, loss: str, bias: str, tol: float) -> Solved:
    """By `jaxsvm.fit`."""
    n = machine.n
    if data.K is not None:
        operator = data.operator(machine.parts, size_class(n) if n <= LARGEST else n)
    else:
        operator = gram_of(data.values.kernel, data.points(machine.parts))
    weight, y = np.zeros(operator.n), np.ones(operator.n)
    top = float(machine.upper.max())
    weight[:n], y[:n] = machine.upper / top, machine.signs
    make, C = (hinge_problem, top) if loss == "hinge" else (svm_problem, 2 * top)
    found = solve_further(make(operator, y, C, bias=bias, sample_weight=weight), tol)
    if data.exact is not None:
        double = data.in_double(machine.parts)
        exact = gram_of(double.values.kernel, double.x) if double.K is None else double.values.stored(double.K)
        whole = make(exact, y[:n], C, bias=bias, sample_weight=weight[:n])
        again = solve_further(whole, tol, np.abs(found.dual_coef[:n]))
        found = again._replace(steps=again.steps + found.steps)
    return found._replace(dual_coef=found.dual_coef[:n])


def whole_operator(data: Samples) -> Any:
    """The Gram operator of all samples as the library makes it; inside x64."""
    if data.K is not None:
        return gram_of(Precomputed(), data.K)
    return gram_of(data.values.kernel, data.x)


def in_threads(function: Callable[[Any], Any], items: Sequence[Any], key: Callable[[Any], Any]) -> list[Any]:
    """`function` of each item, in order; the first of each kind of item before the others: it compiles.

    Args:
        function: Of one item.
        items: The items.
        key: Which items share a compiled program.
    """
    workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if jax.default_backend() != "cpu" or workers < 2 or len(items) < 2:
        return [function(item) for item in items]
    first = {key(items[place]): place for place in reversed(range(len(items)))}.values()
    found: dict[int, Any] = {}
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        for batch in (list(first), [place for place in range(len(items)) if place not in set(first)]):
            found.update(zip(batch, pool.map(function, [items[place] for place in batch]), strict=True))
    return [found[place] for place in range(len(items))]


def size_class(n: int) -> int:
    """How many samples n are padded to: 64, 96, 128, 192, 256, ..., two sizes a power of two."""
    size = 64
    while size < n:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return size
