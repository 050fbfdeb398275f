"""What drivers and solvers ask of a problem: the members of all, and what some have besides.

`Problem` is for all; `SimplexProblem` and `BoxForm` are what steps see of two forms; `Restrictable` is for problems
that leave samples out, `Differentiable` for those whose solutions have derivatives.

A problem is a frozen dataclass, registered as a pytree, whose vectors all have one dtype; `jaxsvm.numerics.precision`
widens them for what decides.
"""

from typing import Any, Protocol

import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxsvm.derivatives.values import Active, Values
from jaxsvm.errors import InputError
from jaxsvm.results.fit import Answer, Certificate


class Problem(Protocol):
    """What every problem has.

    Attributes:
        kind: Which solvers are for it: those that have it in `solves`.
        solved_by: The solver that somebody is told of who took one that is not for it.
        parameter: What a path goes along: "C", "nu", or None where there is nothing.
        restricts: Whether it has `restrict`: a smaller problem of some samples while the others stay where they are.
        corrects: Whether it has `beside`: a w of a smaller primal beside a dual point, where rounding is its floor.
        free_bias: Whether there is an unregularised bias.
        offset: 1.0 where the constant is one more feature of value 1, which makes a regularised bias; else 0.0. Static.
        gram: The Gram operator of its n samples.
        y: Labels in {-1, +1}, `(n,)`: the signs of `y_i y_j (K_ij + offset)`, whose definiteness drivers look at, and
            what folds are dealt and scored by.
        operator: The field of the operator that solvers work on: "gram", as a rule.
        padding: What its fields of an entry a sample (but `mask`) have for an absent one, by name, None for a copy of
            the first; None: it cannot be padded (`jaxsvm.problems.padding`).
        feasible: Whether the values make a problem, `()`: known late under tracing.
        diagonal: `Q_ii` (`Kt_ii`), `(n,)`.
        mask: Samples that take part, `(n,)`; None where all do.
    """

    kind: str
    solved_by: str
    parameter: str | None
    restricts: bool
    corrects: bool
    free_bias: Any
    offset: float
    gram: Any
    y: Any
    operator: str
    padding: Any
    feasible: Any
    diagonal: Any
    mask: Any

    @property
    def n(self) -> int:
        """How many samples."""
        ...

    @property
    def dtype(self) -> Any:
        """Of its vectors."""
        ...

    @property
    def present(self) -> Bool[Array, " n"]:
        """Samples that take part."""
        ...

    @property
    def equality(self) -> Float[Array, " n"] | None:
        """Coefficients of an equality that dual points keep, or None."""
        ...

    def at(self, C: Any) -> "Problem":
        """The same problem at another value of its parameter; absent where `parameter` is None."""
        ...

    def weighted(self, sample_weight: Any) -> "Problem":
        """The same problem with its weights times these, `(n,)`: 0 is absence."""
        ...

    def weights(self) -> np.ndarray | None:
        """The sample weights on the host, `(n,)`, which held-out scores count by; None where they are all 1, or traced.

        Absent where `parameter` is None.
        """
        ...

    def on(self, gram: Any) -> "Problem":
        """The same samples with another Gram operator."""
        ...

    def matvec(self, point: Array) -> Array:
        """The products of a point, from scratch."""
        ...

    def feasible_point(self, point: Float[Array, " n"]) -> Float[Array, " n"]:
        """A feasible dual point near any vector."""
        ...

    def margins(self, point: Array, s: Array) -> Float[Array, " n"]:
        """What of the products does not depend on C: a warm start at another C gets them back by `gradient`."""
        ...

    def gradient(self, point: Array, margins: Float[Array, " n"]) -> Array:
        """The products of a point from its `margins`, whatever C they were computed at.

        Absent where points have two rows: nothing starts from their products.
        """
        ...

    def objective(self, point: Array, s: Array) -> Float[Array, ""]:
        """What solvers make smaller."""
        ...

    def certificate(self, point: Array, s: Array) -> Certificate:
        """Primal, dual and relative gap as if the products were exact: looked at on the way."""
        ...

    def certified(self, point: Array, s: Array, dtype: Any) -> Answer:
        """A point as it is returned, in numbers of `dtype`, with a certificate that rounding cannot make false.

        Args:
            point: Numbers of `dtype`, held in twice its precision, as this problem's vectors are then (`widened`).
            s: Its products from scratch, in twice the precision.
            dtype: Of the numbers that the caller gets: a bias is `rounded` to it before it is certified.

        Returns:
            The answer: of a point of one row `R * margins` are the `margins` of `alpha`; the certificate makes room for
            what the products may be off by (`jaxsvm.numerics.precision.rounding`). The gap of a point that is not
            feasible is infinite: its dual bounds nothing.
        """
        ...

    def indefinite(self, objective: Float[Array, ""]) -> Bool[Array, ""]:
        """Whether the objective alone shows that the kernel is not positive semidefinite."""
        ...


