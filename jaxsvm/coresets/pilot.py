"""The weighted linear hinge SVM with a free bias, solved in the space of the features: what every coreset begins with.

    min  1/2 |w|^2 + l'(w, b) + sum_i U_i max(0, 1 - y_i (x_i w + b)),        U_i = C u_i

by Mehrotra's predictor-corrector method with Gondzio's corrections, O(n d^2) a step and 7 to 30 steps, with the dual
value that makes the answer a lower bound of the optimum: sensitivities divide by it. `jaxsvm.InteriorPoint` solves the
same problem, for users; this one is a pure function of arrays for use inside compiled merges, in lanes, where points of
weight 0 are absent and a single class is no error, and it takes the linear term l that exact sensitivities need.

Sources: Mehrotra 1992; Gondzio 1996 (centrality corrections: 54 steps instead of 80 on HTRU2, at half the time).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxsvm.numerics.linear.elimination import factored

BACK_OFF = 0.995
"""Share of the way to the nearest bound."""
MOST_STEPS = 100
CORRECTIONS = 3
"""Of a step's products that would end far from the others: each costs two products, a system costs d of them."""
STRETCH = 0.3


class Pilot(NamedTuple):
    """A nearly optimal `(w, b)` and its proof.

    Attributes:
        w: `(d,)`.
        b: `()`.
        primal: The objective there, `()`.
        dual: A lower bound of the optimum, `()`: 0 where there is one class only (its optimum is 0, at w = 0).
        a: The dual variables, `(n,)`: feasible, inside their boxes (0 where there is one class only).
    """

    w: Float[Array, " d"]
    b: Float[Array, ""]
    primal: Float[Array, ""]
    dual: Float[Array, ""]
    a: Float[Array, " n"]


class _Iterate(NamedTuple):
    a: Float[Array, " n"]  # dual variables, inside (0, U)
    t: Float[Array, " n"]  # U - a
    z: Float[Array, " n"]  # multipliers of a >= 0
    s: Float[Array, " n"]  # multipliers of a <= U
    v: Float[Array, " d+1"]  # (w, b)


class _Going(NamedTuple):
    x: _Iterate
    step: Int[Array, ""]
    moved: Bool[Array, ""]
    left: Float[Array, ""]


