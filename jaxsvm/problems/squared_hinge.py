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
from jax import lax
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import ArrayLike

from jaxsvm.errors import InputError, is_concrete
from jaxsvm.gram.operators import Gram, among
from jaxsvm.numerics.line_search import best_bias
from jaxsvm.numerics.precision import matmul, rounded, rounding, sums
from jaxsvm.problems import arguments
from jaxsvm.problems.contract import CURVATURE_ROUNDINGS, Differentiable, Restrictable, SimplexForm, furthest
from jaxsvm.problems.samples import OfSamples, checked, negligible, picked, squares
from jaxsvm.results.fit import Active, Answer, Certificate, Fit, Point, Values
from jaxsvm.results.judge import balances, is_weights, judged
from jaxsvm.runtime.arrays import computed, filled, on_device, transfers


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, repr=False)
class SquaredHingeProblem(OfSamples, SimplexForm, Restrictable, Differentiable):  # pyright: ignore
    """The squared-hinge SVM on the simplex. Build it with `svm_problem`."""

    kind = "squared hinge"
    loss = "squared hinge: C / 2 max(0, 1 - y f)^2"
    solved_by = "FrankWolfe"
    parameter = "C"
    bounded = False
    restricts = differentiable = True
    e = 0.0

    gram: Gram
    y: Float[Array, " n"]
    C: Float[Array, ""]
    weight: Float[Array, " n"] | None
    squares: Float[Array, " n"]
    feasible: Bool[Array, ""]
    offset: float = dataclasses.field(metadata={"static": True})
    free_bias: bool = dataclasses.field(default=False, metadata={"static": True})  # then y . alpha = 0

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
        return self.y if self.free_bias else None

    @property
    def targets(self) -> Float[Array, " n"]:
        return jnp.ones_like(self.y)

    @property
    def upper(self) -> Float[Array, " n"]:
        return jnp.where(self.present, jnp.inf, 0).astype(self.dtype)

    @property
    def diameter_squared(self) -> Float[Array, ""]:
        """Return `Delta^2 = max_i D_i`, the scale of the published stop rule, `()`."""
        return self.diagonal.max()

    def restrict(self, samples: Int[Array, " m"], fixed: None = None, gram: Gram | None = None) -> Self:
        del fixed
        gram = among(self.gram, samples) if gram is None else gram
        y, weight, squares = picked((self.y, self.weight, self.squares), samples)
        return dataclasses.replace(self, gram=gram, y=y, weight=weight, squares=squares)

    def column(self, i: Int[Array, ""]) -> Float[Array, " n"]:
        return self.signed.row(i) + jnp.where(jnp.arange(self.n) == i, self.ridge, 0)

    def columns(self, indices: Int[Array, " t"]) -> Float[Array, "t n"]:
        return self.signed.rows(indices).at[jnp.arange(indices.shape[0]), indices].add(self.ridge[indices])

    def block(self, rows: Int[Array, " t"], columns: Int[Array, " u"]) -> Float[Array, "t u"]:
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
        R = matmul(alpha, margins + self.ridge * alpha) / jnp.where(total > 0, total, 1)
        return margins + self.y * best_bias(margins, self.y, self.costs, R)

    def feasible_point(self, beta: Float[Array, " n"]) -> Float[Array, " n"]:
        """Return `beta` clipped at 0 and scaled onto the simplex; with a free bias each class gets half of the mass.

        If nothing is left of a class, or of the whole, its samples get equal weights.
        """
        return self.on_simplex(beta, self.present.astype(beta.dtype))

    def margins(self, alpha: Float[Array, " n"], s: Float[Array, " n"]) -> Float[Array, " n"]:
        """Return `s_i - alpha_i / C_i`, which does not depend on C; `y_i f(x_i)` of a point in primal scale."""
        return s - self.ridge * alpha

    def returned(self, alpha: Float[Array, " n"], R: Float[Array, ""]) -> Float[Array, " n"]:
        """Return coefficients in primal scale, in alpha's dtype, for an alpha with about `alpha' Kt alpha = R`."""
        R = R.astype(alpha.dtype)
        return alpha / jnp.where((R > 0) & jnp.isfinite(1 / R), R, 1)

    def gradient(self, alpha: Float[Array, " n"], margins: Float[Array, " n"]) -> Float[Array, " n"]:
        return margins + self.ridge * alpha

    def require_ball(self) -> None:
        """Refuse an SVM that is no ball: it is one only if the diagonal of `Kt` is constant."""
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
        self.require_ball()
        s = fit.R * self.gradient(fit.alpha / fit.R, fit.margins)
        return furthest(self, fit.alpha, s), jnp.maximum(self.diameter_squared - fit.R, 0), fit.R

    def squared_distances(self, alpha: Float[Array, " n"], s: Float[Array, " n"]) -> Float[Array, " n"]:
        return jnp.maximum(self.diagonal - 2 * s + alpha @ s, 0)

    def objective(self, alpha: Float[Array, " n"], s: Float[Array, " n"]) -> Float[Array, ""]:
        """Return `R = alpha . s`, which solvers minimise, of alpha scaled onto the simplex."""
        square, total = sums(alpha * s, alpha)
        return square / total**2

    def indefinite(self, R: Float[Array, ""], /) -> Bool[Array, ""]:
        """Return whether `R` is negative by more than rounding, so that Kt is not positive semidefinite."""
        return -CURVATURE_ROUNDINGS * jnp.finfo(R.dtype).eps * jnp.abs(self.diagonal).max() > R

    def certificate(self, alpha: Float[Array, " n"], s: Float[Array, " n"]) -> Certificate:
        """Return the certificate of a dual point in any scale, as if `s = Kt alpha` were exact, for solvers.

        `relative_gap = sum_i C_i t_i / R` with `u_i = R - s_i`, `v_i = alpha_i / C_i`, and `t_i = u_i (u_i + 2 v_i)`
        where `u_i + v_i > 0`, else `-v_i^2`. Errors of `s` cancel to first order (docs/mathematics.md, The
        certificate).
        """
        # Weights are not negative, and 0 for absent samples: tested by a sum, which costs nothing beside the others.
        wrong = jnp.where(self.present, jnp.minimum(alpha, 0), alpha)
        size = jnp.abs(alpha) * jnp.sqrt(jnp.maximum(self.diagonal, 0))
        total, square, infeasible, spread = sums(alpha, alpha * s, jnp.abs(wrong), size)
        alpha, s, R, spread = alpha / total, s / total, square / total**2, spread / total
        u, v = R - s, self.ridge * alpha
        slack = u + v
        (loss,) = sums(self.costs * jnp.where(slack > 0, u * (slack + v), -v * v))
        positive = R > 0
        scale = jnp.where(positive, R, 1)
        relative_gap = loss / scale
        dual = 1 / (2 * scale)
        return judged(
            dual * (1 + relative_gap),
            dual,
            relative_gap,
            jnp.ones_like(scale),
            rounding=32 * jnp.finfo(s.dtype).eps * (1 + spread**2 / scale),
            feasible=positive & (infeasible == 0),
        )

    def certified(self, beta: Float[Array, " n"], s: Float[Array, " n"], dtype: np.dtype) -> Answer:
        """Certify a point, in the numbers that the caller gets: `y beta`, and beta over its sum.

        Its scale is that of the primal (`alpha / R`); any other is valid too, with a slightly larger primal.
        """
        C, y, own = self.costs, self.y, self.ridge * beta
        margins = s - own
        if self.free_bias:
            margins = y * self.gram.support_matvec(y * beta)
        size = jnp.sqrt(jnp.maximum(self.diagonal, 0))
        # Several sums at once: each alone would be one more kernel to compile, 0.01 s.
        parts = jnp.stack([jnp.ones_like(beta), y, margins, own, size])
        total, balance, square, excess, spread = matmul(parts, beta)
        constant = self.offset * balance
        best = best_bias(margins, y, C, 1.0) if self.free_bias else constant
        bias = rounded(best, dtype)
        returned = margins + y * (bias - constant)
        exact = margins + y * (best - constant) + own
        # Of rounded kernel values |w|^2 may be negative. Then 0 is nearer the truth, and the gap no smaller.
        slack, squared_norm = 1 - returned, jnp.maximum(square - constant * balance, 0)
        Q = squared_norm + constant * balance + excess
        usable = (Q > 0) & (total > 0) & is_weights(beta, self.present)
        if self.free_bias:
            usable = usable & balances(balance, total, dtype)
        scale = jnp.where(usable, Q, 1)
        whole = jnp.where(total > 0, total, 1)  # of a point that proves nothing too: R is the scale of its alpha
        dual = total**2 / (2 * scale)

        # Errors of the products count to second order, since primal and dual move together to first order: each of
        # them may be off by their share in Q, `doubt`, where beta' K beta cancels. The dual that is returned is off as
        # the primal.
        error = rounding(self.n, s.dtype) * size * spread + jnp.finfo(s.dtype).eps * (1 + jnp.abs(bias))
        loss, allowed, moved = sums(
            C * jnp.maximum(slack, 0) ** 2,
            jnp.where(slack > -error, C * error * (2 * jnp.abs(1 - exact) + error), 0),
            beta * jnp.abs(exact - Q / whole),
        )
        primal, allowance = (squared_norm + self.offset * bias**2 + loss) / 2, allowed / 2
        if self.free_bias:  # beta may be off y . beta = 0 by rounding
            allowance = allowance + 2 * jnp.abs(best * balance)
        # The rounding of alpha: its R is at most Q (1 + share) / total^2.
        eps = jnp.finfo(dtype).eps if jnp.finfo(dtype).bits < jnp.finfo(s.dtype).bits else 0.0
        share = (eps * moved + (eps / 2 * spread) ** 2) / scale
        doubt = rounding(self.n, s.dtype) * spread**2 / scale
        usable = usable & (doubt < 1)  # else Q may be rounding alone, and truly negative
        relative_gap = ((primal + allowance) / dual) * (1 + share) - 1 + doubt**2 + 8 * jnp.finfo(s.dtype).eps
        dual = jnp.maximum(dual / (1 + doubt), primal / (1 + jnp.maximum(relative_gap, 0)))
        allowed = share + doubt + 64 * jnp.finfo(s.dtype).eps
        bounds = judged(primal, dual, relative_gap, jnp.ones_like(scale), rounding=allowed, feasible=usable)
        return Answer(beta / whole, y * beta, bias, Q / whole**2, returned, bounds)

    def active_set(self, values: Any, before: Active | None = None) -> Active:
        """Return the samples inside the margin: those with alpha > 0 at the exact solution.

        Before the solution is exact, margins tell more than alpha: a first-order solver leaves a little alpha on
        samples outside the support. An empty set, which no solution has, becomes all samples, so that NaN is not lost
        in gradients.
        """
        present, slack = self.ridge > 0, 1 - values.margins
        if before is None:
            inside = present & (slack > 0)
        else:
            share, off = negligible(self, values.dual_coef)
            off = off + share
            inside = present & jnp.where(before.free, ~(slack < -off), slack > off)
        return lax.stop_gradient(Active(inside | ~inside.any(), jnp.zeros_like(inside)))

    def values_at(self, point: Point) -> Values:
        """Return the values of a point `beta`; `alpha` may be negative if S is no solution's support."""
        beta = point.a
        R, coefficients = 1 / beta.sum(), lax.stop_gradient(self.y) * beta
        return Values(beta * R, coefficients, self.offset * coefficients.sum() + point.b, R, point.products)

    def lagrangian(self, values: Values, targets: Float[Array, " n"]) -> Float[Array, ""]:
        """Return `-1/2 beta' Kt beta`, by tiles: its derivative by the problem needs no n x n matrix of its own."""
        beta = values.alpha / values.R
        return -(self.signed.quadratic_form(beta) + matmul(self.ridge, beta**2)) / 2

    def certificate_of(self, values: Values, dtype: Any) -> Certificate:
        beta = jnp.maximum(values.alpha, 0) / values.R
        certificate = self.certified(beta, self.matvec(beta), dtype).certificate
        # A point that had to be clipped is not the returned one, which has no certificate then.
        rounding = 64 * jnp.finfo(dtype).eps
        feasible = (values.alpha >= -rounding * jnp.abs(values.alpha).max()).all()
        gap = jnp.where(feasible, certificate.relative_gap, jnp.inf)
        dual = 1 / (2 * values.R)
        return Certificate(primal=dual * (1 + gap), dual=dual, relative_gap=gap)


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
