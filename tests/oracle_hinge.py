"""Float64 ground truth for hinge problems, box problems, slack problems and water levels: NumPy and SciPy only.

Everything follows the definitions of Cotter, Shalev-Shwartz, Srebro 2012, never
the shortcuts of the library: a water level is a linear programme, a hinge SVM a quadratic one.
"""

from typing import NamedTuple

import numpy as np
from oracle import kernel_matrix
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import brentq, linprog

LONG = np.longdouble

# --- Water levels (docs/mathematics.md, The slack budget) ---


def level_by_lp(c, volume, y=None, weight=None) -> tuple[float, float]:
    """``max t: c + y b + xi >= t, xi >= 0, sum w xi <= V`` by HiGHS: the level and b (0.0 where y is None).

    Samples of weight 0 are absent.  The dual simplex ends at a vertex, which is accurate far beyond its tolerances.
    """
    c = np.asarray(c, np.float64)
    w = np.ones(len(c)) if weight is None else np.asarray(weight, np.float64)
    present = w > 0
    c, w, n = c[present], w[present], int(present.sum())
    shift = c.min()  # the same programme; HiGHS keeps more digits near 0
    columns = [np.ones((n, 1)), -np.eye(n)]
    if y is not None:
        columns.insert(1, -np.asarray(y, np.float64)[present, None])
    free = len(columns) - 1
    matrix = np.vstack([np.hstack(columns), np.hstack([np.zeros(free), w])[None]])
    objective = np.zeros(matrix.shape[1])
    objective[0] = -1.0
    solved = linprog(
        objective,
        A_ub=matrix,
        b_ub=np.append(c - shift, volume),
        bounds=[(None, None)] * free + [(0, None)] * n,
        method="highs-ds",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10, "presolve": False},
    )
    if solved.status != 0:
        raise AssertionError(solved.message)
    return float(-solved.fun + shift), float(solved.x[1]) if free == 2 else 0.0


def level_by_sorting(c, volume) -> float:
    """``min_k (S_k + V) / k``."""
    c = np.sort(np.asarray(c, np.float64))
    return float((c[0] + (np.cumsum(c - c[0]) + volume) / np.arange(1, len(c) + 1)).min())


def level_with_bias_closed(c, y, volume) -> tuple[float, float, int]:
    """The closed form: level, the middle of the optimal biases, and k."""
    P, N = (np.sort(np.asarray(c, np.float64)[np.asarray(y) == sign]) for sign in (1, -1))
    most = min(len(P), len(N))
    doubled = (volume + np.cumsum(P)[:most] + np.cumsum(N)[:most]) / np.arange(1, most + 1)
    k = int(np.argmin(doubled)) + 1
    return *_capped(P, N, k, max(doubled[k - 1] - P[k - 1] - N[k - 1], 0.0)), k


def _capped(P, N, k, room) -> tuple[float, float]:
    """Level and bias from k covered samples a class and ``D`` to share between them."""
    up, up_n = (min(room, part[k] - part[k - 1]) if k < len(part) else room for part in (P, N))
    plus, minus = P[k - 1] + (room + up - up_n) / 2, N[k - 1] + (room - up + up_n) / 2
    return float((plus + minus) / 2), float((minus - plus) / 2)


# --- Data ---


def parabola(n=60, d=2, wrong=0.1, seed=0) -> tuple[np.ndarray, np.ndarray]:
    """``x (n, d)``, and labels of a parabola, some of which are wrong."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    y = np.where(x[:, 0] + x[:, 1] ** 2 > 0.7, 1.0, -1.0)
    return x, np.where(rng.random(n) < wrong, -y, y)


def noisy(n=60, seed=0, gamma=0.5) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``x (n, 2)``, labels of a parabola with a tenth of them wrong, and their RBF kernel matrix."""
    x, y = parabola(n, seed=seed)
    return x, y, kernel_matrix("rbf", x, gamma=gamma)


# --- Box problems: max q'a - 1/2 a'Qa, 0 <= a <= U, optionally c'a = e ---


class BoxSolution(NamedTuple):
    """An exact solution: ``dual <= optimum <= primal``, accumulated in extended precision."""

    a: np.ndarray
    b: float  # multiplier of the equality: r = q - Qa - b c
    primal: float
    dual: float

    @property
    def optimum(self) -> float:
        return (self.primal + self.dual) / 2


