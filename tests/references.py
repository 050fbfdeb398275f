"""References for screening rules: fits of any gap, made by NumPy, and the gaps and rules by their definitions."""

from typing import Any

import numpy as np


def fit_of(
    y: np.ndarray, a: np.ndarray, Q: np.ndarray, *, offset: float, dtype: str, hinge: bool, w: np.ndarray | None = None
) -> Any:
    """The fit that a solver would return of a dual point in primal scale; with coefficients of a w of its own."""
    from jaxsvm.results.fit import Certificate, Counters, Fit, StatusCode

    nothing, zero = np.zeros((), dtype), np.zeros((), np.int32)
    w = a if w is None else w
    return Fit(
        alpha=(a if hinge else a / (a.sum() or 1.0)).astype(dtype),
        dual_coef=(y * w).astype(dtype),
        bias=np.asarray(offset * (y @ w), dtype),
        R=np.ones((), dtype),
        margins=(Q @ w).astype(dtype),
        certificate=Certificate(nothing, nothing, nothing),
        status=StatusCode(np.ones((), np.int32)),
        counters=Counters(zero, zero, zero, zero, zero, np.zeros((2,), np.int32), zero),
    )


def relative_gap(Q: np.ndarray, a: np.ndarray, costs: np.ndarray, hinge: bool) -> float:
    """The gap of a dual point and its w, over its dual objective."""
    p, inverse = Q @ a, np.where(costs > 0, 1 / np.where(costs > 0, costs, 1), 0)
    below, above = np.maximum(1 - p, 0), np.maximum(p - 1, 0)
    dual = a.sum() - a @ p / 2
    if hinge:
        return float(((costs - a) * below + a * above).sum() / max(dual, 1e-300))
    dual -= (inverse * a) @ a / 2
    return float((costs / 2 * (below - inverse * a) ** 2 + a * above).sum() / max(dual, 1e-300))


def disturbed(
    Q: np.ndarray, exact: np.ndarray, costs: np.ndarray, gap: float, noise: np.ndarray, *, dtype: str, hinge: bool
) -> np.ndarray:
    """A feasible dual point near a solution, of about a relative gap, with numbers of a dtype."""
    scale = max(float(exact.max()), 1e-300)
    most = costs.astype(dtype).astype(float) if hinge else np.full(len(costs), np.inf)

    def at(size: float) -> np.ndarray:
        a = np.maximum(exact + size * scale * noise, 0) * (costs > 0)
        return np.minimum(a.astype(dtype).astype(float), most)

    low, high = -14.0, 1.0
    if gap == 0 or not noise.any():
        return at(0.0)
    for _ in range(25):
        middle = (low + high) / 2
        low, high = (middle, high) if relative_gap(Q, at(10**middle), costs, hinge) < gap else (low, middle)
    return at(10**high)


# --- The published tests, for an exact reference (docs/mathematics.md, Safe screening) ---


def published_balls(Q: np.ndarray, a: np.ndarray, C_ref: float, C: float) -> tuple[Any, Any, Any]:
    """Margins of the centre and radius squared of both balls, and both dual points: literal formulas."""
    p, W, rho = Q @ a, a @ Q @ a, C / C_ref
    t = (rho + 1) / 2
    sides = (t * p < 1).astype(float)
    lost = C * np.maximum(1 - p, 0).sum()
    between = (a + C * sides) @ Q @ (a + C * sides) / 4
    first = (t * p, (rho - 1) ** 2 * W / 4)
    second = (p / 2 + C * (Q @ sides) / 2, between + lost - C * sides.sum())
    return first, second, (rho * a, C * sides)


def published_intersection(Q: np.ndarray, a: np.ndarray, C_ref: float, C: float) -> tuple[np.ndarray, np.ndarray]:
    """Theorem 8, its three cases."""
    (m1, r1), (m2, r2), (dual1, dual2) = published_balls(Q, a, C_ref, C)
    s, turn = np.sqrt(Q.diagonal()), m1 - m2
    square = (dual1 - dual2) @ Q @ (dual1 - dual2) / 4
    phi, r1, r2 = np.sqrt(square), np.sqrt(r1), np.sqrt(max(r2, 0))
    zeta = (square + r2**2 - r1**2) / (2 * phi)
    kappa = np.sqrt(max(r2**2 - zeta**2, 0))
    c, across = turn / (s * phi), np.sqrt(np.maximum(s**2 - turn**2 / square, 0))
    middle = m2 + zeta * turn / phi

    def bound(sign: float) -> np.ndarray:
        one, two = sign * c < (zeta - phi) / r1, sign * c > zeta / r2
        third = middle + sign * kappa * across
        return np.where(one, m1 + sign * r1 * s, np.where(two, m2 + sign * r2 * s, third))

    return bound(-1.0), bound(1.0)


def published_dome(
    p: np.ndarray, size: np.ndarray, inner: float, outer: float, as_printed: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Theorem 11, for exact references: margins of the w at a smaller C, `|z_i|`, and `|w|^2` there and at a larger C.

    As printed the length at the larger C is `sqrt(2 outer)`, and the plane is moved alike.
    """
    long = np.sqrt(2 * outer if as_printed else outer)
    plane = np.sqrt(2) * inner / np.sqrt(outer) if as_printed else inner / np.sqrt(outer)

    def least(p: np.ndarray) -> np.ndarray:
        across = np.sqrt(np.maximum((outer - inner) / inner * (inner * size**2 - p**2), 0))
        return np.where(-p >= plane * size, -long * size, p - across)

    return least(p), -least(-p)
