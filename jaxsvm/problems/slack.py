"""The slack-constrained hinge SVM: the best worst margin of a unit vector, for a budget of slack.

    max  min_i (y_i <w, phi_i> + xi_i)    over  |w| <= 1,  xi >= 0,  mean slack sum_i weight_i xi_i <= n nu

(Hazan, Koren, Srebro 2011; Cotter, Shalev-Shwartz, Srebro 2012). Its objective is the water level of the responses
(`jaxsvm.problems.water_level`), its dual `min_p sqrt(p'Qp) + n nu max_i p_i` over the simplex: every p bounds the
optimum from above, which is the certificate. `w / level` solves the hinge problem with the C that `equivalent_C` tells
(docs/mathematics.md, The slack budget).
"""

import dataclasses
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxsvm.errors import InputError, is_concrete
from jaxsvm.gram.contract import Gram
from jaxsvm.gram.signed import SignedGram
from jaxsvm.numerics.masks import some
from jaxsvm.numerics.precision import rounded, rounding
from jaxsvm.points.rows import transposed_product
from jaxsvm.problems.arguments import (
    checked_weights,
    costs_hold,
    labelled,
    require_both_classes,
    require_costs,
    two_classes,
    vector_dtype,
    weights_times,
)
from jaxsvm.problems.box import BoxProblem
from jaxsvm.problems.water_level import WaterLevel, water_level, water_level_with_bias
from jaxsvm.results.fit import Answer, Certificate, Fit
from jaxsvm.results.judge import balances, is_weights, judged
from jaxsvm.runtime.transfers import transfers