def box_solution(Q, q, upper, c=None, e=0.0, accuracy=1e-9) -> BoxSolution:
    """An interior-point method, and the linear system on the free variables that it names: exact up to rounding.

    Raises AssertionError where the relative gap stays above ``accuracy``, so that no test can use a bad truth.
    """
    Q, q, upper = (np.asarray(v, np.float64) for v in (Q, q, upper))
    upper = np.broadcast_to(upper, q.shape)
    c = None if c is None else np.broadcast_to(np.asarray(c, np.float64), q.shape)
    place = np.flatnonzero(upper > 0)
    if len(place) < len(q):
        part = box_solution(
            Q[np.ix_(place, place)], q[place], upper[place], None if c is None else c[place], e, accuracy
        )
        return part._replace(a=np.bincount(place, part.a, len(q)))
    a, b, low, high = _interior_point(Q, q, upper, c, e)
    best = certified(Q, q, upper, a, c, e, b)
    for _ in range(20):
        free = ~(low | high)
        a, b = _on_free(Q, q, upper, c, e, free, high, best.b)
        r = q - Q @ a - (0 if c is None else b * c)
        rounding = 1e-12 * (np.abs(Q) @ np.abs(a) + np.abs(q)).max()
        found = certified(Q, q, upper, np.clip(a, 0, upper), c, e, b)
        if found.primal - found.dual < best.primal - best.dual:
            best = found
        below, above = free & (a < 0), free & (a > upper)
        wrong_low, wrong_high = low & (r > rounding), high & (r < -rounding)
        if not (below | above | wrong_low | wrong_high).any():
            break
        low, high = (low | below) & ~wrong_low, (high | above) & ~wrong_high
    if best.primal - best.dual > accuracy * max(abs(best.dual), 1e-300):
        raise AssertionError(f"the oracle's relative gap is {(best.primal - best.dual) / abs(best.dual):.2g}")
    return best


def certified(Q, q, upper, a, c=None, e=0.0, b=None) -> BoxSolution:
    """A feasible point's primal with the best b, and its dual, in extended precision."""
    Q, q, upper, a = (np.asarray(v).astype(LONG) for v in (Q, q, upper, a))
    s = Q @ a
    dual = a @ (q - s / 2)
    if c is None:
        gap = (upper - a) @ np.maximum(0, q - s) + a @ np.maximum(0, s - q)
        return BoxSolution(a.astype(float), 0.0, float(dual + gap), float(dual))
    c = np.asarray(c).astype(LONG)
    breaks = ((q - s)[c != 0] / c[c != 0]).tolist() + ([] if b is None else [b])
    biases = np.asarray(breaks, LONG)
    losses = np.maximum(0, q - s - biases[:, None] * c) @ upper + biases * e
    best = int(np.argmin(losses))
    primal = a @ s / 2 + losses[best]
    dual = dual - np.abs(biases[best]) * np.abs(c @ a - e)  # infeasible by rounding: what it may be worth
    return BoxSolution(a.astype(float), float(biases[best]), float(primal), float(dual))


def _interior_point(Q, q, upper, c, e, steps=100):
    """Mehrotra's predictor and corrector; a, b and which variables end at 0 and at U."""
    n, D = len(q), np.maximum(np.diag(Q), 1e-300)
    a, b = np.minimum(upper / 2, np.abs(q).max() / D.mean() if q.any() else np.inf), 0.0
    scale = np.abs(q - Q @ a).max() + np.abs(q).max() + 1e-300
    z, t = np.full(n, scale), np.full(n, scale)
    for _ in range(steps):
        s = upper - a
        dual_residual = Q @ a - q - z + t + (0 if c is None else b * c)
        primal_residual = 0.0 if c is None else c @ a - e
        mu = (a @ z + s @ t) / (2 * n)
        if mu * n < 1e-15 * abs(a @ (q - Q @ a / 2)) and np.abs(dual_residual).max() < 1e-13 * scale:
            break
        H = Q + np.diag(z / a + t / s)
        if not np.isfinite(H).all():
            break
        try:
            factor = cho_factor(H + 1e-15 * np.diag(np.diag(H)))
        except np.linalg.LinAlgError:
            break

        def direction(
            rz, rt, factor=factor, s=s, dual_residual=dual_residual, primal_residual=primal_residual, a=a, z=z, t=t
        ):
            da, db = cho_solve(factor, -dual_residual + rz / a - rt / s), 0.0
            if c is not None:
                along = cho_solve(factor, c)
                db = (c @ da + primal_residual) / (c @ along)
                da = da - db * along
            return da, db, (rz - z * da) / a, (rt + t * da) / s

        da, db, dz, dt = direction(-a * z, -s * t)
        step = min(_reach(a, da), _reach(s, -da), _reach(z, dz), _reach(t, dt))
        after = ((a + step * da) @ (z + step * dz) + (s - step * da) @ (t + step * dt)) / (2 * n)
        centre = mu * (after / mu) ** 3
        da, db, dz, dt = direction(centre - a * z - da * dz, centre - s * t + da * dt)
        step = 0.995 * min(_reach(a, da), _reach(s, -da), _reach(z, dz), _reach(t, dt))
        if not np.isfinite(step) or step < 1e-12:
            break
        a, b, z, t = a + step * da, b + step * db, z + step * dz, t + step * dt
        a = np.clip(a, 1e-300, np.nextafter(upper, 0))
    return a, b, D * a < z, D * (upper - a) < t


