"""Minimise a quadratic plus weighted hinges of few dense rows: small programs on the host, in float64."""

import numpy as np

from jaxsvm.numerics.simplex_program import step_inside


def hinge_minimum(
    X: np.ndarray, q: np.ndarray, upper: np.ndarray, pull: np.ndarray, penalty: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return `argmin_w sum(penalty w^2) / 2 - pull.w + sum_i upper_i max(0, q_i - x_i.w)`, and the dual variables.

    A primal-dual interior point method with a predictor and a corrector (Mehrotra 1992) on

        Xw - q = z - t,   penalty w = pull + X'a,   a z = mu,   (upper - a) t = mu

    Args:
        X: Rows, `(m, p)`.
        q: Where the hinges begin, `(m,)`.
        upper: Weights of the hinges, > 0, `(m,)`.
        pull: Linear part, `(p,)`.
        penalty: Curvature, >= 0, `(p,)`.

    Returns:
        `w (p,)` and a in `[0, upper]`, `(m,)`.
    """
    m = len(q)
    a = upper / 2
    w = np.where(penalty > 0, (pull + a @ X) / np.where(penalty > 0, penalty, 1), 0.0)
    slack = X @ w - q
    reserve = 1 + np.abs(slack).max()
    z, t = np.maximum(slack, 0) + reserve, np.maximum(-slack, 0) + reserve
    for _ in range(80):
        room = upper - a
        off, rest = X @ w - q - z + t, penalty * w - pull - a @ X
        mu = (a @ z + room @ t) / (2 * m)
        size = np.abs(pull @ w) + np.abs(q @ a) + penalty @ w**2
        if not 2 * m * mu > 1e-12 * size:
            break
        theta = 1 / (z / a + t / room)
        M = X.T @ (theta[:, None] * X) + np.diag(penalty)
        to_z, to_t = -a * z, -room * t
        for turn in range(2):
            aim = to_z / a - to_t / room - off
            dw = solved(M, (theta * aim) @ X - rest)
            da = theta * (aim - X @ dw)
            dz, dt = (to_z - z * da) / a, (to_t + t * da) / room
            step = step_inside((a, da), (room, -da), (z, dz), (t, dt))
            if turn == 0:
                after = (a + step * da) @ (z + step * dz) + (room - step * da) @ (t + step * dt)
                centre = mu * min(1.0, (after / (2 * m * mu)) ** 3)
                to_z, to_t = centre - a * z - da * dz, centre - room * t + da * dt
        if not (np.isfinite(step) and step > 1e-10):
            break
        a, w, z, t = a + step * da, w + step * dw, z + step * dz, t + step * dt
    return w, np.clip(a, 0, upper)


def solved(M: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Solve a system with a positive semidefinite matrix, scaled to a unit diagonal, `(p,)`."""
    squares = np.diag(M)
    scale = 1 / np.sqrt(np.where(squares > 0, squares, 1))
    scaled = M * np.outer(scale, scale) + 1e-14 * len(M) * np.eye(len(M))
    return scale * np.linalg.solve(scaled, scale * right)
