"""Problems for the test suite: random ones, named hard ones, and the published table (NumPy only)."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from oracle import kernel_matrix

SIZES = (50, 100, 200, 400)  # few shapes, so few compilations
DIMENSIONS = (3, 10)


@dataclass(frozen=True)
class Problem:
    """One binary training problem with its float64 kernel matrix."""

    name: str
    x: np.ndarray  # (n, d) float64
    y: np.ndarray  # (n,) float64 in {-1, +1}, both classes present
    C: float
    kernel: str  # key of oracle.KERNELS
    params: dict = field(default_factory=dict)  # keyword arguments of that kernel
    weight: np.ndarray | None = None  # (n,) or None
    K: np.ndarray = field(init=False, repr=False)  # (n, n)

    def __post_init__(self):
        object.__setattr__(self, "K", kernel_matrix(self.kernel, self.x, **self.params))

    @property
    def n(self):
        return len(self.y)


def average_squared_distance(x):
    """Over all pairs: ``2 trace(Cov)``, the paper's ``sigma^2``."""
    return float(2 * x.var(0).sum())


def _labels(rng, x, homogeneous, kind, fraction):
    """Labels of a linear or quadratic teacher; ``fraction`` of the samples positive, before noise."""
    n, d = x.shape
    a = rng.normal(size=(d, d))
    score = ((x @ a) * x).sum(1) if homogeneous else x @ rng.normal(size=d)
    positives = min(max(round(fraction * n), 2), n - 2)
    order = np.argsort(score)
    y = -np.ones(n)
    y[order[n - positives :]] = 1.0
    if kind == "noisy":
        flip = rng.random(n) < 0.15
        y[flip] = -y[flip]
    elif kind == "random":
        y = rng.permutation(y)
    y[order[-1]], y[order[0]] = 1.0, -1.0
    return y


