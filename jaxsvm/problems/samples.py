"""What the problems of labelled samples share."""

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Array, Bool, Float

from jaxsvm.errors import is_concrete
from jaxsvm.gram.contract import Gram
from jaxsvm.gram.signed import SignedGram
from jaxsvm.problems.arguments import require_costs, require_positive_scalar
from jaxsvm.problems.padding import padded
from jaxsvm.runtime.arrays import lengthened, shortened

P = TypeVar("P", bound="OfSamples")


class OfSamples:
    """A problem of labelled samples: its sizes and its signed matrix.

    Attributes:
        gram: The Gram operator of the samples.
        y: Signs, `(n,)`.
        mask: Samples of positive weight, `(n,)`; None if no weights were given.
        feasible: Whether the values make a problem, `()`. Under tracing this is known only at run time.
        offset: 1.0 with a regularised bias, 0.0 without; static.
    """

    gram: Gram
    y: Float[Array, " n"]
    mask: Bool[Array, " n"] | None
    feasible: Bool[Array, ""]
    offset: float

    operator = "gram"

    @property
    def n(self) -> int:
        """Number of samples."""
        return self.y.shape[-1]

    @property
    def dtype(self) -> Any:
        """Dtype of the vectors."""
        return self.y.dtype

    @property
    def signed(self) -> SignedGram:
        """The matrix `y_i y_j (K_ij + offset)`."""
        return SignedGram(self.gram, self.y, self.offset)


def recomputed(problem: P, fields: Sequence[str], program: Any, value: Any, *rest: Any) -> P:
    """Return a problem with fields that a program computes from it in its size class.

    Args:
        problem: The problem.
        fields: Names of the fields that the program returns, in its order.
        program: Function of the problem, the value and the rest.
        value: A number; or one value a sample, `(n,)`, 0 for samples that padding adds.
        *rest: Passed on.
    """
    per_sample = np.ndim(value) == 1
    given: Any = problem
    larger = padded(given) if not per_sample or is_concrete(value) else given
    value = lengthened(value, larger.n, 0) if per_sample and larger is not given else value
    parts = shortened(program(larger, value, *rest), problem.n, larger.n)
    return dataclasses.replace(given, **dict(zip(fields, parts, strict=True)))


def rescaled(problem: P, C: Any, weight: Any, fields: Sequence[str], program: Any) -> P:
    """Return a problem at another C, with fields as in `recomputed`; refuse a C that is no positive number.

    Args:
        problem: The problem.
        C: Positive, `()`.
        weight: Costs of the samples in units of C, `(n,)`; None if they are 1.
        fields: Names of the fields that the program returns.
        program: Function of the problem and C.
    """
    require_positive_scalar("C", C)
    require_costs(C, weight, problem.dtype)
    return recomputed(problem, fields, program, np.asarray(C, problem.dtype) if is_concrete(C) else C)
