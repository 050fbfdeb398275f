"""Regression, the one-class machine and nu machines, as box problems."""

from __future__ import annotations

import dataclasses
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from numpy.typing import ArrayLike

from jaxsvm.errors import InputError, is_concrete, require_finite
from jaxsvm.gram.operators import Gram, among
from jaxsvm.numerics.precision import rounded
from jaxsvm.points.rows import taken
from jaxsvm.problems import arguments
from jaxsvm.problems.box import BoxProblem, box_problem, hinge_problem
from jaxsvm.results.fit import Answer, Certificate
from jaxsvm.runtime.arrays import filled, is_numeric, on_device, owned, transfers


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, repr=False)
class RegressionProblem(BoxProblem):
    """Support vector regression. Build it with `svr_problem`."""

    loss = "epsilon-insensitive: C max(0, |y - f| - epsilon)"  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]
    regression = True


@transfers
def svr_problem(
    gram: Gram, y: ArrayLike, C: ArrayLike = 1.0, *, epsilon: ArrayLike = 0.1, sample_weight: ArrayLike | None = None
) -> RegressionProblem:
    """Build support vector regression: `min 1/2 |w|^2 + sum_i C_i max(0, |y_i - f(x_i)| - epsilon)`, with a free bias.

    A box problem of 2 n variables on each sample taken twice: `a_i` pulls f up to `y_i - epsilon`, `a_(n + i)` down to
    `y_i + epsilon`. The first n margins of its fit are values of f, the others their negatives.

    Args:
        gram: The Gram operator of the n samples.
        y: Targets, `(n,)`; center them if they are far from 0, where a small gap would be rounding.
        C: The cost of a unit of error outside the tube, positive, `()`.
        epsilon: Half the width of the tube, >= 0, `()`.
        sample_weight: Non-negative weights, `(n,)`: `C_i = C w_i`. Weight 0 removes a sample.

    Returns:
        The problem; `problem.at(C)` takes another C.

    Raises:
        InputError: On concrete values that make no problem. Under tracing the fit's status is INFEASIBLE instead.
    """
    dtype, n = arguments.vector_dtype(gram), gram.n
    if not is_numeric(y) or np.shape(y) != (n,):
        raise InputError(f"y has shape {np.shape(y)}, dtype {np.asarray(y).dtype}: ({n},) numbers are needed.")
    require_finite("y", y)
    if np.shape(epsilon) or (is_concrete(epsilon) and not 0 <= float(epsilon) < np.inf):  # pyright: ignore
        raise InputError(f"epsilon is {epsilon}: one finite number >= 0 is needed.")
    penalty = arguments.positive_scalar("C", C, dtype)
    weight, usable = arguments.checked_weights(sample_weight, n, dtype)
    sign, q = tube(y, epsilon, xp := np if is_concrete(y, epsilon) else jnp)
    upper = 1.0 if weight is None else jnp.tile(weight, 2)
    held: Any = gram
    both: Any = among(gram, twice := on_device(np.tile(np.arange(n, dtype=np.int32), 2)))
    if gram.stored and gram.spread is None:  # with the points, which new ones are compared with
        both = dataclasses.replace(held, x=taken(held.x, twice), K=both.K)
    box = box_problem(both, xp.asarray(q, dtype), upper, y=sign, c=sign).at(penalty)
    problem = RegressionProblem(**{field.name: getattr(box, field.name) for field in dataclasses.fields(box)})
    usable = usable & (jnp.asarray(epsilon) >= 0)
    return problem if is_concrete(usable) else dataclasses.replace(problem, feasible=problem.feasible & usable)


