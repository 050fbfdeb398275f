"""The contracts of a problem: what every problem has, and what problems of a certain form or ability have besides.

* `Problem`: every problem.
* `Parametric`: a problem with a parameter (C, nu) that a path varies.
* `Restrictable`: a problem from which samples can be left out.
* `Differentiable`: a problem whose solution has derivatives.

The forms that solvers work on, `SimplexForm` and `BoxForm`, stand below.

Write a problem as a frozen dataclass, register it as a pytree, and give all its vectors one dtype:
`jaxsvm.numerics.precision.widened` widens them for certificates. A class derives from its contracts, and inherits what
they say of the members; an attribute may be a property there.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Protocol, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import ArrayLike

from jaxsvm.errors import InputError, require_part
from jaxsvm.gram.operators import Gram
from jaxsvm.gram.signed import SignedGram
from jaxsvm.results.fit import Active, Answer, Certificate, Fit, Values

# pyright: reportReturnType=false
# (Docstrings are the bodies of members of a protocol.)


class Problem(Protocol):
    """What every problem has: n samples, a Gram operator, dual points, and their certificates."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    kind: str
    """The form, such as "box"; a solver takes the kinds that its `solves` lists."""
    solved_by: str
    """The solver that an error suggests in place of an unsuitable one."""
    parameter: str | None
    """What a path varies, "C" or "nu": the problem is then `Parametric`."""
    restricts: bool = False
    """Whether samples can be left out; the problem is then `Restrictable`."""
    differentiable: bool = False
    """Whether the solution has derivatives; the problem is then `Differentiable`."""
    corrects: bool = False
    """Whether `certificates.corrections` may find a better w, where rounding stops progress."""
    regression: bool = False
    """Whether it learns numbers: variable i pulls sample i up, variable n / 2 + i pulls it down; margins i are f."""
    of_level: bool = False
    """Whether w has the lower value (the level of a slack problem), not the upper one."""
    free_bias: bool
    """Whether there is an unregularised bias."""
    offset: float
    """1.0 for a regularised bias (one more feature, of value 1), else 0.0; static."""
    gram: Gram
    """The Gram operator of the samples."""
    operator: str
    """The name of the field that holds the operator solvers work on, usually "gram"."""
    y: Float[Array, " n"]
    """Labels in {-1, +1}: signs in `y_i y_j (K_ij + offset)`; folds are stratified by them."""
    mask: Bool[Array, " n"] | None
    """Which samples take part; None if all do."""
    feasible: Bool[Array, ""]
    """Whether the values make a problem; under tracing this is known at run time only."""

    @property
    def diagonal(self) -> Float[Array, " n"]:
        """Return the diagonal of the matrix that solvers work on, `(n,)`."""

    @property
    def n(self) -> int:
        """Return the number of samples."""

    @property
    def dtype(self) -> np.dtype:
        """Return the dtype of the vectors."""

    @property
    def present(self) -> Bool[Array, " n"]:
        """Return which samples take part, `(n,)`."""

    @property
    def equality(self) -> Float[Array, " n"] | None:
        """Return the coefficients of the equality constraint, `(n,)`; None without one."""

    def weighted(self, sample_weight: ArrayLike) -> Self:
        """Return the problem with its weights multiplied by others, `(n,)`, not negative; 0 removes a sample.

        Concrete weights that leave no problem are an InputError; under tracing the fit's status is INFEASIBLE instead.
        """

    def on(self, gram: Gram) -> Self:
        """Return the problem of the same samples with another Gram operator."""

    def matvec(self, point: Array, /) -> Array:
        """Return the products of a dual point, computed from scratch."""

    def feasible_point(self, point: Float[Array, " n"], /) -> Float[Array, " n"]:
        """Return a feasible dual point near any vector."""

    def margins(self, point: Array, s: Array, /) -> Float[Array, " n"]:
        """Return the part of the products `s` that does not depend on C, in the scale of the point.

        `gradient` turns it into the products at another C, for a warm start.
        """

    def objective(self, point: Array, s: Array, /) -> Float[Array, ""]:
        """Return the value that solvers minimise."""

    def certificate(self, point: Array, s: Array, /) -> Certificate:
        """Return primal, dual and relative gap, as if the products `s` were exact; for solvers between steps."""

    def certified(self, point: Array, s: Array, dtype: np.dtype, /) -> Answer:
        """Certify a point, in the numbers that the caller gets, by bounds that hold under rounding.

        The problem's vectors are in twice the precision here (`widened`), as are the products s, computed from scratch;
        the point are numbers of `dtype`, and a bias is `rounded` to it before it is certified. For a point of one row,
        `R * margins` are the `margins` of `alpha`. The certificate allows for the rounding of the products
        (`jaxsvm.numerics.precision.rounding`). The gap of an infeasible point is infinite.
        """

    def indefinite(self, objective: Float[Array, ""], /) -> Bool[Array, ""]:
        """Return whether the objective alone proves that the kernel is not positive semidefinite."""


