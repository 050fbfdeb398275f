"""Hinge problems, as the box dual in the general form that reduced problems, SVR and one-class machines need.

    max  q'a - 1/2 a'Qa    over  0 <= a_i <= U_i,  optionally  c'a = e,        Q_ij = y_i y_j (K_ij + offset)

is the dual of `min 1/2 |w|^2 + b e + sum_i U_i max(0, q_i - y_i <w, phi_i> - b c_i)`; `q = 1` and `U_i = C weight_i`
make it the hinge SVM (`lambda = 1 / (n C)` in Cotter et al. 2012 and Pegasos), and `c = y`, `e = 0` its
unregularised bias. With `s = Qa` and `r = q - s - b c` the gap is a sum of terms none of which is negative,

    P - D = sum_i (U_i - a_i) max(0, r_i) + a_i max(0, -r_i),

so that it is computed without cancellation, for any b.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import ArrayLike

from jaxsvm.derivatives import box as derivatives
from jaxsvm.errors import InputError, is_concrete, require_finite
from jaxsvm.gram.contract import Gram
from jaxsvm.gram.dense import among
from jaxsvm.gram.signed import SignedGram
from jaxsvm.numerics.masks import every
from jaxsvm.numerics.precision import in_double, like, widened
from jaxsvm.problems import arguments
from jaxsvm.problems.certificates import box as certificates
from jaxsvm.problems.certificates import constraint, corrections
from jaxsvm.problems.samples import OfSamples, checked, squares
from jaxsvm.runtime.arrays import filled, in_a_line, on_device, owned, transfers


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class BoxProblem(OfSamples):
    """A hinge SVM, or any problem of its form. Build it with `hinge_problem` or `box_problem`.

    A *point* of it is a feasible `a`, `(n,)`. For solvers whose w is not made of their dual variables it has two rows,
    `(2, n)`: any coefficients of a w of the primal, and a feasible `a`.

    Attributes (beside those of `OfSamples`):
        q: The linear term, `(n,)`: 1 for an SVM.
        c: The equality constraint's coefficients, `(n,)`; None if there is none.
        e: Its right-hand side, `()`.
        C: The factor of the weights in the bounds, `()`; `at` takes another one.
        constant: The share of fixed samples in the dual objective, `()`; 0 for a whole problem.
    """

    __repr__ = in_a_line

    kind = "box"
    vectors = ("y", "q", "c", "squares")
    needs_classes = False
    solved_by = "SMO"
    corrects = True
    bounded = True
    parameter = "C"
    restricts = True
    differentiable = True
    groups = None  # of variables whose sums are given, each by itself (`jaxsvm.problems.nu`)

    gram: Gram
    y: Float[Array, " n"]
    q: Float[Array, " n"]
    weight: Float[Array, " n"] | None
    c: Float[Array, " n"] | None
    e: Float[Array, ""]
    C: Float[Array, ""]
    constant: Float[Array, ""]
    squares: Float[Array, " n"]
    feasible: Bool[Array, ""]
    offset: float = dataclasses.field(metadata={"static": True})

    @property
    def ridge(self) -> Float[Array, " n"]:
        """Return zeros, `(n,)`: nothing is added to the diagonal of `Q`."""
        return jnp.zeros_like(self.y)

    @property
    def free_bias(self) -> bool:
        """Return whether there is an equality constraint, whose multiplier b is an unregularised bias."""
        return self.c is not None

    @property
    def equality(self) -> Float[Array, " n"] | None:
        """Return the coefficients of the equality constraint, `(n,)`; None without one."""
        return self.c

    @property
    def targets(self) -> Float[Array, " n"]:
        """Return the margins below which samples have a loss: q, `(n,)`."""
        return self.q

    @property
    def upper(self) -> Float[Array, " n"]:
        """Return the upper bounds `U = C weight`, `(n,)`; 0 for an absent sample."""
        return self.costs

    @property
    def diagonal(self) -> Float[Array, " n"]:
        """Return `Q_ii`, `(n,)`."""
        return self.squares

    def at(self, C: ArrayLike, /) -> Self:
        """Return the problem at another C. For `box_problem`, C is a factor of the bounds given."""
        return constraint.checked(super().at(C))

    def weighted(self, sample_weight: ArrayLike) -> Self:
        """Return the problem with its bounds multiplied by weights `(n,)`."""
        return constraint.checked(super().weighted(sample_weight))

    def restrict(self, samples: Int[Array, " m"], fixed: Any = None, gram: Gram | None = None) -> Self:
        """Return the problem of some samples S while the others R keep their values; a box problem again.

        `q_S - Q_SR a_R` replaces q, `e - c_R' a_R` replaces e, and `constant` makes its objective that of the whole.
        Its solution, put into `fixed`, solves the whole problem if the values of R are those of a solution.

        Args:
            samples: S, distinct indices, `(m,)`.
            fixed: A point, `(n,)`, from which the values of R are read; None: they are 0.
            gram: The Gram operator of S, if it exists already.
        """
        gram = among(self.gram, samples) if gram is None else gram
        parts = _restricted(self, samples, None if fixed is None else jnp.asarray(fixed, self.dtype))
        return dataclasses.replace(self, gram=gram, **parts)  # outside the jit, which would copy it

    def column(self, i: Int[Array, ""]) -> Float[Array, " n"]:
        """Return `Q[:, i]`, n kernel evaluations."""
        return self.signed.row(i)

    def columns(self, indices: Int[Array, " t"]) -> Float[Array, "t n"]:
        """Return `Q[indices, :]`."""
        return self.signed.rows(indices)

    def block(self, rows: Int[Array, " t"], columns: Int[Array, " u"]) -> Float[Array, "t u"]:
        """Return `Q[rows, columns]`."""
        return self.signed.block(rows, columns)

    def matvec(self, point: Float[Array, "*two n"]) -> Float[Array, "*two n"]:
        """Return `s = Qa` of each row of a point, from scratch."""
        if point.ndim == 2:
            return SignedGram(self.gram, self.y[:, None], self.offset).matvec(point.T).T
        return self.signed.support_matvec(point)

    feasible_point = constraint.feasible_point
    on_equality = constraint.on_equality
    best_bias = constraint.best_bias

    def margins(self, point: Float[Array, "*two n"], s: Float[Array, "*two n"]) -> Float[Array, " n"]:
        """Return `y_i f(x_i)` of the primal's w with its best bias (for `c = y`)."""
        del point
        s = s[0] if s.ndim == 2 else s
        return s if self.c is None else s + self.best_bias(s) * self.c

    def gradient(self, a: Float[Array, " n"], margins: Float[Array, " n"]) -> Float[Array, " n"]:
        """Return `s = Qa` from `margins` of the same a at any U; with a free bias, from scratch."""
        return margins if self.c is None else self.matvec(a)

    def objective(self, point: Float[Array, "*two n"], s: Float[Array, "*two n"]) -> Float[Array, ""]:
        """Return `-D`, which solvers of the dual minimise."""
        a, s = (point[-1], s[-1]) if point.ndim == 2 else (point, s)
        return a @ (s / 2 - self.q) - self.constant

    def indefinite(self, objective: Float[Array, ""]) -> Bool[Array, ""]:
        """Return False: the objective proves nothing, since the box bounds it for any kernel."""
        return jnp.zeros_like(objective, bool)

    certificate = certificates.certificate
    certified = certificates.certified
    beside = corrections.beside
    # What derivatives of a solution need (`jaxsvm.problems.contract.Differentiable`):
    active_set = derivatives.active_set
    values_at = derivatives.values_at
    lagrangian = derivatives.lagrangian
    kinks = derivatives.kinks
    certificate_of = derivatives.certificate_of