@transfers
def one_class_problem(gram: Gram, nu: ArrayLike = 0.5, *, sample_weight: ArrayLike | None = None) -> BoxProblem:
    """Build the one-class SVM: `min 1/2 |w|^2 - rho nu n + sum_i max(0, rho - <w, phi(x_i)>)`, in LIBSVM's scale.

    Args:
        gram: The Gram operator of the n samples.
        nu: At most this share of the samples is outside, at least this share is support, in (0, 1], `()`.
        sample_weight: Non-negative weights, `(n,)`; their sum takes the place of n.

    Returns:
        The problem; its fit's bias is `-rho`, and the decision function is positive inside.

    Raises:
        InputError: On concrete values that make no problem. Under tracing the fit's status is INFEASIBLE instead.
    """
    arguments.require_share("nu", nu)
    weight, usable = arguments.checked_weights(sample_weight, gram.n, arguments.vector_dtype(gram))
    usable = usable & (jnp.asarray(nu) > 0)
    weight = filled(gram.diag(), 1) if weight is None else weight
    problem = box_problem(gram, jnp.zeros_like(weight), weight, c=1.0, e=jnp.asarray(nu) * weight.sum())
    return problem if is_concrete(usable) else dataclasses.replace(problem, feasible=problem.feasible & usable)


def tube(target: Any, epsilon: Any, xp: Any = np) -> tuple[np.ndarray, Any]:
    """Return signs and the linear term of regression, `(2 n,)`: errors above the tube first; xp is NumPy or JAX's."""
    sign = np.repeat([1.0, -1.0], len(target))
    return sign, sign * xp.tile(target, 2) - epsilon


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, repr=False)
class NuProblem(BoxProblem):
    """A nu machine: a box problem with two groups of variables, those of each sign, whose sums are given.

        min 1/2 a'Qa - q'a    over  0 <= a_i <= U_i,  sum of a_i over y_i = +1: e,  over y_i = -1: e.

    Of two classes q is 0; a solution divided by its margin r is that of the hinge problem at `C = 1 / r`. Of regression
    q has the targets, and a solution is that of a tube whose width the sums determine. As such solutions are certified.
    Build it with `nu_problem`; e is the sum of each group.
    """

    kind = "nu"
    loss = "nu: hinge at a C that nu sets"  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]
    parameter = None
    restricts = corrects = differentiable = False

    tube: bool = dataclasses.field(default=False, metadata={"static": True})  # whether it is one of regression

    @property
    def groups(self) -> Bool[Array, " n"]:
        """Return which variables are of the first group, `(n,)`."""
        return self.y > 0

    def weighted(self, sample_weight: ArrayLike) -> Self:
        """Return the problem with other weights; nu stays the same share of their sum."""
        other = super().weighted(sample_weight)
        return dataclasses.replace(other, e=self.e * other.upper.sum() / self.upper.sum())

    def feasible_point(self, a: Float[Array, " n"], /) -> Float[Array, " n"]:
        """Return a feasible point near a: each group is moved onto its sum by itself."""
        return self._by_groups(BoxProblem.feasible_point, a)

    def on_equality(self, a: Float[Array, " n"]) -> Float[Array, " n"]:
        return self._by_groups(BoxProblem.on_equality, a)

    def _by_groups(self, move: Any, a: Array) -> Array:
        first = self.groups
        parts = (dataclasses.replace(self, c=mine.astype(self.dtype)) for mine in (first, ~first))
        return jnp.where(first, *(move(part, a) for part in parts))

    def margins(self, point: Array, s: Array) -> Float[Array, " n"]:
        """Return the products: there is no path, so no point is moved to another C."""
        return s

    def gradient(self, a: Float[Array, " n"], margins: Float[Array, " n"]) -> Float[Array, " n"]:
        return margins

    def machine(self, a: Float[Array, " n"], s: Float[Array, " n"]) -> tuple[BoxProblem, Array, Array, Array]:
        """Return the problem without nu that a point solves, the point and its products there, and its C or epsilon."""
        g, first = s - self.q, self.groups
        level = _level(g, a, self.upper, first) + _level(g, a, self.upper, ~first)
        least = jnp.finfo(s.dtype).eps * self.diagonal.max() * a.sum() + jnp.finfo(s.dtype).tiny  # of a margin's terms
        r = jnp.ones_like(level) if self.tube else jnp.maximum(level / 2, least.astype(s.dtype))
        epsilon = jnp.maximum(-level / 2, 0) if self.tube else jnp.zeros_like(level)
        q = self.q - epsilon if self.tube else jnp.ones_like(self.q)
        parts = {field.name: getattr(self, field.name) for field in dataclasses.fields(BoxProblem)}
        whole = BoxProblem(**{**parts, "q": q, "C": self.C / r, "e": jnp.zeros_like(self.e)})
        return whole, a / r, s / r, epsilon if self.tube else 1 / r

    def hinge_of(self, fit: Any) -> tuple[BoxProblem, Any]:
        """Return the hinge problem that a concrete fit of two classes solves, and the fit in its scale."""
        parts = {field.name: getattr(self, field.name) for field in dataclasses.fields(BoxProblem)}
        a = abs(np.asarray(fit.dual_coef))
        C = owned(float(self.C) * a.sum(dtype=float) / (2 * float(self.e)), self.dtype)
        hinge = BoxProblem(**{**parts, "q": filled(self.q, 1), "C": C, "e": self.constant})
        return hinge, dataclasses.replace(fit, alpha=a)

    def certificate(self, point: Array, s: Array, bias: Any = None) -> Certificate:
        """Return the certificate of the `machine`, whose bias is its own."""
        del bias
        machine, a, s, _ = self.machine(point, s)
        return machine.certificate(a, s)

    def certified(self, point: Array, s: Array, dtype: Any, bias: Any = None) -> Answer:
        """Certify the `machine` that a point solves, in the numbers that the caller gets."""
        del bias
        machine, a, s, _ = self.machine(point, s)
        if not self.tube and dtype != a.dtype:
            a = rounded(a, dtype)
            s = machine.matvec(a)
        return machine.certified(a, s, dtype)._replace(alpha=point)


