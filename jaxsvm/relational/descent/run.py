"""Count, prove and record: what the methods of `steps.py` share; see `fit.py`."""

import dataclasses
import time
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse import csr_array  # jax depends on SciPy
from scipy.sparse.linalg import LinearOperator, cg

from jaxsvm.errors import ConvergenceWarning, warn
from jaxsvm.loop.interruption import Interruption
from jaxsvm.relational.counting.sampling import Sampler
from jaxsvm.relational.gradient.bundle import Bundle
from jaxsvm.relational.gradient.engine import (
    ROWS_OF_A_HESSIAN,
    PseudoGradient,
    far_counts,
    from_counts,
    gradient_interval,
)
from jaxsvm.relational.gradient.far import RowsEngine
from jaxsvm.relational.measured import MEASURED
from jaxsvm.results.fit import Certificate
from jaxsvm.results.judge import judged
from jaxsvm.results.status import Status

LARGEST_SYSTEM = 1000
"""Order of the dense system, without the largest category, from which on conjugate gradients take over."""


class JoinedSquares:
    """Rows of a join, some or all, as row numbers of its tables.

    Attributes:
        blocks: The features of each table.
        rows: The row of each table, `(n,)` each.
        rest: The number of coefficients without the largest category's: the order of the dense system.
        solved: Whether conjugate gradients reached their tolerance in every system.
    """

    solved = True

    def __init__(self, blocks: list[Any], rows: list[np.ndarray]) -> None:
        """Locate the coefficients of each table's numbers and of each category."""
        self.blocks, self.rows, first = blocks, rows, 0
        self.numbers, self.categories = [], []  # (table, column, coefficient); (codes of the rows, first, levels)
        for table, block in enumerate(blocks):
            p = len(block.names)
            self.numbers += [(table, k, first + k) for k in range(p)]
            first += p
            for _, codes, levels in block.categories:
                self.categories.append((codes[rows[table]], first, len(levels)))
                first += len(levels)
        self.d = self.rest = first
        self.largest = max(range(len(self.categories)), key=lambda c: self.categories[c][2], default=None)
        self.place = np.arange(first)  # of each coefficient, with those of the largest category last
        if self.largest is not None:
            _, begin, levels = self.categories[self.largest]
            self.rest = first - levels
            self.place[begin : begin + levels] = np.arange(self.rest, first)
            self.place[begin + levels :] -= levels

    def product(self, parts: list[np.ndarray]) -> np.ndarray:
        """Return `X beta`, `(n,)`, from the parts of beta a table."""
        of_table = (block.product(part)[rows] for block, part, rows in zip(self.blocks, parts, self.rows, strict=True))
        return np.sum(list(of_table), axis=0)

    def transposed(self, v: np.ndarray) -> np.ndarray:
        """Return `X' v`, `(d,)`."""
        sums = (np.bincount(rows, v, minlength=len(b.X)) for b, rows in zip(self.blocks, self.rows, strict=True))
        return np.concatenate([block.transposed(u) for block, u in zip(self.blocks, sums, strict=True)])

    def system(self, s: np.ndarray, ridge: float = 1.0) -> Callable[[np.ndarray], np.ndarray]:
        """Return the function that solves `(ridge I + X' diag(s) X) z = b` for z; `s >= 0`, `(n,)`, and `ridge > 0`."""
        if self.rest > LARGEST_SYSTEM:
            return self._iterated(s, ridge)
        out, diagonal = self._levels(s)
        numbers = self.place[[first for _, _, first in self.numbers]]
        chunk = 1 << 16  # rows whose numbers are gathered at a time
        for begin in range(0, len(s) if len(numbers) else 0, chunk):
            part = slice(begin, begin + chunk)
            x = np.stack([self.blocks[table].X[self.rows[table][part], k] for table, k, _ in self.numbers], axis=1)
            weighted = x * s[part, None]
            out[np.ix_(numbers, numbers)] += x.T @ weighted
            for c, (code, first, levels) in enumerate(self.categories):
                sums = np.stack([np.bincount(code[part], column, minlength=levels) for column in weighted.T])
                own = self.place[first : first + levels]
                out[np.ix_(numbers, own)] += sums
                if c != self.largest:
                    out[np.ix_(own, numbers)] += sums.T
        rest = self.rest
        out[np.arange(rest), np.arange(rest)] += ridge
        diagonal, across = diagonal + ridge, out[:, rest:]
        small = out[:, :rest] - (across / diagonal) @ across.T

        def solve(b: np.ndarray) -> np.ndarray:
            ordered = np.empty(self.d)
            ordered[self.place] = b
            z = np.empty(self.d)
            z[:rest] = np.linalg.solve(small, ordered[:rest] - across @ (ordered[rest:] / diagonal))
            z[rest:] = (ordered[rest:] - z[:rest] @ across) / diagonal
            return z[self.place]

        return solve

    @cached_property
    def sparse(self) -> csr_array:
        """Return X, `(n, d)`, as a sparse matrix of a row's numbers and levels."""
        n, k = len(self.rows[0]), len(self.numbers) + len(self.categories)
        x, columns = np.ones((n, k)), np.empty((n, k), np.int64)
        for at, (table, number, first) in enumerate(self.numbers):
            x[:, at], columns[:, at] = self.blocks[table].X[self.rows[table], number], first
        for at, (code, first, _) in enumerate(self.categories, len(self.numbers)):
            columns[:, at] = first + code
        return csr_array((x.ravel(), columns.ravel(), np.arange(0, n * k + 1, k)), shape=(n, self.d))

    def _iterated(self, s: np.ndarray, ridge: float) -> Callable[[np.ndarray], np.ndarray]:
        """Return that function by conjugate gradients, scaled by the diagonal: a product costs what the rows cost."""
        X = self.sparse
        scale = 1 / np.sqrt(ridge + (X * X).T @ s)
        right = X * np.sqrt(s)[:, None] * scale
        left, own = right.T.tocsr(), ridge * scale**2
        operator: Any = LinearOperator  # whose stub lacks its arguments
        system = operator((self.d, self.d), matvec=lambda z: own * z + left @ (right @ z), dtype=float)

        def solve(b: np.ndarray) -> np.ndarray:
            z, unsolved = cg(system, scale * b, rtol=1e-10, maxiter=4000)
            self.solved = self.solved and not unsolved
            return scale * z

        return solve

    def _levels(self, s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Sum weights per level and pair of levels, `(rest, d)`; and those of the largest category, `(d - rest,)`."""
        out, diagonal = np.zeros((self.rest, self.d)), np.zeros(0)
        for c, (code, first, levels) in enumerate(self.categories):
            own, of_level = self.place[first : first + levels], np.bincount(code, s, minlength=levels)
            if c == self.largest:
                diagonal = of_level
            else:
                out[own, own] = of_level
            for other, (others, begin, many) in enumerate(self.categories[:c]):
                pairs = np.bincount(code.astype(np.int64) * many + others, s, minlength=levels * many)
                pairs, theirs = pairs.reshape(levels, many), self.place[begin : begin + many]
                if c != self.largest:
                    out[np.ix_(own, theirs)] = pairs
                if other != self.largest:
                    out[np.ix_(theirs, own)] = pairs.T
        return out, diagonal


@dataclasses.dataclass
class Run:
    """The state of a descent."""

    join: Any  # the scaled join
    lam: float  # the strength of the regulariser
    eps: float  # the guard of the paper's method
    engine: Any  # the engine that counts
    planes: Bundle  # the cutting planes
    started: float  # start of the fit, by `time.monotonic`
    max_seconds: float | None = None  # start no further evaluation after so many seconds
    callback: Any = None  # called with the number of evaluations, D and P
    squared: bool = False  # whether the loss is the squared hinge
    tol: float = 0.0  # the relative gap at which to end
    max_steps: int = 1  # the most evaluations
    stop: Interruption = dataclasses.field(default_factory=Interruption)
    best: np.ndarray = dataclasses.field(init=False)  # the best point, `(d,)`
    P: float = np.inf  # upper bound of F at the best point
    D: float = 0.0  # lower bound of the optimum
    upper: float = np.inf  # upper bound of F at the last point; infinite if it was not sought
    taken: int = 0  # number of evaluations
    # D, P and the estimate of F after each step:
    history: list[tuple[float, float, float]] = dataclasses.field(default_factory=list)
    stopped: bool = False  # whether it was interrupted or out of time
    finite: bool = True  # whether the last estimate of F was finite
    pull: float = MEASURED.proximal_pull  # weight of the proximal term, in units of `E x x'`
    promise: float = np.nan  # the value of the model at the last point of the bundle
    ramp: float = 0.0  # half-width of the ramp of counts; 0: none

    def __post_init__(self) -> None:
        self.best = np.zeros(self.join.d)

    @cached_property
    def metric(self) -> np.ndarray:
        """Return the mean of `x x'` over the join, `(d, d)`; its diagonal, `(d,)`, with more than 1000 features."""
        if self.join.d <= 1000:
            return self.join.moments().second
        pairs = zip(self.join.blocks, self.join.counts(), strict=True)
        squares = [block._replace(X=block.X**2).transposed(count) for block, count in pairs]
        return np.concatenate(squares) / float(self.join.size)

    @property
    def _hessian_of_all(self) -> bool:
        most = max(ROWS_OF_A_HESSIAN, MEASURED.hessian_rows_per_coefficient * self.join.d)
        return isinstance(self.engine, RowsEngine) and len(self.engine.tree.weight[0]) <= most

    @property
    def interior(self) -> bool:
        """Return whether to use interior points: for the hinge, on all rows."""
        return self._hessian_of_all and not self.squared

    def counts(self, beta: np.ndarray, mode: str, guard: float = 0.0) -> PseudoGradient:
        """Count in one pass, and compute the pseudo-gradient."""
        far = far_counts(
            self.join, beta, guard=guard, mode=mode, engine=self.engine, squared=self.squared, ramp=self.ramp
        )
        return from_counts(self.join, beta, self.lam, far, self.squared)

    def evaluate(self, beta: np.ndarray, proof: bool = True) -> float:
        """Add a plane at beta, and return the estimate of F.

        If counts are bounds, a plane that shall prove one (`proof`) takes two passes.
        """
        if self.engine.bounds and proof:
            low, high = self.counts(beta, "lower"), self.counts(beta, "upper")
            g_low, g_high = gradient_interval(low, high)
            # The constant of the squared hinge is 2 s - s^2, whose second part is at most the upper one.
            least = low.far - (high.objective - low.objective) if self.squared else low.far
            self.planes.add((low.far + high.far) / 2, (g_low + g_high) / 2, least, g_low, g_high)
            estimate, upper = (low.objective + high.objective) / 2, high.objective
        else:
            counted = self.counts(beta, "mid")
            g, bounds = counted.plus + counted.minus, self.engine.bounds
            self.planes.add(counted.far, g, np.nan if bounds else counted.far, g, g)
            estimate, upper = counted.objective, np.inf if bounds else counted.objective
        self.finite = bool(np.isfinite(estimate))
        self.taken += 1
        self.upper = upper
        if upper < self.P:
            self.P, self.best = upper, beta
        return estimate

    def record(self, estimate: float) -> None:
        """Append a line to the history, and call the callback."""
        self.history.append((self.D, self.P, estimate))
        if self.callback is not None:
            self.callback(self.taken, self.D, self.P)

    def improve_bound(self) -> np.ndarray:
        """Raise D to the best bound of the planes; return their weights."""
        D, weights = self.planes.bound()
        self.D = max(self.D, D)
        return weights

    def prove(self, estimate: float) -> np.ndarray:
        """Raise D, record the step, and return the weights of the planes."""
        weights = self.improve_bound()
        self.record(estimate)
        return weights

    def over(self) -> bool:
        """Return whether to end: certified, at the cap, interrupted, out of time, or not finite."""
        late = self.max_seconds is not None and time.monotonic() - self.started > self.max_seconds
        self.stopped = self.stopped or self.stop.seen or late
        certified = bool(self.certificate().relative_gap <= self.tol)
        return self.stopped or not self.finite or certified or self.taken >= self.max_steps

    def certificate(self) -> Certificate:
        """Return the certificate of P and D. By rounding of sums and weights, D may exceed P by 1e-9 D."""
        P, D = np.float64(self.P), np.float64(self.D)
        parts: Any = [np.float64(part) for part in judged(P, D, P - D, D, rounding=1e-9 * abs(D))]
        return Certificate(*parts)

    def proximal(self, before: float, weights: np.ndarray) -> np.ndarray:
        """Return the next point of the bundle.

        The pull to the best point halves after a step that gave half of what the model promised, and doubles after one
        that gave less than a tenth.
        """
        most, promised = MEASURED.proximal_pull, before - self.promise
        if before - self.P > 0.5 * promised:
            self.pull = max(self.pull / 2, most / 1024)
        elif before - self.P <= 0.1 * promised:
            self.pull = min(2 * self.pull, 64 * most)
        beta, near, self.promise = self.planes.near(self.best, self.pull, self.metric)
        self.planes.keep(np.maximum(weights, near))
        return beta

    def hessian_rows(self) -> tuple[JoinedSquares, np.ndarray, np.ndarray]:
        """Return rows for Hessians, all of the join or drawn ones, with their signs and shares."""
        if self._hessian_of_all:
            tree = self.engine.tree
            rows, weight = [tree.members[0][t] for t in range(len(self.join.blocks))], tree.weight[0]
        else:
            wanted = MEASURED.hessian_rows_per_coefficient * self.join.d
            many = max(1 << 15, min(wanted, ROWS_OF_A_HESSIAN))
            rows = Sampler(self.join).draw(many, np.random.default_rng(0))
            weight = np.ones(many)
        y = self.join.tree.y[rows[self.join.tree.label]]
        return JoinedSquares(self.join.blocks, rows), y, weight / weight.sum()


def warn_of_uncertified(fits: list[Any]) -> None:
    """Warn once of the fits over joins that are not certified."""
    failed = [fitted for fitted in fits if fitted.status != Status.CONVERGED]
    if failed:
        gap, status = max(float(fitted.certificate.relative_gap) for fitted in failed), failed[0].status.name
        further = {
            "MAX_STEPS": "Scale the numbers (scale='standard'), take a larger lam (a smaller C), more `max_steps`, "
            "another engine or a larger tol; `init` goes on from a fit; `designs.fit` takes `relational.design(join)`.",
            "INTERRUPTED": "Allow more time, or pass the fit as `init` to go on.",
            "NOT_FINITE": "Scale the numbers (scale='standard').",
        }[status]
        warn(
            f"{len(failed)} of {len(fits)} fits over a join ended as {status}, with a relative gap of up to {gap:.2g}. "
            f"{further}",
            ConvergenceWarning,
        )