@transfers
def hinge_problem(
    gram: Gram, y: ArrayLike, C: ArrayLike = 1.0, *, bias: str = "regularized", sample_weight: ArrayLike | None = None
) -> BoxProblem:
    """Build the hinge SVM of labelled samples: `min 1/2 |w|^2 + sum_i C_i max(0, 1 - y_i f(x_i))`.

    Args:
        gram: The Gram operator of the n samples, from `jaxsvm.gram`.
        y: Labels in {-1, +1}, `(n,)`.
        C: The penalty of a unit of slack, positive, `()`. It is the C of scikit-learn's `SVC(C=C)` with
            `bias="free"`, and `lambda = 1 / (n C)` of Pegasos.
        bias: "regularized" (the constant is one more feature of value 1), "none", or "free" (not regularised).
        sample_weight: Non-negative weights, `(n,)`: `C_i = C w_i`. Weight 0 removes a sample, weight 2 doubles it.

    Returns:
        The problem; a pytree. Its certificate is in the scale of this objective.

    Raises:
        InputError: On concrete values that make no problem: a C or cost out of range, labels other than -1 and +1, one
            class only, bad weights. Under tracing the fit's status is INFEASIBLE instead.
    """
    penalty = arguments.positive_scalar("C", C, arguments.vector_dtype(gram))
    signs, weight, usable, offset = arguments.labelled(gram, y, bias, sample_weight, "hinge")
    diagonal, yes = squares(gram, signs.dtype, offset), on_device(np.asarray(True))
    problem = hinge_of(gram, signs, penalty, weight, bias == "free", diagonal, yes, offset)
    return checked(problem, usable)


