"""The path that chooses its own values of C: so few that every C between them has an answer within epsilon.

The solution at one C bounds the optimal value at every other one from both sides: its w is a primal vector, and its
dual variables times `rho = C / C_t` are a dual point. With `W = |w|^2`, `X` its loss at `C_t` and `S = sum_i t_i a_i`,

    P(rho) = W / 2 + rho X,        D(rho) = rho S - rho^2 W_a / 2 - rho A / 2,

`w_a` the dual point's vector, `A` the squared hinge's `sum_i a_i^2 / C_i` (of the hinge 0). `D >= (1 - epsilon) P`
holds between the two roots of a parabola: on both sides of `C_t`, so that the next value may be as far beyond the end
of one interval as its own reaches back. docs/mathematics.md, Safe screening; Ogawa et al. 2014, Section V, go one way.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxsvm.errors import InputError
from jaxsvm.loop.choice import exact_solver
from jaxsvm.loop.interruption import watching
from jaxsvm.loop.prepare import ready
from jaxsvm.path.carried import certified, longer, point_of, products_of
from jaxsvm.path.placeholders import on_host_stacked
from jaxsvm.path.solve import Path, chain_link
from jaxsvm.problems.contract import Restrictable
from jaxsvm.problems.padding import trimmed
from jaxsvm.results.fit import Fit, Status
from jaxsvm.runtime.transfers import transfers
from jaxsvm.screening.reference import screenable
from jaxsvm.solvers.contract import Solver

TIGHTER = 0.05
"""Values are solved to this share of epsilon, where nothing else is asked for: a tenth more costs few of them."""
HOPEFUL = 0.95
"""How far beyond the end of an interval the next value is tried, in log C and in units of the interval."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class EpsilonPath:
    """Fits at values of C, and the intervals on which each is within epsilon of the optimum.

    Attributes:
        path: The fits, at increasing values of C.
        lower: Where the interval of each begins, `(k,)`.
        upper: Where it ends, `(k,)`; they overlap, and together reach from `C_min` to `C_max`.
        epsilon: `1 - D / P` of the pair that a fit is at any C of its interval, at the most, `()`.
    """

    path: Path
    lower: Any
    upper: Any
    epsilon: Any

    def __len__(self) -> int:
        return len(self.path)

    def at(self, C: Any) -> Fit:
        """The fit whose interval holds a C: its w is within epsilon of optimal there.

        Raises:
            InputError: On a C outside of the path.
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
    problem: Any, epsilon: float, C_min: float, C_max: float, *, solver: Any = None, screen: Any = "auto"
) -> EpsilonPath:
    """Solve at as few values of C as give every C between `C_min` and `C_max` an answer within epsilon.

    Args:
        problem: From `svm_problem` or `hinge_problem`, with any bias; its own C is not looked at.
        epsilon: The relative error of the objective that is allowed, in (0, 1).
        C_min: The smallest C, positive.
        C_max: The largest C, no smaller.
        solver: As for `jaxsvm.solve_path`; None: solved to a twentieth of epsilon.
        screen: As for `jaxsvm.solve_path`.

    Returns:
        The path. For every C of an interval the fit's w and its dual variables times `C / C_t` prove the bound.

    Raises:
        InputError: On arguments that cannot be used; where a solution is not good enough to reach any further, with
            how far it came.
    """
    if not 0 < float(epsilon) < 1:
        raise InputError(f"epsilon is {epsilon}: a relative error in (0, 1) is needed.")
    if not 0 < float(C_min) <= float(C_max) < np.inf:
        raise InputError(f"C_min is {C_min} and C_max {C_max}: 0 < C_min <= C_max is needed.")
    if problem.parameter != "C" or problem.kind not in ("box", "squared hinge"):
        raise InputError(f"problem is a {type(problem).__name__}: one of `svm_problem` or `hinge_problem` is needed.")
    named = solver is not None
    solver = solver if named else exact_solver(problem, TIGHTER * epsilon)
    with watching(None) as stop:
        problem = problem if screen in (None, "auto") else screenable(problem)
        here = ready(problem, solver)
        link = chain_link(here, solver, jax.random.key(0), stop, None, screen, named=named)
        found: list[tuple[float, Fit, float, float]] = []

        def solved(C: float) -> tuple[float, Fit, float, float]:
            at = here.at(C)
            fitted = link(at)
            low, high = (float(end) for end in _interval(at, fitted, epsilon))
            free = None if high >= C_max else without_loss(at, solver, fitted, epsilon)
            if free is not None:
                fitted, high = free, np.inf
            if int(fitted.status) not in (Status.CONVERGED, Status.STALLED) or not low <= C * (1 + 1e-9):
                raise InputError(
                    f"epsilon is {epsilon}: the solution at C = {C:.6g} ended as {fitted.status.name} with a gap of "
                    f"{float(fitted.certificate.relative_gap):.3g}, too large to reach further; take a larger epsilon, "
                    "or float64 data."
                )
            return C, fitted, low, high

        target, reached, hope = float(C_min), float(C_min), 1.0
        while True:
            one = solved(min(max(target, float(C_min)), float(C_max)))
            if one[2] > reached * (1 + 1e-12):  # it does not reach back: one nearer by first
                spent, one = one[1].counters, solved(reached)
                one = (one[0], dataclasses.replace(one[1], counters=spent.plus(one[1].counters)), *one[2:])
            found.append(one)
            C, _, _, high = one
            if high >= C_max or C_max <= C:
                break
            if high <= reached * (1 + 1e-6):
                raise InputError(f"epsilon is {epsilon}: no progress beyond C = {reached:.6g}; take a larger one.")
            reached, hope = high, (high / C) ** HOPEFUL
            target = reached * hope
    fits = on_host_stacked([trimmed(fitted, problem.n) for _, fitted, _, _ in found])
    Cs, lower, upper = (jnp.asarray([one[place] for one in found], fits.alpha.dtype) for place in (0, 2, 3))
    return EpsilonPath(Path(Cs, fits), lower, upper, jnp.asarray(epsilon, fits.alpha.dtype))


def _interval(problem: Restrictable, fit: Fit, epsilon: float) -> tuple[float, float]:
    """Between which values of C a fit of a problem proves the bound; on the host, in float64. Empty: infinity, 0."""
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
    # What came rounded to the data's precision must not count for the proof.
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
        # Of larger C the multiple of the dual point need not grow with C: the best one is S / curve.
        room = S**2 / (2 * curve) / (1 - epsilon) - W / 2
        further = np.inf if X <= 0 and room >= 0 else room / max(X, 1e-300)
        high = max(high, further if further >= S / curve else 0)
    return C * low, C * high


def without_loss(problem: Restrictable, solver: Solver, fit: Fit, epsilon: float) -> Fit | None:
    """Return a fit whose w is so long that no sample has a loss: it is within epsilon at every larger C.

    The set of samples beyond their margin is empty, where Algorithm 1, line 5, ends the path: primal and dual no longer
    depend on C. On the host.

    Args:
        problem: A problem.
        solver: Its solver.
        fit: Its fit.
        epsilon: `1 - D / P` at the most.

    Returns:
        The fit, certified anew; None where its w would be too long, or the loss has no end (the squared hinge).
    """
    if not problem.bounded:
        return None
    margins, targets = np.asarray(fit.margins, float), np.asarray(problem.targets, float)
    held = np.asarray(problem.present) & (targets > 0)
    least = (margins[held] / targets[held]).min(initial=1.0)
    bias = 0.0 if problem.equality is None else float(fit.bias)
    W = float(np.asarray(fit.dual_coef, float) @ (np.asarray(problem.y, float) * margins - bias))
    if least <= 0 or float(fit.certificate.dual) < (1 - epsilon) * W / least**2 / 2:
        return None
    products = products_of(problem, fit.alpha)
    w = longer(problem, point_of(problem, solver, fit.alpha, products))
    found, _ = certified(problem, solver, w["w"], w["w_products"], np.zeros(4, np.int32))
    if not float(found.certificate.dual) >= (1 - epsilon) * float(found.certificate.primal):
        return None
    return dataclasses.replace(found, counters=fit.counters)
