"""Warn once of all fits of a path, or of a cross-validation, that are not certified."""

from typing import Any, cast

import numpy as np

from jaxsvm.errors import ConvergenceWarning, warn
from jaxsvm.results.fit import Fit
from jaxsvm.results.status import Status, StatusCode, advice


def warn_of_unfinished(fits: list[Fit], Cs: Any, tol: Any) -> None:
    """Say how many fits ended how, from which value on, the largest gap, and what helps; nothing if all converged.

    Args:
        fits: Fits with a last axis of k.
        Cs: Their values, `(k,)`.
        tol: The relative gap that was asked for.
    """
    codes = np.stack([np.asarray(fit.status.code) for fit in fits])
    failed = codes != Status.CONVERGED
    if not failed.any():
        return
    gaps = np.stack([np.asarray(fit.certificate.relative_gap, float) for fit in fits])
    first = np.broadcast_to(np.asarray(Cs, float), codes.shape)[failed].min()
    reached = gaps[failed & np.isfinite(gaps)]
    largest = f", with relative gaps of up to {reached.max():.2g}" if reached.size else ""
    most = Status(np.bincount(codes[failed]).argmax())
    warn(
        f"{int(failed.sum())} of {codes.size} fits are not certified to tol {float(tol):.2g}: "
        f"{StatusCode(cast(Any, codes[failed])).tally()}, the first at {first:.4g}{largest}. "
        f"{advice(most, fits[0])}",
        ConvergenceWarning,
    )
