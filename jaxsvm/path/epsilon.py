"""Choose the fewest values of C whose fits are within epsilon of the optimum at every C of a range.

The solution at one C bounds the optimal value at every other one from both sides: its w is a primal vector, and its
dual variables times `rho = C / C_t` are a dual point. With `W = |w|^2`, `X` its loss at `C_t` and `S = sum_i t_i a_i`,

    P(rho) = W / 2 + rho X,        D(rho) = rho S - rho^2 W_a / 2 - rho A / 2,

`w_a` the dual point's vector, `A` the squared hinge's `sum_i a_i^2 / C_i` (of the hinge 0). `D >= (1 - epsilon) P`
holds between the two roots of a parabola, on both sides of `C_t`. So the next value may lie as far beyond the end of
one interval as its own reaches back. docs/mathematics.md, Safe screening; Ogawa et al. 2014, Section V, go one way.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxsvm.errors import InputError
from jaxsvm.loop.choice import exact_solver
from jaxsvm.loop.interruption import watching
from jaxsvm.loop.prepare import ready
from jaxsvm.path.carried import certified, point_of, products_of, scaled_up
from jaxsvm.path.measured import MEASURED
from jaxsvm.path.options import Options
from jaxsvm.path.placeholders import on_host_stacked
from jaxsvm.path.solve import Path, chain_link
from jaxsvm.problems.contract import Restrictable
from jaxsvm.problems.padding import trimmed
from jaxsvm.results.fit import Fit
from jaxsvm.results.status import Status
from jaxsvm.runtime.summary import in_a_line
from jaxsvm.runtime.transfers import transfers
from jaxsvm.screening.reference import screenable
from jaxsvm.solvers.contract import Solver


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
    lower: Any
    upper: Any
    epsilon: Any

    def __len__(self) -> int:
        return len(self.path)

    def at(self, C: Any) -> Fit:
        """Return the fit whose interval holds C: its w is within epsilon of optimal there.

        Raises:
            InputError: If C is outside the path.
        """
        holds = np.flatnonzero((np.asarray(self.lower) <= float(C)) & (float(C) <= np.asarray(self.upper)))
        if not len(holds):
            low, high = float(np.min(self.lower)), float(np.max(self.upper))
            raise InputError(f"C is {float(C):.6g}: the path reaches from {low:.6g} to {high:.6g}.")
        logs = np.abs(np.log(np.asarray(self.path.Cs, float)[holds] / float(C)))
        fitted = self.path[int(holds[np.argmin(logs)])]
        assert isinstance(fitted, Fit)
        return fitted


@transfers
def epsilon_path(
    problem: Any, epsilon: float, C_min: float, C_max: float, *, solver: Any = None, screen: Any = None
) -> EpsilonPath:
    """Solve at so few values of C that a fit is within epsilon of the optimum at every C from `C_min` to `C_max`.

    Args:
        problem: From `svm_problem` or `hinge_problem`, with any bias; its own C is not used.
        epsilon: The relative error of the objective that is allowed, in (0, 1).
        C_min: The smallest C, positive.
        C_max: The largest C, no smaller.
        solver: A solver's configuration, for warm chains; None takes the exact solver, to a twentieth of epsilon.
        screen: A safe screening rule, or None (`jaxsvm.solve_path`).

    Returns:
        The path. For every C of an interval the fit's w and its dual variables times `C / C_t` prove the bound.

    Raises:
        InputError: On arguments that cannot be used, or if a solution is too inexact to reach further; the message says
            how far the path came.
    """
    if not 0 < float(epsilon) < 1:
        raise InputError(f"epsilon is {epsilon}: a relative error in (0, 1) is needed.")
    if not 0 < float(C_min) <= float(C_max) < np.inf:
        raise InputError(f"C_min is {C_min} and C_max {C_max}: 0 < C_min <= C_max is needed.")
    if problem.parameter != "C" or problem.kind not in ("box", "squared hinge"):
        raise InputError(f"problem is a {type(problem).__name__}: one of `svm_problem` or `hinge_problem` is needed.")
    # A tenth more than a twentieth of epsilon would save few steps.
    options = Options(jax.random.key(0), solver, 0.05 * float(epsilon), screen=screen)
    options.require([problem], [C_min, C_max])
    chosen = exact_solver(problem, options.tol) if solver is None else solver
    with watching(None) as stop:
        problem = problem if screen is None else screenable(problem)
        prepared = ready(problem, chosen)
        link = chain_link(prepared, chosen, options, stop)
        steps = _steps(
            lambda C: _solved(C, prepared.at(C), link, chosen, epsilon, float(C_max)),
            float(C_min),
            float(C_max),
            epsilon,
        )
    fits = on_host_stacked([trimmed(step.fit, problem.n) for step in steps])
    Cs, lower, upper = (jnp.asarray([step[place] for step in steps], fits.alpha.dtype) for place in (0, 2, 3))
    return EpsilonPath(Path(Cs, fits), lower, upper, jnp.asarray(epsilon, fits.alpha.dtype))


class _Step(NamedTuple):
    """A fit at C, and the interval on which it is within epsilon of the optimum."""

    C: float
    fit: Fit
    lower: float
    upper: float


def _steps(solved: Callable[[float], _Step], C_min: float, C_max: float, epsilon: float) -> list[_Step]:
    """Cover `[C_min, C_max]` by intervals; each next value lies as far beyond the last one as its own may reach back.

    Raises:
        InputError: If an interval does not reach beyond the one before.
    """
    steps, target, reached = [], C_min, C_min
    while True:
        step = solved(min(max(target, C_min), C_max))
        if step.lower > reached * (1 + 1e-12):  # it does not reach back: solve a nearer value first
            nearer = solved(reached)
            counters = step.fit.counters.plus(nearer.fit.counters)
            step = nearer._replace(fit=dataclasses.replace(nearer.fit, counters=counters))
        steps.append(step)
        if step.upper >= C_max or C_max <= step.C:
            return steps
        if step.upper <= reached * (1 + 1e-6):
            raise InputError(f"epsilon is {epsilon}: no progress beyond C = {reached:.6g}; take a larger one.")
        reached = step.upper
        target = reached * (reached / step.C) ** MEASURED.interval_beyond_its_end


def _solved(
    C: float, problem: Restrictable, link: Callable[[Any], Fit], solver: Solver, epsilon: float, C_max: float
) -> _Step:
    """Solve the problem at C, and find the interval of its fit.

    Raises:
        InputError: If the solution is too inexact to prove the bound at its own C.
    """
    fitted = link(problem)
    low, high = (float(end) for end in _interval(problem, fitted, epsilon))
    lossless = None if high >= C_max else without_loss(problem, solver, fitted, epsilon)
    if lossless is not None:
        fitted, high = lossless, np.inf
    if int(fitted.status) not in (Status.CONVERGED, Status.STALLED) or not low <= C * (1 + 1e-9):
        raise InputError(
            f"epsilon is {epsilon}: the solution at C = {C:.6g} ended as {fitted.status.name} with a gap of "
            f"{float(fitted.certificate.relative_gap):.3g}, too large to reach further; take a larger epsilon, "
            "or float64 data."
        )
    return _Step(C, fitted, low, high)


def _interval(problem: Restrictable, fit: Fit, epsilon: float) -> tuple[float, float]:
    """Return the ends of the interval on which a fit proves the bound, or infinity and 0; on the host, in float64."""
    C, y = float(problem.C), np.asarray(problem.y, float)
    primal, dual = float(fit.certificate.primal), float(fit.certificate.dual)
    coef, margins = np.asarray(fit.dual_coef, float), np.asarray(fit.margins, float)
    bias = 0.0 if problem.equality is None else float(fit.bias)
    W = max(float(coef @ (y * margins - bias)), 0.0)
    X = max(primal - W / 2, 0.0)
    if problem.bounded:
        a = np.asarray(fit.alpha, float)
        S = float(np.asarray(problem.targets, float) @ a)
        curve, linear = 2 * (S - dual), 0.0
    else:
        beta = y * coef
        S = float(beta.sum())
        linear = float((np.asarray(problem.ridge, float) * beta) @ beta)
        curve = W
    # Rounding to the data's precision must not count for the proof.
    epsilon = epsilon - 16 * float(np.finfo(fit.alpha.dtype).eps) * max(S, primal) / max(dual, 1e-300)
    # D(rho) - (1 - epsilon) P(rho) = -curve / 2 rho^2 + B rho - (1 - epsilon) W / 2 >= 0
    B = S - linear / 2 - (1 - epsilon) * X
    inside = B**2 - (1 - epsilon) * curve * W
    if B <= 0 or inside < 0:
        return np.inf, 0.0
    root = B + np.sqrt(inside)
    high = np.inf if curve <= 0 else root / curve
    low = (1 - epsilon) * W / root
    if problem.bounded and curve > 0:
        # For larger C the multiple of the dual point need not grow with C: the best one is S / curve.
        room = S**2 / (2 * curve) / (1 - epsilon) - W / 2
        further = np.inf if X <= 0 and room >= 0 else room / max(X, 1e-300)
        high = max(high, further if further >= S / curve else 0)
    return C * low, C * high


def without_loss(problem: Restrictable, solver: Solver, fit: Fit, epsilon: float) -> Fit | None:
    """Return a fit whose w is so long that no sample has a loss: it is within epsilon at every larger C.

    No sample violates its margin then, which ends the path in Algorithm 1, line 5: primal and dual no longer depend on
    C. On the host.

    Args:
        problem: A problem.
        solver: Its solver.
        fit: Its fit.
        epsilon: Bound on `1 - D / P`.

    Returns:
        The fit, certified again; None if its w would be too long, or for the squared hinge, whose loss has no end.
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
    products = products_of(problem, fit.alpha)
    w = scaled_up(problem, point_of(problem, solver, fit.alpha, products))
    lossless, _ = certified(problem, solver, w["w"], w["w_products"], np.zeros(4, np.int32))
    if not float(lossless.certificate.dual) >= (1 - epsilon) * float(lossless.certificate.primal):
        return None
    return dataclasses.replace(lossless, counters=fit.counters)
