"""Solve the box problems with two equalities of nu machines: pair steps within a class, as LIBSVM's `Solver_NU`."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from jaxsvm.errors import InputError
from jaxsvm.estimators.training.box import BoxData, Solved, is_indefinite
from jaxsvm.loop.interruption import watching
from jaxsvm.loop.whole import solve_whole
from jaxsvm.numerics.products import diagonal
from jaxsvm.numerics.selection import entry, largest_packed
from jaxsvm.numerics.sizes import LARGEST_PADDED
from jaxsvm.results.status import Status

MOST_VARIABLES = 2 * LARGEST_PADDED
"""Largest number of dual variables whose kernel values are stored: 2 GiB in float64."""


STEPS_A_BURST = 20_000
"""Pair steps between looks at Ctrl-C: half a second at 4,000 samples."""


def require_storable(n: int, most: int, instead: str) -> None:
    """Refuse n samples if kernel values of at most `most` are stored; `instead` names the estimator to use."""
    if n > most:
        raise InputError(f"X has {n} samples: kernel values of up to {most} are stored; use {instead}.")


def first_at_bounds(budget: float, upper: np.ndarray) -> np.ndarray:
    """Return LIBSVM's start: the first samples at their bounds `(n,)`, until their sum is `budget`."""
    return np.clip(budget - np.append(0, np.cumsum(upper)[:-1]), 0, upper)


def solve_certified(
    program: Callable[..., Any], operator: Any, data: BoxData, tol: float, max_iter: int
) -> tuple[Solved, float]:
    """Solve a nu machine by a compiled program until its relative gap is at most `tol` too; call it with x64 on.

    Args:
        program: Maps `(K, y, q, upper, start, tol, limit)` to the point, coefficients, bias, the parameter that the
            machine of fixed C or epsilon has, certificate and steps.
        operator: The stored Gram operator.
        data: The problem with its start.
        tol: LIBSVM's largest violation, and the relative duality gap to reach, > 0.
        max_iter: Most pair steps; -1 allows 10 million.

    Returns:
        The solution, and the parameter.
    """
    limit = 10_000_000 if max_iter < 0 else max_iter
    violations = iter(tol * np.array([1.0, 0.1, 0.01, 1e-3]))
    violation, a, steps = next(violations), data.start, 0
    with watching() as stop:
        while True:
            burst = min(limit - steps, STEPS_A_BURST)
            arguments = (operator.K, data.y, data.q, data.upper, a, np.float64(violation), np.int32(burst))
            a, coef, bias, parameter, certificate, taken = jax.tree.map(np.asarray, program(*arguments))
            steps, ended = steps + int(taken), taken < burst
            violation = next(violations, None) if ended else violation
            over = violation is None or steps >= limit or stop.seen
            certified = (ended or over) and float(certificate.relative_gap) <= tol
            if certified or over:
                break
    status = Status.INTERRUPTED if stop.seen else Status.MAX_STEPS
    solved = Solved(coef, float(bias), certificate, steps, status)
    return solved.judged(tol, definite=not is_indefinite(operator, data)), float(parameter)


