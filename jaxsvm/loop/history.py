"""How a fit went: what `fit(callback=)` saw, kept."""

import time
from typing import Any

import numpy as np


class History:
    """A callback that keeps a line for every look: `history = History(); jaxsvm.fit(problem, callback=history)`.

    It is called on the host between chunks of steps, and computes nothing; compiled code knows nothing of it.

    Attributes:
        lines: `(seconds, steps, kernel evaluations, primal, dual, relative gap)` of each look: seconds since this
            history was made, of the best certified point by then.
    """

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.lines: list[tuple[float, int, int, float, float, float]] = []

    def __call__(self, fitted: Any) -> None:
        """Keep a line; called by `fit`."""
        primal, dual, gap = (float(part) for part in fitted.certificate)
        steps, asked = int(fitted.steps), int(fitted.kernel_evaluations)
        self.lines.append((time.perf_counter() - self.started, steps, asked, primal, dual, gap))

    def __len__(self) -> int:
        return len(self.lines)

    def _column(self, place: int) -> np.ndarray:
        return np.array([line[place] for line in self.lines])

    @property
    def seconds(self) -> np.ndarray:
        """Since this history was made, `(looks,)`."""
        return self._column(0)

    @property
    def steps(self) -> np.ndarray:
        """Steps taken, `(looks,)`."""
        return self._column(1)

    @property
    def kernel_evaluations(self) -> np.ndarray:
        """Kernel values asked for, `(looks,)`."""
        return self._column(2)

    @property
    def primal(self) -> np.ndarray:
        """Primal values, `(looks,)`."""
        return self._column(3)

    @property
    def dual(self) -> np.ndarray:
        """Dual values, `(looks,)`."""
        return self._column(4)

    @property
    def relative_gap(self) -> np.ndarray:
        """Certified relative gaps, `(looks,)`."""
        return self._column(5)