def _level(g: Array, a: Array, upper: Array, mine: Array) -> Array:
    """Return the gradient of a group's free variables, or the middle of its bounds if there are none."""
    rounding = 16 * jnp.finfo(a.dtype).eps * upper  # what is left of a variable that a pair step took to its bound
    above, below = mine & (a > rounding), mine & (a < upper - rounding)
    free, top, bottom = above & below, jnp.where(below, -g, -jnp.inf).max(), jnp.where(above, -g, jnp.inf).min()
    middle = jnp.where(jnp.isfinite(bottom), (top + bottom) / 2, top)
    between = jnp.where(jnp.isfinite(top), middle, bottom)
    return jnp.where(free.any(), jnp.where(free, g, 0).sum() / jnp.maximum(free.sum(), 1), -between)


@transfers
def nu_problem(gram: Gram, y: ArrayLike, nu: ArrayLike = 0.5, *, sample_weight: ArrayLike | None = None) -> NuProblem:
    """Build the nu SVM of labelled samples, whose bias is free (Schoelkopf et al. 2000; LIBSVM's scale).

    A fit is calibrated, and certified as the hinge problem at the C that nu stands for: `max(|dual_coef|)` of samples
    of weight 1 that have a loss.

    Args:
        gram: The Gram operator of the n samples.
        y: Labels in {-1, +1}, `(n,)`.
        nu: At most this share of the samples has margin errors, at least this share is support, in (0, 1], `()`.
        sample_weight: Non-negative weights, `(n,)`; nu is a share of their sum.

    Raises:
        InputError: On concrete values that make no problem, such as a nu above twice the share of the smaller class.
            Under tracing the fit's status is INFEASIBLE instead.
    """
    arguments.require_share("nu", nu)
    hinge = hinge_problem(gram, y, 1.0, bias="free", sample_weight=sample_weight)
    xp: Any = np if is_concrete(hinge, nu) else jnp
    total, apart = xp.asarray(hinge.upper).sum(), xp.asarray(hinge.upper) @ xp.asarray(hinge.y)
    most, share = 1 - abs(apart) / total, xp.asarray(nu, hinge.dtype)
    feasible = xp.asarray(hinge.feasible) & (share <= most * (1 + 1e-6)) & (share > 0)  # shares are rounded
    if xp is np and not feasible:
        raise InputError(f"nu is {nu}: at most twice the smaller class's share, {most:.6g}, is possible.")
    e = owned(xp.minimum(share, most) * total / 2, hinge.dtype)
    parts = {field.name: getattr(hinge, field.name) for field in dataclasses.fields(BoxProblem)}
    return NuProblem(**{**parts, "q": filled(hinge.q, 0), "e": e, "feasible": owned(feasible, bool)})
