"""Minimise a quadratic plus weighted hinges on the host in float64: of few dense rows, or by products with many.

Products and systems of few rows are computed by XLA: the threads of NumPy's BLAS wait for each other, a hundred times
longer than they compute where another process keeps a core busy. Products of sparse rows are SciPy's, of which XLA's
take 40 times as long on a CPU.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float

from jaxsvm.numerics.linear import factored
from jaxsvm.numerics.precision import matmul
from jaxsvm.runtime.arrays import TINY
from jaxsvm.runtime.programs import Program

TURNS, MOST_STEPS, MOST_PRODUCTS = 80, 500, 250  # steps of `hinge_minimum`, of Newton; products for its direction
GAP_LEFT, SHORTEST_STEP = 1e-12, 1e-10  # at which `hinge_minimum` ends: share of its value's terms; part of a step
RIDGE, ROUNDED = 1e-14, 1e-9  # added to a unit diagonal, times its length; share of a value that may be rounding
WIDTH = 0.3  # of the proximal term, in mean squares of the rows, or in 1 / c where that is more
NEARLY, ENERGY_LEFT = 0.1, 0.01  # w's share of the gap, below which the anchor moves; what is left in a direction
PROGRESS, PATIENCE = 0.99, 30  # share of the best gap that is progress, and Newton steps without it


def hinge_minimum(
    X: np.ndarray, q: np.ndarray, c: np.ndarray, pull: np.ndarray, penalty: np.ndarray, square: bool = False,
    turns: Iterable[int] = range(TURNS),
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Return `argmin_w sum(penalty w^2) / 2 - pull.w + sum_i c_i max(0, q_i - x_i.w)`, and the dual variables.

    A primal-dual interior point method with a predictor and a corrector (Mehrotra 1992) on

        Xw - q = z - t,   penalty w = pull + X'a,   a z = mu,   (c - a) t = mu

    for rows X `(m, p)` and c > 0, penalty >= 0. Squared hinges `c max(0, q - x.w)^2 / 2` (`square`) have no upper
    bound, and `t = a / c`. Returns `w (p,)` and a, `(m,)`, in `[0, c]` or not negative. It takes a step for each of
    `turns`, which may raise to end it.
    """
    m, ridge, rows = len(q), 1 / c if square else np.zeros(len(q)), _Rows(X)
    a = c / 2
    w = np.where(penalty > 0, (pull + rows.transposed(a)) / np.where(penalty > 0, penalty, 1), 0.0)
    slack = rows.product(w) - q + ridge * a
    reserve = 1 + np.abs(slack).max()
    z, t = np.maximum(slack, 0) + reserve, np.zeros(m) if square else np.maximum(-slack, 0) + reserve
    for _ in turns:
        room = np.full(m, np.inf) if square else c - a
        off = rows.product(w) - q - z + t + ridge * a
        rest = penalty * w - pull - rows.transposed(a)
        mu = _product(a, z, room, t) / (2 * m)
        size = np.abs(pull @ w) + np.abs(q @ a) + penalty @ w**2
        if not 2 * m * mu > GAP_LEFT * size:
            break
        theta = 1 / (z / a + t / room + ridge)
        M = rows.squares(theta) + np.diag(penalty)

        def direction(to_z: np.ndarray, to_t: np.ndarray) -> tuple[np.ndarray, ...]:
            """Return the changes of a, w, z and t that change the products by these values, and the step inside."""
            aim = to_z / a - to_t / room - off  # noqa: B023 (called in this turn)
            dw = solved(M, rows.transposed(theta * aim) - rest)  # noqa: B023
            da = theta * (aim - rows.product(dw))  # noqa: B023
            return da, dw, (to_z - z * da) / a, (to_t + t * da) / room  # noqa: B023

        def reach(da: np.ndarray, dz: np.ndarray, dt: np.ndarray) -> float:
            bounded = () if square else ((room, -da), (t, dt))  # noqa: B023
            return step_inside((a, da), (z, dz), *bounded)  # noqa: B023

        da, _, dz, dt = direction(-a * z, t if square else -room * t)
        step = reach(da, dz, dt)
        after = _product(a + step * da, z + step * dz, room - step * da, t + step * dt)
        centre = mu * min(1.0, (after / (2 * m * mu)) ** 3)
        da, dw, dz, dt = direction(centre - a * z - da * dz, t if square else centre - room * t + da * dt)
        step = reach(da, dz, dt)
        if not (np.isfinite(step) and step > SHORTEST_STEP):
            break
        a, w, z, t = a + step * da, w + step * dw, z + step * dz, t + step * dt
    return w, np.maximum(a, 0) if square else np.clip(a, 0, c)


