"""What a C comes to: a model, and the proof of quality of each decision function in it."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from jaxsvm.models.model import Model
from jaxsvm.results.fit import Status


@dataclasses.dataclass(frozen=True)
class Answer:
    """One C, solved.

    Attributes:
        C: The penalty.
        statuses: How each decision function ended: one, or one a pair of classes.
        primal: The objective reached, of pairs the sum.
        dual: The bound from below, of pairs the sum.
        relative_gap: Between them, of pairs the largest.
        steps: Steps taken, in all.
        kernel_evaluations: Kernel values asked for; None where nobody counted.
        support: Samples with a coefficient.
        model: Makes the model.
    """

    C: float
    statuses: tuple[Status, ...]
    primal: float
    dual: float
    relative_gap: float
    steps: int
    kernel_evaluations: int | None
    support: int
    model: Callable[[], Model]

    @property
    def certified(self) -> bool:
        """Whether all of it is."""
        return all(status == Status.CONVERGED for status in self.statuses)

    @property
    def status(self) -> Status:
        """That of the first decision function that is not certified, if there is one."""
        return next((status for status in self.statuses if status != Status.CONVERGED), Status.CONVERGED)

    def row(self, metric: str, score: float | None) -> dict[str, Any]:
        """For the report."""
        return {
            "C": self.C,
            "status": self.status.name,
            "certified": self.certified,
            "primal": self.primal,
            "dual": self.dual,
            "relative_gap": self.relative_gap,
            "steps": self.steps,
            "kernel_evaluations": self.kernel_evaluations,
            "support": self.support,
            f"test_{metric}": score,
        }


class Folds(NamedTuple):
    """Scores of values of C on samples left out.

    Attributes:
        mean: Over folds, `(k,)`; NaN where Ctrl-C came first.
        standard_error: Of that mean, `(k,)`.
    """

    mean: np.ndarray
    standard_error: np.ndarray

    @staticmethod
    def of(scores: np.ndarray) -> "Folds":
        """From the scores of each fold, `(folds, k)`."""
        return Folds(scores.mean(axis=0), scores.std(axis=0, ddof=1) / np.sqrt(len(scores)))
