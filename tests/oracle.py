"""Float64 ground truth for the test suite: NumPy and SciPy only, never JAX, never ``jaxsvm``.

Everything here follows the definitions of Frandi et al. and of ``docs/mathematics.md``, and not
the shortcuts that the library uses, so that an agreement of the two means something.

Conventions
-----------
``K (n, n)`` kernel matrix, ``y (n,)`` in {-1, +1}, ``C > 0``, ``weight (n,) >= 0`` or None.  A sample has the
cost ``C_i = C * weight_i``; weight 0 means that the sample is absent.  ``bias=True`` adds one to the kernel
(regularised bias), ``bias=False`` leaves it as it is.

    Kt   = y y' * (K + bias) + diag(1 / C_i)                             on samples with weight > 0
    dual: R* = min alpha' Kt alpha  over the simplex
    hinge: P* = min 1/2 (|w|^2 + b^2) + sum_i C_i/2 max(0, 1 - y_i h_i)^2 = 1 / (2 R*)

``dual_coef = y * alpha / R`` is on the scale of the squared-hinge problem (margins at 1):
``h = K @ dual_coef + bias``.  Scalar certificates and residuals are accumulated in ``numpy.longdouble`` (80 bit
on x86; where it is plain double the oracle still works, with a higher floor).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.spatial.distance import cdist

LONG = np.longdouble

# --- Kernels ---


def linear(x, z):
    """``x . z``."""
    return np.asarray(x, np.float64) @ np.asarray(z, np.float64).T


def rbf(x, z, gamma=1.0):
    """``exp(-gamma |x - z|^2)``, distances from differences (no expansion, hence no cancellation)."""
    return np.exp(-gamma * cdist(np.asarray(x, np.float64), np.asarray(z, np.float64), "sqeuclidean"))


def poly(x, z, degree=3, gamma=1.0, coef0=0.0):
    """``(gamma x . z + coef0) ** degree``."""
    return (gamma * linear(x, z) + coef0) ** degree


def laplacian(x, z, gamma=1.0):
    """``exp(-gamma |x - z|_1)``."""
    return np.exp(-gamma * cdist(np.asarray(x, np.float64), np.asarray(z, np.float64), "cityblock"))


def sigmoid(x, z, gamma=1.0, coef0=0.0):
    """``tanh(gamma x . z + coef0)``; not positive semidefinite in general."""
    return np.tanh(gamma * linear(x, z) + coef0)


KERNELS = {"linear": linear, "rbf": rbf, "poly": poly, "laplacian": laplacian, "sigmoid": sigmoid}


def kernel_matrix(name, x, z=None, **params):
    """Kernel matrix by name; exactly symmetric when ``z`` is omitted."""
    if z is not None:
        return KERNELS[name](x, z, **params)
    k = KERNELS[name](x, x, **params)
    return (k + k.T) / 2


# --- Exact solution of the squared-hinge simplex dual ---


@dataclass(frozen=True)
class Solution:
    """Exact solution; arrays have one entry a sample, exact zeros off the support and at weight 0."""

    alpha: np.ndarray  # (n,) on the simplex
    R: float  # alpha' Kt alpha, the minimum R*
    optimum: float  # 1 / (2 R*): optimal value of the squared-hinge problem
    dual_coef: np.ndarray  # (n,) y alpha / R
    bias: float  # sum(dual_coef), or 0.0 without bias
    relative_gap: float  # achieved P/D - 1 of exactly these (rounded) numbers, in extended precision


def costs(y, C, weight=None):
    """``C_i = C w_i`` as an (n,) array."""
    y = np.asarray(y, np.float64)
    return C * (np.ones_like(y) if weight is None else np.asarray(weight, np.float64))


def signed_kernel(K, y, bias=True):
    """``B = y y' (K + 1)`` (``y y' K`` without bias): the part of ``Kt`` that does not depend on C."""
    y = np.asarray(y, np.float64)
    return np.outer(y, y) * (np.asarray(K, np.float64) + (1.0 if bias else 0.0))


def kt_matrix(K, y, C, weight=None, bias=True):
    """``Kt``.  Samples of weight 0 get an infinite diagonal, which keeps them out of every step."""
    with np.errstate(divide="ignore"):
        return signed_kernel(K, y, bias) + np.diag(1.0 / costs(y, C, weight))


def _long_cholesky_solve(a, b):
    """Solve ``a x = b`` by a Cholesky factorisation in extended precision; LinAlgError if not positive definite."""
    a, n = a.astype(LONG), len(b)
    x = b.astype(LONG)
    for k in range(n):
        if not a[k, k] > 0:
            raise np.linalg.LinAlgError("not positive definite")
        a[k:, k] /= np.sqrt(a[k, k])
        col = a[k + 1 :, k]
        a[k + 1 :, k + 1 :] -= col[:, None] * col[None, :]
        x[k] /= a[k, k]
        x[k + 1 :] -= x[k] * col
    for k in range(n - 1, -1, -1):
        x[k] = (x[k] - a[k + 1 :, k] @ x[k + 1 :]) / a[k, k]
    return x


class _Dual:
    """``max 1'beta - 1/2 beta' Kt beta, beta >= 0`` with ``Kt = B + diag(1/c)``; all vectors in extended precision."""

    def __init__(self, B, c):
        self.n, self.c, self.B = len(c), c.astype(LONG), B
        self.long_B = B.astype(LONG)

    def solve(self, mask):
        """``Kt_SS beta_S = 1``, zero elsewhere, with extended-precision iterative refinement."""
        idx = np.flatnonzero(mask)
        beta = np.zeros(self.n, LONG)
        if len(idx) == 0:
            return beta
        kt = self.B[np.ix_(idx, idx)]
        kt[np.diag_indices(len(idx))] += (1 / self.c[idx]).astype(np.float64)
        long_kt = self.long_B[np.ix_(idx, idx)]
        long_kt[np.diag_indices(len(idx))] += 1 / self.c[idx]
        try:
            factor = cho_factor(kt, lower=True)
        except np.linalg.LinAlgError:
            beta[idx] = _long_cholesky_solve(long_kt, np.ones(len(idx)))
            return beta
        x = cho_solve(factor, np.ones(len(idx)))
        floor = float(np.finfo(LONG).eps * (np.abs(kt) @ np.abs(x)).max())  # rounding of the residual itself
        best, norm = x, np.inf
        for _ in range(12):
            residual = 1 - long_kt @ x
            new = float(np.abs(residual).max())
            stalled = not new < norm / 2
            if new < norm:
                best, norm = x, new
            if stalled or norm <= 4 * floor:
                break
            x = x + cho_solve(factor, residual.astype(np.float64))
        if norm > max(1e-14, 100 * floor):  # condition number beyond double precision
            best = _long_cholesky_solve(long_kt, np.ones(len(idx)))
        beta[idx] = best
        return beta

    def margins(self, beta):
        """``(B beta)_i = y_i h(x_i)``."""
        idx = np.flatnonzero(beta)
        return self.long_B[:, idx] @ beta[idx]

    def gap(self, beta, h):
        """``P/D - 1`` from the definitions at the best multiple of ``beta >= 0``, with ``h = margins(beta)``."""
        total = beta.sum()
        if not total > 0:
            return np.inf
        scale = total / (beta @ h + (beta**2 / self.c).sum())
        beta, h = scale * beta, scale * h
        primal = beta @ h / 2 + (self.c / 2 * np.maximum(0, 1 - h) ** 2).sum()
        dual = beta.sum() - (beta @ h + (beta**2 / self.c).sum()) / 2
        return float(primal / dual - 1)


def _line_search(beta, slack, direction, slack_change, c):
    """Exact minimiser ``t`` of the convex piecewise quadratic primal along ``beta + t direction``."""
    h, dh = 1 - slack, -slack_change
    linear_part, quadratic = direction @ h, direction @ dh

    def slope(t):
        return linear_part + t * quadratic - (c * np.maximum(0, slack + t * slack_change) * dh).sum()

    moving = slack_change != 0
    t = -slack[moving] / slack_change[moving]
    t = np.sort(t[t > 0])
    low, high = 0, len(t)  # first breakpoint with a non-negative slope
    while low < high:
        mid = (low + high) // 2
        low, high = (mid + 1, high) if slope(t[mid]) < 0 else (low, mid)
    left = t[low - 1] if low else LONG(0)
    right = t[low] if low < len(t) else left + 1
    s_left, s_right = slope(left), slope(right)
    if not s_right > s_left:
        return left
    return left - s_left * (right - left) / (s_right - s_left)


def _newton(dual, max_iterations=100):
    """Semismooth Newton on the primal (Mangasarian; Keerthi and DeCoste), exact line search: finite, monotone."""
    c = dual.c
    beta, slack = np.zeros(dual.n, LONG), np.ones(dual.n, LONG)
    best, best_gap = beta, np.inf
    for _ in range(max_iterations):
        active = slack > 0
        target = dual.solve(active)
        h = dual.margins(target)
        target_slack = np.where(active, target / c, 1 - h)  # on S the equation is exact: no cancellation
        if (target >= 0).all() and (gap := dual.gap(target, h)) < best_gap:
            best, best_gap = target, gap
        if np.array_equal(target_slack > 0, active):
            break
        if best_gap < 1e-17:
            break
        t = _line_search(beta, slack, target - beta, target_slack - slack, c)
        if not t > 0:
            break
        beta, slack = beta + t * (target - beta), slack + t * (target_slack - slack)
    return best


def solve_svm(K, y, C, weight=None, bias=True):
    """Exact solution of primal and dual with costs ``C_i = C weight_i``.

    Args:
        K: (n, n) symmetric positive semidefinite.  y: (n,) in {-1, +1}.  C: positive.
        weight: (n,) non-negative, not all zero; zero removes the sample.
        bias: whether the bias is in the model (always regularised).

    Returns:
        ``Solution`` with a relative duality gap below 1e-9 (in practice below 1e-12).

    Raises:
        ValueError: bad input, or ``Kt`` not positive definite (an indefinite kernel).
        AssertionError: the gap was not reached; the message carries it.
    """
    K, y = np.asarray(K, np.float64), np.asarray(y, np.float64)
    n = len(y)
    if K.shape != (n, n) or not np.isfinite(K).all() or not set(np.unique(y)) <= {-1.0, 1.0} or not C > 0:
        raise ValueError("K must be finite (n, n), y in {-1, +1}, C > 0")
    c = costs(y, C, weight)
    keep = np.flatnonzero(c > 0)
    if len(keep) == 0 or (c < 0).any():
        raise ValueError("weights must be non-negative and not all zero")
    B = signed_kernel(K, y, bias)[np.ix_(keep, keep)]
    dual = _Dual(B, c[keep])
    try:
        beta = _newton(dual)
    except np.linalg.LinAlgError as error:
        raise ValueError("Kt is not positive definite: indefinite kernel, or 1/C below the rounding of K") from error
    total = beta.sum()
    alpha, coef = np.zeros(n), np.zeros(n)
    alpha[keep] = (beta / total).astype(np.float64)
    coef[keep] = y[keep] * beta.astype(np.float64)
    gap = relative_gap_direct(K, y, C, alpha, weight, bias)
    assert gap < 1e-9, f"oracle reached a relative gap of {gap:.1e} only"
    b = float((y[keep] * beta).sum()) if bias else 0.0
    return Solution(alpha, float(1 / total), float(total / 2), coef, b, gap)


# --- Certificates, from the definitions ---


def svm_primal(K, y, C, dual_coef, bias=0.0, weight=None):
    """``1/2 (w.w + b^2) + sum C_i/2 max(0, 1 - y_i h_i)^2`` for ``h = K dual_coef + bias``."""
    k, y, v = np.asarray(K).astype(LONG), np.asarray(y).astype(LONG), np.asarray(dual_coef).astype(LONG)
    kv = k @ v
    hinge = np.maximum(0, 1 - y * (kv + LONG(bias)))
    return float((v @ kv + LONG(bias) ** 2) / 2 + (costs(y, C, weight).astype(LONG) / 2 * hinge**2).sum())


def simplex_objective(K, y, C, alpha, weight=None, bias=True):
    """``R(alpha) = alpha' Kt alpha`` in extended precision."""
    y = np.asarray(y, np.float64)
    a, c = np.asarray(alpha).astype(LONG), costs(y, C, weight)
    on = c > 0
    return float(a @ signed_kernel(K, y, bias).astype(LONG) @ a + (a[on] ** 2 / c[on]).sum())