def _product(a: np.ndarray, z: np.ndarray, room: np.ndarray, t: np.ndarray) -> float:
    return float(a @ z + np.where(t > 0, t, 0) @ np.where(t > 0, room, 0))


def solved(M: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Solve a system with a positive semidefinite matrix, scaled to a unit diagonal, `(p,)`."""
    scale = 1 / np.sqrt(np.where(np.diagonal(M) > 0, np.diagonal(M), 1))
    scaled = M * scale[:, None] * scale + RIDGE * len(M) * np.eye(len(M))
    if len(M) <= 64:  # which NumPy solves in one thread, without a program for each size
        return scale * np.linalg.solve(scaled, scale * right)
    with jax.enable_x64(True):
        return scale * np.asarray(_solved(scaled, scale * right))


@Program.full()
def _solved(M: Float[Array, "p p"], right: Float[Array, " p"]) -> Float[Array, " p"]:
    return factored(M).solve(right)


class _Rows:
    """Rows `(m, p)`, filled up with zeros to a power of two, at least 256, and their products."""

    def __init__(self, X: np.ndarray):
        self.m = len(X)
        self.more = np.zeros(max(256, 1 << (self.m - 1).bit_length()) - self.m)
        with jax.enable_x64(True):
            self.X = jax.device_put(np.concatenate([X, np.zeros((len(self.more), X.shape[1]))]))

    def product(self, w: np.ndarray) -> np.ndarray:
        return self._computed(matmul, self.X, w)[: self.m]

    def transposed(self, v: np.ndarray) -> np.ndarray:
        return self._computed(matmul, np.append(v, self.more), self.X)

    def squares(self, D: np.ndarray) -> np.ndarray:
        return self._computed(_squares, self.X, np.append(D, self.more))

    def _computed(self, function: Callable[..., Array], *factors: Any) -> np.ndarray:
        with jax.enable_x64(True):
            return np.asarray(_jitted(function, factors))


@Program.full(static=("function",))
def _jitted(function: Callable[..., Array], factors: tuple[Any, ...]) -> Array:
    return function(*factors)


def _squares(X: Float[Array, "m p"], D: Float[Array, " m"]) -> Float[Array, "p p"]:
    return matmul((X * D[:, None]).T, X)


class Margins(NamedTuple):
    """A point of a linear SVM, with dual variables of its hinges."""

    w: np.ndarray  # the point, `(p,)`
    a: np.ndarray  # dual variables in their bounds, `(n,)`
    value: float  # value of the point
    gap: float  # value of the point less that of the dual variables, a sum of terms that are not negative
    steps: int  # number of steps


def minimum_by_products(X: Any, y: np.ndarray, c: np.ndarray, square: bool, tol: float) -> Margins:
    """Return `argmin_w |w|^2 / 2 + sum_i c_i max(0, 1 - y_i x_i.w)` from products with X, O(entries) each.

    Newton steps solve `(I + X_F' D X_F) dw = -gradient` by conjugate gradients. Hinges, and steep squared hinges, are
    made smooth by a proximal term of their dual variables, `a = clip((width anchor + z) / (ridge + width), 0, c)`.
    Whenever w is nearly its minimum the anchor moves to a: the width stays, and so does the condition of the systems.
    X is dense or of SciPy. It ends at the relative gap `tol`; without progress, or after `MOST_STEPS`, above.

    Sources: Rockafellar 1976 (the proximal method of multipliers); Keerthi, DeCoste 2005 (Newton's steps).
    """
    squared = X.multiply(X).tocsr() if hasattr(X, "multiply") else X * X
    ridge, top = 1 / c if square else 0 * c, np.inf if square else c
    width = np.maximum(WIDTH * np.maximum(squared.sum() / len(c), 1 / c) - ridge, 0)
    w, anchor, idle = np.zeros(X.shape[1]), np.zeros(len(c)), 0
    best = Margins(w, anchor, np.inf, np.inf, 0)

    def dual(z: np.ndarray, anchor: np.ndarray) -> np.ndarray:
        return np.clip((width * anchor + z) / (ridge + width), 0, top)

    for steps in range(MOST_STEPS):
        z = 1 - y * (X @ w)
        a, above = dual(z, anchor), np.maximum(z, 0)
        gradient = w - X.T @ (y * a)
        loss, smooth = c @ above**2 / 2 if square else c @ above, gradient @ gradient / 2
        rest = max(float(loss + ridge @ a**2 / 2 - a @ z), 0.0)
        found = Margins(w, a, float(w @ w / 2 + loss), float(smooth + rest), steps)
        idle = 0 if found.gap < PROGRESS * best.gap else idle + 1
        best = found if found.gap < best.gap else best
        if not found.gap > tol * (found.value - found.gap) or idle > PATIENCE:
            break
        if smooth < NEARLY * rest:
            anchor, a = a, dual(z, a)
            gradient = w - X.T @ (y * a)
        D = np.where((a > 0) & (a < top), 1 / (ridge + width), 0)
        dw = _newton_direction(X, D, 1 + squared.T @ D, gradient)
        change = y * (X @ dw)
        w = w + dw * _halving(lambda t: (w + t * dw) @ dw - change @ dual(z - t * change, anchor))  # noqa: B023
    return best


def _newton_direction(X: Any, D: np.ndarray, squares: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """Solve `(I + X' diag(D) X) x = -gradient` to `ENERGY_LEFT` of its energy; `squares` is the diagonal, `(p,)`."""
    few = np.flatnonzero(D)
    rows, D = (X[few], D[few]) if 2 * len(few) < len(D) else (X, D)
    x, r = np.zeros_like(gradient), -gradient
    step = r / squares
    energy = first = r @ step
    for _ in range(MOST_PRODUCTS):
        if not energy > ENERGY_LEFT * first:
            break
        product = step + rows.T @ (D * (rows @ step))
        t = energy / (step @ product)
        x, r = x + t * step, r - t * product
        scaled = r / squares
        before, energy = energy, r @ scaled
        step = scaled + energy / before * step
    return x


def _halving(slope: Callable[[float], float]) -> float:
    """Return a step, at most 1, where an increasing slope, negative at 0, is a tenth of its size there (Illinois)."""
    low, high, at_low, at_high = 0.0, 1.0, slope(0.0), slope(1.0)
    t, at, enough = high, at_high, 0.1 * abs(at_low)
    for _ in range(40):
        if at <= enough and (t == 1 or at >= -enough):
            break
        t = (low * at_high - high * at_low) / (at_high - at_low)
        at = slope(t)
        if at > 0:
            high, at_high, at_low = t, at, at_low / 2
        else:
            low, at_low, at_high = t, at, at_high / 2
    return t


def simplex_maximum(n: np.ndarray, H: np.ndarray, e: np.ndarray | None = None) -> np.ndarray:
    """Return `argmax_w n.w - w' H w / 2` over the simplex, by a primal-dual interior point.

    H `(T, T)` is positive semidefinite. A second equality `e.w = 0` must hold strictly inside the simplex.
    """
    T = len(n)
    if T == 1:
        return np.ones(1)
    H = (H + H.T) / 2
    size = max(float(np.abs(H).max()), float(np.abs(n).max()), TINY)
    H, n = H / size, n / size
    A = np.ones((1, T)) if e is None else np.stack([np.ones(T), e / max(np.abs(e).max(), TINY)])
    w, z, nu = np.full(T, 1 / T), np.ones(T), np.zeros(len(A))
    for _ in range(60):
        mu = w @ z / T
        dual, off = H @ w - n - nu @ A - z, A @ w - np.eye(len(A))[0]
        exact = min(1.0, max(abs(float(n @ w - w @ H @ w / 2)), 1e-12))  # the value may be far below the largest entry
        if mu < 1e-13 * exact and np.abs(dual).max() < 1e-11 * exact and np.abs(off).max() < 1e-13:  # to rounding
            break
        target = 0.1 * mu  # of the products after the step
        right = np.column_stack([-(dual + z - target / w), A.T])
        try:
            solved = np.linalg.solve(H + np.diag(z / w), right)
            free, along = solved[:, 0], solved[:, 1:]
            change = np.linalg.solve(A @ along, -off - A @ free)
        except np.linalg.LinAlgError:  # of two equal planes, to rounding: no further step is possible
            break
        dw = free + along @ change
        dz = target / w - z - z / w * dw
        step = step_inside((w, dw), (z, dz))
        w, z, nu = w + step * dw, z + step * dz, nu + step * change
    w = np.maximum(w, 0)
    return w / w.sum()


def step_inside(*pairs: tuple[np.ndarray, np.ndarray]) -> float:
    """Return the longest step, at most 1, that keeps 1 % of each positive variable; pairs of values and directions."""
    return min(1.0, *(0.99 / max(np.max(-d / v), TINY) for v, d in pairs))