def solve(
    x: Float[Array, "n d"],
    y: Float[Array, " n"],
    U: Float[Array, " n"],
    linear: Float[Array, " d+1"] | None = None,
    tol: float = 1e-8,
    init: Float[Array, " d+1"] | None = None,
) -> Pilot:
    """Solve one problem; pure, for `jit`, `vmap` and `lax.map`.

    Args:
        x: Points, `(n, d)`; best centred.
        y: Signs, `(n,)`.
        U: Costs `C u_i`, `(n,)`, not negative; 0: absent.
        linear: The linear term l of `(w, b)`, `(d + 1,)`; None: 0.
        tol: The relative gap that ends it (what rounding allows ends it too).
        init: A `(w, b)` that competes with the answer, `(d + 1,)`: the better one of the two is returned.
    """
    present = U > 0
    y = jnp.where(present, y, 0)
    # One row a feature: products with long rows, both ways, take a fifth of the time of products with short ones.
    H = y[None, :] * jnp.concatenate([x.T, jnp.ones((1, x.shape[0]), x.dtype)])
    penalty = jnp.ones(H.shape[0], x.dtype).at[-1].set(0)
    term = jnp.zeros_like(penalty) if linear is None else linear
    upper = jnp.where(present, U, 2)
    count = 2 * jnp.maximum(present.sum(dtype=x.dtype), 1)

    def only(v: Array) -> Array:
        return jnp.where(present, v, 0)

    def start() -> _Iterate:
        # At w = 0 and not at the w of these a, which is far off where the classes differ in weight: half the steps.
        one = jnp.ones_like(upper)
        return _Iterate(upper / 2, upper / 2, one, 2 * one, jnp.zeros_like(term))

    def advance(going: _Going) -> _Going:
        at = going.x
        residual = only(at.v @ H - 1 - at.z + at.s)
        off = penalty * at.v + term - H @ only(at.a)
        inverse = jnp.where(present, 1 / (at.z / at.a + at.s / at.t), 0)
        core = jnp.matmul(inverse[None, :] * H, H.T, precision=lax.Precision.HIGHEST) + jnp.diag(penalty)
        scale = lax.rsqrt(jnp.maximum(jnp.diagonal(core), jnp.finfo(x.dtype).tiny))
        factor = factored(scale[:, None] * core * scale[None, :])

        def direction(to_z: Array, to_s: Array) -> _Iterate:
            right = only(to_z / at.a - to_s / at.t) - residual
            whole = scale * (H @ (inverse * right) - off)
            dv = scale * factor.solve(whole)
            da = inverse * (right - dv @ H)
            return _Iterate(da, -da, (to_z - at.z * da) / at.a, (to_s + at.s * da) / at.t, dv)

        mu = only(at.a * at.z + at.t * at.s).sum() / count
        ahead = direction(-at.a * at.z, -at.t * at.s)
        there = _moved(at, ahead, _reach(present, at, ahead))
        centre = jnp.clip((only(there.a * there.z + there.t * there.s).sum() / count / mu) ** 3, 0, 1) * mu
        to_z, to_s = centre - at.a * at.z - ahead.a * ahead.z, centre - at.t * at.s - ahead.t * ahead.s
        d = direction(to_z, to_s)
        step = _reach(present, at, d)

        def correct(_: Array, carry: Any) -> Any:
            to_z, to_s, d, step = carry
            trial = _moved(at, d, jnp.minimum(1, step + STRETCH))
            more_z = to_z + _outlying(trial.a * trial.z, centre)
            more_s = to_s + _outlying(trial.t * trial.s, centre)
            bent = direction(more_z, more_s)
            longer = _reach(present, at, bent)
            there = (more_z, more_s, bent, longer)
            return jax.tree.map(lambda new, old: jnp.where(longer > step, new, old), there, carry)

        *_, d, step = lax.fori_loop(0, CORRECTIONS, correct, (to_z, to_s, d, step))
        new = _moved(at, d, jnp.minimum(1, BACK_OFF * step))
        new = _Iterate(*(jnp.where(present, part, 1) for part in new[:-1]), v=new.v)
        sound = jnp.all(jnp.stack([jnp.all(jnp.isfinite(part)) for part in new]))
        new = jax.tree.map(lambda fresh, old: jnp.where(sound, fresh, old), new, at)
        products = only(new.a * new.z + new.t * new.s).sum()
        value = jnp.abs(only(new.a).sum()) + jnp.finfo(x.dtype).tiny
        unequal = jnp.abs(y @ new.a - term[-1]) / value
        return _Going(new, going.step + 1, sound & jnp.any(new.a != at.a), jnp.maximum(products / value, unequal))

    one_class = ~(jnp.any(y > 0) & jnp.any(y < 0))
    wanted = jnp.asarray(True) if linear is not None else ~one_class  # else its optimum is known
    first = _Going(start(), jnp.zeros((), jnp.int32), wanted, jnp.asarray(jnp.inf, x.dtype))
    last = lax.while_loop(lambda g: (g.step < MOST_STEPS) & g.moved & (g.left > tol / 4), advance, first).x

    def primal_of(v: Array) -> Array:
        return 0.5 * (penalty * v) @ v + term @ v + only(upper * jnp.maximum(0, 1 - v @ H)).sum()

    a = only(_on_equality(last.a, y, term[-1]))
    u = H @ a - term
    dual = a.sum() - 0.5 * (penalty * u) @ u
    dual = jnp.where(jnp.abs(u[-1]) <= 1e-9 * jnp.maximum(a.sum(), jnp.finfo(x.dtype).tiny) + 1e-300, dual, -jnp.inf)
    v = last.v
    if linear is None:
        dual = jnp.maximum(dual, 0)  # costs are not negative
        v = jnp.where(one_class, jnp.zeros_like(v).at[-1].set(jnp.sign(y.sum())), v)
        dual = jnp.where(one_class, 0, dual)
    primal = primal_of(v)
    if init is not None:
        better = primal_of(init) < primal
        v, primal = jnp.where(better, init, v), jnp.minimum(primal, primal_of(init))
    return Pilot(v[:-1], v[-1], primal, jnp.minimum(dual, primal), a)


def _on_equality(a: Array, y: Array, e: Array) -> Array:
    """`sum a y = e` by scaling down the class that is too heavy, which leaves the box for no point."""
    plus, minus = jnp.where(y > 0, a, 0).sum(), jnp.where(y < 0, a, 0).sum()
    tiny = jnp.finfo(a.dtype).tiny
    of_plus = jnp.clip((minus + e) / jnp.maximum(plus, tiny), 0, 1)
    of_minus = jnp.clip((plus - e) / jnp.maximum(minus, tiny), 0, 1)
    return jnp.where(y > 0, a * of_plus, jnp.where(y < 0, a * of_minus, a))


def _outlying(product: Array, centre: Array) -> Array:
    """What brings a product back to within a factor 10 of the target, and no large one back at any price."""
    return jnp.maximum(jnp.clip(product, 0.1 * centre, 10 * centre) - product, -10 * centre)


def _moved(x: _Iterate, d: _Iterate, step: Array) -> _Iterate:
    return jax.tree.map(lambda value, change: value + step * change, x, d)


def _reach(present: Array, x: _Iterate, d: _Iterate) -> Array:
    """The longest step, at most 1, that keeps a, t, z and s positive."""
    ends = [
        jnp.where(present & (change < 0), -value / jnp.where(change < 0, change, -1), jnp.inf).min()
        for value, change in zip(x[:4], d[:4], strict=True)
    ]
    return jnp.minimum(1, jnp.stack(ends).min())
