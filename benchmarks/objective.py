"""A judge of squared-hinge fits in float64 NumPy, which shares no code with the solvers.

From the definition (docs/mathematics.md): with `margin_i = y_i h(x_i)`, `h` of the paper's scale and `R = alpha' Kt
alpha`, the primal point is `h / R`, its objective `P = (R - |alpha|^2 / C) / (2 R^2) + C/2 sum max(0, 1 - margin_i /
R)^2`, the dual value is `D = 1 / (2 R)`, and the relative gap `P / D - 1`. Kernel values are computed anew in float64
from the points.
"""

import numpy as np

ENTRIES = 2**24
"""Kernel values held at a time."""


def dense(x):
    """Rows as a dense float64 array."""
    return np.asarray(x.toarray() if hasattr(x, "toarray") else x, np.float64)


def kernel_product(x, centres, weights, gamma, dtype=np.float64):
    """`sum_j weights_j exp(-gamma |x_i - c_j|^2)` for every row of x, `(m,)`, by blocks of rows."""
    columns = np.asarray(centres.toarray() if hasattr(centres, "toarray") else centres, dtype)
    squares = (columns**2).sum(axis=1)
    out = np.empty(x.shape[0])
    rows = max(1, min(ENTRIES // max(len(columns), 1), ENTRIES // max(columns.shape[1], 1)))
    for start in range(0, x.shape[0], rows):
        part = x[start : start + rows]
        if hasattr(part, "toarray") and part.shape[1] > 1000:
            products, norms = part.astype(dtype) @ columns.T, np.asarray(part.multiply(part).sum(axis=1)).ravel()
        else:
            part = np.asarray(part.toarray() if hasattr(part, "toarray") else part, dtype)
            products, norms = part @ columns.T, (part**2).sum(axis=1)
        products *= 2
        products -= norms[:, None].astype(dtype)
        products -= squares
        np.minimum(products, 0, out=products)
        products *= dtype(gamma)
        np.exp(products, out=products)
        out[start : start + rows] = products @ weights.astype(dtype)
    return out


def judge(x, y, alpha, C, gamma, work=np.inf):
    """`R` and, where `n q d <= work`, the relative gap of weights on the simplex, for the RBF kernel with a bias.

    Args:
        x: Training points, `(n, d)` dense or SciPy CSR.
        y: Signs, `(n,)`.
        alpha: Weights, `(n,)`; scaled to sum 1 here.
        C: The penalty.
        gamma: The RBF's.
        work: The most multiplications that the gap may cost; the gap is None beyond.
    """
    alpha = np.maximum(np.asarray(alpha, np.float64), 0)
    alpha = alpha / alpha.sum()
    y = np.asarray(y, np.float64)
    support = np.flatnonzero(alpha)
    few = len(support)
    per_entry = min(x.shape[1], 100 if hasattr(x, "toarray") else x.shape[1])
    whole = float(x.shape[0]) * few * (per_entry + 20) <= work
    if not whole and float(few) * few * (per_entry + 20) > work:
        return {"R": None, "gap": None, "support": few}
    signed = (y * alpha)[support]
    rows = np.arange(x.shape[0]) if whole else support
    margins = y[rows] * (kernel_product(x[rows], x[support], signed, gamma) + signed.sum())
    R = float(alpha[rows] @ margins + alpha @ alpha / C)
    if not whole:
        return {"R": R, "gap": None, "support": few}
    slack = np.maximum(0, 1 - margins / R)
    primal = (R - alpha @ alpha / C) / (2 * R**2) + C / 2 * (slack @ slack)
    return {"R": R, "gap": float(2 * R * primal - 1), "support": few}
