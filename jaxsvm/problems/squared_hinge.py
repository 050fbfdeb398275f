"""The squared-hinge SVM as `min alpha' Kt alpha` over the simplex.

With a regularised bias or none it is

    min 1/2 (|w|^2 + b^2) + 1/2 sum_i C_i max(0, 1 - y_i h(x_i))^2,      h(x) = w . phi(x) + b,   C_i = C weight_i

whose dual is `min R(alpha) = alpha' Kt alpha` on the simplex, `Kt_ij = y_i y_j (K_ij + 1) + delta_ij / C_i`;
its optimal value is `1 / (2 R*)` and `beta = alpha / R` are the usual dual variables.

A free bias is not regularised: `Kt_ij = y_i y_j K_ij + delta_ij / C_i`, and alpha keeps `y . alpha = 0`. Then `s = Kt
alpha + b y`, with the b that minimises the primal, replaces `Kt alpha` everywhere. Since `alpha . s = R` as before, the
certificate is the same.

The minimum enclosing ball of any points (`jaxsvm.ball`) is another problem of the same form.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import ArrayLike

from jaxsvm.derivatives import squared_hinge as derivatives
from jaxsvm.errors import InputError, is_concrete
from jaxsvm.gram.contract import Gram
from jaxsvm.gram.dense import among
from jaxsvm.numerics.line_search import best_bias
from jaxsvm.numerics.products import sums
from jaxsvm.problems import arguments
from jaxsvm.problems.certificates import squared_hinge as certificates
from jaxsvm.problems.forms import furthest
from jaxsvm.problems.samples import OfSamples, checked, picked, squares
from jaxsvm.results.fit import Fit
from jaxsvm.runtime.arrays import computed, filled, in_a_line, on_device, transfers


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SquaredHingeProblem(OfSamples):
    """The squared-hinge SVM on the simplex. Build it with `svm_problem`.

    Attributes (beside those of `OfSamples`):
        C: The penalty, `()`.
        free_bias: Whether there is an unregularised bias, so that `y . alpha = 0`; static.
    """

    __repr__ = in_a_line

    kind = "squared hinge"
    solved_by = "FrankWolfe"
    corrects = False
    bounded = False
    parameter = "C"
    restricts = True
    differentiable = True

    gram: Gram
    y: Float[Array, " n"]
    C: Float[Array, ""]
    weight: Float[Array, " n"] | None
    squares: Float[Array, " n"]
    feasible: Bool[Array, ""]
    offset: float = dataclasses.field(metadata={"static": True})
    free_bias: bool = dataclasses.field(default=False, metadata={"static": True})

    @property
    def ridge(self) -> Float[Array, " n"]:
        """Return `1 / C_i`, `(n,)`; 0 for an absent sample."""
        if self.weight is None:
            return filled(self.y, computed(lambda _, C: 1 / C, self.C))
        return reciprocals(self.costs)

    @property
    def diagonal(self) -> Float[Array, " n"]:
        """Return `D_i = k(x_i, x_i) + offset + 1 / C_i`, `(n,)`."""
        return computed(lambda _, squares, ridge: squares + ridge, self.squares, self.ridge)

    @property
    def equality(self) -> Float[Array, " n"] | None:
        """Return the coefficients of the equality constraint, `(n,)`; None without one."""
        return self.y if self.free_bias else None

    @property
    def e(self) -> float:
        """Return the right-hand side of the equality: 0."""
        return 0.0

    @property
    def targets(self) -> Float[Array, " n"]:
        """Return the margins below which samples have a loss: 1, `(n,)`."""
        return jnp.ones_like(self.y)

    @property
    def upper(self) -> Float[Array, " n"]:
        """Return the upper bounds of dual variables, `(n,)`: infinite; 0 for an absent sample."""
        return jnp.where(self.present, jnp.inf, 0).astype(self.dtype)

    @property
    def diameter_squared(self) -> Float[Array, ""]:
        """Return `Delta^2 = max_i D_i`, the scale of the published stop rule, `()`."""
        return self.diagonal.max()

    def restrict(self, samples: Int[Array, " m"], fixed: None = None, gram: Gram | None = None) -> Self:
        """Return the problem of some samples `(m,)`, where the others have the value 0."""
        del fixed
        gram = among(self.gram, samples) if gram is None else gram
        y, weight, squares = picked((self.y, self.weight, self.squares), samples)
        return dataclasses.replace(self, gram=gram, y=y, weight=weight, squares=squares)

    def column(self, i: Int[Array, ""]) -> Float[Array, " n"]:
        """Return `Kt[:, i]`, n kernel evaluations."""
        return self.signed.row(i) + jnp.where(jnp.arange(self.n) == i, self.ridge, 0)

    def columns(self, indices: Int[Array, " t"]) -> Float[Array, "t n"]:
        """Return `Kt[indices, :]`."""
        return self.signed.rows(indices).at[jnp.arange(indices.shape[0]), indices].add(self.ridge[indices])

    def block(self, rows: Int[Array, " t"], columns: Int[Array, " u"]) -> Float[Array, "t u"]:
        """Return `Kt[rows, columns]`; an index in both gets its ridge."""
        same = rows[:, None] == columns[None, :]
        return self.signed.block(rows, columns) + jnp.where(same, self.ridge[rows][:, None], 0)

    def matvec(self, alpha: Float[Array, " n"]) -> Float[Array, " n"]:
        """Return `s = Kt alpha` (`+ b y` with a free bias) from scratch, at the cost of the support's columns."""
        return self.with_bias(alpha, self.signed.support_matvec(alpha)) + self.ridge * alpha

    def with_bias(self, alpha: Float[Array, " n"], margins: Float[Array, " n"]) -> Float[Array, " n"]:
        """Return margins of alpha with the best bias added if it is free."""
        if not self.free_bias:
            return margins
        total = alpha.sum()  # 1 on the simplex; a point in another scale has its margins at R / total
        R = alpha @ (margins + self.ridge * alpha) / jnp.where(total > 0, total, 1)
        return margins + self.y * best_bias(margins, self.y, self.costs, R)

    def feasible_point(self, beta: Float[Array, " n"]) -> Float[Array, " n"]:
        """Return `beta` clipped at 0 and scaled onto the simplex; with a free bias each class gets half of the mass.

        If nothing is left of a class, or of the whole, its samples get equal weights.
        """
        present = self.present
        beta = jnp.where(present, jnp.maximum(beta, 0), 0)

        def share(members: Array) -> Array:
            part = jnp.where(members, beta, 0)
            part = jnp.where(part.sum() > 0, part, (members & present).astype(beta.dtype))
            return part / part.sum()

        if not self.free_bias:
            return share(present)
        return (share(self.y > 0) + share(self.y < 0)) / 2

    def margins(self, alpha: Float[Array, " n"], s: Float[Array, " n"]) -> Float[Array, " n"]:
        """Return `s_i - alpha_i / C_i`, which does not depend on C; `y_i f(x_i)` of a point in primal scale."""
        return s - self.ridge * alpha

    def returned(self, alpha: Float[Array, " n"], R: Float[Array, ""]) -> Float[Array, " n"]:
        """Return coefficients in primal scale, in alpha's dtype, for an alpha with about `alpha' Kt alpha = R`."""
        R = R.astype(alpha.dtype)
        return alpha / jnp.where((R > 0) & jnp.isfinite(1 / R), R, 1)

    def gradient(self, alpha: Float[Array, " n"], margins: Float[Array, " n"]) -> Float[Array, " n"]:
        """Return `s` from `margins` of the same alpha at any C: a warm start without a product."""
        return margins + self.ridge * alpha

    def require_ball(self) -> None:
        """Refuse an SVM that is no ball: it is one only if the diagonal of `Kt` is constant.

        Raises:
            InputError: With how far its entries differ.
        """
        if not is_concrete(self):
            return
        diagonal = np.asarray(self.diagonal)[np.asarray(self.present)]
        spread = float(diagonal.max() - diagonal.min())
        if spread > 1e2 * float(jnp.finfo(diagonal.dtype).eps * diagonal.max()):
            raise InputError(
                f"problem has diagonal entries that differ by {spread:.3g}: an SVM is a ball only where "
                "k(x, x) + 1 / C_i is constant, as for the RBF kernel without weights."
            )

    def enclosing(self, fit: Fit) -> tuple[Array, Array, Array]:
        """Return squared radii of a fit's ball, from above and below, and the squared norm of its centre."""
        self.require_ball()
        s = fit.R * self.gradient(fit.alpha / fit.R, fit.margins)
        return furthest(self, fit.alpha, s), jnp.maximum(self.diameter_squared - fit.R, 0), fit.R

    def squared_distances(self, alpha: Float[Array, " n"], s: Float[Array, " n"]) -> Float[Array, " n"]:
        """Return `D_i - 2 s_i + R`: squared distances from `sum_i alpha_i z_i`, where `z_i . z_j = Kt_ij`."""
        return jnp.maximum(self.diagonal - 2 * s + alpha @ s, 0)

    def objective(self, alpha: Float[Array, " n"], s: Float[Array, " n"]) -> Float[Array, ""]:
        """Return `R = alpha . s`, which solvers minimise, of alpha scaled onto the simplex."""
        square, total = sums(alpha * s, alpha)
        return square / total**2

    def indefinite(self, R: Float[Array, ""]) -> Bool[Array, ""]:
        """Return whether `R` is negative by more than rounding, so that Kt is not positive semidefinite."""
        return -32 * jnp.finfo(R.dtype).eps * jnp.abs(self.diagonal).max() > R

    certificate = certificates.certificate
    certified = certificates.certified
    # What derivatives of a solution need (`jaxsvm.problems.contract.Differentiable`):
    active_set = derivatives.active_set
    values_at = derivatives.values_at
    lagrangian = derivatives.lagrangian
    kinks = derivatives.kinks
    certificate_of = derivatives.certificate_of


