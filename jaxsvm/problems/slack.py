"""The slack-constrained hinge SVM: maximise the worst margin of a unit vector, given a budget of slack.

    max  min_i (y_i <w, phi_i> + xi_i)
    over |w| <= 1,  xi >= 0,  mean slack sum_i weight_i xi_i <= n nu

(Hazan, Koren, Srebro 2011; Cotter, Shalev-Shwartz, Srebro 2012). Its objective is the water level of the responses
(`jaxsvm.problems.water_level`), its dual `min_p sqrt(p'Qp) + n nu max_i p_i` over the simplex: every p bounds the
optimum from above, which is the certificate. `w / level` solves the hinge problem with the C that `equivalent_C`
returns (docs/mathematics.md, The slack budget).
"""

from __future__ import annotations

import dataclasses
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import ArrayLike

from jaxsvm.errors import InputError, is_concrete, require_part
from jaxsvm.gram.operators import Gram
from jaxsvm.gram.signed import SignedGram
from jaxsvm.numerics.measured import MEASURED
from jaxsvm.numerics.precision import matmul, rounded, rounding
from jaxsvm.points.rows import transposed_product
from jaxsvm.problems import arguments
from jaxsvm.problems.box import BoxProblem, hinge_of
from jaxsvm.problems.samples import OfSamples, checked, squares
from jaxsvm.problems.water_level import WaterLevel, level_by_bisection, water_level, water_level_with_bias
from jaxsvm.results.fit import Answer, Certificate, Fit, require_fit
from jaxsvm.results.judge import balances, is_weights, judged
from jaxsvm.runtime.arrays import Number, computed, on_device, owned, require_positive, transfers


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, repr=False)
class SlackProblem(OfSamples):
    """The slack-constrained hinge SVM. Build it with `slack_problem`.

    A *point* of it has two rows, `(2, n)`: coefficients a of `w = sum_i a_i y_i phi_i` with `|w| <= 1`, and a
    distribution p, the dual variable.
    """

    kind = "slack"
    loss = "hinge, of a slack of nu a sample"
    solved_by = "StochasticBatchPerceptron"
    parameter = "nu"
    of_level = True
    # With a free bias the equality that holds for p does not hold for the coefficients of w.
    equality = None  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]

    gram: Gram
    y: Float[Array, " n"]
    nu: Float[Array, ""]  # the mean slack allowed, in units of margin
    weight: Float[Array, " n"] | None
    squares: Float[Array, " n"]
    feasible: Bool[Array, ""]
    offset: float = dataclasses.field(metadata={"static": True})
    free_bias: bool = dataclasses.field(metadata={"static": True})  # then p has half of its mass in each class

    @property
    def C(self) -> Float[Array, ""]:  # noqa: N802 (C is the field's name)
        """Return 1: weights are costs."""
        return computed(lambda xp, nu: xp.ones_like(nu), self.nu)

    @property
    def volume(self) -> Float[Array, ""]:
        """Return `V = nu sum_i weight_i`, `()`: n nu without weights."""
        return self.nu * self.weights.sum()

    @property
    def radius(self) -> Float[Array, ""]:
        """Return `r = max_i |phi_i|`, `()`, which bounds how fast the level changes with w."""
        return jnp.sqrt(jnp.where(self.present, self.diagonal, 0).max())

    def at(self, nu: ArrayLike, /) -> Self:
        """Return the problem at another nu, not negative, `()`."""
        if np.shape(nu) != ():
            raise InputError(f"nu has shape {np.shape(nu)}: one number is needed (use `solve_path` for many).")
        if is_concrete(nu):
            require_positive("nu", nu, or_zero=True)
            value, held = float(np.asarray(nu)), float(jnp.finfo(self.dtype).max)
            if value > held:
                raise InputError(f"nu is {value}, which {self.dtype} cannot hold: at most {held:.3g} is needed.")
            return dataclasses.replace(self, nu=owned(nu, self.dtype))
        given = owned(nu, self.dtype)
        return dataclasses.replace(self, nu=given, feasible=self.feasible & (given >= 0) & jnp.isfinite(given))

    def hinge(self, C: ArrayLike) -> BoxProblem:
        """Return the hinge problem at C, `()`, with the same bias; at one C it has the same solution."""
        C = jnp.asarray(C, self.dtype)
        return hinge_of(self.gram, self.y, C, self.weight, self.free_bias, self.squares, self.feasible, self.offset)

    def combination(self, indices: Int[Array, " t"], weights: Float[Array, " t"]) -> Float[Array, " n"]:
        """Return `sum_k weights_k Q[indices_k, :]`, t n kernel evaluations."""
        signed = weights * self.y[indices]
        values = matmul(signed, self.gram.rows(indices))
        return self.y * (values + self.offset * signed.sum()).astype(self.dtype)

    def matvec(self, point: Float[Array, "k n"]) -> Float[Array, "k n"]:
        return SignedGram(self.gram, self.y[:, None], self.offset).matvec(point.T).T

    def level(self, c: Float[Array, " n"]) -> WaterLevel:
        """Return the water level of responses `y_i <w, phi_i>`, `(n,)`, with the best bias if it is free."""
        if self.free_bias and self.n > MEASURED.sorted_size:
            return level_by_bisection(c, self.y, self.volume, self.weights)
        if self.free_bias:
            return water_level_with_bias(c, self.y, self.volume, weight=self.weights)
        return water_level(c, self.volume, weight=self.weights)

    def without_w(self) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Return the level of w = 0, rounded down, and its bias in units of it: a free one is the larger class's."""
        sides = [jnp.where(self.y * sign > 0, self.weights, 0).sum() for sign in (1, -1)]
        narrowest = 2 * jnp.minimum(*sides) if self.free_bias else self.weights.sum()
        level = self.volume / narrowest * (1 - 4 * rounding(self.n, self.dtype))
        return level, jnp.sign(sides[0] - sides[1]) * self.free_bias

    def feasible_point(self, p: Float[Array, " n"]) -> Float[Array, " n"]:
        """Return p clipped at 0 and scaled onto the simplex; with a free bias, half of the mass in each class."""
        return self.on_simplex(p, self.weights)

    def length_of(self, p: Float[Array, " n"], row: Float[Array, " n"], error: Number = 0.0) -> Float[Array, ""]:
        """Return `|sum_i p_i y_i phi_i|`, `()`; from features if there are any, since its square loses half the digits.

        `row` is `Qp`, and `error` a bound on the rounding of `p'Qp`; 0 asks for no allowance.
        """
        x = self.gram.design
        if x is None:
            return jnp.sqrt(jnp.maximum(p @ row, 0) + error)
        w, constant = transposed_product(x, self.y * p), jnp.sqrt(self.offset) * matmul(self.y, p)
        eps = jnp.where(error > 0, rounding(self.n, p.dtype), 0)
        return jnp.sqrt(w @ w + constant**2) + eps * self.radius * p.sum()

    def highest(self, p: Float[Array, " n"]) -> Float[Array, ""]:
        """Return `max_i p_i / weight_i`, `()`."""
        return jnp.where(self.present, p / jnp.where(self.present, self.weights, 1), 0).max()

    def margins(self, point: Float[Array, "two n"], s: Float[Array, "two n"]) -> Float[Array, " n"]:
        """Return `y_i (<w, phi_i> + b)`, in the scale of the unit vector."""
        del point
        return s[0] + self.y * self.level(s[0]).bias

    def objective(self, point: Float[Array, "two n"], s: Float[Array, "two n"]) -> Float[Array, ""]:
        """Return minus the level of w."""
        del point
        return -self.level(s[0]).level

    def certificate(self, point: Float[Array, "two n"], s: Float[Array, "two n"]) -> Certificate:
        """Return `sqrt(p'Qp) + V max_i p_i / weight_i` (primal: above the optimum) and the level of w (dual: below it).

        It takes s to be exact, and is for solvers.
        """
        a, p = point
        length = jnp.sqrt(jnp.maximum(a @ s[0], 0))
        below = self.level(s[0] / jnp.maximum(length, 1)).level
        above = _upper(self, p, self.length_of(p, s[1]))
        return _bounds(self, above, below, is_weights(p, self.present), (a > 0).any())

    def certified(self, point: Float[Array, "two n"], s: Float[Array, "two n"], dtype: np.dtype) -> Answer:
        """Certify the answer that the caller gets: the coefficients of `w / level`, and the dual point p.

        The level is that of the unit vector along w with the returned bias, less what rounding `w / level` to `dtype`
        may take from it. If w = 0 has no lower level, and p proves that no w has one that is higher by more than
        rounding, the answer is w = 0. Else w = 0 must not win, since at a large nu all levels are near nu.
        """
        a, p = point
        size, eps = jnp.sqrt(jnp.maximum(self.diagonal, 0)), rounding(self.n, s.dtype)
        error = eps * size.max() * matmul(jnp.abs(point), size)  # of an entry of s, one a row
        length = jnp.sqrt(jnp.maximum(a @ s[0] + error[0] * jnp.abs(a).sum(), 1))
        c = s[0] / length  # responses of a vector in the unit ball
        water = self.level(c)
        level = _paid_for(self, c + self.y * water.bias, water.level)
        scale = jnp.where(level > 0, level, 1) * length
        coefficients = rounded(self.y * a / scale, dtype)
        best = water.bias * length / scale if self.free_bias else self.offset * coefficients.sum()
        bias = rounded(best, dtype)
        # The rounding of w / level, in units of the unit vector.
        narrow = jnp.finfo(dtype).eps / 2 if jnp.finfo(dtype).bits < jnp.finfo(s.dtype).bits else 0.0
        off = narrow * (size.max() * matmul(jnp.abs(a), size) + jnp.abs(best) * scale) / length
        below = level - error[0] / length - off
        above = self.length_of(p, s[1], error[1])
        above, feasible = above * (1 + 4 * narrow) + 4 * eps * self.radius, is_weights(p, self.present)
        if self.free_bias:  # p may miss the equality by rounding
            missed = matmul(self.y, p)
            above = above + jnp.abs(missed) * (jnp.abs(water.bias) + self.radius)
            feasible = feasible & balances(missed, p.sum(), dtype)
        above = _upper(self, p, above, 4 * narrow)

        still, constant = self.without_w()  # rounding, at most a hundredth of it, hides the difference
        hidden = 4 * float(jnp.finfo(dtype).eps) ** 0.5 * self.radius + 16 * eps * still
        rests = ((below <= still) | ~(a > 0).any()) & (above - still <= jnp.minimum(hidden, 0.01 * still))
        coefficients, bias = jnp.where(rests, 0, coefficients), jnp.where(rests, constant, bias)
        margins = jnp.where(rests, 0, c * (length / scale)) + (self.y * bias if self.free_bias else 0)
        certificate = _bounds(self, above, jnp.where(rests, still, below), feasible, (a > 0).any() | rests)
        return Answer(p, coefficients, bias, jnp.where(rests, still, scale / length), margins, certificate)


