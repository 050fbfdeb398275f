"""The problem: a Gram operator and labels become `min alpha' Kt alpha` over the simplex, with a certificate.

`SquaredHingeProblem` is the squared-hinge SVM with a regularised bias or none,

    min 1/2 (|w|^2 + b^2) + 1/2 sum_i C_i max(0, 1 - y_i h(x_i))^2,      h(x) = w . phi(x) + b,   C_i = C weight_i

whose dual is `min R(alpha) = alpha' Kt alpha` on the simplex, `Kt_ij = y_i y_j (K_ij + 1) + delta_ij / C_i`;
its optimal value is `1 / (2 R*)` and `beta = alpha / R` are the usual dual variables.

A free bias is not regularised: `Kt_ij = y_i y_j K_ij + delta_ij / C_i`, and alpha keeps `y . alpha = 0`. Then `s = Kt
alpha + b y`, with the b that makes the primal smallest, stands for `Kt alpha` everywhere: `alpha . s = R` as before,
and so the certificate holds word for word.

The minimum enclosing ball of any points (`jaxsvm.ball`) is another problem of the same kind.
"""

import dataclasses
from functools import partial
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxsvm.derivatives import squared_hinge as derivatives
from jaxsvm.derivatives.values import Active, Values
from jaxsvm.errors import InputError, is_concrete
from jaxsvm.gram.contract import Gram
from jaxsvm.gram.dense import part_of, values_between
from jaxsvm.gram.signed import SignedGram
from jaxsvm.numerics.line_search import best_bias
from jaxsvm.numerics.precision import rounded, rounding
from jaxsvm.numerics.products import matmul
from jaxsvm.numerics.sums import sums
from jaxsvm.problems.arguments import (
    checked_weights,
    costs_hold,
    labelled,
    positive_scalar,
    require_both_classes,
    require_costs,
    require_positive_scalar,
    two_classes,
    vector_dtype,
    weights_times,
)
from jaxsvm.problems.padding import in_size_class, padded
from jaxsvm.results.fit import Answer, Certificate, Fit
from jaxsvm.results.judge import balances, is_weights, judged
from jaxsvm.runtime.arrays import lengthened, shortened
from jaxsvm.runtime.programs import Program
from jaxsvm.runtime.transfers import transfers


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SquaredHingeProblem:
    """The squared-hinge SVM on the simplex. Build it with `svm_problem`.

    Attributes:
        gram: The kernel matrix of the samples, as an operator.
        y: Signs, `(n,)`.
        C: The penalty, `()`.
        ridge: `1 / C_i`, `(n,)`; 0 for an absent sample.
        diagonal: `D_i = k(x_i, x_i) + 1 + 1 / C_i`, `(n,)`.
        mask: Samples of positive weight, `(n,)`; None where no weights were given.
        feasible: Whether the values make a problem, `()`: known late under tracing.
        offset: 1.0 with a regularised bias, 0.0 without; static.
        free_bias: Whether there is an unregularised bias, so that `y . alpha = 0`; static.
    """

    kind = "squared hinge"
    operator = "gram"
    padding: ClassVar[Any] = {"y": 1, "ridge": 0, "diagonal": None}
    solved_by = "FrankWolfe"
    corrects = False
    parameter = "C"
    restricts = True
    differentiable = True

    gram: Gram
    y: Float[Array, " n"]
    C: Float[Array, ""]
    ridge: Float[Array, " n"]
    diagonal: Float[Array, " n"]
    mask: Bool[Array, " n"] | None
    feasible: Bool[Array, ""]
    offset: float = dataclasses.field(metadata={"static": True})
    free_bias: bool = dataclasses.field(default=False, metadata={"static": True})

    @property
    def n(self) -> int:
        """How many samples."""
        return self.y.shape[-1]

    @property
    def dtype(self) -> Any:
        """The dtype of the solver's vectors."""
        return self.y.dtype

    @property
    def present(self) -> Bool[Array, " n"]:
        """Samples that take part, `(n,)`."""
        return self.ridge > 0

    @property
    def equality(self) -> Float[Array, " n"] | None:
        """Coefficients of the equality that dual points keep, `(n,)`, or None."""
        return self.y if self.free_bias else None

    @property
    def upper(self) -> Float[Array, " n"]:
        """Of dual variables: none; 0 for an absent sample."""
        return jnp.where(self.present, jnp.inf, 0).astype(self.dtype)

    @property
    def costs(self) -> Float[Array, " n"]:
        """`C_i`; 0 for an absent sample."""
        present = self.ridge > 0
        return jnp.where(present, 1 / jnp.where(present, self.ridge, 1), 0)

    @property
    def diameter_squared(self) -> Float[Array, ""]:
        """`Delta^2 = max_i D_i`, the scale of the published stop rule."""
        return self.diagonal.max()

    @property
    def signed(self) -> SignedGram:
        """`B = y (K + offset) y`: `Kt` without its ridge."""
        return SignedGram(self.gram, self.y, self.offset)

    def at(self, C: Any) -> Self:
        """The same problem at another C: the ridge alone changes.

        Args:
            C: Positive, `()`.

        Raises:
            InputError: On a concrete C that is no penalty; under tracing the fit's status is INFEASIBLE instead.
        """
        require_positive_scalar("C", C)
        require_costs(C, self.weights(), self.dtype)
        here, new = padded(self), np.asarray(C, self.dtype) if is_concrete(C) else C
        penalty, ridge, diagonal, feasible = shortened(_rescaled(here, new), self.n, here.n)
        return dataclasses.replace(self, C=penalty, ridge=ridge, diagonal=diagonal, feasible=feasible)

    def weighted(self, sample_weight: Any) -> Self:
        """The same problem with its costs `C_i` times these weights: a fold, say, or some samples absent.

        Args:
            sample_weight: Non-negative, `(n,)`; 0 is absence.

        Raises:
            InputError: On concrete weights that leave no problem of two classes; under tracing as for `at`.
        """
        weight, mask, feasible = checked_weights(sample_weight, self.n, self.dtype)
        weights = self.weights()
        if is_concrete(self.y, weight, weights):
            product = weights_times(weight, np.ones(self.n) if weights is None else weights)
            require_both_classes(self.y, product)
            require_costs(self.C, product, self.dtype)
        here = padded(self) if is_concrete(weight) else self
        weight = weight if here is self else lengthened(weight, here.n, 0)
        ridge, diagonal, mask, feasible = shortened(_reweighted(here, weight, feasible), self.n, here.n)
        return dataclasses.replace(self, ridge=ridge, diagonal=diagonal, mask=mask, feasible=feasible)

    def on(self, gram: Gram) -> Self:
        """The same samples with another Gram operator: the landmarks of a fold, say."""
        return dataclasses.replace(self, gram=gram, diagonal=_diagonal(gram, self.ridge, self.offset))

    def restrict(self, samples: Int[Array, " m"], fixed: None = None, gram: Gram | None = None) -> Self:
        """The problem of some samples, the others absent; with 0 for these its solution is one of the whole's.

        Args:
            samples: Distinct indices, `(m,)`.
            fixed: None: a sample without weight is all that this problem can leave out.
            gram: The Gram operator of these samples, where it is at hand; None stores `K_SS`, m^2 values.
        """
        del fixed
        gram = part_of(self.gram, values_between(self.gram, samples)) if gram is None else gram
        parts = _picked((self.y, self.ridge, self.diagonal, self.mask), samples)
        y, ridge, diagonal, mask = parts  # the Gram stays out of what is compiled: it would be copied
        return dataclasses.replace(self, gram=gram, y=y, ridge=ridge, diagonal=diagonal, mask=mask)

    def weights(self) -> np.ndarray | None:
        """`C_i / C` on the host, `(n,)`; None where they are all 1, or traced."""
        if self.mask is None or not is_concrete(self.ridge, self.C):
            return None
        scaled = np.asarray(self.ridge, np.float64) * float(self.C)
        return np.divide(1.0, scaled, out=np.zeros_like(scaled), where=scaled > 0)

    def column(self, i: Int[Array, ""]) -> Float[Array, " n"]:
        """`Kt[:, i]`, n kernel evaluations."""
        return self.signed.row(i) + jnp.where(jnp.arange(self.n) == i, self.ridge, 0)

    def columns(self, indices: Int[Array, " t"]) -> Float[Array, "t n"]:
        """`Kt[indices, :]`."""
        return self.signed.rows(indices).at[jnp.arange(indices.shape[0]), indices].add(self.ridge[indices])

    def block(self, rows: Int[Array, " t"], columns: Int[Array, " u"]) -> Float[Array, "t u"]:
        """`Kt[rows, columns]`; an index that stands in both gets its ridge."""
        same = rows[:, None] == columns[None, :]
        return self.signed.block(rows, columns) + jnp.where(same, self.ridge[rows][:, None], 0)

    def matvec(self, alpha: Float[Array, " n"]) -> Float[Array, " n"]:
        """`s = Kt alpha` (with a free bias `+ b y`) from scratch, at the price of the columns of the support."""
        return self.with_bias(alpha, self.signed.support_matvec(alpha)) + self.ridge * alpha

    def with_bias(self, alpha: Float[Array, " n"], margins: Float[Array, " n"]) -> Float[Array, " n"]:
        """Margins of alpha with the best free bias added; as they are where the bias is not free."""
        if not self.free_bias:
            return margins
        total = alpha.sum()  # 1 on the simplex; a point in another scale has its margins at R / total
        R = alpha @ (margins + self.ridge * alpha) / jnp.where(total > 0, total, 1)
        return margins + self.y * best_bias(margins, self.y, self.costs, R)

    def feasible_point(self, beta: Float[Array, " n"]) -> Float[Array, " n"]:
        """`beta` clipped at 0 and scaled onto the simplex (half of it a class with a free bias).

        A class, or the whole, of which nothing is left gets equal weights.
        """
        present = self.ridge > 0
        beta = jnp.where(present, jnp.maximum(beta, 0), 0)

        def share(members: Array) -> Array:
            part = jnp.where(members, beta, 0)
            part = jnp.where(part.sum() > 0, part, (members & present).astype(beta.dtype))
            return part / part.sum()

        if not self.free_bias:
            return share(present)
        return (share(self.y > 0) + share(self.y < 0)) / 2

    def margins(self, alpha: Float[Array, " n"], s: Float[Array, " n"]) -> Float[Array, " n"]:
        """`s_i - alpha_i / C_i`: what does not depend on C; `y_i f(x_i)` of a point in primal scale."""
        return s - self.ridge * alpha

    def returned(self, alpha: Float[Array, " n"], R: Float[Array, ""]) -> Float[Array, " n"]:
        """Coefficients in primal scale, in the dtype of alpha, for an alpha with `alpha' Kt alpha = R`, about."""
        R = R.astype(alpha.dtype)
        return alpha / jnp.where((R > 0) & jnp.isfinite(1 / R), R, 1)

    def gradient(self, alpha: Float[Array, " n"], margins: Float[Array, " n"]) -> Float[Array, " n"]:
        """`s` from `margins` of the same alpha, whatever C they were computed at: a warm start without a product."""
        return margins + self.ridge * alpha

    def certificate(self, alpha: Float[Array, " n"], s: Float[Array, " n"]) -> Certificate:
        """The squared-hinge certificate as if `s = Kt alpha` were exact, for a dual point in any scale.

        `relative_gap = sum_i C_i t_i / R` with `u_i = R - s_i`, `v_i = alpha_i / C_i`, and `t_i = u_i (u_i + 2 v_i)`
        where `u_i + v_i > 0`, else `-v_i^2`. Errors of `s` cancel in it to first order. Solvers look at it on the way;
        what is decided rests on `certified` (docs/mathematics.md, The certificate).
        """
        # No weight is negative, and none is an absent sample's: as a sum, which is there already.
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

    def certified(self, beta: Float[Array, " n"], s: Float[Array, " n"], dtype: Any) -> Answer:
        """A point as it is returned, certified.

        Args:
            beta: Coefficients in primal scale (`alpha / R`), not negative, numbers of `dtype`, `(n,)`. A dual point in
                any scale; in any but the best one the primal is a little larger.
            s: `Kt beta` from scratch, in twice the precision, `(n,)`.
            dtype: Of the numbers that are returned.

        Returns:
            The answer: `dual_coef` is `y beta` as it stands, `alpha` is beta over its sum, rounded.
        """
        C, y = self.costs, self.y
        margins = s - self.ridge * beta
        if self.free_bias:
            margins = y * self.gram.support_matvec(y * beta)
        size = jnp.sqrt(jnp.maximum(self.diagonal, 0))
        # Several sums at once: each by itself is a kernel more to compile, a hundredth of a second.
        parts = jnp.stack([jnp.ones_like(beta), y, margins, self.ridge * beta, size])
        total, balance, square, excess, spread = matmul(parts, beta)
        constant = self.offset * balance
        best = best_bias(margins, y, C, 1.0) if self.free_bias else constant
        bias = rounded(best, dtype)
        returned = margins + y * (bias - constant)
        exact = margins + y * (best - constant) + self.ridge * beta
        slack, squared_norm, Q = 1 - returned, square - constant * balance, square + excess
        usable = (Q > 0) & (total > 0) & is_weights(beta, self.present)
        if self.free_bias:
            usable = usable & balances(balance, total, dtype)
        scale = jnp.where(usable, Q, 1)
        dual = total**2 / (2 * scale)

        # Errors of the products: to second order, since primal and dual move together to first. What they may amount
        # to in Q itself counts where beta' K beta cancels: then the dual's Q is anything.
        error = rounding(self.n, s.dtype) * size * spread + jnp.finfo(s.dtype).eps * (1 + jnp.abs(bias))
        loss, allowed, moved = sums(
            C * jnp.maximum(slack, 0) ** 2,
            jnp.where(slack > -error, C * error * (2 * jnp.abs(1 - exact) + error), 0),
            beta * jnp.abs(exact - Q / jnp.where(usable, total, 1)),
        )
        primal, allowance = (squared_norm + self.offset * bias**2 + loss) / 2, allowed / 2
        if self.free_bias:  # beta may be off y . beta = 0 by rounding
            allowance = allowance + 2 * jnp.abs(best * balance)
        # Of the rounding of alpha: its R is no larger than Q (1 + share) / total^2.
        eps = jnp.finfo(dtype).eps if jnp.finfo(dtype).bits < jnp.finfo(s.dtype).bits else 0.0
        share = (eps * moved + (eps / 2 * spread) ** 2) / scale
        doubt = rounding(self.n, s.dtype) * spread**2 / scale
        usable = usable & (doubt < 1)  # else rounding alone may make Q what it is, and in truth it may be negative
        relative_gap = ((primal + allowance) / dual) * (1 + share) - 1 + doubt**2 + 8 * jnp.finfo(s.dtype).eps
        R = Q / jnp.where(usable, total, 1) ** 2
        return Answer(
            alpha=beta / jnp.where(total > 0, total, 1),
            dual_coef=y * beta,
            bias=bias,
            R=R,
            margins=returned,
            certificate=judged(
                primal,
                dual / (1 + doubt),
                relative_gap,
                jnp.ones_like(scale),
                rounding=share + doubt + 64 * jnp.finfo(s.dtype).eps,
                feasible=usable,
            ),
        )

    def require_ball(self) -> None:
        """Refuse an SVM that is no ball: its solution is one only where the diagonal of `Kt` is constant.

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
        """Squared radii of a fit's ball, from above and below, and the squared norm of its centre."""
        self.require_ball()
        s = fit.R * self.gradient(fit.alpha / fit.R, fit.margins)
        return furthest(self, fit.alpha, s), jnp.maximum(self.diameter_squared - fit.R, 0), fit.R

    def squared_distances(self, alpha: Float[Array, " n"], s: Float[Array, " n"]) -> Float[Array, " n"]:
        """`D_i - 2 s_i + R`: of the points `z_i` with `z_i . z_j = Kt_ij` from the centre `sum_i alpha_i z_i`."""
        return jnp.maximum(self.diagonal - 2 * s + alpha @ s, 0)

    def objective(self, alpha: Float[Array, " n"], s: Float[Array, " n"]) -> Float[Array, ""]:
        """`R = alpha . s` of alpha on the simplex, which solvers make smaller; from a dual point in any scale."""
        square, total = sums(alpha * s, alpha)
        return square / total**2

    def indefinite(self, R: Float[Array, ""]) -> Bool[Array, ""]:
        """Whether `R = alpha' Kt alpha` is negative by more than rounding: Kt is not positive semidefinite."""
        return -32 * jnp.finfo(R.dtype).eps * jnp.abs(self.diagonal).max() > R

    bounded = False

    @property
    def targets(self) -> Float[Array, " n"]:
        """The margins at which samples begin to have a loss: 1."""
        return jnp.ones_like(self.y)

    # What derivatives of a solution are made of (`jaxsvm.problems.contract.Differentiable`).

    def active_set(self, values: Any, before: Active | None = None) -> Active:
        """Samples inside the margin: of a fit, or of the solution on the sets `before`."""
        return derivatives.active_set(self, values, before)

    def solution_on(self, active: Active, sizes: tuple[int, ...], method: str) -> Values:
        """The solution on sets of samples, differentiable with respect to the problem."""
        return derivatives.solution_on(self, active, sizes, method)

    def lagrangian(self, values: Values) -> Float[Array, ""]:
        """What has the derivatives of the optimal value where the solution stands still."""
        return derivatives.lagrangian(self, values)

    def kinks(self, values: Any, tol: Any) -> Bool[Array, " n"]:
        """Samples that an arbitrarily small move lets into the support, or not."""
        return derivatives.kinks(self, values, tol)

    def certificate_of(self, values: Values, dtype: Any) -> Certificate:
        """The certificate of values of `solution_on`, rounded to `dtype`; a gap of infinity where they are no point."""
        return derivatives.certificate_of(self, values, dtype)


