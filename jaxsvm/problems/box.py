"""Hinge problems: the box dual in the general form that a reduced problem, SVR or a one-class machine needs too.

    max  q'a - 1/2 a'Qa    over  0 <= a_i <= U_i,  optionally  c'a = e,        Q_ij = y_i y_j (K_ij + offset)

is the dual of `min 1/2 |w|^2 + b e + sum_i U_i max(0, q_i - y_i <w, phi_i> - b c_i)`; `q = 1` and `U_i = C weight_i`
make it the hinge SVM (`lambda = 1 / (n C)` in Cotter et al. 2012 and Pegasos), and `c = y`, `e = 0` its
unregularised bias. With `s = Qa` and `r = q - s - b c` the gap is a sum of terms none of which is negative,

    P - D = sum_i (U_i - a_i) max(0, r_i) + a_i max(0, -r_i),

which is how it is computed: without cancellation, for any b.
"""

import dataclasses
from functools import partial
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxsvm.derivatives import box as derivatives
from jaxsvm.derivatives.values import Active, Values
from jaxsvm.errors import InputError, is_concrete, require_finite
from jaxsvm.gram.contract import Gram
from jaxsvm.gram.dense import part_of, values_between
from jaxsvm.gram.signed import SignedGram
from jaxsvm.numerics.masks import count, every, some
from jaxsvm.numerics.precision import in_double, like, rounded, rounding, widened
from jaxsvm.numerics.sums import sums
from jaxsvm.problems.arguments import (
    checked_signs,
    checked_weights,
    costs_hold,
    labelled,
    positive_scalar,
    require_costs,
    require_positive_scalar,
    two_classes,
    vector_dtype,
    weights_times,
)
from jaxsvm.problems.certificates.corrections import beside
from jaxsvm.problems.padding import in_size_class, padded
from jaxsvm.results.fit import Answer, Certificate
from jaxsvm.results.judge import balances, judged
from jaxsvm.runtime.arrays import lengthened, owned, shortened
from jaxsvm.runtime.loops import fori_loop
from jaxsvm.runtime.programs import Program
from jaxsvm.runtime.transfers import transfers

