"""Maximise a concave quadratic over the simplex: small dense programs on the host, in float64."""

import numpy as np


def simplex_maximum(n: np.ndarray, H: np.ndarray, e: np.ndarray | None = None) -> np.ndarray:
    """Return `argmax_w n.w - w' H w / 2` over the simplex, by a primal-dual interior point.

    Args:
        n: Linear part, `(T,)`.
        H: Positive semidefinite, `(T, T)`.
        e: A second equality `e.w = 0`, `(T,)`, or None. It must hold strictly inside the simplex.

    Returns:
        The weights, `(T,)`.
    """
    T = len(n)
    if T == 1:
        return np.ones(1)
    H = (H + H.T) / 2
    size = max(float(np.abs(H).max()), float(np.abs(n).max()), 1e-300)
    H, n = H / size, n / size
    A = np.ones((1, T)) if e is None else np.stack([np.ones(T), e / max(np.abs(e).max(), 1e-300)])
    wanted = np.eye(len(A))[0]
    w, z, nu = np.full(T, 1 / T), np.ones(T), np.zeros(len(A))
    for _ in range(60):
        mu = w @ z / T
        dual, off = H @ w - n - nu @ A - z, A @ w - wanted
        if mu < 1e-13 and np.abs(dual).max() < 1e-11 and np.abs(off).max() < 1e-13:
            break
        target = 0.1 * mu
        right = np.column_stack([-(dual + z - target / w), A.T])
        solved = np.linalg.solve(H + np.diag(z / w), right)
        free, along = solved[:, 0], solved[:, 1:]
        change = np.linalg.solve(A @ along, -off - A @ free)
        dw = free + along @ change
        dz = target / w - z - z / w * dw
        step = step_inside((w, dw), (z, dz))
        w, z, nu = w + step * dw, z + step * dz, nu + step * change
    w = np.maximum(w, 0)
    return w / w.sum()


def step_inside(*pairs: tuple[np.ndarray, np.ndarray]) -> float:
    """Return the longest step, at most 1, that keeps 1 % of each positive variable; pairs of values and directions."""
    return min(1.0, *(0.99 / max(np.max(-d / v), 1e-300) for v, d in pairs))
