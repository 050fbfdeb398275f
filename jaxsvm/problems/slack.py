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
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import ArrayLike

from jaxsvm.errors import InputError, is_concrete, require_part
from jaxsvm.gram.contract import Gram
from jaxsvm.gram.signed import SignedGram
from jaxsvm.numerics.measured import MEASURED
from jaxsvm.numerics.precision import rounding
from jaxsvm.points.rows import transposed_product
from jaxsvm.problems import arguments
from jaxsvm.problems.box import BoxProblem, hinge_of
from jaxsvm.problems.certificates import slack as certificates
from jaxsvm.problems.samples import OfSamples, checked, squares
from jaxsvm.problems.water_level import WaterLevel, water_level, water_level_with_bias
from jaxsvm.results.fit import Fit, require_fit
from jaxsvm.runtime.arrays import Number, computed, in_a_line, on_device, owned, transfers
from jaxsvm.runtime.checks import require_positive


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SlackProblem(OfSamples):
    """The slack-constrained hinge SVM. Build it with `slack_problem`.

    A *point* of it has two rows, `(2, n)`: coefficients a of `w = sum_i a_i y_i phi_i` with `|w| <= 1`, and a
    distribution p, the dual variable.

    Attributes (beside those of `OfSamples`):
        nu: The mean slack allowed, in units of margin, `()`.
        free_bias: Whether there is an unregularised bias, so that p has half of its mass in each class; static.
    """

    __repr__ = in_a_line

    kind = "slack"
    solved_by = "StochasticBatchPerceptron"
    corrects = False
    parameter = "nu"
    restricts = False
    differentiable = False

    gram: Gram
    y: Float[Array, " n"]
    nu: Float[Array, ""]
    weight: Float[Array, " n"] | None
    squares: Float[Array, " n"]
    feasible: Bool[Array, ""]
    offset: float = dataclasses.field(metadata={"static": True})
    free_bias: bool = dataclasses.field(metadata={"static": True})

    @property
    def C(self) -> Float[Array, ""]:  # noqa: N802 (C is the field's name)
        """Return 1: weights are costs."""
        return computed(lambda xp, nu: xp.ones_like(nu), self.nu)

    @property
    def diagonal(self) -> Float[Array, " n"]:
        """Return `Q_ii`, `(n,)`."""
        return self.squares

    @property
    def equality(self) -> None:
        """Return None: with a free bias, the equality that holds for p does not hold for the coefficients of w."""
        return None

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
            held = float(jnp.finfo(self.dtype).max)
            if float(nu) > held:
                raise InputError(f"nu is {float(nu)}, which {self.dtype} cannot hold: at most {held:.3g} is needed.")
        problem = dataclasses.replace(self, nu=owned(nu, self.dtype))
        if is_concrete(nu):
            return problem
        return dataclasses.replace(problem, feasible=problem.feasible & (problem.nu >= 0) & jnp.isfinite(problem.nu))

    def hinge(self, C: ArrayLike) -> BoxProblem:
        """Return the hinge problem at C, `()`, with the same bias; at one C it has the same solution."""
        C = jnp.asarray(C, self.dtype)
        return hinge_of(self.gram, self.y, C, self.weight, self.free_bias, self.squares, self.feasible, self.offset)

    def combination(self, indices: Int[Array, " t"], weights: Float[Array, " t"]) -> Float[Array, " n"]:
        """Return `sum_k weights_k Q[indices_k, :]`, t n kernel evaluations."""
        signed = weights * self.y[indices]
        rows = self.gram.rows(indices)
        dtype = jnp.result_type(rows.dtype, signed.dtype)
        values = jnp.matmul(signed.astype(dtype), rows.astype(dtype), precision=lax.Precision.HIGHEST)
        return self.y * (values + self.offset * signed.sum()).astype(self.dtype)

    def matvec(self, point: Float[Array, "k n"]) -> Float[Array, "k n"]:
        """Return `Q` times each row, from scratch."""
        return SignedGram(self.gram, self.y[:, None], self.offset).matvec(point.T).T

    def level(self, c: Float[Array, " n"], method: str | None = None) -> WaterLevel:
        """Return the water level of responses c, with the best bias if it is free.

        Args:
            c: Responses `y_i <w, phi_i>`, `(n,)`.
            method: A method of `jaxsvm.problems.water_level`; None takes the fastest.
        """
        if self.free_bias:
            method = method or ("sort" if self.n <= MEASURED.sorted_size else "bisection")
            return water_level_with_bias(c, self.y, self.volume, weight=self.weights, method=method)
        return water_level(c, self.volume, weight=self.weights, method=method or "newton")

    def without_w(self) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Return the level of w = 0, rounded down, and its bias in units of it: a free one is the larger class's."""
        sides = [jnp.where(self.y * sign > 0, self.weights, 0).sum() for sign in (1, -1)]
        narrowest = 2 * jnp.minimum(*sides) if self.free_bias else self.weights.sum()
        level = self.volume / narrowest * (1 - 4 * rounding(self.n, self.dtype))
        return level, jnp.sign(sides[0] - sides[1]) * self.free_bias

    def feasible_point(self, p: Float[Array, " n"]) -> Float[Array, " n"]:
        """Return p clipped at 0 and scaled onto the simplex; with a free bias, half of the mass in each class."""
        p = jnp.where(self.present, jnp.maximum(p, 0), 0)

        def share(members: Array) -> Array:
            part = jnp.where(members, p, 0)
            part = jnp.where(part.sum() > 0, part, jnp.where(members, self.weights, 0))
            return part / part.sum()

        if not self.free_bias:
            return share(self.present)
        return (share((self.y > 0) & self.present) + share((self.y < 0) & self.present)) / 2

    def length_of(self, p: Float[Array, " n"], row: Float[Array, " n"], error: Number = 0.0) -> Float[Array, ""]:
        """Return `|sum_i p_i y_i phi_i|`, `()`; from features if there are any, since its square loses half the digits.

        Args:
            p: A distribution, in any scale, `(n,)`.
            row: `Qp`, `(n,)`; not used if there are features.
            error: A bound on the rounding of `p'Qp`, `()`; 0 asks for no allowance.
        """
        x = self.gram.design
        if x is None:
            return jnp.sqrt(jnp.maximum(p @ row, 0) + error)
        w, constant = transposed_product(x, self.y * p), jnp.sqrt(self.offset) * (self.y @ p)
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

    def indefinite(self, objective: Float[Array, ""]) -> Bool[Array, ""]:
        """Return False: the level proves nothing."""
        return jnp.zeros_like(objective, bool)

    certificate = certificates.certificate
    certified = certificates.certified


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
    """Return `lambda = 1 / (n C)` of `lambda/2 |w|^2 + mean loss` (Pegasos), for n samples or a sum of weights n."""
    return 1 / (n * C)


def C_of_lambda(lam: Number, n: Number) -> Number:  # noqa: N802
    """Return `C = 1 / (n lambda)`."""
    return 1 / (n * lam)


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
    """Return the nu of nu-SVM (scikit-learn's `NuSVC`) with the same decision function: `1 / (n max_i p_i)`."""
    return 1 / (_highest(problem, fit) * problem.weights.sum())


def _highest(problem: SlackProblem, fit: Fit) -> Float[Array, ""]:
    """Return `max_i p_i` of a fit; refuse other arguments."""
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
