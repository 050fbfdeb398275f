"""The forms of problems that solvers work on: quadratic programs over a simplex or over a box.

* `SimplexForm`: `min alpha' Kt alpha` over the simplex; `SimplexPart` is what a step needs of it, `Restricted` a part
  of its vertices.
* `BoxForm`: `max q'a - 1/2 a'Qa` over a box.
"""

import dataclasses
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxsvm.problems.contract import Problem, Restrictable
from jaxsvm.results.fit import Answer, Certificate, Fit

# pyright: reportReturnType=false
# (Docstrings are the bodies of members of a protocol.)


class SimplexPart(Protocol):
    """What a step of a simplex solver sees of a problem, or of a part of it: columns of `Kt`."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def diagonal(self) -> Float[Array, " n"]:
        """Return `D_i = Kt_ii`, `(n,)`."""

    @property
    def mask(self) -> Bool[Array, " n"] | None:
        """Return which samples take part, `(n,)`; None if all do."""

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
        """Refuse a problem that is no minimum enclosing ball.

        Raises:
            InputError: With the reason.
        """

    def enclosing(self, fit: Fit) -> tuple[Array, Array, Array]:
        """Return a fit's squared radii, from above and below, and the squared norm of its centre."""


class BoxForm(Restrictable, Protocol):
    """A problem `max q'a - 1/2 a'Qa` over `0 <= a <= upper` and, with a free bias, `c'a = e`.

    `Q` is `signed`, and `upper` is proportional to `C`. Its products are `s = Qa`, so that `q - s` is the gradient;
    `objective` is minus what is maximised.
    """

    @property
    def q(self) -> Float[Array, " n"]:
        """Return the linear term, `(n,)`: 1 for an SVM."""

    @property
    def c(self) -> Float[Array, " n"] | None:
        """Return the coefficients of the equality, `(n,)`; None without a free bias."""

    @property
    def e(self) -> Float[Array, ""]:
        """Return the right-hand side of the equality, `()`."""

    @property
    def constant(self) -> Float[Array, ""]:
        """Return the constant term of the dual objective, `()`."""

    @property
    def groups(self) -> Bool[Array, " n"] | None:
        """Return the first of two groups of variables that each have the sum e, `(n,)`; None if c'a = e is all."""

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

    def beside(
        self,
        a: Float[Array, " n"],
        s: Float[Array, " n"],
        dtype: Any,
        tol: Any,
        anyway: Array,
        w: Any = None,
        by_features: bool = False,
    ) -> tuple[Array, Array, Array]:
        """Return a point of two rows (coefficients of a w with a smaller primal, and `a`), its products, and its bias.

        Drivers call it if `corrects`, where rounding may stop progress.
        """

    def certified(self, point: Array, s: Array, dtype: np.dtype, /, bias: Any = None) -> Answer:
        """Certify a point, as `Problem.certified` does; a given `bias` saves the search for the best one."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Restricted:
    """Some vertices of a problem: columns of length m, computed on demand.

    An index may occur several times: the matrix is still positive semidefinite, and the masses add.

    Attributes:
        problem: The whole problem.
        indices: Indices of the vertices, `(m,)`.
        mask: Vertices that steps may move toward, `(m,)`.
    """

    problem: SimplexForm
    indices: Int[Array, " m"]
    mask: Bool[Array, " m"] | None

    @property
    def diagonal(self) -> Float[Array, " m"]:
        """Return `D` of the vertices, `(m,)`."""
        return self.problem.diagonal[self.indices]

    @property
    def diameter_squared(self) -> Float[Array, ""]:
        """Return `Delta^2` of the whole problem, `()`."""
        return self.problem.diameter_squared

    def column(self, i: Int[Array, ""]) -> Float[Array, " m"]:
        """Return `Kt[indices, indices[i]]`, m kernel evaluations."""
        return self.problem.block(self.indices[i][None], self.indices)[0]

    def block(self, rows: Int[Array, " t"], columns: Int[Array, " u"]) -> Float[Array, "t u"]:
        """Return `Kt` between vertices."""
        return self.problem.block(self.indices[rows], self.indices[columns])


def furthest(problem: SimplexForm, alpha: Float[Array, " n"], s: Float[Array, " n"]) -> Float[Array, ""]:
    """Return the largest squared distance of a sample that takes part from the centre."""
    distances = problem.squared_distances(alpha, s)
    return (distances if problem.mask is None else jnp.where(problem.mask, distances, 0)).max()