def _reach(v, d) -> float:
    """The largest step up to 1 that keeps ``v + step d >= 0``."""
    falling = d < 0
    return float(min(1.0, (v[falling] / -d[falling]).min())) if falling.any() else 1.0


def _on_free(Q, q, upper, c, e, free, high, b):
    """The stationary point on the free variables, the others at their bounds."""
    a = np.where(high, upper, 0.0)
    m, right = int(free.sum()), (q - Q @ a)[free]
    if m == 0:
        return a, b
    if c is None:
        matrix = Q[np.ix_(free, free)]
    else:
        matrix = np.block([[Q[np.ix_(free, free)], c[free, None]], [c[free], np.zeros((1, 1))]])
        right = np.append(right, e - c @ a)
    found = np.linalg.lstsq(matrix, right, rcond=1e-15)[0]
    found = found + np.linalg.lstsq(matrix, right - matrix @ found, rcond=1e-15)[0]
    a[free] = found[:m]
    return a, (b if c is None else float(found[m]))


def sensitivities(x, y, C, u, scaled=False) -> np.ndarray:
    """Sensitivities of the linear hinge with a free bias, from below, to 1e-6, by Dinkelbach's levels.

    At a level tau below that of p, ``u_p f(p) - tau F`` has a positive maximum, where the hinge of p is linear:
    ``min (tau - rho) |w|^2 / 2 + (1 - tau) C u_p y_p f(x_p) + tau C sum_{q != p} u_q h_q`` with ``rho = u_p / U`` or 0.
    """
    x = x - u @ x / u.sum()
    Z = y[:, None] * x
    first, b, *_ = _interior_point(Z @ Z.T, np.ones(len(y)), C * u, y, 0.0)
    best = Z.T @ first, b

    def of_point(p):
        rho, others = u[p] / u.sum() if scaled else 0.0, np.arange(len(y)) != p

        def ratio(w, b):
            h = np.maximum(0, 1 - y * (x @ w + b))
            whole = w @ w / 2 + C * u @ h
            return (rho * w @ w / 2 + C * u[p] * h[p]) / whole if whole > 0 else 0.0

        def after(tau):
            scale, rest = max(tau - rho, 1e-12), Z[others]
            along = (1 - tau) * C * u[p] * y[p] / scale
            q, upper = 1 + along * (rest @ x[p]), (tau * C * u / scale)[others]
            a, b, *_ = _interior_point(rest @ rest.T, q, upper, y[others], along)
            return ratio(rest.T @ a - along * x[p], b)

        least = u[p] / u[y == y[p]].sum()
        level = max(1.005 * least, ratio(*best))  # at the least level the maximum is 0
        if level >= 1:
            return 1.0
        tau = max(after(level), least, ratio(*best))
        while level * (1 + 1e-7) < tau < 1:
            level, tau = tau, max(after(tau), tau)
        return min(tau, 1.0)

    return np.array([of_point(p) if u[p] > 0 else 0.0 for p in range(len(y))])


def solve_meb(K) -> tuple[np.ndarray, float]:
    """Weights and squared radius of the minimum enclosing ball of the feature points of a positive semidefinite ``K``.

    It is ``max a'diag(K) - a'Ka`` over the simplex. ``a`` need not be unique; centre ``sum a_i z_i`` and radius are.
    """
    K = np.asarray(K, np.float64)
    n, mean = len(K), K.astype(LONG).mean(1)
    k = (K - mean[:, None] - mean + mean.mean()).astype(np.float64)  # the ball is translation invariant
    spread = float(np.diag(k).max())
    if spread <= 1e-15 * np.abs(K).max():
        return np.eye(n)[0], 0.0
    k /= spread
    found = box_solution(2 * k, np.diag(k), np.ones(n), np.ones(n), 1.0, accuracy=np.inf)
    a = found.a.astype(LONG) / found.a.sum()
    s = k.astype(LONG) @ a
    phi, reach = a @ np.diag(k) - a @ s, (np.diag(k) - 2 * s + a @ s).max()
    assert reach - phi < 1e-9, f"enclosing ball: gap {reach - phi:.1e} of the squared spread"
    return a.astype(float), float(phi) * spread


