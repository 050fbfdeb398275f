"""Pad problems with absent samples: a problem of n samples is solved as one of few sizes, which share programs.

A sample of weight 0 is exactly absent: it enters no sum, and steps never take it. So 1,000 and 1,010 samples are both
padded to 1,024, and the second n compiles nothing. Drivers pad problems and cut results by NumPy, which compiles
nothing either. Absent samples are copies of the first one, so that no kernel meets a point that its user did not give.

Nothing is padded under tracing, where the user's program has one size; with stored kernel values, whose copy costs more
than programs; with CSR points, whose number of entries is a size of its own.
"""

import dataclasses
from typing import TypeVar

from jaxsvm.errors import is_concrete
from jaxsvm.gram.contract import Gram
from jaxsvm.numerics.sizes import size_class
from jaxsvm.problems.contract import Problem
from jaxsvm.problems.samples import OfSamples
from jaxsvm.results.fit import Fit
from jaxsvm.runtime.arrays import lengthened, shortened

P = TypeVar("P", bound=Problem)
S = TypeVar("S", bound=OfSamples)


def padded(problem: P, gram: Gram | None = None) -> P:
    """Return a problem padded to its size class; unchanged if it cannot be padded.

    Args:
        problem: A problem.
        gram: Its operator of as many points, if it was made for another problem; None makes it.
    """
    return _padded(problem, gram) if isinstance(problem, OfSamples) and is_concrete(problem) else problem


def _padded(problem: S, gram: Gram | None) -> S:
    size = size_class(problem.n)
    if size == problem.n and problem.weight is not None and gram is None:
        return problem
    gram = problem.gram.lengthened(size) if gram is None else gram
    if gram is None:
        return problem
    vectors = {name: getattr(problem, name) for name in problem.vectors}
    parts = {name: lengthened(vector, size) for name, vector in vectors.items() if vector is not None}
    return dataclasses.replace(problem, gram=gram, weight=lengthened(problem.weights, size, 0), **parts)


def trimmed(fit: Fit, n: int) -> Fit:
    """Cut a fit, or fits with leading axes, to n samples."""
    size = fit.alpha.shape[-1]
    if size == n:
        return fit
    parts = {name: shortened(getattr(fit, name), n, size) for name in ("alpha", "dual_coef", "margins")}
    return dataclasses.replace(fit, **parts)
