"""Print how the training of an estimator goes, if its `verbose` is set."""

import threading
import time
from typing import Any

import numpy as np

from jaxsvm.loop.many import Solved
from jaxsvm.results.fit import Fit


class Progress:
    """Print the problems that have ended, their largest gap and their steps: once a second, and after the last."""

    def __init__(self, estimator: Any, problems: int) -> None:
        self.name, self.tol, self.problems = type(estimator).__name__, estimator.tol, problems
        self.verbose = bool(getattr(estimator, "verbose", False))
        self.solved: list[Solved] = []
        self.began = self.shown = time.monotonic()
        self.callback = self._at if self.verbose else None  # of a long solve: one without is faster
        self._lock = threading.Lock()  # problems are solved by several threads

    def ended(self, solved: Solved) -> Solved:
        """Note a problem that has ended; return it."""
        if self.verbose:
            with self._lock:
                self.solved.append(solved)
                self.problems = max(self.problems, len(self.solved))  # a hard margin may take several
                self._print(np.max([one.certificate.relative_gap for one in self.solved]), 0)
        return solved

    def _at(self, fit: Fit) -> None:
        """Note how far a long solve is."""
        with self._lock:
            self._print(fit.certificate.relative_gap, int(fit.steps))

    def _print(self, gap: Any, steps: int) -> None:
        now, ended = time.monotonic(), len(self.solved)
        if ended < self.problems and now - self.shown < 1:
            return
        self.shown, seconds = now, now - self.began
        statuses = "/".join(sorted({one.status.name for one in self.solved})) or "RUNNING"
        left = seconds * (self.problems - ended) / ended if ended else 0
        print(
            f"[{self.name}] {ended} of {self.problems} problems: {statuses}, relative gap {float(gap):.2g} "
            f"(tol {self.tol:.2g}), {steps + sum(one.steps for one in self.solved)} steps, {seconds:.1f} s"
            + (f", about {left:.0f} s left" if left else ""),
            flush=True,
        )
