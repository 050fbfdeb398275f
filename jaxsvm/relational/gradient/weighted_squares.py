"""Compute `X' S X` of rows of a join from counts, and solve systems with it, for Newton and interior-point steps.

Rows are row numbers of the tables, so a row costs its numbers and one code per category, however many levels there are.
Pairs of numbers contribute products; a number and a category, sums per level; two categories, counts of pairs. Two
levels of one category never occur together, so the largest category's block is diagonal and is eliminated first.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse import csr_array  # jax depends on SciPy
from scipy.sparse.linalg import LinearOperator, cg

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
