"""Solve the weighted linear hinge SVM with a free bias in the space of its features: the first step of every coreset.

    min  1/2 |w|^2 + l'(w, b) + sum_i U_i max(0, 1 - y_i (x_i w + b)),        U_i = C u_i

The steps of `jaxsvm.InteriorPoint` with Gondzio's corrections: O(n d^2) per step, 7 to 30 steps. The dual value is a
lower bound of the optimum; sensitivities divide by it. This solver is a pure function of arrays for compiled merges and
`vmap`: points of weight 0 are absent, a single class is no error, and it takes the linear term l that exact
sensitivities need.

Sources: Mehrotra 1992; Gondzio 1996 (centrality corrections: 54 steps instead of 80 on HTRU2, at half the time).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from jaxsvm.coresets.measured import MEASURED
from jaxsvm.loop.many import solve_whole
from jaxsvm.numerics.linear import factored
from jaxsvm.solvers.box.interior_point import Iterate, Solve, stepped


class Pilot(NamedTuple):
    """A nearly optimal `(w, b)` and its proof."""

    w: Float[Array, " d"]  # `(d,)`
    b: Float[Array, ""]  # `()`
    primal: Float[Array, ""]  # the objective there, `()`
    dual: Float[Array, ""]  # A lower bound of the optimum, `()`: 0 for a single class (its optimum is 0, at w = 0)
    a: Float[Array, " n"]  # feasible dual variables, `(n,)`, inside their boxes (0 for a single class)


class _Problem(NamedTuple):
    H: Float[Array, "d+1 n"]  # y_i (x_i, 1) as columns: products with long rows take a fifth of the time
    y: Float[Array, " n"]
    upper: Float[Array, " n"]
    present: Bool[Array, " n"]
    penalty: Float[Array, " d+1"]  # 1 for w, 0 for b
    term: Float[Array, " d+1"]

    def only(self, v: Array) -> Array:
        return jnp.where(self.present, v, 0)

    def primal(self, v: Array) -> Array:
        regulariser = 0.5 * (self.penalty * v) @ v + self.term @ v
        return regulariser + self.only(self.upper * jnp.maximum(0, 1 - v @ self.H)).sum()


def solve(
    x: Float[Array, "n d"], y: Float[Array, " n"], U: Float[Array, " n"], linear: Float[Array, " d+1"] | None = None,
    tol: float = 1e-8,
) -> Pilot:  # fmt: skip
    """Solve one problem; pure, for `jit`, `vmap` and `lax.map`.

    Args:
        x: Points, `(n, d)`; best centred.
        y: Signs, `(n,)`.
        U: Costs `C u_i`, `(n,)`, not negative; 0: absent.
        linear: The linear term l of `(w, b)`, `(d + 1,)`; None: 0.
        tol: The relative gap at which to stop (rounding may stop it earlier).
    """
    present = U > 0
    y = jnp.where(present, y, 0)
    H = y[None, :] * jnp.concatenate([x.T, jnp.ones((1, x.shape[0]), x.dtype)])
    penalty = jnp.ones(H.shape[0], x.dtype).at[-1].set(0)
    term = jnp.zeros_like(penalty) if linear is None else linear
    upper = jnp.where(present, U, 2)
    problem = _Problem(H, y, upper, present, penalty, term)
    one_class = ~(jnp.any(y > 0) & jnp.any(y < 0))
    wanted = jnp.asarray(True) if linear is not None else ~one_class  # the optimum of one class is known
    # Start at w = 0 instead of the w of these a, which is far off if the classes differ in weight: half the steps.
    one = jnp.ones_like(upper)
    start = Iterate(upper / 2, upper / 2, one, 2 * one, jnp.zeros_like(term))

    def round(at: Iterate, left: Array) -> tuple[Iterate, int, Array]:
        del left
        new, gap = _advance(problem, at)
        return new, 1, 4 * gap / tol

    last = solve_whole(round, start, 100, jnp.where(wanted, jnp.inf, 0).astype(x.dtype))[0]
    a = problem.only(_balanced(last.a, y, term[-1]))
    u = H @ a - term
    dual = a.sum() - 0.5 * (penalty * u) @ u
    dual = jnp.where(jnp.abs(u[-1]) <= 1e-9 * jnp.maximum(a.sum(), jnp.finfo(x.dtype).tiny) + 1e-300, dual, -jnp.inf)
    v = last.v
    if linear is None:
        dual = jnp.maximum(dual, 0)  # costs are not negative
        v = jnp.where(one_class, jnp.zeros_like(v).at[-1].set(jnp.sign(y.sum())), v)
        dual = jnp.where(one_class, 0, dual)
    primal = problem.primal(v)
    return Pilot(v[:-1], v[-1], primal, jnp.minimum(dual, primal), a)


def _advance(problem: _Problem, at: Iterate) -> tuple[Iterate, Array]:
    """Take one step, with its corrections; return its relative gap, or 0 if it is not finite or changes nothing."""
    only = problem.only
    residual = only(at.v @ problem.H - 1 - at.z + at.w)
    # Each correction costs two products; a system costs d of them.
    new, *_ = stepped(problem.present, at, residual, _solver(problem, at), MEASURED.centrality_corrections)
    sound = jnp.all(jnp.stack([jnp.all(jnp.isfinite(part)) for part in new]))
    new = jax.tree.map(lambda fresh, old: jnp.where(sound, fresh, old), new, at)
    products = only(new.a * new.z + new.t * new.w).sum()
    value = jnp.abs(only(new.a).sum()) + jnp.finfo(new.a.dtype).tiny
    unequal = jnp.abs(problem.y @ new.a - problem.term[-1]) / value
    return new, jnp.where(sound & jnp.any(new.a != at.a), jnp.maximum(products / value, unequal), 0)


def _solver(problem: _Problem, at: Iterate) -> Solve:
    """Factor the Newton system at a point, in the space of the features."""
    H, penalty = problem.H, problem.penalty
    off = penalty * at.v + problem.term - H @ problem.only(at.a)
    inverse = jnp.where(problem.present, 1 / (at.z / at.a + at.w / at.t), 0)
    core = jnp.matmul(inverse[None, :] * H, H.T, precision=lax.Precision.HIGHEST) + jnp.diag(penalty)
    scale = lax.rsqrt(jnp.maximum(jnp.diagonal(core), jnp.finfo(core.dtype).tiny))
    factor = factored(scale[:, None] * core * scale[None, :])

    def solve(right: Array) -> tuple[Array, Array, Array]:
        dv = scale * factor.solve(scale * (H @ (inverse * right) - off))
        dm = dv @ H
        return inverse * (right - dm), dv, dm

    return solve


def _balanced(a: Array, y: Array, e: Array) -> Array:
    """Scale down the heavier class until `sum a y = e`, which keeps all points inside their boxes."""
    plus, minus = jnp.where(y > 0, a, 0).sum(), jnp.where(y < 0, a, 0).sum()
    tiny = jnp.finfo(a.dtype).tiny
    of_plus = jnp.clip((minus + e) / jnp.maximum(plus, tiny), 0, 1)
    of_minus = jnp.clip((plus - e) / jnp.maximum(minus, tiny), 0, 1)
    return jnp.where(y > 0, a * of_plus, jnp.where(y < 0, a * of_minus, a))
