"""Choose the fewest values of C whose fits are within epsilon of the optimum at every C of a range.

A fit's w has `P = |w|^2 / 2 + C X` at every C. At `C = (1 - t) C_a + t C_b` the same mean of the dual points of two
fits is a dual point, and

    D >= (1 - t) D_a + t D_b + t (1 - t) (|w_a - w_b|^2 + C_a sum_i w_i (x_ai - x_bi)^2) / 2,

with `x_i = a_i / C_i` for the squared hinge and without the sum for the hinge. So `D >= (1 - epsilon) P` holds from
either fit to the root of a parabola. If these intervals do not meet, a value between the two is solved; where they
meet tells how far away to try the next value. docs/mathematics.md, Safe screening; Ogawa et al. 2014, Appendix D, use
one fit.
"""

import dataclasses
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxsvm.errors import ConvergenceWarning, InputError, require, warn
from jaxsvm.loop.choice import exact_solver
from jaxsvm.loop.interruption import Halt, watching
from jaxsvm.loop.measured import MEASURED
from jaxsvm.loop.round import ready
from jaxsvm.path.chains import certified, point_at, scaled_up, stacked
from jaxsvm.path.solve import Path, PathOptions, chain_link
from jaxsvm.problems.contract import Restrictable, require_problem
from jaxsvm.problems.padding import trimmed
from jaxsvm.results.fit import Fit, Status
from jaxsvm.runtime.arrays import TINY, in_a_line, require_positive, transfers
from jaxsvm.screening.reference import screenable
from jaxsvm.screening.rules import Rule
from jaxsvm.solvers.contract import Solver

ROUNDINGS = 16  # a fit that was rounded to its dtype proves no error below so many roundings


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class EpsilonPath:
    """Fits at values of C, and the intervals on which each is within epsilon of the optimum.

    Attributes:
        path: The fits, at increasing values of C.
        lower: Lower end of each interval, `(k,)`.
        upper: Upper end of each interval, `(k,)`; intervals overlap and cover `C_min` to `C_max`.
        epsilon: Bound on `1 - D / P` of each fit at any C of its interval, `()`.
    """

    __repr__ = in_a_line

    path: Path
    lower: Float[Array, " k"]
    upper: Float[Array, " k"]
    epsilon: Float[Array, ""]

    def __len__(self) -> int:
        return len(self.path)

    def at(self, C: float) -> Fit:
        """Return the fit whose interval holds C: its w is within epsilon of optimal there.

        Raises:
            InputError: If C is outside the path.
        """
        require_positive("C", C)
        holds = np.flatnonzero((np.asarray(self.lower) <= float(C)) & (float(C) <= np.asarray(self.upper)))
        if not len(holds):
            low, high = float(np.min(self.lower)), float(np.max(self.upper))
            raise InputError(f"C is {float(C):.6g}: the path reaches from {low:.6g} to {high:.6g}.")
        logs = np.abs(np.log(np.asarray(self.path.Cs, float)[holds] / float(C)))
        nearest = int(holds[np.argmin(logs)])
        return jax.tree.map(lambda leaf: leaf[nearest], self.path.fits)