SORTED = 2048
"""Up to here two sorts are faster than the bisection of a bias: 20 ms against 4 at n = 32,561, 0.3 each at 2,048."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SlackProblem:
    """The slack-constrained hinge SVM. Build it with `slack_problem`.

    A *point* of it has two rows, `(2, n)`: coefficients a of `w = sum_i a_i y_i phi_i` with `|w| <= 1`, and a
    distribution p, the dual variable.

    Attributes:
        gram: The kernel matrix of the samples, as an operator.
        y: Signs, `(n,)`.
        nu: The mean slack allowed, in units of margin, `()`.
        weight: Sample weights, `(n,)`; 0 for an absent sample.
        diagonal: `Q_ii`, `(n,)`.
        mask: Samples of positive weight, `(n,)`; None where no weights were given.
        feasible: Whether the values make a problem, `()`: known late under tracing.
        offset: 1.0 with a regularised bias, 0.0 without; static.
        free_bias: Whether there is an unregularised bias, so that p has half of its mass in each class; static.
    """

    kind = "slack"
    operator = "gram"
    padding: ClassVar[Any] = {"y": 1, "weight": 0, "diagonal": None}
    solved_by = "StochasticBatchPerceptron"
    corrects = False
    parameter = "nu"
    restricts = False
    differentiable = False

    gram: Gram
    y: Float[Array, " n"]
    nu: Float[Array, ""]
    weight: Float[Array, " n"]
    diagonal: Float[Array, " n"]
    mask: Bool[Array, " n"] | None
    feasible: Bool[Array, ""]
    offset: float = dataclasses.field(metadata={"static": True})
    free_bias: bool = dataclasses.field(metadata={"static": True})

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
        return self.weight > 0

    @property
    def equality(self) -> None:
        """None: that of p, with a free bias, does not hold the coefficients of w."""
        return None

    @property
    def volume(self) -> Float[Array, ""]:
        """`V = n nu`, with the sum of the weights for n."""
        return self.nu * self.weight.sum()

    @property
    def radius(self) -> Float[Array, ""]:
        """`r = max_i |phi_i|`: how fast the level can change with w."""
        return jnp.sqrt(jnp.where(self.weight > 0, self.diagonal, 0).max())

    @property
    def signed(self) -> SignedGram:
        """Q."""
        return SignedGram(self.gram, self.y, self.offset)

    def at(self, nu: Any) -> Self:
        """The same problem at another nu, not negative, `()`.

        Raises:
            InputError: On a concrete nu that is none; under tracing the fit's status is INFEASIBLE instead.
        """
        nu = _checked_nu(nu, self.dtype)
        return dataclasses.replace(self, nu=nu, feasible=_usable_at(self.feasible, nu))

    def weighted(self, sample_weight: Any) -> Self:
        """The same problem with its weights times these: a fold, say, or some samples absent.

        Args:
            sample_weight: Non-negative, `(n,)`; 0 is absence.

        Raises:
            InputError: On concrete weights that leave no problem of two classes; under tracing as for `at`.
        """
        weight, _, feasible = checked_weights(sample_weight, self.n, self.dtype)
        if is_concrete(self.y, self.weight, weight):
            product = weights_times(weight, self.weight)
            require_costs(1.0, product, self.dtype)
            require_both_classes(self.y, product)
        weight, mask, feasible = _reweighted(self, weight, feasible)
        return dataclasses.replace(self, weight=weight, mask=mask, feasible=feasible)

    def weights(self) -> np.ndarray | None:
        """Sample weights on the host, `(n,)`; None where they are all 1, or traced."""
        return None if self.mask is None or not is_concrete(self.weight) else np.asarray(self.weight, np.float64)

    def on(self, gram: Gram) -> Self:
        """The same samples with another Gram operator: the landmarks of a fold, say."""
        return dataclasses.replace(self, gram=gram, diagonal=gram.diag().astype(self.dtype) + self.offset)

    def hinge(self, C: Any) -> BoxProblem:
        """The hinge problem of the same samples at C, `()`, with the same bias: at one C it has the same solution."""
        C = jnp.asarray(C, self.dtype)
        return BoxProblem(
            gram=self.gram,
            y=self.y,
            q=jnp.ones_like(self.y),
            upper=C * self.weight,
            c=self.y if self.free_bias else None,
            e=jnp.zeros_like(C),
            C=C,
            constant=jnp.zeros_like(C),
            diagonal=self.diagonal,
            mask=self.mask,
            feasible=self.feasible,
            offset=self.offset,
        )

    def combination(self, indices: Int[Array, " t"], weights: Float[Array, " t"]) -> Float[Array, " n"]:
        """`sum_k weights_k Q[indices_k, :]`, t n kernel evaluations."""
        signed = weights * self.y[indices]
        rows = self.gram.rows(indices)
        dtype = jnp.result_type(rows.dtype, signed.dtype)
        values = jnp.matmul(signed.astype(dtype), rows.astype(dtype), precision=lax.Precision.HIGHEST)
        return self.y * (values + self.offset * signed.sum()).astype(self.dtype)

    def matvec(self, point: Float[Array, "k n"]) -> Float[Array, "k n"]:
        """`Q` times each row, from scratch."""
        return SignedGram(self.gram, self.y[:, None], self.offset).matvec(point.T).T

    def level(self, c: Float[Array, " n"], method: str | None = None) -> WaterLevel:
        """The water level of responses c, with the best bias where there is a free one.

        Args:
            c: Responses `y_i <w, phi_i>`, `(n,)`.
            method: As `jaxsvm.problems.water_level` has it; None: without sorting where that is faster.
        """
        if self.free_bias:
            method = method or ("sort" if self.n <= SORTED else "bisection")
            return water_level_with_bias(c, self.y, self.volume, weight=self.weight, method=method)
        return water_level(c, self.volume, weight=self.weight, method=method or "newton")

    def feasible_point(self, p: Float[Array, " n"]) -> Float[Array, " n"]:
        """The distribution p on the simplex; half of it in each class with a free bias."""
        p = jnp.where(self.weight > 0, jnp.maximum(p, 0), 0)

        def share(members: Array) -> Array:
            part = jnp.where(members, p, 0)
            part = jnp.where(part.sum() > 0, part, jnp.where(members, self.weight, 0))
            return part / part.sum()

        if not self.free_bias:
            return share(self.weight > 0)
        return (share((self.y > 0) & (self.weight > 0)) + share((self.y < 0) & (self.weight > 0))) / 2

    def length_of(self, p: Float[Array, " n"], row: Float[Array, " n"], error: Any = 0.0) -> Float[Array, ""]:
        """`|sum_i p_i y_i phi_i|`, `()`: of the sum itself where there are features, which its square loses half of.

        Args:
            p: A distribution, in any scale, `(n,)`.
            row: `Qp`, `(n,)`; not looked at where there are features.
            error: What rounding may have taken of `p'Qp`, `()`.
        """
        x = self.gram.design
        if x is None:
            return jnp.sqrt(jnp.maximum(p @ row, 0) + error)
        w, constant = transposed_product(x, self.y * p), jnp.sqrt(self.offset) * (self.y @ p)
        eps = jnp.where(error > 0, rounding(self.n, p.dtype), 0)  # an allowance that is asked for
        return jnp.sqrt(w @ w + constant**2) + eps * self.radius * p.sum()

    def highest(self, p: Float[Array, " n"]) -> Float[Array, ""]:
        """`max_i p_i / weight_i`, `()`."""
        return jnp.where(self.weight > 0, p / jnp.where(self.weight > 0, self.weight, 1), 0).max()

    def margins(self, point: Float[Array, "two n"], s: Float[Array, "two n"]) -> Float[Array, " n"]:
        """`y_i (<w, phi_i> + b)`, in the scale of the unit vector."""
        del point
        return s[0] + self.y * self.level(s[0]).bias

    def objective(self, point: Float[Array, "two n"], s: Float[Array, "two n"]) -> Float[Array, ""]:
        """Minus the level of w."""
        del point
        return -self.level(s[0]).level

    def certificate(self, point: Float[Array, "two n"], s: Float[Array, "two n"]) -> Certificate:
        """`sqrt(p'Qp) + V max_i p_i / weight_i` (primal: above the optimum) and the level of w (dual: below it).

        As if s were exact: solvers look at it; what is decided rests on `certified`.
        """
        a, p = point
        length = jnp.sqrt(jnp.maximum(a @ s[0], 0))
        below = self.level(s[0] / jnp.maximum(length, 1)).level
        return self._bounds(point, below, self.length_of(p, s[1]))

    def certified(self, point: Float[Array, "two n"], s: Float[Array, "two n"], dtype: Any) -> Answer:
        """A point as it is returned, certified: `w / level`, and p.

        The level is that of the unit vector along w with the bias that is returned, less what rounding `w / level` to
        `dtype` may take from it.

        Args:
            point: Coefficients a of w and p, numbers of `dtype`.
            s: `Q` times both, from scratch, in twice the precision.
            dtype: Of the numbers that are returned.
        """
        a, p = point
        size, eps = jnp.sqrt(jnp.maximum(self.diagonal, 0)), rounding(self.n, s.dtype)
        error = eps * size.max() * (jnp.abs(point) @ size)  # of an entry of s, in each row
        length = jnp.sqrt(jnp.maximum(a @ s[0] + error[0] * jnp.abs(a).sum(), 0))
        length = jnp.maximum(length, 1)
        c = s[0] / length  # of a vector of the unit ball
        water = self.level(c)
        level = self._paid_for(c + self.y * water.bias, water.level)
        scale = jnp.where(level > 0, level, 1) * length
        coefficients = rounded(self.y * a / scale, dtype)
        constant = self.offset * coefficients.sum()
        best = water.bias * length / scale if self.free_bias else constant
        bias = rounded(best, dtype)
        # What w / level is off by, back in units of the unit vector.
        narrow = jnp.finfo(dtype).eps / 2 if jnp.finfo(dtype).bits < jnp.finfo(s.dtype).bits else 0.0
        off = narrow * (size.max() * (jnp.abs(a) @ size) + jnp.abs(best) * scale) / length
        below = level - error[0] / length - off
        above = self.length_of(p, s[1], error[1])
        above, feasible = above * (1 + 4 * narrow) + 4 * eps * self.radius, True
        if self.free_bias:  # p may miss the equality by rounding
            missed = self.y @ p
            above = above + jnp.abs(missed) * (jnp.abs(water.bias) + self.radius)
            feasible = balances(missed, p.sum(), dtype)
        certificate = self._bounds(point, below, above, 4 * narrow, feasible)
        return Answer(
            alpha=p,
            dual_coef=coefficients,
            bias=bias,
            R=scale / length,
            margins=c * (length / scale) + (self.y * bias if self.free_bias else 0),
            certificate=certificate,
        )

    def _paid_for(self, heights: Float[Array, " n"], level: Float[Array, ""]) -> Float[Array, ""]:
        """The level, or a lower one that the volume pays for for certain.

        Sums over weights of very different sizes swallow the light samples' slack. What a level costs is a sum of terms
        that are not negative, and above the true one costs rise at least as fast as the lightest sample's, or as those
        of all samples that are covered further down.
        """
        present, eps = self.present, rounding(self.n, level.dtype)
        lightest = jnp.where(present, self.weight, jnp.inf).min()
        floor = jnp.where(present, heights, jnp.inf).min() + self.volume / self.weight.sum()
        cost = jnp.where(present, self.weight * jnp.maximum(level - heights, 0), 0).sum()
        over = jnp.maximum(cost * (1 + eps) - self.volume, 0)
        low = jnp.maximum(level - over / lightest, floor)
        covered = jnp.where(present & (heights < low), self.weight, 0).sum()
        return jnp.maximum(level - over / jnp.maximum(covered, lightest), floor)

    def _bounds(
        self, point: Float[Array, "two n"], below: Array, length: Array, share: Any = 0.0, feasible: Any = True
    ) -> Certificate:
        """The certificate of a level and of `sqrt(p'Qp)`, where p is known to `share` of itself, in any scale."""
        a, p = point
        above = (length + self.volume * self.highest(p) * (1 + share)) / p.sum()
        error = 32 * jnp.finfo(below.dtype).eps * (above + self.radius)
        feasible = feasible & is_weights(p, self.present)
        found = judged(above, below, above - below, below, rounding=error, feasible=feasible)
        # w = 0 has the level nu, but no point with a w may lose against that.
        return found._replace(relative_gap=jnp.where(some(a > 0), found.relative_gap, jnp.inf))

    def indefinite(self, objective: Float[Array, ""]) -> Bool[Array, ""]:
        """Never known from the level."""
        return jnp.zeros_like(objective, bool)


@transfers
def slack_problem(gram: Any, y: Any, nu: Any, *, bias: str = "regularized", sample_weight: Any = None) -> SlackProblem:
    """The slack-constrained hinge SVM of labelled samples.

    Args:
        gram: The Gram operator of the n samples, from `jaxsvm.gram`.
        y: Labels in {-1, +1}, `(n,)`.
        nu: The mean slack of a unit vector, not negative, `()`: not the nu of nu-SVM (`nu_svm_parameter`). Values above
            `max_i sqrt(k(x_i, x_i))` change nothing any more.
        bias: "regularized" (the constant is one more feature of value 1), "none", or "free" (not part of the unit
            vector).
        sample_weight: Non-negative weights, `(n,)`. Weight 0 is absence, weight 2 duplication.

    Returns:
        The problem; a pytree. Of its fits `certificate.dual` is the level reached, `certificate.primal` a bound that no
        w exceeds; `alpha` is p, and `dual_coef` and `bias` are those of `w / level`, whose margin is 1.

    Raises:
        InputError: On concrete values that make no problem; under tracing the fit's status is INFEASIBLE instead.
    """
    nu = _checked_nu(nu, vector_dtype(gram))
    signs, weight, mask, feasible, offset = labelled(gram, y, bias, sample_weight, "slack")
    require_costs(1.0, sample_weight, signs.dtype)
    weight, diagonal, feasible = _assembled(gram, signs, nu, weight, offset, feasible)
    return SlackProblem(
        gram=gram,
        y=signs,
        nu=nu,
        weight=weight,
        diagonal=diagonal,
        mask=mask,
        feasible=feasible,
        offset=offset,
        free_bias=bias == "free",
    )


@jax.jit
def _assembled(
    gram: Gram, y: Array, nu: Array, weight: Array | None, offset: Any, usable: Any
) -> tuple[Array, Array, Array]:
    """Weights, diagonal, and whether the values make a problem, in one program."""
    weight = jnp.ones_like(y) if weight is None else weight
    usable = usable & two_classes(y, weight > 0) & costs_hold(weight, weight > 0) & (nu >= 0) & jnp.isfinite(nu)
    return weight, gram.diag().astype(y.dtype) + offset, usable


def _checked_nu(nu: Any, dtype: Any) -> Float[Array, ""]:
    if np.shape(nu) != ():
        raise InputError(f"nu has shape {np.shape(nu)}: one number is needed (use `solve_path` for many).")
    if is_concrete(nu) and not (np.isfinite(float(nu)) and float(nu) >= 0):
        raise InputError(f"nu is {float(nu)}: a finite number, not negative, is needed.")
    return jnp.asarray(nu, dtype)


@jax.jit
def _usable_at(usable: Array, nu: Array) -> Bool[Array, ""]:
    return usable & (nu >= 0) & jnp.isfinite(nu)


@jax.jit
def _reweighted(problem: SlackProblem, weight: Array, usable: Array) -> tuple[Array, Array, Array]:
    present = (problem.weight > 0) & (weight > 0)
    weight = problem.weight * weight
    return weight, present, usable & problem.feasible & two_classes(problem.y, present) & costs_hold(weight, present)


def lambda_of_C(C: Any, n: Any) -> Any:  # noqa: N802 (C is the field's name)
    """`lambda = 1 / (n C)` of `lambda/2 |w|^2 + mean loss` (Pegasos), for n samples (or a sum of weights of n)."""
    return 1 / (n * C)


def C_of_lambda(lam: Any, n: Any) -> Any:  # noqa: N802
    """`C = 1 / (n lambda)`."""
    return 1 / (n * lam)


def equivalent_nu(problem: BoxProblem, fit: Fit) -> Float[Array, ""]:
    """The nu whose slack problem has the same solution as a hinge problem: its mean loss over `|w|`.

    Args:
        problem: From `hinge_problem`.
        fit: A fit of it.

    Returns:
        nu, `()`. The optimal level of that slack problem is `1 / |w|`.
    """
    loss = problem.upper @ jnp.maximum(0, 1 - fit.margins) / problem.upper.sum()
    return loss / jnp.sqrt(squared_norm(problem, fit))


def equivalent_C(problem: SlackProblem, fit: Fit) -> Float[Array, ""]:  # noqa: N802 (C is the field's name)
    """The C whose hinge problem has the same solution: `1 / C = level^2 / q - n nu level`, `q = max_i p_i`.

    Args:
        problem: From `slack_problem`.
        fit: A fit of it, well converged: the formula rests on p.

    Returns:
        C, `()`; infinite where the inexact p says so.
    """
    level, q = fit.certificate.dual, problem.highest(fit.alpha)
    inverse = level**2 / q - problem.volume * level
    return jnp.where(inverse > 0, 1 / jnp.where(inverse > 0, inverse, 1), jnp.inf)


def nu_svm_parameter(problem: SlackProblem, fit: Fit) -> Float[Array, ""]:
    """The nu of nu-SVM (scikit-learn's `NuSVC`) with the same decision function: `1 / (n max_i p_i)`."""
    return 1 / (problem.weight.sum() * problem.highest(fit.alpha))


def distinct_evaluations(fit: Fit) -> Any:
    """Kernel values of distinct rows that a run computed, on the host: n for each sample that w is made of.

    `fit.kernel_evaluations` is the nominal count, repeated rows included. An int, or an array for lanes.
    """
    coefficients = np.asarray(fit.dual_coef)
    total = np.count_nonzero(coefficients, axis=-1).astype(np.int64) * coefficients.shape[-1]
    return int(total) if total.ndim == 0 else total


def squared_norm(problem: BoxProblem, fit: Fit) -> Float[Array, ""]:
    """`|w|^2` of a hinge fit, a free bias left out, `()`."""
    a = problem.y * fit.dual_coef
    s = fit.margins if problem.c is None else problem.matvec(a)
    return a @ s
