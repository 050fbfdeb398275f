"""The paper in NumPy, which shares no code with the library: exact solutions, steps and radii as they are printed."""

import numpy as np
from scipy.optimize import nnls


def cloud(n, d=4, seed=0):
    """Gaussian points, and the signs of a curved boundary with noise."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    return x, np.where(x[:, 0] + x[:, 1] ** 2 / 2 + 0.4 * rng.normal(size=n) > 0.3, 1, -1)


def signed(K, y, C):
    return np.outer(y, y) * (K + 1) + np.eye(len(y)) / C


def exact(Kt):
    """The exact alpha and R*, by non-negative least squares."""
    factor = np.linalg.cholesky(Kt)
    beta = nnls(factor.T, np.linalg.solve(factor, np.ones(len(Kt))), maxiter=20_000)[0]
    return beta / beta.sum(), 1 / beta.sum()


def rbf(x, gamma):
    return np.exp(-gamma * ((x[:, None] - x[None]) ** 2).sum(-1))


def printed_steps(Kt, start, away, steps, repaired=False, eps=1e-6):
    """FW and MFW as printed: `Delta^2 = Kt_11`, radii by the updates. Repaired: the largest `Kt_ii`, radii computed.

    Returns alpha and the number of steps at which the printed rule stops.
    """
    alpha, s, delta2 = start.copy(), Kt @ start, Kt.diagonal().max() if repaired else Kt[0, 0]
    r2 = delta2 - alpha @ s
    for k in range(steps):
        R = alpha @ s
        r2 = delta2 - R if repaired else r2
        i, j = s.argmin(), np.where(alpha > 0, s, -np.inf).argmax()
        plus, minus = (delta2 + R - 2 * s[i]) / r2 - 1, 1 - (delta2 + R - 2 * s[j]) / r2
        if plus <= (1 + eps) ** 2 - 1:
            return alpha, k
        if not away or plus >= minus:
            lam, p = (1 - 1 / (1 + plus)) / 2, i
            r2 *= 1 + plus**2 / (4 * (1 + plus))
        else:
            step = min(minus / (2 * (1 - minus)), alpha[j] / (1 - alpha[j]))
            lam, p = -step, j
            r2 *= 1 + step - step * (1 + step) * (1 - minus)
        alpha, s = (1 - lam) * alpha, (1 - lam) * s + lam * Kt[:, p]
        alpha[p] = max(alpha[p] + lam, 0)
    return alpha, steps


def after_away_step(Kt, alpha):
    """Errors of the squared radius, corrected and as printed; whether j* is the nearest active point."""
    s, R, delta2 = Kt @ alpha, alpha @ Kt @ alpha, Kt[0, 0]
    j, r2 = s.argmax(), delta2 - R
    minus = 1 - (delta2 + R - 2 * s[j]) / r2
    lam = min(minus / (2 * (1 - minus)), alpha[j] / (1 - alpha[j]))
    new = (1 + lam) * alpha - lam * np.eye(len(alpha))[j]
    forms = [(1 + lam) * r2 - lam * (1 + lam) * sign * (1 - minus) * r2 for sign in (1, -1)]
    z = np.linalg.cholesky(Kt)  # points with these products
    nearest = ((z - alpha @ z) ** 2).sum(1).argmin()
    return *(abs(form - (delta2 - new @ Kt @ new)) for form in forms), nearest == j