def _paid_for(problem: SlackProblem, heights: Float[Array, " n"], level: Float[Array, ""]) -> Float[Array, ""]:
    """Return the level, or a lower one that the volume certainly pays for.

    In sums over weights of very different sizes the slack of light samples is lost. The cost of a level is a sum of
    terms that are not negative. Above the true level it rises at least as fast as the weight of the lightest sample,
    and as the weight of all samples that are covered further down.
    """
    present, eps = problem.present, rounding(problem.n, level.dtype)
    lightest = jnp.where(present, problem.weights, jnp.inf).min()
    floor = jnp.where(present, heights, jnp.inf).min() + problem.volume / problem.weights.sum()
    cost = jnp.where(present, problem.weights * jnp.maximum(level - heights, 0), 0).sum()
    over = jnp.maximum(cost * (1 + eps) - problem.volume, 0)
    low = jnp.maximum(level - over / lightest, floor)
    covered = jnp.where(present & (heights < low), problem.weights, 0).sum()
    return jnp.maximum(level - over / jnp.maximum(covered, lightest), floor)


def _upper(problem: SlackProblem, p: Array, length: Array, share: Any = 0.0) -> Float[Array, ""]:
    """Return the bound of a p in any scale, known up to a relative `share`, from a bound on `sqrt(p'Qp)`."""
    return (length + problem.volume * problem.highest(p) * (1 + share)) / p.sum()


