"""Cutting planes of the mean hinge, what they prove, and where to look next.

Weights `alpha(x)` in [0, 1] give a plane below the mean hinge, `n + g.beta` with `n = mean alpha` and
`g = -mean alpha y x`; counts of far rows are such weights. Convex combinations w of planes are planes too, so

    D(w) = sum_t w_t n_t - |sum_t w_t g_t|^2 / (4 lam)  <=  F*

for any w on the simplex: the window of iterates that the stability-free certificate averages is the special case of
equal weights, and `beta = -sum_t w_t g_t / (2 lam)` with `w = 1 / t` is the step `1 / (2 lam t)`. The best weights are
a small quadratic program; its beta minimises the model of F (Teo, Vishwanathan, Smola, Le, "Bundle Methods for
Regularized Risk Minimization", JMLR 2010), here with a proximal term around the best point in the metric `E x x'`,
which is the curvature of the mean hinge but for a factor (the density of scores at the margin): steps are Newton's,
about, and the planes correct them.
"""

import dataclasses

import numpy as np

KEPT = 100
"""Planes that the program has at most: those without weight go first."""


@dataclasses.dataclass
class Bundle:
    """Planes, each an interval where counts are: `low <= n`, `g` between `g_low` and `g_high`.

    Attributes:
        lam: The strength of the regulariser.
        n: Middle of the constants, `(T,)`.
        g: Middle of the gradients, `(T, d)`.
        low: Lower bounds of the constants; NaN where none are known: such planes steer, but prove nothing.
        g_low: Lower ends, `(T, d)`.
        g_high: Upper ends.
    """

    lam: float
    n: np.ndarray
    g: np.ndarray
    low: np.ndarray
    g_low: np.ndarray
    g_high: np.ndarray

    @staticmethod
    def empty(d: int, lam: float) -> "Bundle":
        """The plane 0, which is below any hinge."""
        none, nothing = np.zeros(1), np.zeros((1, d))
        return Bundle(lam, none, nothing, none, nothing, nothing)

    def add(self, n: float, g: np.ndarray, low: float, g_low: np.ndarray, g_high: np.ndarray) -> None:
        """One plane more."""
        self.n, self.low = np.append(self.n, n), np.append(self.low, low)
        self.g, self.g_low = np.vstack([self.g, g]), np.vstack([self.g_low, g_low])
        self.g_high = np.vstack([self.g_high, g_high])

    def keep(self, worth: np.ndarray) -> None:
        """Drop the planes of the least worth, beyond `KEPT`; never the last ones."""
        if len(self.n) > KEPT + 20:
            worth = worth.copy()
            worth[-20:] = np.inf
            kept = np.sort(np.argsort(-worth, kind="stable")[:KEPT])
            for name in ("n", "g", "low", "g_low", "g_high"):
                setattr(self, name, getattr(self, name)[kept])

    def bound(self) -> tuple[float, np.ndarray, np.ndarray]:
        """The best proof: D, the weights, and the point that minimises the model."""
        proving = np.flatnonzero(~np.isnan(self.low))
        g = self.g[proving]
        w = simplex_maximum(self.low[proving], g @ g.T / (2 * self.lam))
        ends = np.maximum(np.abs(w @ self.g_low[proving]), np.abs(w @ self.g_high[proving]))
        D = float(w @ self.low[proving] - ends @ ends / (4 * self.lam))
        weights = np.zeros(len(self.n))
        weights[proving] = w
        return D, weights, -(w @ self.g[proving]) / (2 * self.lam)

    def near(self, centre: np.ndarray, pull: float, metric: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The minimum of the model plus `pull (beta - centre)' M (beta - centre)`, and the weights of its planes.

        M is a matrix, `(d, d)`, or the diagonal of one, `(d,)`.
        """
        if metric.ndim == 1:
            A = pull * metric + self.lam
            start, back = pull * metric * centre / A, self.g.T / A[:, None]
        else:
            A = pull * metric + self.lam * np.eye(len(centre))
            solved = np.linalg.solve(A, np.column_stack([pull * (metric @ centre), self.g.T]))
            start, back = solved[:, 0], solved[:, 1:]
        w = simplex_maximum(self.n + self.g @ start, self.g @ back / 2)
        return start - back @ w / 2, w


def simplex_maximum(n: np.ndarray, H: np.ndarray, steps: int = 60) -> np.ndarray:
    """`argmax_w n.w - w' H w / 2` over the simplex, `(T,)`, by a primal-dual interior point."""
    T = len(n)
    if T == 1:
        return np.ones(1)
    H = (H + H.T) / 2
    size = max(float(np.abs(H).max()), float(np.abs(n).max()), 1e-300)
    H, n = H / size, n / size
    w, z = np.full(T, 1 / T), np.ones(T)
    nu = 0.0
    for _ in range(steps):
        mu = w @ z / T
        dual, sums = H @ w - n - nu - z, w.sum() - 1
        if mu < 1e-13 and np.abs(dual).max() < 1e-11:
            break
        target = 0.1 * mu
        factor = H + np.diag(z / w)
        right = np.stack([-(dual + z - target / w), np.ones(T)], axis=1)
        free, along = np.linalg.solve(factor, right).T
        change = (-sums - free.sum()) / along.sum()
        dw = free + change * along
        dz = target / w - z - z / w * dw
        step = min(1.0, *(0.99 / max(np.max(-d / v), 1e-300) for d, v in ((dw, w), (dz, z))))
        w, z, nu = w + step * dw, z + step * dz, nu + step * change
    w = np.maximum(w, 0)
    return w / w.sum()