def relative_gap_direct(K, y, C, alpha, weight=None, bias=True):
    """``P/D - 1``: primal at ``alpha / R`` over the dual value ``1 / (2R)``, by their definitions."""
    R = simplex_objective(K, y, C, alpha, weight, bias)
    coef = np.asarray(y) * np.asarray(alpha).astype(LONG) / R
    return svm_primal(K, y, C, coef, coef.sum() if bias else 0.0, weight) * 2 * R - 1


def fw_gap(Kt, alpha):
    """``G = max_v (alpha - v)' grad R(alpha) = 2 (R - min_i s_i)``, in extended precision."""
    a = np.asarray(alpha).astype(LONG)
    absent = np.isinf(np.diag(Kt))
    s = np.where(absent, 0, Kt).astype(LONG) @ a
    return float(2 * (a @ s - s[~absent].min()))


# --- Reference iterations (docs/mathematics.md, Steps on the simplex) ---


def reference_steps(Kt, start, variant, k) -> Iterator[tuple[np.ndarray, float]]:
    """Points and objectives of canonical FW, MFW, pairwise and second-order pair steps ("fw", "mfw", "pfw", "smo").

    Full search, lowest index on ties; ends where no direction of descent is left.
    """
    D, alpha, s, unit = np.diag(Kt), np.array(start, np.float64), Kt @ start, np.eye(len(Kt))
    R = float(alpha @ s)
    for _ in range(k):
        i, j = int(np.argmin(s)), int(np.argmax(np.where(alpha > 0, s, -np.inf)))
        if variant == "smo":
            with np.errstate(divide="ignore", invalid="ignore"):
                gain = (s - s[i]) ** 2 / (D[i] + D - 2 * Kt[:, i])
            j = int(np.argmax(np.where((alpha > 0) & (s > s[i]), gain, -np.inf)))
        if variant in ("pfw", "smo"):
            slope, q, bound = 2 * (s[j] - s[i]), D[i] + D[j] - 2 * Kt[i, j], alpha[j]
            direction, along = unit[i] - unit[j], Kt[:, i] - Kt[:, j]
        elif variant == "fw" or R - s[i] >= s[j] - R:
            slope, q, bound = 2 * (R - s[i]), D[i] - 2 * s[i] + R, 1.0
            direction, along = unit[i] - alpha, Kt[:, i] - s
        else:
            slope, q, bound = 2 * (s[j] - R), D[j] - 2 * s[j] + R, alpha[j] / (1 - alpha[j])
            direction, along = alpha - unit[j], s - Kt[:, j]
        if not (slope > 0 and q > 0):
            return
        lam = min(slope / (2 * q), bound)
        alpha, s, R = alpha + lam * direction, s + lam * along, R - lam * slope + lam**2 * q
        if lam == bound:
            alpha[j] = 0.0
        yield alpha, float(R)


