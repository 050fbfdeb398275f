"""Semismooth Newton on the squared-hinge primal: a finite method, exact to the rounding of the dtype."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxsvm.errors import InputError
from jaxsvm.numerics.precision import in_double, like, remainder, rounded, whole, widened
from jaxsvm.problems.squared_hinge import SquaredHingeProblem
from jaxsvm.runtime.arrays import Count, Number
from jaxsvm.runtime.checks import require_one_of
from jaxsvm.solvers.contract import Solver
from jaxsvm.solvers.simplex.newton import feature, kernel
from jaxsvm.solvers.simplex.newton.kernel import State
from jaxsvm.solvers.start import StartLike

METHODS = ("auto", "cholesky", "cg", "lbfgs")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Newton(Solver[SquaredHingeProblem]):
    """Semismooth Newton on the squared-hinge primal: a finite method, exact to the rounding of the dtype.

    With `f_i = y_i h(x_i)` and `slack = 1 - f` the primal is quadratic while the active set `S = {slack > 0}` does not
    change, and its minimum solves `(B_SS + diag(1 / C_S)) beta_S = 1`; with a free bias the system is bordered by
    `y_S . beta_S = 0`. A step goes toward that point, to the exact minimum on the way: the primal falls with every
    step, no set returns, and so the method ends. For large n, Newton first solves on a random part of the samples,
    which doubles: the first active set would be all of them. If the Gram has d < n features, w takes the place of beta
    (`feature.py`).

    Problems: squared hinge, with any bias.
    Cost of a step: a product with the kernel matrix, and the system on the support: a Cholesky factor up to
    `factor_limit` samples (in sizes of powers of two, so a small support is cheap), beyond it conjugate gradients with
    a Nystroem preconditioner.
    Rate: finite: 5 to 30 steps are usual.
    Sources: Mangasarian 2002; Keerthi and DeCoste 2005; Chapelle 2007. Departures from Chapelle: the line search is
    exact; the slack is carried, not f, since on the support it is `beta / C`, at large C far below the rounding of f.

    Attributes:
        tol: Certified relative duality gap at which to stop, > 0.
        max_steps: Maximum number of steps, >= 0. Newton takes 5 to 30, L-BFGS a few hundred.
        method: "cholesky", "cg", "lbfgs" (feature space only), or "auto": a factor up to `factor_limit` samples, or in
            feature space up to 2,000 dense features, conjugate gradients beyond; static.
        factor_limit: Largest support whose system is factored: `factor_limit^2` numbers (128 MiB at 4,096 in float64)
            in each lane; static.
        stop: "certified_gap", "relative_fw" or "paper", see `FrankWolfe`; static.
        check_every: Steps in a chunk; static.
        refresh_every: Maximum number of steps between certificates; None: 4,000, or n if larger. Static.

    Raises:
        InputError: On an unknown method or `factor_limit` < 1; when "lbfgs" solves a problem without few features.
    """

    bit = 2
    solves = ("squared hinge",)

    tol: Number = 1e-8
    max_steps: Count = 1000
    method: str = dataclasses.field(default="auto", metadata={"static": True})
    factor_limit: int = dataclasses.field(default=4096, metadata={"static": True})
    stop: str = dataclasses.field(default="certified_gap", metadata={"static": True})
    check_every: int = dataclasses.field(default=1, metadata={"static": True})
    refresh_every: int | None = dataclasses.field(default=None, metadata={"static": True})

    def __post_init__(self) -> None:
        require_one_of("method", self.method, METHODS)
        if self.factor_limit < 1:
            raise InputError(f"factor_limit is {self.factor_limit}: at least 1 is needed.")

    def stores(self, problem: SquaredHingeProblem) -> bool:
        return feature.primal_of(problem) is None

    def init(self, problem: SquaredHingeProblem, key: Array | None = None, init: "StartLike | None" = None) -> State:
        primal = feature.primal_of(problem)
        if primal is not None:
            return feature.start(problem, primal, init)
        if self.method == "lbfgs":
            raise InputError('method is "lbfgs": it needs features (a linear kernel or a low-rank Gram) with d < n.')
        return kernel.start(problem, key, init)

    def step(self, problem: SquaredHingeProblem, state: State) -> State:
        """Take a Newton (or L-BFGS) step, in twice the precision: in float32 a system loses its digits."""
        return _step_in_double(self, problem, state)

    def refresh(self, problem: SquaredHingeProblem, state: State) -> State:
        primal = feature.primal_of(problem)
        if primal is None:
            alpha, s = state.alpha.astype(problem.dtype), state.s.astype(problem.dtype)
            alpha, s = alpha / alpha.sum(), s / alpha.sum()
        else:
            current, alpha, s = feature.refreshed(problem, primal, _whole(state, problem.dtype).point)
            counters = state.counters.evaluated(3 * problem.n)
            state = state._replace(point=current, counters=counters, rest=remainder(current, state.point))
        # The coefficients of a fit, numbers of the data's dtype.
        beta = rounded(problem.returned(alpha, alpha @ s), state.alpha.dtype)
        total = beta.sum()
        alpha = beta / total
        s = problem.matvec(alpha) if primal is None else feature.product(problem, primal, alpha)[1]
        return state._replace(alpha=beta, s=total * s)

    def running_excess(self, problem: SquaredHingeProblem, state: State) -> Float[Array, ""]:
        return state.gap / jnp.asarray(self.tol, state.gap.dtype)

    def dual_point(self, problem: SquaredHingeProblem, state: State) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        return state.alpha, state.s


@in_double
def _step_in_double(solver: Newton, problem: SquaredHingeProblem, state: State) -> State:
    wide = widened(problem)
    current = _whole(state, wide.dtype)
    primal = feature.primal_of(wide)
    if primal is not None:
        following = feature.step(wide, primal, current, solver.method)
    else:
        following = kernel.step(wide, current, solver.method, solver.factor_limit)
    return like(following._replace(rest=remainder(following.point, state.point)), state)


def _whole(state: State, dtype: Any) -> State:
    wide = jax.tree.map(lambda leaf: leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, state)
    return wide._replace(point=whole(state.point, state.rest, dtype))