class Parametric(Problem, Protocol):
    """A problem whose `parameter` is not None."""

    def at(self, value: ArrayLike, /) -> Self:
        """Return the problem at another value of its parameter, `()`; one out of range is treated as bad weights."""

    @property
    def weights(self) -> Float[Array, " n"]:
        """Return the sample weights, `(n,)`, which held-out scores use too; ones if none were given."""


class OfSignedMatrix(Problem, Protocol):
    """A problem of the matrix `signed`, plus a ridge or within bounds."""

    bounded: bool
    """Whether dual variables have finite upper bounds; a `Restrictable` problem is then a `BoxForm`."""

    @property
    def ridge(self) -> Float[Array, " n"]:
        """Return what is added to the diagonal of the signed matrix, `(n,)`; 0 where `bounded`."""

    @property
    def signed(self) -> SignedGram:
        """Return the matrix `y_i y_j (K_ij + offset)`."""

    @property
    def upper(self) -> Float[Array, " n"]:
        """Return the upper bounds, `(n,)`: infinite where not `bounded`; 0 for an absent sample."""

    @property
    def targets(self) -> Float[Array, " n"]:
        """Return the margins below which samples have a loss, `(n,)`: 1 for an SVM, `q` of a box.

        Strictly between the bounds, the margin and the ridge's share add up to it.
        """


class Restrictable(Parametric, OfSignedMatrix, Protocol):
    """A problem from which samples can be left out (`restricts`): screening and working sets use it."""

    C: Float[Array, ""]
    """The cost."""

    def gradient(self, point: Float[Array, " n"], margins: Float[Array, " n"], /) -> Float[Array, " n"]:
        """Return the products of a point from its `margins`, whatever C these were computed at."""

    def restrict(self, samples: Any, fixed: Any = None, gram: Gram | None = None) -> Self:
        """Return the problem of some samples, by index `(m,)`, while the others keep their values of `fixed`, `(n,)`.

        Its objective is that of the whole problem. None stands for 0, the only choice where not `bounded`; `gram` is
        the operator of these samples, if it exists already.
        """


class Differentiable(OfSignedMatrix, Protocol):
    """A problem whose solution has derivatives (`differentiable`).

    `jaxsvm.derivatives` has the linear systems (`support_equations`); the rule is in `jaxsvm.loop.differentiation`.
    """

    e: Any
    """The right-hand side of the equality, `()`."""

    def active_set(self, values: Any, before: Active | None = None) -> Active:
        """Return the sets of samples that a solution's values imply, as masks without derivatives.

        They are those of a fit, or of the solution on sets `before`: a sample within rounding of a kink stays in its
        set.
        """

    def values_at(self, point: Any) -> Values:
        """Return the values of a point (`jaxsvm.results.fit.Point`), differentiable in both."""

    def lagrangian(self, values: Values, targets: Float[Array, " n"]) -> Float[Array, ""]:
        """Return what has the derivatives of the optimal value, at fixed `values` and `targets` of a solution."""

    def certificate_of(self, values: Values, dtype: Any) -> Certificate:
        """Return the certificate of a solution's values as numbers of `dtype`; an infinite gap if infeasible."""


CURVATURE_ROUNDINGS = 32  # units of rounding below which a negative curvature shows an indefinite kernel
PROBLEMS = {
    "squared hinge": "squared-hinge problems (`svm_problem`)",
    "ball": "enclosing balls (`meb_problem`)",
    "box": "hinge problems (`hinge_problem`, `box_problem`, `svr_problem`, `one_class_problem`)",
    "nu": "nu problems (`nu_problem`)",
    "slack": "slack problems (`slack_problem`)",
}
"""Kinds of problems for error messages, with what builds them; other kinds are named by themselves."""


def require_problem(problem: Any) -> None:
    """Refuse an argument that is no problem, naming the functions that build one."""
    makers = "one of `svm_problem`, `hinge_problem`, `box_problem`, `slack_problem` or `meb_problem`"
    require_part("problem", problem, "kind", f"{makers} is needed")


def require_differentiable(problem: Any) -> Differentiable:
    """Return a problem that has derivatives; refuse any other argument."""
    require_problem(problem)
    if not problem.differentiable:
        raise InputError(
            f"problem is a {type(problem).__name__}: derivatives of a solution exist for squared-hinge and hinge "
            "problems (svm_problem, hinge_problem, box_problem). Put `jax.lax.stop_gradient` around the fit if none "
            "are meant."
        )
    return problem