def hinge_of(
    gram: Gram, y: Array, C: Array, weight: Array | None, free: bool, squares: Array, feasible: Array, offset: float
) -> BoxProblem:
    """Return the hinge problem of parts that are checked, with a free bias or not; also under tracing."""
    zero = on_device(np.zeros((), y.dtype))  # known at once, so that a start at 0 needs no projection
    return BoxProblem(gram, y, filled(y, 1), weight, y if free else None, zero, C, zero, squares, feasible, offset)


@transfers
def box_problem(
    gram: Gram,
    q: ArrayLike,
    upper: ArrayLike,
    *,
    y: ArrayLike | None = None,
    c: ArrayLike | None = None,
    e: ArrayLike = 0.0,
) -> BoxProblem:
    """Build `max q'a - 1/2 a'Qa` over `0 <= a <= U`, optionally `c'a = e`, with `Q = K`, or `Q_ij = y_i y_j K_ij`.

    Args:
        gram: The Gram operator of n points.
        q: The linear term, `(n,)`.
        upper: Upper bounds, `(n,)` or `()`, finite, not negative.
        y: Signs, `(n,)`; None: all +1.
        c: Coefficients of an equality constraint, `(n,)`, none of them 0; None: there is none.
        e: Its right-hand side, `()`.

    Returns:
        The problem; its fit's `alpha` is a, `certificate.dual` the objective reached, `certificate.primal` a bound.

    Raises:
        InputError: On concrete values that make no problem: a wrong shape, negative bounds, signs other than -1 and +1,
            a c with zeros, an e that the box does not reach. Under tracing the fit's status is INFEASIBLE instead.
    """
    dtype, n = arguments.vector_dtype(gram), gram.n
    vectors = {"q": q, "upper": upper, "y": 1.0 if y is None else y, "c": 0.0 if c is None else c}
    if np.ndim(e):
        raise InputError(f"e has shape {np.shape(e)}: one number is needed.")
    for name, value in vectors.items():
        if np.shape(value) not in ((), (n,)) or (name == "q" and np.shape(value) == ()):
            raise InputError(f"{name} has shape {np.shape(value)}: ({n},) is needed, one a point.")
        require_finite(name, value)
    if y is not None:
        y = arguments.checked_signs(y, n, dtype)
    if is_concrete(upper) and (np.asarray(upper) < 0).any():
        raise InputError(f"upper holds {float(np.min(upper))}: bounds must not be negative.")
    if c is None and is_concrete(e) and np.asarray(e) != 0:
        raise InputError(f"e is {np.asarray(e)} without c: an equality constraint has coefficients c.")
    problem = BoxProblem(
        gram=gram,
        y=on_device(np.ones((n,), dtype)) if y is None else y,
        q=owned(q, dtype),
        weight=jnp.broadcast_to(owned(upper, dtype), (n,)),
        c=None if c is None else jnp.broadcast_to(owned(c, dtype), (n,)),
        e=owned(e, dtype),
        C=jnp.ones((), dtype),
        constant=jnp.zeros((), dtype),
        squares=squares(gram, dtype, 0.0),
        feasible=on_device(np.asarray(True)),
        offset=0.0,
    )
    constraint.require_reachable(problem)
    problem = constraint.checked(problem)
    if is_concrete(problem):
        return problem
    usable = (jnp.abs(problem.y) == 1) & (problem.upper >= 0) & jnp.isfinite(problem.upper) & jnp.isfinite(problem.q)
    if problem.c is not None:
        usable = usable & jnp.isfinite(problem.c) & ((problem.c != 0) | (problem.upper == 0))
    return dataclasses.replace(problem, feasible=problem.feasible & every(usable))