# --- Hinge problems ---


class HingeSolution(NamedTuple):
    """The optimum of ``1/2 |w|^2 + sum_i C_i max(0, 1 - y_i f(x_i))``."""

    a: np.ndarray
    bias: float  # of the decision function
    primal: float
    dual: float
    margins: np.ndarray  # y_i f(x_i), with the bias
    norm: float  # |w|, with a regularised bias, without a free one
    loss: float  # weighted mean of the hinge losses

    @property
    def optimum(self) -> float:
        return (self.primal + self.dual) / 2

    @property
    def nu(self) -> float:
        """The nu of the slack problem with the same direction."""
        return self.loss / self.norm


def signed(K, y, bias="none"):
    """``Q``, with the constant feature of a regularised bias."""
    return np.outer(y, y) * (np.asarray(K, np.float64) + (1.0 if bias == "regularized" else 0.0))


def hinge_solution(K, y, C, bias="none", weight=None, accuracy=1e-9) -> HingeSolution:
    """The exact solution; ``bias`` as `jaxsvm.hinge_problem` has it."""
    y = np.asarray(y, np.float64)
    weight = np.ones(len(y)) if weight is None else np.asarray(weight, np.float64)
    Q = signed(K, y, bias)
    found = box_solution(Q, np.ones(len(y)), C * weight, y if bias == "free" else None, 0.0, accuracy)
    s = Q @ found.a
    margins = s + found.b * y
    constant = {"none": 0.0, "regularized": float(y @ found.a), "free": found.b}[bias]
    return HingeSolution(
        a=found.a,
        bias=constant,
        primal=found.primal,
        dual=found.dual,
        margins=margins,
        norm=float(np.sqrt(found.a @ s)),
        loss=float(weight @ np.maximum(0, 1 - margins) / weight.sum()),
    )


def hinge_dual(K, y, a, bias="none") -> float:
    """``D(a)``."""
    a = np.asarray(a).astype(LONG)
    return float(a.sum() - a @ (signed(K, y, bias).astype(LONG) @ a) / 2)


def gap_of(K, y, C, fit, bias="none") -> float:
    """The relative gap of a fit by definition: of the w and the bias that it returns, and of its dual point."""
    y, a, v, b = np.asarray(y, float), np.asarray(fit.alpha, float), np.asarray(fit.dual_coef, float), float(fit.bias)
    decision = np.asarray(K, float) @ v
    square = v @ decision + (b * b if bias == "regularized" else 0.0)
    primal = square / 2 + C * np.maximum(0, 1 - y * (decision + b)).sum()
    dual = hinge_dual(K, y, a, bias) - (abs(b * (y @ a)) if bias == "free" else 0.0)
    return (primal - dual) / dual


# --- Slack problems ---


class SlackSolution(NamedTuple):
    """The optimum of ``S_nu``."""

    level: float  # f*
    p: np.ndarray  # optimal distribution
    a: np.ndarray  # coefficients of the unit vector w
    C: float  # of the hinge problem with the same direction
    bias: float  # of the unit vector: the hinge problem's, times f*


def slack_solution(K, y, nu, bias="none", weight=None) -> SlackSolution:
    """Through docs/mathematics.md, The slack budget: the C whose solution has this nu, then ``f* = 1 / |w*|``."""

    def excess(log_C):
        return hinge_solution(K, y, np.exp(log_C), bias, weight).nu - nu

    low, high = -12.0, 4.0
    while excess(low) < 0:
        low -= 4
    while excess(high) > 0:
        high += 2
    C = float(np.exp(brentq(excess, low, high, xtol=1e-13, rtol=1e-14)))
    found = hinge_solution(K, y, C, bias, weight)
    constant = found.bias / found.norm
    return SlackSolution(1 / found.norm, found.a / found.a.sum(), found.a / found.norm, C, constant)


def slack_bound(K, y, nu, p, bias="none", weight=None) -> float:
    """``sqrt(p'Qp) + V max_i p_i / w_i``: no w has a higher level."""
    weight = np.ones(len(p)) if weight is None else np.asarray(weight)
    return float(np.sqrt(p @ signed(K, y, bias) @ p) + nu * weight.sum() * (p / weight).max())
