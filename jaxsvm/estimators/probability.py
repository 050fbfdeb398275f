"""Probabilities from decision values: Platt's sigmoids, and pairwise coupling for several classes.

Sources: Platt 1999, by the Newton method of Lin, Lin and Weng 2007; Wu, Lin and Weng 2004, second approach (LIBSVM's).
"""

from typing import NamedTuple

import numpy as np
from scipy.special import expit

CLIP = 1e-7
"""Probabilities of a pair are no nearer to 0 and 1 (LIBSVM's): coupling needs positive ones."""
MOST_STEPS = 100
STEEPEST = 1e-12
"""Added to the curvature, LIBSVM's."""
SMALLEST_STEP = 1e-10
ENOUGH = 1e-8
"""A gradient, in units of the weights' sum, that ends it."""


class Sigmoid(NamedTuple):
    """`P(positive | f) = 1 / (1 + exp(slope f + shift))`."""

    slope: float
    shift: float

    def __call__(self, decisions: np.ndarray) -> np.ndarray:
        """Probabilities of the positive class, clipped."""
        return np.clip(expit(-(self.slope * decisions + self.shift)), CLIP, 1 - CLIP)


def fitted_sigmoid(decisions: np.ndarray, positive: np.ndarray, weight: np.ndarray) -> Sigmoid:
    """The sigmoid of the largest likelihood, with Platt's targets in place of 0 and 1.

    Args:
        decisions: Values of samples that were left out, `(m,)`.
        positive: Whether each is of the positive class, `(m,)`.
        weight: Weights of the samples, `(m,)`.
    """
    many, few = weight[positive].sum(), weight[~positive].sum()
    target = np.where(positive, (many + 1) / (many + 2), 1 / (few + 2))
    slope, shift = 0.0, np.log((few + 1) / (many + 1))

    def loss(slope: float, shift: float) -> float:
        exponent = slope * decisions + shift
        return float(weight @ (np.logaddexp(0, exponent) - (1 - target) * exponent))

    value = loss(slope, shift)
    for _ in range(MOST_STEPS):
        p = expit(-(slope * decisions + shift))
        pull, curve = weight * (target - p), weight * p * (1 - p)
        gradient = np.array([pull @ decisions, pull.sum()])
        if np.abs(gradient).max() < ENOUGH * weight.sum():
            break
        cross = curve @ decisions
        hessian = np.array([[curve @ decisions**2, cross], [cross, curve.sum()]]) + STEEPEST * np.eye(2)
        move = -np.linalg.lstsq(hessian, gradient)[0]
        step = 1.0
        while step >= SMALLEST_STEP:
            new = loss(slope + step * move[0], shift + step * move[1])
            if new < value + 1e-4 * step * (gradient @ move):
                break
            step /= 2
        else:
            break
        slope, shift, value = slope + step * move[0], shift + step * move[1], new
    return Sigmoid(float(slope), float(shift))


def coupled(pairs: np.ndarray, k: int) -> np.ndarray:
    """Probabilities of k classes, `(m, k)`: `min sum_{i != j} (r_ji p_i - r_ij p_j)^2` over the simplex.

    Without the signs in mind: where all r are positive the solution is (Wu, Lin and Weng 2004, theorem 1), a linear
    system of k + 1 equations.

    Args:
        pairs: `r_ij = P(i | i or j)`, in LIBSVM's order of pairs i < j, `(m, k (k - 1) / 2)`.
        k: How many classes.
    """
    m = len(pairs)
    r = np.zeros((m, k, k))
    i, j = np.triu_indices(k, 1)
    r[:, i, j], r[:, j, i] = pairs, 1 - pairs
    system = np.zeros((m, k + 1, k + 1))
    system[:, :k, :k] = -r * r.transpose(0, 2, 1)
    system[:, range(k), range(k)] = (r**2).sum(axis=1)
    system[:, :k, k] = system[:, k, :k] = 1
    right = np.zeros((m, k + 1, 1))
    right[:, k] = 1
    found = np.clip(np.linalg.solve(system, right)[:, :k, 0], 0, None)  # of rounding
    return found / found.sum(axis=1, keepdims=True)