def _bounds(problem: SlackProblem, above: Array, below: Array, feasible: Any, known: Any) -> Certificate:
    """Return the certificate of two bounds; no gap is stated of a w that is not `known` to be one."""
    error = 32 * jnp.finfo(below.dtype).eps * (above + problem.radius)
    bounds = judged(above, below, above - below, below, rounding=error, feasible=feasible)
    return bounds._replace(relative_gap=jnp.where(known, bounds.relative_gap, jnp.inf))


@transfers
def slack_problem(
    gram: Gram, y: ArrayLike, nu: ArrayLike, *, bias: str = "regularized", sample_weight: ArrayLike | None = None
) -> SlackProblem:
    """Build the slack-constrained hinge SVM of labelled samples.

    Args:
        gram: The Gram operator of the n samples, from `jaxsvm.gram`.
        y: Labels in {-1, +1}, `(n,)`.
        nu: The mean slack of a unit vector, not negative, `()`: not the nu of nu-SVM (`nu_svm_parameter`). Raising it
            beyond `max_i sqrt(k(x_i, x_i))` changes nothing.
        bias: "regularized" (the constant is one more feature of value 1), "none", or "free" (not part of the unit
            vector).
        sample_weight: Non-negative weights, `(n,)`. Weight 0 removes a sample, weight 2 doubles it.

    Returns:
        The problem; a pytree. In its fits, `certificate.dual` is the level reached and `certificate.primal` a bound for
        any w; `alpha` is p, and `dual_coef` and `bias` are those of `w / level`, whose margin is 1.

    Raises:
        InputError: On concrete values that make no problem: a nu that is negative or not finite, labels other than -1
            and +1, one class only, bad weights. Under tracing the fit's status is INFEASIBLE instead.
    """
    signs, weight, usable, offset = arguments.labelled(gram, y, bias, sample_weight, "slack")
    diagonal, yes = squares(gram, signs.dtype, offset), on_device(np.asarray(True))
    none = on_device(np.zeros((), signs.dtype))
    problem = SlackProblem(gram, signs, none, weight, diagonal, yes, offset, bias == "free")
    return checked(problem, usable).at(nu)