def minimized(K: Array, y: Array, q: Array, upper: Array, a: Array, tol: Array, limit: Array) -> tuple[Array, ...]:
    """Solve `min a'Qa / 2 - q'a`, `0 <= a <= upper`, with each class's sum as at the start; `Q_ij = y_i y_j K_ij`.

    Args:
        K: Kernel values, `(n, n)`.
        y: Signs: the classes, `(n,)`.
        q: The linear term, `(n,)`.
        upper: Upper bounds, `(n,)`; 0 for an absent sample.
        a: A feasible point, `(n,)`.
        tol: The largest violation within a class to stop at, > 0.
        limit: Most pair steps.

    Returns:
        The point a, `(n,)`; `s = Qa`, `(n,)`; the level of the gradient `s - q` at free samples of the positive class,
        and of the negative one, `()`; pair steps, `()`.
    """
    D = diagonal(K).astype(a.dtype)
    positive = y > 0

    def product(a: Array) -> Array:
        return y * (K.astype(a.dtype) @ (y * a))

    def assess(g: Array, a: Array) -> tuple[Array, Array]:
        """Return the middle of each sample's class, and the larger violation of both."""
        ends = [_ends(g, a, upper, mine) for mine in (positive, ~positive)]
        # If a class is full, or one sample of it moves, nothing violates.
        widths = [jnp.where(jnp.isfinite(top - bottom), top - bottom, 0) for top, bottom in ends]
        middles = [jnp.where(jnp.isfinite(top - bottom), (top + bottom) / 2, 0) for top, bottom in ends]
        return jnp.where(positive, *middles), jnp.maximum(*widths)

    def round(state: tuple[Array, Array], left: Array) -> tuple[Any, Array, Array]:
        a, g = state
        middle, _ = assess(g, a)

        def step(k: Array, carry: Any) -> Any:
            return _pair_step(K, D, y, upper, middle, left - k.astype(left.dtype), carry)

        a, g = lax.fori_loop(0, 8, step, (a, g))  # 8 steps between checks of the violation
        return (a, g), jnp.minimum(8, left), assess(g, a)[1] / tol

    g = product(a) - q
    (a, _), steps, _ = solve_whole(round, (a, g), limit, assess(g, a)[1] / tol)
    s = product(a)
    return a, s, _level(s - q, a, upper, positive), _level(s - q, a, upper, ~positive), steps


def _pair_step(
    K: Array, D: Array, y: Array, upper: Array, middle: Array, left: Array, carry: tuple[Array, Array]
) -> tuple[Array, Array]:
    """Move along the best pair of a class; leave a point and its gradient as they are if no steps are left."""
    a, g = carry
    i = largest_packed(jnp.where(a < upper, -g - middle, -jnp.inf))
    row_i = y * entry(y, i) * lax.dynamic_index_in_dim(K, i, keepdims=False)
    descent = g - entry(g, i)
    curvature = jnp.maximum(entry(D, i) + D - 2 * row_i, 1e-12)  # LIBSVM's tau
    usable = (a > 0) & (descent > 0) & (y == entry(y, i))
    j = largest_packed(jnp.where(usable, descent * descent / curvature, -1))
    room_i, room_j = entry(upper, i) - entry(a, i), entry(a, j)
    t = jnp.minimum(entry(descent, j) / entry(curvature, j), jnp.minimum(room_i, room_j))
    moves = entry(usable, j) & (room_i > 0) & (left > 0)
    t = jnp.where(moves, t, 0)
    a_i = jnp.where(moves & (t >= room_i), entry(upper, i), entry(a, i) + t)
    a_j = jnp.where(moves & (t >= room_j), 0, entry(a, j) - t)
    row_j = y * entry(y, j) * lax.dynamic_index_in_dim(K, j, keepdims=False)
    a = a.at[i].set(a_i).at[j].set(jnp.where(moves, a_j, a.at[i].set(a_i)[j]))
    return a, g + t * (row_i - row_j)


def _ends(g: Array, a: Array, upper: Array, mine: Array) -> tuple[Array, Array]:
    """Return the largest `-g` of a class that can grow, and the smallest that can shrink."""
    return (jnp.where(mine & (a < upper), -g, -jnp.inf).max(), jnp.where(mine & (a > 0), -g, jnp.inf).min())


def _level(g: Array, a: Array, upper: Array, mine: Array) -> Array:
    """Return the gradient of a class's free samples, or the middle of its bounds if there are none."""
    free = mine & (a > 0) & (a < upper)
    top, bottom = _ends(g, a, upper, mine)
    middle = jnp.where(jnp.isfinite(bottom), (top + bottom) / 2, top)
    between = jnp.where(jnp.isfinite(top), middle, bottom)
    return jnp.where(free.any(), jnp.where(free, g, 0).sum() / jnp.maximum(free.sum(), 1), -between)