@transfers
def epsilon_path(
    problem: Restrictable,
    epsilon: float,
    C_min: float,
    C_max: float,
    *,
    solver: Solver | None = None,
    screen: Rule | None = None,
    callback: Callable[[float, Fit], object] | None = None,
) -> EpsilonPath:
    """Solve at so few values of C that a fit is within epsilon of the optimum at every C from `C_min` to `C_max`.

    Args:
        problem: From `svm_problem`, `hinge_problem` or `box_problem`, with any bias; its own C is not used.
        epsilon: The relative error of the objective that is allowed, in (0, 1).
        C_min: The smallest C, positive.
        C_max: The largest C, no smaller.
        solver: A solver's configuration, for warm chains; None takes the exact solver, to a twentieth of epsilon.
        screen: A safe screening rule, or None (`jaxsvm.solve_path`).
        callback: Called after each value with its C and its fit: upwards, and between two that do not meet.

    Returns:
        The path. For every C of an interval the fit's w, and its dual variables with those of its neighbour, prove the
        bound. Ctrl-C ends it where it came to, with a warning.

    Raises:
        InputError: On arguments that cannot be used, or if a solution is too inexact to reach further; the message says
            how far the path came.
        KeyboardInterrupt: On Ctrl-C before the first value is solved.
    """
    for name, value in (("epsilon", epsilon), ("C_min", C_min), ("C_max", C_max)):
        require_positive(name, value)
    require(float(epsilon) < 1, f"epsilon is {epsilon}: a relative error in (0, 1) is needed.")
    require(float(C_min) <= float(C_max), f"C_min is {C_min} and C_max {C_max}: 0 < C_min <= C_max is needed.")
    require_problem(problem)
    made = "one of `svm_problem`, `hinge_problem` or `box_problem` is needed."
    require(problem.kind in ("box", "squared hinge"), f"problem is a {type(problem).__name__}: {made}")
    least = ROUNDINGS * float(np.finfo(problem.dtype).eps)
    proves = f"{problem.dtype} numbers prove no relative error below {least:.1g}"
    remedy = "take a larger one, or float64 data (with x64 turned on)."
    require(float(epsilon) > least, f"epsilon is {epsilon}: {proves}; {remedy}")
    # A tenth more than a twentieth of epsilon would save few steps.
    options = PathOptions(jax.random.key(0), solver, 0.05 * float(epsilon), screen=screen)
    options.require([problem], [C_min, C_max])
    chosen = exact_solver(problem, options.tol) if solver is None else solver
    with watching(None) as stop:
        problem = problem if screen is None else screenable(problem)
        prepared = ready(problem, chosen)
        link = chain_link(prepared, chosen, options, stop)

        def solved(C: float) -> _Step:
            step = _solved(prepared, link, chosen, epsilon, stop, C)
            try:
                if callback is not None:
                    callback(C, trimmed(step.fit, problem.n))
            except KeyboardInterrupt:
                stop.note()
            return step

        steps = _steps(solved, float(C_min), float(C_max), epsilon)
    if steps[-1].upper < float(C_max):
        warn(f"Ctrl-C ended the path at C = {steps[-1].upper:.6g}: it reaches no further.", ConvergenceWarning)
    fits = stacked([trimmed(step.fit, problem.n) for step in steps])
    Cs, lower, upper = (jnp.asarray([step[place] for step in steps], fits.alpha.dtype) for place in (0, 2, 3))
    return EpsilonPath(Path(Cs, fits), lower, upper, jnp.asarray(epsilon, fits.alpha.dtype))


class _Step(NamedTuple):
    """A fit at C, the interval on which it is within epsilon of the optimum, and what it proves of other values."""

    C: float  # the value
    fit: Fit  # its fit
    lower: float  # lower end of the interval
    upper: float  # upper end
    # 1 - epsilon, plus what the rounding of the fit to its dtype may change, so that the proof allows for it
    keep: float
    primal: float  # `P` at C
    loss: float  # `C X`
    dual: float  # `D` at C
    # coefficients and decision values (without a free bias) of the dual point, and of the squared hinge `sqrt(w_i)
    # x_i`, `(n,)` each
    point: tuple[np.ndarray, np.ndarray, np.ndarray]


def _steps(solved: Callable[[float], _Step], C_min: float, C_max: float, epsilon: float) -> list[_Step]:
    """Cover `[C_min, C_max]` by intervals; try the next value as far away as the two before it would have reached."""
    steps, ahead, jump = [solved(C_min)], [], MEASURED.first_jump * epsilon**0.5
    with suppress(Halt):
        while ahead or steps[-1].upper < C_max:
            last = steps[-1]
            ahead = ahead or [solved(min(last.C * float(np.exp(jump)), C_max))]
            left, right, share = _joined(last, ahead[-1])
            jump = np.log(right.C / last.C)
            if share >= 1.001:  # the ends of intervals are rounded
                steps[-1:], jump = [left, right], min(MEASURED.share_of_a_jump * share, MEASURED.longest_jump) * jump
                ahead.pop()
            elif jump > 1e-6:  # else values of C are one but for rounding
                ahead.append(solved(last.C * float(np.exp(jump / 2))))
            else:
                raise InputError(f"epsilon is {epsilon}: no progress beyond C = {last.C:.6g}; take a larger one.")
    return steps