@transfers
def svm_problem(
    gram: Any, y: Any, C: Any = 1.0, *, bias: str = "regularized", sample_weight: Any = None
) -> SquaredHingeProblem:
    """The squared-hinge SVM of labelled samples.

    Args:
        gram: The Gram operator of the n samples, from `jaxsvm.gram`.
        y: Labels in {-1, +1}, `(n,)`.
        C: The penalty of a squared slack, positive, `()`. scikit-learn's `LinearSVC(loss="squared_hinge")` calls the
            same problem `C / 2`.
        bias: "regularized" (the constant is one more feature of value 1), "none", or "free" (not regularised; for
            `Newton`).
        sample_weight: Non-negative weights, `(n,)`: `C_i = C w_i`. Weight 0 is absence, weight 2 duplication.

    Returns:
        The problem; a pytree.

    Raises:
        InputError: On concrete values that make no problem; under tracing the fit's status is INFEASIBLE instead.
    """
    penalty = positive_scalar("C", C, vector_dtype(gram))
    signs, weight, mask, feasible, offset = labelled(gram, y, bias, sample_weight, "squared-hinge")
    require_costs(C, sample_weight, signs.dtype)
    ridge, diagonal, feasible = in_size_class(_assembled, gram, signs, penalty, weight, offset, feasible)
    return SquaredHingeProblem(
        gram=gram,
        y=signs,
        C=penalty,
        ridge=ridge,
        diagonal=diagonal,
        mask=mask,
        feasible=feasible,
        offset=offset,
        free_bias=bias == "free",
    )