class SimplexPart(Protocol):
    """What a step of a simplex solver sees of a problem, or of a part of it: columns of `Kt`."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    mask: Bool[Array, " n"] | None
    """Which samples take part; None if all do."""

    @property
    def diagonal(self) -> Float[Array, " n"]:
        """Return `D_i = Kt_ii`, `(n,)`."""

    @property
    def diameter_squared(self) -> Float[Array, ""]:
        """Return `Delta^2`, the scale of the published stop rule, `()`."""

    def column(self, i: Int[Array, ""]) -> Float[Array, " n"]:
        """Return `Kt[:, i]`."""

    def block(self, rows: Int[Array, " t"], columns: Int[Array, " u"]) -> Float[Array, "t u"]:
        """Return `Kt[rows, columns]`."""


class SimplexForm(Problem, SimplexPart, Protocol):
    """A problem `min alpha' Kt alpha` over the simplex: squared hinge and enclosing balls. Products are `Kt alpha`."""

    def columns(self, indices: Int[Array, " t"]) -> Float[Array, "t n"]:
        """Return `Kt[indices, :]`."""

    def gradient(self, point: Float[Array, " n"], margins: Float[Array, " n"], /) -> Float[Array, " n"]:
        """Return the products of a point from its `margins`, whatever C these were computed at."""

    def returned(self, alpha: Float[Array, " n"], R: Float[Array, ""]) -> Float[Array, " n"]:
        """Return the point that `certified` takes for `alpha` on the simplex with `R = alpha' Kt alpha`."""

    def squared_distances(self, alpha: Float[Array, " n"], s: Float[Array, " n"]) -> Float[Array, " n"]:
        """Return the squared distances of the points from the centre `sum_i alpha_i z_i`, `(n,)`."""

    def require_ball(self) -> None:
        """Refuse a problem that is no minimum enclosing ball."""

    def enclosing(self, fit: Fit) -> tuple[Array, Array, Array]:
        """Return a fit's squared radii, from above and below, and the squared norm of its centre."""


class BoxForm(Restrictable, Protocol):
    """A problem `max q'a - 1/2 a'Qa` over `0 <= a <= upper` and, with a free bias, `c'a = e`.

    `Q` is `signed`, and `upper` is proportional to `C`. Its products are `s = Qa`, so that `q - s` is the gradient;
    `objective` is minus what is maximised.
    """

    q: Float[Array, " n"]
    """The linear term: 1 for an SVM."""
    c: Float[Array, " n"] | None
    """Coefficients of the equality; None without a free bias."""
    constant: Float[Array, ""]
    """The constant term of the dual objective."""
    e: Float[Array, ""]
    """The right-hand side of the equality."""
    groups: Bool[Array, " n"] | None
    """The first of two groups of variables that each have the sum e; None: c'a = e."""

    def column(self, i: Int[Array, ""]) -> Float[Array, " n"]:
        """Return `Q[:, i]`."""

    def columns(self, indices: Int[Array, " t"]) -> Float[Array, "t n"]:
        """Return `Q[indices, :]`."""

    def block(self, rows: Int[Array, " t"], columns: Int[Array, " u"]) -> Float[Array, "t u"]:
        """Return `Q[rows, columns]`."""

    def certificate(self, point: Array, s: Array, /, bias: Any = None) -> Certificate:
        """Return the certificate, at the best free bias or the given one."""

    def on_equality(self, a: Float[Array, " n"]) -> Float[Array, " n"]:
        """Return a point of the box moved onto the equality."""

    def best_bias(self, s: Float[Array, " n"]) -> Float[Array, ""]:
        """Return the free bias that minimises the primal at products `s`."""

    def certified(self, point: Array, s: Array, dtype: np.dtype, /, bias: Any = None) -> Answer:
        """Certify a point, as `Problem.certified` does; a given `bias` saves the search for the best one."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Restricted(SimplexPart):
    """Some vertices of a problem: columns of length m, computed on demand.

    An index may occur several times: the matrix is still positive semidefinite, and the masses add.
    """

    problem: SimplexForm  # the whole one
    indices: Int[Array, " m"]
    mask: Bool[Array, " m"] | None  # vertices that steps may move toward

    @property
    def diagonal(self) -> Float[Array, " m"]:
        return self.problem.diagonal[self.indices]

    @property
    def diameter_squared(self) -> Float[Array, ""]:
        return self.problem.diameter_squared

    def column(self, i: Int[Array, ""]) -> Float[Array, " m"]:
        """Return `Kt[indices, indices[i]]`, m kernel evaluations."""
        return self.problem.block(self.indices[i][None], self.indices)[0]

    def block(self, rows: Int[Array, " t"], columns: Int[Array, " u"]) -> Float[Array, "t u"]:
        return self.problem.block(self.indices[rows], self.indices[columns])


def furthest(problem: SimplexForm, alpha: Float[Array, " n"], s: Float[Array, " n"]) -> Float[Array, ""]:
    """Return the largest squared distance of a sample that takes part from the centre."""
    distances = problem.squared_distances(alpha, s)
    return (distances if problem.mask is None else jnp.where(problem.mask, distances, 0)).max()
