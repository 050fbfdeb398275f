"""The solution at one value of C as reports show it, and the scores of cross-validation."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from jaxsvm.models.model import Model
from jaxsvm.results.fit import Certificate
from jaxsvm.results.status import Status


@dataclasses.dataclass(frozen=True)
class Solution:
    """The solution at one C.

    Attributes:
        C: The penalty.
        statuses: How each decision function ended: a single one, or one per pair of classes.
        certificate: The certificate of each, `()` or `(pairs,)`.
        steps: Steps taken, in all.
        kernel_evaluations: Kernel values computed; None if they were not counted.
        support: Number of samples with a coefficient.
        model: Builds the model.
    """

    C: float
    statuses: tuple[Status, ...]
    certificate: Certificate
    steps: int
    kernel_evaluations: int | None
    support: int
    model: Callable[[], Model]

    @property
    def status(self) -> Status:
        """Status of the first decision function that is not certified; CONVERGED if all are."""
        return next((status for status in self.statuses if status != Status.CONVERGED), Status.CONVERGED)

    def row(self, metric: str, score: float | None) -> dict[str, Any]:
        """Return the entries of the report."""
        return {
            "C": self.C, "status": self.status.name, "certified": self.status == Status.CONVERGED,
            **totals(self.certificate), "steps": self.steps, "kernel_evaluations": self.kernel_evaluations,
            "support": self.support, f"test_{metric}": score,
        }  # fmt: skip


def totals(certificate: Certificate) -> dict[str, float]:
    """Sum the primal and dual values of all decision functions, and take the largest gap."""
    return {
        "primal": float(np.sum(certificate.primal)),
        "dual": float(np.sum(certificate.dual)),
        "relative_gap": float(np.max(certificate.relative_gap)),
    }


class FoldScores(NamedTuple):
    """Scores of k values of C on the samples that folds leave out.

    Attributes:
        Cs: The values, `(k,)`.
        mean: Mean over folds, `(k,)`; NaN where Ctrl-C came first.
        standard_error: Standard error of that mean, `(k,)`.
    """

    Cs: np.ndarray
    mean: np.ndarray
    standard_error: np.ndarray

    @staticmethod
    def of(Cs: list[float], scores: np.ndarray) -> "FoldScores":
        """Average the scores of each fold, `(folds, k)`."""
        return FoldScores(np.asarray(Cs), scores.mean(axis=0), scores.std(axis=0, ddof=1) / np.sqrt(len(scores)))

    @property
    def C(self) -> float:  # noqa: N802
        """The value of the best mean, the smallest of equals."""
        return self.Cs[self.mean == np.nanmax(self.mean)].min()

    @property
    def C_one_standard_error(self) -> float:  # noqa: N802
        """The smallest value whose mean lies within one standard error of the best."""
        best = np.flatnonzero(self.Cs == self.C)[0]
        return self.Cs[self.mean >= self.mean[best] - self.standard_error[best]].min()