def published_steps(Kt, start, variant, k, printed_sign=False) -> Iterator[float]:
    """Objectives of FW and MFW ("fw", "mfw") by the published formulas for a constant diagonal, radii by theirs.

    ``printed_sign=True`` uses the misprinted radius update after an away step.
    """
    delta2, alpha, s = Kt[0, 0], np.array(start, np.float64), Kt @ start
    r2 = delta2 - alpha @ s
    for _ in range(k):
        gamma2 = delta2 + (delta2 - r2) - 2 * s
        i, j = int(np.argmin(s)), int(np.argmax(np.where(alpha > 0, s, -np.inf)))
        delta_plus, delta_minus = gamma2[i] / r2 - 1, 1 - gamma2[j] / r2
        dropped = False
        if variant == "fw" or delta_plus >= delta_minus:
            at, lam = i, (1 - r2 / gamma2[i]) / 2
            r2 = r2 * (1 + delta_plus**2 / (4 * (1 + delta_plus)))
        else:
            at, bound, lam = j, alpha[j] / (1 - alpha[j]), delta_minus / (2 * (1 - delta_minus))
            dropped, lam = lam >= bound, min(lam, bound)
            sign = delta_minus - 1 if printed_sign else 1 - delta_minus
            r2 = (1 + lam) * r2 - lam * (1 + lam) * sign * r2
            lam = -lam
        alpha, s = (1 - lam) * alpha, (1 - lam) * s + lam * Kt[:, at]
        alpha[at] = 0.0 if dropped else alpha[at] + lam
        yield float(delta2 - r2)
