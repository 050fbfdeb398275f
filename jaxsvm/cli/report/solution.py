"""The solution at one value of C as reports show it."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxsvm.models.model import Model
from jaxsvm.results.fit import Certificate
from jaxsvm.results.status import Status


@dataclasses.dataclass(frozen=True)
class Solution:
    """The solution at one C.

    Attributes:
        C: The penalty; None if nu stands in its place.
        statuses: How each decision function ended: a single one, or one per pair of classes.
        certificate: The certificate of each, `()` or `(pairs,)`.
        steps: Steps taken, in all.
        kernel_evaluations: Kernel values computed; None if they were not counted.
        support: Number of samples with a coefficient.
        score: Its score on the training samples.
        model: Builds the model.
        epsilon: Half the width of the tube that nu has found; None without nu.
    """

    C: float | None
    statuses: tuple[Status, ...]
    certificate: Certificate
    steps: int
    kernel_evaluations: int | None
    support: int
    score: float
    model: Callable[[], Model]
    epsilon: float | None = None

    @property
    def status(self) -> Status:
        """Return the status of the first decision function that is not certified; CONVERGED if all are."""
        return min(self.statuses, key=lambda status: status == Status.CONVERGED)

    def row(self, metric: str, score: float | None) -> dict[str, Any]:
        """Return the entries of the report."""
        return {
            "C": self.C, "status": self.status.name, "certified": self.status == Status.CONVERGED,
            **totals(self.certificate), "steps": self.steps, "kernel_evaluations": self.kernel_evaluations,
            "support": self.support, **({} if self.epsilon is None else {"epsilon": self.epsilon}),
            f"train_{metric}": self.score, f"test_{metric}": score,
        }  # fmt: skip


def totals(certificate: Certificate) -> dict[str, float]:
    """Sum the primal and dual values of all decision functions, and take the largest gap."""
    return {
        "primal": float(np.asarray(certificate.primal).sum()),
        "dual": float(np.asarray(certificate.dual).sum()),
        "relative_gap": float(np.asarray(certificate.relative_gap).max()),
    }