def lambda_of_C(C: Number, n: Number) -> Number:  # noqa: N802 (C is the field's name)
    """Return `lambda = 1 / (n C)` of `lambda/2 |w|^2 + mean loss` (Pegasos), for n samples or a sum of weights n.

    Of a lambda it returns the C.
    """
    return 1 / (n * C)


@transfers
def equivalent_nu(problem: BoxProblem, fit: Fit) -> Float[Array, ""]:
    """Return the nu whose slack problem has the same solution as a hinge problem: its mean loss over `|w|`.

    Args:
        problem: From `hinge_problem`.
        fit: A fit of it.

    Returns:
        nu, `()`. The optimal level of that slack problem is `1 / |w|`.
    """
    size = jnp.sqrt(squared_norm(problem, fit))
    return problem.upper @ jnp.maximum(0, 1 - fit.margins) / problem.upper.sum() / size


@transfers
def equivalent_C(problem: SlackProblem, fit: Fit) -> Float[Array, ""]:  # noqa: N802 (C is the field's name)
    """Return the C whose hinge problem has the same solution: `1 / C = level^2 / q - n nu level`, `q = max_i p_i`.

    Args:
        problem: From `slack_problem`.
        fit: A fit of it, well converged, since the formula depends on p.

    Returns:
        C, `()`; it may be infinite for an inexact p.
    """
    q, level = _highest(problem, fit), fit.certificate.dual
    inverse = level**2 / q - problem.volume * level
    return jnp.where(inverse > 0, 1 / jnp.where(inverse > 0, inverse, 1), jnp.inf)


@transfers
def nu_svm_parameter(problem: SlackProblem, fit: Fit) -> Float[Array, ""]:
    """Return the nu of nu-SVM (`NuSVC`) with the same function, `1 / (n max_i p_i)`; its inverse is d level / d nu."""
    return 1 / (_highest(problem, fit) * problem.weights.sum())


def _highest(problem: SlackProblem, fit: Fit) -> Float[Array, ""]:
    require_part("problem", problem, "highest", "one of `slack_problem` is needed")
    require_fit(fit)
    return problem.highest(fit.alpha)


@transfers
def squared_norm(problem: BoxProblem, fit: Fit) -> Float[Array, ""]:
    """Return `|w|^2` of a hinge fit, without a free bias, `()`."""
    require_part("problem", problem, "c", "one of `hinge_problem` is needed")
    require_fit(fit)
    a = problem.y * fit.dual_coef
    s = fit.margins if problem.c is None else problem.matvec(a)
    return a @ s
