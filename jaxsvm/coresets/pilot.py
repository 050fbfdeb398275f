"""Solve the weighted linear hinge SVM with a free bias in the space of its features: the first step of every coreset.

    min  1/2 |w|^2 + sum_i U_i max(0, 1 - y_i (x_i w + b)),        U_i = C u_i

The steps of `jaxsvm.InteriorPoint` with Gondzio's corrections: O(n d^2) per step, 7 to 30 steps. The dual value is a
lower bound of the optimum; sensitivities divide by it. Points of weight 0 are absent, and a single class is no error.

Sources: Mehrotra 1992; Gondzio 1996.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxsvm.coresets.measured import MEASURED
from jaxsvm.runtime.loops import in_rounds
from jaxsvm.solvers.box.interior_point import FeatureSystem, Iterate, stepped

MOST_STEPS, BALANCED = 100, 1e-9  # of a pilot; the part of its dual variables that the classes may differ by


class Pilot(NamedTuple):
    """A nearly optimal `(w, b)` and its proof."""

    w: Float[Array, " d"]  # `(d,)`
    b: Float[Array, ""]  # `()`
    primal: Float[Array, ""]  # the objective there, `()`
    dual: Float[Array, ""]  # A lower bound of the optimum, `()`: 0 for a single class (its optimum is 0, at w = 0)
    a: Float[Array, " n"]  # feasible dual variables, `(n,)`, inside their boxes (0 for a single class)
    pull: Float[Array, " d"]  # their `sum a y x`, `(d,)`: the loss is at least `dual + |pull|^2 / 2 - <pull, w>`


def solve(x: Float[Array, "n d"], y: Float[Array, " n"], U: Float[Array, " n"], tol: float = 1e-8) -> Pilot:
    """Solve for points (best centred), signs, costs `C u_i` (0: absent) to the relative gap tol or rounding; pure."""
    present, tiny = U > 0, jnp.finfo(x.dtype).tiny
    y, upper = jnp.where(present, y, 0), jnp.where(present, U, 2)
    penalty = jnp.ones(x.shape[1] + 1, x.dtype).at[-1].set(0)
    system = FeatureSystem(x, y, jnp.ones_like(y)[:, None], penalty, jnp.zeros_like(penalty))

    def only(v: Array) -> Array:
        return jnp.where(present, v, 0)

    def advance(at: Iterate, left: Array) -> tuple[Iterate, int, Array]:
        """Take one step, with its corrections; also return 4 of its relative gaps over tol, 0 if it changes nothing."""
        del left
        # Each correction costs two products; a system costs d of them.
        solver = system.factored(jnp.where(present, at.z / at.a + at.w / at.t, 1), only(at.a), at.v)
        residual = only(system.margins(at.a, at.v) - 1 - at.z + at.w)
        new, *_ = stepped(present, at, residual, solver, MEASURED.centrality_corrections)
        sound = jnp.all(jnp.stack([jnp.all(jnp.isfinite(part)) for part in new]))
        new = jax.tree.map(lambda fresh, old: jnp.where(sound, fresh, old), new, at)
        value = jnp.abs(only(new.a).sum()) + tiny
        off = jnp.maximum(only(new.a * new.z + new.t * new.w).sum(), jnp.abs(y @ new.a))
        return new, 1, jnp.where(sound & jnp.any(new.a != at.a), 4 * off / (value * tol), 0)

    one_class = ~(jnp.any(y > 0) & jnp.any(y < 0))  # its optimum is known
    # Start at w = 0 instead of the w of these a, which is far off if the classes differ in weight: half the steps.
    start = Iterate(upper / 2, upper / 2, jnp.ones_like(upper), jnp.full_like(upper, 2), jnp.zeros_like(penalty))
    last = in_rounds(advance, start, MOST_STEPS, jnp.where(one_class, 0, jnp.inf).astype(x.dtype))[0]
    a, v = only(_balanced(last.a, y)), last.v
    u = system.transposed(a)
    dual = a.sum() - 0.5 * (penalty * u) @ u
    dual = jnp.where(jnp.abs(u[-1]) <= BALANCED * jnp.maximum(a.sum(), tiny) + tiny, dual, -jnp.inf)
    dual = jnp.where(one_class, 0, jnp.maximum(dual, 0))  # costs are not negative
    v = jnp.where(one_class, jnp.zeros_like(v).at[-1].set(jnp.sign(y.sum())), v)
    primal = 0.5 * (penalty * v) @ v + only(upper * jnp.maximum(0, 1 - system.margins(a, v))).sum()
    return Pilot(v[:-1], v[-1], primal, jnp.minimum(dual, primal), a, jnp.where(dual > 0, u[:-1], 0))


def _balanced(a: Array, y: Array) -> Array:
    """Scale down the heavier class until `sum a y = 0`, which keeps all points inside their boxes."""
    plus, minus = jnp.where(y > 0, a, 0).sum(), jnp.where(y < 0, a, 0).sum()
    tiny = jnp.finfo(a.dtype).tiny
    of_plus = jnp.clip(minus / jnp.maximum(plus, tiny), 0, 1)
    of_minus = jnp.clip(plus / jnp.maximum(minus, tiny), 0, 1)
    return jnp.where(y > 0, a * of_plus, jnp.where(y < 0, a * of_minus, a))