@transfers
def svr_problem(
    gram: Gram, y: ArrayLike, C: ArrayLike = 1.0, *, epsilon: ArrayLike = 0.1, sample_weight: ArrayLike | None = None
) -> BoxProblem:
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
    if np.shape(y) != (n,):
        raise InputError(f"y has shape {np.shape(y)}: ({n},) is needed, one target a sample.")
    require_finite("y", y)
    if np.shape(epsilon) or (is_concrete(epsilon) and not 0 <= float(epsilon) < np.inf):  # pyright: ignore
        raise InputError(f"epsilon is {epsilon}: one finite number >= 0 is needed.")
    penalty = arguments.positive_scalar("C", C, dtype)
    weight, usable = arguments.checked_weights(sample_weight, n, dtype)
    sign, q = tube(y, epsilon, xp := np if is_concrete(y, epsilon) else jnp)
    upper = 1.0 if weight is None else jnp.tile(weight, 2)
    both = among(gram, on_device(np.tile(np.arange(n, dtype=np.int32), 2)))
    problem = box_problem(both, xp.asarray(q, dtype), upper, y=sign, c=sign).at(penalty)
    return problem if is_concrete(usable) else dataclasses.replace(problem, feasible=problem.feasible & usable)


def tube(target: Any, epsilon: Any, xp: Any = np) -> tuple[np.ndarray, Any]:
    """Return signs and the linear term of regression, `(2 n,)`: errors above the tube first; xp is NumPy or JAX's."""
    sign = np.repeat([1.0, -1.0], len(target))
    return sign, sign * xp.tile(target, 2) - epsilon


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
    weight = filled(gram.diag(), 1) if weight is None else weight
    problem = box_problem(gram, jnp.zeros_like(weight), weight, c=1.0, e=jnp.asarray(nu) * weight.sum())
    return problem if is_concrete(usable) else dataclasses.replace(problem, feasible=problem.feasible & usable)


@jax.jit
def _restricted(problem: BoxProblem, samples: Array, fixed: Array | None) -> dict[str, Any]:
    """Return the fields of the problem of some samples.

    The others' share is a product of its own, in twice the precision: `Qa - Q_SS a_S` would leave rounding only.
    """
    picked = {
        name: None if (whole := getattr(problem, name)) is None else whole[samples]
        for name in ("y", "q", "weight", "squares", "c")
    }
    if fixed is None:
        return picked

    @in_double
    def carried(problem: BoxProblem, fixed: Array) -> Any:
        wide = widened(problem)
        rest = fixed.astype(wide.dtype).at[samples].set(0)
        s = wide.matvec(rest)
        of_equality = 0.0 if wide.c is None else wide.c @ rest
        parts = ((wide.q - s)[samples], wide.e - of_equality, wide.constant + rest @ (wide.q - s / 2))
        return like(parts, (problem.q, problem.e, problem.constant))

    q, e, constant = carried(problem, fixed)
    return {**picked, "q": q, "e": e, "constant": constant}