def reciprocals(values: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """Return `1 / values`, and 0 where they are 0: costs from ridges, and ridges from costs."""

    def of(xp: Any, values: Array) -> Array:
        return xp.where(values > 0, 1 / xp.where(values > 0, values, 1), 0).astype(values.dtype)

    return computed(of, values)


@transfers
def svm_problem(
    gram: Gram, y: ArrayLike, C: ArrayLike = 1.0, *, bias: str = "regularized", sample_weight: ArrayLike | None = None
) -> SquaredHingeProblem:
    """Build the squared-hinge SVM of labelled samples.

    Args:
        gram: The Gram operator of the n samples, from `jaxsvm.gram`.
        y: Labels in {-1, +1}, `(n,)`.
        C: The penalty of half a squared slack, positive, `()`: twice the C of scikit-learn's
            `LinearSVC(loss="squared_hinge")`.
        bias: "regularized" (the constant is one more feature of value 1), "none", or "free" (not regularised; for
            `Newton`).
        sample_weight: Non-negative weights, `(n,)`: `C_i = C w_i`. Weight 0 removes a sample, weight 2 doubles it.

    Returns:
        The problem; a pytree.

    Raises:
        InputError: On concrete values that make no problem: a C or cost out of range, labels other than -1 and +1, one
            class only, bad weights. Under tracing the fit's status is INFEASIBLE instead.
    """
    penalty = arguments.positive_scalar("C", C, arguments.vector_dtype(gram))
    signs, weight, usable, offset = arguments.labelled(gram, y, bias, sample_weight, "squared-hinge")
    diagonal, yes = squares(gram, signs.dtype, offset), on_device(np.asarray(True))
    problem = SquaredHingeProblem(gram, signs, penalty, weight, diagonal, yes, offset, bias == "free")
    return checked(problem, usable)
