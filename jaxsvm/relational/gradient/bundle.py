"""Keep cutting planes of the mean hinge, prove lower bounds from them, and choose the next point.

Weights `alpha(x)` in [0, 1] give a plane below the mean hinge, `n + g.beta` with `n = mean alpha` and
`g = -mean alpha y x`; counts of far rows are such weights. Convex combinations w of planes are planes too, so

    D(w) = sum_t w_t n_t - |sum_t w_t g_t|^2 / (4 lam)  <=  F*

for any w on the simplex. The window of iterates that the stability-free certificate averages is the case of equal
weights, and `beta = -sum_t w_t g_t / (2 lam)` with `w = 1 / t` is the step `1 / (2 lam t)`. The best weights solve a
small quadratic program; its beta minimises the model of F (Teo, Vishwanathan, Smola, Le, "Bundle Methods for
Regularized Risk Minimization", JMLR 2010). A proximal term around the best point is added in the metric `E x x'`, which
is the curvature of the mean hinge up to a factor (the density of scores at the margin). So steps are about Newton's,
and the planes correct them.
"""

import dataclasses

import numpy as np

from jaxsvm.numerics.hinge_program import simplex_maximum


@dataclasses.dataclass
class Bundle:
    """Cutting planes. Each is an interval if counts are: `low <= n`, `g` between `g_low` and `g_high`."""

    lam: float  # the strength of the regulariser
    n: np.ndarray  # middle of the constants, `(T,)`
    g: np.ndarray  # middle of the gradients, `(T, d)`
    low: np.ndarray  # lower bounds of the constants; NaN if unknown: such planes steer, but prove nothing
    g_low: np.ndarray  # lower ends, `(T, d)`
    g_high: np.ndarray  # upper ends, `(T, d)`

    @staticmethod
    def empty(d: int, lam: float) -> "Bundle":
        """Return the plane 0, which is below any hinge."""
        constant, gradient = np.zeros(1), np.zeros((1, d))
        return Bundle(lam, constant, gradient, constant, gradient, gradient)

    def add(self, n: float, g: np.ndarray, low: float, g_low: np.ndarray, g_high: np.ndarray) -> None:
        """Add a plane."""
        for name, value in (("n", n), ("g", g), ("low", low), ("g_low", g_low), ("g_high", g_high)):
            setattr(self, name, np.append(getattr(self, name), [value], axis=0))

    def keep(self, worth: np.ndarray) -> None:
        """Drop the planes of the least worth: of 121 or more keep 100, among them the last 20."""
        if len(self.n) > 120:
            worth = worth.copy()
            worth[-20:] = np.inf
            kept = np.sort(np.argsort(-worth, kind="stable")[:100])
            for name in ("n", "g", "low", "g_low", "g_high"):
                setattr(self, name, getattr(self, name)[kept])

    def bound(self) -> tuple[float, np.ndarray]:
        """Return the best lower bound D and the weights of its planes."""
        proving = np.flatnonzero(~np.isnan(self.low))
        low, g, ends = self.low[proving], self.g[proving], (self.g_low[proving], self.g_high[proving])

        def proven(w: np.ndarray) -> np.ndarray:
            return w @ low - (np.maximum(*(np.abs(w @ end) for end in ends)) ** 2).sum(axis=-1) / (4 * self.lam)

        w = simplex_maximum(low, g @ g.T / (2 * self.lam))
        alone = proven(np.eye(len(low)))
        if alone.max() > proven(w):  # the program rounds to a share of its largest entry, of the order of 1 / lam
            w = np.eye(len(low))[alone.argmax()]
        weights = np.zeros(len(self.n))
        weights[proving] = w
        return float(proven(w)), weights

    def near(self, centre: np.ndarray, pull: float, metric: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        """Return the minimum of the model plus `pull (beta - centre)' M (beta - centre)`.

        Also the weights of its planes, and the model there. The metric M is `(d, d)`, or a diagonal, `(d,)`.
        """
        if metric.ndim == 1:
            A = pull * metric + self.lam
            start, back = pull * metric * centre / A, self.g.T / A[:, None]
        else:
            A = pull * metric + self.lam * np.eye(len(centre))
            solved = np.linalg.solve(A, np.column_stack([pull * (metric @ centre), self.g.T]))
            start, back = solved[:, 0], solved[:, 1:]
        w = simplex_maximum(self.n + self.g @ start, self.g @ back / 2)
        beta = start - back @ w / 2
        return beta, w, float((self.n + self.g @ beta).max() + self.lam * beta @ beta)
