"""Pad problems with absent samples: a problem of n samples is solved as one of few sizes, which share programs.

A sample of weight 0 is exactly absent: it enters no sum, and steps never take it. So 1,000 and 1,010 samples are both
padded to 1,024, and the second n compiles nothing. Drivers pad problems and cut results by NumPy, which compiles
nothing either. Absent samples are copies of the first one, so that no kernel meets a point that its user did not give.

Nothing is padded under tracing, where the user's program has one size; with stored kernel values, whose copy costs more
than programs; with CSR points, whose number of entries is a size of its own.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from jaxsvm.errors import is_concrete
from jaxsvm.gram.contract import Gram
from jaxsvm.numerics.sizes import size_class
from jaxsvm.problems.contract import Problem
from jaxsvm.results.fit import Fit
from jaxsvm.runtime.arrays import lengthened, on_device, shortened

P = TypeVar("P", bound=Problem)


def padded(problem: P, gram: Gram | None = None) -> P:
    """Return a problem padded to its size class; unchanged if it cannot be padded.

    Args:
        problem: A problem.
        gram: Its operator of as many points, if it was made for another problem; None makes it.
    """
    if problem.padding is None or not is_concrete(problem):
        return problem
    size = size_class(problem.n)
    if size == problem.n and problem.mask is not None and gram is None:
        return problem
    gram = problem.gram.lengthened(size) if gram is None else gram
    if gram is None:
        return problem
    present = np.arange(size) < problem.n
    parts = {
        name: lengthened(getattr(problem, name), size, fill)
        for name, fill in problem.padding.items()
        if getattr(problem, name) is not None
    }
    mask = on_device(present) if problem.mask is None else lengthened(problem.mask, size, False)
    return dataclasses.replace(problem, gram=gram, mask=mask, **parts)


def in_size_class(function: Callable[..., Any], gram: Gram, y: Any, C: Any, weight: Any, *rest: Any) -> Any:
    """Return `function(gram, y, C, weight, *rest)`, computed in the size class; its vectors are cut to `(n,)`.

    Args:
        function: A function of each sample by itself.
        gram: Their Gram operator.
        y: Signs, `(n,)`.
        C: Passed on.
        weight: Weights, `(n,)`, or None.
        *rest: Passed on.
    """
    size, n = size_class(gram.n), gram.n
    longer = gram.lengthened(size) if is_concrete(gram, y, C, weight, rest) else None
    if longer is None:
        return function(gram, y, C, weight, *rest)
    ones: Any = np.ones((n,), y.dtype)
    weight = lengthened(ones if weight is None else weight, size, 0)
    return shortened(function(longer, lengthened(y, size, 1), C, weight, *rest), n, size)


def trimmed(fit: Fit, n: int) -> Fit:
    """Cut a fit, or fits with leading axes, to n samples."""
    size = fit.alpha.shape[-1]
    if size == n:
        return fit
    parts = {name: shortened(getattr(fit, name), n, size) for name in ("alpha", "dual_coef", "margins")}
    return dataclasses.replace(fit, **parts)