def random_problem(index, seed=0) -> Problem:
    """Problem number ``index``; kernel, n and d cycle, everything else is drawn from ``(seed, index)``."""
    rng = np.random.default_rng([seed, index])
    kernel = ("linear", "rbf", "poly", "poly")[index % 4]
    n, d = SIZES[index // 4 % 4], DIMENSIONS[index // 16 % 2]
    x = rng.normal(size=(n, d)) * rng.uniform(0.5, 2.0, size=d) + rng.normal(size=d) * 0.3
    kind = ("noisy", "separable", "noisy", "random")[rng.integers(4)]
    fraction = (0.5, 0.5, 0.3, 0.1, 0.03)[rng.integers(5)]
    homogeneous = index % 4 == 3 or (index % 4 in (1, 2) and rng.random() < 0.5)
    y = _labels(rng, x, homogeneous, kind, fraction)
    scale = average_squared_distance(x)
    params = (
        {},
        {"gamma": float(10 ** rng.uniform(-1, 1) / scale)},
        {"degree": 2, "gamma": 1.0, "coef0": 1.0},
        {"degree": 2, "gamma": 1.0 / scale, "coef0": 0.0},
    )[index % 4]
    C = float(10 ** rng.uniform(-2, 4))
    tag = ("linear", "rbf", "poly1", "poly0")[index % 4]
    return Problem(f"{index:03d}-{tag}-n{n}-d{d}-{kind}-C{C:.2g}", x, y, C, kernel, params)


def random_problems(count=200, seed=0) -> Iterator[Problem]:
    """The random problems of the acceptance test, one at a time; problem ``i`` does not depend on ``count``."""
    for index in range(count):
        yield random_problem(index, seed)


def _blobs(rng, n, d, distance, fraction=0.5):
    y = np.where(np.arange(n) < max(1, round(fraction * n)), 1.0, -1.0)
    shift = np.zeros(d)
    shift[0] = distance / 2
    return rng.normal(size=(n, d)) + y[:, None] * shift, y


def hard_cases() -> list[Problem]:
    """Named hard problems.  All have a positive definite ``Kt`` in float64."""
    rng = np.random.default_rng(2024)
    x, y = _blobs(rng, 40, 3, 2.0)
    repeated_x, repeated_y = np.repeat(x, 4, 0), np.repeat(y, 4)
    opposite_x, opposite_y = np.repeat(x, 2, 0), np.tile([1.0, -1.0], len(x))
    mixed_y = np.repeat(y, 4) * np.tile([1.0, 1.0, 1.0, -1.0], len(x))
    rare_x, rare_y = _blobs(rng, 1001, 3, 3.0, 1 / 1001)
    raw, raw_y = _blobs(rng, 100, 3, 2.0)
    raw = 1e3 * raw + 1e4 * np.array([1.0, -1.0, 1.0])
    mixed_scale = raw * np.array([1.0, 1e-3, 1e-6])
    clean_x, clean_y = _blobs(rng, 100, 3, 8.0)
    noisy_x, noisy_y = _blobs(rng, 100, 3, 1.0)
    pair = np.array([[1.0, 2.0, 0.0], [-1.0, 0.5, 1.0]])
    pair_y = np.array([1.0, -1.0])
    line = np.linspace(-1, 1, 50)[:, None] * np.array([1.0, 2.0, -1.0])
    line_y = np.where(np.arange(50) < 25, -1.0, 1.0)
    line_noisy = line_y * np.where(np.arange(50) % 7 == 3, -1.0, 1.0)
    square = {"degree": 2, "gamma": 1.0, "coef0": 1.0}
    raw_gamma = {"gamma": 1 / average_squared_distance(raw)}
    return [
        Problem("duplicates-same-label-linear", repeated_x, repeated_y, 10.0, "linear"),
        Problem("duplicates-same-label-rbf", repeated_x, repeated_y, 1e3, "rbf", {"gamma": 0.5}),
        Problem("duplicates-opposite-labels-linear", opposite_x, opposite_y, 10.0, "linear"),
        Problem("duplicates-opposite-labels-rbf", opposite_x, opposite_y, 1e3, "rbf", {"gamma": 0.5}),
        Problem("duplicates-mixed-labels-rbf", repeated_x, mixed_y, 1e2, "rbf", {"gamma": 0.5}),
        Problem("identical-points-opposite-labels", np.ones((20, 3)), np.tile([1.0, -1.0], 10), 1.0, "linear"),
        Problem("imbalance-1-to-1000-linear", rare_x, rare_y, 1.0, "linear"),
        Problem("imbalance-1-to-1000-rbf", rare_x, rare_y, 100.0, "rbf", {"gamma": 0.3}),
        Problem("unscaled-linear", raw, raw_y, 1e-2, "linear"),
        Problem("unscaled-linear-C1", raw, raw_y, 1.0, "linear"),
        Problem("unscaled-rbf", raw, raw_y, 10.0, "rbf", raw_gamma),
        Problem("mixed-scales-linear", mixed_scale, raw_y, 1.0, "linear"),
        Problem("C1e6-separable-linear", clean_x, clean_y, 1e6, "linear"),
        Problem("C1e6-separable-rbf", clean_x, clean_y, 1e6, "rbf", {"gamma": 0.1}),
        Problem("C1e6-noisy-linear", noisy_x, noisy_y, 1e6, "linear"),
        Problem("C1e6-noisy-rbf", noisy_x, noisy_y, 1e6, "rbf", {"gamma": 0.5}),
        Problem("C1e6-noisy-poly", noisy_x, noisy_y, 1e6, "poly", square),
        Problem("C1e-2-noisy-rbf", noisy_x, noisy_y, 1e-2, "rbf", {"gamma": 0.5}),
        Problem("one-sample-per-class-linear", pair, pair_y, 1.0, "linear"),
        Problem("one-sample-per-class-rbf", pair, pair_y, 1e4, "rbf", {"gamma": 0.5}),
        Problem("collinear-separable-linear", line, line_y, 100.0, "linear"),
        Problem("collinear-noisy-linear", line, line_noisy, 100.0, "linear"),
        Problem("collinear-noisy-poly", line, line_noisy, 1e3, "poly", square),
    ]


def hard_case(name) -> Problem:
    """One hard problem by name."""
    return next(p for p in hard_cases() if p.name == name)


def weighted_problems(count=12, seed=1) -> Iterator[Problem]:
    """Random problems with sample weights: zeros (one fifth, never a whole class), integers and fractions."""
    for index in range(count):
        p = random_problem(index, seed)
        rng = np.random.default_rng([seed, index, 7])
        weight = np.where(rng.random(p.n) < 0.5, rng.integers(1, 4, p.n), rng.uniform(0.05, 2.0, p.n))
        weight[rng.random(p.n) < 0.2] = 0.0
        for label in (-1.0, 1.0):
            weight[np.flatnonzero(p.y == label)[0]] = 1.0
        yield Problem(p.name + "-weighted", p.x, p.y, p.C, p.kernel, p.params, weight)
