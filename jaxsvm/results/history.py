"""Record how a fit went, as its callback."""

import time
from typing import Any

import numpy as np


def _column(place: int, meaning: str) -> Any:
    """Return the property of one column of the lines, an array `(calls,)`."""
    return property(lambda self: np.array([line[place] for line in self.lines]), doc=f"{meaning}, `(calls,)`.")


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

    seconds = _column(0, "Seconds since this history was made")
    steps = _column(1, "Steps taken")
    kernel_evaluations = _column(2, "Kernel values computed")
    primal = _column(3, "Primal values")
    dual = _column(4, "Dual values")
    relative_gap = _column(5, "Certified relative gaps")
