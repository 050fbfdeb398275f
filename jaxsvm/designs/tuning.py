"""Choose C, and the width of a kernel's features, by the scores of held-out rows.

`jaxsvm.tune` moves one point by derivatives. Here the same passes score several values of C on all folds, so that a
grid is refined around its best value instead.
"""

import dataclasses
import math
import time
from typing import Any, NamedTuple

import numpy as np

from jaxsvm.designs.contract import Design, require_design
from jaxsvm.designs.features import nystroem
from jaxsvm.designs.fit import DesignFit, cross_validate, fit, over
from jaxsvm.errors import InputError
from jaxsvm.kernels import Kernel
from jaxsvm.loop.interruption import answering
from jaxsvm.model_selection.cross_validation import Scores, end_of
from jaxsvm.runtime.arrays import require_positive, require_seconds, require_whole, transfers


class Trial(NamedTuple):
    """Scores of values of C at one width."""

    kernel: Any  # the kernel of the features; None: the columns themselves
    scores: Scores  # the scores, `(folds, k)`


@dataclasses.dataclass(frozen=True, eq=False)
class DesignTuned:
    """The result of `tune`.

    Attributes:
        C: The value of the best mean score.
        score: This mean: an accuracy, or a negative mean squared error.
        kernel: The kernel of its features; None: the columns themselves.
        fit: The machine of all rows at these values.
        trials: All scores, in order.
    """

    C: float
    score: float
    kernel: Kernel | None
    fit: DesignFit
    trials: tuple[Trial, ...]

    @property
    def note(self) -> str | None:
        """Say which of the best C and gamma is an end of those that were scored; return None if neither is."""
        ends = [end_of("C", self.C, np.concatenate([trial.scores.Cs for trial in self.trials]))]
        kernel: Any = self.kernel
        if hasattr(kernel, "gamma"):
            tried = [float(np.max(trial.kernel.gamma)) for trial in self.trials]
            ends.append(end_of("gamma", float(np.max(kernel.gamma)), tried))
        return " ".join(end for end in ends if end) or None

    def __repr__(self) -> str:
        parts = (
            f"C={self.C:.4g}, kernel={self.kernel!r}, score {self.score:.6g}, {len(self.trials)} trials, {self.fit!r}"
        )
        return f"DesignTuned({parts}{'' if self.note is None else f'. {self.note}'})"


@transfers
def tune(
    design: Design, C: float = 1.0, folds: int = 5, *, kernel: Kernel | None = None, rank: int = 256, rounds: int = 3,
    loss: str = "hinge", bias: str = "regularized", epsilon: float = 0.1, tol: float = 1e-3, max_passes: int = 100,
    max_seconds: float | None = None, interrupt: str = "return",
) -> DesignTuned:  # fmt: skip
    """Search C by cross-validation, and the width of a kernel whose Nystroem features are taken.

    The first round scores seven values of C, each ten times the one before, at five widths, each four times the one
    before. Each further round takes the root of these factors around the best: five values of C at three widths. The
    values of C at a width share their passes (5 to 30); three rounds take 11 sets of passes, or 3 without a kernel.

    Args:
        design: The rows.
        C: Where to begin, > 0.
        folds: Number of folds, at least 2; row i is held out in fold `i % folds`.
        kernel: A kernel such as `RBF(0.1)`, with the width to begin at; one without `gamma` keeps its parameters.
            None: the features of the design, of which C alone is searched.
        rank: Number of Nystroem features.
        rounds: Number of rounds, >= 1: C is found to a factor `10 ** (1 / 2 ** (rounds - 1))`.
        loss: As in `fit`, like the other arguments.
        bias: "regularized", "none" or "free".
        epsilon: Half-width of the tube of regression.
        tol: The certified relative gap of each machine, the last one too.
        max_passes: The most passes of each set.
        max_seconds: Begin no further pass after so many seconds.
        interrupt: "return" or "raise" at Ctrl-C.

    Returns:
        The best values and the machine of all rows. After Ctrl-C, or if time is up, these are of the trials that were
        complete, and the machine, which had no time, is INTERRUPTED: `fit(design, found.C)` makes it.

    Raises:
        InputError: On arguments that cannot be used.
    """
    require_design(design)
    require_positive("C", C)
    require_whole("rounds", rounds, 1)
    require_seconds(max_seconds)
    if not (kernel is None or isinstance(kernel, Kernel)):
        raise InputError(f"kernel is a {type(kernel).__name__}: a kernel such as `jaxsvm.kernels.RBF(0.5)` is needed.")
    deadline = math.inf if max_seconds is None else time.monotonic() + max_seconds
    options: Any = {"loss": loss, "bias": bias, "epsilon": epsilon, "tol": tol, "max_passes": max_passes}
    widths = hasattr(kernel, "gamma")

    def features(kernel: Kernel | None) -> Design:
        return design if kernel is None else nystroem(design, kernel, rank)

    def left() -> float | None:
        return None if max_seconds is None else max(0.0, deadline - time.monotonic())

    trials, best = [], Trial(kernel, Scores(np.asarray([float(C)]), np.full((1, 1), -np.inf)))
    with answering(interrupt) as stop:
        for step in range(rounds):
            centre = best
            Cs = centre.scores.C * 10.0 ** (np.arange(-3, 4) if step == 0 else np.arange(-2, 3) / 2**step)
            factors = 4.0 ** (np.arange(-2, 3) if step == 0 else np.arange(-1, 2) / 2**step)
            for factor in factors if widths else [1.0]:
                here = _scaled(centre.kernel, factor)
                trial = Trial(here, cross_validate(features(here), Cs, folds, max_seconds=left(), **options))
                if trials and over(design, stop, deadline):
                    break  # its machines had not ended
                trials.append(trial)
                best = max(best, trial, key=lambda trial: trial.scores.mean.max())
            if over(design, stop, deadline):
                break
        found = fit(features(best.kernel), best.scores.C, max_seconds=left(), **options)
    return DesignTuned(best.scores.C, float(best.scores.mean.max()), best.kernel, found, tuple(trials))


def _scaled(kernel: Any, factor: float) -> Any:
    """Return the kernel with `factor` times its `gamma`; a kernel without one, or None, as it is."""
    gamma = getattr(kernel, "gamma", None)
    return kernel if gamma is None else dataclasses.replace(kernel, gamma=np.asarray(gamma) * factor)