ALLOWED = 4
"""The allowance for rounding in standard deviations of its sum."""
PROJECTION_STEPS = 64
"""Bisections of a multiplier: more than a float64 bracket has bits to lose."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class BoxProblem:
    """A hinge SVM, or any problem of its form. Build it with `hinge_problem` or `box_problem`.

    A *point* of it is `a`, `(n,)`, feasible; or two rows, `(2, n)`: coefficients of a w of the primal, whatever they
    are, and a feasible `a`, for solvers whose w is not made of their dual variables.

    Attributes:
        gram: The kernel matrix of the samples, as an operator.
        y: Signs, `(n,)`.
        q: The linear term, `(n,)`: 1 for an SVM.
        upper: U, `(n,)`, not negative; 0 for an absent sample.
        c: The equality constraint's coefficients, `(n,)`; None where there is none.
        e: Its right-hand side, `()`.
        C: What `upper` was scaled with, `()`: `at` takes another one.
        constant: What samples that are fixed contribute to the dual objective, `()`; 0 for a whole problem.
        diagonal: `Q_ii`, `(n,)`.
        mask: Samples of positive weight, `(n,)`; None where no weights were given.
        feasible: Whether the values make a problem, `()`: known late under tracing.
        offset: 1.0 with a regularised bias, 0.0 without; static.
    """

    kind = "box"
    operator = "gram"
    padding: ClassVar[Any] = {"y": 1, "q": 1, "upper": 0, "c": None, "diagonal": None}
    solved_by = "SMO"
    corrects = True
    parameter = "C"
    restricts = True
    differentiable = True

    gram: Gram
    y: Float[Array, " n"]
    q: Float[Array, " n"]
    upper: Float[Array, " n"]
    c: Float[Array, " n"] | None
    e: Float[Array, ""]
    C: Float[Array, ""]
    constant: Float[Array, ""]
    diagonal: Float[Array, " n"]
    mask: Bool[Array, " n"] | None
    feasible: Bool[Array, ""]
    offset: float = dataclasses.field(metadata={"static": True})

    @property
    def ridge(self) -> Float[Array, " n"]:
        """What is added to the diagonal of `Q`: nothing."""
        return jnp.zeros_like(self.y)

    @property
    def n(self) -> int:
        """How many samples."""
        return self.y.shape[-1]

    @property
    def dtype(self) -> Any:
        """The dtype of the solver's vectors."""
        return self.y.dtype

    @property
    def free_bias(self) -> bool:
        """Whether there is an equality constraint, whose multiplier b is an unregularised bias."""
        return self.c is not None

    @property
    def equality(self) -> Float[Array, " n"] | None:
        """Coefficients of the equality that dual points keep, `(n,)`, or None."""
        return self.c

    @property
    def present(self) -> Bool[Array, " n"]:
        """Samples that take part, `(n,)`."""
        return self.upper > 0

    @property
    def signed(self) -> SignedGram:
        """Q."""
        return SignedGram(self.gram, self.y, self.offset)

    def at(self, C: Any) -> Self:
        """The same problem at another C: the upper bounds alone change.

        Args:
            C: Positive, `()`; in units of the bounds as they were given for `box_problem`.

        Raises:
            InputError: On a concrete C that is none; under tracing the fit's status is INFEASIBLE instead.
        """
        require_positive_scalar("C", C)
        if is_concrete(self.upper, self.C):
            require_costs(C, np.asarray(self.upper, np.float64) / float(self.C), self.dtype)
        here, new = padded(self), np.asarray(C, self.dtype) if is_concrete(C) else C
        penalty, upper, feasible = shortened(_rescaled(here, new), self.n, here.n)
        return dataclasses.replace(self, C=penalty, upper=upper, feasible=feasible)

    def weighted(self, sample_weight: Any) -> Self:
        """The same problem with its bounds times these weights: a fold, say, or some samples absent.

        Args:
            sample_weight: Non-negative, `(n,)`; 0 is absence.

        Raises:
            InputError: On concrete weights that cannot be used; under tracing as for `at`.
        """
        weight, _, feasible = checked_weights(sample_weight, self.n, self.dtype)
        if is_concrete(self.upper, self.C, weight):
            product = weights_times(weight, np.asarray(self.upper, np.float64) / float(self.C))
            require_costs(self.C, product, self.dtype)
        here = padded(self) if is_concrete(weight) else self
        weight = weight if here is self else lengthened(weight, here.n, 0)
        upper, mask, feasible = shortened(_reweighted(here, weight, feasible), self.n, here.n)
        return dataclasses.replace(self, upper=upper, mask=mask, feasible=feasible)

    def weights(self) -> np.ndarray | None:
        """`U_i / C` on the host, `(n,)`; None where they are all 1, or traced."""
        if self.mask is None or not is_concrete(self.upper, self.C):
            return None
        return np.asarray(self.upper, np.float64) / float(self.C)

    def on(self, gram: Gram) -> Self:
        """The same samples with another Gram operator: the landmarks of a fold, say."""
        return dataclasses.replace(self, gram=gram, diagonal=_diagonal(gram, self.upper, self.offset))

    def restrict(self, samples: Int[Array, " m"], fixed: Any = None, gram: Gram | None = None) -> Self:
        """The problem of some samples while all others stay where they are: a box problem again.

        `q_S - Q_SR a_R` stands for q and `e - c_R' a_R` for e; `constant` makes its objective that of the whole. With a
        solution of it put into `fixed`, the whole has this solution too, if R is where a solution has it.

        Args:
            samples: S, distinct indices, `(m,)`.
            fixed: A point, `(n,)`, of which the others' values are kept; None: they are 0.
            gram: The Gram operator of S, where it is at hand; None stores `K_SS`, m^2 values.
        """
        gram = part_of(self.gram, values_between(self.gram, samples)) if gram is None else gram
        parts = _restricted(self, samples, None if fixed is None else jnp.asarray(fixed, self.dtype))
        return dataclasses.replace(self, gram=gram, **parts)  # out of the jit, which would copy it

    def column(self, i: Int[Array, ""]) -> Float[Array, " n"]:
        """`Q[:, i]`, n kernel evaluations."""
        return self.signed.row(i)

    def columns(self, indices: Int[Array, " t"]) -> Float[Array, "t n"]:
        """`Q[indices, :]`."""
        return self.signed.rows(indices)

    def block(self, rows: Int[Array, " t"], columns: Int[Array, " u"]) -> Float[Array, "t u"]:
        """`Q[rows, columns]`."""
        return self.signed.block(rows, columns)

    def matvec(self, point: Float[Array, "*two n"]) -> Float[Array, "*two n"]:
        """`s = Qa` from scratch, of each row of a point."""
        return (
            SignedGram(self.gram, self.y[:, None], self.offset).matvec(point.T).T
            if point.ndim == 2
            else (self.signed.support_matvec(point))
        )

    def feasible_point(self, a: Float[Array, " n"]) -> Float[Array, " n"]:
        """The nearest feasible point: `clip(a - t c, 0, U)` with the multiplier t that meets the equality."""
        if self.c is None:
            return jnp.clip(a, 0, self.upper)
        a, c = jnp.clip(a, 0, self.upper), self.c

        def at(t: Array) -> Array:
            return jnp.clip(a - t * c, 0, self.upper)

        # Beyond these ends every sample is at the bound that c pulls it to.
        reach = (jnp.maximum(a, self.upper - a) / jnp.where(c == 0, 1, jnp.abs(c))).max()

        def halve(_: Any, ends: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = ends
            middle = (low + high) / 2
            above = c @ at(middle) > self.e
            return jnp.where(above, middle, low), jnp.where(above, high, middle)

        low, high = fori_loop(0, PROJECTION_STEPS, halve, (-reach, reach))
        reached, size = sums(c * a, jnp.abs(c * a))
        met = jnp.abs(reached - self.e) <= self._rounding(size)
        return jnp.where(met, a, self.on_equality(at((low + high) / 2)))

    def on_equality(self, a: Float[Array, " n"]) -> Float[Array, " n"]:
        """A point that rounding took off the equality, put back: each sample goes the same share of its room.

        Those inside the box alone where they suffice: bounds stay bounds, which is what derivatives go by.
        """
        if self.c is None:
            return a
        met, size = sums(self.c * a, jnp.abs(self.c * a))
        too_much = met - self.e
        target = jnp.where(self.c * too_much > 0, 0, self.upper)
        room = jnp.abs(self.c * (target - a))
        inside = (a > 0) & (a < self.upper)
        of_inside, of_all = sums(jnp.where(inside, room, 0), jnp.where(self.present, room, 0))
        enough = of_inside > jnp.abs(too_much)
        moved, total = jnp.where(enough, inside, self.present), jnp.where(enough, of_inside, of_all)
        off = jnp.abs(too_much) > self._rounding(size)
        share = jnp.where(off, jnp.clip(jnp.abs(too_much) / jnp.where(total > 0, total, 1), 0, 1), 0)
        return jnp.where(moved, a + share * (target - a), a)

    def best_bias(self, s: Float[Array, " n"]) -> Float[Array, ""]:
        """The b that makes the primal smallest for margins s (without b): the middle where a whole interval does."""
        if self.c is None:
            return jnp.zeros((), s.dtype)
        weight = self.upper * jnp.abs(self.c)
        breaks = (self.q - s) / jnp.where(self.c == 0, 1, self.c)
        order = jnp.argsort(jnp.where(weight > 0, breaks, jnp.inf))
        sorted_breaks, steps = breaks[order], weight[order]
        # The slope right of each break; at -infinity every sample with c > 0 has slack.
        upward, total = sums(jnp.where(self.c > 0, weight, 0), weight)
        slope = self.e - upward + jnp.cumsum(steps)
        rounding = 8 * jnp.finfo(s.dtype).eps * total
        below, present = count(slope < -rounding), count(steps > 0)
        first = jnp.minimum(below, jnp.maximum(present - 1, 0))
        flat = (jnp.abs(slope[first]) <= rounding) & (first + 1 < present)
        last = jnp.where(flat, jnp.minimum(first + 1, s.shape[0] - 1), first)
        return (sorted_breaks[first] + sorted_breaks[last]) / 2

    def margins(self, point: Float[Array, "*two n"], s: Float[Array, "*two n"]) -> Float[Array, " n"]:
        """`y_i f(x_i)` of the primal's w with its best bias (for `c = y`)."""
        del point
        s = s[0] if s.ndim == 2 else s
        return s if self.c is None else s + self.best_bias(s) * self.c

    def gradient(self, a: Float[Array, " n"], margins: Float[Array, " n"]) -> Float[Array, " n"]:
        """`s = Qa` from `margins` of the same a, whatever U they were computed at; with a bias, from scratch."""
        return margins if self.c is None else self.matvec(a)

    def objective(self, point: Float[Array, "*two n"], s: Float[Array, "*two n"]) -> Float[Array, ""]:
        """`-D`, which solvers of the dual make smaller."""
        a, s = (point[-1], s[-1]) if point.ndim == 2 else (point, s)
        return a @ (s / 2 - self.q) - self.constant

    def certificate(self, point: Float[Array, "*two n"], s: Float[Array, "*two n"], bias: Any = None) -> Certificate:
        """The duality gap over `|D|` as if s were exact: solvers look at it; what is decided rests on `certified`.

        Args:
            point: A point, see the class.
            s: `Q` times each row.
            bias: The b to take; None: the best one.
        """
        w_s, a, a_s = (s[0], point[1], s[1]) if point.ndim == 2 else (s, point, s)
        b = self.best_bias(w_s) if bias is None else bias
        r = self.q - w_s - (0 if self.c is None else b * self.c)
        rest = (self.upper - a) * jnp.maximum(0, r) + a * jnp.maximum(0, -r)
        terms, eps = a * (self.q - a_s / 2), jnp.finfo(s.dtype).eps
        outside = jnp.where((a < 0) | (a > self.upper * (1 + 4 * eps)), jnp.ones_like(a), 0)
        dual, gap, size, infeasible = sums(terms, rest, jnp.abs(terms), outside)
        dual = dual + self.constant
        if point.ndim == 2:
            norm, loss = sums(point[0] * w_s, self.upper * jnp.maximum(0, r))
            gap, size = norm / 2 + b * self.e + loss + self.constant - dual, size + jnp.abs(norm) + loss
        error = 8 * rounding(self.n, s.dtype) * (size + jnp.abs(b * self.e) + jnp.abs(self.constant))
        return judged(dual + gap, dual, gap, jnp.abs(dual), rounding=error, feasible=infeasible == 0)

    def certified(self, point: Float[Array, "*two n"], s: Float[Array, "*two n"], dtype: Any) -> Answer:
        """A point as it is returned, certified.

        With `r = q - s - b c` for the b that is returned, the gap is `sum_i (U_i - a_i) max(0, r_i) + a_i max(0,
        -r_i)`, and what a rounded bias and an equality that rounding misses add to it.

        Args:
            point: A point, numbers of `dtype`, see the class; its gap is infinite where a leaves the box.
            s: `Q` times each row from scratch, in twice the precision.
            dtype: Of the numbers that are returned.
        """
        w, a, w_s, a_s = (*point, *s) if point.ndim == 2 else (point, point, s, s)
        size = jnp.sqrt(jnp.maximum(self.diagonal, 0))
        c = jnp.zeros_like(a) if self.c is None else self.c
        balance, met, spread, dual = sums(self.y * w, c * a, jnp.abs(w) * size, a * (self.q - a_s / 2))
        constant, dual = self.offset * balance, dual + self.constant
        best = constant if self.c is None else self.best_bias(w_s)
        bias = rounded(best, dtype)
        off = bias - best  # 0 but for rounding; the best one of an equality is the one that counts
        shift = self.y * off if self.c is None else bias * self.c
        r = self.q - w_s - shift
        missed = jnp.zeros_like(bias) if self.c is None else jnp.abs(bias * (met - self.e))
        eps = rounding(self.n, s.dtype)
        error = eps * (size * spread + jnp.abs(self.q) + jnp.abs(shift))
        if point.ndim == 2:
            of_bias = bias * self.e if self.c is not None else self.offset * (off * constant + off**2 / 2)
            norm, loss, reach, *sizes = sums(
                w * w_s,
                self.upper * jnp.maximum(0, r),
                a * size,
                jnp.abs(w * w_s),
                jnp.abs(a) * (jnp.abs(self.q) + jnp.abs(a_s)),
            )
            primal = norm / 2 + of_bias + loss + self.constant
            allowed = 8 * eps * (loss + sum(sizes))
            gap = primal - dual + missed + allowed
            weight = jnp.where(r > -error, self.upper, 0) + jnp.abs(w) + a
            error, rest = jnp.maximum(error, eps * size * reach), jnp.zeros_like(a)
        else:
            allowed = jnp.zeros_like(dual)
            gap, rest = 2 * missed + off**2 / 2, (self.upper - a) * jnp.maximum(0, r) + a * jnp.maximum(0, -r)
            # Far from the kink errors change nothing.
            weight = jnp.where(r > -error, self.upper - a, 0) + jnp.where(r < error, a, 0)
        # Errors of different samples are independent and add up by squares. A point outside the box bounds nothing; one
        # whose bounds were rounded on another way is off by units of them.
        beyond = jnp.maximum(a - self.upper, 0)
        inside = every((a >= 0) & (beyond <= 4 * jnp.finfo(dtype).eps * self.upper))
        squares, outside, terms, reached = sums((weight * error) ** 2, beyond * jnp.abs(r), rest, jnp.abs(c * a))
        allowed = allowed + ALLOWED * jnp.sqrt(squares) + 2 * outside
        gap = gap + terms + ALLOWED * jnp.sqrt(squares) + 2 * outside
        feasible = inside if self.c is None else inside & balances(met - self.e, reached + jnp.abs(self.e), dtype)
        # What the dual is off by counts in what the gap is relative to.
        found = judged(dual + gap, dual, gap, jnp.abs(dual) - allowed, rounding=allowed, feasible=feasible)
        return Answer(
            alpha=a,
            dual_coef=self.y * w,
            bias=bias if self.c is not None or self.offset else jnp.zeros_like(bias),
            R=jnp.ones((), a.dtype),
            margins=w_s + shift,
            certificate=found._replace(relative_gap=found.relative_gap + 8 * jnp.finfo(s.dtype).eps),
        )

    def beside(self, a: Float[Array, " n"], s: Float[Array, " n"], dtype: Any, w: Any = None) -> tuple[Array, Array]:
        """A point with a w of a smaller primal beside this dual one, and its products (`corrections.py`)."""
        return beside(self, a, s, dtype, w)

    def indefinite(self, objective: Float[Array, ""]) -> Bool[Array, ""]:
        """Never known from the objective: the box bounds it for any kernel."""
        return jnp.zeros_like(objective, bool)

    def _rounding(self, size: Float[Array, ""]) -> Float[Array, ""]:
        """What `c'a - e` may amount to by rounding alone, of `|c|'|a|`."""
        return 4 * jnp.finfo(size.dtype).eps * (size + jnp.abs(self.e))

    bounded = True

    @property
    def targets(self) -> Float[Array, " n"]:
        """The margins at which samples begin to have a loss: q."""
        return self.q

    # What derivatives of a solution are made of (`jaxsvm.problems.contract.Differentiable`).

    def active_set(self, values: Any, before: Active | None = None) -> Active:
        """Samples inside the box and at its upper bound: of a fit, or of the solution on the sets `before`."""
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
def hinge_problem(
    gram: Any, y: Any, C: Any = 1.0, *, bias: str = "regularized", sample_weight: Any = None
) -> BoxProblem:
    """The hinge SVM of labelled samples: `min 1/2 |w|^2 + sum_i C_i max(0, 1 - y_i f(x_i))`.

    Args:
        gram: The Gram operator of the n samples, from `jaxsvm.gram`.
        y: Labels in {-1, +1}, `(n,)`.
        C: The penalty of a unit of slack, positive, `()`: scikit-learn's `SVC(C=C)` with `bias="free"`;
            `lambda = 1 / (n C)` of Pegasos.
        bias: "regularized" (the constant is one more feature of value 1), "none", or "free" (not regularised).
        sample_weight: Non-negative weights, `(n,)`: `C_i = C w_i`. Weight 0 is absence, weight 2 duplication.

    Returns:
        The problem; a pytree. Its certificate is in the scale of this objective.

    Raises:
        InputError: On concrete values that make no problem; under tracing the fit's status is INFEASIBLE instead.
    """
    penalty = positive_scalar("C", C, vector_dtype(gram))
    signs, weight, mask, feasible, offset = labelled(gram, y, bias, sample_weight, "hinge")
    require_costs(C, sample_weight, signs.dtype)
    ones, upper, diagonal, feasible = in_size_class(_assembled, gram, signs, penalty, weight, offset, feasible)
    return BoxProblem(
        gram=gram,
        y=signs,
        q=ones,
        upper=upper,
        c=signs if bias == "free" else None,
        e=jnp.zeros((), signs.dtype),
        C=penalty,
        constant=jnp.zeros((), signs.dtype),
        diagonal=diagonal,
        mask=mask,
        feasible=feasible,
        offset=offset,
    )


@partial(Program, brief=True)
def _assembled(
    gram: Gram, y: Array, C: Array, weight: Array | None, offset: Any, usable: Any
) -> tuple[Array, Array, Array, Array]:
    """Linear term, upper bounds, diagonal, and whether the values make a problem, in one program."""
    ones = jnp.ones_like(y)
    upper = C * (ones if weight is None else weight)
    usable = (
        usable & two_classes(y, upper > 0) & (C > 0) & costs_hold(upper, ones > 0 if weight is None else weight > 0)
    )
    return ones, upper, gram.diag().astype(y.dtype) + offset, usable


@transfers
def box_problem(gram: Any, q: Any, upper: Any, *, y: Any = None, c: Any = None, e: Any = 0.0) -> BoxProblem:
    """`max q'a - 1/2 a'Qa` over `0 <= a <= U`, optionally `c'a = e`, with `Q = K`, or `Q_ij = y_i y_j K_ij`.

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
        InputError: On concrete values that make no problem; under tracing the fit's status is INFEASIBLE instead.
    """
    dtype, n = vector_dtype(gram), gram.n
    vectors = {"q": q, "upper": upper, "y": 1.0 if y is None else y, "c": 0.0 if c is None else c}
    for name, value in vectors.items():
        if np.shape(value) not in ((), (n,)) or (name == "q" and np.shape(value) == ()):
            raise InputError(f"{name} has shape {np.shape(value)}: ({n},) is needed, one a point.")
        require_finite(name, value)
    if y is not None:
        y = checked_signs(y, n, dtype)
    if is_concrete(upper) and (np.asarray(upper) < 0).any():
        raise InputError(f"upper holds {float(np.min(upper))}: bounds must not be negative.")
    if c is None and is_concrete(e) and float(e) != 0:
        raise InputError(f"e is {float(e)} without c: an equality constraint has coefficients c.")
    upper = jnp.broadcast_to(owned(upper, dtype), (n,))
    coefficients = None if c is None else jnp.broadcast_to(owned(c, dtype), (n,))
    e, feasible = owned(e, dtype), every(upper >= 0)
    if coefficients is not None:
        usable = every((coefficients != 0) | (upper == 0))  # pairs move along 1 / c
        if is_concrete(usable) and not bool(usable):
            raise InputError("c holds 0: every point in the box (upper > 0) takes part in the equality constraint.")
        feasible = feasible & usable
        reachable = _reachable(coefficients, e, upper)
        if is_concrete(reachable) and not bool(reachable):
            least, most = _ends(coefficients, upper)
            raise InputError(f"e is {float(e)}: c'a lies between {float(least):.6g} and {float(most):.6g} in this box.")
        feasible = feasible & reachable
    return BoxProblem(
        gram=gram,
        y=jnp.ones((n,), dtype) if y is None else y,
        q=owned(q, dtype),
        upper=upper,
        c=coefficients,
        e=e,
        C=jnp.ones((), dtype),
        constant=jnp.zeros((), dtype),
        diagonal=gram.diag().astype(dtype),
        mask=None,
        feasible=feasible,
        offset=0.0,
    )


@jax.jit
def _diagonal(gram: Gram, upper: Array, offset: Any) -> Array:
    return gram.diag().astype(upper.dtype) + offset


@partial(Program, brief=True)
def _rescaled(problem: BoxProblem, C: Any) -> tuple[Array, Array, Array]:
    C = jnp.asarray(C, problem.dtype)
    upper = problem.upper * (C / problem.C)
    usable = problem.feasible & (C > 0) & costs_hold(upper, problem.upper > 0)
    return C, upper, usable & _reachable(problem.c, problem.e, upper)


@partial(Program, brief=True)
def _reweighted(problem: BoxProblem, weight: Array, usable: Array) -> tuple[Array, Array, Array]:
    upper, present = problem.upper * weight, (problem.upper > 0) & (weight > 0)
    usable = usable & problem.feasible & some(present) & costs_hold(upper, present)
    return upper, present, usable & _reachable(problem.c, problem.e, upper)


def _reachable(c: Any, e: Array, upper: Array) -> Bool[Array, ""]:
    """Whether the box holds a point of the equality, but for rounding."""
    if c is None:
        return jnp.asarray(True)
    least, most = _ends(c, upper)
    slack = 8 * jnp.finfo(upper.dtype).eps * jnp.abs(c * upper).sum()
    return (e >= least - slack) & (e <= most + slack)


def _ends(c: Array, upper: Array) -> tuple[Array, Array]:
    """What `c'a` lies between in the box."""
    terms = c * upper
    return jnp.minimum(terms, 0).sum(), jnp.maximum(terms, 0).sum()


@jax.jit
def _restricted(problem: BoxProblem, samples: Array, fixed: Array | None) -> dict[str, Any]:
    """What the problem of some samples has for its fields.

    The others' part is a product of its own, in twice the precision: what is left of `Qa` less `Q_SS a_S` is rounding.
    """
    picked = {
        name: None if (whole := getattr(problem, name)) is None else whole[samples]
        for name in ("y", "q", "upper", "diagonal", "mask", "c")
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