def _joined(a: _Step, b: _Step) -> tuple[_Step, _Step, float]:
    """Return two values with the intervals between them, and the share of the way that both reach together."""
    coef, values, slack = (there - here for here, there in zip(a.point, b.point, strict=True))
    apart = max(0.0, float(coef @ values + a.C * (slack @ slack)))  # 0 of NaN too

    def reach(here: _Step, there: _Step) -> float:
        room = max(here.dual - here.keep * here.primal, 0.0)
        slope = there.dual - here.dual + apart / 2 - here.keep * (there.C / here.C - 1) * here.loss
        return 2 * room / max(np.sqrt(slope**2 + 2 * apart * room) - slope, TINY)

    up, down = reach(a, b), reach(b, a)
    upper, lower = a.C + min(up, 1) * (b.C - a.C), b.C - min(down, 1) * (b.C - a.C)
    return a._replace(upper=max(a.upper, upper)), b._replace(lower=min(b.lower, lower)), up + down


def _solved(template: Any, link: Callable[[Any], Fit], solver: Solver, epsilon: float, stop: Any, C: float) -> _Step:
    """Solve the problem at C; the interval has no end if no sample has a loss."""
    problem = template.at(C)
    fitted = link(problem)
    if stop.seen:
        raise Halt
    lossless = without_loss(problem, solver, fitted, epsilon)
    step = _step(C, problem, fitted if lossless is None else lossless, epsilon)
    if int(fitted.status) not in (Status.CONVERGED, Status.STALLED) or not step.lower <= C <= step.upper:
        raise InputError(
            f"epsilon is {epsilon}: the solution at C = {C:.6g} ended as {fitted.status.name} with a gap of "
            f"{float(fitted.certificate.relative_gap):.3g} and by rounding off by {step.keep - 1 + epsilon:.2g}, "
            "too much to reach further; take a larger epsilon, or float64 data."
        )
    return step if lossless is None else step._replace(upper=np.inf)


def _step(C: float, problem: Restrictable, fit: Fit, epsilon: float) -> _Step:
    """Return a fit with what it proves; on the host, in float64.

    The optimum grows with C, and at most in proportion: a fit alone proves a short interval.
    """
    y, primal, dual = np.asarray(problem.y, float), float(fit.certificate.primal), float(fit.certificate.dual)
    coef, alpha = np.asarray(fit.dual_coef, float), np.asarray(fit.alpha, float)
    values = y * np.asarray(fit.margins, float) - (0.0 if problem.equality is None else float(fit.bias))
    loss, slack = max(primal - max(float(coef @ values), 0.0) / 2, 0.0), np.zeros_like(coef)
    if not problem.bounded:
        slack = np.sqrt(np.asarray(problem.ridge, float) / C) * y * coef
        dual = float(y @ coef - (coef @ values + C * (slack @ slack)) / 2)
    elif not np.array_equal(coef, y * alpha):  # a w of its own: nothing is known of the dual point's
        values = np.full_like(coef, np.nan)
    size = max(float(np.abs(coef).sum()), primal) / max(dual, TINY)
    rounding = ROUNDINGS * float(np.finfo(fit.alpha.dtype).eps) * size
    keep, half_norm = 1 - epsilon + rounding, primal - loss
    lower = keep * half_norm / (dual - keep * loss) if dual > keep * loss else np.inf
    upper = (dual / keep - half_norm) / max(loss, TINY)
    return _Step(C, fit, C * lower, C * upper, keep, primal, loss, dual, (coef, values, slack))


def without_loss(problem: Restrictable, solver: Solver, fit: Fit, epsilon: float) -> Fit | None:
    """Lengthen w until no sample has a loss; return the fit if it is within epsilon at every larger C, else None.

    No sample then violates its margin, and primal and dual no longer depend on C: the path ends (Algorithm 1, line 5).
    The squared hinge has no such end. Runs on the host.
    """
    if not problem.bounded:
        return None
    margins, targets = np.asarray(fit.margins, float), np.asarray(problem.targets, float)
    counted = np.asarray(problem.present) & (targets > 0)
    least = (margins[counted] / targets[counted]).min(initial=1.0)
    bias = 0.0 if problem.equality is None else float(fit.bias)
    W = float(np.asarray(fit.dual_coef, float) @ (np.asarray(problem.y, float) * margins - bias))
    if least <= 0 or float(fit.certificate.dual) < (1 - epsilon) * W / least**2 / 2:
        return None
    w = scaled_up(problem, point_at(solver, problem, fit))
    within = dataclasses.replace(solver, tol=epsilon / (1 - epsilon))
    lossless = certified(problem, within, w.points, w.products, np.zeros(4, np.int32))
    if int(lossless.status) != Status.CONVERGED:
        return None
    return dataclasses.replace(lossless, counters=fit.counters)