class SimplexProblem(Protocol):
    """What a step of a simplex solver sees of it, or of a part of it: columns of `Kt`.

    Attributes:
        diagonal: `D_i = Kt_ii`, `(n,)`.
        mask: Which samples take part; None where all do.
    """

    diagonal: Any
    mask: Any

    def column(self, i: Int[Array, ""]) -> Float[Array, " n"]:
        """`Kt[:, i]`."""
        ...

    def block(self, rows: Int[Array, " t"], columns: Int[Array, " u"]) -> Float[Array, "t u"]:
        """`Kt[rows, columns]`."""
        ...


class BoxForm(Protocol):
    """What a step of a box solver sees: `max q'a - 1/2 a'Qa` over `0 <= a <= upper` and, with a free bias, `c'a = e`.

    Its products are `s = Qa`, so that `q - s` is the gradient, and `objective` is the negative of what is maximised.

    Attributes:
        q: The linear term, `(n,)`: 1 for an SVM.
        upper: The bounds, `(n,)`; 0 for an absent sample.
        diagonal: `Q_ii`, `(n,)`.
        c: Coefficients of the equality, `(n,)`; None without a free bias.
        e: Its right-hand side, `()`.
    """

    q: Any
    upper: Any
    diagonal: Any
    c: Any
    e: Any

    def column(self, i: Int[Array, ""]) -> Float[Array, " n"]:
        """`Q[:, i]`."""
        ...

    def columns(self, indices: Int[Array, " t"]) -> Float[Array, "t n"]:
        """`Q[indices, :]`."""
        ...

    def block(self, rows: Int[Array, " t"], columns: Int[Array, " u"]) -> Float[Array, "t u"]:
        """`Q[rows, columns]`."""
        ...


class Restrictable(Protocol):
    """What a problem has that `restricts`: samples can be left out of it (`jaxsvm.path.reduction`).

    Attributes:
        bounded: Whether dual variables have an upper bound, `upper`, `(n,)`, besides 0.
        targets: The margins at which samples begin to have a loss, `(n,)`.
    """

    bounded: bool

    @property
    def targets(self) -> Float[Array, " n"]:
        """`q` of a box; 1 of an SVM."""
        ...

    def restrict(self, samples: Int[Array, " m"], fixed: Any = None, gram: Any = None) -> "Problem":
        """The problem of some samples while the others stay at their values in `fixed`, `(n,)`; None: at 0.

        Its objective is that of the whole. Where nothing is `bounded` they can be left at 0 alone. `gram` is the
        samples' Gram operator where it is at hand.
        """
        ...


class Differentiable(Protocol):
    """What a problem contributes to the derivatives of its solution; without it they are refused.

    `jaxsvm.derivatives` has the linear systems (`support_equations`) and the rule; here is what is a problem's own.

    Attributes:
        bounded: Whether active samples may stand at an upper bound too.
    """

    bounded: bool

    @property
    def ridge(self) -> Float[Array, " n"]:
        """What is added to the diagonal of the signed matrix; 0 where a sample may stand at a bound."""
        ...

    def active_set(self, values: Any, before: Active | None = None) -> Active:
        """The sets that a solution's values call for: of a fit, or of `solution_on` the sets `before`, their own then.

        As masks without derivatives; what is at a kink up to rounding stays where it was before.
        """
        ...

    def solution_on(self, active: Active, sizes: tuple[int, ...], method: str) -> Values:
        """The solution on the sets by a linear system (`support_equations.solver`), differentiable to every order."""
        ...

    def lagrangian(self, values: Values) -> Float[Array, ""]:
        """Its derivatives, where the values stand still, are those of the optimal value."""
        ...

    def kinks(self, values: Any, tol: Any) -> Bool[Array, " n"]:
        """Samples within `tol` of changing sets, where the derivative is that of one side."""
        ...

    def certificate_of(self, values: Values, dtype: Any) -> Certificate:
        """Of values of `solution_on` as numbers of `dtype`; a gap of infinity where they are no feasible point."""
        ...


PROBLEMS = {
    "squared hinge": "squared-hinge problems (`svm_problem`)",
    "ball": "enclosing balls (`meb_problem`)",
    "box": "hinge problems (`hinge_problem`, `box_problem`)",
    "slack": "slack problems (`slack_problem`)",
}
"""Kinds of problems, in words that name what builds them; a kind that is not here is its own word."""


def require_problem(problem: Any) -> None:
    """Refuse what is no problem.

    Raises:
        InputError: With what makes one.
    """
    if not hasattr(problem, "kind"):
        raise InputError(
            f"problem is a {type(problem).__name__}: one of `svm_problem`, `hinge_problem`, `box_problem`, "
            "`slack_problem` or `meb_problem` is needed."
        )


def require_differentiable(problem: Any) -> None:
    """Refuse a problem that contributes nothing to derivatives (`jaxsvm.problems.contract.Differentiable`).

    Raises:
        InputError: Naming it, and what has derivatives.
    """
    if not hasattr(problem, "solution_on"):
        raise InputError(
            f"problem is a {type(problem).__name__}: derivatives of a solution exist for squared-hinge and hinge "
            "problems (svm_problem, hinge_problem, box_problem). Put `jax.lax.stop_gradient` around the fit if none "
            "are meant."
        )
