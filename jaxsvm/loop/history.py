"""Record how a fit went, as its callback."""

import time
from typing import Any

import numpy as np


class History:
    """A callback that keeps a line a call: `history = History(); jaxsvm.fit(problem, callback=history)`.

    It runs on the host between chunks of steps, and computes nothing.

    Attributes:
        lines: `(seconds, steps, kernel evaluations, primal, dual, relative gap)` of the best certified point at each
            call; seconds since this history was made.
    """

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.lines: list[tuple[float, int, int, float, float, float]] = []

    def __call__(self, fitted: Any) -> None:
        """Keep a line; `fit` calls this."""
        primal, dual, gap = (float(part) for part in fitted.certificate)
        steps, evaluations = int(fitted.steps), int(fitted.kernel_evaluations)
        self.lines.append((time.perf_counter() - self.started, steps, evaluations, primal, dual, gap))

    def __len__(self) -> int:
        return len(self.lines)

    def _column(self, place: int) -> np.ndarray:
        return np.array([line[place] for line in self.lines])

    @property
    def seconds(self) -> np.ndarray:
        """Seconds since this history was made, `(calls,)`."""
        return self._column(0)

    @property
    def steps(self) -> np.ndarray:
        """Steps taken, `(calls,)`."""
        return self._column(1)

    @property
    def kernel_evaluations(self) -> np.ndarray:
        """Kernel values computed, `(calls,)`."""
        return self._column(2)

    @property
    def primal(self) -> np.ndarray:
        """Primal values, `(calls,)`."""
        return self._column(3)

    @property
    def dual(self) -> np.ndarray:
        """Dual values, `(calls,)`."""
        return self._column(4)

    @property
    def relative_gap(self) -> np.ndarray:
        """Certified relative gaps, `(calls,)`."""
        return self._column(5)
