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
from typing import Any, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import ArrayLike

from jaxsvm.errors import InputError, is_concrete, require, require_finite
from jaxsvm.gram.operators import Gram, among
from jaxsvm.gram.signed import SignedGram
from jaxsvm.numerics.line_search import bisected
from jaxsvm.numerics.precision import in_double, like, matmul, rounded, rounding, sums, widened
from jaxsvm.problems import arguments
from jaxsvm.problems.contract import BoxForm, Differentiable
from jaxsvm.problems.samples import OfSamples, checked, negligible, squares
from jaxsvm.results.fit import Active, Answer, Certificate, Point, Values
from jaxsvm.results.judge import balances, judged
from jaxsvm.runtime.arrays import computed, filled, on_device, owned, transfers
from jaxsvm.runtime.programs import Program

P = TypeVar("P", bound="BoxProblem")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, repr=False)
class BoxProblem(OfSamples, BoxForm, Differentiable):  # pyright: ignore[reportIncompatibleVariableOverride]
    """A hinge SVM, or any problem of its form. Build it with `hinge_problem` or `box_problem`.

    A *point* of it is a feasible `a`, `(n,)`. For solvers whose w is not made of their dual variables it has two rows,
    `(2, n)`: any coefficients of a w of the primal, and a feasible `a`.
    """

    kind = "box"
    vectors = ("y", "q", "c", "squares")
    needs_classes = False
    solved_by = "SMO"
    parameter = "C"
    corrects = bounded = restricts = differentiable = True
    groups = None  # of variables whose sums are given, each by itself (`jaxsvm.problems.machines`)

    gram: Gram
    y: Float[Array, " n"]
    q: Float[Array, " n"]  # the linear term: 1 for an SVM
    weight: Float[Array, " n"] | None
    c: Float[Array, " n"] | None  # coefficients of the equality constraint; None if there is none
    e: Float[Array, ""]  # its right-hand side
    C: Float[Array, ""]  # the factor of the weights in the bounds; `at` takes another one
    constant: Float[Array, ""]  # the share of fixed samples in the dual objective; 0 for a whole problem
    squares: Float[Array, " n"]
    feasible: Bool[Array, ""]
    offset: float = dataclasses.field(metadata={"static": True})

    @property
    def loss(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Return what each sample costs, in words: the hinge, if all of q is 1."""
        hinge = is_concrete(self.q) and np.all(np.asarray(self.q) == 1)
        return "hinge: C max(0, 1 - y f)" if hinge else "C max(0, q - y f)"

    @property
    def ridge(self) -> Float[Array, " n"]:
        return jnp.zeros_like(self.y)

    @property
    def free_bias(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Return whether there is an equality constraint, whose multiplier b is an unregularised bias."""
        return self.c is not None

    @property
    def equality(self) -> Float[Array, " n"] | None:
        return self.c

    @property
    def targets(self) -> Float[Array, " n"]:
        return self.q

    @property
    def upper(self) -> Float[Array, " n"]:
        """Return the upper bounds `U = C weight`, `(n,)`; 0 for an absent sample."""
        return self.costs

    def at(self, C: ArrayLike, /) -> Self:
        return reachable(super().at(C))

    def weighted(self, sample_weight: ArrayLike) -> Self:
        return reachable(super().weighted(sample_weight))

    def restrict(self, samples: Int[Array, " m"], fixed: Any = None, gram: Gram | None = None) -> Self:
        """Return the problem of some samples S while the others R keep their values; a box problem again.

        `q_S - Q_SR a_R` replaces q, `e - c_R' a_R` replaces e, and `constant` makes its objective that of the whole.
        Its solution, put into `fixed`, solves the whole problem if the values of R are those of a solution.
        """
        gram = among(self.gram, samples) if gram is None else gram
        parts = _restricted(self, samples, None if fixed is None else jnp.asarray(fixed, self.dtype))
        return dataclasses.replace(self, gram=gram, **parts)  # outside the jit, which would copy it

    def column(self, i: Int[Array, ""]) -> Float[Array, " n"]:
        return self.signed.row(i)

    def columns(self, indices: Int[Array, " t"]) -> Float[Array, "t n"]:
        return self.signed.rows(indices)

    def block(self, rows: Int[Array, " t"], columns: Int[Array, " u"]) -> Float[Array, "t u"]:
        return self.signed.block(rows, columns)

    def matvec(self, point: Float[Array, "*two n"]) -> Float[Array, "*two n"]:
        """Return `s = Qa` of each row of a point, from scratch."""
        if point.ndim == 2:
            return SignedGram(self.gram, self.y[:, None], self.offset).matvec(point.T).T
        return self.signed.support_matvec(point)

    def feasible_point(self, a: Float[Array, " n"], /) -> Float[Array, " n"]:
        """Return `clip(a - t c, 0, U)` with the multiplier t that meets the equality, for `_movers`."""
        a = jnp.clip(a, 0, self.upper)
        if self.c is None:
            return a
        c = self.c
        too_much, _, moved, _ = self._movers(c, a)

        def at(t: Array) -> Array:
            return jnp.where(moved, jnp.clip(a - t * c, 0, self.upper), a)

        # Beyond these ends every sample is at the bound that c pulls it to.
        reach = (jnp.maximum(a, self.upper - a) / jnp.where(c == 0, 1, jnp.abs(c))).max()
        # A float64 bracket has fewer bits to lose.
        low, high = bisected(lambda t: matmul(c, at(t)) > self.e, -reach, reach, 64)
        return jnp.where(too_much == 0, a, BoxProblem.on_equality(self, at((low + high) / 2)))

    def scale_without_loss(self, margins: Float[Array, " n"]) -> Float[Array, ""]:
        """Return the factor of w and its bias that leaves no sample a loss; infinite if none does."""
        wanted = self.q > 0
        least = jnp.where(self.present & wanted, margins / jnp.where(wanted, self.q, 1), jnp.inf).min()
        return jnp.where(least > 0, 1 / jnp.where(least > 0, least, 1), jnp.inf)

    def on_equality(self, a: Float[Array, " n"]) -> Float[Array, " n"]:
        """Return a point of the box moved back onto the equality: `_movers` move by the same share of their room."""
        if self.c is None:
            return a
        too_much, target, moved, room = self._movers(self.c, a)
        share = jnp.clip(jnp.abs(too_much) / jnp.where(room > 0, room, 1), 0, 1)
        return jnp.where(moved, a + share * (target - a), a)

    def _movers(self, c: Array, a: Float[Array, " n"]) -> tuple[Array, Array, Array, Array]:
        """Return by how much `c'a` is above e, 0 if rounding explains it, and which samples move to bring it back.

        Only samples inside the box move if they suffice, since derivatives depend on which samples are at a bound; else
        only the support: the others would become support, a whole class of them, for a rounding error. Returned are the
        excess, the bound that each sample moves toward, which ones do, and by how much all of them can change `c'a`.
        """
        met, size = sums(c * a, jnp.abs(c * a))
        rounding = 4 * jnp.finfo(size.dtype).eps * (size + jnp.abs(self.e))
        too_much = jnp.where(jnp.abs(met - self.e) <= rounding, 0, met - self.e)
        target = jnp.where(c * too_much > 0, 0, self.upper)
        room, support = jnp.where(self.present, jnp.abs(c * (target - a)), 0), a > 0
        inside = support & (a < self.upper)
        of_inside, of_support, of_all = sums(jnp.where(inside, room, 0), jnp.where(support, room, 0), room)
        enough, supported = of_inside > jnp.abs(too_much), of_support >= jnp.abs(too_much)
        moved = jnp.where(enough, inside, jnp.where(supported, support, self.present))
        return too_much, target, moved, jnp.where(enough, of_inside, jnp.where(supported, of_support, of_all))

    def best_bias(self, s: Float[Array, " n"]) -> Float[Array, ""]:
        """Return the b that minimises the primal for margins s without b, in the middle of its interval."""
        if self.c is None:
            return jnp.zeros((), s.dtype)
        weight = self.upper * jnp.abs(self.c)
        breaks = jnp.where(weight > 0, (self.q - s) / jnp.where(self.c == 0, 1, self.c), jnp.inf)
        upward, total = sums(jnp.where(self.c > 0, weight, 0), weight)
        breaks, steps = lax.sort((breaks, weight), num_keys=1)
        # The slope right of each break; at -infinity every sample with c > 0 has slack.
        slope, rounding = self.e - upward + jnp.cumsum(steps), 8 * jnp.finfo(s.dtype).eps * total
        first = jnp.where(slope >= -rounding, breaks, jnp.inf).min()
        last = jnp.where(slope > rounding, breaks, jnp.inf).min()
        bias = (first + jnp.where(last < jnp.inf, last, first)) / 2
        return jnp.where(first < jnp.inf, bias, 0)

    def margins(self, point: Float[Array, "*two n"], s: Float[Array, "*two n"]) -> Float[Array, " n"]:
        """Return `y_i f(x_i)` of the primal's w with its best bias (for `c = y`)."""
        del point
        s = s[0] if s.ndim == 2 else s
        return s if self.c is None else s + self.best_bias(s) * self.c

    def gradient(self, a: Float[Array, " n"], margins: Float[Array, " n"]) -> Float[Array, " n"]:
        """Return `s = Qa` from `margins` of the same a at any U; with a free bias, from scratch."""
        return margins if self.c is None else self.matvec(a)

    def objective(self, point: Float[Array, "*two n"], s: Float[Array, "*two n"]) -> Float[Array, ""]:
        a, s = (point[-1], s[-1]) if point.ndim == 2 else (point, s)
        return matmul(a, s / 2 - self.q) - self.constant

    def certificate(self, point: Float[Array, "*two n"], s: Float[Array, "*two n"], bias: Any = None) -> Certificate:
        """Return the duality gap over `|D|` as if s, `Q` times each row, were exact, for solvers; b is the best one."""
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

    def certified(
        self, point: Float[Array, "*two n"], s: Float[Array, "*two n"], dtype: np.dtype, bias: Any = None
    ) -> Answer:
        """Certify a point, in the numbers that the caller gets.

        A rounded bias, and an equality that rounding misses, add to the gap; it is infinite if a leaves the box. The
        unregularised bias is the best one, unless one is given.
        """
        w, a, w_s, a_s = (*point, *s) if point.ndim == 2 else (point, point, s, s)
        size = jnp.sqrt(jnp.maximum(self.diagonal, 0))
        c = jnp.zeros_like(a) if self.c is None else self.c
        balance, met, spread, dual = sums(self.y * w, c * a, jnp.abs(w) * size, a * (self.q - a_s / 2))
        constant, dual = self.offset * balance, dual + self.constant
        best = constant if self.c is None else self.best_bias(w_s) if bias is None else bias
        bias = rounded(best, dtype)
        off = bias - best  # 0 but for rounding
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
        # Errors of different samples are independent and add up by squares: four standard deviations are allowed. A
        # point outside the box bounds nothing; bounds that were rounded in another way are off by units of them.
        beyond = jnp.maximum(a - self.upper, 0)
        inside = ((a >= 0) & (beyond <= 4 * jnp.finfo(dtype).eps * self.upper)).all()
        squares, outside, terms, reached = sums((weight * error) ** 2, beyond * jnp.abs(r), rest, jnp.abs(c * a))
        allowed = allowed + 4 * jnp.sqrt(squares) + 2 * outside
        gap = gap + terms + 4 * jnp.sqrt(squares) + 2 * outside
        feasible = inside if self.c is None else inside & balances(met - self.e, reached + jnp.abs(self.e), dtype)
        # The gap is relative to the dual less what it may be off by.
        bounds = judged(dual + gap, dual, gap, jnp.abs(dual) - allowed, rounding=allowed, feasible=feasible)
        bounds = bounds._replace(relative_gap=bounds.relative_gap + 8 * jnp.finfo(s.dtype).eps)
        bias = bias if self.c is not None or self.offset else jnp.zeros_like(bias)
        return Answer(a, self.y * w, bias, jnp.ones((), a.dtype), w_s + shift, bounds)

    def active_set(self, values: Any, before: Active | None = None) -> Active:
        """Return the samples strictly inside the box, and those at their upper bound.

        In a fit, coefficients may be at a bound exactly, or approach it as an interior point does: a sample counts as
        bounded if its margin is further from the kink than its coefficient from the bound. In a solution on sets
        `before`, free samples outside the box leave the set, and bounded ones become free if their margins contradict
        their bounds. At a corner the free set is empty, and the system has no unknowns. Free samples that depend
        linearly on others are no unknowns either: like bounded ones they must have consistent margins.
        """
        a, U = values.alpha, self.upper
        slack, present = (self.q - values.margins) / jnp.maximum(jnp.abs(self.q), 1), U > 0
        if before is None:
            rounding = 64 * jnp.finfo(a.dtype).eps * U
            bound = (a >= U - rounding) | (slack * U > U - a)
            free = (a > rounding) & ~bound & (-slack * U <= a)
            bound = bound & (a > rounding)
        else:
            share, off = negligible(self, a)
            off = off + share
            missed = 1 / 16 * off**0.5  # free samples that depend on others leave at a larger error of the margin
            above = jnp.where(before.free, (a > U * (1 + share)) | (slack > missed), before.bound)
            below = jnp.where(before.free, (a < -share * U) | (slack < -missed), ~before.bound)
            bound = above & (before.free | ~(slack < -off))
            free = ~bound & ~(below & (before.free | ~(slack > off)))
            if self.c is not None:  # with none free, samples that set the best bias keep the equality
                free = free | (~before.free.any() & (jnp.abs(slack) <= off))
                bound = bound & ~free
        return lax.stop_gradient(Active(free & present, bound & present, jnp.clip(a, 0, U)))

    def values_at(self, point: Point) -> Values:
        coefficients = lax.stop_gradient(self.y) * point.a
        bias = self.offset * coefficients.sum() + point.b
        return Values(point.a, coefficients, bias, jnp.ones_like(bias), point.products)

    def lagrangian(self, values: Values, targets: Float[Array, " n"]) -> Float[Array, ""]:
        slack = jnp.maximum(0, targets - values.margins)
        multiplier = values.bias if self.c is not None else 0.0
        linear = matmul(self.q, values.alpha) + matmul(self.upper, slack) + multiplier * self.e + self.constant
        return linear - self.signed.quadratic_form(values.alpha) / 2

    def certificate_of(self, values: Values, dtype: Any) -> Certificate:
        """Return the certificate of a solution's values, with the system's bias, which need not be the best.

        The values are numbers of `dtype`; the gap is infinite if they are infeasible.
        """
        a, b = jnp.clip(values.alpha, 0, self.upper), values.bias
        s = self.matvec(a)
        best = self.certified(a, s, dtype).certificate
        constant = self.offset * matmul(self.y, a)
        without = s - self.y * constant
        c: Any = self.c
        direction = c if self.free_bias else self.offset * self.y
        lost = matmul(self.upper, jnp.maximum(0, self.q - without - b * direction))
        missed = jnp.abs(b * (matmul(c, a) - self.e)) if self.free_bias else 0.0
        primal = (a @ without + self.offset * b**2) / 2 + b * self.e + lost + missed + self.constant
        rounding = 1024 * jnp.finfo(dtype).eps * self.upper.max()  # of sums over samples: more is no dual point
        feasible = (jnp.abs(a - values.alpha) <= rounding).all()
        primal, scale = jnp.maximum(primal, best.primal), jnp.abs(best.dual)
        return judged(primal, best.dual, primal - best.dual, scale, rounding=0.0, feasible=feasible)


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
    require(np.ndim(e) == 0, f"e has shape {np.shape(e)}: one number is needed.")
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
    if c is not None and is_concrete(c, upper) and ((np.asarray(c) == 0) & (np.asarray(upper) != 0)).any():
        raise InputError("c holds 0: every point in the box (upper > 0) takes part in the equality constraint.")
    problem = reachable(problem)
    if is_concrete(problem.feasible) and not bool(problem.feasible):
        least, most = _ends(np.asarray(problem.c), np.asarray(problem.upper))
        raise InputError(f"e is {float(problem.e)}: c'a lies between {least:.6g} and {most:.6g} in this box.")
    if is_concrete(problem):
        return problem
    usable = (jnp.abs(problem.y) == 1) & (problem.upper >= 0) & jnp.isfinite(problem.upper) & jnp.isfinite(problem.q)
    if problem.c is not None:
        usable = usable & jnp.isfinite(problem.c) & ((problem.c != 0) | (problem.upper == 0))
    return dataclasses.replace(problem, feasible=problem.feasible & usable.all())


def reachable(problem: P) -> P:
    """Return a box problem that is not feasible if its box holds no point of the equality, up to rounding."""
    if problem.c is None:
        return problem

    def within(_: Any, c: Array, e: Array, upper: Array) -> Array:
        least, most = _ends(c, upper)
        slack = 8 * jnp.finfo(c.dtype).eps * abs(c * upper).sum()
        return (e >= least - slack) & (e <= most + slack)

    met = computed(within, problem.c, problem.e, problem.upper)
    if is_concrete(met) and bool(met):
        return problem
    return dataclasses.replace(problem, feasible=problem.feasible & met)


def _ends(c: Any, upper: Any) -> tuple[Any, Any]:
    terms = c * upper
    return terms.clip(max=0).sum(), terms.clip(min=0).sum()


@Program.full()
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
        of_equality = 0.0 if wide.c is None else matmul(wide.c, rest)
        parts = ((wide.q - s)[samples], wide.e - of_equality, wide.constant + rest @ (wide.q - s / 2))
        return like(parts, (problem.q, problem.e, problem.constant))

    q, e, constant = carried(problem, fixed)
    return {**picked, "q": q, "e": e, "constant": constant}
