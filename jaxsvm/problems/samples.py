"""What the problems of labelled samples share: they store what was given, and derive everything else."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any, ClassVar, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import ArrayLike

from jaxsvm.errors import is_concrete
from jaxsvm.gram.operators import Gram
from jaxsvm.gram.signed import SignedGram
from jaxsvm.numerics.sizes import size_class
from jaxsvm.problems import arguments
from jaxsvm.problems.contract import Parametric, Problem
from jaxsvm.runtime.arrays import computed, filled, in_a_line, owned, summary
from jaxsvm.runtime.programs import BRIEF, Program


class OfSamples(Parametric):
    """A problem of labelled samples: Gram operator, signs, penalty and weights as given."""

    weight: Float[Array, " n"] | None  # not negative, 0 for an absent sample; None if all are 1
    squares: Float[Array, " n"]  # `K_ii + offset`

    operator = "gram"
    loss: ClassVar[str]  # what the problem sums, for people; f is the decision function
    vectors: ClassVar[tuple[str, ...]] = ("y", "squares")  # fields of shape `(n,)` but `weight`
    needs_classes: ClassVar[bool] = True  # whether other weights must leave a sample of each class
    C: Any

    def __repr__(self) -> str:
        """Say in a line which loss, parameter, bias, samples and kernel it has; without arrays, list the fields."""
        if not hasattr(self.y, "shape"):
            return in_a_line(self)
        bias = "free bias" if self.free_bias else "regularized bias" if self.offset else "no bias"
        parameter = f"{self.parameter or 'e'}={summary(getattr(self, self.parameter or 'e'))}"
        gram = f"{type(self.gram).__name__} of {summary(getattr(self.gram, 'kernel', None))}"
        samples = f"{self.n // 2 if self.regression else self.n} samples in {self.dtype}"
        return f"{type(self).__name__}({self.loss}, {parameter}, {bias}, {samples}, {gram})"

    @property
    def n(self) -> int:
        return self.y.shape[-1]

    @property
    def dtype(self) -> np.dtype:
        return self.y.dtype

    @property
    def signed(self) -> SignedGram:
        """Return the matrix `y_i y_j (K_ij + offset)`."""
        return SignedGram(self.gram, self.y, self.offset)

    @property
    def weights(self) -> Float[Array, " n"]:
        return filled(self.y, 1) if self.weight is None else self.weight

    @property
    def mask(self) -> Bool[Array, " n"] | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Return which samples have a positive weight, `(n,)`; None if no weights were given."""
        return None if self.weight is None else computed(lambda _, weight: weight > 0, self.weight)

    @property
    def present(self) -> Bool[Array, " n"]:
        mask = self.mask
        return filled(self.y, True, bool) if mask is None else mask

    @property
    def costs(self) -> Float[Array, " n"]:
        """Return `C_i = C weight_i`, `(n,)`; 0 for an absent sample."""
        if self.weight is None:
            return filled(self.y, self.C)
        return computed(lambda _, weight, C: C * weight, self.weight, self.C)

    @property
    def diagonal(self) -> Float[Array, " n"]:
        """Return the diagonal of the signed matrix, `(n,)`."""
        return self.squares

    def indefinite(self, objective: Float[Array, ""], /) -> Bool[Array, ""]:
        """Return False: the objective proves nothing, since it is bounded for any kernel."""
        return jnp.zeros_like(objective, bool)

    def on_simplex(self: Any, p: Float[Array, " n"], otherwise: Float[Array, " n"]) -> Float[Array, " n"]:
        """Return p clipped at 0 and scaled to a sum of 1; with a free bias, half of it in each class.

        A part of which nothing is left, a class or the whole, gets the shares `otherwise`, `(n,)`.
        """
        present = self.present
        p = jnp.where(present, jnp.maximum(p, 0), 0)

        def share(members: Array) -> Array:
            part = jnp.where(members, p, 0)
            part = jnp.where(part.sum() > 0, part, jnp.where(members & present, otherwise, 0))
            return part / part.sum()

        return (share(self.y > 0) + share(self.y < 0)) / 2 if self.free_bias else share(present)

    def at(self, C: ArrayLike, /) -> Self:
        """Return the problem at another C. For `box_problem`, C is a factor of the bounds given."""
        arguments.require_positive_scalar("C", C)
        return checked(dataclasses.replace(self, C=owned(C, self.dtype)), classes=False)

    def weighted(self, sample_weight: ArrayLike) -> Self:
        weight, usable = arguments.checked_weights(sample_weight, self.n, self.dtype)
        if weight is not None and self.weight is not None:
            weight, held = arguments.weights_times(weight, self.weight)
            usable = usable & held
        return checked(dataclasses.replace(self, weight=weight), usable, self.needs_classes)

    def on(self, gram: Gram) -> Self:
        return dataclasses.replace(self, gram=gram, squares=squares(gram, self.dtype, self.offset))


P = TypeVar("P", bound=OfSamples)


def checked(problem: P, usable: Any = True, classes: bool = True) -> P:
    """Refuse costs, labels and weights that make no problem; traced ones are marked as not feasible at run time.

    `usable` says whether weights can be used, `()`, and `classes` whether each class needs a present sample.
    """
    C, weight = problem.C, problem.weight
    arguments.require_costs(C, weight, problem.dtype)
    known = is_concrete(problem.y, weight)
    if classes and known:
        arguments.require_both_classes(problem.y, weight)
    elif known and weight is not None:
        arguments.require_some(weight)
    if known and is_concrete(C):
        return problem
    usable, present = problem.feasible & usable & arguments.costs_hold(C, weight), problem.present
    if not known:
        usable = usable & (arguments.two_classes(problem.y, present) if classes else present.any())
    return dataclasses.replace(problem, feasible=usable)


def squares(gram: Gram, dtype: Any, offset: float) -> Float[Array, " n"]:
    """Return `K_ii + offset`, `(n,)`, by the program of the size class that the samples are padded to."""
    size = size_class(gram.n)
    if not is_concrete(gram):
        return gram.diag().astype(dtype) + offset
    longer = gram.lengthened(size)
    with jax.ensure_compile_time_eval():  # in a user's program too
        if longer is None:
            return _squares(gram, offset, dtype)
        return computed(lambda _, values: values[: gram.n], _squares(longer, offset, dtype))


@partial(Program, options=BRIEF, static=("dtype",))
def _squares(gram: Gram, offset: float, dtype: Any) -> Float[Array, " n"]:
    return gram.diag().astype(dtype) + offset


@Program.full()
def picked(vectors: Any, samples: Int[Array, " m"]) -> Any:
    """Return the entries of some samples `(m,)` of a tree of vectors."""
    return jax.tree.map(lambda vector: vector[samples], vectors)


def negligible(problem: Problem, point: Float[Array, " n"]) -> tuple[Any, Float[Array, " n"]]:
    """Return the errors of coefficients (relative to bounds) and of products that change no active set.

    Both exceed rounding: else samples at a kink would change sets again and again.
    """
    eps, size = jnp.finfo(problem.dtype).eps, jnp.sqrt(jnp.maximum(problem.diagonal, 0))
    return eps**0.6, 64 * eps * size * (jnp.abs(point) @ size)