@partial(Program, brief=True)
def _assembled(
    gram: Gram, y: Array, C: Array, weight: Array | None, offset: Any, usable: Any
) -> tuple[Array, Array, Array]:
    """Ridge, diagonal, and whether the values make a problem: one program, where single operations would be ten."""
    present = jnp.ones_like(y, bool) if weight is None else weight > 0
    costs = C * jnp.where(present, 1 if weight is None else weight, 1)
    ridge = jnp.where(present, 1 / costs, 0)
    diagonal = gram.diag().astype(y.dtype) + offset + ridge
    return ridge, diagonal, usable & two_classes(y, present) & (C > 0) & costs_hold(costs, present)


@jax.jit
def _diagonal(gram: Gram, ridge: Array, offset: Any) -> Array:
    return gram.diag().astype(ridge.dtype) + offset + ridge


@partial(Program, brief=True)
def _rescaled(problem: SquaredHingeProblem, C: Any) -> tuple[Array, Array, Array, Array]:
    """C, ridge, diagonal and feasibility at another C; the diagonal from the kernel's, which a large ridge swallows."""
    C = jnp.asarray(C, problem.dtype)
    ridge = problem.ridge * (problem.C / C)
    usable = problem.feasible & (C > 0) & costs_hold(ridge, problem.ridge > 0)  # its reciprocals have the same range
    return C, ridge, problem.signed.diag() + ridge, usable


@partial(Program, brief=True)
def _reweighted(problem: SquaredHingeProblem, weight: Array, usable: Array) -> tuple[Array, Array, Array, Array]:
    present = (problem.ridge > 0) & (weight > 0)
    ridge = jnp.where(present, problem.ridge / jnp.where(present, weight, 1), 0)
    usable = usable & problem.feasible & two_classes(problem.y, present) & costs_hold(ridge, present)
    return ridge, problem.signed.diag() + ridge, present, usable


@jax.jit
def _picked(vectors: Any, samples: Int[Array, " m"]) -> Any:
    return jax.tree.map(lambda vector: vector[samples], vectors)
