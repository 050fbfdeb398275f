"""Nu machines: box problems with two groups of variables, those of each sign, whose sums are given.

    min 1/2 a'Qa - q'a    over  0 <= a_i <= U_i,  sum of a_i over y_i = +1: e,  over y_i = -1: e.

Of two classes q is 0; a solution divided by its margin r is that of the hinge problem at `C = 1 / r`. Of regression q
has the targets, and a solution is that of a tube whose width the sums determine. As such solutions are certified.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from numpy.typing import ArrayLike

from jaxsvm.errors import InputError, is_concrete
from jaxsvm.gram.contract import Gram
from jaxsvm.numerics.precision import rounded
from jaxsvm.problems import arguments
from jaxsvm.problems.box import BoxProblem, hinge_problem
from jaxsvm.problems.certificates import constraint
from jaxsvm.results.fit import Answer, Certificate
from jaxsvm.runtime.arrays import filled, owned, transfers


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class NuProblem(BoxProblem):
    """A nu machine. Build it with `nu_problem`.

    Attributes (beside those of `BoxProblem`, where e is the sum of each group):
        tube: Whether it is one of regression; static.
    """

    kind = "nu"
    parameter = None
    restricts = corrects = differentiable = False

    tube: bool = dataclasses.field(default=False, metadata={"static": True})

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
        return self._by_groups(constraint.feasible_point, a)

    def on_equality(self, a: Float[Array, " n"]) -> Float[Array, " n"]:
        """Return a point of the box moved back onto the sums that rounding took it off."""
        return self._by_groups(constraint.on_equality, a)

    def _by_groups(self, move: Any, a: Array) -> Array:
        first = self.groups
        parts = (dataclasses.replace(self, c=mine.astype(self.dtype)) for mine in (first, ~first))
        return jnp.where(first, *(move(part, a) for part in parts))

    def margins(self, point: Array, s: Array) -> Float[Array, " n"]:
        """Return the products: there is no path, so no point is moved to another C."""
        return s

    def gradient(self, a: Float[Array, " n"], margins: Float[Array, " n"]) -> Float[Array, " n"]:
        """Return `s = Qa` from `margins`."""
        return margins

    def machine(self, a: Float[Array, " n"], s: Float[Array, " n"]) -> tuple[BoxProblem, Array, Array, Array]:
        """Return the problem without nu that a point solves, the point and its products there, and its C or epsilon."""
        g, first = s - self.q, self.groups
        level = _level(g, a, self.upper, first) + _level(g, a, self.upper, ~first)
        tiny = jnp.asarray(jnp.finfo(s.dtype).tiny, s.dtype)
        r = jnp.ones_like(level) if self.tube else jnp.maximum(level / 2, tiny)
        epsilon = jnp.maximum(-level / 2, 0) if self.tube else jnp.zeros_like(level)
        q = self.q - epsilon if self.tube else jnp.ones_like(self.q)
        parts = {field.name: getattr(self, field.name) for field in dataclasses.fields(BoxProblem)}
        whole = BoxProblem(**{**parts, "q": q, "C": self.C / r, "e": jnp.zeros_like(self.e)})
        return whole, a / r, s / r, epsilon if self.tube else 1 / r

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
    free = mine & (a > 0) & (a < upper)
    top = jnp.where(mine & (a < upper), -g, -jnp.inf).max()
    bottom = jnp.where(mine & (a > 0), -g, jnp.inf).min()
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
    feasible = xp.asarray(hinge.feasible) & (share <= most * (1 + 1e-6)) & (share > 0)
    if xp is np and not feasible:
        raise InputError(f"nu is {nu}: at most twice the smaller class's share, {most:.6g}, is possible.")
    e = owned(xp.minimum(share, most) * total / 2, hinge.dtype)
    parts = {field.name: getattr(hinge, field.name) for field in dataclasses.fields(BoxProblem)}
    return NuProblem(**{**parts, "q": filled(hinge.q, 0), "e": e, "feasible": owned(feasible, bool)})
